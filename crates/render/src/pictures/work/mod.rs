//! Charts for one kind of work only.

pub(crate) mod generate;
