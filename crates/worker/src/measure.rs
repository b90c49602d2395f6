//! The phases of a measurement, in order, and what is read at their ends.
//!
//! Within a phase there is no I/O, no logging and no allocation for results; events are sent, and memory
//! is read, between them.

use std::io::BufRead;
use std::path::Path;

use engine::InferenceEngine;
use protocol::{
    Case, ColdStart, Decode, Denoise, Event, FileIdentity, Generate, Generated, KvCache, Measure, Parity,
    Usage,
};

use crate::denoise::{self, Denoiser};
use crate::error::ServeError;
use crate::events::Events;
use crate::gpu::Gpu;
use crate::memory::Phase;
use crate::runner::Runner;
use crate::warmup::warm_up;
use crate::{clock, sampling, score, turns};

pub(crate) struct Context<'a> {
    pub(crate) vocabulary: usize,
    /// The model's mask, if it generates by masked diffusion.
    pub(crate) mask_token: Option<u32>,
    /// The clock at spawning, put later by what the worker's own readings have taken since.
    pub(crate) spawned_at_ns: Option<u64>,
    pub(crate) weights_file: &'a Path,
    /// Highest peak of the phases before.
    pub(crate) earlier_peak: Option<u64>,
    pub(crate) gpu: Option<&'a Gpu>,
}

pub(crate) fn measure<E: InferenceEngine>(
    engine: &mut E,
    task: &Measure,
    context: &Context<'_>,
    (input, events): (&mut dyn BufRead, &mut Events<'_>),
) -> Result<(), ServeError> {
    check(task, context.mask_token)?;
    let modes = (task.decode, task.kv_cache);
    let mut runner = Runner::new(&task.cases, task.new_tokens, modes, context.vocabulary);
    if let (Some(denoise), Some(mask)) = (&task.denoise, context.mask_token) {
        runner = runner.denoising(Denoiser::new(denoise, mask, context.vocabulary), denoise.steps);
    }

    let phase = Phase::begin(context.gpu);
    let before = clock::now_ns();
    let (start, sample) = runner.first_request(engine)?;
    let first_token = start + sample.first_token_ns;
    let cold = ColdStart {
        first_token_ns: first_token - before,
        gaps_ns: sample.gaps_ns,
        since_spawn_ns: context.spawned_at_ns.map(|spawned| first_token.saturating_sub(spawned)),
        memory: phase.end(),
    };
    let mut peak = context.earlier_peak.max(cold.memory.peak_bytes);
    events.send(Event::ColdStart(cold))?;

    let phase = Phase::begin(context.gpu);
    let mut warm = warm_up(&mut runner, engine, &task.warmup)?;
    warm.memory = phase.end();
    peak = peak.max(warm.memory.peak_bytes);
    events.send(Event::Warmup(warm))?;

    let (usage, finish) = turns::take(engine, task, &mut runner, context.gpu, (input, events))?;
    let weights_identity = identity(context.weights_file);
    let hash = || {
        bundle::sha256_of(context.weights_file)
            .map_err(|e| ServeError::File(format!("cannot read {}: {e}", context.weights_file.display())))
    };
    let weights_sha256 = finish.hash.then(hash).transpose()?.map(Into::into);
    let peak_bytes = peak.max(usage.memory.peak_bytes);
    events.send(Event::Usage(Usage { peak_bytes, weights_sha256, weights_identity, ..usage }))?;

    if let Some(parity) = &finish.parity {
        let denoise = task.denoise.zip(context.mask_token);
        score::along_trace(engine, &task.cases, parity, (context.vocabulary, denoise))?;
        events.send(Event::Parity(Parity { file: parity.file.as_str().into() }))?;
    }
    Ok(())
}

/// What tells the weights file from every other; `None` where the system has no such numbers.
pub(crate) fn identity(file: &Path) -> Option<FileIdentity> {
    let found = bundle::FileIdentity::new(&std::fs::metadata(file).ok()?)?;
    let bundle::FileIdentity { device, inode, bytes, modified_ns } = found;
    Some(FileIdentity { device, inode, bytes, modified_ns })
}

/// Continuation, untimed, and the logits along it where they are asked for.
pub(crate) fn generate<E: InferenceEngine>(
    engine: &mut E,
    task: &Generate,
    (vocabulary, mask_token): (usize, Option<u32>),
    events: &mut Events<'_>,
) -> Result<(), ServeError> {
    let case = |prompts: &Vec<_>| Case { prompts: prompts.clone(), ..Case::default() };
    let mut cases: Vec<Case> = task.prompts.iter().map(case).collect();
    for case in &cases {
        check_case(case, task.new_tokens)?;
    }
    let decode = task.sampling.map_or(Decode::Greedy, Decode::Sampled);
    check_decode(decode)?;
    let mask = check_generation(task.denoise.as_ref(), mask_token, &cases)?;
    let mut runner = Runner::new(&cases, task.new_tokens, (decode, KvCache::On), vocabulary);
    if let (Some(denoise), Some(mask)) = (&task.denoise, mask) {
        runner = runner.denoising(Denoiser::new(denoise, mask, vocabulary), denoise.steps);
    }
    let iteration = runner.iteration(engine, 0)?;
    for (case, sample) in cases.iter_mut().zip(iteration.cases) {
        (case.trace, case.unmasked) = (sample.tokens, sample.unmasked);
    }
    if let Some(parity) = &task.parity {
        score::along_trace(engine, &cases, parity, (vocabulary, task.denoise.zip(mask)))?;
        events.send(Event::Parity(Parity { file: parity.file.as_str().into() }))?;
    }
    let unmasked = match task.denoise {
        Some(_) => cases.iter().map(|case| case.unmasked.clone()).collect(),
        None => Vec::new(),
    };
    let tokens = cases.into_iter().map(|case| case.trace).collect();
    events.send(Event::Generated(Generated { tokens, unmasked }))
}

fn check(task: &Measure, mask_token: Option<u32>) -> Result<(), ServeError> {
    if task.cases.is_empty() || task.warmup.max_iterations == 0 {
        return Err(ServeError::Job("a measurement needs cases and warm-up".into()));
    }
    check_decode(task.decode)?;
    for case in &task.cases {
        check_case(case, task.new_tokens)?;
        let rows = case.trace.len() == case.prompts.len();
        if !rows || case.trace.iter().any(|row| row.len() != task.new_tokens) {
            return Err(ServeError::Job("each prompt needs a trace as long as the new tokens".into()));
        }
        let steps = task.denoise.map_or(0, |denoise| denoise.steps);
        let unmasked = case.unmasked.len() == case.trace.len()
            && case.unmasked.iter().all(|row| row.len() == task.new_tokens)
            && case.unmasked.iter().flatten().all(|&step| (step as usize) < steps);
        if task.denoise.is_some() && !unmasked {
            let reason =
                "each token of a trace needs the step that unmasks it, from 0 and below the number of steps";
            return Err(ServeError::Job(reason.into()));
        }
    }
    check_generation(task.denoise.as_ref(), mask_token, &task.cases).map(drop)
}

/// Refuses a way to generate that is not the model's. Returns the mask, where masks are filled in.
fn check_generation(
    denoise: Option<&Denoise>,
    mask_token: Option<u32>,
    cases: &[Case],
) -> Result<Option<u32>, ServeError> {
    match denoise {
        Some(denoise) => denoise::check(denoise, mask_token, cases).map(Some),
        None if mask_token.is_some() => Err(ServeError::Job(
            "this model generates by masked diffusion, not token by token: the job has to say how it denoises".into(),
        )),
        None => Ok(None),
    }
}

pub(crate) fn check_case(case: &Case, new_tokens: usize) -> Result<(), ServeError> {
    let length = case.prompts.first().map_or(0, Vec::len);
    if length == 0 || new_tokens == 0 || case.prompts.iter().any(|prompt| prompt.len() != length) {
        let reason = "a case needs at least one token to continue, one to add, and prompts of one length";
        return Err(ServeError::Job(reason.into()));
    }
    let (rows, length) = (case.context.len(), case.context.first().map_or(0, Vec::len));
    let alike =
        rows == case.prompts.len() && length > 0 && case.context.iter().all(|row| row.len() == length);
    if rows > 0 && !alike {
        let reason =
            "a context has a row of tokens for each prompt, all of one length; leave it out for none";
        return Err(ServeError::Job(reason.into()));
    }
    Ok(())
}

fn check_decode(decode: Decode) -> Result<(), ServeError> {
    match decode {
        Decode::Sampled(sampling) => sampling::check(&sampling),
        Decode::Forced | Decode::Greedy => Ok(()),
    }
}
