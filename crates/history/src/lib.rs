//! The record of every run, so that it can be viewed, repeated and compared months later.
//!
//! A [`Record`] is one framework in one case: where and when it ran, the request, and every metric with the
//! figure of each process. It suffices to test it against another run without that run's directory. Records
//! are JSON lines of a file that several processes append to ([`append`], [`read`]).

mod exclusions;
mod file;
mod filter;
mod record;

pub use exclusions::{Apart, counted};
pub use file::{Error, History, Skipped, append, read};
pub use filter::{Filter, Found};
pub use record::{Case, Figure, Machine, Parity, Record, SCHEMA, Settings, Verdict};
