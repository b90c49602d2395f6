//! Checks of what only one kind of work has.

pub(super) mod cache;
