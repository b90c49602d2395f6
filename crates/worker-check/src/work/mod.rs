//! The checks that depend on the kind of work. Only continuation is requested.

pub(crate) mod events;
pub(crate) mod generate;
