//! The thresholds: how much worse each metric may become.

use crate::metrics::Metric;

const DEFAULT_THRESHOLD: f64 = 0.05;

/// Every metric.
pub const ALL: &str = "all";

/// A threshold for one metric, or for all.
#[derive(Debug, Clone, PartialEq)]
pub struct Threshold {
    pub metric: Option<String>,
    pub share: f64,
}

/// Thresholds by metric.
#[derive(Debug, Clone)]
pub struct Thresholds(pub Vec<Threshold>);

impl Thresholds {
    /// One threshold for all metrics.
    pub fn all(share: f64) -> Thresholds {
        Thresholds(vec![Threshold { metric: None, share }])
    }

    /// The threshold of a metric, as a share.
    pub fn share(&self, metric: &str) -> f64 {
        let last = |of: Option<&str>| self.0.iter().rev().find(|threshold| threshold.metric.as_deref() == of);
        last(Some(metric)).or_else(|| last(None)).map_or(DEFAULT_THRESHOLD, |threshold| threshold.share)
    }
}

/// Reads "5%" or "METRIC=5%".
pub fn parse_threshold(text: &str) -> Result<Threshold, String> {
    match text.split_once('=') {
        None => Ok(Threshold { metric: None, share: parse_share(text)? }),
        Some((metric, share)) => {
            Ok(Threshold { metric: Some(parse_metric(metric)?), share: parse_share(share)? })
        }
    }
}

/// "5%" or "5".
pub fn parse_share(text: &str) -> Result<f64, String> {
    match text.trim().trim_end_matches('%').trim_end().parse::<f64>() {
        Ok(percent) if (0.0..=1000.0).contains(&percent) => Ok(percent / 100.0),
        _ => Err("a number of percent from 0 to 1000, as in 5%".into()),
    }
}

/// The key of the metric with this name, or [`ALL`].
pub fn parse_metric(text: &str) -> Result<String, String> {
    match Metric::parse(text) {
        Some(metric) => Ok(metric.name().to_owned()),
        None if text.trim() == ALL => Ok(ALL.to_owned()),
        None => {
            let names: Vec<String> = Metric::ALL.into_iter().map(Metric::flag).collect();
            Err(format!("there are {}, and {ALL}", names.join(", ")))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_metric_may_have_a_threshold_of_its_own() {
        let thresholds = ["5%", "load=20%", "peak-memory=1.5"].map(|text| parse_threshold(text).unwrap());
        let thresholds = Thresholds(thresholds.into());
        assert_eq!((thresholds.share("latency"), thresholds.share("load")), (0.05, 0.2));
        assert_eq!(thresholds.share("peak_memory"), 0.015);
        assert!(parse_threshold("speed=3%").unwrap_err().contains("throughput"));
        assert!(parse_threshold("-1%").is_err() && parse_threshold("load").is_err());
    }

    #[test]
    fn a_threshold_for_one_metric_leaves_the_others_theirs() {
        let thresholds = Thresholds(vec![parse_threshold("load=20%").unwrap()]);
        assert_eq!((thresholds.share("latency"), thresholds.share("load")), (0.05, 0.2));
    }
}
