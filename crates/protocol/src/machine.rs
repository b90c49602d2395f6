//! Speed of the machine, and activity of its GPU.

use serde::{Deserialize, Serialize};
use untrusted::{Foreign, Foreigns};

/// The machine's present speed: see [`Probe`](crate::Probe). Times are of all threads together, from the
/// start of the first one to the end of the last one. `bytes / sweeps_ns[i]` is a bandwidth in GB/s,
/// `operations / multiply_adds_ns[i]` a speed in GFLOP/s.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Probed {
    /// Best time of fixed arithmetic.
    pub compute_ns: u64,
    /// Bytes read by one sweep: of the buffer, or of a small one several times. On a GPU, bytes read and
    /// written by one row of copies.
    pub bytes: u64,
    /// Time of each sweep, in order.
    pub sweeps_ns: Vec<u64>,
    /// Floating-point operations of one burst of multiply-adds, two for each; on a GPU, of one row of matrix products.
    pub operations: u64,
    /// Time of each burst.
    pub multiply_adds_ns: Vec<u64>,
    pub threads: usize,
    /// The probed GPU, by the engine's name for it; `null` for the CPU.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub device: Option<Foreign>,
    /// The element type of the multiply-adds; `null` for f32.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub precision: Option<Foreign>,
}

/// Readings of a GPU right after measured requests.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct GpuWork {
    /// Slowest and fastest clock of its multiprocessors, in megahertz, and the most that they can do.
    pub slowest_mhz: Option<u64>,
    pub fastest_mhz: Option<u64>,
    pub most_mhz: Option<u64>,
    /// Highest temperature, in degrees Celsius.
    pub celsius: Option<u64>,
    /// Bytes that the process held on GPUs, over the readings: their mean, and the most.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub held_mean_bytes: Option<u64>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub held_most_bytes: Option<u64>,
    /// Causes that slowed it down, each once: `heat`, `its power limit`.
    pub held_back: Foreigns,
    /// Why a reading is not available, and other remarks on the GPU, one sentence each.
    pub remarks: Foreigns,
}
