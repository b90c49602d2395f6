//! Requests that several callers make at once: how a worker serves them, and when they come.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Deserializer, Serialize, Serializer, de};

/// How a worker serves several callers.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash)]
pub enum Serve {
    /// One loaded model. Its requests are computed one after another, each by all threads.
    #[default]
    Shared,
    /// So many loaded models. Each computes one request at a time, with its share of the threads.
    Pool(usize),
    /// One loaded model, which computes up to `most` waiting requests as one batch. The first waits for others at most
    /// `wait_us` microseconds.
    Batch { most: usize, wait_us: u64 },
}

impl Serve {
    pub fn is_shared(&self) -> bool {
        *self == Serve::Shared
    }

    /// Number of models that are loaded.
    pub fn models(self) -> usize {
        if let Serve::Pool(models) = self { models } else { 1 }
    }
}

impl fmt::Display for Serve {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Serve::Shared => f.pad("shared"),
            Serve::Pool(models) => f.pad(&format!("pool:{models}")),
            Serve::Batch { most, wait_us } if wait_us % 1000 == 0 => {
                f.pad(&format!("batch:{most}:{}ms", wait_us / 1000))
            }
            Serve::Batch { most, wait_us } => f.pad(&format!("batch:{most}:{wait_us}us")),
        }
    }
}

/// Most models of a pool, and most requests of a batch.
const MOST: usize = 1024;
/// Longest wait for others, in microseconds: ten seconds.
const LONGEST_US: u64 = 10_000_000;

impl FromStr for Serve {
    type Err = String;

    fn from_str(text: &str) -> Result<Serve, String> {
        let wrong = || format!("{text:?} is none of shared, pool:K and batch:B:W, such as batch:16:2ms");
        let count =
            |text: &str| text.parse().ok().filter(|count| (1..=MOST).contains(count)).ok_or_else(wrong);
        match text.split(':').collect::<Vec<_>>()[..] {
            ["shared"] => Ok(Serve::Shared),
            ["pool", models] => count(models).map(Serve::Pool),
            ["batch", most, wait] => {
                let (number, unit) = match (wait.strip_suffix("ms"), wait.strip_suffix("us")) {
                    (Some(number), _) => (number, 1000),
                    (None, Some(number)) => (number, 1),
                    (None, None) => return Err(wrong()),
                };
                let wait_us = number.parse::<u64>().ok().and_then(|number| number.checked_mul(unit));
                let wait_us = wait_us.filter(|&wait| wait <= LONGEST_US).ok_or_else(wrong)?;
                Ok(Serve::Batch { most: count(most)?, wait_us })
            }
            _ => Err(wrong()),
        }
    }
}

impl Serialize for Serve {
    fn serialize<S: Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
        to.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for Serve {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Serve, D::Error> {
        String::deserialize(from)?.parse().map_err(de::Error::custom)
    }
}

/// When requests come.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct Load {
    /// Threads that make requests, one at a time each.
    pub callers: usize,
    /// Requests of a turn.
    pub requests: usize,
    /// If left out, a caller makes its next request when its last is answered.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub arrivals: Option<Arrivals>,
    /// A turn outside warm-up then searches for the highest rate at which answers are in time.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub search: Option<Search>,
}

/// The search for the highest rate at which 99 of 100 answers come within a limit.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Search {
    pub limit_ns: u64,
    /// Determines the times of requests.
    pub seed: u64,
}

/// Requests at random times, independent of earlier ones: a Poisson process.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct Arrivals {
    /// Mean number a second.
    pub rate: f64,
    /// Determines the times between them.
    pub seed: u64,
}

/// One of several requests that a turn holds.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Call {
    /// When it was made, or was due, since the turn's requests began.
    pub asked_ns: u64,
    /// When its answer was complete.
    pub done_ns: u64,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn modes_are_read_as_they_are_written() {
        for (text, serve) in [
            ("shared", Serve::Shared),
            ("pool:4", Serve::Pool(4)),
            ("batch:16:2ms", Serve::Batch { most: 16, wait_us: 2000 }),
            ("batch:8:1500us", Serve::Batch { most: 8, wait_us: 1500 }),
        ] {
            assert_eq!(text.parse(), Ok(serve));
            assert_eq!(serve.to_string(), text);
            let json = serde_json::to_string(&serve).unwrap();
            assert_eq!(serde_json::from_str::<Serve>(&json).unwrap(), serve);
        }
        for wrong in
            ["", "pool", "pool:0", "batch:8", "batch:8:2", "batch:0:2ms", "batch:8:20000ms", "shared:1"]
        {
            assert!(wrong.parse::<Serve>().is_err(), "{wrong}");
        }
    }
}
