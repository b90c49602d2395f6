//! Encoders. The tokens of all texts are the rows of one matrix, so that nothing is computed for padding.
//! Attention takes all texts of one length at once. With the option `padded`, texts are first padded to one
//! length.

mod attend;

pub(crate) use attend::Seen;
use attend::{RelativeBias, attend};
use bundle::{
    Bundle, Encoder as Described, HeadActivation, ModelConfig, NormNames, Pooling, Scored, Weights,
};
use tch::{Device, Kind, TchError, Tensor};
use worker::engine::{
    Encode, EncodeTask, EngineError, Foreigns, HiddenStates, InEffect, KvCachePolicy, Options, Padded,
    Result, Settings, TextPadding, Texts, by_length,
};

use crate::attend::{Manner, Qkv};
use crate::experts::Mlp as _;
use crate::fused::Mlp;
use crate::layer;
use crate::layout::{self, Layout};
use crate::linear::Linear;
use crate::norm::{Norm, RmsNorm};
use crate::profile::Mark;
use crate::reader::Reader;
use crate::rotation::Rotation;
use crate::shim::InferenceMode;
use crate::{framework, known, numbers, precision};

pub(crate) struct Encoder {
    config: ModelConfig,
    embed: Embed,
    relative: Option<RelativeBias>,
    /// One for each of the model's rotations, for `rotated` positions.
    rotations: Vec<Rotation>,
    rotated: usize,
    layers: Vec<Layer>,
    final_norm: Option<Norm>,
    head: Option<Head>,
    /// The length to which texts are padded, if any, and the padding token.
    padding: Option<(TextPadding, u32)>,
    layout: Layout,
    emulated: bool,
    /// Element type and device of the residual stream.
    options: (Kind, Device),
    /// The results of the last call, f32, on the host.
    numbers: Option<Tensor>,
    computed: usize,
    hidden: Option<Vec<Vec<f32>>>,
    /// Whether the parts are marked for libtorch's profiler.
    marked: bool,
    /// The tensors above may be in this mapping. As the last field, it is dropped last.
    weights: Weights,
}

impl Encoder {
    pub(crate) fn read(bundle: &Bundle, settings: &Settings, device: Device) -> Result<Encoder> {
        if !settings.flag("fused", true)? || settings.options.contains_key("execution") {
            let reason = "tch encodes by fused operations in eager mode alone here";
            return Err(EngineError::Unsupported(reason.into()));
        }
        let config = bundle.config().clone();
        let Some(encoder) = &config.encoder else {
            return Err(EngineError::Input("the model is no encoder".into()));
        };
        let (layout, emulated) = (Layout::of_many_rows(settings, device)?, layout::emulated(settings));
        let reader = Reader::new(bundle.weights(settings.precision)?, device, emulated);
        let layers = (0..config.layers.len()).map(|index| Layer::read(&reader, &config, index, layout));
        let final_norm = encoder.final_norm.then(|| config.final_norm());
        let norm = |names| Norm::read(&reader, &config, &names, RmsNorm::Fused);
        Ok(Encoder {
            embed: Embed::read(&reader, &config, encoder)?,
            relative: RelativeBias::read(&reader, &config, encoder)?,
            rotations: Vec::new(),
            rotated: 0,
            layers: layers.collect::<Result<_, _>>()?,
            final_norm: final_norm.map(norm).transpose()?,
            head: Head::read(&reader, &config, layout)?,
            padding: settings.padding(&config)?.map(|padding| (padding, encoder.pad_token)),
            layout,
            emulated,
            options: (reader.kind(), device),
            numbers: None,
            computed: 0,
            hidden: settings.hidden_states.then(Vec::new),
            marked: false,
            config,
            weights: reader.into_weights(),
        })
    }

    pub(crate) fn in_effect(&self) -> InEffect {
        let (kind, device) = self.options;
        let (linear, norm) = (crate::linear_kernel(self.layout), crate::norm_kernel(&self.config));
        let fused = if self.config.mlp(0).gated { "fused q/k/v and gate/up" } else { "fused q/k/v" };
        let texts = self.padding.map_or("texts unpadded".to_owned(), |(padding, _)| padding.to_string());
        let activated = self.layout == Layout::Onednn && !self.config.mlp(0).gated;
        let activation = activated.then_some("activation in the product of the MLP's first layer");
        let kernels = [linear.as_str(), texts.as_str(), fused, "scaled_dot_product_attention", norm]
            .into_iter()
            .chain(activation);
        InEffect {
            precision: self.weights.precision().into(),
            activations: crate::activations(self.layout, kind).into(),
            kv_cache_precision: precision(kind).into(),
            kv_cache: KvCachePolicy::None,
            device: known(device).into(),
            threads: usize::try_from(tch::get_num_threads()).unwrap_or(0),
            jit: "eager".into(),
            optimised: None,
            weight_storage: crate::weight_storage(self.layout, device, self.emulated).into(),
            kernels: kernels.collect(),
            shard_bytes: None,
            hybrid: None,
            semi_public: crate::semi_public_linear(self.layout).into_iter().collect(),
            changed_defaults: Foreigns::default(),
            artefact: None,
        }
    }

    /// Switches the marking of parts on or off, and returns the old state.
    pub(crate) fn set_marked(&mut self, marked: bool) -> bool {
        std::mem::replace(&mut self.marked, marked)
    }

    fn mark(&self, part: &str) -> Option<Mark> {
        self.marked.then(|| Mark::begin(part))
    }

    /// The length to which texts are padded, or that of the longest.
    fn width(&self, texts: Texts<'_>) -> usize {
        self.padding.map_or(texts.longest(), |(padding, _)| padding.width(&texts))
    }

    /// The vectors of all tokens, `[rows, hidden]`, after every layer that is kept and after the last.
    fn vectors(&self, texts: Texts<'_>, rows: &Rows) -> Result<Vec<Tensor>, TchError> {
        let width = self.width(texts);
        let Some((_, token)) = self.padding.filter(|_| texts.lengths.iter().any(|&length| length < width))
        else {
            return self.forward(texts, rows, None);
        };
        let padded = Padded::to(width, texts, token);
        let device = self.options.1;
        // Padding comes after each text, so a causal model does not see it.
        let padding = (!self.config.causal).then(|| padding(texts, width, device)).transpose()?;
        let states = self.forward(padded.texts(), &Rows::new(padded.texts()), padding.as_ref())?;
        let cells: Vec<usize> = texts.cells(width).collect();
        let places: Vec<i64> = rows.tokens.iter().map(|&token| cells[token] as i64).collect();
        let places = Tensor::f_from_slice(&places)?.f_to_device(device)?;
        states.iter().map(|x| x.f_index_select(0, &places)).collect()
    }

    /// The same without adding padding. `padding`, `[texts, length]`: the tokens that attention hides.
    fn forward(
        &self,
        texts: Texts<'_>,
        rows: &Rows,
        padding: Option<&Tensor>,
    ) -> Result<Vec<Tensor>, TchError> {
        let (kind, device) = self.options;
        let positions: Vec<i64> = rows.positions().collect();
        let positions = Tensor::f_from_slice(&positions)?.f_to_device(device)?;
        let kind = self.layout.attention_kind(kind);
        let seen = |group| Seen::new(group, &self.config, self.relative.as_ref(), padding, (kind, device));
        let batch = Batch {
            seen: rows.groups.iter().map(seen).collect::<Result<_, _>>()?,
            rotations: self
                .rotations
                .iter()
                .map(|table| table.at_each(&positions))
                .collect::<Result<_, _>>()?,
            kind,
        };
        let mark = self.mark("embedding");
        let mut states = vec![self.embed.forward(texts, rows, &positions)?];
        drop(mark);
        for (index, layer) in self.layers.iter().enumerate() {
            let _mark = self.mark(&format!("layer {index}"));
            let x = layer.forward(&states[states.len() - 1], &batch)?;
            if self.hidden.is_none() {
                states.clear();
            }
            states.push(x);
        }
        if let (Some(norm), Some(last)) = (&self.final_norm, states.last_mut()) {
            let _mark = self.mark("final norm");
            *last = norm.normed(last)?;
        }
        Ok(states)
    }

    /// Extends the rotation tables for texts of `longest` tokens, if needed. Not for all positions of the
    /// model, because most texts are far shorter.
    fn rotate(&mut self, longest: usize) -> Result<(), TchError> {
        if longest > self.rotated {
            self.rotated = longest.next_power_of_two().min(self.config.max_positions);
            self.rotations = Rotation::tables(&self.config, self.rotated, self.options)?;
        }
        Ok(())
    }

    fn compute(&mut self, texts: Texts<'_>, task: EncodeTask) -> Result<Tensor, TchError> {
        let rows = Rows::new(texts);
        let states = self.vectors(texts, &rows)?;
        if self.hidden.is_some() {
            let on_host = |state: &Tensor| Ok(numbers(&on_host(&in_order(state, &rows.tokens)?)?).to_vec());
            self.hidden = Some(states.iter().map(on_host).collect::<Result<_, TchError>>()?);
        }
        let x = &states[states.len() - 1];
        let _mark = self.mark("head");
        let (found, places) = match (task, &self.head) {
            (EncodeTask::Embed { pooling: Pooling::Each, .. }, _) => (x.shallow_clone(), &rows.tokens),
            (EncodeTask::Embed { pooling, normalise }, _) => {
                let pooled = pool(x, &rows, pooling)?;
                (if normalise { normalised(&pooled)? } else { pooled }, &rows.texts)
            }
            (EncodeTask::Score, Some(head)) => match head.of {
                Scored::Texts(pooling) => {
                    let pooled = pool(x, &rows, pooling)?.f_to_kind(x.kind())?;
                    (head.forward(&pooled)?, &rows.texts)
                }
                Scored::Tokens => (head.forward(x)?, &rows.tokens),
            },
            (EncodeTask::Score, None) => unreachable!("texts are checked against the model"),
        };
        on_host(&in_order(&found, places)?)
    }
}

fn on_host(found: &Tensor) -> Result<Tensor, TchError> {
    found.f_to_device_(Device::Cpu, Kind::Float, false, false)?.f_contiguous()
}

impl Encode for Encoder {
    fn encode(&mut self, texts: Texts<'_>, task: EncodeTask) -> Result<&[f32]> {
        texts.check(&self.config, task)?;
        let _mode = InferenceMode::enter();
        let width = self.width(texts);
        self.rotate(width).map_err(framework)?;
        let found = self.compute(texts, task).map_err(framework)?;
        let padded = self.padding.is_some();
        self.computed = if padded { texts.lengths.len() * width } else { texts.tokens.len() };
        Ok(numbers(self.numbers.insert(found)))
    }

    fn config(&self) -> &ModelConfig {
        &self.config
    }

    fn positions(&self) -> usize {
        self.computed
    }

    fn hidden_states(&mut self) -> Result<HiddenStates> {
        HiddenStates::kept(self.hidden.clone())
    }
}

// Pooling of token vectors into one vector per text, and the head for scores.

struct Head {
    pub(crate) of: Scored,
    dense: Option<Dense>,
    scores: Linear,
}

struct Dense {
    linear: Linear,
    activation: HeadActivation,
    norm: Option<Norm>,
}

impl Head {
    /// `None` if the model has no head.
    pub(crate) fn read(reader: &Reader, config: &ModelConfig, layout: Layout) -> Result<Option<Head>> {
        let described = config.scoring();
        let Some((head, names)) = described.zip(config.head()) else { return Ok(None) };
        // Heads are not quantised at any precision.
        let layout = if matches!(layout, Layout::Int8 | Layout::Int4) { Layout::Plain } else { layout };
        let norm = names.norm.map(|names| Norm::read(reader, config, &names, RmsNorm::Fused));
        let norm = norm.transpose()?;
        let dense = match head.dense.zip(names.dense) {
            Some((dense, names)) => Some(Dense {
                linear: Linear::fused(reader, &names, layout)?,
                activation: dense.activation,
                norm,
            }),
            None => None,
        };
        Ok(Some(Head { of: head.of, dense, scores: Linear::fused(reader, &names.scores, layout)? }))
    }

    /// `[texts or tokens, hidden]` → `[texts or tokens, labels]`
    pub(crate) fn forward(&self, x: &Tensor) -> Result<Tensor, TchError> {
        let Some(Dense { linear, activation, norm }) = &self.dense else { return self.scores.forward(x) };
        let x = linear.forward(x)?;
        let x = match activation {
            HeadActivation::Tanh => x.f_tanh()?,
            HeadActivation::Of(activation) => layer::activate(&x, *activation)?,
        };
        match norm {
            Some(norm) => self.scores.forward(&norm.normed(&x)?),
            None => self.scores.forward(&x),
        }
    }
}

/// `[texts, hidden]`, f32.
fn pool(x: &Tensor, rows: &Rows, pooling: Pooling) -> Result<Tensor, TchError> {
    let of_group = rows.groups.iter().map(|group| {
        let rows = group.part(x)?;
        match pooling {
            Pooling::Cls => rows.f_select(1, 0),
            Pooling::Last => rows.f_select(1, group.length - 1),
            Pooling::Mean => rows.f_mean_dim(&[1_i64][..], false, Kind::Float),
            Pooling::Max => rows.f_amax([1], false),
            Pooling::Each => rows.f_flatten(0, 1),
        }
    });
    let pooled = of_group.collect::<Result<Vec<_>, _>>()?;
    Tensor::f_cat(&pooled, 0)?.f_to_kind(Kind::Float)
}

fn normalised(x: &Tensor) -> Result<Tensor, TchError> {
    // The minimum is that of PyTorch's `normalize`.
    x.f_div(&x.f_norm_scalaropt_dim(2, [1], true)?.f_clamp_min(1e-12)?)
}

// A layer of an encoder.

pub(crate) struct Layer {
    attention_norms: Norms,
    qkv: Qkv,
    output: Linear,
    manner: Manner,
    mlp_norms: Norms,
    mlp: Mlp,
}

/// One batch, as input of the layers.
pub(crate) struct Batch<'a> {
    pub(crate) seen: Vec<Seen<'a>>,
    pub(crate) rotations: Vec<Rotation>,
    pub(crate) kind: Kind,
}

impl Layer {
    pub(crate) fn read(reader: &Reader, config: &ModelConfig, index: usize, layout: Layout) -> Result<Layer> {
        let names = config.layer(index);
        Ok(Layer {
            attention_norms: Norms::read(
                reader,
                config,
                [&names.attention_norm, &names.post_attention_norm],
            )?,
            qkv: Qkv::read(reader, config, index, layout)?,
            output: Linear::fused(reader, &names.output, layout)?,
            manner: Manner::from_config(config, index),
            mlp_norms: Norms::read(reader, config, [&names.mlp_norm, &names.post_mlp_norm])?,
            mlp: Mlp::read(reader, config.mlp(index), [&names.gate_up, &names.down], (layout, true))?,
        })
    }

    /// `[rows, hidden]` in and out.
    pub(crate) fn forward(&self, x: &Tensor, batch: &Batch<'_>) -> Result<Tensor, TchError> {
        let x = self.attention_norms.around(x, |x| self.attention(x, batch))?;
        self.mlp_norms.around(&x, |x| self.mlp.forward(x, false))
    }

    fn attention(&self, x: &Tensor, batch: &Batch<'_>) -> Result<Tensor, TchError> {
        let (rows, _) = x.size2()?;
        let rotation = self.manner.layer.rotation.map(|rotation| &batch.rotations[rotation]);
        // All rows are treated as one text; each has the rotation of its own position.
        let qkv = self.qkv.forward(x, (1, rows), rotation)?.f_squeeze_dim(0)?.f_to_kind(batch.kind)?;
        let attended = attend(&qkv, &batch.seen, self.qkv.heads, &self.manner)?;
        self.output.forward(&attended.f_to_kind(x.kind())?)
    }
}

/// The norms around a block: x becomes behind(x + block(before(x))). Absent norms are left out.
struct Norms {
    before: Option<Norm>,
    behind: Option<Norm>,
}

impl Norms {
    fn read(reader: &Reader, config: &ModelConfig, names: [&Option<NormNames>; 2]) -> Result<Norms> {
        let norm = |names: &Option<NormNames>| {
            names.as_ref().map(|names| Norm::read(reader, config, names, RmsNorm::Fused)).transpose()
        };
        let [before, behind] = names.map(norm);
        Ok(Norms { before: before?, behind: behind? })
    }

    fn around(
        &self,
        x: &Tensor,
        block: impl FnOnce(&Tensor) -> Result<Tensor, TchError>,
    ) -> Result<Tensor, TchError> {
        let of_block = match &self.before {
            Some(norm) => block(&norm.normed(x)?),
            None => block(x),
        };
        let sum = of_block?.f_add_(x)?;
        match &self.behind {
            Some(norm) => norm.normed(&sum),
            None => Ok(sum),
        }
    }
}

// Embeddings: the input of the first layer.

/// The normed sum of the embeddings of tokens, positions and types. Parts that the model lacks are left out.
struct Embed {
    /// `[vocabulary, hidden]`
    tokens: Tensor,
    /// `[positions, hidden]`
    positions: Option<Tensor>,
    /// Row of `positions` for the first token of a text.
    first_position: i64,
    /// `[types, hidden]`
    types: Option<Tensor>,
    norm: Option<Norm>,
}

impl Embed {
    fn read(reader: &Reader, config: &ModelConfig, encoder: &Described) -> Result<Embed> {
        let table = |name: Option<String>| name.map(|name| reader.matrix(&name)).transpose();
        let norm = config.embedding_norm();
        Ok(Embed {
            tokens: reader.matrix(&config.embedding())?,
            positions: table(config.position_embedding())?,
            first_position: encoder.first_position as i64,
            types: table(config.token_type_embedding())?,
            norm: norm.map(|names| Norm::read(reader, config, &names, RmsNorm::Fused)).transpose()?,
        })
    }

    /// `[rows, hidden]`. `positions`: each row's position within its text.
    fn forward(&self, texts: Texts<'_>, rows: &Rows, positions: &Tensor) -> Result<Tensor, TchError> {
        let look_up = |table: &Tensor, ids: &Tensor| Tensor::f_embedding(table, ids, -1, false, false);
        let of_tokens = |values: &[u32]| {
            let ids: Vec<i64> = rows.tokens.iter().map(|&token| i64::from(values[token])).collect();
            Tensor::f_from_slice(&ids)?.f_to_device(positions.device())
        };
        let mut x = look_up(&self.tokens, &of_tokens(texts.tokens)?)?;
        if let Some(table) = &self.positions {
            x = x.f_add_(&look_up(table, &positions.f_add_scalar(self.first_position)?)?)?;
        }
        match &self.types {
            Some(table) if texts.types.is_empty() => x = x.f_add_(&table.f_narrow(0, 0, 1)?)?,
            Some(table) => x = x.f_add_(&look_up(table, &of_tokens(texts.types)?)?)?,
            None => {}
        }
        match &self.norm {
            Some(norm) => norm.normed(&x),
            None => Ok(x),
        }
    }
}

// The rows of texts: texts of one length are adjacent.

/// Texts of one length, in adjacent rows.
pub(crate) struct Group {
    pub(crate) first_row: i64,
    pub(crate) texts: i64,
    pub(crate) length: i64,
}

impl Group {
    /// The group's part of `x`, `[rows, ..]`, as `[texts, length, ..]`.
    pub(crate) fn part(&self, x: &Tensor) -> Result<Tensor, TchError> {
        let mut shape = x.size();
        shape.splice(..1, [self.texts, self.length]);
        x.f_narrow(0, self.first_row, self.texts * self.length)?.f_view(&shape[..])
    }
}

/// The tokens of all texts; texts of one length are adjacent.
struct Rows {
    pub(crate) groups: Vec<Group>,
    /// Index of each row's token in the input.
    pub(crate) tokens: Vec<usize>,
    /// Index of each text in the input, in the order of rows.
    pub(crate) texts: Vec<usize>,
}

impl Rows {
    pub(crate) fn new(texts: Texts<'_>) -> Rows {
        let starts: Vec<usize> =
            texts.lengths.iter().scan(0, |sum, &n| Some(std::mem::replace(sum, *sum + n))).collect();
        let mut rows = Rows { groups: Vec::new(), tokens: Vec::new(), texts: Vec::new() };
        for (length, places) in by_length(texts.lengths) {
            let (first_row, count) = (rows.tokens.len() as i64, places.len() as i64);
            rows.groups.push(Group { first_row, texts: count, length: length as i64 });
            for &place in &places {
                rows.tokens.extend(starts[place]..starts[place] + length);
            }
            rows.texts.extend(places);
        }
        rows
    }

    /// The position of each row's token within its text.
    pub(crate) fn positions(&self) -> impl Iterator<Item = i64> + '_ {
        self.groups.iter().flat_map(|group| (0..group.texts).flat_map(|_| 0..group.length))
    }
}

/// Whether each cell is padding, for texts padded to `width` tokens, `[texts, width]`.
fn padding(texts: Texts<'_>, width: usize, device: Device) -> Result<Tensor, TchError> {
    let padding = texts.padded_to(width, texts.tokens.iter().map(|_| false), true);
    Tensor::f_from_slice(&padding)?.f_view([texts.lengths.len() as i64, -1])?.f_to_device(device)
}

/// The rows of `x` in the order of the input. `places`: each row's index in the input.
fn in_order(x: &Tensor, places: &[usize]) -> Result<Tensor, TchError> {
    let mut rows = vec![0_i64; places.len()];
    for (row, &place) in places.iter().enumerate() {
        rows[place] = row as i64;
    }
    x.f_index_select(0, &Tensor::f_from_slice(&rows)?.f_to_device(x.device())?)
}
