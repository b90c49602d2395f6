//! The commands of the published claims, as the command line takes them.

use std::path::Path;
use std::process::Command;

#[test]
fn every_command_of_a_claim_is_a_study_that_can_be_planned() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let scratch = tempfile::tempdir().unwrap();
    let claims = claims::claim::read_all(&root).unwrap();
    for claim in &claims {
        for run in &claim.runs {
            let mut plan = Command::new(assert_cmd::cargo::cargo_bin("photofinish"));
            plan.args(["plan", "--shards", "1", "--out"]).arg(scratch.path().join("plan.json")).arg("--");
            plan.args(run.words().unwrap()).arg("--configs").arg(root.join("configs"));
            let output = plan.output().unwrap();
            let reason = String::from_utf8_lossy(&output.stderr);
            assert!(output.status.success(), "claim {}, {}: {reason}", claim.number, run.command);
        }
    }
}
