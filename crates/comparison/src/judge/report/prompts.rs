//! Figures by prompt. The table's own are of all prompts together; these use the same formulas on the
//! requests of one prompt.

use protocol::Memory;
use serde::{Deserialize, Serialize};
use statistics::median;

use super::Figure;
use crate::facts::evidence::Evidence;
use crate::facts::run::Run;
use crate::judge::metrics::{self, Metric};
use crate::plan::Plan;

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct PromptFigures {
    pub name: String,
    pub tokens: usize,
    /// One for each row of the table, in its order.
    pub rows: Vec<PromptRow>,
}

/// The figures of one contender for one prompt.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct PromptRow {
    pub framework: String,
    pub metrics: Vec<Figure>,
}

/// The figures of every prompt, in the order of the plan.
pub fn prompts(plan: &Plan, evidence: &Evidence) -> Vec<PromptFigures> {
    let of_case = |case: usize| {
        let figures = |label: &str| {
            let values = |metric| metrics::by_round_of(metric, case..case + 1, plan, evidence, label);
            let of_a_prompt = Metric::of_a_prompt(plan.work.kind()).into_iter();
            of_a_prompt.map(|metric| Figure::new(metric, values(metric), Vec::new())).collect()
        };
        let of_contender = |label: &String| PromptRow { framework: label.clone(), metrics: figures(label) };
        PromptFigures {
            name: plan.work.case_name(case).to_owned(),
            tokens: plan.work.case_tokens(case),
            rows: plan.contenders.iter().map(|contender| of_contender(&contender.label)).collect(),
        }
    };
    (0..plan.work.cases()).map(of_case).collect()
}

// Loads of a contender: from a warm and from a cold page cache, and what they consist of.

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
        attempts.iter().filter(is_cold).filter_map(|run| Some(run.load_ns()? as f64 / 1e9)).collect();
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
    use crate::facts::run::{Run, Seen, SeenLoad};
    use crate::facts::testing;
    use crate::plan::Prompt;
    use protocol::{Event, Marks, Sample, Started};

    use super::*;

    fn prompt(name: &str, tokens: usize) -> Prompt {
        Prompt { name: name.into(), tokens: vec![1; tokens], ..Prompt::default() }
    }

    /// A process of two iterations over two cases, of 10 and of 20 ms a token.
    fn process(label: &str, round: usize) -> Run {
        let case = |first_ms: u64, gap_ms: u64| Sample {
            marks_ns: Marks::new(first_ms * 1_000_000, [gap_ms * 1_000_000; 3]),
            ..Sample::default()
        };
        testing::measured(label, round, Vec::new(), vec![vec![case(40, 10), case(100, 20)]; 2])
    }

    #[test]
    fn each_prompt_has_the_figures_of_its_own_samples() {
        let mut plan = testing::plan(&["a", "absent"]);
        let prompted = testing::prompted(&mut plan);
        (prompted.prompts, prompted.batch) = (vec![prompt("short", 4), prompt("long", 16)], 2);
        let evidence =
            Evidence { runs: vec![process("a", 0), process("a", 1)], rounds: 2, ..Evidence::default() };
        let found = prompts(&plan, &evidence);
        let names: Vec<_> = found.iter().map(|prompt| (prompt.name.as_str(), prompt.tokens)).collect();
        assert_eq!(names, [("short", 4), ("long", 16)]);
        let medians = |prompt: &PromptFigures| {
            prompt.rows[0]
                .metrics
                .iter()
                .map(|figure| (1e9 * figure.median.unwrap()).round() / 1e9)
                .collect::<Vec<_>>()
        };
        // First token, gap, 2 sequences a gap, and 2 × tokens in the first token's time.
        assert_eq!(medians(&found[0]), [40.0, 10.0, 2.0 / 0.01, 2.0 * 4.0 / 0.04]);
        assert_eq!(medians(&found[1]), [100.0, 20.0, 2.0 / 0.02, 2.0 * 16.0 / 0.1]);
        assert_eq!(found[1].rows[0].metrics[0].values.len(), 2);
        assert!(found[0].rows[1].metrics.iter().all(|figure| figure.median.is_none()), "what did not run");
    }

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
