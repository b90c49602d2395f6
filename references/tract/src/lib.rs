//! [`InferenceEngine`] on tract (<https://github.com/sonos/tract>), driven as its own example `causal_llm` drives a
//! decoder. See docs/references.md and this crate's README.

mod model;
mod sequences;

use engine::{
    Bundle, Decode, Device, EngineError, HiddenStates, InEffect, InferenceEngine, KvCachePolicy, Precision,
    Runtime, Settings, Want, check_append, check_begin, check_causal, check_features, check_window,
};

use model::Model;
use sequences::Sequences;

/// The version that the workspace pins; tract does not tell its own.
const VERSION: &str = "tract 0.23.9";

/// A decoder in tract.
#[derive(Debug)]
pub struct Tract {
    model: Model,
    in_effect: InEffect,
    sequences: Option<Sequences>,
}

impl InferenceEngine for Tract {
    const FRAMEWORK: &'static str = "tract";

    fn runtime() -> Result<Runtime, EngineError> {
        Ok(Runtime {
            binding: VERSION.into(),
            library: VERSION.into(),
            library_path: None,
            cpu_capability: None,
        })
    }

    fn load(bundle: &Bundle, settings: &Settings) -> Result<Tract, EngineError> {
        settings.check_options(&[])?;
        check_causal(bundle.config(), Self::FRAMEWORK)?;
        check_features(bundle.config(), Self::FRAMEWORK, &onnx::portable::FEATURES)?;
        check_supported(settings)?;
        let model = Model::load(bundle, settings)?;
        let in_effect = in_effect(&model);
        Ok(Tract { model, in_effect, sequences: None })
    }

    fn in_effect(&self) -> InEffect {
        self.in_effect.clone()
    }

    fn decode(&mut self) -> Result<&mut dyn Decode, EngineError> {
        Ok(self)
    }
}

impl Decode for Tract {
    fn begin(&mut self, batch: usize, capacity: usize) -> Result<(), EngineError> {
        check_begin(&self.model.config, batch, capacity)?;
        check_window(&self.model.config, Self::FRAMEWORK, capacity)?;
        // The old cache goes before the new one comes.
        self.sequences = None;
        self.sequences = Some(Sequences::new(&self.model, batch, capacity)?);
        Ok(())
    }

    fn append(&mut self, tokens: &[u32], want: Want) -> Result<&[f32], EngineError> {
        let Some(sequences) = &mut self.sequences else {
            return Err(EngineError::Input("append before begin".into()));
        };
        let (batch, filled, capacity) = (sequences.batch, sequences.filled, sequences.capacity);
        check_append(&self.model.config, tokens, batch, filled, capacity)?;
        sequences.append(&self.model, tokens, want)?;
        sequences.logits()
    }

    fn hidden_states(&mut self) -> Result<HiddenStates, EngineError> {
        if !self.model.hidden_states {
            let text = "hidden states were not asked for when the model was loaded";
            return Err(EngineError::Input(text.into()));
        }
        let layers = self.sequences.as_ref().map_or(Ok(Vec::new()), Sequences::hidden_states)?;
        Ok(HiddenStates { layers })
    }
}

fn check_supported(settings: &Settings) -> Result<(), EngineError> {
    let reason = match (settings.device, settings.precision) {
        (Device::Cuda(_), _) => "this build of tract has no CUDA",
        (Device::Cpu, Precision::F32) if !settings.jit => {
            "tract's optimiser chooses its kernels and makes the KV cache: it cannot be left out"
        }
        (Device::Cpu, Precision::F32) => return Ok(()),
        (Device::Cpu, Precision::Bf16) => "tract has no bf16",
        (Device::Cpu, Precision::F16) => {
            "this reference drives tract in f32 alone: most of its f16 kernels are for Arm and GPUs"
        }
        (Device::Cpu, Precision::Int8 | Precision::Int4 | Precision::Nf4) => {
            "this reference drives tract in f32 alone: of quantised weights tract takes GGUF's blocks, not the bundle's"
        }
    };
    Err(EngineError::Unsupported(reason.into()))
}

fn in_effect(model: &Model) -> InEffect {
    InEffect {
        weights: Precision::F32,
        activations: "f32".into(),
        kv_cache: Precision::F32,
        kv_cache_policy: KvCachePolicy::Growing,
        device: Device::Cpu,
        threads: model.threads,
        jit: "graph optimisation: on".into(),
        optimised: Some(true),
        weight_storage: "packed copy".into(),
        kernels: model.kernels.clone(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_version_reported_is_the_one_that_is_pinned() {
        let manifest = include_str!("../../../Cargo.toml");
        let version = VERSION.strip_prefix("tract ").unwrap();
        for name in ["tract-linalg", "tract-onnx", "tract-transformers"] {
            assert!(manifest.contains(&format!("\n{name} = {{ version = \"={version}\"")), "{name}");
        }
    }
}
