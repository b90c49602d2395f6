//! The gains of optimisations: each framework with them and without, in one picture.

use comparison::history::Record;
use comparison::judge::metrics::Metric;
use comparison::judge::records;
use statistics::{median, median_interval};

use super::has_cache;
use crate::charts::{Colour, Content, Figure, GREY, Group, Panel, Row, RowAxis, Rows};
use crate::pictures::Colours;
use crate::words;

const NOTE: &str = "Mark: median; whisker: its 95 % interval. Both arms of a framework are from the newest run that \
                    measured both; where no run did, they are medians over all runs, and the ratio has no interval.";

/// Title, unit with the better direction, metric, and its factor to the unit.
const PANELS: [(&str, &str, Metric, f64); 4] = [
    ("Tokens per second", "higher is better", Metric::Throughput, 1.0),
    ("Time per token", "ms, lower is better", Metric::Latency, 1.0),
    ("Total time", "s, lower is better", Metric::Total, 1e-3),
    ("Memory", "MB, lower is better", Metric::PeakMemory, 1e3),
];

/// A figure with its 95 % interval, if there is one.
#[derive(Debug, Clone, Copy, PartialEq)]
struct Estimate {
    value: f64,
    interval: Option<(f64, f64)>,
}

struct Arms<'a> {
    framework: String,
    base: Vec<&'a Record>,
    optimised: Vec<&'a Record>,
}

/// The picture of one machine and case: that with the most records among those with both arms, or else among all.
/// Figures of different cases do not belong in one picture.
pub(super) fn picture(records: &[&Record]) -> Figure {
    let (case, records) = compared(records);
    let frameworks = words::distinct(records.iter().map(|record| framework(record)));
    let colours = Colours::new(&frameworks);
    let arms: Vec<Arms> = frameworks.iter().map(|name| Arms::new(name, &records)).collect();
    Figure {
        title: "Base and optimised".into(),
        subtitle: case,
        panels: PANELS.map(|panel| self::panel(panel, &arms, &colours)).into(),
        columns: 2,
        note: vec![NOTE.to_owned()],
        ..Figure::default()
    }
}

/// Both arms of each framework, under the gain in speed or memory.
fn panel(
    (title, hint, metric, factor): (&str, &str, Metric, f64),
    arms: &[Arms<'_>],
    colours: &Colours,
) -> Panel {
    let row = |label: &str, colour: Colour, records: &[&Record]| {
        let found = estimate(records, metric);
        Row {
            label: label.into(),
            colour: Some(colour),
            value: found.map(|found| found.value * factor),
            interval: found.and_then(|found| found.interval).map(|(low, high)| (low * factor, high * factor)),
            ..Row::default()
        }
    };
    let group = |arms: &Arms<'_>| {
        let own = colours.of(&arms.framework);
        let both = [("base", GREY, &arms.base), ("optimised", own, &arms.optimised)];
        let both = both.into_iter().filter(|(_, _, records)| !records.is_empty());
        let gain = arms.gain(metric).map_or_else(String::new, |gain| format!(": {gain}"));
        let rows = both.map(|(label, colour, records)| row(label, colour, records)).collect();
        Group { label: format!("{}{gain}", arms.framework), rows }
    };
    let rows = Rows { axis: RowAxis::FromZero, groups: arms.iter().map(group).collect() };
    Panel::new(title, hint, Content::Rows(rows))
}

fn compared<'a>(records: &[&'a Record]) -> (String, Vec<&'a Record>) {
    let title = |record: &Record| {
        let machine = &record.machine;
        let case = records::shared_by_arms(&record.case);
        format!("{}; {} ({})", records::in_full(&case), machine.cpu, machine.fingerprint)
    };
    let groups = words::grouped(records.iter().map(|&record| (title(record), record)));
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

impl<'a> Arms<'a> {
    fn new(name: &str, records: &[&'a Record]) -> Arms<'a> {
        let own = records.iter().copied().filter(|record| framework(record) == name);
        let (optimised, base): (Vec<&Record>, Vec<&Record>) = own.partition(|record| is_optimised(record));
        let both = optimised.iter().rev().find_map(|record| {
            let base = base.iter().rev().find(|base| base.run == record.run)?;
            Some((vec![*record], vec![*base]))
        });
        let (optimised, base) = both.unwrap_or((optimised, base));
        Arms { framework: name.to_owned(), base, optimised }
    }

    /// How many times better the optimised arm is: according to its run, or by the medians.
    fn better(&self, metric: Metric) -> Option<Estimate> {
        let (a, b) = (estimate(&self.optimised, metric)?.value, estimate(&self.base, metric)?.value);
        let ratio = if metric.higher_is_better() { a / b } else { b / a };
        let told = match (self.optimised.as_slice(), self.base.as_slice()) {
            ([optimised], [base]) => optimised
                .verdicts
                .iter()
                .find(|verdict| verdict.metric == metric.name() && verdict.against == base.framework),
            _ => None,
        };
        let told = told.and_then(|verdict| Some((verdict.advantage?, verdict.interval)));
        let (value, interval) = told.unwrap_or((ratio, None));
        value.is_finite().then_some(Estimate { value, interval })
    }

    /// "1.42× as fast (1.38–1.46)", "21 % less memory (20–21 %)".
    fn gain(&self, metric: Metric) -> Option<String> {
        let Estimate { value, interval } = match metric {
            Metric::Throughput | Metric::PeakMemory => self.better(metric)?,
            _ => return None,
        };
        if metric == Metric::Throughput {
            let interval = interval.map(|(low, high)| format!(" ({low:.2}–{high:.2})"));
            return Some(format!("{value:.2}× as fast{}", interval.unwrap_or_default()));
        }
        // Twice as little memory saves half of it.
        let saved = |times: f64| 100.0 * (1.0 - 1.0 / times);
        let word = if value < 1.0 { "more" } else { "less" };
        let decimals = usize::from(saved(value).abs() < 10.0);
        // An end of the interval on the other side of "no change" is negative.
        let sign = if value < 1.0 { -1.0 } else { 1.0 };
        let percent = |times: f64| format!("{:.decimals$}", sign * saved(times));
        let interval = interval.map(|(low, high)| {
            let (low, high) = if value < 1.0 { (high, low) } else { (low, high) };
            format!(" ({}–{} %)", percent(low), percent(high))
        });
        Some(format!("{} % {word} memory{}", percent(value), interval.unwrap_or_default()))
    }
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

    fn verdict(metric: Metric, advantage: f64, interval: (f64, f64)) -> Verdict {
        Verdict {
            metric: metric.name().into(),
            against: "tch (no KV cache)".into(),
            verdict: "faster".into(),
            advantage: Some(advantage),
            interval: Some(interval),
            other: Default::default(),
        }
    }

    #[test]
    fn both_arms_are_of_the_newest_run_that_has_both_and_the_interval_is_its_verdict() {
        let mut with = arm_of("tch", "second", 40.0, true);
        with.verdicts = vec![verdict(Metric::Throughput, 2.1, (1.9, 2.2))];
        let records = [
            arm_of("tch", "first", 10.0, true),
            arm_of("tch (no KV cache)", "first", 10.0, false),
            with,
            arm_of("tch (no KV cache)", "second", 20.0, false),
            arm_of("tch", "third", 90.0, true),
        ];
        let figure = picture(&records.iter().collect::<Vec<_>>());
        assert!(figure.subtitle.starts_with("a-model f32, 16 → 32, 2 threads; "), "{}", figure.subtitle);
        let group = |at: usize| match &figure.panels[at].content {
            Content::Rows(rows) => rows.groups[0].clone(),
            other => panic!("{other:?}"),
        };
        let rows: Vec<_> = group(0).rows.into_iter().map(|row| (row.label, row.value)).collect();
        assert_eq!(rows, [("base".to_owned(), Some(20.0)), ("optimised".to_owned(), Some(40.0))]);
        assert_eq!(group(0).label, "tch: 2.10× as fast (1.90–2.20)");
        assert_eq!(group(3).label, "tch: 25 % more memory");
        assert_eq!(group(3).rows[0].value, Some(400.0), "in megabytes");
    }

    #[test]
    fn memory_that_is_saved_has_its_interval() {
        let mut with = arm_of("tch", "a", 40.0, true);
        for (advantage, interval, told) in [
            (1.25, (1.2, 1.3), "20 % less memory (17–23 %)"),
            (1.01, (0.98, 1.03), "1.0 % less memory (-2.0–2.9 %)"),
        ] {
            with.verdicts = vec![verdict(Metric::PeakMemory, advantage, interval)];
            let records = [&arm_of("tch (no KV cache)", "a", 20.0, false), &with];
            assert_eq!(Arms::new("tch", &records).gain(Metric::PeakMemory).unwrap(), told);
        }
    }

    #[test]
    fn a_framework_with_one_arm_has_no_ratio_and_variants_that_are_optimised_are_frameworks_of_their_own() {
        let mut base = record("ort-off", 20.0);
        base.optimised = Some(false);
        let records = [base, record("ort", 30.0), record("candle-transformers", 9.0)];
        let records: Vec<&Record> = records.iter().collect();
        let names: Vec<String> = records.iter().map(|record| framework(record)).collect();
        assert_eq!(names, ["ort", "ort", "candle-transformers"]);
        assert_eq!(Arms::new("ort", &records).better(Metric::Throughput).unwrap().value, 1.5);
        let alone = Arms::new("candle-transformers", &records);
        assert!(alone.better(Metric::Throughput).is_none() && alone.base.is_empty());
        assert!(picture(&[]).panels.len() == 4, "nothing is drawn as nothing");
    }
}
