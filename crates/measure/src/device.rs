//! The device for the work: the requested one, if it exists, or for `auto` the first GPU, if every contender
//! can use it.

use std::fs::{File, TryLockError};
use std::sync::OnceLock;

use configs::Engine;
use facts::run::RunFailure;
use plan::{Contender, Failure, Request, Result};
use protocol::{Event, Job, Task};

use crate::launch;
use crate::places::Places;

/// The device of a request with `--device auto`, until it is resolved.
pub const AUTO: &str = "auto";
/// The GPU that `auto` chooses.
const FIRST: &str = "cuda:0";
/// In the cache directory; locked while a comparison computes on a GPU.
const LOCK: &str = "gpu.lock";
/// Time limit, in seconds, for a worker's answer whether it can use a GPU: it loads kernels for that.
const ANSWER_S: u64 = 60;

/// Rejects a missing device before anything is built or prepared for it, in one sentence for each contender.
pub fn check(device: &str, contenders: &[&str]) -> Result<()> {
    let Some(why) = gpu::objection(&protocol::gpus(device)) else { return Ok(()) };
    let sentence = |contender: &&str| format!("{contender}: no device {device} was found: {why}");
    Err(Failure::failed(contenders.iter().map(sentence).collect::<Vec<_>>().join("; ")))
}

/// Locks the GPUs of this machine for this process: two comparisons at once, on whichever GPUs, share the bus
/// and the power, so that each disturbs the other. If locking is impossible, it is skipped.
pub fn keep_to_oneself(request: &Request, places: &Places) -> Result<()> {
    static KEPT: OnceLock<File> = OnceLock::new();
    if !request.is_on_gpu() || !request.fair_comparison || KEPT.get().is_some() {
        return Ok(());
    }
    let Ok(file) = File::create(places.cache.join(LOCK)) else { return Ok(()) };
    if matches!(file.try_lock(), Err(TryLockError::WouldBlock)) {
        return Err(Failure::usage(
            "another comparison computes on a GPU of this machine just now, and two would share the bus and the power: \
             wait until it has ended, or measure both with --allow-unfair",
        ));
    }
    KEPT.get_or_init(|| file);
    Ok(())
}

/// The request with a device in place of `auto`, and if that is the CPU, a sentence with the reason.
pub fn settled(
    request: &Request,
    engines: &[Engine],
    places: &Places,
    threads: usize,
) -> (Request, Option<String>) {
    if request.device != AUTO {
        return (request.clone(), None);
    }
    let on = |device: &str| Request { device: device.to_owned(), ..request.clone() };
    let on_gpu = on(FIRST);
    let refusal = || engines.iter().find_map(|engine| refusal(&on_gpu, engine, places, threads));
    match gpu::objection(&protocol::gpus(FIRST)).or_else(refusal) {
        None => (on_gpu, None),
        Some(why) => (on("cpu"), Some(format!("--device auto: the CPU, since {why}"))),
    }
}

/// Why this engine's worker cannot use the GPU, as far as that is known without a model.
fn refusal(request: &Request, engine: &Engine, places: &Places, threads: usize) -> Option<String> {
    let contender = Contender::new(engine.name.clone(), engine.clone(), request, threads);
    let worker =
        launch::worker(&contender, None, &places.on(&request.device), (ANSWER_S, request.huge_pages));
    let job = Job {
        protocol: protocol::VERSION,
        bundle: String::new(),
        model: serde_json::Value::Null,
        settings: launch::settings(&contender, &request.device, false),
        spawned_at_ns: None,
        evict: false,
        task: Task::Probe(protocol::Probe { bytes: 1 << 20, sweep_ns: 1, repeats: 1 }),
    };
    let outcome = worker.run(&job);
    if outcome.events.iter().any(|event| matches!(event, Event::Probed(_))) {
        return None;
    }
    let failure = RunFailure::from_ending(outcome.ending)?;
    Some(format!("{}'s worker cannot use the GPU: {}", engine.name, failure.sentence()))
}
