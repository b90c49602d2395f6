//! The search for the highest rate at which answers come in time.

use engine::{EngineError, InferenceEngine};
use protocol::{Arrivals, Load, Search};

use super::{Burst, Requests, Server};

/// Share of the requests with answers that may be later than the limit.
const LATE: f64 = 0.01;
/// Rates of the first pass, as shares of a closed loop's rate. High and low ones alternate, so that a slow
/// machine for some seconds is not taken for the effect of a rate.
const LADDER: [f64; 8] = [0.6, 0.95, 0.2, 0.8, 0.4, 1.1, 0.1, 0.7];
/// Rates of the second pass, as shares of the first pass's result.
const AROUND: [f64; 6] = [0.93, 1.07, 0.86, 1.0, 1.14, 0.97];
/// Requests of a rate: those of so many seconds, and at least and at most.
const SECONDS: f64 = 1.5;
const LEAST: usize = 16;
const MOST: usize = 4096;
/// Requests for each caller of the closed loop that the capacity is known from.
const EACH: usize = 4;

/// A rate, and how many of its requests were answered too late.
#[derive(Debug, Clone, Copy, PartialEq)]
struct Tried {
    rate: f64,
    requests: usize,
    late: usize,
}

impl<E: InferenceEngine, R: Requests<E>> Server<'_, E, R> {
    /// A burst at the highest rate at which answers come in time.
    ///
    /// # Errors
    /// [`EngineError::Unsupported`] if no rate has that: a single caller already waits longer, or the lowest rate has more
    /// late answers.
    pub(super) fn search(
        &self,
        engine: &mut E,
        load: Load,
        Search { limit_ns, seed }: Search,
    ) -> Result<Burst<R::Answer>, EngineError> {
        let limit = limit_ns as f64 / 1e6;
        let closed = |callers, requests| Load { callers, requests, arrivals: None, search: None };
        let alone = self.burst(engine, closed(1, load.requests))?;
        let late = alone.late(limit_ns);
        // Other activity of the machine makes single answers late.
        if 2 * late > alone.calls.len() {
            let share = 100.0 * late as f64 / alone.calls.len() as f64;
            return Err(EngineError::Unsupported(format!(
                "a single caller waits longer than {limit} ms for {share:.0} of 100 answers: no rate keeps to that"
            )));
        }
        let all = self.burst(engine, closed(load.callers, load.requests.max(EACH * load.callers)))?;
        let end_ns = all.calls.iter().map(|call| call.done_ns).max().unwrap_or(1).max(1);
        let capacity = all.calls.len() as f64 * 1e9 / end_ns as f64;
        let at = |rate: f64, number: usize| Load {
            requests: ((rate * SECONDS) as usize).clamp(LEAST, MOST),
            arrivals: Some(Arrivals { rate, seed: seed.wrapping_add(number as u64) }),
            search: None,
            ..load
        };
        let mut tried: Vec<Tried> = Vec::new();
        let mut middle = capacity;
        for shares in [&LADDER[..], &AROUND] {
            for &share in shares {
                let load = at(middle * share, tried.len());
                let late = self.burst(engine, load)?.late(limit_ns);
                tried.push(Tried { rate: middle * share, requests: load.requests, late });
            }
            middle = highest(&tried, LATE).ok_or_else(|| {
                let lowest = tried.iter().map(|tried| tried.rate).fold(f64::INFINITY, f64::min);
                EngineError::Unsupported(format!(
                    "at {lowest:.1} requests a second, the lowest rate that was tried, more than 1 of 100 answers took \
                     longer than {limit} ms"
                ))
            })?;
        }
        let mut found = self.burst(engine, at(middle, tried.len()))?;
        // A low rate has fewer requests than there are different ones.
        found.answers.iter_mut().zip(alone.answers).for_each(|(own, other)| *own = own.take().or(other));
        Ok(found)
    }
}

impl<A> Burst<A> {
    /// Number of requests that were answered later than the limit.
    fn late(&self, limit_ns: u64) -> usize {
        let is_late = |call: &&protocol::Call| call.done_ns.saturating_sub(call.asked_ns) > limit_ns;
        self.calls.iter().filter(is_late).count()
    }
}

/// The highest rate with at most such a share of late answers; `None` if the lowest that was tried has more.
///
/// The share rises with the rate: among all rising sequences, the one closest to the measured shares is taken
/// (isotonic regression by pooling adjacent violators; Ayer and others 1955, *An Empirical Distribution
/// Function for Sampling with Incomplete Information*). Between two rates it is interpolated, so that no
/// single late answer decides.
fn highest(tried: &[Tried], most: f64) -> Option<f64> {
    let mut sorted = tried.to_vec();
    sorted.sort_by(|a, b| a.rate.total_cmp(&b.rate));
    // Of each pool: requests, late ones, and how many rates it has.
    let mut pools: Vec<(usize, usize, usize)> = Vec::new();
    for one in &sorted {
        pools.push((one.requests, one.late, 1));
        while let [.., (requests, late, rates), (more_requests, more_late, more_rates)] = pools[..]
            && late * more_requests >= more_late * requests
        {
            pools.pop();
            pools.pop();
            pools.push((requests + more_requests, late + more_late, rates + more_rates));
        }
    }
    let shares: Vec<f64> = pools
        .iter()
        .flat_map(|&(requests, late, rates)| std::iter::repeat_n(late as f64 / requests.max(1) as f64, rates))
        .collect();
    let kept = shares.iter().take_while(|&&share| share <= most).count();
    let (last, behind) = (sorted.get(kept.checked_sub(1)?)?, sorted.get(kept));
    let Some(behind) = behind else { return Some(last.rate) };
    let (low, high) = (shares[kept - 1], shares[kept]);
    Some(last.rate + (most - low) / (high - low) * (behind.rate - last.rate))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tried(rates: &[(f64, usize)]) -> Vec<Tried> {
        rates.iter().map(|&(rate, late)| Tried { rate, requests: 100, late }).collect()
    }

    #[test]
    fn the_highest_rate_is_between_the_last_that_is_kept_and_the_next() {
        assert_eq!(highest(&tried(&[(10.0, 0), (20.0, 0), (30.0, 2)]), 0.01), Some(25.0));
        assert_eq!(highest(&tried(&[(30.0, 2), (10.0, 0), (20.0, 1)]), 0.01), Some(20.0), "in any order");
        assert_eq!(highest(&tried(&[(10.0, 0), (20.0, 1)]), 0.01), Some(20.0), "all are kept");
        assert_eq!(highest(&tried(&[(10.0, 50), (20.0, 60)]), 0.01), None, "none is");
    }

    #[test]
    fn a_low_rate_with_late_answers_is_judged_with_its_neighbours() {
        // The late answers at 10 are not due to the rate, as 20 and 30 show.
        let found = highest(&tried(&[(10.0, 3), (20.0, 0), (30.0, 0), (40.0, 80)]), 0.01).unwrap();
        assert!((30.0..30.1).contains(&found), "{found}");
    }
}
