//! The search for the highest rate at which answers come in time.
//!
//! Each rate that is tried is the best guess so far (QUEST: Watson and Pelli 1983, *A Bayesian adaptive psychometric
//! method*). A rate is judged by requests after a ramp: a queue that begins empty has no late answers yet.

use protocol::{Arrivals, Call, Load, Search};

use crate::engine::{EngineError, Result};

/// Share of the answers that may be later than the limit.
const LATE: f64 = 0.01;

/// Rates that the first turn of a process tries, and each later one.
const TRIES: usize = 10;

const MORE_TRIES: usize = 3;

/// Requests of a rate that count, at least. Of 299 without a late answer it is known with 95 % confidence that at most 1 of
/// 100 is late (binomial, as in LoadGen of MLPerf).
const COUNTED: usize = 400;

/// A rate has requests of so many seconds, and at most so many.
const SECONDS: f64 = 1.0;

const MOST: usize = 4096;

/// The ramp, in response times of a single caller and in limits: the longer of both.
const RAMP_RESPONSES: f64 = 10.0;

const RAMP_LIMITS: f64 = 6.0;

/// Requests for each caller of the closed loop that the capacity is known from.
const EACH: usize = 4;

/// Has requests made and answered.
pub(super) type Burst<'a> = dyn FnMut(Load, bool) -> Result<Vec<Call>> + 'a;

/// The search of a process. Each of its turns adds to what the ones before it found.
pub(super) struct Searched {
    guess: Guess,
    ramp_ns: f64,
    /// Rates that were tried, and the lowest of them.
    tries: usize,
    lowest: f64,
}

/// The calls of a burst at the highest rate at which answers come in time.
///
/// # Errors
/// [`EngineError::Unsupported`] if no rate has that: a single caller already waits longer, or the lowest rate has more
/// late answers.
pub(super) fn search(
    load: Load,
    Search { limit_ns, seed }: Search,
    so_far: &mut Option<Searched>,
    burst: &mut Burst<'_>,
) -> Result<Vec<Call>> {
    let (searched, tries) = match so_far {
        Some(searched) => (searched, MORE_TRIES),
        None => (so_far.insert(begin(load, limit_ns, burst)?), TRIES),
    };
    let ramp_ns = searched.ramp_ns;
    let mut at = |rate: f64, number: usize, exact| {
        let counted = ((rate * SECONDS) as usize).clamp(COUNTED, MOST);
        let ramp = (rate * ramp_ns / 1e9).ceil() as usize;
        let arrivals = Some(Arrivals { rate, seed: seed.wrapping_add(number as u64) });
        burst(Load { requests: ramp.min(MOST) + counted, arrivals, search: None, ..load }, exact)
    };
    for _ in 0..tries {
        let rate = searched.guess.rate();
        searched.lowest = rate.min(searched.lowest);
        let mut calls = at(rate, searched.tries, false)?;
        calls.retain(|call| call.asked_ns as f64 >= ramp_ns);
        searched.guess.learn(rate, calls.len(), late(&calls, limit_ns));
        searched.tries += 1;
    }
    let Some(rate) = searched.guess.found() else {
        return Err(EngineError::Unsupported(format!(
            "at {:.1} requests a second, the lowest rate that was tried, more than 1 of 100 answers took longer than {} ms",
            searched.lowest,
            limit_ns as f64 / 1e6
        )));
    };
    at(rate, searched.tries, true)
}

/// What is known before a rate is tried: the capacity, and how long a ramp takes.
fn begin(load: Load, limit_ns: u64, burst: &mut Burst<'_>) -> Result<Searched> {
    let limit = limit_ns as f64 / 1e6;
    let closed = |callers, requests| Load { callers, requests, arrivals: None, search: None };
    let alone = burst(closed(1, load.requests), false)?;
    let late = late(&alone, limit_ns);
    // Other activity of the machine makes single answers late.
    if 2 * late > alone.len() {
        let share = 100.0 * late as f64 / alone.len() as f64;
        return Err(EngineError::Unsupported(format!(
            "a single caller waits longer than {limit} ms for {share:.0} of 100 answers: no rate keeps to that"
        )));
    }
    let end_ns = |calls: &[Call]| calls.iter().map(|call| call.done_ns).max().unwrap_or(1).max(1) as f64;
    let response_ns = end_ns(&alone) / alone.len().max(1) as f64;
    let all = burst(closed(load.callers, load.requests.max(EACH * load.callers)), false)?;
    let capacity = all.len() as f64 * 1e9 / end_ns(&all);
    let ramp_ns = (RAMP_RESPONSES * response_ns).max(RAMP_LIMITS * limit_ns as f64);
    Ok(Searched { guess: Guess::new(capacity), ramp_ns, tries: 0, lowest: f64::INFINITY })
}

/// Number of requests that were answered later than the limit.
fn late(calls: &[Call], limit_ns: u64) -> usize {
    calls.iter().filter(|call| call.done_ns.saturating_sub(call.asked_ns) > limit_ns).count()
}

/// What is known of the highest rate: how likely each of a grid is it, with each slope.
struct Guess {
    /// By slope and rate, up to a constant.
    log_likelihood: Vec<[f64; RATES]>,
    capacity: f64,
}

/// Rates of the grid, at equal distances, as shares of the closed loop's rate.
const RATES: usize = 217;

const LOWEST: f64 = 0.02;

const HIGHEST: f64 = 1.1;

/// The share of late answers is taken to rise with such a power of the rate, about as of queues with limits from 3 to 60
/// times the time of an answer.
const SLOPES: [f64; 6] = [2.0, 4.0, 8.0, 16.0, 32.0, 64.0];

/// The least and the largest share that a rate is taken to have: others' work makes single answers late, and of a queue that
/// grows the first ones are in time.
const LEAST: f64 = 1e-9;

const FULL: f64 = 0.9;

/// Late answers come together, so that requests say less than as many single ones would.
const WEIGHT: f64 = 0.5;

impl Guess {
    fn new(capacity: f64) -> Guess {
        Guess { log_likelihood: vec![[0.0; RATES]; SLOPES.len()], capacity }
    }

    fn of_place(&self, place: usize) -> f64 {
        let share = place as f64 / (RATES - 1) as f64;
        self.capacity * (LOWEST + share * (HIGHEST - LOWEST))
    }

    fn learn(&mut self, rate: f64, requests: usize, late: usize) {
        for (slope, row) in SLOPES.into_iter().zip(0..) {
            for place in 0..RATES {
                let share = (LATE * (rate / self.of_place(place)).powf(slope)).clamp(LEAST, FULL);
                let (late, in_time) = (late as f64, (requests - late) as f64);
                self.log_likelihood[row][place] += WEIGHT * (late * share.ln() + in_time * (-share).ln_1p());
            }
        }
    }

    /// The place of the median.
    fn place(&self) -> usize {
        let highest = self.log_likelihood.iter().flatten().copied().fold(f64::NEG_INFINITY, f64::max);
        let likelihood: Vec<f64> = (0..RATES)
            .map(|place| self.log_likelihood.iter().map(|row| (row[place] - highest).exp()).sum())
            .collect();
        let half = likelihood.iter().sum::<f64>() / 2.0;
        let mut sum = 0.0;
        likelihood
            .iter()
            .take_while(|&&of_rate| {
                sum += of_rate;
                sum < half
            })
            .count()
    }

    /// The rate to try next.
    fn rate(&self) -> f64 {
        self.of_place(self.place())
    }

    /// The highest rate at which answers come in time; `None` if the lowest is too high.
    fn found(&self) -> Option<f64> {
        (self.place() > 1).then(|| self.rate())
    }
}

#[cfg(test)]
mod tests {
    use rand::{RngExt, SeedableRng};
    use rand_chacha::ChaCha8Rng;

    use super::*;
    use crate::serving::times;

    /// Time of a mean answer.
    const MEAN_NS: f64 = 1e7;

    /// A queue of servers that take the requests in order. `service`: time of an answer, in means, from a number between 0
    /// and 1.
    struct Simulated {
        servers: usize,
        service: fn(f64) -> f64,
        random: ChaCha8Rng,
    }

    impl Simulated {
        fn calls(&mut self, load: Load, exact: bool) -> Vec<Call> {
            let due = load.arrivals.map(|arrivals| times(arrivals, load.requests, exact));
            // When each server, and each caller of a closed loop, is free.
            let (mut servers, mut callers) = (vec![0; self.servers], vec![0; load.callers]);
            let mut calls: Vec<Call> = Vec::new();
            for request in 0..load.requests {
                let caller = callers.iter_mut().min().unwrap();
                let asked_ns = due.as_ref().map_or(*caller, |due| due[request]);
                let server = servers.iter_mut().min().unwrap();
                let service = (self.service)(self.random.random()) * MEAN_NS;
                let done_ns = asked_ns.max(*server) + service as u64;
                (*server, *caller) = (done_ns, done_ns);
                calls.push(Call { asked_ns, done_ns });
            }
            calls
        }
    }

    fn exponential(share: f64) -> f64 {
        -(1.0 - share).ln()
    }

    fn uniform(share: f64) -> f64 {
        2.0 * share
    }

    /// Most are short, one in ten is long.
    fn mixed(share: f64) -> f64 {
        if share < 0.9 { 0.5 } else { 5.5 }
    }

    /// The rate, in mean answers, at which this share is 1 in 100.
    fn at_one_in_100(late: impl Fn(f64) -> f64, capacity: f64) -> f64 {
        let (mut low, mut high) = (0.0, capacity);
        for _ in 0..60 {
            let middle = (low + high) / 2.0;
            *(if late(middle) > LATE { &mut high } else { &mut low }) = middle;
        }
        low
    }

    /// Share of late answers of a single server with equal ones (Crommelin 1932, *Delay probability formulae when the holding times are
    /// constant*).
    fn constant_late(rate: f64, limit: f64) -> f64 {
        let wait = limit - 1.0;
        let term = |k: usize| {
            let x = rate * (k as f64 - wait);
            (-x).exp() * (1..=k).map(|i| x / i as f64).product::<f64>()
        };
        1.0 - (1.0 - rate) * (0..=wait as usize).map(term).sum::<f64>()
    }

    /// Share of late answers of servers with exponentially distributed ones (Erlang 1917).
    fn exponential_late(rate: f64, servers: usize, limit: f64) -> f64 {
        let of = servers as f64;
        let mut blocked = 1.0;
        for k in 1..=servers {
            blocked = rate * blocked / (k as f64 + rate * blocked);
        }
        let waits = of * blocked / (of - rate * (1.0 - blocked));
        let spare = of - 1.0 - rate;
        let share = if spare.abs() < 1e-9 { limit } else { (1.0 - (-limit * spare).exp()) / spare };
        (-limit).exp() * (1.0 + waits * share)
    }

    /// Share of late answers of a single server, by simulating half a million requests.
    fn simulated_late(rate: f64, service: fn(f64) -> f64, limit: f64) -> f64 {
        let requests = 500_000;
        let arrivals = Some(Arrivals { rate: rate * 1e9 / MEAN_NS, seed: 1 });
        let load = Load { callers: 1, requests, arrivals, search: None };
        let mut queue = Simulated { servers: 1, service, random: ChaCha8Rng::seed_from_u64(2) };
        late(&queue.calls(load, false), (limit * MEAN_NS) as u64) as f64 / requests as f64
    }

    #[test]
    fn the_rate_that_is_found_is_that_of_queues_whose_answer_is_known() {
        let simulated = |service, limit| at_one_in_100(|rate| simulated_late(rate, service, limit), 1.0);
        let constant = |limit| at_one_in_100(|rate| constant_late(rate, limit), 1.0);
        let several = |servers: usize, limit| {
            at_one_in_100(|rate| exponential_late(rate, servers, limit), servers as f64)
        };
        let cases: [(&str, usize, fn(f64) -> f64, f64, f64); 10] = [
            ("constant", 1, |_| 1.0, 3.0, constant(3.0)),
            ("constant", 1, |_| 1.0, 10.0, constant(10.0)),
            ("constant", 1, |_| 1.0, 20.0, constant(20.0)),
            ("uniform", 1, uniform, 10.0, simulated(uniform, 10.0)),
            ("exponential", 1, exponential, 7.0, 1.0 - 100f64.ln() / 7.0),
            ("exponential", 1, exponential, 30.0, 1.0 - 100f64.ln() / 30.0),
            ("exponential", 2, exponential, 10.0, several(2, 10.0)),
            ("exponential", 8, exponential, 6.0, several(8, 6.0)),
            ("mixed", 1, mixed, 12.0, simulated(mixed, 12.0)),
            ("mixed", 1, mixed, 25.0, simulated(mixed, 25.0)),
        ];
        let mut wrong = Vec::new();
        for (name, servers, service, limit, known) in cases {
            let (mut found, mut made) = (Vec::new(), 0);
            for seed in 0..200 {
                let mut queue = Simulated { servers, service, random: ChaCha8Rng::seed_from_u64(!seed) };
                let load = Load { callers: 64, requests: 32, arrivals: None, search: None };
                let limit_ns = (limit * MEAN_NS) as u64;
                let calls =
                    search(load, Search { limit_ns, seed: seed * 1000 }, &mut None, &mut |load, exact| {
                        let calls = queue.calls(load, exact);
                        made += calls.len();
                        Ok(calls)
                    });
                let calls = calls.unwrap();
                let end_ns = calls.iter().map(|call| call.asked_ns).max().unwrap() as f64;
                found.push(calls.len() as f64 * MEAN_NS / end_ns);
            }
            let mean = found.iter().sum::<f64>() / found.len() as f64;
            let spread = found.iter().map(|one| (one - mean).powi(2)).sum::<f64>() / found.len() as f64;
            let (bias, spread) = (mean / known - 1.0, spread.sqrt() / known);
            println!(
                "{servers} {name} servers, limit {limit}: {known:.3}, bias {:.1} %, spread {:.1} %, {} requests",
                100.0 * bias,
                100.0 * spread,
                made / found.len()
            );
            if bias.abs() > 0.03 {
                wrong.push(format!("{servers} {name} servers, limit {limit}: {known:.3}, found {mean:.3}"));
            }
        }
        assert!(wrong.is_empty(), "{wrong:?}");
    }
}
