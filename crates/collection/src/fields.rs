//! The fields of JSON by their places, such as `rows[0].metrics[2].typical`.

use serde_json::Value;

/// Calls `visit` with the place, the field's own name and the value of everything below `value`.
pub(crate) fn each(value: &Value, visit: &mut dyn FnMut(&str, &str, &Value)) {
    below(value, "", "", visit);
}

fn below(value: &Value, place: &str, name: &str, visit: &mut dyn FnMut(&str, &str, &Value)) {
    if !place.is_empty() {
        visit(place, name, value);
    }
    match value {
        Value::Array(values) => {
            for (index, value) in values.iter().enumerate() {
                below(value, &format!("{place}[{index}]"), "", visit);
            }
        }
        Value::Object(fields) => {
            for (name, value) in fields {
                below(value, &inner(place, name), name, visit);
            }
        }
        _ => {}
    }
}

/// The path of a field within `place`.
pub(crate) fn inner(place: &str, name: &str) -> String {
    if place.is_empty() { name.to_owned() } else { format!("{place}.{name}") }
}
