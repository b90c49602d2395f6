//! The claims of this repository, their results and their page.

use std::path::{Path, PathBuf};

use comparison::judge;
use evidence::claims;
use evidence::claims::claim::{self, Claim};
use evidence::claims::{judged, kept, page};

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
    for archive in names(&results) {
        let claim = claims.iter().find(|claim| kept::archive(claim).ends_with(&archive));
        let claim = claim.unwrap_or_else(|| panic!("{archive} is of no claim"));
        for run in names(kept::unpack(&results.join(&archive)).unwrap().path()) {
            assert!(claim.run(&run).is_some(), "{archive} has a run {run} of no claim");
        }
    }
}

#[test]
fn what_is_kept_can_be_read_and_is_small() {
    const MOST: u64 = 400_000;
    for claim in &all() {
        judged::judge(&root(), claim).unwrap();
        let unpacked = kept::unpack(&root().join(kept::archive(claim))).unwrap();
        for run in &claim.runs {
            let kept = kept::read(unpacked.path(), run).unwrap();
            if let Some(report) = kept.and_then(|kept| kept.report) {
                let written = serde_json::to_value(&report).unwrap();
                assert_eq!(judge::study::read(written), Ok(report), "claim {}, {}", claim.number, run.name);
            }
        }
        let size = std::fs::metadata(root().join(kept::archive(claim))).map_or(0, |found| found.len());
        assert!(size <= MOST, "claim {}: {size} bytes", claim.number);
    }
}
