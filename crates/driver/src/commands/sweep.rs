//! `photofinish sweep`: repeats a comparison while one or several settings change.

use plan::Result;

use super::{compare, study};
use crate::cli::SweepArgs;

pub(crate) fn sweep(args: &SweepArgs) -> Result<u8> {
    compare::no_text(&args.compare)?;
    let options = study::Options::new(&args.compare, args.resume.clone());
    study::run(&args.study(), &study::Options { part: args.cells, ..options })
}
