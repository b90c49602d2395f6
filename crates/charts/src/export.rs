//! Figures that scripts of this field expect beside their tables.

use std::collections::BTreeMap;

use crate::bars::{Bar, Bars, Group};
use crate::figure::{Figure, Panel};
use crate::palette::{Colour, GREY, assign};

/// One run, or one framework of one.
#[derive(Debug, Clone, PartialEq)]
pub struct Measured {
    /// What both arms have in common, all but the optimisation: "candle, f32".
    pub name: String,
    /// The framework, of which the colour is.
    pub framework: String,
    pub optimised: bool,
    pub tokens_per_second: Option<f64>,
    pub ms_per_token: Option<f64>,
    pub total_seconds: Option<f64>,
    pub memory_mb: Option<f64>,
}

type Value = fn(&Measured) -> Option<f64>;

/// Four panels: the best figure of each name with the optimisation and without it. `case` says what was run.
pub fn optimisation_comparison(runs: &[Measured], case: &str, known: &[&str]) -> Figure {
    let panels: [(&str, &str, bool, Value); 4] = [
        ("Tokens per second", "higher is better", true, |run| run.tokens_per_second),
        ("Time per token", "ms, lower is better", false, |run| run.ms_per_token),
        ("Total time", "s, lower is better", false, |run| run.total_seconds),
        ("Memory", "MB, lower is better", false, |run| run.memory_mb),
    ];
    let colours = colours(runs, known);
    let panel = |(title, hint, higher, value): (&str, &str, bool, Value)| {
        let mut names: Vec<(&str, &str)> = Vec::new();
        for run in runs {
            let name = (run.name.as_str(), run.framework.as_str());
            if !names.contains(&name) {
                names.push(name);
            }
        }
        let group = |(name, framework): (&str, &str)| {
            let bar = |optimised: bool| {
                let of_arm = || runs.iter().filter(|run| run.name == name && run.optimised == optimised);
                let best = of_arm().filter_map(value).filter(|value| value.is_finite());
                let own = colours.get(framework).copied().unwrap_or(PLAIN);
                of_arm().next().map(|_| Bar {
                    label: if optimised { "optimised".into() } else { "base".into() },
                    colour: if optimised { own } else { PLAIN },
                    value: best.reduce(if higher { f64::max } else { f64::min }),
                    interval: None,
                    points: of_arm().filter_map(value).collect(),
                    note: "not available".into(),
                })
            };
            Group { label: name.to_owned(), bars: [false, true].into_iter().filter_map(bar).collect() }
        };
        let groups = names.into_iter().map(group).collect();
        Panel::Bars(Bars { title: title.into(), hint: hint.into(), groups, ..Bars::default() })
    };
    Figure {
        title: "Base and optimised".into(),
        subtitle: case.to_owned(),
        panels: panels.into_iter().map(panel).collect(),
        columns: 2,
        note: "Bar: the best run; dot: every run.".into(),
        ..Figure::default()
    }
}

/// The colour of what is not optimised.
const PLAIN: Colour = GREY;

fn colours(runs: &[Measured], known: &[&str]) -> BTreeMap<String, Colour> {
    let mut names: Vec<String> = runs.iter().map(|run| run.framework.clone()).collect();
    names.sort();
    names.dedup();
    names.iter().cloned().zip(assign(&names, known)).collect()
}
