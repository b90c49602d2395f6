//! Whether a change is a regression.

use serde::{Deserialize, Serialize};

/// The class of a change, given as "how many times worse": above 1 is worse.
#[derive(Serialize, Deserialize, Clone, Copy, Debug, PartialEq, Eq)]
#[serde(rename_all = "snake_case")]
pub enum Change {
    /// Certainly worse, and by more than the threshold.
    Regression,
    /// Certainly worse, by no more than the threshold.
    Worse,
    /// Certainly better.
    Better,
    /// Certainly within the threshold in either direction; not shown to have changed at all.
    Equivalent,
    /// None of these was shown.
    Inconclusive,
}

/// Classifies a change by its estimate, its 95 % interval, and whether it was shown to differ from 1.
///
/// A regression needs both conditions. *Significant* alone would fail a change of half a percent that twelve
/// steady rounds make certain; *beyond the threshold* alone would fail every noisy run. The estimate is
/// compared with the threshold, not the end of the interval nearer to 1: a change exactly as large as the
/// threshold is then found in half of the runs, and one of 8 % at a threshold of 5 % nearly always.
/// `Equivalent` means that the interval is within the margin (Schuirmann 1987; Westlake 1972), with the
/// threshold as the margin: a failing change has been ruled out.
pub fn classify(worse: f64, interval: (f64, f64), significant: bool, threshold: f64) -> Change {
    let most = 1.0 + threshold;
    if significant {
        return match worse {
            worse if worse > most => Change::Regression,
            worse if worse > 1.0 => Change::Worse,
            _ => Change::Better,
        };
    }
    if interval.0 >= most.recip() && interval.1 <= most { Change::Equivalent } else { Change::Inconclusive }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_regression_is_certain_and_beyond_the_threshold() {
        let classify = |worse, interval, significant| classify(worse, interval, significant, 0.05);
        assert_eq!(classify(1.08, (1.06, 1.10), true), Change::Regression);
        assert_eq!(classify(1.03, (1.02, 1.04), true), Change::Worse);
        assert_eq!(classify(1.08, (0.95, 1.20), false), Change::Inconclusive);
        assert_eq!(classify(0.90, (0.89, 0.91), true), Change::Better);
        assert_eq!(classify(1.01, (0.98, 1.04), false), Change::Equivalent);
        assert_eq!(classify(1.01, (0.94, 1.04), false), Change::Inconclusive, "1/1.05 is 0.952");
    }

    #[test]
    fn a_threshold_of_nothing_stops_whatever_is_certain() {
        assert_eq!(classify(1.001, (1.0005, 1.002), true, 0.0), Change::Regression);
    }
}
