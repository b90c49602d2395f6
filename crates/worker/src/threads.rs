//! Threads of this process: their number, their CPU time, and the CPUs they may run on.

use std::collections::HashMap;

/// Threads of this process, idle ones included, where the system reports them.
pub(crate) fn count() -> Option<usize> {
    Some(std::fs::read_dir("/proc/self/task").ok()?.count())
}

/// CPU time of every thread so far, by thread id. Linux counts it at each scheduler tick, so that a
/// thread that is running just now may be some milliseconds ahead of its figure.
pub(crate) struct CpuTimes(HashMap<u32, Times>);

#[derive(Debug, Clone, Copy, Default, PartialEq)]
struct Times {
    cpu_ns: u64,
    /// Ready to run, but waiting for a CPU. Unknown without `schedstat`.
    run_queue_ns: Option<u64>,
}

impl CpuTimes {
    /// `None` where the system does not report.
    pub(crate) fn read() -> Option<CpuTimes> {
        let entries = std::fs::read_dir("/proc/self/task").ok()?;
        let times = entries.filter_map(|entry| {
            let entry = entry.ok()?;
            let thread = entry.file_name().to_str()?.parse().ok()?;
            Some((thread, times(&entry.path())?))
        });
        let times: HashMap<_, _> = times.collect();
        // A thread may end while this reads, but never all of them.
        (!times.is_empty()).then_some(CpuTimes(times))
    }
}

/// The use of threads, summed over stretches of time.
#[derive(Debug, Default)]
pub(crate) struct Used {
    cpu_ns: HashMap<u32, u64>,
    /// Time that threads waited for a CPU, all together. `None` once the system did not report it.
    pub(crate) run_queue_ns: Option<u64>,
    stretches: usize,
}

impl Used {
    /// Adds a stretch of time. Threads that started in it count from 0; those that ended in it are not
    /// counted.
    pub(crate) fn with(mut self, before: &CpuTimes, after: &CpuTimes) -> Used {
        let mut waited = Some(0);
        for (thread, now) in &after.0 {
            let earlier = before.0.get(thread).copied().unwrap_or_default();
            *self.cpu_ns.entry(*thread).or_default() += now.cpu_ns.saturating_sub(earlier.cpu_ns);
            let more = now.run_queue_ns.map(|ns| ns.saturating_sub(earlier.run_queue_ns.unwrap_or_default()));
            waited = waited.zip(more).map(|(sum, ns)| sum + ns);
        }
        let sum = if self.stretches == 0 { Some(0) } else { self.run_queue_ns };
        self.run_queue_ns = sum.zip(waited).map(|(sum, ns)| sum + ns);
        self.stretches += 1;
        self
    }

    /// CPU time of each thread that did anything, the busiest first.
    pub(crate) fn busiest_first(&self) -> Vec<u64> {
        let mut spent: Vec<u64> = self.cpu_ns.values().copied().filter(|&ns| ns > 0).collect();
        spent.sort_unstable_by(|a, b| b.cmp(a));
        spent
    }
}

fn times(thread: &std::path::Path) -> Option<Times> {
    let read = |file: &str| std::fs::read_to_string(thread.join(file)).ok();
    // schedstat needs a kernel with CONFIG_SCHED_INFO.
    read("schedstat").and_then(|text| parse_schedstat(&text)).or_else(|| {
        let nanoseconds_a_tick = 1_000_000_000 / ticks_per_second()?;
        let cpu_ns = parse_stat(&read("stat")?)? * nanoseconds_a_tick;
        Some(Times { cpu_ns, run_queue_ns: None })
    })
}

fn ticks_per_second() -> Option<u64> {
    #[cfg(target_os = "linux")]
    return Some(rustix::param::clock_ticks_per_second()).filter(|&ticks| ticks > 0);
    #[cfg(not(target_os = "linux"))]
    None
}

/// Nanoseconds on a CPU, and on a run queue: the first two of the three fields.
fn parse_schedstat(text: &str) -> Option<Times> {
    let mut fields = text.split_whitespace().map_while(|field| field.parse().ok());
    Some(Times { cpu_ns: fields.next()?, run_queue_ns: fields.next() })
}

/// Clock ticks in user and in kernel mode: fields 14 and 15 of proc_pid_stat(5), counted after the name in
/// parentheses, which may hold blanks and parentheses itself.
fn parse_stat(text: &str) -> Option<u64> {
    let mut fields = text.rsplit_once(')')?.1.split_whitespace().skip(11);
    let mut next = || fields.next()?.parse::<u64>().ok();
    Some(next()? + next()?)
}

/// Keeps the calling thread on one CPU, if the system permits it.
pub(crate) fn pin(cpu: usize) {
    #[cfg(target_os = "linux")]
    {
        use rustix::thread::{CpuSet, sched_setaffinity};
        let mut set = CpuSet::new();
        set.set(cpu);
        // A probe without it is less sharp, no more.
        let _ = sched_setaffinity(None, &set);
    }
    #[cfg(not(target_os = "linux"))]
    let _ = cpu;
}

/// CPUs that any thread of this process may run on, in order, where the system reports them. All threads are
/// asked, because a framework may pin each to one CPU.
pub(crate) fn cpus() -> Option<Vec<usize>> {
    #[cfg(target_os = "linux")]
    {
        use rustix::thread::{CpuSet, Pid, sched_getaffinity};
        let threads = std::fs::read_dir("/proc/self/task").ok()?;
        let sets: Vec<CpuSet> = threads
            .filter_map(|entry| {
                let thread = Pid::from_raw(entry.ok()?.file_name().to_str()?.parse().ok()?)?;
                sched_getaffinity(Some(thread)).ok()
            })
            .collect();
        let allowed = |&cpu: &usize| sets.iter().any(|set| set.is_set(cpu));
        let cpus: Vec<usize> = (0..CpuSet::MAX_CPU).filter(allowed).collect();
        (!cpus.is_empty()).then_some(cpus)
    }
    #[cfg(not(target_os = "linux"))]
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_thread_counts_from_when_it_came() {
        let times = |cpu_ns, waited| Times { cpu_ns, run_queue_ns: Some(waited) };
        let before = CpuTimes(HashMap::from([(1, times(50, 5)), (2, times(70, 0)), (3, times(10, 0))]));
        let after = CpuTimes(HashMap::from([(1, times(60, 8)), (2, times(70, 0)), (4, times(30, 4))]));
        let used = Used::default().with(&before, &after);
        assert_eq!(used.busiest_first(), [30, 10], "thread 2 did nothing, thread 3 is gone, thread 4 is new");
        assert_eq!(used.run_queue_ns, Some(3 + 4));
        let twice = used.with(&before, &after);
        assert_eq!((twice.busiest_first(), twice.run_queue_ns), (vec![60, 20], Some(14)));
    }

    #[test]
    fn fields_are_counted_after_the_name() {
        let stat = "7 (a) b) R 1 1 1 0 -1 4194304 1 0 0 0 250 50 0 0 20 0 1 0 12 1 1";
        assert_eq!(parse_stat(stat), Some(300));
        let times = Times { cpu_ns: 81234, run_queue_ns: Some(55) };
        assert_eq!(parse_schedstat("81234 55 3\n"), Some(times));
        assert_eq!(parse_stat("7 (a) R 1"), None);
    }

    #[cfg(target_os = "linux")]
    #[test]
    fn a_thread_that_computes_is_seen() {
        use rustix::time::{ClockId, clock_gettime};
        let before = CpuTimes::read().unwrap();
        let computing = || {
            while clock_gettime(ClockId::ThreadCPUTime).tv_nsec < 50_000_000 {}
            // Read before the thread ends, because its figure ends with it.
            CpuTimes::read().unwrap()
        };
        let after = std::thread::spawn(computing).join().unwrap();
        let used = Used::default().with(&before, &after);
        assert!(used.busiest_first().iter().any(|&ns| ns > 10_000_000));
    }

    #[cfg(target_os = "linux")]
    #[test]
    fn this_process_may_run_somewhere() {
        assert!(count().unwrap() > 0);
        assert!(!cpus().unwrap().is_empty());
    }
}
