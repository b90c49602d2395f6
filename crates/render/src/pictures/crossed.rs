//! The charts of `ab optimised`: the gain from each switch, in either order and on average, and every
//! combination.

use charts::{Forest, ForestGroup, INK, Pair, Panel};
use judge::report::crossed::{Contribution, Effect};
use judge::report::verdicts::Verdict;
use judge::study::StudyReport;
use judge::study::report::varied;
use judge::study::{Cell, cell};
use plan::Axis;

use super::{colours, sweep};

/// Every panel, with a unique id.
pub(super) fn panels(report: &StudyReport) -> Vec<(String, Panel)> {
    let first = ("contributions".to_owned(), Panel::Forest(contributions(report)));
    [first].into_iter().chain(sweep::panels(report)).collect()
}

/// Every ratio on a logarithmic axis around "no change".
fn contributions(report: &StudyReport) -> Forest {
    let axes = varied(&report.planned);
    let label = |cell: &Cell| match cell::name(&cell.settings, &axes) {
        name if name.is_empty() => cell.settings.get(&Axis::Framework).map_or(name, ToString::to_string),
        name => name,
    };
    let labels: Vec<String> = report.cells.iter().map(label).collect();
    let colours = colours(&labels);
    let group = |(cell, label): (&Cell, &String)| {
        let pair = |name: String, effect: &Option<Effect>| Pair {
            label: name,
            ratio: effect.as_ref().map(|effect| effect.ratio),
            interval: effect.as_ref().and_then(|effect| effect.interval),
            colour: match effect.as_ref().and_then(|effect| effect.verdict) {
                Some(Verdict::Faster | Verdict::Slower) => colours.get(label).copied(),
                Some(Verdict::Equivalent) => Some(INK),
                _ => None,
            },
            note: "not measured".into(),
        };
        let of_part = |part: &Contribution| {
            [("alone", &part.alone), ("left out", &part.left_out), ("share", &part.share)]
                .map(|(order, effect)| pair(format!("{}, {order}", part.switch), effect))
        };
        let pairs = cell.crossed.iter().flat_map(|crossed| {
            let whole = pair("all on".to_owned(), &crossed.together.share);
            [whole].into_iter().chain(crossed.switches.iter().flat_map(of_part))
        });
        ForestGroup { label: label.clone(), pairs: pairs.collect() }
    };
    let groups = report.cells.iter().zip(&labels).map(group);
    Forest {
        title: "What each switch gives".into(),
        hint: "throughput with ÷ without".into(),
        sides: ["slower", "faster"],
        groups: groups.filter(|group| !group.pairs.is_empty()).collect(),
        band: None,
    }
}
