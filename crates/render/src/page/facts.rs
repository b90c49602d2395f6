//! The parts of a page other than figures: prompts, fairness rules, versions, environment.

use judge::report::fairness::{Breach, RuleState};
use judge::report::{Report, Row};
use maud::{Markup, html};
use plan::Prompt;
use serde_json::Value;

use super::html;
use crate::comparison;
use crate::table::{Cell, Column, Table};
use crate::words::{self, DASH};

pub(super) fn prompts(report: &Report) -> Markup {
    let noun = report.plan.work.case_noun();
    let prompts = report.plan.work.prompted().map(|work| &work.prompts);
    let mut texts = Table::new([Column::left("Prompt"), Column::right("Tokens"), Column::left("Text")]);
    for Prompt { name, text, chat, tokens, .. } in prompts.into_iter().flatten() {
        let text = chat.as_deref().or(text.as_deref()).unwrap_or_default();
        let short: String = text.chars().take(300).collect();
        let more = if short.len() < text.len() { "…" } else { "" };
        texts.add([name.clone(), tokens.len().to_string(), format!("{short}{more}")]);
    }
    html! {
        @if let Some(table) = comparison::by_prompt(report) {
            (html::details(&format!("Figures of each {noun}"), &html! { (table) }))
        }
        @if let Some(table) = comparison::from_text(report) {
            (html::details("From text to vector", &html! { (table) }))
        }
        @if prompts.is_some_and(|prompts| !prompts.is_empty()) {
            (html::details("The prompts", &html! { (texts.captioned("What was asked")) }))
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
            (true, None, false) => ("• noted", findings(notes)),
            (true, None, true) => ("✓ holds", String::new()),
        };
        table.add([format!("{id} {sentence}"), state.to_owned(), why]);
    }
    let lane = if report.plan.fair_comparison {
        "Matched: a framework that breaks a rule is struck"
    } else {
        "Best effort: broken rules are only labelled"
    };
    let summary = rules_summary(&report.rules);
    html! { @if !table.rows.is_empty() { (html::details(&summary, &html! { (table.captioned(lane)) })) } }
}

/// "14 of 16 rules hold; broken: R5; not verified: R6".
fn rules_summary(rules: &[RuleState]) -> String {
    let is_broken = |rule: &&RuleState| !rule.broken_by.is_empty();
    let is_open = |rule: &&RuleState| rule.broken_by.is_empty() && rule.unverified.is_some();
    let ids = |rules: Vec<&RuleState>| rules.iter().map(|rule| rule.id.clone()).collect::<Vec<_>>();
    let (broken, open) =
        (ids(rules.iter().filter(is_broken).collect()), ids(rules.iter().filter(is_open).collect()));
    let hold = rules.len() - broken.len() - open.len();
    let mut summary = format!("{hold} of {} rules hold", rules.len());
    for (words, ids) in [("broken", broken), ("not verified", open)] {
        if !ids.is_empty() {
            summary += &format!("; {words}: {}", ids.join(", "));
        }
    }
    summary
}

/// The versions and kernels of each contender; the page shows versions only here.
pub(super) fn versions(report: &Report) -> Markup {
    let titles = ["Contender", "Library", "Binding", "Built by", "Kernels"];
    let mut table = Table::new(titles.map(Column::left));
    for row in &report.rows {
        let Some(hello) = &row.hello else { continue };
        let build = &hello.build;
        let built = [build.rustc.as_deref(), build.toolchain.as_deref(), build.rustflags.as_deref()];
        let built: Vec<&str> = built.into_iter().flatten().collect();
        let built = built.join(" ").trim().to_owned();
        let kernels = row.in_effect.as_ref().map(|in_effect| in_effect.kernels.join("; "));
        let [library, binding] = [&hello.library, &hello.binding].map(ToString::to_string);
        let or_dash = |text: String| if text.is_empty() { DASH.to_owned() } else { text };
        table.add([
            words::title(row),
            library,
            binding,
            or_dash(built),
            or_dash(kernels.unwrap_or_default()),
        ]);
    }
    html! { @if !table.rows.is_empty() { (table.captioned("Versions, as the workers report them")) } }
}

/// The sentences without a place of their own on the page: versions and memory by part are in tables.
pub(super) fn further_findings(report: &Report) -> Vec<String> {
    let details = crate::words::summary(report).details.into_iter();
    details.filter(|line| !line.is_tabled).map(|line| line.text).collect()
}

/// Places of the rows that are struck.
pub(super) fn struck(rows: &[Row]) -> Vec<usize> {
    let places = rows.iter().enumerate().filter(|(_, row)| row.state == judge::report::State::Struck);
    places.map(|(place, _)| place).collect()
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
    table.add(["parameters", &words::or_dash(report.model.parameters, |count| count.to_string())]);
    table.add(["device", &plan.device]);
    table.add(["threads", &plan.threads.to_string()]);
    table.add(["precision", plan.precision.name()]);
    table.add(["batch", &plan.work.batch().to_string()]);
    for (name, value) in plan.work.settings() {
        table.add([name, value.as_str()]);
    }
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
