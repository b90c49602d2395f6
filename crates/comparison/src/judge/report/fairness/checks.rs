//! The check of each rule on the evidence: `Some` is an objection.

use std::collections::BTreeSet;
use std::path::Path;

use bundle::Precision;
use configs::TUNABLES;
use protocol::untrusted::Foreign;
use protocol::{Artefact, Build, Event, InEffect, KvCachePolicy, Shows};

use super::Judged;
use crate::facts::agreement::Tolerance;
use crate::facts::arithmetic::{self, Multiplied};
use crate::facts::evidence::End;
use crate::facts::run::{self, DerivedWeights, Run};
use crate::judge::report;
use crate::judge::report::row::{is_emulated, own_code};
use crate::judge::report::warnings::Threads;

/// The objection to a process that did not send an event needed to check a rule.
fn silent<T>(
    judged: &Judged<'_>,
    label: &str,
    name: &str,
    event: impl Fn(&Run) -> Option<&T>,
) -> Option<String> {
    let run = judged.runs_of(label).find(|run| event(run).is_none())?;
    Some(format!("it sent no event `{name}` in round {}: this cannot be checked", run.round + 1))
}

pub(super) fn same_weights(judged: &Judged<'_>, label: &str) -> Option<String> {
    let silent = silent(judged, label, "loaded", Run::loaded);
    silent.or_else(|| other_weights(judged, label))
}

fn other_weights(judged: &Judged<'_>, label: &str) -> Option<String> {
    let files = &judged.manifest.files;
    judged.runs_of(label).find_map(|run| {
        let loaded = run.loaded()?;
        let file = Path::new(loaded.weights_file.as_str()).file_name()?.to_string_lossy().into_owned();
        let Some(theirs) = judged.weights_sha256(run) else {
            return Some("no hash of the file that its weights came from is known".into());
        };
        let Some(record) = files.get(&file) else {
            // A published archive does not keep the file's name; its hash is as good.
            let is_in_bundle = files.values().any(|record| record.sha256 == theirs.as_str());
            return if is_in_bundle { None } else { objection(judged, run) };
        };
        if record.sha256 == theirs.as_str() {
            return None;
        }
        Some(format!("its weights have sha256 {theirs}, the bundle's are {}", record.sha256))
    })
}

pub(super) fn same_precision(judged: &Judged<'_>, label: &str) -> Option<String> {
    let asked = judged.plan.precision.name();
    let mut observed =
        judged.runs_of(label).filter_map(|run| Some(run.loaded()?.in_effect.precision.as_str()));
    let other = observed
        .find(|observed| *observed != asked)
        .map(|observed| format!("asked for {asked}, it ran {observed}"));
    other.or_else(|| fewer_bits(judged, label)).or_else(|| silent(judged, label, "loaded", Run::loaded))
}

/// Products of fewer significant bits than the precision's, where that is one of floating point.
fn fewer_bits(judged: &Judged<'_>, label: &str) -> Option<String> {
    let precision = judged.plan.contender(label)?.precision;
    let asked = match precision {
        Precision::F32 => Multiplied::F32,
        Precision::F16 => Multiplied::Bits11,
        Precision::Bf16 => Multiplied::Bf16,
        _ => return None,
    };
    let observed = judged.evidence.arithmetic.get(label)?.as_ref().ok()?;
    let fewer = observed.iter().find(|found| found.multiplied.bits() < asked.bits())?;
    let (rows, name) = (fewer.rows, fewer.name(precision.name()));
    Some(format!("asked for {precision}, it multiplies in {name} ({rows} tokens at once)"))
}

/// That it holds dequantised weights: it has the numbers of that precision, and neither its memory nor its speed.
pub(super) fn emulated(judged: &Judged<'_>, label: &str) -> Option<String> {
    let precision = judged.plan.contender(label)?.precision;
    let mut loaded = judged.runs_of(label).filter_map(Run::loaded);
    loaded.any(|loaded| is_emulated(&loaded.in_effect)).then(|| {
        format!("it emulates {precision}: its weights are dequantised to f32 at load and multiplied in f32")
    })
}

/// What it multiplies in, if the first contender that shows it does so in something else.
pub(super) fn unlike_products(judged: &Judged<'_>, label: &str) -> Option<String> {
    let words = |label: &str| {
        let precision = judged.plan.contender(label)?.precision;
        arithmetic::words(judged.evidence.arithmetic.get(label)?.as_ref().ok()?, precision.name())
    };
    let mut others = judged.plan.contenders.iter().map(|contender| contender.label.as_str());
    let (first, usual) = others.find_map(|label| Some((label, words(label)?)))?;
    let own = words(label).filter(|own| *own != usual)?;
    Some(format!("it multiplies in {own}; {first} in {usual}"))
}

/// Share of CPU time from which on own arithmetic is more than what a profile attributes wrongly: `engine-candle` has
/// 0.1 % of a prompt in copies that cannot be told from it, and norms alone take 0.6 % (SmolLM2-135M, 256 tokens).
const MOST_OWN: f64 = 0.005;

pub(super) fn whose_arithmetic(judged: &Judged<'_>, label: &str) -> Option<String> {
    let engine = &judged.plan.contender(label)?.engine;
    if engine.reference || engine.is_assisted() || judged.is_hybrid(label) {
        return None;
    }
    let own = own_code(judged.plan, judged.evidence, label).filter(|own| own.largest() > MOST_OWN)?;
    let [first, second] = judged.plan.work.phases();
    let phase = if own.decode >= own.prefill { first } else { second };
    let (share, framework) = (100.0 * own.largest(), &engine.framework);
    let parts = if own.parts.is_empty() { String::new() } else { format!(": {}", own.parts.join(", ")) };
    Some(format!(
        "{share:.1} % of the CPU time of {phase} is arithmetic of the engine, not of {framework}{parts}"
    ))
}

pub(super) fn same_tokens(judged: &Judged<'_>, label: &str) -> Option<String> {
    let work = &judged.plan.work;
    let (cases, batch) = (work.cases(), work.batch());
    let fits = |iteration: &protocol::Iteration| {
        iteration.cases.len() == cases && iteration.cases.iter().all(|sample| work.has_all_sequences(sample))
    };
    let is_answered = |run: &Run| {
        let iterations = run.iterations();
        !iterations.is_empty() && iterations.iter().all(fits)
    };
    let mut runs = judged.runs_of(label);
    runs.any(|run| !is_answered(run))
        .then(|| format!("an iteration did not answer all {cases} cases with {batch} sequences each"))
}

pub(super) fn same_work(judged: &Judged<'_>, label: &str) -> Option<String> {
    let work = &judged.plan.work;
    judged.runs_of(label).find_map(|run| {
        let iterations = run.iterations().len();
        let due = judged.iterations_due(run.round);
        // The anchor of several groups has the work of each measured group.
        let groups = judged.plan.groups_of(label);
        if !(1..=groups).any(|groups| iterations == groups * due) {
            return Some(format!("it did {iterations} of {due} iterations"));
        }
        let mut requests = run.requests().map(|(_, sample)| sample);
        requests.find(|sample| !work.is_done(sample)).map(|sample| {
            let (made, asked) = (sample.marks_ns.len(), work.marks());
            format!("an iteration made {made} of {asked} {}s", work.mark_noun())
        })
    })
}

pub(super) fn same_device(judged: &Judged<'_>, label: &str) -> Option<String> {
    let asked = judged.plan.device.as_str();
    let mut observed = judged.runs_of(label).filter_map(|run| Some(run.loaded()?.in_effect.device.as_str()));
    let other = observed
        .find(|observed| *observed != asked)
        .map(|observed| format!("asked for {asked}, it ran on {observed}"));
    other.or_else(|| silent(judged, label, "loaded", Run::loaded))
}

pub(super) fn own_process(judged: &Judged<'_>, label: &str) -> Option<String> {
    // A system may reuse a process id, but not within one round.
    let shared = judged.runs_of(label).find(|run| {
        let same = judged.runs.iter().filter(|other| other.round == run.round && other.pid == run.pid);
        same.count() > 1
    });
    shared.map(|run| format!("process {} served two frameworks in round {}", run.pid, run.round + 1))
}

/// A process's own kernel cache that it did not use: its cold start may not include compilation.
pub(super) fn unused_caches(judged: &Judged<'_>, label: &str) -> Option<String> {
    judged.runs_of(label).find_map(|run| run::unused_caches(&run.unused_caches))
}

/// Processes that a contender left behind. They were killed before any other contender was measured, so they
/// gave no contender an advantage.
pub(super) fn survivors(judged: &Judged<'_>, label: &str) -> Option<String> {
    judged.runs_of(label).find_map(|run| run::left_behind(&run.left_behind))
}

pub(super) fn warmed_up(judged: &Judged<'_>, label: &str) -> Option<String> {
    judged.runs_of(label).find_map(|run| {
        let shape = |iteration: &protocol::Iteration| -> Vec<(usize, usize)> {
            iteration.cases.iter().map(|case| (case.output.tokens().len(), case.marks_ns.len())).collect()
        };
        let measured = run.iterations().first().map(shape)?;
        let warm = run.warmup().map(|warmup| warmup.iterations.iter().map(shape).collect::<Vec<_>>());
        match warm {
            Some(warm) if !warm.is_empty() && warm.iter().all(|shape| *shape == measured) => None,
            _ => Some("warm-up did not run the shapes that were measured".into()),
        }
    })
}

pub(super) fn same_build(judged: &Judged<'_>, label: &str) -> Option<String> {
    let build = |run: &Run| run.hello().map(|hello| hello.build.clone());
    let debug = judged.runs_of(label).filter_map(build).find(|build: &Build| build.profile != "release");
    if let Some(build) = debug {
        return Some(format!("it is a {} build", build.profile));
    }
    if let Some(silent) = silent(judged, label, "hello", Run::hello) {
        return Some(silent);
    }
    if let Some(changed) = changed(judged, label) {
        return Some(changed);
    }
    // Flags and features of one compiler cannot be compared with those of another.
    let compiled = |run: &Run| build(run).filter(|build| build.rustc.is_some());
    judged.same_for_all(label, "its build", compiled, |ours, theirs| {
        // The first part that differs: features follow from the flags.
        let parts = |build: &Build| {
            let text = |part: &Option<Foreign>| part.as_ref().map(|part| part.as_str().to_owned());
            let flags = build.rustflags.as_ref().map(|flags| format!("{:?}", flags.as_str()));
            let features = build.target_features.as_ref().map(|features| format!("{features:?}"));
            [text(&build.rustc), text(&build.toolchain), text(&build.target), flags, features]
        };
        let (ours, theirs) = (parts(ours), parts(theirs));
        let differing = ours.into_iter().zip(theirs).find(|(ours, theirs)| ours != theirs);
        let (ours, theirs) = differing.unwrap_or_default();
        [ours, theirs].map(|part| part.unwrap_or_else(|| "unknown".to_owned()))
    })
}

/// The objection to a contender that was not the same in every round, such as one installed anew meanwhile.
fn changed(judged: &Judged<'_>, label: &str) -> Option<String> {
    let in_effect = |run: &Run| {
        // How weights are kept depends on the system's memory.
        let (weight_storage, shard_bytes) = (Foreign::default(), None);
        let constant = InEffect { weight_storage, shard_bytes, ..run.loaded()?.in_effect.clone() };
        Some(format!("{constant:?}"))
    };
    let program = |run: &Run| Some(format!("{:?}", run.seen.as_ref()?.program?));
    let hello = |run: &Run| Some(format!("{:?}", run.hello()?));
    let facts: [(&str, &dyn Fn(&Run) -> Option<String>); 3] =
        [("program", &program), ("version or build", &hello), ("settings in effect", &in_effect)];
    facts.into_iter().find_map(|(what, of)| {
        let all: BTreeSet<String> = judged.runs_of(label).filter_map(of).collect();
        (all.len() > 1).then(|| format!("its {what} changed between rounds"))
    })
}

/// The build of a worker that rustc did not make.
pub(super) fn other_build(judged: &Judged<'_>, label: &str) -> Option<String> {
    let build = judged.runs_of(label).find_map(|run| Some(run.hello()?.build.clone()))?;
    let by = build.toolchain.map_or_else(String::new, |toolchain| format!(" ({toolchain})"));
    build
        .rustc
        .is_none()
        .then(|| format!("it is not built by rustc{by}: its build is not compared with the others'"))
}

pub(super) fn outputs_agree(judged: &Judged<'_>, label: &str) -> Option<String> {
    if let Some(reason) = judged.evidence.no_reference.as_deref() {
        return Some(format!("there is no reference to compare it with: {reason}"));
    }
    if let Some(reason) = judged.runs_of(label).find_map(|run| run.no_agreement.clone()) {
        return Some(reason);
    }
    let agreements = || judged.runs_of(label).filter_map(|run| Some((run, run.agreement.as_ref()?)));
    let of_logits = || agreements().find_map(|(run, agreement)| Some((run, agreement.broken.clone()?)));
    if let Some(contender) = judged.plan.contender(label).filter(|contender| contender.engine.is_server()) {
        // It may show its tokens alone.
        let tolerance = Tolerance::for_work(contender, &judged.plan.work);
        let of_tokens = || judged.runs_of(label).find_map(|run| run.tokens.as_ref()?.objection(&tolerance));
        let reason = of_logits().map(|(_, reason)| reason).or_else(of_tokens)?;
        return Some(format!(
            "{reason}: its model, its precision or that of its KV cache is not the comparison's"
        ));
    }
    let Some((_, first)) = agreements().next() else {
        let is_parity = |event: &Event| matches!(event, Event::Parity(_));
        let was_asked = judged.runs_of(label).any(|run| run.events.iter().any(is_parity));
        return Some(match judged.plan.limit_s() {
            Some(_) if !was_asked => "the time limit left no time to compare its outputs".into(),
            _ => "it yielded no logits".into(),
        });
    };
    let of_tokens = || {
        judged.runs_of(label).find_map(|run| Some((run, run.tokens.as_ref()?.objection(&first.tolerance)?)))
    };
    let (run, reason) = of_logits().or_else(of_tokens)?;
    Some(format!("{reason} (reference: {} in f32, round {})", first.reference, run.round + 1))
}

/// A server whose tokens were not compared.
pub(super) fn unnamed(judged: &Judged<'_>, servers: &[&str]) -> Option<String> {
    let counts = |run: &Run| run.loaded().is_some_and(|loaded| loaded.shows == Shows::Count);
    let label = servers.iter().find(|label| judged.runs_of(label).any(counts))?;
    Some(format!("{label} gives its tokens no ids: what it computed is not known"))
}

pub(super) fn same_threads(judged: &Judged<'_>, label: &str) -> Option<String> {
    let budget = judged.plan.threads;
    let own = own_thread_setting(judged, label, |count| count.is_none_or(|count| count > budget));
    own.or_else(|| Threads::new(judged.plan, judged.evidence, label).excess(judged.plan.cpus.as_deref()))
        .or_else(|| silent(judged, label, "usage", Run::usage))
}

/// Departures from the thread budget that give no contender an advantage: fewer threads, and threads that
/// compete with one another.
pub(super) fn fewer_threads(judged: &Judged<'_>, label: &str) -> Option<String> {
    let budget = judged.plan.threads;
    let own = own_thread_setting(judged, label, |count| count.is_some_and(|count| count < budget));
    let threads = || Threads::new(judged.plan, judged.evidence, label);
    // On a GPU the CPU only submits the work.
    let shortfall = || if judged.plan.is_on_gpu() { None } else { threads().shortfall() };
    own.or_else(shortfall).or_else(|| threads().crowding())
}

/// A variable of the configuration that sets a number of threads, for any runtime, and is `departing`.
fn own_thread_setting(
    judged: &Judged<'_>,
    label: &str,
    departing: impl Fn(Option<usize>) -> bool,
) -> Option<String> {
    let mut counts =
        judged.plan.contender(label)?.engine.env.iter().filter(|(name, _)| name.contains("THREADS"));
    let (name, value) = counts.find(|(_, value)| departing(value.parse().ok()))?;
    Some(format!("its configuration sets {name}={value}, the budget is {}", judged.plan.threads))
}

pub(super) fn interleaved(judged: &Judged<'_>, label: &str) -> Option<String> {
    if judged.evidence.absent.contains_key(label) {
        return None; // its row says why it has fewer rounds
    }
    let places: Vec<(usize, usize)> = judged.runs_of(label).map(|run| (run.round, run.position)).collect();
    if let Some(round) =
        (0..judged.evidence.rounds).find(|round| places.iter().filter(|p| p.0 == *round).count() != 1)
    {
        let times = places.iter().filter(|place| place.0 == round).count();
        return Some(format!("it ran {times} times in round {}", round + 1));
    }
    let count = judged.plan.contenders.len();
    let squares = judged.evidence.rounds / count;
    let uneven = (0..count).find(|&position| {
        let full = places.iter().filter(|place| place.0 < squares * count && place.1 == position);
        full.count() != squares
    });
    let of_places =
        || Some(format!("it did not have place {} in the order as often as the others", uneven? + 1));
    of_places().or_else(|| uneven_blocks(judged, label))
}

/// A round in which it had another number of turns than the others.
fn uneven_blocks(judged: &Judged<'_>, label: &str) -> Option<String> {
    let turns = |run: &Run| {
        let count = run.turns.iter().filter(|turn| turn.stands).count();
        // The anchor has its turns in every measured group.
        let due = judged.iterations_due(run.round) * judged.plan.work.cases();
        if judged.plan.groups_of(&run.framework) > 1 && due > 0 && count % due == 0 {
            count.min(due)
        } else {
            count
        }
    };
    judged.runs_of(label).find_map(|run| {
        let of_round = judged.runs.iter().filter(|other| other.round == run.round);
        let (ours, most) = (turns(run), of_round.map(|other| turns(other)).max()?);
        (ours != most).then(|| format!("it had {ours} turns in round {}, others {most}", run.round + 1))
    })
}

/// Share of the time of a wait in which a process may have computed: a signal arrives a moment late, and the
/// kernel counts in ticks.
const WAITING: f64 = 0.02;

/// Shortest wait that is judged, in seconds.
const SHORTEST_WAIT_S: f64 = 0.5;

pub(super) fn waiters_wait(judged: &Judged<'_>, label: &str) -> Option<String> {
    let waits = judged.runs_of(label).filter_map(|run| run.waited).filter(|w| w.seconds >= SHORTEST_WAIT_S);
    let shares = waits.filter_map(|waited| Some((waited.cpu_s? / waited.seconds, waited.was_stopped)));
    let (share, was_stopped) = shares.max_by(|a, b| a.0.total_cmp(&b.0))?;
    (share > WAITING).then(|| {
        let how = if was_stopped { "" } else { ", for it could not be stopped" };
        format!("it kept {share:.2} CPUs busy while others had their turns{how}")
    })
}

pub(super) fn same_pages(judged: &Judged<'_>, label: &str) -> Option<String> {
    let policy = judged.plan.huge_pages;
    let own = judged.plan.contender(label)?.engine.env.get(TUNABLES)?;
    (own != policy.tunables())
        .then(|| format!("its configuration sets {TUNABLES}={own}, and the run {}", policy.words()))
}

/// Processes with an incomplete share of huge pages, if the run had any.
pub(super) fn fewer_pages(judged: &Judged<'_>, label: &str) -> Option<String> {
    if judged.plan.is_on_gpu() {
        // Weights and activations are not in the host's memory.
        return None;
    }
    let share = |run: &Run| report::huge_share(&run.usage()?.memory);
    let is_given =
        judged.runs.iter().filter_map(|run| share(run)).any(|share| share > 1.0 - report::COMPLETE);
    let shares: Vec<f64> = judged.runs_of(label).filter_map(share).collect();
    let short = shares.iter().filter(|share| **share < report::COMPLETE).count();
    let least = shares.iter().copied().fold(1.0, f64::min);
    (is_given && short > 0).then(|| {
        format!(
            "{short} of {} processes had huge pages for less than {:.0} % of their memory, one for {:.0} %",
            shares.len(),
            100.0 * report::COMPLETE,
            100.0 * least
        )
    })
}

pub(super) fn quiet_machine(judged: &Judged<'_>) -> Option<String> {
    let evidence = judged.evidence;
    if let End::Noisy { reason } = &evidence.end {
        return Some(reason.clone());
    }
    let threads = judged.plan.threads;
    if let Some(quota) = evidence.quota.filter(|&quota| quota + 0.01 < threads as f64) {
        return Some(format!("a cgroup allows {quota:.1} CPUs, {threads} threads are asked for"));
    }
    let noisy = evidence.complaints.len();
    let first = evidence.complaints.first().filter(|_| judged.plan.accept_noise)?;
    let times = if noisy == 1 { "once".to_owned() } else { format!("{noisy} times") };
    let request = &judged.plan.request;
    let why = if request.quick && !request.accept_noise { " (--quick)" } else { "" };
    Some(format!("the machine was noisy {times}, which was accepted{why}; {first}"))
}

pub(super) fn same_optimisation(judged: &Judged<'_>, label: &str) -> Option<String> {
    let asked = judged.plan.jit;
    let on = judged.runs_of(label).find_map(|run| run.loaded()?.in_effect.optimised)?;
    let words = |on: bool| if on { "on" } else { "off" };
    (on != asked).then(|| {
        format!("its graph optimisation or JIT is {}, that of the others is {}", words(on), words(asked))
    })
}

// Weights files that were derived from the bundle's, for references that cannot read a bundle (rule R1).

/// An objection to the weights of a run that loaded no file of the bundle. There is none if the file was
/// derived, number by number, from the bundle's file of the compared precision, and has not changed since.
fn objection(judged: &Judged<'_>, run: &Run) -> Option<String> {
    // A framework's own file was compared with the ONNX file tensor by tensor, where the worker could.
    let is_asked =
        judged.plan.contender(&run.framework).is_some_and(|contender| contender.artefact().is_some());
    if is_asked && run.loaded().is_some_and(|loaded| loaded.in_effect.artefact.is_some()) {
        return None;
    }
    let found = &judged.weights_sha256(run)?;
    let unknown = || format!("its weights have sha256 {found}, which no file of the bundle has");
    if !judged.is_reference(&run.framework) {
        return Some(unknown());
    }
    let source = &judged.manifest.source.sha256;
    if let Some((name, _)) = source.iter().find(|(_, sha256)| sha256.as_str() == found.as_str()) {
        return Some(format!("its weights are the source's own, {name}, not the bundle's"));
    }
    let Some(record) = &run.derived else { return Some(unknown()) };
    let DerivedWeights { from, by, .. } = record;
    let asked = judged.plan.contender(&run.framework)?;
    if record.sha256 != found.as_str() {
        return Some(format!(
            "its weights, derived from {from}, were changed since: their sha256 is {found}"
        ));
    }
    if judged.manifest.files.get(from.as_str()).is_none_or(|file| file.sha256 != record.from_sha256.as_str())
    {
        return Some(format!("its weights were derived from another {from}"));
    }
    if !record.same_values || from.as_str() != asked.precision.file_name() {
        return Some(format!(
            "its weights are {by}'s own, made from {from}: not the numbers that the others use"
        ));
    }
    None
}

/// The origin of derived weights, in words.
pub(super) fn derived_note(judged: &Judged<'_>, label: &str) -> Option<String> {
    let run = judged.runs_of(label).next()?;
    if let Some(file) = judged.plan.contender(label)?.artefact()
        && let Some(Artefact { tensors, missing }) = run.loaded()?.in_effect.artefact
    {
        return Some(match missing {
            0 => format!("it runs {file}, which holds the {tensors} tensors of the ONNX file's weights"),
            _ => format!(
                "it runs {file}; weights not compared, since {missing} of {tensors} tensors of the ONNX file are not in it: its \
                 outputs alone decide (R11)"
            ),
        });
    }
    if !judged.is_reference(label) || objection(judged, run).is_some() {
        return None;
    }
    let DerivedWeights { from, by, .. } = run.derived.as_ref()?;
    Some(format!("its weights are derived from the bundle's {from} by {by}, number by number"))
}

// How contenders keep keys and values.

pub(super) fn same_policy(judged: &Judged<'_>, label: &str) -> Option<String> {
    let cache = |run: &Run| Some(run.loaded()?.in_effect.kv_cache.name());
    judged.same_for_all(label, "its KV cache", cache, |ours, theirs| [ours.to_string(), theirs.to_string()])
}

/// Compared with the request for the contender: in studies of the weights' precision, the cache's may follow.
pub(super) fn cache_same_precision(judged: &Judged<'_>, label: &str) -> Option<String> {
    let asked = judged.plan.contender(label)?.asked_cache().name();
    let kept =
        |run: &&Run| run.loaded().is_none_or(|loaded| loaded.in_effect.kv_cache != KvCachePolicy::None);
    let mut runs = judged.runs_of(label).filter(kept);
    runs.find_map(|run| {
        let observed = run.loaded()?.in_effect.kv_cache_precision.as_str();
        (observed != asked).then(|| format!("its KV cache is asked to be {asked}, and is {observed}"))
    })
}
