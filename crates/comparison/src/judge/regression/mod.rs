//! Decides whether a run is worse than another, significantly and by more than the threshold.

mod checks;
pub mod pairing;
#[doc(hidden)]
pub mod testing;

pub use checks::{CheckAsked, Different, Run, check, diff, interleaved};
use pairing::Speed;
pub use pairing::{Alone, Pair, Pairing};
use serde::Serialize;
use statistics::{Change, Decision, MIN_ROUNDS, SIGNIFICANCE, Samples, Settings, Undecided};

use crate::history::{Figure, Machine, Record};
use crate::judge::metrics::Metric;
use crate::judge::{records, work};
use crate::plan::flags;

// The outcome as one value. The table, Markdown, CSV, JSON, annotations and JUnit are made from it.

/// Version of the JSON.
const SCHEMA: u32 = 1;

/// Two runs or two builds, compared with each other.
#[derive(Debug, Clone, Serialize)]
pub struct Document {
    pub schema: u32,
    pub kind: Kind,
    pub baseline: Side,
    pub current: Side,
    /// Number of layouts that each build ran in; 0 if one of them had one, and for runs that are compared.
    #[serde(skip_serializing_if = "is_zero")]
    pub layouts: usize,
    /// Accepted differences of machine and settings.
    pub differences: Vec<String>,
    pub findings: Vec<Finding>,
    /// Cases without a partner in the other run.
    pub alone: Vec<Alone>,
    /// Frameworks that failed or computed something else.
    pub failures: Vec<Broken>,
    pub warnings: Vec<String>,
    /// The reason why no verdict is possible at all.
    pub unmeasurable: Option<String>,
    pub exit_code: u8,
}

fn is_zero(number: &usize) -> bool {
    *number == 0
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Kind {
    /// Two runs, compared by a threshold.
    Check,
    /// Two builds in one comparison, compared by a threshold.
    Interleaved,
    /// Two versions of frameworks in one comparison, compared by a threshold.
    Versions,
    /// Two runs, compared without a threshold.
    Diff,
}

/// One of the two runs.
#[derive(Debug, Clone, Serialize)]
pub struct Side {
    /// Name of the source, as the user gave it.
    pub source: String,
    pub run: String,
    pub time: String,
    pub git_commit: Option<String>,
    pub git_modified: Option<bool>,
    pub libraries: Vec<String>,
    pub machine: Machine,
}

/// A framework that failed or computed something else, and why.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Broken {
    pub framework: String,
    pub reason: String,
}

impl Side {
    /// Makes the description of a run from its records.
    pub fn new(source: &str, records: &[Record]) -> Side {
        let first = &records[0];
        let mut libraries: Vec<String> =
            records.iter().filter_map(|record| record.library.clone()).map(String::from).collect();
        libraries.dedup();
        Side {
            source: source.to_owned(),
            run: first.run.clone(),
            time: first.time.clone(),
            git_commit: first.git_commit.clone(),
            git_modified: first.git_modified,
            libraries,
            machine: first.machine.clone(),
        }
    }
}

impl Document {
    /// A document without findings.
    pub fn new(kind: Kind, baseline: Side, current: Side) -> Document {
        Document {
            schema: SCHEMA,
            kind,
            baseline,
            current,
            layouts: 0,
            differences: Vec::new(),
            findings: Vec::new(),
            alone: Vec::new(),
            failures: Vec::new(),
            warnings: Vec::new(),
            unmeasurable: None,
            exit_code: 0,
        }
    }

    /// Adds the outcome and its exit code. Broken comes before slow, and certainly slow comes before not measurable.
    pub fn concluded(mut self) -> Document {
        let any = |verdict: Verdict| self.findings.iter().any(|finding| finding.verdict == verdict);
        self.exit_code = match self.kind {
            Kind::Diff => 0,
            _ if !self.failures.is_empty() => 1,
            _ if any(Verdict::Regression) => 4,
            _ if self.unmeasurable.is_some() || any(Verdict::NotMeasurable) => 3,
            _ => 0,
        };
        self
    }

    pub fn with(&self, verdict: Verdict) -> impl Iterator<Item = &Finding> {
        self.findings.iter().filter(move |finding| finding.verdict == verdict)
    }
}

// The finding about one metric.

/// The finding about one metric of one framework. Files add it in words (crate `render`).
#[derive(Debug, Clone, Serialize)]
pub struct Finding {
    pub framework: String,
    pub case: String,
    pub metric: String,
    pub unit: String,
    /// Geometric means over rounds.
    pub baseline: Option<f64>,
    pub current: Option<f64>,
    /// Current ÷ baseline as a ratio of geometric means, and its 95 % interval.
    pub ratio: Option<f64>,
    pub interval: Option<(f64, f64)>,
    /// The same as "how many times worse": above 1 is worse for every metric.
    pub worse: Option<f64>,
    /// Number of rounds of the baseline and of the current run.
    pub rounds: (usize, usize),
    pub p: Option<f64>,
    pub p_adjusted: Option<f64>,
    /// p value of a test that assumes no distribution: Mann–Whitney's, or sign flips if rounds are paired.
    pub p_rank: Option<f64>,
    /// The threshold as a share; in a `diff`, the margin.
    pub threshold: f64,
    pub verdict: Verdict,
    /// Number of rounds that would make the estimate significant, for an inconclusive finding.
    pub rounds_needed: Option<usize>,
    /// A regression with the same cause that is reported in its place.
    pub follows: Option<String>,
    #[serde(rename = "reason_code", skip_serializing_if = "Option::is_none")]
    pub reason: Option<Reason>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Verdict {
    Regression,
    Worse,
    Better,
    Equivalent,
    Inconclusive,
    NotMeasurable,
}

/// Why a metric has no verdict.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Reason {
    NotInBaseline,
    /// The current run has no figures for it.
    NotInCurrent,
    /// Too few figures, or some that are not positive.
    Figures,
    /// The baseline has fewer rounds than a verdict needs.
    RoundsOfBaseline,
    /// The current run has fewer.
    RoundsOfCurrent,
    /// The machine itself was slower, which may explain a regression.
    SlowerMachine,
    /// The machine itself was faster, which may hide one.
    FasterMachine,
    /// The difference may be one of layouts of the code.
    Layout,
}

impl Finding {
    /// Whether the estimate, certain or not, exceeds the threshold.
    pub fn is_beyond(&self) -> bool {
        self.worse.is_some_and(|worse| worse > 1.0 + self.threshold)
    }
}

// Changes from one run of a framework to a later one, other than its figures.

/// Whether the framework can be the cause of a change of figures between the two: the same hardware, case and
/// settings.
pub fn is_comparable(earlier: &Record, later: &Record) -> bool {
    earlier.machine.fingerprint == later.machine.fingerprint && pairing::settings(earlier, later).is_empty()
}

/// Other changes: versions, the machine and its speed, settings. A few words each: "library: ort 1.22 → ort
/// 1.23".
pub fn changed(earlier: &Record, later: &Record) -> Vec<String> {
    let mut found = Vec::new();
    let mut note = |what: &str, a: Option<&str>, b: Option<&str>| {
        if let (Some(a), Some(b)) = (a, b)
            && a != b
        {
            found.push(format!("{what}: {a} → {b}"));
        }
    };
    note("library", earlier.library.as_deref(), later.library.as_deref());
    if earlier.binding != earlier.library || later.binding != later.library {
        note("binding", earlier.binding.as_deref(), later.binding.as_deref());
    }
    note("Photofinish", known(&earlier.driver_version), known(&later.driver_version));
    let (a, b) = (&earlier.machine, &later.machine);
    note("host", known(&a.host), known(&b.host));
    note("system", a.os.as_deref(), b.os.as_deref());
    note("kernel", a.kernel.as_deref(), b.kernel.as_deref());
    let settings = pairing::settings(earlier, later).into_iter();
    for (what, a, b) in settings.chain(pairing::hardware(&earlier.machine, &later.machine)) {
        note(what, Some(&a), Some(&b));
    }
    found.extend(pairing::changes(a, b).iter().map(pairing::Change::in_short));
    found
}

fn known(text: &str) -> Option<&str> {
    Some(text).filter(|text| !text.is_empty())
}

// The thresholds: how much worse each metric may become.

const DEFAULT_THRESHOLD: f64 = 0.05;

/// Every metric.
pub const ALL: &str = "all";

/// A threshold for one metric, or for all.
#[derive(Debug, Clone, PartialEq)]
pub struct Threshold {
    pub metric: Option<String>,
    pub share: f64,
}

#[derive(Debug, Clone)]
pub struct Thresholds(pub Vec<Threshold>);

impl Thresholds {
    pub fn all(share: f64) -> Thresholds {
        Thresholds(vec![Threshold { metric: None, share }])
    }

    /// The threshold of a metric, as a share.
    pub fn share(&self, metric: &str) -> f64 {
        let last = |of: Option<&str>| self.0.iter().rev().find(|threshold| threshold.metric.as_deref() == of);
        last(Some(metric)).or_else(|| last(None)).map_or(DEFAULT_THRESHOLD, |threshold| threshold.share)
    }
}

/// Reads "5%" or "METRIC=5%".
pub fn parse_threshold(text: &str) -> Result<Threshold, String> {
    match text.split_once('=') {
        None => Ok(Threshold { metric: None, share: flags::share(text)? }),
        Some((metric, share)) => {
            Ok(Threshold { metric: Some(parse_metric(metric)?), share: flags::share(share)? })
        }
    }
}

/// The key of the metric with this name, or [`ALL`].
pub fn parse_metric(text: &str) -> Result<String, String> {
    match Metric::parse(text) {
        Some(metric) => Ok(metric.name().to_owned()),
        None if text.trim() == ALL => Ok(ALL.to_owned()),
        None => {
            let names: Vec<String> = Metric::ALL.iter().copied().map(Metric::flag).collect();
            Err(format!("there are {}, and {ALL}", names.join(", ")))
        }
    }
}

// Turns the figures of two runs into verdicts, metric by metric.

/// The limits that changes are compared with.
pub struct Bar<'a> {
    pub thresholds: &'a Thresholds,
    /// Whether exceeding the threshold is a regression; otherwise it is only the margin of equivalence.
    pub gates: bool,
    /// The change that the machine may explain.
    pub speed: Speed,
}

/// A metric of a pair, before it is judged.
pub struct Subject<'a> {
    pub pair: Pair<'a>,
    pub metric: String,
    baseline: Option<&'a Figure>,
    current: Option<&'a Figure>,
}

/// The metrics to judge in a pair: the requested ones, or those of the table, if either run has them.
pub fn subjects<'a>(pair: Pair<'a>, asked: &[String]) -> Vec<Subject<'a>> {
    let name = |metric: &Metric| metric.name().to_owned();
    let names: Vec<String> = match asked {
        [] => Metric::tested(work::kind(&pair.current.case)).iter().map(name).collect(),
        asked if asked.iter().any(|asked| asked == ALL) => Metric::ALL.iter().map(name).collect(),
        asked => asked.to_vec(),
    };
    let of = |record: &'a Record, metric: &str| record.metrics.get(metric);
    let subject = |metric: String| {
        let (baseline, current) = (of(pair.baseline, &metric), of(pair.current, &metric));
        (baseline.is_some() || current.is_some()).then_some(Subject { pair, metric, baseline, current })
    };
    names.into_iter().filter_map(subject).collect()
}

fn verdicts_known(figure: Option<&Figure>) -> Vec<f64> {
    figure.map_or(Vec::new(), |figure| figure.values.iter().copied().flatten().collect())
}

impl<'a> Subject<'a> {
    fn higher_is_better(&self) -> bool {
        self.current.or(self.baseline).is_some_and(|figure| figure.higher_is_better)
    }

    /// Figures by round, of the baseline and of the current run.
    pub fn values(&self) -> (&'a [Option<f64>], &'a [Option<f64>]) {
        let of = |figure: Option<&'a Figure>| figure.map_or(&[][..], |figure| figure.values.as_slice());
        (of(self.baseline), of(self.current))
    }

    /// The sides as (worse, better), in the order of a ratio "how many times worse".
    pub fn turned<T>(&self, baseline: T, current: T) -> (T, T) {
        if self.higher_is_better() { (baseline, current) } else { (current, baseline) }
    }
}

/// The result of the statistics, as "how many times worse".
struct Evidence {
    worse: f64,
    interval: (f64, f64),
    p: f64,
    p_adjusted: f64,
    p_rank: f64,
    significant: bool,
    /// It would be significant, but for the layouts of the code.
    may_be_layout: bool,
    rounds: (usize, usize),
    rounds_needed: Option<usize>,
}

/// Judges runs without common rounds.
pub fn unpaired(subjects: &[Subject<'_>], bar: &Bar<'_>) -> Vec<Finding> {
    let figures: Vec<(Vec<f64>, Vec<f64>)> = subjects
        .iter()
        .map(|subject| subject.turned(verdicts_known(subject.baseline), verdicts_known(subject.current)))
        .collect();
    let family: Vec<Samples<'_>> = figures.iter().map(|(a, b)| Samples { a, b }).collect();
    let contrasts = statistics::contrast(&family, &Settings::default());
    let evidence = contrasts.into_iter().zip(subjects).map(|(contrast, subject)| {
        let contrast = contrast?;
        let (a, b) = contrast.rounds;
        let (baseline, current) = if subject.higher_is_better() { (a, b) } else { (b, a) };
        Some(Evidence {
            worse: contrast.ratio,
            interval: contrast.interval,
            p: contrast.p_welch,
            p_adjusted: contrast.p_adjusted,
            p_rank: contrast.p_mann_whitney,
            significant: contrast.significant,
            may_be_layout: false,
            rounds: (baseline, current),
            rounds_needed: contrast.rounds_needed,
        })
    });
    conclude(subjects, evidence.collect(), bar)
}

/// Judges runs with interleaved rounds, from the statistics of their comparison as "how many times worse".
pub fn paired(subjects: &[Subject<'_>], decisions: Vec<Option<Decision>>, bar: &Bar<'_>) -> Vec<Finding> {
    let evidence = decisions.into_iter().map(|decision| {
        let decision = decision?;
        let enough = decision.rounds >= MIN_ROUNDS;
        let rejected = decision.p_adjusted < SIGNIFICANCE && decision.p_sign_flip < SIGNIFICANCE;
        let may_be_layout = decision.reason == Some(Undecided::Layout);
        Some(Evidence {
            worse: decision.ratio,
            interval: decision.interval,
            p: decision.p_t,
            p_adjusted: decision.p_adjusted,
            p_rank: decision.p_sign_flip,
            significant: enough && rejected && !may_be_layout,
            may_be_layout,
            rounds: (decision.rounds, decision.rounds),
            rounds_needed: None,
        })
    });
    conclude(subjects, evidence.collect(), bar)
}

fn conclude(subjects: &[Subject<'_>], evidence: Vec<Option<Evidence>>, bar: &Bar<'_>) -> Vec<Finding> {
    let judged = subjects.iter().zip(evidence);
    let mut findings: Vec<Finding> =
        judged.map(|(subject, evidence)| finding(subject, evidence, bar)).collect();
    // Two metrics with the same meaning raise one alarm, which names both.
    let regressed = |finding: &&Finding| finding.verdict == Verdict::Regression;
    let place = |finding: &Finding| (finding.framework.clone(), finding.case.clone());
    let told: Vec<_> = findings.iter().filter(regressed).map(|f| (f.metric.clone(), place(f))).collect();
    for (finding, subject) in findings.iter_mut().zip(subjects) {
        let kind = work::kind(&subject.pair.current.case);
        let leads = Metric::parse(&finding.metric).and_then(|metric| metric.follows(kind));
        let leads = leads.map(|leads| leads.name().to_owned());
        finding.follows = leads.filter(|leads| {
            finding.verdict == Verdict::Regression && told.contains(&(leads.clone(), place(finding)))
        });
    }
    findings
}

fn finding(subject: &Subject<'_>, evidence: Option<Evidence>, bar: &Bar<'_>) -> Finding {
    let threshold = bar.thresholds.share(&subject.metric);
    let (verdict, reason) = match &evidence {
        None => (Verdict::NotMeasurable, Some(missing(subject))),
        Some(evidence) => judge(evidence, threshold, subject, bar),
    };
    let raw = |worse: f64| if subject.higher_is_better() { 1.0 / worse } else { worse };
    Finding {
        framework: subject.pair.current.framework.clone(),
        case: records::in_full(&subject.pair.current.case),
        metric: subject.metric.clone(),
        unit: subject.current.or(subject.baseline).map_or_else(String::new, |figure| figure.unit.clone()),
        baseline: subject.baseline.map(|figure| figure.typical),
        current: subject.current.map(|figure| figure.typical),
        ratio: evidence.as_ref().map(|evidence| raw(evidence.worse)),
        interval: evidence.as_ref().map(|evidence| {
            let (low, high) = evidence.interval;
            if subject.higher_is_better() { (raw(high), raw(low)) } else { (low, high) }
        }),
        worse: evidence.as_ref().map(|evidence| evidence.worse),
        rounds: evidence.as_ref().map_or_else(
            || (verdicts_known(subject.baseline).len(), verdicts_known(subject.current).len()),
            |evidence| evidence.rounds,
        ),
        p: evidence.as_ref().map(|evidence| evidence.p),
        p_adjusted: evidence.as_ref().map(|evidence| evidence.p_adjusted),
        p_rank: evidence.as_ref().map(|evidence| evidence.p_rank),
        threshold,
        verdict,
        rounds_needed: evidence
            .as_ref()
            .filter(|_| verdict == Verdict::Inconclusive)
            .and_then(|evidence| evidence.rounds_needed),
        follows: None,
        reason,
    }
}

fn missing(subject: &Subject<'_>) -> Reason {
    match (subject.baseline, subject.current) {
        (None, _) => Reason::NotInBaseline,
        (_, None) => Reason::NotInCurrent,
        _ => Reason::Figures,
    }
}

/// The verdict, or the reason why there is none.
fn judge(
    evidence: &Evidence,
    threshold: f64,
    subject: &Subject<'_>,
    bar: &Bar<'_>,
) -> (Verdict, Option<Reason>) {
    if evidence.rounds.0.min(evidence.rounds.1) < MIN_ROUNDS {
        let of_baseline = evidence.rounds.0 < MIN_ROUNDS;
        let reason = if of_baseline { Reason::RoundsOfBaseline } else { Reason::RoundsOfCurrent };
        return (Verdict::NotMeasurable, Some(reason));
    }
    let found = classify(evidence, 1.0, threshold, bar.gates);
    // Bytes do not depend on the speed of reading them.
    let is_timed = Metric::parse(&subject.metric).is_none_or(Metric::depends_on_speed);
    if !is_timed || bar.speed == Speed::SAME || !bar.gates {
        return (found, evidence.may_be_layout.then_some(Reason::Layout));
    }
    let (least, most) = bar.speed.allowed_for(1.0);
    let others = [least, most].map(|factor| classify(evidence, factor, threshold, true));
    let is_stopped = |verdict: Verdict| verdict == Verdict::Regression;
    if others.iter().all(|other| is_stopped(*other) == is_stopped(found)) {
        return (found, None);
    }
    let reason = if is_stopped(found) { Reason::SlowerMachine } else { Reason::FasterMachine };
    (Verdict::NotMeasurable, Some(reason))
}

/// The verdict as if the current run were `factor` times as bad.
fn classify(evidence: &Evidence, factor: f64, threshold: f64, gates: bool) -> Verdict {
    let (low, high) = evidence.interval;
    let interval = (low * factor, high * factor);
    let differs = match factor == 1.0 {
        true => evidence.significant,
        // The test used the unscaled figures; for scaled ones only the interval can decide.
        false => interval.0 > 1.0 || interval.1 < 1.0,
    };
    match statistics::classify(evidence.worse * factor, interval, differs, threshold) {
        Change::Regression if gates => Verdict::Regression,
        Change::Regression | Change::Worse => Verdict::Worse,
        Change::Better => Verdict::Better,
        Change::Equivalent => Verdict::Equivalent,
        Change::Inconclusive => Verdict::Inconclusive,
    }
}

#[cfg(test)]
mod tests {
    use crate::judge::regression::testing::record;
    use crate::plan::Schedule;

    use super::*;

    #[test]
    fn versions_and_the_machine_are_told_and_only_settings_and_hardware_forbid_a_comparison() {
        let (earlier, mut later) = (record("one", 100.0), record("one", 100.0));
        assert_eq!(changed(&earlier, &later), [""; 0]);
        later.library = Some("lib 2".into());
        later.machine.kernel = Some("7.0".into());
        later.machine.host = "another".into();
        assert_eq!(changed(&earlier, &later), ["library: lib 1 → lib 2", "host: host → another"]);
        assert!(is_comparable(&earlier, &later));
        later.settings.schedule = Schedule::Interleaved;
        assert!(changed(&earlier, &later).contains(&"schedule: sequential → interleaved".to_owned()));
        assert!(!is_comparable(&earlier, &later));
        let mut elsewhere = record("one", 100.0);
        (elsewhere.machine.fingerprint, elsewhere.machine.cpu) = ("e".into(), "Another".into());
        assert_eq!(changed(&earlier, &elsewhere), ["processor: A Processor → Another"]);
        assert!(!is_comparable(&earlier, &elsewhere));
    }

    #[test]
    fn a_machine_that_became_slower_is_told() {
        let (mut earlier, mut later) = (record("one", 100.0), record("one", 80.0));
        (earlier.machine.read_bandwidth, later.machine.read_bandwidth) = (Some(40e9), Some(20e9));
        assert_eq!(changed(&earlier, &later), ["memory bandwidth 40 → 20 GB/s"]);
    }

    #[test]
    fn a_metric_may_have_a_threshold_of_its_own() {
        let thresholds = ["5%", "load=20%", "peak-memory=1.5"].map(|text| parse_threshold(text).unwrap());
        let thresholds = Thresholds(thresholds.into());
        assert_eq!((thresholds.share("latency"), thresholds.share("load")), (0.05, 0.2));
        assert_eq!(thresholds.share("peak_memory"), 0.015);
        let share_of_one = parse_threshold("0.05").unwrap_err();
        assert!(share_of_one.contains("write 5%, or 0.05%"), "{share_of_one}");
        assert!(parse_threshold("speed=3%").unwrap_err().contains("throughput"));
        assert!(parse_threshold("-1%").is_err() && parse_threshold("load").is_err());
    }

    #[test]
    fn a_threshold_for_one_metric_leaves_the_others_theirs() {
        let thresholds = Thresholds(vec![parse_threshold("load=20%").unwrap()]);
        assert_eq!((thresholds.share("latency"), thresholds.share("load")), (0.05, 0.2));
    }
}
