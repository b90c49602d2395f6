//! `hub` alone and as `prepare` starts it, against a small part of the Hugging Face hub that runs here.

mod fetching;
mod preparing;
#[path = "../prepare/repository.rs"]
mod repository;
mod server;

use std::path::Path;

/// Names of the files in a directory, sorted.
fn entries(directory: &Path) -> Vec<String> {
    let entries = std::fs::read_dir(directory).unwrap();
    let mut names: Vec<_> = entries.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect();
    names.sort();
    names
}
