//! The findings of `check` and `diff`, for people, spreadsheets and test servers.

#[cfg(test)]
pub(crate) mod tests;

use std::collections::BTreeMap;

use comparison::history::Machine;
use comparison::judge::metrics;
use comparison::judge::regression::pairing::{OtherSetting, Undecidable};
use comparison::judge::regression::{Document, Finding, Kind, Reason, Side, Verdict};
use comparison::judge::report::number;
use protocol::untrusted;
use quick_junit::{NonSuccessKind, Report, TestCase, TestCaseStatus, TestSuite};
use serde_json::json;
use statistics::MIN_ROUNDS;
use time::OffsetDateTime;
use time::format_description::well_known::Rfc3339;

use crate::export::{self, Block, Body, Exporter, Markdown};
use crate::flat::{self, Field};
use crate::table::{Column, Screen, Table};
use crate::words::{self, Json, Line, or_dash};

impl export::Document for Document {
    fn body(&self, _: Option<&Screen>) -> Body {
        let mut rest = vec![Block::Lines(heading(self).into_iter().map(Line::plain).collect())];
        if !self.findings.is_empty() {
            rest.push(Block::Table(grid(self)));
        }
        rest.push(Block::Lines(lines(self)));
        Body { answer: vec![Block::Answer(vec![conclusion(self)])], rest }
    }

    /// Each finding also in words.
    fn json(&self) -> Json {
        let mut json = Json::new(self);
        json.each("findings", &self.findings, |json, finding| {
            json.set("sentence", sentence(finding, self.kind).into());
            if finding.reason.is_some() {
                json.set("reason", reason(finding).into());
            }
        });
        json
    }

    /// A line for each finding.
    fn figures(&self) -> Table {
        let line = |finding: &Finding| flat::line(COLUMNS.map(|(name, field)| (name, field(finding))));
        flat::table(&COLUMNS.map(|(name, _)| name), &self.findings.iter().map(line).collect::<Vec<_>>())
    }
}

fn heading(document: &Document) -> Vec<String> {
    let (baseline, current) = (&document.baseline, &document.current);
    let mut lines = match document.kind {
        Kind::Interleaved => vec![
            format!("current: {}", side(current)),
            format!(
                "baseline: the workers{}, in the same rounds",
                match &baseline.git_commit {
                    Some(_) => format!(" of commit {}", commit(baseline)),
                    None => format!(" in {}", baseline.source),
                }
            ),
        ],
        Kind::Versions => vec![
            format!("current: {}", current.source),
            format!("baseline: {}, in the same rounds", baseline.source),
        ],
        Kind::Check => {
            vec![format!("current: {}", side(current)), format!("baseline: {}", side(baseline))]
        }
        Kind::Diff => vec![format!("A: {}", side(baseline)), format!("B: {}", side(current))],
    };
    if matches!(document.kind, Kind::Interleaved | Kind::Versions) {
        lines.push(match document.layouts {
            0 => "layout: one of each build, so that a small difference may be its".to_owned(),
            layouts => format!("layout: each build in {layouts} orders of its functions"),
        });
    }
    if baseline.libraries != current.libraries {
        lines.push(format!(
            "libraries: {} before, {} now",
            baseline.libraries.join(", "),
            current.libraries.join(", ")
        ));
    }
    for difference in &document.differences {
        lines.push(format!("NOT THE SAME: {difference}"));
    }
    lines
}

fn has_several_cases(document: &Document) -> bool {
    document.findings.iter().any(|finding| finding.case != document.findings[0].case)
}

fn grid(document: &Document) -> Table {
    let names = if document.kind == Kind::Diff { ["A", "B"] } else { ["Baseline", "Current"] };
    let several = has_several_cases(document);
    let start = ["Framework"].into_iter().chain(several.then_some("Case")).chain(["Metric"]);
    let mut table = Table::of(start, [names[0], names[1], "Change", "95 % interval", "Rounds"]);
    table.columns.push(Column::left("Verdict"));
    for finding in &document.findings {
        let case = several.then_some(&finding.case);
        table.push([&finding.framework].into_iter().chain(case), cells(finding));
    }
    table
}

/// The cells of a row, without that of the framework.
fn cells(finding: &Finding) -> [String; 7] {
    let figure = |value: Option<f64>| or_dash(value, |value| format!("{} {}", number(value), finding.unit));
    let (a, b) = finding.rounds;
    [
        metrics::words(&finding.metric),
        figure(finding.baseline),
        figure(finding.current),
        or_dash(finding.ratio, |ratio| percent(ratio - 1.0)),
        or_dash(finding.interval.and_then(interval), |interval| interval),
        if a == b { a.to_string() } else { format!("{a} / {b}") },
        word(finding.verdict).to_owned(),
    ]
}

/// Findings that are neither in the conclusion nor in the table, one sentence each, the most serious first.
fn lines(document: &Document) -> Vec<Line> {
    let mut plain: Vec<String> = document
        .failures
        .iter()
        .map(|broken| format!("{} failed: {}", broken.framework, broken.reason))
        .collect();
    // The conclusion says this already, unless there is something worse.
    let unsaid = document.unmeasurable.iter().filter(|_| document.exit_code != 3);
    plain.extend(unsaid.map(|reason| format!("not measurable: {reason}")));
    plain.extend(document.with(Verdict::Regression).filter_map(|finding| regression(document, finding)));
    plain.extend(unmeasured(document));
    plain.extend(
        document
            .with(Verdict::Inconclusive)
            .filter_map(|finding| Some(format!("{}: {}", finding.framework, remark(finding)?))),
    );
    let warning = |warning: &String| Line::warning(warning);
    let alone = document
        .alone
        .iter()
        .map(|alone| format!("only in the {}: {} ({})", alone.side, alone.framework, alone.case));
    let lines = plain.into_iter().map(Line::plain);
    lines.chain(document.warnings.iter().map(warning)).chain(alone.map(Line::plain)).collect()
}

/// A regression with those that follow from it; `None` for one that follows from another.
fn regression(document: &Document, finding: &Finding) -> Option<String> {
    if finding.follows.is_some() {
        return None;
    }
    let follows = |other: &&Finding| {
        other.framework == finding.framework
            && other.case == finding.case
            && other.follows.as_ref() == Some(&finding.metric)
    };
    let followers: Vec<String> = document
        .with(Verdict::Regression)
        .filter(follows)
        .map(|other| metrics::words(&other.metric))
        .collect();
    let followers = match followers.as_slice() {
        [] => String::new(),
        names => format!("; {} says the same", names.join(" and ")),
    };
    Some(format!("{}: {}{followers}", finding.framework, remark(finding)?))
}

/// Findings without a verdict, together by framework and reason.
fn unmeasured(document: &Document) -> Vec<String> {
    let found = document
        .with(Verdict::NotMeasurable)
        .map(|finding| ((&finding.framework, reason(finding)), metrics::words(&finding.metric)));
    let told = |((framework, reason), names): (_, Vec<String>)| {
        format!("{framework}: {} cannot be judged: {reason}", names.join(", "))
    };
    words::grouped(found).into_iter().map(told).collect()
}

const COLUMNS: [Field<Finding>; 16] = [
    ("framework", |it| json!(it.framework)),
    ("case", |it| json!(it.case)),
    ("metric", |it| json!(it.metric)),
    ("unit", |it| json!(it.unit)),
    ("baseline", |it| json!(it.baseline)),
    ("current", |it| json!(it.current)),
    ("ratio", |it| json!(it.ratio)),
    ("low", |it| json!(it.interval.map(|(low, _)| low))),
    ("high", |it| json!(it.interval.map(|(_, high)| high))),
    ("worse", |it| json!(it.worse)),
    ("rounds_baseline", |it| json!(it.rounds.0)),
    ("rounds_current", |it| json!(it.rounds.1)),
    ("p", |it| json!(it.p)),
    ("p_adjusted", |it| json!(it.p_adjusted)),
    ("threshold", |it| json!(it.threshold)),
    ("verdict", |it| json!(word(it.verdict).to_lowercase().replace(' ', "_"))),
];

// Annotations of a GitHub workflow, and its job summary.

/// Columns of a log, which folds nothing.
const LOG: usize = 120;

/// The table for the log, then an annotation for each important finding.
///
/// The syntax is in GitHub's documentation, "Workflow commands for GitHub Actions". The escapes are those of
/// `@actions/core`.
pub fn github(document: &Document) -> String {
    let mut text = Screen::plain(LOG).export(document);
    for broken in &document.failures {
        text += &annotation("error", &format!("{} failed", broken.framework), &broken.reason);
    }
    if let Some(reason) = &document.unmeasurable {
        text += &annotation("warning", "Performance is not measurable", reason);
    }
    for finding in document.findings.iter().filter(|finding| finding.follows.is_none()) {
        let name = named(finding);
        let (level, title) = match finding.verdict {
            Verdict::Regression => ("error", format!("Performance regression: {name}")),
            Verdict::NotMeasurable => ("warning", format!("Not measurable: {name}")),
            Verdict::Inconclusive if finding.is_beyond() => ("warning", format!("Inconclusive: {name}")),
            Verdict::Better => ("notice", format!("Better: {name}")),
            _ => continue,
        };
        text += &annotation(level, &title, &sentence(finding, document.kind));
    }
    for difference in &document.differences {
        text += &annotation("warning", "Runs differ", difference);
    }
    text
}

/// The annotation of a check that was refused.
pub fn refusal(reason: &str) -> String {
    annotation("error", "Performance check refused", reason)
}

fn annotation(level: &str, title: &str, message: &str) -> String {
    let message = untrusted::line(message).replace('%', "%25");
    let title = untrusted::line(title).replace('%', "%25").replace(':', "%3A").replace(',', "%2C");
    format!("::{level} title={title}::{message}\n")
}

/// The text that is added to a job's summary.
pub fn job_summary(document: &Document) -> String {
    format!("## Performance\n\n{}\n", Markdown::Whole.export(document))
}

// JUnit reports, which build servers show.

/// A suite for each framework, a case for each of its metrics. A metric that is not measurable is skipped, with the
/// reason.
pub fn junit(document: &Document, now: OffsetDateTime) -> String {
    let mut suites: BTreeMap<&str, Vec<TestCase>> = BTreeMap::new();
    for broken in &document.failures {
        let status = because(TestCaseStatus::non_success(NonSuccessKind::Error), &broken.reason);
        let case = test("runs", &broken.framework, status);
        suites.entry(&broken.framework).or_default().push(case);
    }
    if let Some(reason) = &document.unmeasurable {
        let case = test("quiet", "machine", because(TestCaseStatus::skipped(), reason));
        suites.entry("machine").or_default().push(case);
    }
    let several = has_several_cases(document);
    for finding in &document.findings {
        suites.entry(&finding.framework).or_default().push(case(finding, document.kind, several));
    }
    let now = now.format(&Rfc3339).unwrap_or_default();
    let mut report = Report::new("photofinish");
    for (framework, cases) in suites {
        let mut suite = TestSuite::new(framework);
        suite.add_test_cases(cases);
        suite.extra.insert("skipped".into(), suite.disabled.to_string().as_str().into());
        suite.extra.insert("timestamp".into(), now.as_str().into());
        report.add_test_suite(suite);
    }
    report.to_string().expect("memory can be written")
}

fn test(name: &str, framework: &str, status: TestCaseStatus) -> TestCase {
    let mut case = TestCase::new(name, status);
    case.set_classname(framework);
    case
}

fn because(mut status: TestCaseStatus, message: &str) -> TestCaseStatus {
    status.set_message(message);
    status
}

fn case(finding: &Finding, kind: Kind, several: bool) -> TestCase {
    let Finding { metric, framework, .. } = finding;
    let sentence = &sentence(finding, kind);
    let name = if several { format!("{metric} ({})", finding.case) } else { metric.clone() };
    match finding.verdict {
        Verdict::Regression => {
            let mut status = because(TestCaseStatus::non_success(NonSuccessKind::Failure), sentence);
            status.set_type("regression");
            test(&name, framework, status)
        }
        Verdict::NotMeasurable => test(&name, framework, because(TestCaseStatus::skipped(), sentence)),
        _ => {
            let mut case = test(&name, framework, TestCaseStatus::success());
            case.set_system_out(sentence.as_str());
            case
        }
    }
}

// The findings of a check or a diff, in sentences.

/// "throughput of candle".
fn named(finding: &Finding) -> String {
    format!("{} of {}", metrics::words(&finding.metric), finding.framework)
}

pub fn conclusion(document: &Document) -> String {
    let named = |verdict: Verdict| {
        let told = document.with(verdict).filter(|finding| finding.follows.is_none());
        told.map(named).collect::<Vec<_>>()
    };
    match document.exit_code {
        1 => {
            let names: Vec<&str> = document.failures.iter().map(|broken| broken.framework.as_str()).collect();
            format!("failed: {}", names.join(", "))
        }
        4 => format!("regression: {}", named(Verdict::Regression).join(", ")),
        3 => match &document.unmeasurable {
            Some(reason) => format!("not measurable: {reason}"),
            None => format!("not measurable: {}", named(Verdict::NotMeasurable).join(", ")),
        },
        _ if document.kind == Kind::Diff => format!("{} figures compared", document.findings.len()),
        _ => match named(Verdict::Inconclusive).as_slice() {
            [] => "no regression".to_owned(),
            unclear => format!("no regression shown; inconclusive: {}", unclear.join(", ")),
        },
    }
}

/// A run: "20260101T000000Z-host, commit 0123abc, on host (A Processor)".
fn side(side: &Side) -> String {
    let commit = side.git_commit.as_ref().map(|_| format!(", commit {}", commit(side)));
    let Machine { host, cpu, .. } = &side.machine;
    format!("{}{}, on {host} ({cpu})", side.run, commit.unwrap_or_default())
}

/// The commit, shortened, with a mark for local changes.
fn commit(side: &Side) -> String {
    let commit = side.git_commit.as_deref().unwrap_or_default();
    let modified = if side.git_modified == Some(true) { " and changes" } else { "" };
    format!("{}{modified}", commit.get(..9).unwrap_or(commit))
}

/// A finding in one sentence. A diff has no threshold.
fn sentence(finding: &Finding, kind: Kind) -> String {
    let Finding { framework, metric, unit, threshold, .. } = finding;
    let start = format!("{framework}: {}", metrics::words(metric));
    let (Some(baseline), Some(current), Some(ratio), Some(bounds)) =
        (finding.baseline, finding.current, finding.ratio, finding.interval)
    else {
        return format!("{start} is not measurable: {}", reason(finding));
    };
    let (a, b) = finding.rounds;
    let rounds = if a == b { format!("{a} rounds") } else { format!("{a} and {b} rounds") };
    let interval = match interval(bounds) {
        Some(interval) => format!("95 % interval {interval}, {rounds}"),
        None => format!("too few rounds for an interval, {rounds}"),
    };
    let figures =
        format!("{}, {} against {} {unit}", percent(ratio - 1.0), number(current), number(baseline));
    let limit = 100.0 * threshold;
    match finding.verdict {
        Verdict::Regression => {
            format!("{start} regressed: {figures} ({interval}), beyond the threshold of {limit} %")
        }
        Verdict::Worse if kind != Kind::Diff => {
            format!("{start} is worse, within the threshold of {limit} %: {figures} ({interval})")
        }
        Verdict::Worse => format!("{start} is worse: {figures} ({interval})"),
        Verdict::Better => format!("{start} is better: {figures} ({interval})"),
        Verdict::Equivalent => format!("{start} is equivalent within {limit} %: {figures} ({interval})"),
        Verdict::Inconclusive => {
            let p = finding.p_adjusted.unwrap_or(1.0);
            let needed = open_because(finding).map_or(String::new(), |needed| format!("; {needed}"));
            format!("{start} is inconclusive: {figures} ({interval}, adjusted p = {p:.2}){needed}")
        }
        Verdict::NotMeasurable => {
            format!("{start} is not measurable: {}: {figures} ({interval})", reason(finding))
        }
    }
}

/// The part of a finding that its table does not show; `None` if it shows all. Findings without a verdict are
/// listed together elsewhere, by their reason.
fn remark(finding: &Finding) -> Option<String> {
    let name = metrics::words(&finding.metric);
    match finding.verdict {
        Verdict::Regression => {
            Some(format!("{name} is worse by more than the threshold of {} %", 100.0 * finding.threshold))
        }
        Verdict::Inconclusive => Some(format!("{name} is inconclusive: {}", open_because(finding)?)),
        Verdict::NotMeasurable | Verdict::Worse | Verdict::Better | Verdict::Equivalent => None,
    }
}

/// Why a finding is inconclusive, or what would decide it.
fn open_because(finding: &Finding) -> Option<String> {
    if finding.reason == Some(Reason::Layout) { Some(reason(finding)) } else { more_rounds(finding) }
}

/// The number of rounds that would decide, if the estimate exceeds the threshold.
fn more_rounds(finding: &Finding) -> Option<String> {
    finding.is_beyond().then(|| match finding.rounds_needed {
        Some(rounds) => format!("about {rounds} rounds in each run would decide (--rounds {rounds})"),
        None => "more rounds would decide (--rounds)".to_owned(),
    })
}

fn reason(finding: &Finding) -> String {
    let few = |side, rounds| format!("{side} has {rounds} rounds of the {MIN_ROUNDS} that a verdict takes");
    let (baseline, current) = finding.rounds;
    let told = match finding.reason {
        Some(Reason::NotInBaseline) => "the baseline has no figures of it",
        Some(Reason::NotInCurrent) => "the current run has no figures of it",
        Some(Reason::Figures) => "there are too few figures, or some that are not positive",
        Some(Reason::RoundsOfBaseline) => return few("the baseline", baseline),
        Some(Reason::RoundsOfCurrent) => return few("the current run", current),
        Some(Reason::SlowerMachine) => "the machine itself was slower, which may account for it",
        Some(Reason::FasterMachine) => "the machine itself was faster, which may hide one",
        Some(Reason::Layout) => {
            "the difference may be one of the layout of the code, which no change of it explains"
        }
        None => "there are no figures",
    };
    told.to_owned()
}

/// A verdict for tables. Only a regression is in capitals.
fn word(verdict: Verdict) -> &'static str {
    match verdict {
        Verdict::Regression => "REGRESSION",
        Verdict::Worse => "worse",
        Verdict::Better => "better",
        Verdict::Equivalent => "equivalent",
        Verdict::Inconclusive => "inconclusive",
        Verdict::NotMeasurable => "not measurable",
    }
}

/// A share as "+8.0 %", or as "120x" if it is too large to read in percent.
fn percent(share: f64) -> String {
    match share {
        share if !share.is_finite() => "not known".to_owned(),
        share if share < 100.0 => format!("{:+.1} %", 100.0 * share),
        share => format!("{:.0}x", share + 1.0),
    }
}

/// The interval of a ratio: "-1.0 % to +8.0 %"; `None` where it says nothing, because there are too few rounds.
fn interval((low, high): (f64, f64)) -> Option<String> {
    let tells = low > 0.001 && high.is_finite() && high <= 100.0;
    tells.then(|| format!("{} to {}", percent(low - 1.0), percent(high - 1.0)))
}

/// Why no measurement could be judged against the baseline `source` now, and what to do.
pub fn undecidable(reason: &Undecidable, source: &str) -> String {
    const REMEDY: &str = "measure a new baseline, or name another with --baseline";
    match reason {
        Undecidable::NoisyBaseline(noise) => {
            format!("the machine was too noisy in the baseline {source} ({noise}): {REMEDY}")
        }
        Undecidable::NoFigures(why) => {
            let why = why.as_ref().map_or_else(String::new, |why| format!(" ({why})"));
            format!("no framework has valid figures in the baseline {source}{why}: {REMEDY}")
        }
        Undecidable::RoundsOfBaseline(rounds) => {
            let counted = match rounds {
                0 => "no figures".to_owned(),
                rounds => words::count(*rounds, "round"),
            };
            format!(
                "the baseline {source} has {counted}, and a verdict takes {MIN_ROUNDS}: nothing measured now could decide; \
                 measure a new baseline with --rounds {MIN_ROUNDS} or more, or name another with --baseline"
            )
        }
        Undecidable::RoundsAsked(rounds) => format!(
            "--rounds {rounds} can decide nothing: a verdict takes {MIN_ROUNDS} rounds; give {MIN_ROUNDS} or more, or \
             leave --rounds out"
        ),
        Undecidable::QuickLook => {
            "--quick can decide nothing: it is for a look at figures, and a verdict takes more rounds"
                .to_owned()
        }
    }
}

/// A setting that makes the request another case: "--batch: 1 (baseline), 8 (asked for)".
pub fn other_setting(OtherSetting { flag, baseline, asked }: &OtherSetting) -> String {
    format!("{flag}: {baseline} (baseline), {asked} (asked for)")
}

#[cfg(test)]
mod unit {
    use super::*;

    #[test]
    fn annotations_stay_on_their_line_and_in_their_field() {
        assert_eq!(
            annotation("error", "a: b, 5 %", "first\nsecond: 8 %"),
            "::error title=a%3A b%2C 5 %25::first second: 8 %25\n"
        );
    }

    #[test]
    fn an_interval_that_says_nothing_is_not_told() {
        assert_eq!(interval((0.99, 1.08)).unwrap(), "-1.0 % to +8.0 %");
        assert_eq!(interval((1e-9, 1e9)), None);
        assert_eq!(interval((0.0, f64::INFINITY)), None);
    }

    #[test]
    fn what_cannot_be_decided_names_the_baseline_and_what_to_do() {
        let told = |reason| undecidable(&reason, "latest");
        let few = told(Undecidable::RoundsOfBaseline(2));
        assert!(few.contains("the baseline latest has 2 rounds, and a verdict takes 6"), "{few}");
        let noisy = told(Undecidable::NoisyBaseline("other processes used 50 %".into()));
        assert!(noisy.contains("too noisy in the baseline latest (other processes used 50 %)"), "{noisy}");
        assert!(told(Undecidable::RoundsAsked(5)).contains("--rounds 5 can decide nothing"));
        let batch = OtherSetting { flag: "--batch", baseline: "1".into(), asked: "8".into() };
        assert_eq!(other_setting(&batch), "--batch: 1 (baseline), 8 (asked for)");
    }
}
