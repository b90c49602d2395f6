//! What the control groups of this process leave to it (cgroups(7)), version 2 or 1: memory and CPU time.

use std::path::{Path, PathBuf};

/// The page cache when a limit is reached.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Cache {
    /// What can be dropped of it counts as left.
    Dropped,
    Kept,
}

/// Bytes that the tightest limit of this process's groups leaves; `None` without a limit.
pub(super) fn memory_left(cache: Cache) -> Option<u64> {
    let (version_2, version_1) = groups("memory");
    let left_2 = version_2.iter().filter_map(|group| left(group, &VERSION_2, cache));
    let left_1 = version_1.iter().filter_map(|group| left(group, &VERSION_1, cache));
    left_2.chain(left_1).min()
}

/// The tightest quota of this process's groups, in CPUs; `None` without a limit, or where none can be read.
pub fn quota() -> Option<f64> {
    let (version_2, version_1) = groups("cpu");
    let read = |group: &PathBuf, file: &str| std::fs::read_to_string(group.join(file)).ok();
    let quotas_2 = version_2.iter().filter_map(|group| parse_quota(&read(group, "cpu.max")?));
    let quotas_1 = version_1.iter().filter_map(|group| {
        // -1 without a limit.
        parse_quota(&format!(
            "{} {}",
            read(group, "cpu.cfs_quota_us")?.trim(),
            read(group, "cpu.cfs_period_us")?
        ))
    });
    quotas_2.chain(quotas_1).min_by(f64::total_cmp)
}

fn parse_quota(text: &str) -> Option<f64> {
    let (limit, period) = text.trim().split_once(' ')?;
    let (limit, period): (f64, f64) = (limit.parse().ok()?, period.parse().ok()?);
    (limit > 0.0 && period > 0.0).then(|| limit / period)
}

/// Seconds for which a quota has kept this process's group from running.
pub(super) fn throttled_s() -> Option<f64> {
    let (version_2, version_1) = groups("cpu");
    version_2.iter().chain(&version_1).find_map(|group| {
        let stat = std::fs::read_to_string(group.join("cpu.stat")).ok()?;
        parse_throttled(&stat)
    })
}

fn parse_throttled(stat: &str) -> Option<f64> {
    let value = |key: &str| stat.lines().find_map(|line| line.strip_prefix(key)?.trim().parse::<f64>().ok());
    // Microseconds in version 2, nanoseconds in version 1.
    let version_2 = value("throttled_usec ").map(|us| us / 1e6);
    version_2.or_else(|| value("throttled_time ").map(|ns| ns / 1e9))
}

/// This process's group of a controller and those around it, of version 2 and of version 1.
fn groups(controller: &str) -> (Vec<PathBuf>, Vec<PathBuf>) {
    let Ok(own) = std::fs::read_to_string("/proc/self/cgroup") else { return Default::default() };
    let root = Path::new("/sys/fs/cgroup");
    let (unified, separate) = paths(&own, controller);
    let around = |root: &Path, path: Option<&str>| path.map(|path| ancestors(root, path)).unwrap_or_default();
    (around(root, unified), around(&root.join(controller), separate))
}

/// Paths of the group of version 2, and of this controller of version 1.
fn paths<'a>(own: &'a str, controller: &str) -> (Option<&'a str>, Option<&'a str>) {
    let find = |wanted: &dyn Fn(&str, &str) -> bool| {
        own.lines().find_map(|line| {
            let mut fields = line.splitn(3, ':');
            let (hierarchy, controllers, path) = (fields.next()?, fields.next()?, fields.next()?);
            wanted(hierarchy, controllers).then_some(path)
        })
    };
    (
        find(&|hierarchy, controllers| hierarchy == "0" && controllers.is_empty()),
        find(&|_, controllers| controllers.split(',').any(|name| name == controller)),
    )
}

/// The group and its ancestors. Inside a container the group's own path may be missing, but the root always exists.
fn ancestors(root: &Path, path: &str) -> Vec<PathBuf> {
    let own = root.join(path.trim_start_matches('/'));
    own.ancestors().take_while(|group| group.starts_with(root)).map(Path::to_path_buf).collect()
}

struct Files {
    limit: &'static str,
    usage: &'static str,
    /// Key in memory.stat of the page cache that is dropped before the limit is reached.
    reclaimable: &'static str,
}

const VERSION_2: Files =
    Files { limit: "memory.max", usage: "memory.current", reclaimable: "inactive_file " };

const VERSION_1: Files = Files {
    limit: "memory.limit_in_bytes",
    usage: "memory.usage_in_bytes",
    reclaimable: "total_inactive_file ",
};

fn left(group: &Path, files: &Files, cache: Cache) -> Option<u64> {
    let read = |file: &str| std::fs::read_to_string(group.join(file)).ok();
    // "max" of version 2 is not a number.
    let limit: u64 = read(files.limit)?.trim().parse().ok()?;
    // Version 1 writes "no limit" as the largest multiple of a page that fits into 63 bits.
    if limit > u64::MAX / 4 {
        return None;
    }
    let usage: u64 = read(files.usage)?.trim().parse().ok()?;
    let stat = read("memory.stat").unwrap_or_default();
    let reclaimable =
        || stat.lines().find_map(|line| line.strip_prefix(files.reclaimable)?.trim().parse().ok());
    let dropped: u64 = if cache == Cache::Dropped { reclaimable().unwrap_or(0) } else { 0 };
    Some(limit.saturating_sub(usage.saturating_sub(dropped)))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn group(files: &[(&str, &str)]) -> tempfile::TempDir {
        let directory = tempfile::tempdir().unwrap();
        for (name, text) in files {
            std::fs::write(directory.path().join(name), text).unwrap();
        }
        directory
    }

    #[test]
    fn a_limit_leaves_what_is_not_used_or_can_be_dropped() {
        let files = [
            ("memory.max", "1000\n"),
            ("memory.current", "700\n"),
            ("memory.stat", "anon 400\ninactive_file 250\nactive_file 50\n"),
        ];
        assert_eq!(left(group(&files).path(), &VERSION_2, Cache::Dropped), Some(550));
        assert_eq!(left(group(&files).path(), &VERSION_2, Cache::Kept), Some(300));
        let files = [
            ("memory.limit_in_bytes", "1000\n"),
            ("memory.usage_in_bytes", "700\n"),
            ("memory.stat", "inactive_file 7\ntotal_inactive_file 250\n"),
        ];
        assert_eq!(left(group(&files).path(), &VERSION_1, Cache::Dropped), Some(550));
        let files = [("memory.max", "1000\n"), ("memory.current", "1200\n")];
        assert_eq!(left(group(&files).path(), &VERSION_2, Cache::Dropped), Some(0), "just above its limit");
    }

    #[test]
    fn no_limit_leaves_everything() {
        assert_eq!(left(group(&[("memory.max", "max\n")]).path(), &VERSION_2, Cache::Dropped), None);
        let files = [("memory.limit_in_bytes", "9223372036854771712\n"), ("memory.usage_in_bytes", "5\n")];
        assert_eq!(left(group(&files).path(), &VERSION_1, Cache::Dropped), None);
        assert_eq!(left(group(&[]).path(), &VERSION_2, Cache::Dropped), None);
    }

    #[test]
    fn the_groups_of_both_versions_are_found_with_those_above_them() {
        let own = "5:cpu,memory:/a/b\n1:name=systemd:/c\n0::/d\n";
        assert_eq!(paths(own, "memory"), (Some("/d"), Some("/a/b")));
        assert_eq!(paths("3:cpu:/x\n", "memory"), (None, None));
        let root = Path::new("/sys/fs/cgroup");
        assert_eq!(ancestors(root, "/a/b"), [root.join("a/b"), root.join("a"), root.to_path_buf()]);
        assert_eq!(ancestors(root, "/"), [root.to_path_buf()]);
    }

    #[test]
    fn quota_and_throttling_are_read() {
        assert_eq!(parse_quota("150000 100000\n"), Some(1.5));
        assert_eq!(parse_quota("max 100000\n"), None);
        assert_eq!(parse_quota("-1 100000\n"), None);
        assert_eq!(parse_throttled("usage_usec 5\nnr_throttled 1\nthrottled_usec 2500\n"), Some(0.0025));
        assert_eq!(parse_throttled("nr_periods 9\nnr_throttled 1\nthrottled_time 2500000\n"), Some(0.0025));
    }
}
