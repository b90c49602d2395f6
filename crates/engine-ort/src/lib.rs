//! [`InferenceEngine`] on ONNX Runtime. The crate's README explains its decisions.

mod encoder;
mod graph;
mod hearing;
mod model;
mod running;
mod runtime;
mod sequences;
#[cfg(test)]
mod tests;

use std::path::Path;

use bundle::ModelConfig;
use onnx::fused::experts::{self, has_operator};
use onnx::{Attention, DataType};
use ort::environment::Environment;
use worker::engine;
use worker::engine::{
    Bundle, Decode, Device, Encode, EngineError, Foreigns, HiddenStates, InEffect, InferenceEngine,
    KvCachePolicy, Options as _, Padding, Precision, Profile, Result, Run, Runtime, Settings, Side, Want,
};

use crate::encoder::Encoder;
use crate::graph::GraphSession;
use crate::model::Model;
pub use crate::model::location;
use crate::running::Running;
use crate::runtime::{Optimization, framework};
use crate::sequences::Sequences;

/// The environment of the library that this engine loads; a process has only one. For other programs that use
/// ONNX Runtime directly.
pub fn environment() -> Result<Environment> {
    Ok(runtime::library()?.environment.clone())
}

/// A model in a session of ONNX Runtime.
pub struct Ort {
    in_effect: InEffect,
    body: Body,
}

enum Body {
    Decoder(Box<Decoder>),
    Encoder(Box<Encoder>),
    Graph(Box<GraphSession>),
}

struct Decoder {
    model: Model,
    sequences: Option<Sequences>,
}

impl Body {
    fn new(model: Model) -> Body {
        match model.config.encoder {
            Some(_) => Body::Encoder(Box::new(Encoder::new(model))),
            None => Body::Decoder(Box::new(Decoder { model, sequences: None })),
        }
    }

    fn decoder(&mut self) -> Result<&mut Decoder> {
        match self {
            Body::Decoder(decoder) => Ok(decoder),
            Body::Encoder(_) => Err(EngineError::Input("the model encodes texts and continues none".into())),
            Body::Graph(_) => {
                Err(EngineError::Input("the model is an ONNX file and continues no tokens".into()))
            }
        }
    }

    fn running(&self) -> &Running {
        match self {
            Body::Decoder(decoder) => &decoder.model.running,
            Body::Encoder(encoder) => &encoder.model.running,
            Body::Graph(graph) => &graph.running,
        }
    }

    fn running_mut(&mut self) -> &mut Running {
        match self {
            Body::Decoder(decoder) => &mut decoder.model.running,
            Body::Encoder(encoder) => &mut encoder.model.running,
            Body::Graph(graph) => &mut graph.running,
        }
    }
}

impl Ort {
    /// As [`InferenceEngine::load`], with the given form of attention.
    fn load_with(bundle: &Bundle, attention: Attention, settings: &Settings) -> Result<Ort> {
        let model = Model::compile(runtime::library()?, bundle, attention, settings)?;
        let in_effect = in_effect(&model, settings);
        Ok(Ort { in_effect, body: Body::new(model) })
    }
}

impl InferenceEngine for Ort {
    const FRAMEWORK: &'static str = "ort";
    const RUNS_GRAPHS: bool = true;

    fn runtime() -> Result<Runtime> {
        let library = runtime::library()?;
        Ok(Runtime {
            binding: runtime::BINDING.into(),
            library: format!("onnxruntime {}", library.version),
            library_path: Some(library.path.clone()),
            cpu_capability: None,
        })
    }

    fn load(bundle: &Bundle, settings: &Settings) -> Result<Ort> {
        if let Some(graph) = &bundle.config().graph {
            let session = GraphSession::load(runtime::library()?, bundle, graph, settings)?;
            return Ok(Ort { in_effect: session.in_effect(), body: Body::Graph(Box::new(session)) });
        }
        check_supported(bundle.config(), settings)?;
        Ort::load_with(bundle, Attention::plan(bundle.config()), settings)
    }

    fn in_effect(&self) -> InEffect {
        self.in_effect.clone()
    }

    fn gpu_allocated(&self) -> Option<engine::Allocated> {
        let of =
            |running: &Running| runtime::allocated(&running.session, Device::named(&self.in_effect.device));
        let mut all = of(self.body.running())?;
        if let Body::Decoder(decoder) = &self.body
            && let Some(heard) = decoder.model.hearing.as_ref().and_then(|hearing| of(&hearing.running))
        {
            all.in_use += heard.in_use;
            all.peak += heard.peak;
        }
        Some(all)
    }

    fn profiled(settings: Settings, directory: &Path) -> Settings {
        runtime::with_profile(settings, directory)
    }

    /// The profile has been running since the load.
    fn begin_profile(&mut self) -> Result<()> {
        match self.body.running().options.profile {
            Some(_) => Ok(()),
            None => Err(EngineError::Input("begin_profile without the settings of profiled".into())),
        }
    }

    fn end_profile(&mut self) -> Result<Profile> {
        let mut profile = self.body.running_mut().profile()?;
        if let Body::Decoder(decoder) = &mut self.body
            && let Some(hearing) = &mut decoder.model.hearing
        {
            profile.events.extend(hearing.profile()?);
        }
        Ok(profile)
    }

    fn decode(&mut self) -> Result<&mut dyn Decode> {
        self.body.decoder()?;
        Ok(self)
    }

    fn encode(&mut self) -> Result<&mut dyn Encode> {
        match &mut self.body {
            Body::Encoder(encoder) => Ok(encoder.as_mut()),
            Body::Decoder(_) => Err(EngineError::Input("the model continues texts and encodes none".into())),
            Body::Graph(_) => {
                Err(EngineError::Input("the model is an ONNX file and encodes no texts".into()))
            }
        }
    }

    fn graph(&mut self) -> Result<&mut dyn Run> {
        match &mut self.body {
            Body::Graph(graph) => Ok(graph.as_mut()),
            _ => Err(EngineError::Input("the model is no ONNX file".into())),
        }
    }
}

impl Decode for Ort {
    fn begin(&mut self, batch: usize, capacity: usize) -> Result<()> {
        let Decoder { model, sequences } = self.body.decoder()?;
        engine::check_begin(&model.config, batch, capacity)?;
        match sequences {
            Some(sequences) if (sequences.batch, sequences.capacity) == (batch, capacity) => {
                sequences.clear().map_err(framework)?;
            }
            other => {
                // Free the old cache before a new one is allocated.
                *other = None;
                *other = Some(Sequences::new(model, batch, capacity).map_err(framework)?);
            }
        }
        Ok(())
    }

    fn listen(&mut self, frames: &[f32]) -> Result<()> {
        let Decoder { model, sequences } = self.body.decoder()?;
        let sequences = engine::begun(sequences.as_mut())?;
        engine::check_listen(&model.config, frames, (sequences.batch, sequences.filled))?;
        if let Some(hearing) = &mut model.hearing {
            hearing.listen(frames).map_err(framework)?;
            sequences.heard = true;
        }
        Ok(())
    }

    fn append(&mut self, tokens: &[u32], want: Want) -> Result<&[f32]> {
        let Decoder { model, sequences } = self.body.decoder()?;
        let sequences = engine::begun(sequences.as_mut())?;
        engine::check_listened(&model.config, sequences.heard)?;
        let (batch, filled, capacity) = (sequences.batch, sequences.filled, sequences.capacity);
        engine::check_append(&model.config, tokens, batch, filled, capacity)?;
        sequences.append(model, tokens, want)?;
        Ok(sequences.logits())
    }

    fn append_each(&mut self, tokens: &[u32], lengths: &[usize]) -> Result<&[f32]> {
        let Decoder { model, sequences } = self.body.decoder()?;
        let sequences = engine::begun(sequences.as_mut())?;
        engine::check_listened(&model.config, sequences.heard)?;
        let sizes = (sequences.batch, sequences.filled, sequences.capacity);
        engine::check_append_each(&model.config, (tokens, lengths), sizes)?;
        if model.running.options.grows {
            return Err(engine::no_place_for_padding());
        }
        sequences.append_each(model, tokens, lengths)?;
        Ok(sequences.logits())
    }

    fn padding(&self) -> Option<Padding> {
        let Body::Decoder(decoder) = &self.body else { return None };
        let computed = decoder.sequences.as_ref()?.padding()?;
        Some(Padding { side: Side::Right, computed: computed as u64 })
    }

    fn kv_cache_bytes(&self) -> Option<u64> {
        match &self.body {
            Body::Decoder(decoder) => decoder.sequences.as_ref().and_then(Sequences::cache_bytes),
            Body::Encoder(_) | Body::Graph(_) => None,
        }
    }

    fn hidden_states(&mut self) -> Result<HiddenStates> {
        let Decoder { model, sequences } = self.body.decoder()?;
        if !model.hidden_states {
            let text = "hidden states were not asked for when the model was loaded";
            return Err(EngineError::Input(text.into()));
        }
        let states = sequences.as_ref().map_or(Vec::new(), Sequences::hidden_states);
        Ok(HiddenStates { layers: states.into_iter().map(<[f32]>::to_vec).collect() })
    }
}

fn in_effect(model: &Model, settings: &Settings) -> InEffect {
    let (products, optimization) = (model.products, model.running.options.optimization);
    let mut product = products.operator().to_owned();
    if products.precision == Precision::File && products.by_codes() {
        product.push_str(&format!(" on the file's {}", model.config.block_words()));
        if model.config.blocks.values().any(|kind| kind.has_minima()) {
            product
                .push_str(", minima times sums of inputs in f32, weights within 1.2e-7 of a group's largest");
        } else {
            product.push_str(", every weight exact");
        }
    }
    let float = if products.float() == DataType::Float16 { "f16" } else { "f32" };
    let mut activations = float.to_owned();
    if products.by_codes() {
        let inner = model.activations.name();
        product.push_str(&format!(", {inner} activations (observed)"));
        activations.push_str(&format!(" ({inner} within products)"));
    }
    let others = match model.config.encoder {
        Some(_) => encoder::kernels(model),
        None => decoder_kernels(model).map(str::to_owned).into(),
    };
    let experts = model.config.has_experts().then(|| format!("experts: {}", experts::operator(products)));
    let heard = model.hearing.is_some().then(|| hearing::KERNELS.to_owned());
    let kernels = [product].into_iter().chain(experts).chain(others).chain(heard).collect();
    InEffect {
        precision: settings.precision.into(),
        activations: activations.into(),
        kv_cache_precision: float.into(),
        kv_cache: match model.attention.cached {
            true if model.running.options.grows => KvCachePolicy::Growing,
            true => KvCachePolicy::Preallocated,
            false => KvCachePolicy::None,
        },
        device: model.device.into(),
        threads: model.running.threads,
        jit: format!("graph optimisation: {}", optimization.name()).into(),
        optimised: Some(optimization != Optimization::Off),
        weight_storage: products.weight_storage().into(),
        kernels,
        shard_bytes: None,
        hybrid: None,
        semi_public: Foreigns::default(),
        changed_defaults: Foreigns::default(),
        artefact: None,
    }
}

/// The kernels other than the products.
fn decoder_kernels(model: &Model) -> [&'static str; 2] {
    let cache = match model.device {
        _ if !model.attention.causal => "no KV cache: every pass computes all positions",
        _ if model.running.options.grows => "past keys and values copied into new present ones in every run",
        // Both load and the first append would fail if the cache were copied.
        Device::Cpu => "KV cache written in place (observed)",
        Device::Cuda(_) => "one KV cache bound as past and as present",
    };
    [model.attention.operators(), cache]
}

fn check_supported(config: &ModelConfig, settings: &Settings) -> Result<()> {
    if config.encoder.is_some() && settings.device() != Device::Cpu {
        return Err(EngineError::Unsupported("ONNX Runtime encodes on a CPU alone here".into()));
    }
    check_precision(settings)?;
    if config.has_experts() && !settings.dequantised && !has_operator(settings.precision) {
        return Err(EngineError::Unsupported(format!(
            "ONNX Runtime's operators for experts (MoE, QMoE) take no weights of {}: use f32, int8 or int4",
            settings.precision
        )));
    }
    let kept = if settings.device() == Device::Cpu { Precision::F32 } else { Precision::F16 };
    if settings.cache() == kept || config.encoder.is_some() {
        return Ok(());
    }
    Err(EngineError::Unsupported(format!(
        "ONNX Runtime's GroupQueryAttention keeps keys and values in the type of its activations: in {kept} here, \
         not in {} (--kv-type {kept})",
        settings.cache()
    )))
}

fn check_precision(settings: &Settings) -> Result<()> {
    let reason = match (settings.device(), settings.precision) {
        (
            Device::Cpu,
            Precision::F32 | Precision::Int8 | Precision::Int4 | Precision::Nf4 | Precision::File,
        ) => return Ok(()),
        (Device::Cpu, _) if settings.converts_weights()? => return Ok(()),
        (Device::Cpu, Precision::F16) => {
            "ONNX Runtime's CPU execution provider has no f16 matrix product for x86; ort-converting casts every weight to \
             f32 and computes in that, with --kv-type f32"
        }
        (Device::Cpu, Precision::Bf16) => {
            "ONNX Runtime's CPU execution provider implements no bf16 matrix product and no bf16 attention"
        }
        (Device::Cuda(_), Precision::F16) => return Ok(()),
        (Device::Cuda(_), _) => {
            "on a GPU this engine computes in f16 alone: ONNX Runtime's GroupQueryAttention has no f32 kernel for CUDA"
        }
    };
    Err(EngineError::Unsupported(reason.into()))
}
