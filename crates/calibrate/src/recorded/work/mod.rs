//! Requests as they were recorded: continuation alone.

mod generate;

pub use generate::Request;
