//! `photofinish prepare`: prepares models ahead of the runs that need them.

use measure::interrupt;
use measure::provision::{self, Wanted};
use plan::{CacheAsked, Result};

use crate::cli::PrepareArgs;
use crate::output::print;

pub(crate) fn prepare(args: &PrepareArgs) -> Result<u8> {
    interrupt::listen()?;
    let places = args.here.places.find()?;
    for model in &args.models {
        provision::find_model(&places, model)?;
    }
    provision::tools(&places, args.here.quiet)?;
    for model in &args.models {
        let wanted = Wanted {
            model,
            precisions: args.precision.clone(),
            reference: false,
            device: "cpu",
            cache: CacheAsked::default(),
            sequences: (1, 1),
        };
        let bundle = provision::model(&places, &wanted, args.here.quiet)?;
        print(&format!("{}\n", bundle.directory().display()))?;
    }
    Ok(0)
}
