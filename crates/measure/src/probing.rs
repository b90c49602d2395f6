//! Probes the machine, or the comparison's GPU, by a worker after the turns of every group of processes,
//! which wait meanwhile.
//!
//! Read bandwidth is not constant. On the virtual machine of the development it changed between 36 and 67
//! GB/s, for some tenths of a second or for tens of seconds, while arithmetic speed stayed the same.

use std::time::Duration;

use protocol::{Event, Probed, Task};

use crate::clock::now;
use crate::member::Member;
use crate::session::Session;
use facts::evidence::{Fact, Probe, Process, Stage};
use facts::run::RunFailure;

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
    pub(crate) fn probe_beside(&mut self, members: &[Member]) {
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
