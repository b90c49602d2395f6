//! The fields of `report.json` and `history.jsonl` as a page, from their JSON Schemas. `docs/reference/fields.md` is
//! printed from here.

use serde_json::{Map, Value};

const SCHEMAS: [(&str, &str, &str); 2] = [
    ("report.json", "report.schema.json", include_str!("../../../../../docs/report.schema.json")),
    ("history.jsonl", "history.schema.json", include_str!("../../../../../docs/history.schema.json")),
];

const TITLE: &str = "\
# Fields of report.json and history.jsonl

Printed by `photofinish reference fields`; a test compares this page with the code. Do not edit it by hand.

[Files](files.md) describes the files. `null` is \"not available\". An optional field is left out if it has no value.
Fields may be added within a schema version; ignore unknown ones.
";

/// Values of an enumeration that are listed.
const MOST_VALUES: usize = 12;

/// The text of `docs/reference/fields.md`.
pub(super) fn markdown() -> String {
    let mut page = TITLE.to_owned();
    for (file, name, schema) in SCHEMAS {
        let schema: Value = serde_json::from_str(schema).expect("a schema of this repository is JSON");
        page += &format!("\n## `{file}`\n\n[{name}](../{name}) is its JSON Schema (2020-12).\n");
        page += "\n| field | type | meaning |\n|---|---|---|\n";
        let mut fields = Fields { schema: &schema, named: Vec::new(), rows: String::new() };
        fields.list(&schema, "");
        page += &fields.rows;
    }
    page
}

struct Fields<'a> {
    schema: &'a Value,
    /// Definitions that were listed, each with the field that it was listed at.
    named: Vec<(String, String)>,
    rows: String,
}

impl<'a> Fields<'a> {
    /// Rows of the properties of an object: `rows`, which others refer to, and then in alphabetical order.
    fn list(&mut self, object: &'a Value, before: &str) {
        let Some(properties) = object["properties"].as_object() else { return };
        if let Some(shared) = shared_definition(properties) {
            self.row(&format!("{before}NAME"), shared, true, None);
            return;
        }
        let required: Vec<&str> =
            object["required"].as_array().into_iter().flatten().filter_map(Value::as_str).collect();
        let (rows, others): (Vec<_>, Vec<_>) = properties.iter().partition(|(name, _)| *name == "rows");
        for (name, value) in rows.into_iter().chain(others) {
            let own = value["description"].as_str();
            self.row(&format!("{before}{name}"), value, required.contains(&name.as_str()), own);
        }
    }

    fn row(&mut self, path: &str, value: &'a Value, is_required: bool, own: Option<&'a str>) {
        let (definition, meant) = self.resolved(value);
        let is_list = value["type"] == "array" || value["type"][0] == "array";
        let path = if is_list { format!("{path}[]") } else { path.to_owned() };
        let (inner_definition, inner) = match meant.get("items") {
            Some(items) if is_list => self.resolved(items),
            _ => (None, meant),
        };
        // A definition without properties is as short as its name.
        let definition = definition.or(inner_definition).filter(|_| inner["properties"].is_object());
        let known = definition.and_then(|name| self.named.iter().find(|(known, _)| known == name).cloned());
        let mut meaning = own.or_else(|| meant["description"].as_str()).unwrap_or_default().to_owned();
        if let Some((_, place)) = &known {
            meaning += &format!("{}as `{place}`", if meaning.is_empty() { "" } else { "; " });
        }
        let values = listed(meant);
        if !values.is_empty() && !meaning.contains(&values[0]) {
            let values = values.iter().map(|value| format!("`{value}`")).collect::<Vec<_>>().join(", ");
            meaning += &format!("{}{values}", if meaning.is_empty() { "" } else { ": " });
        }
        let optional = if is_required { "" } else { ", optional" };
        let kind = kind(value, meant);
        let meaning = untrusted::cell(&meaning);
        self.rows += &format!("| `{path}` | {kind}{optional} | {meaning} |\n");
        if known.is_none() {
            self.named.extend(definition.map(|name| (name.to_owned(), path.clone())));
            self.list(inner, &format!("{path}."));
        }
    }

    /// Resolves a reference to a definition (and returns its name), and drops the alternative `null`.
    fn resolved(&self, value: &'a Value) -> (Option<&'a str>, &'a Value) {
        let alternatives = ["anyOf", "oneOf"].iter().find_map(|key| value[*key].as_array());
        let value =
            alternatives.and_then(|all| all.iter().find(|one| one["type"] != "null")).unwrap_or(value);
        match value["$ref"].as_str().and_then(|link| link.strip_prefix("#/$defs/")) {
            Some(name) => (Some(name), &self.schema["$defs"][name]),
            None => (None, value),
        }
    }
}

/// The definition that all properties share, if each of them is only that: metrics by name.
fn shared_definition(properties: &Map<String, Value>) -> Option<&Value> {
    let mut links = properties.values().map(|value| value["allOf"].get(0));
    let first = links.next()??;
    links.all(|link| link == Some(first)).then_some(first)
}

/// The values of a short enumeration.
fn listed(value: &Value) -> Vec<String> {
    let values = value["enum"].as_array().filter(|values| values.len() <= MOST_VALUES);
    values.into_iter().flatten().filter_map(|value| value.as_str().map(str::to_owned)).collect()
}

/// "string or null".
fn kind(value: &Value, meant: &Value) -> String {
    let names = |value: &Value| -> Vec<String> {
        match &value["type"] {
            Value::String(name) => vec![name.clone()],
            Value::Array(names) => names.iter().filter_map(Value::as_str).map(str::to_owned).collect(),
            _ if value["const"].is_number() => vec!["number".to_owned()],
            _ => vec!["string".to_owned()],
        }
    };
    let may_be_null = ["anyOf", "oneOf"]
        .iter()
        .any(|key| value[*key].as_array().is_some_and(|all| all.iter().any(|one| one["type"] == "null")));
    let mut names = names(meant);
    if may_be_null && !names.iter().any(|name| name == "null") {
        names.push("null".to_owned());
    }
    names.join(" or ")
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    const PAGE: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/reference/fields.md");

    fn rows(schema: &Value) -> String {
        let mut fields = Fields { schema, named: Vec::new(), rows: String::new() };
        fields.list(schema, "");
        fields.rows
    }

    #[test]
    fn the_page_for_people_is_printed_from_the_schemas() {
        super::super::tests::compare(PAGE, &markdown());
    }

    #[test]
    fn fields_within_fields_have_rows_of_their_own() {
        let schema = json!({
            "properties": {
                "end": {"description": "why", "type": ["object", "null"], "properties": {
                    "kind": {"enum": ["planned", "killed"]}
                }},
                "rows": {"type": "array", "items": {"$ref": "#/$defs/row"}}
            },
            "required": ["end"],
            "$defs": {"row": {"description": "one", "type": "object", "properties": {"n": {"type": "integer"}}}}
        });
        let expected = "| `rows[]` | array, optional |  |\n\
                        | `rows[].n` | integer, optional |  |\n\
                        | `end` | object or null | why |\n\
                        | `end.kind` | string, optional | `planned`, `killed` |\n";
        assert_eq!(rows(&schema), expected);
    }

    #[test]
    fn a_definition_is_listed_once_and_then_named() {
        let row = json!({"$ref": "#/$defs/row"});
        let schema = json!({
            "properties": {"a": row, "b": row},
            "required": ["a", "b"],
            "$defs": {"row": {"type": "object", "properties": {"n": {"type": "integer"}}, "required": ["n"]}}
        });
        let expected = "| `a` | object |  |\n| `a.n` | integer |  |\n| `b` | object | as `a` |\n";
        assert_eq!(rows(&schema), expected);
    }
}
