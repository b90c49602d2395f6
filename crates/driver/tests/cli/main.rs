//! The driver as people and scripts meet it: arguments in, table, files and exit code out.
#![expect(clippy::disallowed_methods, reason = "these tests are about processes")]

mod bundles;
#[cfg(target_os = "linux")]
mod cache;
mod chat;
mod check;
mod claims;
mod common;
mod denoise;
mod dry_run;
mod encoders;
#[cfg(unix)]
mod foreign_text;
#[cfg(unix)]
mod gpu;
mod graphs;
mod guessed;
mod history;
mod hostile;
mod input;
mod kills;
mod kinds;
mod mistakes;
mod optimised;
mod page;
mod parity;
mod parts;
mod pipeline;
#[cfg(target_os = "linux")]
mod profile;
#[cfg(unix)]
mod references;
mod report;
mod sampling;
mod schema;
mod serving;
#[cfg(target_os = "linux")]
mod set_up;
mod studies;
mod synthetic;
mod trace;
mod trust;
mod turns;
mod worker_check;

#[test]
fn cargo_run_of_the_package_starts_photofinish_and_no_program_for_tests() {
    let manifest: toml::Table = include_str!("../../Cargo.toml").parse().unwrap();
    assert_eq!(manifest["package"]["default-run"].as_str(), Some("photofinish"));
}
