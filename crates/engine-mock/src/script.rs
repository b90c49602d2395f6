//! The script of a mock, read from the options of its variant.

use std::collections::BTreeMap;
use std::ops::Deref;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use rand::{Rng, RngExt, SeedableRng};
use rand_chacha::ChaCha8Rng;
use rand_distr::{Distribution, StandardNormal};
use serde::{Deserialize, Deserializer};
use serde_json::Value;
use worker::engine::{Allocated, EngineError, Precision, Result, Settings};

/// The options of a variant (`configs/engines/*.toml`), all optional.
#[derive(Debug, Default, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub(crate) struct Options {
    /// A file that is run in place of the model's.
    artefact: Option<std::path::PathBuf>,
    clock: Clock,
    /// Time of a load; 1 ms if it is left out.
    #[serde(deserialize_with = "milliseconds", default = "load")]
    pub(crate) load_ms: Duration,
    /// Time of a decode step, or of a run of an ONNX file; 0.2 ms.
    #[serde(deserialize_with = "milliseconds", default = "token")]
    pub(crate) token_ms: Duration,
    /// Time of a token of a prompt or a text; 0.02 ms.
    #[serde(deserialize_with = "milliseconds", default = "prefill_token")]
    pub(crate) prefill_token_ms: Duration,
    /// Extra time of the first prompt, and of the first decode step: as if it compiled them.
    #[serde(deserialize_with = "milliseconds")]
    pub(crate) cold_ms: Duration,
    #[serde(deserialize_with = "milliseconds")]
    pub(crate) cold_step_ms: Duration,
    /// σ of log-normal noise on each step, and on the whole process.
    noise: f64,
    process_noise: f64,
    /// The first step is slower by this factor, falling linearly to 1 over `ramp_steps` steps.
    ramp: Option<f64>,
    ramp_steps: usize,
    /// Allocated, and touched, at this call of `append`.
    pub(crate) memory_step_mib: usize,
    pub(crate) memory_step_at: usize,
    /// `begin` allocates keys and values of the model's shapes in f32, touches them and reports their size; by
    /// default it has none and reports none.
    pub(crate) kv_cache: bool,
    /// Threads of its own that burn a core while it appends; with `busy_waiting` they go on burning between
    /// requests, as pools that spin do.
    pub(crate) busy_threads: usize,
    pub(crate) busy_waiting: bool,
    /// Added to every second logit or float of an output, and changes the first whole number of each: a wrong
    /// answer that is not absurd.
    pub(crate) perturb: f32,
    /// The same where the logits of the last position alone are wanted, as in timed steps.
    pub(crate) perturb_last: f32,
    /// Gives hidden states; from this one on, `perturb` shows.
    pub(crate) layers: bool,
    pub(crate) perturb_from: usize,
    /// Added to every second logit at a quantised precision, dequantised or not: the error of quantising.
    pub(crate) quantised: f32,
    /// Encodes texts padded to the longest, and takes as long as for texts of that length.
    pub(crate) padded: bool,
    /// As if attention had no mask, the numbers of a text depend on how far it is padded.
    pub(crate) unmasked: bool,
    /// It hears the first audio over and over, in no time.
    pub(crate) heard_once: bool,
    /// The reason for which it loads nothing.
    pub(crate) unsupported: Option<String>,
    /// Reported as in effect, for any request: the precision, the data type of keys and values, and whether its
    /// graph is optimised. By default it does not say the last.
    pub(crate) claimed_precision: Option<Precision>,
    pub(crate) claimed_cache: Option<Precision>,
    pub(crate) optimised: Option<bool>,
    /// It has a profiler, with events of the time since 1970, so not for a scripted clock.
    pub(crate) profiler: bool,
    /// With `clock = "shortened"`: the share of the times that it shows, of this part alone, and of some requests
    /// alone.
    pub(crate) told: Option<f64>,
    pub(crate) told_of: Option<Part>,
    pub(crate) told_rarely: bool,
    /// Factor on the step just after a pause; the others are shorter by as much.
    pub(crate) after_pause: Option<f64>,
    /// The fault, and the call of `append` at which it happens (0: at load).
    pub(crate) fault: Option<Fault>,
    pub(crate) fault_at: usize,
    pub(crate) leave_out: Option<String>,
    /// Readings that replace the true ones: `usage/peak_bytes=0;loaded/load_ns=0`.
    pub(crate) say: Option<String>,
    /// GB/s and GFLOP/s of a simulated GPU; without the first there is none.
    pub(crate) gpu_bandwidth: Option<f64>,
    pub(crate) gpu_gflops: Option<f64>,
    /// Held on that GPU from load on, where `PHOTOFINISH_NVML` names a file of `gpu::simulated`.
    gpu_memory_mb: f64,
    /// The reported peak of its own allocator there, and its use after the load (as much); without the first it
    /// reports nothing.
    gpu_allocated_mb: Option<f64>,
    gpu_loaded_mb: Option<f64>,
    /// Whether `append` waits until that GPU has done its work. If not, it returns the results so far.
    pub(crate) synchronises: Option<bool>,
}

impl Options {
    pub(crate) fn read(options: &BTreeMap<String, String>) -> Result<Options> {
        // A number or `true` is its JSON; other texts are texts.
        let value = |text: &String| serde_json::from_str(text).unwrap_or_else(|_| Value::from(text.as_str()));
        let options: Value = options
            .iter()
            .map(|(name, text)| (name.clone(), value(text)))
            .collect::<serde_json::Map<_, _>>()
            .into();
        let read: Result<Options> = serde_path_to_error::deserialize(options)
            .map_err(|error| EngineError::Input(format!("option {}: {}", error.path(), error.inner())));
        let mut read = read?;
        // Another file has other outputs.
        if read.artefact.is_some() {
            read.perturb += 0.01;
        }
        Ok(read)
    }

    pub(crate) fn gpu_memory_bytes(&self) -> u64 {
        bytes(self.gpu_memory_mb)
    }

    pub(crate) fn gpu_allocated(&self) -> Option<Allocated> {
        let peak = self.gpu_allocated_mb?;
        Some(Allocated { in_use: bytes(self.gpu_loaded_mb.unwrap_or(peak)), peak: bytes(peak) })
    }
}

fn bytes(megabytes: f64) -> u64 {
    (megabytes.max(0.0) * 1e6) as u64
}

fn load() -> Duration {
    Duration::from_millis(1)
}

fn token() -> Duration {
    Duration::from_micros(200)
}

fn prefill_token() -> Duration {
    Duration::from_micros(20)
}

fn milliseconds<'de, D: Deserializer<'de>>(from: D) -> Result<Duration, D::Error> {
    Ok(Duration::from_secs_f64(f64::deserialize(from)?.max(0.0) / 1e3))
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Fault {
    /// The process dies by a signal.
    Crash,
    Panic,
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
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "snake_case")]
enum Clock {
    /// Steps take their time.
    #[default]
    Real,
    /// The scripted times, without waiting, so that figures are the same on a loaded machine.
    Scripted,
    /// A share of the scripted times, all of which pass: a worker that reports false times.
    Shortened,
}

/// What is waited for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Part {
    Load,
    Prompt,
    Step,
}

/// Requests with false times, the first of so many in a row.
const MINORITY: (usize, usize) = (2, 5);

/// A worker that has not been asked for so long was stopped meanwhile.
const PAUSE: Duration = Duration::from_millis(5);

/// The prompts read so far, and when the last wait ended.
static PROMPTS: AtomicUsize = AtomicUsize::new(0);
static LAST: Mutex<Option<Instant>> = Mutex::new(None);

pub(crate) struct Script {
    options: Options,
    noise: ProcessNoise,
    random: ChaCha8Rng,
}

impl Deref for Script {
    type Target = Options;

    fn deref(&self) -> &Options {
        &self.options
    }
}

impl Script {
    pub(crate) fn read(settings: &Settings) -> Result<Script> {
        let options = Options::read(&settings.options)?;
        // Each process its own noise, as in real life.
        let seed = u64::from(std::process::id()) ^ unix_time().as_nanos() as u64;
        let mut random = ChaCha8Rng::seed_from_u64(seed);
        let noise = Noise {
            process: options.process_noise,
            step: options.noise,
            ramp: options.ramp.unwrap_or(1.0),
            ramp_steps: options.ramp_steps,
            ..Noise::default()
        };
        Ok(Script { noise: noise.of_process(0.0, &mut random), options, random })
    }

    /// The time of a step that takes `work` undisturbed; `step` counts from 1.
    pub(crate) fn step_time(&mut self, work: Duration, step: usize) -> Duration {
        work.mul_f64(self.noise.of_step(step, &mut self.random))
    }

    pub(crate) fn kernel(&self) -> &'static str {
        if self.options.clock == Clock::Scripted { "none: the clock is scripted" } else { "waiting" }
    }

    /// Stops the clock if the script sets it. A job loads once.
    pub(crate) fn begin(&self) {
        if self.options.clock != Clock::Real {
            worker::stop_clock();
        }
    }

    /// Waits exactly so long: sleeping alone overshoots by more than the scripted noise. With a scripted
    /// clock, only the clock advances.
    pub(crate) fn wait(&self, part: Part, time: Duration) {
        let time = if part == Part::Step { time.mul_f64(self.after_pause()) } else { time };
        match self.options.clock {
            Clock::Real => {}
            Clock::Scripted => return worker::advance_clock(time),
            Clock::Shortened => worker::advance_clock(time.mul_f64(self.told(part))),
        }
        #[expect(clippy::disallowed_methods, reason = "the mock's work is to take a known time")]
        let start = Instant::now();
        if time > Duration::from_millis(2) {
            std::thread::sleep(time - Duration::from_millis(1));
        }
        while start.elapsed() < time {
            std::hint::spin_loop();
        }
        *LAST.lock().unwrap_or_else(PoisonError::into_inner) = Some(start + start.elapsed());
    }

    /// The share of a time that its clock shows.
    fn told(&self, part: Part) -> f64 {
        let begun = PROMPTS.fetch_add(usize::from(part == Part::Prompt), Ordering::Relaxed);
        let (few, all) = MINORITY;
        let is_due = !self.options.told_rarely || begun % all < few;
        if is_due && self.options.told_of.is_none_or(|of| of == part) {
            self.options.told.unwrap_or(0.5)
        } else {
            1.0
        }
    }

    fn after_pause(&self) -> f64 {
        let Some(after_pause) = self.options.after_pause else { return 1.0 };
        let last = *LAST.lock().unwrap_or_else(PoisonError::into_inner);
        match last.is_some_and(|last| last.elapsed() > PAUSE) {
            true => after_pause,
            // Slices of three steps take as long as honest ones.
            false => (3.0 - after_pause) / 2.0,
        }
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
