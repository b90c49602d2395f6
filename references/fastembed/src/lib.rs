//! [`InferenceEngine`] on fastembed (<https://github.com/Anush008/fastembed-rs>), driven as people drive a model of
//! their own with it: an ONNX graph and a tokenizer. See docs/reference/frameworks.md and this crate's README.

mod encoder;
mod tokenizer;

use encoder::Encoder;
use engine_ort::Ort;
use worker::engine::{
    Bundle, Device, Encode, EngineError, Foreigns, InEffect, InferenceEngine, KvCachePolicy, Options,
    Precision, Runtime, Settings, check_features,
};

/// The version that the workspace pins; fastembed does not tell its own.
const VERSION: &str = "fastembed 7.7.0";

/// An encoder in fastembed.
pub struct Fastembed {
    encoder: Encoder,
    in_effect: InEffect,
}

impl InferenceEngine for Fastembed {
    const FRAMEWORK: &'static str = "fastembed";

    fn runtime() -> Result<Runtime, EngineError> {
        Ok(Runtime { binding: VERSION.into(), ..Ort::runtime()? })
    }

    fn load(bundle: &Bundle, settings: &Settings) -> Result<Fastembed, EngineError> {
        settings.check_options(&[])?;
        check_supported(settings)?;
        if bundle.config().encoder.is_none() {
            return Err(EngineError::Unsupported("fastembed continues no tokens here".into()));
        }
        check_features(bundle.config(), Self::FRAMEWORK, &reference_portable::encoder::FEATURES)?;
        let encoder = Encoder::load(bundle, settings)?;
        let in_effect = in_effect(&encoder, settings);
        Ok(Fastembed { encoder, in_effect })
    }

    fn in_effect(&self) -> InEffect {
        self.in_effect.clone()
    }

    fn encode(&mut self) -> Result<&mut dyn Encode, EngineError> {
        Ok(&mut self.encoder)
    }
}

fn check_supported(settings: &Settings) -> Result<(), EngineError> {
    let reason = match (settings.device(), settings.precision) {
        (Device::Cuda(_), _) => "this reference drives fastembed on the CPU alone",
        (Device::Cpu, Precision::F32) if settings.jit => return Ok(()),
        (Device::Cpu, Precision::F32) => {
            "fastembed optimises every graph, and has no setting that keeps it from that"
        }
        (Device::Cpu, _) => "fastembed reads vectors and scores from outputs in f32 alone",
    };
    Err(EngineError::Unsupported(reason.into()))
}

fn in_effect(encoder: &Encoder, settings: &Settings) -> InEffect {
    InEffect {
        precision: Precision::F32.into(),
        activations: "f32".into(),
        kv_cache_precision: Precision::F32.into(),
        kv_cache: KvCachePolicy::None,
        device: Device::Cpu.into(),
        // fastembed keeps the session, and ONNX Runtime does not tell: rule R5 looks at the threads that computed.
        threads: settings.threads,
        jit: "graph optimisation: level 3".into(),
        optimised: Some(true),
        weight_storage: "prepacked copy; embedding mapped".into(),
        kernels: vec![
            format!("fastembed's {}", encoder.name()),
            "Gemm, attention by MatMul and Softmax".into(),
            "texts padded to the longest of a batch".into(),
            "its tokenizer splits ids written as words; that counts".into(),
        ]
        .into(),
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
        let version = VERSION.strip_prefix("fastembed ").unwrap();
        assert!(manifest.contains(&format!("\nfastembed = {{ version = \"={version}\"")));
    }
}
