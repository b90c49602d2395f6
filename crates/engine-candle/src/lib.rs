//! [`InferenceEngine`] on candle. The README says which of candle's ways it takes and why.

mod attention;
mod blocks;
mod linear;
mod math;
mod mlp;
mod model;
mod norm;
mod parallel;
mod reader;
mod sequences;
mod weight;

use bundle::Precision;
use candle_core::utils;
use engine::{
    Bundle, Device, EngineError, HiddenStates, InEffect, InferenceEngine, KvCachePolicy, Runtime, Settings,
    Want, check_append, check_begin,
};

use model::Model;
use sequences::Sequences;

/// The version that the workspace pins; candle does not tell its own.
const VERSION: &str = "candle-core 0.11.1";

#[derive(Debug)]
pub struct Candle {
    model: Model,
    sequences: Option<Sequences>,
    logits: Vec<f32>,
    /// Of the last append, where they are kept.
    hidden: Option<Vec<Vec<f32>>>,
}

impl InferenceEngine for Candle {
    const FRAMEWORK: &'static str = "candle";

    fn runtime() -> Result<Runtime, EngineError> {
        let capabilities = [
            ("AVX2", utils::with_avx()),
            ("F16C", utils::with_f16c()),
            ("NEON", utils::with_neon()),
            ("SIMD128", utils::with_simd128()),
        ];
        let used: Vec<_> = capabilities.into_iter().filter(|(_, used)| *used).map(|(name, _)| name).collect();
        Ok(Runtime {
            binding: VERSION.into(),
            library: VERSION.into(),
            library_path: None,
            cpu_capability: (!used.is_empty()).then(|| used.join(", ")),
        })
    }

    fn load(bundle: &Bundle, settings: &Settings) -> Result<Self, EngineError> {
        settings.check_options(&[])?;
        match settings.device {
            Device::Cpu => {}
            Device::Cuda(_) => {
                return Err(EngineError::Unsupported("this engine is built without candle's CUDA kernels, which NVIDIA's nvcc compiles: leave out \
                     --device, or compare other frameworks on the GPU"
                        .into()));
            }
        }
        parallel::request_threads(settings.threads);
        // candle has no kernels for nf4.
        let dequantise = settings.dequantised || settings.precision == Precision::Nf4;
        let model = Model::read(bundle, settings.precision, dequantise)?;
        let hidden = settings.hidden_states.then(Vec::new);
        Ok(Candle { model, sequences: None, logits: Vec::new(), hidden })
    }

    fn in_effect(&self) -> InEffect {
        let held = self.model.held();
        let emulated = held.precision != self.model.precision();
        let activations = match held.precision {
            Precision::Bf16 => "f32, rounded to bf16 as inputs of row-by-row products",
            Precision::F16 => "f32, rounded to f16 as inputs of row-by-row products",
            Precision::Int8 | Precision::Int4 => "f32, rounded to int8 as inputs of quantised products",
            _ => "f32",
        };
        let weight_storage = match (emulated, held.repacked) {
            (true, _) => "emulated: dequantised to f32 at load".to_owned(),
            (false, 0) => "one copy in memory, read from the file".to_owned(),
            (false, n) => {
                format!("blocks in memory; {n} of {} weights twice, repacked by candle", held.weights)
            }
        };
        let mut kernels = held.kernels;
        kernels.push("attention on candle's f32 dot product (decode) or matmul (prefill)".into());
        InEffect {
            weights: if emulated { self.model.precision() } else { held.precision },
            activations: activations.into(),
            kv_cache: "f32".into(),
            kv_cache_policy: KvCachePolicy::Preallocated,
            device: Device::Cpu,
            threads: parallel::decode_threads().max(parallel::prefill_threads()),
            jit: "none (candle has no JIT)".into(),
            optimised: None,
            weight_storage,
            kernels,
        }
    }

    fn begin(&mut self, batch: usize, capacity: usize) -> Result<(), EngineError> {
        check_begin(self.model.config(), batch, capacity)?;
        match &mut self.sequences {
            Some(sequences) if (sequences.batch, sequences.capacity) == (batch, capacity) => {
                sequences.filled = 0;
            }
            sequences => {
                // The old caches are freed before the new ones are made.
                *sequences = None;
                *sequences = Some(Sequences::new(self.model.config(), batch, capacity).map_err(framework)?);
            }
        }
        Ok(())
    }

    fn append(&mut self, tokens: &[u32], want: Want) -> Result<&[f32], EngineError> {
        let Some(sequences) = &mut self.sequences else {
            return Err(EngineError::Input("append before begin".into()));
        };
        let Sequences { batch, filled, capacity, .. } = *sequences;
        check_append(self.model.config(), tokens, batch, filled, capacity)?;
        self.model
            .forward(sequences, tokens, want, &mut self.logits, self.hidden.as_mut())
            .map_err(framework)?;
        Ok(&self.logits)
    }

    fn hidden_states(&mut self) -> Result<HiddenStates, EngineError> {
        match &self.hidden {
            Some(layers) => Ok(HiddenStates { layers: layers.clone() }),
            None => Err(EngineError::Unsupported(
                "hidden states are kept only where the settings at load ask for them".into(),
            )),
        }
    }
}

/// candle appends a backtrace where the environment asks for them; the cause is the first line.
fn framework(error: candle_core::Error) -> EngineError {
    EngineError::Framework(error.to_string().lines().next().unwrap_or_default().to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_version_reported_is_the_one_that_is_pinned() {
        let manifest = include_str!("../../../Cargo.toml");
        let version = VERSION.strip_prefix("candle-core ").unwrap();
        assert!(manifest.contains(&format!("candle-core = {{ version = \"={version}\"")));
    }
}
