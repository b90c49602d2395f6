//! What the report says of requests that go token by token.

pub mod curve;
pub mod first_runs;
pub mod gaps;
pub mod steady;
pub mod variation;
