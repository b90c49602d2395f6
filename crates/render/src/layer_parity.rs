//! The table of `photofinish parity` for the terminal and in Markdown, with the lines below it.

use comparison::judge::parity::layers::LayerDifference;
use comparison::judge::parity::{Continuation, Divergence};
use comparison::judge::report::layer_parity::{
    NotRepeated, ParityReason, ParityReport, ParityRow, ParityState, ParityWarning,
};
use comparison::judge::report::variation::{LIMIT, Variation};

use crate::export::{Block, Body, Document};
use crate::table::{Cell, Screen, Table};
use crate::words::{self, Json, Line};

impl Document for ParityReport {
    fn body(&self, _: Option<&Screen>) -> Body {
        let answer =
            vec![Block::Paragraph(heading(self)), Block::Table(grid(self)), Block::Lines(lines(self))];
        Body { answer, rest: vec![Block::Elsewhere(format!("Every figure: {}", self.results))] }
    }

    fn json(&self) -> Json {
        let mut json = Json::new(self);
        json.each("rows", &self.rows, |json, row| json.set("reasons", Json::new(&reasons(row))));
        json.set("warnings", Json::new(&warnings(self)));
        json
    }

    fn figures(&self) -> Table {
        grid(self)
    }
}

fn heading(report: &ParityReport) -> String {
    let plan = &report.plan;
    let dequantised = if plan.precision.is_quantised() { ", dequantised" } else { "" };
    let against = match &report.reference {
        Some(reference) => format!("against {reference} in f32{dequantised}"),
        None => "without a reference".into(),
    };
    format!(
        "{} on {}: {} {against}, {}; * is beyond the tolerance",
        plan.model,
        report.environment.processor(&plan.device),
        plan.precision.name(),
        plan.input_words(),
    )
}

/// A row for each layer, a column for each framework. With three frameworks it fits a terminal of 100 columns.
fn grid(report: &ParityReport) -> Table {
    let titled = |row: &ParityRow| Cell::with_small(&row.framework, "cosine rel. RMSE ");
    let mut table =
        Table::of(["Layer"], [Cell::from("RMS")].into_iter().chain(report.rows.iter().map(titled)));
    // A framework with hidden states has the most layers.
    let widest = report.rows.iter().max_by_key(|row| row.layers.len());
    for layer in widest.iter().flat_map(|row| &row.layers) {
        let cells = report.rows.iter().map(|row| cell(row, &layer.layer));
        table.push([layer.layer.clone(), scale(layer.reference_rms)], cells);
    }
    let mut summary = |title: &str, figure: &dyn Fn(&ParityRow) -> Option<String>| {
        let cells = report.rows.iter().map(|row| words::or_dash(figure(row), |text| text));
        table.push([title, ""], cells);
    };
    if report.plan.work.generate().is_none() {
        summary("Least cosine", &|row| Some(format!("{:.6}", row.vectors?.cosine)));
        summary("Largest difference", &|row| Some(difference(row.vectors?.max_abs)));
        summary("Same bits again", &|row| row.repeatable.map(|same| if same { "yes" } else { "no" }.into()));
        summary("Parity", &|row| Some(state(row.state).into()));
        return table;
    }
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
    table
}

fn cell(row: &ParityRow, layer: &str) -> String {
    match row.layers.iter().find(|found| found.layer == layer) {
        None => words::DASH.into(),
        Some(found) => {
            let mark = if found.beyond { "*" } else { " " };
            let relative =
                if found.relative_rmse == 0.0 { "0".into() } else { format!("{:.1e}", found.relative_rmse) };
            format!("{:.6} {relative:>7}{mark}", found.cosine)
        }
    }
}

fn difference(max_abs: f64) -> String {
    if max_abs == 0.0 { "0".into() } else { format!("{max_abs:.0e}") }
}

/// A number with three significant digits.
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

fn lines(report: &ParityReport) -> Vec<Line> {
    let mut plain = Vec::new();
    if let Some(reason) = &report.no_reference {
        plain.push(format!("no reference: {reason}"));
    }
    if let Some(reason) = &report.reference_without_layers {
        plain.push(format!("no layers are compared, because the reference gives no hidden states: {reason}"));
    }
    plain.extend(report.rows.iter().flat_map(lines_of_row));
    if let Some(reason) = &report.no_text {
        plain.push(format!("no perplexity: {reason}"));
    }
    let warnings = warnings(report);
    plain.into_iter().map(Line::plain).chain(warnings.iter().map(|text| Line::warning(text))).collect()
}

fn lines_of_row(row: &ParityRow) -> Vec<String> {
    let name = &row.framework;
    if matches!(row.state, ParityState::Unsupported | ParityState::Failed | ParityState::NotRun) {
        let reasons = reasons(row).join("; ");
        return vec![format!("{name}: {}: {reasons}", state(row.state)).trim_end_matches(": ").into()];
    }
    let mut lines = Vec::new();
    if let Some(observed) = row.in_effect.as_ref().filter(|o| o.precision != row.precision.name()) {
        lines.push(format!("{name}: runs in {} (asked: {})", observed.precision, row.precision.name()));
    }
    if !row.layers.is_empty() {
        lines.push(format!("{name}: {}", layers(&row.layers, row.relative_rmse_limit)));
    }
    lines.extend(row.no_layers.iter().map(|reason| format!("{name}: no hidden states: {reason}")));
    lines.extend(row.continuation.iter().map(|found| format!("{name}: {}", continuation(found))));
    lines.extend(row.not_repeated.iter().map(|found| format!("{name}: {}", not_repeated(found))));
    lines.extend(row.no_text.iter().map(|reason| format!("{name}: no perplexity: {reason}")));
    lines
}

// The findings of `photofinish parity`, in sentences.

/// The reasons for the state of a row.
fn reasons(row: &ParityRow) -> Vec<String> {
    let told = |reason: &ParityReason| match reason {
        ParityReason::Layers => Some(layers(&row.layers, row.relative_rmse_limit)),
        ParityReason::Continuation => row.continuation.as_ref().map(continuation),
        ParityReason::NotRepeated => row.not_repeated.as_ref().map(not_repeated),
        ParityReason::Vectors(text) | ParityReason::Other(text) => Some(text.clone()),
    };
    row.reasons.iter().filter_map(told).collect()
}

fn warnings(report: &ParityReport) -> Vec<String> {
    let told = |warning: &ParityWarning| match warning {
        ParityWarning::Varies(framework) => {
            let row = report.rows.iter().find(|row| row.framework == *framework)?;
            Some(format!("{framework}: {}", varies(row.variation.as_ref()?)))
        }
        ParityWarning::StayedNoisy(reason) => Some(format!(
            "the machine stayed noisy ({reason}): the variation of speeds is that of the rounds before; wait until it is \
             quiet, or --accept-noise"
        )),
        ParityWarning::Noise(reason) => Some(format!("noise: {reason}")),
        ParityWarning::Told(text) => Some(text.clone()),
    };
    report.warnings.iter().filter_map(told).collect()
}

fn varies(variation: &Variation) -> String {
    let Variation { processes, iterations, cv, .. } = variation;
    let causes = match variation.causes.as_slice() {
        [] => "nothing was observed that explains it; usual causes are frequency scaling, other processes, and memory \
               bandwidth shared with other virtual machines"
            .into(),
        causes => format!("likely causes: {}", causes.join("; ")),
    };
    format!(
        "its throughput varied by {:.0} % (coefficient of variation over {iterations} iterations of {processes} processes, \
         limit {:.0} %); {causes}",
        cv * 100.0,
        LIMIT * 100.0
    )
}

/// The place where two computations diverge, in one sentence.
fn layers(layers: &[LayerDifference], limit: f64) -> String {
    if let Some(first) = layers.iter().find(|layer| layer.beyond) {
        let LayerDifference { layer, relative_rmse, cosine, max_abs, reference_rms, .. } = first;
        return format!(
            "{layer} is the first to diverge beyond {limit:.0e}: relative RMSE {relative_rmse:.1e}, cosine {cosine:.4}, \
             max abs {max_abs:.1e} where the reference's RMS is {reference_rms:.1e}"
        );
    }
    let widest = layers.iter().max_by(|a, b| a.relative_rmse.total_cmp(&b.relative_rmse));
    match widest {
        None => "no layer was compared".into(),
        Some(widest) if widest.relative_rmse == 0.0 => "every layer is the same, bit for bit".into(),
        Some(widest) => format!(
            "every layer agrees within {limit:.0e}; the widest relative RMSE is {:.1e}, at {}",
            widest.relative_rmse,
            match widest.layer.as_str() {
                name @ ("logits" | "embeddings" | "final norm") => format!("the {name}"),
                name => name.to_owned(),
            }
        ),
    }
}

/// How many greedy tokens are the reference's, and where the others begin.
fn continuation(found: &Continuation) -> String {
    let Continuation { tokens, common, divergences } = found;
    if divergences.is_empty() {
        return format!("all {tokens} greedy tokens are the reference's");
    }
    let each = divergences.iter().map(|divergence| {
        let Divergence { prompt, token, margin, tie, .. } = divergence;
        let tie = if *tie { ", a tie" } else { "" };
        format!("{prompt} from token {token} (the reference prefers its own by {margin:.1e}{tie})")
    });
    let each = each.collect::<Vec<_>>().join("; ");
    format!("{common} of {tokens} greedy tokens come before the first difference: {each}")
}

fn not_repeated(NotRepeated { prompt, token }: &NotRepeated) -> String {
    format!("two processes generated different tokens: {prompt} from token {token}")
}

#[cfg(test)]
pub(crate) mod tests {
    use crate::testing::{environment, model};
    use comparison::facts::testing;

    use super::*;
    use crate::export::{Exporter, JsonText};

    fn layer(layer: &str, relative_rmse: f64) -> LayerDifference {
        LayerDifference {
            layer: layer.into(),
            max_abs: relative_rmse,
            rmse: relative_rmse,
            reference_rms: 8.93,
            relative_rmse,
            cosine: 1.0 - relative_rmse,
            beyond: relative_rmse > 1e-4,
        }
    }

    fn row(framework: &str, state: ParityState) -> ParityRow {
        let bare = serde_json::json!({
            "framework": framework,
            "precision": "f32",
            "state": state,
            "reasons": [],
            "relative_rmse_limit": 1e-4,
            "tie": 1e-3,
            "layers": [],
        });
        serde_json::from_value(bare).unwrap()
    }

    fn variation(cv: f64, causes: &[&str]) -> Variation {
        Variation {
            processes: 2,
            iterations: 4,
            throughput: 98.76,
            cv,
            cv_between_processes: 0.01,
            causes: causes.iter().map(|&cause| cause.to_owned()).collect(),
        }
    }

    pub(crate) fn parity() -> ParityReport {
        let right = ParityRow {
            layers: vec![layer("layer 1", 0.0), layer("logits", 1e-6)],
            continuation: Some(Continuation { tokens: 6, common: 6, divergences: Vec::new() }),
            repeatable: Some(true),
            variation: Some(variation(0.016, &[])),
            ..row("right", ParityState::Agrees)
        };
        let wrong = ParityRow { layers: vec![layer("logits", 0.41)], ..row("wrong", ParityState::Diverges) };
        let gone = ParityRow {
            reasons: vec![ParityReason::Other("no GPU".into())],
            ..row("gone", ParityState::Unsupported)
        };
        ParityReport {
            schema: 1,
            environment: environment(),
            plan: testing::plan(&["right", "wrong", "gone"]),
            model: model(),
            reference: Some("right".into()),
            no_reference: None,
            reference_without_layers: None,
            text_reference: None,
            no_text: Some("the model has no tokenizer".into()),
            rows: vec![right, wrong, gone],
            probes: Vec::new(),
            warnings: vec![ParityWarning::Told("the machine was noisy".into())],
            interrupted: false,
            results: "results/x".into(),
        }
    }

    #[test]
    fn json_has_reasons_and_warnings_in_words() {
        let mut report = parity();
        report.rows[1].reasons = vec![ParityReason::Layers, ParityReason::Vectors("too far".into())];
        let json: serde_json::Value = serde_json::from_str(&JsonText.export(&report)).unwrap();
        let reasons = &json["rows"][1]["reasons"];
        assert!(reasons[0].as_str().unwrap().starts_with("logits is the first to diverge"), "{reasons}");
        assert_eq!([&reasons[1], &json["warnings"][0]], ["too far", "the machine was noisy"]);
    }

    #[test]
    fn the_first_layer_beyond_the_limit_is_named_or_else_the_widest() {
        let far = [layer("embeddings", 0.0), layer("layer 1", 0.25), layer("logits", 0.5)];
        assert!(layers(&far, 1e-4).starts_with("layer 1 is the first to diverge beyond 1e-4"));
        let close = [layer("embeddings", 0.0), layer("logits", 1.2e-7)];
        assert!(layers(&close, 1e-4).ends_with("1.2e-7, at the logits"), "{}", layers(&close, 1e-4));
        assert!(layers(&close[..1], 1e-4).contains("bit for bit"));
    }

    #[test]
    fn a_tie_is_told() {
        let tied =
            Divergence { prompt: "p".into(), token: 2, ours: 1, reference: 0, margin: 5e-4, tie: true };
        let told = continuation(&Continuation { tokens: 3, common: 1, divergences: vec![tied] });
        assert_eq!(
            told,
            "1 of 3 greedy tokens come before the first difference: p from token 2 (the reference prefers its own by \
             5.0e-4, a tie)"
        );
    }

    #[test]
    fn what_varies_has_its_causes_or_says_that_none_was_seen() {
        let told = |causes: &[&str]| varies(&variation(0.2, causes));
        assert!(told(&[]).contains("varied by 20 %") && told(&[]).contains("nothing was observed"));
        assert!(
            told(&["the frequency governor is powersave"])
                .ends_with("likely causes: the frequency governor is powersave")
        );
    }
}
