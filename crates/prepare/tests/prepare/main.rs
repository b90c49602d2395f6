//! One test binary for the whole crate: its parts share the models that they bend out of shape.

mod architectures;
mod chat;
mod command_line;
mod common;
mod ctranslate2;
mod digests;
mod directory;
mod encoders;
mod gguf;
mod hub;
#[cfg(target_os = "linux")]
mod memory;
mod onnx;
mod refusals;
mod repository;
mod store;
mod synthetic;
mod tokenizer;
