//! One measuring session: it schedules turns for a crew of processes on their machine, and has a recorder
//! store the facts. Calls go downward: from the session to the crew and to the recorder, which do not know
//! it; and within it from rounds to a round, its groups, starts, blocks and slices.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use bundle::Bundle;
use facts::evidence::{Evidence, Fact, Stage};
use facts::noise::Noise;
use facts::run::{Ending, FailureKind, RunFailure};
use plan::prompts::Text;
use plan::{Contender, Failure, Plan, Result};
use protocol::{FileIdentity, Hello};
use statistics::BalancedOrder;

use crate::clock::now;
use crate::crew::Crew;
use crate::limit::Limit;
use crate::machine::{Guard, ReadyMemory};
use crate::places::Places;
use crate::prober::Prober;
use crate::process::identity;
use crate::recorder::Recorder;
use crate::results::Results;
use crate::{footprint, interrupt};

pub struct Session<'a> {
    pub(crate) crew: Crew<'a>,
    pub(crate) recorder: Recorder,
    /// The remedy for each worker that cannot run here.
    remedies: Vec<String>,
    pub(crate) guard: Guard,
    pub(crate) prober: Prober,
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
        interrupt::measuring_begins();
        let places = &places.on(&plan.device);
        let crew = Crew::new(plan, bundle, places, quiet)?;
        let mut session = Session {
            crew,
            recorder: Recorder::new(results),
            remedies: plan.contenders.iter().map(|contender| places.remedy(&contender.engine)).collect(),
            guard: Guard::new(plan.cpus.clone().unwrap_or_default(), &plan.device),
            prober: Prober::new(plan, bundle),
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
            let identity = path.and_then(|path| identity(&std::fs::metadata(path).ok()?));
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
        self.recorder.finish()
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
        interrupt::requested() || self.limit.is_over()
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
            let reason = match self.crew.workers[index].hello() {
                Ok(hello) => match wrong_framework(contender, &hello) {
                    None => {
                        let framework = contender.label.clone();
                        let shipped = footprint::shipped(&self.crew.workers[index], &hello);
                        if let Some(shipped) = shipped {
                            self.recorder.record(Fact::Shipped { framework, shipped });
                        }
                        continue;
                    }
                    Some(reason) => reason,
                },
                Err(reason) => reason,
            };
            if interrupt::requested() {
                return Err(Failure::Interrupted);
            }
            let given = contender.engine.env.keys().find(|name| std::env::var_os(name).is_some());
            if let Some(name) = given.filter(|_| contender.engine.version.is_none()) {
                let value = std::env::var(name).unwrap_or_default();
                return Err(Failure::usage(format!(
                    "{}: {name}={value} cannot be used: {reason}",
                    contender.label
                )));
            }
            let reason = match self.crew.workers[index].absent {
                Some(_) => reason,
                None => format!("{reason}; {}", self.remedies[index]),
            };
            let failure = RunFailure {
                kind: FailureKind::Failed,
                reason: reason.into(),
                last_words: None,
                repeat: None,
            };
            self.crew.progress.say(&format!("{}: {}", contender.label, failure.sentence()));
            self.recorder.record(Fact::Absent { framework: contender.label.clone(), failure });
        }
        Ok(())
    }
}

/// The reason why this worker is not the contender's; `None` if it is.
pub fn wrong_framework(contender: &Contender, hello: &Hello) -> Option<String> {
    let (engine, expected) = (&contender.engine, &contender.engine.framework);
    if hello.framework != *expected {
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
