//! One test binary for the whole crate: its parts share the models that they bend out of shape.

mod architectures;
mod command_line;
mod common;
mod directory;
mod fuzz;
mod gguf;
mod hub;
mod refusals;
mod store;
mod synthetic;
mod tokenizer;
