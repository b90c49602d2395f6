//! Reads the kernel's counters of all other activity of the machine.

use std::collections::BTreeSet;
use std::time::{Duration, Instant};

use comparison::facts::Noise;

use super::family::{below, ticks_per_second};
use super::groups;
use super::readings::{Watched, bytes};
use super::servers::processes_of;
use crate::measure::process::now;

/// Readings at one moment. Times are in seconds of CPU time.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub(super) struct Counters {
    /// Time that the watched CPUs were used, by this program included; waiting for I/O and stolen time do not
    /// count.
    pub busy_s: Option<f64>,
    /// Time that the hypervisor gave to other machines.
    pub stolen_s: Option<f64>,
    /// Time used by this process and by all that descend from it.
    pub own_s: Option<f64>,
    /// Time for which a cgroup's quota kept this process from running.
    pub throttled_s: Option<f64>,
    /// Number of times that a core slowed down because of heat.
    pub thermal_events: Option<u64>,
}

/// `servers`: processes that this program asks, which count as its own.
pub(super) fn read(cpus: &[usize], servers: &BTreeSet<u32>) -> Counters {
    let Some(ticks) = ticks_per_second() else { return Counters::default() };
    let text = |path: &str| std::fs::read_to_string(path).ok();
    let stat = text("/proc/stat");
    let of_cpus = |pick: fn(&[u64]) -> Option<u64>| {
        Some(stat.as_deref().and_then(|stat| sum_over_cpus(stat, cpus, pick))? as f64 / ticks)
    };
    Counters {
        busy_s: of_cpus(busy),
        stolen_s: of_cpus(|fields| fields.get(7).copied()),
        own_s: text("/proc/self/stat").and_then(|stat| cpu_ticks(&stat)).map(|own| {
            let of_children = below().into_values().flat_map(|status| status.ticks);
            let stat = |pid: &u32| text(&format!("/proc/{pid}/stat"));
            let of_servers = servers.iter().filter_map(|pid| cpu_ticks(&stat(pid)?)).flatten();
            own.into_iter().chain(of_children).chain(of_servers).sum::<u64>() as f64 / ticks
        }),
        throttled_s: groups::throttled_s(),
        thermal_events: thermal_events(cpus),
    }
}

/// CPU time of all threads of a process so far, in seconds; `None` where the system does not report, or not exactly.
pub(crate) fn cpu_time(pid: u32) -> Option<f64> {
    let threads = std::fs::read_dir(format!("/proc/{pid}/task")).ok()?;
    let times: Vec<u64> = threads
        .filter_map(|thread| {
            let text = std::fs::read_to_string(thread.ok()?.path().join("schedstat")).ok()?;
            text.split_whitespace().next()?.parse().ok()
        })
        .collect();
    (!times.is_empty()).then(|| times.iter().sum::<u64>() as f64 / 1e9)
}

/// CPU time of a process so far in nanoseconds: in its own code, and in the system on its behalf. In ticks of the system's
/// clock, of which a second has a hundred (proc_pid_stat(5)); `None` where the system does not report.
pub(crate) fn processor_time(pid: u32) -> Option<[u64; 2]> {
    let [user, system, ..] = cpu_ticks(&std::fs::read_to_string(format!("/proc/{pid}/stat")).ok()?)?;
    let per_second = ticks_per_second()?;
    Some([user, system].map(|ticks| (ticks as f64 / per_second * 1e9) as u64))
}

/// The highest resident memory of a process since that was last reset, in bytes (`VmHWM`, proc_pid_status(5)); `None` where
/// the system does not report.
pub(crate) fn peak_bytes(pid: u32) -> Option<u64> {
    bytes(&format!("/proc/{pid}/status"), "VmHWM:")
}

/// Tenths of its time that each CPU was busy, while this function waited for `wait`. Empty where the system
/// does not report it.
pub(super) fn tenths_used(cpus: &[usize], wait: Duration) -> Vec<u32> {
    let read = || -> Option<Vec<u64>> {
        let stat = std::fs::read_to_string("/proc/stat").ok()?;
        cpus.iter().map(|&cpu| sum_over_cpus(&stat, &[cpu], busy)).collect()
    };
    let (Some(ticks), Some(before)) = (ticks_per_second(), read()) else { return Vec::new() };
    std::thread::sleep(wait);
    let after = read().unwrap_or_else(|| before.clone());
    let tenths = |(after, before): (&u64, &u64)| {
        (10.0 * after.saturating_sub(*before) as f64 / ticks / wait.as_secs_f64()) as u32
    };
    after.iter().zip(&before).map(tenths).collect()
}

/// Number of tasks that run or want to run, this one included, and the one-minute load average.
pub(super) fn load() -> Option<(u64, f64)> {
    parse_load(&std::fs::read_to_string("/proc/loadavg").ok()?)
}

fn parse_load(text: &str) -> Option<(u64, f64)> {
    let mut fields = text.split_whitespace();
    let minute = fields.next()?.parse().ok()?;
    let running = fields.nth(2)?.split('/').next()?.parse().ok()?;
    Some((running, minute))
}

/// Reads `/proc/stat`: user nice system idle iowait irq softirq steal guest guest_nice. User time already includes
/// guest time (proc_stat(5)).
fn busy(fields: &[u64]) -> Option<u64> {
    let at = |index: usize| fields.get(index).copied();
    Some(at(0)? + at(1)? + at(2)? + at(5)? + at(6)?)
}

fn sum_over_cpus(stat: &str, cpus: &[usize], pick: fn(&[u64]) -> Option<u64>) -> Option<u64> {
    let mut sum = 0;
    for cpu in cpus {
        let name = format!("cpu{cpu}");
        let line = stat.lines().find(|line| line.split(' ').next() == Some(name.as_str()))?;
        let fields: Vec<u64> =
            line.split_whitespace().skip(1).map_while(|field| field.parse().ok()).collect();
        sum += pick(&fields)?;
    }
    Some(sum)
}

/// Reads utime, stime, cutime and cstime of `/proc/PID/stat`. The name before them may contain anything, so fields are
/// counted from the last parenthesis.
pub(super) fn cpu_ticks(stat: &str) -> Option<[u64; 4]> {
    let fields: Vec<&str> = stat[stat.rfind(')')? + 1..].split_whitespace().collect();
    let ticks: Vec<u64> = fields.get(11..15)?.iter().map_while(|field| field.parse().ok()).collect();
    ticks.try_into().ok()
}

/// The frequency governor of the CPUs; `None` where there is none, as on most virtual machines.
pub fn governor(cpus: &[usize]) -> Option<String> {
    let of = |cpu: &usize| {
        let path = format!("/sys/devices/system/cpu/cpu{cpu}/cpufreq/scaling_governor");
        std::fs::read_to_string(path).ok().map(|text| text.trim().to_owned())
    };
    let mut governors: Vec<String> = cpus.iter().filter_map(of).collect();
    governors.sort();
    governors.dedup();
    (!governors.is_empty()).then(|| governors.join(", "))
}

fn thermal_events(cpus: &[usize]) -> Option<u64> {
    let of = |cpu: &usize| -> Option<u64> {
        let path = format!("/sys/devices/system/cpu/cpu{cpu}/thermal_throttle/core_throttle_count");
        std::fs::read_to_string(path).ok()?.trim().parse().ok()
    };
    cpus.iter().map(of).sum()
}

// The quiet-machine guard (rule R12): other activity while a worker was measured, and changes of the
// machine's own speed.

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
    /// The processes of servers that are compared.
    servers: BTreeSet<u32>,
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
        let (children, servers) = Default::default();
        Guard { cpus, gpu: Watched::new(device), children, servers, best_compute_ns: None }
    }

    /// Counts the processes of the servers at these URLs as the comparison's own.
    pub fn serving<'a>(self, urls: impl Iterator<Item = &'a str>) -> Guard {
        Guard { servers: urls.flat_map(processes_of).collect(), ..self }
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
        read(&self.cpus, &self.servers)
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
            if quiet || start.elapsed() >= limit || crate::measure::progress::requested() {
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
        let (runnable, load) = self::load().unzip();
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

#[cfg(test)]
mod tests {
    use super::*;

    const STAT: &str = "cpu  300 0 30 900 10 0 3 6 0 0\n\
        cpu0 100 0 10 300 5 1 2 4 9 0\ncpu1 200 0 20 600 5 0 1 2 0 0\ncpu10 7 7 7 7 7 7 7 7 7 7\nintr 5\n";

    #[test]
    fn busy_and_stolen_time_are_those_of_the_cpus_watched() {
        assert_eq!(sum_over_cpus(STAT, &[0], busy), Some(113));
        assert_eq!(sum_over_cpus(STAT, &[0, 1], busy), Some(334));
        assert_eq!(sum_over_cpus(STAT, &[1, 0], |fields| fields.get(7).copied()), Some(6));
        assert_eq!(sum_over_cpus(STAT, &[3], busy), None, "a CPU that is not there is no quiet CPU");
    }

    #[test]
    fn own_time_is_counted_behind_any_name() {
        let stat = "42 (a) b (c)) S 1 42 42 0 -1 4194304 1 2 3 4 10 20 30 40 20 0 1 0";
        assert_eq!(cpu_ticks(stat), Some([10, 20, 30, 40]));
        assert_eq!(cpu_ticks("42 (x) S 1"), None);
    }

    #[cfg(target_os = "linux")]
    #[test]
    fn the_cpu_time_of_a_process_grows_while_it_computes() {
        let before = cpu_time(std::process::id()).unwrap();
        let mut sum = 0_u64;
        while cpu_time(std::process::id()).unwrap() - before < 0.02 {
            sum = (0..100_000).fold(sum, |sum, x| std::hint::black_box(sum ^ x));
        }
        assert_eq!(cpu_time(u32::MAX), None, "there is no such process");
    }

    #[test]
    fn load_is_read() {
        assert_eq!(parse_load("0.42 0.30 0.20 3/77 25198\n"), Some((3, 0.42)));
    }

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
