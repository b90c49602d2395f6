//! `photofinish doctor`: lists what can run here, and how to make the rest run.

use measure::doctor;
use plan::Result;

use crate::cli::DoctorArgs;
use crate::output::print;

pub(crate) fn doctor(args: &DoctorArgs) -> Result<u8> {
    let found = doctor::examine(&args.places.find()?, args.deep)?;
    print(&untrusted::lines(&found.text()))?;
    Ok(if found.can_all_run() { 0 } else { 1 })
}
