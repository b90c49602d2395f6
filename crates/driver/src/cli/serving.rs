//! Flags for several callers.

use clap::Args;
use plan::Request;
use protocol::Serve;

use super::help::WORK;
use super::values::{seconds, set_list};

#[derive(Debug, Clone, Default, PartialEq, Args)]
pub(crate) struct ServingFlags {
    /// Callers, of which each makes a request for one text, one prompt or one run when its last is answered; several numbers
    /// are a study: 1,4,16,64
    #[arg(long, value_name = "N,…", value_delimiter = ',', value_parser = clap::value_parser!(u32).range(1..=1024),
          help_heading = WORK, hide_short_help = true)]
    callers: Vec<u32>,
    /// Requests a second that come at random, whatever becomes of those before; latency counts from when they were due
    #[arg(long, value_name = "N,…", value_delimiter = ',', value_parser = clap::value_parser!(u32).range(1..=100_000),
          help_heading = WORK, hide_short_help = true)]
    rate: Vec<u32>,
    /// Requests of a turn of callers [default: some for each caller; at a rate those of two seconds]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=4096), help_heading = WORK,
          hide_short_help = true)]
    requests: Option<u32>,
    /// How callers are served, a column for each: shared (one model, a request at a time), pool:K (K models), or
    /// batch:B:W (up to B waiting requests at once; the first waits at most W for others) [default: shared]
    #[arg(long, value_name = "shared|pool:K|batch:B:W", value_delimiter = ',', help_heading = WORK, hide_short_help = true)]
    serve: Vec<Serve>,
    /// Find the highest rate at which 99 of 100 answers come within this time, such as 50ms
    #[arg(long, value_name = "TIME", value_parser = parse_limit, conflicts_with = "rate", help_heading = WORK,
          hide_short_help = true)]
    slo: Option<u64>,
}

/// A time in microseconds.
fn parse_limit(text: &str) -> Result<u64, String> {
    let within = seconds(text, None).map(|seconds| 1e6 * seconds).filter(|us| (1.0..=6e7).contains(us));
    within.map(|us| us as u64).ok_or_else(|| "a time from 1us to 60s with its unit, such as 50ms".to_owned())
}

impl ServingFlags {
    pub(crate) fn apply_to(&self, request: &mut Request) {
        set_list(&mut request.serving.callers, &self.callers);
        set_list(&mut request.serving.rate, &self.rate);
        set_list(&mut request.serving.serve, &self.serve);
        request.serving.requests = self.requests.or(request.serving.requests);
        request.serving.slo_us = self.slo.or(request.serving.slo_us);
    }
}
