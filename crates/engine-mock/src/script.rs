//! The script of a mock, read from the options of its variant.

use std::collections::BTreeMap;
use std::str::FromStr;
use std::time::{Duration, Instant};

use engine::{Allocated, EngineError, Precision, Settings};
use rand::SeedableRng;
use rand_chacha::ChaCha8Rng;

use crate::noise::{Noise, ProcessNoise};

/// A fault.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Fault {
    /// The process dies by a signal.
    Crash,
    Panic,
    /// Never returns.
    Hang,
    /// An error of the framework, properly reported.
    Error,
    /// Among the events, a line that is not a valid event.
    Garbage,
    /// Lines without end on stdout.
    Flood,
    /// Exit code 0 before the job is done.
    Leave,
    /// Reports another version of the protocol.
    Version,
    /// Answers every turn twice.
    Twice,
    /// Allocates until it may no more, and dies of that. Nothing is touched, so that only a limit is felt.
    Memory,
    /// Exit code 0 before the job is done, with a child left that holds the worker's pipes.
    Orphan,
    /// A child that detached itself outlives the worker, which does its job.
    Detach,
    /// A child without the worker's environment, session and pipes outlives the worker, which does its job.
    Vanish,
    /// In place of the parity file, a named pipe without a writer.
    ParityPipe,
    /// In its place, a link to an endless file.
    ParityLink,
    /// In its place, a file of a terabyte.
    ParityHuge,
    /// Answers requests with the tokens that it is fed, and not with those that it computes.
    Echo,
    /// Its weights are cut off while it has them mapped, and it reads them. At load alone.
    CutOff,
}

/// The readings of the worker's clock.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Clock {
    Real,
    /// The scripted times, without waiting.
    Scripted,
    /// Half of the scripted times, which pass all the same: a worker that reports false times.
    Half,
}

const FAULTS: [(&str, Fault); 18] = [
    ("crash", Fault::Crash),
    ("panic", Fault::Panic),
    ("hang", Fault::Hang),
    ("error", Fault::Error),
    ("garbage", Fault::Garbage),
    ("flood", Fault::Flood),
    ("leave", Fault::Leave),
    ("version", Fault::Version),
    ("twice", Fault::Twice),
    ("memory", Fault::Memory),
    ("orphan", Fault::Orphan),
    ("detach", Fault::Detach),
    ("vanish", Fault::Vanish),
    ("parity_pipe", Fault::ParityPipe),
    ("parity_link", Fault::ParityLink),
    ("parity_huge", Fault::ParityHuge),
    ("echo", Fault::Echo),
    ("cut_off", Fault::CutOff),
];

impl FromStr for Fault {
    type Err = EngineError;

    fn from_str(text: &str) -> Result<Fault, EngineError> {
        let found = FAULTS.iter().find(|(name, _)| *name == text);
        found.map(|(_, fault)| *fault).ok_or_else(|| {
            let names: Vec<_> = FAULTS.iter().map(|(name, _)| *name).collect();
            EngineError::Input(format!("unknown fault {text:?}; there are {}", names.join(", ")))
        })
    }
}

const OPTIONS: [&str; 44] = [
    "clock",
    "load_ms",
    "cold_ms",
    "cold_step_ms",
    "token_ms",
    "prefill_token_ms",
    "noise",
    "process_noise",
    "bimodal",
    "bimodal_factor",
    "spike",
    "spike_share",
    "drift",
    "drift_since",
    "ramp",
    "ramp_steps",
    "memory_mib",
    "memory_step_mib",
    "memory_step_at",
    "kv_cache",
    "busy_threads",
    "busy_waiting",
    "padded",
    "perturb",
    "quantised",
    "unsupported",
    "optimised",
    "seed",
    "fault",
    "fault_at",
    "claimed_precision",
    "claimed_cache",
    "layers",
    "perturb_from",
    "unmasked",
    "profiler",
    "leave_out",
    "say",
    "gpu_bandwidth",
    "gpu_gflops",
    "gpu_memory_mb",
    "gpu_allocated_mb",
    "gpu_loaded_mb",
    "synchronises",
];

pub struct Script {
    /// Whether the script alone advances the clock.
    clock: Clock,
    pub load: Duration,
    pub cold: Duration,
    /// Extra time of the first decode step.
    pub cold_step: Duration,
    pub token: Duration,
    pub prefill_token: Duration,
    pub memory_bytes: usize,
    pub memory_step_bytes: usize,
    /// At which call of `append`.
    pub memory_step_at: usize,
    pub kv_cache: bool,
    pub busy_threads: usize,
    /// Whether they burn between requests, too.
    pub busy_waiting: bool,
    pub perturb: f32,
    /// Whether texts are padded to the longest.
    pub padded: bool,
    /// Whether padding shows in the numbers of a text.
    pub unmasked: bool,
    pub quantised: f32,
    /// The optimisation of its graph that it claims, if any.
    pub optimised: Option<bool>,
    pub fault: Option<Fault>,
    pub fault_at: usize,
    /// The precision that it claims, for any request.
    pub claimed_precision: Option<Precision>,
    /// The data type of keys and values that it claims.
    pub claimed_cache: Option<Precision>,
    /// Whether it has hidden states, and from which on `perturb` shows.
    pub layers: bool,
    pub perturb_from: usize,
    /// Whether it has a profiler.
    pub profiler: bool,
    /// The GPU that it simulates, if any.
    pub gpu: Option<GpuScript>,
    noise: ProcessNoise,
    random: ChaCha8Rng,
}

/// The abilities of a simulated GPU.
#[derive(Debug, Clone, Copy)]
pub struct GpuScript {
    /// In GB/s, and in GFLOP/s.
    pub bandwidth: f64,
    pub arithmetic: f64,
    /// Held there from load on.
    pub memory_bytes: u64,
    /// The part of that which its allocator claims to have handed out, if it claims any.
    pub allocated: Option<Allocated>,
    /// Whether `append` waits for the GPU.
    pub synchronises: bool,
}

impl Script {
    pub fn read(settings: &Settings) -> Result<Script, EngineError> {
        settings.check_options(&OPTIONS)?;
        let options = Options(&settings.options);
        let mut random = match options.text("seed") {
            Some(_) => ChaCha8Rng::seed_from_u64(options.number("seed", 0.0)? as u64),
            // Each process its own noise, as in real life.
            None => ChaCha8Rng::seed_from_u64(u64::from(std::process::id()) ^ unix_time().as_nanos() as u64),
        };
        let now = unix_time().as_secs_f64();
        let started = (now - options.number("drift_since", now)?).max(0.0);
        let clock = match options.text("clock") {
            None | Some("real") => Clock::Real,
            Some("scripted") => Clock::Scripted,
            Some("half") => Clock::Half,
            Some(other) => {
                let message = format!("option clock is {other:?}, not real, scripted or half");
                return Err(EngineError::Input(message));
            }
        };
        Ok(Script {
            clock,
            load: options.milliseconds("load_ms", 1.0)?,
            cold: options.milliseconds("cold_ms", 0.0)?,
            cold_step: options.milliseconds("cold_step_ms", 0.0)?,
            token: options.milliseconds("token_ms", 0.2)?,
            prefill_token: options.milliseconds("prefill_token_ms", 0.02)?,
            memory_bytes: options.mebibytes("memory_mib")?,
            memory_step_bytes: options.mebibytes("memory_step_mib")?,
            memory_step_at: options.number("memory_step_at", 1.0)? as usize,
            kv_cache: options.parsed("kv_cache", "true or false")?.unwrap_or(false),
            busy_threads: options.number("busy_threads", 0.0)? as usize,
            busy_waiting: options.parsed("busy_waiting", "true or false")?.unwrap_or(false),
            padded: options.parsed("padded", "true or false")?.unwrap_or(false),
            unmasked: options.parsed("unmasked", "true or false")?.unwrap_or(false),
            perturb: options.number("perturb", 0.0)? as f32,
            quantised: options.number("quantised", 0.0)? as f32,
            optimised: options.parsed("optimised", "true or false")?,
            fault: options.text("fault").map(str::parse).transpose()?,
            fault_at: options.number("fault_at", 0.0)? as usize,
            claimed_precision: options.precision("claimed_precision")?,
            claimed_cache: options.precision("claimed_cache")?,
            layers: options.parsed("layers", "true or false")?.unwrap_or(false),
            perturb_from: options.number("perturb_from", 0.0)? as usize,
            profiler: options.parsed("profiler", "true or false")?.unwrap_or(false),
            gpu: options.gpu()?,
            noise: options.noise()?.of_process(started, &mut random),
            random,
        })
    }

    /// The time of a step that takes `work` undisturbed; `step` counts from 1.
    pub fn step_time(&mut self, work: Duration, step: usize) -> Duration {
        work.mul_f64(self.noise.of_step(step, &mut self.random))
    }

    pub fn kernel(&self) -> &'static str {
        if self.clock == Clock::Scripted { "none: the clock is scripted" } else { "waiting" }
    }

    /// Stops the clock if the script sets it. A job loads once.
    pub fn begin(&self) {
        if self.clock != Clock::Real {
            worker::stop_clock();
        }
    }

    /// Waits exactly so long: sleeping alone overshoots by more than the scripted noise. With a scripted
    /// clock, only the clock advances.
    pub fn wait(&self, time: Duration) {
        match self.clock {
            Clock::Real => {}
            Clock::Scripted => return worker::advance_clock(time),
            Clock::Half => worker::advance_clock(time / 2),
        }
        #[expect(clippy::disallowed_methods, reason = "the mock's work is to take a known time")]
        let start = Instant::now();
        if time > Duration::from_millis(2) {
            std::thread::sleep(time - Duration::from_millis(1));
        }
        while start.elapsed() < time {
            std::hint::spin_loop();
        }
    }
}

/// The options of the variant, as numbers.
struct Options<'a>(&'a BTreeMap<String, String>);

impl<'a> Options<'a> {
    fn text(&self, name: &str) -> Option<&'a str> {
        self.0.get(name).map(String::as_str)
    }

    fn parsed<T: FromStr>(&self, name: &str, expected: &str) -> Result<Option<T>, EngineError> {
        let parse = |text: &str| {
            text.parse().map_err(|_| EngineError::Input(format!("option {name} is {text:?}, not {expected}")))
        };
        self.text(name).map(parse).transpose()
    }

    fn precision(&self, name: &str) -> Result<Option<Precision>, EngineError> {
        self.text(name).map(str::parse).transpose().map_err(EngineError::Input)
    }

    fn number(&self, name: &str, default: f64) -> Result<f64, EngineError> {
        match self.parsed(name, "a number")? {
            Some(number) if !f64::is_finite(number) => {
                Err(EngineError::Input(format!("option {name} is {number}, not a number")))
            }
            number => Ok(number.unwrap_or(default)),
        }
    }

    fn milliseconds(&self, name: &str, default: f64) -> Result<Duration, EngineError> {
        Ok(Duration::from_secs_f64(self.number(name, default)?.max(0.0) / 1e3))
    }

    fn mebibytes(&self, name: &str) -> Result<usize, EngineError> {
        Ok((self.number(name, 0.0)?.max(0.0) * f64::from(1 << 20)) as usize)
    }

    fn gpu(&self) -> Result<Option<GpuScript>, EngineError> {
        let Some(bandwidth) = self.parsed("gpu_bandwidth", "a number of GB/s")? else { return Ok(None) };
        let bytes = |megabytes: f64| (megabytes.max(0.0) * 1e6) as u64;
        let allocated = self.parsed("gpu_allocated_mb", "a number of MB")?;
        let in_use = self.parsed("gpu_loaded_mb", "a number of MB")?.or(allocated);
        Ok(Some(GpuScript {
            bandwidth,
            arithmetic: self.number("gpu_gflops", 100_000.0)?,
            memory_bytes: bytes(self.number("gpu_memory_mb", 0.0)?),
            allocated: allocated
                .zip(in_use)
                .map(|(peak, in_use)| Allocated { in_use: bytes(in_use), peak: bytes(peak) }),
            synchronises: self.parsed("synchronises", "true or false")?.unwrap_or(true),
        }))
    }

    fn noise(&self) -> Result<Noise, EngineError> {
        Ok(Noise {
            process: self.number("process_noise", 0.0)?,
            step: self.number("noise", 0.0)?,
            bimodal: self.number("bimodal", 0.0)?,
            bimodal_factor: self.number("bimodal_factor", 1.2)?,
            spike_share: self.number("spike_share", 0.0)?,
            spike: self.number("spike", 3.0)?,
            drift: self.number("drift", 0.0)?,
            ramp: self.number("ramp", 1.0)?,
            ramp_steps: self.number("ramp_steps", 0.0)? as usize,
        })
    }
}

pub(crate) fn unix_time() -> Duration {
    std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap_or_default()
}
