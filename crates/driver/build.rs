//! Records for `--version` the commit, profile and target of this build.

use std::path::Path;

fn main() {
    let variable = |name: &str| std::env::var(name).unwrap_or_default();
    println!("cargo::rustc-env=BUILD_PROFILE={}", variable("PROFILE"));
    println!("cargo::rustc-env=BUILD_TARGET={}", variable("TARGET"));
    println!("cargo::rustc-env=BUILD_COMMIT={}", commit().unwrap_or_else(|| "unknown".into()));
    println!("cargo::rerun-if-changed=build.rs");
}

/// The first digits of the commit of the checkout. `None` for sources that are in none.
fn commit() -> Option<String> {
    // Only git knows how its references are stored.
    #[expect(clippy::disallowed_methods, reason = "build scripts may start git")]
    let git = |arguments: &[&str]| {
        let output = std::process::Command::new("git").args(arguments).output().ok()?;
        let text = String::from_utf8(output.stdout).ok()?;
        output.status.success().then(|| text.trim().to_owned())
    };
    let log = git(&["rev-parse", "--git-path", "logs/HEAD"])?;
    // Every commit and checkout adds a line to it.
    if Path::new(&log).is_file() {
        println!("cargo::rerun-if-changed={log}");
    }
    git(&["rev-parse", "--short=8", "HEAD"])
}
