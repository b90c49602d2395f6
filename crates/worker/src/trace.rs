//! A run to look at: every phase and token with the clock's readings, and the framework's own events on the same clock.

use std::path::Path;

use engine::{EngineError, InferenceEngine, Profile, ProfileClock, Settings};
use protocol::{Alignment, Interval, ProfileEvent, Profiler, Task, Trace, Traced, TracedRequest};

use crate::clock::{self, Beside};
use crate::error::ServeError;
use crate::pace::Pace;
use crate::work::{self, Model};

/// The settings to load with: those of the job, and those that the framework's profiler needs before a load.
pub(crate) fn settings<E: InferenceEngine>(settings: Settings, task: &Task) -> Settings {
    match task {
        Task::Trace(trace) => {
            let directory = Path::new(&trace.file).parent().unwrap_or(Path::new("."));
            E::profiled(settings, directory)
        }
        _ => settings,
    }
}

/// Does `task` after a load; `phases` are those until then.
pub(crate) fn trace<E: InferenceEngine>(
    engine: &mut E,
    task: &Trace,
    (model, pace): (Model, Pace),
    mut phases: Vec<Interval>,
) -> Result<Traced, ServeError> {
    let mut workload = work::workload::<E>(&task.work, (model, pace), false, work::alone())?;
    if workload.cases() == 0 {
        return Err(ServeError::Job("there is no request to look at".into()));
    }
    let before = Beside::read();
    let start_ns = clock::now_ns();
    let profiled = match engine.begin_profile() {
        Ok(()) => {
            let name = "profiler start".into();
            phases.push(Interval { name, start_ns, end_ns: clock::now_ns() });
            None
        }
        Err(EngineError::Unsupported(reason)) => Some(reason),
        Err(error) => return Err(error.into()),
    };
    let mut requests = Vec::new();
    let whole = workload.marks();
    for (phase, marks) in [("cold start", 1), ("warm-up", whole), ("request", whole)] {
        workload.prepare(engine, 0)?;
        let (start_ns, sample) = workload.request(engine, 0, (None, marks))?;
        let tokens_ns: Vec<u64> = sample.marks_ns.0.iter().map(|mark| start_ns + mark).collect();
        let end_ns = start_ns + sample.marks_ns.end();
        phases.push(Interval { name: phase.into(), start_ns, end_ns });
        let tokens = sample.output.tokens().to_vec();
        requests.push(TracedRequest { phase: phase.into(), start_ns, tokens_ns, tokens });
    }
    let (profiler, notes) = match profiled {
        Some(reason) => (None, vec![reason]),
        None => {
            let profile = engine.end_profile()?;
            let (profiler, notes) = write(profile, &task.file, &requests, [before, Beside::read()])?;
            (Some(profiler), notes)
        }
    };
    Ok(Traced { phases, requests, profiler, notes: notes.into() })
}

/// Writes the events, put on this worker's clock by readings at the profiler's start and its end.
fn write(
    profile: Profile,
    file: &str,
    requests: &[TracedRequest],
    [before, after]: [Beside; 2],
) -> Result<(Profiler, Vec<String>), ServeError> {
    let (clock, error_ns, later_ns) = match profile.clock {
        ProfileClock::Monotonic => ("CLOCK_MONOTONIC", 0, 0),
        ProfileClock::Realtime => {
            let (offset_ns, error_ns) = Beside::between(before, after);
            ("CLOCK_REALTIME", error_ns, offset_ns)
        }
    };
    let here = |ns: u64| u64::try_from(i128::from(ns) - later_ns).unwrap_or(0);
    let events: Vec<ProfileEvent> = profile
        .events
        .into_iter()
        .map(|event| ProfileEvent {
            name: event.name.into(),
            part: event.part.map(Into::into),
            thread: event.thread.into(),
            start_ns: here(event.start_ns),
            duration_ns: event.duration_ns,
            details: event.details.into_iter().map(|(name, value)| (name.into(), value.into())).collect(),
        })
        .collect();
    let cannot = |e: &dyn std::fmt::Display| ServeError::File(format!("cannot write {file}: {e}"));
    let text = serde_json::to_string(&events).map_err(|e| cannot(&e))?;
    std::fs::write(file, text).map_err(|e| cannot(&e))?;
    let overhang_ns = overhang(&events, requests);
    let alignment = Alignment { clock: clock.into(), error_ns: Some(error_ns), overhang_ns };
    let profiler =
        Profiler { name: profile.profiler.into(), file: file.into(), events: events.len(), alignment };
    Ok((profiler, profile.notes))
}

/// How far an event reaches at most over the boundary of the step that most of it is in. Events that hold a whole
/// step are none of it.
fn overhang(events: &[ProfileEvent], requests: &[TracedRequest]) -> u64 {
    let mut steps = Vec::new();
    for request in requests {
        let starts = std::iter::once(request.start_ns).chain(request.tokens_ns.iter().copied());
        steps.extend(starts.zip(request.tokens_ns.iter().copied()));
    }
    let over = |event: &ProfileEvent| {
        let (start, end) = (event.start_ns, event.start_ns + event.duration_ns);
        // The boundaries are in order, so that the first step with an end after the event's start is the
        // right one.
        let first = steps.partition_point(|&(_, step_end)| step_end <= start);
        let boundaries =
            steps[first..].iter().take_while(|&&(begin, _)| begin < end).map(|&(begin, finish)| {
                if start < begin && end <= finish {
                    (begin - start).min(end - begin)
                } else if start >= begin && end > finish {
                    (end - finish).min(finish - start)
                } else {
                    0
                }
            });
        boundaries.max().unwrap_or(0)
    };
    events.iter().map(over).max().unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn event(start_ns: u64, end_ns: u64) -> ProfileEvent {
        ProfileEvent {
            name: "e".into(),
            part: None,
            thread: "t".into(),
            start_ns,
            duration_ns: end_ns - start_ns,
            details: Default::default(),
        }
    }

    #[test]
    fn an_overhang_is_the_smaller_part_of_an_event_on_a_boundary() {
        let request = TracedRequest {
            phase: "request".into(),
            start_ns: 100,
            tokens_ns: vec![200, 300],
            tokens: vec![vec![1, 2]],
        };
        let over = |start, end| overhang(&[event(start, end)], std::slice::from_ref(&request));
        assert_eq!([over(100, 200), over(210, 290)], [0, 0], "within a step");
        assert_eq!([over(90, 150), over(290, 305)], [10, 5], "over the beginning and over the end");
        assert_eq!([over(150, 206), over(190, 299)], [6, 10], "from one step into the next");
        assert_eq!([over(0, 90), over(50, 400), over(310, 400)], [0, 0, 0], "outside, or around all");
    }
}
