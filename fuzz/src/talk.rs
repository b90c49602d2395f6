//! Messages between the driver and a worker.

use comparison::facts::evidence::Fact;
use comparison::facts::run::{Ending, Outcome as Ended, Place, Purpose, Turn};
use comparison::facts::{Evidence, Run, impossible};
use protocol::{Event, Job};
use serde_json::Error;

use crate::judged::{judge, labels};
use crate::roundtrip::written_and_read;
use crate::{Outcome, text};

/// A worker's lines, and the driver's judgement on them: each `hello` begins a process of the next contender.
pub(crate) fn events(input: &[u8]) -> Outcome {
    let mut processes: Vec<Vec<Event>> = Vec::new();
    for line in text(input)?.lines() {
        // As `measure::running_worker` does, before anything is judged.
        let event: Event = serde_json::from_str(line)
            .map_err(|error| impossible::number(line).unwrap_or_else(|| plain(&error)))?;
        written_and_read(&event);
        if let Some(reason) = impossible::reading(&event) {
            return Err(reason);
        }
        if processes.is_empty() || matches!(event, Event::Hello(_)) {
            processes.push(Vec::new());
        }
        processes.last_mut().expect("one was just added").push(event);
    }
    let labels = labels();
    let mut evidence = Evidence::default();
    for (index, mut events) in processes.into_iter().enumerate() {
        let mut turns = Vec::new();
        for event in events.extract_if(.., |event| matches!(event, Event::Sample(_))) {
            let Event::Sample(sample) = event else { continue };
            turns.push(Turn::alone(turns.len(), sample));
        }
        let place = Place { round: index / labels.len(), attempt: 0, position: index % labels.len() };
        let ended = Ended { pid: 1, events, ending: Ending::Done, left_behind: Vec::new() };
        let run = Run::new(Purpose::Measure, place, &labels[index % labels.len()], ended);
        evidence.note(Fact::Run(Box::new(Run { turns, ..run })));
    }
    judge(evidence);
    Ok(())
}

/// The driver's lines to a worker: a job, and turns.
pub(crate) fn job(input: &[u8]) -> Outcome {
    let mut lines = text(input)?.lines();
    let job: Job = serde_json::from_str(lines.next().unwrap_or_default()).map_err(|error| plain(&error))?;
    written_and_read(&job);
    for line in lines {
        let turn: protocol::Turn = serde_json::from_str(line).map_err(|error| plain(&error))?;
        written_and_read(&turn);
    }
    Ok(())
}

fn plain(error: &Error) -> String {
    format!("the line does not parse: {error}")
}
