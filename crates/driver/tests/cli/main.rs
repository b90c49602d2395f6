//! The driver as people and scripts meet it: arguments in, table, files and exit code out.

mod common;
mod input;
mod pipeline;
