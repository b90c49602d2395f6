//! What the check knows of one kind of work. It asks for continuation alone.

pub(crate) mod events;
pub(crate) mod generate;
