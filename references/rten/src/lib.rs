//! [`InferenceEngine`] on rten (<https://github.com/robertknight/rten>), driven as its own `rten-generate` drives a
//! decoder, and as people drive an exported encoder. See docs/reference/frameworks.md and this crate's README.

mod encoder;
mod graph;
mod model;
mod sequences;

use encoder::Encoder;
use graph::GraphModel;
use model::Model;
use rten_gemm::GemmExecutor;
use sequences::Sequences;
use worker::engine::{
    ARTEFACT, Bundle, Decode, Device, Encode, EngineError, Foreigns, HiddenStates, InEffect, InferenceEngine,
    KvCachePolicy, Options, Precision, Run, Runtime, Settings, Want, check_append, check_begin, check_causal,
    check_features, check_window, without_panic,
};

/// The version that the workspace pins; rten does not tell its own.
const VERSION: &str = worker::framework_version!("rten 0.27.0");

/// A model in rten.
#[derive(Debug)]
pub struct Rten {
    in_effect: InEffect,
    body: Body,
}

/// What was loaded.
#[derive(Debug)]
enum Body {
    Decoder(Box<Decoder>),
    Encoder(Box<Encoder>),
    Graph(Box<GraphModel>),
}

#[derive(Debug)]
struct Decoder {
    model: Model,
    sequences: Option<Sequences>,
}

impl Rten {
    fn decoder(&mut self) -> Result<&mut Decoder, EngineError> {
        match &mut self.body {
            Body::Decoder(decoder) => Ok(decoder),
            Body::Encoder(_) | Body::Graph(_) => {
                Err(EngineError::Input("the model continues no texts".into()))
            }
        }
    }
}

impl InferenceEngine for Rten {
    const FRAMEWORK: &'static str = "rten";
    const RUNS_GRAPHS: bool = true;

    fn runtime() -> Result<Runtime, EngineError> {
        Ok(Runtime {
            binding: VERSION.into(),
            library: VERSION.into(),
            library_path: None,
            cpu_capability: Some(GemmExecutor::<f32>::default().kernel_name().into()),
        })
    }

    fn load(bundle: &Bundle, settings: &Settings) -> Result<Rten, EngineError> {
        settings.check_options(&[ARTEFACT])?;
        check_supported(settings)?;
        if let Some(graph) = &bundle.config().graph {
            let model = without_panic(Self::FRAMEWORK, || GraphModel::load(bundle, graph, settings))?;
            let in_effect = InEffect {
                kv_cache: KvCachePolicy::None,
                weight_storage: "read into memory".into(),
                ..in_effect(model.threads, settings, &graph::KERNELS)
            };
            return Ok(Rten { in_effect, body: Body::Graph(Box::new(model)) });
        }
        if bundle.config().encoder.is_some() {
            check_features(bundle.config(), Self::FRAMEWORK, &reference_portable::encoder::FEATURES)?;
            let encoder = Encoder::load(bundle, settings)?;
            let in_effect = InEffect {
                kv_cache: KvCachePolicy::None,
                ..in_effect(encoder.loaded.threads, settings, &encoder::KERNELS)
            };
            return Ok(Rten { in_effect, body: Body::Encoder(Box::new(encoder)) });
        }
        check_causal(bundle.config(), Self::FRAMEWORK)?;
        check_features(bundle.config(), Self::FRAMEWORK, &reference_portable::FEATURES)?;
        let model = Model::load(bundle, settings)?;
        let in_effect = in_effect(model.loaded.threads, settings, &decoder_kernels(&model));
        Ok(Rten { in_effect, body: Body::Decoder(Box::new(Decoder { model, sequences: None })) })
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

    fn graph(&mut self) -> Result<&mut dyn Run, EngineError> {
        match &mut self.body {
            Body::Graph(model) => Ok(model.as_mut()),
            _ => Err(EngineError::Input("the model is no ONNX file".into())),
        }
    }
}

impl Decode for Rten {
    fn begin(&mut self, batch: usize, capacity: usize) -> Result<(), EngineError> {
        let Decoder { model, sequences } = self.decoder()?;
        check_begin(&model.config, batch, capacity)?;
        check_window(&model.config, Self::FRAMEWORK, capacity)?;
        // The old cache goes before the new one comes.
        *sequences = None;
        *sequences = Some(Sequences::new(&model.config, batch, capacity));
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
        Ok(&sequences.logits)
    }

    fn kv_cache_bytes(&self) -> Option<u64> {
        match &self.body {
            Body::Decoder(decoder) => decoder.sequences.as_ref().and_then(Sequences::cache_bytes),
            Body::Encoder(_) | Body::Graph(_) => None,
        }
    }

    fn hidden_states(&mut self) -> Result<HiddenStates, EngineError> {
        let Decoder { model, sequences } = self.decoder()?;
        if !model.hidden_states {
            let text = "hidden states were not asked for when the model was loaded";
            return Err(EngineError::Input(text.into()));
        }
        let layers = sequences.as_ref().map_or(Vec::new(), |sequences| sequences.hidden.clone());
        Ok(HiddenStates { layers })
    }
}

fn check_supported(settings: &Settings) -> Result<(), EngineError> {
    let reason = match (settings.device(), settings.precision) {
        (Device::Cuda(_), _) => "rten computes on the CPU alone",
        (Device::Cpu, Precision::F32) => return Ok(()),
        (Device::Cpu, Precision::Bf16 | Precision::F16) => {
            "rten widens 16-bit weights to f32 when it loads them, and computes in that"
        }
        (Device::Cpu, Precision::Int8 | Precision::Nf4 | Precision::File) => {
            "rten has no product with weights in this form: its MatMulNBits takes 4-bit integers alone"
        }
        (Device::Cpu, Precision::Int4) => {
            "this reference drives rten in f32 alone: its embedding lookup takes no quantised table"
        }
    };
    Err(EngineError::Unsupported(reason.into()))
}

fn decoder_kernels(model: &Model) -> [&'static str; 2] {
    let attention = match model.config.position_embedding() {
        Some(_) => "GroupQueryAttention",
        None => "GroupQueryAttention with rotation",
    };
    // An append that copies the cache is an error.
    [attention, "KV cache written in place (observed)"]
}

/// `kernels` are those beside the products.
fn in_effect(threads: usize, settings: &Settings, kernels: &[&str]) -> InEffect {
    let products = format!("Gemm on [out, in] rows ({})", GemmExecutor::<f32>::default().kernel_name());
    InEffect {
        precision: Precision::F32.into(),
        activations: "f32".into(),
        kv_cache_precision: Precision::F32.into(),
        kv_cache: KvCachePolicy::Preallocated,
        device: Device::Cpu.into(),
        threads,
        jit: if settings.jit { "graph optimisation: on" } else { "graph optimisation: off" }.into(),
        optimised: Some(settings.jit),
        weight_storage: "mapped".into(),
        kernels: [products].into_iter().chain(kernels.iter().map(|&kernel| kernel.to_owned())).collect(),
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
        let version = VERSION.strip_prefix("rten ").unwrap();
        for name in ["rten", "rten-gemm", "rten-tensor"] {
            assert!(manifest.contains(&format!("\n{name} = {{ version = \"={version}\"")), "{name}");
        }
    }
}
