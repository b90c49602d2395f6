//! [`InferenceEngine`] on burn: a decoder written on the operations of its CPU backend flex, since burn has none of
//! its own to drive. See this crate's README for its decisions, and docs/reference/frameworks.md.

mod layer;
mod linear;
mod model;
mod norm;
mod reader;
mod sequences;
mod tensor;

use bundle::Feature;
use burn_backend::{DType, TensorData};
use model::{Model, floats};
use sequences::{Cache, Sequences, is_written_in_place};
use worker::engine::{
    Bundle, Decode, Device, EngineError, Foreigns, HiddenStates, InEffect, InferenceEngine, KvCachePolicy,
    Options, Precision, Runtime, Settings, Want, check_append, check_begin, check_causal, check_features,
    check_window,
};

/// The version that the workspace pins, which is that of all of burn's crates; burn does not tell its own.
const VERSION: &str = worker::framework_version!("burn-flex 0.22.1");

/// burn, computing on flex.
#[derive(Debug)]
pub struct Burn {
    model: Model,
    in_place: bool,
    keep_hidden: bool,
    sequences: Option<Sequences>,
    logits: TensorData,
    hidden: Vec<Vec<f32>>,
}

impl InferenceEngine for Burn {
    const FRAMEWORK: &'static str = "burn";

    fn runtime() -> Result<Runtime, EngineError> {
        Ok(Runtime {
            binding: VERSION.into(),
            library: VERSION.into(),
            library_path: None,
            cpu_capability: None,
        })
    }

    fn load(bundle: &Bundle, settings: &Settings) -> Result<Self, EngineError> {
        settings.check_options(&[])?;
        check_causal(bundle.config(), Self::FRAMEWORK)?;
        check_features(bundle.config(), Self::FRAMEWORK, &[Feature::Window])?;
        let unsupported = |reason: &str| Err(EngineError::Unsupported(reason.into()));
        if let Device::Cuda(_) = settings.device() {
            return unsupported("burn's backend flex computes on CPUs alone");
        }
        if settings.dequantised {
            return unsupported("a reference computes in its own way alone: name an engine first");
        }
        if settings.precision.is_quantised() {
            return unsupported(
                "burn's backend flex has no quantised kernels: it dequantises a weight for each product",
            );
        }
        // flex computes on rayon's global pool, which keeps the number it was made with: `in_effect` tells it.
        let _ = rayon::ThreadPoolBuilder::new().num_threads(settings.threads).build_global();
        let model = Model::read(bundle, settings.precision)?;
        let in_place = is_written_in_place(model.dtype());
        Ok(Burn {
            model,
            in_place,
            keep_hidden: settings.hidden_states,
            sequences: None,
            logits: TensorData::new(Vec::<f32>::new(), [0]),
            hidden: Vec::new(),
        })
    }

    fn in_effect(&self) -> InEffect {
        let dtype = self.model.dtype();
        let (weights, product) = match dtype {
            DType::BF16 => (Precision::Bf16, "matmul in f32: both sides widened for each product"),
            DType::F16 => (Precision::F16, "matmul by gemm in f16"),
            _ => (Precision::F32, "matmul by gemm"),
        };
        let (parallel, products) = self.model.parallel_products();
        InEffect {
            precision: weights.into(),
            activations: weights.into(),
            kv_cache_precision: weights.into(),
            kv_cache: if self.in_place { KvCachePolicy::Preallocated } else { KvCachePolicy::Growing },
            device: Device::Cpu.into(),
            threads: rayon::current_num_threads(),
            jit: "none (flex runs each operation as it is called)".into(),
            optimised: None,
            weight_storage: self.model.storage().into(),
            kernels: vec![
                product.into(),
                format!("decode: {parallel} of {products} products on several threads"),
                "prefill: flex's attention".into(),
            ]
            .into(),
            shard_bytes: None,
            hybrid: None,
            semi_public: Foreigns::default(),
            changed_defaults: Foreigns::default(),
            artefact: None,
        }
    }

    fn decode(&mut self) -> Result<&mut dyn Decode, EngineError> {
        Ok(self)
    }
}

impl Decode for Burn {
    fn begin(&mut self, batch: usize, capacity: usize) -> Result<(), EngineError> {
        check_begin(self.model.config(), batch, capacity)?;
        check_window(self.model.config(), Self::FRAMEWORK, capacity)?;
        match &mut self.sequences {
            Some(held) if (held.batch, held.capacity) == (batch, capacity) => held.filled = 0,
            _ => {
                // The old caches are freed before the new ones are made.
                self.sequences = None;
                self.sequences = Some(self.model.sequences(batch, capacity));
            }
        }
        Ok(())
    }

    fn append(&mut self, tokens: &[u32], want: Want) -> Result<&[f32], EngineError> {
        let (batch, filled, capacity) = match &self.sequences {
            Some(held) => (held.batch, held.filled, held.capacity),
            None => (0, 0, 0),
        };
        check_append(self.model.config(), tokens, batch, filled, capacity)?;
        let Some(sequences) = &mut self.sequences else {
            return Err(EngineError::Input("append before begin".into()));
        };
        self.hidden.clear();
        let hidden = self.keep_hidden.then_some(&mut self.hidden);
        self.logits = self.model.forward(sequences, tokens, want, hidden)?;
        floats(&self.logits)
    }

    fn kv_cache_bytes(&self) -> Option<u64> {
        self.sequences.as_ref().map(|held| held.caches.iter().map(Cache::bytes).sum())
    }

    fn hidden_states(&mut self) -> Result<HiddenStates, EngineError> {
        if !self.keep_hidden {
            return Err(EngineError::Unsupported("hidden states were not asked for at load".into()));
        }
        Ok(HiddenStates { layers: self.hidden.clone() })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_version_reported_is_the_one_that_is_pinned() {
        let manifest = include_str!("../../Cargo.toml");
        let version = VERSION.strip_prefix("burn-flex ").unwrap();
        for name in ["burn-backend", "burn-flex"] {
            assert!(manifest.contains(&format!("{name} = {{ version = \"={version}\"")), "{name}");
        }
    }

    #[test]
    fn a_cache_is_written_where_it_lies() {
        for dtype in [DType::F32, DType::F16, DType::BF16] {
            assert!(is_written_in_place(dtype), "{dtype:?}");
        }
    }
}
