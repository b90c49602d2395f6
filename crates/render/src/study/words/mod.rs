//! A study in words: its heading, and the findings of its cells.

mod along;
pub(super) mod answer;
pub(super) mod crossed;

use judge::report::State;
use judge::report::verdicts::Verdict;
use judge::report::work::generate::first_runs::FirstOfPrompt;
use judge::study::StudyReport;
use judge::study::cell::{self, Cell, CellRow};
use judge::study::compiled::Compiled;
use judge::study::report::axes;
use plan::sweep::SweepKind;
use plan::{Axis, StudyView};

use crate::screen::Tone;
use crate::words::verdicts::sentence;
use crate::words::{Line, Summary, warnings};

/// The summary in words. The study's own statements about cells are not split any further.
pub(crate) fn summary(document: &StudyReport) -> Summary {
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

fn findings(document: &StudyReport) -> Vec<Line> {
    let mut lines = Vec::new();
    let axes = axes(document);
    let name = |cell: &Cell| cell::name(&cell.settings, &axes);
    if document.interrupted {
        let (done, planned) = (document.cells.len(), document.planned.len());
        let text = format!("interrupted: {done} of {planned} cells are done; --resume goes on");
        lines.push(Line::qualifying(Tone::Plain, text));
    }
    for cell in &document.cells {
        let refused = |reason| format!("{}: not run: {reason}", name(cell));
        lines.extend(cell.refused.iter().map(refused).map(|text| Line::qualifying(Tone::Plain, text)));
        for row in cell.rows.iter().filter(|row| row.state != State::Measured) {
            let told = |reason| format!("{}: {}: {reason}", name(cell), row.framework);
            lines.extend(row.reasons.iter().map(told).map(|text| Line::qualifying(Tone::Plain, text)));
        }
    }
    lines.extend(document.scaling.iter().filter_map(|found| along::scaling(found, &axes)).map(Line::plain));
    let of_view = match &document.view {
        StudyView::Sweep(kind) => {
            let mut found = verdicts(document, *kind);
            found.extend(short_warmups(document, *kind));
            found.extend(compiling(document, *kind));
            if *kind == SweepKind::Denoise {
                found.extend(judge::study::crossings(&document.cells).iter().map(along::crossing));
            }
            found
        }
        StudyView::Ab(_) => along::speed_ups(&document.outcomes),
        StudyView::Crossed => crossed::details(&document.cells),
    };
    lines.extend(of_view.into_iter().map(Line::plain));
    let mut warnings: Vec<(String, Vec<String>)> = Vec::new();
    for cell in &document.cells {
        for warning in cell.warnings.iter().map(warnings::sentence) {
            match warnings.iter_mut().find(|(text, _)| *text == warning) {
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
        lines.push(Line::warning(&format!("{place}{warning}")));
    }
    lines.extend(noisy(document, &axes).map(|text| Line::qualifying(Tone::Plain, text)));
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
            } else {
                let place = if name.is_empty() { String::new() } else { format!("{name}: ") };
                clear.push(place + &sentence(verdict, cell.origin.margin));
            }
        }
    }
    if !open.is_empty() {
        clear.push(format!("inconclusive: {}", open.join("; ")));
    }
    clear
}

/// The result of a benchmark with too short a warm-up, next to the steady one.
fn short_warmups(document: &StudyReport, kind: SweepKind) -> Vec<String> {
    if !matches!(kind, SweepKind::Warmup | SweepKind::ShortWarmup) {
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

/// The cost of compiling, the tokens from which it pays, and the first times by length of prompt.
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
        let told = |row: &CellRow| {
            Some(place.clone() + &along::compiled(&Compiled::new(cell, row)?, &row.framework))
        };
        lines.extend(cell.rows.iter().filter_map(told));
        lines.extend(cell.rows.iter().filter_map(prompts).map(|told| place.clone() + &told));
    }
    lines
}

/// The first times of prompts of several lengths, next to later ones.
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
