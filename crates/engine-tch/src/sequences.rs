//! The current sequences: KV cache, rotary tables, and the parts of them that one append needs.

use bundle::{LayerAttention, ModelConfig};
use tch::{Device, Kind, TchError, Tensor};
use worker::engine::{
    CacheMemory, EngineError, HandsOver, Plane, Precision, Result, Settings, begun, check_begin, check_filled,
};

use crate::layout::Layout;
use crate::rotation::Rotation;
use crate::shim::InferenceMode;
use crate::{Tch, framework};

/// Dimensions of the cache.
const LAYER: i64 = 0;

const SEQUENCE: i64 = 1;

const HEAD: i64 = 2;

const POSITION: i64 = 3;

pub(crate) struct Sequences {
    pub(crate) batch: usize,
    pub(crate) capacity: usize,
    pub(crate) filled: usize,
    /// Whether the model has listened to the audio of the sequence.
    pub(crate) has_listened: bool,
    /// Padding positions before each sequence, so that all end at the same one; empty if all have the same
    /// length.
    pub(crate) padding: Vec<i64>,
    kv_heads: i64,
    causal: bool,
    /// `[layer, batch, keys' heads then values', position, dimension of a head]`. In a bidirectional model
    /// nothing is kept, and all layers share the memory of one.
    cache: Tensor,
    /// The cache of each layer, with exactly the filled positions, if nothing is preallocated. `cache` then
    /// has no positions.
    grown: Option<Vec<Tensor>>,
    /// One for each of the model's rotations.
    rotations: Vec<Rotation>,
    window: Option<i64>,
    pub(crate) kinds: Kinds,
}

/// How keys and values are kept, and the element types of cache and attention.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Kinds {
    pub(crate) cache: Kind,
    /// Element type for attention of several queries.
    pub(crate) attention: Kind,
    /// Element type for attention of one query: that of the cache, unless libtorch's kernels for it are slow
    /// here.
    pub(crate) single: Kind,
    /// Whether every append copies keys and values into new memory.
    pub(crate) grows: bool,
    /// Whether attention is plain products and a softmax, instead of libtorch's kernel.
    pub(crate) in_products: bool,
}

impl Kinds {
    /// The requested types, for weights in `layout` and activations of `kind`. A cache of another type than
    /// attention is supported only by fused layers on a CPU.
    pub(crate) fn choose(
        settings: &Settings,
        (layout, kind): (Layout, Kind),
        device: Device,
        is_fused: bool,
    ) -> Result<Kinds> {
        let usual = layout.attention_kind(kind);
        let cache = match settings.cache() {
            Precision::Bf16 => Kind::BFloat16,
            Precision::F16 => Kind::Half,
            _ => Kind::Float,
        };
        let emulated = usual != kind && cache != Kind::Float;
        if cache != usual && !(is_fused && device == Device::Cpu) {
            return Err(EngineError::Unsupported(format!(
                "a KV cache in {} where attention computes in {usual:?}: only fused layers on a CPU have that",
                settings.cache()
            )));
        }
        // A cache in f32 is for full precision, so attention computes in f32 too.
        let attention = if cache == Kind::Float { Kind::Float } else { usual };
        let single = if emulated { Kind::Float } else { cache };
        Ok(Kinds { cache, attention, single, grows: false, in_products: false })
    }
}

impl Sequences {
    pub(crate) fn new(
        config: &ModelConfig,
        (batch, capacity): (usize, usize),
        (kind, device): (Kind, Device),
        kinds: Kinds,
    ) -> Result<Sequences, TchError> {
        let shape = shape(config, batch, if kinds.grows { 0 } else { capacity });
        let mut held = shape;
        if !config.causal {
            held[0] = 1;
        }
        let cache = Tensor::f_zeros(held, (kinds.cache, device))?.f_expand(shape, false)?;
        Sequences::over(config, (batch, capacity), (kind, device), kinds, cache)
    }

    /// The same with the given `cache`, which has the shape of [`shape`].
    pub(crate) fn over(
        config: &ModelConfig,
        (batch, capacity): (usize, usize),
        options: (Kind, Device),
        kinds: Kinds,
        cache: Tensor,
    ) -> Result<Sequences, TchError> {
        Ok(Sequences {
            batch,
            capacity,
            filled: 0,
            has_listened: false,
            padding: Vec::new(),
            kv_heads: config.kv_heads as i64,
            causal: config.causal,
            grown: if kinds.grows { Some(cache.f_unbind(LAYER)?) } else { None },
            cache,
            rotations: Rotation::tables(config, capacity, options)?,
            window: config.window().map(|window| window as i64),
            kinds,
        })
    }

    pub(crate) fn memory(&self) -> CacheMemory {
        let sizes: Vec<usize> = self.cache.size().iter().map(|&size| size as usize).collect();
        let [layers, batch, heads, capacity, dim] = sizes[..] else { unreachable!("five dimensions") };
        let kv_heads = heads / 2;
        let plane = |place: usize| Plane {
            address: self.cache.data_ptr() as usize + place * kv_heads * capacity * dim * size_of::<f32>(),
            shape: [batch, kv_heads, capacity, dim],
            strides: [heads * capacity * dim, capacity * dim, dim, 1],
        };
        let layers = (0..layers).map(|layer| 2 * layer * batch).map(|place| [plane(place), plane(place + 1)]);
        CacheMemory { layers: layers.collect() }
    }

    /// Allocated bytes of keys and values, if they are kept.
    pub(crate) fn cache_bytes(&self) -> Option<u64> {
        let bytes = |tensor: &Tensor| (tensor.numel() * tensor.kind().elt_size_in_bytes()) as u64;
        match &self.grown {
            Some(layers) => Some(layers.iter().map(bytes).sum()),
            None => self.causal.then(|| bytes(&self.cache)),
        }
    }

    pub(crate) fn restart(&mut self) -> Result<(), TchError> {
        self.filled = 0;
        self.has_listened = false;
        self.padding.clear();
        if let Some(layers) = &mut self.grown {
            *layers = self.cache.f_unbind(LAYER)?;
        }
        Ok(())
    }

    /// Counts the positions that `step` appended as filled.
    pub(crate) fn advance(&mut self, step: &mut Step) {
        self.filled += step.positions as usize;
        self.grown = step.grown.take();
    }

    /// The step that appends `positions` to each sequence. `causal`: whether the kernel or a mask hides later
    /// keys, if no earlier ones are cached.
    pub(crate) fn step(&mut self, positions: usize, causal: Causal) -> Result<Step, TchError> {
        let (past, positions) = (self.filled as i64, positions as i64);
        if !self.padding.is_empty() {
            let step = self.step_at(&self.cache, (0, past), positions, Causal::ByMask)?;
            return self.padded(step, past);
        }
        let mut step = self.step_at(&self.cache, (0, past), positions, causal)?;
        step.parts = self.parts(positions, past + positions)?;
        step.grown = self.grown.take();
        Ok(step)
    }

    /// The steps that append prompts of these lengths to empty sequences, one for each.
    pub(crate) fn prompts(&mut self, lengths: &[usize], causal: Causal) -> Result<Vec<Step>, TchError> {
        let longest = lengths.iter().copied().max().unwrap_or(0) as i64;
        self.padding = lengths.iter().map(|&length| longest - length as i64).collect();
        let prompt = |(sequence, (&length, &padding)): (usize, (&usize, &i64))| {
            let own = self.cache.f_narrow(SEQUENCE, sequence as i64, 1)?;
            self.step_at(&own, (padding, 0), length as i64, causal)
        };
        lengths.iter().zip(&self.padding).enumerate().map(prompt).collect()
    }

    /// `prompts` as one step; their rows follow one another.
    pub(crate) fn joined(&self, prompts: Vec<Step>) -> Result<Step, TchError> {
        let rows: Vec<i64> = prompts.iter().flat_map(|prompt| 0..prompt.positions).collect();
        let mut step = Step { batch: 1, positions: rows.len() as i64, ..Step::empty(self) };
        step.set_places(&self.rotations, &rows, self.cache.device())?;
        step.prompts = prompts;
        Ok(step)
    }

    /// `step` after `past` positions, if there is padding before sequences.
    fn padded(&self, mut step: Step, past: i64) -> Result<Step, TchError> {
        let device = self.cache.device();
        let (batch, total) = (step.batch, past + step.positions);
        let places = past..total;
        let places =
            self.padding.iter().flat_map(|&padding| places.clone().map(move |place| place - padding));
        step.set_places(&self.rotations, &places.collect::<Vec<i64>>(), device)?;
        let first = Tensor::f_from_slice(&self.padding)?.f_view([batch, 1, 1, 1])?.f_to_device(device)?;
        let is_padding = Tensor::f_arange(total, (Kind::Int64, device))?.f_less_tensor(&first)?;
        let options = (self.kinds.attention, device);
        let hidden = |window| {
            let seen = hidden_keys([step.positions, total], past + 1, window, options)?;
            seen.f_masked_fill(&is_padding, f64::NEG_INFINITY)
        };
        let sliding = self.window.filter(|&window| total > window);
        let sliding_mask = sliding.map(|window| hidden(Some(past - window))).transpose()?;
        (step.mask, step.sliding_mask) = (Some(hidden(None)?), sliding_mask);
        Ok(step)
    }

    /// The step that appends `positions` to the sequences in `cache`, all or a part of them. They start at
    /// `start` and have `past` positions.
    fn step_at(
        &self,
        cache: &Tensor,
        (start, past): (i64, i64),
        positions: i64,
        causal: Causal,
    ) -> Result<Step, TchError> {
        let total = past + positions;
        let masked = positions > 1 && self.causal;
        let options = (self.kinds.attention, self.cache.device());
        let hidden = |window| hidden_keys([positions, total], past + 1, window, options);
        let mask = match causal {
            _ if !masked => None,
            Causal::ByKernel if past == 0 => None,
            _ => Some(hidden(None)?),
        };
        let sliding_mask = match self.window {
            Some(window) if masked && total > window => Some(hidden(Some(past - window))?),
            _ => None,
        };
        let kv_heads = self.kv_heads;
        let part = |first, count| cache.f_narrow(POSITION, start + first, count);
        let (slots, keys, values) = match &self.grown {
            // They are made layer by layer.
            Some(_) => (Vec::new(), Vec::new(), Vec::new()),
            None => (
                part(past, positions)?.f_unbind(LAYER)?,
                part(0, total)?.f_narrow(HEAD, 0, kv_heads)?.f_unbind(LAYER)?,
                part(0, total)?.f_narrow(HEAD, kv_heads, kv_heads)?.f_unbind(LAYER)?,
            ),
        };
        let rotations = self.rotations.iter().map(|tables| tables.at(past, positions));
        Ok(Step {
            batch: cache.size()[SEQUENCE as usize],
            positions,
            past,
            rotations: rotations.collect::<Result<_, _>>()?,
            mask,
            sliding_mask,
            slots,
            keys,
            values,
            ..Step::empty(self)
        })
    }
}

/// A mask to add to scores, `[queries, keys]`. It hides keys from diagonal `ahead` on and up to diagonal
/// `behind`. Diagonal 0 begins at the first query and the first key.
pub(crate) fn hidden_keys(
    shape: [i64; 2],
    ahead: i64,
    behind: Option<i64>,
    options: (Kind, Device),
) -> Result<Tensor, TchError> {
    let all = Tensor::f_full(shape, f64::NEG_INFINITY, options)?;
    let hidden = all.f_triu(ahead)?;
    match behind {
        Some(behind) => hidden.f_add(&all.f_tril(behind)?),
        None => Ok(hidden),
    }
}

/// A context that is cut into as many parts as there are threads.
pub(crate) struct Parts {
    pub(crate) count: i64,
    /// Keys of each part. The last may extend beyond the filled positions.
    pub(crate) keys: i64,
    /// `[count, 1, 1, keys]`: hides unfilled positions; `None` if there are none.
    pub(crate) mask: Option<Tensor>,
}

impl Parts {
    /// From this many keys, cutting is faster. Measured with three heads that share keys and two threads: 32
    /// instead of 11 µs at 48 keys, the same at 512, and 176 instead of 283 µs at 2,048.
    const LEAST: i64 = 768;
}

impl Sequences {
    /// How the context is cut for one query, because few heads do not keep all threads busy. The 16-bit
    /// kernels do not become faster.
    fn parts(&self, positions: i64, total: i64) -> Result<Option<Parts>, TchError> {
        let count = i64::from(tch::get_num_threads());
        let keys = (total + count - 1) / count.max(1);
        let on_cpu = (self.cache.kind(), self.cache.device()) == (Kind::Float, Device::Cpu);
        let is_single = self.causal && positions == 1 && self.batch == 1;
        let room = if self.kinds.grows { total } else { self.capacity as i64 };
        let has_room = count * keys <= room;
        if count < 2 || total < Parts::LEAST || !(on_cpu && is_single && has_room) {
            return Ok(None);
        }
        let hidden = count * keys - total;
        let mask = || {
            let mask = Tensor::f_zeros([count * keys], (Kind::Float, Device::Cpu))?;
            let _ = mask.f_narrow(0, total, hidden)?.f_fill_(f64::NEG_INFINITY)?;
            mask.f_view([count, 1, 1, keys])
        };
        let mask = if hidden == 0 { None } else { Some(mask()?) };
        Ok(Some(Parts { count, keys, mask }))
    }
}

/// Where the causal mask is applied.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Causal {
    /// In the attention kernel, which supports the case of an empty cache.
    ByKernel,
    /// By the caller, which adds the mask.
    ByMask,
}

pub(crate) fn shape(config: &ModelConfig, batch: usize, capacity: usize) -> [i64; 5] {
    [config.layers.len(), batch, 2 * config.kv_heads, capacity, config.head_dim].map(|size| size as i64)
}

/// One append, as input of the layers.
pub(crate) struct Step {
    pub(crate) batch: i64,
    kv_heads: i64,
    pub(crate) positions: i64,
    pub(crate) past: i64,
    /// `[batch · positions]`, if sequences differ: the position of each row in its sequence.
    pub(crate) places: Option<Tensor>,
    /// The prompts in this step, if they differ in length. Each has its own keys and values.
    pub(crate) prompts: Vec<Step>,
    pub(crate) causal: bool,
    /// The rotations of these positions, to be broadcast over `[batch, position, head, dimension]`.
    pub(crate) rotations: Vec<Rotation>,
    /// `[positions, past + positions]`, or `[batch, 1, …]` if sequences differ; added to the scores.
    pub(crate) mask: Option<Tensor>,
    pub(crate) sliding_mask: Option<Tensor>,
    /// How the context is cut for one query, if that is faster.
    pub(crate) parts: Option<Parts>,
    /// By layer, `[batch, keys' heads then values', positions, dimension]`: the room for new keys and values.
    pub(crate) slots: Vec<Tensor>,
    /// By layer, `[batch, head, past + positions, dimension]`.
    pub(crate) keys: Vec<Tensor>,
    pub(crate) values: Vec<Tensor>,
    /// As in [`Sequences`]; the layers computed so far already include the new positions.
    grown: Option<Vec<Tensor>>,
}

impl Step {
    fn empty(sequences: &Sequences) -> Step {
        Step {
            batch: 0,
            kv_heads: sequences.kv_heads,
            positions: 0,
            past: 0,
            places: None,
            prompts: Vec::new(),
            causal: sequences.causal,
            rotations: Vec::new(),
            mask: None,
            sliding_mask: None,
            parts: None,
            slots: Vec::new(),
            keys: Vec::new(),
            values: Vec::new(),
            grown: None,
        }
    }

    /// Sets the position of each row in its sequence.
    fn set_places(&mut self, tables: &[Rotation], places: &[i64], device: Device) -> Result<(), TchError> {
        let places = Tensor::f_from_slice(places)?.f_to_device(device)?;
        let (batch, positions) = (self.batch, self.positions);
        let rotations = tables.iter().map(|tables| tables.at_each(&places)?.by_sequence(batch, positions));
        self.rotations = rotations.collect::<Result<_, _>>()?;
        self.places = Some(places);
        Ok(())
    }

    /// Appends new keys and values of a layer, `[batch, keys' heads then values', positions, dimension]`.
    /// Must be called in the order of layers.
    pub(crate) fn store(&mut self, index: usize, new: &Tensor) -> Result<(), TchError> {
        let Some(layers) = &mut self.grown else {
            return self.slots[index].f_copy_(new);
        };
        let past = &layers[index];
        let all = Tensor::f_cat(&[past.shallow_clone(), new.f_to_kind(past.kind())?], POSITION - 1)?;
        self.keys.push(all.f_narrow(HEAD - 1, 0, self.kv_heads)?);
        self.values.push(all.f_narrow(HEAD - 1, self.kv_heads, self.kv_heads)?);
        layers[index] = all;
        Ok(())
    }

    /// How the queries and keys of a layer are rotated, if they are.
    pub(crate) fn rotation(&self, layer: LayerAttention) -> Option<&Rotation> {
        layer.rotation.map(|rotation| &self.rotations[rotation])
    }

    /// The mask of a layer; `None` if the attention kernel needs none.
    pub(crate) fn mask(&self, layer: LayerAttention) -> Option<&Tensor> {
        let sliding = self.sliding_mask.as_ref().filter(|_| layer.window.is_some());
        sliding.or(self.mask.as_ref())
    }

    /// The keys and values that a single query sees, if they are not all. It needs no mask then.
    pub(crate) fn within_window(
        &self,
        index: usize,
        layer: LayerAttention,
    ) -> Result<Option<[Tensor; 2]>, TchError> {
        let first = layer.first_key(self.past as usize) as i64;
        // If there is padding, the mask also covers the window.
        if self.positions > 1 || first == 0 || self.places.is_some() {
            return Ok(None);
        }
        let seen = |all: &Tensor| all.f_narrow(2, first, self.past + 1 - first);
        Ok(Some([seen(&self.keys[index])?, seen(&self.values[index])?]))
    }
}

// Sharing keys and values with another engine of the process ([`engine::HandsOver`]): libtorch's own cache,
// which the other engine uses, or a tensor over the other engine's memory.

impl HandsOver for Tch {
    fn export(&mut self) -> Result<CacheMemory> {
        check_f32(self)?;
        Ok(begun(self.sequences.as_ref())?.memory())
    }

    #[allow(unsafe_code)]
    unsafe fn begin_in(&mut self, batch: usize, capacity: usize, memory: &CacheMemory) -> Result<()> {
        check_f32(self)?;
        let model = self.body.decoder()?;
        check_begin(&model.config, batch, capacity)?;
        if !in_one_piece(memory) {
            return Err(EngineError::Unsupported(
                "writes keys and values of a sequence at once, and so wants those of all layers in one piece"
                    .into(),
            ));
        }
        self.sequences = None;
        let config = &model.config;
        let shape = self::shape(config, batch, capacity);
        let _mode = InferenceMode::enter();
        // SAFETY: the shape was checked, and the caller promises that the memory stays valid. The tensor
        // frees nothing.
        let cache = unsafe {
            Tensor::f_from_blob(memory.address() as *const u8, &shape, &[], Kind::Float, Device::Cpu)
        };
        let over = |cache| Sequences::over(config, (batch, capacity), model.options, model.kinds, cache);
        let sequences = cache.and_then(over).map_err(framework)?;
        if !sequences.memory().is(memory) {
            return Err(EngineError::Unsupported("lays this model's keys and values out otherwise".into()));
        }
        self.sequences = Some(sequences);
        Ok(())
    }

    fn set_filled(&mut self, positions: usize) -> Result<()> {
        let sequences = begun(self.sequences.as_mut())?;
        check_filled(positions, sequences.capacity)?;
        sequences.filled = positions;
        Ok(())
    }
}

fn check_f32(engine: &mut Tch) -> Result<()> {
    let model = engine.body.decoder()?;
    if (model.kinds.cache, model.options.1) == (Kind::Float, Device::Cpu) && !model.kinds.grows {
        return Ok(());
    }
    Err(EngineError::Unsupported(
        "keeps its keys and values otherwise than in f32 in main memory, in one place".into(),
    ))
}

/// Whether `memory` is one piece without gaps: adjacent planes of one sequence.
fn in_one_piece(memory: &CacheMemory) -> bool {
    let mut planes = memory.layers.iter().flatten();
    let Some(first) = planes.next().filter(|plane| plane.shape[0] == 1 && plane.is_contiguous()) else {
        return false;
    };
    let bytes = first.shape.iter().product::<usize>() * size_of::<f32>();
    planes.zip(1..).all(|(plane, place)| {
        plane.is_contiguous() && plane.shape == first.shape && plane.address == first.address + place * bytes
    })
}
