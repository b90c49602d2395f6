//! Encoders. The tokens of all texts are the rows of one matrix, so that nothing is computed for padding.
//! Attention takes all texts of one length at once. With the option `padded`, texts are first padded to one
//! length.

mod attend;
mod embed;
mod head;
mod layer;
mod near;
mod rows;

use bundle::{Bundle, ModelConfig, Scored, Weights};
use engine::{
    Device as EngineDevice, Encode, EncodeTask, EngineError, HiddenStates, InEffect, KvCachePolicy, Padded,
    Padding, Settings, Texts,
};
use tch::{Device, Kind, TchError, Tensor};

use attend::{RelativeBias, Seen};
use embed::Embed;
use head::Head;
use layer::{Batch, Layer};
use rows::{Rows, padding};

use crate::error::framework;
use crate::layout::{self, Layout};
use crate::norm::{Norm, RmsNorm};
use crate::profile::Mark;
use crate::reader::Reader;
use crate::rotation::Rotation;
use crate::shim::InferenceMode;
use crate::{numbers, precision};

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
    padding: Option<(Padding, u32)>,
    layout: Layout,
    emulated: bool,
    /// Element type and device of the residual stream.
    options: (Kind, Device),
    /// The results of the last call, f32, on the host.
    numbers: Option<Tensor>,
    computed: usize,
    /// Hidden states of the last texts, if requested.
    hidden: Option<Vec<Vec<f32>>>,
    /// Whether the parts are marked for libtorch's profiler.
    marked: bool,
    /// The tensors above may be in this mapping. As the last field, it is dropped last.
    weights: Weights,
}

impl Encoder {
    pub(crate) fn read(bundle: &Bundle, settings: &Settings, device: Device) -> Result<Encoder, EngineError> {
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
        let layers = (0..config.layers).map(|index| Layer::read(&reader, &config, index, layout));
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
        let fused = if self.config.gated_mlp { "fused q/k/v and gate/up" } else { "fused q/k/v" };
        let texts = self.padding.map_or("texts unpadded".to_owned(), |(padding, _)| padding.to_string());
        let activated = self.layout == Layout::Onednn && !self.config.gated_mlp;
        let activation = activated.then_some("activation in the product of the MLP's first layer");
        let kernels = [linear, texts.as_str(), fused, "scaled_dot_product_attention", norm]
            .into_iter()
            .chain(activation);
        InEffect {
            weights: self.weights.precision(),
            activations: crate::activations(self.layout, kind),
            kv_cache: precision(kind),
            kv_cache_policy: KvCachePolicy::None,
            device: match device {
                Device::Cuda(index) => EngineDevice::Cuda(index),
                _ => EngineDevice::Cpu,
            },
            threads: usize::try_from(tch::get_num_threads()).unwrap_or(0),
            jit: "eager".into(),
            optimised: None,
            weight_storage: crate::weight_storage(self.layout, device, self.emulated),
            kernels: kernels.map(str::to_owned).collect(),
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
            let on_host =
                |state: &Tensor| Ok(numbers(&on_host(&rows::in_order(state, &rows.tokens)?)?).to_vec());
            self.hidden = Some(states.iter().map(on_host).collect::<Result<_, TchError>>()?);
        }
        let x = &states[states.len() - 1];
        let _mark = self.mark("head");
        let (found, places) = match (task, &self.head) {
            (EncodeTask::Embed { pooling, normalise }, _) => {
                let pooled = head::pool(x, &rows, pooling)?;
                (if normalise { head::normalised(&pooled)? } else { pooled }, &rows.texts)
            }
            (EncodeTask::Score, Some(head)) => match head.of {
                Scored::Texts(pooling) => {
                    let pooled = head::pool(x, &rows, pooling)?.f_to_kind(x.kind())?;
                    (head.forward(&pooled)?, &rows.texts)
                }
                Scored::Tokens => (head.forward(x)?, &rows.tokens),
            },
            (EncodeTask::Score, None) => unreachable!("texts are checked against the model"),
        };
        on_host(&rows::in_order(&found, places)?)
    }
}

/// Copies to f32 in host memory.
fn on_host(found: &Tensor) -> Result<Tensor, TchError> {
    found.f_to_device_(Device::Cpu, Kind::Float, false, false)?.f_contiguous()
}

impl Encode for Encoder {
    fn encode(&mut self, texts: Texts<'_>, task: EncodeTask) -> Result<&[f32], EngineError> {
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

    fn hidden_states(&mut self) -> Result<HiddenStates, EngineError> {
        HiddenStates::kept(self.hidden.clone())
    }
}
