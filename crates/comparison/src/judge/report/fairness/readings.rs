//! Whether a worker's readings agree with those of the driver (rule R18). Verdicts on times hold by both clocks
//! (`judge::clocks`).

use std::collections::BTreeMap;

use super::{Judged, *};
use crate::facts::run::Run;
use crate::judge::clocks::{self, is_scripted};
use crate::judge::metrics::{self, Metric};
use crate::judge::report::fairness;
use crate::plan::Contender;
use Check::{OfEach, OfMachine};

/// Least share of the CPU time seen by the driver, less that of waits and of all threads in the untimed part
/// of turns, that the worker's own has to reach; and nanoseconds that may be missing in addition.
const CPU: (f64, f64) = (0.8, 5e7);

/// Least share of the memory seen by the driver that the worker's own peak has to reach: it is read at
/// another moment.
const MEMORY: f64 = 0.9;

/// Share by which a figure by its own clock has to be better for a note. On a busy machine answers are late by a few
/// per cent.
const TOLD: f64 = 0.05;

/// The objection to a contender whose readings differ from the driver's.
pub(super) fn agree(judged: &Judged<'_>, label: &str) -> Option<String> {
    let contender = judged.plan.contender(label)?;
    if is_scripted(contender) {
        return None;
    }
    let of_runs = judged.runs_of(label).find_map(|run| {
        let found = cpu_time(contender, run).or_else(|| memory(run))?;
        Some(format!("{found} (round {})", run.round + 1))
    });
    of_runs.or_else(|| knows_what_comes(&judged.runs, label))
}

/// Least gain of requests that are fed given tokens over those that feed themselves, beyond the others', as a share, and the
/// significance by Welch's test: an honest contender is struck in fewer than one of ten thousand comparisons.
const FED: (f64, f64) = (0.05, 1e-4);

/// The objection to a contender that is faster where it is sent the tokens of several steps than where each step needs the
/// one before, by the driver's clock: it does not compute step by step.
fn knows_what_comes(runs: &[&Run], label: &str) -> Option<String> {
    // Whether it is of this contender, and feeds itself, and the logarithm of its time.
    type Request = (bool, bool, f64);
    let mut blocks: BTreeMap<(usize, usize), Vec<Request>> = BTreeMap::new();
    for run in runs {
        for turn in run.turns.iter().filter(|turn| turn.stands && !turn.seen_ns.is_empty()) {
            let took = (turn.seen_ns.iter().sum::<u64>() as f64).ln();
            let one = (run.framework == label, turn.feeds_itself, took);
            blocks.entry((run.round, turn.block)).or_default().push(one);
        }
    }
    // What a block takes besides is common to all.
    let mut kinds = [Vec::new(), Vec::new()];
    for block in blocks.values() {
        let (own, others): (Vec<_>, Vec<_>) = block.iter().partition(|(is_own, ..)| *is_own);
        if let ([(_, feeds_itself, took)], false) = (&own[..], others.is_empty()) {
            let mean = others.iter().map(|(.., took)| took).sum::<f64>() / others.len() as f64;
            kinds[usize::from(*feeds_itself)].push(took - mean);
        }
    }
    let [fed, itself] = &kinds;
    let mean = |kind: &[f64]| kind.iter().sum::<f64>() / kind.len().max(1) as f64;
    let gain = mean(itself) - mean(fed);
    (gain > FED.0.ln_1p() && statistics::welch(itself, fed) < FED.1).then(|| {
        let times = gain.exp();
        format!("its requests are {times:.2} times as fast when it is sent what steps are fed as when they feed themselves")
    })
}

/// Unusual facts about a worker that exclude no row.
pub(super) fn note(judged: &Judged<'_>, label: &str) -> Option<String> {
    let scripted = is_scripted(judged.plan.contender(label)?).then(|| {
        "its clock is scripted (option clock), so that its times are not compared with the driver's".into()
    });
    let hurried = || {
        let own = judged.runs_of(label).filter_map(|run| run.seen.as_ref()?.nice).min()?;
        let all = judged.runs.iter().filter_map(|run| run.seen.as_ref()?.nice).max()?;
        (own < all).then(|| {
            format!("it ran at a nice value of {own}, others at {all}: it came first on shared CPUs")
        })
    };
    scripted.or_else(|| faster(judged, label)).or_else(hurried)
}

/// The metrics in which a contender is better by its own clock than by the driver's, beyond [`TOLD`].
fn faster(judged: &Judged<'_>, label: &str) -> Option<String> {
    let (plan, seen) = (judged.plan, clocks::by_driver(judged.plan, judged.evidence));
    let better = |metric: &Metric| {
        let typical = |evidence| {
            let figures = metrics::typical(*metric, 0..plan.work.cases(), plan, evidence, label);
            statistics::geometric_mean(&figures.into_iter().flatten().collect::<Vec<_>>())
        };
        let (own, seen) = (typical(judged.evidence)?, typical(&seen)?);
        let better = if metric.higher_is_better() { own / seen } else { seen / own };
        (better > 1.0 + TOLD).then(|| format!("{} {better:.2} times", metric.words()))
    };
    let kind = plan.work.kind();
    let timed = Metric::tested(kind).into_iter();
    let timed = timed.filter(|metric| metric.depends_on_speed() && metric.follows(kind).is_none());
    let found: Vec<String> = timed.filter_map(|metric| better(&metric)).collect();
    (!found.is_empty()).then(|| {
        format!("better by its own clock than by the driver's: {}; verdicts need both", found.join(", "))
    })
}

/// Why this cannot be checked, if no process has readings of the driver.
pub(super) fn unseen(judged: &Judged<'_>) -> Option<String> {
    let has_none = !judged.runs.is_empty() && judged.runs.iter().all(|run| run.seen.is_none());
    has_none.then(|| "this run has no readings of the driver's".into())
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
        turns += (turn.prepared_ns.unwrap_or(0) + turn.seen_ns.iter().sum::<u64>()) as f64;
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
        how: "The budget is set by environment, API and CPU affinity. Afterwards CPU seconds ÷ wall seconds of the timed requests (by the driver's reading, and of all its processes, where it has several or does not say), the allowed CPUs and the reported number are compared with it, and so are thread variables of the engine's configuration. More than the budget strikes, and so does a second set of threads: 1.75 times the budget that ran or waited for a CPU, over a second or more (2.5 times over less). Fewer threads are noted, and so are pools that compete within the budget of CPU time: neither is an advantage.",
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
        how: "Workers report profile, rustc, flags and target features of their own build; all must be equal, and release. Program, versions and what is in effect must be the same in every round. A worker that rustc did not build must only be a release build; its toolchain is noted. A reference's build is its own: noted.",
        remedy: "build all workers with `cargo xtask build`",
        check: OfEach(same_build),
    },
    Rule {
        id: "R11",
        sentence: "Outputs agree within tolerance, in the very run that is timed",
        how: "Each block of requests has other prompts of the same lengths and is fed other tokens, which are sent slice by slice; in every fourth block each contender is fed the tokens that it chooses. Encoders have other texts, ONNX files other drawn inputs. A reference in f32 computes the same afterwards: every most likely token, every vector and every output of a timed request is compared with it, and so are the logits of tokens that are drawn only when a slice is done. The contender that gives the reference is compared with another framework's, in one block of each process, which is drawn afterwards. In the first round, and in one that the seed draws, each process computes teacher-forced logits after its last sample, by the path that was timed; it is asked for them only then.",
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
        how: "While one process has its turn, all others are stopped by a signal: each with all processes that it started, in whatever group or session. The CPU time that they use between their turns is read from the kernel; more than 2 % of a CPU strikes. Where another program changed the CPUs or the priority of a worker that waited, or continued it, the block is disturbed and done again.",
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
        how: "The driver measures with its own clock when each event of a start came and how long each part of a request took, after the worker said that it was ready, and reads CPU time and peak memory before a process finishes. Every figure of speed is computed from the driver's times, too, less what the answers of the least late contender are late; a verdict needs both: where the advantage is smaller by the driver's clock by more than the margin, or turned, the pair has none, and where it is not clear, it is inconclusive. The driver's times include the step just after a pause, so that work moved there counts. A contender whose requests take less of the driver's time when it is sent what several steps are fed than when they feed themselves, by more than 5 % beyond the others and with p below 0.0001 (Welch's test), computes ahead and is struck. The CPU time of its requests must reach 80 %, less 50 ms, of that in its turns, without the time that all its threads may use in untimed parts. Its peak memory must reach 90 % of the driver's reading. A scripted clock (`engine-mock`), figures that are better by its own clock, and a lower nice value than that of others are noted.",
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
    use crate::facts::run::{Seen, Turn};
    use crate::facts::testing;
    use protocol::{Event, Marks, Sample};

    use super::*;

    const MS: u64 = 1_000_000;

    fn plan() -> crate::plan::Plan {
        testing::plan(&["a"])
    }

    #[test]
    fn cpu_time_is_at_least_that_which_cannot_be_of_the_untimed_part_of_turns() {
        let plan = plan();
        let contender = &Contender { threads: 2, ..plan.contenders[0].clone() };
        let of = |own_ms: u64, saw_ms: u64, each_ms: u64| {
            let usage = protocol::Usage { cpu_ns: Some(own_ms * MS), ..testing::usage() };
            let seen = Seen { cpu_ns: Some(saw_ms * MS), ..Seen::default() };
            // 500 ms of requests.
            let sample = Sample { marks_ns: Marks::new(10 * MS, [10 * MS; 4]), ..Sample::default() };
            let turn = Turn { seen_ns: vec![each_ms * MS], ..Turn::alone(0, sample) };
            let turns = vec![turn; 10];
            let run = testing::run("a", 0, vec![Event::Usage(usage)]);
            cpu_time(contender, &Run { seen: Some(seen), turns, ..run })
        };
        assert_eq!([of(1000, 1000, 50), of(800, 1000, 50)], [None, None]);
        assert!(of(500, 1000, 50).is_some_and(|text| text.contains("0.500 s by its own clock, and 1.000 s")));
        assert_eq!(of(500, 1000, 80), None, "two threads may have used 600 ms in the untimed 300 ms");
    }

    #[test]
    fn memory_is_that_which_the_driver_saw() {
        let of = |peak: u64| {
            let usage = protocol::Usage { peak_bytes: Some(peak), ..testing::usage() };
            let events = vec![Event::Loaded(testing::loaded(1)), Event::Usage(usage)];
            let seen = Seen { peak_bytes: Some(1000), ..Seen::default() };
            memory(&Run { seen: Some(seen), ..testing::run("a", 0, events) })
        };
        assert_eq!(of(950), None);
        assert!(of(100).is_some_and(|text| text.starts_with("its peak memory")));
    }

    #[test]
    fn who_computes_ahead_is_slower_where_each_step_needs_the_one_before() {
        let runs = |ahead: f64| {
            let run = |label: &str, factor: f64| {
                let turn = |block: usize| {
                    let feeds_itself = block % 4 == 3;
                    // The machine is slower in every third block, and no two are alike.
                    let ms = 100.0 + 20.0 * (block % 3) as f64 + 0.3 * (block % 5) as f64;
                    let took = if feeds_itself { ms } else { ms * factor };
                    let turn = Turn::alone(block, Sample::default());
                    Turn { seen_ns: vec![(took * MS as f64) as u64], feeds_itself, ..turn }
                };
                let own = if label == "a" { 0.001 } else { 0.0 };
                let noisy = |turn: Turn| {
                    let more = 1.0 + own * (turn.block % 7) as f64;
                    Turn {
                        seen_ns: turn.seen_ns.iter().map(|ns| (*ns as f64 * more) as u64).collect(),
                        ..turn
                    }
                };
                Run {
                    turns: (0..24).map(|block| noisy(turn(block))).collect(),
                    ..testing::run(label, 0, Vec::new())
                }
            };
            [run("a", ahead), run("b", 1.0)]
        };
        let of = |ahead: f64, label: &str| {
            let runs = runs(ahead);
            knows_what_comes(&runs.each_ref(), label)
        };
        assert_eq!([of(1.0, "a"), of(1.0, "b"), of(0.97, "a"), of(0.5, "b")], [const { None }; 4]);
        assert!(of(0.5, "a").unwrap().contains("2.00 times as fast"));
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
