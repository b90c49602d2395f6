//! The phases of a measurement, in order, and the readings at their ends.
//!
//! Within a phase there is no I/O, no logging and no allocation for results; events are sent, and memory
//! is read, between them.

use std::io::BufRead;
use std::path::Path;

use crate::clock::{self, Beside, Pace};
use crate::energy::Gpu;
use crate::engine::{Bundle, EngineError, InferenceEngine, Profile, ProfileClock, Settings, Want};
use crate::logits::{Rows, Tensors};
use crate::memory::Phase;
use crate::turns::{self, warm_up};
use crate::work::{self, Anew, Audio, Model, Serving};
use crate::{Events, ServeError};
use bundle::ModelConfig;
use protocol::{
    Alignment, Answer, Answered, ColdStart, Event, FileIdentity, Interval, Kept, Marks, Measure, Parity,
    ProfileEvent, Profiler, Score, Scored, Task, Trace, Traced, TracedRequest, Usage,
};

pub(crate) struct Context<'a, E> {
    pub(crate) model: Model<'a>,
    pub(crate) serving: Serving<'a, E>,
    pub(crate) pace: Pace,
    /// The clock at spawning, plus the time that the worker's own readings have taken since.
    pub(crate) spawned_at_ns: Option<u64>,
    pub(crate) weights_file: &'a Path,
    /// The bundle and settings with which every request loads its own model, if each does.
    pub(crate) anew: Option<(&'a Bundle, &'a Settings)>,
    /// Highest peak of the phases before.
    pub(crate) earlier_peak: Option<u64>,
    pub(crate) gpu: Option<&'a Gpu>,
}

pub(crate) fn measure<E: InferenceEngine>(
    engine: &mut E,
    task: &Measure,
    context: &Context<'_, E>,
    (input, events): (&mut dyn BufRead, &mut Events<'_>),
) -> Result<(), ServeError> {
    if task.work.cases() == 0 || task.warmup.max_iterations == 0 {
        return Err(ServeError::Job("a measurement needs cases and warm-up".into()));
    }
    let mut workload = work::workload::<E>(&task.work, (context.model, context.pace), true, context.serving)?;
    if let Some(anew) = context.anew {
        workload = Box::new(Anew::new(workload, anew));
    }
    let workload = workload.as_mut();

    let phase = Phase::begin(context.gpu);
    let before = clock::now_ns();
    workload.prepare(engine, 0)?;
    let marks = workload.marks();
    let (start, sample) = workload.request(engine, 0, (None, marks))?;
    // Of several callers, the first that was answered.
    let first_answer = sample.calls.iter().map(|call| call.done_ns).min();
    let end = sample.marks_ns.end();
    let of_callers = |first| Marks(if first < end { vec![first, end] } else { vec![end] });
    let first_marks = first_answer.map_or_else(|| sample.marks_ns.clone(), of_callers);
    let first_mark = start + first_marks.first();
    let cold = ColdStart {
        marks_ns: Marks(first_marks.0.iter().map(|mark| mark + (start - before)).collect()),
        since_spawn_ns: context.spawned_at_ns.map(|spawned| first_mark.saturating_sub(spawned)),
        memory: phase.end_with(engine),
    };
    let mut peak = context.earlier_peak.max(cold.memory.peak_bytes);
    events.send(Event::ColdStart(cold))?;

    let phase = Phase::begin(context.gpu);
    let mut warm = warm_up(workload, engine, &task.warmup, sample)?;
    warm.memory = phase.end_with(engine);
    peak = peak.max(warm.memory.peak_bytes);
    events.send(Event::Warmup(warm))?;

    let (usage, finish) = turns::take(engine, workload, task.lead_in, context.gpu, (input, events))?;
    let weights_identity = identity(context.weights_file);
    let hash = || {
        bundle::sha256_of(context.weights_file)
            .map_err(|e| ServeError::File(format!("cannot read {}: {e}", context.weights_file.display())))
    };
    let weights_sha256 = finish.hash.then(hash).transpose()?.map(Into::into);
    let peak_bytes = peak.max(usage.memory.peak_bytes);
    events.send(Event::Usage(Usage { peak_bytes, weights_sha256, weights_identity, ..usage }))?;

    if let Some(parity) = &finish.parity {
        workload.parity(engine, parity)?;
        events.send(Event::Parity(Parity { file: parity.file.as_str().into() }))?;
    }
    Ok(())
}

/// Identifies the weights file; `None` if the system has no such numbers.
pub(crate) fn identity(file: &Path) -> Option<FileIdentity> {
    FileIdentity::new(&std::fs::metadata(file).ok()?)
}

/// Runs each case's request once, untimed, and writes the logits along the answers if they are requested.
pub(crate) fn answer<E: InferenceEngine>(
    engine: &mut E,
    task: &Answer,
    (model, pace): (Model<'_>, Pace),
    events: &mut Events<'_>,
) -> Result<(), ServeError> {
    let iteration = work::workload::<E>(&task.work, (model, pace), false, work::alone())?.iteration(
        engine,
        0,
        Vec::new(),
    )?;
    let outputs: Vec<_> = iteration.cases.into_iter().map(|sample| sample.output).collect();
    if let Some(parity) = &task.parity {
        let along = task.work.clone().along(&outputs);
        work::workload::<E>(&along, (model, pace), true, work::alone())?.parity(engine, parity)?;
        events.send(Event::Parity(Parity { file: parity.file.as_str().into() }))?;
    }
    events.send(Event::Answered(Answered { outputs }))
}

pub(crate) fn score<E: InferenceEngine>(
    engine: &mut E,
    task: &Score,
    config: &ModelConfig,
    hidden_states: bool,
) -> Result<Scored, ServeError> {
    if let Some(scored) = work::score_texts(engine, task, config, hidden_states)? {
        return Ok(scored);
    }
    let (batch, positions) = (task.sequences.len(), task.sequences.first().map_or(0, Vec::len));
    let kept = task.kept.clone().unwrap_or_else(|| Kept { from: vec![0; batch], count: positions });
    let fits = |from: &usize| from.checked_add(kept.count).is_some_and(|end| end <= positions);
    if kept.from.len() != batch || !kept.from.iter().all(fits) {
        let reason = "the positions with logits to keep are not those of the sequences";
        return Err(ServeError::Job(reason.into()));
    }
    let (bands, count) = (config.audio.map_or(0, |audio| audio.bands), task.audio.len());
    if (bands > 0 && count != batch) || (bands == 0 && count > 0) {
        let reason = "sequences have audio, one for each, if the model hears, and none if it does not";
        return Err(ServeError::Job(reason.into()));
    }
    let (mut audio, mut all): (_, Option<ScoredRows>) = (Audio::default(), None);
    let group = if bands > 0 { 1 } else { batch.max(1) };
    for (place, sequences) in task.sequences.chunks(group).enumerate() {
        let frames = task.audio.get(place).map(|heard| audio.frames(heard, bands)).transpose()?;
        let from = &kept.from[place * group..][..sequences.len()];
        let asked = (sequences, frames, (from, kept.count));
        let rows = scored_rows(engine, task.piece, asked, (config, hidden_states))?;
        match &mut all {
            Some(all) => all.extend(rows),
            None => all = Some(rows),
        }
    }
    let mut tensors = Tensors::default();
    if let Some(ScoredRows { logits, hidden }) = &all {
        tensors.add_rows("logits".into(), batch, logits);
        for (layer, rows) in hidden.iter().enumerate() {
            tensors.add_rows(format!("hidden.{layer}"), batch, rows);
        }
    }
    tensors.write(&task.file)?;
    Ok(Scored { file: task.file.as_str().into() })
}

struct ScoredRows {
    logits: Rows,
    hidden: Vec<Rows>,
}

impl ScoredRows {
    fn extend(&mut self, other: ScoredRows) {
        self.logits.extend(other.logits);
        self.hidden.iter_mut().zip(other.hidden).for_each(|(all, more)| all.extend(more));
    }
}

/// The logits of `count` positions of each sequence, with the audio of the one that there is, if the model hears.
fn scored_rows<E: InferenceEngine>(
    engine: &mut E,
    piece: usize,
    (sequences, frames, (from, count)): (&[Vec<u32>], Option<&[f32]>, (&[usize], usize)),
    (config, hidden_states): (&ModelConfig, bool),
) -> Result<ScoredRows, ServeError> {
    let (batch, positions) = (sequences.len(), sequences.first().map_or(0, Vec::len));
    let piece = if piece == 0 { positions } else { piece };
    let first = from.iter().copied().min().unwrap_or(0);
    let mut logits = Rows::new(batch, count, config.vocab_size);
    let mut hidden: Vec<Rows> = Vec::new();
    let decoder = engine.decode()?;
    decoder.begin(batch, positions)?;
    frames.map_or(Ok(()), |frames| decoder.listen(frames))?;
    let mut start = 0;
    while start < positions {
        // Before the first that is kept, logits are not computed.
        let end = (start + piece).min(if start < first { first } else { positions });
        let tokens: Vec<u32> = sequences.iter().flat_map(|row| row[start..end].iter().copied()).collect();
        if end <= first {
            decoder.append(&tokens, Want::Last)?;
        } else {
            logits.put_kept((start, end), from, decoder.append(&tokens, Want::All)?);
        }
        if hidden_states {
            for (layer, values) in decoder.hidden_states()?.layers.iter().enumerate() {
                if layer == hidden.len() {
                    hidden.push(Rows::new(batch, positions, config.hidden_size));
                }
                hidden[layer].put(start, end, values);
            }
        }
        start = end;
    }
    Ok(ScoredRows { logits, hidden })
}

// A run to look at: every phase and token with the clock's readings, and the framework's own events on the same clock.

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
    (model, pace): (Model<'_>, Pace),
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
    let mut events = profile.events;
    events.iter_mut().for_each(|event| event.start_ns = here(event.start_ns));
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
