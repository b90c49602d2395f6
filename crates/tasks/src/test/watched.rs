//! Reads the output of `cargo test`: counts of tests, and the time of each package.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::time::Duration;

use serde::Deserialize;

/// Counts of tests. A step that is no test counts only where it fails or is left out.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
pub(super) struct Tally {
    pub(super) passed: usize,
    pub(super) failed: usize,
    pub(super) skipped: usize,
}

impl Tally {
    pub(super) fn add(&mut self, other: Self) {
        self.passed += other.passed;
        self.failed += other.failed;
        self.skipped += other.skipped;
    }
}

impl std::fmt::Display for Tally {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{} passed, {} failed, {} skipped", self.passed, self.failed, self.skipped)
    }
}

/// The facts in the output of `cargo test`.
#[derive(Default)]
pub(super) struct Watched {
    pub(super) tally: Tally,
    /// Packages with a test that failed.
    pub(super) failed: BTreeSet<String>,
    pub(super) took: BTreeMap<String, Duration>,
    /// Packages by the names of their test programs.
    programs: BTreeMap<String, String>,
    /// The package that is being tested, and since when.
    running: Option<(String, Duration)>,
}

/// A message of cargo's on something that it has built.
#[derive(Deserialize)]
struct Artifact {
    package_id: String,
    executable: Option<PathBuf>,
}

impl Watched {
    /// Reads a line that was printed so long after the start; whether to show it.
    pub(super) fn read(&mut self, line: &str, at: Duration) -> bool {
        if line.starts_with("{\"reason\":") {
            if let Ok(Artifact { package_id, executable: Some(program) }) = serde_json::from_str(line) {
                self.programs.insert(stem(&program), name_of(&package_id).to_owned());
            }
            return false;
        }
        // `     Running unittests src/lib.rs (target/release/deps/judge-0f3a)`
        if let Some((_, program)) =
            line.trim_start().strip_prefix("Running ").and_then(|rest| rest.split_once('('))
        {
            self.end(at);
            let package = self.programs.get(&stem(Path::new(program.trim_end_matches(')')))).cloned();
            self.running = Some((package.unwrap_or_default(), at));
        } else if let Some(result) = parse_result(line) {
            self.tally.add(result);
            if result.failed > 0 {
                self.failed.extend(self.running.as_ref().map(|(package, _)| package.clone()));
            }
        }
        true
    }

    pub(super) fn end(&mut self, at: Duration) {
        if let Some((package, since)) = self.running.take() {
            *self.took.entry(package).or_default() += at.saturating_sub(since);
        }
    }
}

fn stem(program: &Path) -> String {
    program.file_stem().unwrap_or_default().to_string_lossy().into_owned()
}

/// The package's name in cargo's identifier: `path+file:///photofinish/crates/judge#0.1.0`, `…/gguf#reference-gguf@0.1.0`.
fn name_of(package_id: &str) -> &str {
    let (place, version) = package_id.rsplit_once('#').unwrap_or((package_id, ""));
    version.split_once('@').map_or_else(|| place.rsplit('/').next().unwrap_or(place), |(name, _)| name)
}

/// `test result: ok. 3 passed; 0 failed; 1 ignored; 0 measured; 2 filtered out; finished in 0.00s`
fn parse_result(line: &str) -> Option<Tally> {
    let counts = line.trim().strip_prefix("test result: ")?;
    let count = |word: &str| {
        counts.split([';', '.']).find_map(|part| part.trim().strip_suffix(word)?.trim().parse::<usize>().ok())
    };
    Some(Tally { passed: count("passed")?, failed: count("failed")?, skipped: count("ignored")? })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn results_of_the_test_harness_are_read() {
        let ok =
            "test result: ok. 3 passed; 0 failed; 1 ignored; 0 measured; 2 filtered out; finished in 0.00s";
        assert_eq!(parse_result(ok), Some(Tally { passed: 3, failed: 0, skipped: 1 }));
        let failed = "test result: FAILED. 12 passed; 2 failed; 0 ignored; 0 measured; 0 filtered out; finished in 1.50s";
        assert_eq!(parse_result(failed), Some(Tally { passed: 12, failed: 2, skipped: 0 }));
        assert_eq!(parse_result("test tests::result ... ok"), None);
    }

    #[test]
    fn tests_are_timed_and_counted_by_package() {
        let mut watched = Watched::default();
        let at = Duration::from_secs;
        let artifact = |id: &str, program: &str| {
            format!(
                r#"{{"reason":"compiler-artifact","package_id":"{id}","executable":"/t/deps/{program}"}}"#
            )
        };
        assert!(!watched.read(&artifact("path+file:///p/crates/judge#0.1.0", "judge-1"), at(0)));
        assert!(
            !watched.read(&artifact("path+file:///p/references/gguf#reference-gguf@0.1.0", "all-2"), at(0))
        );
        assert!(watched.read("     Running unittests src/lib.rs (target/release/deps/judge-1)", at(1)));
        let result =
            "test result: ok. 3 passed; 0 failed; 0 ignored; 0 measured; 0 filtered out; finished in 0.00s";
        watched.read(result, at(2));
        watched.read("     Running tests/all/main.rs (target/release/deps/all-2)", at(4));
        watched.read(&result.replace("0 failed", "2 failed"), at(5));
        watched.end(at(9));
        assert_eq!(watched.tally, Tally { passed: 6, failed: 2, skipped: 0 });
        assert_eq!(watched.took, BTreeMap::from([("judge".into(), at(3)), ("reference-gguf".into(), at(5))]));
        assert_eq!(watched.failed, BTreeSet::from(["reference-gguf".to_owned()]));
    }
}
