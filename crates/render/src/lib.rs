//! Turns a report into output for people and programs: tables, Markdown, CSV, pages, pictures.
//!
//! Every function turns a value of `judge` or `history` into text, or into names and bytes of files. Nothing here opens
//! a file, reads a clock or judges; the caller writes the result.

mod charts;
mod cite;
pub mod combined;
#[cfg(test)]
mod documents;
mod export;
mod flat;
pub mod history;
pub mod layer_parity;
pub mod page;
mod pictures;
pub mod regression;
pub mod result;
pub mod study;
pub mod table;
#[cfg(test)]
mod testing;
pub mod trace;
mod trends;
mod words;

pub use cite::cited;
pub use export::{Csv, Document, Exporter, Format, JsonText, Markdown, export};
