//! The job loop: one Job, its events, the end.

use std::io::{BufRead, Write};
use std::path::PathBuf;

use protocol::{
    Energy, Event, FailureKind, FileIdentity, Finish, Hello, Interval, Iteration, Job, Loaded, PageCache,
    Probe, Probed, Sample, Serve, Slice, Started, Task, Turn, Usage, Warmup, WarmupDone,
};

use crate::clock::{self, Pace};
use crate::energy::{self, CpuTimes, Gpu, Meter, Used};
use crate::engine::{Bundle, Device, EngineError, InferenceEngine, Settings};
use crate::memory::{self, Phase};
use crate::serving::Pool;
use crate::work::{self, Kept, Model, Request, Serving, Workload};
use crate::{Events, ServeError, measure, probe};

/// Initialises the framework and returns its description.
pub(crate) fn hello<E: InferenceEngine>() -> Result<Hello, EngineError> {
    Ok(crate::hello(E::FRAMEWORK, E::runtime()?))
}

/// Does `job`, a line of JSON, and writes its events. The turns of a measurement are read from `turns`. `start_ns` is
/// the clock at the start of main.
pub fn serve<E: InferenceEngine>(
    job: &str,
    turns: &mut dyn BufRead,
    start_ns: u64,
    output: &mut dyn Write,
) -> Result<(), ServeError> {
    let mut events = Events(output);
    let served = work::<E>(job, turns, start_ns, &mut events);
    if let Err(error) = &served {
        let (kind, reason) = match error {
            ServeError::Engine(error) => (crate::failure_kind(error), error.to_string()),
            ServeError::Job(reason) => (FailureKind::Input, reason.clone()),
            ServeError::File(reason) => (FailureKind::Failed, reason.clone()),
            ServeError::Pipe(_) => return served,
        };
        events.send(Event::Failed(protocol::Failed { kind, reason: reason.into() }))?;
    }
    served
}

fn work<E: InferenceEngine>(
    job: &str,
    turns: &mut dyn BufRead,
    start_ns: u64,
    events: &mut Events<'_>,
) -> Result<(), ServeError> {
    let job: Job =
        serde_json::from_str(job).map_err(|e| ServeError::Job(format!("the job does not parse: {e}")))?;
    check_version(job.protocol)?;
    if let Task::Probe(task) = &job.task {
        if let Some(probed) = probed::<E>(task, &job.settings)? {
            events.send(Event::Probed(probed))?;
        }
        return events.send(Event::Done);
    }
    let mut settings = measure::settings::<E>(crate::settings(&job.settings)?, &job.task);
    let serve = job.settings.serve;
    settings.threads = share_of(settings.threads, serve)?;
    let pace = Pace::new(job.settings.slowdown)?;
    let phase = Phase::begin(None);
    let hello = hello::<E>()?;
    let ready_ns = clock::now_ns();
    let started = Started {
        startup_ns: job.spawned_at_ns.map(|spawned| ready_ns.saturating_sub(spawned)),
        runtime_ns: ready_ns - start_ns,
        memory: phase.end(),
    };
    events.send(Event::Hello(hello))?;
    let earlier_peak = started.memory.peak_bytes;
    events.send(Event::Started(started))?;

    let bundle = Bundle::open(&job.bundle).map_err(EngineError::from)?;
    let bundle = if job.settings.decoder.autoregressive { bundle.autoregressive() } else { bundle };
    if bundle.config().graph.is_some() && !E::RUNS_GRAPHS {
        let reason = format!("{} runs no ONNX files here", E::FRAMEWORK);
        return Err(EngineError::Unsupported(reason).into());
    }
    let weights_file = E::weights_file(&bundle, &settings)?;
    let page_cache = memory::prepare(&weights_file, job.evict);
    let weights_identity = measure::identity(&weights_file);
    let gpu = Gpu::open(settings.device);
    let phase = Phase::begin(gpu.as_ref());
    let before_ns = clock::now_ns();
    let engine = E::load(&bundle, &settings)?;
    let pool = match serve.models() {
        1 => None,
        models => Some(Pool::load(models - 1, &bundle, &settings)?),
    };
    let after_ns = clock::now_ns();
    let load = Load {
        job: &job,
        start_ns,
        settings: &settings,
        bundle: &bundle,
        weights_identity,
        weights_file,
        page_cache,
        load_ns: after_ns - before_ns,
        after_ns,
        // The time between the framework's readiness and the load is the worker's own.
        own_ns: before_ns - ready_ns,
        phase,
        earlier_peak,
        pace,
        gpu: gpu.as_ref(),
    };
    load.perform(engine, pool.as_ref(), turns, events)
}

/// The threads of each model.
fn share_of(threads: usize, serve: Serve) -> Result<usize, ServeError> {
    let models = serve.models();
    if threads.is_multiple_of(models) {
        return Ok(threads / models);
    }
    Err(ServeError::Job(format!(
        "{serve} cannot divide {threads} threads evenly: take another number of models or threads"
    )))
}

/// Probes the device of the job's settings; `None` if this engine cannot make its framework do plain work
/// there.
fn probed<E: InferenceEngine>(
    task: &Probe,
    settings: &protocol::Settings,
) -> Result<Option<Probed>, ServeError> {
    match crate::device(&settings.device)? {
        Device::Cpu => probe::probe(task, settings.threads).map(Some),
        Device::Cuda(_) => probe::device::<E>(task, &crate::settings(settings)?),
    }
}

fn check_version(theirs: u32) -> Result<(), ServeError> {
    let ours = protocol::VERSION;
    if theirs == ours {
        return Ok(());
    }
    Err(ServeError::Job(format!("the driver speaks protocol {theirs}, this worker {ours}: build both again")))
}

/// A load that has just ended, and the job to do next.
struct Load<'a> {
    job: &'a Job,
    /// The clock at the start of main.
    start_ns: u64,
    settings: &'a Settings,
    bundle: &'a Bundle,
    weights_file: PathBuf,
    weights_identity: Option<FileIdentity>,
    page_cache: Option<PageCache>,
    load_ns: u64,
    /// The clock at the end of the load.
    after_ns: u64,
    /// Time since spawning that the worker took for readings and for opening the bundle.
    own_ns: u64,
    /// That of the load.
    phase: Phase<'a>,
    earlier_peak: Option<u64>,
    pace: Pace,
    gpu: Option<&'a Gpu>,
}

impl Load<'_> {
    /// Reports the load and does the job's task.
    fn perform<E: InferenceEngine>(
        self,
        mut engine: E,
        pool: Option<&Pool<E>>,
        turns: &mut dyn BufRead,
        events: &mut Events<'_>,
    ) -> Result<(), ServeError> {
        let (job, config, phases) = (self.job, self.bundle.config(), self.phases());
        let model = Model { vocabulary: config.vocab_size, mask_token: config.mask_token };
        let mut observed = engine.in_effect();
        let serve = job.settings.serve;
        if !serve.is_shared() {
            observed.threads *= serve.models();
            observed.kernels.push(format!("callers are served by {serve}"));
        }
        if job.settings.anew {
            observed.kernels.push("the model is loaded anew for every request".to_owned());
        }
        observed.kernels.extend(self.pace.phrase());
        let in_effect = crate::in_effect(observed, work::hybrid(&mut engine), &job.task);
        let loaded = Loaded {
            load_ns: self.load_ns,
            memory: self.phase.end_with(&engine),
            in_effect,
            weights_file: self.weights_file.display().to_string().into(),
            weights_bytes: std::fs::metadata(&self.weights_file).map(|file| file.len()).unwrap_or_default(),
            weights_identity: self.weights_identity,
            page_cache: self.page_cache,
        };
        let earlier_peak = self.earlier_peak.max(loaded.memory.peak_bytes);
        events.send(Event::Loaded(loaded))?;

        match &job.task {
            Task::Measure(task) => {
                let own_ns = self.own_ns + (clock::now_ns() - self.after_ns);
                let context = measure::Context {
                    model,
                    serving: Serving { serve, pool, load: task.load },
                    pace: self.pace,
                    spawned_at_ns: job.spawned_at_ns.map(|spawned| spawned + own_ns),
                    weights_file: &self.weights_file,
                    anew: job.settings.anew.then_some((self.bundle, self.settings)),
                    earlier_peak,
                    gpu: self.gpu,
                };
                measure::measure(&mut engine, task, &context, (turns, events))?;
            }
            Task::Load => {}
            Task::Answer(task) => measure::answer(&mut engine, task, (model, self.pace), events)?,
            Task::Score(task) => {
                let scored = measure::score(&mut engine, task, config, self.settings.hidden_states)?;
                events.send(Event::Scored(scored))?;
            }
            Task::Trace(task) => {
                let traced = measure::trace(&mut engine, task, (model, self.pace), phases)?;
                events.send(Event::Traced(traced))?;
            }
            Task::Probe(_) => unreachable!("a probe loads nothing"),
        }
        events.send(Event::Done)
    }

    /// The phases up to the end of the load.
    fn phases(&self) -> Vec<Interval> {
        let loading_ns = self.after_ns - self.load_ns;
        let spawned_ns = self.job.spawned_at_ns.unwrap_or(self.start_ns);
        let phase = |name: &str, start_ns, end_ns| Interval { name: name.into(), start_ns, end_ns };
        vec![
            phase("start-up", spawned_ns, loading_ns - self.own_ns),
            phase("load", loading_ns, self.after_ns),
        ]
    }
}

// The turns of a measurement: a worker that is warm waits for lines on stdin. A turn is a request, answered with its
// sample, or a slice of one: the request keeps its state while others have their turns.
//
// Usage counts from the start of a request to its last mark: neither the wait nor the untimed lead-in nor
// the context is in any figure.

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
        threads: energy::count(),
        cpus: energy::cpus(),
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

    fn iteration(gaps: &[u64]) -> Iteration {
        let sample = Sample { marks_ns: Marks::new(9, gaps.iter().copied()), ..Sample::default() };
        Iteration { index: 0, cases: vec![sample] }
    }

    fn settled(iterations: &[&[u64]]) -> bool {
        has_settled(&iterations.iter().map(|gaps| iteration(gaps)).collect::<Vec<_>>(), 0.05)
    }

    const FALLING: [u64; 8] = [150, 140, 130, 120, 100, 100, 100, 100];

    const RISING: [u64; 8] = [100, 110, 120, 130, 140, 150, 160, 170];

    #[test]
    fn an_iteration_whose_halves_agree_has_settled() {
        assert!(settled(&[&[100, 101, 99, 100, 100, 102, 100, 100]]));
        assert!(!settled(&[&FALLING]));
    }

    #[test]
    fn an_iteration_like_the_one_before_has_settled_though_its_gaps_grow() {
        assert!(!settled(&[&RISING]));
        assert!(settled(&[&RISING, &RISING.map(|gap| gap + 3)]));
        assert!(!settled(&[&RISING.map(|gap| gap + 30), &RISING]));
        assert!(!settled(&[&RISING, &RISING.map(|gap| gap + 30)]), "slower is not settled either");
    }

    #[test]
    fn one_odd_gap_unsettles_nothing() {
        let mut odd = RISING;
        odd[3] = 900;
        assert!(settled(&[&odd, &RISING]));
    }

    #[test]
    fn iterations_of_few_gaps_are_compared_by_the_time_that_they_took() {
        assert!(!settled(&[&[100, 100]]));
        assert!(settled(&[&[100, 100], &[150, 51]]));
        assert!(!settled(&[&[100, 100], &[150, 100]]));
    }

    #[test]
    fn requests_of_one_mark_are_compared_by_it() {
        assert!(!settled(&[&[]]));
        assert!(settled(&[&[], &[]]));
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
