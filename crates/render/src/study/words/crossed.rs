//! `ab optimised` in words: the gain of all switches of a framework together, and of each.

use judge::report::crossed::{Contribution, Crossed, Effect};
use judge::report::verdicts::Verdict;
use judge::study::cell::{self, Cell};
use plan::Axis;
use statistics::MIN_ROUNDS;

/// Most sentences of an answer; the rest is in the table.
const MOST: usize = 3;

/// A sentence for each framework and place.
pub(super) fn answer(measured: &[&Cell]) -> Vec<String> {
    let axes = varied(measured);
    let told: Vec<String> = measured.iter().filter_map(|cell| sentence(cell, &axes)).collect();
    if told.is_empty() {
        return vec!["Nothing can be said: no framework ran with all switches on and with all off.".into()];
    }
    let others = told.len().saturating_sub(MOST);
    let rest = (others > 0).then(|| format!("The table has {others} more."));
    told.into_iter().take(MOST).chain(rest).collect()
}

/// "jax: all on is 14.2x (13.5–14.9x) as fast as all off; of it the cache gives 9.81x (…), the JIT 1.45x (…)."
fn sentence(cell: &Cell, axes: &[Axis]) -> Option<String> {
    let crossed = cell.crossed.as_ref()?;
    let (name, whole) = (title(cell, axes), crossed.together.share.as_ref()?);
    if whole.verdict == Some(Verdict::NotMeasurable) {
        return Some(format!("{name}: no verdict, for the machine was too noisy."));
    }
    let certain = match whole.verdict {
        Some(Verdict::Equivalent) => ", which is equivalent",
        Some(Verdict::Inconclusive) => ", which is not certain",
        _ => "",
    };
    let all = format!("{name}: all on is {} as fast as all off{certain}", amount(whole));
    Some(match shares(crossed) {
        None => {
            let missing = crossed.missing.join(", ");
            format!("{all}; what each switch gives of it cannot be said without {missing}.")
        }
        Some(shares) => {
            let of = |(place, (switch, share)): (usize, (&str, &Effect))| {
                let gives = if place == 0 { " gives" } else { "" };
                format!("{}{gives} {}", subject(switch), amount(share))
            };
            let told: Vec<String> = shares.into_iter().enumerate().map(of).collect();
            format!("{all}; of it {}.", told.join(", "))
        }
    })
}

/// The share of every switch, if all are known.
fn shares(crossed: &Crossed) -> Option<Vec<(&str, &Effect)>> {
    let each = crossed.switches.iter();
    each.map(|switch| Some((switch.switch.as_str(), switch.share.as_ref()?))).collect()
}

/// Conclusions from the table: shares multiply to the whole, and the effect of the order.
pub(super) fn details(cells: &[Cell]) -> Vec<String> {
    let axes = varied(&cells.iter().collect::<Vec<_>>());
    cells.iter().flat_map(|cell| of_cell(cell, &axes)).collect()
}

fn of_cell(cell: &Cell, axes: &[Axis]) -> Vec<String> {
    let Some(crossed) = &cell.crossed else { return Vec::new() };
    let name = title(cell, axes);
    let mut lines = Vec::new();
    if let (Some(shares), Some(whole)) = (shares(crossed), &crossed.together.share) {
        let factors: Vec<String> =
            shares.iter().map(|(switch, share)| format!("{switch} {}", times(share.ratio))).collect();
        let product: f64 = shares.iter().map(|(_, share)| share.ratio).product();
        let each = |of: fn(&Contribution) -> &Option<Effect>| {
            of(&crossed.together).as_ref().map_or_else(|| "–".to_owned(), amount)
        };
        lines.push(format!(
            "{name}: the shares multiply to the whole: {} = {}, all on against all off {}; what each gives alone \
             multiplies to {}, what goes without each to {}{}",
            factors.join(" × "),
            times(product),
            times(whole.ratio),
            each(|of| &of.alone),
            each(|of| &of.left_out),
            relation(crossed),
        ));
    }
    let ran =
        |label: &&String| cell.rows.iter().any(|row| row.framework == **label && !row.reasons.is_empty());
    let untold = crossed.missing.iter().filter(|label| !ran(label));
    lines.extend(untold.map(|label| format!("{name}: {label} takes no part")));
    if cell.rounds > 0 && cell.rounds < MIN_ROUNDS {
        lines.push(format!("{name}: {} rounds decide nothing; a verdict takes {MIN_ROUNDS}", cell.rounds));
    }
    lines
}

/// Whether the order matters, where that is certain.
fn relation(crossed: &Crossed) -> &'static str {
    let ends = |effect: &Option<Effect>| effect.as_ref()?.interval;
    match (ends(&crossed.together.alone), ends(&crossed.together.left_out)) {
        (Some((_, alone)), Some((left_out, _))) if alone < left_out => {
            ": each gives more where the others are on"
        }
        (Some((alone, _)), Some((_, left_out))) if alone > left_out => {
            ": each gives less where the others are on"
        }
        _ => "",
    }
}

/// The axes on which cells differ, apart from the framework.
fn varied(cells: &[&Cell]) -> Vec<Axis> {
    let Some(first) = cells.first() else { return Vec::new() };
    let axes = first.settings.keys().filter(|axis| **axis != Axis::Framework);
    let differs = |axis: &&Axis| cells.iter().any(|cell| cell.settings.get(axis) != first.settings.get(axis));
    axes.filter(differs).copied().collect()
}

/// The framework, with the cell's place where there are several.
fn title(cell: &Cell, axes: &[Axis]) -> String {
    let framework = cell.settings.get(&Axis::Framework).map_or_else(String::new, ToString::to_string);
    match cell::name(&cell.settings, axes) {
        place if place.is_empty() => framework,
        place => format!("{framework} ({place})"),
    }
}

fn subject(switch: &str) -> String {
    match switch {
        "fused" => "fused kernels".to_owned(),
        "cache" | "JIT" => format!("the {switch}"),
        other => other.to_owned(),
    }
}

/// A ratio with its interval: "9.81x (9.52–10.1x)".
pub(crate) fn amount(effect: &Effect) -> String {
    match effect.interval {
        Some((low, high)) if high.is_finite() && high < BEYOND && low > 1.0 / BEYOND => {
            format!("{} ({}–{})", times(effect.ratio), times(low).trim_end_matches('x'), times(high))
        }
        _ => times(effect.ratio),
    }
}

/// Beyond this an interval says nothing that a reader could use.
const BEYOND: f64 = 1000.0;

/// A factor with three digits, or two decimals below 1: "14.2x", "9.81x", "0.97x".
pub(crate) fn times(ratio: f64) -> String {
    match ratio {
        ratio if ratio >= 99.95 => format!("{ratio:.0}x"),
        ratio if ratio >= 9.995 => format!("{ratio:.1}x"),
        ratio => format!("{ratio:.2}x"),
    }
}
