//! `photofinish gate`: `check` between two commits of a framework.

use measure::native::failure;
use plan::{Failure, Result};
use setup::versions::Repository;

use super::check::check;
use crate::cli::{Command, GateArgs, first_line, spelling};

/// A pull request that costs as much is one that people want to know of, and default comparisons find it.
const THRESHOLD: &str = "3%";

pub(crate) fn gate(args: &GateArgs) -> Result<u8> {
    let repository = Repository::at(&args.checkout).map_err(|error| failure(&error))?;
    let version = |revision: &String| {
        let commit = repository.commit(revision).map_err(|error| failure(&error))?;
        Ok::<String, Failure>(repository.version(&commit))
    };
    let base = ["--base-version".to_owned(), version(&args.base)?];
    let head = args.head.as_ref().map(version).transpose()?.unwrap_or_else(|| repository.root().to_owned());
    let framework = &args.framework;
    let words = ["photofinish", "check", "--frameworks", &format!("{framework}@{head}")].map(str::to_owned);
    let has_threshold = args.check.iter().any(|word| word.starts_with("--threshold"));
    let threshold = (!has_threshold).then(|| ["--threshold".to_owned(), THRESHOLD.to_owned()]);
    let words = words.into_iter().chain(base).chain(threshold.into_iter().flatten());
    let parsed = spelling::parse(words.chain(args.check.iter().cloned()));
    match parsed.map_err(|error| Failure::usage(first_line(&error)))?.command {
        Some(Command::Check(args)) => check(&args),
        _ => Err(Failure::usage("gate takes flags of `photofinish check`")),
    }
}
