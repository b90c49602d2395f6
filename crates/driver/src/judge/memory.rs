//! Where a process's memory went.

use bundle::ModelConfig;
use serde::{Deserialize, Serialize};
use statistics::median;

use crate::plan::Plan;
use crate::record::Run;

/// Memory by part, in bytes; medians over processes. The parts add up to the peak.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(crate) struct Parts {
    /// Resident once the framework is initialised.
    pub(crate) framework: f64,
    /// What loading the model added, and how large the file is.
    pub(crate) weights: f64,
    pub(crate) weights_file: f64,
    /// The KV cache, from the model's shapes; in f32 where the engine names no element type of ours.
    pub(crate) kv_cache: f64,
    /// The rest of the peak: activations, scratch, what the framework allocates on first use. Below 0 where
    /// loading gave memory back before the peak.
    pub(crate) activations: f64,
    pub(crate) peak: f64,
    /// What must be there: the weights as stored, once, and the KV cache; and how many times that the peak is.
    pub(crate) needed: f64,
    pub(crate) times_needed: f64,
    /// At the end of the measured iterations: private to the process, of files, and its share of all.
    pub(crate) anonymous: Option<f64>,
    pub(crate) file_backed: Option<f64>,
    pub(crate) proportional: Option<f64>,
    pub(crate) gpu: Option<f64>,
    /// How the peak was read.
    pub(crate) method: Option<String>,
}

/// Bytes of keys and values of `capacity` positions of `batch` sequences.
pub(crate) fn kv_cache_bytes(config: &ModelConfig, batch: usize, capacity: usize, element: usize) -> usize {
    2 * config.layers * batch * config.kv_heads * config.head_dim * capacity * element
}

/// Bytes of one element of the KV cache that the worker reported; 4 where it names no type of ours.
pub(crate) fn kv_cache_element(run: &Run) -> Option<usize> {
    let name = &run.loaded()?.in_effect.kv_cache_precision;
    Some(if name.contains("16") { 2 } else { 4 })
}

pub(crate) fn parts(plan: &Plan, config: &ModelConfig, runs: &[&Run]) -> Option<Parts> {
    let over = |of: &dyn Fn(&Run) -> Option<u64>| {
        median(&runs.iter().filter_map(|run| of(run)).map(|bytes| bytes as f64).collect::<Vec<_>>())
    };
    let started = over(&|run| run.started()?.memory.resident_bytes)?;
    let loaded = over(&|run| run.loaded()?.memory.resident_bytes)?;
    let peak = over(&|run| run.usage()?.peak_bytes)?;
    let element = runs.iter().find_map(|run| kv_cache_element(run))?;
    let capacity = plan.prompts.iter().map(|prompt| prompt.tokens.len() + plan.new_tokens).max()?;
    let kv_cache = kv_cache_bytes(config, plan.batch, capacity, element) as f64;
    let weights_file = over(&|run| Some(run.loaded()?.weights_bytes))?;
    let needed = weights_file + kv_cache;
    Some(Parts {
        framework: started,
        weights: loaded - started,
        weights_file,
        kv_cache,
        needed,
        times_needed: peak / needed,
        activations: peak - loaded - kv_cache,
        peak,
        anonymous: over(&|run| run.usage()?.memory.anonymous_bytes),
        file_backed: over(&|run| run.usage()?.memory.file_bytes),
        proportional: over(&|run| run.usage()?.memory.pss_bytes),
        gpu: over(&|run| Some(run.usage()?.memory.gpu.as_ref()?.bytes)),
        method: runs.iter().find_map(|run| run.usage()?.memory.method.clone()),
    })
}
