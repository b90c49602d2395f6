//! Which contender is better than which in one metric.

use judge::Metric;
use judge::report::Report;
use judge::report::verdicts::{Comparison, Verdict};
use statistics::{Cause, Split, Undecided};

use crate::words::amounts::{between, times};

/// The contenders of one metric that take part in verdicts.
pub(crate) struct Standing<'a> {
    pub(crate) metric: Metric,
    /// With their figures, if they have one: the best first.
    contenders: Vec<(&'a str, Option<f64>)>,
    compared: Vec<&'a Comparison>,
}

/// What the table has beside a figure.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) enum Mark {
    /// It was not compared.
    None,
    /// Nothing is better, and something is worse.
    Best,
    /// So many times worse than the best.
    Times(f64),
    /// The same, where one ratio does not describe all rounds: both ends.
    Ends(f64, f64),
    /// Equal to the best within the margin.
    Equal,
    /// Too close to call.
    Open,
}

impl Mark {
    pub(crate) fn text(self) -> String {
        match self {
            Mark::None => String::new(),
            Mark::Best => "best".to_owned(),
            Mark::Times(ratio) => times(ratio),
            Mark::Ends(low, high) => format!("{}x", between(low, high)),
            Mark::Equal => "=".to_owned(),
            Mark::Open => "~".to_owned(),
        }
    }
}

impl<'a> Standing<'a> {
    /// `figures`: of the contenders that take part.
    pub(crate) fn new(
        metric: Metric,
        comparisons: &'a [Comparison],
        figures: impl Iterator<Item = (&'a str, Option<f64>)>,
    ) -> Standing<'a> {
        let compared = comparisons.iter().filter(|found| found.metric == metric).collect();
        let mut standing = Standing { metric, contenders: figures.collect(), compared };
        let mut places: Vec<(usize, (&str, Option<f64>))> = standing
            .contenders
            .iter()
            .map(|&(label, figure)| (standing.rank(label), (label, figure)))
            .collect();
        let worth = |figure: Option<f64>| figure.map(|it| if metric.higher_is_better() { -it } else { it });
        places.sort_by(|(one, (_, x)), (other, (_, y))| {
            let by_figure = worth(*x).unwrap_or(f64::INFINITY).total_cmp(&worth(*y).unwrap_or(f64::INFINITY));
            one.cmp(other).then(by_figure)
        });
        standing.contenders = places.into_iter().map(|(_, contender)| contender).collect();
        standing
    }

    pub(crate) fn of_report(report: &'a Report, metric: Metric) -> Standing<'a> {
        let rows = report.rows.iter().filter(|row| row.state.takes_part());
        Standing::new(
            metric,
            &report.comparisons,
            rows.map(|row| (row.framework.as_str(), row.typical(metric))),
        )
    }

    /// Those that take part, the best first.
    pub(crate) fn labels(&self) -> impl Iterator<Item = &'a str> {
        self.contenders.iter().map(|(label, _)| *label)
    }

    pub(crate) fn figure(&self, label: &str) -> Option<f64> {
        self.contenders.iter().find(|(other, _)| *other == label)?.1
    }

    pub(crate) fn pair(&self, x: &str, y: &str) -> Option<&'a Comparison> {
        let is_pair = |it: &&&Comparison| (it.a == x && it.b == y) || (it.a == y && it.b == x);
        self.compared.iter().find(is_pair).copied()
    }

    /// Whether x is better than y for certain.
    pub(crate) fn beats(&self, x: &str, y: &str) -> bool {
        self.pair(x, y).is_some_and(|found| found.verdict == Verdict::Faster && found.a == x)
    }

    /// 1, and 1 more for each contender that is better for certain.
    pub(crate) fn rank(&self, label: &str) -> usize {
        1 + self.compared.iter().filter(|it| it.verdict == Verdict::Faster && it.b == label).count()
    }

    /// Those that none is better than for certain, the best figure first.
    pub(crate) fn leaders(&self) -> Vec<&'a str> {
        self.labels().filter(|label| self.rank(label) == 1).collect()
    }

    /// The contender that the others' marks compare with.
    pub(crate) fn best(&self) -> Option<&'a str> {
        self.contenders.iter().find(|(_, figure)| figure.is_some()).map(|(label, _)| *label)
    }

    /// The one that is better than all others for certain.
    pub(crate) fn winner(&self) -> Option<&'a str> {
        let best = self.best().filter(|_| self.contenders.len() > 1)?;
        self.labels().all(|other| other == best || self.beats(best, other)).then_some(best)
    }

    pub(crate) fn mark(&self, label: &str) -> Mark {
        let Some(best) = self.best() else { return Mark::None };
        if label != best {
            return self.pair(best, label).map_or(Mark::None, |found| against(found, best));
        }
        let marks: Vec<Mark> = self.labels().filter(|other| *other != best).map(|it| self.mark(it)).collect();
        let is_worse =
            |mark: &Mark| matches!(mark, Mark::Times(_)) || matches!(mark, Mark::Ends(low, _) if *low > 1.0);
        match marks {
            marks if marks.iter().any(is_worse) => Mark::Best,
            marks if marks.iter().any(|mark| matches!(mark, Mark::Open | Mark::Ends(..))) => Mark::Open,
            marks if marks.contains(&Mark::Equal) => Mark::Equal,
            _ => Mark::None,
        }
    }

    /// The open pairs of which none is the best, which marks cannot show.
    pub(crate) fn hidden(&self) -> impl Iterator<Item = &'a Comparison> {
        let best = self.best();
        let is_hidden = move |found: &&&Comparison| {
            found.verdict == Verdict::Inconclusive
                && ![&found.a, &found.b].iter().any(|it| Some(it.as_str()) == best)
        };
        self.compared.iter().filter(is_hidden).copied()
    }
}

/// The mark of the other of a pair.
fn against(found: &Comparison, best: &str) -> Mark {
    let turn = |ratio: f64| if found.a == best { ratio } else { 1.0 / ratio };
    let ends = split(found).map(|split| {
        let (x, y) = (turn(split.ratios.0), turn(split.ratios.1));
        Mark::Ends(x.min(y), x.max(y))
    });
    match (found.verdict, ends) {
        (Verdict::Faster, ends) => {
            ends.unwrap_or(found.advantage.map_or(Mark::None, |it| Mark::Times(turn(it))))
        }
        (Verdict::Equivalent, _) => Mark::Equal,
        (Verdict::Inconclusive, Some(ends)) => ends,
        (Verdict::Inconclusive, None) if has_rounds(found) => Mark::Open,
        _ => Mark::None,
    }
}

/// Where one ratio does not describe all rounds, and both ends are shown in place of it: the widest split. An open pair
/// shows them only if they favour different contenders.
pub(crate) fn split(found: &Comparison) -> Option<&Split> {
    let splits = found.statistics.as_ref()?.splits.iter();
    let is_shown = |split: &&Split| match found.verdict {
        Verdict::Faster => true,
        Verdict::Inconclusive => split.is_mixed(),
        _ => false,
    };
    let width = |split: &Split| (split.ratios.0 / split.ratios.1).ln().abs();
    splits.filter(is_shown).max_by(|x, y| width(x).total_cmp(&width(y)))
}

/// Why one ratio does not describe all rounds: "two speeds (7 and 3 of 10 rounds)".
pub(crate) fn cause(split: &Split, prompt: impl Fn(usize) -> String) -> String {
    match split.cause {
        Cause::State => "depends on the state of the machine".to_owned(),
        Cause::Levels { rounds: (low, high) } => {
            format!("two speeds ({low} and {high} of {} rounds)", low + high)
        }
        Cause::Time { rounds: (before, _) } => format!("changed after round {before}"),
        Cause::Prompt { prompts: (low, high) } => {
            format!("differs by prompt ({}, {})", prompt(low), prompt(high))
        }
    }
}

/// Whether there were enough rounds for a verdict.
pub(crate) fn has_rounds(found: &Comparison) -> bool {
    let reason = found.statistics.as_ref().and_then(|statistics| statistics.reason);
    !matches!(reason, Some(Undecided::TooFewRounds { .. }))
}
