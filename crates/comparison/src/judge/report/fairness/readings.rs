//! Whether a worker's readings agree with those of the driver (rule R18).
//!
//! The driver sees when an event arrives. It cannot see the work of a worker before a request, so this is
//! allowed for, and each answer is slightly late: 0.45 ms in the median of candle, ort and tch, 1.8 ms at
//! most (36 requests of each in slices, results/published, a two-core virtual machine).

use Check::{OfEach, OfMachine};
use protocol::Event;

use super::{Judged, *};
use crate::facts::evidence::End;
use crate::facts::run::{Run, Turn};
use crate::judge::report::fairness;
use crate::plan::{Contender, Plan};

/// Share and nanoseconds by which a slice may be longer for the driver than for the worker.
const SLICE: (f64, f64) = (0.05, 2e6);

/// The same for a whole request, in addition to the untimed work before it.
const REQUEST: (f64, f64) = (0.05, 5e6);

/// Time to write a number of a request's output, ns: 460 to 500 by CPython 3.11's `json.dumps`, for 12,288
/// numbers.
const NUMBER: f64 = 5e2;

/// Time to draw a value of a graph's input before the request, or to write one of its outputs and have it
/// read, ns: 12 to draw and 15 to 18 to write by NumPy 2.4 and CPython's `json.dumps`, for 1.2 million (the
/// first draw of a process 50).
const VALUE: f64 = 3e1;

/// The same for a load and for a first request, where the worker also reads its memory. They may also be
/// longer by as many nanoseconds, since the event before them may have arrived late.
const START: (f64, f64) = (0.2, 1e8);

/// Quantile of a process's requests that is judged, and nanoseconds added to each request's allowance: the
/// median, and if other processes disturbed the machine the least late request, since both processes then
/// wait for a CPU. With six processes occupying two CPUs, 0.1 and no allowance excluded honest workers of a
/// tiny model in 2 of 5 runs; with these, in none of 24 runs, half of them with such processes.
const QUIET: (f64, f64) = (0.5, 0.0);

const DISTURBED: (f64, f64) = (0.0, 2e7);

/// Fewest requests of a process that are judged separately. Fewer are judged together with those of the other
/// rounds, because a single one may have waited for a CPU: one process of 48 did, in a study with a request
/// of 2 ms each.
const FEW: usize = 4;

/// Share of these that may be late: one in so many, and one in any case. If time is hidden in k rounds and
/// the others are alike, a sign-flip test gives p = 2^(1 − k) at best: so few rounds allow no verdict.
const LATE: usize = 8;

/// Nanoseconds by which the sum of all requests may be longer than the driver's.
const LONGER: f64 = 5e6;

/// Least share of the CPU time seen by the driver, less that of waits and of all threads in the untimed part
/// of turns, that the worker's own has to reach; and nanoseconds that may be missing in addition.
const CPU: (f64, f64) = (0.8, 5e7);

/// Least share of the memory seen by the driver that the worker's own peak has to reach: it is read at
/// another moment.
const MEMORY: f64 = 0.9;

/// The objection to a contender whose readings differ from the driver's.
pub(super) fn agree(judged: &Judged<'_>, label: &str) -> Option<String> {
    let contender = judged.plan.contender(label)?;
    // On a machine too noisy to measure, every answer is late.
    if is_scripted(contender) || matches!(judged.evidence.end, End::Noisy { .. }) {
        return None;
    }
    let weather = if judged.evidence.complaints.is_empty() { QUIET } else { DISTURBED };
    let of_runs = judged.runs_of(label).find_map(|run| {
        let found = requests(judged.plan, contender, run, weather);
        let found = found.or_else(|| start(judged.plan, run));
        let found = found.or_else(|| cpu_time(contender, run)).or_else(|| memory(run))?;
        Some(format!("{found} (round {})", run.round + 1))
    });
    let runs: Vec<&Run> = judged.runs_of(label).collect();
    of_runs.or_else(|| few_requests(judged.plan, contender, &runs, weather))
}

/// Unusual facts about a worker that exclude no row: a clock that shows scripted times agrees with no other.
pub(super) fn note(judged: &Judged<'_>, label: &str) -> Option<String> {
    let scripted = is_scripted(judged.plan.contender(label)?).then(|| {
        "its clock is scripted (option clock), so that its times are not compared with the driver's".into()
    });
    let seen = || judged.runs_of(label).filter_map(|run| run.seen.as_ref());
    let changed = || {
        let mut programs = seen().filter_map(|seen| seen.program);
        let first = programs.next()?;
        programs.any(|program| program != first).then(|| "its program changed between rounds".to_owned())
    };
    let hurried = || {
        let own = seen().filter_map(|seen| seen.nice).min()?;
        let all = judged.runs.iter().filter_map(|run| run.seen.as_ref()?.nice).max()?;
        (own < all).then(|| {
            format!("it ran at a nice value of {own}, others at {all}: it came first on shared CPUs")
        })
    };
    scripted.or_else(changed).or_else(hurried)
}

fn is_scripted(contender: &Contender) -> bool {
    contender.engine.options.get("clock").is_some_and(|clock| clock == "scripted")
}

/// Why this cannot be checked, if no process has readings of the driver.
pub(super) fn unseen(judged: &Judged<'_>) -> Option<String> {
    let has_none = !judged.runs.is_empty() && judged.runs.iter().all(|run| run.seen.is_none());
    has_none.then(|| "this run has no readings of the driver's".into())
}

/// The requests of a process: their sum must not be longer than the driver's, and in this quantile not much shorter.
fn requests(
    plan: &Plan,
    contender: &Contender,
    run: &Run,
    (quantile, late_ns): (f64, f64),
) -> Option<String> {
    let seen: Vec<&Turn> = run.turns.iter().filter(|turn| !turn.seen_ns.is_empty()).collect();
    let own = |turn: &&&Turn| turn.sample.marks_ns.end() as f64;
    let drivers = |turn: &&&Turn| turn.seen_ns.iter().sum::<u64>() as f64;
    let (told, saw): (f64, f64) =
        (seen.iter().map(|turn| own(&turn)).sum(), seen.iter().map(|turn| drivers(&turn)).sum());
    if told > saw + LONGER {
        return Some(differ("its requests took", told, saw));
    }
    if seen.len() < FEW {
        return None;
    }
    let hidden: Vec<f64> = seen.iter().filter_map(|turn| hidden(plan, contender, turn, late_ns)).collect();
    too_much(&hidden, quantile)
}

/// The requests of all processes with few of them.
fn few_requests(
    plan: &Plan,
    contender: &Contender,
    runs: &[&Run],
    (quantile, late_ns): (f64, f64),
) -> Option<String> {
    let seen = |run: &&Run| run.turns.iter().filter(|turn| !turn.seen_ns.is_empty()).count();
    let turns = runs.iter().filter(|run| seen(run) < FEW).flat_map(|run| &run.turns);
    let hidden: Vec<f64> = turns.filter_map(|turn| hidden(plan, contender, turn, late_ns)).collect();
    let late: Vec<f64> = hidden.iter().copied().filter(|share| *share > 0.0).collect();
    let is_usual = late.len() <= (hidden.len() / LATE).max(1);
    // On a disturbed machine every request may be late.
    let judged = if quantile > 0.0 { &late } else { &hidden };
    (!is_usual).then(|| too_much(judged, quantile)).flatten()
}

/// The sentence about hidden time, if this quantile of the requests' shares has any.
fn too_much(hidden: &[f64], quantile: f64) -> Option<String> {
    let share = statistics::quantile(hidden, quantile).filter(|share| *share > 0.0)?;
    Some(format!(
        "{:.0} % of the time that the driver waited for its requests is in none of its readings",
        100.0 * share
    ))
}

/// The share of a turn beyond the allowance; 0 or less if there is none. Slices after the first have nothing
/// untimed before them. `None` if it is not known how long the untimed part takes.
fn hidden(plan: &Plan, contender: &Contender, turn: &Turn, late_ns: f64) -> Option<f64> {
    let sample = &turn.sample;
    let later_ns = sample.marks_ns.after_first() as f64;
    let (saw, told, allowed) = match turn.seen_ns.as_slice() {
        [whole] => {
            if plan.work.has_context() || plan.device != "cpu" {
                return None;
            }
            let each = later_ns / sample.marks_ns.len().saturating_sub(1).max(1) as f64;
            let lead_in = match plan.lead_in(contender) {
                0 => 0.0,
                tokens => sample.marks_ns.first() as f64 + tokens as f64 * each,
            };
            let told = sample.marks_ns.end() as f64;
            let values = plan.work.drawn(sample.case) + turn.vectors.map_or(0, |vectors| vectors.numbers);
            let numbers = NUMBER * plan.work.numbers(sample.case) as f64 + VALUE * values as f64;
            (*whole as f64, told, 2.0 * lead_in + REQUEST.0 * told + REQUEST.1 + numbers)
        }
        [_, later @ ..] => {
            let saw = later.iter().sum::<u64>() as f64;
            (saw, later_ns, SLICE.0 * later_ns + SLICE.1 * later.len() as f64)
        }
        [] => return None,
    };
    Some((saw - told - allowed - late_ns) / saw.max(1.0))
}

/// The load and the first request.
fn start(plan: &Plan, run: &Run) -> Option<String> {
    let came = |is_it: fn(&Event) -> bool| {
        let place = run.events.iter().position(is_it)?;
        Some(*run.seen.as_ref()?.events_ns.get(place)? as f64)
    };
    let started = came(|event| matches!(event, Event::Started(_)))?;
    let loaded = came(|event| matches!(event, Event::Loaded(_)))?;
    let cold = came(|event| matches!(event, Event::ColdStart(_)))?;
    let load = apart("its load took", run.loaded()?.load_ns as f64, loaded - started);
    let first = || {
        let own = run.cold_start()?.marks_ns.end() as f64;
        // The context of the request is computed before it, untimed; with several callers, other requests
        // follow it.
        let is_whole = !plan.work.has_context() && plan.work.load().is_none();
        is_whole.then(|| apart("its first request took", own, cold - loaded))?
    };
    load.or_else(first)
}

fn apart(what: &str, own: f64, saw: f64) -> Option<String> {
    let (share, ns) = START;
    let is_apart = own > saw + ns || own < (1.0 - share) * saw - ns;
    is_apart.then(|| differ(what, own, saw))
}

fn differ(what: &str, own_ns: f64, saw_ns: f64) -> String {
    format!("{what} {:.3} s by its own clock, and {:.3} s by the driver's", own_ns / 1e9, saw_ns / 1e9)
}

/// The CPU time of all requests. The untimed part of turns, such as a lead-in or a context, uses an unknown
/// amount: it is assumed to be as much as all threads can use.
fn cpu_time(contender: &Contender, run: &Run) -> Option<String> {
    let (own, saw) = (run.usage()?.cpu_ns? as f64, run.seen.as_ref()?.cpu_ns? as f64);
    let (mut requests, mut turns) = (0.0, 0.0);
    for turn in run.turns.iter().filter(|turn| !turn.seen_ns.is_empty()) {
        requests += turn.sample.marks_ns.end() as f64;
        turns += turn.seen_ns.iter().sum::<u64>() as f64;
    }
    let waited = run.waited.and_then(|waited| waited.cpu_s).unwrap_or(0.0) * 1e9;
    // If the number was left to the framework, the worker reports it.
    let threads = match contender.threads {
        0 => run.loaded()?.in_effect.threads,
        threads => threads,
    };
    let expected = saw - waited - threads as f64 * f64::max(turns - requests, 0.0);
    (own < CPU.0 * expected - CPU.1).then(|| differ("the CPU time of its requests was", own, expected))
}

/// The peak of memory on the host.
fn memory(run: &Run) -> Option<String> {
    if run.device() != Some("cpu") {
        return None;
    }
    let (own, saw) = (run.usage()?.peak_bytes? as f64, run.seen.as_ref()?.peak_bytes? as f64);
    (own < MEMORY * saw).then(|| {
        format!(
            "its peak memory is {:.3} GB by its own reading, and the driver read {:.3} GB",
            own / 1e9,
            saw / 1e9
        )
    })
}

// The rules themselves: id, sentence and check. `docs/reference/fairness.md` is printed from here.

pub(super) struct Rule {
    pub id: &'static str,
    /// The condition of a fair comparison.
    pub sentence: &'static str,
    /// How the rule is enforced and checked, for the documentation.
    pub how: &'static str,
    /// The remedy for a broken rule.
    pub remedy: &'static str,
    pub check: Check,
}

/// The check of a rule. `Some` is an objection.
pub(super) enum Check {
    /// A check of one contender, from its runs and all others'. An objection excludes its row.
    OfEach(fn(&Judged<'_>, &str) -> Option<String>),
    /// A check of the machine. An objection makes everything not measurable.
    OfMachine(fn(&Judged<'_>) -> Option<String>),
}

pub(super) const RULES: [Rule; 18] = [
    Rule {
        id: "R1",
        sentence: "Same weights",
        how: "One prepared bundle for all. Photofinish hashes its files before a run, and each process shows that the file it loaded has the same device, inode, size and time of change, before the load and after the last sample. A worker hashes any other file once, after the last sample; the sha256 is compared with the bundle's manifest. A reference that cannot read a bundle loads a file derived from the bundle's, number by number; a record next to it names both sha256, and is compared with the manifest and the observed hash.",
        remedy: "delete the bundle from the cache directory and run again",
        check: OfEach(same_weights),
    },
    Rule {
        id: "R2",
        sentence: "Same precision, requested = observed",
        how: "Engines report the element type of the weights they hold, observed and not repeated from the request.",
        remedy: "ask for a precision that all of them have, or leave the framework out",
        check: OfEach(same_precision),
    },
    Rule {
        id: "R3",
        sentence: "Same token ids",
        how: "Photofinish tokenises once and sends the same ids to every worker; every answer has the shape of those ids.",
        remedy: "report a bug of the worker",
        check: OfEach(same_tokens),
    },
    Rule {
        id: "R4",
        sentence: "Same work: every iteration produced the asked number of tokens",
        how: "The end-of-sequence token is ignored. Tokens and marks of every iteration are counted.",
        remedy: "report a bug of the worker",
        check: OfEach(same_work),
    },
    Rule {
        id: "R5",
        sentence: "Same thread budget, verified from observed threads and CPU time",
        how: "The budget is set by environment, API and CPU affinity. Afterwards CPU seconds ÷ wall seconds of the timed requests, the allowed CPUs and the reported number are compared with it, and so are thread variables of the engine's configuration. More than the budget strikes, and so does a second set of threads: 1.75 times the budget that ran or waited for a CPU, over a second or more (2.5 times over less). Fewer threads are noted, and so are pools that compete within the budget of CPU time: neither is an advantage.",
        remedy: "take the thread setting out of its configuration, or give all as many threads with --threads",
        check: OfEach(same_threads),
    },
    Rule {
        id: "R6",
        sentence: "Same device",
        how: "Engines report the device that holds the weights.",
        remedy: "ask for a device that all of them have, or leave the framework out",
        check: OfEach(same_device),
    },
    Rule {
        id: "R7",
        sentence: "A process of its own, in a scrubbed environment",
        how: "Every (framework, round) is a new process. Its environment holds the thread budget and what the engine's file in configs/engines sets; in an installation also the directory of libtorch; the memory policy (GLIBC_TUNABLES, R16); and CUDA_DEVICE_ORDER, so that the driver and the workers number GPUs alike. From the user's environment it takes PATH, TMPDIR, SYSTEMROOT, CUDA_VISIBLE_DEVICES and PHOTOFINISH_NVML, and the value of a variable that configs/engines names. With `--kernel-cache fresh` each process gets an empty kernel cache; a cache that stays empty is noted. `PHOTOFINISH_WORKER` marks it and its children: those that outlive it are killed and noted.",
        remedy: "report a bug of photofinish",
        check: OfEach(own_process),
    },
    Rule {
        id: "R8",
        sentence: "Warm-up covers the measured shapes",
        how: "Warm-up runs whole iterations of the measurement's own cases; their shapes are compared with the measured ones.",
        remedy: "report a bug of the worker",
        check: OfEach(warmed_up),
    },
    Rule {
        id: "R9",
        sentence: "Rounds interleaved in a seeded random order",
        how: "Every round starts every framework once. Orders come in shuffled Latin squares drawn from the recorded seed, so that in as many rounds as there are frameworks each takes every place once. Turns within a round are dealt out in blocks, every framework once in each, in orders drawn the same way. Rounds, places and turns are counted afterwards.",
        remedy: "report a bug of photofinish",
        check: OfEach(interleaved),
    },
    Rule {
        id: "R10",
        sentence: "Same build: one release profile, target CPU, recorded",
        how: "Workers report profile, rustc, flags and target features of their own build; all must be equal, and release. A worker that rustc did not build must only be a release build; its toolchain is noted. A reference's build is its own: noted.",
        remedy: "build all workers with `cargo xtask build`",
        check: OfEach(same_build),
    },
    Rule {
        id: "R11",
        sentence: "Outputs agree within tolerance, in the very run that is timed",
        how: "Warm-up and requests are fed the continuation of a reference engine in f32, in which every other token is replaced by a less likely one, drawn by the seed, and anew in each round. The most likely token behind each, which no worker receives and only a pass of the model shows, is compared with the reference's in every timed request. In the first round, and in one that the seed draws, each process computes teacher-forced logits after its last sample, by the path that was timed; it is asked for them only then. Requests of encoders are given other texts of the same lengths in each round, and every vector is compared with the reference's.",
        remedy: "the row computes something else: report it to the framework or to us, with the results directory",
        check: OfEach(outputs_agree),
    },
    Rule {
        id: "R12",
        sentence: "Quiet machine, before and between turns",
        how: "During each start of a process and each block of turns, the CPU time that others used, time stolen by the hypervisor, quota and heat throttling are read from the kernel; a fixed piece of arithmetic is timed after the turns. A block above a limit is done again, up to twice, a start once. If most blocks of a round stay disturbed, no speed is measurable (exit code 3). `--accept-noise` continues and lists the disturbances.",
        remedy: "stop what else is running and compare again, or --accept-noise",
        check: OfMachine(quiet_machine),
    },
    Rule {
        id: "R13",
        sentence: "Same KV-cache policy",
        how: "Engines report whether keys and values are preallocated, grown or recomputed. A reference's policy is its own, and a hybrid's that of its parts: noted.",
        remedy: "compare variants with the same policy",
        check: OfEach(fairness::same_policy),
    },
    Rule {
        id: "R14",
        sentence: "Optimisation parity: graph optimisation or JIT on for all that have it, or off for all",
        how: "`--no-jit` acts on all. Engines whose framework can optimise a graph or compile report whether it is on, as observed; that is compared with the request. A reference's mode is its own, and a hybrid's that of its parts: noted.",
        remedy: "compare variants with --allow-unfair",
        check: OfEach(same_optimisation),
    },
    Rule {
        id: "R15",
        sentence: "A waiting process does not compute",
        how: "While one process has its turn, all others are stopped by a signal to their process group. The CPU time that each uses between its turns is read from the kernel; more than 2 % of a CPU strikes.",
        remedy: "report a bug of the worker, or take turns one framework at a time with --schedule sequential",
        check: OfEach(waiters_wait),
    },
    Rule {
        id: "R16",
        sentence: "Same memory policy",
        how: "Huge pages are a setting of the run (`--huge-pages`), given to every worker by glibc's own switches, references included. A configuration may not set others. Workers report how much of their memory is in huge pages. A process with less than 95 % is started again once, where others have more; a framework whose processes still have less is noted.",
        remedy: "take GLIBC_TUNABLES out of configs/engines, and set --huge-pages for all",
        check: OfEach(same_pages),
    },
    Rule {
        id: "R17",
        sentence: "Same precision of the KV cache, requested = observed",
        how: "`--kv-type` sets the type of keys and values for all: by default 16 bits if the weights have 16 bits, and f32 otherwise. Engines report the element type of their cache; one that does not support the requested type is *unsupported*. A reference's cache is its own: noted.",
        remedy: "ask for a type that all of them have with --kv-type, or leave the framework out",
        check: OfEach(fairness::cache_same_precision),
    },
    Rule {
        id: "R18",
        sentence: "The worker's readings agree with the driver's",
        how: "The driver measures with its own clock when each event of a start came and how long each slice of a request took, and reads CPU time and peak memory before a process finishes. A worker's requests may not be longer in sum. They may be shorter by 5 % and 2 ms in the median slice, and a whole request by 5 %, 5 ms and twice the untimed part before it (where others disturbed the machine: in the least late request, and by another 20 ms). If a process has fewer than four requests, they are judged with those of the other rounds, of which one in eight, and one in any case, may be late. Load and first request may be shorter by 20 % and 0.1 s, and longer by 0.1 s. The CPU time of its requests must reach 80 %, less 50 ms, of that in its turns, without the time that all its threads may use in untimed parts. Its peak memory must reach 90 % of the driver's reading. A scripted clock (`engine-mock`), a program that changes between rounds, and a lower nice value than that of others are noted.",
        remedy: "report a bug of the worker",
        check: OfEach(agree),
    },
];

/// The ids of today's rules, in their order.
pub fn ids() -> Vec<&'static str> {
    RULES.iter().map(|rule| rule.id).collect()
}

/// The text of `docs/reference/fairness.md`.
pub fn markdown() -> String {
    let mut text = String::from(
        "# Fairness rules\n\n\
         Printed by `photofinish rules`; a test compares this page with the code. Do not edit it by hand.\n\n\
         A broken rule strikes the row: it is printed with the rule, the finding and the remedy, and has no verdicts. \
         With\n`--allow-unfair` the breach is only labelled. On a machine that is not quiet (R12) no row is struck, and there \
         are no\nverdicts.\n\n\
         A *reference* (`reference = true` in `configs/engines`) is a framework's own implementation, measured together \
         with the\nengines. Its build, cache and compilation are its own: those departures (R10, R13, R14, R17) \
         are noted\nin the findings and strike no row. All other rules hold for it, too.\n\n\
         A *hybrid* (`framework = \"hybrid\"`) reads prompts on one engine and decodes on another. Its cache and compilation \
         are\ntheirs: departures from R13 and R14 are noted, as a reference's are.\n\n\
         A rule whose readings the system does not give is *unverified*, and the report says so.\n\n\
         | rule | what holds | how it is achieved and checked |\n|---|---|---|\n",
    );
    for rule in &RULES {
        text += &format!("| {} | {} | {} |\n", rule.id, rule.sentence, rule.how);
    }
    text
}

#[cfg(test)]
mod tests {
    use crate::facts::run::Seen;
    use crate::facts::testing;
    use protocol::{ColdStart, Loaded, Marks, Sample, Started};

    use super::*;

    const MS: u64 = 1_000_000;

    fn plan() -> Plan {
        Plan { schedule: crate::plan::Schedule::Interleaved, ..testing::plan(&["a"]) }
    }

    /// A turn of five tokens of 10 ms each by the worker's clock, in slices that took so many ms by the driver's.
    fn turn(seen_ms: &[u64]) -> Turn {
        let sample = Sample { marks_ns: Marks::new(10 * MS, [10 * MS; 4]), ..Sample::default() };
        Turn { seen_ns: seen_ms.iter().map(|ms| ms * MS).collect(), ..Turn::alone(0, sample) }
    }

    fn found(turns: Vec<Turn>) -> Option<String> {
        let plan = plan();
        let run = Run { turns, ..testing::run("a", 0, Vec::new()) };
        let alone = requests(&plan, &plan.contenders[0], &run, QUIET);
        alone.or_else(|| few_requests(&plan, &plan.contenders[0], &[&run], QUIET))
    }

    #[test]
    fn few_requests_of_a_process_are_judged_with_those_of_the_others() {
        let plan = plan();
        let judged = |each: &[u64]| {
            let run = |ms: &u64| Run { turns: vec![turn(&[*ms])], ..testing::run("a", 0, Vec::new()) };
            let runs: Vec<Run> = each.iter().map(run).collect();
            let runs: Vec<&Run> = runs.iter().collect();
            let apart = runs.iter().find_map(|run| requests(&plan, &plan.contenders[0], run, QUIET));
            apart.or_else(|| few_requests(&plan, &plan.contenders[0], &runs, QUIET))
        };
        assert_eq!(judged(&[80, 80, 300, 80]), None, "one round was late");
        assert!(judged(&[80, 80, 300, 80, 300, 80]).is_some(), "two of six");
        let of_thirty = |late: usize| [vec![300; late], vec![80; 30 - late]].concat();
        assert_eq!(judged(&of_thirty(3)), None);
        assert!(judged(&of_thirty(4)).is_some(), "a sign-flip test could find them");
        assert!(found(vec![turn(&[180]); 4]).is_some(), "many of one process are judged apart");
    }

    #[test]
    fn slices_of_honest_and_of_shortened_requests() {
        assert_eq!(found(vec![turn(&[40, 21, 21])]), None);
        assert!(found(vec![turn(&[40, 40, 40]); 2]).is_some_and(|text| text.starts_with("42 % of the time")));
        assert!(found(vec![turn(&[10, 10, 10])]).is_some_and(|text| text.contains("0.050 s by its own")));
        let late = [turn(&[40, 21, 21]), turn(&[40, 21, 60]), turn(&[40, 21, 21])];
        assert_eq!(found(late.to_vec()), None, "one turn was late");
        assert_eq!(found(vec![turn(&[])]), None, "a journal of another time");
    }

    #[test]
    fn a_request_that_gives_many_numbers_has_room_to_write_them() {
        let (config, task) = (
            serde_json::json!({ "batches": [{ "name": "b", "texts": [[1, 2]] }], "task": "score" }),
            |numbers: usize| serde_json::json!({ "of_text": numbers }),
        );
        let found = |numbers| {
            let mut work = config.clone();
            work["width"] = task(numbers);
            let work = crate::plan::Work::Encode(serde_json::from_value(work).unwrap());
            let plan = Plan { work, ..plan() };
            let sample = Sample { marks_ns: Marks::new(50 * MS, []), ..Sample::default() };
            let turn = Turn { seen_ns: vec![163 * MS], ..Turn::alone(0, sample) };
            let run = Run { turns: vec![turn; 2], ..testing::run("a", 0, Vec::new()) };
            few_requests(&plan, &plan.contenders[0], &[&run], QUIET)
        };
        assert!(found(1_000).is_some_and(|text| text.contains("in none of its readings")));
        assert_eq!(found(20_000), None);
    }

    #[test]
    fn a_whole_request_has_room_for_what_comes_before_it() {
        assert_eq!(found(vec![turn(&[80])]), None);
        assert!(found(vec![turn(&[180]); 2]).is_some());
    }

    #[test]
    fn cpu_time_is_at_least_that_which_cannot_be_of_the_untimed_part_of_turns() {
        let plan = plan();
        let contender = &Contender { threads: 2, ..plan.contenders[0].clone() };
        let of = |own_ms: u64, saw_ms: u64, each_ms: u64| {
            let usage = protocol::Usage { cpu_ns: Some(own_ms * MS), ..testing::usage() };
            let seen = Seen { cpu_ns: Some(saw_ms * MS), ..Seen::default() };
            // 500 ms of requests.
            let turns = vec![turn(&[each_ms]); 10];
            let run = testing::run("a", 0, vec![Event::Usage(usage)]);
            cpu_time(contender, &Run { seen: Some(seen), turns, ..run })
        };
        assert_eq!([of(1000, 1000, 50), of(800, 1000, 50)], [None, None]);
        assert!(of(500, 1000, 50).is_some_and(|text| text.contains("0.500 s by its own clock, and 1.000 s")));
        assert_eq!(of(500, 1000, 80), None, "two threads may have used 600 ms in the untimed 300 ms");
    }

    #[test]
    fn loads_first_requests_and_memory_are_those_that_the_driver_saw() {
        let of = |load_ms: u64, first_ms: u64, peak: u64| {
            let cold = ColdStart { marks_ns: Marks(vec![first_ms * MS]), ..ColdStart::default() };
            let events = vec![
                Event::Started(Started { startup_ns: None, runtime_ns: 0, memory: Default::default() }),
                Event::Loaded(Loaded { load_ns: load_ms * MS, ..testing::loaded(1) }),
                Event::ColdStart(cold),
                Event::Usage(protocol::Usage { peak_bytes: Some(peak), ..testing::usage() }),
            ];
            let seen = Seen {
                events_ns: vec![100 * MS, 1100 * MS, 1600 * MS, 0],
                peak_bytes: Some(1000),
                ..Seen::default()
            };
            let run = Run { seen: Some(seen), ..testing::run("a", 0, events) };
            start(&plan(), &run).or_else(|| memory(&run))
        };
        assert_eq!(of(950, 450, 950), None);
        for (load, first, peak, what) in [
            (500, 450, 950, "its load took 0.500 s"),
            (86_399_000, 450, 950, "its load took"),
            (950, 1, 950, "its first request took 0.001 s"),
            (950, 450, 100, "its peak memory"),
        ] {
            assert!(of(load, first, peak).is_some_and(|text| text.starts_with(what)), "{what}");
        }
    }

    #[test]
    fn the_page_for_people_is_printed_from_the_rules() {
        let page = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/reference/fairness.md");
        let written =
            std::fs::read_to_string(page).expect("docs/reference/fairness.md is part of the checkout");
        assert_eq!(written, markdown(), "print it anew: photofinish rules > docs/reference/fairness.md");
    }

    #[test]
    fn rules_are_numbered_and_have_a_remedy() {
        for (index, rule) in RULES.iter().enumerate() {
            assert_eq!(rule.id, format!("R{}", index + 1));
            assert!(!rule.remedy.is_empty(), "{}", rule.id);
        }
    }
}
