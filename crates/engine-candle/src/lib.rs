//! [`InferenceEngine`] on candle. The README explains which of candle's kernels it uses and why.

mod attention;
mod audio;
mod bench;
mod blocks;
mod cpu;
mod cross;
mod decoder;
mod elements;
mod encoder;
mod experts;
mod graph;
mod kernels;
mod layer;
mod linear;
mod math;
mod model;
mod norm;
mod parallel;
#[cfg(feature = "cuda")]
mod pool;
mod reader;
mod sequences;
mod tensors;
mod weight;

use bench::CandleBench;
use bundle::Precision;
use candle_core::{Device as CandleDevice, utils};
use cpu::Cpu;
use decoder::{Answer, Decoder};
use encoder::Encoder;
use graph::GraphRun;
use kernels::Kernels;
use reader::{Form, framework};
use tensors::Tensors;
use worker::engine;
use worker::engine::{
    Bench, Bundle, Decode, Device, Encode, EngineError, HiddenStates, InEffect, InferenceEngine, Options,
    Padding, Profile, Result, Run, Runtime, Settings, Side, Want, check_append, check_append_each,
    check_begin, check_listen, check_listened,
};

/// Why the decoder on tensors refuses the options `cache` and `weights`.
const ON_A_CPU_ALONE: &str =
    "the options cache and weights are for candle's decoder of a CPU, not for its decoder on tensors";

/// Why it refuses own kernels.
const OWN_ON_A_CPU_ALONE: &str =
    "the engine's own kernels are for a CPU and not for its decoder on tensors: take candle";

/// The version that the workspace pins; candle does not report its own.
const VERSION: &str = worker::framework_version!("candle-core 0.11.1");

#[derive(Debug)]
pub struct Candle {
    body: Body,
    batch: usize,
    capacity: usize,
    /// Positions that the caches hold.
    filled: usize,
    /// Whether there is audio, of a model that hears.
    has_listened: bool,
    /// Whether prompts of different lengths began the sequences.
    is_padded: bool,
    answer: Answer,
}

#[derive(Debug)]
enum Body {
    Decoder(Box<dyn Decoder>),
    Encoder(Box<Encoder>),
    Graph(Box<GraphRun>),
}

impl Body {
    fn decoder(&mut self) -> Result<&mut dyn Decoder> {
        match self {
            Body::Decoder(decoder) => Ok(decoder.as_mut()),
            Body::Encoder(_) => Err(EngineError::Input("the model encodes texts and continues none".into())),
            Body::Graph(_) => {
                Err(EngineError::Input("the model is an ONNX file and continues no texts".into()))
            }
        }
    }
}

impl InferenceEngine for Candle {
    const FRAMEWORK: &'static str = "candle";
    const RUNS_GRAPHS: bool = true;

    fn runtime() -> Result<Runtime> {
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

    fn load(bundle: &Bundle, settings: &Settings) -> Result<Self> {
        if let Some(graph) = &bundle.config().graph {
            let graph = GraphRun::load(bundle, graph, settings)?;
            return Ok(Candle::new(Body::Graph(Box::new(graph)), None));
        }
        settings.check_options(&["cache", "decoder", "kernels", "padded", "weights"])?;
        let config = bundle.config();
        let (padding, grows) = (settings.padding(config)?, settings.grows_cache(config)?);
        let kernels = Kernels::chosen(settings)?;
        let device = device(settings.device())?;
        let tensors = match settings.options.get("decoder").map(String::as_str) {
            None => !device.is_cpu(),
            Some("tensors") => true,
            Some(other) => {
                return Err(EngineError::Input(format!("option decoder is {other:?}, not tensors")));
            }
        };
        if tensors && kernels == Kernels::Own {
            return Err(EngineError::Unsupported(OWN_ON_A_CPU_ALONE.into()));
        }
        parallel::request_threads(settings.threads, tensors);
        let precision = settings.precision;
        let form = match precision {
            _ if settings.converts_weights()? => Form::Converted,
            // candle has no kernels for nf4.
            Precision::Nf4 => Form::Dequantised,
            _ if settings.dequantised => Form::Dequantised,
            _ => Form::OfFile,
        };
        if config.encoder.is_some() {
            if tensors {
                let reason = "candle encodes on a CPU alone here, and not by its decoder on tensors";
                return Err(EngineError::Unsupported(reason.into()));
            }
            let encoder =
                Encoder::read(bundle, (precision, form, kernels), (padding, settings.hidden_states))?;
            return Ok(Candle::new(Body::Encoder(Box::new(encoder)), None));
        }
        let decoder: Box<dyn Decoder> = if tensors {
            if config.audio.is_some() {
                let reason = "candle hears on a CPU alone here, and not by its decoder on tensors";
                return Err(EngineError::Unsupported(reason.into()));
            }
            if settings.cache() != precision.usual_cache() {
                let reason = "on tensors alone, candle keeps keys and values in the type of the weights";
                return Err(EngineError::Unsupported(reason.into()));
            }
            if grows {
                return Err(EngineError::Unsupported(ON_A_CPU_ALONE.into()));
            }
            Box::new(Tensors::read(bundle, device, precision, form)?)
        } else {
            Box::new(Cpu::read(bundle, (precision, form, kernels), (settings.cache(), grows))?)
        };
        let hidden = settings.hidden_states.then(Vec::new);
        Ok(Candle::new(Body::Decoder(decoder), hidden))
    }

    fn in_effect(&self) -> InEffect {
        match &self.body {
            Body::Decoder(decoder) => decoder.in_effect(),
            Body::Encoder(encoder) => encoder.in_effect(),
            Body::Graph(graph) => graph.in_effect(),
        }
    }

    #[cfg(feature = "cuda")]
    fn gpu_allocated(&self) -> Option<engine::Allocated> {
        match Device::named(&self.in_effect().device) {
            Device::Cuda(index) => pool::allocated(index),
            Device::Cpu => None,
        }
    }

    fn bench(settings: &Settings, bytes: usize) -> Result<Option<Box<dyn Bench>>> {
        let device = device(settings.device())?;
        let bench = CandleBench::new(&device, settings.precision, bytes).map_err(framework)?;
        Ok(Some(Box::new(bench)))
    }

    fn begin_profile(&mut self) -> Result<()> {
        if let Body::Graph(graph) = &self.body {
            graph.begin_profile();
            return Ok(());
        }
        let text = "candle has no profiler, so its own events are not here.";
        Err(EngineError::Unsupported(text.into()))
    }

    fn end_profile(&mut self) -> Result<Profile> {
        match &self.body {
            Body::Graph(graph) => graph.end_profile(),
            _ => Err(EngineError::Input("end_profile before begin_profile".into())),
        }
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

impl Candle {
    fn new(body: Body, hidden: Option<Vec<Vec<f32>>>) -> Candle {
        let answer = Answer { logits: Vec::new(), hidden };
        Candle { body, batch: 0, capacity: 0, filled: 0, has_listened: false, is_padded: false, answer }
    }
}

impl Decode for Candle {
    fn begin(&mut self, batch: usize, capacity: usize) -> Result<()> {
        let decoder = self.body.decoder()?;
        check_begin(decoder.config(), batch, capacity)?;
        if (self.batch, self.capacity) != (batch, capacity) {
            // If this fails, there are no sequences.
            self.batch = 0;
            decoder.reserve(batch, capacity).map_err(framework)?;
            (self.batch, self.capacity) = (batch, capacity);
        } else {
            decoder.restart().map_err(framework)?;
        }
        (self.filled, self.is_padded, self.has_listened) = (0, false, false);
        Ok(())
    }

    fn listen(&mut self, frames: &[f32]) -> Result<()> {
        let decoder = self.body.decoder()?;
        check_listen(decoder.config(), frames, (self.batch, self.filled))?;
        decoder.listen(frames).map_err(framework)?;
        self.has_listened = true;
        Ok(())
    }

    fn append(&mut self, tokens: &[u32], want: Want) -> Result<&[f32]> {
        let decoder = self.body.decoder()?;
        let count = check_append(decoder.config(), tokens, self.batch, self.filled, self.capacity)?;
        check_listened(decoder.config(), self.has_listened)?;
        decoder.append(tokens, self.filled, want, &mut self.answer).map_err(framework)?;
        self.filled += count;
        Ok(&self.answer.logits)
    }

    fn append_each(&mut self, tokens: &[u32], lengths: &[usize]) -> Result<&[f32]> {
        let decoder = self.body.decoder()?;
        let sizes = (self.batch, self.filled, self.capacity);
        let longest = check_append_each(decoder.config(), (tokens, lengths), sizes)?;
        check_listened(decoder.config(), self.has_listened)?;
        if decoder.grows() {
            return Err(engine::no_place_for_padding());
        }
        decoder.append_each((tokens, lengths), &mut self.answer).map_err(framework)?;
        self.filled = longest;
        self.is_padded = true;
        Ok(&self.answer.logits)
    }

    fn padding(&self) -> Option<Padding> {
        // The rows of all prompts go through the layers as one matrix without padding.
        self.is_padded.then_some(Padding { side: Side::Left, computed: 0 })
    }

    fn kv_cache_bytes(&self) -> Option<u64> {
        match &self.body {
            Body::Decoder(decoder) => decoder.kv_cache_bytes(),
            Body::Encoder(_) | Body::Graph(_) => None,
        }
    }

    fn hidden_states(&mut self) -> Result<HiddenStates> {
        HiddenStates::kept(self.answer.hidden.clone())
    }
}

fn device(device: Device) -> Result<CandleDevice> {
    let Device::Cuda(index) = device else { return Ok(CandleDevice::Cpu) };
    if !utils::cuda_is_available() {
        return Err(EngineError::Unsupported(
            "this engine is built without candle's CUDA kernels: run `photofinish setup --device cuda` (in a \
             checkout: `cargo xtask build --device cuda`), or leave out --device"
                .into(),
        ));
    }
    CandleDevice::new_cuda(index).map_err(|error| {
        let cause = framework(error);
        EngineError::Unsupported(format!(
            "candle cannot use cuda:{index} ({cause}): `nvidia-smi` lists the GPUs"
        ))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_version_reported_is_the_one_that_is_pinned() {
        let manifest = include_str!("../../../Cargo.toml");
        let version = VERSION.strip_prefix("candle-core ").unwrap();
        assert!(manifest.contains(&format!("candle-core = \"={version}\"")));
    }
}
