//! Reads how much memory there is. A model that cannot fit is rejected; each worker gets a limit, so that one
//! that needs too much becomes a failed row and does not end this program or the machine.

use super::cgroup::{self, Cache};
use super::gpu;

/// Bytes of memory that a process on `device` can use. On a GPU it is the free memory. On a CPU it is the
/// memory that is free or can be freed, within the limits of this process's control groups. `None` where the
/// system does not report.
pub fn available(device: &str) -> Option<u64> {
    if device != "cpu" {
        return gpu::memory_left(device);
    }
    main_memory().map(|(bytes, _)| bytes)
}

/// The same for main memory, with the cause of the limit, for people.
pub(crate) fn main_memory() -> Option<(u64, &'static str)> {
    let machine = match std::fs::read_to_string("/proc/meminfo") {
        Ok(text) => mem_available(&text),
        Err(_) => of_another_system(),
    };
    let machine = machine.map(|bytes| (bytes, "what is free on the machine"));
    let group = cgroup::memory_left(Cache::Dropped).map(|bytes| (bytes, "what the control group leaves"));
    [machine, group].into_iter().flatten().min()
}

/// Bytes of main memory that hold nothing, not even pages of files, and that this process's control groups leave. `None`
/// where the system does not report.
pub(crate) fn free() -> Option<u64> {
    let machine = field(&std::fs::read_to_string("/proc/meminfo").ok()?, "MemFree:")?;
    Some(cgroup::memory_left(Cache::Kept).map_or(machine, |group| group.min(machine)))
}

/// Available memory by proc_meminfo(5): an estimate of the memory that can be allocated without swapping. It
/// includes page cache that can be dropped.
fn mem_available(meminfo: &str) -> Option<u64> {
    field(meminfo, "MemAvailable:")
}

/// Bytes of a line of proc_meminfo(5).
fn field(meminfo: &str, name: &str) -> Option<u64> {
    let line = meminfo.lines().find_map(|line| line.strip_prefix(name))?;
    let kibibytes: u64 = line.trim().strip_suffix("kB")?.trim().parse().ok()?;
    Some(kibibytes * 1024)
}

fn of_another_system() -> Option<u64> {
    let what = sysinfo::RefreshKind::nothing().with_memory(sysinfo::MemoryRefreshKind::nothing().with_ram());
    Some(sysinfo::System::new_with_specifics(what).available_memory()).filter(|&bytes| bytes > 0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn available_memory_is_read() {
        let meminfo =
            "MemTotal:       24684084 kB\nMemFree:        22378944 kB\nMemAvailable:   23790120 kB\n";
        assert_eq!(mem_available(meminfo), Some(23_790_120 * 1024));
        assert_eq!(mem_available("MemTotal: 1 kB\n"), None);
        assert!(available("cpu").is_some_and(|bytes| bytes > 0), "every system here tells");
    }
}
