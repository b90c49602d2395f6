//! A model compiled by ONNX Runtime, which calls it a session.

use std::ffi::OsStr;
use std::hint::black_box;
use std::path::Path;

use bundle::{Element, ModelConfig, Precision, TensorView, Weights};
use half::{bf16, f16};
use onnx::fused::{self, audio, encoder};
use onnx::{Attention, Products, Storage, Written};
use ort::session::builder::SessionBuilder;
use worker::engine::{Bundle, BundleError, Device, EngineError, Result, Settings};

use crate::hearing::Hearing;
use crate::running::Running;
use crate::runtime::{
    self, Activations, Library, Options, commit, cuda_session_builder, framework, session_builder,
};

/// Copying would make decoding slower with every token of context.
pub(crate) const CACHE_IS_COPIED: &str =
    "GroupQueryAttention copies the KV cache instead of writing into it in place";

pub(crate) struct Model {
    pub(crate) config: ModelConfig,
    pub(crate) attention: Attention,
    pub(crate) products: Products,
    /// Whether products round their activations, as observed by a probe.
    pub(crate) activations: Activations,
    pub(crate) device: Device,
    pub(crate) running: Running,
    /// What it hears with, in models that hear.
    pub(crate) hearing: Option<Hearing>,
    /// The table of relative positions, in encoders that have one.
    pub(crate) relative: Option<Vec<f32>>,
    pub(crate) hidden_states: bool,
}

impl Model {
    pub(crate) fn compile(
        library: &Library,
        bundle: &Bundle,
        attention: Attention,
        settings: &Settings,
    ) -> Result<Model> {
        let options = Options::from_settings(settings, bundle.config())?;
        let products = Products {
            precision: settings.precision,
            dequantised: settings.precision.is_quantised() && settings.dequantised,
            converted: options.converts,
            folds_constants: options.optimization.folds_constants(),
        };
        let config = bundle.config().clone();
        let builder = builder_on(settings.device(), library, &config, attention, &options)?;
        let activations = match products.by_codes() {
            // A file's own blocks go through the same operator.
            true if products.precision == Precision::File => {
                runtime::activations(library, Products { precision: Precision::Int8, ..products })?
            }
            true => runtime::activations(library, products)?,
            false => Activations::F32,
        };
        let weights = bundle.weights(settings.precision)?;
        let (folder, file) = location(weights.path())?;
        let storage = || match products.dequantised || products.precision == Precision::File {
            true => Storage::Memory(Vec::new()),
            false => Storage::File(file.clone()),
        };
        let plan = (attention, products);
        let graph = match config.encoder {
            Some(_) => {
                let outputs = (options.padding.is_some(), settings.hidden_states);
                encoder::build(&config, plan, &weights, storage(), outputs)?
            }
            None => fused::build(&config, plan, &weights, storage(), settings.hidden_states)?,
        };
        let of_audio = audio::build(&config, products, &weights, storage())?;
        touch_mapped(&config, products, &weights)?;
        let relative = config.relative_bias().map(|name| weights.tensor(&name)).transpose()?;
        let relative = relative.map(|table| numbers(&table));
        drop(weights);
        let started = |builder: SessionBuilder, options: Options, graph: Written| {
            // `SkipLayerNormFusion` would restore the slower operator: see `onnx::fused`.
            let mut disabled = "SkipLayerNormFusion".to_owned();
            if products.converted {
                disabled.push_str(";ConstantFolding");
            }
            // For 1,500 rows of 2,048, `BiasGelu` takes three times as long as Add and Gelu (1.31).
            if config.audio.is_some() {
                disabled.push_str(";BiasGeluFusion");
            }
            let made = |builder: SessionBuilder| {
                let builder = builder
                    .with_config_entry("session.model_external_initializers_file_folder_path", &folder)?
                    .with_config_entry("optimization.disable_specified_optimizers", disabled)?;
                commit(builder, graph)
            };
            Running::start(builder, (settings.threads, options), made).map_err(framework)
        };
        let (device, hidden_states) = (settings.device(), settings.hidden_states);
        let hearing = match config.audio.zip(of_audio) {
            Some((audio, graph)) => {
                let uncached = Attention { cached: false, ..attention };
                let builder = builder_on(device, library, &config, uncached, &options)?;
                let running = started(builder, Hearing::options(&options), graph)?;
                Some(
                    Hearing::new(running, (&config, &audio), (products.float(), device))
                        .map_err(framework)?,
                )
            }
            None => None,
        };
        let running = started(builder, options, graph)?;
        Ok(Model {
            config,
            attention,
            products,
            activations,
            device,
            running,
            hearing,
            relative,
            hidden_states,
        })
    }
}

/// A session builder for the device. On a CPU, fails if the cache would be copied.
fn builder_on(
    device: Device,
    library: &Library,
    config: &ModelConfig,
    attention: Attention,
    options: &Options,
) -> Result<SessionBuilder> {
    let (optimization, is_shared) = (options.optimization, attention.cached && !options.grows);
    match device {
        Device::Cuda(index) => cuda_session_builder(library, optimization, index),
        Device::Cpu if is_shared && !runtime::cache_is_shared(library, config, attention)? => {
            Err(EngineError::Framework(CACHE_IS_COPIED.into()))
        }
        Device::Cpu => session_builder(library, optimization).map_err(framework),
    }
}

/// Reads the tensors that the session will keep mapped, so that they do not come from the disk later. The
/// others are read when the session packs them.
fn touch_mapped(config: &ModelConfig, products: Products, weights: &Weights) -> Result<(), BundleError> {
    if products.converted || products.by_codes() && products.precision == Precision::Nf4 {
        black_box(weights.touch());
        return Ok(());
    }
    let tables = [config.position_embedding(), config.token_type_embedding()];
    let heard = config.audio_encoder().map_or(Vec::new(), |encoder| {
        let stem = encoder.stem().into_iter().flat_map(|names| names.weights);
        stem.chain(encoder.position_embedding()).collect()
    });
    for name in tables.into_iter().flatten().chain([config.embedding()]).chain(heard) {
        black_box(weights.tensor(&name)?.touch());
        if weights.is_quantised(&name) {
            black_box(weights.quantised(&[name])?.scales.touch());
        }
    }
    Ok(())
}

fn numbers(tensor: &TensorView<'_>) -> Vec<f32> {
    let halves = || tensor.bytes.as_chunks().0.iter();
    match tensor.element {
        Element::F16 => halves().map(|number| f16::from_le_bytes(*number).to_f32()).collect(),
        Element::Bf16 => halves().map(|number| bf16::from_le_bytes(*number).to_f32()).collect(),
        _ => tensor.bytes.as_chunks().0.iter().map(|number| f32::from_le_bytes(*number)).collect(),
    }
}

/// Folder and name of the weights file, with links resolved: ONNX Runtime follows no link out of the folder.
pub fn location(weights: &Path) -> Result<(String, String)> {
    let path = weights.canonicalize().map_err(BundleError::io(weights))?;
    let text = |part: Option<&OsStr>| part.and_then(OsStr::to_str).map(str::to_owned);
    match (text(path.parent().map(Path::as_os_str)), text(path.file_name())) {
        (Some(folder), Some(file)) => Ok((folder, file)),
        _ => Err(EngineError::Input(format!("the path {} is not valid UTF-8", path.display()))),
    }
}
