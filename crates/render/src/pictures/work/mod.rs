//! Charts of one kind of work alone.

pub(crate) mod generate;
