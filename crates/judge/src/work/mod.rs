//! Differences in judging between kinds of work, one file each: their metrics, the outputs that parity reads,
//! and their fields in a record of the history.

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

/// The metrics that replace others for a kind of work. The table of metrics says which it has at all.
pub(crate) struct Selection {
    /// Metrics that are replaced by another, in questions and verdicts.
    replaced: &'static [(Metric, Metric)],
    /// Whether they are also replaced in tables.
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

    /// The metric that replaces this one.
    pub(crate) fn in_place_of(&self, metric: Metric) -> Metric {
        other(self.replaced, metric).unwrap_or(metric)
    }

    /// The metric that this is another form of.
    pub(crate) fn followed_by(&self, metric: Metric) -> Option<Metric> {
        other(self.follows, metric)
    }
}

fn other(pairs: &[(Metric, Metric)], metric: Metric) -> Option<Metric> {
    pairs.iter().find(|(one, _)| *one == metric).map(|(_, other)| *other)
}

/// The comparison of a process's requests with the reference's.
#[derive(Debug, Clone, PartialEq)]
pub enum Compared {
    /// Tokens that it chose. Its logits are compared as well.
    Tokens(TokenAgreement),
    /// The whole comparison.
    Outputs(Box<Agreement>),
}

/// Compares the timed requests of a run with the reference along their inputs.
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

/// A request in the form that is stored, and the comparison with the reference of the parts that are dropped.
pub fn kept(sample: Sample, reference: Option<&Reference>) -> (Sample, Option<VectorAgreement>) {
    match &sample.output {
        Output::Tensors(_) => graph::kept(sample, reference),
        _ => encode::kept(sample, reference),
    }
}

/// The fields of a record for requests of their kind of work.
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

/// Unusual settings of a case, for people: for requests that go token by token, and step by step.
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

/// The size of a request, or of a process, from which figures of work per time and per sequence are computed.
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
