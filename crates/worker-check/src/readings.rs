//! The fields of a worker's readings of its process, of the machine and of the GPU.

use crate::shape::Kind::{List, Number, Object, Text, Whole};
use crate::shape::{Field, may, must};

const GPU: &[Field] = &[must("bytes", Whole(1 << 30)), must("method", Text("NVML, compute processes"))];

const GPU_ALLOCATOR: &[Field] = &[must("in_use_bytes", Whole(1 << 29)), must("peak_bytes", Whole(1 << 29))];

pub(crate) const MEMORY: &[Field] = &[
    may("peak_bytes", Whole(5_836_800)),
    may("resident_bytes", Whole(5_836_800)),
    may("anonymous_bytes", Whole(1_060_864)),
    may("file_bytes", Whole(4_775_936)),
    may("pss_bytes", Whole(3_948_544)),
    may("huge_bytes", Whole(2_097_152)),
    may("method", Text("VmHWM of the process so far")),
    may("gpu", Object(GPU)),
    may("gpu_allocator", Object(GPU_ALLOCATOR)),
];

pub(crate) const ENERGY: &[Field] = &[must("joules", Number(1.5)), must("method", Text("RAPL, package"))];

pub(crate) const GPU_WORK: &[Field] = &[
    may("slowest_mhz", Whole(1_410)),
    may("fastest_mhz", Whole(1_980)),
    may("most_mhz", Whole(1_980)),
    may("celsius", Whole(61)),
    may("held_mean_bytes", Whole(1 << 30)),
    may("held_most_bytes", Whole(1 << 30)),
    must("held_back", List(&Text("its power limit"))),
    must("remarks", List(&Text("the GPU's energy is not available: this GPU does not report it"))),
];
