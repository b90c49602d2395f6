//! Selects the CPUs that workers may use (rule R5). A child inherits the affinity of the thread that starts it, so that
//! thread is pinned while it starts a worker.

use std::collections::BTreeSet;
use std::time::Duration;

use super::counters;

/// Time of watching which CPUs are idle.
const LOOK: Duration = Duration::from_millis(300);

/// The CPUs that this process may use; `None` where the system does not report.
pub fn allowed() -> Option<Vec<usize>> {
    #[cfg(target_os = "linux")]
    {
        use rustix::thread::{CpuSet, sched_getaffinity};
        let set = sched_getaffinity(None).ok()?;
        Some((0..CpuSet::MAX_CPU).filter(|&cpu| set.is_set(cpu)).collect())
    }
    #[cfg(not(target_os = "linux"))]
    None
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
