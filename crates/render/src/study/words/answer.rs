//! The answer of a study: the sentences that every output begins with.

use std::collections::BTreeMap;

use judge::Metric;
use judge::report::verdicts::Verdict;
use judge::study::{Cell, Outcome};
use plan::sweep::SweepKind;
use plan::{Axis, StudyView};
use statistics::MIN_ROUNDS;

use super::crossed;
use crate::words::amounts::times;
use crate::words::answer::standing::Standing;

/// The metric that a sweep is about.
pub(super) fn deciding(kind: SweepKind) -> Metric {
    match kind {
        SweepKind::Forward => Metric::PrefillThroughput,
        SweepKind::Memory => Metric::PeakMemory,
        SweepKind::Denoise => Metric::DenoisingThroughput,
        SweepKind::Embed => Metric::EncodingThroughput,
        SweepKind::Callers => Metric::RequestThroughput,
        _ => Metric::Throughput,
    }
}

/// One sentence, or two where cells are open.
pub(super) fn answer(view: &StudyView, cells: &[Cell], outcomes: &[Outcome]) -> Vec<String> {
    let measured: Vec<&Cell> = cells.iter().filter(|cell| cell.rounds > 0).collect();
    let Some(rounds) = measured.iter().map(|cell| cell.rounds).max() else {
        return vec!["Nothing was measured.".into()];
    };
    if rounds < MIN_ROUNDS {
        let each = if rounds == 1 { "One round decides".into() } else { format!("{rounds} rounds decide") };
        return vec![format!(
            "A first look at {}. {each} nothing; a verdict takes {MIN_ROUNDS} in each cell (`--rounds {MIN_ROUNDS}`).",
            counted(measured.len())
        )];
    }
    match view {
        StudyView::Sweep(kind) => sweep(&measured, deciding(*kind)),
        StudyView::Ab(_) if has_mistakes(outcomes) => vec![mistakes(outcomes)],
        StudyView::Ab(arms) => ab(outcomes, arms),
        StudyView::Crossed => crossed::answer(&measured),
    }
}

fn counted(count: usize) -> String {
    if count == 1 { "1 cell".into() } else { format!("{count} cells") }
}

/// "ort decodes fastest in 5 of 8 cells, candle in 1; 2 too close to call."
fn sweep(measured: &[&Cell], metric: Metric) -> Vec<String> {
    let compared: Vec<&&Cell> = measured.iter().filter(|cell| cell.rows.len() > 1).collect();
    if compared.is_empty() {
        return vec![format!(
            "{} of one framework: there is nothing to compare it with.",
            counted(measured.len())
        )];
    }
    let mut wins: BTreeMap<&str, usize> = BTreeMap::new();
    for best in compared.iter().filter_map(|cell| standing(cell, of_cell(cell, metric)).winner()) {
        *wins.entry(best).or_default() += 1;
    }
    let open = compared.len() - wins.values().sum::<usize>();
    let mut ranked: Vec<(&str, usize)> = wins.into_iter().collect();
    ranked.sort_by_key(|(name, count)| (std::cmp::Reverse(*count), *name));
    let all = counted(compared.len());
    let is_one = |metric| compared.iter().all(|cell| of_cell(cell, metric) == metric);
    // Cells may have several questions: batches of texts, and a single one.
    let is_best =
        metric.phrases().filter(|_| is_one(metric)).map_or("is fastest", |phrases| phrases.superlative);
    let told: Vec<String> = ranked
        .iter()
        .enumerate()
        .map(|(place, (name, count))| match place {
            0 => format!("{name} {is_best} in {count} of {all}"),
            _ => format!("{name} in {count}"),
        })
        .collect();
    vec![match (told.is_empty(), open) {
        (true, _) => format!("Too close to call in all of {all}."),
        (false, 0) => format!("{}.", told.join(", ")),
        (false, open) => format!("{}; {open} too close to call.", told.join(", ")),
    }]
}

/// The metric in a cell: in a study of denoising some go token by token, and in one of encoders some have a single text.
pub(super) fn of_cell(cell: &Cell, metric: Metric) -> Metric {
    let has = cell.verdicts.iter().any(|verdict| verdict.metric == metric);
    match metric {
        Metric::DenoisingThroughput if !has => Metric::Throughput,
        Metric::EncodingThroughput if !has => Metric::SingleText,
        _ => metric,
    }
}

/// The contenders of a cell in one metric.
pub(crate) fn standing(cell: &Cell, metric: Metric) -> Standing<'_> {
    let rows = cell.rows.iter().filter(|row| row.state.takes_part());
    Standing::new(metric, &cell.verdicts, rows.map(|row| (row.framework.as_str(), row.typical(metric))))
}

fn has_mistakes(outcomes: &[Outcome]) -> bool {
    outcomes.iter().any(|outcome| outcome.settings.contains_key(&Axis::Mistake))
}

/// "candle: a debug build costs most: a request takes 38x as long. 5 of 7 mistakes cost time for certain."
fn mistakes(outcomes: &[Outcome]) -> String {
    let at = |outcome: &Outcome, axis| outcome.settings.get(&axis).map_or(String::new(), ToString::to_string);
    let compared: Vec<&Outcome> = outcomes.iter().filter(|outcome| outcome.verdict.is_some()).collect();
    let mut costly = compared.iter().filter(|outcome| outcome.verdict == Some(Verdict::Faster));
    let (count, all) = (costly.clone().count(), compared.len());
    let Some(worst) = costly.next() else {
        return format!("None of {all} mistakes costs time for certain.");
    };
    let (framework, mistake) = (at(worst, Axis::Framework), at(worst, Axis::Mistake));
    let long = times(worst.speedup.unwrap_or(1.0));
    format!(
        "{framework}: {mistake} costs most, a request takes {long} as long. {count} of {all} mistakes cost time for certain."
    )
}

/// "fused against base: faster in 6 of 9 cells (1.05x to 12x), slower in 1 (1.1x); 2 too close to call."
fn ab(outcomes: &[Outcome], [with, without]: &[String; 2]) -> Vec<String> {
    let outcomes: Vec<_> = outcomes.iter().filter(|outcome| outcome.speedup.is_some()).collect();
    let of = |verdict: Verdict| -> Vec<f64> {
        let found = outcomes.iter().filter(|outcome| outcome.verdict == Some(verdict));
        found.filter_map(|outcome| outcome.speedup).collect()
    };
    let range = |ratios: &[f64]| {
        let (least, most) = (
            ratios.iter().copied().fold(f64::INFINITY, f64::min),
            ratios.iter().copied().fold(0.0, f64::max),
        );
        let [least, most] = [least, most].map(times);
        if least == most { least } else { format!("{least} to {most}") }
    };
    let (faster, slower, same) = (of(Verdict::Faster), of(Verdict::Slower), of(Verdict::Equivalent));
    let inverse: Vec<f64> = slower.iter().map(|ratio| 1.0 / ratio).collect();
    let all = counted(outcomes.len());
    let groups = [
        ("faster", faster.len(), range(&faster)),
        ("slower", slower.len(), range(&inverse)),
        ("equally fast", same.len(), String::new()),
    ];
    let mut told: Vec<String> = Vec::new();
    for (word, count, range) in groups.into_iter().filter(|(_, count, _)| *count > 0) {
        let of_all = if told.is_empty() { format!(" of {all}") } else { String::new() };
        let range = if range.is_empty() { range } else { format!(" ({range})") };
        told.push(format!("{word} in {count}{of_all}{range}"));
    }
    let open = outcomes.len() - faster.len() - slower.len() - same.len();
    let rest = match (told.is_empty(), open) {
        (_, 0) => String::new(),
        (true, _) => format!("too close to call in all of {all}"),
        (false, open) => format!("; {open} too close to call"),
    };
    vec![format!("{with} against {without}: {}{rest}.", told.join(", "))]
}
