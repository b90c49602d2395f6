//! What the report says of work by a model's weights: memory by part, the machine's limit and figures that cannot be; and
//! what it says of one kind of work alone.

pub mod generate;
pub mod gpu_memory;
pub mod limit;
pub mod memory;
pub mod sanity;
