//! What a kind of work changes in judging, one file each: the metrics that it has, what parity reads of its requests, and
//! what a record of the history says of it.

mod denoise;
mod echo;
pub(crate) mod encode;
mod generate;
mod graph;
mod serving;

use facts::agreement::{Agreement, TokenAgreement, Tolerance, VectorAgreement};
use facts::run::Run;
use history::Case;
use plan::{Contender, Plan, Work, WorkKind};
use protocol::{Output, Sample};

use crate::metric::Metric;
use crate::parity::Reference;

pub(crate) use generate::{forced, size, tokens_asked, with_cache_on};

/// The metrics that take the places of others for a kind of work. Which it has at all, their table says.
pub(crate) struct Selection {
    /// Metrics that another takes the place of, in questions and verdicts.
    replaced: &'static [(Metric, Metric)],
    /// Whether it takes their place in tables, too.
    pub(crate) replaces_in_tables: bool,
    /// Metrics that are another form of one, and share its verdict.
    follows: &'static [(Metric, Metric)],
}

impl Selection {
    pub(crate) fn new(kind: WorkKind) -> &'static Selection {
        match kind {
            WorkKind::TokenByToken => &generate::TOKENS,
            WorkKind::OneToken => &generate::ONE_TOKEN,
            WorkKind::Denoising => &denoise::STEPS,
            WorkKind::Echo => &echo::BYTES,
            WorkKind::Graph => &graph::RUNS,
            WorkKind::Callers => &serving::CALLERS,
            WorkKind::Arrivals => &serving::ARRIVALS,
            WorkKind::Goodput => &serving::GOODPUT,
            WorkKind::Encoding => &encode::BOTH,
            WorkKind::ManyTexts => &encode::MANY,
            WorkKind::SingleText => &encode::SINGLE,
        }
    }

    /// The metric in the place of this one.
    pub(crate) fn in_place_of(&self, metric: Metric) -> Metric {
        other(self.replaced, metric).unwrap_or(metric)
    }

    /// The metric of which this is another form.
    pub(crate) fn followed_by(&self, metric: Metric) -> Option<Metric> {
        other(self.follows, metric)
    }
}

fn other(pairs: &[(Metric, Metric)], metric: Metric) -> Option<Metric> {
    pairs.iter().find(|(one, _)| *one == metric).map(|(_, other)| *other)
}

/// What the requests of a process gave, beside the reference's.
#[derive(Debug, Clone, PartialEq)]
pub enum Compared {
    /// Tokens that it chose. Its logits are compared as well.
    Tokens(TokenAgreement),
    /// All that there is to compare.
    Outputs(Box<Agreement>),
}

/// Compares the timed requests of a run with the reference along what they were given.
pub fn of_requests(plan: &Plan, reference: &Reference, run: &Run, tolerance: Tolerance) -> Compared {
    match &plan.work {
        Work::Generate(work) => Compared::Tokens(generate::tokens(work, reference, run, tolerance.tie)),
        Work::Denoise(work) => Compared::Tokens(denoise::tokens(work, reference, run, tolerance.tie)),
        Work::Echo(_) => Compared::Outputs(Box::new(echo::agreement(reference, run, tolerance))),
        Work::Encode(_) | Work::Graph(_) => {
            Compared::Outputs(Box::new(encode::agreement(reference, run, tolerance)))
        }
    }
}

/// A request as it is kept, and what of it was compared with the reference at once because it is not.
pub fn kept(sample: Sample, reference: Option<&Reference>) -> (Sample, Option<VectorAgreement>) {
    match &sample.output {
        Output::Tensors(_) => graph::kept(sample, reference),
        _ => encode::kept(sample, reference),
    }
}

/// What a record says of requests that only their kind of work has.
pub(crate) fn case(work: &Work, contender: Option<&Contender>) -> Case {
    let mut case = match work {
        Work::Generate(work) => generate::case(work),
        Work::Denoise(work) => denoise::case(work),
        Work::Echo(_) => echo::case(),
        Work::Encode(work) => encode::case(work),
        Work::Graph(work) => graph::case(work),
    };
    case.new_tokens = work.prompted().map_or(0, |work| work.new_tokens);
    case.other.extend(work.load().map(serving::case));
    contender.into_iter().fold(case, generate::with_cache)
}

/// What is not as usual in a case, for people: of requests that go token by token, and step by step.
pub(crate) fn unusual(case: &Case) -> (Vec<String>, Vec<String>) {
    (generate::unusual(case), denoise::unusual(case))
}

/// The kind of work of a record.
pub(crate) fn kind(case: &Case) -> WorkKind {
    if let Some(kind) = serving::kind(case) {
        return kind;
    }
    let is_called = |name: &str| case.other.get("work").is_some_and(|work| work == name);
    match case.steps {
        _ if is_called(echo::NAME) => WorkKind::Echo,
        _ if is_called(encode::NAME) => encode::kind(case),
        _ if is_called(graph::NAME) => WorkKind::Graph,
        Some(_) => WorkKind::Denoising,
        None if case.new_tokens <= 1 => WorkKind::OneToken,
        None => WorkKind::TokenByToken,
    }
}

/// The size of a request, or of a process: what figures of work per time and per sequence are computed from.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Size {
    /// Number of sequences that are computed together.
    pub batch: usize,
    /// Number of prompt tokens in all sequences.
    pub prompt_tokens: usize,
}

impl Size {
    /// The size of one request of a case.
    pub fn request(plan: &Plan, case: usize) -> Size {
        let (batch, prompt_tokens) = plan.work.size(case);
        Size { batch, prompt_tokens }
    }
}
