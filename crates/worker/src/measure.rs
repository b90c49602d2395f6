//! The timed loop, and the phases around it.
//!
//! Between the first and the last sample of a phase there is no I/O, no logging and no allocation for
//! results: buffers are made before, events are sent after.

use std::path::Path;

use engine::{InferenceEngine, Want};
use protocol::{
    Case, CaseSample, ColdStart, Decode, Event, Generate, Generated, Iteration, KvCache, Measure, Parity,
    Usage, Warmup, WarmupDone,
};

use crate::serve::{Events, ServeError};
use crate::{clock, memory, score};

pub(crate) struct Context<'a> {
    pub(crate) vocabulary: usize,
    pub(crate) spawned_at_ns: Option<u64>,
    pub(crate) weights_file: &'a Path,
    /// Highest peak of the phases before.
    pub(crate) earlier_peak: Option<u64>,
}

pub(crate) fn measure<E: InferenceEngine>(
    engine: &mut E,
    task: &Measure,
    context: &Context<'_>,
    events: &mut Events<'_>,
) -> Result<(), ServeError> {
    check(task)?;
    let mut runner = Runner::new(task, context.vocabulary);

    memory::begin_phase();
    let before = clock::now_ns();
    runner.first_token(engine, &task.cases[0])?;
    let now = clock::now_ns();
    let cold = ColdStart {
        first_token_ns: now - before,
        since_spawn_ns: context.spawned_at_ns.map(|spawned| now.saturating_sub(spawned)),
        memory: memory::read(),
    };
    let mut peak = context.earlier_peak.max(cold.memory.peak_bytes);
    events.send(Event::ColdStart(cold))?;

    memory::begin_phase();
    let mut warm = WarmupDone { iterations: Vec::new(), settled: false, memory: Default::default() };
    while warm.iterations.len() < task.warmup.max_iterations {
        warm.iterations.push(runner.iteration(engine, warm.iterations.len())?);
        warm.settled = settled(&warm.iterations, &task.warmup);
        if warm.settled && warm.iterations.len() >= task.warmup.min_iterations {
            break;
        }
    }
    warm.memory = memory::read();
    peak = peak.max(warm.memory.peak_bytes);
    events.send(Event::Warmup(warm))?;

    memory::begin_phase();
    let mut iterations = Vec::with_capacity(task.iterations);
    let (mut cpu_ns, mut wall_ns) = (Some(0), 0);
    for index in 0..task.iterations {
        if task.delay_ns > 0 {
            std::thread::sleep(std::time::Duration::from_nanos(task.delay_ns));
        }
        let (cpu, wall) = (clock::cpu_ns(), clock::now_ns());
        iterations.push(runner.iteration(engine, index)?);
        wall_ns += clock::now_ns() - wall;
        cpu_ns = cpu_ns.zip(cpu).zip(clock::cpu_ns()).map(|((sum, before), after)| sum + after - before);
    }
    let usage = Usage {
        memory: memory::read(),
        peak_bytes: None,
        cpu_ns,
        wall_ns,
        threads: memory::threads(),
        weights_sha256: String::new(),
    };
    for iteration in iterations {
        events.send(Event::Iteration(iteration))?;
    }
    let weights_sha256 = bundle::sha256_of(context.weights_file)
        .map_err(|e| ServeError::File(format!("cannot read {}: {e}", context.weights_file.display())))?;
    let peak_bytes = peak.max(usage.memory.peak_bytes);
    events.send(Event::Usage(Usage { peak_bytes, weights_sha256, ..usage }))?;

    if let Some(parity) = &task.parity {
        score::along_trace(engine, &task.cases, parity.steps, context.vocabulary, &parity.file)?;
        events.send(Event::Parity(Parity { file: parity.file.clone() }))?;
    }
    Ok(())
}

/// Greedy continuation, untimed, and the logits along it where they are asked for.
pub(crate) fn generate<E: InferenceEngine>(
    engine: &mut E,
    task: &Generate,
    vocabulary: usize,
    events: &mut Events<'_>,
) -> Result<(), ServeError> {
    let mut cases: Vec<Case> =
        task.prompts.iter().map(|prompts| Case { prompts: prompts.clone(), trace: Vec::new() }).collect();
    for case in &cases {
        check_case(case, task.new_tokens)?;
    }
    let mut runner = Runner {
        cases: &cases,
        new_tokens: task.new_tokens,
        decode: Decode::Greedy,
        kv_cache: KvCache::On,
        vocabulary,
        tokens: Vec::new(),
    };
    let iteration = runner.iteration(engine, 0)?;
    for (case, sample) in cases.iter_mut().zip(iteration.cases) {
        case.trace = sample.tokens;
    }
    if let Some(parity) = &task.parity {
        score::along_trace(engine, &cases, parity.steps, vocabulary, &parity.file)?;
        events.send(Event::Parity(Parity { file: parity.file.clone() }))?;
    }
    events.send(Event::Generated(Generated { tokens: cases.into_iter().map(|case| case.trace).collect() }))
}

fn check(task: &Measure) -> Result<(), ServeError> {
    if task.cases.is_empty() || task.iterations == 0 || task.warmup.max_iterations == 0 {
        return Err(ServeError::Job("a measurement needs cases, warm-up and iterations".into()));
    }
    for case in &task.cases {
        check_case(case, task.new_tokens)?;
        let rows = case.trace.len() == case.prompts.len();
        if !rows || case.trace.iter().any(|row| row.len() != task.new_tokens) {
            return Err(ServeError::Job("each prompt needs a trace as long as the new tokens".into()));
        }
    }
    Ok(())
}

fn check_case(case: &Case, new_tokens: usize) -> Result<(), ServeError> {
    let length = case.prompts.first().map_or(0, Vec::len);
    if length == 0 || new_tokens == 0 || case.prompts.iter().any(|prompt| prompt.len() != length) {
        let reason = "a case needs at least one token to continue, one to add, and prompts of one length";
        return Err(ServeError::Job(reason.into()));
    }
    Ok(())
}

/// Settled: within the latest iteration the token gaps' medians of the two halves agree. Where an
/// iteration has too few gaps for halves, the latest two iterations' first tokens are compared.
fn settled(iterations: &[Iteration], warmup: &Warmup) -> bool {
    let Some(last) = iterations.last() else { return false };
    let agree = |a: u64, b: u64| a.abs_diff(b) as f64 <= warmup.settled_within * a.min(b) as f64;
    let gaps: Vec<u64> = last.cases.iter().flat_map(|case| case.gaps_ns.iter().copied()).collect();
    if gaps.len() >= 8 {
        let (first, second) = gaps.split_at(gaps.len() / 2);
        return agree(median(first), median(second));
    }
    let firsts = |iteration: &Iteration| {
        median(&iteration.cases.iter().map(|case| case.first_token_ns).collect::<Vec<_>>())
    };
    match iterations {
        [.., before, last] => agree(firsts(before), firsts(last)),
        _ => false,
    }
}

fn median(values: &[u64]) -> u64 {
    let mut sorted = values.to_vec();
    sorted.sort_unstable();
    sorted[sorted.len() / 2]
}

/// Runs cases through an engine and times them.
struct Runner<'a> {
    cases: &'a [Case],
    new_tokens: usize,
    decode: Decode,
    kv_cache: KvCache,
    vocabulary: usize,
    /// Most likely tokens of the case that runs, `[new tokens][batch]`.
    tokens: Vec<u32>,
}

impl<'a> Runner<'a> {
    fn new(task: &'a Measure, vocabulary: usize) -> Runner<'a> {
        Runner {
            cases: &task.cases,
            new_tokens: task.new_tokens,
            decode: task.decode,
            kv_cache: task.kv_cache,
            vocabulary,
            tokens: Vec::new(),
        }
    }

    /// The cold start: one request up to its first token, its result thrown away.
    fn first_token<E: InferenceEngine>(&mut self, engine: &mut E, case: &Case) -> Result<(), ServeError> {
        let prompt = case.prompts.concat();
        self.tokens.clear();
        engine.begin(case.prompts.len(), case.prompts[0].len() + self.new_tokens)?;
        let logits = engine.append(&prompt, Want::Last)?;
        push_argmax(&mut self.tokens, logits, self.vocabulary);
        Ok(())
    }

    fn iteration<E: InferenceEngine>(
        &mut self,
        engine: &mut E,
        index: usize,
    ) -> Result<Iteration, ServeError> {
        let mut cases = Vec::with_capacity(self.cases.len());
        for case in self.cases {
            cases.push(self.case(engine, case)?);
        }
        Ok(Iteration { index, cases })
    }

    fn case<E: InferenceEngine>(&mut self, engine: &mut E, case: &Case) -> Result<CaseSample, ServeError> {
        let batch = case.prompts.len();
        let capacity = case.prompts[0].len() + self.new_tokens;
        let prompt = case.prompts.concat();
        let mut gaps_ns = Vec::with_capacity(self.new_tokens);
        // With the cache off, each sequence's prefix as far as it has come.
        let mut prefixes: Vec<Vec<u32>> = Vec::new();
        if self.kv_cache == KvCache::Off {
            prefixes.extend(case.prompts.iter().map(|prompt| {
                let mut prefix = Vec::with_capacity(capacity);
                prefix.extend_from_slice(prompt);
                prefix
            }));
        }
        let mut flat = Vec::with_capacity(batch * capacity);
        let mut feed = Vec::with_capacity(batch);
        self.tokens.clear();
        self.tokens.reserve(batch * self.new_tokens);

        let start = clock::now_ns();
        engine.begin(batch, capacity)?;
        push_argmax(&mut self.tokens, engine.append(&prompt, Want::Last)?, self.vocabulary);
        let mut last = clock::now_ns();
        let first_token_ns = last - start;
        for step in 1..self.new_tokens {
            feed.clear();
            match self.decode {
                Decode::Forced => feed.extend(case.trace.iter().map(|row| row[step - 1])),
                Decode::Greedy => feed.extend_from_slice(&self.tokens[(step - 1) * batch..]),
            }
            let logits = match self.kv_cache {
                KvCache::On => engine.append(&feed, Want::Last)?,
                KvCache::Off => {
                    flat.clear();
                    for (prefix, token) in prefixes.iter_mut().zip(&feed) {
                        prefix.push(*token);
                        flat.extend_from_slice(prefix);
                    }
                    engine.begin(batch, capacity)?;
                    engine.append(&flat, Want::Last)?
                }
            };
            push_argmax(&mut self.tokens, logits, self.vocabulary);
            let now = clock::now_ns();
            gaps_ns.push(now - last);
            last = now;
        }

        let tokens = (0..batch).map(|row| self.tokens.iter().skip(row).step_by(batch).copied().collect());
        Ok(CaseSample { first_token_ns, gaps_ns, tokens: tokens.collect() })
    }
}

/// Appends the most likely token of each row of `logits`.
fn push_argmax(tokens: &mut Vec<u32>, logits: &[f32], vocabulary: usize) {
    tokens.extend(logits.chunks_exact(vocabulary).map(argmax));
}

/// The first of the largest. Two passes, of which the first vectorises: this runs inside the timed
/// loop, and a scalar search of a large vocabulary would add its own time to every engine's token.
fn argmax(logits: &[f32]) -> u32 {
    let mut lanes = [f32::NEG_INFINITY; 32];
    let (chunks, rest) = logits.as_chunks::<32>();
    for chunk in chunks {
        for (lane, &value) in lanes.iter_mut().zip(chunk) {
            *lane = if value > *lane { value } else { *lane };
        }
    }
    let largest = lanes.iter().chain(rest).fold(f32::NEG_INFINITY, |a, &b| if b > a { b } else { a });
    logits.iter().position(|&value| value == largest).unwrap_or(0) as u32
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn argmax_is_the_first_of_the_largest() {
        for length in [1, 31, 32, 33, 100] {
            let logits: Vec<f32> = (0..length).map(|i| ((i * 37) % 23) as f32).collect();
            assert_eq!(argmax(&logits), engine::conformance::argmax(&logits), "{length} logits");
        }
        assert_eq!(argmax(&[f32::NAN, 1.0, 1.0]), 1);
    }

    #[test]
    fn warm_up_has_settled_when_its_halves_agree() {
        let warmup = Warmup { min_iterations: 1, max_iterations: 3, settled_within: 0.05 };
        let of = |gaps: &[u64]| Iteration {
            index: 0,
            cases: vec![CaseSample { first_token_ns: 9, gaps_ns: gaps.to_vec(), tokens: Vec::new() }],
        };
        assert!(settled(&[of(&[100, 101, 99, 100, 100, 102, 100, 100])], &warmup));
        assert!(!settled(&[of(&[150, 140, 130, 120, 100, 100, 100, 100])], &warmup));
        // Too few gaps for halves: it takes two iterations whose first tokens agree.
        assert!(!settled(&[of(&[])], &warmup));
        assert!(settled(&[of(&[]), of(&[])], &warmup));
    }
}
