//! Loads of a contender: from a warm and from a cold page cache, and what they consist of.

use facts::evidence::Evidence;
use facts::run::Run;
use plan::Plan;
use protocol::Memory;
use serde::{Deserialize, Serialize};
use statistics::median;

/// Below this share, a page cache is cold: a few pages of the file's header do not warm a load.
const COLD: f64 = 0.01;

/// Loading, by the state of the page cache before.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct Loads {
    /// The smallest share of the weights file that was resident before one of the loads in the table.
    pub warm_resident_before: Option<f64>,
    /// After the file was dropped from the cache, and the drop was verified. Seconds.
    pub cold: Vec<f64>,
    pub cold_median: Option<f64>,
    /// The largest share that was still resident in those.
    pub cold_resident_before: Option<f64>,
    /// The reason why there is no cold load.
    pub cold_unavailable: Option<String>,
    /// Medians of the loads in the table.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub parts: Option<LoadParts>,
    /// The shortest and the longest time in which the system gave as much memory just before each of them, so that they
    /// found it ready. Seconds.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub memory_ready_in: Option<[f64; 2]>,
}

/// What a load consists of.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize, Deserialize)]
pub struct LoadParts {
    /// CPU time of all threads in the program's own code, and in the system on its behalf. Seconds.
    pub framework_cpu_s: f64,
    pub system_cpu_s: f64,
    /// By which resident memory grew: the process's own, and pages of mapped files.
    pub own_bytes: f64,
    pub mapped_bytes: f64,
}

pub(super) fn loads(plan: &Plan, evidence: &Evidence, label: &str, complete: &[&Run]) -> Loads {
    let resident = |run: &Run| Some(run.loaded()?.page_cache.as_ref()?.resident_before);
    let attempts: Vec<&Run> = evidence.cold_loads.iter().filter(|run| run.framework == label).collect();
    let is_cold = |run: &&&Run| run.is_complete() && resident(run).is_some_and(|share| share <= COLD);
    let cold: Vec<f64> =
        attempts.iter().filter(is_cold).filter_map(|run| Some(run.loaded()?.load_ns as f64 / 1e9)).collect();
    let left = attempts.iter().filter_map(|run| resident(run)).reduce(f64::max);
    let unavailable = match (attempts.first(), left) {
        _ if !cold.is_empty() => None,
        (None, _) if plan.cold_loads == 0 => Some("not asked for".to_owned()),
        (None, _) => Some("it did not run".to_owned()),
        (Some(_), Some(share)) => Some(format!(
            "eviction failed, {:.0} % of the file stayed in the page cache: another process maps it, or its file system keeps it",
            share * 100.0
        )),
        (Some(run), None) => Some(match &run.failure {
            Some(failure) => failure.sentence(),
            None => "the system does not report what its page cache holds".to_owned(),
        }),
    };
    Loads {
        warm_resident_before: complete.iter().filter_map(|run| resident(run)).reduce(f64::min),
        cold_median: median(&cold),
        cold,
        cold_resident_before: left,
        cold_unavailable: unavailable,
        parts: load_parts(complete),
        memory_ready_in: memory_ready_in(complete),
    }
}

/// `None` unless all parts are known of some process.
fn load_parts(complete: &[&Run]) -> Option<LoadParts> {
    let of = |part: &dyn Fn(&Run) -> Option<f64>| {
        median(&complete.iter().filter_map(|run| part(run)).collect::<Vec<_>>())
    };
    let cpu = |run: &Run, index: usize| Some(run.seen.as_ref()?.load?.cpu_ns?[index] as f64 / 1e9);
    Some(LoadParts {
        framework_cpu_s: of(&|run| cpu(run, 0))?,
        system_cpu_s: of(&|run| cpu(run, 1))?,
        own_bytes: of(&|run| growth(run, |memory| memory.anonymous_bytes))?,
        mapped_bytes: of(&|run| growth(run, |memory| memory.file_bytes))?,
    })
}

/// By how many bytes a part of the resident memory grew.
fn growth(run: &Run, part: fn(&Memory) -> Option<u64>) -> Option<f64> {
    let (before, after) = (part(&run.started()?.memory)?, part(&run.loaded()?.memory)?);
    Some(after.saturating_sub(before) as f64)
}

fn memory_ready_in(complete: &[&Run]) -> Option<[f64; 2]> {
    let seconds = |run: &&Run| Some(run.seen.as_ref()?.load?.ready_ns? as f64 / 1e9);
    let times: Vec<f64> = complete.iter().map(seconds).collect::<Option<_>>()?;
    times.into_iter().map(|time| [time; 2]).reduce(|a, b| [a[0].min(b[0]), a[1].max(b[1])])
}

#[cfg(test)]
mod tests {
    use facts::run::{Seen, SeenLoad};
    use facts::testing;
    use protocol::{Event, Started};

    use super::*;

    fn memory(anonymous: u64, file: u64) -> Memory {
        Memory { anonymous_bytes: Some(anonymous), file_bytes: Some(file), ..Memory::default() }
    }

    fn run(ready_ns: u64) -> Run {
        let started = Started { startup_ns: None, runtime_ns: 1, memory: memory(10, 20) };
        let loaded = protocol::Loaded { memory: memory(110, 25), ..testing::loaded(1) };
        let mut run = testing::run("a", 0, vec![Event::Started(started), Event::Loaded(loaded)]);
        let load = SeenLoad { ready_ns: Some(ready_ns), cpu_ns: Some([200_000_000, 300_000_000]) };
        run.seen = Some(Seen { load: Some(load), ..Seen::default() });
        run
    }

    #[test]
    fn a_load_consists_of_what_it_adds_to_the_process() {
        let parts = load_parts(&[&run(1)]).unwrap();
        assert_eq!((parts.framework_cpu_s, parts.system_cpu_s), (0.2, 0.3));
        assert_eq!((parts.own_bytes, parts.mapped_bytes), (100.0, 5.0));
        assert_eq!(load_parts(&[&testing::run("a", 0, Vec::new())]), None);
    }

    #[test]
    fn the_times_of_making_memory_ready_are_a_range() {
        let (slow, fast) = (run(2_000_000_000), run(500_000_000));
        assert_eq!(memory_ready_in(&[&slow, &fast]), Some([0.5, 2.0]));
        let unknown = testing::run("a", 0, Vec::new());
        assert_eq!(memory_ready_in(&[&slow, &unknown]), None, "not of all");
    }
}
