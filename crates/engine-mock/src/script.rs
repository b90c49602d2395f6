//! The script of a mock, read from the options of its variant.

use std::collections::BTreeMap;
use std::str::FromStr;
use std::time::{Duration, Instant};

use rand::{Rng, RngExt, SeedableRng};
use rand_chacha::ChaCha8Rng;
use rand_distr::{Distribution, StandardNormal};
use worker::engine::{Allocated, EngineError, Precision, Settings};

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

// How the times of a mock vary: the truth that verdicts are tested against. The mock waits so long; the
// calibration of the statistics draws from the same distributions without waiting.

/// Factors on an undisturbed time. The default disturbs nothing.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Noise {
    /// σ of log-normal noise on the whole process.
    pub process: f64,
    /// σ of log-normal noise on each step.
    pub step: f64,
    /// Share of processes that are slower altogether, and by which factor.
    pub bimodal: f64,
    pub bimodal_factor: f64,
    /// Share of steps that are slower, and by which factor.
    pub spike_share: f64,
    pub spike: f64,
    /// Slow-down of a process per unit of the time that had passed when it started.
    pub drift: f64,
    /// The first step is slower by this factor, falling linearly to 1 over `ramp_steps` steps.
    pub ramp: f64,
    pub ramp_steps: usize,
}

impl Default for Noise {
    fn default() -> Self {
        Self {
            process: 0.0,
            step: 0.0,
            bimodal: 0.0,
            bimodal_factor: 1.0,
            spike_share: 0.0,
            spike: 1.0,
            drift: 0.0,
            ramp: 1.0,
            ramp_steps: 0,
        }
    }
}

impl Noise {
    /// The noise of one process that starts at the time `started`, in the unit of `drift`.
    pub fn of_process(&self, started: f64, random: &mut impl Rng) -> ProcessNoise {
        let mode = if random.random_bool(share(self.bimodal)) { self.bimodal_factor } else { 1.0 };
        let factor = log_normal(self.process, random) * mode * (1.0 + self.drift * started);
        ProcessNoise { noise: *self, factor: factor.max(0.0) }
    }
}

/// The noise of one process.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct ProcessNoise {
    noise: Noise,
    factor: f64,
}

impl ProcessNoise {
    /// The factor of all times of this process.
    pub fn factor(&self) -> f64 {
        self.factor
    }

    /// The time of a step, relative to its undisturbed time; `step` counts from 1.
    pub fn of_step(&self, step: usize, random: &mut impl Rng) -> f64 {
        let Noise { ramp, ramp_steps, spike, spike_share, step: sigma, .. } = self.noise;
        let left = ramp_steps.saturating_sub(step) as f64 / ramp_steps.max(1) as f64;
        let ramp = 1.0 + (ramp - 1.0) * left;
        let spike = if random.random_bool(share(spike_share)) { spike } else { 1.0 };
        (log_normal(sigma, random) * self.factor * ramp * spike).max(0.0)
    }
}

fn share(share: f64) -> f64 {
    share.clamp(0.0, 1.0)
}

fn log_normal(sigma: f64, random: &mut impl Rng) -> f64 {
    let normal: f64 = StandardNormal.sample(random);
    (sigma * normal).exp()
}

#[cfg(test)]
mod tests {
    use rand::SeedableRng;
    use rand_chacha::ChaCha8Rng;

    use super::*;

    fn processes(noise: Noise, started: f64) -> Vec<f64> {
        let mut random = ChaCha8Rng::seed_from_u64(1);
        (0..4000).map(|_| noise.of_process(started, &mut random).factor()).collect()
    }

    fn steps(noise: Noise) -> Vec<f64> {
        let mut random = ChaCha8Rng::seed_from_u64(2);
        let process = noise.of_process(0.0, &mut random);
        (1..=4000).map(|step| process.of_step(step, &mut random)).collect()
    }

    fn mean(x: &[f64]) -> f64 {
        x.iter().sum::<f64>() / x.len() as f64
    }

    /// Standard deviation of the logarithms.
    fn sigma(x: &[f64]) -> f64 {
        let logs: Vec<f64> = x.iter().map(|x| x.ln()).collect();
        let centre = mean(&logs);
        mean(&logs.iter().map(|x| (x - centre).powi(2)).collect::<Vec<_>>()).sqrt()
    }

    #[test]
    fn by_default_nothing_varies() {
        assert!(steps(Noise::default()).iter().chain(&processes(Noise::default(), 9.0)).all(|&x| x == 1.0));
    }

    #[test]
    fn noise_has_the_scripted_spread() {
        let found = sigma(&processes(Noise { process: 0.05, ..Noise::default() }, 0.0));
        assert!((found - 0.05).abs() < 0.003, "{found}");
        let found = sigma(&steps(Noise { step: 0.05, ..Noise::default() }));
        assert!((found - 0.05).abs() < 0.003, "{found}");
    }

    #[test]
    fn a_share_of_the_processes_is_slower() {
        let noise = Noise { bimodal: 0.25, bimodal_factor: 1.2, ..Noise::default() };
        let found = processes(noise, 0.0);
        let slow = found.iter().filter(|&&x| x == 1.2).count();
        assert!((900..1100).contains(&slow), "{slow} of 4000");
        assert!(found.iter().all(|&x| x == 1.0 || x == 1.2));
    }

    #[test]
    fn a_share_of_the_steps_is_slower() {
        let found = steps(Noise { spike: 3.0, spike_share: 0.1, ..Noise::default() });
        let slow = found.iter().filter(|&&x| x == 3.0).count();
        assert!((330..470).contains(&slow), "{slow} of 4000");
    }

    #[test]
    fn drift_slows_what_starts_later() {
        let noise = Noise { drift: 0.1, ..Noise::default() };
        assert_eq!(processes(noise, 0.5)[0], 1.05);
    }

    #[test]
    fn a_ramp_falls_to_one() {
        let found = steps(Noise { ramp: 3.0, ramp_steps: 4, ..Noise::default() });
        assert_eq!(found[..5], [2.5, 2.0, 1.5, 1.0, 1.0]);
    }
}
