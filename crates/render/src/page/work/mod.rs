//! The parts of the page that one kind of work alone has.

pub(super) mod generate;
