//! A positive control: requests made slower by a known share, which a comparison must find.

use engine::EngineError;

use crate::clock;

/// The largest accepted slowdown: eleven times the time. More is a mistake of units.
const LARGEST: f64 = 10.0;

/// The share of its own time by which each step is extended. The answers are the engine's.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct Pace(f64);

impl Pace {
    /// The slowdown of a job: a share from 0 to 10.
    pub(crate) fn new(share: f64) -> Result<Pace, EngineError> {
        if (0.0..=LARGEST).contains(&share) {
            return Ok(Pace(share));
        }
        Err(EngineError::Input(format!(
            "settings.slowdown is {share}: give a share of the time from 0 to {LARGEST}"
        )))
    }

    /// Computes a step.
    pub(crate) fn keep<T>(self, step: impl FnOnce() -> T) -> T {
        if self.0 == 0.0 {
            return step();
        }
        let before = clock::now_ns();
        let answer = step();
        let own = clock::now_ns() - before;
        clock::wait_until(before + own + (own as f64 * self.0) as u64);
        answer
    }

    /// The phrase for the kernels in effect; `None` where nothing is slowed.
    pub(crate) fn phrase(self) -> Option<String> {
        let percent = (self.0 * 1e4).round() / 1e2;
        (self.0 > 0.0).then(|| format!("slowed by {percent} % (positive control)"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_slowdown_is_a_share_of_the_time() {
        for share in [0.0, 0.05, 10.0] {
            assert_eq!(Pace::new(share).unwrap(), Pace(share));
        }
        for share in [-0.1, f64::NAN, f64::INFINITY, 10.5] {
            assert!(Pace::new(share).unwrap_err().to_string().contains("slowdown"), "{share} is refused");
        }
    }
}
