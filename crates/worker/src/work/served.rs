//! Turns in which several callers make requests: bursts of them, and the search for the highest sustainable
//! rate.

use std::sync::{Arc, Mutex, MutexGuard};

use protocol::{Arrivals, Call, Load, Search, Serve};

use super::{Request, Serving};
use crate::ServeError;
use crate::engine::{EngineError, InferenceEngine, Result};
use crate::serving::{Answers, Queue, called};

/// Multiplier of the hash FNV-1a, in 64 bits (Fowler, Noll and Vo).
const FNV_PRIME: u64 = 0x100_0000_01b3;

/// The different requests that callers make, in turn.
pub(super) trait Requests<E>: Send + Sync + 'static {
    type Answer: Send + 'static;

    /// Number of different requests.
    fn count(&self) -> usize;

    /// Computes these as one batch: an answer for each.
    fn compute(&self, engine: &mut E, requests: &[usize]) -> Result<Vec<Self::Answer>>;
}

/// How a kind of work serves its callers, and the calls of the last turn.
pub(super) struct Callers<'a, E> {
    serving: Serving<'a, E>,
    turns: u64,
    calls: Vec<Call>,
}

impl<'a, E: InferenceEngine> Callers<'a, E> {
    pub(super) fn new(serving: Serving<'a, E>) -> Callers<'a, E> {
        Callers { serving, turns: 0, calls: Vec::new() }
    }

    /// When requests arrive, if several callers make them.
    pub(super) fn load(&self) -> Option<Load> {
        self.serving.load
    }

    /// Whether callers are served one by one, and none together.
    pub(super) fn is_one_by_one(&self) -> bool {
        self.serving.load.is_some() && !matches!(self.serving.serve, Serve::Batch { .. })
    }

    pub(super) fn calls(&self) -> Vec<Call> {
        self.calls.clone()
    }

    /// A turn: the answer to each of the different requests. The times of requests follow from `given`, so
    /// that they differ between rounds and are the same for all contenders. `is_asked`: whether the driver
    /// asked for it, so that it is no warm-up.
    pub(super) fn turn<R: Requests<E>>(
        &mut self,
        engine: &mut E,
        (requests, load): (R, Load),
        (case, is_asked): (usize, bool),
        given: impl Iterator<Item = u64>,
    ) -> Result<(Request, Vec<R::Answer>), ServeError> {
        if load.requests < requests.count() {
            return Err(ServeError::Job("a turn of callers has at least one of each request".into()));
        }
        let mixed = given.fold(self.turns, |hash, number| (hash ^ number).wrapping_mul(FNV_PRIME));
        self.turns += 1;
        let server = Server { serving: self.serving, requests: Arc::new(requests) };
        let mut request = Request::start(case, Vec::with_capacity(1));
        let burst = match load.search.filter(|_| is_asked) {
            Some(search) => server.search(engine, load, Search { seed: search.seed ^ mixed, ..search })?,
            None => {
                let arrivals = load.arrivals.map(|it| Arrivals { seed: it.seed ^ mixed, ..it });
                server.burst(engine, Load { arrivals, ..load })?
            }
        };
        match load.search {
            Some(_) => request.mark(),
            None => request.mark_at(burst.calls.iter().map(|call| call.done_ns).max().unwrap_or(0)),
        }
        self.calls = burst.calls;
        Ok((request, burst.answers.into_iter().flatten().collect()))
    }
}

/// Serves the requests of a turn.
struct Server<'a, E, R> {
    serving: Serving<'a, E>,
    requests: Arc<R>,
}

/// The results of a burst of requests.
struct Burst<A> {
    calls: Vec<Call>,
    /// The last answer to each of the different requests.
    answers: Vec<Option<A>>,
}

impl<E: InferenceEngine, R: Requests<E>> Server<'_, E, R> {
    /// As many requests as the load has.
    fn burst(&self, engine: &mut E, load: Load) -> Result<Burst<R::Answer>> {
        let answers = (0..self.requests.count()).map(|_| None).collect();
        let served = Arc::new(Served {
            requests: Arc::clone(&self.requests),
            queue: Queue::new(load.requests, self.serving.serve),
            answers: Answers::new(load.requests),
            given: Mutex::new(Given { answers, error: None }),
        });
        if let Some(pool) = self.serving.pool {
            pool.each(|| {
                let served = Arc::clone(&served);
                Box::new(move |engine: &mut E| served.compute(engine))
            });
        }
        let calls = called(load, (&served.queue, &served.answers), || served.compute(engine));
        let mut given = served.given();
        match given.error.take() {
            Some(error) => Err(error),
            None => Ok(Burst { calls, answers: std::mem::take(&mut given.answers) }),
        }
    }
}

/// Requests of several callers, and their answers.
struct Served<R, A> {
    requests: Arc<R>,
    queue: Queue,
    answers: Answers,
    given: Mutex<Given<A>>,
}

struct Given<A> {
    answers: Vec<Option<A>>,
    error: Option<EngineError>,
}

impl<R, A> Served<R, A> {
    fn given(&self) -> MutexGuard<'_, Given<A>> {
        self.given.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
    }

    /// Lets a model answer the requests in the queue, until all are taken.
    fn compute<E>(&self, engine: &mut E)
    where
        R: Requests<E, Answer = A>,
    {
        while let Some(group) = self.queue.next() {
            let different: Vec<usize> = group.iter().map(|request| request % self.requests.count()).collect();
            match self.requests.compute(engine, &different) {
                Ok(answers) => {
                    let mut given = self.given();
                    for (place, answer) in different.into_iter().zip(answers) {
                        given.answers[place] = Some(answer);
                    }
                    drop(given);
                    // Last: once all callers are notified, the answers are taken.
                    self.answers.tell(&group, true);
                }
                Err(error) => {
                    self.given().error.get_or_insert(error);
                    self.queue.close();
                    self.answers.give_up();
                    return;
                }
            }
        }
    }
}

// The search for the highest rate at which answers come in time.

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
    fn search(
        &self,
        engine: &mut E,
        load: Load,
        Search { limit_ns, seed }: Search,
    ) -> Result<Burst<R::Answer>> {
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
