//! What people and programs get of a report: tables, Markdown, CSV, pages, pictures.
//!
//! Everything is a function from a value of `judge` or `history` to text, or to the names and bytes of files. No file
//! is opened here, no clock is read and nothing is judged: whoever calls writes what comes back.

pub mod comparison;
pub mod history;
pub mod layer_parity;
pub mod page;
mod pictures;
pub mod regression;
pub mod study;
pub mod table;
#[cfg(test)]
mod testing;
mod words;

/// The forms of an answer that has no page.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Format {
    Table,
    Json,
    Markdown,
    Csv,
}
