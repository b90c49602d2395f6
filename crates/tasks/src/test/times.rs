//! Where the time of a test run went: steps by the clock, packages by cargo's timings and by when their tests ran.

use std::collections::BTreeMap;
use std::path::Path;
use std::time::{Duration, Instant};

use serde::Deserialize;

use super::packages::PACKAGES;

/// Seconds of the packages: compiling, and running the tests.
#[derive(Debug, Default)]
pub(super) struct Times {
    steps: Vec<(String, Duration)>,
    compiled: BTreeMap<String, f64>,
    tested: BTreeMap<String, Duration>,
}

/// A unit of cargo's timing report.
#[derive(Debug, Deserialize)]
struct Unit {
    name: String,
    duration: f64,
}

#[expect(clippy::disallowed_methods, reason = "people read how long a step took; it is no measurement")]
pub(super) fn now() -> Instant {
    Instant::now()
}

impl Times {
    pub(super) fn step(&mut self, name: &str, took: Duration) {
        self.steps.push((name.to_owned(), took));
    }

    pub(super) fn extend(&mut self, other: Self) {
        self.steps.extend(other.steps);
    }

    pub(super) fn tested(&mut self, package: &str, took: Duration) {
        *self.tested.entry(package.to_owned()).or_default() += took;
    }

    /// Adds the report that `cargo --timings` has just written below the target directory.
    pub(super) fn compiled(&mut self, target: &Path) {
        let report =
            std::fs::read_to_string(target.join("cargo-timings/cargo-timing.html")).unwrap_or_default();
        let Some(units) = units(&report) else {
            eprintln!(
                "warning: cargo's report of timings cannot be read; the seconds of compiling are missing"
            );
            return;
        };
        for Unit { name, duration } in units {
            *self.compiled.entry(name).or_default() += duration;
        }
    }

    /// One line a package of the workspace, one for all others, and one a step.
    pub(super) fn table(&self) -> String {
        self.table_of(&PACKAGES.iter().map(|package| package.name).collect::<Vec<_>>())
    }

    fn table_of(&self, members: &[&str]) -> String {
        let mut rows: Vec<(&str, f64, f64)> = members
            .iter()
            .map(|&name| {
                let tested = self.tested.get(name).map_or(0.0, Duration::as_secs_f64);
                (name, self.compiled.get(name).copied().unwrap_or_default(), tested)
            })
            .filter(|(_, compiled, tested)| compiled + tested >= 0.05)
            .collect();
        let others = self.compiled.iter().filter(|(name, _)| !members.contains(&name.as_str()));
        rows.push(("crates of others", others.map(|(_, seconds)| seconds).sum(), 0.0));
        rows.sort_by(|a, b| (b.1 + b.2).total_cmp(&(a.1 + a.2)));
        let mut text = format!("\n{:32}{:>12}{:>12}\n", "seconds", "compiling", "testing");
        for (name, compiled, tested) in &rows {
            text += &format!("{name:32}{compiled:>12.1}{tested:>12.1}\n");
        }
        let (compiled, tested) = rows.iter().fold((0.0, 0.0), |sum, row| (sum.0 + row.1, sum.1 + row.2));
        text += &format!("{:32}{compiled:>12.1}{tested:>12.1}\n", "all; cargo compiles in parallel");
        for (name, took) in &self.steps {
            text += &format!("{name:56}{:>.1}\n", took.as_secs_f64());
        }
        text
    }
}

/// The units of a report: cargo has them as JSON in the page's script.
fn units(report: &str) -> Option<Vec<Unit>> {
    let (_, rest) = report.split_once("const UNIT_DATA = ")?;
    let (json, _) = rest.split_once("];")?;
    serde_json::from_str(&format!("{json}]")).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn packages_come_by_the_time_they_take_and_others_are_one_line() {
        let directory = tempfile::tempdir().unwrap();
        std::fs::create_dir(directory.path().join("cargo-timings")).unwrap();
        let page = r#"x const UNIT_DATA = [
  {"i": 0, "name": "judge", "version": "0.1.0", "duration": 2.5, "target": " (test)"},
  {"i": 1, "name": "judge", "version": "0.1.0", "duration": 1.0},
  {"i": 2, "name": "serde", "version": "1", "duration": 9.0}
];
const CONCURRENCY_DATA = [];"#;
        std::fs::write(directory.path().join("cargo-timings/cargo-timing.html"), page).unwrap();
        let mut times = Times::default();
        times.compiled(directory.path());
        times.tested("judge", Duration::from_millis(500));
        times.step("formatting", Duration::from_secs(2));
        let table = times.table_of(&["judge", "plan"]);
        let words: Vec<&str> = table.split_whitespace().collect();
        assert!(words.windows(3).any(|three| three == ["judge", "3.5", "0.5"]), "{table}");
        assert!(words.windows(5).any(|five| five == ["crates", "of", "others", "9.0", "0.0"]), "{table}");
        assert!(words.windows(2).any(|two| two == ["formatting", "2.0"]), "{table}");
        assert!(!table.contains("plan") && table.find("others") < table.find("judge"), "{table}");
    }
}
