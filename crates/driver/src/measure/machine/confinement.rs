//! Keeps a worker that runs out of memory from ending this program or the machine, and recognises such an
//! end.

use std::collections::BTreeSet;
use std::os::unix::process::ExitStatusExt;
use std::process::ExitStatus;
use std::time::Duration;

use comparison::plan;
use protocol::untrusted::Foreign;

use super::{counters, readings};

/// The limits that were set for a worker when it started.
#[derive(Debug, Clone, Copy, Default)]
pub struct Confinement {
    /// Bytes of private memory that the worker may allocate.
    limit: Option<u64>,
    /// Number of processes that the kernel had killed for lack of memory.
    oom_kills: Option<u64>,
}

impl Confinement {
    /// The confinement of a worker on `device` that is about to start. Available memory is read now, while the worker
    /// holds none.
    ///
    /// The limit applies to the size of private writable memory (`RLIMIT_DATA`, getrlimit(2)), touched or
    /// not: heap, buffers and thread stacks. Mapped weights do not count, and neither does memory that glibc
    /// only reserves for its arenas. CUDA reserves more address space than any machine has memory, so there
    /// is no limit on a GPU. `share`: of the available memory.
    pub fn new(device: &str, share: f64) -> Confinement {
        let available = if device == "cpu" { readings::available(device) } else { None };
        let limit = available.map(|bytes| (share * bytes as f64) as u64);
        Confinement { limit, oom_kills: oom_kills() }
    }

    /// Sets the limit for a process that has just started, and makes it the kernel's first choice to kill. A limit that
    /// the system refuses is not in effect and is not reported.
    pub fn apply(&mut self, pid: u32) {
        #[cfg(target_os = "linux")]
        {
            // Raising the score of one's own children needs no privilege (proc_pid_oom_score_adj(5)).
            let _ = std::fs::write(format!("/proc/{pid}/oom_score_adj"), "1000");
            self.limit = self.limit.and_then(|limit| set_limit(pid, limit));
        }
        #[cfg(not(target_os = "linux"))]
        {
            let _ = pid;
            self.limit = None;
        }
    }

    /// The reason, if a process that ended by itself ran out of memory. `words` is its report or its stderr.
    pub fn out_of_memory(&self, status: ExitStatus, words: &str) -> Option<String> {
        self.reason(status, words, oom_kills())
    }

    fn reason(&self, status: ExitStatus, words: &str, oom_kills: Option<u64>) -> Option<String> {
        let killed = || {
            let more = self.oom_kills.zip(oom_kills).is_some_and(|(before, now)| now > before);
            (more && status.signal() == Some(9)).then(|| "the kernel killed it (SIGKILL)".to_owned())
        };
        let what = complaint(words).or_else(killed)?;
        let limit = self.limit.map(|limit| {
            let limit = plan::workers::gigabytes(limit.into());
            format!("; {limit} were available when it started")
        });
        Some(format!("out of memory: {what}{}", limit.unwrap_or_default()))
    }
}

#[cfg(target_os = "linux")]
fn set_limit(pid: u32, limit: u64) -> Option<u64> {
    use rustix::process::{Pid, Resource, Rlimit, getrlimit, prlimit};
    let inherited = getrlimit(Resource::Data);
    // A lower limit that the user has set stays.
    let limit = inherited.current.map_or(limit, |current| current.min(limit));
    let pid = Pid::from_raw(pid.try_into().ok()?)?;
    let limits = Rlimit { current: Some(limit), maximum: inherited.maximum };
    prlimit(Some(pid), Resource::Data, limits).ok().map(|_| limit)
}

/// The kernel's count since boot, including control groups; `None` where it does not count.
fn oom_kills() -> Option<u64> {
    let text = std::fs::read_to_string("/proc/vmstat").ok()?;
    text.lines().find_map(|line| line.strip_prefix("oom_kill ")?.trim().parse().ok())
}

/// The words of allocators that failed, in lower case.
const COMPLAINTS: [&str; 9] = [
    "memory allocation of",         // Rust's, before it aborts
    "bad_alloc",                    // C++'s, and ONNX Runtime's where it passes that on
    "can't allocate memory",        // libtorch's
    "not enough memory",            // libtorch's on Windows
    "cannot allocate memory",       // ENOMEM
    "failed to allocate memory",    // ONNX Runtime's
    "smaller than requested bytes", // ONNX Runtime's arena's
    "out of memory",                // CUDA's, and libgomp's
    "out_of_memory",                // CUDA's, by name
];

/// The last line with such words, cut to a readable length.
fn complaint(words: &str) -> Option<String> {
    let complains = |line: &&str| {
        let line = line.to_lowercase();
        COMPLAINTS.iter().any(|complaint| line.contains(complaint)) || line.starts_with("memoryerror")
    };
    let line = words.lines().map(str::trim).rfind(complains)?;
    Some(Foreign::<200>::new(line).into())
}

// Selects the CPUs that workers may use (rule R5). A child inherits the affinity of the thread that starts it, so that
// thread is pinned while it starts a worker.

/// Time of watching which CPUs are idle.
const LOOK: Duration = Duration::from_millis(300);

/// The CPUs that this process may use; `None` where the system does not report.
pub fn allowed() -> Option<Vec<usize>> {
    given(None)
}

/// Number of CPUs that the machine has switched on.
pub(crate) fn online() -> Option<usize> {
    let list = std::fs::read_to_string("/sys/devices/system/cpu/online").ok()?;
    Some(parse_list(list.trim()).len())
}

/// Whether a seccomp filter decides which system calls this process may make, as in most containers.
pub(crate) fn filters_system_calls() -> bool {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    status.lines().any(|line| line.strip_prefix("Seccomp:").is_some_and(|mode| mode.trim() == "2"))
}

/// The CPUs that a thread may use, or this one.
pub(super) fn given(thread: Option<u32>) -> Option<Vec<usize>> {
    #[cfg(target_os = "linux")]
    {
        use rustix::thread::{CpuSet, sched_getaffinity};
        let thread = thread.map(|id| rustix::process::Pid::from_raw(id as i32).ok_or(()));
        let set = sched_getaffinity(thread.transpose().ok()?).ok()?;
        Some((0..CpuSet::MAX_CPU).filter(|&cpu| set.is_set(cpu)).collect())
    }
    #[cfg(not(target_os = "linux"))]
    {
        let _ = thread;
        None
    }
}

pub(super) fn give(thread: u32, cpus: &[usize]) {
    #[cfg(target_os = "linux")]
    if let Some(thread) = rustix::process::Pid::from_raw(thread as i32) {
        let mut set = rustix::thread::CpuSet::new();
        cpus.iter().for_each(|&cpu| set.set(cpu));
        // An error means that it has ended.
        let _ = rustix::thread::sched_setaffinity(Some(thread), &set);
    }
    #[cfg(not(target_os = "linux"))]
    let _ = (thread, cpus);
}

/// `count` of the allowed CPUs: the idlest ones, and one of each physical core before a second of any,
/// because two threads on one core would share its speed. All CPUs if there are not enough.
pub fn choose(count: usize) -> Option<Vec<usize>> {
    let mut allowed = allowed()?;
    if allowed.len() > count {
        allowed = by_use(&allowed, &counters::tenths_used(&allowed, LOOK));
    }
    let siblings = |cpu: usize| -> Vec<usize> {
        let path = format!("/sys/devices/system/cpu/cpu{cpu}/topology/thread_siblings_list");
        std::fs::read_to_string(path).map_or_else(|_| vec![cpu], |text| parse_list(&text))
    };
    Some(spread(&allowed, siblings, count))
}

/// Sorts CPUs, the least used first. CPUs that differ by less than a tenth of their time keep their order.
fn by_use(cpus: &[usize], tenths: &[u32]) -> Vec<usize> {
    let mut places: Vec<usize> = (0..cpus.len()).collect();
    places.sort_by_key(|&place| tenths.get(place).copied().unwrap_or(0));
    places.into_iter().map(|place| cpus[place]).collect()
}

fn spread(allowed: &[usize], siblings: impl Fn(usize) -> Vec<usize>, count: usize) -> Vec<usize> {
    let mut taken: BTreeSet<usize> = BTreeSet::new();
    let mut chosen = Vec::new();
    let (first, second): (Vec<usize>, Vec<usize>) = allowed.iter().partition(|&&cpu| {
        siblings(cpu).into_iter().all(|sibling| !taken.contains(&sibling)) && {
            taken.insert(cpu);
            true
        }
    });
    chosen.extend(first.into_iter().chain(second).take(count));
    chosen.sort_unstable();
    chosen
}

/// Parses a list of CPUs as the kernel writes it: `0-2,5`.
fn parse_list(text: &str) -> Vec<usize> {
    let range = |part: &str| -> Option<std::ops::RangeInclusive<usize>> {
        let (first, last) = part.split_once('-').unwrap_or((part, part));
        Some(first.trim().parse().ok()?..=last.trim().parse().ok()?)
    };
    text.trim().split(',').filter_map(range).flatten().collect()
}

/// A guard: while it lives, processes that this thread starts may use only these CPUs.
pub struct Pinned {
    #[cfg(target_os = "linux")]
    before: Option<rustix::thread::CpuSet>,
}

impl Pinned {
    pub fn to(cpus: &[usize]) -> Pinned {
        #[cfg(target_os = "linux")]
        {
            use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};
            let mut set = CpuSet::new();
            cpus.iter().for_each(|&cpu| set.set(cpu));
            // If this is forbidden, the worker reports the CPUs that it may use, and rule R5 reports the
            // violation.
            let before = sched_getaffinity(None).ok();
            let pinned = !cpus.is_empty() && sched_setaffinity(None, &set).is_ok();
            Pinned { before: before.filter(|_| pinned) }
        }
        #[cfg(not(target_os = "linux"))]
        {
            let _ = cpus;
            Pinned {}
        }
    }
}

#[cfg(target_os = "linux")]
impl Drop for Pinned {
    fn drop(&mut self) {
        if let Some(before) = &self.before {
            let _ = rustix::thread::sched_setaffinity(None, before);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_allocator_s_complaint_is_known() {
        for line in [
            "memory allocation of 1073741824 bytes failed",
            "terminate called after throwing an instance of 'std::bad_alloc'",
            "[enforce fail at alloc_cpu.cpp:124] err == 0. DefaultCPUAllocator: can't allocate memory: you tried to allocate 8589934592 bytes. Error code 12 (Cannot allocate memory)",
            "onnxruntime: Failed to allocate memory for requested buffer of size 4294967296",
            "CUDA out of memory. Tried to allocate 20.00 GiB",
            "DriverError(CUDA_ERROR_OUT_OF_MEMORY, \"out of memory\")",
            "MemoryError",
        ] {
            let words = format!("loading\n  {line}\nstack backtrace follows\n");
            let found = complaint(&words).unwrap();
            assert!(line.starts_with(&found) && found.len() >= line.len().min(200), "{found}");
        }
    }

    #[test]
    fn other_ends_are_not_for_lack_of_memory() {
        for words in ["", "this crash was asked for", "cannot read the weights", "no memory-mapped file"] {
            assert_eq!(complaint(words), None);
        }
    }

    #[test]
    fn a_kill_is_the_kernel_s_only_if_the_kernel_counts_one_more() {
        let killed = ExitStatus::from_raw(9);
        let confinement = Confinement { limit: Some(3_000_000_000), oom_kills: Some(4) };
        assert_eq!(confinement.reason(killed, "", Some(4)), None);
        assert_eq!(confinement.reason(killed, "", None), None);
        let reason = confinement.reason(killed, "", Some(5)).unwrap();
        assert!(reason.contains("(SIGKILL); 3.00 GB were available when it started"), "{reason}");
        let crashed = ExitStatus::from_raw(11);
        assert_eq!(confinement.reason(crashed, "", Some(5)), None, "the kernel killed another");
    }

    #[test]
    fn a_core_of_its_own_comes_before_a_sibling() {
        // CPUs 0 and 2 are one core; 1 and 3 are the other.
        let siblings = |cpu: usize| vec![cpu % 2, cpu % 2 + 2];
        assert_eq!(spread(&[0, 1, 2, 3], siblings, 2), [0, 1]);
        assert_eq!(spread(&[0, 2, 3], siblings, 2), [0, 3]);
        assert_eq!(spread(&[0, 1, 2, 3], siblings, 3), [0, 1, 2]);
        assert_eq!(spread(&[4], |cpu| vec![cpu], 2), [4]);
    }

    #[test]
    fn idle_cpus_come_first_and_small_differences_do_not_count() {
        assert_eq!(by_use(&[4, 5, 6, 7], &[9, 0, 3, 0]), [5, 7, 6, 4]);
        assert_eq!(by_use(&[4, 5], &[]), [4, 5], "a system that does not tell");
    }

    #[test]
    fn the_kernels_lists_are_read() {
        assert_eq!(parse_list("0-2,5\n"), [0, 1, 2, 5]);
        assert_eq!(parse_list("7"), [7]);
        assert_eq!(parse_list(""), [0usize; 0]);
    }

    #[cfg(target_os = "linux")]
    #[test]
    fn a_child_inherits_the_cpus_and_this_thread_gets_its_own_back() {
        let before = allowed().unwrap();
        let one = vec![before[0]];
        #[expect(clippy::disallowed_methods, reason = "any child will do")]
        let mut command = std::process::Command::new("cat");
        let status = {
            let _pinned = Pinned::to(&one);
            command.arg("/proc/self/status").output().unwrap()
        };
        let status = String::from_utf8(status.stdout).unwrap();
        let list = status.lines().find_map(|line| line.strip_prefix("Cpus_allowed_list:")).unwrap();
        assert_eq!(parse_list(list), one);
        assert_eq!(allowed().unwrap(), before);
    }
}
