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
pub mod memory;

pub use affinity::{Pinned, allowed, choose};
pub use confinement::Confinement;
pub use counters::{governor, quota};
pub use gpu::{gpus, objection};
pub use guard::Guard;
