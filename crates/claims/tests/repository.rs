//! The claims of this repository, their results and their page.

use std::path::{Path, PathBuf};

use claims::claim::{self, Claim};
use claims::{judged, kept, page};

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

fn all() -> Vec<Claim> {
    claim::read_all(&root()).unwrap()
}

#[test]
fn the_page_is_what_the_results_say() {
    let shown = std::fs::read_to_string(root().join(page::PAGE)).unwrap();
    let made = claims::page(&root()).unwrap();
    assert_eq!(shown, made, "`cargo xtask claims --from-results` makes it again");
}

#[test]
fn every_claim_has_a_section_with_its_commands() {
    let claims = all();
    let numbers: Vec<u32> = claims.iter().map(|claim| claim.number).collect();
    assert_eq!(numbers, (1..=claims.len() as u32).collect::<Vec<_>>());
    let made = claims::page(&root()).unwrap();
    for claim in &claims {
        assert!(made.contains(&format!("\n## {}. {}\n", claim.number, claim.title)), "{}", claim.title);
        assert!(!claim.runs.is_empty());
        for run in &claim.runs {
            assert!(made.contains(&format!("\n{}\n", run.command)), "{}", run.command);
        }
    }
}

/// A file without its claim would never be looked at again.
#[test]
fn every_result_is_that_of_a_run() {
    let results = root().join(kept::RESULTS);
    let names = |directory: &Path| -> Vec<String> {
        let entries = std::fs::read_dir(directory).into_iter().flatten().flatten();
        entries.map(|entry| entry.file_name().into_string().unwrap()).collect()
    };
    let claims = all();
    for number in names(&results) {
        let claim = claims.iter().find(|claim| claim.directory() == number);
        let claim = claim.unwrap_or_else(|| panic!("{number} is no claim"));
        for run in names(&results.join(&number)) {
            assert!(claim.run(&run).is_some(), "claim {number} has no run {run}");
        }
    }
}

#[test]
fn what_is_kept_can_be_read_and_is_small() {
    const MOST: u64 = 400_000;
    for claim in &all() {
        judged::judge(&root(), claim).unwrap();
        for run in &claim.runs {
            let size = size(&root().join(kept::directory(claim, run)));
            assert!(size <= MOST, "claim {}, {}: {size} bytes", claim.number, run.name);
        }
    }
}

fn size(directory: &Path) -> u64 {
    let entries = std::fs::read_dir(directory).into_iter().flatten().flatten();
    entries
        .map(|entry| match entry.file_type().unwrap().is_dir() {
            true => size(&entry.path()),
            false => entry.metadata().unwrap().len(),
        })
        .sum()
}
