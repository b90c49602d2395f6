//! The columns of a comparison: which engines, under which labels and settings.

use std::collections::BTreeMap;

use configs::Engine;
use protocol::Serve;

use crate::{Arm, CacheAsked, Contender, Request};

/// The columns: the sides of an A/B comparison, or the engines. Engines named twice are numbered.
pub(crate) fn contenders(
    engines: Vec<Engine>,
    request: &Request,
    available_threads: usize,
) -> Vec<Contender> {
    // Several GPUs share the weights of each contender.
    let devices = request.devices();
    let contender = |label: String, engine: Engine| Contender {
        cache: request.cache(),
        shards: request.shards.first().map_or(devices, |&count| count) as usize,
        ..Contender::new(label, engine, request, available_threads)
    };
    let arms = &request.study.arms;
    if !arms.is_empty() {
        let side = |(arm, engine): (&Arm, Engine)| {
            let plain = contender(arm.label.clone(), engine);
            Contender {
                precision: arm.precision.unwrap_or(plain.precision),
                jit: arm.jit.unwrap_or(plain.jit),
                cache: CacheAsked { policy: arm.keeps(plain.cache.policy), ..plain.cache },
                threads: arm.threads.map_or(plain.threads, |asked| asked.of_budget(plain.threads)),
                anew: arm.anew,
                engine: arm.built(plain.engine),
                ..plain
            }
        };
        return arms.iter().zip(engines).map(side).collect();
    }
    let whole = [devices];
    let shards: &[u32] = if request.shards.is_empty() { &whole } else { &request.shards };
    let mut seen: BTreeMap<String, usize> = BTreeMap::new();
    let modes: &[Serve] =
        if request.serving.serve.is_empty() { &[Serve::Shared] } else { &request.serving.serve };
    let kinds = modes.iter().flat_map(|&serve| shards.iter().map(move |&count| (serve, count)));
    let kinds: Vec<(Serve, u32)> = kinds.collect();
    let columns =
        engines.into_iter().flat_map(|engine| kinds.iter().map(move |&kind| (engine.clone(), kind)));
    let column = |(engine, (serve, shards)): (Engine, (Serve, u32))| {
        let name = match shards {
            count if count == devices => engine.name.clone(),
            count => format!("{} on {count} devices", engine.name),
        };
        let name = if serve.is_shared() { name } else { format!("{name} {serve}") };
        let count = seen.entry(name.clone()).or_default();
        *count += 1;
        let label = if *count == 1 { name } else { format!("{name} ({count})") };
        Contender { shards: shards as usize, serve, ..contender(label, engine) }
    };
    columns.map(column).collect()
}
