//! `photofinish diff`: two runs from anywhere, side by side. It never refuses a pair; it prints what differs between
//! them.

use comparison::judge::records::HISTORY;
use comparison::judge::regression;
use comparison::plan::Result;

use super::check::{named, told};
use super::compare::results_dir;
use crate::cli::DiffArgs;

pub(crate) fn diff(args: &DiffArgs) -> Result<u8> {
    let places = args.places.find()?;
    let history = results_dir(args.results_dir.as_ref(), &places).join(HISTORY);
    let (a, b) = (named(&args.a, &history, &places)?, named(&args.b, &history, &places)?);
    told(&regression::diff(&a, &b, &args.metrics, args.margin), args.output, None)
}
