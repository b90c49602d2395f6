//! A decoder-only transformer, built from the properties in its configuration.

use bundle::{Bundle, ModelConfig, Weights};
use tch::{Device, Kind, TchError, Tensor};
use worker::engine::{EngineError, Options, Result, Settings, Want};

use crate::audio::Ear;
use crate::layer::{Embedding, Layer};
use crate::layout::{self, Layout};
use crate::linear::Linear;
use crate::norm::{Norm, Residual, RmsNorm};
use crate::profile::Mark;
use crate::reader::Reader;
use crate::sequences::{Causal, Kinds, Sequences, Step};
use crate::{eager, fused, scripted};

pub(crate) struct Model {
    pub(crate) config: ModelConfig,
    embedding: Embedding,
    /// `[positions, hidden]`, in a model with learned positions.
    positions: Option<Tensor>,
    pub(crate) ear: Option<Ear>,
    layers: Vec<Box<dyn Layer>>,
    final_norm: Norm,
    head: Linear,
    pub(crate) fused: bool,
    pub(crate) layout: Layout,
    /// Whether quantised weights were dequantised at load.
    pub(crate) emulated: bool,
    pub(crate) torchscript: Option<bool>,
    /// Element type and device of the residual stream.
    pub(crate) options: (Kind, Device),
    pub(crate) kinds: Kinds,
    /// Whether the parts are marked for libtorch's profiler.
    marked: bool,
    /// The tensors above may be in this mapping. As the last field, it is dropped last.
    pub(crate) weights: Weights,
}

/// The results of one append.
pub(crate) struct Output {
    /// `[rows, vocabulary]`, f32, contiguous, on the host.
    pub(crate) logits: Tensor,
    /// As in [`engine::HiddenStates`]; empty unless requested.
    pub(crate) hidden: Vec<Tensor>,
}

/// Whether the option `attention` selects plain products.
fn attends_in_products(settings: &Settings, is_fused_and_eager: bool) -> Result<bool> {
    match settings.options.get("attention").map(String::as_str) {
        None => Ok(false),
        Some("products") if is_fused_and_eager => Ok(true),
        Some("products") => {
            let reason = "attention=products goes with fused layers in eager mode";
            Err(EngineError::Unsupported(reason.into()))
        }
        Some(other) => Err(EngineError::Input(format!("option attention is {other:?}, not products"))),
    }
}

impl Model {
    pub(crate) fn read(bundle: &Bundle, settings: &Settings, device: Device) -> Result<Model> {
        let config = bundle.config().clone();
        let fused = settings.flag("fused", true)?;
        let (layout, emulated) = (Layout::choose(settings, device)?, layout::emulated(settings));
        let torchscript = scripted::chosen(settings, fused)?;
        let rms_norm = if fused { RmsNorm::Fused } else { RmsNorm::Elementary };
        let reader = Reader::new(bundle.weights(settings.precision)?, device, emulated);
        let is_plain = fused && torchscript != Some(true);
        let grows = settings.grows_cache(&config)?;
        if grows && !is_plain {
            let reason = "cache=growing goes with fused layers in eager mode";
            return Err(EngineError::Unsupported(reason.into()));
        }
        let kinds = Kinds::choose(settings, (layout, reader.kind()), device, is_plain)?;
        let in_products = attends_in_products(settings, is_plain)?;
        let kinds = Kinds { grows, in_products, ..kinds };
        // First, while little else is in memory: it is the largest, and there may briefly be two copies.
        let head = Linear::head(&reader, &config.lm_head(), config.lm_head_bias(), layout)?;
        let embedding = Embedding::read(&reader, &config, &head)?;
        let ear = Ear::read(&reader, &config, settings, kinds.single)?;
        let heard = ear.as_ref().map(|ear| &ear.heard);
        let layer = |index| -> Result<Box<dyn Layer>> {
            if !fused {
                return Ok(Box::new(eager::Layer::read(&reader, &config, (index, heard))?));
            }
            let layer = fused::Layer::read(&reader, &config, (index, heard), (layout, kinds))?;
            Ok(match torchscript {
                Some(true) => Box::new(scripted::Layer::compile(layer, &config)?),
                _ => Box::new(layer),
            })
        };
        Ok(Model {
            positions: config.position_embedding().map(|name| reader.matrix(&name)).transpose()?,
            layers: (0..config.layers.len()).map(layer).collect::<Result<_, _>>()?,
            ear,
            final_norm: Norm::read(&reader, &config, &config.final_norm(), rms_norm)?,
            head,
            embedding,
            config,
            fused,
            layout,
            emulated,
            torchscript,
            options: (reader.kind(), device),
            kinds,
            marked: false,
            weights: reader.into_weights(),
        })
    }

    /// Switches the marking of parts on or off, and returns the old state.
    pub(crate) fn set_marked(&mut self, marked: bool) -> bool {
        std::mem::replace(&mut self.marked, marked)
    }

    fn mark(&self, part: &str) -> Option<Mark> {
        self.marked.then(|| Mark::begin(part))
    }

    /// Hears a spectrogram, to which every later step attends.
    pub(crate) fn listen(&self, sequences: &mut Sequences, frames: &[f32]) -> Result<(), TchError> {
        let _mark = self.mark("audio");
        if let Some(ear) = &self.ear {
            ear.listen(frames)?;
        }
        sequences.has_listened = true;
        Ok(())
    }

    /// Appends `tokens`, `[batch, positions]`, to `sequences`.
    pub(crate) fn forward(
        &self,
        sequences: &mut Sequences,
        tokens: &[u32],
        want: Want,
        keep_hidden: bool,
    ) -> Result<Output, TchError> {
        let positions = tokens.len() / sequences.batch;
        let mut step = sequences.step(positions, self.causal())?;
        let last = match want {
            Want::Last if positions > 1 => {
                Some((1..=step.batch).map(|row| row * step.positions - 1).collect())
            }
            _ => None,
        };
        let output = self.pass(&mut step, tokens, last, keep_hidden)?;
        sequences.advance(&mut step);
        Ok(output)
    }

    /// Appends prompts of different lengths, for the logits of each one's last token.
    pub(crate) fn forward_each(
        &self,
        sequences: &mut Sequences,
        (tokens, lengths): (&[u32], &[usize]),
        keep_hidden: bool,
    ) -> Result<Output, TchError> {
        let prompts = sequences.prompts(lengths, self.causal())?;
        let longest = prompts.iter().map(|prompt| prompt.positions).max().unwrap_or(0);
        sequences.filled = longest as usize;
        let ends = prompts.iter().scan(0, |end, prompt| {
            *end += prompt.positions;
            Some(*end - 1)
        });
        let ends: Vec<i64> = ends.collect();
        if self.fused && self.torchscript != Some(true) {
            let mut step = sequences.joined(prompts)?;
            return self.pass(&mut step, tokens, Some(ends), keep_hidden);
        }
        // Other layers need sequences of one length, so the prompts go one after the other.
        let mut outputs = Vec::with_capacity(prompts.len());
        let mut rest = tokens;
        for mut prompt in prompts {
            let own;
            (own, rest) = rest.split_at(prompt.positions as usize);
            let last = vec![prompt.positions - 1];
            outputs.push(self.pass(&mut prompt, own, Some(last), keep_hidden)?);
        }
        let all =
            |of: &dyn Fn(&Output) -> Tensor| Tensor::f_cat(&outputs.iter().map(of).collect::<Vec<_>>(), 0);
        let states = outputs.first().map_or(0, |output| output.hidden.len());
        Ok(Output {
            logits: all(&|output| output.logits.shallow_clone())?,
            hidden: (0..states)
                .map(|state| all(&|output| output.hidden[state].shallow_clone()))
                .collect::<Result<_, _>>()?,
        })
    }

    /// Whether the kernel or a mask hides later keys from queries.
    fn causal(&self) -> Causal {
        let form = &self.config.form;
        let in_products = self.kinds.in_products || form.attention_cap.is_some() || form.sinks;
        let by_kernel = self.fused && !in_products;
        if by_kernel { Causal::ByKernel } else { Causal::ByMask }
    }

    /// A step through all layers. Computes the logits of the rows `last`, or of all rows.
    fn pass(
        &self,
        step: &mut Step,
        tokens: &[u32],
        last: Option<Vec<i64>>,
        keep_hidden: bool,
    ) -> Result<Output, TchError> {
        let mark = self.mark("embedding");
        let mut residual = Residual::new(&self.embed(tokens, step)?)?;
        drop(mark);
        let mut hidden = Vec::new();
        for (index, layer) in self.layers.iter().enumerate() {
            if keep_hidden {
                // A copy, because layers change the stream in place.
                let stream = residual.stream();
                let copy = stream.f_to_device_(Device::Cpu, Kind::Float, false, true)?;
                hidden.push(copy.f_contiguous()?);
            }
            let _mark = self.marked.then(|| Mark::begin(&format!("layer {index}")));
            layer.forward(&mut residual, step, index)?;
        }
        if keep_hidden {
            hidden.push(to_host(&self.final_norm.forward(&residual)?)?);
        }
        if let Some(rows) = last {
            let last = Tensor::f_from_slice(&rows)?.f_to_device(residual.stream().device())?;
            residual = Residual::new(&residual.stream().f_index_select(0, &last)?)?;
        }
        let mark = self.mark("final norm");
        let normed = self.final_norm.forward(&residual)?;
        drop(mark);
        let _mark = self.mark("head");
        let logits = to_host(&self.finished(self.head.forward(&normed)?)?)?;
        Ok(Output { logits, hidden })
    }

    /// Scales and caps the logits, in models that do so.
    fn finished(&self, mut logits: Tensor) -> Result<Tensor, TchError> {
        let form = &self.config.form;
        if let Some(multiplier) = form.logits_multiplier {
            logits = logits.f_mul_scalar(multiplier)?;
        }
        match form.logits_cap {
            Some(cap) => logits.f_div_scalar(cap)?.f_tanh()?.f_mul_scalar(cap),
            None => Ok(logits),
        }
    }

    /// `[batch · positions, hidden]`
    fn embed(&self, tokens: &[u32], step: &Step) -> Result<Tensor, TchError> {
        let mut embedded = self.embedding.look_up(&self.weights, tokens)?;
        if let Some(multiplier) = self.config.form.embedding_multiplier {
            embedded = embedded.f_mul_scalar(multiplier)?;
        }
        let Some(positions) = &self.positions else { return Ok(embedded) };
        if let Some(places) = &step.places {
            return embedded.f_add(&positions.f_index_select(0, places)?);
        }
        let (rows, hidden) = embedded.size2()?;
        let learned = positions.f_narrow(0, step.past, step.positions)?;
        embedded.f_view([step.batch, step.positions, hidden])?.f_add(&learned)?.f_view([rows, hidden])
    }
}

/// Copies to host memory, f32 and contiguous; complete on return.
fn to_host(x: &Tensor) -> Result<Tensor, TchError> {
    x.f_to_device_(Device::Cpu, Kind::Float, false, false)?.f_contiguous()
}
