//! [`InferenceEngine`] on tract (<https://github.com/sonos/tract>), driven as its own example `causal_llm` drives a
//! decoder, and as people drive an exported encoder. See docs/reference/frameworks.md and this crate's README.

mod encoder;
mod graph;
mod model;
mod sequences;

use encoder::Encoder;
use graph::GraphPlan;
use model::Model;
use sequences::Sequences;
use worker::engine::{
    ARTEFACT, Bundle, Decode, Device, Encode, EngineError, Foreigns, HiddenStates, InEffect, InferenceEngine,
    KvCachePolicy, Options, Precision, Profile, Run, Runtime, Settings, Want, check_append, check_begin,
    check_causal, check_features, check_window, without_panic,
};

/// The version that the workspace pins; tract does not tell its own.
const VERSION: &str = worker::framework_version!("tract 0.23.9");

/// A model in tract.
#[derive(Debug)]
pub struct Tract {
    in_effect: InEffect,
    body: Body,
}

/// What was loaded.
#[derive(Debug)]
enum Body {
    Decoder(Box<Decoder>),
    Encoder(Box<Encoder>),
    Graph(Box<GraphPlan>),
}

#[derive(Debug)]
struct Decoder {
    model: Model,
    sequences: Option<Sequences>,
}

impl Tract {
    fn decoder(&mut self) -> Result<&mut Decoder, EngineError> {
        match &mut self.body {
            Body::Decoder(decoder) => Ok(decoder),
            Body::Encoder(_) | Body::Graph(_) => {
                Err(EngineError::Input("the model continues no texts".into()))
            }
        }
    }
}

impl InferenceEngine for Tract {
    const FRAMEWORK: &'static str = "tract";
    const RUNS_GRAPHS: bool = true;

    fn runtime() -> Result<Runtime, EngineError> {
        Ok(Runtime {
            binding: VERSION.into(),
            library: VERSION.into(),
            library_path: None,
            cpu_capability: None,
        })
    }

    fn load(bundle: &Bundle, settings: &Settings) -> Result<Tract, EngineError> {
        settings.check_options(&[ARTEFACT])?;
        check_supported(settings)?;
        if let Some(graph) = &bundle.config().graph {
            let plan = without_panic(Self::FRAMEWORK, || GraphPlan::load(bundle, graph, settings))?;
            let in_effect =
                InEffect { kv_cache: KvCachePolicy::None, ..in_effect(plan.threads, plan.kernels()) };
            return Ok(Tract { in_effect, body: Body::Graph(Box::new(plan)) });
        }
        if bundle.config().encoder.is_some() {
            check_features(bundle.config(), Self::FRAMEWORK, &reference_portable::encoder::FEATURES)?;
            let encoder = Encoder::load(bundle, settings)?;
            let mut in_effect = InEffect {
                kv_cache: KvCachePolicy::None,
                ..in_effect(encoder.loaded.threads, encoder.loaded.kernels.clone())
            };
            in_effect.kernels.extend([encoder::LAYOUT]);
            return Ok(Tract { in_effect, body: Body::Encoder(Box::new(encoder)) });
        }
        check_causal(bundle.config(), Self::FRAMEWORK)?;
        check_features(bundle.config(), Self::FRAMEWORK, &reference_portable::FEATURES)?;
        let model = Model::load(bundle, settings)?;
        let in_effect = in_effect(model.loaded.threads, model.loaded.kernels.clone());
        Ok(Tract { in_effect, body: Body::Decoder(Box::new(Decoder { model, sequences: None })) })
    }

    fn in_effect(&self) -> InEffect {
        self.in_effect.clone()
    }

    fn decode(&mut self) -> Result<&mut dyn Decode, EngineError> {
        self.decoder()?;
        Ok(self)
    }

    fn encode(&mut self) -> Result<&mut dyn Encode, EngineError> {
        match &mut self.body {
            Body::Encoder(encoder) => Ok(encoder.as_mut()),
            Body::Decoder(_) | Body::Graph(_) => Err(EngineError::Input("the model encodes no texts".into())),
        }
    }

    fn begin_profile(&mut self) -> Result<(), EngineError> {
        match &mut self.body {
            Body::Graph(plan) => {
                plan.begin_profile();
                Ok(())
            }
            _ => Err(EngineError::Unsupported("Photofinish times tract's nodes in ONNX files alone.".into())),
        }
    }

    fn end_profile(&mut self) -> Result<Profile, EngineError> {
        match &mut self.body {
            Body::Graph(plan) => plan.end_profile(),
            _ => Err(EngineError::Input("end_profile before begin_profile".into())),
        }
    }

    fn graph(&mut self) -> Result<&mut dyn Run, EngineError> {
        match &mut self.body {
            Body::Graph(plan) => Ok(plan.as_mut()),
            _ => Err(EngineError::Input("the model is no ONNX file".into())),
        }
    }
}

impl Decode for Tract {
    fn begin(&mut self, batch: usize, capacity: usize) -> Result<(), EngineError> {
        let Decoder { model, sequences } = self.decoder()?;
        check_begin(&model.config, batch, capacity)?;
        check_window(&model.config, Self::FRAMEWORK, capacity)?;
        // The old cache goes before the new one comes.
        *sequences = None;
        *sequences = Some(Sequences::new(model, batch, capacity)?);
        Ok(())
    }

    fn append(&mut self, tokens: &[u32], want: Want) -> Result<&[f32], EngineError> {
        let Decoder { model, sequences } = self.decoder()?;
        let Some(sequences) = sequences else {
            return Err(EngineError::Input("append before begin".into()));
        };
        let (batch, filled, capacity) = (sequences.batch, sequences.filled, sequences.capacity);
        check_append(&model.config, tokens, batch, filled, capacity)?;
        sequences.append(model, tokens, want)?;
        sequences.logits()
    }

    fn hidden_states(&mut self) -> Result<HiddenStates, EngineError> {
        let Decoder { model, sequences } = self.decoder()?;
        if !model.hidden_states {
            let text = "hidden states were not asked for when the model was loaded";
            return Err(EngineError::Input(text.into()));
        }
        let layers = sequences.as_ref().map_or(Ok(Vec::new()), Sequences::hidden_states)?;
        Ok(HiddenStates { layers })
    }
}

fn check_supported(settings: &Settings) -> Result<(), EngineError> {
    let reason = match (settings.device(), settings.precision) {
        (Device::Cuda(_), _) => "this build of tract has no CUDA",
        (Device::Cpu, Precision::F32) if !settings.jit => {
            "tract's optimiser chooses its kernels and makes the KV cache: it cannot be left out"
        }
        (Device::Cpu, Precision::F32) => return Ok(()),
        (Device::Cpu, Precision::Bf16) => "tract has no bf16",
        (Device::Cpu, Precision::F16) => {
            "this reference drives tract in f32 alone: most of its f16 kernels are for Arm and GPUs"
        }
        (Device::Cpu, Precision::Int8 | Precision::Int4 | Precision::Nf4 | Precision::File) => {
            "this reference drives tract in f32 alone: of quantised weights tract takes GGUF's blocks, not the bundle's"
        }
    };
    Err(EngineError::Unsupported(reason.into()))
}

fn in_effect(threads: usize, kernels: Vec<String>) -> InEffect {
    InEffect {
        precision: Precision::F32.into(),
        activations: "f32".into(),
        kv_cache_precision: Precision::F32.into(),
        kv_cache: KvCachePolicy::Growing,
        device: Device::Cpu.into(),
        threads,
        jit: "graph optimisation: on".into(),
        optimised: Some(true),
        weight_storage: "packed copy".into(),
        kernels: kernels.into(),
        shard_bytes: None,
        hybrid: None,
        semi_public: Foreigns::default(),
        changed_defaults: Foreigns::default(),
        artefact: None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_version_reported_is_the_one_that_is_pinned() {
        let manifest = include_str!("../../Cargo.toml");
        let version = VERSION.strip_prefix("tract ").unwrap();
        for name in ["tract-linalg", "tract-onnx", "tract-transformers"] {
            assert!(manifest.contains(&format!("\n{name} = {{ version = \"={version}\"")), "{name}");
        }
    }
}
