//! A process's memory, phase by phase.

use serde::{Deserialize, Serialize};

use crate::untrusted::Foreign;

/// A phase's readings. Each is `null` where the system does not report.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Memory {
    /// Highest resident set since the phase began.
    pub peak_bytes: Option<u64>,
    /// Resident set at the end of the phase, and its parts.
    pub resident_bytes: Option<u64>,
    pub anonymous_bytes: Option<u64>,
    pub file_bytes: Option<u64>,
    /// Proportional set size: pages shared with other processes count in part.
    pub pss_bytes: Option<u64>,
    /// The part of the anonymous memory that is in huge pages.
    #[serde(default)]
    pub huge_bytes: Option<u64>,
    /// How the peak was read: `VmHWM, reset at the start of the phase`, or `VmHWM of the process so far`
    /// where it cannot be reset.
    pub method: Option<Foreign>,
    /// Memory of the GPU that this process holds.
    pub gpu: Option<GpuMemory>,
    /// Memory that the framework's own allocator has handed out on GPUs; `null` on a CPU, and where it does
    /// not report it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub gpu_allocator: Option<GpuAllocator>,
}

/// Readings at the end of the phase.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct GpuAllocator {
    pub in_use_bytes: u64,
    pub peak_bytes: u64,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct GpuMemory {
    pub bytes: u64,
    /// For example `NVML, compute processes`.
    pub method: Foreign,
}
