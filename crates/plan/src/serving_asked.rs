//! Settings for several callers: their number or rate, and how they are served.

use protocol::{Arrivals, Load, Search, Serve};
use serde::{Deserialize, Serialize};

use crate::{Failure, Result};

/// Most callers with a request in progress, if requests come at random.
const MOST_CALLERS: usize = 64;
/// Requests of a turn if they come at random: those of so many seconds, and at most `MOST`.
const SECONDS: f64 = 2.0;
const MOST: usize = 4096;

/// Default number of requests of a turn: for each caller, and at least in all.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Usual {
    pub(crate) each: usize,
    pub(crate) least: usize,
}

/// Settings for several callers.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct ServingAsked {
    /// Numbers of callers that each make a request when their last is answered.
    pub callers: Vec<u32>,
    /// Requests a second at random times.
    pub rate: Vec<u32>,
    /// Requests of a turn.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub requests: Option<u32>,
    /// How they are served, a column for each; if empty, by one shared model.
    pub serve: Vec<Serve>,
    /// The limit for 99 of 100 answers at the highest rate, which is searched for; microseconds.
    pub slo_us: Option<u64>,
}

impl ServingAsked {
    pub fn is_default(&self) -> bool {
        *self == ServingAsked::default()
    }

    /// Whether there are callers besides the one of every comparison.
    pub fn has_callers(&self) -> bool {
        !self.callers.is_empty() || !self.rate.is_empty()
    }

    /// Whether that makes several comparisons.
    pub fn is_study(&self) -> bool {
        self.callers.len() > 1 || self.rate.len() > 1
    }

    /// When requests come, if there are several callers.
    pub(crate) fn load(&self, usual: Usual, seed: u64) -> Result<Option<Load>> {
        if self.slo_us.is_some() && !self.rate.is_empty() {
            return Err(Failure::usage("--slo finds the highest rate itself: leave --rate out"));
        }
        if !self.has_callers() && self.slo_us.is_none() {
            return match self.is_default() {
                true => Ok(None),
                false => Err(Failure::usage(
                    "--serve and --requests say how callers are served: add --callers, --rate or --slo",
                )),
            };
        }
        let is_closed = self.slo_us.is_none() && self.rate.is_empty();
        let callers = self.callers.first().map_or(MOST_CALLERS, |&callers| callers as usize);
        let requests = match (self.requests, self.rate.first()) {
            (Some(asked), _) => asked as usize,
            (None, Some(&rate)) => ((f64::from(rate) * SECONDS) as usize).clamp(usual.least, MOST),
            (None, None) if is_closed => (usual.each * callers).clamp(usual.least, MOST),
            // The search decides how many requests it makes.
            (None, None) => usual.least,
        };
        Ok(Some(Load {
            callers,
            requests,
            arrivals: self.rate.first().map(|&rate| Arrivals { rate: f64::from(rate), seed }),
            search: self.slo_us.map(|limit_us| Search { limit_ns: limit_us * 1000, seed }),
        }))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_turn_holds_several_requests_of_each_caller_or_those_of_some_seconds() {
        let usual = Usual { each: 8, least: 32 };
        let requests = |callers: &[u32], rate: &[u32]| {
            let asked =
                ServingAsked { callers: callers.to_vec(), rate: rate.to_vec(), ..ServingAsked::default() };
            asked.load(usual, 1).unwrap().map(|load| load.requests)
        };
        assert_eq!(requests(&[], &[]), None);
        let counts = [
            requests(&[1], &[]),
            requests(&[16], &[]),
            requests(&[], &[1]),
            requests(&[], &[100]),
            requests(&[], &[9999]),
        ];
        assert_eq!(counts.map(Option::unwrap), [32, 128, 32, 200, 4096]);
        let alone = ServingAsked { serve: vec![Serve::Pool(2)], ..ServingAsked::default() };
        assert!(alone.load(usual, 1).unwrap_err().to_string().contains("add --callers, --rate or --slo"));
    }
}
