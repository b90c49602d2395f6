//! What is said of one kind of work alone.

pub(super) mod hybrid;
