//! Reads values that were written earlier.

use serde::Deserialize;
use serde::de::{DeserializeOwned, Deserializer};
use serde_json::Value;

/// Refuses a value of another schema in one sentence.
pub fn schema(value: &Value, known: u32) -> Result<(), String> {
    let found = value.get("schema").and_then(Value::as_u64).ok_or("it names no schema")?;
    if found == u64::from(known) {
        return Ok(());
    }
    let again = if found < u64::from(known) { "measure again, or " } else { "" };
    Err(format!(
        "its schema is {found}, and this program reads {known}: {again}use the release that wrote it"
    ))
}

/// Reads a typed value. The error says what the value is not.
pub fn typed<T: DeserializeOwned>(value: Value, what: &str) -> Result<T, String> {
    serde_json::from_value(value).map_err(|error| format!("it is not {what}: {error}"))
}

/// Reads a number that may be `null`: JSON has no number that is not finite.
pub fn number<'de, D: Deserializer<'de>>(from: D) -> Result<f64, D::Error> {
    Ok(Option::<f64>::deserialize(from)?.unwrap_or(f64::NAN))
}

/// Reads a distance that may be `null`: JSON has no infinity.
pub fn distance<'de, D: Deserializer<'de>>(from: D) -> Result<f32, D::Error> {
    Ok(Option::<f32>::deserialize(from)?.unwrap_or(f32::INFINITY))
}

/// Reads an interval. Its upper end may be infinite.
pub fn interval<'de, D: Deserializer<'de>>(from: D) -> Result<Option<(f64, f64)>, D::Error> {
    let ends = Option::<(Option<f64>, Option<f64>)>::deserialize(from)?;
    Ok(ends.map(|(low, high)| (low.unwrap_or(f64::NEG_INFINITY), high.unwrap_or(f64::INFINITY))))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn another_schema_is_refused_in_one_sentence() {
        let of = |value| schema(&value, 4);
        assert_eq!(of(json!({"schema": 4})), Ok(()));
        let newer = "its schema is 5, and this program reads 4: use the release that wrote it";
        assert_eq!(of(json!({"schema": 5})), Err(newer.to_owned()));
        let older =
            "its schema is 3, and this program reads 4: measure again, or use the release that wrote it";
        assert_eq!(of(json!({"schema": 3})), Err(older.to_owned()));
        assert_eq!(of(json!([])), Err("it names no schema".to_owned()));
    }
}
