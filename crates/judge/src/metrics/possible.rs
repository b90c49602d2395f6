//! Finds impossible figures in reports from elsewhere: no process within the limits of [`facts::impossible`]
//! has them.

use super::Metric;
use facts::impossible::{BYTES, DAY};

/// Most of any count per second: everything that a batch of a million sequences could do in a nanosecond, for
/// each byte of memory.
const MOST_A_SECOND: f64 = 1e24;

impl Metric {
    /// Whether a contender can have this figure.
    pub fn is_possible(self, figure: f64) -> bool {
        let most = match self.unit() {
            "s" => DAY as f64 / 1e9,
            "ms" => DAY as f64 / 1e6,
            "GB" => BYTES as f64 / 1e9,
            "MB" => BYTES as f64 / 1e6,
            "%" => 100.0,
            _ => MOST_A_SECOND,
        };
        // A worker may measure 0 for these.
        let may_be_zero = matches!(self, Metric::Startup | Metric::SamplerShare | Metric::PaddingShare);
        figure <= most && (figure > 0.0 || may_be_zero && figure == 0.0)
    }

    /// The error for the first impossible figure of a contender.
    pub(crate) fn check(
        self,
        framework: &str,
        figures: impl IntoIterator<Item = Option<f64>>,
    ) -> Result<(), String> {
        match figures.into_iter().flatten().find(|&figure| !self.is_possible(figure)) {
            None => Ok(()),
            Some(figure) => {
                Err(format!("{} of {framework} is {figure:?} {}, which cannot be", self.words(), self.unit()))
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_no_worker_can_have_had_is_told_from_what_one_can() {
        for metric in Metric::ALL {
            assert!([1e-9, 1.0, 100.0].into_iter().all(|figure| metric.is_possible(figure)), "{metric:?}");
            for figure in [-1.0, f64::NAN, f64::INFINITY, f64::NEG_INFINITY, 1e308] {
                assert!(!metric.is_possible(figure), "{metric:?}: {figure}");
            }
        }
        assert!(!Metric::Load.is_possible(0.0) && Metric::Startup.is_possible(0.0));
        assert!(Metric::PaddingShare.is_possible(0.0), "nothing is padded");
        assert!(!Metric::PeakMemory.is_possible(18_446_744_073.7), "2^64 bytes");
        let said = Metric::Latency.check("a", [None, Some(2.0), Some(1e308)]);
        assert_eq!(said.unwrap_err(), "latency of a is 1e308 ms, which cannot be");
    }
}
