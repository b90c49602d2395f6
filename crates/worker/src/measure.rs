//! The phases of a measurement, in order, and the readings at their ends.
//!
//! Within a phase there is no I/O, no logging and no allocation for results; events are sent, and memory
//! is read, between them.

use std::io::BufRead;
use std::path::Path;

use engine::{Bundle, InferenceEngine, Settings};
use protocol::{Answer, Answered, ColdStart, Event, FileIdentity, Marks, Measure, Parity, Usage};

use crate::error::ServeError;
use crate::events::Events;
use crate::gpu::Gpu;
use crate::memory::Phase;
use crate::pace::Pace;
use crate::warmup::warm_up;
use crate::work::{self, Anew, Model, Serving};
use crate::{clock, turns};

pub(crate) struct Context<'a, E> {
    pub(crate) model: Model,
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
    let first_marks = first_answer.map_or_else(|| sample.marks_ns.clone(), |ns| Marks(vec![ns]));
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
    let found = bundle::FileIdentity::new(&std::fs::metadata(file).ok()?)?;
    let bundle::FileIdentity { device, inode, bytes, modified_ns } = found;
    Some(FileIdentity { device, inode, bytes, modified_ns })
}

/// Runs each case's request once, untimed, and writes the logits along the answers if they are requested.
pub(crate) fn answer<E: InferenceEngine>(
    engine: &mut E,
    task: &Answer,
    (model, pace): (Model, Pace),
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
