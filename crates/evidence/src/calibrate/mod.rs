pub mod kept;
pub mod simulated;

pub mod page;

pub mod recorded;

pub mod studies;

pub mod uneven;
