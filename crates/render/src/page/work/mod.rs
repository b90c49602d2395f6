//! What the page shows of one kind of work alone.

pub(super) mod generate;
