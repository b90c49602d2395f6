//! The one clock. Every figure that is compared between engines is a difference of two of its readings.

/// Nanoseconds of a monotonic clock that the driver can read too: the time of spawning is compared
/// with readings in this process.
#[cfg(unix)]
pub(crate) fn now_ns() -> u64 {
    let time = rustix::time::clock_gettime(rustix::time::ClockId::Monotonic);
    time.tv_sec as u64 * 1_000_000_000 + time.tv_nsec as u64
}

/// Without a clock that processes share, readings count from the first one.
#[cfg(not(unix))]
pub(crate) fn now_ns() -> u64 {
    use std::sync::OnceLock;
    use std::time::Instant;
    static ORIGIN: OnceLock<Instant> = OnceLock::new();
    #[expect(clippy::disallowed_methods, reason = "this is the clock")]
    let origin = ORIGIN.get_or_init(Instant::now);
    origin.elapsed().as_nanos() as u64
}

/// CPU time of all threads of this process, where the system tells.
pub(crate) fn cpu_ns() -> Option<u64> {
    #[cfg(unix)]
    {
        let time = rustix::time::clock_gettime(rustix::time::ClockId::ProcessCPUTime);
        Some(time.tv_sec as u64 * 1_000_000_000 + time.tv_nsec as u64)
    }
    #[cfg(not(unix))]
    None
}
