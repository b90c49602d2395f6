//! The native library, which `ORT_DYLIB_PATH` names. A process loads it once.

use std::error::Error;
use std::ffi::CStr;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, OnceLock};

use bundle::quantised::{INT4_GROUP, INT4_OFFSET, NF4_BLOCK};
use bundle::{Element, ModelConfig, Precision, Quantised, TensorView};
use half::f16;
use onnx::graph::{CacheNames, LAST_POSITIONS, TOTAL, cache_names};
use onnx::{
    Attention, Attribute, DataType, Dim, GraphBuilder, IN_MEMORY, MICROSOFT, Products, Storage, WITH_INT8,
    Written, quantised_product,
};
use ort::environment::Environment;
use ort::logging::LogLevel;
use ort::memory::{AllocationDevice, Allocator, AllocatorType, MemoryInfo, MemoryType};
use ort::session::Session;
use ort::session::builder::{GraphOptimizationLevel, SessionBuilder};
use ort::value::{DynTensor, DynTensorValueType, Tensor, TensorElementType, Value};
use ort::{AsPointer, ep, sys};
use worker::engine::{Allocated, Device, EngineError, Options as _, Result, Settings, TextPadding};

/// The `ort` crate, pinned to this version in the workspace's manifest.
pub(crate) const BINDING: &str = "ort 2.0.0-rc.15";

/// Names the file of the native library.
const DYLIB_VARIABLE: &str = "ORT_DYLIB_PATH";

const SET_UP: &str = "run `photofinish setup` (in a checkout: `cargo xtask setup`)";

/// The loaded library. A process can have only one, with one environment.
pub(crate) struct Library {
    pub(crate) path: PathBuf,
    /// As the library reports it, for example `1.31.1`.
    pub(crate) version: String,
    pub(crate) environment: Environment,
    /// Open since the version was read: to close it would run its destructors, and `ort` would load it again.
    _open: libloading::Library,
}

/// The first call loads the library that `ORT_DYLIB_PATH` names.
pub(crate) fn library() -> Result<&'static Library> {
    static LIBRARY: OnceLock<Library> = OnceLock::new();
    static LOADING: Mutex<()> = Mutex::new(());
    let _guard = LOADING.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
    if let Some(library) = LIBRARY.get() {
        return Ok(library);
    }
    let (path, version, open) = find(std::env::var_os(DYLIB_VARIABLE).map(PathBuf::from))?;
    let builder = ort::init_from(&path).map_err(|error| EngineError::Framework(error.to_string()))?;
    let environment = builder.with_name("photofinish").with_telemetry(false).build().map_err(framework)?;
    // Errors are reported through `EngineError`; the library's own log would repeat them.
    environment.set_log_level(LogLevel::Fatal);
    Ok(LIBRARY.get_or_init(|| Library { path, version, environment, _open: open }))
}

/// The library's absolute path, its version, and itself, loaded. Fails if `ort` cannot use that version.
pub(crate) fn find(named: Option<PathBuf>) -> Result<(PathBuf, String, libloading::Library)> {
    let unusable =
        |reason: String| EngineError::Framework(format!("{reason}; {SET_UP}, or correct {DYLIB_VARIABLE}"));
    let Some(named) = named.filter(|path| !path.as_os_str().is_empty()) else {
        let text = format!("{DYLIB_VARIABLE} is not set; {SET_UP}");
        return Err(EngineError::Framework(text));
    };
    // Absolute, because `ort` would look in the executable's directory first.
    let path = std::path::absolute(&named).unwrap_or(named);
    if !path.is_file() {
        return Err(unusable(format!("{DYLIB_VARIABLE} names {}, which is no file", path.display())));
    }
    let (version, open) =
        version(&path).map_err(|reason| unusable(format!("{} {reason}", path.display())))?;
    let minor = version.split('.').nth(1).and_then(|minor| minor.parse::<u32>().ok());
    if !version.starts_with("1.") || minor.is_none_or(|minor| minor < ort::MINOR_VERSION) {
        let (shown, needed) = (path.display(), ort::MINOR_VERSION);
        let reason = format!("{shown} is ONNX Runtime {version}, but 1.{needed} or a newer 1.x is needed");
        return Err(unusable(reason));
    }
    Ok((path, version, open))
}

/// `OrtGetApiBase()->GetVersionString()`, which `ort` checks too but does not expose, and the library.
fn version(path: &Path) -> Result<(String, libloading::Library), String> {
    // SAFETY: a caller that names a library to load trusts its initialisers. The symbol has had this type
    // since ONNX Runtime's first release, and it points to static data of the library, which stays open
    // throughout.
    #[allow(unsafe_code)]
    unsafe {
        let library = libloading::Library::new(path).map_err(|error| {
            let cause = error.source().map_or_else(|| error.to_string(), ToString::to_string);
            format!("cannot be loaded: {cause}")
        })?;
        let base = library
            .get::<unsafe extern "C" fn() -> *const ort::sys::OrtApiBase>(b"OrtGetApiBase")
            .map_err(|_| "is not an ONNX Runtime library")?;
        let base = base().as_ref().ok_or("does not report its version")?;
        let version = CStr::from_ptr((base.GetVersionString)()).to_string_lossy().into_owned();
        Ok((version, library))
    }
}

/// The common settings of all sessions on a CPU.
pub(crate) fn session_builder(library: &Library, optimization: Optimization) -> ort::Result<SessionBuilder> {
    // Without a named provider, the library would choose one by its own policy.
    let provider = ep::CPU::default().with_arena_allocator(true).build();
    Ok(without_provider(library, optimization)?.with_execution_providers([provider])?)
}

/// As [`session_builder`], for GPU `index`. Fails if any node cannot run there.
pub(crate) fn cuda_session_builder(
    library: &Library,
    optimization: Optimization,
    index: usize,
) -> Result<SessionBuilder> {
    let builder = without_provider(library, optimization)
        .and_then(|builder| Ok(builder.with_config_entry("session.disable_cpu_ep_fallback", "1")?))
        .map_err(framework)?;
    let device = i32::try_from(index).unwrap_or(i32::MAX);
    let provider = ep::CUDA::default().with_device_id(device).build().error_on_failure();
    builder.with_execution_providers([provider]).map_err(|error| {
        let (path, cause) = (library.path.display(), error.to_string());
        let cause = cause.lines().map(str::trim).collect::<Vec<_>>().join(" ");
        EngineError::Unsupported(format!(
            "{path} cannot compute on cuda:{index} ({cause}): set {DYLIB_VARIABLE} to the library of the package \
             onnxruntime-gpu, with CUDA and cuDNN where it finds them"
        ))
    })
}

fn without_provider(library: &Library, optimization: Optimization) -> ort::Result<SessionBuilder> {
    let builder = Session::builder(&library.environment)?
        .with_log_level(LogLevel::Fatal)?
        .with_optimization_level(optimization.level())?
        .with_parallel_execution(false)?
        .with_inter_threads(1)?;
    Ok(builder)
}

pub(crate) fn commit(mut builder: SessionBuilder, graph: Written) -> ort::Result<Session> {
    if let Some(memory) = graph.in_memory.filter(|memory| !memory.is_empty()) {
        builder = builder.with_external_initializer_file_in_memory(IN_MEMORY, memory.into())?;
    }
    builder.commit_from_memory(&graph.model)
}

pub(crate) fn framework<T>(error: ort::Error<T>) -> EngineError {
    EngineError::Framework(error.to_string())
}

// Tensors on the model's device, in the element type of its activations.

pub(crate) fn allocator(session: &Session, device: Device) -> ort::Result<Allocator> {
    let Device::Cuda(index) = device else { return Ok(Allocator::default()) };
    let index = i32::try_from(index).map_err(|error| ort::Error::new(error.to_string()))?;
    let device = AllocationDevice::CUDA;
    let memory = MemoryInfo::new(device, index, AllocatorType::Device, MemoryType::Default)?;
    Allocator::new(session, memory)
}

/// GPU memory allocated from the session's arena, from its statistics `InUse` and `MaxInUse`; `None` on a CPU
/// and if the library does not report them.
pub(crate) fn allocated(session: &Session, device: Device) -> Option<Allocated> {
    if device == Device::Cpu {
        return None;
    }
    let allocator = allocator(session, device).ok()?;
    let mut pairs: *mut sys::OrtKeyValuePairs = std::ptr::null_mut();
    // SAFETY: the calls follow the rules of the library's C interface: the allocator lives throughout, and
    // the pairs are freed once, after their texts have been read.
    #[allow(unsafe_code)]
    unsafe {
        let status = (ort::api().AllocatorGetStats)(allocator.ptr(), &raw mut pairs);
        ort::Error::result_from_status(status).ok()?;
        let read = |key: &CStr| {
            let text = (ort::api().GetKeyValue)(pairs, key.as_ptr());
            (!text.is_null()).then(|| CStr::from_ptr(text).to_str().ok()?.parse().ok()).flatten()
        };
        let both = (read(c"InUse"), read(c"MaxInUse"));
        (ort::api().ReleaseKeyValuePairs)(pairs);
        Some(Allocated { in_use: both.0?, peak: both.1? })
    }
}

pub(crate) fn element(float: DataType) -> TensorElementType {
    match float {
        DataType::Float16 => TensorElementType::Float16,
        _ => TensorElementType::Float32,
    }
}

/// A tensor in host memory, in the element type `float`.
pub(crate) fn table(shape: [usize; 2], numbers: Vec<f32>, float: DataType) -> ort::Result<DynTensor> {
    Ok(match float {
        DataType::Float16 => {
            let narrow: Vec<f16> = numbers.into_iter().map(f16::from_f32).collect();
            Tensor::from_array((shape, narrow))?.upcast()
        }
        _ => Tensor::from_array((shape, numbers))?.upcast(),
    })
}

/// Sets every byte of a tensor of numbers, wherever it is.
#[allow(unsafe_code)]
pub(crate) fn fill(tensor: &mut DynTensor, byte: u8) -> ort::Result<()> {
    type Memset = unsafe extern "C" fn(usize, u8, usize) -> i32;
    type Wait = unsafe extern "C" fn() -> i32;
    let bytes = tensor.data_type().byte_size(tensor.shape().num_elements());
    let bytes = bytes.ok_or_else(|| ort::Error::new("its elements have no fixed size"))?;
    let address = tensor.data_ptr_mut();
    if bytes == 0 {
        return Ok(());
    }
    if tensor.memory_info().is_cpu_accessible() {
        // SAFETY: the tensor owns that many bytes, and every pattern of bits is a number.
        unsafe { address.cast::<u8>().write_bytes(byte, bytes) };
        return Ok(());
    }
    let failed = |what: &str| ort::Error::new(format!("cannot fill the KV cache on the GPU: {what}"));
    // SAFETY: NVIDIA's driver, which ONNX Runtime's provider has loaded, has these functions with these types
    // (cuda.h). The context that made the tensor is current on this thread.
    unsafe {
        let driver = libloading::Library::new("libcuda.so.1").map_err(|error| failed(&error.to_string()))?;
        let memset = driver.get::<Memset>(b"cuMemsetD8_v2").map_err(|error| failed(&error.to_string()))?;
        let wait = driver.get::<Wait>(b"cuCtxSynchronize").map_err(|error| failed(&error.to_string()))?;
        // Streams of ONNX Runtime do not wait for the default one.
        for code in [memset(address as usize, byte, bytes), wait()] {
            if code != 0 {
                return Err(failed(&format!("the driver's error {code}")));
            }
        }
    }
    Ok(())
}

/// Row `index` of the first dimension of a cache, as a separate tensor over the same memory.
///
/// # Safety
/// `cache` must outlive the tensor and every binding of it.
#[allow(unsafe_code)]
pub(crate) unsafe fn row(cache: &mut DynTensor, index: usize) -> ort::Result<DynTensor> {
    let sizes: Vec<usize> = cache.shape().iter().map(|&size| size as usize).collect();
    let [rows, heads, capacity, dim] = sizes[..] else {
        return Err(ort::Error::new("a cache has four dimensions"));
    };
    assert!(index < rows);
    let element = *cache.data_type();
    let shape = [1, heads, capacity, dim];
    let address = cache.data_ptr_mut() as usize + index * bytes(element, shape)?;
    // SAFETY: the row is within the cache, which the caller keeps alive.
    unsafe { tensor_over(address, shape, (cache.memory_info(), element)) }
}

fn bytes(element: TensorElementType, shape: [usize; 4]) -> ort::Result<usize> {
    let bytes = element.byte_size(shape.iter().product());
    bytes.ok_or_else(|| ort::Error::new(format!("elements of type {element} have no fixed size")))
}

/// A tensor over memory that it does not own. `TensorRefMut` would work for outputs; as inputs, crate `ort`
/// binds copies of tensors that it knows to be borrowed.
///
/// # Safety
/// The memory must have room for the shape in that type, and must outlive the tensor and every binding of it.
#[allow(unsafe_code)]
pub(crate) unsafe fn tensor_over(
    address: usize,
    shape: [usize; 4],
    (info, element): (&MemoryInfo<'_>, TensorElementType),
) -> ort::Result<DynTensor> {
    let allocator = Allocator::default();
    let bytes = bytes(element, shape)?;
    let shape = shape.map(|size| size as i64);
    let mut value: *mut sys::OrtValue = std::ptr::null_mut();
    // SAFETY: the call follows the rules of the library's C interface; it reads shape and info only while it
    // runs.
    let status = unsafe {
        (ort::api().CreateTensorWithDataAsOrtValue)(
            info.ptr(),
            address as *mut std::ffi::c_void,
            bytes,
            shape.as_ptr(),
            shape.len(),
            element.into(),
            &mut value,
        )
    };
    // SAFETY: the status comes from that call, and is not used again.
    unsafe { ort::Error::result_from_status(status) }?;
    let value = std::ptr::NonNull::new(value).ok_or_else(|| ort::Error::new("no tensor was made"))?;
    // SAFETY: the tensor was just made, and only this value releases it. That does not free the owner's
    // memory.
    Ok(unsafe { Value::<DynTensorValueType>::from_ptr(value, Some(&allocator)) })
}

// The options of this engine's variants (`configs/engines/ort-*.toml`).

const OPTIMIZATION: &str = "optimization";

const PROFILE: &str = "profile";

const SPINNING: &str = "spinning";

const PACKING: &str = "packing";

/// How much ONNX Runtime may rewrite the graph
/// (<https://onnxruntime.ai/docs/performance/model-optimizations/graph-optimizations.html>).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Optimization {
    /// The graph runs unchanged.
    Off,
    /// Constant folding, removal of nodes without effect, and other changes for all devices.
    Basic,
    /// Also fuses operators for the device.
    Extended,
    /// Also changes the layout for this machine.
    All,
}

impl Optimization {
    pub(crate) const EACH: [Optimization; 4] =
        [Optimization::Off, Optimization::Basic, Optimization::Extended, Optimization::All];

    pub(crate) fn name(self) -> &'static str {
        match self {
            Optimization::Off => "off",
            Optimization::Basic => "basic",
            Optimization::Extended => "extended",
            Optimization::All => "all",
        }
    }

    pub(crate) fn level(self) -> GraphOptimizationLevel {
        match self {
            Optimization::Off => GraphOptimizationLevel::Disable,
            Optimization::Basic => GraphOptimizationLevel::Level1,
            Optimization::Extended => GraphOptimizationLevel::Level2,
            Optimization::All => GraphOptimizationLevel::All,
        }
    }

    /// Whether nodes that have only constant inputs are computed while loading.
    pub(crate) fn folds_constants(self) -> bool {
        self != Optimization::Off
    }
}

#[derive(Debug, Clone)]
pub(crate) struct Options {
    pub(crate) optimization: Optimization,
    /// The length to which an encoder pads texts in all layers, as most users do.
    pub(crate) padding: Option<TextPadding>,
    /// Whether every append copies keys and values into new memory.
    pub(crate) grows: bool,
    /// Whether every run casts 16-bit weights to f32.
    pub(crate) converts: bool,
    /// File for ONNX Runtime's profile: JSON in Chrome's trace format, with one event per node and run.
    pub(crate) profile: Option<PathBuf>,
    /// Whether threads sleep as soon as a run ends, for code that computes between runs.
    pub(crate) spins_within_runs_alone: bool,
    /// Whether weights are packed on all threads, which is sooner and holds them twice at the peak.
    pub(crate) packs_on_all_threads: bool,
}

/// Requests a profile in `directory`, unless the variant names a file.
pub(crate) fn with_profile(mut settings: Settings, directory: &Path) -> Settings {
    let file = || directory.join("onnxruntime.json").display().to_string();
    settings.options.entry(PROFILE.into()).or_insert_with(file);
    settings
}

impl Options {
    /// If the settings switch optimisation off, the level is off even if the option names another.
    pub(crate) fn from_settings(settings: &Settings, config: &ModelConfig) -> Result<Options> {
        settings.check_options(&[
            worker::engine::ARTEFACT,
            "cache",
            OPTIMIZATION,
            PACKING,
            "padded",
            PROFILE,
            SPINNING,
            "weights",
        ])?;
        let named = settings.options.get(OPTIMIZATION).map_or(Optimization::All.name(), String::as_str);
        let Some(optimization) = Optimization::EACH.into_iter().find(|level| level.name() == named) else {
            let names = Optimization::EACH.map(Optimization::name).join(", ");
            let text = format!("option {OPTIMIZATION} is {named:?}, not one of {names}");
            return Err(EngineError::Input(text));
        };
        let is = |option: &str, value: &str| match settings.options.get(option) {
            Some(other) if other != value => {
                Err(EngineError::Input(format!("option {option} is {other:?}, not {value}")))
            }
            named => Ok(named.is_some()),
        };
        let spins_within_runs_alone = is(SPINNING, "within-runs")?;
        let packs_on_all_threads = is(PACKING, "parallel")?;
        let optimization = if settings.jit { optimization } else { Optimization::Off };
        let profile = settings.options.get(PROFILE).map(PathBuf::from);
        let (padding, grows) = (settings.padding(config)?, settings.grows_cache(config)?);
        let converts = settings.converts_weights()?;
        if settings.device() != Device::Cpu && (grows || converts) {
            let text = "the options cache and weights are for ONNX Runtime on a CPU here";
            return Err(EngineError::Unsupported(text.into()));
        }
        Ok(Options {
            optimization,
            padding,
            grows,
            converts,
            profile,
            spins_within_runs_alone,
            packs_on_all_threads,
        })
    }
}

// Probes: runs operators of the model in graphs of one node; the results show how the kernels work.
//
// A session does not report two properties that matter to a comparison: whether attention writes into the
// given cache or copies it, and whether a product rounds its activations. Both show in the results for
// suitable inputs. The graphs add some milliseconds to loading.

/// Whether GroupQueryAttention writes into the cache in place if past and present are one tensor.
pub(crate) fn cache_is_shared(library: &Library, config: &ModelConfig, attention: Attention) -> Result<bool> {
    keeps_free_rows(library, config, attention, true).map_err(framework)
}

/// Whether the free rows of the present cache keep their contents, with past and present bound to
/// `one_tensor` or to two. If the operator copies the past, it fills the free rows with zeros.
pub(crate) fn keeps_free_rows(
    library: &Library,
    config: &ModelConfig,
    attention: Attention,
    one_tensor: bool,
) -> ort::Result<bool> {
    const CAPACITY: usize = 4;
    let (head, mark) = (attention.cached_head_dim, 1.0);
    let (query, key) = (config.heads * head, config.kv_heads * head);
    let mut graph = GraphBuilder::new("attention", Storage::Memory(Vec::new()));
    let widths = [("query", query), ("key", key), ("value", key)];
    for (name, width) in widths {
        graph.input(name, DataType::Float, &[Dim::Fixed(1), Dim::Fixed(1), Dim::Fixed(width)]);
    }
    graph.input(LAST_POSITIONS, DataType::Int32, &[Dim::Fixed(1)]);
    graph.input(TOTAL, DataType::Int32, &[]);
    let dims = [1, config.kv_heads, CAPACITY, head];
    let names = cache_names(0);
    for CacheNames { past, present } in &names {
        graph.input(past, DataType::Float, &dims.map(Dim::Fixed));
        graph.output(present, DataType::Float, &dims.map(Dim::Fixed));
    }
    graph.output("attended", DataType::Float, &[Dim::Fixed(1), Dim::Fixed(1), Dim::Fixed(query)]);
    let [keys, values] = &names;
    let inputs = ["query", "key", "value", &keys.past, &values.past, LAST_POSITIONS, TOTAL];
    let outputs = ["attended", keys.present.as_str(), &values.present];
    let attributes = [
        Attribute::Int("num_heads", config.heads as i64),
        Attribute::Int("kv_num_heads", config.kv_heads as i64),
    ];
    graph.node((MICROSOFT, "GroupQueryAttention"), &inputs, &outputs, &attributes);
    let mut session = compile(library, graph)?;

    let allocator = Allocator::default();
    let mut binding = session.create_binding()?;
    for (name, width) in widths {
        binding.bind_input(name, &Tensor::from_array(([1, 1, width], vec![1.0f32; width]))?)?;
    }
    binding.bind_input(LAST_POSITIONS, &Tensor::from_array(([1], vec![0i32]))?)?;
    binding.bind_input(TOTAL, &Tensor::from_array(([0usize; 0], vec![1i32]))?)?;
    let marked = || {
        let mut tensor = Tensor::<f32>::new(&allocator, dims)?;
        tensor.extract_tensor_mut().1.fill(mark);
        Ok::<_, ort::Error>(tensor)
    };
    let mut cache = [marked()?, marked()?];
    for (CacheNames { past, present }, tensor) in names.iter().zip(&mut cache) {
        if one_tensor {
            binding.bind_input(past, tensor)?;
        } else {
            binding.bind_input(past, &marked()?)?;
        }
        binding.bind_output(present, tensor)?;
    }
    binding.bind_output("attended", Tensor::<f32>::new(&allocator, [1, 1, query])?)?;
    session.run_binding(&binding)?;
    Ok(cache.iter().all(|tensor| tensor.extract_tensor().1.iter().all(|&number| number == mark)))
}

/// Precision of the activations in a quantised product of a decode step.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Activations {
    F32,
    Int8,
}

impl Activations {
    pub(crate) fn name(self) -> &'static str {
        match self {
            Activations::F32 => "f32",
            Activations::Int8 => "int8",
        }
    }
}

/// Multiplies a large activation by 0 and a small one by 1. In f32 the sum is the small one. If activations
/// are rounded to steps of 1/127 of the largest, it is 0.
pub(crate) fn activations(library: &Library, products: Products) -> Result<Activations> {
    const LARGE: f32 = 1000.0;
    let product = multiply(library, products, [LARGE, 1.0]).map_err(framework)?;
    match product {
        1.0 => Ok(Activations::F32),
        0.0 => Ok(Activations::Int8),
        other => {
            let operator = products.operator();
            Err(EngineError::Framework(format!("{operator} makes {other} of {LARGE} · 0 + 1 · 1")))
        }
    }
}

/// `inputs[0]` · 0 + `inputs[1]` · 1, by the operator of `products`.
fn multiply(library: &Library, products: Products, inputs: [f32; 2]) -> ort::Result<f32> {
    const ROWS: usize = 16;
    const COLUMNS: usize = NF4_BLOCK;
    // Every row is 0, 1, 0, 0, … with scales of 1.
    let (zero, one) = match products.precision {
        Precision::Int4 => (INT4_OFFSET as u8, INT4_OFFSET as u8 + 1),
        Precision::Nf4 => (7, 15),
        _ => (0, 1),
    };
    let row: Vec<u8> = (0..COLUMNS).map(|column| if column == 1 { one } else { zero }).collect();
    let pair = |pair: &[u8]| match products.precision {
        Precision::Int4 => vec![pair[0] | pair[1] << 4],
        Precision::Nf4 => vec![pair[0] << 4 | pair[1]],
        _ => pair.to_vec(),
    };
    let codes: Vec<u8> = row.chunks_exact(2).flat_map(pair).collect::<Vec<_>>().repeat(ROWS);
    let blocks = match products.precision {
        Precision::Int4 => COLUMNS / INT4_GROUP,
        _ => 1,
    };
    let scales = 1.0f32.to_le_bytes().repeat(ROWS * blocks);
    let view = |shape, element, bytes| TensorView { shape, element, bytes, file_offset: 0 };
    let weight = Quantised {
        precision: products.precision,
        rows: ROWS,
        columns: COLUMNS,
        codes: view(vec![ROWS, codes.len() / ROWS], Element::U8, &codes),
        scales: view(vec![ROWS, blocks], Element::F32, &scales),
        blocks: Vec::new(),
    };
    let mut graph = GraphBuilder::new("product", Storage::Memory(Vec::new()));
    graph.input("in", DataType::Float, &[Dim::Fixed(1), Dim::Fixed(COLUMNS)]);
    graph.output("out", DataType::Float, &[Dim::Fixed(1), Dim::Fixed(ROWS)]);
    quantised_product(&mut graph, products, WITH_INT8, ("in", ("weight", &weight, ""), "out"));
    let mut session = compile(library, graph)?;
    let mut row = vec![0.0f32; COLUMNS];
    row[..2].copy_from_slice(&inputs);
    let outputs = session.run(ort::inputs!["in" => Tensor::from_array(([1, COLUMNS], row))?])?;
    Ok(outputs["out"].try_extract_tensor::<f32>()?.1[0])
}

fn compile(library: &Library, graph: GraphBuilder) -> ort::Result<Session> {
    commit(session_builder(library, Optimization::Basic)?.with_intra_threads(1)?, graph.finish())
}
