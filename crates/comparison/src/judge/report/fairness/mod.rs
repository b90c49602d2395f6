//! The fairness rules, judged from the evidence.

mod checks;
mod readings;
#[cfg(test)]
mod tests;

use std::collections::BTreeSet;

use Check::{OfEach, OfMachine};
use bundle::Manifest;
use protocol::untrusted::Foreign;
use serde::{Deserialize, Serialize};

use crate::facts::evidence::Evidence;
use crate::facts::run::Run;
use crate::judge::report::row::own_code;
use crate::judge::report::warnings::Threads;
use crate::plan::Plan;

/// The material that the rules judge.
pub struct Judged<'a> {
    pub plan: &'a Plan,
    pub manifest: &'a Manifest,
    pub evidence: &'a Evidence,
    /// Complete runs of all contenders.
    pub runs: Vec<&'a Run>,
}

impl<'a> Judged<'a> {
    fn runs_of(&self, label: &str) -> impl Iterator<Item = &'a Run> {
        let label = label.to_owned();
        self.runs.iter().copied().filter(move |run| run.framework == label)
    }

    /// Whether `label` is a framework's own implementation rather than an engine.
    fn is_reference(&self, label: &str) -> bool {
        self.plan.contender(label).is_some_and(|contender| contender.engine.reference)
    }

    /// Whether `label` is a server.
    fn is_server(&self, label: &str) -> bool {
        self.plan.contender(label).is_some_and(|contender| contender.engine.is_server())
    }

    /// Whether `label` is a hybrid of two engines.
    fn is_hybrid(&self, label: &str) -> bool {
        self.plan.contender(label).is_some_and(|contender| contender.engine.parts().is_some())
    }

    /// The hash of the weights file that a process loaded: by itself, or by this program or another process
    /// of its contender that hashed the same unchanged file. In journals without hashes by this program, one
    /// process hashed for all.
    fn weights_sha256(&self, run: &Run) -> Option<Foreign> {
        let own = run.usage()?.weights_sha256.clone();
        own.or_else(|| {
            let identity = run.loaded()?.weights_identity?;
            let is_unchanged =
                |run: &Run| run.usage().and_then(|usage| usage.weights_identity) == Some(identity);
            if !is_unchanged(run) {
                return None;
            }
            let hashed = &self.evidence.hashed;
            if let Some((_, sha256)) = hashed.iter().find(|(known, _)| *known == identity) {
                return Some(Foreign::new(sha256));
            }
            let all = self.evidence.runs.iter().chain(&self.evidence.repeated);
            let may_tell = |other: &&Run| hashed.is_empty() || other.framework == run.framework;
            let mut same = all.filter(may_tell).filter(|other| is_unchanged(other));
            same.find_map(|other| other.usage()?.weights_sha256.clone())
        })
    }

    /// Iterations that every process of a round has to do.
    fn iterations_due(&self, round: usize) -> usize {
        self.evidence.iterations(self.plan, round)
    }

    /// An objection if `label`'s value differs from that of most engines, or, without a majority, from that
    /// of the first engine that ran.
    fn same_for_all<T: PartialEq>(
        &self,
        label: &str,
        what: &str,
        value: impl Fn(&Run) -> Option<T>,
        words: impl Fn(&T, &T) -> [String; 2],
    ) -> Option<String> {
        let own_ways = |label: &str| self.is_reference(label) || self.is_hybrid(label);
        let engines = self.runs.iter().filter(|run| !own_ways(&run.framework));
        let mut of_each: Vec<(&str, T)> = Vec::new();
        for run in engines {
            if of_each.iter().all(|(label, _)| *label != run.framework)
                && let Some(value) = value(run)
            {
                of_each.push((&run.framework, value));
            }
        }
        let count = |value: &T| of_each.iter().filter(|(_, other)| other == value).count();
        let most = of_each.iter().map(|(_, value)| count(value)).max()?;
        let (usual, expected) = of_each.iter().find(|(_, value)| count(value) == most)?;
        let ours = self.runs_of(label).filter_map(value);
        let mut other = ours.filter(|ours| ours != expected);
        other.next().map(|ours| {
            let [ours, theirs] = words(&ours, expected);
            format!("{what} is {ours}, but {theirs} for {usual}")
        })
    }
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct RuleState {
    pub id: String,
    pub sentence: String,
    pub broken_by: Vec<Breach>,
    /// Departures that give no contender an advantage.
    pub notes: Vec<Breach>,
    /// Why the rule could not be verified, if the system does not report enough.
    pub unverified: Option<String>,
}

/// A departure from a rule: the framework, the finding, and the remedy.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Breach {
    /// The framework that departs; [`MACHINE`] if the departure concerns no single framework.
    pub framework: String,
    pub finding: String,
    pub remedy: String,
    /// Whether it is the subject of the study.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub is_compared: bool,
}

/// Replaces a framework's name in departures that concern all of them.
pub const MACHINE: &str = "machine";

/// Rules that a reference may break, because its own way is compared: its build, its KV cache, its
/// compilation. An engine is excluded for such a departure; for a reference it is noted.
const OWN_WAYS: [&str; 4] = ["R10", "R13", "R14", "R17"];

/// Those that a hybrid of two engines may break: its cache is that of one of them, and its compilation half
/// of each.
const WAYS_OF_A_HYBRID: [&str; 2] = ["R13", "R14"];

/// Rules of what a server does not show its clients: they are unverified for it.
const HIDDEN: [&str; 12] = ["R1", "R2", "R5", "R6", "R7", "R10", "R13", "R14", "R15", "R16", "R17", "R19"];

/// Judges every rule for every contender that has complete runs.
pub fn judge(judged: &Judged<'_>) -> Vec<RuleState> {
    let ran: BTreeSet<&str> = judged.runs.iter().map(|run| run.framework.as_str()).collect();
    let labels = judged.plan.contenders.iter().map(|contender| contender.label.as_str());
    let labels: Vec<&str> = labels.filter(|label| ran.contains(label)).collect();
    let breach = |framework: &str, finding: String, rule: &Rule| Breach {
        framework: framework.to_owned(),
        finding,
        remedy: rule.remedy.to_owned(),
        is_compared: false,
    };
    let state = |rule: &Rule| {
        let broken_by = match rule.check {
            OfEach(check) => {
                let held = labels.iter().filter(|label| !goes_its_own_way(rule, judged, label));
                held.filter_map(|label| Some(breach(label, check(judged, label)?, rule))).collect()
            }
            OfMachine(check) => {
                check(judged).map(|finding| breach(MACHINE, finding, rule)).into_iter().collect()
            }
        };
        let noted = |label: &&str| {
            let (finding, is_compared) = note(rule, judged, label)?;
            Some(Breach { is_compared, ..breach(label, finding, rule) })
        };
        let notes = labels.iter().filter_map(noted);
        RuleState {
            id: rule.id.to_owned(),
            sentence: rule.sentence.to_owned(),
            broken_by,
            notes: notes.collect(),
            unverified: unverified(rule, judged, &labels),
        }
    };
    RULES.iter().map(state).collect()
}

fn goes_its_own_way(rule: &Rule, judged: &Judged<'_>, label: &str) -> bool {
    is_compared(rule, judged)
        || (HIDDEN.contains(&rule.id) && judged.is_server(label))
        || (OWN_WAYS.contains(&rule.id) && judged.is_reference(label))
        || (WAYS_OF_A_HYBRID.contains(&rule.id) && judged.is_hybrid(label))
}

/// Whether this study varies the subject of the rule.
fn is_compared(rule: &Rule, judged: &Judged<'_>) -> bool {
    judged.plan.varied.iter().any(|id| id == rule.id)
}

/// The note on a contender, and whether its subject is that of the study.
fn note(rule: &Rule, judged: &Judged<'_>, label: &str) -> Option<(String, bool)> {
    if HIDDEN.contains(&rule.id) && judged.is_server(label) {
        return None;
    }
    if let OfEach(check) = rule.check
        && goes_its_own_way(rule, judged, label)
    {
        if rule.id == "R10"
            && let Some(other) = checks::other_build(judged, label)
        {
            return Some((other, false));
        }
        let departure = check(judged, label)?;
        if is_compared(rule, judged) {
            return Some((format!("{departure} (that is what is compared)"), true));
        }
        let own = match (rule.id, judged.runs_of(label).find_map(Run::hello)) {
            ("R10", Some(hello)) => {
                let rustc = hello.build.rustc.as_deref().unwrap_or("of an unknown compiler");
                format!("its build is its own, {rustc} (a reference)")
            }
            _ if judged.is_hybrid(label) => format!("{departure} (a hybrid: its parts' way)"),
            _ => format!("{departure} (a reference: its own way)"),
        };
        return Some((own, false));
    }
    let finding = match rule.id {
        "R1" => checks::derived_note(judged, label),
        "R2" => checks::emulated(judged, label).or_else(|| checks::unlike_products(judged, label)),
        "R5" => checks::fewer_threads(judged, label),
        "R7" => checks::survivors(judged, label).or_else(|| checks::unused_caches(judged, label)),
        "R10" => checks::other_build(judged, label),
        "R16" => checks::fewer_pages(judged, label),
        "R18" => readings::note(judged, label),
        _ => None,
    };
    Some((finding?, false))
}

fn unverified(rule: &Rule, judged: &Judged<'_>, labels: &[&str]) -> Option<String> {
    let servers: Vec<&str> = labels.iter().copied().filter(|label| judged.is_server(label)).collect();
    if HIDDEN.contains(&rule.id) && !servers.is_empty() {
        return Some(format!("a server does not show it: {}", servers.join(", ")));
    }
    match rule.id {
        "R5" => {
            let mut unknown = labels.iter().filter_map(|label| {
                Some(format!("{label}: {}", Threads::new(judged.plan, judged.evidence, label).unknown()?))
            });
            unknown.next()
        }
        "R12" => {
            let noises = &judged.evidence.noises;
            let unknown = noises.iter().filter(|noise| noise.foreign.is_none()).count();
            (unknown > 0).then(|| {
                let all = noises.len();
                format!("what other processes did is not known for {unknown} of {all} rounds: too short, or not reported")
            })
        }
        "R15" => {
            let waited = judged.runs.iter().filter_map(|run| run.waited);
            let mut unknown = waited.filter(|waited| waited.cpu_s.is_none());
            unknown.next().map(|_| "the system does not report the CPU time of another process".to_owned())
        }
        "R11" => {
            let evidence = judged.evidence;
            let own = evidence.own_traces.as_ref();
            let own =
                own.map(|reason| format!("that requests computed what they gave is not proved: {reason}"));
            checks::unnamed(judged, &servers).or(own).or_else(|| unproved(judged))
        }
        "R18" => readings::unseen(judged),
        "R19" => {
            let engines =
                labels.iter().filter(|label| !judged.is_reference(label) && !judged.is_hybrid(label));
            let mut unknown = engines.filter_map(|label| match judged.evidence.own_code.get(*label)? {
                Err(reason) if own_code(judged.plan, judged.evidence, label).is_none() => {
                    Some(format!("whose arithmetic {label} computes is not known: {reason}"))
                }
                _ => None,
            });
            unknown.next()
        }
        _ => None,
    }
}

/// That the timed requests of some processes were not compared: the run ended before.
fn unproved(judged: &Judged<'_>) -> Option<String> {
    let has_tokens = judged.plan.work.prompted().is_some();
    let of_all = |run: &Run| {
        run.agreement.as_ref().is_some_and(|found| found.vectors.is_some() || found.timed_tokens > 0)
    };
    let is_compared = |run: &&&Run| of_all(run) || (has_tokens && run.tokens.is_some());
    let complete: Vec<&&Run> = judged.runs.iter().filter(|run| run.is_complete()).collect();
    let (all, open) = (complete.len(), complete.iter().filter(|run| !is_compared(run)).count());
    let is_any = open > 0 && judged.evidence.no_reference.is_none();
    is_any.then(|| {
        format!("the timed requests of {open} of {all} processes were not compared: the run ended before")
    })
}

// The rules themselves: id, sentence and check. `docs/reference/fairness.md` is printed from here.

struct Rule {
    id: &'static str,
    sentence: &'static str,
    /// How the rule is enforced and checked, for the documentation.
    how: &'static str,
    remedy: &'static str,
    check: Check,
}

/// The check of a rule. `Some` is an objection.
enum Check {
    /// A check of one contender, from its runs and all others'. An objection excludes its row.
    OfEach(fn(&Judged<'_>, &str) -> Option<String>),
    /// A check of the machine. An objection makes everything not measurable.
    OfMachine(fn(&Judged<'_>) -> Option<String>),
}

const RULES: [Rule; 19] = [
    Rule {
        id: "R1",
        sentence: "Same weights",
        how: "One prepared bundle for all. Photofinish hashes its files before a run, and each process shows that the file it loaded has the same device, inode, size and time of change, before the load and after the last sample. A worker hashes any other file once, after the last sample; the sha256 is compared with the bundle's manifest. A reference that cannot read a bundle loads a file derived from the bundle's, number by number; a record next to it names both sha256, and is compared with the manifest and the observed hash.",
        remedy: "delete the bundle from the cache directory and run again",
        check: OfEach(checks::same_weights),
    },
    Rule {
        id: "R2",
        sentence: "Same precision, requested = observed",
        how: "Engines report the element type of the weights they hold, observed and not repeated from the request. After the last round each computes a model that shows what it multiplies in (`rows[].arithmetic`): fewer significant bits than those of the precision, where it is one of floating point, strike it; several kinds of arithmetic under one name are noted, and the answer names them. Weights that are dequantised at load are noted, and the table says *emulated*.",
        remedy: "ask for a precision that all of them have, or leave the framework out",
        check: OfEach(checks::same_precision),
    },
    Rule {
        id: "R3",
        sentence: "Same token ids",
        how: "Photofinish tokenises once and sends the same ids to every worker; every answer has the shape of those ids.",
        remedy: "report a bug of the worker",
        check: OfEach(checks::same_tokens),
    },
    Rule {
        id: "R4",
        sentence: "Same work: every iteration produced the asked number of tokens",
        how: "The end-of-sequence token is ignored. Tokens and marks of every iteration are counted.",
        remedy: "report a bug of the worker",
        check: OfEach(checks::same_work),
    },
    Rule {
        id: "R5",
        sentence: "Same thread budget, verified from observed threads and CPU time",
        how: "The budget is set by environment, API and CPU affinity. Afterwards CPU seconds ÷ wall seconds of the timed requests (by the driver's reading, and of all its processes, where it has several or does not say), the allowed CPUs and the reported number are compared with it, and so are thread variables of the engine's configuration. More than the budget strikes the column. So does a second set of threads: threads that ran or waited for a CPU add up to 1.75 times the budget (2.5 times, if this was measured for less than a second). Fewer threads are noted, and so are pools that compete within the budget: neither is an advantage.",
        remedy: "take the thread setting out of its configuration, or give all as many threads with --threads",
        check: OfEach(checks::same_threads),
    },
    Rule {
        id: "R6",
        sentence: "Same device",
        how: "Engines report the device that holds the weights.",
        remedy: "ask for a device that all of them have, or leave the framework out",
        check: OfEach(checks::same_device),
    },
    Rule {
        id: "R7",
        sentence: "A process of its own, in a scrubbed environment",
        how: "Every (framework, round) is a new process. Its environment holds the thread budget and what the engine's file in configs/engines sets; in an installation also the directory of libtorch; the memory policy (GLIBC_TUNABLES, R16); and CUDA_DEVICE_ORDER, so that the driver and the workers number GPUs alike. From the user's environment it takes PATH, TMPDIR, SYSTEMROOT, CUDA_VISIBLE_DEVICES and PHOTOFINISH_NVML, and the value of a variable that configs/engines names. With `--kernel-cache fresh` each process gets an empty kernel cache; a cache that stays empty is noted. `PHOTOFINISH_WORKER` marks it and its children: those that outlive it are killed and noted.",
        remedy: "report a bug of photofinish",
        check: OfEach(checks::own_process),
    },
    Rule {
        id: "R8",
        sentence: "Warm-up covers the measured shapes",
        how: "Warm-up runs whole iterations of the measurement's own cases; their shapes are compared with the measured ones.",
        remedy: "report a bug of the worker",
        check: OfEach(checks::warmed_up),
    },
    Rule {
        id: "R9",
        sentence: "Rounds interleaved in a seeded random order",
        how: "Every round starts every framework once. Orders come in shuffled Latin squares drawn from the recorded seed, so that in as many rounds as there are frameworks each takes every place once. Turns within a round are dealt out in blocks, every framework once in each, in orders drawn the same way. Rounds, places and turns are counted afterwards.",
        remedy: "report a bug of photofinish",
        check: OfEach(checks::interleaved),
    },
    Rule {
        id: "R10",
        sentence: "Same build: one release profile, target CPU, recorded",
        how: "Workers report profile, rustc, flags and target features of their own build; all must be equal, and release. Program, versions and what is in effect must be the same in every round. A worker that rustc did not build must only be a release build; its toolchain is noted. A reference's build is its own: noted.",
        remedy: "build all workers with `cargo xtask build`",
        check: OfEach(checks::same_build),
    },
    Rule {
        id: "R11",
        sentence: "Outputs agree within tolerance, in the very run that is timed",
        how: "Each block of requests has other prompts of the same lengths and is fed other tokens, which are sent slice by slice; in every fourth block each contender is fed the tokens that it chooses. Encoders have other texts, ONNX files other drawn inputs. A reference in f32 computes the same afterwards: every most likely token, every vector and every output of a timed request is compared with it, and so are the logits of tokens that are drawn only when a slice is done. The contender that gives the reference is compared with another framework's, in one block of each process, which is drawn afterwards. In the first round, and in one that the seed draws, each process computes teacher-forced logits after its last sample, by the path that was timed; it is asked for them only then.",
        remedy: "`photofinish parity` says from which layer or token on outputs differ; report that with the results directory",
        check: OfEach(checks::outputs_agree),
    },
    Rule {
        id: "R12",
        sentence: "Quiet machine, before and between turns",
        how: "During each start of a process and each block of turns, the CPU time that others used, time stolen by the hypervisor, quota and heat throttling are read from the kernel; a fixed piece of arithmetic is timed after the turns. A block above a limit is done again, up to twice, a start once. If most blocks of a round stay disturbed, no speed is measurable (exit code 3). `--accept-noise` continues and lists the disturbances.",
        remedy: "stop what else is running and compare again, or --accept-noise",
        check: OfMachine(checks::quiet_machine),
    },
    Rule {
        id: "R13",
        sentence: "Same KV-cache policy",
        how: "Engines report whether keys and values are preallocated, grown or recomputed. A reference's policy is its own, and a hybrid's that of its parts: noted.",
        remedy: "compare variants with the same policy",
        check: OfEach(checks::same_policy),
    },
    Rule {
        id: "R14",
        sentence: "Optimisation parity: graph optimisation or JIT on for all that have it, or off for all",
        how: "`--no-jit` acts on all. Engines whose framework can optimise a graph or compile report whether it is on, as observed; that is compared with the request. A reference's mode is its own, and a hybrid's that of its parts: noted.",
        remedy: "compare variants with --allow-unfair",
        check: OfEach(checks::same_optimisation),
    },
    Rule {
        id: "R15",
        sentence: "A waiting process does not compute",
        how: "While one process has its turn, all others are stopped by a signal: each with all processes that it started, in whatever group or session. The CPU time that they use between their turns is read from the kernel; more than 2 % of a CPU strikes. Where another program changed the CPUs or the priority of a worker that waited, or continued it, the block is disturbed and done again.",
        remedy: "report a bug of the worker, or take turns one framework at a time with --schedule sequential",
        check: OfEach(checks::waiters_wait),
    },
    Rule {
        id: "R16",
        sentence: "Same memory policy",
        how: "Huge pages are a setting of the run (`--huge-pages`), given to every worker by glibc's own switches, references included. A configuration may not set others. Workers report how much of their memory is in huge pages. A process with less than 95 % is started again once, where others have more; a framework whose processes still have less is noted.",
        remedy: "take GLIBC_TUNABLES out of configs/engines, and set --huge-pages for all",
        check: OfEach(checks::same_pages),
    },
    Rule {
        id: "R17",
        sentence: "Same precision of the KV cache, requested = observed",
        how: "`--kv-type` sets the type of keys and values for all: by default 16 bits if the weights have 16 bits, and f32 otherwise. Engines report the element type of their cache; one that does not support the requested type is *unsupported*. A reference's cache is its own: noted.",
        remedy: "ask for a type that all of them have with --kv-type, or leave the framework out",
        check: OfEach(checks::cache_same_precision),
    },
    Rule {
        id: "R18",
        sentence: "The worker's readings agree with the driver's",
        how: "*Checked*: the driver times each event of a start and each part of a request with its own clock, the step just after a pause too, and reads CPU time and peak memory. *Verdict*: speed must hold by both clocks, less what the answers of the least late column are late. Where the advantage is smaller by the driver's clock by more than the margin, or turned, the pair has none (ONNX files: by more than half a millisecond of the fastest request, 5 to 25 %); where it is not clear, it is inconclusive. *Strikes*: CPU time of requests below 80 %, less 50 ms, of the driver's, without what all threads may use in untimed parts; peak memory below 90 % of the driver's; requests that take over 5 % less, beyond the others, when the column is sent the tokens of several steps than when it feeds itself (Welch's test, p < 0.0001). *Noted*: a scripted clock (`engine-mock`), figures that are better by its own clock, a lower nice value than others have.",
        remedy: "report a bug of the worker",
        check: OfEach(readings::agree),
    },
    Rule {
        id: "R19",
        sentence: "A framework's name is for the framework's arithmetic",
        how: "An engine computes every number that depends on a weight or an activation by code that its framework ships. Its own code may choose operations, their order, shapes and layouts, stack weights, allocate, bind, copy and gather, and cut work into calls of the framework on the framework's threads. Before the first round an untimed process of each engine runs under perf, where perf may record: `configs/profile.toml` says which symbols are arithmetic of the engine, and more than 0.5 % of the CPU time of steps or of a prompt strikes it. Without perf, the share that the engine's file records is shown with its day. An engine whose name ends in + (`candle+`) says that it is assisted: its share is shown. Operators without documentation and switches thrown within a step are reported, and marked °. References are the frameworks' own code, or are compared as what they are.",
        remedy: "compute it by operations of the framework, or end the column's name in +",
        check: OfEach(checks::whose_arithmetic),
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
         A broken rule strikes the column: it is printed with the rule, the finding and the remedy, and has no verdicts. \
         With\n`--allow-unfair` the breach is only labelled. On a machine that is not quiet (R12) no column is struck, and there \
         are no\nverdicts.\n\n\
         A *reference* (`reference = true` in `configs/engines`) is a framework's own implementation, measured together \
         with the\nengines. Its build, cache and compilation are its own: those departures (R10, R13, R14, R17) \
         are noted\nin the findings and strike no column. All other rules hold for it, too.\n\n\
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
