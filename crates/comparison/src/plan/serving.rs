//! Settings for several callers: their number or rate, and how they are served.

use clap::Args;
use protocol::{Arrivals, Load, Search, Serve};
use serde::{Deserialize, Serialize};

use crate::plan::{Failure, Result, flags};

/// The topic of its flags in the help, and their heading.
pub const TOPIC: (&str, &str) = ("serving", "Several callers");

/// Most callers with a request in progress, if requests come at random.
const MAX_CALLERS: usize = 64;

/// Requests of a turn if they come at random: those of so many seconds, and at most `MAX_REQUESTS`.
const TURN_SECONDS: f64 = 2.0;

const MAX_REQUESTS: usize = 4096;

/// Default number of requests of a turn: for each caller, and at least in all.
#[derive(Debug, Clone, Copy)]
pub(crate) struct UsualRequests {
    pub(crate) each: usize,
    pub(crate) least: usize,
}

/// Settings for several callers.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, Args)]
#[serde(default, deny_unknown_fields)]
pub struct ServingAsked {
    /// Callers, of which each makes a request for one text, one prompt or one run when its last is answered; several
    /// numbers are a study: 1,4,16,64
    #[arg(long, value_name = "N,…", value_delimiter = ',', value_parser = flags::count(1, 1024),
          help_heading = TOPIC.1, hide_short_help = true)]
    pub callers: Vec<u32>,
    /// Requests a second that come at random, whatever becomes of those before; latency counts from when they were due
    #[arg(long, value_name = "N,…", value_delimiter = ',', value_parser = flags::count(1, 100_000),
          help_heading = TOPIC.1, hide_short_help = true)]
    pub rate: Vec<u32>,
    /// Requests of a turn of callers [default: some for each caller; at a rate those of two seconds]
    #[arg(long, value_name = "N", value_parser = flags::count(1, 4096), help_heading = TOPIC.1,
          hide_short_help = true)]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub requests: Option<u32>,
    /// How callers are served, a column for each: shared (one model, a request at a time), pool:K (K models), or
    /// batch:B:W (up to B waiting requests at once; the first waits at most W for others) [default: shared]
    #[arg(long, value_name = "shared|pool:K|batch:B:W", value_delimiter = ',', help_heading = TOPIC.1,
          hide_short_help = true)]
    pub serve: Vec<Serve>,
    /// Find the highest rate at which 99 of 100 answers come within this time, such as 50ms
    #[arg(long = "slo", value_name = "TIME", value_parser = flags::limit, conflicts_with = "rate",
          help_heading = TOPIC.1, hide_short_help = true)]
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

    /// Most requests that are under way at once.
    pub(crate) fn most_callers(&self) -> usize {
        let is_one = !self.has_callers() && self.slo_us.is_none();
        self.callers.first().map_or(if is_one { 1 } else { MAX_CALLERS }, |&callers| callers as usize)
    }

    /// Whether that makes several comparisons.
    pub fn is_study(&self) -> bool {
        self.callers.len() > 1 || self.rate.len() > 1
    }

    /// When requests come, if there are several callers.
    pub(crate) fn load(&self, usual: UsualRequests, seed: u64) -> Result<Option<Load>> {
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
        let callers = self.most_callers();
        let requests = match (self.requests, self.rate.first()) {
            (Some(asked), _) => asked as usize,
            (None, Some(&rate)) => {
                ((f64::from(rate) * TURN_SECONDS) as usize).clamp(usual.least, MAX_REQUESTS)
            }
            (None, None) if is_closed => (usual.each * callers).clamp(usual.least, MAX_REQUESTS),
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
        let usual = UsualRequests { each: 8, least: 32 };
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
