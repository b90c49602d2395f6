//! The schema of reports agrees with the written reports.

use std::path::Path;

use comparison::judge;
use comparison::judge::report::SCHEMA;
use render::{Exporter, JsonText};
use serde_json::Value;

/// Adds the fields of `value` that `schema` does not name, and the fields it requires that `value` lacks.
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
    let file = |path: &str| {
        let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..").join(path);
        std::fs::read_to_string(path).unwrap()
    };
    let schema: Value = serde_json::from_str(&file("docs/report.schema.json")).unwrap();
    assert_eq!(schema["properties"]["schema"]["const"], SCHEMA);
    let recorded = judge::report::read(&file("crates/comparison/tests/fixtures/mixed/report.json")).unwrap();
    let written: Value = serde_json::from_str(&JsonText.export(&recorded)).unwrap();
    let mut found = Vec::new();
    unsaid("report", &schema, &schema, &written, &mut found);
    assert!(found.is_empty(), "{found:#?}");
}
