//! Memory of this process, by phase.
//!
//! `VmHWM` is the peak resident set; writing 5 to `/proc/self/clear_refs` resets it (proc_pid_clear_refs(5)).
//! Never `ru_maxrss`: Linux starts a child's at its parent's peak.

use engine::InferenceEngine;
use protocol::{GpuAllocator, Memory};

use crate::gpu::Gpu;

/// A phase; memory is read at its end.
pub(crate) struct Phase<'a> {
    peak_was_reset: bool,
    gpu: Option<&'a Gpu>,
}

impl<'a> Phase<'a> {
    /// The peak counts from here, or from the start of the process where it cannot be reset.
    pub(crate) fn begin(gpu: Option<&'a Gpu>) -> Phase<'a> {
        Phase { peak_was_reset: std::fs::write("/proc/self/clear_refs", "5").is_ok(), gpu }
    }

    /// The phase's peak, and the memory resident now. Takes milliseconds in a large process, because the
    /// kernel walks its pages for the proportional set size: never call it within a timed interval.
    pub(crate) fn end(self) -> Memory {
        let mut memory = match std::fs::read_to_string("/proc/self/status") {
            Ok(status) => parse_status(&status),
            Err(_) => portable(),
        };
        memory.method = memory.peak_bytes.map(|_| self.method().into());
        let rollup = std::fs::read_to_string("/proc/self/smaps_rollup");
        if let Ok(rollup) = rollup {
            memory.pss_bytes = kibibytes(&rollup, "Pss");
            memory.huge_bytes = kibibytes(&rollup, "AnonHugePages");
        }
        memory.gpu = self.gpu.and_then(Gpu::memory);
        memory
    }

    /// As [`Self::end`], with the figures of the loaded model's framework.
    pub(crate) fn end_with<E: InferenceEngine>(self, engine: &E) -> Memory {
        let told = engine.gpu_allocated();
        let gpu_allocator = told
            .map(|told| GpuAllocator { in_use_bytes: told.in_use, peak_bytes: told.peak.max(told.in_use) });
        Memory { gpu_allocator, ..self.end() }
    }

    fn method(&self) -> &'static str {
        if self.peak_was_reset {
            "VmHWM, reset at the start of the phase"
        } else {
            "VmHWM of the process so far"
        }
    }
}

fn parse_status(status: &str) -> Memory {
    Memory {
        peak_bytes: kibibytes(status, "VmHWM"),
        resident_bytes: kibibytes(status, "VmRSS"),
        anonymous_bytes: kibibytes(status, "RssAnon"),
        file_bytes: kibibytes(status, "RssFile"),
        ..Memory::default()
    }
}

/// The bytes of a line such as `VmRSS:  10 kB`.
fn kibibytes(text: &str, field: &str) -> Option<u64> {
    let value = text.lines().find_map(|line| line.strip_prefix(field)?.strip_prefix(':'))?;
    let number: u64 = value.split_whitespace().next()?.parse().ok()?;
    Some(number * 1024)
}

fn portable() -> Memory {
    use sysinfo::{ProcessRefreshKind, ProcessesToUpdate, System, get_current_pid};
    let resident = get_current_pid().ok().and_then(|pid| {
        let mut system = System::new();
        let what = ProcessRefreshKind::nothing().with_memory();
        system.refresh_processes_specifics(ProcessesToUpdate::Some(&[pid]), true, what);
        system.process(pid).map(|process| process.memory())
    });
    Memory { resident_bytes: resident, ..Memory::default() }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn status_fields_are_told_apart_and_counted_in_bytes() {
        let memory = parse_status(
            "VmPeak:\t  90 kB\nVmHWM:\t  12 kB\nVmRSS:\t  10 kB\nRssAnon:\t 4 kB\nRssFile:\t 6 kB\n",
        );
        assert_eq!(memory.peak_bytes, Some(12 * 1024));
        assert_eq!(memory.resident_bytes, Some(10 * 1024));
        assert_eq!(memory.anonymous_bytes, Some(4 * 1024));
        assert_eq!(memory.file_bytes, Some(6 * 1024));
        assert_eq!(parse_status("").peak_bytes, None);
    }

    #[test]
    fn a_peak_that_was_not_reset_is_called_so() {
        let phase = Phase { peak_was_reset: false, gpu: None };
        assert_eq!(phase.method(), "VmHWM of the process so far");
    }

    #[test]
    fn the_proportional_set_is_that_of_the_rollup() {
        let rollup =
            "55e0-7fff ---p 00000000 00:00 0    [rollup]\nRss:    9 kB\nPss:    7 kB\nPss_Dirty: 3 kB\n";
        assert_eq!(kibibytes(rollup, "Pss"), Some(7 * 1024));
        assert_eq!(kibibytes("Pss_Dirty: 3 kB\n", "Pss"), None);
    }

    #[cfg(target_os = "linux")]
    #[test]
    fn a_phase_gives_what_is_resident_and_its_proportional_part() {
        let memory = Phase::begin(None).end();
        assert!(memory.resident_bytes.unwrap() > 0);
        assert!(memory.pss_bytes.unwrap() > 0);
        assert!(memory.huge_bytes.is_some());
    }

    #[cfg(target_os = "linux")]
    #[test]
    fn the_peak_of_a_phase_is_its_own() {
        let block = |mebibytes: usize| std::hint::black_box(vec![1u8; mebibytes << 20]);
        drop(block(64));
        let before = Phase::begin(None).end();
        assert_eq!(before.method.as_deref(), Some("VmHWM, reset at the start of the phase"));
        let phase = Phase::begin(None);
        drop(block(32));
        let grown = phase.end().peak_bytes.unwrap() - before.peak_bytes.unwrap();
        assert!((24 << 20..60 << 20).contains(&grown), "the phase's peak grew by {grown} bytes");
    }
}
