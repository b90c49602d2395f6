//! Units of figures, and how a figure is written.

use judge::report::number;
use serde::Deserialize;

#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Unit {
    /// A ratio: "16.3x".
    Times,
    /// A share, read as a fraction and written in percent: 0.45 is "45 %".
    Percent,
    /// A plain number, such as an exponent or a perplexity.
    Plain,
    Seconds,
    Milliseconds,
    /// 10⁶ bytes, read in bytes.
    Megabytes,
    /// 10⁹ bytes, read in gigabytes as in the metrics.
    Gigabytes,
    TokensPerSecond,
    Tokens,
}

impl Unit {
    /// "16.3x".
    pub(crate) fn text(self, value: f64) -> String {
        format!("{}{}", self.bare(value), self.suffix())
    }

    /// "16.3x (15.1 to 17.2)".
    pub(crate) fn bounds(self, (low, high): (f64, f64)) -> String {
        format!("{} to {}", self.bare(low), self.bare(high))
    }

    /// The value at which there is no effect; none where the unit has no such value.
    pub(crate) fn no_effect(self) -> Option<f64> {
        match self {
            Unit::Times => Some(1.0),
            Unit::Percent => Some(0.0),
            _ => None,
        }
    }

    /// A value as its figure is written: percent of a share, megabytes of bytes.
    pub(crate) fn shown(self, value: f64) -> f64 {
        match self {
            Unit::Percent => 100.0 * value,
            Unit::Megabytes => value / 1e6,
            _ => value,
        }
    }

    fn bare(self, value: f64) -> String {
        match self {
            Unit::Tokens => format!("{value:.0}"),
            _ => number(self.shown(value)),
        }
    }

    fn suffix(self) -> &'static str {
        match self {
            Unit::Times => "x",
            Unit::Percent => " %",
            Unit::Plain => "",
            Unit::Seconds => " s",
            Unit::Milliseconds => " ms",
            Unit::Megabytes => " MB",
            Unit::Gigabytes => " GB",
            Unit::TokensPerSecond => " tok/s",
            Unit::Tokens => " tokens",
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn figures_are_written_with_their_unit() {
        assert_eq!(Unit::Times.text(16.32), "16.3x");
        assert_eq!(Unit::Percent.text(-0.521), "-52.1 %");
        assert_eq!(Unit::Megabytes.text(37_748_736.0), "37.7 MB");
        assert_eq!(Unit::Times.bounds((9.5, 12.0)), "9.50 to 12.0");
    }
}
