//! The report's parts for work with a model's weights: memory by part, the machine's limit and impossible
//! figures; and its parts for one kind of work alone.

pub mod generate;
pub mod gpu_memory;
pub mod limit;
pub mod memory;
pub mod sanity;
