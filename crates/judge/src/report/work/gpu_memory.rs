//! The memory of a process on a GPU by part.

use protocol::Memory;
use serde::{Deserialize, Serialize};
use statistics::median;

use facts::run::Run;

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
    /// Size of the weights file.
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
pub(super) fn parts(runs: &[&Run], peak: f64, weights_file: f64, kv_cache: f64) -> GpuParts {
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
    use protocol::{Event, GpuAllocator, GpuMemory, GpuWork, Loaded, Usage};

    use super::*;
    use facts::testing;

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
        let parts = parts(&[&run], 1000.0, 500.0, 90.0);
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
        let parts = parts(&[&run([None, None])], 1000.0, 500.0, 90.0);
        assert_eq!((parts.context, parts.weights, parts.activations), (410.0, 500.0, None));
    }
}
