//! The figures of the site for programs, and how to cite it.

use judge::records;
use judge::records::collection::Published;
use serde_json::{Value, json};

use super::Page;
use crate::words;

pub(super) const LICENCE: &str = "CC-BY-4.0";
pub(super) const LICENCE_TERMS: &str = "https://creativecommons.org/licenses/by/4.0/";
pub(super) const AUTHORS: &str = "the contributors of Photofinish";

/// The figures of one page.
pub(super) fn page(page: &Page<'_>) -> Vec<u8> {
    text(
        &json!({"license": LICENCE, "license_terms": LICENCE_TERMS, "attribution": AUTHORS, "page": figures(page)}),
    )
}

/// The figures of every page.
pub(super) fn all(pages: &[Page<'_>]) -> Vec<u8> {
    let pages: Vec<Value> = pages.iter().map(figures).collect();
    text(&json!({"license": LICENCE, "license_terms": LICENCE_TERMS, "attribution": AUTHORS, "pages": pages}))
}

fn text(value: &Value) -> Vec<u8> {
    format!("{value:#}\n").into_bytes()
}

/// The records of the two contenders, as the history has them.
fn figures(page: &Page<'_>) -> Value {
    let result = |result: &super::Result<'_>| {
        let published = result.published;
        let study = Some(result.report.plan.request.study.name.as_str()).filter(|name| !name.is_empty());
        json!({
            "run": published.name,
            "tier": published.tier.name(),
            "rules": if published.retired.is_some() { "retired" } else { "current" },
            "records": records::records(&result.report, study),
        })
    };
    let results: Vec<Value> = page.results.iter().map(result).collect();
    json!({"address": page.address, "pair": page.pair, "results": results})
}

/// `CITATION.cff` of the site. A string of JSON is one of YAML.
pub(super) fn citation(entries: &[Published], base: Option<&str>) -> String {
    let newest = entries.iter().map(|entry| entry.report.environment.started.as_str()).max();
    let mut lines = vec![
        "cff-version: 1.2.0".to_owned(),
        "message: \"If you use these figures, cite them as below, with the address of the page.\"".to_owned(),
        "title: \"Photofinish: published comparisons of inference frameworks\"".to_owned(),
        "type: dataset".to_owned(),
        format!("authors:\n  - name: {}", json!(AUTHORS)),
        format!("license: {LICENCE}"),
        format!("version: {}", json!(env!("CARGO_PKG_VERSION"))),
    ];
    lines.extend(newest.map(|newest| format!("date-released: {}", json!(words::day(newest)))));
    lines.extend(base.map(|base| format!("url: {}", json!(base))));
    lines.join("\n") + "\n"
}
