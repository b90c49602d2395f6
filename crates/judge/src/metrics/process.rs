//! The figure of a process from its requests and those of the contenders that it took turns with.

use std::collections::BTreeMap;
use std::ops::Range;

use plan::Plan;
use protocol::Sample;
use statistics::quantile;

use super::work::Request;
use super::{Metric, Size, Source};
use facts::evidence::Evidence;
use facts::run::{Run, Turn};

/// The figure of a process that a metric of requests has.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Form {
    /// All that was measured: tokens ÷ their time. Shown.
    Average,
    /// Without the slowest and the fastest moments, and paired with the turns of the others. Tested.
    Typical,
}

/// Gaps of all processes together below which a 99th percentile is no more than one of the largest values.
const FEWEST_OF_P99: usize = 300;

/// The 99th percentile of the latencies of all these processes together, in milliseconds: one process alone has too few.
pub(super) fn pooled(share: f64, cases: &Range<usize>, plan: &Plan, runs: &[&Run]) -> Option<f64> {
    let mut latencies = Vec::new();
    for run in runs {
        for (case, sample) in run.requests().filter(|(case, _)| cases.contains(case)) {
            let of_request = Request::new(sample, Size::request(plan, case)).latencies_ns();
            latencies.extend(of_request.into_iter().map(|ns| ns as f64 / 1e6));
        }
    }
    quantile(&latencies, share).filter(|_| latencies.len() >= FEWEST_OF_P99)
}

/// The figure of one process, in the metric's unit, from its requests with these prompts. `None` if the
/// process ended too early or the system does not report it.
pub(super) fn figure(
    metric: Metric,
    form: Form,
    cases: &Range<usize>,
    plan: &Plan,
    evidence: &Evidence,
    run: &Run,
) -> Option<f64> {
    let round = || Round::new(|sample, size| metric.of_parts(sample, size), cases, plan, evidence, run);
    match metric.entry().source {
        Source::Reading(reading) => reading(run, Size { batch: plan.work.batch(), prompt_tokens: 0 }),
        Source::Quotient(above, below) => {
            let of = |metric| figure(metric, form, cases, plan, evidence, run);
            Some(of(above)? / of(below)?).filter(|figure| figure.is_finite())
        }
        Source::Mean(_) | Source::Slices(_) if form == Form::Typical => round()?.mean(),
        Source::Mean(_) | Source::Slices(_) => {
            let mut by_case = Vec::new();
            for case in cases.clone() {
                let requests = run.requests().filter(|(of, _)| *of == case);
                let figures =
                    requests.filter_map(|(_, sample)| metric.of_request(sample, Size::request(plan, case)));
                by_case.extend(average(&figures.collect::<Vec<_>>(), metric.higher_is_better()));
            }
            if by_case.iter().any(|figure| *figure <= 0.0) {
                return mean(&by_case);
            }
            let logs: Vec<f64> = by_case.iter().map(|figure| figure.ln()).collect();
            Some(mean(&logs)?.exp() * round()?.shift())
        }
        Source::Pooled(_) => None,
        Source::Peak(_) => {
            let round = round()?;
            Some(round.own().reduce(f64::max)? * round.shift())
        }
        Source::Percentile(share) => {
            let requests = run.requests().filter(|(case, _)| cases.contains(case));
            let of_request = |(case, sample)| Request::new(sample, Size::request(plan, case)).latencies_ns();
            let latencies: Vec<f64> = requests.flat_map(of_request).map(|ns| ns as f64 / 1e6).collect();
            let mean = |sample: &_, size| Request::new(sample, size).mean_latency_ns().into_iter().collect();
            Some(quantile(&latencies, share)? * Round::new(mean, cases, plan, evidence, run)?.shift())
        }
    }
}

/// A process and those of its round that it took turns with. Under the sequential schedule it is alone.
struct Round {
    /// Every member's figures, by case, block and slice.
    figures: Vec<BTreeMap<(usize, usize, usize), f64>>,
    /// The places of the members that took turns with one another; more than one group under the grouped schedule.
    groups: Vec<Vec<usize>>,
    /// The places of the process, and of the contender that is in every group.
    place: usize,
    anchor: Option<usize>,
    cases: Range<usize>,
}

impl Round {
    fn new(
        of_parts: impl Fn(&Sample, Size) -> Vec<f64>,
        cases: &Range<usize>,
        plan: &Plan,
        evidence: &Evidence,
        run: &Run,
    ) -> Option<Round> {
        let takes_turns = |other: &&Run| {
            other.round == run.round
                && other.is_complete()
                && (plan.schedule.has_turns() || other.framework == run.framework)
        };
        let members: Vec<&Run> = evidence.runs.iter().filter(takes_turns).collect();
        let values = |turn: &Turn| {
            let (case, block) = (turn.sample.case, turn.block);
            let parts = of_parts(&turn.sample, Size::request(plan, case));
            parts.into_iter().enumerate().map(move |(slice, figure)| ((case, block, slice), figure))
        };
        let counts = |turn: &&Turn| turn.stands && cases.contains(&turn.sample.case);
        let figures =
            members.iter().map(|member| member.turns.iter().filter(counts).flat_map(values).collect());
        let place_of = |label: &str| members.iter().position(|member| member.framework == label);
        let groups = match plan.groups.as_slice() {
            [] => vec![(0..members.len()).collect()],
            groups => groups
                .iter()
                .map(|group| group.iter().filter_map(|label| place_of(label)).collect())
                .collect(),
        };
        Some(Round {
            figures: figures.collect(),
            groups,
            place: place_of(&run.framework)?,
            anchor: plan.anchor().and_then(place_of),
            cases: cases.clone(),
        })
    }

    /// The figures of the process's own requests, or slices.
    fn own(&self) -> impl Iterator<Item = f64> {
        self.figures[self.place].values().copied()
    }

    /// The mean of the process's figures: for each case separately, then over the cases.
    fn mean(&self) -> Option<f64> {
        if self.own().any(|figure| figure <= 0.0) {
            return mean(&self.own().collect::<Vec<_>>());
        }
        let of_case = |case| self.groups.iter().find_map(|group| self.of_turns(group, self.place, case));
        let cases: Vec<f64> = self.cases.clone().filter_map(of_case).collect();
        Some(mean(&cases)?.exp() * self.shift())
    }

    /// The factor by which the process's group differs from all groups, by the figures of the anchor in each.
    fn shift(&self) -> f64 {
        let Some(anchor) = self.anchor else { return 1.0 };
        let of_case = |case| {
            let of_anchor = |group: &Vec<usize>| self.of_turns(group, anchor, case);
            let own = self.groups.iter().find(|group| self.of_turns(group, self.place, case).is_some())?;
            let all: Vec<f64> = self.groups.iter().filter_map(of_anchor).collect();
            Some(mean(&all)? - of_anchor(own)?)
        };
        mean(&self.cases.clone().filter_map(of_case).collect::<Vec<_>>()).map_or(1.0, f64::exp)
    }

    /// The logarithm of a member's figure over the turns, or slices, that all of the group have.
    fn of_turns(&self, group: &[usize], member: usize, case: usize) -> Option<f64> {
        let place = group.iter().position(|&other| other == member)?;
        let keys = self.figures[member].range((case, 0, 0)..(case + 1, 0, 0)).map(|(key, _)| key);
        let trimmed = match keys.clone().any(|(.., slice)| *slice > 0) {
            true => statistics::TRIMMED_SLICES,
            false => statistics::TRIMMED_REQUESTS,
        };
        let turn =
            |key| group.iter().map(|&of| self.figures[of].get(key).map(|figure| figure.ln())).collect();
        let turns: Vec<Vec<f64>> = keys.filter_map(turn).collect();
        statistics::of_turns(&turns, trimmed).get(place).copied()
    }
}

/// The arithmetic mean of times, the harmonic one of rates: the amount of all requests ÷ the time of all.
fn average(figures: &[f64], is_rate: bool) -> Option<f64> {
    if is_rate && figures.iter().all(|figure| *figure > 0.0) {
        return Some(1.0 / mean(&figures.iter().map(|figure| 1.0 / figure).collect::<Vec<_>>())?);
    }
    mean(figures)
}

fn mean(values: &[f64]) -> Option<f64> {
    (!values.is_empty()).then(|| values.iter().sum::<f64>() / values.len() as f64)
}
