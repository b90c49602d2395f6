//! The gains of optimisations: each framework with them and without, in one picture.

use comparison::history::Record;
use comparison::judge::metrics::Metric;
use comparison::judge::records;
use statistics::{median, median_interval};

use super::has_cache;
use crate::charts;
use crate::charts::{Arm, Estimate, Figure, Optimised};
use crate::pictures;

const NOTE: &str = "Bar: median; whisker: its 95 % interval. Both arms of a framework are from the newest run that \
                    measured both; where no run did, they are medians over all runs, and the ratio has no interval.";

/// The picture of one machine and case: that with the most records among those with both arms, or else among all.
/// Figures of different cases do not belong in one picture.
pub(super) fn picture(records: &[&Record]) -> Figure {
    let (case, records) = compared(records);
    let frameworks = crate::words::distinct(records.iter().map(|record| framework(record)));
    let runs: Vec<Optimised> = frameworks.iter().map(|name| of_framework(name, &records)).collect();
    charts::optimisation_comparison(&runs, &case, NOTE, &pictures::KNOWN)
}

fn compared<'a>(records: &[&'a Record]) -> (String, Vec<&'a Record>) {
    let mut groups: Vec<(String, Vec<&Record>)> = Vec::new();
    for record in records {
        let machine = &record.machine;
        let case = records::shared_by_arms(&record.case);
        let title = format!("{}; {} ({})", records::in_full(&case), machine.cpu, machine.fingerprint);
        match groups.iter_mut().find(|(earlier, _)| *earlier == title) {
            Some((_, group)) => group.push(record),
            None => groups.push((title, vec![record])),
        }
    }
    let has_both = |group: &[&Record]| {
        let is_base_of = |base: &Record, name: &str| !is_optimised(base) && framework(base) == name;
        let mut optimised = group.iter().filter(|record| is_optimised(record));
        optimised.any(|record| group.iter().any(|base| is_base_of(base, &framework(record))))
    };
    groups.into_iter().max_by_key(|(_, group)| (has_both(group), group.len())).unwrap_or_default()
}

/// Whether everything was on that scripts of this field call optimisation: graph or JIT, fused kernels, KV cache.
pub(super) fn is_optimised(record: &Record) -> bool {
    record.optimised.unwrap_or(record.case.jit) && has_cache(record)
}

/// The name that both arms share: without the arm and the build, and without the variant if it is not
/// optimised.
fn framework(record: &Record) -> String {
    let name = record.framework.split([' ', '@']).next().unwrap_or_default();
    if is_optimised(record) { name.to_owned() } else { name.split('-').next().unwrap_or_default().to_owned() }
}

fn of_framework(name: &str, records: &[&Record]) -> Optimised {
    let (optimised, base): (Vec<&Record>, Vec<&Record>) = records
        .iter()
        .copied()
        .filter(|record| framework(record) == name)
        .partition(|record| is_optimised(record));
    let both = optimised.iter().rev().find_map(|record| {
        let base = base.iter().rev().find(|base| base.run == record.run)?;
        Some((*record, *base))
    });
    let (optimised, base) = match both {
        Some((optimised, base)) => (vec![optimised], vec![base]),
        None => (optimised, base),
    };
    let better = |metric: Metric| {
        let told = both.and_then(|(optimised, base)| verdict(optimised, base, metric));
        let (a, b) = (estimate(&optimised, metric)?.value, estimate(&base, metric)?.value);
        let ratio = if metric.higher_is_better() { a / b } else { b / a };
        told.or(Some(Estimate { value: ratio, interval: None })).filter(|found| found.value.is_finite())
    };
    Optimised {
        framework: name.to_owned(),
        speedup: better(Metric::Throughput),
        // Twice as little memory saves half of it.
        memory_saved: better(Metric::PeakMemory).map(|times| Estimate {
            value: 1.0 - 1.0 / times.value,
            interval: times.interval.map(|(low, high)| (1.0 - 1.0 / low, 1.0 - 1.0 / high)),
        }),
        base: arm(&base),
        optimised: arm(&optimised),
    }
}

/// How many times better the optimised record is, according to its run.
fn verdict(optimised: &Record, base: &Record, metric: Metric) -> Option<Estimate> {
    let is_asked = |verdict: &&comparison::history::Verdict| {
        verdict.metric == metric.name() && verdict.against == base.framework
    };
    let verdict = optimised.verdicts.iter().find(is_asked)?;
    Some(Estimate { value: verdict.advantage?, interval: verdict.interval })
}

fn arm(records: &[&Record]) -> Option<Arm> {
    let times = |of: Estimate, factor: f64| Estimate {
        value: of.value * factor,
        interval: of.interval.map(|(low, high)| (low * factor, high * factor)),
    };
    let in_units = |metric, factor| estimate(records, metric).map(|found| times(found, factor));
    (!records.is_empty()).then(|| Arm {
        tokens_per_second: estimate(records, Metric::Throughput),
        ms_per_token: estimate(records, Metric::Latency),
        total_s: in_units(Metric::Total, 1e-3),
        memory_mb: in_units(Metric::PeakMemory, 1e3),
    })
}

/// The figure of one record as it is; of several, the median of theirs.
fn estimate(records: &[&Record], metric: Metric) -> Option<Estimate> {
    let figures: Vec<_> = records.iter().filter_map(|record| record.metrics.get(metric.name())).collect();
    if let [figure] = figures.as_slice() {
        return Some(Estimate { value: figure.typical, interval: figure.interval });
    }
    let medians: Vec<f64> = figures.iter().map(|figure| figure.typical).collect();
    Some(Estimate { value: median(&medians)?, interval: median_interval(&medians) })
}

#[cfg(test)]
mod tests {
    use comparison::history::Verdict;
    use comparison::judge::regression::testing::{record, set};

    use super::*;

    fn arm_of(label: &str, run: &str, throughput: f64, optimised: bool) -> Record {
        let mut record = record(label, throughput);
        (record.run, record.optimised) = (run.into(), Some(optimised));
        set(&mut record, Metric::PeakMemory, if optimised { 0.5 } else { 0.4 });
        record
    }

    #[test]
    fn both_arms_are_of_the_newest_run_that_has_both_and_the_interval_is_its_verdict() {
        let mut with = arm_of("tch", "second", 40.0, true);
        let verdict = Verdict {
            metric: "throughput".into(),
            against: "tch (no KV cache)".into(),
            verdict: "faster".into(),
            advantage: Some(2.1),
            interval: Some((1.9, 2.2)),
            sentence: Default::default(),
            other: Default::default(),
        };
        with.verdicts = vec![verdict];
        let records = [
            arm_of("tch", "first", 10.0, true),
            arm_of("tch (no KV cache)", "first", 10.0, false),
            with,
            arm_of("tch (no KV cache)", "second", 20.0, false),
            arm_of("tch", "third", 90.0, true),
        ];
        let (case, own) = compared(&records.iter().collect::<Vec<_>>());
        assert!(case.starts_with("a-model f32, 16 → 32, 2 threads; ") && own.len() == 5, "{case}");
        let found = of_framework("tch", &own);
        let value = |arm: Option<Arm>| arm.unwrap().tokens_per_second.unwrap().value;
        assert_eq!((value(found.optimised), value(found.base)), (40.0, 20.0));
        assert_eq!(found.speedup, Some(Estimate { value: 2.1, interval: Some((1.9, 2.2)) }));
        let saved = found.memory_saved.unwrap();
        assert!((saved.value + 0.25).abs() < 1e-9 && saved.interval.is_none(), "{saved:?}");
    }

    #[test]
    fn a_framework_with_one_arm_has_no_ratio_and_variants_that_are_optimised_are_frameworks_of_their_own() {
        let mut base = record("ort-off", 20.0);
        base.optimised = Some(false);
        let records = [base, record("ort", 30.0), record("candle-transformers", 9.0)];
        let records: Vec<&Record> = records.iter().collect();
        let names: Vec<String> = records.iter().map(|record| framework(record)).collect();
        assert_eq!(names, ["ort", "ort", "candle-transformers"]);
        assert_eq!(of_framework("ort", &records).speedup.unwrap().value, 1.5);
        let alone = of_framework("candle-transformers", &records);
        assert!(alone.speedup.is_none() && alone.base.is_none() && alone.optimised.is_some());
        assert!(picture(&[]).panels.len() == 4, "nothing is drawn as nothing");
    }
}
