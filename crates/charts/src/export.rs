//! The figure that scripts in this field usually draw in addition to their tables.

use std::collections::BTreeMap;

use crate::bars::{Bar, Bars, Group};
use crate::figure::Figure;
use crate::palette::{Colour, GREY, assign};
use crate::panel::Panel;

/// A framework with and without its optimisation.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Optimised {
    pub framework: String,
    pub base: Option<Arm>,
    pub optimised: Option<Arm>,
    /// Speed of the optimised arm divided by that of the base.
    pub speedup: Option<Estimate>,
    /// The share of the base's memory that the optimised arm saves; negative if it needs more.
    pub memory_saved: Option<Estimate>,
}

/// One arm: medians.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct Arm {
    pub tokens_per_second: Option<Estimate>,
    pub ms_per_token: Option<Estimate>,
    /// Time of a whole request, in seconds.
    pub total_s: Option<Estimate>,
    pub memory_mb: Option<Estimate>,
}

/// A figure with its 95 % interval, if there is one.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Estimate {
    pub value: f64,
    pub interval: Option<(f64, f64)>,
}

type Value = fn(&Arm) -> Option<Estimate>;

/// Four panels: throughput, time per token, total time and memory. Each has the base and the optimised arm of
/// a framework next to each other. Throughput and memory also show the gain from the optimisation. `case`
/// describes the work, `note` the origin of the figures.
pub fn optimisation_comparison(runs: &[Optimised], case: &str, note: &str, known: &[&str]) -> Figure {
    let colours = colours(runs, known);
    let panel = |title: &str, hint: &str, value: Value, worth: fn(&Optimised) -> Option<String>| {
        let group = |run: &Optimised| {
            let own = colours.get(&run.framework).copied().unwrap_or(PLAIN);
            let arms = [("base", PLAIN, &run.base), ("optimised", own, &run.optimised)];
            let bars = arms.into_iter().filter_map(|(label, colour, arm)| {
                let estimate = value(arm.as_ref()?).filter(|estimate| estimate.value.is_finite());
                Some(Bar {
                    label: label.into(),
                    colour,
                    value: estimate.map(|estimate| estimate.value),
                    interval: estimate.and_then(|estimate| estimate.interval),
                    points: Vec::new(),
                    note: "not available".into(),
                })
            });
            let worth = worth(run).map_or_else(String::new, |worth| format!(": {worth}"));
            Group { label: format!("{}{worth}", run.framework), bars: bars.collect() }
        };
        let groups = runs.iter().map(group).collect();
        Panel::Bars(Bars { title: title.into(), hint: hint.into(), groups, ..Bars::default() })
    };
    Figure {
        title: "Base and optimised".into(),
        subtitle: case.to_owned(),
        panels: vec![
            panel("Tokens per second", "higher is better", |arm| arm.tokens_per_second, speedup),
            panel("Time per token", "ms, lower is better", |arm| arm.ms_per_token, |_| None),
            panel("Total time", "s, lower is better", |arm| arm.total_s, |_| None),
            panel("Memory", "MB, lower is better", |arm| arm.memory_mb, memory),
        ],
        columns: 2,
        note: vec![note.to_owned()],
        ..Figure::default()
    }
}

/// "1.42× as fast (1.38–1.46)".
fn speedup(run: &Optimised) -> Option<String> {
    let found = run.speedup.filter(|found| found.value.is_finite())?;
    let interval = found.interval.map_or_else(String::new, |(low, high)| format!(" ({low:.2}–{high:.2})"));
    Some(format!("{:.2}× as fast{interval}", found.value))
}

/// "21 % less memory (20–21 %)".
fn memory(run: &Optimised) -> Option<String> {
    let found = run.memory_saved.filter(|found| found.value.is_finite())?;
    let (word, sign) = if found.value < 0.0 { ("more", -1.0) } else { ("less", 1.0) };
    let decimals = usize::from(found.value.abs() < 0.1);
    let percent = |share: f64| format!("{:.decimals$}", share * sign * 100.0);
    let interval = found.interval.map_or_else(String::new, |(low, high)| {
        let (low, high) = if sign < 0.0 { (high, low) } else { (low, high) };
        format!(" ({}–{} %)", percent(low), percent(high))
    });
    Some(format!("{} % {word} memory{interval}", percent(found.value)))
}

/// The colour of the base.
const PLAIN: Colour = GREY;

fn colours(runs: &[Optimised], known: &[&str]) -> BTreeMap<String, Colour> {
    let mut names: Vec<String> = runs.iter().map(|run| run.framework.clone()).collect();
    names.sort();
    names.dedup();
    names.iter().cloned().zip(assign(&names, known)).collect()
}
