//! Faults that keep a submission out of the collection.

use std::fmt;

use untrusted::Foreign;

/// One fault: where, what, and the remedy.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Problem {
    /// The submission's directory, by its name.
    pub entry: Foreign,
    /// The file in it; empty where it is about the directory.
    pub file: Foreign,
    pub what: Foreign,
    pub remedy: Foreign,
}

impl Problem {
    pub(crate) fn new(entry: &str, file: &str, what: impl AsRef<str>, remedy: impl AsRef<str>) -> Problem {
        let [what, remedy] = [what.as_ref(), remedy.as_ref()].map(Foreign::new);
        Problem { entry: entry.into(), file: file.into(), what, remedy }
    }
}

impl fmt::Display for Problem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Problem { entry, file, what, remedy } = self;
        let slash = if file.is_empty() { "" } else { "/" };
        write!(f, "{entry}{slash}{file}: {what}; {remedy}")
    }
}
