//! The words that a metric brings for its differences.

/// The form in which the size of a difference is given.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Amount {
    /// More: "18 %" below 1.5 times, "1.9x" from there on.
    Times,
    /// A saving: "21 %".
    Less,
}

/// The words of a metric: "a DOES 18 % HOW than b", "a MOST", "a and b EQUAL"; and after the metric was named, "18 %
/// BRIEF than b".
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Told {
    pub does: &'static str,
    pub how: &'static str,
    pub brief: &'static str,
    pub most: &'static str,
    pub equal: &'static str,
}
