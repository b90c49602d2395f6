//! The outcome of a comparison as one value. Table, Markdown, CSV and JSON are renderings of it; nothing
//! is computed while rendering. `docs/results.md` describes the JSON.

mod csv;
mod findings;
pub(crate) mod parity;
pub(crate) mod precisions;
mod prompts;
mod row;
mod table;
#[cfg(test)]
mod tests;

use bundle::Bundle;
use serde::Serialize;
use statistics::median;

use crate::environment::Environment;
use crate::evidence::{End, Evidence, Probe};
use crate::judge::fairness::{self, MACHINE, RuleState};
use crate::judge::floor::{self, Floor};
use crate::judge::limit;
use crate::judge::sanity::{self, Flag};
use crate::judge::verdicts::{self, Comparison};
use crate::machine::Noise;
use crate::plan::Plan;

pub(crate) use csv::csv;
pub(crate) use row::{Figure, Row, State};
pub(crate) use table::{markdown, number, parity, precision, table, wrapped};

use prompts::PromptFigures;

/// Version of the JSON.
pub(crate) const SCHEMA: u32 = 2;

#[derive(Debug, Serialize)]
pub(crate) struct Report {
    pub(crate) schema: u32,
    pub(crate) environment: Environment,
    pub(crate) plan: Plan,
    pub(crate) model: Model,
    /// Rounds that were done and stand, and why there are no more.
    pub(crate) rounds: usize,
    pub(crate) end: End,
    pub(crate) rows: Vec<Row>,
    /// The figures of each prompt by itself.
    pub(crate) prompts: Vec<PromptFigures>,
    pub(crate) comparisons: Vec<Comparison>,
    /// Where one engine was measured under two labels: what the machine cannot tell apart.
    pub(crate) floor: Vec<Floor>,
    pub(crate) rules: Vec<RuleState>,
    /// Results that cannot be.
    pub(crate) sanity: Vec<Flag>,
    pub(crate) machine: Machine,
    pub(crate) warnings: Vec<String>,
    pub(crate) interrupted: bool,
    /// Directory that holds every sample.
    pub(crate) results: String,
    pub(crate) summary: Summary,
}

/// The same in words: what stands above and below the table.
#[derive(Debug, Default, Serialize)]
pub(crate) struct Summary {
    /// What was measured, on what, how often.
    pub(crate) heading: String,
    pub(crate) verdicts: Vec<String>,
    /// What else there is to know.
    pub(crate) details: Vec<String>,
}

#[derive(Debug, Serialize)]
pub(crate) struct Model {
    pub(crate) name: String,
    pub(crate) architecture: String,
    pub(crate) bundle: String,
    pub(crate) manifest: bundle::Manifest,
}

/// What the machine did beside.
#[derive(Debug, Default, Serialize)]
pub(crate) struct Machine {
    pub(crate) before: Option<Noise>,
    /// Of each round, those done again included.
    pub(crate) rounds: Vec<Noise>,
    /// Between processes.
    pub(crate) probes: Vec<Probe>,
    /// Over all probes: bytes and f32 operations per second.
    pub(crate) read_bandwidth: Option<Spread>,
    pub(crate) arithmetic: Option<Spread>,
    /// Largest drift that a probe saw, as a share.
    pub(crate) drift: Option<f64>,
    /// Why rounds were done again, or were noisy and accepted.
    pub(crate) complaints: Vec<String>,
    /// Processes whose figures were put aside because their round was done again.
    pub(crate) put_aside: usize,
}

/// A speed that changes: median and least of what probes saw on average, and the most that one saw at once.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub(crate) struct Spread {
    pub(crate) median: f64,
    pub(crate) min: f64,
    pub(crate) best: f64,
}

impl Machine {
    fn of(evidence: &Evidence) -> Machine {
        let spread = |mean: fn(&Probe) -> f64, best: fn(&Probe) -> f64| {
            let means: Vec<f64> = evidence.probes.iter().map(mean).collect();
            Some(Spread {
                median: median(&means)?,
                min: means.iter().copied().reduce(f64::min)?,
                best: evidence.probes.iter().map(best).reduce(f64::max)?,
            })
        };
        Machine {
            before: evidence.before.clone(),
            rounds: evidence.noises.clone(),
            read_bandwidth: spread(|probe| probe.read_bandwidth, |probe| probe.best_read_bandwidth),
            arithmetic: spread(|probe| probe.arithmetic, |probe| probe.best_arithmetic),
            drift: evidence.probes.iter().map(|probe| probe.drift).reduce(f64::max),
            probes: evidence.probes.clone(),
            complaints: evidence.complaints.clone(),
            put_aside: evidence.repeated.len(),
        }
    }
}

impl Report {
    pub(crate) fn new(
        plan: &Plan,
        bundle: &Bundle,
        evidence: &Evidence,
        environment: Environment,
        results: &std::path::Path,
    ) -> Report {
        let judged = fairness::Judged {
            plan,
            manifest: bundle.manifest(),
            evidence,
            runs: evidence.runs.iter().filter(|run| run.is_complete()).collect(),
        };
        let rules = fairness::judge(&judged);
        let mut limits = limit::limits(plan, bundle.config(), evidence);
        let sanity = sanity::flags(plan, evidence, &limits);
        let rows: Vec<Row> = plan
            .contenders
            .iter()
            .map(|contender| {
                let limit = limits.remove(&contender.label);
                Row::new(contender, plan, bundle, evidence, &rules, limit)
            })
            .collect();
        let compared = rows.iter().filter(|row| row.is_compared()).map(|row| row.framework.clone());
        let comparisons =
            verdicts::compare(plan, evidence, compared.collect(), noise(plan, &rules).as_deref());
        let mut report = Report {
            schema: SCHEMA,
            environment,
            plan: plan.clone(),
            model: Model {
                name: bundle.manifest().name.clone(),
                architecture: format!("{:?}", bundle.config().architecture).to_lowercase(),
                bundle: bundle.directory().display().to_string(),
                manifest: bundle.manifest().clone(),
            },
            rounds: evidence.rounds,
            end: evidence.end.clone(),
            floor: floor::floors(plan, &comparisons),
            warnings: findings::warnings(plan, evidence, &rows, &rules),
            rows,
            prompts: prompts::prompts(plan, evidence),
            comparisons,
            rules,
            sanity,
            machine: Machine::of(evidence),
            interrupted: evidence.end == End::Interrupted,
            results: results.display().to_string(),
            summary: Summary::default(),
        };
        report.summary = findings::summary(&report);
        report
    }

    pub(crate) fn json(&self) -> String {
        serde_json::to_string_pretty(self).expect("a report has string keys and no failing serialiser")
    }

    /// Why nothing is measurable, if the machine was too noisy and nobody accepted that.
    pub(crate) fn noise(&self) -> Option<String> {
        noise(&self.plan, &self.rules)
    }

    /// 0 when everything asked for was measured, or cannot be had by its nature; 1 when a framework
    /// failed, was struck, or nothing could be measured; 3 when the machine was too noisy.
    pub(crate) fn exit_code(&self) -> u8 {
        let bad = |row: &Row| matches!(row.state, State::Failed | State::Struck);
        if self.rows.iter().any(bad) {
            return 1;
        }
        if self.noise().is_some() {
            return 3;
        }
        u8::from(!self.rows.iter().any(Row::is_compared))
    }
}

fn noise(plan: &Plan, rules: &[RuleState]) -> Option<String> {
    let breaches = rules.iter().flat_map(|rule| &rule.broken_by);
    let of_machine = breaches.filter(|breach| breach.framework == MACHINE && !plan.accept_noise);
    of_machine.map(|breach| format!("{}; {}", breach.finding, breach.remedy)).next()
}
