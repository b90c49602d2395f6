//! The studies behind docs/evidence/claims.md are read by today's code as they were written.

use std::fs::File;
use std::path::Path;

use comparison::judge;
use flate2::read::GzDecoder;

#[test]
fn every_published_study_can_be_read() {
    let claims = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../results/published/claims");
    let mut count = 0;
    for archive in std::fs::read_dir(claims).unwrap() {
        let archive = File::open(archive.unwrap().path()).unwrap();
        for entry in tar::Archive::new(GzDecoder::new(archive)).entries().unwrap() {
            let entry = entry.unwrap();
            let name = entry.path().unwrap().display().to_string();
            if name.ends_with("report.json") {
                let text = std::io::read_to_string(entry).unwrap();
                let report = judge::study::read(&text).unwrap_or_else(|error| panic!("{name}: {error}"));
                let written = serde_json::to_string(&report).unwrap();
                assert_eq!(judge::study::read(&written), Ok(report), "{name}");
                count += 1;
            }
        }
    }
    assert!(count >= 15, "{count}");
}

#[test]
fn the_script_of_claims_names_as_many_rounds_as_an_interval_takes() {
    let script = include_str!("../../../tools/claims/claims.py");
    assert!(script.contains(&format!("\nMIN_ROUNDS = {}\n", statistics::MIN_ROUNDS)));
}
