//! What `driver parity` found, as one value; table, Markdown and JSON are renderings of it.
//! `docs/results.md` describes the JSON.

mod table;

use bundle::{Bundle, Precision};
use protocol::InEffect;
use serde::Serialize;

use super::Model;
use crate::environment::Environment;
use crate::evidence::{Evidence, Probe};
use crate::interrupt;
use crate::judge::continuation::Continuation;
use crate::judge::layers::{self, LayerDifference};
use crate::judge::parity::Tolerance;
use crate::judge::text::TextScore;
use crate::judge::variation::Variation;
use crate::parity::{Findings, Found, Repeated};
use crate::plan::{Contender, Plan};
use crate::record::{FailureKind, Run};

pub(crate) use table::{markdown, table};

/// Version of the JSON.
const SCHEMA: u32 = 1;

#[derive(Debug, Serialize)]
pub(crate) struct ParityReport {
    pub(crate) schema: u32,
    pub(crate) environment: Environment,
    pub(crate) plan: Plan,
    pub(crate) model: Model,
    /// Whose f32 results the others are held against.
    pub(crate) reference: Option<String>,
    pub(crate) no_reference: Option<String>,
    /// Why the reference gives logits alone.
    pub(crate) reference_without_layers: Option<String>,
    /// Whose f32 logits the text is held against, and why it could not be.
    pub(crate) text_reference: Option<String>,
    pub(crate) no_text: Option<String>,
    pub(crate) rows: Vec<ParityRow>,
    /// Of the machine, beside every timed process.
    pub(crate) probes: Vec<Probe>,
    pub(crate) warnings: Vec<String>,
    pub(crate) interrupted: bool,
    pub(crate) results: String,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum ParityState {
    /// Everything that could be compared is within its tolerance.
    Agrees,
    Diverges,
    /// It ran, and nobody was there to hold it against.
    NotCompared,
    Unsupported,
    Failed,
    NotRun,
}

/// Of one framework.
#[derive(Debug, Serialize)]
pub(crate) struct ParityRow {
    pub(crate) framework: String,
    pub(crate) precision: Precision,
    pub(crate) state: ParityState,
    /// Why it is not in agreement.
    pub(crate) reasons: Vec<String>,
    /// As observed after a load.
    pub(crate) in_effect: Option<InEffect>,
    /// Largest relative RMSE of a layer, and by how many logits the reference's preference is a tie.
    pub(crate) relative_rmse_limit: f64,
    pub(crate) tie: f32,
    pub(crate) layers: Vec<LayerDifference>,
    pub(crate) no_layers: Option<String>,
    /// The first layer beyond the limit.
    pub(crate) first_beyond: Option<String>,
    pub(crate) continuation: Option<Continuation>,
    /// Whether two processes generated the same tokens.
    pub(crate) repeatable: Option<bool>,
    pub(crate) variation: Option<Variation>,
    pub(crate) text: Option<TextScore>,
    pub(crate) no_text: Option<String>,
}

impl ParityReport {
    pub(crate) fn new(
        plan: &Plan,
        bundle: &Bundle,
        findings: Findings,
        evidence: &Evidence,
        environment: Environment,
        results: &std::path::Path,
    ) -> ParityReport {
        let governor = environment.governor.as_deref();
        let row = |(contender, found): (&Contender, Found)| {
            let runs: Vec<&Run> = evidence
                .runs
                .iter()
                .filter(|run| run.framework == contender.label && run.is_complete())
                .collect();
            let variation = Variation::of(&runs, plan.batch, &evidence.probes, governor);
            ParityRow::new(contender, found, variation)
        };
        let rows: Vec<ParityRow> = plan.contenders.iter().zip(findings.contenders).map(row).collect();
        let warning = |row: &ParityRow| {
            let warning = row.variation.as_ref()?.warning()?;
            Some(format!("{}: {warning}", row.framework))
        };
        ParityReport {
            schema: SCHEMA,
            warnings: rows.iter().filter_map(warning).collect(),
            environment,
            plan: plan.clone(),
            model: Model {
                name: bundle.manifest().name.clone(),
                architecture: format!("{:?}", bundle.config().architecture).to_lowercase(),
                bundle: bundle.directory().display().to_string(),
                manifest: bundle.manifest().clone(),
            },
            reference: findings.reference.map(|reference| reference.framework),
            no_reference: evidence.no_reference.clone(),
            reference_without_layers: findings.reference_without_layers,
            text_reference: findings.text_reference,
            no_text: findings.no_text,
            rows,
            probes: evidence.probes.clone(),
            interrupted: interrupt::requested(),
            results: results.display().to_string(),
        }
    }

    pub(crate) fn json(&self) -> String {
        serde_json::to_string_pretty(self).expect("a report has string keys and no failing serialiser")
    }

    /// 1 when a framework failed or diverges, or there is nothing to tell.
    pub(crate) fn exit_code(&self) -> u8 {
        let bad = |row: &ParityRow| matches!(row.state, ParityState::Failed | ParityState::Diverges);
        let told = self.rows.iter().any(|row| row.state == ParityState::Agrees);
        u8::from(self.rows.iter().any(bad) || !told)
    }
}

impl ParityRow {
    fn new(contender: &Contender, found: Found, variation: Option<Variation>) -> ParityRow {
        let tolerance = Tolerance::of(contender.precision);
        let limit = layers::limit(contender.precision);
        let first_beyond = found.layers.iter().find(|layer| layer.beyond).map(|layer| layer.layer.clone());
        let mut reasons = Vec::new();
        if first_beyond.is_some() {
            reasons.push(layers::sentence(&found.layers, limit));
        }
        if let Some(continuation) = found.continuation.as_ref().filter(|c| c.diverges(tolerance.top1)) {
            reasons.push(continuation.sentence());
        }
        if let Some(Repeated::Differs { prompt, token }) = &found.repeated {
            reasons.push(format!("two processes generated different tokens: {prompt} from token {token}"));
        }
        let state = match &found.failure {
            Some(failure) => {
                reasons = vec![failure.sentence()];
                match failure.kind {
                    FailureKind::Unsupported => ParityState::Unsupported,
                    FailureKind::Failed | FailureKind::OutOfMemory => ParityState::Failed,
                    FailureKind::Interrupted => ParityState::NotRun,
                }
            }
            None if !reasons.is_empty() => ParityState::Diverges,
            None if found.continuation.is_some() => ParityState::Agrees,
            None if found.repeated.is_some() => ParityState::NotCompared,
            None => ParityState::NotRun,
        };
        let (text, no_text) = match found.text {
            Some(Ok(score)) => (Some(score), None),
            Some(Err(reason)) => (None, Some(reason)),
            None => (None, None),
        };
        ParityRow {
            framework: contender.label.clone(),
            precision: contender.precision,
            state,
            reasons,
            in_effect: found.in_effect,
            relative_rmse_limit: limit,
            tie: tolerance.tie,
            layers: found.layers,
            no_layers: found.no_layers,
            first_beyond,
            continuation: found.continuation,
            repeatable: found.repeated.map(|repeated| matches!(repeated, Repeated::Same)),
            variation,
            text,
            no_text,
        }
    }
}
