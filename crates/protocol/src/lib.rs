//! What crosses the pipe between the driver and a worker: one [`Job`] in, [`Event`]s out, as JSON.
//!
//! `docs/protocol.md` is the page for people; this is the same in types. Field names are the wire
//! format. Times are integer nanoseconds, sizes are bytes; an absent reading is `null`, never 0.
//! The worker reports facts and the driver judges, so nothing here is a verdict.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

/// Version of this protocol. Driver and worker of different versions refuse each other.
pub const VERSION: u32 = 2;

/// The one line that `worker --hello` prints: the receipt that the framework can run here.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Hello {
    pub protocol: u32,
    /// `candle`, `tch`, `ort`, …
    pub framework: String,
    /// The binding and its version, for example `tch 0.24.0`.
    pub binding: String,
    /// The library as it reports itself, for example `libtorch 2.11.0`.
    pub library: String,
    pub library_path: Option<String>,
    /// What the framework says it uses of the CPU, for example `AVX512`.
    pub cpu_capability: Option<String>,
    pub build: Build,
}

/// How the worker was built. Fairness rule R10 compares these between workers.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Build {
    /// Cargo profile: `release` or `debug`.
    pub profile: String,
    /// For example `rustc 1.95.0 (59807616e 2026-04-14)`.
    pub rustc: String,
    /// Flags given to rustc, for example `-C target-cpu=native`.
    pub rustflags: String,
    /// Target features that the flags switched on, as rustc lists them.
    pub target_features: Vec<String>,
    /// For example `x86_64-unknown-linux-gnu`.
    pub target: String,
}

/// Everything a worker is asked to do in its life. Read from stdin to end of file.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Job {
    pub protocol: u32,
    /// Directory of the prepared model.
    pub bundle: String,
    pub settings: Settings,
    /// The driver's reading of the monotonic clock just before it started this process, where the
    /// system has a clock that processes share (Linux: `CLOCK_MONOTONIC`).
    pub spawned_at_ns: Option<u64>,
    /// Before loading, ask the system to drop the weights file from its page cache.
    #[serde(default)]
    pub evict: bool,
    pub task: Task,
}

/// What the engine is asked to be. Compare [`InEffect`].
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Settings {
    /// `f32`, `bf16`, `f16`
    pub precision: String,
    /// `cpu` or `cuda:N`
    pub device: String,
    pub threads: usize,
    pub jit: bool,
    #[serde(default)]
    pub hidden_states: bool,
    /// Options of the engine variant.
    #[serde(default)]
    pub options: BTreeMap<String, String>,
    /// A positive control: every `append` is made to last longer by this share of its own time, 0 to 10.
    #[serde(default)]
    pub slowdown: f64,
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "snake_case")]
pub enum Task {
    Measure(Measure),
    /// Load the model and end: `started`, `loaded`, `done`. For loads from a cold page cache, which would
    /// disturb the memory figures of a measurement.
    Load,
    Generate(Generate),
    Score(Score),
    /// What the machine can do just now. Initialises no framework, opens no bundle.
    Probe(Probe),
}

/// Load, cold start, warm-up and measured iterations: one run yields all that is reported.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Measure {
    /// An iteration runs each of these once, in this order.
    pub cases: Vec<Case>,
    pub new_tokens: usize,
    pub decode: Decode,
    pub kv_cache: KvCache,
    pub warmup: Warmup,
    pub iterations: usize,
    /// Pause before each measured iteration, in nanoseconds.
    #[serde(default)]
    pub delay_ns: u64,
    /// After the last sample: write teacher-forced logits to a file.
    pub parity: Option<ParityTask>,
}

/// Teacher-forced logits: the prompt in one piece, the first `steps` tokens of the trace one at a time,
/// the rest in one piece, so that prefill and decode are both covered at little cost.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ParityTask {
    pub steps: usize,
    /// safetensors: `case.0` … f32 [batch, prompt + trace, vocabulary]
    pub file: String,
}

/// One prompt, or a batch of prompts of equal length.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Case {
    /// `[batch][prompt tokens]`
    pub prompts: Vec<Vec<u32>>,
    /// `[batch][new tokens]`: what is fed in [`Decode::Forced`], and what parity is taken along.
    pub trace: Vec<Vec<u32>>,
}

/// What a decode step is fed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Decode {
    /// The ids of the case's trace, whatever the logits say: equal work by construction.
    Forced,
    /// The engine's own most likely token.
    Greedy,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum KvCache {
    On,
    /// The whole prefix is computed again for every token.
    Off,
}

/// Fixed work, the same whatever the framework, by `settings.threads` threads at once.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Probe {
    /// Size of the buffer that is read to measure memory bandwidth.
    pub bytes: u64,
    /// How often the arithmetic and the sweep are repeated; the best of each is reported.
    pub repeats: usize,
}

/// Warm-up repeats whole iterations, of the exact shapes of the measurement, until the latest has
/// settled or a limit is hit. One iteration is always run.
///
/// Settled, in either of two ways, of which the second holds also where tokens take the longer the more
/// have gone before:
/// - the medians of the token gaps of its two halves differ by less than `settled_within` (from eight
///   gaps on);
/// - the median over tokens of the ratio of its gap to the same token's in the iteration before differs
///   from 1 by less than `settled_within`. Requests for one token have no gaps: first tokens are taken.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Warmup {
    pub min_iterations: usize,
    pub max_iterations: usize,
    /// No iteration is begun after so much time, not even for `min_iterations`.
    pub max_ns: u64,
    pub settled_within: f64,
}

/// Greedy continuation, untimed.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Generate {
    /// `[case][batch][prompt tokens]`; prompts of a batch are of equal length.
    pub prompts: Vec<Vec<Vec<u32>>>,
    pub new_tokens: usize,
    /// Logits along the generated tokens: what other engines are compared with.
    #[serde(default)]
    pub parity: Option<ParityTask>,
}

/// Logits of every position of a batch of sequences of equal length, written to a safetensors file:
/// `logits` f32 [batch, positions, vocabulary], and `hidden.0` … where the settings ask for them.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Score {
    pub sequences: Vec<Vec<u32>>,
    /// Positions appended at a time; 0 for all at once.
    #[serde(default)]
    pub piece: usize,
    pub file: String,
}

/// One line on the worker's stdout. In the order of a measuring run: hello, started, loaded,
/// cold_start, warmup, iteration…, usage, parity, done. A run that cannot go on ends in `failed`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(tag = "event", rename_all = "snake_case")]
pub enum Event {
    Hello(Hello),
    Started(Started),
    Loaded(Loaded),
    ColdStart(ColdStart),
    Warmup(WarmupDone),
    Iteration(Iteration),
    Parity(Parity),
    Usage(Usage),
    Generated(Generated),
    Scored(Scored),
    Probed(Probed),
    Done,
    Failed(Failed),
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
    pub weights_file: String,
    pub weights_bytes: u64,
    /// `null` where the system does not tell.
    pub page_cache: Option<PageCache>,
}

/// The weights file in the system's page cache just before the load.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct PageCache {
    /// Whether dropping it was asked for ([`Job::evict`]).
    pub evicted: bool,
    /// Share of its pages that were resident, 0 to 1, after the request to drop them if there was one. A
    /// page that any process has mapped cannot be dropped.
    pub resident_before: f64,
}

/// Observed after load. [`Settings`] is what was asked.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct InEffect {
    pub precision: String,
    pub activations: String,
    pub kv_cache_precision: String,
    /// `preallocated` or `growing`; `recomputed` where the job switched the cache off.
    pub kv_cache: String,
    pub device: String,
    pub threads: usize,
    pub jit: String,
    /// Whether graph optimisation or a JIT is at work; `null` where the framework has neither.
    pub optimised: Option<bool>,
    pub weight_storage: String,
    pub kernels: Vec<String>,
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct ColdStart {
    /// First request after load to its first token on the host.
    pub first_token_ns: u64,
    /// Spawn to first token, less the time that the worker took in between for its own readings: of
    /// memory, of the page cache (and dropping the file from it), of the bundle's description.
    pub since_spawn_ns: Option<u64>,
    pub memory: Memory,
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct WarmupDone {
    /// Every warm-up iteration's samples; `index` counts from 0.
    pub iterations: Vec<Iteration>,
    /// Whether the last had settled; if not, the limit was hit.
    pub settled: bool,
    pub memory: Memory,
}

/// One pass over all cases.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Iteration {
    pub index: usize,
    pub cases: Vec<CaseSample>,
}

/// One request.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct CaseSample {
    /// Request to first token on the host.
    pub first_token_ns: u64,
    /// Gaps between successive tokens; one fewer than the new tokens.
    pub gaps_ns: Vec<u64>,
    /// `[batch][new tokens]`: the most likely token at each step, computed inside the timed loop.
    pub tokens: Vec<Vec<u32>>,
}

/// The parity file is complete: see [`ParityTask`].
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Parity {
    pub file: String,
}

/// Of the whole process up to the last sample.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Usage {
    /// Memory of the measured iterations.
    pub memory: Memory,
    /// Highest of all phases' peaks, the parity phase apart.
    pub peak_bytes: Option<u64>,
    /// CPU time and wall time of the measured iterations.
    pub cpu_ns: Option<u64>,
    pub wall_ns: u64,
    /// CPU time of each thread in the measured iterations, the busiest first; those that did nothing, and
    /// those that ended before the last sample, are left out.
    pub thread_cpu_ns: Option<Vec<u64>>,
    /// Time in the measured iterations that threads were ready to run and waited for a CPU, summed over all
    /// of them. With the CPU time it says how many threads wanted to compute at once.
    #[serde(default)]
    pub run_queue_ns: Option<u64>,
    /// Threads of the process after the last sample, idle ones included.
    pub threads: Option<usize>,
    /// CPUs that one of the process's threads or another was allowed to run on after the last sample.
    pub cpus: Option<Vec<usize>>,
    /// From the first to the last measured iteration, pauses between them included, of everything that
    /// the meter covers, whoever used it; `null` without a meter.
    pub energy: Option<Energy>,
    /// sha256 of the weights file, read after the last sample.
    pub weights_sha256: String,
}

/// A phase's readings. Each is `null` where the system does not tell.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Memory {
    /// Highest resident set since the phase began.
    pub peak_bytes: Option<u64>,
    /// Resident set at the end of the phase, and its parts.
    pub resident_bytes: Option<u64>,
    pub anonymous_bytes: Option<u64>,
    pub file_bytes: Option<u64>,
    /// Proportional set size: pages shared with other processes count in part.
    pub pss_bytes: Option<u64>,
    /// How the peak was read: `VmHWM, reset at the start of the phase`, or `VmHWM of the process so far`
    /// where it cannot be reset.
    pub method: Option<String>,
    /// Memory of the GPU that this process holds.
    pub gpu: Option<GpuMemory>,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct GpuMemory {
    pub bytes: u64,
    /// For example `NVML, compute processes`.
    pub method: String,
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Energy {
    pub joules: f64,
    /// For example `RAPL, package` or `NVML, total energy`.
    pub method: String,
}

/// What the machine did just now: see [`Probe`]. `bytes / sweep_ns` is the bandwidth in GB/s.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Probed {
    /// Best time of the fixed arithmetic, of the slowest thread.
    pub compute_ns: u64,
    /// Best time of one sweep over `bytes`, all threads together.
    pub sweep_ns: u64,
    pub bytes: u64,
    pub threads: usize,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Generated {
    /// `[case][batch][new tokens]`
    pub tokens: Vec<Vec<Vec<u32>>>,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Scored {
    pub file: String,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Failed {
    pub kind: FailureKind,
    /// One sentence for people.
    pub reason: String,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum FailureKind {
    /// The framework cannot do what was asked.
    Unsupported,
    /// What was asked makes no sense for this model.
    Input,
    /// The framework, or the worker, failed.
    Failed,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_event_is_one_line_that_names_its_kind() {
        let event = Event::Failed(Failed { kind: FailureKind::Unsupported, reason: "no\nbf16".into() });
        let line = serde_json::to_string(&event).unwrap();
        assert_eq!(line, r#"{"event":"failed","kind":"unsupported","reason":"no\nbf16"}"#);
        assert_eq!(serde_json::from_str::<Event>(&line).unwrap(), event);
        assert_eq!(serde_json::to_string(&Event::Done).unwrap(), r#"{"event":"done"}"#);
    }

    #[test]
    fn fields_of_a_newer_version_are_passed_over() {
        let line = r#"{"event":"scored","file":"x","novelty":1}"#;
        assert_eq!(serde_json::from_str::<Event>(line).unwrap(), Event::Scored(Scored { file: "x".into() }));
    }

    /// The page for people must not drift from the types: its transcript is read back whole.
    #[test]
    fn the_transcript_of_the_page_is_this_protocol() {
        let page = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/protocol.md");
        let page = std::fs::read_to_string(page).unwrap();
        let run = page.split("## A whole run").nth(1).unwrap();
        let blocks: Vec<&str> = run.split("```").skip(1).step_by(2).collect();
        let job: Job = serde_json::from_str(blocks[0].strip_prefix("json").unwrap()).unwrap();
        assert_eq!(job.protocol, VERSION);
        let lines = blocks[1].lines().filter(|line| line.starts_with('{'));
        let events: Vec<Event> = lines.map(|line| serde_json::from_str(line).unwrap()).collect();
        assert!(matches!(events.first(), Some(Event::Hello(hello)) if hello.protocol == VERSION));
        assert_eq!(events.last(), Some(&Event::Done));
        assert_eq!(events.len(), 9, "one of each event of a measuring run");
    }
}
