mod common;
mod concurrency;
mod file;
mod filter;
