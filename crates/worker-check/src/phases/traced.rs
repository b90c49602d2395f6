//! The task `trace`: a run to look at.

use std::path::Path;

use protocol::{ProfileEvent, Profiler, Task, Trace, Traced};

use super::{Need, Ran, begin, conversation, finish, ids, untimed};
use crate::problem::Problem;
use crate::work::generate::{self, NEW_TOKENS};
use crate::{Interrupted, Subject};

/// The last phases of every trace, and the tokens of their requests.
const REQUESTS: [(&str, usize); 3] = [("cold start", 1), ("warm-up", NEW_TOKENS), ("request", NEW_TOKENS)];

pub(super) fn trace(subject: &Subject<'_>) -> Result<Ran, Interrupted> {
    let order: &[&str] = &["hello", "started", "loaded", "traced", "done"];
    conversation(subject, &[], (order, Need::May), |talk| {
        let scratch = untimed::in_scratch(talk)?;
        let file = scratch.path().join("profile.json").display().to_string();
        let work = generate::greedy(ids(subject, 4, 3));
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
        found.extend(generate::tokens(&request.tokens, 1, count, vocabulary, &at("tokens")));
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
