//! The findings of `check` and `diff`, for people, spreadsheets and test servers.

mod annotations;
mod junit;
mod sentences;
#[cfg(test)]
pub(crate) mod tests;

use judge::metrics;
use judge::regression::{Document, Finding, Kind, Verdict};
use judge::report::number;

use crate::screen::{Screen, Tone};
use crate::table::{Column, Table};
use crate::words::{self, Json, Line, or_dash};
use sentences::{commit, interval, percent, reason, remark, sentence, side, word};

pub use annotations::{github, job_summary, refusal};
pub use junit::junit;
pub use sentences::{conclusion, other_setting, undecidable};

/// The document as text for a terminal: the answer, the figures, and further findings.
pub fn table(document: &Document, screen: &Screen) -> String {
    let mut text = screen.paragraph(Tone::Strong, &conclusion(document)) + "\n";
    text += &heading(document).iter().map(|line| screen.lines(Tone::Plain, line)).collect::<String>();
    if !document.findings.is_empty() {
        text += &format!("\n{}\n", grid(document).terminal(screen));
    }
    for line in lines(document) {
        text += &screen.lines(line.tone, &line.text);
    }
    text
}

/// The document as JSON, each finding also in words.
pub fn json(document: &Document) -> String {
    let mut json = Json::new(document);
    json.each("findings", &document.findings, |json, finding| {
        json.set("sentence", sentence(finding, document.kind).into());
        if finding.reason.is_some() {
            json.set("reason", reason(finding).into());
        }
    });
    json.pretty()
}

/// The document as Markdown, for pull requests.
pub fn markdown(document: &Document) -> String {
    let mut text = format!("**{}**\n\n", untrusted::markdown(&conclusion(document)));
    for line in heading(document) {
        text += &format!("- {}\n", untrusted::markdown(&line));
    }
    if !document.findings.is_empty() {
        text += &format!("\n{}\n", grid(document).markdown());
    }
    let lines = lines(document);
    if !lines.is_empty() {
        text += "\n";
    }
    for line in lines {
        text += &format!("- {}\n", untrusted::markdown(&line.text));
    }
    text
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

/// Whether there are several cases to distinguish.
fn has_several_cases(document: &Document) -> bool {
    document.findings.iter().any(|finding| finding.case != document.findings[0].case)
}

fn grid(document: &Document) -> Table {
    let names = if document.kind == Kind::Diff { ["A", "B"] } else { ["Baseline", "Current"] };
    let several = has_several_cases(document);
    let case = several.then(|| Column::left("Case"));
    let figures = [names[0], names[1], "Change", "95 % interval", "Rounds"].map(Column::right);
    let start = [Column::left("Framework")].into_iter().chain(case).chain([Column::left("Metric")]);
    let mut table = Table::new(start.chain(figures).chain([Column::left("Verdict")]));
    for finding in &document.findings {
        let case = several.then(|| finding.case.clone());
        table.add([finding.framework.clone()].into_iter().chain(case).chain(cells(finding)));
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
    let mut found: Vec<((&str, String), Vec<String>)> = Vec::new();
    for finding in document.with(Verdict::NotMeasurable) {
        let (key, name) = ((finding.framework.as_str(), reason(finding)), metrics::words(&finding.metric));
        match found.iter_mut().find(|(other, _)| *other == key) {
            Some((_, names)) => names.push(name),
            None => found.push((key, vec![name])),
        }
    }
    let told = |((framework, reason), names): ((&str, String), Vec<String>)| {
        format!("{framework}: {} cannot be judged: {reason}", names.join(", "))
    };
    found.into_iter().map(told).collect()
}

const TITLES: [&str; 16] = [
    "framework",
    "case",
    "metric",
    "unit",
    "baseline",
    "current",
    "ratio",
    "low",
    "high",
    "worse",
    "rounds_baseline",
    "rounds_current",
    "p",
    "p_adjusted",
    "threshold",
    "verdict",
];

/// The findings as CSV, for spreadsheets.
pub fn csv(document: &Document) -> String {
    let mut table = Table::plain(TITLES);
    for finding in &document.findings {
        table.add([
            finding.framework.clone(),
            finding.case.clone(),
            finding.metric.clone(),
            finding.unit.clone(),
            words::exact(finding.baseline),
            words::exact(finding.current),
            words::exact(finding.ratio),
            words::exact(finding.interval.map(|interval| interval.0)),
            words::exact(finding.interval.map(|interval| interval.1)),
            words::exact(finding.worse),
            finding.rounds.0.to_string(),
            finding.rounds.1.to_string(),
            words::exact(finding.p),
            words::exact(finding.p_adjusted),
            finding.threshold.to_string(),
            word(finding.verdict).to_lowercase().replace(' ', "_"),
        ]);
    }
    table.csv()
}
