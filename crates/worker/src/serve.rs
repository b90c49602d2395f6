//! The job loop: one Job, its events, the end.

use std::io::{BufRead, Write};

use protocol::{
    Build, Event, FailureKind, Hello, Interval, Job, KvCache, Loaded, Probe, Probed, Serve, Started, Task,
};

use crate::clock::{self, Pace};
use crate::energy::Gpu;
use crate::engine::{
    Bundle, Device, EngineError, InEffect, InferenceEngine, KvCachePolicy, Precision, Result, Settings,
};
use crate::memory::{self, Phase};
use crate::serving::Pool;
use crate::work::{Model, Serving};
use crate::{Events, ServeError, measure, probe};

/// Initialises the framework and returns its description.
pub(crate) fn hello<E: InferenceEngine>() -> Result<Hello> {
    let runtime = E::runtime()?;
    Ok(Hello {
        protocol: protocol::VERSION,
        framework: E::FRAMEWORK.into(),
        binding: runtime.binding.into(),
        library: runtime.library.into(),
        library_path: runtime.library_path.map(|path| path.display().to_string().into()),
        cpu_capability: runtime.cpu_capability.map(Into::into),
        slices: Some(E::PAUSES),
        build: Build {
            profile: env!("BUILD_PROFILE").into(),
            rustc: Some(env!("BUILD_RUSTC").into()),
            rustflags: Some(env!("BUILD_RUSTFLAGS").into()),
            target_features: Some(env!("BUILD_FEATURES").split(',').collect()),
            target: Some(env!("BUILD_TARGET").into()),
            toolchain: None,
        },
    })
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
        let kind = match error {
            ServeError::Engine(EngineError::Unsupported(_)) => FailureKind::Unsupported,
            ServeError::Engine(EngineError::Input(_) | EngineError::Bundle(_)) | ServeError::Job(_) => {
                FailureKind::Input
            }
            ServeError::Engine(EngineError::Framework(_)) | ServeError::File(_) => FailureKind::Failed,
            ServeError::Pipe(_) => return served,
        };
        events.send(Event::Failed(protocol::Failed { kind, reason: error.to_string().into() }))?;
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
    let (theirs, ours) = (job.protocol, protocol::VERSION);
    if theirs != ours {
        let reason = format!("the driver speaks protocol {theirs}, this worker {ours}: build both again");
        return Err(ServeError::Job(reason));
    }
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
    let mut engine = E::load(&bundle, &settings)?;
    let pool = match serve.models() {
        1 => None,
        models => Some(Pool::load(models - 1, &bundle, &settings)?),
    };
    let after_ns = clock::now_ns();

    let (config, load_ns) = (bundle.config(), after_ns - before_ns);
    let in_effect = in_effect(engine.in_effect(), &job, pace);
    let loaded = Loaded {
        load_ns,
        memory: phase.end_with(&engine),
        in_effect,
        weights_file: weights_file.display().to_string().into(),
        weights_bytes: std::fs::metadata(&weights_file).map(|file| file.len()).unwrap_or_default(),
        weights_identity,
        page_cache,
        shows: engine.shows(),
        barred: engine.barred(),
    };
    let earlier_peak = earlier_peak.max(loaded.memory.peak_bytes);
    events.send(Event::Loaded(loaded))?;

    let directory = Some(bundle.directory());
    let bands = config.audio.map_or(0, |audio| audio.bands);
    let model = Model { directory, vocabulary: config.vocab_size, mask_token: config.mask_token, bands };
    match &job.task {
        Task::Measure(task) => {
            // Of the time since spawning, the worker's own: for readings, and for opening the bundle.
            let own_ns = (before_ns - ready_ns) + (clock::now_ns() - after_ns);
            let context = measure::Context {
                model,
                serving: Serving { serve, pool: pool.as_ref(), load: task.load },
                pace,
                spawned_at_ns: job.spawned_at_ns.map(|spawned| spawned + own_ns),
                weights_file: &weights_file,
                anew: job.settings.anew.then_some((&bundle, &settings)),
                earlier_peak,
                gpu: gpu.as_ref(),
            };
            measure::measure(&mut engine, task, &context, (turns, events))?;
        }
        Task::Load => {}
        Task::Answer(task) => measure::answer(&mut engine, task, (model, pace), events)?,
        Task::Score(task) => {
            let scored = measure::score(&mut engine, task, config, settings.hidden_states)?;
            events.send(Event::Scored(scored))?;
        }
        Task::Trace(task) => {
            let phase = |name: &str, start_ns, end_ns| Interval { name: name.into(), start_ns, end_ns };
            let phases = vec![
                phase("start-up", job.spawned_at_ns.unwrap_or(start_ns), ready_ns),
                phase("load", before_ns, after_ns),
            ];
            events.send(Event::Traced(measure::trace(&mut engine, task, (model, pace), phases)?))?;
        }
        Task::Probe(_) => unreachable!("a probe loads nothing"),
    }
    events.send(Event::Done)
}

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
fn check(settings: &Settings) -> Result<()> {
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

/// What an engine observes, with what the worker adds for the job.
fn in_effect(mut observed: InEffect, job: &Job, pace: Pace) -> InEffect {
    let Settings { serve, anew, .. } = job.settings;
    let mut more = Vec::new();
    if !serve.is_shared() {
        observed.threads *= serve.models();
        more.push(format!("callers are served by {serve}"));
    }
    if anew {
        more.push("the model is loaded anew for every request".to_owned());
    }
    more.extend(pace.phrase());
    observed.kernels.extend(more);
    let kv_cache = match &job.task {
        Task::Measure(measure) => measure.work.kv_cache(),
        Task::Answer(answer) => answer.work.kv_cache(),
        _ => KvCache::On,
    };
    if kv_cache == KvCache::Off && observed.kv_cache != KvCachePolicy::None {
        observed.kv_cache = KvCachePolicy::Recomputed;
    }
    observed
}
