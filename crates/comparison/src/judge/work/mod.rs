//! Differences in judging between kinds of work, one file each: their metrics, the outputs that parity reads,
//! and their fields in a record of the history.

pub mod encode;
mod graph;

use protocol::{Decode, Load, Output};
use serde_json::{Value, json};

use crate::facts::agreement::{Agreement, TokenAgreement, Tolerance, VectorAgreement};
use crate::facts::run::Run;
use crate::history::Case;
use crate::judge::metrics::Metric::{self, *};
use crate::judge::parity::{self, Reference};
use crate::plan::work::{Denoise, Generate};
use crate::plan::{Axis, Contender, Plan, Request, Work, WorkKind};

/// The metrics that replace others for a kind of work. The table of metrics says which it has at all.
pub(crate) struct Selection {
    /// Metrics that are replaced by another, in questions and verdicts.
    replaced: &'static [(Metric, Metric)],
    /// Whether they are also replaced in tables.
    pub(crate) replaces_in_tables: bool,
    /// Metrics in whose place tables show another, which is not tested.
    shown: &'static [(Metric, Metric)],
    /// Metrics that are another form of one, and share its verdict.
    follows: &'static [(Metric, Metric)],
}

impl Selection {
    pub(crate) fn new(kind: WorkKind) -> &'static Selection {
        match kind {
            WorkKind::TokenByToken => &TOKENS,
            WorkKind::OneToken => &ONE_TOKEN,
            WorkKind::Speech => &SPEECH,
            WorkKind::Denoising => &STEPS,
            WorkKind::Graph => &graph::RUNS,
            WorkKind::Audio => &graph::AUDIO,
            WorkKind::Callers => &CALLERS,
            WorkKind::Arrivals => &ARRIVALS,
            WorkKind::Goodput => &GOODPUT,
            WorkKind::Encoding => &encode::BOTH,
            WorkKind::ManyTexts => &encode::MANY,
            WorkKind::SingleText => &encode::SINGLE,
        }
    }

    /// The metric that replaces this one.
    pub(crate) fn in_place_of(&self, metric: Metric) -> Metric {
        other(self.replaced, metric).unwrap_or(metric)
    }

    /// The metric that tables show in place of this one.
    pub(crate) fn shown_for(&self, metric: Metric) -> Metric {
        other(self.shown, metric).unwrap_or(metric)
    }

    /// The metric that this is another form of.
    pub(crate) fn followed_by(&self, metric: Metric) -> Option<Metric> {
        other(self.follows, metric)
    }
}

fn other(pairs: &[(Metric, Metric)], metric: Metric) -> Option<Metric> {
    pairs.iter().find(|(one, _)| *one == metric).map(|(_, other)| *other)
}

/// The choices of a process's timed requests, where these are fed what the jobs are, or feed themselves, compared with
/// those that the reference would have made.
pub fn tokens(plan: &Plan, reference: &Reference, run: &Run, tolerance: Tolerance) -> Option<TokenAgreement> {
    match &plan.work {
        Work::Generate(work) => Some(generate_tokens(work, reference, run, tolerance.tie)),
        Work::Denoise(work) => Some(masked_tokens(work, reference, run, tolerance.tie)),
        Work::Encode(_) | Work::Graph(_) => None,
    }
}

/// How far the vectors or tensors of a request are from the reference's; `None` for work without any.
pub fn difference(ours: &Output, theirs: &Output) -> Option<VectorAgreement> {
    match (ours, theirs) {
        (Output::Vectors(ours), Output::Vectors(theirs)) => Some(encode::difference(ours, theirs)),
        (Output::Tensors(ours), Output::Tensors(theirs)) => Some(graph::difference(ours, theirs)),
        _ => None,
    }
}

/// That of all requests of a process, where they were compared when they arrived.
pub fn of_turns(run: &Run) -> VectorAgreement {
    let mut all = VectorAgreement::default();
    for turn in run.turns.iter().filter(|turn| turn.stands) {
        match &turn.vectors {
            Some(found) => all.merge(found),
            None => all.unlike += 1,
        }
    }
    all
}

/// The comparison of every vector or tensor of a process's timed requests with the reference's.
pub fn agreement(reference: &str, vectors: VectorAgreement, tolerance: Tolerance) -> Agreement {
    let mut agreement = Agreement {
        reference: reference.to_owned(),
        tolerance,
        logits: None,
        vectors: Some(vectors),
        timed_tokens: 0,
        timed_mismatches: 0,
        misplaced: 0,
        quantisation_loss: None,
        digest: None,
        broken: None,
    };
    agreement.broken = agreement.objection();
    agreement
}

/// The fields of a record for requests of their kind of work.
pub(crate) fn case(work: &Work, contender: Option<&Contender>) -> Case {
    let mut case = match work {
        Work::Generate(work) => generate_case(work),
        Work::Denoise(work) => denoise_case(work),
        Work::Encode(work) => encode::case(work),
        Work::Graph(work) => graph::case(work),
    };
    case.new_tokens = work.prompted().map_or(0, |work| work.new_tokens);
    case.other.extend(work.load().map(serving_case));
    contender.into_iter().fold(case, with_cache)
}

/// Unusual settings of a case, for people: for requests that go token by token, and step by step.
pub(crate) fn unusual(case: &Case) -> (Vec<String>, Vec<String>) {
    (generate_unusual(case), denoise_unusual(case))
}

/// The kind of work of a record.
pub(crate) fn kind(case: &Case) -> WorkKind {
    if let Some(kind) = serving_kind(case) {
        return kind;
    }
    let is_called = |name: &str| case.other.get("work").is_some_and(|work| work == name);
    match case.steps {
        _ if is_called(encode::NAME) => encode::kind(case),
        _ if is_called(graph::NAME) => graph::kind(case),
        Some(_) => WorkKind::Denoising,
        None if case.other.contains_key(HEARD) => WorkKind::Speech,
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
    /// The audio of a request, of work that hears or speaks.
    pub audio: Option<AudioSize>,
}

/// How the length of a request's audio is known.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum AudioSize {
    /// In nanoseconds.
    Whole(u64),
    /// By the elements of the output with this place, and picoseconds of each.
    Output { place: usize, sample_ps: u64 },
}

impl Size {
    /// The size of one request of a case.
    pub fn request(plan: &Plan, case: usize) -> Size {
        let (batch, prompt_tokens) = plan.work.size(case);
        let heard = plan.work.prompted().and_then(|prompted| prompted.prompts.get(case)?.audio.as_ref());
        let heard = heard.map(|audio| AudioSize::Whole((audio.seconds * 1e9) as u64));
        Size { batch, prompt_tokens, audio: heard.or(graph::audio(&plan.work)) }
    }
}

// Masked diffusion: steps take the role of tokens.

const STEPS: Selection = Selection {
    replaced: &[
        (Latency, StepTime),
        (Throughput, DenoisingThroughput),
        (FirstToken, Total),
        (PrefillThroughput, StepsPerSecond),
    ],
    replaces_in_tables: true,
    shown: &[],
    follows: &[(StepTime, DenoisingThroughput), (Total, DenoisingThroughput)],
};

/// The choices of timed requests for every mask, and their steps. Drawn tokens do not count, and neither do
/// those of a process that feeds itself: its states soon differ from the reference's.
fn masked_tokens(work: &Denoise, reference: &Reference, run: &Run, tie: f32) -> TokenAgreement {
    if work.how.temperature > 0.0 || !work.forced {
        return TokenAgreement::default();
    }
    let mut agreement = parity::chosen(reference, run, tie, true);
    for (denoise_case, sample) in run.requests() {
        let Some(along) = reference.outputs.get(denoise_case) else { continue };
        let steps = sample.output.unmasked().iter().flatten().zip(along.unmasked().iter().flatten());
        agreement.misplaced += steps.filter(|(ours, theirs)| ours != theirs).count();
    }
    agreement
}

fn denoise_case(work: &Denoise) -> Case {
    Case {
        decode: if work.forced { "forced" } else { "greedy" }.to_owned(),
        steps: Some(work.how.steps),
        algorithm: Some(algorithm(&work.how)),
        ..Case::default()
    }
}

/// How a step unmasks, with unusual settings.
fn algorithm(how: &protocol::Denoise) -> String {
    let mut text = how.algorithm.name().to_owned();
    let mut add = |is_said: bool, what: String| {
        if is_said {
            text += &format!(", {what}");
        }
    };
    add(how.temperature > 0.0, format!("temperature {}", how.temperature));
    add(how.top_p.is_some(), format!("top-p {}", how.top_p.unwrap_or_default()));
    add(how.top_k.is_some(), format!("top-k {}", how.top_k.unwrap_or_default()));
    add(how.alg_temp > 0.0, format!("alg-temp {}", how.alg_temp));
    text
}

/// Unusual settings of a case, for people: its steps, or that it has none.
fn denoise_unusual(case: &Case) -> Vec<String> {
    let algorithm = case.algorithm.as_deref().unwrap_or("denoised");
    let steps = case.steps.map(|steps| format!("{steps} steps ({algorithm})"));
    steps.into_iter().chain(case.autoregressive.then(|| "token by token".to_owned())).collect()
}

// Continuation, token by token.

const TOKENS: Selection =
    Selection { replaced: &[], replaces_in_tables: true, shown: &[], follows: &[(Latency, Throughput)] };

/// What is heard: the length of the audio sets the scale of a whole request. The encoder's time is the worker's word
/// alone, and frameworks divide the work before the first token in different ways: it is shown and not tested.
const SPEECH: Selection = Selection {
    replaced: &[(Total, RealTimeFactor)],
    replaces_in_tables: true,
    shown: &[(Latency, EncoderTime)],
    follows: &[(Latency, Throughput)],
};

/// Requests for one token, which decode nothing.
const ONE_TOKEN: Selection = Selection {
    replaced: &[(Latency, FirstToken), (Throughput, PrefillThroughput)],
    replaces_in_tables: false,
    shown: &[],
    follows: &[(FirstToken, PrefillThroughput), (Total, PrefillThroughput)],
};

/// The choices of timed requests at every step. Drawn tokens do not count, because no engine chose them.
fn generate_tokens(work: &Generate, reference: &Reference, run: &Run, tie: f32) -> TokenAgreement {
    match work.decode {
        Decode::Sampled(_) => TokenAgreement::default(),
        Decode::Forced | Decode::Greedy => parity::chosen(reference, run, tie, work.decode == Decode::Forced),
    }
}

/// A case with the contender's setting for keys and values: their type, if that does not follow the weights.
fn with_cache(case: Case, contender: &Contender) -> Case {
    let asked = contender.cache.precision;
    Case {
        kv_cache: if contender.cache.is_on() { "on" } else { "off" }.to_owned(),
        kv_precision: if asked.is_auto() { String::new() } else { asked.name().to_owned() },
        ..case
    }
}

fn generate_case(work: &Generate) -> Case {
    let decode = match work.decode {
        Decode::Forced => "forced",
        Decode::Greedy => "greedy",
        Decode::Sampled(_) => "sampled",
    };
    let chunk = work.prefill_chunk.map(|tokens| (CHUNK.to_owned(), tokens.into()));
    let shared = Some(work.prompted.shared_prefix).filter(|&tokens| tokens > 0);
    let shared = shared.map(|tokens| (SHARED.to_owned(), tokens.into()));
    let mixed = work.prompted.mixed.as_deref().map(|lengths| (MIXED.to_owned(), lengths.into()));
    let seconds = work.prompted.prompts.iter().filter_map(|prompt| Some(prompt.audio.as_ref()?.seconds));
    let seconds: Vec<f64> = seconds.collect();
    let heard = (!seconds.is_empty()).then(|| (HEARD.to_owned(), seconds.into()));
    Case {
        context: work.context,
        decode: decode.to_owned(),
        autoregressive: work.autoregressive,
        other: chunk.into_iter().chain(shared).chain(mixed).chain(heard).collect(),
        ..Case::default()
    }
}

/// Tokens of a prompt that are read at once, in a record.
const CHUNK: &str = "prefill_chunk";

/// Tokens that all prompts begin with, in a record.
const SHARED: &str = "shared_prefix";

/// Seconds of audio that are heard, in a record.
const HEARD: &str = "heard";

/// The lengths of prompts that are one batch, in a record.
const MIXED: &str = "mixed";

/// The size of a case, for people: prompt lengths, and new tokens if there are any: "12+34 → 32".
pub(crate) fn size(case: &Case) -> String {
    let prompts: Vec<String> = case.prompt_tokens.iter().map(usize::to_string).collect();
    match case.new_tokens {
        0 => format!("{} tokens", prompts.join("+")),
        new_tokens => format!("{} → {new_tokens}", prompts.join("+")),
    }
}

/// Unusual settings of a case, for people.
fn generate_unusual(case: &Case) -> Vec<String> {
    let decode = Some(&case.decode).filter(|decode| !["", "forced"].contains(&decode.as_str()));
    let precision = Some(&case.kv_precision).filter(|precision| !precision.is_empty());
    let chunk = case.other.get(CHUNK);
    let mixed = case.other.get(MIXED).and_then(|lengths| lengths.as_str());
    let all = [
        decode.cloned(),
        chunk.map(|tokens| format!("prompts in chunks of {tokens}")),
        case.other.get(SHARED).map(|tokens| format!("the first {tokens} tokens of all prompts the same")),
        mixed.map(|lengths| format!("prompts of {lengths} in one batch")),
        (case.kv_cache == "off").then(|| "no KV cache".to_owned()),
        precision.map(|precision| format!("KV cache in {precision}")),
    ];
    all.into_iter().flatten().collect()
}

/// The same case with keys and values kept.
pub(crate) fn with_cache_on(case: Case) -> Case {
    Case { kv_cache: "on".to_owned(), ..case }
}

/// A case of so many new tokens, fed given tokens.
pub(crate) fn forced(new_tokens: usize) -> Case {
    with_cache_on(Case { new_tokens, decode: "forced".to_owned(), ..Case::default() })
}

/// The flag of new tokens, with their number in a case and the requested numbers.
pub(crate) fn tokens_asked<'a>(case: &Case, asked: &'a Request) -> (&'static str, usize, &'a [u32]) {
    (Axis::NewTokens.flag(), case.new_tokens, &asked.new_tokens)
}

// Requests of several callers, of any kind of work: their metrics, and their fields in a record.

const SERVING_NAME: &str = "load";

/// Callers that make a request when their last is answered: throughput decides.
const CALLERS: Selection = Selection {
    replaced: &[
        (Latency, CallLatency),
        (Throughput, RequestThroughput),
        (FirstToken, CallLatency),
        (PrefillThroughput, RequestThroughput),
        (Total, CallLatency),
    ],
    replaces_in_tables: true,
    shown: &[],
    follows: &[],
};

/// The search for the highest rate: that rate decides.
const GOODPUT: Selection = Selection {
    replaced: &[
        (Latency, CallLatency),
        (Throughput, Goodput),
        (FirstToken, CallLatency),
        (PrefillThroughput, Goodput),
        (Total, CallLatency),
    ],
    replaces_in_tables: true,
    shown: &[],
    follows: &[(CallLatency, Goodput)],
};

/// Requests that come at random: throughput is the requested rate, as long as it is kept up with.
const ARRIVALS: Selection = Selection {
    replaced: &[
        (Latency, CallLatency),
        (Throughput, CallLatency),
        (FirstToken, CallLatency),
        (PrefillThroughput, CallLatency),
        (Total, CallLatency),
    ],
    replaces_in_tables: true,
    shown: &[],
    follows: &[],
};

/// The fields of a record, without the seed of arrivals, which is the run's.
fn serving_case(load: Load) -> (String, Value) {
    let Load { callers, arrivals, search, .. } = load;
    let value = match (arrivals, search) {
        (_, Some(search)) => json!({ "callers": callers, "limit_ms": search.limit_ns as f64 / 1e6 }),
        (None, None) => json!({ "callers": callers }),
        (Some(arrivals), None) => json!({ "callers": callers, "arrivals": arrivals.rate }),
    };
    (SERVING_NAME.to_owned(), value)
}

/// The kind of work of a record, if several callers made its requests.
fn serving_kind(case: &Case) -> Option<WorkKind> {
    let load = case.other.get(SERVING_NAME)?;
    Some(match load {
        load if load.get("limit_ms").is_some() => WorkKind::Goodput,
        load if load.get("arrivals").is_some() => WorkKind::Arrivals,
        _ => WorkKind::Callers,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_case_is_told_by_its_tokens_and_what_is_not_as_usual() {
        let case = Case { prompt_tokens: vec![4, 9], ..forced(8) };
        assert_eq!((size(&case).as_str(), generate_unusual(&case)), ("4+9 → 8", Vec::new()));
        let greedy = Case { decode: "greedy".into(), kv_cache: "off".into(), ..case.clone() };
        assert_eq!(generate_unusual(&greedy), ["greedy", "no KV cache"]);
        assert_eq!(generate_unusual(&Case { kv_precision: "bf16".into(), ..case }), ["KV cache in bf16"]);
    }

    #[test]
    fn other_tokens_are_seen_in_what_is_asked_for() {
        let asked = Request { new_tokens: vec![8], ..Request::default() };
        assert_eq!(tokens_asked(&forced(32), &asked), ("--new-tokens", 32, &[8][..]));
    }
}
