//! One measuring session: it schedules turns for a crew of processes on their machine, and has a recorder
//! store the facts. Calls go downward: from the session to the crew and to the recorder, which do not know
//! it; and within it from rounds to a round, its groups, starts, blocks and slices.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::time::{Duration, Instant};

use bundle::Bundle;
use comparison::facts::evidence::{End, Evidence, Fact, Probe, Process, Stage};
use comparison::facts::run::{Ending, FailureKind, Noise, RunFailure};
use comparison::judge;
use comparison::judge::report::limit::{Work, weights_read};
use comparison::plan::prompts::Text;
use comparison::plan::{Contender, Failure, Plan, Result, Rounds};
use protocol::untrusted::secrets;
use protocol::{Event, FileIdentity, Hello, Probed, Task};
use statistics::BalancedOrder;

use crate::measure::crew::Crew;
use crate::measure::limit::{BEFORE_ROUNDS, Limit, REFERENCE};
use crate::measure::machine::{self, Guard, ReadyMemory};
use crate::measure::places::Places;
use crate::measure::process::now;
use crate::measure::proof::Proofs;
use crate::measure::reference::{References, RunWork};
use crate::measure::results::{Recorder, Results};
use crate::measure::running_worker::WarmWorker;
use crate::measure::{footprint, progress};

pub struct Session<'a> {
    pub(crate) crew: Crew<'a>,
    pub(crate) recorder: Recorder,
    /// The remedy for each worker that cannot run here.
    remedies: Vec<String>,
    pub(crate) guard: Guard,
    pub(crate) prober: Prober,
    /// What blocks ask for that is new, and the requests that wait for their comparison; `None` where they ask for what the
    /// jobs do.
    pub(crate) proofs: Option<Proofs>,
    /// The tokenizer that is timed, once it was asked a question.
    pub(crate) tokenizer: Option<Text>,
    /// The orders of turns within blocks.
    pub(crate) block_orders: BalancedOrder,
    /// The orders of slices after the first of a block.
    pub(crate) slice_orders: BalancedOrder,
    /// Number of times in a row that processes of a contender were started again for more huge pages in vain.
    pub(crate) page_repeats: BTreeMap<usize, usize>,
    /// Memory for the next process of each contender.
    pub(crate) held: BTreeMap<usize, ReadyMemory>,
    /// Files that a worker has hashed, with the contender's label.
    pub(crate) hashed: BTreeSet<(String, FileIdentity)>,
    /// Whether turns of this round were too short to be watched.
    pub(crate) unwatched: bool,
    /// Whether something in this round stayed disturbed, although it was repeated.
    pub(crate) stays_disturbed: bool,
    /// Why the machine was too noisy in this round, if it was.
    pub(crate) too_noisy: Option<String>,
    /// Number of rounds that were put aside for that.
    pub(crate) aside: usize,
    /// The time limit; none before a comparison begins.
    pub(crate) limit: Limit,
    /// The time of the longest part of a run with logits so far: about that of another.
    pub(crate) logits_take: Duration,
}

impl<'a> Session<'a> {
    /// A session that writes its facts to `results`.
    pub fn new(
        plan: &'a Plan,
        bundle: &'a Bundle,
        places: &Places,
        results: Results,
        quiet: bool,
    ) -> Result<Session<'a>> {
        progress::measuring_begins();
        let places = &places.on(&plan.device);
        let crew = Crew::new(plan, bundle, places, quiet)?;
        let mut session = Session {
            crew,
            recorder: Recorder::new(results),
            remedies: plan.contenders.iter().map(|contender| places.remedy(&contender.engine)).collect(),
            guard: Guard::new(plan.cpus.clone().unwrap_or_default(), &plan.device)
                .serving(plan.contenders.iter().filter_map(|contender| contender.engine.server())),
            prober: Prober::new(plan, bundle),
            proofs: None,
            tokenizer: None,
            // Other seeds than that of the rounds' own orders.
            block_orders: BalancedOrder::new(plan.contenders.len(), plan.seed.rotate_left(32)),
            slice_orders: BalancedOrder::new(plan.contenders.len(), plan.seed.rotate_left(16)),
            page_repeats: BTreeMap::new(),
            held: BTreeMap::new(),
            hashed: BTreeSet::new(),
            unwatched: false,
            stays_disturbed: false,
            too_noisy: None,
            aside: 0,
            limit: Limit::default(),
            logits_take: Duration::ZERO,
        };
        session.record_hashes();
        Ok(session)
    }

    /// Records the weights files with known hashes: the bundle was verified when it was opened.
    fn record_hashes(&mut self) {
        for precision in self.crew.bundle.precisions() {
            let record = self.crew.bundle.manifest().files.get(&precision.file_name());
            let path = self.crew.bundle.weights_path(precision).ok();
            let identity = path.and_then(|path| FileIdentity::new(&std::fs::metadata(path).ok()?));
            if let (Some(record), Some(identity)) = (record, identity)
                && self.crew.plan.contenders.iter().any(|contender| contender.precision == precision)
            {
                self.recorder.record(Fact::Hashed { identity, sha256: record.sha256.clone() });
            }
        }
    }

    /// The evidence, and the directory that it was written to.
    pub(crate) fn finish(self) -> (Evidence, Results) {
        self.crew.progress.done();
        (self.recorder.evidence, self.recorder.results)
    }

    /// Sends every worker `--hello`, and waits for a quiet machine unless noise is accepted.
    pub(crate) fn begin(&mut self) -> Result<()> {
        let begun = now();
        self.limit = Limit::new(self.crew.plan);
        self.crew.end_at(self.limit.until());
        self.handshake()?;
        if !self.crew.plan.accept_noise {
            let noise = self.await_quiet(self.limit.left());
            if !noise.complaints().is_empty() {
                self.limit.does_not_repeat();
            }
            self.recorder.record(Fact::Before { noise });
        }
        self.recorder.add_time(Stage::Before, begun);
        Ok(())
    }

    /// Whether no more is begun: the user interrupted, or the time is up.
    pub(crate) fn is_over(&self) -> bool {
        progress::requested() || self.limit.is_over()
    }

    /// Waits again for a quiet machine, before something is repeated.
    pub(crate) fn await_quiet_again(&mut self) {
        let begun = now();
        self.await_quiet(self.limit.longest_wait());
        self.limit.waited(begun);
    }

    /// Waits until the machine is quiet, for as long as the plan allows. Returns the last look.
    pub(crate) fn await_quiet(&self, longest: Duration) -> Noise {
        let patience = Duration::from_secs_f64(self.crew.plan.patience_s).min(longest);
        let mut told = false;
        self.guard.wait_until_quiet(patience, |noise| {
            if !std::mem::replace(&mut told, true) {
                let complaints = noise.complaints().join(", ");
                let limit = patience.as_secs_f64();
                self.crew
                    .progress
                    .say(&format!("waiting up to {limit:.0} s for a quiet machine: {complaints}"));
            }
        })
    }

    /// Sends every worker `--hello`. A worker that cannot answer is a row with its reason. An unsuitable
    /// library that the user named is a usage error.
    pub(crate) fn handshake(&mut self) -> Result<()> {
        for (index, contender) in self.crew.plan.contenders.iter().enumerate() {
            let worker = &self.crew.workers[index];
            let hello =
                worker.hello().and_then(|hello| wrong_framework(contender, &hello).map_or(Ok(hello), Err));
            let reason = match hello {
                Ok(hello) => {
                    let shipped = footprint::shipped(worker, &hello);
                    if let Some(shipped) = shipped.filter(|_| !contender.engine.is_server()) {
                        let framework = contender.label.clone();
                        self.recorder.record(Fact::Shipped { framework, shipped });
                    }
                    continue;
                }
                Err(reason) => reason,
            };
            if progress::requested() {
                return Err(Failure::Interrupted);
            }
            let given = contender.engine.env.keys().find(|name| std::env::var_os(name).is_some());
            if let Some(name) = given.filter(|_| contender.engine.version.is_none()) {
                let value = std::env::var_os(name).unwrap_or_default();
                let value = value.to_string_lossy();
                let value = secrets::setting(name, &value);
                return Err(Failure::usage(format!(
                    "{}: {name}={value} cannot be used: {reason}",
                    contender.label
                )));
            }
            let reason = match worker.absent {
                Some(_) => reason,
                None => format!("{reason}; {}", self.remedies[index]),
            };
            let failure = RunFailure::new(FailureKind::Failed, reason);
            self.crew.progress.say(&format!("{}: {}", contender.label, failure.sentence()));
            self.recorder.record(Fact::Absent { framework: contender.label.clone(), failure });
        }
        Ok(())
    }
}

/// The reason why this worker is not the contender's; `None` if it is.
pub fn wrong_framework(contender: &Contender, hello: &Hello) -> Option<String> {
    let (engine, expected) = (&contender.engine, &contender.engine.framework);
    if hello.framework.as_str() != expected {
        return Some(format!("{} says it is {:?}, not {expected:?}", engine.worker, hello.framework));
    }
    let version = setup::versions::Version::parse(engine.version.as_ref()?).ok()?;
    let asked = version.release()?;
    let mut words = hello.library.split(' ').chain(hello.binding.split(' '));
    let is_it = words.any(|word| word == asked);
    (!is_it).then(|| format!("{} says that it loaded {:?}, not {asked}", engine.worker, hello.library))
}

/// Turns the end of an untimed job of `generate` or `score` into an error if the job was not done.
pub fn finished(label: &str, ending: Ending) -> Result<()> {
    let input = matches!(&ending, Ending::Reported(f) if f.kind == protocol::FailureKind::Input);
    match RunFailure::from_ending(ending) {
        None => Ok(()),
        Some(failure) if failure.kind == FailureKind::Interrupted => Err(Failure::Interrupted),
        Some(failure) if failure.kind == FailureKind::Unsupported => {
            Err(Failure::usage(format!("{label} does not support this: {}", failure.sentence())))
        }
        Some(failure) if input => Err(Failure::usage(format!("{label}: {}", failure.sentence()))),
        Some(failure) => Err(Failure::failed(format!("{label}: {}", failure.sentence()))),
    }
}

// The loop of rounds.

/// Most rounds that are measured again because the machine was too noisy.
const MOST_ASIDE: usize = 6;

impl Session<'_> {
    /// Runs as many rounds as the plan asks for. Returns the reason why there are no more.
    pub(crate) fn rounds(&mut self, all: &RunWork) -> End {
        let mut orders = BalancedOrder::new(self.crew.plan.contenders.len(), self.crew.plan.seed);
        // With the same prompt first in every round, prompt and place in the round could not be told apart.
        let mut cases = BalancedOrder::new(self.crew.plan.work.cases(), self.crew.plan.seed.rotate_left(48));
        let (mut longest, mut shortest) = (Duration::ZERO, Duration::MAX);
        let first = now();
        let mut again = None;
        loop {
            let number = self.recorder.evidence.rounds;
            if number == self.crew.plan.rounds.max() {
                return End::Planned;
            }
            if self.crew.plan.contenders.iter().all(|contender| self.recorder.is_absent(contender)) {
                return End::NobodyLeft;
            }
            if !self.has_time_for_a_round() {
                return self.out_of_time(number);
            }
            let begun = now();
            // A round that is measured again keeps its orders, so that all of them stay balanced.
            let (order, cases_order) = again.take().unwrap_or_else(|| {
                let next = (orders.next(), cases.next());
                (next.0.expect("orders have no end"), next.1.expect("orders have no end"))
            });
            let blocks =
                self.recorder.evidence.iterations(self.crew.plan, number) * self.crew.plan.work.cases();
            let round = Round { number, blocks, first: 0 };
            let work = &RoundWork { run: all, cases: &cases_order };
            if let Err(Interrupted) = self.round(round, &order, work) {
                return if progress::requested() { End::Interrupted } else { self.out_of_time(number) };
            }
            if let Some(reason) = self.too_noisy.take() {
                let most = MOST_ASIDE.min(self.crew.plan.rounds.max() / 2);
                if self.aside == most || !self.limit.can_repeat_round(begun.elapsed()) {
                    self.recorder.record(Fact::RoundDone);
                    return End::Noisy { reason };
                }
                self.aside += 1;
                self.crew.progress.say(&format!("{reason}; round {} is measured again", number + 1));
                self.recorder.record(Fact::PutAside { round: number, framework: None });
                again = Some((order, cases_order));
                continue;
            }
            self.prove_some(number);
            self.recorder.record(Fact::RoundDone);
            (longest, shortest) = (longest.max(begun.elapsed()), shortest.min(begun.elapsed()));
            let judging = now();
            self.choose_again(all.begun);
            let spent_s = all.begun.elapsed().as_secs_f64();
            self.choose_allowed(spent_s, shortest);
            let end = self.enough(spent_s + self.next_round().unwrap_or(longest).as_secs_f64());
            self.recorder.add_time(Stage::Judging, judging);
            self.recorder.record_time();
            if let Some(end) = end {
                return end;
            }
            self.show_progress(first.elapsed(), all.begun.elapsed());
        }
    }

    /// Says that the time limit left no room for this round.
    fn out_of_time(&self, number: usize) -> End {
        let limit = self.crew.plan.limit_s().unwrap_or_default();
        self.crew
            .progress
            .say(&format!("round {} does not fit into the time limit of {limit} s", number + 1));
        End::Budget
    }

    /// Computes what requests are compared with and the jobs are fed, before the first round.
    fn begin_proofs(&mut self, references: &mut References) {
        let begun = now();
        self.crew.end_at(self.limit.share(BEFORE_ROUNDS));
        let anew = self.reference_of_jobs(references);
        // The cost of quantising is read along the trace of the jobs.
        if !references.has_trace_of_jobs() {
            match self.crew.unquantised(references.by, &references.own.outputs) {
                Ok(unquantised) => references.own.unquantised = unquantised,
                Err(reason) => {
                    self.crew.progress.say(&format!("what quantising costs is not known: {reason}"))
                }
            }
        }
        self.crew.end_at(self.limit.until());
        if let Err(reason) = anew
            && self.recorder.evidence.own_traces.is_none()
        {
            self.recorder.record(Fact::OwnTraces { reason });
        }
        self.recorder.add_time(Stage::Reference, begun);
    }

    /// The time of a round by the costs of those so far, if these choose the number of its blocks: the first
    /// round had more to do.
    fn next_round(&self) -> Option<Duration> {
        let chosen = self.recorder.evidence.blocks.last()?;
        Duration::try_from_secs_f64(chosen.process_s + chosen.blocks as f64 * chosen.block_s).ok()
    }

    /// Records the most rounds that the budget allows, once two rounds have shown what a round costs. It is rather too
    /// high than too low, as the run ends with that number at the latest: at the cheapest estimate, and rounded up.
    fn choose_allowed(&mut self, spent_s: f64, shortest: Duration) {
        let Rounds::Auto { max, budget_s } = self.crew.plan.rounds else { return };
        let done = self.recorder.evidence.rounds;
        if done != 2 {
            return;
        }
        let each = self.next_round().map_or(shortest, |next| next.min(shortest)).as_secs_f64();
        let more = ((budget_s - spent_s).max(0.0) / each.max(1e-9)).ceil().min(max as f64) as usize;
        self.recorder.record(Fact::Allowed { rounds: (done + more).min(max) });
    }

    /// Whether automatic rounds may end. `next_s` is when another round would end, in seconds since the start. Time comes
    /// before clarity: if there is none for another round, this is the last look, whatever the figures.
    fn enough(&self, next_s: f64) -> Option<End> {
        let (Rounds::Auto { budget_s, max }, evidence) = (self.crew.plan.rounds, &self.recorder.evidence)
        else {
            return None;
        };
        if evidence.rounds < statistics::MIN_ROUNDS || evidence.rounds == max {
            return None;
        }
        if next_s > budget_s || evidence.allowed.is_some_and(|allowed| evidence.rounds >= allowed) {
            return Some(End::Budget);
        }
        judge::are_clear(self.crew.plan, evidence).then_some(End::Clear)
    }

    /// Shows the leading pair's interval, and the time left where it is known. `rounds`: since the first round began;
    /// `all`: since the time budget began.
    fn show_progress(&mut self, rounds: Duration, all: Duration) {
        let done = self.recorder.evidence.rounds;
        let each = rounds.as_secs_f64() / done as f64;
        let left = match self.crew.plan.rounds {
            Rounds::Fixed(count) => Some((each * count.saturating_sub(done) as f64, "")),
            // It is not known when verdicts will be clear. The budget ends the rounds at the latest.
            Rounds::Auto { budget_s, max } => {
                let by_budget = (budget_s - all.as_secs_f64()).max(each * 0.5);
                let fewest = each * statistics::MIN_ROUNDS.saturating_sub(done) as f64;
                let most = each * max.saturating_sub(done) as f64;
                Some((by_budget.max(fewest).min(most), "at most "))
            }
        };
        self.crew
            .progress
            .round_done(judge::leading(self.crew.plan, &self.recorder.evidence), left.filter(|_| done >= 2));
    }
}

// A round, and its work.

/// The work of every process of a round.
#[derive(Clone, Copy)]
pub(crate) struct RoundWork<'a> {
    pub(crate) run: &'a RunWork,
    /// The prompts in the order in which the round's blocks have them, over and over.
    pub(crate) cases: &'a [usize],
}

#[derive(Debug, Clone, Copy)]
pub(crate) struct Round {
    /// Its number, from 0.
    pub(crate) number: usize,
    /// Number of its blocks that count; with groups, of each group.
    pub(crate) blocks: usize,
    /// Number of the first block of the group that is measured.
    pub(crate) first: usize,
}

/// The user interrupted, and the round was broken off.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Interrupted;

// Measures a comparison, from its first process to its last.

impl Session<'_> {
    /// Measures a comparison: whose arithmetic contenders compute, by the rules of the file `rules`, the rounds, and then in
    /// what they multiply, by the model `arithmetic`. In any case, the evidence gathered so far is returned.
    pub fn compare(mut self, arithmetic: Option<&Bundle>, rules: &Path) -> Result<(Evidence, Results)> {
        self.recorder.record(Fact::Quota { cpus: machine::quota() });
        self.begin()?;
        // Computing the reference takes from the time budget.
        let begun = now();
        self.crew.end_at(self.limit.share(REFERENCE));
        let mut references = self.reference();
        // It also loaded and continued the prompts.
        self.logits_take = begun.elapsed() / 3;
        self.crew.end_at(self.limit.share(BEFORE_ROUNDS));
        self.judge_quality();
        self.observe_own_code(rules);
        self.crew.end_at(self.limit.until());
        self.recorder.add_time(Stage::Reference, begun);
        let traces = self.crew.plan.work.fallback_outputs();
        let end = match progress::requested() {
            true => End::Interrupted,
            false => {
                references.iter_mut().for_each(|references| self.begin_proofs(references));
                self.rounds(&RunWork { references, traces, parity: true, begun })
            }
        };
        self.prove();
        if let Some(model) = arithmetic {
            self.observe_arithmetic(model);
        }
        self.recorder.record_time();
        self.recorder.record(Fact::End { end });
        Ok(self.finish())
    }
}

// Probes the machine, or the comparison's GPU, by a worker after the turns of every group of processes,
// which wait meanwhile.
//
// Read bandwidth is not constant. On the virtual machine of the development it changed between 36 and 67
// GB/s, for some tenths of a second or for tens of seconds, while arithmetic speed stayed the same.

/// Time of one sweep. The first touch of the buffer takes as long again, or longer if memory is slow.
const SWEEP: Duration = Duration::from_millis(80);

/// Divisor of the time since the last probe: a sweep takes no longer than the result, so that it is short
/// compared with short rounds.
const SHARE: u32 = 20;

const REPEATS: usize = 2;

/// Whether a probe is of this device.
fn is_of(probed: &Probed, device: &str) -> bool {
    probed.device.as_ref().map_or("cpu", |probed| probed.as_str()) == device
}

impl Session<'_> {
    /// Probes after the turns of these processes.
    pub(crate) fn probe_beside(&mut self, members: &[WarmWorker]) {
        let processes: Vec<Process> = members.iter().map(|member| member.process.clone()).collect();
        if processes.is_empty() {
            return;
        }
        let begun = now();
        let bytes = members.iter().map(|member| self.prober.bytes[member.index]).max().unwrap_or(0);
        let sweep = self.prober.latest.map_or(SWEEP, |latest| SWEEP.min(latest.elapsed() / SHARE));
        if let Some(probed) = self.probed(bytes, sweep) {
            let drift = self.guard.drift(probed.compute_ns);
            self.recorder.record(Fact::Probe(Probe { after: processes, ..Probe::new(&probed, drift) }));
        }
        self.prober.latest = Some(now());
        self.recorder.add_time(Stage::Probes, begun);
    }

    /// Asks the first worker that can probe. A worker in another language may be unable to.
    fn probed(&mut self, bytes: u64, sweep: Duration) -> Option<Probed> {
        while self.prober.worker < self.crew.workers.len() {
            if self.is_over() {
                return None;
            }
            let task =
                Task::Probe(protocol::Probe { bytes, sweep_ns: sweep.as_nanos() as u64, repeats: REPEATS });
            let contender = &self.crew.plan.contenders[self.prober.worker];
            if contender.engine.is_server() {
                self.prober.worker += 1;
                continue;
            }
            let mut job = self.crew.job(contender, task);
            job.settings.threads = self.crew.plan.threads;
            let outcome = self.crew.run_job(self.prober.worker, &job);
            let probed = outcome.events.into_iter().find_map(|event| match event {
                // The speed of another device is no limit of this one.
                Event::Probed(probed) if is_of(&probed, &self.crew.plan.device) => Some(probed),
                _ => None,
            });
            if probed.is_some() {
                if self.recorder.evidence.no_probe.is_some() {
                    self.recorder.record(Fact::NoProbe { reason: None });
                }
                return probed;
            }
            if self.is_over() {
                return None;
            }
            let reason = RunFailure::from_ending(outcome.ending).map_or_else(
                || "its engine asks its framework for no plain work".into(),
                |failure| failure.sentence(),
            );
            let reason = format!("{}'s worker cannot probe the machine: {reason}", contender.label);
            self.recorder.record(Fact::NoProbe { reason: Some(reason) });
            self.prober.worker += 1;
        }
        None
    }
}

/// Limits on the bytes that a probe reads. Within them it reads as much as a decode step; once it exceeds the
/// caches, more makes no difference.
const BYTES: std::ops::RangeInclusive<u64> = 1 << 20..=1 << 28;

/// State of the session between probes.
#[derive(Default)]
pub(crate) struct Prober {
    /// Bytes that a decode step reads, by contender.
    pub(crate) bytes: Vec<u64>,
    /// The first worker that may be able to probe; one that cannot is not asked again.
    pub(crate) worker: usize,
    pub(crate) latest: Option<Instant>,
}

impl Prober {
    pub(crate) fn new(plan: &Plan, bundle: &Bundle) -> Prober {
        let bytes = |contender: &Contender| {
            // The element type of the cache is an estimate; it is known only after a load.
            let element = contender.precision.element().bytes();
            let (config, precision) = (bundle.config(), contender.precision);
            let read = match plan.work.generate() {
                Some(work) => Work::new(config, work, precision, element).map(Work::step_bytes),
                None => weights_read(config, precision).map(|bytes| bytes as f64),
            };
            read.map_or(0, |bytes| bytes as u64).clamp(*BYTES.start(), *BYTES.end())
        };
        Prober { bytes: plan.contenders.iter().map(bytes).collect(), ..Prober::default() }
    }
}
