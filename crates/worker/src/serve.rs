//! The job loop: one Job, its events, the end.

use std::io::{BufRead, Write};
use std::path::PathBuf;

use protocol::{
    Event, FailureKind, FileIdentity, Hello, Interval, Job, KvCache, Loaded, PageCache, Probe, Probed, Serve,
    Started, Task,
};

use crate::clock::{self, Pace};
use crate::energy::Gpu;
use crate::engine::{
    Bundle, Device, EngineError, InEffect, InferenceEngine, KvCachePolicy, Precision, Settings,
};
use crate::memory::{self, Phase};
use crate::serving::Pool;
use crate::work::{Model, Serving};
use crate::{Events, ServeError, measure, probe};

/// Initialises the framework and returns its description.
pub(crate) fn hello<E: InferenceEngine>() -> Result<Hello, EngineError> {
    Ok(crate::hello(E::FRAMEWORK, E::runtime()?))
}

/// Does `job`, a line of JSON, and writes its events. The turns of a measurement are read from `turns`. `start_ns` is
/// the clock at the start of main.
pub fn serve<E: InferenceEngine>(
    job: &str,
    turns: &mut dyn BufRead,
    start_ns: u64,
    output: &mut dyn Write,
) -> Result<(), ServeError> {
    let mut events = Events(output);
    let served = work::<E>(job, turns, start_ns, &mut events);
    if let Err(error) = &served {
        let (kind, reason) = match error {
            ServeError::Engine(error) => (crate::failure_kind(error), error.to_string()),
            ServeError::Job(reason) => (FailureKind::Input, reason.clone()),
            ServeError::File(reason) => (FailureKind::Failed, reason.clone()),
            ServeError::Pipe(_) => return served,
        };
        events.send(Event::Failed(protocol::Failed { kind, reason: reason.into() }))?;
    }
    served
}

fn work<E: InferenceEngine>(
    job: &str,
    turns: &mut dyn BufRead,
    start_ns: u64,
    events: &mut Events<'_>,
) -> Result<(), ServeError> {
    let job: Job =
        serde_json::from_str(job).map_err(|e| ServeError::Job(format!("the job does not parse: {e}")))?;
    check_version(job.protocol)?;
    if let Task::Probe(task) = &job.task {
        if let Some(probed) = probed::<E>(task, &job.settings)? {
            events.send(Event::Probed(probed))?;
        }
        return events.send(Event::Done);
    }
    check(&job.settings)?;
    let mut settings = measure::settings::<E>(job.settings.clone(), &job.task);
    let serve = settings.serve;
    settings.threads = share_of(settings.threads, serve)?;
    let pace = Pace::new(job.settings.slowdown)?;
    let phase = Phase::begin(None);
    let hello = hello::<E>()?;
    let ready_ns = clock::now_ns();
    let started = Started {
        startup_ns: job.spawned_at_ns.map(|spawned| ready_ns.saturating_sub(spawned)),
        runtime_ns: ready_ns - start_ns,
        memory: phase.end(),
    };
    events.send(Event::Hello(hello))?;
    let earlier_peak = started.memory.peak_bytes;
    events.send(Event::Started(started))?;

    let bundle = Bundle::open(&job.bundle).map_err(EngineError::from)?;
    let bundle = if settings.autoregressive { bundle.autoregressive() } else { bundle };
    if bundle.config().graph.is_some() && !E::RUNS_GRAPHS {
        let reason = format!("{} runs no ONNX files here", E::FRAMEWORK);
        return Err(EngineError::Unsupported(reason).into());
    }
    let weights_file = E::weights_file(&bundle, &settings)?;
    let page_cache = memory::prepare(&weights_file, job.evict);
    let weights_identity = measure::identity(&weights_file);
    let gpu = Gpu::open(settings.device());
    let phase = Phase::begin(gpu.as_ref());
    let before_ns = clock::now_ns();
    let engine = E::load(&bundle, &settings)?;
    let pool = match serve.models() {
        1 => None,
        models => Some(Pool::load(models - 1, &bundle, &settings)?),
    };
    let after_ns = clock::now_ns();
    let load = Load {
        job: &job,
        start_ns,
        settings: &settings,
        bundle: &bundle,
        weights_identity,
        weights_file,
        page_cache,
        load_ns: after_ns - before_ns,
        after_ns,
        // The time between the framework's readiness and the load is the worker's own.
        own_ns: before_ns - ready_ns,
        phase,
        earlier_peak,
        pace,
        gpu: gpu.as_ref(),
    };
    load.perform(engine, pool.as_ref(), turns, events)
}

/// The threads of each model.
fn share_of(threads: usize, serve: Serve) -> Result<usize, ServeError> {
    let models = serve.models();
    if threads.is_multiple_of(models) {
        return Ok(threads / models);
    }
    Err(ServeError::Job(format!(
        "{serve} cannot divide {threads} threads evenly: take another number of models or threads"
    )))
}

/// Probes the device of the job's settings; `None` if this engine cannot make its framework do plain work
/// there.
fn probed<E: InferenceEngine>(task: &Probe, settings: &Settings) -> Result<Option<Probed>, ServeError> {
    check(settings)?;
    match settings.device() {
        Device::Cpu => probe::probe(task, settings.threads).map(Some),
        Device::Cuda(_) => probe::device::<E>(task, settings),
    }
}

/// Refuses settings that no engine in Rust can have.
fn check(settings: &Settings) -> Result<(), EngineError> {
    let Settings { shards, device, .. } = settings;
    if *shards != 1 {
        let reason = format!("its weights are not divided over devices ({shards} were asked for)");
        return Err(EngineError::Unsupported(reason));
    }
    let cache = settings.cache();
    if !Precision::CACHES.contains(&cache) {
        return Err(EngineError::Input(format!("no KV cache is kept in {cache}: take f32, bf16 or f16")));
    }
    if settings.device().to_string() != *device {
        return Err(EngineError::Input(format!("unknown device {device:?}; there are cpu and cuda:N")));
    }
    Ok(())
}

fn check_version(theirs: u32) -> Result<(), ServeError> {
    let ours = protocol::VERSION;
    if theirs == ours {
        return Ok(());
    }
    Err(ServeError::Job(format!("the driver speaks protocol {theirs}, this worker {ours}: build both again")))
}

/// A load that has just ended, and the job to do next.
struct Load<'a> {
    job: &'a Job,
    /// The clock at the start of main.
    start_ns: u64,
    settings: &'a Settings,
    bundle: &'a Bundle,
    weights_file: PathBuf,
    weights_identity: Option<FileIdentity>,
    page_cache: Option<PageCache>,
    load_ns: u64,
    /// The clock at the end of the load.
    after_ns: u64,
    /// Time since spawning that the worker took for readings and for opening the bundle.
    own_ns: u64,
    /// That of the load.
    phase: Phase<'a>,
    earlier_peak: Option<u64>,
    pace: Pace,
    gpu: Option<&'a Gpu>,
}

impl Load<'_> {
    /// Reports the load and does the job's task.
    fn perform<E: InferenceEngine>(
        self,
        mut engine: E,
        pool: Option<&Pool<E>>,
        turns: &mut dyn BufRead,
        events: &mut Events<'_>,
    ) -> Result<(), ServeError> {
        let (job, config, phases) = (self.job, self.bundle.config(), self.phases());
        let directory = Some(self.bundle.directory());
        let model = Model { directory, vocabulary: config.vocab_size, mask_token: config.mask_token };
        let in_effect = self.in_effect(engine.in_effect());
        let loaded = Loaded {
            load_ns: self.load_ns,
            memory: self.phase.end_with(&engine),
            in_effect,
            weights_file: self.weights_file.display().to_string().into(),
            weights_bytes: std::fs::metadata(&self.weights_file).map(|file| file.len()).unwrap_or_default(),
            weights_identity: self.weights_identity,
            page_cache: self.page_cache,
        };
        let earlier_peak = self.earlier_peak.max(loaded.memory.peak_bytes);
        events.send(Event::Loaded(loaded))?;

        match &job.task {
            Task::Measure(task) => {
                let own_ns = self.own_ns + (clock::now_ns() - self.after_ns);
                let context = measure::Context {
                    model,
                    serving: Serving { serve: job.settings.serve, pool, load: task.load },
                    pace: self.pace,
                    spawned_at_ns: job.spawned_at_ns.map(|spawned| spawned + own_ns),
                    weights_file: &self.weights_file,
                    anew: job.settings.anew.then_some((self.bundle, self.settings)),
                    earlier_peak,
                    gpu: self.gpu,
                };
                measure::measure(&mut engine, task, &context, (turns, events))?;
            }
            Task::Load => {}
            Task::Answer(task) => measure::answer(&mut engine, task, (model, self.pace), events)?,
            Task::Score(task) => {
                let scored = measure::score(&mut engine, task, config, self.settings.hidden_states)?;
                events.send(Event::Scored(scored))?;
            }
            Task::Trace(task) => {
                let traced = measure::trace(&mut engine, task, (model, self.pace), phases)?;
                events.send(Event::Traced(traced))?;
            }
            Task::Probe(_) => unreachable!("a probe loads nothing"),
        }
        events.send(Event::Done)
    }

    /// What an engine observes, with what the worker adds for the job.
    fn in_effect(&self, mut observed: InEffect) -> InEffect {
        let Settings { serve, anew, .. } = self.job.settings;
        let mut more = Vec::new();
        if !serve.is_shared() {
            observed.threads *= serve.models();
            more.push(format!("callers are served by {serve}"));
        }
        if anew {
            more.push("the model is loaded anew for every request".to_owned());
        }
        more.extend(self.pace.phrase());
        observed.kernels.extend(more);
        let kv_cache = match &self.job.task {
            Task::Measure(measure) => measure.work.kv_cache(),
            Task::Answer(answer) => answer.work.kv_cache(),
            _ => KvCache::On,
        };
        if kv_cache == KvCache::Off && observed.kv_cache != KvCachePolicy::None {
            observed.kv_cache = KvCachePolicy::Recomputed;
        }
        observed
    }

    /// The phases up to the end of the load.
    fn phases(&self) -> Vec<Interval> {
        let loading_ns = self.after_ns - self.load_ns;
        let spawned_ns = self.job.spawned_at_ns.unwrap_or(self.start_ns);
        let phase = |name: &str, start_ns, end_ns| Interval { name: name.into(), start_ns, end_ns };
        vec![
            phase("start-up", spawned_ns, loading_ns - self.own_ns),
            phase("load", loading_ns, self.after_ns),
        ]
    }
}
