//! The driver's clocks.

use std::time::Instant;

/// The clock of deadlines.
#[expect(clippy::disallowed_methods, reason = "a deadline, not a measurement")]
pub fn now() -> Instant {
    Instant::now()
}

/// The clock that the worker compares its own readings with.
pub(crate) fn monotonic_ns() -> Option<u64> {
    #[cfg(unix)]
    {
        let time = rustix::time::clock_gettime(rustix::time::ClockId::Monotonic);
        Some(time.tv_sec as u64 * 1_000_000_000 + time.tv_nsec as u64)
    }
    #[cfg(not(unix))]
    None
}
