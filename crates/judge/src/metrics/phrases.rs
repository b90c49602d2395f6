//! The words of a metric for its differences.

/// The words of a metric: "a VERB", "a VERB COMPARATIVE than b", "a SUPERLATIVE", "a and b EQUAL".
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Phrases {
    pub verb: &'static str,
    pub comparative: &'static str,
    pub superlative: &'static str,
    pub equal: &'static str,
}
