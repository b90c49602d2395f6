//! What `driver parity` found, as one value; table, Markdown and JSON are renderings of it.
//! `docs/results.md` describes the JSON.

use bundle::{Bundle, Precision};
use comfy_table::presets::{ASCII_MARKDOWN, UTF8_FULL_CONDENSED};
use comfy_table::{CellAlignment, Table, TableStyle};
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

/// For a terminal.
pub(crate) fn table(report: &ParityReport) -> String {
    let mut text = format!("{}\n\n{}\n\n", heading(report), grid(report, UTF8_FULL_CONDENSED));
    for line in lines(report) {
        text += &format!("{line}\n");
    }
    text + &format!("\nEvery figure: {}\n", report.results)
}

/// For pull requests.
pub(crate) fn markdown(report: &ParityReport) -> String {
    let mut text = format!("{}\n\n{}\n\n", heading(report), grid(report, ASCII_MARKDOWN));
    for line in lines(report) {
        text += &format!("- {line}\n");
    }
    text
}

fn heading(report: &ParityReport) -> String {
    let plan = &report.plan;
    let dequantised = if plan.precision.is_quantised() { ", dequantised" } else { "" };
    let against = match &report.reference {
        Some(reference) => format!("against {reference} in f32{dequantised}"),
        None => "without a reference".into(),
    };
    format!(
        "{} on {}: {} {against}, {} prompts and {} new tokens each; * is beyond the tolerance",
        plan.model,
        report.environment.processor(&plan.device),
        plan.precision.name(),
        plan.prompts.len(),
        plan.new_tokens,
    )
}

/// A row for each layer, a column for each framework: with three of them it fits a terminal of 100 columns.
fn grid(report: &ParityReport, style: TableStyle) -> String {
    let mut table = Table::new();
    table.load_style(style);
    let columns = report.rows.iter().map(|row| format!("{}\ncosine rel. RMSE ", row.framework));
    table.set_header(["Layer".to_owned(), "RMS".to_owned()].into_iter().chain(columns));
    // Whoever gives hidden states gives the most layers.
    let widest = report.rows.iter().max_by_key(|row| row.layers.len());
    for layer in widest.iter().flat_map(|row| &row.layers) {
        let cells = report.rows.iter().map(|row| cell(row, &layer.layer));
        let start = [layer.layer.clone(), scale(layer.reference_rms)];
        table.add_row(start.into_iter().chain(cells));
    }
    let mut summary = |title: &str, figure: &dyn Fn(&ParityRow) -> Option<String>| {
        let cells = report.rows.iter().map(|row| figure(row).unwrap_or_else(|| "–".into()));
        table.add_row([title.to_owned(), String::new()].into_iter().chain(cells));
    };
    summary("Greedy tokens", &|row| {
        row.continuation.as_ref().map(|found| format!("{} of {}", found.common, found.tokens))
    });
    summary("Repeatable", &|row| row.repeatable.map(|same| if same { "yes" } else { "NO" }.into()));
    summary("Tokens/s", &|row| row.variation.as_ref().map(|found| format!("{:.1}", found.throughput)));
    summary("CV", &|row| row.variation.as_ref().map(|found| format!("{:.1} %", found.cv * 100.0)));
    summary("Perplexity", &|row| row.text.map(|score| format!("{:.4}", score.perplexity)));
    summary("Text, KL", &|row| row.text?.mean_kl.map(|kl| format!("{kl:.1e}")));
    summary("Text, top-1", &|row| row.text?.top1.map(|top1| format!("{:.1} %", top1 * 100.0)));
    summary("Parity", &|row| Some(state(row.state).into()));
    for column in table.column_iter_mut().skip(1) {
        column.set_cell_alignment(CellAlignment::Right);
    }
    table.to_string()
}

fn cell(row: &ParityRow, layer: &str) -> String {
    match row.layers.iter().find(|found| found.layer == layer) {
        None => "–".into(),
        Some(found) => {
            let mark = if found.beyond { "*" } else { " " };
            let relative =
                if found.relative_rmse == 0.0 { "0".into() } else { format!("{:.1e}", found.relative_rmse) };
            format!("{:.6} {relative:>7}{mark}", found.cosine)
        }
    }
}

/// Three significant digits.
fn scale(value: f64) -> String {
    match value.abs() {
        v if v >= 1e4 || (v > 0.0 && v < 1e-2) => format!("{value:.1e}"),
        v if v >= 100.0 => format!("{value:.0}"),
        v if v >= 10.0 => format!("{value:.1}"),
        v if v >= 1.0 => format!("{value:.2}"),
        _ => format!("{value:.3}"),
    }
}

fn state(state: ParityState) -> &'static str {
    match state {
        ParityState::Agrees => "agrees",
        ParityState::Diverges => "DIVERGES",
        ParityState::NotCompared => "not compared",
        ParityState::Unsupported => "unsupported",
        ParityState::Failed => "failed",
        ParityState::NotRun => "not run",
    }
}

/// What stands below the table.
fn lines(report: &ParityReport) -> Vec<String> {
    let mut lines = Vec::new();
    if let Some(reason) = &report.no_reference {
        lines.push(format!("no reference: {reason}"));
    }
    if let Some(reason) = &report.reference_without_layers {
        lines.push(format!("only logits are compared, for the reference gives no hidden states: {reason}"));
    }
    for row in &report.rows {
        let name = &row.framework;
        if matches!(row.state, ParityState::Unsupported | ParityState::Failed | ParityState::NotRun) {
            let reasons = row.reasons.join("; ");
            lines.push(format!("{name}: {}: {reasons}", state(row.state)).trim_end_matches(": ").into());
            continue;
        }
        if let Some(observed) = row.in_effect.as_ref().filter(|o| o.precision != row.precision.name()) {
            lines.push(format!("{name}: runs in {} (asked: {})", observed.precision, row.precision.name()));
        }
        if !row.layers.is_empty() {
            lines.push(format!("{name}: {}", layers::sentence(&row.layers, row.relative_rmse_limit)));
        }
        if let Some(reason) = &row.no_layers {
            lines.push(format!("{name}: no hidden states: {reason}"));
        }
        if let Some(continuation) = &row.continuation {
            lines.push(format!("{name}: {}", continuation.sentence()));
        }
        lines.extend(
            row.reasons
                .iter()
                .filter(|reason| reason.starts_with("two processes"))
                .map(|reason| format!("{name}: {reason}")),
        );
        if let Some(reason) = &row.no_text {
            lines.push(format!("{name}: no perplexity: {reason}"));
        }
    }
    if let Some(reason) = &report.no_text {
        lines.push(format!("no perplexity: {reason}"));
    }
    lines.extend(report.warnings.iter().map(|warning| format!("warning: {warning}")));
    lines
}
