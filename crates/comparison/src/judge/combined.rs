//! Runs of one case, combined. The interval of a run is of that run: states of the machine, of its memory and of its
//! neighbours differ from day to day, and only several runs show by how much.

use std::collections::BTreeSet;

use serde::{Deserialize, Serialize};
use statistics::{Combined, LogRatios, MIN_ROUNDS, SIGNIFICANCE};

use crate::history::Record;
use crate::judge::metrics::Metric;
use crate::judge::regression::pairing::{self, Difference};
use crate::judge::{Report, records, work};

/// The runs of one case.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Runs {
    pub case: String,
    /// Their names, in the order of time.
    pub runs: Vec<String>,
    /// Dates (UTC).
    pub days: usize,
    /// Kinds of machine, by fingerprint.
    pub machines: usize,
    /// The versions of frameworks that have more than one: "ort: ort 1.22, ort 1.23".
    pub versions: Vec<String>,
    pub pairs: Vec<Pair>,
}

/// One metric of two contenders, over at least two runs.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Pair {
    pub metric: Metric,
    /// The better of the two, over all runs.
    pub a: String,
    pub b: String,
    /// How many times better a is than b.
    pub advantage: f64,
    /// The 95 % interval of the advantage of this pair alone.
    pub interval: Option<(f64, f64)>,
    /// Standard deviation of the log ratio between runs.
    pub tau: f64,
    /// I²: the share of the runs' variance that the noise within runs does not explain.
    pub inconsistency: f64,
    /// The advantage of a in each run, in the order of time.
    pub each: Vec<f64>,
}

impl Runs {
    /// Combines runs of one case, each with its records.
    pub fn new(mut runs: Vec<&[Record]>) -> Runs {
        runs.retain(|run| !run.is_empty());
        runs.sort_by(|a, b| a[0].time.cmp(&b[0].time));
        let distinct =
            |of: fn(&Record) -> &str| runs.iter().map(|run| of(&run[0])).collect::<BTreeSet<_>>().len();
        let labels = labels(&runs);
        let mut pairs = Vec::new();
        for metric in runs.first().map_or(Vec::new(), |run| Metric::asked(work::kind(&run[0].case))) {
            for (at, a) in labels.iter().enumerate() {
                pairs.extend(labels[at + 1..].iter().filter_map(|b| Pair::new(metric, a, b, &runs)));
            }
        }
        Runs {
            case: runs.first().map_or_else(String::new, |run| records::in_full(&run[0].case)),
            runs: runs.iter().map(|run| run[0].run.clone()).collect(),
            days: distinct(|record| record.time.get(..10).unwrap_or(&record.time)),
            machines: distinct(|record| &record.machine.fingerprint),
            versions: labels.iter().filter_map(|label| versions(label, &runs)).collect(),
            pairs,
        }
    }

    /// The cases with at least two runs on one machine. `records` are in the order of time.
    pub fn by_case(records: &[Record]) -> Vec<Runs> {
        let mut cases: Vec<Vec<&[Record]>> = Vec::new();
        for run in by_run(records).into_iter().filter(|run| unfit(run).is_none()) {
            let is_own = |others: &&mut Vec<&[Record]>| {
                is_of_machine(others[0], run) && difference(others[0], run).is_none()
            };
            match cases.iter_mut().find(is_own) {
                Some(case) => case.push(run),
                None => cases.push(vec![run]),
            }
        }
        let cases = cases.into_iter().filter(|runs| runs.len() > 1).map(Runs::new);
        cases.filter(|runs| !runs.pairs.is_empty()).collect()
    }
}

impl Pair {
    fn new(metric: Metric, a: &str, b: &str, runs: &[&[Record]]) -> Option<Pair> {
        let ratios: Vec<LogRatios> = runs.iter().filter_map(|run| ratio(metric, a, b, run)).collect();
        if ratios.len() < 2 {
            return None;
        }
        let effects: Vec<f64> = ratios.iter().map(LogRatios::mean).collect();
        let error = |ratio: &LogRatios| ratio.deviation() / (ratio.rounds() as f64).sqrt();
        let errors: Vec<f64> = ratios.iter().map(error).collect();
        let found = Combined::new(&effects, &errors, SIGNIFICANCE)?;
        let is_turned = found.estimate < 0.0;
        let turn = |log: f64| if is_turned { (-log).exp() } else { log.exp() };
        let ends = |(low, high)| if is_turned { (turn(high), turn(low)) } else { (turn(low), turn(high)) };
        let (a, b) = if is_turned { (b, a) } else { (a, b) };
        Some(Pair {
            metric,
            a: a.to_owned(),
            b: b.to_owned(),
            advantage: turn(found.estimate),
            interval: found.interval.map(ends),
            tau: found.tau,
            inconsistency: found.inconsistency,
            each: effects.into_iter().map(turn).collect(),
        })
    }
}

/// How many times better a is than b, as log ratios by round; `None` where a verdict could not be given.
fn ratio(metric: Metric, a: &str, b: &str, run: &[Record]) -> Option<LogRatios> {
    let values = |label: &str| {
        let record = run.iter().find(|record| record.framework == label && record.state.takes_part())?;
        Some(&record.metrics.get(metric.name())?.values)
    };
    let (a, b) = (values(a)?, values(b)?);
    let (a, b) = if metric.higher_is_better() { (a, b) } else { (b, a) };
    LogRatios::new(a, b).filter(|ratio| ratio.rounds() >= MIN_ROUNDS)
}

/// The records of each run. Runs that begin in the same second in two directories have one name.
pub(crate) fn by_run(records: &[Record]) -> Vec<&[Record]> {
    records.chunk_by(|a, b| (&a.run, &a.time) == (&b.run, &b.time)).collect()
}

fn is_of_machine(a: &[Record], b: &[Record]) -> bool {
    a[0].machine.fingerprint == b[0].machine.fingerprint
}

/// Why two runs are not of one case: the name of a setting, its value in `a`, and in `b`.
pub fn difference(a: &[Record], b: &[Record]) -> Option<Difference> {
    let mut has_common = false;
    for theirs in a {
        for ours in b.iter().filter(|ours| ours.framework == theirs.framework) {
            has_common = true;
            if let Some(difference) = pairing::settings(theirs, ours).into_iter().next() {
                return Some(difference);
            }
        }
    }
    let names = |run: &[Record]| run.iter().map(|it| it.framework.as_str()).collect::<Vec<_>>().join(", ");
    (!has_common).then(|| ("list of frameworks", names(a), names(b)))
}

/// Why a run supports no verdict, and is not combined with others. Noise that was accepted is no reason.
pub fn unfit(run: &[Record]) -> Option<&'static str> {
    if run.iter().any(|record| record.noise.is_some()) {
        return Some("noisy");
    }
    run.iter().any(|record| record.settings.quick).then_some("a first look")
}

fn labels(runs: &[&[Record]]) -> Vec<String> {
    let mut labels: Vec<String> = Vec::new();
    for record in runs.iter().copied().flatten() {
        if !labels.contains(&record.framework) {
            labels.push(record.framework.clone());
        }
    }
    labels
}

fn versions(label: &str, runs: &[&[Record]]) -> Option<String> {
    let own = runs.iter().copied().flatten().filter(|record| record.framework == label);
    let versions: BTreeSet<&str> = own.filter_map(|record| record.library.as_deref()).collect();
    let listed = || versions.iter().copied().collect::<Vec<_>>().join(", ");
    (versions.len() > 1).then(|| format!("{label}: {}", listed()))
}

// What a report says of the other runs of its case, so that a run cannot be picked without a trace.

/// The other runs of a case on the same machine that the history had when the run ended.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct OtherRuns {
    pub count: usize,
    /// What they gave in the first question, for each contender against the best of this run.
    pub ratios: Vec<OtherRatio>,
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct OtherRatio {
    pub metric: Metric,
    /// The best of this run.
    pub a: String,
    pub b: String,
    /// The least and the largest "how many times better a is than b".
    pub range: (f64, f64),
}

impl OtherRuns {
    /// `None` without another run. Noisy runs and first looks do not count.
    pub fn new(report: &Report, history: &[Record]) -> Option<OtherRuns> {
        let own = records::records(report, None);
        let is_other = |run: &&[Record]| {
            is_of_machine(run, &own) && difference(&own, run).is_none() && unfit(run).is_none()
        };
        let others: Vec<&[Record]> = by_run(history).into_iter().filter(is_other).collect();
        if own.is_empty() || others.is_empty() {
            return None;
        }
        let metric = Metric::deciding(report.plan.work.kind());
        let worth = |record: &Record| {
            let typical = record.metrics.get(metric.name()).map(|figure| figure.typical)?;
            Some(if metric.higher_is_better() { typical } else { -typical })
        };
        let known = own.iter().filter(|record| record.state.takes_part() && worth(record).is_some());
        let best = known.max_by(|a, b| worth(a).partial_cmp(&worth(b)).unwrap_or(std::cmp::Ordering::Equal));
        let mut ratios = Vec::new();
        if let Some(best) = best {
            for other in own.iter().filter(|other| other.framework != best.framework) {
                let (a, b) = (&best.framework, &other.framework);
                let found: Vec<f64> =
                    others.iter().filter_map(|run| Some(ratio(metric, a, b, run)?.mean().exp())).collect();
                let range =
                    found.iter().copied().reduce(f64::min).zip(found.iter().copied().reduce(f64::max));
                ratios.extend(range.map(|range| OtherRatio { metric, a: a.clone(), b: b.clone(), range }));
            }
        }
        Some(OtherRuns { count: others.len(), ratios })
    }
}

#[cfg(test)]
mod tests {
    use crate::judge::regression::testing::record;

    use super::*;

    /// A run on a day of January, in which "one" decodes `times` as fast as "two". One process of each round differs by
    /// 1 %, so that there is noise within the run.
    fn run(day: usize, times: f64) -> Vec<Record> {
        let mut run = vec![record("one", 100.0 * times), record("two", 100.0)];
        for record in &mut run {
            (record.run, record.time) = (format!("run {day}"), format!("2026-01-0{day}T00:00:00Z"));
        }
        for figure in run[0].metrics.values_mut() {
            figure.values.iter_mut().step_by(2).flatten().for_each(|value| *value *= 1.01);
        }
        run
    }

    fn throughput(runs: &Runs) -> &Pair {
        runs.pairs.iter().find(|pair| pair.metric == Metric::Throughput).unwrap()
    }

    #[test]
    fn runs_that_differ_widen_the_interval_and_name_the_better_first() {
        let [a, b, c] = [run(1, 1.09), run(2, 1.17), run(2, 1.13)];
        let found = Runs::new(vec![&b, &a, &c]);
        assert_eq!((found.runs.len(), found.days, found.machines), (3, 2, 1));
        let pair = throughput(&found);
        assert_eq!((pair.a.as_str(), pair.b.as_str(), pair.each.len()), ("one", "two", 3));
        let (low, high) = pair.interval.unwrap();
        assert!(low < 1.10 && high > 1.16 && (pair.advantage - 1.135).abs() < 0.01, "{pair:?}");
        assert!(pair.inconsistency > 0.9 && (pair.each[0] - 1.095).abs() < 0.01, "{pair:?}");
        // Of load, both have the same figure but for the noise: less is better.
        let load = found.pairs.iter().find(|pair| pair.metric == Metric::Load).unwrap();
        assert!(load.a == "two" && load.advantage < 1.01, "{load:?}");
    }

    #[test]
    fn a_history_is_combined_by_machine_and_case_where_there_are_two_runs() {
        let mut elsewhere = run(3, 1.1);
        elsewhere.iter_mut().for_each(|record| record.machine.fingerprint = "other".into());
        let mut longer = run(4, 1.1);
        longer.iter_mut().for_each(|record| record.case.new_tokens = 99);
        let all = [run(1, 1.1), run(2, 1.2), elsewhere.clone(), longer.clone()].concat();
        let mut noisy = run(5, 1.1);
        noisy[0].noise = Some("others computed".into());
        let found = Runs::by_case(&[all.clone(), noisy].concat());
        assert_eq!((found.len(), found[0].runs.len()), (1, 2));
        assert_eq!(Runs::by_case(&run(1, 1.1)), []);
        let both = Runs::new(vec![&all[..2], &elsewhere]);
        assert_eq!((both.machines, throughput(&both).each.len()), (2, 2));
        assert_eq!(difference(&all[..2], &longer).unwrap().0, "case");
        assert_eq!(difference(&all[..1], &all[1..2]).unwrap().0, "list of frameworks");
    }

    #[test]
    fn versions_that_differ_are_named_and_a_contender_without_figures_has_no_pair() {
        let (a, mut b) = (run(1, 1.1), run(2, 1.1));
        b[1].library = Some("lib 2".into());
        assert_eq!(Runs::new(vec![&a, &b]).versions, ["two: lib 1, lib 2"]);
        b[1].state = crate::history::State::Struck;
        assert_eq!(Runs::new(vec![&a, &b]).pairs, []);
    }
}
