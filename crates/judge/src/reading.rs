//! Reads values that were written earlier.

use serde::Deserialize;
use serde::de::{DeserializeOwned, Deserializer};
use serde_json::Value;

/// The schema of a value, if it is one of `known`, which are in rising order.
pub(crate) fn schema(value: &Value, known: &[u32]) -> Result<u32, String> {
    let found = value.get("schema").and_then(Value::as_u64).ok_or("it names no schema")?;
    if let Some(&schema) = known.iter().find(|&&schema| u64::from(schema) == found) {
        return Ok(schema);
    }
    let newest = known.last().copied().unwrap_or(0);
    let remedy = if found > u64::from(newest) { "use the program that wrote it" } else { "measure again" };
    let known: Vec<String> = known.iter().map(u32::to_string).collect();
    Err(format!("its schema is {found}, and this program reads {}; {remedy}", known.join(" and ")))
}

/// Reads a typed value. The error says what the value is not.
pub(crate) fn typed<T: DeserializeOwned>(value: Value, what: &str) -> Result<T, String> {
    serde_json::from_value(value).map_err(|error| format!("it is not {what}: {error}"))
}

/// Reads a number that may be `null`: JSON has no number that is not finite.
pub(crate) fn number<'de, D: Deserializer<'de>>(from: D) -> Result<f64, D::Error> {
    Ok(Option::<f64>::deserialize(from)?.unwrap_or(f64::NAN))
}

/// Reads a distance that may be `null`: JSON has no infinity.
pub(crate) fn distance<'de, D: Deserializer<'de>>(from: D) -> Result<f32, D::Error> {
    Ok(Option::<f32>::deserialize(from)?.unwrap_or(f32::INFINITY))
}

/// Reads an interval, whose upper end may be infinite.
pub(crate) fn interval<'de, D: Deserializer<'de>>(from: D) -> Result<Option<(f64, f64)>, D::Error> {
    let ends = Option::<(Option<f64>, Option<f64>)>::deserialize(from)?;
    Ok(ends.map(|(low, high)| (low.unwrap_or(f64::NEG_INFINITY), high.unwrap_or(f64::INFINITY))))
}

/// Reads a list. Schema 3 and before had one value or `null` in its place.
pub(crate) fn list<'de, T: Deserialize<'de>, D: Deserializer<'de>>(from: D) -> Result<Vec<T>, D::Error> {
    #[derive(Deserialize)]
    #[serde(untagged)]
    enum Either<T> {
        List(Vec<T>),
        One(Option<T>),
    }
    Ok(match Either::deserialize(from)? {
        Either::List(list) => list,
        Either::One(one) => one.into_iter().collect(),
    })
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn another_schema_is_refused_in_one_sentence() {
        assert_eq!(schema(&json!({"schema": 2}), &[2, 3]), Ok(2));
        let newer = schema(&json!({"schema": 4}), &[2, 3]).unwrap_err();
        assert_eq!(newer, "its schema is 4, and this program reads 2 and 3; use the program that wrote it");
        let older = schema(&json!({"schema": 1}), &[2, 3]).unwrap_err();
        assert_eq!(older, "its schema is 1, and this program reads 2 and 3; measure again");
        assert_eq!(schema(&json!([]), &[2]).unwrap_err(), "it names no schema");
    }
}
