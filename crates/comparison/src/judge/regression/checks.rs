//! The judgement of two runs: of `photofinish check`, of `diff`, and of two builds or versions in one comparison.

use std::collections::BTreeMap;

use clap::{Args, ValueEnum};
use statistics::{Decision, SIGNIFICANCE, Series, Settings};

use super::pairing::{self, Change, Pair, Pairing, Speed};
use super::{
    Bar, Broken, Document, Kind, Side, Subject, Threshold, Thresholds, paired, parse_metric, parse_threshold,
    subjects, unpaired,
};
use crate::history::Record;
use crate::judge::metrics::Metric;
use crate::judge::report::{Report, State};
use crate::plan::{Failure, Result};

/// The records of one run, and how the run was found.
#[derive(Debug, Clone)]
pub struct Run {
    pub source: String,
    pub records: Vec<Record>,
}

impl Run {
    fn side(&self) -> Side {
        Side::new(&self.source, &self.records)
    }
}

const _: () = assert!(SIGNIFICANCE == 0.05, "the help below says 5 %");

/// What a check compares, and when a change is a regression.
#[derive(Debug, Clone, Args)]
pub struct CheckAsked {
    /// A change for the worse is a regression if it exceeds this threshold and is significant at the 5 % level. One
    /// value for all metrics, or a value for one: 5%,load=20%
    #[arg(long, value_name = "PERCENT | METRIC=PERCENT,…", default_value = "5%", value_delimiter = ',',
          value_parser = parse_threshold)]
    pub threshold: Vec<Threshold>,
    /// Metrics to judge, by their names in JSON; all: every one [default: those of the table]
    #[arg(long, value_name = "NAME,…", value_delimiter = ',', value_parser = parse_metric)]
    pub metrics: Vec<String>,
    /// Compare even if these differ; every difference is still printed
    #[arg(long, value_enum, value_name = "WHAT,…", value_delimiter = ',')]
    pub allow_different: Vec<Different>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum Different {
    /// Another machine, or this one at another speed
    Machine,
    /// The work that was computed, and how it was measured
    Settings,
}

impl CheckAsked {
    pub fn allows(&self, what: Different) -> bool {
        self.allow_different.contains(&what)
    }
}

/// Judges a run against its baseline.
///
/// # Errors
/// The two must not be compared: one sentence with the differences.
pub fn check(baseline: &Run, current: &Run, asked: &CheckAsked) -> Result<Document> {
    let pairing = pairing::pair(&baseline.records, &current.records, asked.allows(Different::Settings));
    check_common(&pairing, asked)?;
    let mut document = Document::new(Kind::Check, baseline.side(), current.side());
    note_differences(&mut document, &pairing.pairs);
    refuse_differences(&pairing.pairs, asked)?;
    note_failures(&mut document, &pairing.pairs);
    document.unmeasurable = noise(&pairing.pairs);
    document.alone = pairing.alone;
    let measured: Vec<Pair<'_>> = pairing.pairs.into_iter().filter(is_measured).collect();
    if document.unmeasurable.is_none()
        && let Some(first) = measured.first()
    {
        let speed = match asked.allows(Different::Machine) {
            true => Speed::SAME,
            false => Speed::between(&first.baseline.machine, &first.current.machine),
        };
        let changes = pairing::changes(&first.baseline.machine, &first.current.machine);
        document.warnings.extend(changes.iter().map(Change::sentence));
        let thresholds = &Thresholds(asked.threshold.clone());
        document.findings =
            unpaired(&of_all(&measured, &asked.metrics), &Bar { thresholds, gates: true, speed });
    }
    if document.unmeasurable.is_none() && document.failures.is_empty() && document.findings.is_empty() {
        document.unmeasurable = Some("no framework has figures of these metrics in both runs".into());
    }
    Ok(document.concluded())
}

/// Two runs from anywhere, side by side. It refuses no pair.
pub fn diff(a: &Run, b: &Run, metrics: &[String], margin: f64) -> Document {
    let pairing = pairing::pair(&a.records, &b.records, false);
    let mut document = Document::new(Kind::Diff, a.side(), b.side());
    note_differences(&mut document, &pairing.pairs);
    note_failures(&mut document, &pairing.pairs);
    document.unmeasurable = noise(&pairing.pairs);
    let measured: Vec<Pair<'_>> = pairing.pairs.iter().copied().filter(is_measured).collect();
    let bar = Bar { thresholds: &Thresholds::all(margin), gates: false, speed: Speed::SAME };
    document.findings = unpaired(&of_all(&measured, metrics), &bar);
    document.alone = pairing.alone;
    document.concluded()
}

/// Judges the records of one comparison in which each framework ran as it is and as it is in another build or version.
pub fn interleaved(
    (kind, sides): (Kind, (Side, Side)),
    (baseline, current): (&[Record], &[Record]),
    report: &Report,
    asked: &CheckAsked,
) -> Document {
    let mut document = Document::new(kind, sides.0, sides.1);
    let pairs: Vec<Pair<'_>> =
        baseline.iter().zip(current).map(|(baseline, current)| Pair { baseline, current }).collect();
    document.layouts = report.plan.contenders.iter().map(|it| it.layouts).min().unwrap_or(0);
    note_failures(&mut document, &pairs);
    document.unmeasurable = report.noise();
    let measured: Vec<Pair<'_>> = pairs.into_iter().filter(is_measured).collect();
    if document.unmeasurable.is_none() {
        let subjects = of_all(&measured, &asked.metrics);
        let thresholds = &Thresholds(asked.threshold.clone());
        let bar = Bar { thresholds, gates: true, speed: Speed::SAME };
        document.findings = paired(&subjects, decide(&subjects, report), &bar);
    }
    document.concluded()
}

fn of_all<'a>(pairs: &[Pair<'a>], metrics: &[String]) -> Vec<Subject<'a>> {
    pairs.iter().flat_map(|pair| subjects(*pair, metrics)).collect()
}

fn note_differences(document: &mut Document, pairs: &[Pair<'_>]) {
    let Some(first) = pairs.first() else { return };
    document.differences = pairing::machine_differences(first.baseline, first.current);
    document.differences.extend(pairing::all_differences(pairs));
}

fn refuse_differences(pairs: &[Pair<'_>], asked: &CheckAsked) -> Result<()> {
    let Some(first) = pairs.first() else { return Ok(()) };
    let refuse = |found: &[String], what: &str, flag: Different| match found {
        [] => Ok(()),
        _ if asked.allows(flag) => Ok(()),
        found => Err(Failure::usage(format!(
            "the runs are not of the same {what}: {}; to compare anyway: --allow-different {what}",
            found.join("; ")
        ))),
    };
    refuse(&pairing::machine_differences(first.baseline, first.current), "machine", Different::Machine)?;
    refuse(&pairing::all_differences(pairs), "settings", Different::Settings)
}

/// Refuses two runs that have no case in common.
fn check_common(pairing: &Pairing<'_>, asked: &CheckAsked) -> Result<()> {
    if !pairing.pairs.is_empty() {
        return Ok(());
    }
    let of = |side: &str| {
        let alone = pairing.alone.iter().filter(|alone| alone.side == side);
        alone.map(|alone| format!("{} ({})", alone.framework, alone.case)).collect::<Vec<_>>().join("; ")
    };
    let remedy = match asked.allows(Different::Settings) {
        true => "",
        false => "; --allow-different settings compares a framework with itself in another case",
    };
    Err(Failure::usage(format!(
        "the runs have no framework in the same case: the baseline has {}, the current run {}{remedy}",
        of("baseline"),
        of("current")
    )))
}

/// Frameworks that had figures in the baseline and have no valid figures now.
fn note_failures(document: &mut Document, pairs: &[Pair<'_>]) {
    for Pair { baseline, current } in pairs {
        let broken = match current.state {
            State::Failed | State::Struck => current.reasons.first().cloned(),
            State::Unsupported if baseline.state.takes_part() => current.reasons.first().cloned(),
            _ => None,
        };
        let framework = current.framework.clone();
        if let Some(reason) = broken {
            document.failures.push(Broken { framework, reason: reason.into() });
        } else if !baseline.state.takes_part() && current.state.takes_part() {
            let why = baseline.reasons.first().map_or("it was not measured", |reason| reason.as_str());
            document.warnings.push(format!("{framework} has no baseline: {why}"));
        }
    }
}

fn is_measured(pair: &Pair<'_>) -> bool {
    pair.baseline.state.takes_part() && pair.current.state.takes_part()
}

fn noise(pairs: &[Pair<'_>]) -> Option<String> {
    let of = |record: &Record, side: &str| {
        record.noise.as_ref().map(|noise| format!("the machine was too noisy in the {side}: {noise}"))
    };
    pairs.iter().find_map(|pair| of(pair.current, "current run").or_else(|| of(pair.baseline, "baseline")))
}

/// The share of the error rate of a metric that a comparison does not test: as little as a load has.
const LEAST_SHARE: f64 = 0.05;

/// Decides every metric of every framework against its base: the family that Holm's method corrects over. Frameworks are
/// not compared with each other, because more pairs would weaken every verdict. As in a comparison, metrics have their
/// shares of the error rate, and a metric that follows another has its verdict.
fn decide(subjects: &[Subject<'_>], report: &Report) -> Vec<Option<Decision>> {
    let kind = report.plan.work.kind();
    let metric = |subject: &Subject<'_>| Metric::parse(&subject.metric);
    let leader = |subject: &Subject<'_>| {
        let leading = metric(subject)?.follows(kind)?;
        let is_it = |other: &Subject<'_>| {
            metric(other) == Some(leading) && other.pair.current.framework == subject.pair.current.framework
        };
        subjects.iter().position(is_it)
    };
    let family: Vec<usize> =
        (0..subjects.len()).filter(|&place| leader(&subjects[place]).is_none()).collect();
    let series = |&place: &usize| {
        let subject = &subjects[place];
        let (baseline, current) = subject.values();
        let (a, b) = subject.turned(baseline, current);
        let share = metric(subject).map_or(0.0, |metric| metric.error_share(kind));
        Series::new(a, b, if share > 0.0 { share } else { LEAST_SHARE })
    };
    let all: Vec<Series<'_>> = family.iter().map(series).collect();
    let settings = Settings { margin: report.plan.margin, seed: report.plan.seed, ..Settings::default() };
    let decisions = statistics::decide(&all, &report.looks(), report.end.is_last_look(), &settings);
    let decided: BTreeMap<usize, Option<Decision>> = family.into_iter().zip(decisions).collect();
    let of = |place: usize| decided.get(&leader(&subjects[place]).unwrap_or(place)).cloned().flatten();
    (0..subjects.len()).map(of).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::judge::regression::testing::{record, set};
    use crate::judge::regression::{Finding, Reason, Verdict};

    fn run(records: Vec<Record>) -> Run {
        Run { source: "h.jsonl#run".into(), records }
    }

    /// What a check with these thresholds and permissions says.
    fn checked(
        baseline: Record,
        current: Record,
        threshold: &str,
        allowed: &[Different],
    ) -> Result<Document> {
        let threshold = threshold.split(',').map(|text| parse_threshold(text).unwrap()).collect();
        let asked = CheckAsked { threshold, metrics: Vec::new(), allow_different: allowed.to_vec() };
        check(&run(vec![baseline]), &run(vec![current]), &asked)
    }

    fn usual(baseline: Record, current: Record) -> Document {
        checked(baseline, current, "5%", &[]).unwrap()
    }

    fn finding<'a>(document: &'a Document, metric: &str) -> &'a Finding {
        document.findings.iter().find(|finding| finding.metric == metric).expect("a finding")
    }

    fn verdicts(document: &Document, metrics: &[&str]) -> Vec<Verdict> {
        metrics.iter().map(|metric| finding(document, metric).verdict).collect()
    }

    #[test]
    fn eight_percent_are_a_regression_and_what_is_certain_but_small_passes() {
        let document = usual(record("one", 100.0), record("one", 100.0 / 1.08));
        assert_eq!(document.exit_code, 4);
        assert_eq!(
            verdicts(&document, &["throughput", "latency", "load"]),
            [Verdict::Regression, Verdict::Regression, Verdict::Equivalent]
        );
        // One cause is told once.
        assert_eq!(finding(&document, "latency").follows.as_deref(), Some("throughput"));
        let document = usual(record("one", 100.0), record("one", 97.0));
        assert_eq!((verdicts(&document, &["throughput"]), document.exit_code), (vec![Verdict::Worse], 0));
        let strict = checked(record("one", 100.0), record("one", 97.0), "9%,throughput=2", &[]).unwrap();
        assert_eq!(verdicts(&strict, &["throughput", "latency"]), [Verdict::Regression, Verdict::Worse]);
    }

    #[test]
    fn what_is_large_but_uncertain_passes_and_says_how_many_rounds_it_takes() {
        let mut noisy = record("one", 92.0);
        let values = [60.0, 130.0, 80.0, 110.0, 75.0, 110.0].map(Some);
        noisy.metrics.get_mut("throughput").unwrap().values = values.into();
        let document = usual(record("one", 100.0), noisy);
        assert_eq!(verdicts(&document, &["throughput"]), [Verdict::Inconclusive]);
        assert!(finding(&document, "throughput").rounds_needed.is_some_and(|rounds| rounds > 6));
    }

    #[test]
    fn too_few_rounds_a_metric_that_vanished_and_a_noisy_run_are_not_measurable() {
        let mut few = record("one", 50.0);
        for figure in few.metrics.values_mut() {
            figure.values.truncate(5);
        }
        let document = usual(record("one", 100.0), few);
        let throughput = finding(&document, "throughput");
        assert_eq!((document.exit_code, throughput.rounds), (3, (6, 5)));
        assert_eq!(throughput.reason, Some(Reason::RoundsOfCurrent));
        let mut without = record("one", 100.0);
        without.metrics.remove("load");
        let document = usual(record("one", 100.0), without);
        assert_eq!((verdicts(&document, &["load"]), document.exit_code), (vec![Verdict::NotMeasurable], 3));
        let mut noisy = record("one", 10.0);
        noisy.noise = Some("other processes used 50 %".into());
        let document = usual(record("one", 100.0), noisy);
        assert_eq!((document.exit_code, document.findings.len()), (3, 0));
    }

    #[test]
    fn a_slower_machine_is_not_the_frameworks_regression() {
        let with_bandwidth = |throughput: f64, bandwidth: f64| {
            let mut record = record("one", throughput);
            set(&mut record, Metric::PeakMemory, 1.0);
            record.machine.read_bandwidth = Some(bandwidth);
            record
        };
        let baseline = || with_bandwidth(100.0, 60e9);
        let document = usual(baseline(), with_bandwidth(80.0, 40e9));
        // Bytes do not depend on the speed of the machine.
        assert_eq!(
            verdicts(&document, &["throughput", "peak_memory"]),
            [Verdict::NotMeasurable, Verdict::Equivalent]
        );
        assert_eq!(document.exit_code, 3);
        let worse = usual(baseline(), with_bandwidth(50.0, 40e9));
        assert_eq!((verdicts(&worse, &["throughput"]), worse.exit_code), (vec![Verdict::Regression], 4));
        let hidden = usual(baseline(), with_bandwidth(100.0, 80e9));
        assert_eq!((verdicts(&hidden, &["throughput"]), hidden.exit_code), (vec![Verdict::NotMeasurable], 3));
        let told = checked(baseline(), with_bandwidth(80.0, 40e9), "5%", &[Different::Machine]);
        assert_eq!(told.unwrap().exit_code, 4);
    }

    #[test]
    fn other_machines_and_settings_are_refused_unless_allowed() {
        let compared = |change: fn(&mut Record), allowed: &[Different]| {
            let mut other = record("one", 100.0);
            change(&mut other);
            checked(record("one", 100.0), other, "5%", allowed).map_err(|error| error.to_string())
        };
        let machine = |record: &mut Record| {
            (record.machine.fingerprint, record.machine.cpu) = ("g".into(), "Another".into());
        };
        let error = compared(machine, &[]).unwrap_err();
        assert!(error.contains("processor: A Processor (baseline), Another (current)"), "{error}");
        let allowed = compared(machine, &[Different::Machine]).unwrap();
        assert!(allowed.differences[0].starts_with("processor"), "{:?}", allowed.differences);
        let iterations = |record: &mut Record| record.settings.iterations = 9;
        assert!(compared(iterations, &[]).unwrap_err().contains("iterations: 2 (baseline), 9 (current)"));
        let tokens = |record: &mut Record| record.case.new_tokens = 64;
        assert!(compared(tokens, &[]).unwrap_err().contains("no framework in the same case"));
        assert_eq!(compared(tokens, &[Different::Settings]).unwrap().findings.len(), 3);
    }

    #[test]
    fn a_framework_that_broke_comes_before_one_that_slowed_down() {
        let mut broken = record("two", 100.0);
        (broken.state, broken.reasons) = (State::Struck, vec!["R11: top-1 differs".into()]);
        let baseline = run(vec![record("one", 100.0), record("two", 100.0)]);
        let asked = CheckAsked {
            threshold: vec![parse_threshold("5%").unwrap()],
            metrics: Vec::new(),
            allow_different: Vec::new(),
        };
        let document = check(&baseline, &run(vec![record("one", 50.0), broken]), &asked).unwrap();
        assert_eq!((document.exit_code, document.failures[0].framework.as_str()), (1, "two"));
    }
}
