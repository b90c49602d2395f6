//! The outcome of a comparison as one value. Table, Markdown, CSV and JSON are renderings of it; nothing
//! is computed while rendering. `docs/results.md` describes the JSON.

mod csv;
mod table;
#[cfg(test)]
mod tests;

use bundle::{Bundle, Precision};
use protocol::{Hello, InEffect};
use serde::Serialize;

use crate::environment::Environment;
use crate::judge::fairness::{self, RuleState};
use crate::judge::metrics::{Metric, Work, median};
use crate::judge::parity::Agreement;
use crate::judge::verdicts::{self, Comparison, Series};
use crate::plan::{Contender, Plan};
use crate::record::{FailureKind, Run};
use crate::rounds::Evidence;

pub(crate) use csv::csv;
pub(crate) use table::{markdown, table};

/// Version of the JSON.
const SCHEMA: u32 = 1;

#[derive(Debug, Serialize)]
pub(crate) struct Report {
    pub(crate) schema: u32,
    pub(crate) environment: Environment,
    pub(crate) plan: Plan,
    pub(crate) model: Model,
    pub(crate) rows: Vec<Row>,
    pub(crate) comparisons: Vec<Comparison>,
    pub(crate) rules: Vec<RuleState>,
    pub(crate) warnings: Vec<String>,
    pub(crate) interrupted: bool,
    /// Directory that holds every sample.
    pub(crate) results: String,
}

#[derive(Debug, Serialize)]
pub(crate) struct Model {
    pub(crate) name: String,
    pub(crate) architecture: String,
    pub(crate) bundle: String,
    pub(crate) manifest: bundle::Manifest,
}

/// One contender.
#[derive(Debug, Serialize)]
pub(crate) struct Row {
    pub(crate) framework: String,
    pub(crate) state: State,
    /// Why it is not simply measured.
    pub(crate) reasons: Vec<String>,
    pub(crate) precision: Requested,
    pub(crate) rounds: usize,
    pub(crate) metrics: Vec<Figure>,
    /// The worst of all rounds.
    pub(crate) agreement: Option<Agreement>,
    pub(crate) hello: Option<Hello>,
    pub(crate) in_effect: Option<InEffect>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum State {
    Measured,
    /// Measured, but a fairness rule is broken: no part in any verdict.
    Struck,
    /// A rule is broken and only labelled (`--fair-comparison=false`).
    Labelled,
    Unsupported,
    Failed,
    /// The user interrupted before its first process was done.
    NotRun,
}

#[derive(Debug, Serialize)]
pub(crate) struct Requested {
    pub(crate) requested: Precision,
    pub(crate) observed: Option<String>,
}

/// A metric of one contender: the median over its processes, and each of them.
#[derive(Debug, Serialize)]
pub(crate) struct Figure {
    pub(crate) metric: Metric,
    pub(crate) unit: &'static str,
    /// `null`: not available.
    pub(crate) median: Option<f64>,
    pub(crate) min: Option<f64>,
    pub(crate) max: Option<f64>,
    /// By round.
    pub(crate) values: Vec<Option<f64>>,
}

impl Row {
    pub(crate) fn median(&self, metric: Metric) -> Option<f64> {
        self.metrics.iter().find(|figure| figure.metric == metric)?.median
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
        let judged = fairness::Evidence {
            plan,
            bundle,
            runs: evidence.runs.iter().filter(|run| run.is_complete()).collect(),
            no_reference: evidence.no_reference.as_deref(),
        };
        let rules = fairness::judge(&judged);
        let row = |contender: &Contender| row(contender, plan, evidence, &rules);
        let rows: Vec<Row> = plan.contenders.iter().map(row).collect();
        let comparisons = comparisons(&rows);
        let warnings = warnings(plan, evidence, &rules);
        Report {
            schema: SCHEMA,
            environment,
            plan: plan.clone(),
            model: Model {
                name: bundle.manifest().name.clone(),
                architecture: format!("{:?}", bundle.config().architecture).to_lowercase(),
                bundle: bundle.directory().display().to_string(),
                manifest: bundle.manifest().clone(),
            },
            rows,
            comparisons,
            rules,
            warnings,
            interrupted: evidence.interrupted,
            results: results.display().to_string(),
        }
    }

    pub(crate) fn json(&self) -> String {
        serde_json::to_string_pretty(self).expect("a report has string keys and no failing serialiser")
    }

    /// 0 when everything asked for was measured, or cannot be had by its nature; 1 when a framework
    /// failed, was struck, or nothing could be measured.
    pub(crate) fn exit_code(&self) -> u8 {
        let bad = |row: &Row| matches!(row.state, State::Failed | State::Struck);
        let good = |row: &Row| matches!(row.state, State::Measured | State::Labelled);
        u8::from(self.rows.iter().any(bad) || !self.rows.iter().any(good))
    }
}

fn row(contender: &Contender, plan: &Plan, evidence: &Evidence, rules: &[RuleState]) -> Row {
    let label = &contender.label;
    let runs: Vec<&Run> = evidence.runs.iter().filter(|run| run.framework == *label).collect();
    let complete: Vec<&Run> = runs.iter().copied().filter(|run| run.is_complete()).collect();
    let breaches = rules.iter().flat_map(|rule| rule.broken_by.iter().map(move |breach| (rule.id, breach)));
    let breaches = breaches.filter(|(_, breach)| breach.framework == *label);
    let broken: Vec<String> =
        breaches.map(|(id, breach)| format!("{id}: {}; {}", breach.finding, breach.remedy)).collect();
    let (state, reasons) = match evidence.absent.get(label) {
        Some(failure) if failure.kind == FailureKind::Unsupported => {
            (State::Unsupported, vec![failure.sentence()])
        }
        Some(failure) => (State::Failed, vec![failure.sentence()]),
        None if complete.is_empty() => (State::NotRun, vec!["interrupted before it was measured".into()]),
        None if broken.is_empty() => (State::Measured, broken),
        None if plan.fair_comparison => (State::Struck, broken),
        None => (State::Labelled, broken),
    };
    let loaded = runs.iter().rev().find_map(|run| run.loaded());
    Row {
        framework: label.clone(),
        state,
        reasons,
        precision: Requested {
            requested: contender.precision,
            observed: loaded.map(|loaded| loaded.in_effect.precision.clone()),
        },
        rounds: complete.len(),
        metrics: Metric::ALL.iter().map(|&metric| figure(metric, plan, &complete)).collect(),
        agreement: complete.iter().filter_map(|run| run.agreement.as_ref()).max_by(worse).cloned(),
        hello: runs.iter().find_map(|run| run.hello()).cloned(),
        in_effect: loaded.map(|loaded| loaded.in_effect.clone()),
    }
}

fn worse(a: &&Agreement, b: &&Agreement) -> std::cmp::Ordering {
    let rank = |agreement: &Agreement| (agreement.broken.is_some(), agreement.max_abs);
    let (a, b) = (rank(a), rank(b));
    a.0.cmp(&b.0).then(a.1.total_cmp(&b.1))
}

fn figure(metric: Metric, plan: &Plan, complete: &[&Run]) -> Figure {
    let prompt_tokens = plan.prompts.iter().map(|prompt| prompt.tokens.len()).sum::<usize>() * plan.batch;
    let work = Work { batch: plan.batch, prompt_tokens };
    let of_round =
        |round: usize| complete.iter().find(|run| run.round == round).and_then(|run| metric.of(run, work));
    let values: Vec<Option<f64>> = (0..plan.rounds).map(of_round).collect();
    let known: Vec<f64> = values.iter().copied().flatten().collect();
    Figure {
        metric,
        unit: metric.unit(),
        median: median(&known),
        min: known.iter().copied().reduce(f64::min),
        max: known.iter().copied().reduce(f64::max),
        values,
    }
}

fn comparisons(rows: &[Row]) -> Vec<Comparison> {
    let compared: Vec<&Row> =
        rows.iter().filter(|row| matches!(row.state, State::Measured | State::Labelled)).collect();
    let series = |metric: Metric| {
        let of_row = |row: &&'_ Row| {
            let figure = row.metrics.iter().find(|figure| figure.metric == metric);
            (row.framework.clone(), figure.map(|figure| figure.values.clone()).unwrap_or_default())
        };
        compared.iter().map(of_row).collect::<Vec<_>>()
    };
    let owned: Vec<_> = Metric::TABLE.into_iter().map(|metric| (metric, series(metric))).collect();
    let borrowed: Vec<_> = owned
        .iter()
        .map(|(metric, rows)| {
            let series = rows.iter().map(|(label, values)| Series { label, values: values.clone() });
            (*metric, series.collect())
        })
        .collect();
    verdicts::compare(&borrowed)
}

fn warnings(plan: &Plan, evidence: &Evidence, rules: &[RuleState]) -> Vec<String> {
    let mut warnings = Vec::new();
    if evidence.interrupted {
        warnings.push("interrupted: the figures are those of the rounds that were done".into());
    }
    if let Some(reason) = &evidence.no_reference {
        warnings.push(format!("no reference for parity: {reason}"));
    }
    for contender in &plan.contenders {
        let runs = evidence.runs.iter().filter(|run| run.framework == contender.label);
        let unsettled = runs.filter(|run| run.warmup().is_some_and(|warmup| !warmup.settled)).count();
        if unsettled > 0 {
            warnings.push(format!(
                "{}: warm-up hit its limit before it had settled in {unsettled} of {} processes; the machine may be busy",
                contender.label, plan.rounds
            ));
        }
    }
    let unchecked: Vec<_> = rules.iter().filter(|rule| !rule.checked).map(|rule| rule.id).collect();
    if !unchecked.is_empty() {
        warnings.push(format!("fairness rules not yet checked: {} (docs/fairness.md)", unchecked.join(", ")));
    }
    warnings
}
