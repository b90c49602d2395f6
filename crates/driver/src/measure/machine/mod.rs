//! The state of the machine that affects a comparison: which CPUs the workers get, and how quiet they are.
//!
//! Everything that the driver reads from `/proc` and `/sys` is read here. A value that the system does not report is
//! `None`; it is printed as "not available" and never counts as quiet.

mod confinement;
mod counters;
mod family;
mod groups;
pub mod readings;
mod servers;

pub use confinement::{Confinement, Pinned, allowed, choose};
pub(crate) use confinement::{filters_system_calls, online};
pub use counters::Guard;
pub use counters::governor;
pub(crate) use counters::{cpu_time, processor_time};
pub use family::{Family, MARK};
pub(crate) use family::{Reading, nice, start};
pub use groups::quota;
pub(crate) use readings::{ReadyMemory, Watched};
pub use readings::{gpus, memory_modules};
