//! The schemas and the page of measures say what the types and the table of metrics say.
//! `UPDATE_SCHEMAS=1 cargo xtask test -p judge` writes the metrics of the table into the schemas.

use std::fmt::Write as _;
use std::path::{Path, PathBuf};

use judge::Metric;
use serde_json::Value;

fn docs(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs").join(name)
}

fn text(path: &Path) -> String {
    std::fs::read_to_string(path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

/// The part of a document between two markers, without them.
fn part<'a>(text: &'a str, from: &str, to: &str) -> &'a str {
    let begin = text.find(from).expect("the schema has a list of metrics") + from.len();
    let end = begin + text[begin..].find(to).expect("the list of metrics has an end");
    &text[begin..end]
}

/// Holds the part of `docs/NAME` between two markers against what the table says, or writes it.
fn hold(name: &str, from: &str, to: &str, said: &str) {
    let path = docs(name);
    let before = text(&path);
    let written = part(&before, from, to);
    if std::env::var_os("UPDATE_SCHEMAS").is_some() {
        std::fs::write(&path, before.replacen(written, said, 1)).unwrap();
        return;
    }
    assert_eq!(written, said, "docs/{name}: UPDATE_SCHEMAS=1 cargo xtask test -p judge");
}

#[test]
fn the_schema_of_reports_names_the_metrics_of_the_table() {
    let names: Vec<String> =
        Metric::ALL.iter().map(|metric| format!("            \"{}\"", metric.name())).collect();
    let said = format!("\n{}\n          ", names.join(",\n"));
    hold("report.schema.json", "\"metric\": {\n          \"enum\": [", "]", &said);
}

#[test]
fn the_schema_of_the_history_defines_the_metrics_of_the_table() {
    let mut said = String::from("\n");
    for (place, metric) in Metric::ALL.iter().enumerate() {
        let (key, unit, better) = (metric.name(), metric.unit(), metric.higher_is_better());
        let definition = metric.definition();
        let comma = if place + 1 < Metric::ALL.len() { "," } else { "" };
        write!(
            said,
            r##"        "{key}": {{
          "description": "{definition}",
          "allOf": [
            {{"$ref": "#/$defs/figure"}},
            {{"properties": {{"unit": {{"const": "{unit}"}}, "higher_is_better": {{"const": {better}}}}}}}
          ]
        }}{comma}
"##
        )
        .unwrap();
    }
    said += "      ";
    let from = "\"description\": \"By name. What was not available is not here\",\n      \"type\": \"object\",\n      \"properties\": {";
    hold("history.schema.json", from, "},\n      \"additionalProperties\"", &said);
}

#[test]
fn the_page_of_measures_defines_every_metric() {
    let measures = text(&docs("measures.md"));
    for metric in Metric::ALL {
        let name = format!("| `{}` |", metric.name());
        let row = measures.lines().find(|line| line.contains(&name));
        let row = row.unwrap_or_else(|| panic!("docs/measures.md does not define {name}"));
        assert!(row.contains(metric.title()), "{row}");
        assert!(metric.title().ends_with(&format!("({})", metric.unit())), "{}", metric.title());
        assert!(!metric.definition().is_empty(), "{name}");
    }
}

/// Adds what `value` holds and `schema` does not name, and what it requires and `value` lacks.
fn unsaid(at: &str, root: &Value, schema: &Value, value: &Value, found: &mut Vec<String>) {
    if let Some(name) = schema["$ref"].as_str() {
        return unsaid(at, root, &root["$defs"][name.trim_start_matches("#/$defs/")], value, found);
    }
    if let (Some(any), false) = (schema["anyOf"].as_array(), value.is_null()) {
        return unsaid(at, root, &any[0], value, found);
    }
    if let (Some(named), Some(fields)) = (schema["properties"].as_object(), value.as_object()) {
        for (name, field) in fields {
            match named.get(name) {
                Some(schema) => unsaid(&format!("{at}.{name}"), root, schema, field, found),
                None => found.push(format!("{at}.{name} is not in the schema")),
            }
        }
        let required = schema["required"].as_array().into_iter().flatten().filter_map(Value::as_str);
        let lacking = required.filter(|name| !fields.contains_key(*name));
        found.extend(lacking.map(|name| format!("{at}.{name} is required and not there")));
    }
    if let (true, Some(items)) = (schema["items"].is_object(), value.as_array()) {
        items.iter().for_each(|item| unsaid(&format!("{at}[]"), root, &schema["items"], item, found));
    }
}

#[test]
fn the_schema_of_reports_names_every_field_that_is_written() {
    let schema: Value = serde_json::from_str(&text(&docs("report.schema.json"))).unwrap();
    assert_eq!(schema["properties"]["schema"]["const"], judge::report::SCHEMA);
    let recorded = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures/mixed/report.json");
    let read = judge::report::read(serde_json::from_str(&text(&recorded)).unwrap()).unwrap();
    let written: Value = serde_json::from_str(&read.json()).unwrap();
    let mut found = Vec::new();
    unsaid("report", &schema, &schema, &written, &mut found);
    assert!(found.is_empty(), "{found:#?}");
}
