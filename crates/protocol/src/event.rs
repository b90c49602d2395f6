//! The worker's answers.

use std::fmt;

use serde::{Deserialize, Serialize};

use crate::untrusted::{Foreign, ForeignPath, Foreigns};
use crate::{CacheUsage, Hybrid, Iteration, KvCachePolicy, Marks, Memory, Output, Sample, Traced};

/// The one line that `worker --hello` prints: it shows that the framework can run here.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Hello {
    pub protocol: u32,
    /// `candle`, `tch`, `ort`, …
    pub framework: Foreign,
    /// The binding and its version, for example `tch 0.24.0`.
    pub binding: Foreign,
    /// The library as it reports itself, for example `libtorch 2.11.0`.
    pub library: Foreign,
    pub library_path: Option<ForeignPath>,
    /// The CPU features that the framework says it uses, for example `AVX512`.
    pub cpu_capability: Option<Foreign>,
    /// Whether it can pause within a request ([`Turn::Slice`](crate::Turn::Slice)); `null` means no.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub slices: Option<bool>,
    pub build: Build,
}

/// How the worker was built. Fairness rule R10 compares these between workers that rustc built; of others it
/// checks the profile alone.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Build {
    /// Cargo profile: `release` or `debug`. A worker in another language is a `release`.
    pub profile: Foreign,
    /// For example `rustc 1.95.0 (59807616e 2026-04-14)`; `null` for a worker that rustc did not build.
    pub rustc: Option<Foreign>,
    /// Flags given to rustc, for example `-C target-cpu=native`.
    pub rustflags: Option<ForeignPath>,
    /// Target features that the flags switched on, as rustc lists them.
    pub target_features: Option<Foreigns>,
    /// For example `x86_64-unknown-linux-gnu`.
    pub target: Option<Foreign>,
    /// The compiler or runtime of a worker that rustc did not build, for example `CPython 3.13.1`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub toolchain: Option<Foreign>,
}

/// One line on the worker's stdout. In the order of a measuring run: hello, started, loaded, cold_start,
/// warmup, sample…, usage, parity, done; before a sample, ready, and a slice for each pause of its request. After
/// `warmup` the worker waits for its turns. A run that cannot go on ends in `failed`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(tag = "event", rename_all = "snake_case")]
pub enum Event {
    Hello(Hello),
    Started(Started),
    Loaded(Loaded),
    ColdStart(ColdStart),
    Warmup(WarmupDone),
    Ready(Ready),
    Slice(Slice),
    Sample(Sample),
    Logits(DrawnLogits),
    Parity(Parity),
    Usage(Usage),
    Answered(Answered),
    Scored(Scored),
    Probed(crate::Probed),
    Traced(Traced),
    Done,
    Failed(Failed),
}

impl Event {
    /// The memory of the phase that it ends, if it ends one.
    pub fn memory_mut(&mut self) -> Option<&mut Memory> {
        match self {
            Event::Started(started) => Some(&mut started.memory),
            Event::Loaded(loaded) => Some(&mut loaded.memory),
            Event::ColdStart(cold) => Some(&mut cold.memory),
            Event::Warmup(warmup) => Some(&mut warmup.memory),
            Event::Usage(usage) => Some(&mut usage.memory),
            _ => None,
        }
    }
}

/// The answer to [`Turn::Logits`](crate::Turn::Logits).
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct DrawnLogits {
    pub case: usize,
    /// `[batch][token]`, in the order in which they were asked for. A number that JSON cannot represent is `null`,
    /// and read as one that is not finite.
    #[serde(deserialize_with = "crate::finite::rows")]
    pub values: Vec<Vec<f32>>,
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Started {
    /// Spawn to runtime initialised; `null` without a shared clock.
    pub startup_ns: Option<u64>,
    /// Within the process: main to runtime initialised.
    pub runtime_ns: u64,
    pub memory: Memory,
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Loaded {
    pub load_ns: u64,
    /// Peak and state of the load phase.
    pub memory: Memory,
    pub in_effect: InEffect,
    pub weights_file: ForeignPath,
    pub weights_bytes: u64,
    /// The weights file just before the load; `null` where the system has no such numbers.
    #[serde(default)]
    pub weights_identity: Option<FileIdentity>,
    /// `null` where the system does not report.
    pub page_cache: Option<PageCache>,
    #[serde(default, skip_serializing_if = "Shows::is_all")]
    pub shows: Shows,
    /// Tokens that a server keeps its model from choosing, such as the ends of texts, so that it goes on.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub barred: Vec<u32>,
}

/// What can be seen of each step: of a server less than of a framework. Taken from servers alone.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Shows {
    /// All that it computed: logits, vectors, outputs.
    #[default]
    All,
    /// Its choice, and in [`Parity`] the log-probabilities of the most likely tokens; those of others are NaN.
    LogProbabilities,
    /// Its choice alone.
    Choice,
    /// That there is a token, and not which.
    Count,
}

impl Shows {
    pub fn is_all(&self) -> bool {
        *self == Shows::All
    }
}

/// Distinguishes a file from every other, and from itself after a change.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct FileIdentity {
    pub device: u64,
    pub inode: u64,
    pub bytes: u64,
    /// Last change of its contents, in nanoseconds since 1970.
    pub modified_ns: i64,
}

impl FileIdentity {
    /// `None` where the system has no such numbers.
    #[cfg(unix)]
    pub fn new(found: &std::fs::Metadata) -> Option<FileIdentity> {
        use std::os::unix::fs::MetadataExt;
        let modified_ns = found.mtime() * 1_000_000_000 + found.mtime_nsec();
        Some(FileIdentity { device: found.dev(), inode: found.ino(), bytes: found.len(), modified_ns })
    }

    #[cfg(not(unix))]
    pub fn new(_: &std::fs::Metadata) -> Option<FileIdentity> {
        None
    }
}

/// The weights file in the system's page cache just before the load.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct PageCache {
    /// Whether the driver asked to drop it ([`Job::evict`](crate::Job::evict)).
    pub evicted: bool,
    /// Share of its pages, 0 to 1, that were resident after a request to drop them; mapped ones cannot be dropped.
    pub resident_before: f64,
}

/// Observed after load. [`Settings`](crate::Settings) has the settings that were asked for.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct InEffect {
    /// Element type of the weights as the kernels read them.
    pub precision: Foreign,
    /// Element type of the tensors between layers, and of matrix products' accumulation where the framework documents
    /// it.
    pub activations: Foreign,
    pub kv_cache_precision: Foreign,
    pub kv_cache: KvCachePolicy,
    pub device: Foreign,
    /// Threads as the framework reports them.
    pub threads: usize,
    /// `eager`, or the optimisation or compilation in effect, for example `graph optimisation: all`.
    pub jit: Foreign,
    /// Whether graph optimisation or a JIT is in use; `null` where the framework has neither, or it is not used.
    /// Fairness rule R14 compares these.
    pub optimised: Option<bool>,
    /// How the weights are held, for example `mapped`, `mapped, prepacked copy`.
    pub weight_storage: Foreign,
    /// The kernels that do the work, one short phrase each.
    pub kernels: Foreigns,
    /// Bytes of weights on each device that holds some, if they are divided over several; otherwise `null`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub shard_bytes: Option<Vec<u64>>,
    /// The engines of a worker that reads prompts on one and computes steps on another.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub hybrid: Option<Hybrid>,
    /// What it uses outside the framework's documented interface: operators without documentation, features of a
    /// dependency, switches thrown within a step. A short phrase each.
    #[serde(default, skip_serializing_if = "Foreigns::is_empty")]
    pub semi_public: Foreigns,
    /// The framework's defaults that it changes, with the reason. A short phrase each.
    #[serde(default, skip_serializing_if = "Foreigns::is_empty")]
    pub changed_defaults: Foreigns,
    /// How the tensors of a file that it runs in place of the bundle's ONNX file compare with that one's.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub artefact: Option<Artefact>,
}

/// Tensors of the ONNX file, and those of them that another file does not have, whatever the order of their numbers.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Artefact {
    pub tensors: usize,
    pub missing: usize,
}

/// The first request after load: the first case's, as it is measured later.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct ColdStart {
    /// Its marks. Preparation before the request, such as computing its context, is part of them.
    pub marks_ns: Marks,
    /// Spawn to first mark, less the time of the worker's own readings in between: of memory, of the page
    /// cache (and dropping the file from it), of the bundle's description.
    pub since_spawn_ns: Option<u64>,
    pub memory: Memory,
}

#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct WarmupDone {
    /// Every warm-up iteration's samples; `index` counts from 0.
    pub iterations: Vec<Iteration>,
    /// Whether the last had settled; if not, the limit was hit.
    pub settled: bool,
    /// Whether the first request of the first iteration is that of the cold start.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub from_cold: bool,
    pub memory: Memory,
}

/// The answer to [`Turn::Prepare`](crate::Turn::Prepare).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Ready {
    pub case: usize,
}

/// The answer to a slice that does not complete its request.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Slice {
    pub case: usize,
    /// Marks of the request so far.
    pub marks: usize,
}

/// The parity file is complete: see [`ParityTask`](crate::ParityTask).
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Parity {
    pub file: ForeignPath,
}

/// Usage of the process up to the last sample.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Usage {
    /// Memory since warm-up.
    pub memory: Memory,
    /// Highest peak of all phases but the parity phase.
    pub peak_bytes: Option<u64>,
    /// CPU time and wall time of the measured requests.
    pub cpu_ns: Option<u64>,
    pub wall_ns: u64,
    /// CPU time of each thread in the measured requests, the busiest first. Idle threads are left out. The
    /// request in which a thread ended is missing from its time.
    pub thread_cpu_ns: Option<Vec<u64>>,
    /// Time in the measured requests that threads were ready to run but waited for a CPU, summed over all
    /// threads. With the CPU time it shows how many threads wanted to compute at once.
    #[serde(default)]
    pub run_queue_ns: Option<u64>,
    /// Threads of the process after the last sample, idle ones included.
    pub threads: Option<usize>,
    /// CPUs that any thread of the process was allowed to run on after the last sample.
    pub cpus: Option<Vec<usize>>,
    /// Energy of the measured requests. It is that of everything the meter covers, whichever process used it;
    /// `null` without a meter.
    pub energy: Option<Energy>,
    #[serde(flatten)]
    pub cache: CacheUsage,
    /// `null` unless it is a server that says so.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub served: Option<Served>,
    /// Shapes that the process compiled for so far, in order, one short phrase each; `null` where nothing is
    /// compiled for a shape, or the framework does not report it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub compiled: Option<Foreigns>,
    /// The GPU's activity in the measured requests; `null` on a CPU.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub gpu: Option<crate::GpuWork>,
    /// sha256 of the weights file, read after the last sample; `null` if it was not asked for.
    pub weights_sha256: Option<Foreign>,
    /// The weights file after the last sample.
    #[serde(default)]
    pub weights_identity: Option<FileIdentity>,
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Energy {
    pub joules: f64,
    /// For example `RAPL, package` or `NVML, total energy`.
    pub method: Foreign,
}

/// What a server says of the requests of its first caller, of all of them together.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Served {
    /// Tokens of the prompts.
    pub prompt_tokens: u64,
    /// Those that it had in a cache; `null` if it does not say.
    pub cached_tokens: Option<u64>,
    pub new_tokens: u64,
    /// Tokens that a smaller model, or another cheap guess, drafted; `null` if it says of no draft.
    pub drafted_tokens: Option<u64>,
    /// Drafted tokens that the model accepted.
    pub accepted_tokens: Option<u64>,
}

/// The output of each case's request: see [`Answer`](crate::Answer).
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct Answered {
    pub outputs: Vec<Output>,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Scored {
    pub file: ForeignPath,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Failed {
    pub kind: FailureKind,
    /// One sentence for people.
    pub reason: Foreign,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum FailureKind {
    /// The framework cannot do the task.
    Unsupported,
    /// The task makes no sense for this model.
    Input,
    /// The framework, or the worker, failed.
    Failed,
}

// Speed of the machine, and activity of its GPU.

/// The machine's present speed: see [`Probe`](crate::Probe). Times are of all threads together, from the
/// start of the first one to the end of the last one. `bytes / sweeps_ns[i]` is a bandwidth in GB/s,
/// `operations / multiply_adds_ns[i]` a speed in GFLOP/s.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Probed {
    /// Best time of fixed arithmetic.
    pub compute_ns: u64,
    /// Bytes read by one sweep: of the buffer, or of a small one several times. On a GPU, bytes read and
    /// written by one row of copies.
    pub bytes: u64,
    /// Time of each sweep, in order.
    pub sweeps_ns: Vec<u64>,
    /// Floating-point operations of one burst of multiply-adds, two for each; on a GPU, of one row of matrix products.
    pub operations: u64,
    /// Time of each burst.
    pub multiply_adds_ns: Vec<u64>,
    pub threads: usize,
    /// The probed GPU, by the engine's name for it; `null` for the CPU.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub device: Option<Foreign>,
    /// The element type of the multiply-adds; `null` for f32.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub precision: Option<Foreign>,
    /// The units that this CPU has for narrower numbers.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub units: Vec<UnitProbed>,
}

/// What a unit of the CPU does in a burst.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct UnitProbed {
    pub unit: Unit,
    /// Operations of all threads together; a multiply-add is two.
    pub operations: u64,
    /// Time of each burst.
    pub times_ns: Vec<u64>,
}

/// A unit that multiplies numbers of 16 or 8 bits.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Unit {
    /// `vdpbf16ps`
    Avx512Bf16,
    /// `vpdpbusd`
    Avx512Vnni,
    /// `tdpbf16ps`
    AmxBf16,
    /// `tdpbssd`
    AmxInt8,
}

impl Unit {
    /// For people.
    pub fn name(self) -> &'static str {
        match self {
            Unit::Avx512Bf16 => "AVX-512 BF16",
            Unit::Avx512Vnni => "AVX-512 VNNI",
            Unit::AmxBf16 => "AMX BF16",
            Unit::AmxInt8 => "AMX INT8",
        }
    }
}

/// Readings of a GPU right after measured requests.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct GpuWork {
    /// Slowest and fastest clock of its multiprocessors, in megahertz, and the most that they can do.
    pub slowest_mhz: Option<u64>,
    pub fastest_mhz: Option<u64>,
    pub most_mhz: Option<u64>,
    /// Highest temperature, in degrees Celsius.
    pub celsius: Option<u64>,
    /// Bytes that the process held on GPUs, over the readings: their mean, and the most.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub held_mean_bytes: Option<u64>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub held_most_bytes: Option<u64>,
    /// Causes that slowed it down, each once: `heat`, `its power limit`.
    pub held_back: Foreigns,
    /// Why a reading is not available, and other remarks on the GPU, one sentence each.
    pub remarks: Foreigns,
}

// Names of devices: `cpu`, `cuda:0`, or several GPUs that share the work, `cuda:0,cuda:1`.

/// Where an engine computes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Device {
    Cpu,
    Cuda(usize),
}

impl Device {
    /// The device of this name, or the first of several.
    pub fn named(name: &str) -> Device {
        gpus(name).first().map_or(Device::Cpu, |&gpu| Device::Cuda(gpu))
    }
}

impl fmt::Display for Device {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Device::Cpu => f.write_str("cpu"),
            Device::Cuda(index) => write!(f, "cuda:{index}"),
        }
    }
}

impl From<Device> for Foreign {
    fn from(device: Device) -> Foreign {
        device.to_string().into()
    }
}

/// The numbers of the GPUs that a device names, as CUDA counts them; none for `cpu` and for an invalid name.
/// `cuda` is the first.
pub fn gpus(device: &str) -> Vec<usize> {
    let number = |name: &str| match name.strip_prefix("cuda")? {
        "" => Some(0),
        rest => rest.strip_prefix(':')?.parse().ok(),
    };
    device.split(',').map(number).collect::<Option<Vec<usize>>>().unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_device_is_the_cpu_or_gpus_by_number() {
        let found = ["cpu", "cuda", "cuda:3", "cuda:1,cuda:0", "cuda:0,cpu", "cuda:x"].map(gpus);
        assert_eq!(found, [vec![], vec![0], vec![3], vec![1, 0], vec![], vec![]]);
    }
}
