//! The memory of a process by part.

use bundle::ModelConfig;
use protocol::{Memory, untrusted};
use serde::{Deserialize, Serialize};
use statistics::median;

use crate::facts::run::Run;
use crate::plan::Plan;

/// Memory of the host by part, in bytes; medians over processes. Framework, parameters, KV cache, activations and
/// remainder add up to the peak.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Parts {
    /// Resident memory once the framework is initialised.
    pub framework: f64,
    /// Size of the weights file as stored, once for each engine in the worker; 0 if the weights are on a GPU.
    pub parameters: f64,
    /// Size of keys and values of the longest case; 0 if they are on a GPU.
    pub kv_cache: f64,
    /// Highest peak of cold start, warm-up and iterations, less the memory after loading and the KV cache: activations,
    /// scratch, and allocations of the framework on first use.
    pub activations: f64,
    /// The rest: a second copy of the weights, packed or converted, or memory needed only by loading. Below 0 if less
    /// than the whole file was resident, or if the framework gave memory back.
    pub remainder: f64,
    pub peak: f64,
    /// Resident memory after loading, and after the last measured iteration.
    pub loaded: f64,
    #[serde(rename = "final")]
    pub last: Option<f64>,
    pub kv_caches: KvCaches,
    /// The least memory (parameters and KV cache), and the ratio of the peak to it: on a GPU, of the peak
    /// there. `None` if that is not available.
    pub needed: f64,
    pub times_needed: Option<f64>,
    /// Memory at the end of the measured iterations: private to the process, of files, and its proportional
    /// share of all.
    pub anonymous: Option<f64>,
    pub file_backed: Option<f64>,
    pub proportional: Option<f64>,
    /// Highest memory that the process held on the GPU.
    pub gpu: Option<f64>,
    /// The same by part.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub gpu_parts: Option<GpuParts>,
    pub method: Option<untrusted::Foreign>,
}

impl Parts {
    /// The names of those that add up to the peak.
    pub const NAMES: [&str; 5] = ["framework", "parameters", "kv_cache", "activations", "remainder"];

    /// Those that add up to the peak, in bytes, by name.
    pub fn summands(&self) -> [(&'static str, f64); 5] {
        let bytes = [self.framework, self.parameters, self.kv_cache, self.activations, self.remainder];
        std::array::from_fn(|part| (Parts::NAMES[part], bytes[part]))
    }
}

/// A part of the peak, in the order in which they add up to it and are shown.
#[derive(Debug, Clone, Copy, PartialEq, Eq, strum::VariantArray)]
pub enum Part {
    Framework,
    Parameters,
    KvCachePredicted,
    KvCacheObserved,
    Activations,
    Remainder,
    Peak,
    Loaded,
    Final,
}

impl Part {
    /// Its name in tables with the other parts, and in CSV.
    pub(crate) fn names(self) -> (&'static str, Option<&'static str>) {
        match self {
            Part::Framework => ("Floor", Some("memory_framework_mb")),
            Part::Parameters => ("+ Parameters", Some("memory_parameters_mb")),
            Part::KvCachePredicted => ("+ KV cache", Some("memory_kvcachepredicted_mb")),
            Part::KvCacheObserved => ("(observed)", Some("memory_kvcacheobserved_mb")),
            Part::Activations => ("Activations (MB)", Some("memory_activations_mb")),
            Part::Remainder => ("+ Remainder", Some("memory_remainder_mb")),
            Part::Peak => ("= Peak (MB)", Some("memory_peak_mb")),
            Part::Loaded => ("After load", Some("memory_loaded_mb")),
            Part::Final => ("At the end", Some("memory_final_mb")),
        }
    }

    pub fn bytes(self, parts: &Parts) -> Option<f64> {
        match self {
            Part::Framework => Some(parts.framework),
            Part::Parameters => Some(parts.parameters),
            Part::KvCachePredicted => Some(parts.kv_cache),
            Part::KvCacheObserved => parts.kv_caches.observed,
            Part::Activations => Some(parts.activations),
            Part::Remainder => Some(parts.remainder),
            Part::Peak => Some(parts.peak),
            Part::Loaded => Some(parts.loaded),
            Part::Final => parts.last,
        }
    }
}

/// The KV cache of the last case of an iteration, in bytes.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct KvCaches {
    /// Size from the model's shapes, for every position of the case. The element is f32 if the engine reports
    /// a type that is not one of ours.
    pub predicted: f64,
    /// Size that the engine allocated; `None` if it does not report it.
    pub observed: Option<f64>,
}

/// Bytes of keys and values of `capacity` positions of `batch` sequences.
pub fn kv_cache_bytes(config: &ModelConfig, batch: usize, capacity: usize, element: usize) -> usize {
    2 * config.layers.len() * batch * config.kv_heads * config.head_dim * capacity * element
}

/// Bytes of one element of the KV cache that the worker reported; 4 if its type is not one of ours.
pub fn kv_cache_element(run: &Run) -> Option<usize> {
    let name = &run.loaded()?.in_effect.kv_cache_precision;
    Some(if name.contains("16") { 2 } else { 4 })
}

pub fn parts(plan: &Plan, config: &ModelConfig, runs: &[&Run]) -> Option<Parts> {
    let over =
        |of: &dyn Fn(&Run) -> Option<f64>| median(&runs.iter().filter_map(|run| of(run)).collect::<Vec<_>>());
    let read = |of: &dyn Fn(&Run) -> Option<u64>| over(&|run| of(run).map(|bytes| bytes as f64));
    let framework = read(&|run| run.started()?.memory.resident_bytes)?;
    let loaded = read(&|run| run.loaded()?.memory.resident_bytes)?;
    let peak = read(&|run| run.usage()?.peak_bytes)?;
    let weights_file = read(&|run| Some(run.loaded()?.weights_bytes))?;

    let element = runs.iter().find_map(|run| kv_cache_element(run))?;
    let last = plan.work.cache_positions(plan.work.cases().checked_sub(1)?);
    let longest = plan.work.capacity();
    let predicted = |capacity| kv_cache_bytes(config, plan.work.batch(), capacity, element) as f64;
    let kv_caches = KvCaches { predicted: predicted(last), observed: read(&|run| run.usage()?.cache.bytes) };
    // Each case has its own cache and frees the one before, so the peak includes the longest.
    let kv_cache = kv_caches.observed.filter(|_| last == longest).unwrap_or(predicted(longest));

    let sets = runs.iter().copied().map(weight_sets).max()? as f64;
    let needed = weights_file + kv_cache;
    let is_on_host = plan.device == "cpu";
    let on_host = |bytes: f64| if is_on_host { bytes } else { 0.0 };
    let gpu = if is_on_host { None } else { read(&|run| run.peak_bytes()) };
    let where_it_computes = if is_on_host { Some(peak) } else { gpu };
    let (parameters, cache, kv_cache) = (on_host(sets * weights_file), kv_cache, on_host(kv_cache));
    let activations = over(&|run| {
        let above = working_peak(run)?.saturating_sub(run.loaded()?.memory.resident_bytes?);
        Some((above as f64 - kv_cache).max(0.0))
    })?;
    Some(Parts {
        framework,
        parameters,
        kv_cache,
        activations,
        remainder: peak - (framework + parameters + kv_cache + activations),
        peak,
        loaded,
        last: read(&|run| run.usage()?.memory.resident_bytes),
        kv_caches,
        needed,
        times_needed: where_it_computes.map(|peak| peak / needed),
        anonymous: read(&|run| run.usage()?.memory.anonymous_bytes),
        file_backed: read(&|run| run.usage()?.memory.file_bytes),
        proportional: read(&|run| run.usage()?.memory.pss_bytes),
        gpu,
        gpu_parts: gpu.map(|peak| gpu_memory_parts(runs, peak, sets * weights_file, cache)),
        method: runs.iter().find_map(|run| run.usage()?.memory.method.clone()),
    })
}

/// Number of copies of the weights in a worker: one for each engine in it.
fn weight_sets(run: &Run) -> usize {
    let hybrid = run.loaded().and_then(|loaded| loaded.in_effect.hybrid.as_ref());
    if hybrid.is_some_and(|hybrid| hybrid.alone.is_none()) { 2 } else { 1 }
}

/// Highest peak of the phases that compute, in bytes.
fn working_peak(run: &Run) -> Option<u64> {
    let cold = run.cold_start().and_then(|cold| cold.memory.peak_bytes);
    let warm = run.warmup().and_then(|warm| warm.memory.peak_bytes);
    let measured = run.usage().and_then(|usage| usage.memory.peak_bytes);
    cold.max(warm).max(measured)
}

// The memory of a process on a GPU by part.

/// Memory on the GPU by part, in bytes; medians over processes. Context, weights, KV cache and activations add up to the
/// peak.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct GpuParts {
    /// Memory that the process held beyond the memory handed out by the framework's allocator: the driver's
    /// context, kernels, and memory that the allocator keeps for later. Without readings of the allocator, it
    /// includes the activations.
    pub context: f64,
    /// Memory handed out by the allocator after the load; the size of the weights file if it is not reported.
    pub weights: f64,
    pub weights_file: f64,
    /// Keys and values of the longest case, as observed if the engine reports them.
    pub kv_cache: f64,
    /// The allocator's peak less weights and KV cache; `None` if it is not reported.
    pub activations: Option<f64>,
    /// Highest memory that the process held there.
    pub peak: f64,
    /// Mean over the readings after measured requests.
    pub mean: Option<f64>,
    pub phases: Vec<GpuPhase>,
}

/// Readings at the end of a phase, in bytes; medians over processes.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct GpuPhase {
    /// `load`, `cold start`, `warm-up` or `requests`.
    pub phase: untrusted::Foreign,
    /// Memory that the process held there.
    pub held: Option<f64>,
    /// Memory handed out by the allocator then, and at most until then.
    pub in_use: Option<f64>,
    pub peak: Option<f64>,
}

impl GpuParts {
    /// Those that add up to the peak, by name.
    pub fn summands(&self) -> [(&'static str, Option<f64>); 4] {
        [
            ("context", Some(self.context)),
            ("weights", Some(self.weights)),
            ("KV cache", Some(self.kv_cache)),
            ("activations", self.activations),
        ]
    }
}

/// The readings at the end of a phase.
type OfPhase = fn(&Run) -> Option<&Memory>;

/// Computes the parts of `peak`; `weights_file` and `kv_cache` are known.
pub(super) fn gpu_memory_parts(runs: &[&Run], peak: f64, weights_file: f64, kv_cache: f64) -> GpuParts {
    let read = |of: &dyn Fn(&Run) -> Option<u64>| {
        median(&runs.iter().filter_map(|run| Some(of(run)? as f64)).collect::<Vec<_>>())
    };
    let loaded = read(&|run| Some(run.loaded()?.memory.gpu_allocator.as_ref()?.in_use_bytes));
    let allocated = read(&|run| Some(run.usage()?.memory.gpu_allocator.as_ref()?.peak_bytes));
    let weights = loaded.unwrap_or(weights_file);
    let activations = allocated.map(|allocated| allocated - weights - kv_cache);
    let phases: [(&str, OfPhase); 4] = [
        ("load", |run| Some(&run.loaded()?.memory)),
        ("cold start", |run| Some(&run.cold_start()?.memory)),
        ("warm-up", |run| Some(&run.warmup()?.memory)),
        ("requests", |run| Some(&run.usage()?.memory)),
    ];
    let phase = |(phase, memory): (&str, OfPhase)| GpuPhase {
        phase: phase.into(),
        held: read(&|run| Some(memory(run)?.gpu.as_ref()?.bytes)),
        in_use: read(&|run| Some(memory(run)?.gpu_allocator.as_ref()?.in_use_bytes)),
        peak: read(&|run| Some(memory(run)?.gpu_allocator.as_ref()?.peak_bytes)),
    };
    GpuParts {
        context: peak - weights - kv_cache - activations.unwrap_or(0.0),
        weights,
        weights_file,
        kv_cache,
        activations,
        peak,
        mean: read(&|run| run.usage()?.gpu.as_ref()?.held_mean_bytes),
        phases: phases.map(phase).into(),
    }
}

#[cfg(test)]
mod tests {
    use crate::facts::testing;
    use protocol::{ColdStart, Event, Loaded, Marks, Memory, Started, Usage, WarmupDone};

    use super::*;

    const MB: u64 = 1_000_000;

    /// Bytes of keys and values of all positions in f32.
    const CACHE: f64 = 64.0 * 48.0;

    fn memory(resident: u64, peak: u64) -> Memory {
        Memory { resident_bytes: Some(resident), peak_bytes: Some(peak), ..Memory::default() }
    }

    /// Resident and peak of loading; peaks of cold start, warm-up and iterations.
    fn process(round: usize, load: (u64, u64), peaks: [u64; 3]) -> Run {
        let [cold, warm, measured] = peaks;
        let highest = peaks.into_iter().max().max(Some(load.1));
        testing::run(
            "a",
            round,
            vec![
                Event::Started(Started { startup_ns: None, runtime_ns: 0, memory: memory(10 * MB, 10 * MB) }),
                Event::Loaded(Loaded { memory: memory(load.0, load.1), ..testing::loaded(500 * MB) }),
                Event::ColdStart(ColdStart {
                    marks_ns: Marks(vec![1]),
                    memory: memory(cold, cold),
                    ..ColdStart::default()
                }),
                Event::Warmup(WarmupDone {
                    iterations: Vec::new(),
                    settled: true,
                    from_cold: false,
                    memory: memory(warm, warm),
                }),
                Event::Usage(Usage {
                    memory: memory(measured, measured),
                    peak_bytes: highest,
                    ..testing::usage()
                }),
            ],
        )
    }

    fn parts_of(runs: &[Run], plan: &Plan, observed: Option<u64>) -> Parts {
        let mut runs = runs.to_vec();
        for event in runs.iter_mut().flat_map(|run| &mut run.events) {
            if let Event::Usage(usage) = event {
                usage.cache.bytes = observed;
            }
        }
        parts(plan, &testing::config(), &runs.iter().collect::<Vec<_>>()).unwrap()
    }

    #[test]
    fn the_parts_add_up_to_the_peak() {
        let plan = testing::plan(&["a"]);
        // Medians over two processes that differ in everything; in one, the load alone made the peak.
        let runs = [
            process(0, (520 * MB, 900 * MB + 1), [530 * MB, 533 * MB + 7, 531 * MB]),
            process(1, (521 * MB + 3, 521 * MB + 3), [529 * MB, 529 * MB, 560 * MB + 2]),
        ];
        let p = parts_of(&runs, &plan, None);
        assert_eq!(p.framework + p.parameters + p.kv_cache + p.activations + p.remainder, p.peak);
        assert_eq!((p.framework, p.parameters, p.kv_cache), (10e6, 500e6, CACHE));
        assert!(p.remainder > 100e6, "what loading alone needed: {p:?}");
    }

    #[test]
    fn activations_are_the_highest_peak_above_the_load_and_never_below_nothing() {
        let plan = testing::plan(&["a"]);
        let activations =
            |peaks| parts_of(&[process(0, (520 * MB, 520 * MB), peaks)], &plan, Some(2 * MB)).activations;
        assert_eq!(activations([530 * MB, 541 * MB, 522 * MB]), 19e6);
        let given_back = parts_of(&[process(0, (520 * MB, 520 * MB), [400 * MB; 3])], &plan, None);
        assert_eq!(given_back.activations, 0.0);
        assert_eq!(given_back.last, Some(400e6));
    }

    #[test]
    fn a_cache_that_was_observed_takes_the_place_of_the_prediction_where_it_is_the_longest() {
        let runs = [process(0, (520 * MB, 520 * MB), [530 * MB; 3])];
        let mut plan = testing::plan(&["a"]);
        let p = parts_of(&runs, &plan, Some(9000));
        let expected = KvCaches { predicted: CACHE, observed: Some(9000.0) };
        assert_eq!((p.kv_cache, p.kv_caches), (9000.0, expected));
        // A last case that is shorter does not give the longest.
        let prompts = &mut testing::prompted(&mut plan).prompts;
        prompts.insert(0, prompts[0].clone());
        prompts[1].tokens.truncate(8);
        let p = parts_of(&runs, &plan, Some(9000));
        assert_eq!((p.kv_cache, p.kv_caches.predicted), (CACHE, 64.0 * 40.0));
    }

    #[test]
    fn a_hybrid_holds_the_weights_twice_though_once_would_do() {
        let mut run = process(0, (1100 * MB, 1100 * MB), [1150 * MB; 3]);
        for event in &mut run.events {
            if let Event::Loaded(loaded) = event {
                let (prefill, decode) = ("a".into(), "b".into());
                loaded.in_effect.hybrid = Some(protocol::Hybrid { prefill, decode, alone: None });
            }
        }
        let p = parts_of(&[run], &testing::plan(&["a"]), None);
        assert_eq!((p.parameters, p.needed), (1000e6, 500e6 + CACHE));
    }

    #[test]
    fn what_lies_on_a_gpu_is_no_part_of_the_host_s_memory() {
        let plan = Plan { device: "cuda:0".into(), ..testing::plan(&["a"]) };
        let p = parts_of(&[process(0, (100 * MB, 600 * MB), [120 * MB; 3])], &plan, None);
        assert_eq!((p.parameters, p.kv_cache, p.remainder), (0.0, 0.0, 570e6));
        assert_eq!(p.needed, 500e6 + CACHE);
    }
}

#[cfg(test)]
mod gpu_memory_tests {
    use super::*;
    use crate::facts::testing;
    use protocol::{Event, GpuAllocator, GpuMemory, GpuWork, Loaded, Usage};

    fn memory(held: u64, allocator: Option<(u64, u64)>) -> Memory {
        let gpu = Some(GpuMemory { bytes: held, method: "NVML".into() });
        let gpu_allocator =
            allocator.map(|(in_use_bytes, peak_bytes)| GpuAllocator { in_use_bytes, peak_bytes });
        Memory { gpu, gpu_allocator, ..Memory::default() }
    }

    fn run(allocators: [Option<(u64, u64)>; 2]) -> Run {
        let [loaded, used] = allocators;
        let gpu = GpuWork { held_mean_bytes: Some(950), held_most_bytes: Some(1000), ..GpuWork::default() };
        testing::run(
            "a",
            0,
            vec![
                Event::Loaded(Loaded { memory: memory(800, loaded), ..testing::loaded(500) }),
                Event::Usage(Usage { memory: memory(1000, used), gpu: Some(gpu), ..testing::usage() }),
            ],
        )
    }

    #[test]
    fn the_parts_add_up_to_the_peak() {
        let run = run([Some((510, 560)), Some((600, 777))]);
        let parts = gpu_memory_parts(&[&run], 1000.0, 500.0, 90.0);
        assert_eq!((parts.context, parts.weights, parts.activations), (223.0, 510.0, Some(177.0)));
        let sum: f64 = parts.summands().iter().filter_map(|(_, bytes)| *bytes).sum();
        assert_eq!(sum, parts.peak);
        assert!(parts.mean.unwrap() <= parts.peak);
        let load = &parts.phases[0];
        assert_eq!((load.held, load.in_use, load.peak), (Some(800.0), Some(510.0), Some(560.0)));
        assert_eq!((parts.phases[1].held, parts.phases[3].peak), (None, Some(777.0)));
    }

    #[test]
    fn without_the_allocator_s_readings_activations_are_not_told_from_the_context() {
        let parts = gpu_memory_parts(&[&run([None, None])], 1000.0, 500.0, 90.0);
        assert_eq!((parts.context, parts.weights, parts.activations), (410.0, 500.0, None));
    }
}
