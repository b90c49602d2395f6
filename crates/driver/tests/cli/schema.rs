//! Written files follow the schemas in `docs`.

use serde_json::Value;

fn schema(name: &str) -> Value {
    let path = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs").join(name);
    serde_json::from_str(&std::fs::read_to_string(path).unwrap()).unwrap()
}

/// The schema without additional fields: every written field must be named in it.
fn closed(mut schema: Value) -> Value {
    fn close(value: &mut Value) {
        match value {
            Value::Object(fields) => {
                let is_object = fields.get("type").is_some_and(|kind| kind == "object");
                if is_object && fields.get("properties").is_some_and(Value::is_object) {
                    fields.insert("additionalProperties".into(), false.into());
                }
                fields.values_mut().for_each(close);
            }
            Value::Array(items) => items.iter_mut().for_each(close),
            _ => {}
        }
    }
    close(&mut schema);
    schema
}

pub(crate) fn validate_record(record: &Value) {
    validate(&closed(schema("history.schema.json")), record);
}

pub(crate) fn validate_report(report: &Value) {
    validate(&schema("report.schema.json"), report);
}

fn validate(schema: &Value, instance: &Value) {
    let validator = jsonschema::validator_for(schema).unwrap();
    let errors: Vec<String> =
        validator.iter_errors(instance).map(|error| format!("{}: {error}", error.instance_path())).collect();
    assert!(errors.is_empty(), "{errors:#?}\n{instance:#}");
}

#[test]
fn the_schemas_are_valid_and_draft_2020_12() {
    for name in ["history.schema.json", "report.schema.json"] {
        let schema = schema(name);
        assert_eq!(schema["$schema"], "https://json-schema.org/draft/2020-12/schema", "{name}");
        jsonschema::meta::validate(&schema).unwrap_or_else(|error| panic!("{name}: {error}"));
    }
}

#[test]
#[should_panic(expected = "of_the_future")]
fn a_field_that_the_schema_does_not_define_is_noticed() {
    let example = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/examples/history.jsonl");
    let text = std::fs::read_to_string(example).unwrap();
    let mut record: Value = serde_json::from_str(text.lines().next().unwrap()).unwrap();
    validate_record(&record);
    record["machine"]["of_the_future"] = 1.into();
    validate_record(&record);
}
