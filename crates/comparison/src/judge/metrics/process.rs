//! The figure of a process from its requests and those of the contenders that it took turns with.

use std::collections::BTreeMap;
use std::ops::Range;

use protocol::{Output, Sample};
use statistics::{quantile, quantile_interval};

use super::{Metric, Size, Source};
use crate::facts::evidence::Evidence;
use crate::facts::run::{Run, Turn};
use crate::plan::Plan;

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

/// The 99th percentile of the latencies of all these processes together, in milliseconds, with its interval: one process
/// alone has too few.
pub(super) fn pooled(share: f64, cases: &Range<usize>, plan: &Plan, runs: &[&Run]) -> Option<Pooled> {
    let mut latencies = Vec::new();
    for run in runs {
        for (case, sample) in run.requests().filter(|(case, _)| cases.contains(case)) {
            let of_request = Request::new(sample, Size::request(plan, case)).latencies_ns();
            latencies.extend(of_request.into_iter().map(|ns| ns as f64 / 1e6));
        }
    }
    let figure = quantile(&latencies, share).filter(|_| latencies.len() >= FEWEST_OF_P99)?;
    Some((figure, quantile_interval(&latencies, share)))
}

/// A figure of all processes together, and its 95 % interval if it has one.
pub(crate) type Pooled = (f64, Option<(f64, f64)>);

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
        // They would be the client's.
        Source::Reading(_) if plan.contender(&run.framework).is_some_and(|of| of.engine.is_server()) => None,
        Source::Reading(reading) => {
            reading(run, Size { batch: plan.work.batch(), prompt_tokens: 0, audio: None })
        }
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

// Requests as metrics read them, and figures of single kinds of work from marks and outputs.

/// One measured request, or a slice of it.
pub(super) struct Request<'a> {
    pub(super) sample: &'a Sample,
    pub(super) size: Size,
    /// Places of its gaps, or of the slice's.
    gaps: Range<usize>,
}

impl<'a> Request<'a> {
    pub(super) fn new(sample: &'a Sample, size: Size) -> Request<'a> {
        Request { sample, size, gaps: 0..sample.marks_ns.gaps().len() }
    }

    /// Its slices; itself if it was not sliced.
    pub(super) fn slices(self) -> impl Iterator<Item = Request<'a>> {
        let Request { sample, size, .. } = self;
        sample.slices().into_iter().map(move |gaps| Request { sample, size, gaps })
    }

    /// Latencies in nanoseconds: the times of several callers' requests, or the gaps between tokens; for a
    /// single encoded text or a run of a graph, the time of the request.
    pub(super) fn latencies_ns(&self) -> Vec<u64> {
        if !self.sample.calls.is_empty() {
            return self.sample.calls.iter().map(|call| call.done_ns.saturating_sub(call.asked_ns)).collect();
        }
        match &self.sample.output {
            Output::Vectors(_) if self.size.batch == 1 => vec![self.sample.marks_ns.end()],
            Output::Tensors(_) => {
                let marks = &self.sample.marks_ns;
                [marks.first()].into_iter().chain(marks.gaps()).collect()
            }
            Output::Vectors(_) => Vec::new(),
            _ => self.sample.timed_gaps().collect(),
        }
    }

    pub(super) fn mean_latency_ns(&self) -> Option<f64> {
        let latencies = self.latencies_ns();
        (!latencies.is_empty()).then(|| latencies.iter().sum::<u64>() as f64 / latencies.len() as f64)
    }

    pub(super) fn mean_latency_ms(&self) -> Option<f64> {
        Some(self.mean_latency_ns()? / 1e6)
    }

    /// Whether the gap with this place counts.
    pub(super) fn times(&self, place: usize) -> bool {
        self.gaps.contains(&place) && !self.sample.lead_in.contains(&place)
    }

    /// Mean gap in nanoseconds; `None` without gaps.
    pub(super) fn mean_gap_ns(&self) -> Option<f64> {
        let gaps = self.sample.marks_ns.gaps().enumerate().filter(|(place, _)| self.times(*place));
        let (sum, count) = gaps.fold((0, 0), |(sum, count), (_, ns)| (sum + ns, count + 1));
        (count > 0).then(|| sum as f64 / count as f64)
    }
}

// Figures of masked-diffusion requests.

/// A request of masked diffusion. All its steps are assumed to last as long as those that count: those just
/// after a pause do not count, and for a slice only its own do.
pub(super) struct Steps {
    pub(super) ns: f64,
    pub(super) sampler_ns: f64,
    pub(super) count: f64,
    /// New tokens of all sequences.
    pub(super) tokens: f64,
}

impl Steps {
    /// `None` if requests go token by token.
    pub(super) fn new(request: &Request<'_>) -> Option<Steps> {
        let Output::Steps(steps) = &request.sample.output else { return None };
        let marks = &request.sample.marks_ns;
        if steps.passes_ns.len() != marks.len() {
            return None;
        }
        let starts = [0].into_iter().chain(marks.0.iter().copied());
        let all = starts.zip(&steps.passes_ns).zip(&marks.0).enumerate();
        // A gap begins after the first step, which is part of the first slice.
        let is_timed =
            |place: usize| place.checked_sub(1).map_or(request.gaps.start == 0, |gap| request.times(gap));
        let (mut ns, mut sampler_ns, mut timed) = (0, 0, 0);
        for (_, ((start, pass), mark)) in all.filter(|(place, _)| is_timed(*place)) {
            ns += mark.saturating_sub(start);
            sampler_ns += mark.saturating_sub(*pass);
            timed += 1;
        }
        let scale = marks.len() as f64 / f64::from(timed);
        (timed > 0).then(|| Steps {
            ns: ns as f64 * scale,
            sampler_ns: sampler_ns as f64 * scale,
            count: marks.len() as f64,
            tokens: steps.tokens.iter().map(Vec::len).sum::<usize>() as f64,
        })
    }
}

// Figures of requests that encode texts.

/// Share of a request's computed positions without a token, in percent.
pub(super) fn padding(request: &Request<'_>) -> Option<f64> {
    let Output::Vectors(output) = &request.sample.output else { return None };
    let (tokens, positions) = (request.size.prompt_tokens as f64, output.positions as f64);
    // A worker that reports fewer positions than tokens is not believed.
    (positions > 0.0 && positions >= tokens).then(|| 100.0 * (1.0 - tokens / positions))
}

// Figures of requests that go token by token.

/// Tokens of all sequences together per second of decoding.
pub(super) fn decoded_a_second(request: &Request<'_>) -> Option<f64> {
    Some(request.size.batch as f64 * 1e9 / request.mean_gap_ns()?)
}
