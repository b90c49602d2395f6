//! The schemas and the page of measures agree with the types and the table of metrics. `UPDATE_SCHEMAS=1
//! cargo xtask test -p comparison` writes the metrics of the table into the schemas.

use std::fmt::Write as _;
use std::path::{Path, PathBuf};

use comparison::judge::Metric;

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

/// Compares the part of `docs/NAME` between two markers with the table, or writes it.
fn hold(name: &str, from: &str, to: &str, said: &str) {
    let path = docs(name);
    let before = text(&path);
    let written = part(&before, from, to);
    if std::env::var_os("UPDATE_SCHEMAS").is_some() {
        std::fs::write(&path, before.replacen(written, said, 1)).unwrap();
        return;
    }
    assert_eq!(written, said, "docs/{name}: UPDATE_SCHEMAS=1 cargo xtask test -p comparison");
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
    let measures = text(&docs("reference/measures.md"));
    for &metric in Metric::ALL {
        let name = format!("| `{}` |", metric.name());
        let row = measures.lines().find(|line| line.contains(&name));
        let row = row.unwrap_or_else(|| panic!("docs/reference/measures.md does not define {name}"));
        assert!(row.contains(metric.title()), "{row}");
        assert!(metric.title().ends_with(&format!("({})", metric.unit())), "{}", metric.title());
        assert!(!metric.definition().is_empty(), "{name}");
    }
}
