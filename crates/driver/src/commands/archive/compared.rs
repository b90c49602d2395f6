//! Compares a report with the one that today's rules make from the same samples.

use judge::Report;
use judge::report::verdicts::Verdict;
use serde_json::Value;
use untrusted::shortened;

/// Sentences. Their wording changes from version to version, and pages use today's.
const SENTENCES: [&str; 12] = [
    "alone",
    "cold_unavailable",
    "finding",
    "obstacle",
    "reason",
    "reasons",
    "remarks",
    "remedy",
    "results",
    "sentence",
    "summary",
    "warnings",
];
/// Unverified rules and mere notes are in words, too.
const NOTES: [&str; 2] = ["notes", "unverified"];

const ROWS: &str = "rows";

/// Results of two machines' mathematical functions may differ by this share.
const SAME: f64 = 1e-9;
/// Most characters of a value that is quoted.
const QUOTED: usize = 60;

/// The first field of a submitted report that the samples do not give, in a sentence.
pub(super) fn first_difference(submitted: &Value, judged: &Report) -> Option<String> {
    // Serialised to text and back, as the submitted report was: an f32 has fewer digits there.
    let judged = serde_json::to_string(judged).expect("a report has string keys and no failing serialiser");
    let mut judged: Value = serde_json::from_str(&judged).expect("what was just written is JSON");
    with_both_sides(&mut judged);
    // Figures first: everything else follows from them.
    let of_rows = submitted.get(ROWS).zip(judged.get(ROWS));
    let of_rows = of_rows.and_then(|(submitted, judged)| difference(submitted, judged, ROWS));
    of_rows.or_else(|| difference(submitted, &judged, ""))
}

/// Adds the verdict for `b` to every comparison, as files have it.
fn with_both_sides(judged: &mut Value) {
    let mut add = |found: &mut Value| {
        let verdict =
            found.get("verdict").cloned().and_then(|name| serde_json::from_value::<Verdict>(name).ok());
        if let (Some(verdict), Some(found)) = (verdict, found.as_object_mut()) {
            let turned = serde_json::to_value(verdict.turned()).expect("a verdict is a word");
            found.insert("verdict_of_b".to_owned(), turned);
        }
    };
    let pairs = judged.get_mut("comparisons").and_then(Value::as_array_mut);
    pairs.into_iter().flatten().for_each(&mut add);
    let hybrids = judged.get_mut("hybrids").and_then(Value::as_array_mut);
    hybrids.into_iter().flatten().filter_map(|hybrid| hybrid.get_mut("verdict")).for_each(&mut add);
}

fn difference(submitted: &Value, judged: &Value, place: &str) -> Option<String> {
    let other = || Some(format!("{place} is {}, and the samples give {}", quoted(submitted), quoted(judged)));
    match (submitted, judged) {
        (Value::Object(submitted), Value::Object(judged)) => submitted.iter().find_map(|(name, value)| {
            if SENTENCES.contains(&name.as_str()) || NOTES.contains(&name.as_str()) {
                return None;
            }
            // A field that today's reports leave out is empty.
            difference(value, judged.get(name).unwrap_or(&Value::Null), &inner(place, name))
        }),
        (Value::Array(submitted), Value::Array(judged)) => {
            if submitted.len() != judged.len() {
                let (has, given) = (submitted.len(), judged.len());
                return Some(format!("{place} has {has} entries, and the samples give {given}"));
            }
            let mut both = submitted.iter().zip(judged).enumerate();
            both.find_map(|(index, (submitted, judged))| {
                difference(submitted, judged, &format!("{place}[{index}]"))
            })
        }
        (Value::Number(submitted), Value::Number(judged)) => {
            let (submitted, judged) = (submitted.as_f64()?, judged.as_f64()?);
            let is_same = (submitted - judged).abs() <= SAME * submitted.abs().max(judged.abs());
            if is_same { None } else { other() }
        }
        (submitted, Value::Null) if is_empty(submitted) => None,
        (submitted, judged) if submitted == judged => None,
        _ => other(),
    }
}

fn is_empty(value: &Value) -> bool {
    match value {
        Value::Null | Value::Bool(false) => true,
        Value::Array(values) => values.is_empty(),
        Value::Object(fields) => fields.is_empty(),
        _ => false,
    }
}

fn quoted(value: &Value) -> String {
    match value {
        Value::Null => "not there".to_owned(),
        value => shortened(&value.to_string(), QUOTED),
    }
}

/// Calls `visit` with the place, the field's own name and the value of everything below `value`.
pub(super) fn each(value: &Value, visit: &mut dyn FnMut(&str, &str, &Value)) {
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
fn inner(place: &str, name: &str) -> String {
    if place.is_empty() { name.to_owned() } else { format!("{place}.{name}") }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn figures_and_verdicts_are_compared_and_sentences_are_not() {
        let judged = json!({"rows": [{"state": "struck", "typical": 2.0, "reasons": ["a"]}], "n": null});
        let found = |submitted: Value| difference(&submitted, &judged, "").unwrap_or_default();
        assert_eq!(
            found(json!({"rows": [{"state": "struck", "typical": 2.000_000_000_1, "reasons": []}]})),
            ""
        );
        assert_eq!(found(json!({"rows": [], "n": null})), "rows has 0 entries, and the samples give 1");
        assert_eq!(
            found(json!({"rows": [{"typical": 2.1}]})),
            "rows[0].typical is 2.1, and the samples give 2.0"
        );
        assert_eq!(
            found(json!({"rows": [{"state": "measured"}]})),
            "rows[0].state is \"measured\", and the samples give \"struck\""
        );
        assert_eq!(found(json!({"made_up": [1]})), "made_up is [1], and the samples give not there");
        assert_eq!(found(json!({"left_out": [], "n": null})), "");
    }
}
