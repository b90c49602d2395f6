//! Memory of this process, by phase. All of `/proc` that workers read is read here.
//!
//! `VmHWM` is the peak resident set; writing 5 to `/proc/self/clear_refs` resets it (proc(5)).
//! Never `ru_maxrss`: Linux starts a child's at its parent's peak.

use protocol::Memory;

/// Begins a phase: the peak counts from here.
pub(crate) fn begin_phase() {
    // Where it cannot be reset, the peak is that of the process so far, which is an upper bound;
    // systems without /proc report no peak at all.
    let _ = std::fs::write("/proc/self/clear_refs", "5");
}

/// Ends a phase: its peak, and what is resident now.
pub(crate) fn read() -> Memory {
    match std::fs::read_to_string("/proc/self/status") {
        Ok(status) => parse_status(&status),
        Err(_) => portable(),
    }
}

/// Threads of this process, where the system tells.
pub(crate) fn threads() -> Option<usize> {
    Some(std::fs::read_dir("/proc/self/task").ok()?.count())
}

fn parse_status(status: &str) -> Memory {
    let kibibytes = |field: &str| -> Option<u64> {
        let line =
            status.lines().find(|line| line.starts_with(field) && line[field.len()..].starts_with(':'))?;
        let number: u64 = line[field.len() + 1..].split_whitespace().next()?.parse().ok()?;
        Some(number * 1024)
    };
    Memory {
        peak_bytes: kibibytes("VmHWM"),
        resident_bytes: kibibytes("VmRSS"),
        anonymous_bytes: kibibytes("RssAnon"),
        file_bytes: kibibytes("RssFile"),
    }
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

    #[cfg(target_os = "linux")]
    #[test]
    fn the_peak_of_a_phase_is_its_own() {
        let block = |mebibytes: usize| std::hint::black_box(vec![1u8; mebibytes << 20]);
        drop(block(64));
        begin_phase();
        let before = read().peak_bytes.unwrap();
        drop(block(32));
        let after = read().peak_bytes.unwrap();
        let grown = after - before;
        assert!((24 << 20..60 << 20).contains(&grown), "the phase's peak grew by {grown} bytes");
    }
}
