//! How the times of a mock vary: the truth that verdicts are tested against. The mock waits so long; the
//! calibration of the statistics draws from the same distributions without waiting.

use rand::{Rng, RngExt};
use rand_distr::{Distribution, StandardNormal};

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
