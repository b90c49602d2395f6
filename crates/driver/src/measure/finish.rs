//! The end of a worker of a round: its usage, its outputs compared with the reference's, and its failure if it has one.

use std::path::Path;

use comparison::facts::evidence::{Ended, Fact};
use comparison::facts::run::{self, DerivedWeights, FailureKind, Run, RunFailure};
use comparison::judge::parity::{self, Tolerance};
use comparison::judge::work;
use comparison::plan::Rounds;
use protocol::{Event, FileIdentity, Finish, Shows, untrusted};

use crate::measure::logits;
use crate::measure::machine::ReadyMemory;
use crate::measure::process::now;
use crate::measure::running_worker::WarmWorker;
use crate::measure::session::{Round, RoundWork, Session};
use crate::measure::worker::lines;

impl Session<'_> {
    /// Lets a process finish, and compares its outputs with the reference.
    pub(crate) fn finish_member(&mut self, mut member: WarmWorker, round: Round, work: &RoundWork<'_>) {
        // A directory of its own: files that a worker leaves there cannot be mistaken for another's.
        let directory = self.crew.scratch.path().join(format!("parity-{}", member.running.pid()));
        let _ = std::fs::create_dir(&directory);
        let file = directory.join("logits.safetensors");
        // Without any, a row has no part in verdicts: a round with too little time leaves them to the next.
        let has_none =
            self.recorder.evidence.complete(&member.process.framework).all(|run| run.agreement.is_none());
        let is_due = work.run.parity && (has_none || self.has_logits(round.number));
        let shown = member.shows(self.crew.plan);
        let shows_logits = matches!(shown, Shows::All | Shows::LogProbabilities);
        let is_due = is_due && shows_logits && work.run.references.is_some();
        let task = self.crew.parity_task(&file).filter(|_| is_due);
        let has_no_time = task.is_some() && self.limit.left() < self.logits_take;
        let task = task.filter(|_| !has_no_time);
        if has_no_time {
            let framework = &member.process.framework;
            self.crew.progress.say(&format!("{framework}: the time limit leaves no time for its logits"));
        }
        let (is_asked, begun) = (task.is_some(), now());
        let identity = identity(member.running.events());
        let (label, index) = (member.process.framework.clone(), member.index);
        let is_hashed = |identity| {
            self.recorder.evidence.hashed.iter().any(|(known, _)| *known == identity)
                || self.hashed.contains(&(label.clone(), identity))
        };
        let hash = !identity.is_some_and(is_hashed);
        member.running.resume();
        for change in member.running.changes() {
            let reason = format!("another program acted on a worker that waited: it {change} ({label})");
            self.recorder.record(Fact::Complaint { reason });
        }
        let seen = member.running.seen();
        member.running.ask_to_finish(Finish { hash, parity: task });
        if is_asked {
            self.logits_take = self.logits_take.max(begun.elapsed());
        }
        let said = member.running.events();
        if said.iter().any(|event| matches!(event, Event::Usage(usage) if usage.weights_sha256.is_some())) {
            self.hashed.extend(identity.map(|identity| (label, identity)));
        }
        self.close(member, |session, run, ended| {
            ended.seen = Some(seen);
            let contender = session.crew.plan.contender(&run.framework);
            let (Some(contender), Some(references)) = (contender, &work.run.references) else { return };
            let plan = session.crew.plan;
            let tolerance = Tolerance::for_work(contender, &plan.work);
            // Requests that were asked for something new are compared later.
            if session.proofs.is_none() {
                let along = references.of_requests(plan.work.is_forced());
                ended.tokens = work::tokens(plan, along, run, tolerance);
                if ended.tokens.is_none() {
                    let vectors = work::of_turns(run);
                    ended.agreement = Some(work::agreement(&references.own.framework, vectors, tolerance));
                }
            }
            let tokens = ended.tokens.unwrap_or_default();
            let is_own = session.crew.is_same_program(index, references.by);
            let other = references.other.as_ref().filter(|_| is_own);
            let reference = other.map_or(references.of_jobs(), |(_, other)| other);
            if is_asked {
                let is_told = ended.events.iter().any(|event| matches!(event, Event::Parity(_)));
                let told = || is_told.then_some(()).ok_or("it did not say that its logits are complete");
                let agreement = told().map_err(str::to_owned).and_then(|()| {
                    let logits = logits::read_parity(&file, &session.crew.parity_shapes())?;
                    match shown {
                        Shows::All => parity::compare(reference, &logits, tokens, tolerance),
                        _ => parity::compare_shown(reference, &logits, tokens, tolerance),
                    }
                });
                match agreement {
                    Ok(agreement) => ended.agreement = Some(agreement),
                    Err(reason) => {
                        session.crew.progress.say(&format!("{}: {reason}", run.framework));
                        ended.no_agreement = Some(reason);
                    }
                }
            }
        });
        let _ = std::fs::remove_dir_all(&directory);
    }

    /// Ends a process that failed, or that is no longer needed.
    pub(crate) fn end_member(&mut self, member: WarmWorker) {
        self.close(member, |_, _, _| {});
    }

    /// Ends a process that is started again. Its events are kept, and its end is no failure.
    pub(crate) fn discard(&mut self, member: WarmWorker) {
        let pid = member.running.pid();
        let outcome = member.running.end();
        self.crew.say_left_behind(&member.process.framework, &outcome.left_behind);
        self.guard.remove(pid);
    }

    /// Whether processes of this round write logits: the first round does, and one of the next that the seed
    /// draws. Automatic rounds may end after the fewest for a verdict.
    fn has_logits(&self, round: usize) -> bool {
        let fewest = match self.crew.plan.rounds {
            Rounds::Auto { max, .. } => max.min(statistics::MIN_ROUNDS),
            Rounds::Fixed(rounds) => rounds,
        };
        let later = fewest.saturating_sub(1).max(1) as u64;
        round == 0 || round as u64 == 1 + self.crew.plan.seed % later
    }

    /// Reaps a process and records its end. `check` compares the outputs of a process that did its job.
    fn close(&mut self, member: WarmWorker, check: impl FnOnce(&Session<'_>, &Run, &mut Ended)) {
        let WarmWorker { index, running, job, process, warmup_events, .. } = member;
        let (contender, asked) = (&self.crew.plan.contenders[index], running.turns().to_vec());
        let (pid, waited, kernel_cache_bytes) = (running.pid(), running.waited(), running.cached_bytes());
        let outcome = running.end();
        self.guard.remove(pid);
        let mut ended = Ended {
            events: outcome.events.get(warmup_events..).unwrap_or_default().to_vec(),
            failure: RunFailure::from_ending(outcome.ending),
            process,
            waited,
            seen: None,
            agreement: None,
            no_agreement: None,
            tokens: None,
            derived: None,
            left_behind: outcome.left_behind,
            unused_caches: match kernel_cache_bytes {
                Some(0) => contender.engine.kernel_cache.clone(),
                _ => Vec::new(),
            },
            kernel_cache_bytes,
        };
        if let Some(run) = self.recorder.evidence.run(&ended.process) {
            if ended.failure.is_none() {
                check(self, run, &mut ended);
            }
            if contender.engine.reference {
                ended.derived = derived_weights(run);
            }
        }
        if let Some(failure) = &mut ended.failure
            && matches!(failure.kind, FailureKind::Failed | FailureKind::Killed | FailureKind::OutOfMemory)
        {
            let round = ended.process.round + 1;
            let name = format!("job-round{round}-{}.jsonl", contender.label.replace(' ', ""));
            self.recorder.results.write(&name, lines(&job, &asked));
            failure.repeat =
                Some(self.crew.workers[index].shell_line(&self.recorder.results.directory().join(name)));
        }
        self.crew.say_left_behind(&contender.label, &ended.left_behind);
        if ended.failure.is_none()
            && ended.process.round == 0
            && let Some(text) = run::unused_caches(&ended.unused_caches)
        {
            self.crew.progress.say(&format!("{}: {text}", contender.label));
        }
        let failure = ended.failure.clone();
        let round = ended.process.round + 1;
        let framework = contender.label.clone();
        self.recorder.record(Fact::Ended(Box::new(ended)));
        let Some(failure) = failure.filter(|failure| failure.kind != FailureKind::Interrupted) else {
            return;
        };
        self.crew.progress.say(&format!("{framework}, round {round}: {}", failure.sentence()));
        if let Some(repeat) = &failure.repeat {
            self.crew.progress.say(&format!("  to repeat it: {repeat}"));
        }
        // One failed process excludes the row: figures of only the successful processes would be biased.
        self.recorder.record(Fact::Absent { framework, failure });
    }

    /// Takes the memory that a process has just freed, for the contender's next one.
    pub(crate) fn hold_memory(&mut self, index: usize) {
        let has_next = !self.recorder.is_absent(&self.crew.plan.contenders[index]);
        if self.crew.plan.schedule.has_turns() && has_next && !self.is_over() {
            let of_round = self.crew.workers.iter().map(|worker| worker.ready_bytes).sum();
            let held = ReadyMemory::hold(self.crew.workers[index].ready_bytes, of_round);
            self.held.extend(held.map(|held| (index, held)));
        }
    }

    /// Ends the processes that failed in their turns.
    pub(crate) fn end_failed(&mut self, members: &mut Vec<WarmWorker>) {
        let over: Vec<WarmWorker> = members.extract_if(.., |member| member.is_over).collect();
        over.into_iter().for_each(|member| self.end_member(member));
    }
}

fn identity(events: &[Event]) -> Option<FileIdentity> {
    events.iter().find_map(|event| match event {
        Event::Loaded(loaded) => loaded.weights_identity,
        _ => None,
    })
}

/// The record next to the weights file that a process loaded.
fn derived_weights(run: &Run) -> Option<DerivedWeights> {
    let path = format!("{}.json", run.loaded()?.weights_file);
    serde_json::from_slice(&untrusted::file::read(Path::new(&path), untrusted::file::CONFIG).ok()?).ok()
}
