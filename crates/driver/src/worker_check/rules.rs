//! Rules on the values of events that no type can express: times that agree with the driver's, token counts
//! that fit, readings that agree with each other. `facts::impossible` says which readings are impossible by
//! themselves.

use std::time::Duration;

use protocol::{
    Case, ColdStart, Decode, GenerateWork, InEffect, Job, KvCache, Loaded, Marks, Memory, Probed, Sample,
    Started, Task, Usage, WarmupDone, Work,
};

use crate::worker_check::{Problem, SLACK, time, wrong};

/// A peak is the highest.
fn memory(memory: &Memory) -> Option<Problem> {
    let (peak @ 1.., resident) = (memory.peak_bytes?, memory.resident_bytes?) else { return None };
    let text = format!("{peak} is below `memory.resident_bytes`, {resident}; send the highest of the phase");
    wrong(peak < resident, "memory.peak_bytes", text)
}

/// The time since the process was spawned, of which another is a part, and the memory after both.
fn phase(part: (&str, u64), whole: (&str, Option<u64>), after: &Memory, at_most: Duration) -> Vec<Problem> {
    let mut found = Vec::new();
    if let (field, Some(ns)) = whole {
        found.extend(time(field, ns, at_most));
        let text = format!(
            "shorter than `{}`, which is a part of it; count it from `spawned_at_ns`, or send null",
            part.0
        );
        found.extend(wrong(ns < part.1, field, text));
    }
    found.extend(memory(after));
    found
}

pub(crate) fn started(started: &Started, since_start: Duration) -> Vec<Problem> {
    let (part, whole) = (("runtime_ns", started.runtime_ns), ("startup_ns", started.startup_ns));
    let mut found: Vec<Problem> = time(part.0, part.1, since_start).into_iter().collect();
    found.extend(phase(part, whole, &started.memory, since_start));
    found
}

pub(crate) fn loaded(loaded: &Loaded, job: &Job, since_start: Duration) -> Vec<Problem> {
    let mut found: Vec<Problem> = time("load_ns", loaded.load_ns, since_start).into_iter().collect();
    found.extend(memory(&loaded.memory));
    let in_effect = &loaded.in_effect;
    for (field, observed, asked) in [
        ("in_effect.precision", &in_effect.precision, job.settings.precision.name()),
        ("in_effect.device", &in_effect.device, job.settings.device.as_str()),
    ] {
        let text = format!(
            "{observed:?}, but the job asked for {asked:?}; do what is asked, or send {{\"event\": \"failed\", \
             \"kind\": \"unsupported\", \"reason\": …}}"
        );
        found.extend(wrong(observed != asked, field, text));
    }
    found.extend(cache(in_effect, &job.task));
    found.extend(weights_file(loaded));
    let is_other = loaded.page_cache.as_ref().is_some_and(|page_cache| page_cache.evicted != job.evict);
    let text = format!("the job's `evict` was {}; send that", job.evict);
    found.extend(wrong(is_other, "page_cache.evicted", text));
    found
}

fn weights_file(loaded: &Loaded) -> Option<Problem> {
    let (file, told) = (&loaded.weights_file, loaded.weights_bytes);
    match std::fs::metadata(file) {
        Err(error) => {
            let text =
                format!("{file:?}: {error}; send the path of the file that the weights were read from");
            Some(Problem::at("weights_file", text))
        }
        Ok(found) => {
            let text = format!("{told}, but {file} has {} bytes; send that", found.len());
            wrong(found.len() != told, "weights_bytes", text)
        }
    }
}

pub(crate) fn cold_start(cold: &ColdStart, asked: Asked<'_>, since_start: Duration) -> Vec<Problem> {
    let mut found = asked.marks(&cold.marks_ns, "", since_start);
    let whole = ("since_spawn_ns", cold.since_spawn_ns);
    found.extend(phase(("marks_ns[0]", cold.marks_ns.first()), whole, &cold.memory, since_start));
    found
}

pub(crate) fn warmup(
    warmup: &WarmupDone,
    asked: &[Asked<'_>],
    max_iterations: usize,
    since_start: Duration,
) -> Vec<Problem> {
    let mut found: Vec<Problem> = memory(&warmup.memory).into_iter().collect();
    let count = warmup.iterations.len();
    let text =
        format!("{count} iterations; run at least one and at most `warmup.max_iterations`, {max_iterations}");
    found.extend(wrong(count == 0 || count > max_iterations, "iterations", text));
    for (index, iteration) in warmup.iterations.iter().enumerate() {
        let path = format!("iterations[{index}]");
        let text = format!("{}; number the iterations from 0: send {index}", iteration.index);
        found.extend(wrong(iteration.index != index, &format!("{path}.index"), text));
        let (ran, cases) = (iteration.cases.len(), asked.len());
        if ran != cases {
            let text = format!("{ran} cases; an iteration runs each of the job's {cases} cases once");
            found.push(Problem::at(&format!("{path}.cases"), text));
            continue;
        }
        for (number, (sample, asked)) in iteration.cases.iter().zip(asked).enumerate() {
            found.extend(asked.sample(sample, &format!("{path}.cases[{number}]."), since_start));
        }
        if !found.is_empty() {
            break;
        }
    }
    found
}

/// The times of the turns before `usage`.
#[derive(Debug, Default, Clone, Copy)]
pub(crate) struct Turns {
    /// Times of the samples, according to the worker.
    pub(crate) told: Duration,
    /// As the driver saw them.
    pub(crate) seen: Duration,
}

pub(crate) fn usage(usage: &Usage, turns: Turns, hash: &str) -> Vec<Problem> {
    let mut found: Vec<Problem> = memory(&usage.memory).into_iter().collect();
    found.extend(time("wall_ns", usage.wall_ns, turns.seen));
    let wall = Duration::from_nanos(usage.wall_ns);
    let text = format!(
        "{:.1} ms, but the samples took {:.1} ms; send the wall time of all measured requests together",
        wall.as_secs_f64() * 1e3,
        turns.told.as_secs_f64() * 1e3
    );
    found.extend(wrong(usage.wall_ns > 0 && wall + SLACK < turns.told, "wall_ns", text));
    let text = match &usage.weights_sha256 {
        None => {
            "null, but the turn asked for it (`hash`: true); send the sha256 of the weights file".to_owned()
        }
        Some(told) => format!("{told}, but the file's is {hash}; hash the file that `weights_file` names"),
    };
    found.extend(wrong(usage.weights_sha256.as_deref() != Some(hash), "weights_sha256", text));
    let is_falling = |times: &Vec<u64>| times.is_sorted_by(|one, next| one >= next);
    let rises = usage.thread_cpu_ns.as_ref().is_some_and(|times| !is_falling(times));
    found.extend(wrong(rises, "thread_cpu_ns", "not in order; send the busiest thread first"));
    if let (Some(peak), Some(own)) = (usage.peak_bytes, usage.memory.peak_bytes) {
        let text = format!("{peak} is below `memory.peak_bytes`, {own}; send the highest of all phases");
        found.extend(wrong(peak < own, "peak_bytes", text));
    }
    found
}

pub(crate) fn probed(
    probed: &Probed,
    asked: &protocol::Probe,
    threads: usize,
    at_most: Duration,
) -> Vec<Problem> {
    let mut found: Vec<Problem> = time("compute_ns", probed.compute_ns, at_most).into_iter().collect();
    let sweeps = probed.sweeps_ns.len();
    found.extend(wrong(sweeps == 0, "sweeps_ns", "empty; sweep the buffer once at least"));
    let (times, repeats) = (probed.multiply_adds_ns.len(), asked.repeats);
    let text = format!("{times} times; the job asked for {repeats} (`repeats`)");
    found.extend(wrong(times != repeats, "multiply_adds_ns", text));
    for (field, times) in [("sweeps_ns", &probed.sweeps_ns), ("multiply_adds_ns", &probed.multiply_adds_ns)] {
        found.extend(times.iter().max().and_then(|&ns| time(field, ns, at_most)));
    }
    let text = format!("{}, but {} were asked for; say how many one sweep reads", probed.bytes, asked.bytes);
    found.extend(wrong(probed.bytes < asked.bytes, "bytes", text));
    let text = format!("{}, but the job gave {threads}; use that many at once", probed.threads);
    found.extend(wrong(probed.threads != threads, "threads", text));
    found
}

// The checks that depend on the kind of work. Only continuation is requested.

// Continuation: the requests, and rules on their results.

/// Tokens that are added to every prompt.
pub(crate) const NEW_TOKENS: usize = 3;

/// Requests with a cache that are fed the tokens of their cases.
pub(crate) fn forced(cases: Vec<Case>) -> GenerateWork {
    GenerateWork {
        cases,
        new_tokens: NEW_TOKENS,
        decode: Decode::Forced,
        kv_cache: KvCache::On,
        prefill_chunk: None,
    }
}

/// The same without a cache.
pub(crate) fn without_cache(cases: Vec<Case>) -> GenerateWork {
    GenerateWork { kv_cache: KvCache::Off, ..forced(cases) }
}

/// A prompt that is continued by the most likely tokens.
pub(crate) fn greedy(prompt: Vec<u32>) -> Work {
    let case = Case { prompts: vec![prompt], ..Case::default() };
    Work::Generate(GenerateWork { decode: Decode::Greedy, ..forced(vec![case]) })
}

/// How keys and values are kept, where the task switches that off.
pub(crate) fn cache(in_effect: &InEffect, task: &Task) -> Option<Problem> {
    let is_off = match task {
        Task::Measure(measure) => measure.work.kv_cache() == KvCache::Off,
        _ => false,
    };
    // A worker without a cache reports that for every task.
    let has_cache = is_off && in_effect.cache.policy != "recomputed";
    let text = "the job switched the cache off; send \"recomputed\" and compute the whole prefix each time";
    wrong(has_cache, "in_effect.kv_cache", text)
}

/// The size of a request and its case.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Asked<'a> {
    case: &'a Case,
    new_tokens: usize,
    vocabulary: usize,
}

impl<'a> Asked<'a> {
    /// The requests of each case.
    pub(crate) fn each(work: &'a GenerateWork, vocabulary: usize) -> Vec<Asked<'a>> {
        let asked = |case| Asked { case, new_tokens: work.new_tokens, vocabulary };
        work.cases.iter().map(asked).collect()
    }

    /// The marks of a request, one for each new token. `prefix` comes before the names of its fields.
    pub(crate) fn marks(self, marks: &Marks, prefix: &str, at_most: Duration) -> Vec<Problem> {
        let new_tokens = self.new_tokens;
        let field = format!("{prefix}marks_ns");
        let count = marks.len();
        let text = format!(
            "{count} for {new_tokens} new tokens; send the time from the start of the request to each token"
        );
        let wrong = wrong(count != new_tokens, &field, text);
        wrong.or_else(|| time(&field, marks.end(), at_most)).into_iter().collect()
    }

    /// A request: its times, and as many tokens as were asked for. `prefix` comes before the names of its fields.
    pub(crate) fn sample(self, sample: &Sample, prefix: &str, at_most: Duration) -> Vec<Problem> {
        let Asked { case, new_tokens, vocabulary } = self;
        let mut found = self.marks(&sample.marks_ns, prefix, at_most);
        let field = format!("{prefix}output.tokens");
        found.extend(tokens(sample.output.tokens(), case.prompts.len(), new_tokens, vocabulary, &field));
        found
    }
}

/// `[batch][new tokens]`, ids of the vocabulary.
pub(crate) fn tokens(
    tokens: &[Vec<u32>],
    batch: usize,
    new_tokens: usize,
    vocabulary: usize,
    field: &str,
) -> Option<Problem> {
    if tokens.len() != batch {
        let text = format!("{} rows for {batch} sequences; send [batch][new tokens]", tokens.len());
        return Some(Problem::at(field, text));
    }
    for (row, ids) in tokens.iter().enumerate() {
        let field = format!("{field}[{row}]");
        if ids.len() != new_tokens {
            let text = format!("{} tokens, but {new_tokens} were asked for; send as many", ids.len());
            return Some(Problem::at(&field, text));
        }
        if let Some(id) = ids.iter().find(|id| **id as usize >= vocabulary) {
            let text = format!(
                "{id} is no token: the vocabulary has {vocabulary}; send the index of the largest logit"
            );
            return Some(Problem::at(&field, text));
        }
    }
    None
}
