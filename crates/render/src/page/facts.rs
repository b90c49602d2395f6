//! What a page tells beside figures: prompts, fairness rules, environment, raw data.

use charts::number;
use serde_json::Value;

use super::markup::{self, Cell, Table};
use super::view::{self, Rule, Run};

pub(super) fn prompts(run: &Run) -> String {
    let shown = |prompt: &view::PlannedPrompt| {
        let text = prompt.text.as_deref().unwrap_or_default();
        let short: String = text.chars().take(300).collect();
        let more = if short.len() < text.len() { "…" } else { "" };
        vec![
            Cell::from(prompt.name.clone()),
            prompt.tokens.len().to_string().into(),
            format!("{short}{more}").into(),
        ]
    };
    let texts = Table {
        caption: "What was asked".into(),
        columns: ["Prompt", "Tokens", "Text"].map(str::to_owned).to_vec(),
        rows: run.plan.prompts.iter().map(shown).collect(),
        figures: false,
    };
    let mut table = Table {
        caption: "Median over processes, of each prompt's samples alone".into(),
        columns: ["Prompt", "Framework", "First token (ms)", "Latency (ms)", "Throughput (tok/s)"]
            .map(str::to_owned)
            .to_vec(),
        rows: Vec::new(),
        figures: true,
    };
    for prompt in run.prompts.iter().filter(|_| run.prompts.len() > 1) {
        for row in &prompt.rows {
            let of = |metric: &str| {
                let figure = row.metrics.iter().find(|figure| figure.metric == metric);
                Cell::from(figure.and_then(|figure| figure.median).map_or("–".into(), number))
            };
            let name = format!("{} ({} tokens)", prompt.name, prompt.tokens);
            let place = [name, row.framework.clone()].map(Cell::from);
            table
                .rows
                .push(place.into_iter().chain(["first_token", "latency", "throughput"].map(of)).collect());
        }
    }
    let figures = if table.rows.is_empty() { String::new() } else { table.html() };
    let analysis =
        if run.plan.analysis.is_empty() { String::new() } else { markup::paragraph(&run.plan.analysis) };
    if run.plan.prompts.is_empty() {
        String::new()
    } else {
        figures + &markup::details("The prompts", &texts.html()) + &analysis
    }
}

pub(super) fn rules(run: &Run) -> String {
    let row = |rule: &Rule| {
        let findings = |breaches: &[view::Breach]| {
            breaches
                .iter()
                .map(|breach| format!("{}: {}", breach.framework, breach.finding))
                .collect::<Vec<_>>()
                .join("; ")
        };
        let (state, why) = match (rule.broken_by.is_empty(), &rule.unverified, rule.notes.is_empty()) {
            (false, _, _) => ("✗ broken", findings(&rule.broken_by)),
            (true, Some(reason), _) => ("? not verified", reason.clone()),
            (true, None, false) => ("✓ holds, noted", findings(&rule.notes)),
            (true, None, true) => ("✓ holds", String::new()),
        };
        vec![format!("{} {}", rule.id, rule.sentence).into(), state.into(), why.into()]
    };
    if run.rules.is_empty() {
        return String::new();
    }
    let lane = if run.plan.fair_comparison {
        "Matched: who breaks a rule is struck"
    } else {
        "Best effort: broken rules are only labelled"
    };
    let columns = ["Rule", "State", "Why"].map(str::to_owned).to_vec();
    Table { caption: lane.into(), columns, rows: run.rules.iter().map(row).collect(), figures: false }.html()
}

pub(super) fn environment(run: &Run) -> String {
    let plain = |value: &Value| match value {
        Value::Null => "not available".to_owned(),
        Value::String(text) => text.clone(),
        Value::Array(items) if items.is_empty() => "none".to_owned(),
        Value::Bool(known) => {
            if *known {
                "yes".into()
            } else {
                "no".into()
            }
        }
        other => other.to_string(),
    };
    let known = run.environment.rest.iter();
    let rows = known.map(|(name, value)| match (name.as_str(), value.as_f64()) {
        ("memory_bytes", Some(bytes)) => vec!["memory".into(), format!("{:.1} GB", bytes / 1e9).into()],
        _ => vec![Cell::from(name.replace('_', " ")), plain(value).into()],
    });
    let settings = [
        ("device", run.plan.device.clone()),
        ("threads", run.plan.threads.to_string()),
        ("precision", run.plan.precision.clone()),
        ("batch", run.plan.batch.to_string()),
        ("new tokens", run.plan.new_tokens.to_string()),
    ];
    let settings = settings.into_iter().map(|(name, value)| vec![Cell::from(name), value.into()]);
    let rows: Vec<Vec<Cell>> = rows.chain(settings).collect();
    let columns = ["What", "Value"].map(str::to_owned).to_vec();
    Table { caption: "The machine, the checkout and the settings".into(), columns, rows, figures: false }
        .html()
}

/// Larger reports are linked to alone.
const EMBEDDED: usize = 2_000_000;

pub(super) fn data(report: &str) -> String {
    let compact =
        serde_json::from_str::<Value>(report).map_or_else(|_| report.to_owned(), |value| value.to_string());
    let own = match compact.len() <= EMBEDDED {
        true => {
            format!("<p>{}</p>\n", markup::download("report.json", "application/json", compact.as_bytes()))
        }
        false => String::new(),
    };
    own + "<p>Beside this page, if it was left where it was made: <a href=\"report.json\">report.json</a>, \
        <a href=\"report.csv\">report.csv</a>, <a href=\"report.md\">report.md</a>, \
        <a href=\"comparison.png\">comparison.png</a>, <a href=\"comparison.svg\">comparison.svg</a></p>\n"
}
