//! The tasks without turns: `load`, `answer`, `score`, `probe`.

use judge::parity::Tolerance;
use protocol::{Answer, Answered, Case, Output, Parity, ParityTask, Probe, Probed, Score, Scored, Task};

use super::{Need, Ran, begin, conversation, finish, ids, scratch, seconds, send_job};
use crate::outputs::{self, Expected};
use crate::problem::Problem;
use crate::rules;
use crate::talk::{Stop, Talk};
use crate::work::generate::{self, NEW_TOKENS};
use crate::{Interrupted, Subject};

pub(super) fn load(subject: &Subject<'_>) -> Result<Ran, Interrupted> {
    let order: &[&str] = &["hello", "started", "loaded", "done"];
    conversation(subject, &[], (order, Need::Must), |talk| {
        let job = protocol::Job { evict: true, ..subject.job(Task::Load) };
        begin(talk, &job)?;
        finish(talk)?;
        Ok(format!("{}, exit code 0", order.join(", ")))
    })
}

pub(super) fn answer(subject: &Subject<'_>) -> Result<Ran, Interrupted> {
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
        let work = generate::greedy(prompt.clone());
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
                talk.note_all(parity.line, outputs::parity(&file, &[expected]));
            }
            talk.note_all(answered.line, found);
        }
        finish(talk)?;
        Ok(format!("{NEW_TOKENS} tokens continued greedily, with their logits"))
    })
}

fn answered_rules(outputs: &[Output], vocabulary: usize) -> Vec<Problem> {
    match outputs {
        [output] => generate::tokens(output.tokens(), 1, NEW_TOKENS, vocabulary, "outputs[0].tokens")
            .into_iter()
            .collect(),
        _ => {
            let text = format!("{} outputs for 1 case; send one for each", outputs.len());
            vec![Problem::at("outputs", text)]
        }
    }
}

pub(super) fn score(subject: &Subject<'_>) -> Result<Ran, Interrupted> {
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
        talk.note_all(scored.line, outputs::score(&file, shape));
        finish(talk)?;
        Ok(format!("logits of {} sequences of {} tokens", shape[0], shape[1]))
    })
}

pub(super) fn probe(subject: &Subject<'_>) -> Result<Ran, Interrupted> {
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
pub(super) fn in_scratch(talk: &mut Talk) -> Result<::measure::Scratch, Stop> {
    scratch().map_err(|problem| {
        talk.note(problem);
        Stop::Broken
    })
}
