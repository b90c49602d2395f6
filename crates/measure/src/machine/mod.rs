//! The state of the machine that affects a comparison: which CPUs the workers get, and how quiet they are.
//!
//! Everything that the driver reads from `/proc` and `/sys` is read here. A value that the system does not report is
//! `None`; it is printed as "not available" and never counts as quiet.

mod affinity;
mod cgroup;
mod confinement;
mod counters;
mod family;
mod gpu;
mod guard;
pub mod memory;
mod modules;
pub mod ready;

pub use affinity::{Pinned, allowed, choose};
pub use confinement::Confinement;
pub(crate) use counters::{cpu_time, peak_bytes, processor_time};
pub use counters::{governor, quota};
pub use family::{Family, MARK, state};
pub(crate) use family::{nice, start};
pub(crate) use gpu::Watched;
pub use gpu::gpus;
pub use guard::Guard;
pub use modules::memory_modules;
pub(crate) use ready::ReadyMemory;
