//! The rules themselves: id, sentence and check. `docs/reference/fairness.md` is printed from here.

use super::checks::*;
use super::work::cache;
use super::{Judged, readings};

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
use Check::{OfEach, OfMachine};

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
        check: OfEach(cache::same_policy),
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
        check: OfEach(cache::same_precision),
    },
    Rule {
        id: "R18",
        sentence: "The worker's readings agree with the driver's",
        how: "The driver measures with its own clock when each event of a start came and how long each slice of a request took, and reads CPU time and peak memory before a process finishes. A worker's requests may not be longer in sum. They may be shorter by 5 % and 2 ms in the median slice, and a whole request by 5 %, 5 ms and twice the untimed part before it (where others disturbed the machine: in the least late request, and by another 20 ms). If a process has fewer than four requests, they are judged with those of the other rounds, of which one in eight, and one in any case, may be late. Load and first request may be shorter by 20 % and 0.1 s, and longer by 0.1 s. The CPU time of its requests must reach 80 %, less 50 ms, of that in its turns, without the time that all its threads may use in untimed parts. Its peak memory must reach 90 % of the driver's reading. A scripted clock (`engine-mock`), a program that changes between rounds, and a lower nice value than that of others are noted.",
        remedy: "report a bug of the worker",
        check: OfEach(readings::agree),
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
    use super::*;

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
