//! The outcome of a study as one value.

use plan::sweep::SweepKind;
use plan::{Axis, Settings, StudyView};
use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::cell::{self, Cell, CellRow};
use super::compiled::Compiled;
use super::denoising::{self, Crossing};
use super::scaling::Scaling;
use super::{Outcome, ab, answer, crossed};
use crate::first_runs::FirstOfPrompt;
use crate::report::{self, State, Summary};
use crate::verdicts::Verdict;
use facts::reading;

/// The outcome as one value. The table, Markdown, CSV and JSON are made from it.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct StudyReport {
    pub schema: u32,
    pub study: String,
    pub command: Vec<String>,
    pub started: String,
    /// The analysis of the suite that named it: what it shows, and what it does not.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub analysis: String,
    /// Places of all planned cells. A planned cell that is missing was not reached.
    pub planned: Vec<Settings>,
    pub cells: Vec<Cell>,
    pub scaling: Vec<Scaling>,
    /// The outcomes of an A/B study.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub outcomes: Vec<Outcome>,
    pub interrupted: bool,
    /// Directory that holds every comparison.
    pub results: String,
    pub view: StudyView,
    pub summary: Summary,
}

/// Reads `report.json` of a study back. The error is one sentence.
pub fn read(value: Value) -> Result<StudyReport, String> {
    report::check_schema(&value)?;
    let report: StudyReport = reading::typed(value, "the report of a study")?;
    report.cells.iter().try_for_each(Cell::check)?;
    let summary = if report.summary.answer.is_empty() { summary(&report) } else { report.summary.clone() };
    Ok(StudyReport { summary, ..report })
}

/// The summary in words. The study's own statements about cells are not split any further.
pub fn summary(document: &StudyReport) -> Summary {
    Summary {
        answer: answer::answer(&document.view, &document.cells, &document.outcomes),
        heading: heading(document),
        details: findings(document),
        ..Summary::default()
    }
}

fn heading(document: &StudyReport) -> String {
    let (done, planned) = (document.cells.len(), document.planned.len());
    let cells = if done == planned { format!("{done} cells") } else { format!("{done} of {planned} cells") };
    let rounds: Vec<usize> =
        document.cells.iter().map(|cell| cell.rounds).filter(|&rounds| rounds > 0).collect();
    let rounds = match (rounds.iter().min(), rounds.iter().max()) {
        (Some(least), Some(most)) if least == most => format!(", {least} rounds each"),
        (Some(least), Some(most)) => format!(", {least} to {most} rounds each"),
        _ => String::new(),
    };
    let shared = shared(document);
    let shared = if shared.is_empty() { String::new() } else { format!(" ({})", shared.join(", ")) };
    format!("{}{shared}: {cells}{rounds}", document.study)
}

/// Axes with one value, which have no column.
fn shared(document: &StudyReport) -> Vec<String> {
    let columns = axes(document);
    let first = document.planned.first();
    let single = first.into_iter().flatten().filter(|(axis, _)| !columns.contains(axis));
    single.map(|(axis, value)| format!("{} {value}", axis.title().to_lowercase())).collect()
}

/// The axes with a column: those that vary and those that the study is named for.
pub fn axes(document: &StudyReport) -> Vec<Axis> {
    let own: &[Axis] = match &document.view {
        StudyView::Sweep(kind) => kind.own_axes(),
        StudyView::Ab(_) | StudyView::Crossed => &[Axis::Framework],
    };
    let Some(first) = document.planned.first() else { return Vec::new() };
    let varied = varied(&document.planned);
    first.keys().filter(|axis| own.contains(axis) || varied.contains(axis)).copied().collect()
}

/// Axes on which cells differ.
pub fn varied(planned: &[Settings]) -> Vec<Axis> {
    let Some(first) = planned.first() else { return Vec::new() };
    let varies = |axis: &&Axis| planned.iter().any(|settings| settings.get(axis) != first.get(axis));
    first.keys().filter(varies).copied().collect()
}

fn findings(document: &StudyReport) -> Vec<String> {
    let mut lines = Vec::new();
    let axes = axes(document);
    let name = |cell: &Cell| cell::name(&cell.settings, &axes);
    if document.interrupted {
        let (done, planned) = (document.cells.len(), document.planned.len());
        lines.push(format!("interrupted: {done} of {planned} cells are done; --resume goes on"));
    }
    for cell in &document.cells {
        lines.extend(cell.refused.iter().map(|reason| format!("{}: not run: {reason}", name(cell))));
        for row in cell.rows.iter().filter(|row| row.state != State::Measured) {
            lines.extend(
                row.reasons.iter().map(|reason| format!("{}: {}: {reason}", name(cell), row.framework)),
            );
        }
    }
    lines.extend(document.scaling.iter().filter_map(|scaling| scaling.sentence(&axes)));
    match &document.view {
        StudyView::Sweep(kind) => {
            lines.extend(verdicts(document, *kind));
            lines.extend(short_warmups(document, *kind));
            lines.extend(compiling(document, *kind));
            if *kind == SweepKind::Denoise {
                lines.extend(denoising::crossings(&document.cells).iter().map(Crossing::sentence));
            }
        }
        StudyView::Ab(_) => lines.extend(ab::sentences(&document.outcomes)),
        StudyView::Crossed => lines.extend(crossed::details(&document.cells)),
    }
    let mut warnings: Vec<(&str, Vec<String>)> = Vec::new();
    for cell in &document.cells {
        for warning in &cell.warnings {
            match warnings.iter_mut().find(|(text, _)| text == warning) {
                Some((_, cells)) => cells.push(name(cell)),
                None => warnings.push((warning, vec![name(cell)])),
            }
        }
    }
    for (warning, cells) in warnings {
        let place = match cells.len() {
            count if count == document.cells.len() => String::new(),
            1 => format!("{}: ", cells[0]),
            count => format!("{count} cells, {} the first: ", cells[0]),
        };
        lines.push(format!("warning: {place}{warning}"));
    }
    lines.extend(noisy(document, &axes));
    lines
}

/// The last line, if the machine was too noisy for verdicts in some cells.
fn noisy(document: &StudyReport, axes: &[Axis]) -> Option<String> {
    let noisy: Vec<&Cell> = document.cells.iter().filter(|cell| cell.is_noisy()).collect();
    let first = cell::name(&noisy.first()?.settings, axes);
    Some(format!(
        "too noisy: {} of {} cells, {first} the first; their figures are disturbed and have no verdicts on speed: \
         run them again on a quiet machine, or add --accept-noise",
        noisy.len(),
        document.cells.len()
    ))
}

/// The verdicts on the study's main metric, if there were enough rounds.
fn verdicts(document: &StudyReport, kind: SweepKind) -> Vec<String> {
    let rounds = document.cells.iter().map(|cell| cell.rounds).max().unwrap_or(0);
    let fewest = statistics::MIN_ROUNDS;
    let is_compared = document.cells.iter().any(|cell| cell.rows.len() > 1);
    if !is_compared || rounds == 0 {
        return Vec::new();
    }
    if rounds < fewest {
        return vec![format!(
            "inconclusive: a verdict takes {fewest} rounds in each cell, and there were {rounds} (--rounds {fewest})"
        )];
    }
    let deciding = answer::deciding(kind);
    let axes = axes(document);
    let (mut clear, mut open) = (Vec::new(), Vec::new());
    for cell in &document.cells {
        let name = cell::name(&cell.settings, &axes);
        let deciding = answer::of_cell(cell, deciding);
        for verdict in cell.verdicts.iter().filter(|verdict| verdict.metric == deciding) {
            if verdict.verdict == Verdict::Inconclusive {
                let pair = format!("{} and {}", verdict.a, verdict.b);
                open.push(if name.is_empty() { pair } else { format!("{name} ({pair})") });
            } else if name.is_empty() {
                clear.push(verdict.sentence.clone());
            } else {
                clear.push(format!("{name}: {}", verdict.sentence));
            }
        }
    }
    if !open.is_empty() {
        clear.push(format!("inconclusive: {}", open.join("; ")));
    }
    clear
}

/// What a warm-up that is shorter than the test would have claimed, and what is so.
fn short_warmups(document: &StudyReport, kind: SweepKind) -> Vec<String> {
    if kind != SweepKind::ShortWarmup {
        return Vec::new();
    }
    let of_row = |row: &CellRow| {
        let short = row.steadiness.short_warmup.as_ref()?;
        Some(format!(
            "{}: a script with {} tokens of warm-up and {} of test would have reported {:.1} tok/s, {:+.1} % from the steady {:.1} at the same places",
            row.framework,
            short.warmup_tokens,
            short.test_tokens,
            short.tokens_per_second,
            100.0 * short.error,
            short.steady_tokens_per_second,
        ))
    };
    document.cells.iter().flat_map(|cell| &cell.rows).filter_map(of_row).collect()
}

/// What compiling costs, from when on it pays, and who compiles anew for another length.
fn compiling(document: &StudyReport, kind: SweepKind) -> Vec<String> {
    if kind != SweepKind::Warmup {
        return Vec::new();
    }
    let axes = axes(document);
    let mut lines = Vec::new();
    for cell in &document.cells {
        let place = match cell::name(&cell.settings, &axes) {
            name if name.is_empty() => name,
            name => format!("{name}: "),
        };
        let told = |row: &CellRow| Some(place.clone() + &Compiled::new(cell, row)?.sentence(&row.framework));
        lines.extend(cell.rows.iter().filter_map(told));
        lines.extend(cell.rows.iter().filter_map(prompts).map(|told| place.clone() + &told));
    }
    lines
}

/// The first time that prompts of several lengths were computed, beside later ones.
fn prompts(row: &CellRow) -> Option<String> {
    let prompts = &row.steadiness.first_runs.as_ref()?.prompts;
    let is_varied = prompts.iter().any(|prompt| prompt.tokens != prompts[0].tokens);
    let told = prompts.iter().map(|prompt| {
        let FirstOfPrompt { tokens, first_ms, steady_ms } = prompt;
        format!("{tokens} tokens {first_ms:.0} ms, later {steady_ms:.0}")
    });
    is_varied.then(|| {
        format!("{}, first time of each prompt: {}", row.framework, told.collect::<Vec<_>>().join("; "))
    })
}

impl StudyReport {
    /// The worst exit code of its cells; 0 if the remaining cells could not be measured by their nature.
    pub fn exit_code(&self) -> u8 {
        self.cells.iter().map(|cell| cell.exit_code).max().unwrap_or(0)
    }
}

/// Fills in everything that is derived from the cells of `report`: outcomes, scaling, sentences.
pub fn new(mut report: StudyReport) -> StudyReport {
    report.outcomes = match &report.view {
        StudyView::Ab(_) => ab::outcomes(&report.cells),
        StudyView::Sweep(_) | StudyView::Crossed => Vec::new(),
    };
    report.scaling = match &report.view {
        StudyView::Sweep(kind) => super::scaling::along(*kind, &report.cells),
        StudyView::Ab(_) => ab::scaling(&report.outcomes),
        StudyView::Crossed => Vec::new(),
    };
    report.summary = summary(&report);
    report
}
