//! The machine as far as it bears on a comparison: which CPUs the workers get, and how quiet they are.
//!
//! All of `/proc` and `/sys` that the driver reads is read here. What a system does not tell is `None`,
//! which is printed as "not available" and never taken for quiet.

mod affinity;
mod cgroup;
mod confinement;
mod counters;
mod gpu;
mod guard;
pub(crate) mod memory;

pub(crate) use affinity::{Pinned, allowed, choose};
pub(crate) use confinement::Confinement;
pub(crate) use counters::{governor, quota};
pub(crate) use gpu::{Gpu, gpus, objection};
pub(crate) use guard::{Guard, LIMITS, Noise};
