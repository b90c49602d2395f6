//! Figures of two contenders, from the verdict on the pair.

use judge::Metric;
use judge::report::verdicts::Verdict;
use judge::study::Cell;
use statistics::MIN_ROUNDS;

use crate::cells::row;
use crate::found::{Found, Interval, Outcome};

/// How many times better `a` is than `b`, with its 95 % interval.
pub(crate) fn advantage(cell: &Cell, a: &str, b: &str, metric: Metric) -> Outcome {
    // If a contender has no figures, its reason is returned first.
    row(cell, a)?;
    row(cell, b)?;
    let is_pair = |x: &str, y: &str| (x == a && y == b) || (x == b && y == a);
    let found = cell.verdicts.iter().find(|found| found.metric == metric && is_pair(&found.a, &found.b));
    let found = found.ok_or_else(|| format!("there is no verdict on {} of {a} and {b}", metric.words()))?;
    if found.verdict == Verdict::NotMeasurable {
        return Err(format!("the machine was too noisy for a verdict on {}", metric.words()));
    }
    let (Some(advantage), Some(bounds)) = (found.advantage, found.interval) else {
        return Err(match cell.rounds {
            rounds if rounds < MIN_ROUNDS => {
                format!("too few rounds: {rounds}, and an interval takes {MIN_ROUNDS}")
            }
            _ => format!("there is no interval of {}", metric.words()),
        });
    };
    let better = Found { value: advantage, interval: Some(Interval { bounds, is_confidence: true }) };
    Ok(if found.a == a { better } else { better.map(|times| 1.0 / times) })
}

/// One advantage ÷ another of other rounds: their errors on the logarithmic scale are independent, so their squares add
/// up.
pub(crate) fn quotient(large: Found, small: Found) -> Found {
    let half = |found: Found| {
        let (low, high) = found.interval?.bounds;
        Some((high.ln() - low.ln()) / 2.0)
    };
    let value = large.value / small.value;
    let interval = half(large).zip(half(small)).map(|(large, small)| {
        let factor = large.hypot(small).exp();
        Interval { bounds: (value / factor, value * factor), is_confidence: true }
    });
    Found { value, interval }
}

#[cfg(test)]
mod tests {
    use judge::report::verdicts::Comparison;

    use super::*;
    use crate::testing::{cell, row};

    fn pair(verdict: Verdict, interval: Option<(f64, f64)>) -> Cell {
        let mut cell = cell(&[]);
        cell.rows = vec![row("fast"), row("slow")];
        cell.verdicts.push(Comparison {
            metric: Metric::Throughput,
            a: "fast".into(),
            b: "slow".into(),
            verdict,
            reason: None,
            advantage: Some(4.0),
            interval,
            statistics: None,
        });
        cell
    }

    #[test]
    fn an_advantage_is_turned_to_the_contender_that_is_asked_for() {
        let cell = pair(Verdict::Faster, Some((2.0, 8.0)));
        let found = advantage(&cell, "fast", "slow", Metric::Throughput).unwrap();
        assert_eq!((found.value, found.interval.unwrap().bounds), (4.0, (2.0, 8.0)));
        let turned = advantage(&cell, "slow", "fast", Metric::Throughput).unwrap();
        assert_eq!((turned.value, turned.interval.unwrap().bounds), (0.25, (0.125, 0.5)));
    }

    #[test]
    fn what_has_no_interval_says_why() {
        let mut few = pair(Verdict::Inconclusive, None);
        few.rounds = 2;
        let reason = |cell: &Cell| advantage(cell, "fast", "slow", Metric::Throughput).unwrap_err();
        assert!(reason(&few).starts_with("too few rounds: 2"), "{}", reason(&few));
        assert!(reason(&pair(Verdict::NotMeasurable, None)).contains("too noisy"));
        assert!(advantage(&few, "fast", "other", Metric::Throughput).unwrap_err().contains("other was not"));
    }

    #[test]
    fn a_growth_is_less_certain_than_either_advantage() {
        let found = |value: f64, factor: f64| Found {
            value,
            interval: Some(Interval { bounds: (value / factor, value * factor), is_confidence: true }),
        };
        let growth = quotient(found(20.0, 3f64.exp()), found(10.0, 4f64.exp()));
        let (low, high) = growth.interval.unwrap().bounds;
        assert_eq!(growth.value, 2.0);
        assert!((low.ln() - (2f64.ln() - 5.0)).abs() < 1e-9 && (high.ln() - (2f64.ln() + 5.0)).abs() < 1e-9);
    }
}
