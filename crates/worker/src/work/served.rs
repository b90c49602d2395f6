//! Turns in which several callers make requests.

use std::sync::{Arc, Mutex, MutexGuard};

use protocol::{Arrivals, Call, Load, Search, Serve};

use super::goodput::{self, Searched};
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
    searched: Option<Searched>,
}

impl<'a, E: InferenceEngine> Callers<'a, E> {
    pub(super) fn new(serving: Serving<'a, E>) -> Callers<'a, E> {
        Callers { serving, turns: 0, calls: Vec::new(), searched: None }
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
            Some(search) => {
                let search = Search { seed: search.seed ^ mixed, ..search };
                server.search(engine, load, search, &mut self.searched)?
            }
            None => {
                let arrivals = load.arrivals.map(|it| Arrivals { seed: it.seed ^ mixed, ..it });
                server.burst(engine, Load { arrivals, ..load }, false)?
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
    /// A burst at the highest rate at which answers come in time; the answers are the last of all bursts.
    fn search(
        &self,
        engine: &mut E,
        load: Load,
        search: Search,
        so_far: &mut Option<Searched>,
    ) -> Result<Burst<R::Answer>> {
        let mut answers: Vec<Option<R::Answer>> = (0..self.requests.count()).map(|_| None).collect();
        let calls = goodput::search(load, search, so_far, &mut |load, exact| {
            let burst = self.burst(engine, load, exact)?;
            for (last, answer) in answers.iter_mut().zip(burst.answers) {
                *last = answer.or(last.take());
            }
            Ok(burst.calls)
        })?;
        Ok(Burst { calls, answers })
    }

    /// The requests of a load.
    fn burst(&self, engine: &mut E, load: Load, exact: bool) -> Result<Burst<R::Answer>> {
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
        let calls = called(load, exact, (&served.queue, &served.answers), || served.compute(engine));
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
