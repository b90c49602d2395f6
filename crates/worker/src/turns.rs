//! The turns of a measurement: a worker that is warm waits for lines on stdin. A turn is a request, answered with its
//! sample, or a slice of one: the request keeps its state while others have their turns.
//!
//! Usage counts from the start of a request to its last mark: neither the wait nor the untimed lead-in nor
//! the context is in any figure.

use std::io::BufRead;

use engine::InferenceEngine;
use protocol::{Energy, Event, Finish, Slice, Turn, Usage};

use crate::clock;
use crate::energy::Meter;
use crate::error::ServeError;
use crate::events::Events;
use crate::gpu::Gpu;
use crate::memory::Phase;
use crate::threads::{self, CpuTimes, Used};
use crate::work::cache::Kept;
use crate::work::{Request, Workload};

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
    let finish = loop {
        let turn = next(turns)?;
        check(&turn, workload, under_way.as_ref())?;
        let sample = match turn {
            Turn::Finish(finish) => break finish,
            Turn::Request { case, input } => {
                prepare(engine, workload, (case, lead_in), gpu)?;
                let marks = workload.marks();
                spent.during(gpu, || workload.request(engine, case, (input, marks)))?.1
            }
            Turn::Slice { case, marks, input } => {
                let request = match under_way.take() {
                    None => {
                        prepare(engine, workload, (case, lead_in), gpu)?;
                        spent.during(gpu, || workload.begin(engine, case, input))?
                    }
                    Some(mut request) => {
                        spent.during(gpu, || workload.advance(engine, &mut request, marks))?;
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
        threads: threads::count(),
        cpus: threads::cpus(),
        energy: spent.energy,
        cache: spent.kept.usage(engine),
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

/// Refuses a turn that is not possible.
fn check<E: InferenceEngine>(
    turn: &Turn,
    workload: &dyn Workload<E>,
    under_way: Option<&Request>,
) -> Result<(), ServeError> {
    let (Turn::Request { case, input } | Turn::Slice { case, input, .. }) = turn else { return Ok(()) };
    let count = workload.cases();
    let refuse = |reason: String| Err(ServeError::Job(reason));
    if *case >= count {
        return refuse(format!("a turn asks for case {case}, and there are {count}"));
    }
    if let Some(input) = input {
        workload.check(*case, input)?;
    }
    match (turn, under_way) {
        (Turn::Slice { marks: 0, .. }, _) => refuse("a slice has at least one mark".into()),
        (Turn::Slice { .. }, Some(request)) if request.case == *case => Ok(()),
        (_, Some(request)) => {
            let under_way = request.case;
            refuse(format!("a turn asks for case {case} while a request of case {under_way} is under way"))
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

/// Waits for the next turn.
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
