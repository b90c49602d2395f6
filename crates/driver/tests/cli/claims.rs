//! The command line accepts the commands of the published claims.

use std::path::Path;

use crate::common::{Ran, photofinish};

#[test]
fn every_command_of_a_claim_is_a_study_that_can_be_planned() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    for claim in std::fs::read_dir(root.join("configs/claims")).unwrap() {
        let claim: toml::Table = std::fs::read_to_string(claim.unwrap().path()).unwrap().parse().unwrap();
        for run in claim["run"].as_array().unwrap() {
            let command = run["command"].as_str().unwrap();
            let mut plan = photofinish(command.strip_prefix("photofinish ").unwrap());
            let ran = Ran::output_of(plan.args(["--dry-run", "--configs"]).arg(root.join("configs")));
            assert_eq!(ran.code, Some(0), "{command}: {}", ran.stderr);
        }
    }
}
