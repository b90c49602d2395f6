//! Metrics: their names, and their computation from samples. `docs/reference/measures.md` defines them for people.
//!
//! Each metric says how the figure of a process comes from its requests ([`Source`]). Every process has one figure of
//! each metric, and every output shows the geometric mean of these over the rounds.

mod process;
mod table;
#[cfg(test)]
mod tests;

use std::ops::Range;

use process::{Form, Request};
use protocol::{Output, Sample};
use serde::{Deserialize, Serialize};
use strum::{EnumMessage, VariantArray};
use table::ENTRIES;

use crate::facts::evidence::Evidence;
use crate::facts::impossible::{BYTES, DAY};
use crate::facts::run::Run;
use crate::judge::work::Selection;
pub use crate::judge::work::{AudioSize, Size};
use crate::plan::{Plan, WorkKind};

struct Entry {
    metric: Metric,
    /// The kinds of work that have it; all if empty.
    kinds: &'static [WorkKind],
    /// The heading of its row or column, with the unit.
    title: &'static str,
    /// A shorter title that leaves room for other columns, if there is one.
    short_title: Option<&'static str>,
    /// Its name in sentences and flags.
    words: &'static str,
    unit: &'static str,
    higher_is_better: bool,
    source: Source,
    /// Share of the table's error rate for all verdicts on it together; 0 if it is not tested.
    error_share: f64,
    /// Whether it decides when automatic rounds end; exactly one metric does.
    decides: bool,
    /// Whether a slower machine makes it worse.
    depends_on_speed: bool,
    /// The words for a difference, if it has words of its own.
    phrases: Option<Phrases>,
}

/// How the figure of a process is computed. There is no default, so that every metric states its own.
enum Source {
    /// The mean of its requests' figures. Shown is the average ([`process::Form`]) of each prompt, then the geometric
    /// mean over prompts; tested for each prompt the trimmed mean over turns ([`statistics::of_turns`]). Zeros, which
    /// have no logarithm, give the arithmetic mean.
    Mean(OfRequest),
    /// The same for the figures of slices, if turns were slices of requests. The function treats a slice as a
    /// request.
    Slices(OfRequest),
    /// This quantile of the latencies of all its measured requests (type 7 of Hyndman & Fan 1996, *Sample Quantiles in
    /// Statistical Packages*).
    Percentile(f64),
    /// This quantile of the latencies of all its processes together, of which one alone has too few.
    Pooled(f64),
    /// The highest figure of its requests.
    Peak(OfRequest),
    /// A value that the process has once.
    Reading(fn(&Run, Size) -> Option<f64>),
    /// The figure of the first metric divided by that of the second.
    Quotient(Metric, Metric),
}

/// The figure of one request, `None` where it has too few samples for it.
type OfRequest = fn(&Request<'_>) -> Option<f64>;

/// Entries are in the order of the variants.
const _: () = {
    let mut at = 0;
    while at < ENTRIES.len() {
        assert!(ENTRIES[at].metric as usize == at);
        at += 1;
    }
};

impl Metric {
    /// Every metric, in the order of files and tables.
    pub const ALL: &'static [Metric] = Metric::VARIANTS;

    /// The metrics of the main table, in its order.
    pub const TABLE: [Metric; 7] = [
        Metric::Load,
        Metric::ColdStart,
        Metric::FirstToken,
        Metric::Latency,
        Metric::Throughput,
        Metric::Total,
        Metric::PeakMemory,
    ];

    /// Those that are also given for each prompt separately, for requests that go token by token.
    pub const OF_A_PROMPT: [Metric; 4] =
        [Metric::FirstToken, Metric::Latency, Metric::Throughput, Metric::PrefillThroughput];

    fn entry(self) -> &'static Entry {
        &ENTRIES[self as usize]
    }

    /// The metric with this key or name, in any case, with spaces, dashes or underscores.
    pub fn parse(text: &str) -> Option<Metric> {
        let plain = |text: &str| text.trim().to_lowercase().replace(['-', '_'], " ");
        let asked = plain(text);
        let is_it = |metric: &Metric| plain(metric.name()) == asked || plain(metric.words()) == asked;
        Metric::ALL.iter().copied().find(is_it)
    }

    /// The key: the metric's name in JSON, CSV and the history.
    pub fn name(self) -> &'static str {
        self.into()
    }

    /// The heading of its row or column, with the unit.
    pub fn title(self) -> &'static str {
        self.entry().title
    }

    pub fn plain_title(self) -> &'static str {
        self.title().split(" (").next().unwrap_or_default()
    }

    /// A title that leaves room for other columns.
    pub fn short_title(self) -> &'static str {
        self.entry().short_title.unwrap_or(self.title())
    }

    /// Its name in sentences.
    pub fn words(self) -> &'static str {
        self.entry().words
    }

    /// Its name in flags: the words, with dashes.
    pub fn flag(self) -> String {
        self.words().replace(' ', "-")
    }

    /// Its definition in one line: the comment of its variant.
    pub fn definition(self) -> &'static str {
        self.get_documentation().unwrap_or_default().trim_end_matches('.')
    }

    pub fn unit(self) -> &'static str {
        self.entry().unit
    }

    pub fn higher_is_better(self) -> bool {
        self.entry().higher_is_better
    }

    /// Its words for differences, if it has words of its own.
    pub fn phrases(self) -> Option<&'static Phrases> {
        self.entry().phrases.as_ref()
    }

    /// The metric that this is another form of and shares the verdict with: one is a constant divided by the
    /// other, or a multiple of it.
    pub fn follows(self, kind: WorkKind) -> Option<Metric> {
        Selection::new(kind).followed_by(self)
    }

    /// Whether it is the mean over requests.
    pub fn is_of_requests(self) -> bool {
        matches!(self.entry().source, Source::Mean(_) | Source::Slices(_))
    }

    /// Whether a slower machine makes it worse.
    pub fn depends_on_speed(self) -> bool {
        self.entry().depends_on_speed
    }

    /// The metrics with verdicts, each once, in the order of tables. Those that follow another share its verdict.
    pub fn tested(kind: WorkKind) -> Vec<Metric> {
        let is_tested = |entry: &&Entry| Metric::TABLE.contains(&entry.metric) || entry.error_share > 0.0;
        let mut tested: Vec<Metric> =
            ENTRIES.iter().filter(is_tested).map(|entry| entry.metric.replaced(kind)).collect();
        tested.sort_unstable();
        tested.dedup();
        tested
    }

    /// Share of the table's error rate for all verdicts on a tested metric. Only ratios of shares count: if
    /// requests are of one kind, some metrics follow others and need none.
    pub fn error_share(self, kind: WorkKind) -> f64 {
        if self.follows(kind).is_some() {
            return 0.0;
        }
        let replacing = ENTRIES.iter().filter(|entry| entry.metric.replaced(kind) == self);
        replacing.map(|entry| entry.error_share).fold(0.0, f64::max)
    }

    /// The questions about speed, in the order of the answer: which decodes fastest, which returns the first
    /// token soonest, which completes whole requests soonest.
    pub fn questions(kind: WorkKind) -> Vec<Metric> {
        let deciding = Metric::deciding(kind);
        let further = Metric::in_places_of(&[Metric::FirstToken, Metric::Total], kind);
        let is_asked = |metric: &Metric| *metric != deciding && metric.error_share(kind) > 0.0;
        [deciding].into_iter().chain(further.into_iter().filter(is_asked)).collect()
    }

    /// The metrics with verdicts of their own: the first question, then in the order of the table.
    pub fn asked(kind: WorkKind) -> Vec<Metric> {
        let mut asked = Metric::tested(kind);
        asked.retain(|metric| metric.follows(kind).is_none());
        asked.sort_by_key(|metric| *metric != Metric::deciding(kind));
        asked
    }

    pub fn in_table(kind: WorkKind) -> Vec<Metric> {
        Metric::in_places_of(&Metric::TABLE, kind)
    }

    /// The metrics that are also given for each prompt separately.
    pub fn of_a_prompt(kind: WorkKind) -> Vec<Metric> {
        Metric::in_places_of(&Metric::OF_A_PROMPT, kind)
    }

    /// The metrics in the places of these in tables, each once.
    fn in_places_of(metrics: &[Metric], kind: WorkKind) -> Vec<Metric> {
        let mut found = Vec::new();
        for metric in metrics.iter().map(|metric| metric.in_tables(kind)) {
            if !found.contains(&metric) {
                found.push(metric);
            }
        }
        found
    }

    /// Every metric of such requests.
    pub fn all(kind: WorkKind) -> Vec<Metric> {
        let of_kind = ENTRIES.iter().filter(|entry| entry.kinds.is_empty() || entry.kinds.contains(&kind));
        of_kind.map(|entry| entry.metric).collect()
    }

    /// The metric that decides when automatic rounds end: the one asked for most. Of those in the table, its
    /// differences are the smallest.
    pub fn deciding(kind: WorkKind) -> Metric {
        let deciding = ENTRIES.iter().find(|entry| entry.decides);
        deciding.map_or(Metric::Throughput, |entry| entry.metric).replaced(kind)
    }

    fn replaced(self, kind: WorkKind) -> Metric {
        Selection::new(kind).in_place_of(self)
    }

    fn in_tables(self, kind: WorkKind) -> Metric {
        let selection = Selection::new(kind);
        let replaced = if selection.replaces_in_tables { self.replaced(kind) } else { self };
        selection.shown_for(replaced)
    }

    /// The figure of one request, in the metric's unit. `None` for a metric that requests do not have, and for too few
    /// samples.
    pub fn of_request(self, sample: &Sample, size: Size) -> Option<f64> {
        match self.entry().source {
            Source::Mean(figure) | Source::Slices(figure) | Source::Peak(figure) => {
                figure(&Request::new(sample, size))
            }
            Source::Percentile(_) | Source::Pooled(_) | Source::Reading(_) | Source::Quotient(..) => None,
        }
    }

    /// The compared figures of a request: of its slices, or of itself.
    pub fn of_parts(self, sample: &Sample, size: Size) -> Vec<f64> {
        match self.entry().source {
            Source::Slices(figure) => {
                Request::new(sample, size).slices().filter_map(|slice| figure(&slice)).collect()
            }
            _ => self.of_request(sample, size).into_iter().collect(),
        }
    }
}

/// The name in sentences of the metric with this key. A metric of a newer version keeps its key as its name.
pub fn words(key: &str) -> String {
    Metric::parse(key).map_or_else(|| key.replace('_', " "), |metric| metric.words().to_owned())
}

/// The figures of one contender that outputs show, by round; `None` for a round without one. The last round may have
/// been interrupted by the user.
///
/// If groups take turns, figures of every group are shifted so that the anchor has the same in all: contenders of two
/// groups are compared through it.
pub fn by_round(metric: Metric, plan: &Plan, evidence: &Evidence, label: &str) -> Vec<Option<f64>> {
    by_round_of(metric, 0..plan.work.cases(), plan, evidence, label)
}

/// The same for the requests of these prompts only.
pub fn by_round_of(
    metric: Metric,
    cases: Range<usize>,
    plan: &Plan,
    evidence: &Evidence,
    label: &str,
) -> Vec<Option<f64>> {
    of_rounds(evidence, label, |run| process::figure(metric, Form::Average, &cases, plan, evidence, run))
}

/// The figures of one contender without its slowest and its fastest moments, by round. If contenders take turns, the
/// figure of a process is computed from the turns of all in its round: the disturbance of a block or a turn cancels.
pub fn typical(
    metric: Metric,
    cases: Range<usize>,
    plan: &Plan,
    evidence: &Evidence,
    label: &str,
) -> Vec<Option<f64>> {
    of_rounds(evidence, label, |run| process::figure(metric, Form::Typical, &cases, plan, evidence, run))
}

/// The figure of all processes of a contender together, for a metric that has no figure of a single process.
pub(crate) fn pooled(
    metric: Metric,
    plan: &Plan,
    evidence: &Evidence,
    label: &str,
) -> Option<process::Pooled> {
    let Source::Pooled(share) = metric.entry().source else { return None };
    let runs: Vec<&Run> = evidence.complete(label).collect();
    process::pooled(share, &(0..plan.work.cases()), plan, &runs)
}

fn of_rounds(evidence: &Evidence, label: &str, figure: impl Fn(&Run) -> Option<f64>) -> Vec<Option<f64>> {
    let figure = |round: usize| figure(evidence.complete(label).find(|run| run.round == round)?);
    let rounds = evidence.runs.iter().map(|run| run.round + 1).max().unwrap_or(0);
    (0..rounds).map(figure).collect()
}

// The names of metrics. Module `metrics` computes them.

/// A figure of every contender in a comparison. The order of the variants is that of files and tables.
#[derive(
    Debug,
    Clone,
    Copy,
    PartialEq,
    Eq,
    PartialOrd,
    Ord,
    Hash,
    Serialize,
    Deserialize,
    strum::EnumMessage,
    strum::IntoStaticStr,
    strum::VariantArray,
)]
#[serde(rename_all = "snake_case")]
#[strum(serialize_all = "snake_case")]
pub enum Metric {
    /// Spawn → weights resident, seconds.
    Load,
    /// First request after load → its first result, milliseconds.
    ColdStart,
    /// Warm request → first token, mean over requests, milliseconds.
    FirstToken,
    /// Decode time ÷ decoded tokens of one sequence after warm-up, milliseconds.
    Latency,
    /// Decoded tokens ÷ decode time of all requests, tokens per second.
    Throughput,
    /// Warm request → last token, mean over requests, milliseconds.
    Total,
    /// Highest resident set up to the last sample, on a GPU highest memory held there, gigabytes (10⁹ bytes).
    PeakMemory,
    /// Spawn → runtime initialised, milliseconds.
    Startup,
    /// Spawn → first token, milliseconds.
    SpawnToFirstToken,
    /// First request after load → its last token, seconds.
    FirstRequest,
    /// Spawn → last token of the first request, seconds.
    FirstAnswer,
    /// Prompt tokens ÷ time to first token, mean over requests, tokens per second.
    PrefillThroughput,
    /// Median gap between successive tokens of a process, milliseconds.
    LatencyP50,
    /// 90th percentile of a process's gaps, milliseconds.
    LatencyP90,
    /// 95th percentile of a process's gaps, milliseconds.
    LatencyP95,
    /// 99th percentile of the gaps of all processes, at least 300, milliseconds.
    LatencyP99,
    /// Throughput of the fastest request, tokens per second.
    PeakThroughput,
    /// Throughput ÷ peak memory, tokens per second and gigabyte.
    Efficiency,
    /// Peak memory ÷ sequences of the batch, megabytes (10⁶ bytes).
    MemoryPerSequence,
    /// Masked diffusion: warm request ÷ its steps, milliseconds.
    StepTime,
    /// Masked diffusion: new tokens ÷ time of the request, tokens per second.
    DenoisingThroughput,
    /// Masked diffusion: steps ÷ time of the request, per second.
    StepsPerSecond,
    /// Masked diffusion: share of a request's time in which tokens are chosen and not computed, percent.
    SamplerShare,
    /// Encoders: texts ÷ time of the request, mean over batches of several texts, texts per second.
    EncodingThroughput,
    /// Encoders: time of a request of one text, milliseconds.
    SingleText,
    /// Encoders: tokens ÷ time of the request, padding left out, tokens per second.
    EncodedTokens,
    /// Encoders: share of the computed positions that hold no token, percent.
    PaddingShare,
    /// ONNX files: inputs ready → all outputs in host memory, mean over runs, milliseconds.
    RunTime,
    /// ONNX files: runs ÷ their time, mean over requests, runs per second.
    RunThroughput,
    /// Several callers: requests ÷ time until the last answer, requests per second.
    RequestThroughput,
    /// Several callers: highest rate at which 99 of 100 answers come within the limit, requests per second.
    Goodput,
    /// Several callers: request made, or due → its answer, mean over requests, milliseconds.
    CallLatency,
    /// Several callers at a given rate: requests answered a second ÷ that rate, percent; below 100 it is overloaded.
    KeptUp,
    /// Models that hear or speak: time of a request ÷ length of its audio; below 1 it keeps pace.
    RealTimeFactor,
    /// Models that hear: time of a request until its audio is encoded, milliseconds.
    EncoderTime,
}

// Figures of single requests and processes, from which metrics are computed.

/// A count per second of a request.
fn a_second(request: &Request<'_>, count: usize) -> Option<f64> {
    let ns = request.sample.marks_ns.end() as f64;
    (ns > 0.0).then(|| count as f64 * 1e9 / ns)
}

/// The mean time of a request's runs.
fn run_ms(request: &Request<'_>) -> Option<f64> {
    let runs = request.sample.marks_ns.len();
    (runs > 0).then(|| ms(request.sample.marks_ns.end()) / runs as f64)
}

/// Time ÷ length of the audio.
fn real_time(request: &Request<'_>) -> Option<f64> {
    let audio_ns = match (request.size.audio?, &request.sample.output) {
        (AudioSize::Whole(ns), _) => ns as f64,
        (AudioSize::Output { place, sample_ps }, Output::Tensors(tensors)) => {
            tensors.get(place)?.shape.iter().product::<usize>() as f64 * sample_ps as f64 / 1e3
        }
        _ => return None,
    };
    (audio_ns > 0.0).then(|| request.sample.marks_ns.end() as f64 / audio_ns)
}

/// The rate at which the requests were due.
fn goodput(request: &Request<'_>) -> Option<f64> {
    let due_ns = request.sample.calls.iter().map(|call| call.asked_ns).max()? as f64;
    (due_ns > 0.0).then(|| request.sample.calls.len() as f64 * 1e9 / due_ns)
}

/// The rate of answers as a share of the rate of requests: the time in which they were due ÷ the time until
/// the last answer.
fn kept_up(request: &Request<'_>) -> Option<f64> {
    let due = request.sample.calls.iter().map(|call| call.asked_ns).max()? as f64;
    let done = request.sample.marks_ns.end() as f64;
    (done > 0.0).then(|| 100.0 * due / done)
}

/// Seconds to the last mark of the first request; its first mark came after so many nanoseconds. `None` if
/// the worker did not time as many marks as in its turns.
fn whole_s(run: &Run, first_ns: u64) -> Option<f64> {
    let marks = &run.cold_start()?.marks_ns;
    let is_whole = marks.len() == run.turns.first()?.sample.marks_ns.len();
    is_whole.then(|| (first_ns + marks.after_first()) as f64 / 1e9)
}

fn ms(ns: u64) -> f64 {
    ns as f64 / 1e6
}

// The kinds of work that have a metric.

/// Kinds of work with requests that go token by token.
const TOKENS: &[WorkKind] = &[WorkKind::TokenByToken, WorkKind::OneToken, WorkKind::Speech];

/// The same without those that hear: a prompt is then no more than what begins a text.
const PROMPTS: &[WorkKind] = &[WorkKind::TokenByToken, WorkKind::OneToken];

const SPEECH: &[WorkKind] = &[WorkKind::Speech];

/// Kinds of work with latencies: times between tokens, of single texts, or of runs.
const LATENCIES: &[WorkKind] = &[
    WorkKind::TokenByToken,
    WorkKind::OneToken,
    WorkKind::Speech,
    WorkKind::Encoding,
    WorkKind::SingleText,
    WorkKind::Graph,
    WorkKind::Audio,
    WorkKind::Callers,
    WorkKind::Arrivals,
    WorkKind::Goodput,
];

const STEPS: &[WorkKind] = &[WorkKind::Denoising];

const TEXTS: &[WorkKind] = &[WorkKind::Encoding, WorkKind::ManyTexts, WorkKind::SingleText];

const MANY_TEXTS: &[WorkKind] = &[WorkKind::Encoding, WorkKind::ManyTexts];

const CALLERS: &[WorkKind] = &[WorkKind::Callers, WorkKind::Arrivals, WorkKind::Goodput];

const GOODPUT: &[WorkKind] = &[WorkKind::Goodput];

const ARRIVALS: &[WorkKind] = &[WorkKind::Arrivals];

const RUNS: &[WorkKind] = &[WorkKind::Graph, WorkKind::Audio];

const AUDIO: &[WorkKind] = &[WorkKind::Audio, WorkKind::Speech];

const SINGLE_TEXTS: &[WorkKind] = &[WorkKind::Encoding, WorkKind::SingleText];

/// Callers with a given number or rate.
const GIVEN: &[WorkKind] = &[WorkKind::Callers, WorkKind::Arrivals];

// The words of a metric for its differences.

/// The words of a metric: "a VERB", "a VERB COMPARATIVE than b", "a SUPERLATIVE", "a and b EQUAL".
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Phrases {
    pub verb: &'static str,
    pub comparative: &'static str,
    pub superlative: &'static str,
    pub equal: &'static str,
}

// Finds impossible figures in reports from elsewhere: no process within the limits of [`facts::impossible`]
// has them.

/// Most of any count per second: everything that a batch of a million sequences could do in a nanosecond, for
/// each byte of memory.
const MOST_A_SECOND: f64 = 1e24;

impl Metric {
    /// Whether a contender can have this figure.
    pub fn is_possible(self, figure: f64) -> bool {
        let most = match self.unit() {
            "s" => DAY as f64 / 1e9,
            "ms" => DAY as f64 / 1e6,
            "GB" => BYTES as f64 / 1e9,
            "MB" => BYTES as f64 / 1e6,
            "%" => 100.0,
            _ => MOST_A_SECOND,
        };
        // A worker may measure 0 for these.
        let may_be_zero = matches!(self, Metric::Startup | Metric::SamplerShare | Metric::PaddingShare);
        figure <= most && (figure > 0.0 || may_be_zero && figure == 0.0)
    }

    /// The error for the first impossible figure of a contender.
    pub(crate) fn check(
        self,
        framework: &str,
        figures: impl IntoIterator<Item = Option<f64>>,
    ) -> Result<(), String> {
        match figures.into_iter().flatten().find(|&figure| !self.is_possible(figure)) {
            None => Ok(()),
            Some(figure) => {
                Err(format!("{} of {framework} is {figure:?} {}, which cannot be", self.words(), self.unit()))
            }
        }
    }
}
