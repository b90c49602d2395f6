//! The words of a metric for its differences.

/// The form of the size of a difference.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Amount {
    /// More: "18 %" below 1.5 times, "1.9x" from there on.
    Times,
    /// A saving: "21 %".
    Less,
}

/// The words of a metric: "a VERB 18 % COMPARATIVE than b", "a SUPERLATIVE", "a and b EQUAL"; and after the
/// metric was named, "18 % SHORT than b".
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Phrases {
    pub verb: &'static str,
    pub comparative: &'static str,
    pub short: &'static str,
    pub superlative: &'static str,
    pub equal: &'static str,
}
