//! For people: the table in a terminal and in Markdown; for spreadsheets: CSV.

use comfy_table::presets::{ASCII_MARKDOWN, UTF8_FULL_CONDENSED};
use comfy_table::{CellAlignment, Table, TableStyle};

use super::document::{Document, Kind};
use super::verdicts::{Finding, Verdict, percent};
use crate::report::number;

pub(super) fn table(document: &Document) -> String {
    let mut text = format!("{}\n", heading(document).join("\n"));
    if !document.findings.is_empty() {
        text += &format!("\n{}\n", grid(document, UTF8_FULL_CONDENSED));
    }
    for line in lines(document) {
        text += &format!("{line}\n");
    }
    text + &format!("\n{}\n", document.conclusion())
}

pub(super) fn markdown(document: &Document) -> String {
    let mut text = format!("**{}**\n\n", escaped(&document.conclusion()));
    for line in heading(document) {
        text += &format!("- {}\n", escaped(&line));
    }
    if !document.findings.is_empty() {
        text += &format!("\n{}\n", grid(document, ASCII_MARKDOWN));
    }
    let lines = lines(document);
    if !lines.is_empty() {
        text += "\n";
    }
    for line in lines {
        text += &format!("- {}\n", escaped(&line));
    }
    text
}

/// A host may be called anything.
fn escaped(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('|', "\\|").replace('*', "\\*")
}

fn heading(document: &Document) -> Vec<String> {
    let (baseline, current) = (&document.baseline, &document.current);
    let mut lines = match document.kind {
        Kind::Interleaved => vec![
            format!("current: {}", current.sentence()),
            format!(
                "baseline: the workers{}, in the same rounds",
                match &baseline.git_commit {
                    Some(_) => format!(" of commit {}", baseline.commit()),
                    None => format!(" in {}", baseline.source),
                }
            ),
        ],
        Kind::Check => {
            vec![format!("current: {}", current.sentence()), format!("baseline: {}", baseline.sentence())]
        }
        Kind::Diff => vec![format!("A: {}", baseline.sentence()), format!("B: {}", current.sentence())],
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

const DASH: &str = "–";

fn grid(document: &Document, style: TableStyle) -> Table {
    let mut table = Table::new();
    table.load_style(style);
    let names = if document.kind == Kind::Diff { ["A", "B"] } else { ["Baseline", "Current"] };
    let several = document.findings.iter().any(|finding| finding.case != document.findings[0].case);
    let mut header =
        vec!["Framework", "Metric", names[0], names[1], "Change", "95 % interval", "Rounds", "Verdict"];
    if several {
        header.insert(1, "Case");
    }
    table.set_header(header);
    for finding in &document.findings {
        let mut cells = cells(finding);
        if several {
            cells.insert(1, finding.case.clone());
        }
        table.add_row(cells);
    }
    let first = if several { 3 } else { 2 };
    for index in first..first + 5 {
        if let Some(column) = table.column_mut(index) {
            column.set_cell_alignment(CellAlignment::Right);
        }
    }
    table
}

fn cells(finding: &Finding) -> Vec<String> {
    let figure = |value: Option<f64>| {
        value.map_or_else(|| DASH.to_owned(), |value| format!("{} {}", number(value), finding.unit))
    };
    let (a, b) = finding.rounds;
    vec![
        finding.framework.clone(),
        finding.metric.replace('_', " "),
        figure(finding.baseline),
        figure(finding.current),
        finding.ratio.map_or_else(|| DASH.to_owned(), |ratio| percent(ratio - 1.0)),
        finding.interval.map_or_else(
            || DASH.to_owned(),
            |(low, high)| format!("{} to {}", percent(low - 1.0), percent(high - 1.0)),
        ),
        if a == b { a.to_string() } else { format!("{a} / {b}") },
        finding.verdict.word().to_owned(),
    ]
}

/// What is not simply well: sentences, in the order of their weight.
fn lines(document: &Document) -> Vec<String> {
    let mut lines: Vec<String> = document
        .failures
        .iter()
        .map(|broken| format!("{} failed: {}", broken.framework, broken.reason))
        .collect();
    // The conclusion says it, unless there is worse to say.
    let unsaid = document.unmeasurable.iter().filter(|_| document.exit_code != 3);
    lines.extend(unsaid.map(|reason| format!("not measurable: {reason}")));
    let order =
        [Verdict::Regression, Verdict::NotMeasurable, Verdict::Inconclusive, Verdict::Worse, Verdict::Better];
    for verdict in order {
        let follows =
            |follows: bool| document.of(verdict).filter(move |finding| finding.follows.is_some() == follows);
        for finding in follows(false).chain(follows(true)) {
            lines.push(match &finding.follows {
                Some(other) => format!("{}: {} says what {other} says", finding.framework, finding.metric),
                None => finding.sentence.clone(),
            });
        }
    }
    lines.extend(document.warnings.iter().map(|warning| format!("warning: {warning}")));
    lines.extend(
        document
            .alone
            .iter()
            .map(|alone| format!("only in the {}: {} ({})", alone.side, alone.framework, alone.case)),
    );
    lines
}

const HEADER: [&str; 16] = [
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

pub(super) fn csv(document: &Document) -> String {
    let mut writer = csv::Writer::from_writer(Vec::new());
    let mut write = |record: [String; 16]| writer.write_record(&record).expect("memory can be written");
    write(HEADER.map(str::to_owned));
    for finding in &document.findings {
        let number = |value: Option<f64>| value.map_or_else(String::new, |value| value.to_string());
        write([
            finding.framework.clone(),
            finding.case.clone(),
            finding.metric.clone(),
            finding.unit.clone(),
            number(finding.baseline),
            number(finding.current),
            number(finding.ratio),
            number(finding.interval.map(|interval| interval.0)),
            number(finding.interval.map(|interval| interval.1)),
            number(finding.worse),
            finding.rounds.0.to_string(),
            finding.rounds.1.to_string(),
            number(finding.p),
            number(finding.p_adjusted),
            finding.threshold.to_string(),
            finding.verdict.word().to_lowercase().replace(' ', "_"),
        ]);
    }
    String::from_utf8(writer.into_inner().expect("memory can be flushed")).expect("fields are UTF-8")
}
