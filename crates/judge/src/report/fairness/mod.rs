//! The fairness rules, judged from the evidence.

mod checks;
mod derived;
mod readings;
mod rules;
#[cfg(test)]
mod tests;
mod work;

use std::collections::BTreeSet;

use bundle::Manifest;
use serde::{Deserialize, Serialize};
use untrusted::Foreign;

use crate::report::threads::Threads;
use facts::evidence::Evidence;
use facts::run::Run;
use plan::{Contender, Plan};
use rules::Check::{OfEach, OfMachine};
use rules::{RULES, Rule};

pub use rules::{ids, markdown};

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
        self.plan.contenders.iter().any(|contender| contender.label == label && contender.engine.reference)
    }

    /// Whether `label` is a hybrid of two engines.
    fn is_hybrid(&self, label: &str) -> bool {
        let of_label = |contender: &&Contender| contender.label == label;
        self.plan.contenders.iter().find(of_label).is_some_and(|contender| contender.engine.parts().is_some())
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
    fn same_for_all<T: PartialEq + std::fmt::Debug>(
        &self,
        label: &str,
        what: &str,
        value: impl Fn(&Run) -> Option<T>,
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
        other.next().map(|ours| format!("{what} is {ours:?}, but {expected:?} for {usual}"))
    }
}

/// A rule's state in one comparison.
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
        || (OWN_WAYS.contains(&rule.id) && judged.is_reference(label))
        || (WAYS_OF_A_HYBRID.contains(&rule.id) && judged.is_hybrid(label))
}

/// Whether this study varies the subject of the rule.
fn is_compared(rule: &Rule, judged: &Judged<'_>) -> bool {
    judged.plan.varied.iter().any(|id| id == rule.id)
}

/// The note on a contender, and whether its subject is that of the study.
fn note(rule: &Rule, judged: &Judged<'_>, label: &str) -> Option<(String, bool)> {
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
        "R1" => derived::note(judged, label),
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
        "R11" => judged
            .evidence
            .own_traces
            .as_ref()
            .map(|reason| format!("that requests computed what they gave is not proved: {reason}")),
        "R18" => readings::unseen(judged),
        _ => None,
    }
}
