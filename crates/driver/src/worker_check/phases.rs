//! The phases of a check: `--hello`, and each task that the driver gives.

use std::path::Path;
use std::time::Duration;

use comparison::judge::parity::Tolerance;
use protocol::{
    Answer, Answered, Case, ColdStart, Failed, Finish, GenerateWork, Hello, Job, Loaded, Measure, Output,
    Parity, ParityTask, Probe, Probed, ProfileEvent, Profiler, Sample, Score, Scored, Slice, Started, Task,
    Trace, Traced, Turn, Usage, Warmup, WarmupDone, Work, untrusted,
};
use serde_json::Value;

use crate::measure::Scratch;
use crate::worker_check::rules::{self, Asked, NEW_TOKENS, Turns};
use crate::worker_check::talk::{Stop, Talk};
use crate::worker_check::{self, Expected, Interrupted, Outcome, Problem, Subject, events};

type Run = fn(&Subject<'_>) -> Result<Ran, Interrupted>;

/// Every phase, in the order in which a new worker is written.
pub(crate) const ALL: [(&str, Run); 10] = [
    ("--hello", hello),
    ("load", load),
    ("measure", measure),
    ("batch", batch),
    ("no cache", without_cache),
    ("answer", answer),
    ("score", score),
    ("probe", probe),
    ("trace", trace),
    ("failures", failures),
];

/// The result of a phase.
pub(crate) struct Ran {
    pub(crate) outcome: Outcome,
    /// Whether the worker could be talked to until the end.
    pub(crate) goes_on: bool,
}

/// Whether a worker may decline a phase as unsupported.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Need {
    Must,
    May,
}

/// Starts the worker and holds a conversation. `hold` returns a description of it.
fn conversation(
    subject: &Subject<'_>,
    arguments: &[&str],
    (order, need): (&'static [&'static str], Need),
    hold: impl FnOnce(&mut Talk) -> Result<String, Stop>,
) -> Result<Ran, Interrupted> {
    let mut talk = match Talk::start(subject.worker, arguments, order) {
        Ok(talk) => talk,
        Err(problem) => return Ok(Ran { outcome: Outcome::Broken(vec![problem]), goes_on: false }),
    };
    let mut goes_on = true;
    let mut declined = None;
    let mut done = String::new();
    match hold(&mut talk) {
        Ok(words) => done = words,
        Err(Stop::Interrupted) => return Err(Interrupted),
        Err(Stop::Broken) => goes_on = false,
        Err(Stop::Refused(reason)) => {
            if let Err(Stop::Interrupted) = talk.end("`failed`", true) {
                return Err(Interrupted);
            }
            match need {
                Need::May => declined = Some(reason),
                Need::Must => {
                    goes_on = false;
                    talk.note(Problem::new(format!("it declines what every worker must do: {reason}")));
                }
            }
        }
    }
    let problems = talk.into_problems();
    let outcome = match (problems.is_empty(), declined) {
        (false, _) => Outcome::Broken(problems),
        (true, Some(reason)) => Outcome::Declined(reason),
        (true, None) => Outcome::Holds(done),
    };
    Ok(Ran { outcome, goes_on })
}

/// Sends a job to the worker.
fn send_job(talk: &mut Talk, job: &Job) {
    let job = Job { spawned_at_ns: talk.spawned_at_ns(), ..job.clone() };
    talk.send(&job);
}

/// The events that every task but the probe begins with: `hello`, `started`, `loaded`. Returns whether the worker can
/// pause within a request.
fn begin(talk: &mut Talk, job: &Job) -> Result<bool, Stop> {
    send_job(talk, job);
    let hello = talk.event::<Hello>("hello")?;
    if let Some(event) = &hello.event {
        talk.note_all(hello.line, version(event.protocol).into_iter().collect());
    }
    let started = talk.event::<Started>("started")?;
    if let Some(event) = &started.event {
        talk.note_all(started.line, rules::started(event, started.since_start));
    }
    let loaded = talk.event::<Loaded>("loaded")?;
    if let Some(event) = &loaded.event {
        talk.note_all(loaded.line, rules::loaded(event, job, loaded.since_start));
    }
    Ok(hello.event.is_some_and(|hello| hello.slices == Some(true)))
}

/// The event `done`, and the end of the process.
fn finish(talk: &mut Talk) -> Result<(), Stop> {
    talk.event::<serde_json::Value>("done")?;
    talk.end("`done`", false)
}

/// `length` token ids of the vocabulary, others for another `seed`.
fn ids(subject: &Subject<'_>, length: usize, seed: usize) -> Vec<u32> {
    let vocabulary = subject.vocabulary();
    (0..length).map(|at| ((seed * 5 + at * 3 + 1) % vocabulary) as u32).collect()
}

/// A file in a directory that is deleted with this value.
fn scratch() -> Result<Scratch, Problem> {
    Scratch::new().map_err(|error| Problem::new(format!("{error:#}")))
}

fn seconds(duration: Duration) -> String {
    format!("{:.1} s", duration.as_secs_f64())
}

// How a worker reacts to an impossible job, and to the end of the driver: it says so and ends.

/// The order of events: `failed` may be sent before or after `hello`.
const ORDER: &[&str] = &["hello", "started", "loaded", "failed"];

fn failures(subject: &Subject<'_>) -> Result<Ran, Interrupted> {
    let version = refuses(subject, "a job of another protocol", |subject| {
        let job = subject.job(Task::Load);
        Job { protocol: protocol::VERSION + 1, ..job }
    })?;
    if !matches!(version.outcome, Outcome::Holds(_)) {
        return Ok(version);
    }
    refuses(subject, "a bundle that is not there", |subject| {
        let job = subject.job(Task::Load);
        Job { bundle: format!("{}/not-there", job.bundle), ..job }
    })
}

/// Sends an impossible job. The worker must answer `failed` and exit with a failure.
fn refuses(
    subject: &Subject<'_>,
    what: &'static str,
    job: impl FnOnce(&Subject<'_>) -> Job,
) -> Result<Ran, Interrupted> {
    conversation(subject, &[], (ORDER, Need::Must), |talk| {
        send_job(talk, &job(subject));
        loop {
            let object = talk.object(&format!("`failed`, the answer to {what},"))?;
            match object.get("event").and_then(Value::as_str) {
                Some("failed") => {
                    let _: Option<Failed> = talk.read("failed", object);
                    break;
                }
                // It may find out after it has begun.
                Some("hello" | "started") => {}
                found => {
                    let text = format!(
                        "{} in answer to {what}; send {{\"event\": \"failed\", \"kind\": \"input\", \"reason\": …}} \
                         and exit with 1",
                        found.map_or("a line that is no event".to_owned(), |name| format!("`{name}`"))
                    );
                    talk.note(Problem::new(text));
                    return Err(Stop::Broken);
                }
            }
        }
        talk.end("`failed`", true)?;
        Ok("what cannot be done is answered by `failed` and exit code 1".to_owned())
    })
}

// `--hello`: one line, and the end.

fn hello(subject: &Subject<'_>) -> Result<Ran, Interrupted> {
    conversation(subject, &["--hello"], (&["hello"], Need::Must), |talk| {
        talk.close_input();
        let object = talk.hello()?;
        let line = talk.line();
        let fields = events::fields("hello").unwrap_or_default();
        talk.note_all(line, events::problems(fields, &object));
        let hello = serde_json::from_value::<Hello>(object.into()).ok();
        if let Some(hello) = &hello {
            talk.note_all(line, rules(hello));
        }
        talk.end("the line for --hello", false)?;
        Ok(hello.map_or_else(String::new, |hello| {
            format!("{} ({}, {}), protocol {}", hello.framework, hello.binding, hello.library, hello.protocol)
        }))
    })
}

fn rules(hello: &Hello) -> Vec<Problem> {
    let mut found: Vec<Problem> = version(hello.protocol).into_iter().collect();
    if hello.framework.trim().is_empty() {
        let text = "empty; send the `framework` of its file in configs/engines";
        found.push(Problem::at("framework", text));
    }
    if hello.build.profile == "debug" {
        let text = "\"debug\", which rule R10 strikes; build it optimised, and send \"release\"";
        found.push(Problem::at("build.profile", text));
    }
    found
}

/// A version of the protocol that this driver does not speak.
fn version(theirs: u32) -> Option<Problem> {
    let ours = protocol::VERSION;
    let text = format!(
        "{theirs}, but this driver speaks {ours}; follow docs/reference/protocol.md, and send {ours}"
    );
    (theirs != ours).then(|| Problem::at("protocol", text))
}

// The task `measure`: cold start, warm-up, turns, usage, logits.

const MEASURE_ORDER: &[&str] =
    &["hello", "started", "loaded", "cold_start", "warmup", "slice", "sample", "usage", "parity", "done"];

const MAX_ITERATIONS: usize = 2;

/// Two prompts of different lengths, so that an answer to the wrong one is detected.
fn measure(subject: &Subject<'_>) -> Result<Ran, Interrupted> {
    let case = |length, seed| Case {
        prompts: vec![ids(subject, length, seed)],
        trace: vec![ids(subject, NEW_TOKENS, seed + 1)],
        ..Case::default()
    };
    let cases = vec![case(5, 1), case(3, 2)];
    conversation(subject, &[], (MEASURE_ORDER, Need::Must), |talk| {
        hold(talk, subject, &rules::forced(cases), &[0, 1, 1], false)
    })
}

/// Two sequences at once, after a context that is in the cache.
fn batch(subject: &Subject<'_>) -> Result<Ran, Interrupted> {
    let rows = |length, seed| vec![ids(subject, length, seed), ids(subject, length, seed + 1)];
    let cases = vec![Case { context: rows(2, 1), prompts: rows(3, 3), trace: rows(NEW_TOKENS, 5) }];
    conversation(subject, &[], (MEASURE_ORDER, Need::May), |talk| {
        hold(talk, subject, &rules::forced(cases), &[0], true)
    })
}

/// Every token computes the whole prefix again.
fn without_cache(subject: &Subject<'_>) -> Result<Ran, Interrupted> {
    let cases = vec![Case {
        prompts: vec![ids(subject, 4, 1)],
        trace: vec![ids(subject, NEW_TOKENS, 2)],
        ..Case::default()
    }];
    conversation(subject, &[], (MEASURE_ORDER, Need::May), |talk| {
        hold(talk, subject, &rules::without_cache(cases), &[0], false)
    })
}

fn task(work: GenerateWork) -> Task {
    Task::Measure(Measure {
        work: Work::Generate(work),
        warmup: Warmup {
            min_iterations: 1,
            max_iterations: MAX_ITERATIONS,
            max_ns: 1_000_000_000,
            settled_within: 0.05,
            from_cold: false,
        },
        lead_in: 2,
        load: None,
    })
}

fn hold(
    talk: &mut Talk,
    subject: &Subject<'_>,
    work: &GenerateWork,
    turns: &[usize],
    prompt_last_only: bool,
) -> Result<String, Stop> {
    let job = subject.job(task(work.clone()));
    let has_slices = begin(talk, &job)?;
    let vocabulary = subject.vocabulary();
    let asked = Asked::each(work, vocabulary);

    let cold = talk.event::<ColdStart>("cold_start")?;
    if let Some(event) = &cold.event {
        talk.note_all(cold.line, rules::cold_start(event, asked[0], cold.since_start));
    }
    let warm = talk.event::<WarmupDone>("warmup")?;
    if let Some(event) = &warm.event {
        talk.note_all(warm.line, rules::warmup(event, &asked, MAX_ITERATIONS, warm.since_start));
    }

    let (answers, spent) = take_turns(talk, &asked, turns, has_slices)?;
    let scratch = match scratch() {
        Ok(scratch) => scratch,
        Err(problem) => {
            talk.note(problem);
            return Err(Stop::Broken);
        }
    };
    let file = scratch.path().join("parity.safetensors");
    let parity = ParityTask { steps: 1, file: file.display().to_string(), prompt_last_only, sequences: None };
    talk.send(&Turn::Finish(Finish { hash: true, parity: Some(parity) }));
    let usage = talk.event::<Usage>("usage")?;
    if let Some(event) = &usage.event {
        talk.note_all(usage.line, rules::usage(event, spent, &hash(subject)));
    }
    let parity = talk.event::<Parity>("parity")?;
    let expected: Vec<Expected<'_>> = work
        .cases
        .iter()
        .zip(answers)
        .map(|(case, chosen)| Expected {
            case,
            vocabulary,
            prompt_last_only,
            chosen,
            tie: Tolerance::for_precision(subject.precision).tie,
        })
        .collect();
    talk.note_all(parity.line, logits(&file, parity.event.as_ref(), &expected));
    finish(talk)?;
    let counted = |count: usize, what: &str| format!("{count} {what}{}", if count == 1 { "" } else { "s" });
    Ok(format!(
        "warm after {}, {} answered, usage, logits of {}",
        seconds(warm.since_start),
        counted(turns.len(), "turn"),
        counted(work.cases.len(), "case")
    ))
}

/// The tokens of each case's requests, and the times of the requests.
type Answers = (Vec<Vec<Vec<Vec<u32>>>>, Turns);

/// Deals out turns as the driver does, the last of several in slices if the worker can pause within a request. In between
/// the worker is stopped for a moment.
fn take_turns(
    talk: &mut Talk,
    asked: &[Asked<'_>],
    turns: &[usize],
    has_slices: bool,
) -> Result<Answers, Stop> {
    let mut answers = vec![Vec::new(); asked.len()];
    let mut spent = Turns::default();
    talk.unasked("a line before the first turn")?;
    for (number, &case) in turns.iter().enumerate() {
        talk.pause();
        let mut seen = std::time::Duration::ZERO;
        if has_slices && number > 0 && number + 1 == turns.len() {
            seen += slices(talk, case)?;
            talk.send(&Turn::slice(case, NEW_TOKENS));
        } else {
            talk.send(&Turn::request(case));
        }
        let heard = talk.event::<Sample>("sample")?;
        seen += heard.since_asked;
        spent.seen += seen;
        if let Some(sample) = heard.event {
            let answered = sample.case;
            if answered != case {
                let text = format!(
                    "{answered}, but turn {} asked for case {case}; answer the case that was asked",
                    number + 1
                );
                talk.note_all(heard.line, vec![Problem::at("case", text)]);
            }
            spent.told += std::time::Duration::from_nanos(sample.marks_ns.end());
            talk.note_all(heard.line, asked[case].sample(&sample, "", seen));
            answers[case].push(sample.output.tokens().to_vec());
        }
        talk.unasked(&format!("a second answer to turn {}", number + 1))?;
    }
    Ok((answers, spent))
}

/// All slices of a request but the last. Returns their time.
fn slices(talk: &mut Talk, case: usize) -> Result<std::time::Duration, Stop> {
    let mut seen = std::time::Duration::ZERO;
    for marks in 1..NEW_TOKENS {
        talk.send(&Turn::slice(case, 1));
        let heard = talk.event::<Slice>("slice")?;
        seen += heard.since_asked;
        let expected = Slice { case, marks };
        if let Some(slice) = heard.event.filter(|slice| *slice != expected) {
            let text =
                format!("{slice:?}, but this slice ends with {expected:?}; make one mark in each slice");
            talk.note_all(heard.line, vec![Problem::at("marks", text)]);
        }
        talk.pause();
    }
    Ok(seen)
}

fn logits(file: &Path, parity: Option<&Parity>, expected: &[Expected<'_>]) -> Vec<Problem> {
    let asked = file.display().to_string();
    match parity {
        Some(parity) if parity.file != asked => {
            let text = format!("{:?}, but the turn named {asked:?}; write there, and say so", parity.file);
            vec![Problem::at("file", text)]
        }
        _ => worker_check::parity(file, expected),
    }
}

/// The sha256 of the weights that the job names.
fn hash(subject: &Subject<'_>) -> String {
    let file = subject.precision.file_name();
    subject.bundle.manifest().files.get(&file).map_or_else(String::new, |record| record.sha256.clone())
}

// The task `trace`: a run to look at.

/// The last phases of every trace, and the tokens of their requests.
const REQUESTS: [(&str, usize); 3] = [("cold start", 1), ("warm-up", NEW_TOKENS), ("request", NEW_TOKENS)];

fn trace(subject: &Subject<'_>) -> Result<Ran, Interrupted> {
    let order: &[&str] = &["hello", "started", "loaded", "traced", "done"];
    conversation(subject, &[], (order, Need::May), |talk| {
        let scratch = in_scratch(talk)?;
        let file = scratch.path().join("profile.json").display().to_string();
        let work = rules::greedy(ids(subject, 4, 3));
        let task = Trace { work, file };
        begin(talk, &subject.job(Task::Trace(task)))?;
        let traced = talk.event::<Traced>("traced")?;
        let mut told = String::new();
        if let Some(event) = &traced.event {
            talk.note_all(traced.line, traced_rules(event, subject.vocabulary()));
            told = match &event.profiler {
                Some(profiler) => format!(", {} events of {}", profiler.events, profiler.name),
                None => ", and no profiler".into(),
            };
        }
        finish(talk)?;
        Ok(format!("{} tokens with the clock's readings{told}", 2 * NEW_TOKENS + 1))
    })
}

fn traced_rules(traced: &Traced, vocabulary: usize) -> Vec<Problem> {
    let mut found = phases(traced);
    if traced.requests.len() != REQUESTS.len() {
        let text = format!(
            "{} requests; send one for each of cold start, warm-up and request",
            traced.requests.len()
        );
        found.push(Problem::at("requests", text));
    }
    for (index, (request, (phase, count))) in traced.requests.iter().zip(REQUESTS).enumerate() {
        let at = |field: &str| format!("requests[{index}].{field}");
        if request.phase != phase {
            found.push(Problem::at(&at("phase"), format!("is {:?}; send {phase:?} here", request.phase)));
        }
        let readings: Vec<u64> = std::iter::once(request.start_ns).chain(request.tokens_ns.clone()).collect();
        if request.tokens_ns.len() != count || !readings.is_sorted() {
            let text = format!("must be the {count} readings of the clock when a token was there, in order");
            found.push(Problem::at(&at("tokens_ns"), text));
        }
        found.extend(rules::tokens(&request.tokens, 1, count, vocabulary, &at("tokens")));
    }
    if traced.profiler.is_none() && traced.notes.is_empty() {
        found.push(Problem::at("notes", "must say in a sentence why there is no profiler"));
    }
    found.extend(traced.profiler.as_ref().and_then(profiler));
    found
}

fn phases(traced: &Traced) -> Vec<Problem> {
    let names: Vec<&str> = traced.phases.iter().map(|phase| phase.name.as_str()).collect();
    let begin: &[&str] = if traced.profiler.is_some() { &["profiler start"] } else { &[] };
    let expected = [&["start-up", "load"], begin, &REQUESTS.map(|(phase, _)| phase)].concat();
    let mut found = Vec::new();
    if names != expected {
        found.push(Problem::at("phases", format!("are {}; send {}", names.join(", "), expected.join(", "))));
    }
    let readings: Vec<u64> = traced.phases.iter().flat_map(|phase| [phase.start_ns, phase.end_ns]).collect();
    if !readings.is_sorted() {
        found.push(Problem::at("phases", "must follow one another, each with its start before its end"));
    }
    found
}

fn profiler(profiler: &Profiler) -> Option<Problem> {
    let text = untrusted::file::read_text(Path::new(&profiler.file), untrusted::file::RESULTS);
    let wrong = match text
        .map_err(|e| e.to_string())
        .and_then(|text| serde_json::from_str::<Vec<ProfileEvent>>(&text).map_err(|e| e.to_string()))
    {
        Err(reason) => format!("{} is no list of a profiler's events: {reason}", profiler.file),
        Ok(events) if events.len() != profiler.events || events.is_empty() => {
            format!("{} holds {} events; `events` says {}", profiler.file, events.len(), profiler.events)
        }
        Ok(_) => return None,
    };
    Some(Problem::at("profiler.file", wrong))
}

// The tasks without turns: `load`, `answer`, `score`, `probe`.

fn load(subject: &Subject<'_>) -> Result<Ran, Interrupted> {
    let order: &[&str] = &["hello", "started", "loaded", "done"];
    conversation(subject, &[], (order, Need::Must), |talk| {
        let job = protocol::Job { evict: true, ..subject.job(Task::Load) };
        begin(talk, &job)?;
        finish(talk)?;
        Ok(format!("{}, exit code 0", order.join(", ")))
    })
}

fn answer(subject: &Subject<'_>) -> Result<Ran, Interrupted> {
    let order: &[&str] = &["hello", "started", "loaded", "parity", "answered", "done"];
    conversation(subject, &[], (order, Need::May), |talk| {
        let scratch = in_scratch(talk)?;
        let file = scratch.path().join("generated.safetensors");
        let prompt = ids(subject, 4, 3);
        let parity = ParityTask {
            steps: 1,
            file: file.display().to_string(),
            prompt_last_only: false,
            sequences: None,
        };
        let work = rules::greedy(prompt.clone());
        let task = Task::Answer(Answer { work, parity: Some(parity) });
        begin(talk, &subject.job(task))?;
        let parity = talk.event::<Parity>("parity")?;
        let answered = talk.event::<Answered>("answered")?;
        if let Some(event) = answered.event {
            let found = answered_rules(&event.outputs, subject.vocabulary());
            if found.is_empty() {
                let tokens = event.outputs[0].tokens().to_vec();
                let (prompts, trace) = (vec![prompt], tokens.clone());
                let case = Case { prompts, trace, ..Case::default() };
                let expected = Expected {
                    case: &case,
                    vocabulary: subject.vocabulary(),
                    prompt_last_only: false,
                    chosen: vec![tokens],
                    tie: Tolerance::for_precision(subject.precision).tie,
                };
                talk.note_all(parity.line, worker_check::parity(&file, &[expected]));
            }
            talk.note_all(answered.line, found);
        }
        finish(talk)?;
        Ok(format!("{NEW_TOKENS} tokens continued greedily, with their logits"))
    })
}

fn answered_rules(outputs: &[Output], vocabulary: usize) -> Vec<Problem> {
    match outputs {
        [output] => rules::tokens(output.tokens(), 1, NEW_TOKENS, vocabulary, "outputs[0].tokens")
            .into_iter()
            .collect(),
        _ => {
            let text = format!("{} outputs for 1 case; send one for each", outputs.len());
            vec![Problem::at("outputs", text)]
        }
    }
}

fn score(subject: &Subject<'_>) -> Result<Ran, Interrupted> {
    let order: &[&str] = &["hello", "started", "loaded", "scored", "done"];
    conversation(subject, &[], (order, Need::May), |talk| {
        let scratch = in_scratch(talk)?;
        let file = scratch.path().join("scored.safetensors");
        let sequences = vec![ids(subject, 5, 1), ids(subject, 5, 2)];
        let shape = [sequences.len(), sequences[0].len(), subject.vocabulary()];
        let task =
            Score { sequences, types: Vec::new(), piece: 2, kept: None, file: file.display().to_string() };
        begin(talk, &subject.job(Task::Score(task)))?;
        let scored = talk.event::<Scored>("scored")?;
        talk.note_all(scored.line, worker_check::score(&file, shape));
        finish(talk)?;
        Ok(format!("logits of {} sequences of {} tokens", shape[0], shape[1]))
    })
}

fn probe(subject: &Subject<'_>) -> Result<Ran, Interrupted> {
    let order: &[&str] = &["probed", "done"];
    conversation(subject, &[], (order, Need::May), |talk| {
        let task = Probe { bytes: 1 << 20, sweep_ns: 1_000_000, repeats: 2 };
        send_job(talk, &subject.job(Task::Probe(task.clone())));
        let probed = talk.event::<Probed>("probed")?;
        if let Some(event) = &probed.event {
            talk.note_all(probed.line, rules::probed(event, &task, subject.threads, probed.since_start));
        }
        finish(talk)?;
        Ok(format!("the machine probed in {}", seconds(probed.since_start)))
    })
}

/// A temporary directory, or the end of the conversation.
fn in_scratch(talk: &mut Talk) -> Result<crate::measure::Scratch, Stop> {
    scratch().map_err(|problem| {
        talk.note(problem);
        Stop::Broken
    })
}
