//! The one clock. Every figure that is compared between engines is a difference of two of its readings.
//!
//! Nothing outside this crate reads it. [`stop_clock`] and [`advance_clock`] let a script set it; they are
//! for `engine-mock` alone, and `cargo xtask tidy` refuses them in every other crate. They are no cargo
//! feature: a feature would compile this crate once for the mock and once for the frameworks' workers.

use std::time::{SystemTime, UNIX_EPOCH};

pub use scripted::advance_clock;

use crate::engine::{EngineError, Result};

/// Stops the clock of this process: from here on only [`advance_clock`] moves it.
pub fn stop_clock() {
    scripted::stop_at(monotonic_ns());
}

/// Nanoseconds of a monotonic clock that the driver can read too: the time of spawning is compared
/// with readings in this process.
pub(crate) fn now_ns() -> u64 {
    if let Some(shown) = scripted::shown_ns() {
        return shown;
    }
    monotonic_ns()
}

/// Waits until [`now_ns`] shows this. Spins rather than sleeps: the kernel wakes sleepers late.
pub(crate) fn wait_until(end_ns: u64) {
    loop {
        let now = now_ns();
        if now >= end_ns {
            return;
        }
        scripted::skip(std::time::Duration::from_nanos(end_ns - now));
        std::hint::spin_loop();
    }
}

/// A clock that a script sets. Tests with scripted times must not depend on how late the system wakes a
/// sleeper.
mod scripted {
    use std::sync::atomic::{AtomicU64, Ordering};
    use std::time::Duration;

    /// The time at which the clock was stopped, plus the time added since; 0 while it runs.
    static STOPPED_AT: AtomicU64 = AtomicU64::new(0);

    pub(super) fn stop_at(now_ns: u64) {
        // A clock that is stopped already keeps its reading.
        let _ = STOPPED_AT.compare_exchange(0, now_ns, Ordering::Relaxed, Ordering::Relaxed);
    }

    /// Advances a stopped clock ([`stop_clock`](crate::stop_clock)) by `time`.
    ///
    /// # Panics
    /// If the clock is running.
    pub fn advance_clock(time: Duration) {
        let before = STOPPED_AT.fetch_add(time.as_nanos() as u64, Ordering::Relaxed);
        assert!(before != 0, "only a stopped clock is advanced");
    }

    /// The reading of a stopped clock; `None` while it runs.
    pub(super) fn shown_ns() -> Option<u64> {
        Some(STOPPED_AT.load(Ordering::Relaxed)).filter(|&shown| shown != 0)
    }

    /// Advances a stopped clock; a running one is not changed.
    pub(super) fn skip(time: Duration) {
        if shown_ns().is_some() {
            advance_clock(time);
        }
    }
}

#[cfg(unix)]
fn monotonic_ns() -> u64 {
    let time = rustix::time::clock_gettime(rustix::time::ClockId::Monotonic);
    time.tv_sec as u64 * 1_000_000_000 + time.tv_nsec as u64
}

/// Without a clock that processes share, readings count from the first one.
#[cfg(not(unix))]
fn monotonic_ns() -> u64 {
    use std::sync::OnceLock;
    use std::time::Instant;
    static ORIGIN: OnceLock<Instant> = OnceLock::new();
    #[expect(clippy::disallowed_methods, reason = "this is the clock")]
    let origin = ORIGIN.get_or_init(Instant::now);
    origin.elapsed().as_nanos() as u64
}

/// The time since 1970 in relation to this clock.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Beside {
    /// Time since 1970 minus this clock.
    offset_ns: i128,
    /// The most that the offset may be wrong by: half of the time that the reading took.
    error_ns: u64,
}

/// Readings of which the quickest counts.
const TRIES: usize = 32;

impl Beside {
    pub(crate) fn read() -> Beside {
        let once = || {
            let before = now_ns();
            let since_1970 = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
            let took = now_ns() - before;
            let offset_ns = since_1970.as_nanos() as i128 - i128::from(before + took / 2);
            Beside { offset_ns, error_ns: took.div_ceil(2) }
        };
        (1..TRIES)
            .map(|_| once())
            .fold(once(), |best, new| if new.error_ns < best.error_ns { new } else { best })
    }

    /// The offset between two readings, and its largest error: that of the readings, and half of the change
    /// of the offset between them.
    pub(crate) fn between(first: Beside, last: Beside) -> (i128, u64) {
        let drift = (last.offset_ns - first.offset_ns).unsigned_abs() as u64;
        let middle = first.offset_ns.midpoint(last.offset_ns);
        (middle, first.error_ns.max(last.error_ns) + drift.div_ceil(2))
    }
}

/// CPU time of all threads of this process, where the system reports it.
pub(crate) fn cpu_ns() -> Option<u64> {
    #[cfg(unix)]
    {
        let time = rustix::time::clock_gettime(rustix::time::ClockId::ProcessCPUTime);
        Some(time.tv_sec as u64 * 1_000_000_000 + time.tv_nsec as u64)
    }
    #[cfg(not(unix))]
    None
}

// A positive control: requests made slower by a known share, which a comparison must find.

/// The largest accepted slowdown: eleven times the time. More is a mistake of units.
const LARGEST: f64 = 10.0;

/// The share of its own time by which each step is extended. The answers are the engine's.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct Pace(f64);

impl Pace {
    /// The slowdown of a job: a share from 0 to 10.
    pub(crate) fn new(share: f64) -> Result<Pace> {
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
        let before = now_ns();
        let answer = step();
        let own = now_ns() - before;
        wait_until(before + own + (own as f64 * self.0) as u64);
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
