//! The fairness rules: id, sentence and check, once. `docs/fairness.md` is printed from here.

use std::collections::BTreeSet;

use bundle::Bundle;
use protocol::Build;
use serde::Serialize;

use crate::plan::Plan;
use crate::record::Run;

pub(crate) struct Rule {
    pub(crate) id: &'static str,
    /// What holds in a fair comparison.
    pub(crate) sentence: &'static str,
    /// How it is brought about and checked, for the documentation.
    pub(crate) how: &'static str,
    /// What to do when it is broken.
    pub(crate) remedy: &'static str,
    check: Option<Check>,
}

/// `Some` objection to one contender, from its runs and everyone's.
type Check = fn(&Evidence<'_>, &str) -> Option<String>;

/// What the rules are judged from.
pub(crate) struct Evidence<'a> {
    pub(crate) plan: &'a Plan,
    pub(crate) bundle: &'a Bundle,
    /// Complete runs of all contenders.
    pub(crate) runs: Vec<&'a Run>,
    /// Why no reference could be had, if none could.
    pub(crate) no_reference: Option<&'a str>,
}

impl<'a> Evidence<'a> {
    fn of(&self, label: &str) -> impl Iterator<Item = &'a Run> {
        let label = label.to_owned();
        self.runs.iter().copied().filter(move |run| run.framework == label)
    }

    /// An objection if `label`'s value differs from that of the first contender that ran.
    fn same_for_all<T: PartialEq + std::fmt::Debug>(
        &self,
        label: &str,
        what: &str,
        value: impl Fn(&Run) -> Option<T>,
    ) -> Option<String> {
        let first = self.runs.iter().find_map(|run| Some((&run.framework, value(run)?)))?;
        let ours = self.of(label).filter_map(value);
        let mut other = ours.filter(|ours| *ours != first.1);
        other.next().map(|ours| format!("{what} is {ours:?}, but {:?} for {}", first.1, first.0))
    }
}

pub(crate) const RULES: [Rule; 14] = [
    Rule {
        id: "R1",
        sentence: "Same weights",
        how: "One prepared bundle for all. Each worker hashes the weights file it mapped, after the last sample; the sha256 is held against the bundle's manifest.",
        remedy: "delete the bundle from the cache directory and run again",
        check: Some(same_weights),
    },
    Rule {
        id: "R2",
        sentence: "Same precision, requested = observed",
        how: "Engines report the element type of the weights they hold, observed and not repeated from the request.",
        remedy: "ask for a precision that all of them have, or leave the framework out",
        check: Some(same_precision),
    },
    Rule {
        id: "R3",
        sentence: "Same token ids",
        how: "The driver tokenises once and sends the same ids to every worker; every answer has the shape of those ids.",
        remedy: "report a bug of the worker",
        check: Some(same_tokens),
    },
    Rule {
        id: "R4",
        sentence: "Same work: every iteration produced the asked number of tokens",
        how: "The end-of-sequence token is ignored. Tokens and gaps of every iteration are counted.",
        remedy: "report a bug of the worker",
        check: Some(same_work),
    },
    Rule {
        id: "R5",
        sentence: "Same thread budget, verified from observed threads and CPU time",
        how: "The budget is set by environment and API, and each engine reports what its framework says. Holding it against observed threads and CPU seconds is not done yet.",
        remedy: "",
        check: None,
    },
    Rule {
        id: "R6",
        sentence: "Same device",
        how: "Engines report the device that holds the weights.",
        remedy: "ask for a device that all of them have, or leave the framework out",
        check: Some(same_device),
    },
    Rule {
        id: "R7",
        sentence: "A process of its own, in a scrubbed environment",
        how: "Every (framework, round) is a new process, whose environment holds nothing but the thread budget and what the engine's configuration sets.",
        remedy: "report a bug of the driver",
        check: Some(own_process),
    },
    Rule {
        id: "R8",
        sentence: "Warm-up covers the measured shapes",
        how: "Warm-up runs whole iterations of the measurement's own cases; their shapes are held against the measured ones.",
        remedy: "report a bug of the worker",
        check: Some(warmed_up),
    },
    Rule {
        id: "R9",
        sentence: "Rounds interleaved in a seeded random order",
        how: "Every round runs every framework once, in an order drawn from the recorded seed. Testing the order for balance is not done yet.",
        remedy: "",
        check: None,
    },
    Rule {
        id: "R10",
        sentence: "Same build: one release profile, target CPU, recorded",
        how: "Workers report profile, rustc, flags and target features of their own build; all must be equal, and release.",
        remedy: "build all workers with `cargo xtask build`",
        check: Some(same_build),
    },
    Rule {
        id: "R11",
        sentence: "Outputs agree within tolerance, in the very run that is timed",
        how: "Each process computes teacher-forced logits after its last sample, by the path that was timed; they, and the tokens of every timed iteration, are held against a reference engine in f32.",
        remedy: "the row computes something else: report it to the framework or to us, with the results directory",
        check: Some(outputs_agree),
    },
    Rule {
        id: "R12",
        sentence: "Quiet machine, before and between rounds",
        how: "Not checked yet.",
        remedy: "",
        check: None,
    },
    Rule {
        id: "R13",
        sentence: "Same KV-cache policy",
        how: "Engines report whether keys and values are preallocated, grown or recomputed.",
        remedy: "compare variants with the same policy",
        check: Some(same_kv_cache),
    },
    Rule {
        id: "R14",
        sentence: "Optimisation parity: graph optimisation or JIT on for all who have it, or off for all",
        how: "`--no-jit` acts on all; what is in effect is reported. Not checked yet.",
        remedy: "",
        check: None,
    },
];

/// A rule's state in one comparison.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub(crate) struct RuleState {
    pub(crate) id: &'static str,
    pub(crate) sentence: &'static str,
    pub(crate) checked: bool,
    pub(crate) broken_by: Vec<Breach>,
}

#[derive(Debug, Clone, PartialEq, Serialize)]
pub(crate) struct Breach {
    pub(crate) framework: String,
    pub(crate) finding: String,
    pub(crate) remedy: &'static str,
}

/// Judges every rule for every contender that has complete runs.
pub(crate) fn judge(evidence: &Evidence<'_>) -> Vec<RuleState> {
    let ran: BTreeSet<&str> = evidence.runs.iter().map(|run| run.framework.as_str()).collect();
    let labels = evidence.plan.contenders.iter().map(|contender| contender.label.as_str());
    let labels: Vec<&str> = labels.filter(|label| ran.contains(label)).collect();
    let state = |rule: &Rule| RuleState {
        id: rule.id,
        sentence: rule.sentence,
        checked: rule.check.is_some(),
        broken_by: rule.check.map_or(Vec::new(), |check| {
            let breach = |label: &&str| {
                let finding = check(evidence, label)?;
                Some(Breach { framework: (*label).to_owned(), finding, remedy: rule.remedy })
            };
            labels.iter().filter_map(breach).collect()
        }),
    };
    RULES.iter().map(state).collect()
}

fn same_weights(evidence: &Evidence<'_>, label: &str) -> Option<String> {
    let files = &evidence.bundle.manifest().files;
    evidence.of(label).find_map(|run| {
        let (loaded, usage) = (run.loaded()?, run.usage()?);
        let file = std::path::Path::new(&loaded.weights_file).file_name()?.to_string_lossy().into_owned();
        let expected = files.get(&file).map(|record| record.sha256.as_str());
        (expected != Some(usage.weights_sha256.as_str())).then(|| {
            format!(
                "its weights have sha256 {}, the bundle's are {}",
                usage.weights_sha256,
                expected.unwrap_or("not listed")
            )
        })
    })
}

fn same_precision(evidence: &Evidence<'_>, label: &str) -> Option<String> {
    let asked = evidence.plan.precision.name();
    let mut observed = evidence.of(label).filter_map(|run| Some(run.loaded()?.in_effect.precision.as_str()));
    observed
        .find(|observed| *observed != asked)
        .map(|observed| format!("asked for {asked}, it ran {observed}"))
}

fn same_tokens(evidence: &Evidence<'_>, label: &str) -> Option<String> {
    let cases = evidence.plan.prompts.len();
    let batch = evidence.plan.batch;
    let mut samples = evidence.of(label).flat_map(Run::iterations);
    let fits = |iteration: &protocol::Iteration| {
        iteration.cases.len() == cases && iteration.cases.iter().all(|case| case.tokens.len() == batch)
    };
    samples
        .any(|iteration| !fits(iteration))
        .then(|| format!("an iteration did not answer {cases} cases of {batch}"))
}

fn same_work(evidence: &Evidence<'_>, label: &str) -> Option<String> {
    let asked = evidence.plan.new_tokens;
    evidence.of(label).find_map(|run| {
        let iterations = run.iterations().count();
        if iterations != evidence.plan.iterations {
            return Some(format!("{iterations} iterations of {}", evidence.plan.iterations));
        }
        let cases = run.iterations().flat_map(|iteration| &iteration.cases);
        let mut short = cases.filter(|case| {
            case.gaps_ns.len() + 1 != asked || case.tokens.iter().any(|tokens| tokens.len() != asked)
        });
        short.next().map(|case| format!("an iteration made {} tokens of {asked}", case.gaps_ns.len() + 1))
    })
}

fn same_device(evidence: &Evidence<'_>, label: &str) -> Option<String> {
    let asked = evidence.plan.device.as_str();
    let mut observed = evidence.of(label).filter_map(|run| Some(run.loaded()?.in_effect.device.as_str()));
    observed
        .find(|observed| *observed != asked)
        .map(|observed| format!("asked for {asked}, it ran on {observed}"))
}

fn own_process(evidence: &Evidence<'_>, label: &str) -> Option<String> {
    // A system may use a process id again, but not within one round.
    let shared = evidence.of(label).find(|run| {
        let same = evidence.runs.iter().filter(|other| other.round == run.round && other.pid == run.pid);
        same.count() > 1
    });
    shared.map(|run| format!("process {} served two frameworks in round {}", run.pid, run.round + 1))
}

fn warmed_up(evidence: &Evidence<'_>, label: &str) -> Option<String> {
    evidence.of(label).find_map(|run| {
        let shape = |iteration: &protocol::Iteration| -> Vec<(usize, usize)> {
            iteration.cases.iter().map(|case| (case.tokens.len(), case.gaps_ns.len())).collect()
        };
        let measured = run.iterations().next().map(shape)?;
        let warm = run.warmup().map(|warmup| warmup.iterations.iter().map(shape).collect::<Vec<_>>());
        match warm {
            Some(warm) if !warm.is_empty() && warm.iter().all(|shape| *shape == measured) => None,
            _ => Some("warm-up did not run the shapes that were measured".into()),
        }
    })
}

fn same_build(evidence: &Evidence<'_>, label: &str) -> Option<String> {
    let build = |run: &Run| run.hello().map(|hello| hello.build.clone());
    let debug = evidence.of(label).filter_map(build).find(|build: &Build| build.profile != "release");
    if let Some(build) = debug {
        return Some(format!("it is a {} build", build.profile));
    }
    evidence.same_for_all(label, "its build", build)
}

fn outputs_agree(evidence: &Evidence<'_>, label: &str) -> Option<String> {
    if let Some(reason) = evidence.no_reference {
        return Some(format!("there is no reference to hold it against: {reason}"));
    }
    evidence.of(label).find_map(|run| match &run.agreement {
        None => Some("it yielded no logits".into()),
        Some(agreement) => {
            let reason = agreement.broken.as_ref()?;
            Some(format!("{reason} (reference: {} in f32, round {})", agreement.reference, run.round + 1))
        }
    })
}

fn same_kv_cache(evidence: &Evidence<'_>, label: &str) -> Option<String> {
    evidence.same_for_all(label, "its KV cache", |run| Some(run.loaded()?.in_effect.kv_cache.clone()))
}

/// `docs/fairness.md`.
pub(crate) fn markdown() -> String {
    let mut text = String::from(
        "# Fairness rules\n\n\
         Printed by `driver rules`; a test compares this page with the code. Do not edit it by hand.\n\n\
         With `--fair-comparison` (the default) a broken rule strikes the row: it is printed, with the rule, \
         the finding and the remedy, and takes no part in any verdict. With `--fair-comparison=false` the \
         breach is only labelled.\n\n\
         | rule | what holds | how it is brought about and checked | checked |\n|---|---|---|---|\n",
    );
    for rule in &RULES {
        let checked = if rule.check.is_some() { "yes" } else { "not yet" };
        text += &format!("| {} | {} | {} | {checked} |\n", rule.id, rule.sentence, rule.how);
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_page_for_people_is_printed_from_the_rules() {
        let page = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/fairness.md");
        let written = std::fs::read_to_string(page).expect("docs/fairness.md is part of the checkout");
        assert_eq!(written, markdown(), "print it anew: driver rules > docs/fairness.md");
    }

    #[test]
    fn rules_are_numbered_and_have_a_remedy_where_they_are_checked() {
        for (index, rule) in RULES.iter().enumerate() {
            assert_eq!(rule.id, format!("R{}", index + 1));
            assert_eq!(rule.check.is_some(), !rule.remedy.is_empty(), "{}", rule.id);
        }
    }
}
