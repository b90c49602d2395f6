//! [`InferenceEngine`] on candle-transformers' own llama models and encoders, as its examples drive them: what people
//! get who use candle without writing a model themselves. Nothing is made faster here; see
//! docs/reference/frameworks.md.

mod encoder;
mod error;
mod model;
mod whisper;

use std::path::PathBuf;

use bundle::{Architecture, ModelConfig};
use candle_core::{DType, Device as CandleDevice, Tensor, utils};
use encoder::Encoder;
use error::framework;
use model::Model;
use reference_gguf::FourBits;
use whisper::Whisper;
use worker::engine;
use worker::engine::{
    Bundle, Decode, Device, Encode, EngineError, Foreigns, InEffect, InferenceEngine, KvCachePolicy, Options,
    Precision, Runtime, Settings, Want, check_append, check_begin,
};

/// The version that the workspace pins; candle does not tell its own.
const VERSION: &str = worker::framework_version!("candle-transformers 0.11.1");

/// Where derived files are kept: set by configs/engines.
const REFERENCES: &str = "PHOTOFINISH_REFERENCES";
/// The GGUF file that the option `weights = "source"` loads.
const SOURCE: &str = "PHOTOFINISH_SOURCE_GGUF";

/// Which file is loaded, and by which of candle-transformers' models.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Weights {
    /// The bundle's, by `models::llama`.
    Bundle,
    /// A GGUF derived from the bundle's, by `models::quantized_llama`.
    Derived,
    /// A GGUF of the user's, by the same.
    Source,
}

impl Weights {
    /// The file that the option `weights` asks for.
    fn from_options(settings: &Settings) -> Result<Weights, EngineError> {
        settings.check_options(&["weights"])?;
        match settings.options.get("weights").map(String::as_str) {
            None | Some("bundle") => Ok(Weights::Bundle),
            Some("derived") => Ok(Weights::Derived),
            Some("source") => Ok(Weights::Source),
            Some(other) => {
                Err(EngineError::Input(format!("option weights is {other:?}, not bundle, derived or source")))
            }
        }
    }
}

pub struct CandleTransformers {
    config: ModelConfig,
    body: Body,
    in_effect: InEffect,
    batch: usize,
    capacity: usize,
    filled: usize,
    logits: Vec<f32>,
}

enum Body {
    Decoder(Box<Model>),
    Encoder(Box<Encoder>),
    Whisper(Box<Whisper>),
}

impl InferenceEngine for CandleTransformers {
    const FRAMEWORK: &'static str = "candle-transformers";

    fn runtime() -> Result<Runtime, EngineError> {
        Ok(Runtime {
            binding: VERSION.into(),
            library: VERSION.into(),
            library_path: None,
            cpu_capability: utils::with_avx().then(|| "AVX2".into()),
        })
    }

    fn weights_file(bundle: &Bundle, settings: &Settings) -> Result<PathBuf, EngineError> {
        match Weights::from_options(settings)? {
            Weights::Bundle => Ok(bundle.weights_path(settings.precision)?),
            Weights::Source => Ok(variable(SOURCE)?),
            Weights::Derived => {
                let directory = variable(REFERENCES)?.join("derived");
                if !matches!(bundle.config().architecture, Architecture::Llama | Architecture::Mistral) {
                    let reason = "candle-transformers' quantized_llama reads llama alone";
                    return Err(EngineError::Unsupported(reason.into()));
                }
                let derived = reference_gguf::derive(bundle, settings.precision, FourBits::Q4K, &directory);
                derived.map_err(|error| match error {
                    reference_gguf::Error::Bundle(error) => error.into(),
                    reference_gguf::Error::Unsupported(reason) => EngineError::Unsupported(reason),
                    other => EngineError::Framework(other.to_string()),
                })
            }
        }
    }

    fn load(bundle: &Bundle, settings: &Settings) -> Result<Self, EngineError> {
        let weights = Weights::from_options(settings)?;
        if let Device::Cuda(_) = settings.device() {
            return Err(EngineError::Unsupported("this build of candle has no CUDA".into()));
        }
        if settings.dequantised {
            let reason = "a reference computes in its own way alone: name an engine first";
            return Err(EngineError::Unsupported(reason.into()));
        }
        let config = bundle.config().clone();
        let (body, in_effect) = if config.encoder.is_some() {
            if weights != Weights::Bundle {
                let reason = "candle-transformers encodes from the bundle's weights alone here";
                return Err(EngineError::Unsupported(reason.into()));
            }
            let file = bundle.weights_path(settings.precision)?;
            let encoder = Encoder::load(bundle, &file, settings.precision)?;
            let kernels =
                format!("{}: Tensor::matmul, texts padded to the longest of a batch", encoder.module());
            let in_effect = InEffect {
                kv_cache: KvCachePolicy::None,
                kernels: vec![kernels].into(),
                ..in_effect(weights, settings.precision)
            };
            (Body::Encoder(Box::new(encoder)), in_effect)
        } else if let Some(audio) = config.audio {
            if weights != Weights::Bundle || settings.precision != Precision::F32 {
                let reason = "candle-transformers hears from the bundle's weights in f32 alone here";
                return Err(EngineError::Unsupported(reason.into()));
            }
            let whisper = Whisper::load(&bundle.weights_path(Precision::F32)?, &config, audio)?;
            let in_effect = InEffect {
                kv_cache: KvCachePolicy::Recomputed,
                kernels: vec!["models::whisper: Tensor::matmul and conv1d; GELU by tanh"].into(),
                ..in_effect(weights, settings.precision)
            };
            (Body::Whisper(Box::new(whisper)), in_effect)
        } else {
            engine::check_causal(&config, Self::FRAMEWORK)?;
            engine::check_features(&config, Self::FRAMEWORK, &[bundle::Feature::Window])?;
            let file = Self::weights_file(bundle, settings)?;
            let model = if weights == Weights::Bundle {
                Model::llama(&file, &config, dtype(settings.precision)?)?
            } else {
                Model::quantized_llama(&file)?
            };
            (Body::Decoder(Box::new(model)), in_effect(weights, settings.precision))
        };
        Ok(Self { config, body, in_effect, batch: 0, capacity: 0, filled: 0, logits: Vec::new() })
    }

    fn in_effect(&self) -> InEffect {
        self.in_effect.clone()
    }

    fn decode(&mut self) -> Result<&mut dyn Decode, EngineError> {
        if !matches!(self.body, Body::Whisper(_)) {
            self.decoder()?;
        }
        Ok(self)
    }

    fn encode(&mut self) -> Result<&mut dyn Encode, EngineError> {
        match &mut self.body {
            Body::Encoder(encoder) => Ok(encoder.as_mut()),
            Body::Decoder(_) | Body::Whisper(_) => {
                Err(EngineError::Input("the model continues texts and encodes none".into()))
            }
        }
    }
}

impl Decode for CandleTransformers {
    fn begin(&mut self, batch: usize, capacity: usize) -> Result<(), EngineError> {
        check_begin(&self.config, batch, capacity)?;
        engine::check_window(&self.config, Self::FRAMEWORK, capacity)?;
        match &mut self.body {
            Body::Whisper(whisper) => whisper.forget(),
            _ => self.decoder()?.forget(),
        }
        (self.batch, self.capacity, self.filled) = (batch, capacity, 0);
        Ok(())
    }

    fn listen(&mut self, frames: &[f32]) -> Result<(), EngineError> {
        engine::check_listen(&self.config, frames, (self.batch, self.filled))?;
        match &mut self.body {
            Body::Whisper(whisper) => whisper.listen(frames).map_err(framework),
            _ => Err(EngineError::Input("the model does not hear".into())),
        }
    }

    /// candle-transformers gives the logits of the last position alone: those of all are taken one by one.
    fn append(&mut self, tokens: &[u32], want: Want) -> Result<&[f32], EngineError> {
        let count = check_append(&self.config, tokens, self.batch, self.filled, self.capacity)?;
        if let Body::Whisper(whisper) = &mut self.body {
            engine::check_listened(&self.config, whisper.has_listened())?;
            self.logits = whisper.append(tokens, want).map_err(framework)?;
            self.filled += count;
            return Ok(&self.logits);
        }
        match want {
            Want::Last => self.logits = self.forward(tokens, count)?,
            Want::All => {
                let vocabulary = self.config.vocab_size;
                let mut logits = vec![0.0; tokens.len() * vocabulary];
                for position in 0..count {
                    let column: Vec<u32> = tokens.iter().skip(position).step_by(count).copied().collect();
                    let step = self.forward(&column, 1)?;
                    for (sequence, row) in step.chunks_exact(vocabulary).enumerate() {
                        let at = (sequence * count + position) * vocabulary;
                        logits[at..at + vocabulary].copy_from_slice(row);
                    }
                }
                self.logits = logits;
            }
        }
        Ok(&self.logits)
    }
}

impl CandleTransformers {
    fn decoder(&mut self) -> Result<&mut Model, EngineError> {
        match &mut self.body {
            Body::Decoder(model) => Ok(model.as_mut()),
            Body::Encoder(_) | Body::Whisper(_) => {
                Err(EngineError::Input("the model encodes texts and continues none".into()))
            }
        }
    }

    fn forward(&mut self, tokens: &[u32], count: usize) -> Result<Vec<f32>, EngineError> {
        let tokens = Tensor::from_slice(tokens, (self.batch, count), &CandleDevice::Cpu);
        let filled = self.filled;
        let model = self.decoder()?;
        let logits = tokens.and_then(|tokens| model.forward(&tokens, filled));
        self.filled += count;
        logits.and_then(|logits| logits.flatten_all()?.to_vec1()).map_err(framework)
    }
}

fn variable(name: &str) -> Result<PathBuf, EngineError> {
    let set = std::env::var_os(name).filter(|value| !value.is_empty());
    set.map(PathBuf::from)
        .ok_or_else(|| EngineError::Input(format!("{name} is not set: name it in configs/engines")))
}

fn dtype(precision: Precision) -> Result<DType, EngineError> {
    match precision {
        Precision::F32 => Ok(DType::F32),
        Precision::Bf16 => Ok(DType::BF16),
        Precision::F16 => Ok(DType::F16),
        other => Err(EngineError::Unsupported(format!(
            "candle-transformers reads {other} from GGUF alone: compare candle-transformers-gguf"
        ))),
    }
}

fn in_effect(weights: Weights, precision: Precision) -> InEffect {
    let activations = if weights == Weights::Bundle { precision } else { Precision::F32 };
    let (weight_storage, kernels) = match weights {
        Weights::Bundle => ("copied from the mapped file", "models::llama: Tensor::matmul, attention in f32"),
        Weights::Derived if precision == Precision::File => {
            ("the file's own blocks, in a GGUF derived from the bundle", "models::quantized_llama: QMatMul")
        }
        Weights::Derived => ("GGUF derived from the bundle", "models::quantized_llama: QMatMul"),
        Weights::Source => ("GGUF of the source, not the bundle's", "models::quantized_llama: QMatMul"),
    };
    InEffect {
        precision: precision.into(),
        activations: activations.into(),
        kv_cache_precision: activations.into(),
        kv_cache: KvCachePolicy::Growing,
        device: Device::Cpu.into(),
        threads: utils::get_num_threads(),
        jit: "none (candle has no JIT)".into(),
        optimised: None,
        weight_storage: weight_storage.into(),
        kernels: vec![kernels].into(),
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
        let version = VERSION.strip_prefix("candle-transformers ").unwrap();
        assert!(manifest.contains(&format!("candle-transformers = {{ version = \"={version}\"")));
    }
}
