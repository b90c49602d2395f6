//! The command line accepts the commands of the published claims.

use std::path::Path;

use evidence::claims;

use crate::common::{Ran, photofinish};

#[test]
fn every_command_of_a_claim_is_a_study_that_can_be_planned() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let claims = claims::claim::read_all(&root).unwrap();
    for claim in &claims {
        for run in &claim.runs {
            let mut plan = photofinish("");
            plan.args(run.words().unwrap()).args(["--dry-run", "--configs"]).arg(root.join("configs"));
            let ran = Ran::output_of(&mut plan);
            assert_eq!(ran.code, Some(0), "claim {}, {}: {}", claim.number, run.command, ran.stderr);
        }
    }
}
