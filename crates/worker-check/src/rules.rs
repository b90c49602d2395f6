//! Rules on the values of events that no type can say: times that fit what the driver saw, token counts that fit,
//! readings that agree with each other. `judge::impossible` says which readings are impossible by themselves.

use std::time::Duration;

use protocol::{Case, CaseSample, ColdStart, KvCache, Loaded, Memory, Probed, Started, Usage, WarmupDone};

use crate::problem::Problem;

/// Two programs read the clock one after the other.
const SLACK: Duration = Duration::from_millis(1);

/// What a request was asked for.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Asked<'a> {
    pub(crate) case: &'a Case,
    pub(crate) new_tokens: usize,
    pub(crate) vocabulary: usize,
}

/// A duration in nanoseconds that must be no longer than the driver itself saw it take.
fn time(field: &str, ns: u64, at_most: Duration) -> Option<Problem> {
    (Duration::from_nanos(ns) > at_most + SLACK).then(|| {
        let text = format!(
            "{:.1} ms is impossible: the driver saw {:.1} ms pass in all; send nanoseconds of a monotonic clock, \
             without the time spent waiting",
            ns as f64 / 1e6,
            at_most.as_secs_f64() * 1e3
        );
        Problem::at(field, text)
    })
}

/// A peak is the highest.
fn memory(memory: &Memory) -> Option<Problem> {
    let (peak @ 1.., resident) = (memory.peak_bytes?, memory.resident_bytes?) else { return None };
    (peak < resident).then(|| {
        let text =
            format!("{peak} is below `memory.resident_bytes`, {resident}; send the highest of the phase");
        Problem::at("memory.peak_bytes", text)
    })
}

pub(crate) fn started(started: &Started, since_start: Duration) -> Vec<Problem> {
    let mut found: Vec<Problem> = time("runtime_ns", started.runtime_ns, since_start).into_iter().collect();
    if let Some(startup) = started.startup_ns {
        found.extend(time("startup_ns", startup, since_start));
        if startup < started.runtime_ns {
            let text = "shorter than `runtime_ns`, which is a part of it; count it from `spawned_at_ns`, or send null";
            found.push(Problem::at("startup_ns", text));
        }
    }
    found.extend(memory(&started.memory));
    found
}

/// What `loaded` must agree with.
pub(crate) struct LoadAsked<'a> {
    pub(crate) precision: &'a str,
    pub(crate) device: &'a str,
    pub(crate) evict: bool,
    pub(crate) kv_cache: KvCache,
}

pub(crate) fn loaded(loaded: &Loaded, asked: &LoadAsked<'_>, since_start: Duration) -> Vec<Problem> {
    let mut found: Vec<Problem> = time("load_ns", loaded.load_ns, since_start).into_iter().collect();
    found.extend(memory(&loaded.memory));
    let in_effect = &loaded.in_effect;
    for (field, observed, asked) in [
        ("in_effect.precision", &in_effect.precision, asked.precision),
        ("in_effect.device", &in_effect.device, asked.device),
    ] {
        if observed != asked {
            let text = format!(
                "{observed:?}, but the job asked for {asked:?}; do what is asked, or send {{\"event\": \"failed\", \
                 \"kind\": \"unsupported\", \"reason\": …}}"
            );
            found.push(Problem::at(field, text));
        }
    }
    // A worker that has no cache says so, whatever is asked.
    if asked.kv_cache == KvCache::Off && in_effect.kv_cache != "recomputed" {
        let text =
            "the job switched the cache off; send \"recomputed\" and compute the whole prefix each time";
        found.push(Problem::at("in_effect.kv_cache", text));
    }
    found.extend(weights_file(loaded));
    if loaded.page_cache.as_ref().is_some_and(|page_cache| page_cache.evicted != asked.evict) {
        let text = format!("the job's `evict` was {}; send that", asked.evict);
        found.push(Problem::at("page_cache.evicted", text));
    }
    found
}

fn weights_file(loaded: &Loaded) -> Option<Problem> {
    let file = &loaded.weights_file;
    match std::fs::metadata(file) {
        Err(error) => {
            let text =
                format!("{file:?}: {error}; send the path of the file that the weights were read from");
            Some(Problem::at("weights_file", text))
        }
        Ok(found) if found.len() != loaded.weights_bytes => {
            let text = format!("{}, but {file} has {} bytes; send that", loaded.weights_bytes, found.len());
            Some(Problem::at("weights_bytes", text))
        }
        Ok(_) => None,
    }
}

pub(crate) fn cold_start(cold: &ColdStart, new_tokens: usize, since_start: Duration) -> Vec<Problem> {
    let mut found = times((cold.first_token_ns, &cold.gaps_ns), new_tokens, "", since_start);
    if let Some(since_spawn) = cold.since_spawn_ns {
        found.extend(time("since_spawn_ns", since_spawn, since_start));
        if since_spawn < cold.first_token_ns {
            let text = "shorter than `first_token_ns`, which is a part of it; count it from `spawned_at_ns`, or send null";
            found.push(Problem::at("since_spawn_ns", text));
        }
    }
    found.extend(memory(&cold.memory));
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
    if count == 0 || count > max_iterations {
        let text = format!(
            "{count} iterations; run at least one and at most `warmup.max_iterations`, {max_iterations}"
        );
        found.push(Problem::at("iterations", text));
    }
    for (index, iteration) in warmup.iterations.iter().enumerate() {
        let path = format!("iterations[{index}]");
        if iteration.index != index {
            let text = format!("{}; number the iterations from 0: send {index}", iteration.index);
            found.push(Problem::at(&format!("{path}.index"), text));
        }
        if iteration.cases.len() != asked.len() {
            let text = format!(
                "{} cases; an iteration runs each of the job's {} cases once",
                iteration.cases.len(),
                asked.len()
            );
            found.push(Problem::at(&format!("{path}.cases"), text));
            continue;
        }
        for (number, (sample, asked)) in iteration.cases.iter().zip(asked).enumerate() {
            found.extend(case_sample(sample, *asked, &format!("{path}.cases[{number}]."), since_start));
        }
        if !found.is_empty() {
            break;
        }
    }
    found
}

/// The times of a request: its first token's, and a gap for each other. `prefix` stands before the names of its fields.
fn times(
    (first_token_ns, gaps_ns): (u64, &[u64]),
    new_tokens: usize,
    prefix: &str,
    at_most: Duration,
) -> Vec<Problem> {
    let field = |name: &str| format!("{prefix}{name}");
    let mut found: Vec<Problem> =
        time(&field("first_token_ns"), first_token_ns, at_most).into_iter().collect();
    let gaps = gaps_ns.len();
    if gaps + 1 != new_tokens {
        let text = format!(
            "{gaps} gaps for {new_tokens} new tokens; send the time from each token to the next, {} in all",
            new_tokens - 1
        );
        found.push(Problem::at(&field("gaps_ns"), text));
    }
    let sum = gaps_ns.iter().fold(first_token_ns, |sum, gap| sum.saturating_add(*gap));
    if found.is_empty() {
        found.extend(
            time(&field("gaps_ns"), sum, at_most).map(|problem| Problem {
                text: format!("with `first_token_ns` {}", problem.text),
                ..problem
            }),
        );
    }
    found
}

/// A request: its times, and as many tokens as were asked for. `prefix` stands before the names of its fields.
pub(crate) fn case_sample(
    sample: &CaseSample,
    asked: Asked<'_>,
    prefix: &str,
    at_most: Duration,
) -> Vec<Problem> {
    let Asked { case, new_tokens, vocabulary } = asked;
    let mut found = times((sample.first_token_ns, &sample.gaps_ns), new_tokens, prefix, at_most);
    let field = format!("{prefix}tokens");
    found.extend(tokens(&sample.tokens, case.prompts.len(), new_tokens, vocabulary, &field));
    found
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

/// What the turns before `usage` came to.
#[derive(Debug, Default, Clone, Copy)]
pub(crate) struct Turns {
    /// Times of the samples, as the worker told them.
    pub(crate) told: Duration,
    /// As the driver saw them.
    pub(crate) seen: Duration,
}

pub(crate) fn usage(usage: &Usage, turns: Turns, hash: &str) -> Vec<Problem> {
    let mut found: Vec<Problem> = memory(&usage.memory).into_iter().collect();
    found.extend(time("wall_ns", usage.wall_ns, turns.seen));
    let wall = Duration::from_nanos(usage.wall_ns);
    if usage.wall_ns > 0 && wall + SLACK < turns.told {
        let text = format!(
            "{:.1} ms, but the samples took {:.1} ms; send the wall time of all measured requests together",
            wall.as_secs_f64() * 1e3,
            turns.told.as_secs_f64() * 1e3
        );
        found.push(Problem::at("wall_ns", text));
    }
    match &usage.weights_sha256 {
        None => {
            let text = "null, but the turn asked for it (`hash`: true); send the sha256 of the weights file";
            found.push(Problem::at("weights_sha256", text));
        }
        Some(told) if told != hash => {
            let text = format!("{told}, but the file's is {hash}; hash the file that `weights_file` names");
            found.push(Problem::at("weights_sha256", text));
        }
        Some(_) => {}
    }
    let is_falling = |times: &Vec<u64>| times.windows(2).all(|pair| pair[0] >= pair[1]);
    if usage.thread_cpu_ns.as_ref().is_some_and(|times| !is_falling(times)) {
        found.push(Problem::at("thread_cpu_ns", "not in order; send the busiest thread first"));
    }
    if let (Some(peak), Some(own)) = (usage.peak_bytes, usage.memory.peak_bytes)
        && peak < own
    {
        let text = format!("{peak} is below `memory.peak_bytes`, {own}; send the highest of all phases");
        found.push(Problem::at("peak_bytes", text));
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
    if probed.sweeps_ns.is_empty() {
        found.push(Problem::at("sweeps_ns", "empty; sweep the buffer once at least"));
    }
    if probed.multiply_adds_ns.len() != asked.repeats {
        let text = format!(
            "{} times; the job asked for {} (`repeats`)",
            probed.multiply_adds_ns.len(),
            asked.repeats
        );
        found.push(Problem::at("multiply_adds_ns", text));
    }
    for (field, times) in [("sweeps_ns", &probed.sweeps_ns), ("multiply_adds_ns", &probed.multiply_adds_ns)] {
        found.extend(times.iter().max().and_then(|&ns| time(field, ns, at_most)));
    }
    if probed.bytes < asked.bytes {
        let text =
            format!("{}, but {} were asked for; say how many one sweep reads", probed.bytes, asked.bytes);
        found.push(Problem::at("bytes", text));
    }
    if probed.threads != threads {
        let text = format!("{}, but the job gave {threads}; use that many at once", probed.threads);
        found.push(Problem::at("threads", text));
    }
    found
}
