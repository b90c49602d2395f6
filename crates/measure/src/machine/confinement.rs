//! Keeps a worker that runs out of memory from ending this program or the machine, and recognises such an
//! end.

use std::process::ExitStatus;

use untrusted::Foreign;

use super::memory;

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
        let available = if device == "cpu" { memory::available(device) } else { None };
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
            (more && signal(status) == Some(9)).then(|| "the kernel killed it (SIGKILL)".to_owned())
        };
        let what = complaint(words).or_else(killed)?;
        let limit = self.limit.map(|limit| {
            let limit = plan::work::memory::gigabytes(limit.into());
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

fn signal(status: ExitStatus) -> Option<i32> {
    #[cfg(unix)]
    return std::os::unix::process::ExitStatusExt::signal(&status);
    #[cfg(not(unix))]
    {
        let _ = status;
        None
    }
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

    #[cfg(unix)]
    #[test]
    fn a_kill_is_the_kernel_s_only_if_the_kernel_counts_one_more() {
        let killed: ExitStatus = std::os::unix::process::ExitStatusExt::from_raw(9);
        let confinement = Confinement { limit: Some(3_000_000_000), oom_kills: Some(4) };
        assert_eq!(confinement.reason(killed, "", Some(4)), None);
        assert_eq!(confinement.reason(killed, "", None), None);
        let reason = confinement.reason(killed, "", Some(5)).unwrap();
        assert!(reason.contains("(SIGKILL); 3.00 GB were available when it started"), "{reason}");
        let crashed: ExitStatus = std::os::unix::process::ExitStatusExt::from_raw(11);
        assert_eq!(confinement.reason(crashed, "", Some(5)), None, "the kernel killed another");
    }
}
