//! The evidence by the driver's clock, for verdicts that hold by both.
//!
//! A worker times itself. The driver has the times at which its answers arrived, of the whole of each part of a request: a
//! slice with the step just after the pause, which the worker's own figures leave out. All answers are somewhat late. What
//! the least late contender's are is common to all, and taken off.

use protocol::{Event, Marks, Sample};

use crate::facts::evidence::Evidence;
use crate::facts::run::{Run, Turn};
use crate::plan::{Contender, Plan};

/// Whether a worker's times are made up, so that no clock can agree with them: those of the mock engine in tests.
pub(crate) fn is_scripted(contender: &Contender) -> bool {
    contender.engine.framework == "mock"
        && contender.engine.options.get("clock").is_some_and(|clock| clock == "scripted")
}

/// The processes of `evidence` with the driver's times in place of the workers'.
pub(crate) fn by_driver(plan: &Plan, evidence: &Evidence) -> Evidence {
    // Journals of an earlier protocol have the driver's times with what precedes a request.
    let is_timed = |run: &&Run| {
        plan.contender(&run.framework).is_none_or(|one| !is_scripted(one))
            && run.turns.iter().all(|turn| turn.prepared_ns.is_some())
    };
    let late = Late::new(plan, evidence, is_timed);
    let runs = evidence.runs.iter().map(|run| match is_timed(&run) {
        true => late.taken_off(run),
        false => run.clone(),
    });
    Evidence { runs: runs.collect(), ..Evidence::default() }
}

/// By how many nanoseconds the answers of the least late contender come later than by its own clock, in the median.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
struct Late {
    load: f64,
    cold_start: f64,
    /// A whole request, or the part up to its first mark.
    begun: f64,
    /// A later slice.
    slice: f64,
}

impl Late {
    fn new(plan: &Plan, evidence: &Evidence, is_timed: impl Fn(&&Run) -> bool) -> Late {
        let of = |beyond: fn(&Run) -> Vec<f64>| {
            let medians = plan.contenders.iter().filter_map(|contender| {
                let runs = evidence.complete(&contender.label).filter(&is_timed);
                statistics::median(&runs.flat_map(beyond).collect::<Vec<_>>())
            });
            medians.reduce(f64::min).unwrap_or(0.0).max(0.0)
        };
        Late {
            load: of(|run| loaded(run).map(|(told, saw)| saw - told).into_iter().collect()),
            cold_start: of(|run| cold_start(run).map(|(told, saw)| saw - told).into_iter().collect()),
            begun: of(|run| {
                let parts = run.turns.iter().filter_map(|turn| Some(parts(turn)?.remove(0)));
                parts.map(|(told, saw)| saw - told).collect()
            }),
            slice: of(|run| {
                let parts = run.turns.iter().filter_map(|turn| Some(parts(turn)?.split_off(1)));
                parts.flatten().map(|(told, saw)| saw - told).collect()
            }),
        }
    }

    fn taken_off(&self, run: &Run) -> Run {
        let mut run = run.clone();
        let (load, cold) = (loaded(&run), cold_start(&run));
        for event in &mut run.events {
            match event {
                // All of it since the spawn is the load's.
                Event::Started(started) if load.is_some() => started.startup_ns = Some(0),
                Event::Loaded(loaded) => {
                    loaded.load_ns = load.map_or(loaded.load_ns, |load| whole(without(self.load, load)));
                }
                Event::ColdStart(start) => {
                    let factor = cold.map_or(1.0, |cold| without(self.cold_start, cold) / cold.0);
                    start.marks_ns.0.iter_mut().for_each(|mark| *mark = whole(*mark as f64 * factor));
                }
                _ => {}
            }
        }
        run.turns.iter_mut().for_each(|turn| self.take_off(turn));
        run
    }

    fn take_off(&self, turn: &mut Turn) {
        let Some(parts) = parts(turn) else { return };
        let sample = &mut turn.sample;
        if let [part] = parts.as_slice() {
            let factor = without(self.begun, *part) / part.0.max(1.0);
            let scaled = |ns: &mut u64| *ns = whole(*ns as f64 * factor);
            sample.marks_ns.0.iter_mut().for_each(scaled);
            for call in &mut sample.calls {
                scaled(&mut call.asked_ns);
                scaled(&mut call.done_ns);
            }
            return;
        }
        // A slice's time is divided evenly among its steps, so that none of them is left out.
        let mut at = without(self.begun, parts[0]);
        let mut marks = vec![whole(at)];
        for (slice, part) in slices(sample).windows(2).zip(&parts[1..]) {
            let each = without(self.slice, *part) / (slice[1] - slice[0]) as f64;
            for _ in slice[0]..slice[1] {
                at += each;
                marks.push(whole(at));
            }
        }
        sample.marks_ns = Marks(marks);
    }
}

/// What the driver saw, less the common lateness. It is no shorter than the worker's own time, which is a part of it: where steps
/// are as short as answers are late, a quick answer would leave nothing.
fn without(late: f64, (told, saw): (f64, f64)) -> f64 {
    (saw - late).max(told.min(saw))
}

/// The parts of a request that the driver timed, each in nanoseconds as the worker told it and as the driver saw it.
/// `None` if it has not timed them.
fn parts(turn: &Turn) -> Option<Vec<(f64, f64)>> {
    let (sample, seen) = (&turn.sample, &turn.seen_ns);
    if let [whole] = seen.as_slice() {
        return Some(vec![(sample.marks_ns.end() as f64, *whole as f64)]);
    }
    let slices = slices(sample);
    if seen.is_empty() || slices.len() != seen.len() {
        return None;
    }
    let gaps: Vec<u64> = sample.marks_ns.gaps().collect();
    let told = slices.windows(2).map(|slice| gaps[slice[0]..slice[1]].iter().sum::<u64>());
    let told = [sample.marks_ns.first()].into_iter().chain(told);
    Some(told.zip(seen).map(|(told, saw)| (told as f64, *saw as f64)).collect())
}

/// The places among the gaps at which slices after the first begin, and the end of the last.
fn slices(sample: &Sample) -> Vec<usize> {
    let is_first =
        |place: &&usize| place.checked_sub(1).is_none_or(|before| !sample.lead_in.contains(&before));
    let starts = sample.lead_in.iter().filter(is_first).copied();
    starts.chain([sample.marks_ns.gaps().len()]).collect()
}

/// The load since the spawn, as told and as seen.
fn loaded(run: &Run) -> Option<(f64, f64)> {
    let saw = run.arrived_ns(|event| matches!(event, Event::Loaded(_)))?;
    Some((run.load_ns()? as f64, saw as f64))
}

/// The first request, as told and as seen since the load.
fn cold_start(run: &Run) -> Option<(f64, f64)> {
    let loaded = run.arrived_ns(|event| matches!(event, Event::Loaded(_)))?;
    let saw = run.arrived_ns(|event| matches!(event, Event::ColdStart(_)))?.saturating_sub(loaded);
    let told = run.cold_start()?.marks_ns.end();
    (told > 0).then_some((told as f64, saw as f64))
}

fn whole(ns: f64) -> u64 {
    ns.max(0.0).round() as u64
}

#[cfg(test)]
mod tests {
    use protocol::{Marks, Sample};

    use super::*;
    use crate::facts::run::Seen;
    use crate::facts::testing;

    fn turn(marks: &[u64], lead_in: &[usize], seen_ns: &[u64]) -> Turn {
        let marks_ns = Marks(marks.to_vec());
        let sample = Sample { marks_ns, lead_in: lead_in.to_vec(), ..Sample::default() };
        Turn { prepared_ns: Some(1), seen_ns: seen_ns.to_vec(), ..Turn::alone(0, sample) }
    }

    fn marks(mut turn: Turn, late: Late) -> Vec<u64> {
        late.take_off(&mut turn);
        turn.sample.marks_ns.0
    }

    #[test]
    fn a_whole_request_takes_what_the_driver_waited_for() {
        let late = Late { begun: 10.0, ..Late::default() };
        assert_eq!(marks(turn(&[10, 20, 40], &[], &[90]), late), [20, 40, 80]);
    }

    #[test]
    fn a_slice_is_divided_among_its_steps_with_the_one_after_the_pause() {
        let late = Late { begun: 1.0, slice: 2.0, ..Late::default() };
        // Work was moved to the steps that do not count: 30 of 40.
        let seen = turn(&[100, 130, 140, 170, 180], &[0, 2], &[101, 42, 42]);
        assert_eq!(marks(seen, late), [100, 120, 140, 160, 180]);
    }

    #[test]
    fn a_load_counts_from_the_spawn_whatever_the_worker_says() {
        let plan = testing::plan(&["honest", "silent"]);
        let run = |label: &str, startup_ns, load_ns| {
            let started = protocol::Started { startup_ns, runtime_ns: 0, memory: Default::default() };
            let loaded = protocol::Loaded { load_ns, ..testing::loaded(1) };
            let events = vec![Event::Started(started), Event::Loaded(loaded), Event::Usage(testing::usage())];
            let seen = Seen { events_ns: vec![105, 405, 500], ..Seen::default() };
            Run { seen: Some(seen), ..testing::run(label, 0, events) }
        };
        // The second loads before it says that it is ready, and when that was it does not say.
        let runs = vec![run("honest", Some(100), 300), run("silent", None, 1)];
        let seen = by_driver(&plan, &Evidence { runs, ..Evidence::default() });
        let loads: Vec<_> = seen.runs.iter().map(|run| run.load_ns().unwrap()).collect();
        assert_eq!(loads, [400, 400], "less the 5 that the answers of the first are late");
    }

    #[test]
    fn what_the_driver_did_not_time_alone_stays_the_workers() {
        assert_eq!(marks(turn(&[10, 20], &[], &[]), Late::default()), [10, 20]);
        assert_eq!(marks(turn(&[10, 20], &[0], &[90, 1, 2]), Late::default()), [10, 20]);
    }
}
