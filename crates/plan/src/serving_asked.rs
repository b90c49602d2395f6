//! What is asked of callers: how many there are or when they come, and how they are served.

use protocol::{Arrivals, Load, Search, Serve};
use serde::{Deserialize, Serialize};

use crate::{Failure, Result};

/// Callers of which each may have a request under way, where requests come at random.
const MOST_CALLERS: usize = 64;
/// Requests of a turn: for each caller, and in all at least; where they come at random those of so many seconds, and at
/// most.
const EACH: usize = 8;
const LEAST: usize = 32;
const SECONDS: f64 = 2.0;
const MOST: usize = 4096;

/// Settings for several callers.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct ServingAsked {
    /// Numbers of callers that each make a request when their last is answered.
    pub callers: Vec<u32>,
    /// Requests a second that come at random.
    pub rate: Vec<u32>,
    /// How they are served, a column for each; if empty, by one shared model.
    pub serve: Vec<Serve>,
    /// The limit within which 99 of 100 answers have to come at the highest rate, which is searched for; microseconds.
    pub slo_us: Option<u64>,
}

impl ServingAsked {
    pub fn is_default(&self) -> bool {
        *self == ServingAsked::default()
    }

    /// Whether there are callers, beside the one that each comparison has.
    pub fn has_callers(&self) -> bool {
        !self.callers.is_empty() || !self.rate.is_empty()
    }

    /// Whether that makes several comparisons.
    pub fn is_study(&self) -> bool {
        self.callers.len() > 1 || self.rate.len() > 1
    }

    /// When requests come, where there are several callers.
    pub(crate) fn load(&self, seed: u64) -> Result<Option<Load>> {
        if let Some(limit_us) = self.slo_us {
            if !self.rate.is_empty() {
                return Err(Failure::usage("--slo finds the highest rate itself: leave --rate out"));
            }
            let callers = self.callers.first().map_or(MOST_CALLERS, |&callers| callers as usize);
            let search = Some(Search { limit_ns: limit_us * 1000, seed });
            return Ok(Some(Load { callers, arrivals: None, search }));
        }
        match (self.callers.first(), self.rate.first()) {
            (None, None) if self.serve.is_empty() => Ok(None),
            (None, None) => {
                Err(Failure::usage("--serve says how callers are served: add --callers, --rate or --slo"))
            }
            (Some(&callers), None) => {
                Ok(Some(Load { callers: callers as usize, arrivals: None, search: None }))
            }
            (callers, Some(&rate)) => {
                let callers = callers.map_or(MOST_CALLERS, |&callers| callers as usize);
                let arrivals = Some(Arrivals { rate: f64::from(rate), seed });
                Ok(Some(Load { callers, arrivals, search: None }))
            }
        }
    }
}

/// Requests of a turn, where their number is not asked for.
pub(crate) fn requests(load: Load) -> usize {
    let usual = match load.arrivals {
        // The search decides how many it makes.
        None if load.search.is_some() => LEAST,
        None => EACH * load.callers,
        Some(Arrivals { rate, .. }) => (rate * SECONDS) as usize,
    };
    usual.clamp(LEAST, MOST)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_turn_holds_several_requests_of_each_caller_or_those_of_some_seconds() {
        let load = |callers: &[u32], rate: &[u32]| {
            let asked =
                ServingAsked { callers: callers.to_vec(), rate: rate.to_vec(), ..ServingAsked::default() };
            asked.load(1).unwrap()
        };
        assert_eq!(load(&[], &[]), None);
        let counts =
            [load(&[1], &[]), load(&[16], &[]), load(&[], &[1]), load(&[], &[100]), load(&[], &[9999])];
        assert_eq!(counts.map(|load| requests(load.unwrap())), [32, 128, 32, 200, 4096]);
        let alone = ServingAsked { serve: vec![Serve::Pool(2)], ..ServingAsked::default() };
        assert!(alone.load(1).unwrap_err().to_string().contains("add --callers, --rate or --slo"));
    }
}
