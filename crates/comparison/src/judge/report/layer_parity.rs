//! The findings of `photofinish parity` as one value. The table, Markdown and JSON are made from it, JSON
//! with its reasons and warnings in words. `docs/reference/files.md` describes the JSON.

use bundle::Precision;
use protocol::InEffect;
use serde::{Deserialize, Serialize};

use super::{Facts, Prepared};
use crate::facts::agreement;
use crate::facts::agreement::TextScore;
use crate::facts::agreement::{Tolerance, VectorAgreement};
use crate::facts::evidence::{End, Evidence, Probe};
use crate::facts::run::Environment;
use crate::facts::run::{FailureKind, Run};
use crate::judge::parity::Continuation;
use crate::judge::parity::layers::{self, LayerDifference};
use crate::judge::parity::{ContenderParity, Findings, Repeated};
use crate::judge::report::variation::Variation;
use crate::plan::{Contender, Plan};

/// Version of the JSON.
pub const SCHEMA: u32 = 2;

/// Reads `parity.json` back. The error is one sentence.
pub fn read(text: &str) -> Result<ParityReport, String> {
    agreement::document(text, SCHEMA, "what `photofinish parity` writes")
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct ParityReport {
    pub schema: u32,
    pub environment: Environment,
    pub plan: Plan,
    pub model: Prepared,
    /// The framework with the f32 results that the others are compared with.
    pub reference: Option<String>,
    pub no_reference: Option<String>,
    /// The reason why the reference gives only logits.
    pub reference_without_layers: Option<String>,
    /// The framework with the f32 logits that the text is compared with, and why there is none.
    pub text_reference: Option<String>,
    pub no_text: Option<String>,
    pub rows: Vec<ParityRow>,
    /// The machine's own speed at every timed process.
    pub probes: Vec<Probe>,
    pub warnings: Vec<ParityWarning>,
    pub interrupted: bool,
    pub results: String,
}

/// Whether a framework agrees with the reference.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ParityState {
    /// Everything that could be compared is within its tolerance.
    Agrees,
    Diverges,
    /// It ran, but there was no other to compare it with.
    NotCompared,
    Unsupported,
    Failed,
    NotRun,
}

/// Why a row is in its state. Crate `render` writes it in words, from the findings of the row.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ParityReason {
    Layers,
    /// More tokens than the tolerance allows differ from the reference's.
    Continuation,
    /// Vectors or outputs differ from the reference's, in this way.
    Vectors(String),
    /// Two processes generated different tokens.
    NotRepeated,
    /// In the words of a worker or the driver, or of a report that was read.
    #[serde(untagged)]
    Other(String),
}

/// Information needed before trusting the figures.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ParityWarning {
    /// The speed of this framework varied by more than the limit.
    Varies(String),
    StayedNoisy(String),
    /// A complaint of the guard.
    Noise(String),
    /// In the words of a report that was read.
    #[serde(untagged)]
    Told(String),
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct ParityRow {
    pub framework: String,
    pub precision: Precision,
    pub state: ParityState,
    pub reasons: Vec<ParityReason>,
    /// The observed settings, after a load.
    pub in_effect: Option<InEffect>,
    /// Largest relative RMSE of a layer, and by how many logits the reference's preference is a tie.
    pub relative_rmse_limit: f64,
    pub tie: f32,
    pub layers: Vec<LayerDifference>,
    pub no_layers: Option<String>,
    pub first_beyond: Option<String>,
    pub continuation: Option<Continuation>,
    /// How far vectors are from the reference's.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub vectors: Option<VectorAgreement>,
    /// Whether two processes generated the same tokens, or vectors equal to the last bit.
    pub repeatable: Option<bool>,
    /// Where two processes generated different tokens.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub not_repeated: Option<NotRepeated>,
    pub variation: Option<Variation>,
    pub text: Option<TextScore>,
    pub no_text: Option<String>,
}

/// The first place at which two processes generated different tokens.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct NotRepeated {
    pub prompt: String,
    /// Number of the new token, as in [`Repeated::Differs`].
    pub token: usize,
}

impl ParityReport {
    /// Judges `findings` with the timed processes of `facts`.
    pub fn new(facts: &Facts, findings: Findings) -> ParityReport {
        let Facts { environment, plan, model, evidence, results } = facts;
        let governor = environment.governor.as_deref();
        let row = |(contender, found): (&Contender, ContenderParity)| {
            let runs: Vec<&Run> = evidence.complete(&contender.label).collect();
            let variation = Variation::new(&runs, plan.work.batch(), &evidence.probes, governor);
            ParityRow::new(contender, found, variation)
        };
        let rows: Vec<ParityRow> = plan.contenders.iter().zip(findings.contenders).map(row).collect();
        let is_wide = |row: &&ParityRow| row.variation.as_ref().is_some_and(Variation::is_wide);
        let varying = rows.iter().filter(is_wide);
        let warnings = varying.map(|row| ParityWarning::Varies(row.framework.clone()));
        ParityReport {
            schema: SCHEMA,
            warnings: warnings.chain(noise(evidence)).collect(),
            environment: environment.clone(),
            plan: plan.clone(),
            model: model.clone(),
            reference: findings.reference.map(|reference| reference.framework),
            no_reference: evidence.no_reference.clone(),
            reference_without_layers: findings.reference_without_layers,
            text_reference: findings.text_reference,
            no_text: findings.no_text,
            rows,
            probes: evidence.probes.clone(),
            interrupted: matches!(evidence.end, End::Interrupted | End::Killed),
            results: results.clone(),
        }
    }

    /// 1 when a framework failed or diverges, or none agrees.
    pub fn exit_code(&self) -> u8 {
        let bad = |row: &ParityRow| matches!(row.state, ParityState::Failed | ParityState::Diverges);
        let told = self.rows.iter().any(|row| row.state == ParityState::Agrees);
        u8::from(self.rows.iter().any(bad) || !told)
    }
}

/// The guard's complaints during the timed processes, which show how much speeds vary.
fn noise(evidence: &Evidence) -> Vec<ParityWarning> {
    match &evidence.end {
        End::Noisy { reason } => vec![ParityWarning::StayedNoisy(reason.clone())],
        _ => evidence.complaints.iter().cloned().map(ParityWarning::Noise).collect(),
    }
}

impl ParityRow {
    fn new(contender: &Contender, found: ContenderParity, variation: Option<Variation>) -> ParityRow {
        let tolerance = Tolerance::for_contender(contender);
        let limit = layers::limit(contender);
        let first_beyond = found.layers.iter().find(|layer| layer.beyond).map(|layer| layer.layer.clone());
        let mut reasons = Vec::new();
        if first_beyond.is_some() {
            reasons.push(ParityReason::Layers);
        }
        if found.continuation.as_ref().is_some_and(|found| found.diverges(tolerance.top1)) {
            reasons.push(ParityReason::Continuation);
        }
        let objection = found.vectors.and_then(|vectors| vectors.objection(&tolerance));
        reasons.extend(objection.map(ParityReason::Vectors));
        let mut not_repeated = None;
        // Other bits are no disagreement: threads may add up in another order.
        if let Some(Repeated::Differs { prompt, token }) = &found.repeated {
            not_repeated = Some(NotRepeated { prompt: prompt.clone(), token: *token });
        }
        reasons.extend(not_repeated.as_ref().map(|_| ParityReason::NotRepeated));
        let state = match &found.failure {
            Some(failure) => {
                reasons = vec![ParityReason::Other(failure.sentence())];
                match failure.kind {
                    FailureKind::Unsupported => ParityState::Unsupported,
                    FailureKind::Failed | FailureKind::Killed | FailureKind::OutOfMemory => {
                        ParityState::Failed
                    }
                    FailureKind::Interrupted => ParityState::NotRun,
                }
            }
            None if !reasons.is_empty() => ParityState::Diverges,
            None if found.continuation.is_some() || found.vectors.is_some() => ParityState::Agrees,
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
            vectors: found.vectors,
            not_repeated,
            repeatable: found.repeated.map(|repeated| matches!(repeated, Repeated::Same)),
            variation,
            text,
            no_text,
        }
    }
}
