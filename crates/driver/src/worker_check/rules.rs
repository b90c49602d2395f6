//! Rules on the values of events that no type can express: times that agree with the driver's, token counts
//! that fit, readings that agree with each other, logits that agree with the tokens. `facts::impossible` says
//! which readings are impossible by themselves.

use std::path::Path;
use std::time::Duration;

use comparison::facts::agreement::TokenAgreement;
use comparison::judge::parity::{self, Logits, Reference, Tolerance, argmax, is_choice};
use protocol::{
    Answered, Case, ColdStart, DrawnLogits, Hello, KvCache, KvCachePolicy, Loaded, Marks, Memory, Probe,
    Probed, ProfileEvent, Profiler, Ready, Sample, Slice, Started, Task, Traced, Usage, WarmupDone,
    untrusted,
};

use crate::measure::logits;
use crate::worker_check::talk::Talk;

/// Tokens that are added to every prompt.
pub(crate) const NEW_TOKENS: usize = 3;

pub(crate) const MAX_ITERATIONS: usize = 2;

/// The clocks of a framework's profiler.
const CLOCKS: [&str; 3] = ["CLOCK_REALTIME", "CLOCK_MONOTONIC", "none"];

/// The last phases of every trace, and the tokens of their requests.
const REQUESTS: [(&str, usize); 3] = [("cold start", 1), ("warm-up", NEW_TOKENS), ("request", NEW_TOKENS)];

pub(crate) fn hello(hello: &Hello, talk: &mut Talk<'_>) {
    let (theirs, ours) = (hello.protocol, protocol::VERSION);
    let text = format!(
        "{theirs}, but this driver speaks {ours}; follow docs/reference/protocol.md, and send {ours}"
    );
    talk.wrong(theirs != ours, "protocol", text);
    let text = "empty; send the `framework` of its file in configs/engines";
    talk.wrong(hello.framework.trim().is_empty(), "framework", text);
    let text = format!(
        "{:?}, which rule R10 strikes; build it optimised, and send \"release\"",
        hello.build.profile
    );
    talk.wrong(hello.build.profile != "release", "build.profile", text);
}

pub(crate) fn started(started: &Started, talk: &mut Talk<'_>) {
    talk.time("runtime_ns", started.runtime_ns, talk.since_start);
    within("startup_ns", started.startup_ns, ("runtime_ns", started.runtime_ns), talk);
    memory(&started.memory, talk);
}

/// A time since the process was spawned, of which another is a part.
fn within(field: &str, ns: Option<u64>, part: (&str, u64), talk: &mut Talk<'_>) {
    let Some(ns) = ns else { return };
    talk.time(field, ns, talk.since_start);
    let text = format!(
        "shorter than `{}`, which is a part of it; count it from `spawned_at_ns`, or send null",
        part.0
    );
    talk.wrong(ns < part.1, field, text);
}

/// A peak is the highest.
fn memory(memory: &Memory, talk: &mut Talk<'_>) {
    if let (Some(peak @ 1..), Some(resident)) = (memory.peak_bytes, memory.resident_bytes) {
        let text =
            format!("{peak} is below `memory.resident_bytes`, {resident}; send the highest of the phase");
        talk.wrong(peak < resident, "memory.peak_bytes", text);
    }
}

pub(crate) fn loaded(loaded: &Loaded, talk: &mut Talk<'_>) {
    talk.time("load_ns", loaded.load_ns, talk.since_start);
    memory(&loaded.memory, talk);
    let (in_effect, settings) = (&loaded.in_effect, talk.job.settings.clone());
    for (field, observed, expected) in [
        ("in_effect.precision", &in_effect.precision, settings.precision.name()),
        ("in_effect.device", &in_effect.device, settings.device.as_str()),
    ] {
        let text = format!(
            "{observed:?}, but the job asked for {expected:?}; do what is asked, or send {{\"event\": \"failed\", \
             \"kind\": \"unsupported\", \"reason\": …}}"
        );
        talk.wrong(observed != expected, field, text);
    }
    let is_off = matches!(&talk.job.task, Task::Measure(task) if task.work.kv_cache() == KvCache::Off);
    let text = "the job switched the cache off; send \"recomputed\" and compute the whole prefix each time";
    let is_other = in_effect.kv_cache != KvCachePolicy::Recomputed;
    talk.wrong(is_off && is_other, "in_effect.kv_cache", text);
    let text = "\"growing\", which rule R13 strikes beside \"preallocated\"; allocate it before the request";
    talk.lacking(in_effect.kv_cache == KvCachePolicy::Growing, "in_effect.kv_cache", text);
    let (file, bytes) = (&loaded.weights_file, loaded.weights_bytes);
    match std::fs::metadata(file.as_str()) {
        Err(error) => {
            let text =
                format!("{file:?}: {error}; send the path of the file that the weights were read from");
            talk.wrong(true, "weights_file", text);
        }
        Ok(found) => {
            let text = format!("{bytes}, but {file} has {} bytes; send that", found.len());
            talk.wrong(found.len() != bytes, "weights_bytes", text);
        }
    }
    let evict = talk.job.evict;
    let is_other = loaded.page_cache.as_ref().is_some_and(|cache| cache.evicted != evict);
    talk.wrong(is_other, "page_cache.evicted", format!("the job's `evict` was {evict}; send that"));
}

pub(crate) fn cold_start(cold: &ColdStart, talk: &mut Talk<'_>) {
    marks(&cold.marks_ns, "marks_ns", talk.since_start, talk);
    within("since_spawn_ns", cold.since_spawn_ns, ("marks_ns[0]", cold.marks_ns.first()), talk);
    memory(&cold.memory, talk);
}

/// One mark for each new token.
fn marks(marks: &Marks, field: &str, at_most: Duration, talk: &mut Talk<'_>) {
    let count = marks.len();
    let text = format!(
        "{count} for {NEW_TOKENS} new tokens; send the time from the start of the request to each token"
    );
    talk.wrong(count != NEW_TOKENS, field, text);
    talk.time(field, marks.end(), at_most);
}

pub(crate) fn warmup(warmup: &WarmupDone, talk: &mut Talk<'_>) {
    memory(&warmup.memory, talk);
    let count = warmup.iterations.len();
    let text =
        format!("{count} iterations; run at least one and at most `warmup.max_iterations`, {MAX_ITERATIONS}");
    talk.wrong(count == 0 || count > MAX_ITERATIONS, "iterations", text);
    let batches: Vec<usize> = talk.cases.iter().map(|case| case.prompts.len()).collect();
    for (index, iteration) in warmup.iterations.iter().enumerate() {
        let path = format!("iterations[{index}]");
        let text = format!("{}; number the iterations from 0: send {index}", iteration.index);
        talk.wrong(iteration.index != index, &format!("{path}.index"), text);
        let (ran, cases) = (iteration.cases.len(), batches.len());
        let text = format!("{ran} cases; an iteration runs each of the job's {cases} cases once");
        talk.wrong(ran != cases, &format!("{path}.cases"), text);
        for (number, (ran, &batch)) in iteration.cases.iter().zip(&batches).enumerate() {
            request(ran, batch, &format!("{path}.cases[{number}]."), talk.since_start, talk);
        }
    }
}

/// The answer to a turn at this case. `seen`: the time of its slices together.
pub(crate) fn sample(sample: &Sample, case: usize, seen: Duration, talk: &mut Talk<'_>) {
    let text = format!("{}, but the turn asked for case {case}; answer the case that was asked", sample.case);
    talk.wrong(sample.case != case, "case", text);
    request(sample, talk.cases[case].prompts.len(), "", seen, talk);
}

fn request(sample: &Sample, batch: usize, path: &str, at_most: Duration, talk: &mut Talk<'_>) {
    marks(&sample.marks_ns, &format!("{path}marks_ns"), at_most, talk);
    let field = format!("{path}output.tokens");
    tokens(sample.output.tokens(), (batch, NEW_TOKENS), &field, talk);
}

/// `[batch][new tokens]`, ids of the vocabulary.
fn tokens(tokens: &[Vec<u32>], (batch, new_tokens): (usize, usize), field: &str, talk: &mut Talk<'_>) {
    let text = format!("{} rows for {batch} sequences; send [batch][new tokens]", tokens.len());
    talk.wrong(tokens.len() != batch, field, text);
    let vocabulary = talk.vocabulary();
    for (row, ids) in tokens.iter().enumerate() {
        let field = format!("{field}[{row}]");
        let text = format!("{} tokens, but {new_tokens} were asked for; send as many", ids.len());
        talk.wrong(ids.len() != new_tokens, &field, text);
        for id in ids.iter().filter(|id| **id as usize >= vocabulary) {
            let text = format!(
                "{id} is no token: the vocabulary has {vocabulary}; send the index of the largest logit"
            );
            talk.wrong(true, &field, text);
        }
    }
}

pub(crate) fn ready(ready: &Ready, case: usize, talk: &mut Talk<'_>) {
    talk.wrong(ready.case != case, "case", format!("{ready:?}, but case {case} was to be prepared"));
}

pub(crate) fn slice(slice: &Slice, expected: Slice, talk: &mut Talk<'_>) {
    let text = format!("{slice:?}, but this slice ends with {expected:?}; make one mark in each slice");
    talk.wrong(*slice != expected, "marks", text);
}

/// `shape`: sequences, and tokens asked for.
pub(crate) fn logits(logits: &DrawnLogits, case: usize, shape: (usize, usize), talk: &mut Talk<'_>) {
    let text = format!("{}, but the turn asked for case {case}; answer the case that was asked", logits.case);
    talk.wrong(logits.case != case, "case", text);
    let (batch, tokens) = shape;
    let is_whole = logits.values.len() == batch && logits.values.iter().all(|row| row.len() == tokens);
    let text = format!("no {batch} rows of {tokens} numbers; send [batch][token], of the last step");
    talk.wrong(!is_whole, "values", text);
    let is_finite = logits.values.iter().flatten().all(|logit| logit.is_finite());
    talk.wrong(!is_finite, "values", "a logit is null; send the last step's own");
}

/// `told`: the times of the samples, according to the worker; `seen`: as the driver saw them.
pub(crate) fn usage(usage: &Usage, (told, seen): (Duration, Duration), talk: &mut Talk<'_>) {
    memory(&usage.memory, talk);
    talk.time("wall_ns", usage.wall_ns, seen);
    let wall = Duration::from_nanos(usage.wall_ns);
    let text = format!(
        "{:.1} ms, but the samples took {:.1} ms; send the wall time of all measured requests together",
        wall.as_secs_f64() * 1e3,
        told.as_secs_f64() * 1e3
    );
    let is_short = usage.wall_ns > 0 && wall + Duration::from_millis(1) < told;
    talk.wrong(is_short, "wall_ns", text);
    let file = talk.subject.precision.file_name();
    let record = talk.subject.bundle.manifest().files.get(&file);
    let hash = record.map_or("", |record| &record.sha256);
    let told = usage.weights_sha256.as_deref();
    let text = format!(
        "{}, but the sha256 of the file that `weights_file` names is {hash}, and the turn asked for it (`hash`: true)",
        told.unwrap_or("null")
    );
    talk.wrong(told != Some(hash), "weights_sha256", text);
    let text = "null: its column has no peak memory; send that of the run (VmHWM in /proc/self/status)";
    talk.lacking(usage.peak_bytes.is_none(), "peak_bytes", text);
    let times = usage.thread_cpu_ns.as_deref().unwrap_or_default();
    let is_falling = times.is_sorted_by(|one, next| one >= next);
    talk.wrong(!is_falling, "thread_cpu_ns", "not in order; send the busiest thread first");
    if let (Some(peak), Some(own)) = (usage.peak_bytes, usage.memory.peak_bytes) {
        let text = format!("{peak} is below `memory.peak_bytes`, {own}; send the highest of all phases");
        talk.wrong(peak < own, "peak_bytes", text);
    }
}

pub(crate) fn answered(answered: &Answered, talk: &mut Talk<'_>) {
    let outputs = &answered.outputs;
    let text = format!("{} outputs for 1 case; send one for each", outputs.len());
    talk.wrong(outputs.len() != 1, "outputs", text);
    for output in outputs {
        tokens(output.tokens(), (1, NEW_TOKENS), "outputs[0].tokens", talk);
    }
}

pub(crate) fn probed(probed: &Probed, talk: &mut Talk<'_>) {
    let Task::Probe(Probe { bytes, repeats, .. }) = talk.job.task else { return };
    talk.time("compute_ns", probed.compute_ns, talk.since_start);
    talk.wrong(probed.sweeps_ns.is_empty(), "sweeps_ns", "empty; sweep the buffer once at least");
    let times = probed.multiply_adds_ns.len();
    let text = format!("{times} times; the job asked for {repeats} (`repeats`)");
    talk.wrong(times != repeats, "multiply_adds_ns", text);
    for (field, times) in [("sweeps_ns", &probed.sweeps_ns), ("multiply_adds_ns", &probed.multiply_adds_ns)] {
        talk.time(field, times.iter().copied().max().unwrap_or(0), talk.since_start);
    }
    let text = format!("{}, but {bytes} were asked for; say how many one sweep reads", probed.bytes);
    talk.wrong(probed.bytes < bytes, "bytes", text);
    let threads = talk.job.settings.threads;
    let text = format!("{}, but the job gave {threads}; use that many at once", probed.threads);
    talk.wrong(probed.threads != threads, "threads", text);
}

pub(crate) fn traced(traced: &Traced, talk: &mut Talk<'_>) {
    let names: Vec<&str> = traced.phases.iter().map(|phase| phase.name.as_str()).collect();
    let begin: &[&str] = if traced.profiler.is_some() { &["profiler start"] } else { &[] };
    let expected = [&["start-up", "load"], begin, &REQUESTS.map(|(phase, _)| phase)].concat();
    let text = format!("are {}; send {}", names.join(", "), expected.join(", "));
    talk.wrong(names != expected, "phases", text);
    let readings: Vec<u64> = traced.phases.iter().flat_map(|phase| [phase.start_ns, phase.end_ns]).collect();
    let text = "must follow one another, each with its start before its end";
    talk.wrong(!readings.is_sorted(), "phases", text);
    let text =
        format!("{} requests; send one for each of cold start, warm-up and request", traced.requests.len());
    talk.wrong(traced.requests.len() != REQUESTS.len(), "requests", text);
    for (index, (request, (phase, count))) in traced.requests.iter().zip(REQUESTS).enumerate() {
        let at = |field: &str| format!("requests[{index}].{field}");
        let text = format!("is {:?}; send {phase:?} here", request.phase);
        talk.wrong(request.phase != phase, &at("phase"), text);
        let is_ordered = request.tokens_ns.is_sorted()
            && request.tokens_ns.first().is_none_or(|&first| first >= request.start_ns);
        let text = format!("must be the {count} readings of the clock when a token was there, in order");
        talk.wrong(request.tokens_ns.len() != count || !is_ordered, &at("tokens_ns"), text);
        tokens(&request.tokens, (1, count), &at("tokens"), talk);
    }
    match &traced.profiler {
        Some(found) => profiler(found, talk),
        None => {
            let text = "must say in a sentence why there is no profiler";
            talk.wrong(traced.notes.is_empty(), "notes", text);
        }
    }
}

fn profiler(profiler: &Profiler, talk: &mut Talk<'_>) {
    let clock = profiler.alignment.clock.as_str();
    let text = format!("{clock:?}; send one of {CLOCKS:?}");
    talk.wrong(!CLOCKS.contains(&clock), "profiler.alignment.clock", text);
    let text = untrusted::file::read_text(Path::new(profiler.file.as_str()), untrusted::file::RESULTS)
        .map_err(|error| error.to_string());
    let events = text
        .and_then(|text| serde_json::from_str::<Vec<ProfileEvent>>(&text).map_err(|error| error.to_string()));
    let wrong = match events {
        Err(reason) => format!("{} is no list of a profiler's events: {reason}", profiler.file),
        Ok(events) if events.len() != profiler.events || events.is_empty() => {
            format!("{} holds {} events; `events` says {}", profiler.file, events.len(), profiler.events)
        }
        Ok(_) => return,
    };
    talk.wrong(true, "profiler.file", wrong);
}

/// The path that the worker names must be the one that it was given.
pub(crate) fn file(named: &str, given: &str, talk: &mut Talk<'_>) {
    let text = format!("{named:?}, but the driver named {given:?}; write there, and say so");
    talk.wrong(named != given, "file", text);
}

/// Checks the logits of a score.
pub(crate) fn score(file: &str, shape: logits::Shape, talk: &mut Talk<'_>) {
    match logits::read_score(Path::new(file), shape) {
        Ok(found) => is_sound("logits in the file", &found, shape, talk),
        Err(reason) => unreadable(file, &reason, talk),
    }
}

/// Checks the file of a parity task: its shapes, and that its logits choose the tokens that the worker chose.
/// `chosen`: by case, those of each of its requests, `[batch][new tokens]`.
pub(crate) fn parity(
    file: &str,
    cases: &[Case],
    prompt_last_only: bool,
    chosen: &[Vec<Vec<Vec<u32>>>],
    talk: &mut Talk<'_>,
) {
    let found = match read(file, cases, prompt_last_only, talk) {
        Ok(found) => found,
        Err(reason) => return unreadable(file, &reason, talk),
    };
    let text = format!("{} tensors of cases in it; write case.0 to case.{}", found.len(), cases.len() - 1);
    talk.wrong(found.len() != cases.len(), "file", text);
    let tie = Tolerance::for_precision(talk.subject.precision).tie;
    for (index, (logits, shape)) in found.iter().zip(shapes(cases, prompt_last_only, talk)).enumerate() {
        let prefix = shape[1] - cases[index].trace.first().map_or(0, Vec::len);
        let what = format!("case.{index} in the file");
        is_sound(&what, logits, shape, talk);
        if [logits.batch, logits.positions, logits.vocabulary] != shape {
            continue;
        }
        for (request, sequences) in chosen[index].iter().enumerate() {
            for (sequence, tokens) in sequences.iter().enumerate().take(shape[0]) {
                // The logits after the last token of the prompt choose the first new token.
                for (step, &token) in tokens.iter().enumerate().take(shape[1] + 1 - prefix) {
                    let row = logits.row(sequence, prefix - 1 + step);
                    let text = format!(
                        "its logits choose token {} at step {step} of {what}, but request {request} answered {token}; \
                         send the most likely token of each step, computed from the same tokens fed{}",
                        argmax(row),
                        if cases[index].context.is_empty() { "" } else { ", after the case's `context`" }
                    );
                    talk.wrong(!is_choice(row, token as usize, tie), "file", text);
                }
            }
        }
    }
}

/// Compares the logits in the file of a parity task with those of the reference, as rule R11 does, and names the cause if
/// it is the context. Returns whether they agree, or `None` without a reference that computes this model.
pub(crate) fn agreed(
    file: &str,
    cases: &[Case],
    prompt_last_only: bool,
    talk: &mut Talk<'_>,
) -> Option<bool> {
    let ours = read(file, cases, prompt_last_only, talk).ok()?;
    let tolerance = Tolerance::for_precision(talk.subject.precision);
    let of = shapes(cases, prompt_last_only, talk);
    let objection = |cases: &[Case], talk: &Talk<'_>| {
        let logits = talk.referred(cases, &of)?;
        let reference = Reference { framework: "".into(), outputs: vec![], logits, unquantised: None };
        let found = parity::compare(&reference, &ours, TokenAgreement::default(), tolerance).ok()?;
        Some((found.broken, reference.logits))
    };
    let (Some(finding), theirs) = objection(cases, talk)? else { return Some(true) };
    let without: Vec<Case> = cases.iter().map(|case| Case { context: Vec::new(), ..case.clone() }).collect();
    let is_right = |cases: &[Case]| objection(cases, talk).is_some_and(|(broken, _)| broken.is_none());
    let cause = match prompt_last_only && without != cases && is_right(&without) {
        true => "; without the `context` they would be right: append it before the prompt".to_owned(),
        false => first_apart(&ours, &theirs, tolerance).unwrap_or_default(),
    };
    talk.lacking(true, "file", format!("{finding} (reference: candle), which rule R11 strikes{cause}"));
    Some(false)
}

/// The first position of a case where a logit differs by more than the tolerance.
fn first_apart(ours: &[Logits], theirs: &[Logits], tolerance: Tolerance) -> Option<String> {
    let largest =
        theirs.iter().flat_map(|case| &case.values).fold(1.0_f32, |most, logit| most.max(logit.abs()));
    let limit = tolerance.max_abs_share? * largest;
    ours.iter().zip(theirs).enumerate().find_map(|(case, (ours, theirs))| {
        let mut pairs = ours.values.iter().zip(&theirs.values);
        let at = pairs.position(|(ours, theirs)| (ours - theirs).abs() > limit)?;
        let at = at / ours.vocabulary % ours.positions;
        Some(format!("; the first such position is {at} of case.{case} in the file"))
    })
}

fn shapes(cases: &[Case], prompt_last_only: bool, talk: &Talk<'_>) -> Vec<logits::Shape> {
    let shape = |case: &Case| {
        let prefix = if prompt_last_only { 1 } else { case.prefixes().first().map_or(0, Vec::len) };
        [case.prompts.len(), prefix + case.trace.first().map_or(0, Vec::len), talk.vocabulary()]
    };
    cases.iter().map(shape).collect()
}

fn read(file: &str, cases: &[Case], prompt_last_only: bool, talk: &Talk<'_>) -> Result<Vec<Logits>, String> {
    logits::read_parity(Path::new(file), &shapes(cases, prompt_last_only, talk))
}

fn is_sound(what: &str, logits: &Logits, expected: logits::Shape, talk: &mut Talk<'_>) {
    let found = [logits.batch, logits.positions, logits.vocabulary];
    let text = format!(
        "{what} has shape {found:?}; write f32 [batch, positions, vocabulary], here {expected:?}: a position for each \
         token of context, prompt and trace, or only the last of context and prompt (`prompt_last_only`)"
    );
    talk.wrong(found != expected, "file", text);
    let odd = logits.values.iter().filter(|value| !value.is_finite()).count();
    let text = format!("{odd} numbers of {what} are not finite; write the logits as computed, in f32");
    talk.wrong(odd > 0, "file", text);
}

fn unreadable(file: &str, reason: &str, talk: &mut Talk<'_>) {
    let text = format!(
        "{file} is not what was asked for: {reason}; write safetensors with F32 tensors, and close it, before \
                 this event"
    );
    talk.wrong(true, "file", text);
}
