//! Sentences about one kind of work alone.

pub(super) mod hybrid;
