//! A batch of sequences: their KV cache, and the tensors bound to the graph, for each shape of append.

use bundle::rotary;
use onnx::graph::{
    LAST_POSITIONS, LOGITS, POSITIONS, ROWS, TOKENS, TOTAL, cache_names, hidden_output, rotary_names,
};
use ort::memory::{Allocator, MemoryInfo};
use ort::session::IoBinding;
use ort::value::{DynTensor, Tensor, TensorElementType};
use worker::engine::{
    CacheMemory, Device, EngineError, HandsOver, Plane, Result, Want, begun, check_begin, check_filled,
};

use crate::model::{CACHE_IS_COPIED, Model};
use crate::runtime::{self, framework, tensor_over};
use crate::{Decoder, Ort};

/// Shapes of append that stay bound: those of the context, the prompt and the decode step.
const PASSES: usize = 3;

/// A number that no key or value is likely to have.
const MARK: f32 = -12_345.0;

pub(crate) struct Sequences {
    pub(crate) batch: usize,
    pub(crate) capacity: usize,
    /// Positions in use, in the longest sequence.
    pub(crate) filled: usize,
    /// Positions in use in each sequence, if they differ. Each continues after its own last token.
    pub(crate) filled_each: Vec<usize>,
    /// Whether the model has heard the audio that the sequence continues.
    pub(crate) heard: bool,
    /// Positions of padding after prompts of different lengths.
    padding: usize,
    /// Each sequence separately, made when first needed. They use the cache's memory, and are dropped before
    /// it.
    rows: Vec<Sequences>,
    /// Keys and values of each layer in turn, `[batch, kv_heads, capacity, cached_head_dim]`, on the model's
    /// device.
    cache: Vec<DynTensor>,
    /// Whether the cache has no spare room, so that every append makes a new one.
    grows: bool,
    /// Whether the first append has been checked to write into the cache in place.
    cache_checked: bool,
    /// cos and sin, `[capacity, rotated dimensions / 2]`, for each of the model's rotations.
    rotary: Vec<[DynTensor; 2]>,
    /// The most recently used is last.
    passes: Vec<Pass>,
    /// The results of the last append, if it took several runs.
    gathered: Option<Gathered>,
}

/// Logits and hidden states from several runs.
#[derive(Default)]
struct Gathered {
    logits: Vec<f32>,
    hidden: Vec<Vec<f32>>,
}

/// One shape of append: its tensors, and their binding to the session.
pub(crate) struct Pass {
    count: usize,
    want: Want,
    /// Lengths of prompts, if they differ.
    lengths: Vec<usize>,
    binding: IoBinding,
    tokens: Tensor<i64>,
    /// Last positions of the sequences and their length, if there is a cache.
    filled: Option<(Tensor<i32>, Tensor<i32>)>,
    positions: Option<Tensor<i64>>,
    logits: Tensor<f32>,
    hidden: Vec<Tensor<f32>>,
}

impl Sequences {
    pub(crate) fn new(model: &Model, batch: usize, capacity: usize) -> ort::Result<Sequences> {
        let allocator = runtime::allocator(&model.running.session, model.device)?;
        let shape = cache_shape(model, batch, if model.running.options.grows { 0 } else { capacity });
        let cached = if model.config.causal { 2 * model.config.layers.len() } else { 0 };
        let mut cache = Vec::with_capacity(cached);
        for _ in 0..cached {
            let mut tensor = DynTensor::new(&allocator, runtime::element(model.products.float()), shape)?;
            // Memory of a GPU comes as others left it, and a hidden NaN times 0 is NaN.
            if model.device != Device::Cpu {
                runtime::fill(&mut tensor, 0)?;
            }
            cache.push(tensor);
        }
        Sequences::over(model, (batch, capacity), cache)
    }

    /// The same with these tensors as cache: keys and values of each layer in turn.
    pub(crate) fn over(
        model: &Model,
        (batch, capacity): (usize, usize),
        cache: Vec<DynTensor>,
    ) -> ort::Result<Sequences> {
        let (config, float) = (&model.config, model.products.float());
        let shape = [capacity, config.rotary_dim() / 2];
        let tables = rotary::tables(config, capacity).into_iter();
        let rotary = tables
            .map(|(cos, sin)| Ok([runtime::table(shape, cos, float)?, runtime::table(shape, sin, float)?]));
        let rotary = rotary.collect::<ort::Result<_>>()?;
        Ok(Sequences {
            batch,
            capacity,
            filled: 0,
            filled_each: Vec::new(),
            heard: false,
            padding: 0,
            rows: Vec::new(),
            cache,
            grows: model.running.options.grows,
            // There is nothing to write in place.
            cache_checked: model.running.options.grows,
            rotary,
            passes: Vec::with_capacity(PASSES),
            gathered: None,
        })
    }

    /// Keys and values of each layer in turn.
    pub(crate) fn cache_mut(&mut self) -> &mut [DynTensor] {
        &mut self.cache
    }

    /// Allocated bytes of keys and values, including the padding of heads.
    pub(crate) fn cache_bytes(&self) -> Option<u64> {
        if self.cache.is_empty() {
            return None;
        }
        let bytes =
            self.cache.iter().map(|tensor| tensor.data_type().byte_size(tensor.shape().num_elements()));
        bytes.sum::<Option<usize>>().map(|bytes| bytes as u64)
    }

    /// Drops the tokens, and the memory of a growing cache; other memory is kept. Unfilled cache rows are
    /// never read.
    pub(crate) fn clear(&mut self) -> ort::Result<()> {
        self.filled = 0;
        self.filled_each.clear();
        self.heard = false;
        self.padding = 0;
        self.gathered = None;
        if self.grows {
            self.rows.clear();
            // They are bound to the old cache.
            self.passes.clear();
            self.cache = self.grown(0)?;
        }
        Ok(())
    }

    /// Memory for keys and values of `positions` positions.
    fn grown(&self, positions: usize) -> ort::Result<Vec<DynTensor>> {
        let allocator = Allocator::default();
        let grown = self.cache.iter().map(|tensor| {
            let sizes = tensor.shape();
            let shape = [sizes[0], sizes[1], positions as i64, sizes[3]];
            DynTensor::new(&allocator, *tensor.data_type(), shape)
        });
        grown.collect()
    }

    /// Appends `tokens`, `[batch, count]`, to the sequences. The results are in [`Self::logits`] and
    /// [`Self::hidden_states`].
    pub(crate) fn append(&mut self, model: &mut Model, tokens: &[u32], want: Want) -> Result<()> {
        self.gathered = None;
        let count = tokens.len() / self.batch;
        // GroupQueryAttention refuses several new tokens after old ones in a batch ("batch_size must be
        // 1 when sequence_length > 1 and past context is given").
        if self.batch > 1 && count > 1 && self.filled > 0 {
            return self.append_in_turn(model, tokens, want);
        }
        self.run_checked(model, tokens, (want, &[]))
    }

    /// Appends prompts of different lengths to empty sequences, for the logits of each one's last token. With
    /// GroupQueryAttention padding comes after a prompt, and later tokens overwrite it.
    pub(crate) fn append_each(&mut self, model: &mut Model, tokens: &[u32], lengths: &[usize]) -> Result<()> {
        self.gathered = None;
        let longest = lengths.iter().copied().max().unwrap_or(0);
        let mut padded = Vec::with_capacity(longest * lengths.len());
        let mut rest = tokens;
        for (sequence, &length) in lengths.iter().enumerate() {
            let own;
            (own, rest) = rest.split_at(length);
            padded.extend_from_slice(own);
            padded.resize((sequence + 1) * longest, 0);
        }
        self.padding = padded.len() - tokens.len();
        self.run_checked(model, &padded, (Want::Last, lengths))?;
        self.filled_each = lengths.to_vec();
        Ok(())
    }

    /// Padding positions that were computed, if the sequences began with prompts of different lengths.
    pub(crate) fn padding(&self) -> Option<usize> {
        (!self.filled_each.is_empty()).then_some(self.padding)
    }

    /// Runs all sequences. Checks once that a run writes into the cache in place.
    fn run_checked(
        &mut self,
        model: &mut Model,
        tokens: &[u32],
        (want, lengths): (Want, &[usize]),
    ) -> Result<()> {
        let count = tokens.len() / self.batch;
        if self.cache_checked || self.filled + count == self.capacity {
            let present = self.grows.then(|| self.grown(self.filled + count)).transpose();
            let run = present.and_then(|present| self.run(model, tokens, (want, lengths), present));
            return run.map_err(framework);
        }
        self.mark_cache();
        self.run(model, tokens, (want, lengths), None).map_err(framework)?;
        self.check_cache()
    }

    fn filled_of(&self, sequence: usize) -> usize {
        self.filled_each.get(sequence).copied().unwrap_or(self.filled)
    }

    /// Appends to one sequence after the other, each over its own rows of the cache.
    fn append_in_turn(&mut self, model: &mut Model, tokens: &[u32], want: Want) -> Result<()> {
        let count = tokens.len() / self.batch;
        let mut grown = Vec::new();
        if self.grows {
            self.rows.clear();
            grown = self.grown(self.filled + count).map_err(framework)?;
        }
        if self.rows.is_empty() {
            let rows = (0..self.batch).map(|index| self.row(model, index));
            self.rows = rows.collect::<ort::Result<_>>().map_err(framework)?;
        }
        let mut gathered = Gathered::default();
        let filled: Vec<usize> = (0..self.batch).map(|sequence| self.filled_of(sequence)).collect();
        for (index, (row, tokens)) in self.rows.iter_mut().zip(tokens.chunks_exact(count)).enumerate() {
            row.filled = filled[index];
            if self.grows {
                let present = rows_of(&mut grown, index);
                let run = present.and_then(|present| row.run(model, tokens, (want, &[]), Some(present)));
                run.map_err(framework)?;
            } else {
                row.append(model, tokens, want)?;
            }
            gathered.logits.extend_from_slice(row.logits());
            let states = row.hidden_states();
            gathered.hidden.resize_with(states.len(), Vec::new);
            for (whole, state) in gathered.hidden.iter_mut().zip(states) {
                whole.extend_from_slice(state);
            }
        }
        if self.grows {
            self.passes.clear();
            self.cache = grown;
        }
        self.advance(count);
        self.gathered = Some(gathered);
        Ok(())
    }

    /// One of the sequences, over its rows of the cache.
    fn row(&mut self, model: &Model, index: usize) -> ort::Result<Sequences> {
        let cache = rows_of(&mut self.cache, index)?;
        Sequences::over(model, (1, self.capacity), cache)
    }

    /// Writes a number into the last row of every layer's cache, which the next run does not fill. If the
    /// cache were copied, ONNX Runtime would fill the copy's free rows with zeros.
    fn mark_cache(&mut self) {
        self.marks().for_each(|number| *number = MARK);
    }

    fn check_cache(&mut self) -> Result<()> {
        if self.marks().any(|number| *number != MARK) {
            return Err(EngineError::Framework(CACHE_IS_COPIED.into()));
        }
        self.cache_checked = true;
        Ok(())
    }

    /// Empty if the cache is not in f32: it may then be on a GPU.
    fn marks(&mut self) -> impl Iterator<Item = &mut f32> {
        self.cache.iter_mut().filter_map(|tensor| tensor.try_extract_tensor_mut().ok()?.1.last_mut())
    }

    /// `present`: memory for keys and values, if they are not appended in place.
    fn run(
        &mut self,
        model: &mut Model,
        tokens: &[u32],
        (want, lengths): (Want, &[usize]),
        present: Option<Vec<DynTensor>>,
    ) -> ort::Result<()> {
        let count = tokens.len() / self.batch;
        let is_same = |pass: &Pass| (pass.count, pass.want, &pass.lengths[..]) == (count, want, lengths);
        let pass = match self.passes.iter().position(is_same) {
            Some(index) => self.passes.remove(index),
            None => {
                // Only the last pass is bound to the current memory of a growing cache.
                if self.grows || self.passes.len() == PASSES {
                    self.passes.drain(..1.min(self.passes.len()));
                }
                Pass::bind(model, self, count, (want, lengths))?
            }
        };
        self.passes.push(pass);
        let pass = self.passes.last_mut().expect("just pushed");
        pass.write_inputs(tokens, (self.filled, &self.filled_each));
        if model.device != Device::Cpu {
            // Binding copies them to the device.
            pass.bind_inputs()?;
        }
        let Some(mut present) = present else {
            model.running.session.run_binding(&pass.binding)?;
            self.advance(count);
            return Ok(());
        };
        let names = || (0..model.config.layers.len()).flat_map(cache_names);
        for (names, tensor) in names().zip(&mut present) {
            pass.binding.bind_output(names.present, tensor)?;
        }
        model.running.session.run_binding(&pass.binding)?;
        // This run's present is the next run's past.
        for (names, tensor) in names().zip(&present) {
            pass.binding.bind_input(names.past, tensor)?;
        }
        self.cache = present;
        self.advance(count);
        Ok(())
    }

    fn advance(&mut self, count: usize) {
        self.filled += count;
        self.filled_each.iter_mut().for_each(|filled| *filled += count);
    }

    pub(crate) fn logits(&self) -> &[f32] {
        match (&self.gathered, self.passes.last()) {
            (Some(gathered), _) => &gathered.logits,
            (None, Some(pass)) => pass.logits.extract_tensor().1,
            (None, None) => &[],
        }
    }

    /// Hidden states of the last append; empty if the graph outputs none.
    pub(crate) fn hidden_states(&self) -> Vec<&[f32]> {
        match (&self.gathered, self.passes.last()) {
            (Some(gathered), _) => gathered.hidden.iter().map(Vec::as_slice).collect(),
            (None, Some(pass)) => pass.hidden.iter().map(|state| state.extract_tensor().1).collect(),
            (None, None) => Vec::new(),
        }
    }
}

/// The cache tensors of one sequence, over the memory of all. `Sequences` drops its `rows` before that
/// memory, or no longer uses them.
fn rows_of(cache: &mut [DynTensor], index: usize) -> ort::Result<Vec<DynTensor>> {
    // SAFETY: the cache stays in place until the rows are dropped or no longer used, as described above.
    #[allow(unsafe_code)]
    let rows = cache.iter_mut().map(|tensor| unsafe { runtime::row(tensor, index) });
    rows.collect()
}

pub(crate) fn cache_shape(model: &Model, batch: usize, capacity: usize) -> [usize; 4] {
    [batch, model.config.kv_heads, capacity, model.attention.cached_head_dim]
}

impl Pass {
    fn bind(
        model: &Model,
        sequences: &mut Sequences,
        count: usize,
        (want, lengths): (Want, &[usize]),
    ) -> ort::Result<Pass> {
        let (allocator, config, batch) = (Allocator::default(), &model.config, sequences.batch);
        let mut binding = model.running.session.create_binding()?;
        let tokens = Tensor::new(&allocator, [batch, count])?;
        let filled = match config.causal {
            true => Some((Tensor::new(&allocator, [batch])?, Tensor::new(&allocator, [0usize; 0])?)),
            false => None,
        };
        let length = |sequence: usize| lengths.get(sequence).copied().unwrap_or(count);
        let rows: Vec<i64> = match want {
            Want::Last => {
                (0..batch).map(|sequence| (sequence * count + length(sequence) - 1) as i64).collect()
            }
            Want::All => (0..(batch * count) as i64).collect(),
        };
        let mut logits = Tensor::new(&allocator, [rows.len(), config.vocab_size])?;
        binding.bind_input(ROWS, &Tensor::from_array(([rows.len()], rows))?)?;
        binding.bind_output(LOGITS, &mut logits)?;
        let positions =
            model.attention.takes_positions().then(|| Tensor::new(&allocator, [batch, count])).transpose()?;
        for (rotation, tables) in sequences.rotary.iter().enumerate() {
            for (name, table) in rotary_names(rotation).into_iter().zip(tables) {
                binding.bind_input(name, table)?;
            }
        }
        let names = (0..config.layers.len()).flat_map(cache_names);
        for (names, tensor) in names.zip(&mut sequences.cache) {
            // Past and present share memory, so that the operator only writes new rows.
            binding.bind_input(names.past, tensor)?;
            binding.bind_output(names.present, tensor)?;
        }
        if let Some(hearing) = &model.hearing {
            hearing.bind(&mut binding)?;
        }
        let mut hidden = Vec::new();
        if model.hidden_states {
            for layer in 0..=config.layers.len() {
                let mut state = Tensor::new(&allocator, [batch, count, config.hidden_size])?;
                binding.bind_output(hidden_output(layer, model.products.float()), &mut state)?;
                hidden.push(state);
            }
        }
        let lengths = lengths.to_vec();
        let mut pass = Pass { count, want, lengths, binding, tokens, filled, positions, logits, hidden };
        pass.bind_inputs()?;
        Ok(pass)
    }

    /// Binds the inputs that change from run to run.
    fn bind_inputs(&mut self) -> ort::Result<()> {
        self.binding.bind_input(TOKENS, &self.tokens)?;
        if let Some((last_positions, total)) = &self.filled {
            self.binding.bind_input(LAST_POSITIONS, last_positions)?;
            self.binding.bind_input(TOTAL, total)?;
        }
        match &self.positions {
            Some(positions) => self.binding.bind_input(POSITIONS, positions),
            None => Ok(()),
        }
    }

    /// `each`: filled positions of each sequence, if they differ.
    fn write_inputs(&mut self, tokens: &[u32], (filled, each): (usize, &[usize])) {
        let (count, lengths) = (self.count, &self.lengths);
        let filled_of = |sequence: usize| each.get(sequence).copied().unwrap_or(filled);
        for (slot, &token) in self.tokens.extract_tensor_mut().1.iter_mut().zip(tokens) {
            *slot = i64::from(token);
        }
        if let Some((last_positions, total)) = &mut self.filled {
            total.extract_tensor_mut().1.fill((filled + count) as i32);
            for (sequence, last) in last_positions.extract_tensor_mut().1.iter_mut().enumerate() {
                let appended = lengths.get(sequence).copied().unwrap_or(count);
                *last = (filled_of(sequence) + appended) as i32 - 1;
            }
        }
        if let Some(positions) = &mut self.positions {
            let rows = positions.extract_tensor_mut().1.chunks_exact_mut(count);
            for (sequence, row) in rows.enumerate() {
                for (slot, position) in row.iter_mut().zip(filled_of(sequence) as i64..) {
                    *slot = position;
                }
            }
        }
    }
}

// Sharing keys and values with another engine of the process ([`engine::HandsOver`]): the tensors bound as
// past and present are over memory of ONNX Runtime's or of the other engine's.

impl HandsOver for Ort {
    fn export(&mut self) -> Result<CacheMemory> {
        let Decoder { model, sequences } = self.body.decoder()?;
        check_f32(model)?;
        let sequences = begun(sequences.as_mut())?;
        let shape = cache_shape(model, sequences.batch, sequences.capacity);
        let planes = sequences.cache_mut().iter_mut().map(|tensor| {
            let (_, numbers) = tensor.try_extract_tensor_mut::<f32>().map_err(framework)?;
            Ok(Plane::contiguous(numbers.as_mut_ptr() as usize, shape))
        });
        let planes = planes.collect::<Result<Vec<Plane>>>()?;
        Ok(CacheMemory { layers: planes.chunks_exact(2).map(|layer| [layer[0], layer[1]]).collect() })
    }

    #[allow(unsafe_code)]
    unsafe fn begin_in(&mut self, batch: usize, capacity: usize, memory: &CacheMemory) -> Result<()> {
        let Decoder { model, sequences } = self.body.decoder()?;
        check_begin(&model.config, batch, capacity)?;
        check_f32(model)?;
        let shape = cache_shape(model, batch, capacity);
        let unsupported = |reason: String| Err(EngineError::Unsupported(reason));
        if memory.layers.len() != model.config.layers.len() {
            return unsupported("has another number of layers".into());
        }
        for plane in memory.layers.iter().flatten() {
            if plane.shape != shape {
                let theirs = plane.shape;
                return unsupported(format!("wants keys and values of shape {shape:?}, not {theirs:?}"));
            }
            if !plane.is_contiguous() {
                return unsupported("binds tensors without gaps alone".into());
            }
        }
        // Free the old tensors before new ones are made.
        *sequences = None;
        // SAFETY: the shape was checked, and the caller promises that the memory stays valid.
        let over = |plane: &Plane| unsafe {
            tensor_over(plane.address, plane.shape, (&MemoryInfo::default(), TensorElementType::Float32))
        };
        let tensors = memory.layers.iter().flatten().map(over).collect::<ort::Result<Vec<DynTensor>>>();
        let new = tensors.and_then(|cache| Sequences::over(model, (batch, capacity), cache));
        *sequences = Some(new.map_err(framework)?);
        Ok(())
    }

    fn set_filled(&mut self, positions: usize) -> Result<()> {
        let sequences = begun(self.body.decoder()?.sequences.as_mut())?;
        check_filled(positions, sequences.capacity)?;
        sequences.filled = positions;
        Ok(())
    }
}

fn check_f32(model: &Model) -> Result<()> {
    let is_f32 = model.device == Device::Cpu && model.products.float() == onnx::DataType::Float;
    if is_f32 && !model.running.options.grows {
        return Ok(());
    }
    Err(EngineError::Unsupported(
        "keeps its keys and values otherwise than in f32 in main memory, in one place".into(),
    ))
}
