//! The phases of a check: `--hello`, and each task that the driver gives.

use std::time::Duration;

use protocol::{
    Answer, Case, Continued, Decode, DrawnLogits, Finish, GenerateWork, Input, Job, KvCache, Measure, Parity,
    ParityTask, Probe, Ready, Sample, Score, Scored, Slice, Task, Trace, Turn, Usage, Warmup, Work,
};

use crate::worker_check::rules::{self, MAX_ITERATIONS, NEW_TOKENS};
use crate::worker_check::talk::{Stop, Talk};

/// Talks with the worker, and returns a description of what it did.
type Run = fn(&mut Talk<'_>) -> Result<String, Stop>;

/// Every phase, whether each worker must hold it, in the order in which a new worker is written.
pub(crate) const ALL: &[(&str, bool, Run)] = &[
    ("--hello", true, hello),
    ("load", true, load),
    ("measure", true, measure),
    ("batch", false, batch),
    ("no cache", false, without_cache),
    ("answer", false, answer),
    ("score", false, score),
    ("probe", false, probe),
    ("trace", false, trace),
    ("failures", true, failures),
];

/// One line, and the end.
fn hello(talk: &mut Talk<'_>) -> Result<String, Stop> {
    talk.start(&["--hello"])?;
    talk.close_input();
    let hello = talk.hello()?;
    talk.end("the line for --hello", true)?;
    Ok(hello.map_or_else(String::new, |hello| {
        format!("{} ({}, {}), protocol {}", hello.framework, hello.binding, hello.library, hello.protocol)
    }))
}

fn load(talk: &mut Talk<'_>) -> Result<String, Stop> {
    talk.job.evict = true;
    talk.begin(Task::Load)?;
    talk.finish()?;
    Ok("hello, started, loaded, done, exit code 0".to_owned())
}

/// Two prompts of different lengths, so that an answer to the wrong one is detected.
fn measure(talk: &mut Talk<'_>) -> Result<String, Stop> {
    let case = |length, seed| Case {
        prompts: vec![talk.ids(length, seed)],
        trace: vec![talk.ids(NEW_TOKENS, seed + 1)],
        ..Case::default()
    };
    let cases = vec![case(5, 1), case(3, 2)];
    measured(talk, cases, KvCache::On, &[0, 1, 1], false)
}

/// Two sequences at once, after a context that is in the cache.
fn batch(talk: &mut Talk<'_>) -> Result<String, Stop> {
    let rows = |length, seed| vec![talk.ids(length, seed), talk.ids(length, seed + 1)];
    let cases =
        vec![Case { context: rows(2, 1), prompts: rows(3, 3), trace: rows(NEW_TOKENS, 5), audio: None }];
    measured(talk, cases, KvCache::On, &[0], true)
}

/// Every token computes the whole prefix again.
fn without_cache(talk: &mut Talk<'_>) -> Result<String, Stop> {
    let (prompts, trace) = (vec![talk.ids(4, 1)], vec![talk.ids(NEW_TOKENS, 2)]);
    measured(talk, vec![Case { prompts, trace, ..Case::default() }], KvCache::Off, &[0], false)
}

/// Number of tokens whose logits are asked for behind a request.
const LOGITS: usize = 3;

/// Cold start, warm-up, turns as the driver deals them out, usage, logits. Between two turns the worker is
/// stopped for a moment. The last of several is computed in slices if the worker can pause within a request.
fn measured(
    talk: &mut Talk<'_>,
    cases: Vec<Case>,
    kv_cache: KvCache,
    turns: &[usize],
    prompt_last_only: bool,
) -> Result<String, Stop> {
    talk.cases = cases.clone();
    let warmup = Warmup {
        min_iterations: 1,
        max_iterations: MAX_ITERATIONS,
        max_ns: 1_000_000_000,
        settled_within: 0.05,
        from_cold: false,
    };
    let work = work(cases.clone(), Decode::Forced, kv_cache);
    let task = Measure { work, warmup, lead_in: 2, load: None };
    let has_slices = talk.begin(Task::Measure(task))?;
    talk.event("cold_start", rules::cold_start)?;
    talk.event("warmup", rules::warmup)?;
    let warm_after = talk.since_start;

    let mut chosen = vec![Vec::new(); cases.len()];
    let (mut told, mut seen) = (Duration::ZERO, Duration::ZERO);
    talk.expect_silence("a line before the first turn")?;
    for (number, &case) in turns.iter().enumerate() {
        talk.pause();
        let mut seen_before = Duration::ZERO;
        talk.send(&Turn::Prepare { case });
        talk.event("ready", |ready: &Ready, talk| rules::ready(ready, case, talk))?;
        let Case { prompts, trace, .. } = cases[case].clone();
        let of_step = |step: usize| trace.iter().map(|row| vec![row[step]]).collect();
        let sent = |prompts, trace| Some(Input::Continue(Continued { prompts, trace, turn: None }));
        if has_slices && number > 0 && number + 1 == turns.len() {
            for marks in 1..NEW_TOKENS {
                let input = match marks {
                    1 => sent(prompts.clone(), Vec::new()),
                    _ => sent(Vec::new(), of_step(marks - 2)),
                };
                talk.send(&Turn::Slice { case, marks: 1, input });
                let expected = Slice { case, marks };
                talk.event("slice", |slice, talk| rules::slice(slice, expected, talk))?;
                seen_before += talk.since_asked;
                talk.pause();
            }
            let input = sent(Vec::new(), of_step(NEW_TOKENS - 2));
            talk.send(&Turn::Slice { case, marks: NEW_TOKENS, input });
        } else {
            // With its own tokens once, and once with the same as if they were others.
            let input = if number == 0 { None } else { sent(prompts, trace) };
            talk.send(&Turn::Request { case, input });
        }
        let sample = talk.event("sample", |sample: &Sample, talk| {
            rules::sample(sample, case, seen_before + talk.since_asked, talk);
        })?;
        seen += seen_before + talk.since_asked;
        if let Some(sample) = sample {
            told += Duration::from_nanos(sample.marks_ns.end());
            chosen[case].push(sample.output.tokens().to_vec());
        }
        talk.expect_silence(&format!("a second answer to turn {}", number + 1))?;
        let tokens = talk.ids(LOGITS, number);
        talk.send(&Turn::Logits { case, tokens });
        let shape = (cases[case].prompts.len(), LOGITS);
        talk.event("logits", |logits: &DrawnLogits, talk| rules::logits(logits, case, shape, talk))?;
    }

    let file = talk.file("parity.safetensors");
    let parity = ParityTask { steps: 1, file: file.clone(), prompt_last_only, sequences: None };
    talk.send(&Turn::Finish(Finish { hash: true, parity: Some(parity) }));
    talk.event("usage", |usage: &Usage, talk| rules::usage(usage, (told, seen), talk))?;
    let mut agreed = None;
    talk.event("parity", |parity: &Parity, talk| {
        rules::file(&parity.file, &file, talk);
        rules::parity(&file, &cases, prompt_last_only, &chosen, talk);
        agreed = rules::agreed(&file, &cases, prompt_last_only, talk);
    })?;
    talk.finish()?;
    let counted = |count: usize, what: &str| format!("{count} {what}{}", if count == 1 { "" } else { "s" });
    Ok(format!(
        "warm after {:.1} s, {} answered, usage, logits of {}{}",
        warm_after.as_secs_f64(),
        counted(turns.len(), "turn"),
        counted(cases.len(), "case"),
        match agreed {
            Some(true) => ", which are the reference's",
            None if talk.subject.reference.is_some() => ", which the reference did not compute",
            _ => "",
        }
    ))
}

/// A prompt that is continued by the most likely tokens.
fn greedy(prompt: Vec<u32>) -> Work {
    work(vec![Case { prompts: vec![prompt], ..Case::default() }], Decode::Greedy, KvCache::On)
}

fn work(cases: Vec<Case>, decode: Decode, kv_cache: KvCache) -> Work {
    Work::Generate(GenerateWork { cases, new_tokens: NEW_TOKENS, decode, kv_cache, prefill_chunk: None })
}

fn answer(talk: &mut Talk<'_>) -> Result<String, Stop> {
    let (prompt, file) = (talk.ids(4, 3), talk.file("generated.safetensors"));
    let parity = ParityTask { steps: 1, file: file.clone(), prompt_last_only: false, sequences: None };
    talk.begin(Task::Answer(Answer { work: greedy(prompt.clone()), parity: Some(parity) }))?;
    talk.event("parity", |parity: &Parity, talk| rules::file(&parity.file, &file, talk))?;
    let answered = talk.event("answered", rules::answered)?;
    if let Some([output]) = answered.as_ref().map(|answered| answered.outputs.as_slice()) {
        let trace = output.tokens().to_vec();
        let cases = [Case { prompts: vec![prompt], trace: trace.clone(), ..Case::default() }];
        rules::parity(&file, &cases, false, &[vec![trace]], talk);
    }
    talk.finish()?;
    Ok(format!("{NEW_TOKENS} tokens continued greedily, with their logits"))
}

fn score(talk: &mut Talk<'_>) -> Result<String, Stop> {
    let file = talk.file("scored.safetensors");
    let sequences = vec![talk.ids(5, 1), talk.ids(5, 2)];
    let shape = [sequences.len(), sequences[0].len(), talk.vocabulary()];
    let task =
        Score { sequences, types: Vec::new(), audio: Vec::new(), piece: 2, kept: None, file: file.clone() };
    talk.begin(Task::Score(task))?;
    talk.event("scored", |scored: &Scored, talk| {
        rules::file(&scored.file, &file, talk);
        rules::score(&file, shape, talk);
    })?;
    talk.finish()?;
    Ok(format!("logits of {} sequences of {} tokens", shape[0], shape[1]))
}

fn probe(talk: &mut Talk<'_>) -> Result<String, Stop> {
    let task = Task::Probe(Probe { bytes: 1 << 20, sweep_ns: 1_000_000, repeats: 2 });
    talk.send_job(Job { task, ..talk.job.clone() })?;
    talk.event("probed", rules::probed)?;
    let seconds = talk.since_start.as_secs_f64();
    talk.finish()?;
    Ok(format!("the machine probed in {seconds:.1} s"))
}

/// A run to look at.
fn trace(talk: &mut Talk<'_>) -> Result<String, Stop> {
    let task = Trace { work: greedy(talk.ids(4, 3)), file: talk.file("profile.json") };
    talk.begin(Task::Trace(task))?;
    let traced = talk.event("traced", rules::traced)?;
    talk.finish()?;
    let profiler = traced.and_then(|traced| traced.profiler).map_or_else(
        || "and no profiler".to_owned(),
        |profiler| format!("{} events of {}", profiler.events, profiler.name),
    );
    Ok(format!("{} tokens with the clock's readings, {profiler}", 2 * NEW_TOKENS + 1))
}

/// How a worker reacts to impossible jobs: it says so and ends.
fn failures(talk: &mut Talk<'_>) -> Result<String, Stop> {
    let job = talk.job.clone();
    talk.send_job(Job { protocol: protocol::VERSION + 1, ..job.clone() })?;
    talk.refusal("a job of another protocol")?;
    talk.send_job(Job { bundle: format!("{}/not-there", job.bundle), ..job })?;
    talk.refusal("a bundle that is not there")?;
    Ok("what cannot be done is answered by `failed` and exit code 1".to_owned())
}
