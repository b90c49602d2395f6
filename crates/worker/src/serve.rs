//! The job loop: one Job, its events, the end.

use std::io::Write;

use engine::{Bundle, EngineError, InferenceEngine};
use protocol::{Event, FailureKind, Hello, Job, Loaded, Started, Task};
use serde_json::to_string;

use crate::{clock, engine_io, measure, memory, score};

/// Why a worker ends with exit code 1.
#[derive(Debug)]
pub enum ServeError {
    /// Reported to the driver as a `failed` event, and told to people on stderr.
    Engine(EngineError),
    /// The job cannot be understood; there may be no one who speaks this protocol to tell.
    Job(String),
    /// An output file could not be written.
    File(String),
    /// The driver no longer listens.
    Pipe(std::io::Error),
}

impl std::fmt::Display for ServeError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            ServeError::Engine(error) => error.fmt(f),
            ServeError::Job(reason) | ServeError::File(reason) => reason.fmt(f),
            ServeError::Pipe(error) => write!(f, "cannot write to the driver: {error}"),
        }
    }
}

impl From<EngineError> for ServeError {
    fn from(error: EngineError) -> Self {
        ServeError::Engine(error)
    }
}

/// Initialises the framework and says what it is.
pub(crate) fn hello<E: InferenceEngine>() -> Result<Hello, EngineError> {
    Ok(engine_io::hello(E::FRAMEWORK, E::runtime()?))
}

pub(crate) fn to_line(value: &impl serde::Serialize) -> String {
    let mut line = to_string(value).expect("protocol types have string keys and no failing serialiser");
    line.push('\n');
    line
}

/// Where events go: one line each, flushed.
pub(crate) struct Events<'a>(pub(crate) &'a mut dyn Write);

impl Events<'_> {
    pub(crate) fn send(&mut self, event: Event) -> Result<(), ServeError> {
        self.0.write_all(to_line(&event).as_bytes()).and_then(|()| self.0.flush()).map_err(ServeError::Pipe)
    }
}

/// Does the job that `input` holds and writes its events. `start_ns` is the clock at the start of main.
pub fn serve<E: InferenceEngine>(
    input: &str,
    start_ns: u64,
    output: &mut dyn Write,
) -> Result<(), ServeError> {
    let mut events = Events(output);
    let served = work::<E>(input, start_ns, &mut events);
    if let Err(error) = &served {
        let (kind, reason) = match error {
            ServeError::Engine(error) => (engine_io::failure_kind(error), error.to_string()),
            ServeError::Job(reason) => (FailureKind::Input, reason.clone()),
            ServeError::File(reason) => (FailureKind::Failed, reason.clone()),
            ServeError::Pipe(_) => return served,
        };
        events.send(Event::Failed(protocol::Failed { kind, reason }))?;
    }
    served
}

fn work<E: InferenceEngine>(input: &str, start_ns: u64, events: &mut Events<'_>) -> Result<(), ServeError> {
    let job: Job =
        serde_json::from_str(input).map_err(|e| ServeError::Job(format!("the job does not parse: {e}")))?;
    if job.protocol != protocol::VERSION {
        let (theirs, ours) = (job.protocol, protocol::VERSION);
        return Err(ServeError::Job(format!(
            "the driver speaks protocol {theirs}, this worker {ours}: build both again"
        )));
    }
    let settings = engine_io::settings(&job.settings)?;
    memory::begin_phase();
    let hello = hello::<E>()?;
    let ready_ns = clock::now_ns();
    let started = Started {
        startup_ns: job.spawned_at_ns.map(|spawned| ready_ns.saturating_sub(spawned)),
        runtime_ns: ready_ns - start_ns,
        memory: memory::read(),
    };
    events.send(Event::Hello(hello))?;
    let startup_peak = started.memory.peak_bytes;
    events.send(Event::Started(started))?;

    let bundle = Bundle::open(&job.bundle).map_err(EngineError::from)?;
    let weights_file = bundle.weights_path(settings.precision).map_err(EngineError::from)?;
    let weights_bytes = std::fs::metadata(&weights_file).map(|file| file.len()).unwrap_or_default();
    memory::begin_phase();
    let before = clock::now_ns();
    let mut engine = E::load(&bundle, &settings)?;
    let load_ns = clock::now_ns() - before;
    let kv_cache = match &job.task {
        Task::Measure(measure) => measure.kv_cache,
        Task::Generate(_) | Task::Score(_) => protocol::KvCache::On,
    };
    let loaded = Loaded {
        load_ns,
        memory: memory::read(),
        in_effect: engine_io::in_effect(engine.in_effect(), kv_cache),
        weights_file: weights_file.display().to_string(),
        weights_bytes,
    };
    let earlier_peak = startup_peak.max(loaded.memory.peak_bytes);
    events.send(Event::Loaded(loaded))?;

    match &job.task {
        Task::Measure(task) => {
            let context = measure::Context {
                vocabulary: bundle.config().vocab_size,
                spawned_at_ns: job.spawned_at_ns,
                weights_file: &weights_file,
                earlier_peak,
            };
            measure::measure(&mut engine, task, &context, events)?;
        }
        Task::Generate(task) => {
            measure::generate(&mut engine, task, bundle.config().vocab_size, events)?;
        }
        Task::Score(task) => {
            let scored = score::score(&mut engine, task, bundle.config(), settings.hidden_states)?;
            events.send(Event::Scored(scored))?;
        }
    }
    events.send(Event::Done)
}
