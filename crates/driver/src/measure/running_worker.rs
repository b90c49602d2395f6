//! A worker with a job: its events so far, their times, and its waits while others have their turns.

use std::collections::BTreeSet;
use std::time::{Duration, Instant};

use comparison::facts::evidence;
use comparison::facts::impossible;
use comparison::facts::run::{Ending, Outcome, Seen, SeenLoad, Waited};
use comparison::plan::Plan;
use protocol::{Event, Finish, GpuMemory, Input, Job, Loaded, Sample, Shows, Task, Turn};

use crate::measure::machine::{Confinement, Reading, ReadyMemory, Watched, nice, processor_time};
use crate::measure::process::{
    Process, Reaped, came_from_outside, check_version, describe, last_line, nonsense, now,
};
use crate::measure::progress;
use crate::measure::worker::Worker;

/// Most tokens that a server may keep its model from choosing: the ends of texts are a few.
const MOST_BARRED: usize = 64;

/// A worker that is warm and waits for its turns.
pub(crate) struct WarmWorker {
    /// Its contender's place in the plan.
    pub(crate) index: usize,
    pub(crate) running: RunningWorker,
    pub(crate) job: Job,
    pub(crate) process: evidence::Process,
    /// Number of its events up to the end of warm-up.
    pub(crate) warmup_events: usize,
    /// Whether it failed in a turn.
    pub(crate) is_over: bool,
}

impl WarmWorker {
    /// What it said once it had loaded. Only of a server does less than all count as seen.
    fn loaded(&self, plan: &Plan) -> Option<&Loaded> {
        let loaded = self.running.events().iter().find_map(|event| match event {
            Event::Loaded(loaded) => Some(loaded),
            _ => None,
        });
        loaded.filter(|_| plan.contenders[self.index].engine.is_server())
    }

    /// What can be seen of its steps. A framework is compared whatever it says.
    pub(crate) fn shows(&self, plan: &Plan) -> Shows {
        self.loaded(plan).map(|loaded| loaded.shows).unwrap_or_default()
    }

    /// Tokens that it never chooses.
    pub(crate) fn barred(&self, plan: &Plan) -> Vec<u32> {
        let few = |loaded: &&Loaded| loaded.barred.len() <= MOST_BARRED;
        self.loaded(plan).filter(few).map_or_else(Vec::new, |loaded| loaded.barred.clone())
    }
}

pub(crate) struct RunningWorker {
    /// `None` if it could not be started.
    process: Option<Process>,
    pid: u32,
    confinement: Confinement,
    /// The GPUs that it computes on.
    gpus: Option<Watched>,
    /// Memory that it held there when it was asked to finish: it may have ended before its last reading
    /// arrives.
    held: Option<u64>,
    /// Taken until it loads.
    memory: Option<ReadyMemory>,
    load: SeenLoad,
    /// Its events, except its answers to turns.
    events: Vec<Event>,
    /// When it was started, and how much later each of its events came.
    begun: Instant,
    received_ns: Vec<u64>,
    /// What it is asked for, which bounds its answers.
    task: Task,
    /// What it had used at the end of warm-up.
    warm: Option<Reading>,
    /// The most memory of all its processes at a change of turn, if there were several.
    family_bytes: Option<u64>,
    /// What somebody else did to it while it waited.
    changes: BTreeSet<&'static str>,
    /// Whether somebody else ever did.
    was_changed: bool,
    turns: Vec<Turn>,
    /// Why it was given up, or that its stdout is closed.
    over: Option<Over>,
    /// Time that it may still use.
    left: Duration,
    limit: Duration,
    /// When it is ended, whatever it does.
    until: Option<Instant>,
    waiting: Option<Waiting>,
    waited: Option<Waited>,
}

enum Over {
    Ended,
    GivenUp(String),
}

struct Waiting {
    since: Instant,
    reading: Reading,
}

impl RunningWorker {
    /// Gives a job to a process that has just been started, or records why it could not be started.
    pub(crate) fn start(
        spawned: std::result::Result<Process, String>,
        worker: &Worker,
        job: &Job,
        gpus: Option<Watched>,
        mut confinement: Confinement,
        memory: Option<ReadyMemory>,
    ) -> RunningWorker {
        let spawned_at_ns = spawned.as_ref().ok().map(|process| process.spawned_at_ns);
        let job = Job { spawned_at_ns, ..job.clone() };
        let (process, over) = match spawned {
            Ok(process) => (Some(process), None),
            Err(reason) => (None, Some(Over::GivenUp(reason))),
        };
        let pid = process.as_ref().map_or(0, Process::id);
        if let Some(process) = &process {
            confinement.apply(pid);
            process.send(&job);
        }
        RunningWorker {
            process,
            pid,
            confinement,
            gpus,
            held: None,
            load: SeenLoad { ready_ns: memory.as_ref().map(|memory| memory.taken_ns), cpu_ns: None },
            memory,
            events: Vec::new(),
            begun: now(),
            received_ns: Vec::new(),
            task: job.task,
            warm: None,
            family_bytes: None,
            changes: BTreeSet::new(),
            was_changed: false,
            turns: Vec::new(),
            over,
            left: worker.timeout,
            limit: worker.timeout,
            until: worker.until,
            waiting: None,
            waited: None,
        }
    }

    pub(crate) fn pid(&self) -> u32 {
        self.pid
    }

    pub(crate) fn events(&self) -> &[Event] {
        &self.events
    }

    pub(crate) fn turns(&self) -> &[Turn] {
        &self.turns
    }

    /// Bytes in caches of compiled kernels of its own, if it was given those.
    pub(crate) fn cached_bytes(&self) -> Option<u64> {
        self.process.as_ref().and_then(Process::cached_bytes)
    }

    /// The driver's observations of it. To be called while it waits.
    pub(crate) fn seen(&self) -> Seen {
        let now = self.process.as_ref().map(Process::read);
        let used = now.zip(self.warm.as_ref()).and_then(|(now, warm)| now.used_since(warm));
        let (highest, all) = self.process.as_ref().map_or((None, None), Process::memory);
        Seen {
            events_ns: self.received_ns.clone(),
            peak_bytes: highest,
            family_bytes: self.family_bytes.max(all),
            cpu_ns: used.map(|seconds| (seconds * 1e9) as u64),
            program: self.process.as_ref().and_then(|process| process.program),
            nice: nice(self.pid).filter(|_| !self.was_changed),
            load: Some(self.load),
        }
    }

    /// How long it has waited, and its CPU time meanwhile.
    pub(crate) fn waited(&self) -> Option<Waited> {
        self.waited
    }

    /// Listens until the worker is warm, after so many iterations at most. Returns whether it is.
    pub(crate) fn warm_up(&mut self, most: usize) -> bool {
        while let Some(event) = self.recv() {
            let iterations = match &event {
                Event::Warmup(warm) => Some(warm.iterations.len()),
                _ => None,
            };
            if let Some(made) = iterations.filter(|&made| made > most) {
                let reason = format!("its warm-up has {made} iterations, and {most} at most were asked for");
                return self.give_up::<()>(reason).is_some();
            }
            self.events.push(event);
            self.received_ns.push(self.came_ns(self.begun));
            if iterations.is_some() {
                self.warm = self.process.as_ref().map(Process::read);
                return true;
            }
        }
        false
    }

    /// Lets the worker prepare a request of a case: what precedes it and counts in no figure. Returns how long that took,
    /// in nanoseconds. `None` if the worker failed.
    pub(crate) fn prepare(&mut self, case: usize) -> Option<u64> {
        match self.turn(Turn::Prepare { case }, case)? {
            (Event::Ready(_), ns) => Some(ns),
            _ => self.give_up("it sent figures that it was not asked for".to_owned()),
        }
    }

    /// Lets the worker take its turn at a case: one request. Also returns how long that took, in nanoseconds.
    /// `None` if the worker failed.
    pub(crate) fn request(&mut self, case: usize, input: Option<Input>) -> Option<(Sample, u64)> {
        match self.turn(Turn::Request { case, input }, case)? {
            (Event::Sample(sample), ns) => Some((sample, ns)),
            _ => self.give_up("it answered a whole request with something else than a sample".to_owned()),
        }
    }

    /// Lets the worker compute the next slice of a request, of so many more marks after its first. `marks`:
    /// those that the request then has, unless it is complete. Returns the sample, unless the request goes
    /// on, and how long the slice took, in nanoseconds. `None` if the worker failed.
    pub(crate) fn slice(
        &mut self,
        (case, input): (usize, Option<Input>),
        more: usize,
        marks: usize,
    ) -> Option<(Option<Sample>, u64)> {
        match self.turn(Turn::Slice { case, marks: more, input }, case)? {
            (Event::Sample(sample), _) if sample.marks_ns.len() > marks => {
                let made = sample.marks_ns.len();
                self.give_up(format!(
                    "after a slice its request has to have {marks} marks at most, and has {made}"
                ))
            }
            (Event::Sample(sample), ns) => Some((Some(sample), ns)),
            (Event::Slice(slice), ns) if slice.marks == marks => Some((None, ns)),
            (Event::Slice(slice), _) => self.give_up(format!(
                "after a slice its request has to have {marks} marks, and has {}",
                slice.marks
            )),
            _ => self.give_up("it answered a slice with something else than its marks".to_owned()),
        }
    }

    /// The logits of these tokens in the last step of its request, of so many sequences, `[sequence][token]`, and how long the
    /// answer took, in nanoseconds. `None` if the worker failed.
    pub(crate) fn logits(
        &mut self,
        case: usize,
        (tokens, batch): (&[u32], usize),
    ) -> Option<(Vec<Vec<f32>>, u64)> {
        let asked = tokens.len();
        match self.turn(Turn::Logits { case, tokens: tokens.to_vec() }, case)? {
            (Event::Logits(logits), ns) => {
                let is_whole =
                    logits.values.len() == batch && logits.values.iter().all(|row| row.len() == asked);
                if is_whole {
                    return Some((logits.values, ns));
                }
                self.give_up(format!(
                    "asked for {batch} × {asked} logits, it answered with other numbers of them"
                ))
            }
            _ => self.give_up("it sent figures that it was not asked for".to_owned()),
        }
    }

    /// The answer to a turn, which is of this case, and how long it took, in nanoseconds.
    fn turn(&mut self, turn: Turn, case: usize) -> Option<(Event, u64)> {
        let begun = now();
        self.ask(turn);
        let event = self.recv()?;
        let ns = self.came_ns(begun);
        let answered = match &event {
            Event::Sample(answer) => answer.case,
            Event::Slice(answer) => answer.case,
            Event::Ready(answer) => answer.case,
            Event::Logits(answer) => answer.case,
            Event::Failed(_) => {
                self.events.push(event);
                self.finish();
                return None;
            }
            _ => return self.give_up("it answered a turn with something else than a sample".to_owned()),
        };
        if answered != case {
            return self.give_up(format!(
                "asked for a request of case {case}, it answered with one of case {answered}"
            ));
        }
        Some((event, ns))
    }

    /// Asks for the final readings after the last sample, and listens to the end.
    pub(crate) fn ask_to_finish(&mut self, finish: Finish) {
        self.ask(Turn::Finish(finish));
        self.finish();
    }

    /// Listens until the worker ends.
    pub(crate) fn finish(&mut self) {
        if let Some(process) = &mut self.process {
            process.close_input();
        }
        while let Some(event) = self.recv() {
            match event {
                Event::Sample(_) | Event::Slice(_) | Event::Ready(_) | Event::Logits(_) => {
                    self.give_up::<()>("it sent a sample that it was not asked for".to_owned());
                }
                event => self.events.push(event),
            }
        }
    }

    /// Lets the worker wait: it is stopped where the system can stop it.
    pub(crate) fn pause(&mut self) {
        if let Some(process) = self.process.as_mut().filter(|_| self.over.is_none()) {
            let reading = process.stop();
            if reading.has_helpers() {
                self.family_bytes = self.family_bytes.max(process.memory().1);
            }
            self.waiting = Some(Waiting { since: now(), reading });
        }
    }

    pub(crate) fn resume(&mut self) {
        let (Some(waiting), Some(process)) = (self.waiting.take(), &mut self.process) else { return };
        let reading = process.read();
        let used = reading.used_since(&waiting.reading);
        self.changes.extend(reading.changes_since(&waiting.reading));
        self.was_changed |= !self.changes.is_empty();
        let earlier = self.waited.unwrap_or(Waited { seconds: 0.0, cpu_s: Some(0.0), was_stopped: true });
        self.waited = Some(Waited {
            seconds: earlier.seconds + waiting.since.elapsed().as_secs_f64(),
            cpu_s: earlier.cpu_s.zip(used).map(|(sum, more)| sum + more),
            was_stopped: earlier.was_stopped && waiting.reading.is_stopped,
        });
        process.go_on();
    }

    /// What somebody else did to it while it waited, since this was last asked.
    pub(crate) fn changes(&mut self) -> BTreeSet<&'static str> {
        std::mem::take(&mut self.changes)
    }

    /// Ends the worker, if it is still alive, and returns how it ended.
    pub(crate) fn end(mut self) -> Outcome {
        let events = std::mem::take(&mut self.events);
        let Some(mut process) = self.process.take() else {
            let reason = match self.over {
                Some(Over::GivenUp(reason)) => reason,
                _ => "it could not be started".to_owned(),
            };
            let ending = Ending::Broken { reason, last_words: None };
            return Outcome { pid: 0, events, ending, left_behind: Vec::new() };
        };
        if !matches!(self.over, Some(Over::Ended)) {
            process.kill();
        }
        let Reaped { status, stderr, left_behind } = process.reap();
        let last_words = last_line(&stderr);
        let out_of_memory = |words: &str| self.confinement.out_of_memory(status, words);
        let given_up = match self.over {
            Some(Over::GivenUp(reason)) => Some(reason),
            Some(Over::Ended) => None,
            None => Some("it was no longer needed".to_owned()),
        };
        let ending = match (given_up, events.last()) {
            _ if progress::requested() => Ending::Interrupted,
            (Some(_), _) if self.until.is_some_and(|until| now() >= until) => Ending::OutOfTime,
            (Some(reason), _) => Ending::Broken { reason, last_words },
            (None, Some(Event::Failed(failed))) => match out_of_memory(&failed.reason) {
                Some(reason) if failed.kind == protocol::FailureKind::Failed => {
                    Ending::OutOfMemory { reason }
                }
                _ => Ending::Reported(failed.clone()),
            },
            (None, Some(Event::Done)) if status.success() => Ending::Done,
            (None, _) if status.success() => {
                Ending::Broken { reason: "it ended before its job was done".into(), last_words }
            }
            (None, _) => match out_of_memory(&stderr) {
                Some(reason) => Ending::OutOfMemory { reason },
                None if came_from_outside(status) => Ending::Killed { reason: describe(status), last_words },
                None => Ending::Broken { reason: describe(status), last_words },
            },
        };
        Outcome { pid: self.pid, events, ending, left_behind }
    }

    /// Memory that it holds on its GPUs now.
    fn holds(&self) -> Option<u64> {
        self.gpus.as_ref()?.memory_of(self.pid)
    }

    fn ask(&mut self, turn: Turn) {
        if matches!(turn, Turn::Finish(_)) {
            self.held = self.holds();
        }
        if let Some(line) = self.process.as_ref().and_then(Process::unasked) {
            let start: String = line.chars().take(80).collect();
            self.give_up::<()>(format!("it sent a line that it was not asked for: {start:?}"));
        }
        if self.over.is_none()
            && let Some(process) = &self.process
        {
            process.send(&turn);
        }
        self.turns.push(turn);
    }

    /// The next event; `None` once the worker is over.
    fn recv(&mut self) -> Option<Event> {
        if self.over.is_some() {
            return None;
        }
        let begun = now();
        let until = self.until.into_iter().fold(begun + self.left, Instant::min);
        let process = self.process.as_mut()?;
        let received = process.recv(until, self.limit);
        self.left = self.left.saturating_sub(begun.elapsed().saturating_sub(process.lost));
        let line = match received {
            Ok(Some(line)) => line,
            Ok(None) => {
                self.over = Some(Over::Ended);
                return None;
            }
            Err(reason) => return self.give_up(reason),
        };
        match serde_json::from_str::<Event>(&line) {
            Err(_) => self.give_up(impossible::number(&line).unwrap_or_else(|| nonsense(&line))),
            Ok(Event::Hello(hello)) => match check_version(hello.protocol) {
                Ok(()) => Some(Event::Hello(hello)),
                Err(reason) => self.give_up(reason),
            },
            Ok(event) => {
                self.watch_load(&event);
                match impossible::reading_of(&event, &self.task) {
                    Some(reason) => self.give_up(reason),
                    None => Some(stored(event, || self.held.or_else(|| self.holds()))),
                }
            }
        }
    }

    /// Frees memory for a load that begins, and reads what CPU time it takes.
    fn watch_load(&mut self, event: &Event) {
        let since = |before: [u64; 2]| {
            let now = processor_time(self.pid)?;
            Some([now[0].saturating_sub(before[0]), now[1].saturating_sub(before[1])])
        };
        match event {
            Event::Started(_) => {
                self.memory.iter_mut().for_each(ReadyMemory::free);
                self.load.cpu_ns = since([0; 2]);
                self.memory = None;
            }
            Event::Loaded(_) => self.load.cpu_ns = self.load.cpu_ns.and_then(since),
            _ => {}
        }
    }

    /// How long after this the last event came, in nanoseconds.
    fn came_ns(&self, since: Instant) -> u64 {
        let came = self.process.as_ref().map_or(since, |process| process.came);
        came.saturating_duration_since(since).as_nanos().try_into().unwrap_or(u64::MAX)
    }

    fn give_up<T>(&mut self, reason: String) -> Option<T> {
        if self.over.is_none() {
            self.over = Some(Over::GivenUp(reason));
            if let Some(process) = &mut self.process {
                process.kill();
            }
        }
        None
    }
}

/// The event in the form that is stored: without fields that only the driver may set, and with the memory that the process
/// holds on its GPUs, if the worker has not read that itself: references leave it to the driver.
fn stored(mut event: Event, held: impl FnOnce() -> Option<u64>) -> Event {
    match &mut event {
        Event::Sample(sample) => sample.lead_in.clear(),
        Event::Warmup(warmup) => {
            for sample in warmup.iterations.iter_mut().flat_map(|each| &mut each.cases) {
                sample.lead_in.clear();
                // Nothing reads vectors and tensors of warm-up.
                sample.output.clear_numbers();
            }
        }
        _ => {}
    }
    if let Some(memory) = event.memory_mut().filter(|memory| memory.gpu.is_none()) {
        let method = "NVML, compute processes, read by the driver".into();
        memory.gpu = held().map(|bytes| GpuMemory { bytes, method });
    }
    event
}

#[cfg(test)]
mod tests {
    use protocol::Memory;

    use super::*;

    fn held(event: Event, bytes: u64) -> Option<u64> {
        let mut event = stored(event, || Some(bytes));
        Some(event.memory_mut()?.gpu.as_ref()?.bytes)
    }

    #[test]
    fn which_steps_came_after_a_pause_is_not_for_a_worker_to_say() {
        let sample = Sample { lead_in: vec![0], ..Sample::default() };
        let Event::Sample(noted) = stored(Event::Sample(sample), || None) else { panic!("another event") };
        assert!(noted.lead_in.is_empty());
    }

    #[test]
    fn memory_of_a_gpu_that_the_worker_did_not_read_is_read_for_it() {
        let started = |gpu| {
            let memory = Memory { gpu, ..Memory::default() };
            Event::Started(protocol::Started { startup_ns: None, runtime_ns: 0, memory })
        };
        let told = GpuMemory { bytes: 5, method: "NVML, compute processes".into() };
        assert_eq!((held(started(None), 7), held(started(Some(told)), 7)), (Some(7), Some(5)));
        assert_eq!(held(Event::Done, 7), None);
    }
}
