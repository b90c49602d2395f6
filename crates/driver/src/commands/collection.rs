//! `photofinish collection`: checks the published results, and adds a run to them.

use ::collection::{Checked, Problem};
use plan::{Failure, Result};

use crate::cli::{CollectionArgs, CollectionCommand};
use crate::output::print;

pub(crate) fn collection(args: &CollectionArgs) -> Result<u8> {
    match &args.command {
        CollectionCommand::Check { directory } => {
            let checked = sound(::collection::check(directory)?)?;
            let retired = checked.entries.iter().filter(|entry| entry.retired.is_some()).count();
            let retired =
                if retired > 0 { format!(", {retired} under retired rules") } else { String::new() };
            print(&format!("{} results, all as their samples say{retired}\n", checked.entries.len()))?;
        }
        CollectionCommand::Add { archive, to } => {
            let name = ::collection::add(archive, to)?.map_err(|problems| refused(&problems))?;
            print(&format!("{}\n", to.join(name).display()))?;
        }
    }
    Ok(0)
}

/// The collection, if nothing is wrong with it.
pub(super) fn sound(checked: Checked) -> Result<Checked> {
    if checked.problems.is_empty() { Ok(checked) } else { Err(refused(&checked.problems)) }
}

/// Names every problem on a line of its own.
fn refused(problems: &[Problem]) -> Failure {
    for problem in problems {
        untrusted::say!("error: {}", untrusted::line(&problem.to_string()));
    }
    Failure::Spoken(1)
}
