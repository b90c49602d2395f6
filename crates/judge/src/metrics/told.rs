//! The words that a metric brings for its differences.

/// The form in which the size of a difference is given.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Amount {
    /// More: "18 %" below 1.5 times, "1.9x" from there on.
    Times,
    /// A saving: "21 %".
    Less,
}

/// The words of a metric: "a DOES 18 % HOW than b", "a MOST", "a and b EQUAL"; and after the metric was named, "18 %
/// BRIEF than b".
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Told {
    pub(super) does: &'static str,
    pub(super) how: &'static str,
    pub(super) brief: &'static str,
    pub(super) most: &'static str,
    pub(super) equal: &'static str,
}
