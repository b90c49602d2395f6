//! The driver as people and scripts meet it: arguments in, table, files and exit code out.
#![expect(clippy::disallowed_methods, reason = "these tests are about processes")]

mod cache;
mod chat;
mod check;
mod common;
mod denoise;
mod dry_run;
mod encoders;
mod foreign_text;
mod gpu;
mod graphs;
mod history;
mod hostile;
mod input;
mod kills;
mod kinds;
mod page;
mod parity;
mod pipeline;
#[cfg(target_os = "linux")]
mod profile;
mod references;
mod report;
mod sampling;
mod schema;
mod servers;
mod serving;
#[cfg(target_os = "linux")]
mod set_up;
mod speech;
mod studies;
mod trace;
mod trust;
mod turns;
mod worker_check;

#[test]
fn cargo_run_of_the_package_starts_photofinish_and_no_program_for_tests() {
    let manifest: toml::Table = include_str!("../../Cargo.toml").parse().unwrap();
    assert_eq!(manifest["package"]["default-run"].as_str(), Some("photofinish"));
}
