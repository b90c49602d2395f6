//! Impossible readings, whatever was measured: a time of zero, or longer than any worker may run; a memory of
//! zero, or larger than any machine has. The other readings of a worker that reports one cannot be trusted,
//! whether it reports it now or in a journal.

use protocol::{CacheUsage, Event, Loaded, Marks, Memory, Output, Probed, Sample, Task, Usage};
use serde_json::Value;

use crate::facts::evidence::Probe;
use crate::facts::run::{FailureKind, Run, RunFailure};

/// Longest time that a worker may run, in nanoseconds: the largest time limit that can be asked for, a day.
pub const DAY: u64 = 86_400_000_000_000;

/// Most threads of one process, each of which may compute all the while.
const THREADS: u64 = 100_000;

/// Most bytes of anything, in memory or in a file: a pebibyte.
pub const BYTES: u64 = 1 << 50;

/// Most bytes or operations per second: those of a thousand of today's largest machines.
const RATE: f64 = 1e21;

/// Most energy in joules: a day of ten megawatts.
const JOULES: f64 = 1e12;

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Impossible {
    /// The field of the event, as in `iterations[0].cases[0].marks_ns`.
    pub field: String,
    pub value: String,
    /// The possible values.
    pub possible: String,
}

pub fn readings(event: &Event) -> Vec<Impossible> {
    let mut check = Check::default();
    check.event(event);
    check.found
}

/// The sentence about the first of them; `None` if there is none.
pub fn reading(event: &Event) -> Option<String> {
    let mut check = Check::default();
    check.event(event);
    check.sentence()
}

/// The same of a worker with this task, whose lists may also not be longer than it asks for: they are kept, in memory and
/// in the journal.
pub fn reading_of(event: &Event, task: &Task) -> Option<String> {
    let mut check = Check { asked: Asked::new(task), ..Check::default() };
    check.event(event);
    check.sentence()
}

/// Ends a process of a journal where it would have been ended while it was measured: before its first
/// impossible reading. Returns its failure, if there is such a reading.
pub fn end(run: &mut Run) -> Option<RunFailure> {
    let said = run.events.iter().enumerate().find_map(|(at, event)| Some((at, reading(event)?)));
    let answered = run.turns.iter().enumerate().find_map(|(at, turn)| Some((at, answer(&turn.sample)?)));
    if let Some((at, _)) = &said {
        run.events.truncate(*at);
    }
    if let Some((at, _)) = &answered {
        run.turns.truncate(*at);
    }
    let (_, reason) = said.or(answered)?;
    let failure = RunFailure::new(FailureKind::Failed, reason);
    run.failure = Some(failure.clone());
    Some(failure)
}

/// Whether the speeds and the duration of a probe in a journal are possible.
pub fn is_possible(probe: &Probe) -> bool {
    let rates = [probe.read_bandwidth, probe.best_read_bandwidth, probe.arithmetic, probe.best_arithmetic];
    rates.iter().chain(probe.units.values()).all(|rate| (1.0..=RATE).contains(rate))
        && (1..=DAY).contains(&probe.compute_ns)
        && (1..=BYTES).contains(&probe.bytes)
        && (-1.0..=RATE).contains(&probe.drift)
}

/// The same for the answer to a turn.
fn answer(sample: &Sample) -> Option<String> {
    let mut check = Check { event: "sample", ..Check::default() };
    check.case(sample);
    check.sentence()
}

/// The sentence about a number of a wrong type, in a line that is not a valid event: a fraction, a number
/// below 0, Python's `NaN`.
pub fn number(line: &str) -> Option<String> {
    if let Some(at) = ["NaN", "Infinity"].iter().filter_map(|word| line.find(word)).min() {
        let value = line[at..].split([',', '}', ']']).next().unwrap_or_default();
        let name = line[..at].rsplit('"').nth(1).unwrap_or_default();
        return Some(sentence(&kind(line), &shortened(name), &shortened(value)));
    }
    let value: Value = serde_json::from_str(line).ok()?;
    let mut path = Vec::new();
    let number = odd(&value, &mut path)?;
    Some(sentence(&kind(line), &shortened(&path.join(".")), &number))
}

fn sentence(event: &str, name: &str, value: &str) -> String {
    format!("its event `{event}` has an impossible reading: {name} is {value}")
}

fn kind(line: &str) -> String {
    let start = line.split_once("\"event\"").map_or("", |(_, rest)| rest);
    shortened(start.split('"').nth(1).unwrap_or("unknown"))
}

/// The part of foreign text that is quoted.
fn shortened(text: &str) -> String {
    text.chars().take(40).collect::<String>().escape_debug().to_string()
}

/// Numbers that may have a fraction, or be below 0.
const OTHER_TYPES: [&str; 3] = ["joules", "resident_before", "modified_ns"];

/// The first number that is not an unsigned integer of 64 bits, and its place.
fn odd(value: &Value, path: &mut Vec<String>) -> Option<String> {
    match value {
        Value::Number(number) if !number.is_u64() => Some(number.to_string()),
        Value::Array(values) => values.iter().find_map(|value| odd(value, path)),
        Value::Object(fields) => {
            let mut own = fields.iter().filter(|(name, _)| !OTHER_TYPES.contains(&name.as_str()));
            own.find_map(|(name, value)| {
                path.push(name.clone());
                let found = odd(value, path);
                if found.is_none() {
                    path.pop();
                }
                found
            })
        }
        _ => None,
    }
}

/// Most devices that weights are divided over.
const SHARDS: usize = 1024;

/// Most times of a probe, of which none takes less than a microsecond.
const SWEEPS: usize = 1_000_000;

/// Most calls of a turn that searches for a rate: how many it makes is not known before.
const SEARCHED: usize = 1_000_000;

/// The longest lists in the answers to a job.
struct Asked {
    cases: usize,
    marks: usize,
    /// Sequences, or texts.
    rows: usize,
    /// New tokens of each.
    tokens: usize,
    /// Requests of a turn of several callers.
    calls: usize,
}

impl Asked {
    /// `None` for jobs without requests.
    fn new(task: &Task) -> Option<Asked> {
        let (work, load) = match task {
            Task::Measure(task) => (&task.work, task.load),
            Task::Answer(task) => (&task.work, None),
            _ => return None,
        };
        let calls = match load {
            None => 0,
            Some(load) if load.search.is_some() => SEARCHED,
            Some(load) => load.requests,
        };
        let (rows, tokens, marks) = work.sizes();
        Some(Asked { cases: work.cases(), marks: marks.max(1), rows: rows.max(calls), tokens, calls })
    }
}

/// Checks one reading after another, and collects the impossible ones.
#[derive(Default)]
struct Check {
    event: &'static str,
    /// The longest lists that the event may have, if that is known.
    asked: Option<Asked>,
    /// Prefix of the names of fields.
    path: String,
    found: Vec<Impossible>,
}

impl Check {
    fn sentence(&self) -> Option<String> {
        let Impossible { field, value, .. } = self.found.first()?;
        Some(sentence(self.event, field, value))
    }

    fn event(&mut self, event: &Event) {
        match event {
            Event::Started(started) => {
                self.event = "started";
                self.at_most("startup_ns", started.startup_ns, DAY);
                self.within("runtime_ns", Some(started.runtime_ns), DAY);
                self.memory(&started.memory);
            }
            Event::Loaded(loaded) => self.loaded(loaded),
            Event::ColdStart(cold) => {
                self.event = "cold_start";
                // Of several callers' requests, the first that was answered and the end.
                self.list("marks_ns", cold.marks_ns.len(), |asked| {
                    asked.marks + usize::from(asked.calls > 0)
                });
                self.marks("marks_ns", &cold.marks_ns);
                self.within("since_spawn_ns", cold.since_spawn_ns, DAY);
                self.memory(&cold.memory);
            }
            Event::Warmup(warmup) => {
                self.event = "warmup";
                let cases = warmup.iterations.iter().map(|iteration| iteration.cases.len()).max();
                self.list("iterations.cases", cases.unwrap_or(0), |asked| asked.cases);
                for (number, iteration) in warmup.iterations.iter().enumerate() {
                    for (at, case) in iteration.cases.iter().enumerate() {
                        self.path = format!("iterations[{number}].cases[{at}].");
                        let other = (case.case != at).then_some(case.case);
                        self.refuse("case", other, format_args!("{at}: cases run in their order"));
                        self.case(case);
                    }
                }
                self.path.clear();
                self.memory(&warmup.memory);
            }
            Event::Sample(answer) => {
                self.event = "sample";
                self.case(answer);
            }
            Event::Usage(usage) => self.usage(usage),
            Event::Probed(probed) => self.probed(probed),
            _ => {}
        }
    }

    fn loaded(&mut self, loaded: &Loaded) {
        self.event = "loaded";
        self.within("load_ns", Some(loaded.load_ns), DAY);
        self.within("weights_bytes", Some(loaded.weights_bytes), BYTES);
        self.memory(&loaded.memory);
        self.within("in_effect.threads", Some(loaded.in_effect.threads as u64), THREADS);
        let shards = loaded.in_effect.shard_bytes.as_ref().map_or(0, Vec::len);
        self.list("in_effect.shard_bytes", shards, |_| SHARDS);
        for &bytes in loaded.in_effect.shard_bytes.iter().flatten() {
            self.at_most("in_effect.shard_bytes", Some(bytes), BYTES);
        }
        let share = loaded.page_cache.as_ref().map(|cache| cache.resident_before);
        self.number("page_cache.resident_before", share, 1.0);
    }

    fn usage(&mut self, usage: &Usage) {
        self.event = "usage";
        self.memory(&usage.memory);
        self.within("peak_bytes", usage.peak_bytes, BYTES);
        self.at_most("cpu_ns", usage.cpu_ns, THREADS * DAY);
        self.within("wall_ns", Some(usage.wall_ns), DAY);
        let threads = usage.thread_cpu_ns.as_ref().map_or(0, Vec::len);
        self.list("thread_cpu_ns", threads, |_| THREADS as usize);
        for &ns in usage.thread_cpu_ns.iter().flatten() {
            self.at_most("thread_cpu_ns", Some(ns), DAY);
        }
        self.at_most("run_queue_ns", usage.run_queue_ns, THREADS * DAY);
        self.within("threads", usage.threads.map(|threads| threads as u64), THREADS);
        self.number("energy.joules", usage.energy.as_ref().map(|energy| energy.joules), JOULES);
        self.cache(&usage.cache);
        if let Some(served) = &usage.served {
            self.at_most("served.prompt_tokens", Some(served.prompt_tokens), POSITIONS);
            self.at_most("served.cached_tokens", served.cached_tokens, served.prompt_tokens);
            self.at_most("served.new_tokens", Some(served.new_tokens), POSITIONS);
            self.at_most("served.drafted_tokens", served.drafted_tokens, POSITIONS);
            self.at_most("served.accepted_tokens", served.accepted_tokens, served.new_tokens);
        }
    }

    fn probed(&mut self, probed: &Probed) {
        self.event = "probed";
        self.list("sweeps_ns", probed.sweeps_ns.len().max(probed.multiply_adds_ns.len()), |_| SWEEPS);
        self.within("compute_ns", Some(probed.compute_ns), DAY);
        self.within("bytes", Some(probed.bytes), BYTES);
        self.within("operations", Some(probed.operations), BYTES);
        probed.sweeps_ns.iter().for_each(|&ns| self.within("sweeps_ns", Some(ns), DAY));
        probed.multiply_adds_ns.iter().for_each(|&ns| self.within("multiply_adds_ns", Some(ns), DAY));
    }

    /// A list has at most so many entries.
    fn list(&mut self, name: &str, length: usize, most: impl FnOnce(&Asked) -> usize) {
        if let Some(most) = self.asked.as_ref().map(most) {
            let other = (length > most).then(|| format!("a list of {length}"));
            self.refuse(name, other, format_args!("at most {most} were asked for"));
        }
    }

    fn case(&mut self, case: &Sample) {
        self.list("marks_ns", case.marks_ns.len(), |asked| asked.marks);
        self.list("calls", case.calls.len(), |asked| asked.calls);
        let vectors = if let Output::Vectors(output) = &case.output { output.vectors.len() } else { 0 };
        let rows = vectors.max(case.output.tokens().len()).max(case.output.unmasked().len());
        self.list("output", rows, |asked| asked.rows);
        let mut of_rows = case.output.tokens().iter().chain(case.output.unmasked());
        if let Some(row) = of_rows.by_ref().max_by_key(|row| row.len()) {
            self.list("output.tokens", row.len(), |asked| asked.tokens);
        }
        self.marks("marks_ns", &case.marks_ns);
        // Audio is encoded before the first mark.
        let late = case.heard_ns.filter(|&ns| ns >= case.marks_ns.first());
        self.refuse("heard_ns", late, format_args!("below {}", case.marks_ns.first()));
        self.output(&case.output, &case.marks_ns);
    }

    /// There must be one, and each must be later than the one before.
    fn marks(&mut self, name: &str, marks: &Marks) {
        self.refuse(name, marks.0.is_empty().then_some("empty"), format_args!("one mark or more"));
        for (place, &ns) in marks.0.iter().enumerate() {
            let before = place.checked_sub(1).map_or(0, |before| marks.0[before]);
            let is_odd = ns <= before || ns > DAY;
            self.refuse(name, is_odd.then_some(ns), format_args!("{} to {DAY}", before.saturating_add(1)));
        }
    }

    fn memory(&mut self, memory: &Memory) {
        self.within("memory.peak_bytes", memory.peak_bytes, BYTES);
        self.within("memory.resident_bytes", memory.resident_bytes, BYTES);
        let allocator = memory.gpu_allocator.as_ref();
        let parts = [
            ("memory.anonymous_bytes", memory.anonymous_bytes),
            ("memory.file_bytes", memory.file_bytes),
            ("memory.pss_bytes", memory.pss_bytes),
            ("memory.huge_bytes", memory.huge_bytes),
            ("memory.gpu.bytes", memory.gpu.as_ref().map(|gpu| gpu.bytes)),
            ("memory.gpu_allocator.in_use_bytes", allocator.map(|allocator| allocator.in_use_bytes)),
            ("memory.gpu_allocator.peak_bytes", allocator.map(|allocator| allocator.peak_bytes)),
        ];
        parts.into_iter().for_each(|(name, bytes)| self.at_most(name, bytes, BYTES));
    }

    /// A reading that must not be 0.
    fn within(&mut self, name: &str, reading: Option<u64>, most: u64) {
        self.refuse(
            name,
            reading.filter(|&reading| reading == 0 || reading > most),
            format_args!("1 to {most}"),
        );
    }

    fn at_most(&mut self, name: &str, reading: Option<u64>, most: u64) {
        self.refuse(name, reading.filter(|&reading| reading > most), format_args!("0 to {most}"));
    }

    fn number(&mut self, name: &str, reading: Option<f64>, most: f64) {
        let is_possible = |number: f64| number.is_sign_positive() && number <= most;
        let reading = reading.filter(|&number| !is_possible(number)).map(|number| format!("{number:?}"));
        self.refuse(name, reading, format_args!("0 to {most}"));
    }

    fn refuse(&mut self, name: &str, reading: Option<impl ToString>, possible: std::fmt::Arguments<'_>) {
        if let Some(reading) = reading {
            let (field, possible) = (format!("{}{name}", self.path), possible.to_string());
            self.found.push(Impossible { field, value: reading.to_string(), possible });
        }
    }
}

// Readings that only one kind of work has.

/// Most positions of a batch: 4,096 sequences of a million each.
const POSITIONS: u64 = 1 << 32;

impl Check {
    fn cache(&mut self, cache: &CacheUsage) {
        self.at_most("kv_cache_bytes", cache.bytes, BYTES);
        if let Some(hand_over) = &cache.hand_over {
            self.at_most("hand_over.bytes", Some(hand_over.bytes), BYTES);
            self.at_most("hand_over.ns", Some(hand_over.ns), DAY);
        }
        if let Some(padding) = &cache.padding {
            self.at_most("padding.computed", Some(padding.computed), POSITIONS);
        }
    }

    /// The output of a request, apart from its marks.
    fn output(&mut self, output: &Output, marks: &Marks) {
        if let Output::Steps(steps) = output {
            self.within_steps(&steps.passes_ns, marks);
        }
    }

    /// The pass of a step must end within the step.
    fn within_steps(&mut self, passes_ns: &[u64], marks: &Marks) {
        let (passes, steps) = (passes_ns.len(), marks.len());
        let of_others = (passes != steps).then(|| format!("a list of {passes}"));
        self.refuse("output.steps.passes_ns", of_others, format_args!("one for each of {steps} marks"));
        let mut before = 0;
        for (&ns, &end) in passes_ns.iter().zip(&marks.0) {
            let is_odd = ns < before || ns > end;
            self.refuse("output.steps.passes_ns", is_odd.then_some(ns), format_args!("{before} to {end}"));
            before = end;
        }
    }
}

#[cfg(test)]
mod tests {
    use crate::facts::testing;

    use super::*;

    /// The complaint about a usage with this change.
    fn of_usage(change: impl Fn(&mut Usage)) -> Option<String> {
        let mut usage = testing::usage();
        change(&mut usage);
        reading(&Event::Usage(usage))
    }

    #[test]
    fn a_reading_that_cannot_be_is_named_with_its_event() {
        assert_eq!(of_usage(|_| {}), None);
        let said = of_usage(|usage| usage.peak_bytes = Some(u64::MAX)).unwrap();
        assert_eq!(said, "its event `usage` has an impossible reading: peak_bytes is 18446744073709551615");
        for (said, name) in [
            (of_usage(|usage| usage.wall_ns = 0), "wall_ns is 0"),
            (of_usage(|usage| usage.memory.peak_bytes = Some(0)), "memory.peak_bytes is 0"),
            (of_usage(|usage| usage.cpu_ns = Some(u64::MAX)), "cpu_ns is 18446744073709551615"),
        ] {
            assert!(said.as_ref().is_some_and(|said| said.ends_with(name)), "{said:?}");
        }
        for joules in [-0.0, 1e308, f64::NAN, f64::INFINITY] {
            let energy = protocol::Energy { joules, method: "m".into() };
            let said = of_usage(|usage| usage.energy = Some(energy.clone()));
            assert!(said.is_some_and(|said| said.contains("energy.joules")), "{joules}");
        }
    }

    #[test]
    fn a_journal_s_process_ends_before_its_first_reading_that_cannot_be() {
        let usage = |wall_ns| Event::Usage(Usage { wall_ns, ..testing::usage() });
        let run = |events| testing::run("a", 0, events);
        let mut sound = run(vec![usage(1), Event::Done]);
        assert_eq!((end(&mut sound), sound.events.len()), (None, 2));
        let mut struck = run(vec![Event::Loaded(testing::loaded(1)), usage(0), Event::Done]);
        let failure = end(&mut struck).unwrap();
        assert_eq!(failure.sentence(), "its event `usage` has an impossible reading: wall_ns is 0");
        assert_eq!((struck.events.len(), struck.failure), (1, Some(failure)));
    }

    #[test]
    fn a_probe_whose_rates_cannot_be_is_none() {
        let probe = testing::probe(1e11, 2e10);
        assert!(is_possible(&probe));
        assert!(!is_possible(&Probe { arithmetic: 1e-300, ..probe.clone() }));
        assert!(!is_possible(&Probe { best_arithmetic: -0.0, ..probe.clone() }));
        assert!(!is_possible(&Probe { read_bandwidth: f64::INFINITY, ..probe.clone() }));
        assert!(!is_possible(&Probe { compute_ns: 0, ..probe }));
    }

    #[test]
    fn marks_are_later_each_than_the_one_before_and_within_a_day() {
        let said = |marks: &[u64]| {
            let sample = Sample { marks_ns: Marks(marks.to_vec()), ..Sample::default() };
            reading(&Event::Sample(sample))
        };
        assert_eq!(said(&[1, 2, DAY]), None);
        assert!(said(&[]).is_some_and(|said| said.ends_with("marks_ns is empty")));
        for (marks, value) in [(&[0][..], 0), (&[3, 3], 3), (&[3, 2], 2), (&[1, DAY + 1], DAY + 1)] {
            let said = said(marks).unwrap();
            assert!(said.ends_with(&format!("marks_ns is {value}")), "{said}");
        }
        let heard = |heard_ns| {
            let sample = Sample { marks_ns: Marks(vec![5]), heard_ns, ..Sample::default() };
            reading(&Event::Sample(sample))
        };
        assert_eq!((heard(None), heard(Some(4))), (None, None));
        assert!(heard(Some(5)).is_some_and(|said| said.ends_with("heard_ns is 5")));
        let steps = |passes_ns: &[u64]| {
            let output = protocol::Output::Steps(protocol::Steps {
                passes_ns: passes_ns.to_vec(),
                ..Default::default()
            });
            reading(&Event::Sample(Sample { marks_ns: Marks(vec![5, 9]), output, ..Sample::default() }))
        };
        assert_eq!(steps(&[4, 7]), None);
        assert!(steps(&[4]).is_some_and(|said| said.ends_with("passes_ns is a list of 1")));
        assert!(steps(&[4, 10]).is_some_and(|said| said.ends_with("passes_ns is 10")), "beyond its step");
        let cold = protocol::ColdStart { marks_ns: Marks(vec![1, 1]), ..Default::default() };
        assert!(reading(&Event::ColdStart(cold)).is_some_and(|said| said.ends_with("marks_ns is 1")));
    }

    #[test]
    fn lists_are_no_longer_than_the_job_asks_for() {
        let case = protocol::Case { prompts: vec![vec![1]], ..Default::default() };
        let work = protocol::Work::Generate(protocol::GenerateWork {
            cases: vec![case],
            new_tokens: 2,
            decode: protocol::Decode::Forced,
            kv_cache: protocol::KvCache::On,
            prefill_chunk: None,
        });
        let task = Task::Answer(protocol::Answer { work, parity: None });
        let call = protocol::Call { asked_ns: 0, done_ns: 1 };
        let of = |marks: &[u64], calls, tokens: &[&[u32]]| {
            let output = Output::Tokens(tokens.iter().map(|row| row.to_vec()).collect());
            let marks_ns = Marks(marks.to_vec());
            reading_of(&Event::Sample(Sample { marks_ns, calls, output, ..Sample::default() }), &task)
        };
        assert_eq!(of(&[1, 2], vec![], &[&[7, 8]]), None);
        for (said, part) in [
            (of(&[1, 2, 3], vec![], &[]), "marks_ns is a list of 3"),
            (of(&[1], vec![call], &[]), "calls is a list of 1"),
            (of(&[1], vec![], &[&[7], &[8]]), "output is a list of 2"),
            (of(&[1], vec![], &[&[7, 8, 9]]), "output.tokens is a list of 3"),
        ] {
            assert!(said.as_ref().is_some_and(|said| said.ends_with(part)), "{said:?}");
        }
    }

    #[test]
    fn a_number_of_no_reading_s_type_is_named_too() {
        for (line, said) in [
            (r#"{"event": "usage", "wall_ns": 1e308}"#, "wall_ns is 1e+308"),
            (r#"{"event": "usage", "memory": {"peak_bytes": -0.0}}"#, "memory.peak_bytes is -0.0"),
            (r#"{"event": "usage", "energy": {"joules": NaN, "method": "m"}}"#, "joules is NaN"),
        ] {
            let found = number(line).unwrap();
            assert!(found.contains("`usage`") && found.ends_with(said), "{found}");
        }
        assert_eq!(number(r#"{"event": "usage", "wall_ns": "soon"}"#), None);
        assert_eq!(number("Infinity"), Some(sentence("unknown", "", "Infinity")));
    }
}
