//! Probes the machine by a worker, before and after every measuring process.
//!
//! Read bandwidth is not constant. On the virtual machine of the development it changed between 36 and 67 GB/s, for
//! some tenths of a second or for tens of seconds, while arithmetic stayed as fast. A probe after every round therefore
//! said little about the processes in it. A probe right before and one right after each process do.

use std::time::{Duration, Instant};

use protocol::{Event, Probed, Task};

use crate::interrupt;
use crate::session::Session;
use judge::evidence::{Fact, Probe, Process};
use judge::noise::LIMITS;
use judge::run::{Place, RunFailure};

/// Time of one sweep. With the buffer's first touch (60 ms for 540 MB) and the arithmetic, a probe takes 0.2 s.
const SWEEP: Duration = Duration::from_millis(80);
/// Divisor of the time of the process beside it: a sweep takes no longer than the result, so that short processes are
/// not dwarfed.
const SHARE: u32 = 20;
const REPEATS: usize = 2;

impl Session<'_> {
    /// Probes before the process of contender `index`. Returns a complaint if the machine has slowed down.
    pub(crate) fn probe_before(&mut self, index: usize, place: Place) -> Option<String> {
        let is_fresh = self.prober.fresh == Some(self.prober.bytes[index]);
        let complaint = if is_fresh { None } else { self.probe(index, None) };
        if self.prober.fresh.is_some() {
            let process = self.beside(index, place);
            self.tell(Fact::ProbedBefore { process });
        }
        self.prober.forget();
        self.prober.begun = Some(now());
        complaint
    }

    /// Probes after the process.
    pub(crate) fn probe_after(&mut self, index: usize, place: Place) -> Option<String> {
        if let Some(begun) = self.prober.begun.take() {
            self.prober.took.insert(index, begun.elapsed());
        }
        let process = self.beside(index, place);
        self.probe(index, Some(process))
    }

    fn beside(&self, index: usize, place: Place) -> Process {
        let framework = self.plan.contenders[index].label.clone();
        Process { round: place.round, attempt: place.attempt, framework }
    }

    /// Runs a probe; `after` is the process that has just ended.
    fn probe(&mut self, index: usize, after: Option<Process>) -> Option<String> {
        self.prober.forget();
        let bytes = self.prober.bytes[index];
        let sweep = self.prober.took.get(&index).map_or(SWEEP, |&took| SWEEP.min(took / SHARE));
        let probed = self.probed(bytes, sweep)?;
        let drift = self.guard.drift(probed.compute_ns);
        self.tell(Fact::Probe(Probe { after, ..Probe::new(&probed, drift) }));
        self.prober.fresh = Some(bytes);
        (drift > LIMITS.drift).then(|| format!("the CPU was {:.0} % slower than at its best", drift * 100.0))
    }

    /// Asks the first worker that can probe. A worker in another language may be unable to.
    fn probed(&mut self, bytes: u64, sweep: Duration) -> Option<Probed> {
        while self.prober.worker < self.workers.len() {
            if interrupt::requested() {
                return None;
            }
            let task =
                Task::Probe(protocol::Probe { bytes, sweep_ns: sweep.as_nanos() as u64, repeats: REPEATS });
            let contender = &self.plan.contenders[self.prober.worker];
            let mut job = self.job(contender, task);
            job.settings.threads = self.plan.threads;
            let outcome = self.workers[self.prober.worker].run(&job);
            let probed = outcome.events.into_iter().find_map(|event| match event {
                Event::Probed(probed) => Some(probed),
                _ => None,
            });
            if probed.is_some() {
                if self.evidence.no_probe.is_some() {
                    self.tell(Fact::NoProbe { reason: None });
                }
                return probed;
            }
            if interrupt::requested() {
                return None;
            }
            let reason = RunFailure::from_ending(outcome.ending)
                .map_or_else(|| "it said nothing".into(), |failure| failure.sentence());
            let reason = format!("{}'s worker cannot probe the machine: {reason}", contender.label);
            self.tell(Fact::NoProbe { reason: Some(reason) });
            self.prober.worker += 1;
        }
        None
    }
}

#[expect(clippy::disallowed_methods, reason = "how long a probe may take, not a measurement")]
fn now() -> Instant {
    Instant::now()
}
