//! The script of a mock, read from the options of its variant.

use std::str::FromStr;
use std::time::{Duration, Instant};

use engine::{EngineError, Precision, Settings};
use rand::SeedableRng;
use rand_chacha::ChaCha8Rng;
use rand_distr::{Distribution, StandardNormal};

/// What goes wrong.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Fault {
    /// The process dies by a signal.
    Crash,
    Panic,
    /// Never returns.
    Hang,
    /// An error of the framework, properly reported.
    Error,
    /// A line that is no event, among the events.
    Garbage,
    /// Lines without end on stdout.
    Flood,
    /// Exit code 0 before the job is done.
    Leave,
    /// Says that it speaks another version of the protocol.
    Version,
}

const FAULTS: [(&str, Fault); 8] = [
    ("crash", Fault::Crash),
    ("panic", Fault::Panic),
    ("hang", Fault::Hang),
    ("error", Fault::Error),
    ("garbage", Fault::Garbage),
    ("flood", Fault::Flood),
    ("leave", Fault::Leave),
    ("version", Fault::Version),
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

const OPTIONS: [&str; 14] = [
    "load_ms",
    "cold_ms",
    "token_ms",
    "prefill_token_ms",
    "noise",
    "process_noise",
    "ramp",
    "ramp_steps",
    "memory_mib",
    "perturb",
    "seed",
    "fault",
    "fault_at",
    "claimed_precision",
];

pub struct Script {
    pub load: Duration,
    pub cold: Duration,
    pub token: Duration,
    pub prefill_token: Duration,
    pub memory_bytes: usize,
    pub perturb: f32,
    pub fault: Option<Fault>,
    pub fault_at: usize,
    /// What it claims to hold, whatever was asked.
    pub claimed_precision: Option<Precision>,
    noise: f64,
    ramp: f64,
    ramp_steps: usize,
    /// Factor of the whole process.
    process: f64,
    random: ChaCha8Rng,
}

impl Script {
    pub fn read(settings: &Settings) -> Result<Script, EngineError> {
        settings.check_options(&OPTIONS)?;
        let option = |name: &str| settings.options.get(name).map(String::as_str);
        let number = |name: &str, default: f64| match option(name) {
            None => Ok(default),
            Some(text) => match text.parse::<f64>() {
                Ok(value) if value.is_finite() => Ok(value),
                _ => Err(EngineError::Input(format!("option {name} is {text:?}, not a number"))),
            },
        };
        let milliseconds = |name: &str, default: f64| -> Result<Duration, EngineError> {
            Ok(Duration::from_secs_f64(number(name, default)?.max(0.0) / 1e3))
        };
        let mut random = match option("seed") {
            Some(_) => ChaCha8Rng::seed_from_u64(number("seed", 0.0)? as u64),
            // Each process its own noise, as in real life.
            None => ChaCha8Rng::seed_from_u64(u64::from(std::process::id()) ^ now_ns()),
        };
        let process = log_normal(&mut random, number("process_noise", 0.0)?);
        Ok(Script {
            load: milliseconds("load_ms", 1.0)?,
            cold: milliseconds("cold_ms", 0.0)?,
            token: milliseconds("token_ms", 0.2)?,
            prefill_token: milliseconds("prefill_token_ms", 0.02)?,
            memory_bytes: (number("memory_mib", 0.0)?.max(0.0) * f64::from(1 << 20)) as usize,
            perturb: number("perturb", 0.0)? as f32,
            fault: option("fault").map(str::parse).transpose()?,
            fault_at: number("fault_at", 0.0)? as usize,
            claimed_precision: option("claimed_precision")
                .map(str::parse)
                .transpose()
                .map_err(EngineError::Input)?,
            noise: number("noise", 0.0)?,
            ramp: number("ramp", 1.0)?,
            ramp_steps: number("ramp_steps", 0.0)? as usize,
            process,
            random,
        })
    }

    /// How long a step takes whose undisturbed time is `work`; `step` counts from 1.
    pub fn step_time(&mut self, work: Duration, step: usize) -> Duration {
        let left = self.ramp_steps.saturating_sub(step) as f64 / self.ramp_steps.max(1) as f64;
        let ramp = 1.0 + (self.ramp - 1.0) * left;
        work.mul_f64((log_normal(&mut self.random, self.noise) * self.process * ramp).max(0.0))
    }

    /// Waits exactly so long: sleeping alone overshoots by more than the noise that is scripted.
    pub fn wait(&self, time: Duration) {
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

fn log_normal(random: &mut ChaCha8Rng, sigma: f64) -> f64 {
    let normal: f64 = StandardNormal.sample(random);
    (sigma * normal).exp()
}

fn now_ns() -> u64 {
    let since = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH);
    since.map(|time| time.as_nanos() as u64).unwrap_or_default()
}
