//! How much memory there is: what is told to the user of a model that cannot fit, and the limit of each worker, so
//! that one that wants too much is a failed row and not the end of the driver or the machine.

use super::{cgroup, gpu};

/// Bytes that a process on `device` may come to hold: all of a GPU's memory; of the machine's what is free or can be
/// freed, and no more than this process's control groups leave. `None` where the system does not tell.
pub fn available(device: &str) -> Option<u64> {
    if let Some(index) = device.strip_prefix("cuda:") {
        return gpu::gpus().get(index.parse::<usize>().ok()?)?.memory_bytes;
    }
    let machine = match std::fs::read_to_string("/proc/meminfo") {
        Ok(text) => mem_available(&text),
        Err(_) => of_another_system(),
    };
    [machine, cgroup::memory_left()].into_iter().flatten().min()
}

/// proc_meminfo(5): an estimate of what can be allocated without swapping. Page cache that can be dropped counts.
fn mem_available(meminfo: &str) -> Option<u64> {
    let line = meminfo.lines().find_map(|line| line.strip_prefix("MemAvailable:"))?;
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
