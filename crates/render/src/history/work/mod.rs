//! Fields of records that only one kind of work has.

pub(super) mod generate;
