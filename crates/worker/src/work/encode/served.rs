//! Texts that several callers have encoded: bursts of requests, and the search for the highest rate that is kept up with.

use std::sync::{Arc, Mutex, MutexGuard};

use engine::{EncodeTask, EngineError, InferenceEngine, Texts};
use protocol::{Arrivals, Call, Load, Search};

use super::{Flat, Serving};
use crate::pace::Pace;
use crate::serving::{Answers, Queue, called};

/// Share of the requests whose answers have to come within the limit.
const IN_TIME: f64 = 0.99;
/// Rates that are tried: each halves what is left, which is the capacity of a closed loop at first.
const STEPS: usize = 7;
/// Times that a rate is tried before it counts as too high.
const ATTEMPTS: usize = 2;
/// Requests of a rate: those of so many seconds, and at least and at most.
const SECONDS: f64 = 2.0;
const LEAST: usize = 16;
const MOST: usize = 4096;
/// Requests for each caller of the closed loop that the capacity is known from.
const EACH: usize = 4;

/// What serves the requests of a turn.
pub(super) struct Server<'a, E> {
    pub(super) serving: Serving<'a, E>,
    /// A request for each, in turn.
    pub(super) texts: Arc<Vec<Flat>>,
    pub(super) task: EncodeTask,
    pub(super) pace: Pace,
}

/// What a burst of requests gave.
pub(super) struct Burst {
    pub(super) calls: Vec<Call>,
    /// The vector of each text, as it was answered last.
    pub(super) vectors: Vec<Vec<f32>>,
    /// Positions that were computed for as many requests as there are texts.
    pub(super) positions: usize,
}

impl Burst {
    /// The share of requests that were answered within the limit.
    fn in_time(&self, limit_ns: u64) -> f64 {
        let is_in_time = |call: &&Call| call.done_ns.saturating_sub(call.asked_ns) <= limit_ns;
        self.calls.iter().filter(is_in_time).count() as f64 / self.calls.len().max(1) as f64
    }
}

impl<E: InferenceEngine> Server<'_, E> {
    /// So many requests.
    pub(super) fn burst(&self, engine: &mut E, requests: usize, load: Load) -> Result<Burst, EngineError> {
        let texts = self.texts.len();
        let served = Arc::new(Served {
            texts: Arc::clone(&self.texts),
            task: self.task,
            pace: self.pace,
            queue: Queue::new(requests, self.serving.serve),
            answers: Answers::new(requests),
            given: Mutex::new(Given { vectors: vec![Vec::new(); texts], positions: 0, error: None }),
        });
        if let Some(pool) = self.serving.pool {
            pool.each(|| {
                let served = Arc::clone(&served);
                Box::new(move |engine: &mut E| served.compute(engine))
            });
        }
        let places = (&served.queue, &served.answers);
        let ((), calls) = called(load, places, || (), || served.compute(engine));
        let mut given = served.given();
        if let Some(error) = given.error.take() {
            return Err(error);
        }
        let positions = given.positions * texts / requests.max(1);
        Ok(Burst { calls, vectors: std::mem::take(&mut given.vectors), positions })
    }

    /// The burst at the highest rate that was found at which answers come in time.
    ///
    /// # Errors
    /// [`EngineError::Unsupported`] if no rate does: a single caller already waits longer.
    pub(super) fn search(
        &self,
        engine: &mut E,
        callers: usize,
        search: Search,
    ) -> Result<Burst, EngineError> {
        let Search { limit_ns, seed } = search;
        let texts = self.texts.len();
        let closed = |callers| Load { callers, arrivals: None, search: None };
        let alone = self.burst(engine, texts, closed(1))?;
        let limit = limit_ns as f64 / 1e6;
        if alone.in_time(limit_ns) < IN_TIME {
            let share = 100.0 * (1.0 - alone.in_time(limit_ns));
            return Err(EngineError::Unsupported(format!(
                "a single caller waits longer than {limit} ms for {share:.0} of 100 answers: no rate keeps to that"
            )));
        }
        let all = self.burst(engine, texts.max(EACH * callers), closed(callers))?;
        let end_ns = all.calls.iter().map(|call| call.done_ns).max().unwrap_or(1).max(1);
        let (mut low, mut high) = (0.0, all.calls.len() as f64 * 1e9 / end_ns as f64);
        let mut best = None;
        for step in 0..STEPS {
            let rate = (low + high) / 2.0;
            let requests = ((rate * SECONDS) as usize).clamp(LEAST, MOST);
            let mut is_kept = false;
            // One moment in which the system was busy is no reason to halve what is left.
            for attempt in 0..ATTEMPTS {
                let seed = seed.wrapping_add((step * ATTEMPTS + attempt) as u64);
                let arrivals = Some(Arrivals { rate, seed });
                let burst = self.burst(engine, requests, Load { callers, arrivals, search: None })?;
                is_kept = burst.in_time(limit_ns) >= IN_TIME;
                if is_kept {
                    best = Some(burst);
                    break;
                }
            }
            if is_kept {
                low = rate;
            } else {
                high = rate;
            }
        }
        // A low rate has fewer requests than there are texts.
        let whole = |mut burst: Burst| {
            let alone = alone.vectors.into_iter();
            burst
                .vectors
                .iter_mut()
                .zip(alone)
                .filter(|(own, _)| own.is_empty())
                .for_each(|(own, other)| *own = other);
            burst
        };
        best.map(whole).ok_or_else(|| {
            EngineError::Unsupported(format!(
                "at {high:.1} requests a second, the lowest rate that was tried, more than 1 of 100 answers took longer than \
                 {limit} ms"
            ))
        })
    }
}

/// Requests that several callers make, and what they are given.
struct Served {
    texts: Arc<Vec<Flat>>,
    task: EncodeTask,
    pace: Pace,
    queue: Queue,
    answers: Answers,
    given: Mutex<Given>,
}

struct Given {
    vectors: Vec<Vec<f32>>,
    positions: usize,
    error: Option<EngineError>,
}

impl Served {
    fn given(&self) -> MutexGuard<'_, Given> {
        self.given.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
    }

    /// Has a model compute what waits in the queue, until all requests are taken.
    fn compute<E: InferenceEngine>(&self, engine: &mut E) {
        while let Some(group) = self.queue.next() {
            if let Err(error) = self.compute_group(engine, &group) {
                self.given().error.get_or_insert(error);
                self.queue.close();
                self.answers.give_up();
                return;
            }
            self.answers.tell(&group, true);
        }
    }

    fn compute_group<E: InferenceEngine>(&self, engine: &mut E, group: &[usize]) -> Result<(), EngineError> {
        let mut batch = Flat::default();
        let texts = group.iter().map(|request| request % self.texts.len());
        for text in texts.clone() {
            let Flat { tokens, types, lengths } = &self.texts[text];
            batch.tokens.extend(tokens);
            batch.types.extend(types);
            batch.lengths.extend(lengths);
        }
        let Flat { tokens, types, lengths } = &batch;
        let encoder = engine.encode()?;
        let widths: Vec<usize> =
            lengths.iter().map(|&tokens| self.task.width(encoder.config(), tokens)).collect();
        let found = self.pace.keep(|| encoder.encode(Texts { tokens, types, lengths }, self.task))?;
        let mut given = self.given();
        let mut rest = found;
        for (text, width) in texts.zip(widths) {
            let of_text;
            (of_text, rest) = rest.split_at(width.min(rest.len()));
            given.vectors[text] = of_text.to_vec();
        }
        given.positions += encoder.positions();
        Ok(())
    }
}
