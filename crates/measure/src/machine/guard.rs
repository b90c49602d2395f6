//! The quiet-machine guard (rule R12): other activity while a worker was measured, and changes of the
//! machine's own speed.

use std::collections::BTreeSet;
use std::time::{Duration, Instant};

use facts::Noise;

use super::counters::{self, Counters};
use super::gpu::Watched;

/// Shortest stretch that is judged. The kernel counts in hundredths of a second; over less time, shares would be
/// guesses.
const SHORTEST: Duration = Duration::from_millis(500);
/// Length of one look before the first round.
const LOOK: Duration = Duration::from_millis(500);

pub struct Guard {
    cpus: Vec<usize>,
    gpu: Option<Watched>,
    /// Processes of this program that are alive. Their usage does not count as others'.
    children: BTreeSet<u32>,
    /// Shortest time of the probe's arithmetic so far.
    best_compute_ns: Option<u64>,
}

/// A stretch of time that is being watched.
pub struct Watch {
    since: Instant,
    before: Counters,
    foreign_gpu_processes: Option<usize>,
}

impl Guard {
    /// Watches the CPUs that the workers may use.
    pub fn new(cpus: Vec<usize>, device: &str) -> Guard {
        Guard { cpus, gpu: Watched::new(device), children: BTreeSet::new(), best_compute_ns: None }
    }

    /// Adds a process that stays alive while stretches of time begin and end.
    pub fn add(&mut self, child: u32) {
        self.children.insert(child);
    }

    /// Removes a process that has ended and was waited for.
    pub fn remove(&mut self, child: u32) {
        self.children.remove(&child);
    }

    fn counters(&self) -> Counters {
        counters::read(&self.cpus, self.children.iter().copied())
    }

    fn foreign_gpu_processes(&self) -> Option<usize> {
        self.gpu.as_ref()?.foreign_processes(&self.children)
    }

    pub fn watch(&self) -> Watch {
        Watch { since: now(), before: self.counters(), foreign_gpu_processes: self.foreign_gpu_processes() }
    }

    /// Watches until the machine is quiet, or until the time is up. Returns the last look.
    pub fn wait_until_quiet(&self, limit: Duration, mut each: impl FnMut(&Noise)) -> Noise {
        let start = now();
        loop {
            let watch = self.watch();
            std::thread::sleep(LOOK);
            let noise = watch.end(self);
            let quiet = noise.complaints().is_empty();
            if quiet || start.elapsed() >= limit || crate::interrupt::requested() {
                return noise;
            }
            each(&noise);
        }
    }

    /// Slowdown of the probe's arithmetic against its best time, as a share.
    pub fn drift(&mut self, compute_ns: u64) -> f64 {
        let best = self.best_compute_ns.map_or(compute_ns, |best| best.min(compute_ns)).max(1);
        self.best_compute_ns = Some(best);
        compute_ns as f64 / best as f64 - 1.0
    }
}

impl Watch {
    /// The activity since then, as seen by the guard that began the watch.
    pub fn end(self, guard: &Guard) -> Noise {
        let (elapsed, after) = (self.since.elapsed(), guard.counters());
        let (runnable, load) = counters::load().unzip();
        Noise {
            // A process that came or went meanwhile counts, too.
            foreign_gpu_processes: self.foreign_gpu_processes.max(guard.foreign_gpu_processes()),
            gpu_held_back: guard.gpu.as_ref().map(Watched::held_back).unwrap_or_default(),
            runnable,
            load,
            ..between(self.before, after, elapsed, guard.cpus.len())
        }
    }
}

fn between(before: Counters, after: Counters, elapsed: Duration, cpus: usize) -> Noise {
    let seconds = elapsed.as_secs_f64();
    let thermal_events =
        after.thermal_events.zip(before.thermal_events).map(|(after, before)| after.saturating_sub(before));
    if elapsed < SHORTEST || cpus == 0 {
        return Noise { seconds, thermal_events, ..Noise::default() };
    }
    let capacity = seconds * cpus as f64;
    let spent = |of: fn(&Counters) -> Option<f64>| Some(of(&after)? - of(&before)?);
    let share = |seconds: f64| (seconds / capacity).clamp(0.0, 1.0);
    let (busy, own) = (spent(|c| c.busy_s), spent(|c| c.own_s));
    Noise {
        seconds,
        // A sandbox may show a /proc/stat that never changes. Counters that miss this program's own work are
        // of no use for the work of others.
        foreign: busy.zip(own).filter(|(busy, own)| *busy >= 0.5 * own).map(|(busy, own)| share(busy - own)),
        stolen: spent(|c| c.stolen_s).map(share),
        throttled: spent(|c| c.throttled_s).map(share),
        thermal_events,
        ..Noise::default()
    }
}

#[expect(clippy::disallowed_methods, reason = "a stretch of time to hold the kernel's counters against")]
fn now() -> Instant {
    Instant::now()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn counters(busy: f64, own: f64, stolen: f64) -> Counters {
        Counters { busy_s: Some(busy), own_s: Some(own), stolen_s: Some(stolen), ..Counters::default() }
    }

    #[test]
    fn what_others_used_is_what_was_busy_without_us() {
        let noise = between(counters(10.0, 1.0, 0.0), counters(12.0, 2.5, 0.02), Duration::from_secs(1), 2);
        assert!((noise.foreign.unwrap() - 0.25).abs() < 1e-12, "{noise:?}");
        assert_eq!(noise.complaints(), ["other processes used 25 % of the CPUs' time"]);
    }

    #[test]
    fn a_quiet_machine_has_no_complaint() {
        let noise = between(counters(10.0, 1.0, 0.0), counters(11.95, 2.9, 0.01), Duration::from_secs(1), 2);
        assert!(noise.complaints().is_empty(), "{noise:?}");
    }

    #[test]
    fn counters_that_stand_still_or_too_short_a_time_are_not_taken_for_quiet() {
        let second = Duration::from_secs(1);
        assert_eq!(between(counters(10.0, 1.0, 0.0), counters(10.0, 2.9, 0.0), second, 2).foreign, None);
        let moment = Duration::from_millis(100);
        assert_eq!(between(counters(1.0, 1.0, 0.0), counters(2.0, 1.0, 0.0), moment, 2).foreign, None);
        assert_eq!(between(Counters::default(), Counters::default(), second, 2).foreign, None);
    }

    #[test]
    fn stolen_time_quota_and_heat_are_complained_of() {
        let mut after = counters(1.0, 1.0, 0.3);
        (after.throttled_s, after.thermal_events) = (Some(0.1), Some(3));
        let mut before = counters(0.0, 0.0, 0.0);
        (before.throttled_s, before.thermal_events) = (Some(0.0), Some(1));
        let complaints = between(before, after, Duration::from_secs(1), 2).complaints();
        assert_eq!(complaints.len(), 3, "{complaints:?}");
        assert!(complaints[2].contains("heat (2 events)"), "{complaints:?}");
    }

    #[test]
    fn drift_is_held_against_the_best_so_far() {
        let mut guard = Guard::new(vec![0], "cpu");
        let mut drift = |compute_ns| guard.drift(compute_ns);
        assert_eq!(drift(100), 0.0);
        assert!((drift(120) - 0.2).abs() < 1e-12);
        assert_eq!(drift(80), 0.0);
        assert!((drift(100) - 0.25).abs() < 1e-12);
    }
}
