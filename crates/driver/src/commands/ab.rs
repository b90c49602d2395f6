//! `photofinish ab`: each framework with an optimisation and without it.

use plan::Result;

use super::{compare, study};
use crate::cli::AbArgs;

pub(crate) fn ab(args: &AbArgs) -> Result<u8> {
    compare::no_text(&args.compare)?;
    let options = study::Options::new(&args.compare, args.resume.clone());
    study::run(&args.study(), &study::Options { part: args.cells, ..options })
}
