//! The task `measure`: cold start, warm-up, turns, usage, logits.

use std::path::Path;

use judge::parity::Tolerance;
use protocol::{
    Case, ColdStart, Finish, GenerateWork, Measure, Parity, ParityTask, Sample, Slice, Task, Turn, Usage,
    Warmup, WarmupDone, Work,
};

use super::{Need, Ran, begin, conversation, finish, ids, scratch, seconds};
use crate::outputs::{self, Expected};
use crate::problem::Problem;
use crate::rules::{self, Turns};
use crate::talk::{Stop, Talk};
use crate::work::generate::{self, Asked, NEW_TOKENS};
use crate::{Interrupted, Subject};

const ORDER: &[&str] =
    &["hello", "started", "loaded", "cold_start", "warmup", "slice", "sample", "usage", "parity", "done"];
const MAX_ITERATIONS: usize = 2;

/// Two prompts of different lengths, so that an answer to the wrong one is detected.
pub(super) fn measure(subject: &Subject<'_>) -> Result<Ran, Interrupted> {
    let case = |length, seed| Case {
        prompts: vec![ids(subject, length, seed)],
        trace: vec![ids(subject, NEW_TOKENS, seed + 1)],
        ..Case::default()
    };
    let cases = vec![case(5, 1), case(3, 2)];
    conversation(subject, &[], (ORDER, Need::Must), |talk| {
        hold(talk, subject, &generate::forced(cases), &[0, 1, 1], false)
    })
}

/// Two sequences at once, after a context that is in the cache.
pub(super) fn batch(subject: &Subject<'_>) -> Result<Ran, Interrupted> {
    let rows = |length, seed| vec![ids(subject, length, seed), ids(subject, length, seed + 1)];
    let cases = vec![Case { context: rows(2, 1), prompts: rows(3, 3), trace: rows(NEW_TOKENS, 5) }];
    conversation(subject, &[], (ORDER, Need::May), |talk| {
        hold(talk, subject, &generate::forced(cases), &[0], true)
    })
}

/// Every token computes the whole prefix again.
pub(super) fn without_cache(subject: &Subject<'_>) -> Result<Ran, Interrupted> {
    let cases = vec![Case {
        prompts: vec![ids(subject, 4, 1)],
        trace: vec![ids(subject, NEW_TOKENS, 2)],
        ..Case::default()
    }];
    conversation(subject, &[], (ORDER, Need::May), |talk| {
        hold(talk, subject, &generate::without_cache(cases), &[0], false)
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
        _ => outputs::parity(file, expected),
    }
}

/// The sha256 of the weights that the job names.
fn hash(subject: &Subject<'_>) -> String {
    let file = subject.precision.file_name();
    subject.bundle.manifest().files.get(&file).map_or_else(String::new, |record| record.sha256.clone())
}
