//! Serving several callers: threads that make requests, a queue, and the models that answer them.
//!
//! The model stays on the thread that loaded it. Each other model of a pool is loaded by a thread of its own,
//! which waits between the turns. So engines need not be shareable between threads.

use std::collections::VecDeque;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Barrier, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use bundle::Bundle;
use protocol::{Arrivals, Call, Load, Serve};

use crate::clock;
use crate::engine::{EngineError, InferenceEngine, Result, Settings};

/// Work for a model of a pool.
type Task<E> = Box<dyn FnOnce(&mut E) + Send>;

/// The models of a pool but the first.
pub(crate) struct Pool<E> {
    members: Vec<Member<E>>,
}

/// The tasks of a model, and its thread until that is joined.
type Member<E> = (Sender<Task<E>>, Option<JoinHandle<()>>);

impl<E: InferenceEngine> Pool<E> {
    /// Loads so many models, one after another.
    pub(crate) fn load(models: usize, bundle: &Bundle, settings: &Settings) -> Result<Pool<E>> {
        let mut pool = Pool { members: Vec::new() };
        for _ in 0..models {
            let (tasks, received): (Sender<Task<E>>, Receiver<Task<E>>) = channel();
            let (loaded, is_loaded) = channel();
            let (bundle, settings) = (bundle.clone(), settings.clone());
            let member = move || match E::load(&bundle, &settings) {
                Ok(mut engine) => {
                    let _ = loaded.send(Ok(()));
                    received.into_iter().for_each(|task| task(&mut engine));
                }
                Err(error) => {
                    let _ = loaded.send(Err(error));
                }
            };
            let thread = std::thread::Builder::new().name("pool".into()).spawn(member);
            let thread =
                thread.map_err(|error| EngineError::Framework(format!("cannot start a thread: {error}")))?;
            pool.members.push((tasks, Some(thread)));
            is_loaded
                .recv()
                .map_err(|_| EngineError::Framework("a model of the pool ended while loading".into()))??;
        }
        Ok(pool)
    }
}

impl<E> Pool<E> {
    pub(crate) fn each(&self, task: impl Fn() -> Task<E>) {
        for (tasks, _) in &self.members {
            // A member that has panicked takes no task, and the others do its work.
            let _ = tasks.send(task());
        }
    }
}

impl<E> Drop for Pool<E> {
    fn drop(&mut self) {
        for (tasks, thread) in self.members.drain(..) {
            drop(tasks);
            if let Some(thread) = thread {
                let _ = thread.join();
            }
        }
    }
}

/// Requests that wait for a model.
#[derive(Debug)]
pub(crate) struct Queue {
    state: Mutex<State>,
    changed: Condvar,
    requests: usize,
    serve: Serve,
}

#[derive(Debug, Default)]
struct State {
    waiting: VecDeque<usize>,
    taken: usize,
    is_closed: bool,
}

impl Queue {
    pub(crate) fn new(requests: usize, serve: Serve) -> Queue {
        Queue { state: Mutex::default(), changed: Condvar::new(), requests, serve }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        lock(&self.state)
    }

    fn push(&self, request: usize) {
        self.state().waiting.push_back(request);
        self.changed.notify_all();
    }

    /// No more requests are taken: a model has failed.
    pub(crate) fn close(&self) {
        self.state().is_closed = true;
        self.changed.notify_all();
    }

    /// The requests that a model computes next, as one batch; `None` when there will be no more.
    #[expect(
        clippy::disallowed_methods,
        reason = "a scripted clock does not advance while nothing is computed"
    )]
    pub(crate) fn next(&self) -> Option<Vec<usize>> {
        let mut state = self.state();
        let first = loop {
            if state.is_closed || state.taken == self.requests {
                return None;
            }
            match state.waiting.pop_front() {
                Some(first) => break first,
                None => state = self.wait(state, None),
            }
        };
        state.taken += 1;
        let mut group = vec![first];
        if let Serve::Batch { most, wait_us } = self.serve {
            let (begun, most_wait) = (Instant::now(), Duration::from_micros(wait_us));
            while group.len() < most && state.taken < self.requests && !state.is_closed {
                if let Some(next) = state.waiting.pop_front() {
                    group.push(next);
                    state.taken += 1;
                    continue;
                }
                let left = most_wait.saturating_sub(begun.elapsed());
                if left.is_zero() {
                    break;
                }
                state = self.wait(state, Some(left));
            }
        }
        if state.taken == self.requests {
            // Other models of the pool wait for requests that will never exist.
            self.changed.notify_all();
        }
        Some(group)
    }

    fn wait<'a>(&self, state: MutexGuard<'a, State>, most: Option<Duration>) -> MutexGuard<'a, State> {
        match most {
            None => self.changed.wait(state).unwrap_or_else(PoisonError::into_inner),
            Some(most) => {
                let waited = self.changed.wait_timeout(state, most);
                waited.unwrap_or_else(PoisonError::into_inner).0
            }
        }
    }
}

/// Answers by request: whether each is there.
pub(crate) struct Answers {
    is_there: Mutex<Vec<Option<bool>>>,
    changed: Vec<Condvar>,
}

impl Answers {
    pub(crate) fn new(requests: usize) -> Answers {
        Answers {
            is_there: Mutex::new(vec![None; requests]),
            changed: (0..requests).map(|_| Condvar::new()).collect(),
        }
    }

    /// Notifies the callers of these requests whether they were answered or never will be.
    pub(crate) fn tell(&self, requests: &[usize], is_answered: bool) {
        let mut is_there = lock(&self.is_there);
        for &request in requests {
            is_there[request] = Some(is_answered);
            self.changed[request].notify_one();
        }
    }

    /// Notifies all callers that there will be no more answers.
    pub(crate) fn give_up(&self) {
        let mut is_there = lock(&self.is_there);
        for (place, changed) in is_there.iter_mut().zip(&self.changed) {
            place.get_or_insert(false);
            changed.notify_all();
        }
    }

    fn wait(&self, request: usize) -> bool {
        let mut is_there = lock(&self.is_there);
        loop {
            if let Some(is_answered) = is_there[request] {
                return is_answered;
            }
            is_there = self.changed[request].wait(is_there).unwrap_or_else(PoisonError::into_inner);
        }
    }
}

/// Has callers make the requests of `queue` while `compute` computes them on this thread. When each was made and answered,
/// in nanoseconds since they began, by request. `exact`: requests that come at random have exactly the mean rate.
pub(crate) fn called(
    load: Load,
    exact: bool,
    (queue, answers): (&Queue, &Answers),
    compute: impl FnOnce(),
) -> Vec<Call> {
    let times = load.arrivals.map(|arrivals| times(arrivals, queue.requests, exact));
    let callers = load.callers.clamp(1, queue.requests.max(1));
    let (ready, next) = (Barrier::new(callers + 1), Mutex::new(0));
    let calls = Mutex::new(vec![None; queue.requests]);
    let start = Mutex::new(0);
    let caller = || {
        ready.wait();
        // Written before the barrier opens.
        let start_ns = *lock(&start);
        loop {
            let request = {
                let mut next = lock(&next);
                let request = *next;
                *next += 1;
                request
            };
            if request >= queue.requests {
                return;
            }
            let asked_ns = match &times {
                None => clock::now_ns() - start_ns,
                Some(times) => {
                    let early = times[request].saturating_sub(clock::now_ns() - start_ns);
                    std::thread::sleep(Duration::from_nanos(early));
                    // A request that is late, because all callers wait or the system woke the thread late,
                    // counts from its planned time.
                    times[request]
                }
            };
            queue.push(request);
            if answers.wait(request) {
                lock(&calls)[request] = Some(Call { asked_ns, done_ns: clock::now_ns() - start_ns });
            }
        }
    };
    std::thread::scope(|scope| {
        for _ in 0..callers {
            scope.spawn(caller);
        }
        *lock(&start) = clock::now_ns();
        ready.wait();
        compute();
    });
    let calls = calls.into_inner().unwrap_or_else(PoisonError::into_inner);
    calls.into_iter().flatten().collect()
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The times of requests, in nanoseconds: a Poisson process. `exact`: scaled to the mean rate, which is none, because queues
/// are shorter where the number of requests in a period is known.
pub(crate) fn times(arrivals: Arrivals, requests: usize, exact: bool) -> Vec<u64> {
    use rand::{RngExt, SeedableRng};
    let mut random = rand_chacha::ChaCha8Rng::seed_from_u64(arrivals.seed);
    let mut at = 0.0;
    let mut next = || {
        let share: f64 = random.random();
        at -= (1.0 - share).ln() / arrivals.rate * 1e9;
        at
    };
    let drawn: Vec<f64> = (0..requests).map(|_| next()).collect();
    let scale = match drawn.last() {
        Some(last) if exact && *last > 0.0 => requests as f64 / arrivals.rate * 1e9 / last,
        _ => 1.0,
    };
    drawn.into_iter().map(|at| (at * scale) as u64).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn load(callers: usize, requests: usize) -> Load {
        Load { callers, requests, arrivals: None, search: None }
    }

    fn served(load: Load, serve: Serve) -> (Vec<Vec<usize>>, Vec<Call>) {
        let (queue, answers) = (Queue::new(load.requests, serve), Answers::new(load.requests));
        let mut groups = Vec::new();
        let compute = || {
            while let Some(group) = queue.next() {
                answers.tell(&group, true);
                groups.push(group);
            }
        };
        let calls = called(load, false, (&queue, &answers), compute);
        (groups, calls)
    }

    #[test]
    fn every_request_is_served_once() {
        for (callers, serve) in
            [(1, Serve::Shared), (7, Serve::Shared), (7, Serve::Batch { most: 3, wait_us: 500 })]
        {
            let (groups, calls) = served(load(callers, 40), serve);
            let mut all: Vec<usize> = groups.concat();
            all.sort_unstable();
            assert!(all.into_iter().eq(0..40));
            assert_eq!(calls.len(), 40);
            assert!(calls.iter().all(|call| call.asked_ns <= call.done_ns));
            let most = groups.iter().map(Vec::len).max().unwrap();
            assert!(most <= if serve == Serve::Shared { 1 } else { 3 });
        }
    }

    #[test]
    fn arrivals_have_the_rate_and_count_from_when_they_were_due() {
        let arrivals = Arrivals { rate: 4000.0, seed: 3 };
        let due = times(arrivals, 4000, true);
        assert!(due.is_sorted());
        let last = *due.last().unwrap() as f64 / 1e9;
        assert!((0.999..1.001).contains(&last), "{last}");
        let (_, calls) = served(Load { arrivals: Some(arrivals), ..load(4, 50) }, Serve::Shared);
        let due = times(arrivals, 50, false);
        assert!(calls.iter().zip(&due).all(|(call, due)| call.asked_ns == *due && call.done_ns >= *due));
    }

    #[test]
    fn a_queue_that_is_closed_leaves_nobody_waiting() {
        let (queue, answers) = (Queue::new(9, Serve::Shared), Answers::new(9));
        let compute = || {
            let group = queue.next().unwrap();
            answers.tell(&group, true);
            queue.close();
            answers.give_up();
        };
        let calls = called(load(3, 9), false, (&queue, &answers), compute);
        assert_eq!(calls.len(), 1);
        assert!(queue.next().is_none());
    }
}
