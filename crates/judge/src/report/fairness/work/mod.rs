//! Checks for only one kind of work.

pub(super) mod cache;
