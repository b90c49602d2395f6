//! Warm-up, and then the turns of a measurement: a worker that is warm waits for lines on stdin. A turn is a request,
//! answered with its sample, or a slice of one: the request keeps its state while others have their turns.
//!
//! Usage counts from the start of a request to its last mark: neither the wait nor the untimed lead-in nor
//! the context is in any figure.

use std::io::BufRead;

use protocol::{
    DrawnLogits, Energy, Event, Finish, Iteration, Ready, Sample, Slice, Turn, Usage, Warmup, WarmupDone,
};

use crate::clock;
use crate::energy::{self, CpuTimes, Gpu, Meter, Used};
use crate::engine::InferenceEngine;
use crate::memory::Phase;
use crate::work::{Kept, Part, Request, Workload};
use crate::{Events, ServeError};

/// Takes turns until the last. Returns the usage of the requests, and the finish that the driver asks for.
/// The peak of all phases and the weights' hash are left for the caller.
pub(crate) fn take<E: InferenceEngine>(
    engine: &mut E,
    workload: &mut dyn Workload<E>,
    lead_in: usize,
    gpu: Option<&Gpu>,
    (turns, events): (&mut dyn BufRead, &mut Events<'_>),
) -> Result<(Usage, Finish), ServeError> {
    let phase = Phase::begin(gpu);
    let mut spent = Spent::default();
    let mut under_way: Option<Request> = None;
    let mut prepared: Option<usize> = None;
    let mut done: Option<usize> = None;
    let finish = loop {
        let turn = next(turns)?;
        check(&turn, workload, (under_way.as_ref(), done))?;
        let begins = under_way.is_none() && !matches!(turn, Turn::Logits { .. });
        if let Some(case) = turn.case().filter(|_| begins) {
            if prepared != Some(case) {
                prepare(engine, workload, (case, lead_in), gpu)?;
            }
            prepared = None;
        }
        let sample = match turn {
            Turn::Finish(finish) => break finish,
            Turn::Logits { case, tokens } => {
                events.send(Event::Logits(DrawnLogits { case, values: workload.logits(&tokens)? }))?;
                continue;
            }
            Turn::Prepare { case } => {
                (prepared, done) = (Some(case), None);
                events.send(Event::Ready(Ready { case }))?;
                continue;
            }
            Turn::Request { case, input } => {
                let marks = workload.marks();
                spent.during(gpu, || workload.request(engine, case, (input, marks)))?.1
            }
            Turn::Slice { case, marks, input } => {
                let request = match under_way.take() {
                    None => spent.during(gpu, || workload.begin(engine, case, input))?,
                    Some(mut request) => {
                        spent.during(gpu, || workload.advance(engine, &mut request, (marks, input)))?;
                        request
                    }
                };
                if request.marks() < workload.marks() {
                    events.send(Event::Slice(Slice { case, marks: request.marks() }))?;
                    under_way = Some(request);
                    continue;
                }
                workload.sample(request)
            }
        };
        done = Some(sample.case);
        gpu.into_iter().for_each(Gpu::look);
        spent.kept.add(workload.handed_over());
        events.send(Event::Sample(sample))?;
    };
    let usage = Usage {
        memory: phase.end_with(engine),
        peak_bytes: None,
        cpu_ns: spent.cpu_ns,
        wall_ns: spent.wall_ns,
        thread_cpu_ns: spent.threads.as_ref().map(Used::busiest_first),
        run_queue_ns: spent.threads.as_ref().and_then(|threads| threads.run_queue_ns),
        threads: energy::count(),
        cpus: energy::cpus(),
        energy: spent.energy,
        cache: spent.kept.usage(engine),
        served: engine.served()?,
        compiled: None,
        gpu: gpu.map(Gpu::work),
        weights_sha256: None,
        weights_identity: None,
    };
    Ok((usage, finish))
}

/// Work before a request, untimed.
fn prepare<E: InferenceEngine>(
    engine: &mut E,
    workload: &mut dyn Workload<E>,
    (case, lead_in): (usize, usize),
    gpu: Option<&Gpu>,
) -> Result<(), ServeError> {
    settle(gpu, || workload.lead_in(engine, case, lead_in))?;
    workload.prepare(engine, case)
}

/// Refuses a turn that is not possible. `done`: the case of a request that has just been completed.
fn check<E: InferenceEngine>(
    turn: &Turn,
    workload: &dyn Workload<E>,
    (under_way, done): (Option<&Request>, Option<usize>),
) -> Result<(), ServeError> {
    let left = under_way.map(|request| workload.marks().saturating_sub(request.marks()));
    let (case, input) = match turn {
        Turn::Request { case, input } => (case, input.as_ref().map(|input| (input, Part::Whole))),
        Turn::Slice { case, marks, input } => {
            let part = left.map_or(Part::First, |left| Part::Later(left.min(*marks)));
            (case, input.as_ref().map(|input| (input, part)))
        }
        Turn::Prepare { case } | Turn::Logits { case, .. } => (case, None),
        Turn::Finish(_) => return Ok(()),
    };
    let count = workload.cases();
    let refuse = |reason: String| Err(ServeError::Job(reason));
    if *case >= count {
        return refuse(format!("a turn asks for case {case}, and there are {count}"));
    }
    if let Some((input, part)) = input {
        workload.check(*case, input, part)?;
    }
    match (turn, under_way) {
        (Turn::Slice { marks: 0, .. }, _) => refuse("a slice has at least one mark".into()),
        (Turn::Slice { .. } | Turn::Logits { .. }, Some(request)) if request.case == *case => Ok(()),
        (_, Some(request)) => {
            let under_way = request.case;
            refuse(format!("a turn asks for case {case} while a request of case {under_way} is under way"))
        }
        (Turn::Logits { .. }, None) if done != Some(*case) => {
            refuse(format!("a turn asks for logits of case {case}, and no request of it was just computed"))
        }
        (_, None) => Ok(()),
    }
}

/// Most untimed beginnings of a request before a turn.
const MOST_LEAD_INS: usize = 20;

/// A GPU's clock has settled if it rises by less than this from one beginning to the next, as a share.
const SETTLED: f64 = 0.02;

/// The untimed beginning of a turn; on a GPU again and again until its clock, which falls while others have their
/// turns, no longer rises.
fn settle(gpu: Option<&Gpu>, mut lead_in: impl FnMut() -> Result<(), ServeError>) -> Result<(), ServeError> {
    lead_in()?;
    let Some(gpu) = gpu else { return Ok(()) };
    let mut before = gpu.clock();
    for _ in 1..MOST_LEAD_INS {
        lead_in()?;
        let now = gpu.clock();
        let rises = |(before, now): (u32, u32)| f64::from(now) > f64::from(before) * (1.0 + SETTLED);
        if !before.zip(now).is_some_and(rises) {
            return Ok(());
        }
        before = now;
    }
    Ok(())
}

fn next(input: &mut dyn BufRead) -> Result<Turn, ServeError> {
    let mut line = String::new();
    let read = input.read_line(&mut line);
    match read.map_err(|e| ServeError::Job(format!("cannot read the next turn: {e}")))? {
        0 => Err(ServeError::Job("the turns ended without a finish".into())),
        _ => serde_json::from_str(&line).map_err(|e| ServeError::Job(format!("a turn does not parse: {e}"))),
    }
}

/// Usage of all measured requests so far.
struct Spent {
    cpu_ns: Option<u64>,
    wall_ns: u64,
    /// `None` where the system does not report.
    threads: Option<Used>,
    /// `None` without a meter.
    energy: Option<Energy>,
    kept: Kept,
    requests: usize,
}

impl Default for Spent {
    fn default() -> Spent {
        let threads = Some(Used::default());
        Spent { cpu_ns: Some(0), wall_ns: 0, threads, energy: None, kept: Kept::default(), requests: 0 }
    }
}

impl Spent {
    fn during<T>(
        &mut self,
        gpu: Option<&Gpu>,
        request: impl FnOnce() -> Result<T, ServeError>,
    ) -> Result<T, ServeError> {
        let threads_before = CpuTimes::read();
        let meter = Meter::start(gpu);
        let (cpu, wall) = (clock::cpu_ns(), clock::now_ns());
        let answer = request()?;
        self.wall_ns += clock::now_ns() - wall;
        let cpu_ns = cpu.zip(clock::cpu_ns()).map(|(before, after)| after - before);
        self.cpu_ns = self.cpu_ns.zip(cpu_ns).map(|(sum, ns)| sum + ns);
        self.add_energy(meter.and_then(Meter::stop));
        self.threads = match (self.threads.take(), threads_before.zip(CpuTimes::read())) {
            (Some(used), Some((before, after))) => Some(used.with(&before, &after)),
            _ => None,
        };
        self.requests += 1;
        Ok(answer)
    }

    fn add_energy(&mut self, energy: Option<Energy>) {
        self.energy = match (self.energy.take(), energy) {
            (None, first) if self.requests == 0 => first,
            (Some(sum), Some(more)) => Some(Energy { joules: sum.joules + more.joules, ..sum }),
            // A sum with a gap would be too small.
            _ => None,
        };
    }
}

// Warm-up: whole iterations, thrown away as samples but reported, until the latest has settled.

/// Below this, medians of the halves of an iteration say more of chance than of a trend.
const GAPS_FOR_HALVES: usize = 8;

/// Warms up as `limits` say: see [`Warmup`]. `cold`: the request of the cold start. The memory is the caller's to read.
pub(crate) fn warm_up<E: InferenceEngine>(
    workload: &mut dyn Workload<E>,
    engine: &mut E,
    limits: &Warmup,
    cold: Sample,
) -> Result<WarmupDone, ServeError> {
    let start = clock::now_ns();
    let from_cold = limits.from_cold && workload.cases() > 1;
    let mut before: Vec<Sample> = from_cold.then_some(cold).into_iter().collect();
    let mut iterations = Vec::with_capacity(limits.max_iterations.min(1024));
    let mut settled = false;
    while goes_on(limits, iterations.len(), settled, clock::now_ns() - start) {
        iterations.push(workload.iteration(engine, iterations.len(), std::mem::take(&mut before))?);
        settled = has_settled(&iterations, limits.settled_within);
    }
    Ok(WarmupDone { iterations, settled, from_cold, ..WarmupDone::default() })
}

/// Whether another iteration is begun after `done` ones.
fn goes_on(limits: &Warmup, done: usize, settled: bool, elapsed_ns: u64) -> bool {
    let enough = settled && done >= limits.min_iterations;
    // The first is run whatever the limit: measured work must have run once.
    done == 0 || (!enough && done < limits.max_iterations && elapsed_ns < limits.max_ns)
}

/// Whether the latest iteration is steady in itself, or as fast, gap by gap, as the one before. The second can hold even
/// where each gap is longer than the one before it. Iterations of few gaps are compared by the time that they took: what
/// comes before the first gap is most of them.
fn has_settled(iterations: &[Iteration], within: f64) -> bool {
    let gaps = |iteration: &Iteration| iteration.steps_ns().map(|ns| ns as f64).collect::<Vec<f64>>();
    let latest = iterations.last().map(gaps).unwrap_or_default();
    let has_few = latest.len() < GAPS_FOR_HALVES;
    if !has_few {
        let (first, second) = latest.split_at(latest.len() / 2);
        if near(median(first) / median(second), within) {
            return true;
        }
    }
    match iterations {
        [.., before, last] if has_few => near(whole_ns(before) / whole_ns(last), within),
        [.., before, _] => {
            let ratios: Vec<f64> = gaps(before).iter().zip(&latest).map(|(a, b)| a / b).collect();
            near(median(&ratios), within)
        }
        _ => false,
    }
}

/// The time of all requests of an iteration.
fn whole_ns(iteration: &Iteration) -> f64 {
    iteration.cases.iter().map(|case| case.marks_ns.end() as f64).sum()
}

/// Whether a ratio differs from 1 by less than the share `within`, whichever of the two is the larger.
fn near(ratio: f64, within: f64) -> bool {
    ratio.max(1.0 / ratio) < 1.0 + within
}

/// The upper of the two in the middle of an even number.
fn median(values: &[f64]) -> f64 {
    let mut sorted = values.to_vec();
    sorted.sort_unstable_by(f64::total_cmp);
    sorted.get(sorted.len() / 2).copied().unwrap_or(f64::NAN)
}

#[cfg(test)]
mod tests {
    use protocol::Marks;

    use super::*;

    fn settled(iterations: &[&[u64]]) -> bool {
        let iteration = |gaps: &&[u64]| {
            let sample = Sample { marks_ns: Marks::new(9, gaps.iter().copied()), ..Sample::default() };
            Iteration { index: 0, cases: vec![sample] }
        };
        has_settled(&iterations.iter().map(iteration).collect::<Vec<_>>(), 0.05)
    }

    const FALLING: [u64; 8] = [150, 140, 130, 120, 100, 100, 100, 100];

    const RISING: [u64; 8] = [100, 110, 120, 130, 140, 150, 160, 170];

    #[test]
    fn an_iteration_has_settled_that_is_steady_or_like_the_one_before() {
        let (later, slower) = (RISING.map(|gap| gap + 3), RISING.map(|gap| gap + 30));
        let mut odd = RISING;
        odd[3] = 900;
        let rows: [(bool, &[&[u64]], &str); 12] = [
            (true, &[&[100, 101, 99, 100, 100, 102, 100, 100]], "its halves agree"),
            (false, &[&FALLING], "its halves do not"),
            (false, &[&RISING], "there is none before"),
            (true, &[&RISING, &later], "like the one before, though its gaps grow"),
            (false, &[&slower, &RISING], "faster than the one before"),
            (false, &[&RISING, &slower], "slower is not settled either"),
            (true, &[&odd, &RISING], "one odd gap unsettles nothing"),
            (false, &[&[100, 100]], "few gaps, and there is none before"),
            (true, &[&[100, 100], &[150, 51]], "few gaps are compared by the time that they took"),
            (false, &[&[100, 100], &[150, 100]], "which is longer"),
            (false, &[&[]], "one mark, and there is none before"),
            (true, &[&[], &[]], "requests of one mark are compared by it"),
        ];
        for (expected, iterations, why) in rows {
            assert_eq!(settled(iterations), expected, "{why}");
        }
    }

    #[test]
    fn warm_up_ends_when_settled_or_at_a_limit() {
        let limits = Warmup {
            min_iterations: 2,
            max_iterations: 5,
            max_ns: 100,
            settled_within: 0.05,
            from_cold: false,
        };
        assert!(goes_on(&limits, 1, true, 0), "the least number of iterations is run even if settled");
        assert!(!goes_on(&limits, 2, true, 0));
        assert!(goes_on(&limits, 4, false, 0));
        assert!(!goes_on(&limits, 5, false, 0));
        assert!(!goes_on(&limits, 1, false, 100), "no iteration is begun after the time limit");
        assert!(goes_on(&limits, 0, false, 100), "what is measured must have run once");
    }
}
