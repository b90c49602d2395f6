//! One contender of a report: its description, its measurements, and its state.

use std::collections::BTreeMap;
use std::fmt;

use bundle::Precision;
use configs::OwnCode;
use protocol::{GpuWork, Hello, InEffect, Served, Shows, untrusted};
use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};
use statistics::{Components, median};

use super::{Facts, Figure, Report};
use crate::facts::agreement::{Agreement, QualityScore};
use crate::facts::arithmetic::Arithmetic;
use crate::facts::evidence::{End, Evidence, Shipped};
use crate::facts::run::{FailureKind, Run, Turn};
use crate::history::State;
use crate::judge::metrics::{self, Metric, Size};
use crate::judge::report;
use crate::judge::report::fairness::RuleState;
use crate::judge::report::limit::Limit;
use crate::judge::report::memory::{self, Parts};
use crate::judge::report::prompts::{Loads, loads};
use crate::judge::report::variation::{self, Steadiness};
use crate::judge::report::verdicts::{Comparison, Verdict};
use crate::judge::report::warnings::{Figures, Threads};
use crate::plan::{self, Contender, Plan};

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Row {
    pub framework: String,
    #[serde(default)]
    pub kind: Kind,
    pub state: State,
    /// The reasons for its state, if that is not simply "measured".
    pub reasons: Vec<Reason>,
    pub precision: Requested,
    pub rounds: usize,
    pub metrics: Vec<Figure>,
    pub load: Loads,
    /// Rounds in which other activity disturbed its start. They count: leaving out loads because of stolen time would
    /// leave out the fast ones.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub disturbed_starts: Vec<usize>,
    /// Its share of the machine's limit.
    pub limit: Option<Limit>,
    pub memory: Option<Parts>,
    pub threads: Option<Threads>,
    pub steadiness: Steadiness,
    /// How much longer its first request took than a steady one of the same prompt, as a share; median over processes.
    pub first_request_excess: Option<f64>,
    /// How its throughput varies from request to request and from process to process.
    pub components: Option<Components>,
    pub energy: Option<Energy>,
    /// Readings of the GPU while its requests were measured; `None` on a CPU.
    pub gpu: Option<GpuWork>,
    /// Its quality, if that was judged by the bundled text or texts.
    pub text: Option<QualityScore>,
    /// The worst of all rounds; `None` if one of them lacks it although it should have it.
    pub agreement: Option<Agreement>,
    /// One digest for all logits that were compared with the reference's, by round: contenders with equal
    /// digests computed the same bits.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub outputs: Option<String>,
    /// Whether it runs another file than the first, which the comparison is about: its outputs are not the reference's.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub is_other_file: bool,
    /// Size of the files needed to run it, without its model; `None` if that could not be read.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub shipped: Option<Shipped>,
    /// `[case][batch][new tokens]`: its choices in the last iteration of warm-up, whose prompts are the comparison's
    /// own.
    pub tokens: Option<Vec<Vec<Vec<u32>>>>,
    pub hello: Option<Hello>,
    pub in_effect: Option<InEffect>,
    /// What it multiplies in, at each number of rows; empty if that was not observed.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub arithmetic: Vec<Arithmetic>,
    /// How much of its CPU time is arithmetic of its own (rule R19); `None` if that is not known.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub own_code: Option<OwnCode>,
    /// Most bytes that a process wrote into its fresh kernel cache; `None` if it was given none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub kernel_cache_bytes: Option<u64>,
    /// The shapes that its last process compiled for; `None` if it compiles for none, or does not report
    /// them.
    pub compiled: Option<untrusted::Foreigns>,
    /// How it padded prompts of different lengths in one batch; `None` if they had one length.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub padding: Option<protocol::Padding>,
    /// What can be seen of its steps.
    #[serde(default, skip_serializing_if = "Shows::is_all")]
    pub shows: Shows,
    /// What a server said of the requests of its last process.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub served: Option<Served>,
}

/// The origin of a contender's code.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, strum::IntoStaticStr)]
#[serde(rename_all = "snake_case")]
#[strum(serialize_all = "snake_case")]
pub enum Kind {
    /// This project's own engine on the framework's public operations.
    #[default]
    Tuned,
    /// The framework's own implementation, or a common one.
    Stock,
    /// A program of the user's.
    Yours,
    /// A server, as its clients see it.
    Server,
}

/// Why a row is in its state. In JSON it is one text: "R5: it kept 3.1 CPUs busy; the budget is 2; …".
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(from = "String", into = "String")]
pub enum Reason {
    /// It broke the rule of this id: the finding, and the remedy.
    Rule { id: String, breach: String },
    /// In the words of a worker or the driver.
    Other(String),
}

impl From<String> for Reason {
    fn from(text: String) -> Reason {
        let is_rule = |id: &str| id.strip_prefix('R').is_some_and(|number| number.parse::<u8>().is_ok());
        match text.split_once(": ").filter(|(id, _)| is_rule(id)) {
            Some((id, breach)) => Reason::Rule { id: id.to_owned(), breach: breach.to_owned() },
            None => Reason::Other(text),
        }
    }
}

impl From<Reason> for String {
    fn from(reason: Reason) -> String {
        reason.to_string()
    }
}

impl fmt::Display for Reason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Reason::Rule { id, breach } => write!(f, "{id}: {breach}"),
            Reason::Other(text) => f.write_str(text),
        }
    }
}

/// The precision that was asked for, the one that was observed, and that of the model's source.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Requested {
    pub requested: Precision,
    pub observed: Option<untrusted::Foreign>,
    /// The type that the model's source stores most of its weights in, such as `Q4_1`, if it differs; at precision file
    /// all that its linear layers have.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub stored: Option<String>,
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Energy {
    /// Median over processes: everything that the meter covers, by new token.
    pub joules_per_token: f64,
    pub method: untrusted::Foreign,
}

/// How much of a contender's CPU time is arithmetic of its own: as this run measured it, or else as its file records
/// it.
pub(super) fn own_code(plan: &Plan, evidence: &Evidence, label: &str) -> Option<OwnCode> {
    let engine = &plan.contender(label)?.engine;
    let measured = evidence.own_code.get(label).and_then(|found| found.as_ref().ok());
    // The record is of steps and prompts on a CPU, and of the version that is pinned.
    let holds = plan.work.generate().is_some() && !plan.is_on_gpu() && engine.version.is_none();
    measured.or(engine.own_code.as_ref().filter(|_| holds)).cloned()
}

/// An ONNX file runs in the framework's own way, even in a worker of this project.
fn kind(contender: &Contender, plan: &Plan) -> Kind {
    match plan.work {
        _ if contender.engine.is_server() => Kind::Server,
        _ if contender.engine.reference => Kind::Stock,
        _ if contender.engine.yours => Kind::Yours,
        plan::Work::Graph(_) => Kind::Stock,
        _ => Kind::Tuned,
    }
}

impl Row {
    /// Judges the contender at this place of the plan. `limit`: its share of the machine's limit, if that is known.
    /// `figures`: of every metric.
    pub(super) fn new(
        place: usize,
        figures: &[(Metric, Figures)],
        facts: &Facts,
        rules: &[RuleState],
        limit: Option<Limit>,
    ) -> Row {
        let Facts { plan, evidence, model, .. } = facts;
        let contender = &plan.contenders[place];
        let label = &contender.label;
        let runs: Vec<&Run> = evidence.runs.iter().filter(|run| run.framework == *label).collect();
        let complete: Vec<&Run> = runs.iter().copied().filter(|run| run.is_complete()).collect();
        let (state, reasons) = state(contender, plan, evidence, rules, complete.is_empty());
        let loaded = runs.iter().rev().find_map(|run| run.loaded());
        // Memory and threads of a server's client say nothing of the server.
        let own: &[&Run] = if contender.engine.is_server() { &[] } else { &complete };
        Row {
            framework: label.clone(),
            kind: kind(contender, plan),
            state,
            reasons,
            precision: Requested {
                requested: contender.precision,
                observed: loaded.map(|loaded| loaded.in_effect.precision.clone()),
                stored: match contender.precision {
                    Precision::File => Some(model.config.block_words()),
                    precision => {
                        let stored = model.manifest.source.stored.clone();
                        stored.filter(|stored| !stored.eq_ignore_ascii_case(precision.name()))
                    }
                },
            },
            rounds: complete.len(),
            metrics: figures
                .iter()
                .map(|(metric, figures)| Figure::of_row(*metric, figures, place, plan, evidence))
                .collect(),
            load: loads(plan, evidence, label, own),
            disturbed_starts: complete.iter().filter(|run| !run.is_quiet()).map(|run| run.round).collect(),
            limit,
            memory: memory::parts(plan, &model.config, own),
            threads: (!own.is_empty()).then(|| Threads::new(plan, evidence, label)),
            steadiness: variation::steadiness(&complete, plan),
            first_request_excess: first_request_excess(plan, evidence, label),
            components: of_throughput(plan, &complete),
            energy: energy(plan, &complete),
            gpu: report::work(&complete),
            text: evidence.texts.get(label).and_then(|score| score.clone().ok()),
            agreement: agreement(&complete),
            outputs: outputs(&complete),
            is_other_file: contender.artefact().is_some() && plan.varied.iter().any(|rule| rule == "R11"),
            shipped: evidence.shipped.get(label).copied(),
            tokens: tokens(&complete),
            hello: runs.iter().find_map(|run| run.hello()).cloned(),
            in_effect: loaded.map(|loaded| loaded.in_effect.clone()),
            arithmetic: evidence.arithmetic.get(label).and_then(|told| told.clone().ok()).unwrap_or_default(),
            own_code: own_code(plan, evidence, label),
            kernel_cache_bytes: complete.iter().filter_map(|run| run.kernel_cache_bytes).max(),
            compiled: complete.last().and_then(|run| run.usage()?.compiled.clone()),
            padding: complete.last().and_then(|run| run.usage()?.cache.padding),
            shows: loaded.map_or_else(Shows::default, |loaded| loaded.shows),
            served: complete.last().and_then(|run| run.usage()?.served),
        }
    }

    pub fn figure(&self, metric: Metric) -> Option<&Figure> {
        self.metrics.iter().find(|figure| figure.metric == metric)
    }

    /// The figure of a metric that every output shows, in its unit.
    pub fn typical(&self, metric: Metric) -> Option<f64> {
        self.figure(metric)?.typical
    }

    /// For people: the precision it ran in, the requested one if it differs, and whether its weights are converted first.
    pub fn precision_words(&self) -> String {
        let kept = self.in_effect.as_ref();
        let is_cast = |kept: &InEffect| kept.weight_storage.as_str().contains(CONVERTED);
        let how = match kept {
            Some(kept) if is_emulated(kept) => ", emulated",
            Some(kept) if is_cast(kept) => ", multiplied in f32",
            _ => "",
        };
        format!("{}{how}", self.precision_name())
    }

    /// The same without the words for converted weights.
    pub fn precision_name(&self) -> String {
        let requested = self.precision.requested.name();
        match &self.precision.observed {
            Some(observed) if observed != requested => format!("{observed} (asked: {requested})"),
            None if self.state.has_figures() => format!("not reported (asked: {requested})"),
            _ => requested.to_owned(),
        }
    }

    /// For people: whether it agrees with the reference.
    pub fn parity_words(&self) -> String {
        match (self.state, &self.agreement) {
            (state, _) if !state.has_figures() => state.words().into(),
            (_, None) => match (self.kind, self.shows) {
                (Kind::Server, Shows::Choice) => "ok, tokens".into(),
                (Kind::Server, Shows::Count) => "unverified".into(),
                _ => "not checked".into(),
            },
            // How near it comes is what the comparison is about.
            (_, Some(Agreement { vectors: Some(vectors), .. })) if self.is_other_file => {
                format!("cosine {:.4}", vectors.cosine)
            }
            (_, Some(agreement)) if agreement.broken.is_some() => "BROKEN".into(),
            (_, Some(agreement)) if agreement.max_abs() == 0.0 => "ok, Δ = 0".into(),
            (_, Some(agreement)) => format!("ok, Δ ≤ {:.0e}", agreement.max_abs()),
        }
    }
}

/// What engines say of weights in 16 bits that every product converts.
const CONVERTED: &str = "converted to f32 for every product";

/// Whether it multiplies dequantised weights: an engine says so in how it keeps them.
pub(super) fn is_emulated(in_effect: &InEffect) -> bool {
    in_effect.weight_storage.as_str().starts_with("emulated")
}

fn state(
    contender: &Contender,
    plan: &Plan,
    evidence: &Evidence,
    rules: &[RuleState],
    nothing: bool,
) -> (State, Vec<Reason>) {
    let breaches = rules.iter().flat_map(|rule| rule.broken_by.iter().map(move |breach| (&rule.id, breach)));
    let breaches = breaches.filter(|(_, breach)| breach.framework == contender.label);
    let broken = breaches.map(|(id, breach)| Reason::Rule {
        id: id.clone(),
        breach: format!("{}; {}", breach.finding, breach.remedy),
    });
    let broken: Vec<Reason> = broken.collect();
    match evidence.absent.get(&contender.label) {
        Some(failure) if failure.kind == FailureKind::Unsupported => {
            (State::Unsupported, vec![failure.sentence().into()])
        }
        Some(failure) if failure.kind == FailureKind::Killed => {
            let suspicion = others_left(evidence, &contender.label);
            let reason = failure.sentence();
            (State::Failed, [Some(reason), suspicion].into_iter().flatten().map(Reason::from).collect())
        }
        Some(failure) => (State::Failed, vec![failure.sentence().into()]),
        None if nothing => {
            let limit = plan.limit_s().filter(|_| evidence.end == End::Budget);
            let within =
                limit.map_or_else(String::new, |limit| format!(" within the time limit of {limit} s"));
            (State::NotRun, vec![format!("no round was completed{within}").into()])
        }
        None if broken.is_empty() => (State::Measured, broken),
        None if plan.fair_comparison => (State::Struck, broken),
        None => (State::Labelled, broken),
    }
}

/// The note that another contender left processes behind; one of them may have ended a process of `label`.
fn others_left(evidence: &Evidence, label: &str) -> Option<String> {
    let mut others = evidence.runs.iter().chain(&evidence.repeated).filter(|run| run.framework != label);
    let other = &others.find(|run| !run.left_behind.is_empty())?.framework;
    Some(format!(
        "processes of {other} were still running after its worker had ended, and one of them may have sent the signal"
    ))
}

fn first_request_excess(plan: &Plan, evidence: &Evidence, label: &str) -> Option<f64> {
    let first = metrics::by_round(Metric::FirstRequest, plan, evidence, label);
    let steady_ms = metrics::by_round_of(Metric::Total, 0..1, plan, evidence, label);
    let excess =
        first.iter().zip(&steady_ms).map(|(first, steady_ms)| Some(1e3 * (*first)? / (*steady_ms)? - 1.0));
    median(&excess.flatten().collect::<Vec<_>>())
}

fn tokens(complete: &[&Run]) -> Option<Vec<Vec<Vec<u32>>>> {
    let last = complete.iter().max_by_key(|run| run.round)?.warmup()?.iterations.last()?;
    Some(last.cases.iter().map(|case| case.output.tokens().to_vec()).collect())
}

/// The worst of all rounds; `None` if one of them lacks it although it should have it.
fn agreement(complete: &[&Run]) -> Option<Agreement> {
    let is_missing = complete.iter().any(|run| run.no_agreement.is_some());
    let all = complete.iter().filter_map(|run| run.agreement.as_ref());
    all.max_by(worse).filter(|_| !is_missing).cloned()
}

/// One digest of all rounds' digests.
fn outputs(complete: &[&Run]) -> Option<String> {
    let digest = |run: &&Run| Some((run.round, run.agreement.as_ref()?.digest.as_ref()?.clone()));
    let all: Vec<(usize, String)> = complete.iter().filter_map(digest).collect();
    (!all.is_empty()).then(|| bundle::hexadecimal(&Sha256::digest(format!("{all:?}"))[..16]))
}

fn worse(a: &&Agreement, b: &&Agreement) -> std::cmp::Ordering {
    let rank = |agreement: &Agreement| (agreement.broken.is_some(), agreement.max_abs());
    let (a, b) = (rank(a), rank(b));
    a.0.cmp(&b.0).then(a.1.total_cmp(&b.1))
}

fn energy(plan: &Plan, complete: &[&Run]) -> Option<Energy> {
    let of_run = |run: &&Run| {
        let of_request = plan.work.prompted()?.added();
        let tokens = (run.all_requests().len() * of_request) as f64;
        Some(run.usage()?.energy.as_ref()?.joules / tokens)
    };
    let joules: Vec<f64> = complete.iter().filter_map(of_run).collect();
    let method = complete.iter().find_map(|run| Some(run.usage()?.energy.as_ref()?.method.clone()))?;
    Some(Energy { joules_per_token: median(&joules)?, method })
}

// How throughput varies within and between processes.

/// Variation of the logarithms of throughput from request to request of a process, and from process to
/// process.
pub(crate) fn of_throughput(plan: &Plan, runs: &[&Run]) -> Option<Components> {
    let metric = Metric::deciding(plan.work.kind());
    let figures = |run: &&Run| -> Vec<(usize, f64)> {
        let figure =
            |(case, sample)| Some((case, metric.of_request(sample, Size::request(plan, case))?.ln()));
        run.requests().filter_map(figure).collect()
    };
    statistics::components(&without_cases(runs.iter().map(figures).collect()))
}

/// Log ratios of throughput between the two turns of each pair in a block, as `[pair][round][block]`; if
/// turns are slices, the trimmed mean over slices, as in the figures of a round. `turns`: each with its round
/// and its contender's label.
pub fn of_pairs<'a>(
    plan: &Plan,
    turns: impl Iterator<Item = (usize, &'a str, &'a Turn)>,
) -> Vec<Vec<Vec<f64>>> {
    let metric = Metric::deciding(plan.work.kind());
    // By contender and by round and block: the case, and the logarithms of the parts.
    type OfBlocks = BTreeMap<(usize, usize), (usize, Vec<f64>)>;
    let mut figures: BTreeMap<&str, OfBlocks> = BTreeMap::new();
    for (round, label, turn) in turns {
        let case = turn.sample.case;
        let parts = metric.of_parts(&turn.sample, Size::request(plan, case)).into_iter().map(f64::ln);
        figures.entry(label).or_default().insert((round, turn.block), (case, parts.collect()));
    }
    let figures: Vec<_> = figures.into_values().collect();
    let mut pairs = Vec::new();
    for (place, a) in figures.iter().enumerate() {
        for b in &figures[place + 1..] {
            let mut rounds: BTreeMap<usize, Vec<(usize, f64)>> = BTreeMap::new();
            for (block, (case, ours)) in a {
                let Some((_, theirs)) = b.get(block) else { continue };
                let ratios: Vec<f64> = ours.iter().zip(theirs).map(|(ours, theirs)| ours - theirs).collect();
                if !ratios.is_empty() && ratios.iter().all(|ratio| ratio.is_finite()) {
                    let ratio = statistics::trimmed_mean(&ratios, statistics::TRIMMED_SLICES);
                    rounds.entry(block.0).or_default().push((*case, ratio));
                }
            }
            pairs.push(without_cases(rounds.into_values().collect()));
        }
    }
    pairs
}

/// The figures of each round, each prompt less its own mean: differences between prompts are no variation.
fn without_cases(mut rounds: Vec<Vec<(usize, f64)>>) -> Vec<Vec<f64>> {
    let mut sums: BTreeMap<usize, (f64, usize)> = BTreeMap::new();
    for (case, figure) in rounds.iter().flatten() {
        let (sum, count) = sums.entry(*case).or_default();
        (*sum, *count) = (*sum + figure, *count + 1);
    }
    let rest = |(case, figure): (usize, f64)| figure - sums[&case].0 / sums[&case].1 as f64;
    rounds.iter_mut().map(|round| round.drain(..).map(rest).collect()).collect()
}

// The A/A floor: how much one engine, under two labels, seems to differ from itself.

/// The smallest difference that this machine can show, from one engine measured as two.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Floor {
    pub a: String,
    pub b: String,
    pub metric: Metric,
    /// The end of the 95 % interval that is farther from "no difference", as a share.
    #[serde(deserialize_with = "crate::facts::agreement::number")]
    pub share: f64,
    /// Whether a difference was found although there is none.
    pub false_alarm: bool,
}

/// The floor of every metric, for every pair of contenders that are the same engine.
pub fn floors(plan: &Plan, comparisons: &[Comparison]) -> Vec<Floor> {
    let engine = |label: &str| Some(plan.contender(label)?.engine.name.as_str());
    let controls = comparisons.iter().filter(|c| engine(&c.a).is_some() && engine(&c.a) == engine(&c.b));
    let floor = |comparison: &Comparison| {
        let (low, high) = comparison.interval?;
        let share = high.ln().abs().max(low.ln().abs()).exp() - 1.0;
        Some(Floor {
            a: comparison.a.clone(),
            b: comparison.b.clone(),
            metric: comparison.metric,
            share,
            false_alarm: comparison.verdict == Verdict::Faster,
        })
    };
    controls.filter_map(floor).collect()
}

// The part of a report about two of its contenders.

impl Report {
    /// The labels of every two contenders that both have figures, each pair in alphabetical order.
    pub fn pairs(&self) -> Vec<[&str; 2]> {
        let measured = self.rows.iter().filter(|row| row.state.has_figures());
        let mut labels: Vec<&str> = measured.map(|row| row.framework.as_str()).collect();
        labels.sort_unstable();
        let mut pairs = Vec::new();
        for (place, a) in labels.iter().enumerate() {
            pairs.extend(labels[place + 1..].iter().map(|b| [*a, *b]));
        }
        pairs
    }

    /// The same report without all other contenders. Figures and verdicts are those of the whole run: its
    /// error rate is that of all pairs.
    pub fn of_pair(&self, pair: [&str; 2]) -> Report {
        let has = |label: &str| pair.contains(&label);
        let mut report = self.clone();
        report.plan.contenders.retain(|contender| has(&contender.label));
        report.rows.retain(|row| has(&row.framework));
        for prompt in &mut report.prompts {
            prompt.rows.retain(|row| has(&row.framework));
        }
        for batch in &mut report.from_text {
            batch.rows.retain(|row| has(&row.framework));
        }
        report.comparisons.retain(|found| has(&found.a) && has(&found.b));
        report.slow_moments.retain(|slow| has(&slow.contender));
        report.floor.retain(|floor| has(&floor.a) && has(&floor.b));
        report.sanity.retain(|flag| has(&flag.framework));
        // They compare a hybrid with its parts, which may not be in the pair.
        report.hybrids.clear();
        report
    }
}

#[cfg(test)]
mod tests {
    use crate::facts::run::RunFailure;
    use crate::facts::testing;
    use protocol::{Marks, Sample};

    use super::*;

    #[test]
    fn a_program_of_the_users_is_yours_unless_it_is_said_to_be_the_frameworks() {
        let of = |reference, yours| {
            let mut plan = testing::plan(&["mine"]);
            (plan.contenders[0].engine.reference, plan.contenders[0].engine.yours) = (reference, yours);
            kind(&plan.contenders[0], &plan)
        };
        assert_eq!(
            [of(false, false), of(false, true), of(true, true)],
            [Kind::Tuned, Kind::Yours, Kind::Stock]
        );
    }

    #[test]
    fn a_reason_is_the_text_that_older_reports_have() {
        let rule = Reason::Rule { id: "R5".into(), breach: "too busy; set its threads".into() };
        for (text, reason) in [
            ("R5: too busy; set its threads", rule),
            ("Rust: it panicked", Reason::Other("Rust: it panicked".into())),
            ("no bf16 kernels", Reason::Other("no bf16 kernels".into())),
        ] {
            let json = serde_json::json!(text);
            assert_eq!(serde_json::from_value::<Reason>(json.clone()).unwrap(), reason);
            assert_eq!(serde_json::to_value(reason).unwrap(), json);
        }
    }

    #[test]
    fn where_a_signal_ended_a_process_the_row_names_who_left_processes_behind() {
        let plan = testing::plan(&["a", "b"]);
        let reason = |kind, left_behind: &[&str]| {
            let failure = RunFailure::new(kind, "signal 9");
            let left_behind = left_behind.iter().map(|&name| name.to_owned()).collect();
            let run = Run { left_behind, ..testing::run("b", 0, Vec::new()) };
            let mut evidence = Evidence { runs: vec![run], ..Evidence::default() };
            evidence.absent.insert("a".into(), failure);
            let (_, reasons) = state(&plan.contenders[0], &plan, &evidence, &[], false);
            reasons.iter().map(Reason::to_string).collect::<Vec<_>>()
        };
        let named = reason(FailureKind::Killed, &["7 (sh)"]);
        assert!(named.len() == 2 && named[1].starts_with("processes of b were still running"), "{named:?}");
        assert_eq!(reason(FailureKind::Killed, &[]), ["signal 9"]);
        assert_eq!(reason(FailureKind::Failed, &["7 (sh)"]), ["signal 9"]);
    }

    #[test]
    fn ratios_are_of_turns_in_one_block_and_prompts_are_compared_with_themselves() {
        let turn = |block, case, ms: u64| {
            let marks_ns = Marks::new(1, [ms * 1_000_000]);
            Turn::alone(block, Sample { case, marks_ns, ..Sample::default() })
        };
        let a = [turn(0, 0, 10), turn(1, 1, 20), turn(2, 0, 20), turn(3, 1, 20)];
        let b = [turn(0, 0, 10), turn(1, 1, 20), turn(2, 0, 10)];
        let turns = a.iter().map(|turn| (0, "a", turn)).chain(b.iter().map(|turn| (0, "b", turn)));
        let pairs = of_pairs(&testing::plan(&["a", "b"]), turns);
        let half = 2_f64.ln() / 2.0;
        let close = |found: &f64, asked: f64| (found - asked).abs() < 1e-12;
        let [rounds] = pairs.as_slice() else { panic!("{pairs:?}") };
        let [round] = rounds.as_slice() else { panic!("{rounds:?}") };
        assert!(
            round.len() == 3 && close(&round[0], half) && close(&round[1], 0.0) && close(&round[2], -half)
        );
    }
}
