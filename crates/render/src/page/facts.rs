//! The parts of a page beside figures: prompts, fairness rules, environment.

use judge::fairness::{Breach, RuleState};
use judge::report::Report;
use maud::{Markup, html};
use plan::Prompt;
use serde_json::Value;

use super::html;
use crate::comparison;
use crate::table::{Cell, Column, Table};

pub(super) fn prompts(report: &Report) -> Markup {
    let plan = &report.plan;
    let mut texts = Table::new([Column::left("Prompt"), Column::right("Tokens"), Column::left("Text")]);
    for Prompt { name, text, tokens } in &plan.prompts {
        let text = text.as_deref().unwrap_or_default();
        let short: String = text.chars().take(300).collect();
        let more = if short.len() < text.len() { "…" } else { "" };
        texts.add([name.clone(), tokens.len().to_string(), format!("{short}{more}")]);
    }
    html! {
        @if !plan.prompts.is_empty() {
            @if let Some(table) = comparison::by_prompt(report) { (table) }
            (html::details("The prompts", &html! { (texts.captioned("What was asked")) }))
            (html::paragraph(&plan.analysis))
        }
    }
}

pub(super) fn rules(report: &Report) -> Markup {
    let findings = |breaches: &[Breach]| {
        let each = breaches.iter().map(|breach| format!("{}: {}", breach.framework, breach.finding));
        each.collect::<Vec<_>>().join("; ")
    };
    let mut table = Table::new(["Rule", "State", "Why"].map(Column::left));
    for rule in &report.rules {
        let RuleState { id, sentence, broken_by, notes, unverified } = rule;
        let (state, why) = match (broken_by.is_empty(), unverified, notes.is_empty()) {
            (false, _, _) => ("✗ broken", findings(broken_by)),
            (true, Some(reason), _) => ("? not verified", reason.clone()),
            (true, None, false) => ("✓ holds, noted", findings(notes)),
            (true, None, true) => ("✓ holds", String::new()),
        };
        table.add([format!("{id} {sentence}"), state.to_owned(), why]);
    }
    let lane = if report.plan.fair_comparison {
        "Matched: who breaks a rule is struck"
    } else {
        "Best effort: broken rules are only labelled"
    };
    html! { @if !table.rows.is_empty() { (table.captioned(lane)) } }
}

pub(super) fn environment(report: &Report) -> Table {
    let mut table = Table::new(["What", "Value"].map(Column::left));
    let known = serde_json::to_value(&report.environment).expect("an environment has string keys");
    for (name, value) in known.as_object().into_iter().flatten() {
        match (name.as_str(), value.as_f64()) {
            // These are shown elsewhere on the page.
            ("command" | "started", _) => {}
            ("memory_bytes", Some(bytes)) => {
                table.add([Cell::from("memory"), format!("{:.1} GB", bytes / 1e9).into()]);
            }
            _ => table.add([name.replace('_', " "), plain(value)]),
        }
    }
    let plan = &report.plan;
    table.add(["device", &plan.device]);
    table.add(["threads", &plan.threads.to_string()]);
    table.add(["precision", plan.precision.name()]);
    table.add(["batch", &plan.batch.to_string()]);
    table.add(["new tokens", &plan.new_tokens.to_string()]);
    table.captioned("The machine, the checkout and the settings")
}

fn plain(value: &Value) -> String {
    match value {
        Value::Null => "not available".to_owned(),
        Value::String(text) => text.clone(),
        Value::Array(items) if items.is_empty() => "none".to_owned(),
        Value::Bool(true) => "yes".to_owned(),
        Value::Bool(false) => "no".to_owned(),
        other => other.to_string(),
    }
}
