#[cfg(target_os = "linux")]
mod page_cache;
mod support;
mod tasks;
mod trace;
mod turns;
