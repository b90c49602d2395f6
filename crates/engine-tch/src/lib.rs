//! [`InferenceEngine`] on libtorch, through tch. The README explains which of libtorch's kernels it uses and
//! why.

mod attend;
mod audio;
mod cross;
mod eager;
mod encoder;
mod experts;
mod fused;
mod graph;
mod layer;
mod layout;
mod linear;
mod model;
mod norm;
mod profile;
mod reader;
mod rotation;
mod scripted;
mod sequences;
mod shim;

use std::path::{Path, PathBuf};
use std::sync::Once;

use bundle::ModelConfig;
use encoder::Encoder;
use graph::GraphModule;
use layout::Layout;
use model::{Model, Output};
use profile::TchBench;
use sequences::Sequences;
use shim::InferenceMode;
use tch::{Kind, TchError, Tensor};
use worker::engine::{
    self, Bench, Bundle, Decode, Device, Encode, EngineError, Foreigns, HiddenStates, InEffect,
    InferenceEngine, KvCachePolicy, Options, Padding, Precision, Profile, Result, Run, Runtime, Settings,
    Side, Want, check_append, check_append_each, check_begin, check_listen, check_listened,
};

pub struct Tch {
    body: Body,
    sequences: Option<Sequences>,
    keep_hidden: bool,
    output: Option<Output>,
}

enum Body {
    Decoder(Box<Model>),
    Encoder(Box<Encoder>),
    Graph(Box<GraphModule>),
}

impl Body {
    fn decoder(&mut self) -> Result<&mut Model> {
        match self {
            Body::Decoder(model) => Ok(model),
            Body::Encoder(_) => Err(EngineError::Input("the model encodes texts and continues none".into())),
            Body::Graph(_) => {
                Err(EngineError::Input("the model is an ONNX file and continues no texts".into()))
            }
        }
    }

    /// Switches the marking of parts for libtorch's profiler on or off, and returns the old state.
    fn set_marked(&mut self, marked: bool) -> bool {
        match self {
            Body::Decoder(model) => model.set_marked(marked),
            Body::Encoder(encoder) => encoder.set_marked(marked),
            // libtorch's profiler names its own functions; there are no other parts.
            Body::Graph(graph) => graph.set_marked(marked),
        }
    }
}

impl Tch {
    fn with(body: Body, settings: &Settings) -> Tch {
        Tch { body, sequences: None, keep_hidden: settings.hidden_states, output: None }
    }
}

impl InferenceEngine for Tch {
    const FRAMEWORK: &'static str = "tch";
    const RUNS_GRAPHS: bool = true;

    fn runtime() -> Result<Runtime> {
        let loaded = shim::loaded();
        let library_path = library_path();
        check_version(&loaded, &shim::built_for(), library_path.as_deref())?;
        Ok(Runtime {
            binding: BINDING.into(),
            library: format!("libtorch {loaded}"),
            library_path,
            cpu_capability: shim::cpu_capability(),
        })
    }

    fn load(bundle: &Bundle, settings: &Settings) -> Result<Tch> {
        if let Some(graph) = &bundle.config().graph {
            set_threads(settings.threads);
            let module = GraphModule::load(bundle, graph, settings)?;
            return Ok(Tch::with(Body::Graph(Box::new(module)), settings));
        }
        settings.check_options(&[
            "attention",
            "cache",
            "execution",
            "fused",
            "linear",
            "padded",
            "weights",
        ])?;
        settings.padding(bundle.config())?;
        settings.grows_cache(bundle.config())?;
        let device = self::device(settings)?;
        set_threads(settings.threads);
        let _mode = InferenceMode::enter();
        let body = match bundle.config().encoder {
            Some(_) if settings.options.contains_key("attention") => {
                return Err(EngineError::Unsupported("the option attention is for decoders".into()));
            }
            Some(_) => Body::Encoder(Box::new(Encoder::read(bundle, settings, device)?)),
            None => Body::Decoder(Box::new(Model::read(bundle, settings, device)?)),
        };
        Ok(Tch::with(body, settings))
    }

    fn in_effect(&self) -> InEffect {
        let model = match &self.body {
            Body::Decoder(model) => model,
            Body::Encoder(encoder) => return encoder.in_effect(),
            Body::Graph(graph) => return graph.in_effect(),
        };
        let (kind, device) = model.options;
        InEffect {
            precision: model.weights.precision().into(),
            activations: activations(model.layout, kind).into(),
            kv_cache_precision: precision(model.kinds.cache).into(),
            kv_cache: match model.config.causal {
                true if model.kinds.grows => KvCachePolicy::Growing,
                true => KvCachePolicy::Preallocated,
                false => KvCachePolicy::None,
            },
            device: known(device).into(),
            threads: usize::try_from(tch::get_num_threads()).unwrap_or(0),
            jit: jit(model).into(),
            optimised: model.torchscript,
            weight_storage: weight_storage(model.layout, device, model.emulated).into(),
            kernels: kernels(model).into(),
            shard_bytes: None,
            hybrid: None,
            semi_public: semi_public(model),
            changed_defaults: Foreigns::default(),
            artefact: None,
        }
    }

    fn gpu_allocated(&self) -> Option<engine::Allocated> {
        let Device::Cuda(index) = Device::named(&self.in_effect().device) else { return None };
        let (in_use, peak) = shim::allocated(index)?;
        Some(engine::Allocated { in_use, peak })
    }

    fn bench(settings: &Settings, bytes: usize) -> Result<Option<Box<dyn Bench>>> {
        set_threads(settings.threads);
        let device = self::device(settings)?;
        let bench = TchBench::new(device, settings.precision, bytes).map_err(framework)?;
        Ok(Some(Box::new(bench)))
    }

    fn begin_profile(&mut self) -> Result<()> {
        profile::begin()?;
        self.body.set_marked(true);
        Ok(())
    }

    fn end_profile(&mut self) -> Result<Profile> {
        if !self.body.set_marked(false) {
            return Err(EngineError::Input(
                "end_profile without begin_profile, or for the second time".into(),
            ));
        }
        profile::end()
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

impl Decode for Tch {
    fn begin(&mut self, batch: usize, capacity: usize) -> Result<()> {
        let model = self.body.decoder()?;
        check_begin(&model.config, batch, capacity)?;
        match &mut self.sequences {
            Some(sequences) if (sequences.batch, sequences.capacity) == (batch, capacity) => {
                let _mode = InferenceMode::enter();
                sequences.restart().map_err(framework)?;
            }
            sequences => {
                // The old cache is freed before the new one is made.
                *sequences = None;
                let _mode = InferenceMode::enter();
                let new = Sequences::new(&model.config, (batch, capacity), model.options, model.kinds);
                *sequences = Some(new.map_err(framework)?);
            }
        }
        Ok(())
    }

    fn listen(&mut self, frames: &[f32]) -> Result<()> {
        let sequences = engine::begun(self.sequences.as_mut())?;
        let model = self.body.decoder()?;
        check_listen(&model.config, frames, (sequences.batch, sequences.filled))?;
        let _mode = InferenceMode::enter();
        model.listen(sequences, frames).map_err(framework)
    }

    fn append(&mut self, tokens: &[u32], want: Want) -> Result<&[f32]> {
        let sequences = engine::begun(self.sequences.as_mut())?;
        let Sequences { batch, filled, capacity, .. } = *sequences;
        let model = self.body.decoder()?;
        check_append(&model.config, tokens, batch, filled, capacity)?;
        check_listened(&model.config, sequences.has_listened)?;
        let _mode = InferenceMode::enter();
        let output = model.forward(sequences, tokens, want, self.keep_hidden).map_err(framework);
        if output.is_err() && model.kinds.grows {
            // The failed step took the growing cache with it.
            self.sequences = None;
        }
        Ok(numbers(&self.output.insert(output?).logits))
    }

    fn append_each(&mut self, tokens: &[u32], lengths: &[usize]) -> Result<&[f32]> {
        let sequences = engine::begun(self.sequences.as_mut())?;
        let model = self.body.decoder()?;
        let sizes = (sequences.batch, sequences.filled, sequences.capacity);
        check_append_each(&model.config, (tokens, lengths), sizes)?;
        check_listened(&model.config, sequences.has_listened)?;
        if model.kinds.grows {
            return Err(engine::no_place_for_padding());
        }
        let _mode = InferenceMode::enter();
        let output = model.forward_each(sequences, (tokens, lengths), self.keep_hidden).map_err(framework);
        Ok(numbers(&self.output.insert(output?).logits))
    }

    fn padding(&self) -> Option<Padding> {
        let is_padded = self.sequences.as_ref().is_some_and(|sequences| !sequences.padding.is_empty());
        // The rows of all prompts go through the layers without padding.
        is_padded.then_some(Padding { side: Side::Left, computed: 0 })
    }

    fn kv_cache_bytes(&self) -> Option<u64> {
        self.sequences.as_ref().and_then(Sequences::cache_bytes)
    }

    fn hidden_states(&mut self) -> Result<HiddenStates> {
        match &self.output {
            _ if !self.keep_hidden => Err(EngineError::Unsupported(
                "hidden states are kept only where the settings at load ask for them".into(),
            )),
            None => Err(EngineError::Input("hidden states before append".into())),
            Some(output) => Ok(HiddenStates {
                layers: output.hidden.iter().map(|state| numbers(state).to_vec()).collect(),
            }),
        }
    }
}

/// The type in which layers compute, human-readable.
fn activations(layout: Layout, kind: Kind) -> String {
    let activations = precision(kind);
    match layout {
        Layout::Widened => format!("{activations}, in f32 within attention and products of many rows"),
        Layout::Converted if kind == Kind::Half => {
            format!("{activations}, in f32 within attention and products")
        }
        Layout::Converted => format!("{activations}, in f32 within products"),
        Layout::Int8 | Layout::Int4 => format!("{activations}, in bf16 within products by codes"),
        _ => activations.to_string(),
    }
}

fn weight_storage(layout: Layout, device: tch::Device, emulated: bool) -> String {
    let held = match (layout, device) {
        (Layout::Onednn | Layout::Xnnpack | Layout::Int4, _) => "prepacked copy; embedding mapped",
        (Layout::ByRow, _) => "two copies in memory, one of them packed; embedding mapped",
        (Layout::Converted, _) => "mapped; converted to f32 for every product",
        (_, tch::Device::Cpu) if emulated => "f32 copy; embedding mapped",
        (Layout::Int8, _) => "mapped; codes are copied where no aligned load can read them",
        (_, tch::Device::Cpu) => "mapped",
        _ => "copied to the device",
    };
    match emulated {
        true => format!("emulated: dequantised to f32 at load; {held}"),
        false => held.to_owned(),
    }
}

fn jit(model: &Model) -> String {
    match model.torchscript {
        None => "eager".into(),
        Some(false) => "eager: JIT is off".into(),
        Some(true) => {
            let fusion =
                if scripted::fuses_on_cpu() { "kernels fused" } else { "no kernels fused: without LLVM" };
            format!("TorchScript, each layer compiled and frozen ({fusion})")
        }
    }
}

fn linear_kernel(layout: Layout) -> String {
    let kernel = match layout {
        Layout::Xnnpack => "XNNPACK's prepacked::linear_clamp_run, cut into a part for each thread",
        Layout::Onednn => "mkldnn::_linear_pointwise, weights packed by oneDNN",
        Layout::ByRow => {
            return format!(
                "mm without oneDNN below {} rows, then mkldnn::_linear_pointwise, weights packed by oneDNN",
                linear::ONEDNN_ROWS
            );
        }
        Layout::Widened => "linear, of many rows in f32",
        Layout::Converted => "linear in f32, of weights that `to` converts before",
        Layout::Int8 | Layout::Int4 => {
            let kernel = match layout {
                Layout::Int8 => "_weight_int8pack_mm in bf16",
                _ => "_weight_int4pack_mm_for_cpu in bf16",
            };
            let rows = linear::widened_rows(layout);
            if rows == i64::MAX {
                return kernel.into();
            }
            return format!("{kernel}; linear of weights widened to bf16 from {rows} rows");
        }
        Layout::Plain => "linear",
    };
    kernel.into()
}

/// The kernel of norms that are not elementary, human-readable.
fn norm_kernel(config: &ModelConfig) -> &'static str {
    if config.rms_norm { "layer_norm over (x, -x)" } else { "layer_norm" }
}

fn kernels(model: &Model) -> Vec<String> {
    let linear = linear_kernel(model.layout);
    let on_gpu = matches!(model.options.1, tch::Device::Cuda(_));
    let kernels = if model.fused {
        let norm = norm_kernel(&model.config);
        let attention = match model.config.form.attention_cap {
            Some(_) => "matmul, tanh, softmax, matmul",
            None if model.config.form.sinks => "matmul, softmax with sinks, matmul",
            None if model.kinds.in_products => "matmul, softmax, matmul",
            None if on_gpu => {
                "scaled_dot_product_attention without cuDNN's, which is planned for every length"
            }
            None => "scaled_dot_product_attention",
        };
        ["fused q/k/v and gate/up", attention, norm]
    } else {
        ["separate q/k/v and gate/up", "matmul, softmax, matmul", "elementary norms"]
    };
    let growth = model.kinds.grows.then_some("cat of old and new keys and values in every append");
    let experts = model.config.has_experts().then_some("experts: softmax, topk, index_select and a matmul");
    let others = kernels.into_iter().chain(experts).chain(growth).map(str::to_owned);
    let audio = model.ear.as_ref().map(|ear| {
        format!(
            "audio: conv1d, {}, scaled_dot_product_attention, and for each token matmul, softmax, matmul",
            linear_kernel(ear.layout)
        )
    });
    [linear].into_iter().chain(others).chain(audio).collect()
}

/// What a layer's products use outside libtorch's documented operators.
fn semi_public_linear(layout: Layout) -> Option<&'static str> {
    match layout {
        Layout::Xnnpack => Some("prepacked::linear_clamp_run"),
        Layout::Onednn => Some("mkldnn::_linear_pointwise"),
        Layout::ByRow => Some("mkldnn::_linear_pointwise; oneDNN switched off for a product of 1 or 2 rows"),
        Layout::Int8 => Some("_weight_int8pack_mm"),
        Layout::Int4 => Some("_weight_int4pack_mm_for_cpu"),
        Layout::Widened | Layout::Converted | Layout::Plain => None,
    }
}

fn semi_public(model: &Model) -> Foreigns {
    let cut = model.fused && !model.kinds.in_products && model.options.1 == tch::Device::Cpu;
    let attention = cut.then_some("_scaled_dot_product_flash_attention_for_cpu, for long contexts");
    let of_audio = model.ear.as_ref().filter(|ear| ear.layout != model.layout);
    let of_audio = of_audio.and_then(|ear| semi_public_linear(ear.layout));
    semi_public_linear(model.layout).into_iter().chain(of_audio).chain(attention).collect()
}

/// The device by its name for every engine.
fn known(device: tch::Device) -> Device {
    match device {
        tch::Device::Cuda(index) => Device::Cuda(index),
        _ => Device::Cpu,
    }
}

fn precision(kind: Kind) -> Precision {
    match kind {
        Kind::BFloat16 => Precision::Bf16,
        Kind::Half => Precision::F16,
        _ => Precision::F32,
    }
}

/// The elements of a contiguous f32 tensor in host memory, in place.
fn numbers(tensor: &Tensor) -> &[f32] {
    assert!(tensor.kind() == Kind::Float && tensor.device() == tch::Device::Cpu && tensor.is_contiguous());
    // SAFETY: as asserted, `numel` f32 are at the pointer; the tensor owns them for as long as it is borrowed.
    #[allow(unsafe_code)]
    unsafe {
        std::slice::from_raw_parts(tensor.data_ptr().cast(), tensor.numel())
    }
}

// The loaded libtorch, and its settings for the whole process.

/// The version that the workspace pins; tch does not report its own.
const BINDING: &str = "tch 0.24.0";

/// Another version may load, if it happens to have all symbols, and still have a different layout of objects.
fn check_version(loaded: &str, built_for: &str, path: Option<&Path>) -> Result<()> {
    if loaded == built_for {
        return Ok(());
    }
    let place = path.map_or("the libtorch that was loaded".into(), |path| path.display().to_string());
    Err(EngineError::Framework(format!(
        "{place} is version {loaded}, but this worker was built for {built_for}: set LIBTORCH to a libtorch \
         {built_for}, or unset it, and build the worker again"
    )))
}

/// The file that is actually mapped. Only Linux shows it.
fn library_path() -> Option<PathBuf> {
    let maps = std::fs::read_to_string("/proc/self/maps").ok()?;
    let path = maps.lines().find_map(|line| {
        line.find('/').map(|at| &line[at..]).filter(|path| path.ends_with("/libtorch_cpu.so"))
    })?;
    Some(path.into())
}

/// Sets the number of threads; 0 leaves it to libtorch.
fn set_threads(threads: usize) {
    // libtorch accepts this number once, and panics the second time. Nothing here runs operations
    // concurrently, so the pool needs only one thread.
    static INTEROP: Once = Once::new();
    INTEROP.call_once(|| tch::set_num_interop_threads(1));
    if threads > 0 {
        tch::set_num_threads(i32::try_from(threads).unwrap_or(i32::MAX));
    }
}

fn device(settings: &Settings) -> Result<tch::Device> {
    let Device::Cuda(index) = settings.device() else { return Ok(tch::Device::Cpu) };
    if !tch::Cuda::is_available() {
        return Err(EngineError::Unsupported(
            "this libtorch sees no CUDA device: it was built for the CPU alone, or no driver is loaded"
                .into(),
        ));
    }
    let count = tch::Cuda::device_count();
    if index as i64 >= count {
        return Err(EngineError::Unsupported(format!(
            "there is no device cuda:{index}; libtorch sees {count}, counted from 0"
        )));
    }
    // cuDNN's attention makes a new plan for every length: 0.3 s per new token on an H200.
    shim::attend_without_cudnn().map_err(framework)?;
    Ok(tch::Device::Cuda(index))
}

// libtorch's errors.

/// libtorch's message without the C++ stack trace that follows it.
fn reason(error: TchError) -> String {
    let text = match error {
        TchError::Torch(text) => text,
        other => other.to_string(),
    };
    text.lines().next().unwrap_or("libtorch gave no reason").to_owned()
}

fn framework(error: TchError) -> EngineError {
    EngineError::Framework(reason(error))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_version_reported_is_the_one_that_is_pinned() {
        let manifest = include_str!("../../../Cargo.toml");
        let version = BINDING.strip_prefix("tch ").unwrap();
        assert!(manifest.contains(&format!("tch = {{ version = \"={version}\"")));
    }

    #[test]
    fn a_library_of_another_version_is_refused_by_name() {
        let path = Path::new("/somewhere/libtorch_cpu.so");
        let error = check_version("2.9.1", "2.11.0", Some(path)).expect_err("is refused").to_string();
        for part in ["/somewhere/libtorch_cpu.so", "2.9.1", "2.11.0"] {
            assert!(error.contains(part), "{error}");
        }
        assert!(check_version("2.11.0", "2.11.0", None).is_ok());
    }

    #[test]
    fn the_loaded_library_tells_its_version() {
        assert_eq!(shim::loaded(), shim::built_for());
    }

    #[cfg(target_os = "linux")]
    #[test]
    fn the_path_is_that_of_the_mapped_file() {
        let path = library_path().expect("libtorch is loaded");
        assert!(path.is_file(), "{}", path.display());
    }
}
