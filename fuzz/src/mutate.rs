//! Changes to inputs that keep their form, for readers that refuse broken JSON, because refusals are quickly
//! explored: one value is replaced, moved, left out or repeated, and the rest stays valid.

use rand::{RngExt, SeedableRng};
use rand_chacha::ChaCha8Rng;
use serde_json::{Map, Value, json};

use crate::Form;

/// An input changed by the random numbers of `seed`; `None` where it does not have its form.
pub fn mutated(input: &[u8], form: Form, seed: u32) -> Option<Vec<u8>> {
    let random = &mut ChaCha8Rng::seed_from_u64(seed.into());
    match form {
        Form::Bytes => None,
        Form::Json => document(input, random),
        Form::JsonLines => lines(input, random),
        Form::Safetensors => {
            let (length, rest) = input.split_first_chunk::<8>()?;
            let length = usize::try_from(u64::from_le_bytes(*length)).ok()?;
            let (header, data) = rest.split_at_checked(length)?;
            let header = document(header, random)?;
            Some([&(header.len() as u64).to_le_bytes(), header.as_slice(), data].concat())
        }
    }
}

/// Bytes changed by the random numbers of `seed`, most of them near the beginning, where headers are.
pub fn bytes(input: &[u8], seed: u32) -> Vec<u8> {
    const HEADER: usize = 4096;
    let random = &mut ChaCha8Rng::seed_from_u64(seed.into());
    let mut changed = input.to_vec();
    for _ in 0..random.random_range(1..5) {
        let end = if random.random_range(0..8) > 0 { changed.len().min(HEADER) } else { changed.len() };
        let at = random.random_range(0..=end);
        let length = random.random_range(1..17).min(changed.len() - at);
        match random.random_range(0..8) {
            0 => changed[at..at + length].iter_mut().for_each(|byte| *byte ^= 1 << random.random_range(0..8)),
            1 => drop(changed.drain(at..at + length)),
            2 => {
                let copy = changed[at..at + length].to_vec();
                let to = random.random_range(0..=end.min(changed.len()));
                changed.splice(to..to, copy);
            }
            3 => changed.truncate(at),
            // A number of 1, 2, 4 or 8 bytes: small, at the end of a type, or beyond what is there.
            _ => {
                let number = match random.random_range(0..4) {
                    0 => random.random_range(0..64),
                    1 => u64::MAX >> random.random_range(0..64),
                    2 => 1 << random.random_range(0..64),
                    _ => (changed.len() as u64).wrapping_add(random.random_range(0..64)),
                };
                let width = (1 << random.random_range(0..4)).min(changed.len() - at);
                changed[at..at + width].copy_from_slice(&number.to_le_bytes()[..width]);
            }
        }
    }
    changed
}

fn lines(input: &[u8], random: &mut ChaCha8Rng) -> Option<Vec<u8>> {
    let mut lines: Vec<Vec<u8>> = input.split(|&byte| byte == b'\n').map(<[u8]>::to_vec).collect();
    lines.retain(|line| !line.is_empty());
    if lines.is_empty() {
        return None;
    }
    let at = random.random_range(0..lines.len());
    let other = random.random_range(0..lines.len());
    match random.random_range(0..8) {
        0 => {
            lines.remove(at);
        }
        1 => lines.swap(at, other),
        2 => lines.insert(at, lines.get(other)?.clone()),
        _ => lines[at] = document(lines.get(at)?, random)?,
    }
    Some(lines.iter().flat_map(|line| [line.as_slice(), b"\n"].concat()).collect())
}

fn document(text: &[u8], random: &mut ChaCha8Rng) -> Option<Vec<u8>> {
    let mut value: Value = serde_json::from_slice(text).ok()?;
    for _ in 0..random.random_range(1..4) {
        let count = count(&value);
        let copy = nth(&mut value, &mut random.random_range(0..count))?.clone();
        let place = nth(&mut value, &mut random.random_range(0..count))?;
        change(place, copy, random);
    }
    serde_json::to_vec(&value).ok()
}

fn count(value: &Value) -> usize {
    1 + match value {
        Value::Array(values) => values.iter().map(count).sum(),
        Value::Object(fields) => fields.values().map(count).sum(),
        _ => 0,
    }
}

/// The value with the number `left`, itself first.
fn nth<'a>(value: &'a mut Value, left: &mut usize) -> Option<&'a mut Value> {
    if *left == 0 {
        return Some(value);
    }
    *left -= 1;
    match value {
        Value::Array(values) => values.iter_mut().find_map(|value| nth(value, left)),
        Value::Object(fields) => fields.values_mut().find_map(|value| nth(value, left)),
        _ => None,
    }
}

/// Changes a value. `other` is one of the same document.
fn change(value: &mut Value, other: Value, random: &mut ChaCha8Rng) {
    match value {
        Value::Number(number) if random.random_range(0..8) > 0 => *value = numbers(number.as_f64(), random),
        Value::String(text) if random.random_range(0..8) > 0 => *text = texts(text, random),
        Value::Array(values) if random.random_range(0..4) > 0 => change_list(values, other, random),
        Value::Object(fields) if random.random_range(0..4) > 0 => change_fields(fields, other, random),
        _ => {
            *value =
                [other, Value::Null, json!([]), json!({}), json!(true)][random.random_range(0..5)].clone()
        }
    }
}

fn change_list(values: &mut Vec<Value>, other: Value, random: &mut ChaCha8Rng) {
    let at = random.random_range(0..=values.len());
    match random.random_range(0..4) {
        0 => values.truncate(at),
        1 => values.insert(at, other),
        2 => values.extend(vec![values.get(at).cloned().unwrap_or(other); random.random_range(1..20)]),
        _ => drop(values.extract_if(.., |_| random.random_range(0..2) == 0).count()),
    }
}

fn change_fields(fields: &mut Map<String, Value>, other: Value, random: &mut ChaCha8Rng) {
    let names: Vec<String> = fields.keys().cloned().collect();
    let Some(name) = names.get(random.random_range(0..names.len().max(1))) else {
        fields.insert(texts("", random), other);
        return;
    };
    match random.random_range(0..4) {
        0 => drop(fields.remove(name)),
        1 => drop(fields.insert(texts(name, random), other)),
        _ => drop(fields.insert(name.clone(), other)),
    }
}

/// Numbers at the limits of types, and neighbours of the old number.
fn numbers(old: Option<f64>, random: &mut ChaCha8Rng) -> Value {
    let old = old.unwrap_or_default();
    let ends = [
        json!(0),
        json!(-0.0),
        json!(1),
        json!(-1),
        json!(255),
        json!(256),
        json!(u32::MAX),
        json!(i64::MIN),
        json!(i64::MAX),
        json!(u64::MAX),
        json!(1u64 << 53),
        json!(f64::MAX),
        json!(f64::MIN_POSITIVE),
        json!(f64::from(f32::MAX) * 2.0),
        json!(0.5),
        json!(1e-300),
        json!(1u64 << 28),
        json!(1u64 << 40),
    ];
    match random.random_range(0..6) {
        0 => json!(old + 1.0),
        1 => json!((old as i64).wrapping_add(random.random_range(-3..=3))),
        2 => json!((old as u64).wrapping_mul(random.random_range(2..1000))),
        3 => json!(random.random_range(0..1000u32)),
        _ => ends[random.random_range(0..ends.len())].clone(),
    }
}

/// Texts that do harm if they are not escaped.
fn texts(old: &str, random: &mut ChaCha8Rng) -> String {
    const HOSTILE: [&str; 14] = [
        "",
        "\u{1b}[2J\u{1b}]0;x\u{7}",
        "a\nb\r\nc",
        "../../x",
        "/dev/zero",
        "=1+1",
        "<script>",
        "\u{0}",
        "\u{202e}",
        "NaN",
        "-1",
        "|x|",
        "e\u{301}\u{301}\u{301}",
        "👩‍👧",
    ];
    let hostile = HOSTILE[random.random_range(0..HOSTILE.len())];
    match random.random_range(0..4) {
        0 => hostile.to_owned(),
        1 => format!("{old}{hostile}"),
        2 => old.repeat(random.random_range(2..50)),
        _ => old.chars().skip(random.random_range(0..4)).collect(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_changed_keeps_its_form() {
        let text = br#"{"a": [1, 2.5, "x"], "b": {"c": null}}"#;
        for seed in 0..500 {
            let changed = mutated(text, Form::Json, seed).unwrap();
            assert!(serde_json::from_slice::<Value>(&changed).is_ok());
            let changed = mutated(b"{\"a\":1}\n[2]\n", Form::JsonLines, seed).unwrap();
            let mut lines = changed.split(|&byte| byte == b'\n').filter(|line| !line.is_empty());
            assert!(lines.all(|line| serde_json::from_slice::<Value>(line).is_ok()));
        }
    }

    #[test]
    fn the_same_seed_makes_the_same_change() {
        let text = br#"{"a": [1, 2.5, "x"], "b": {"c": null}}"#;
        let changes: Vec<_> = (0..50).map(|seed| mutated(text, Form::Json, seed)).collect();
        assert_eq!(changes, (0..50).map(|seed| mutated(text, Form::Json, seed)).collect::<Vec<_>>());
        assert!(changes.windows(2).any(|pair| pair[0] != pair[1]));
    }

    #[test]
    fn a_safetensors_header_is_changed_with_its_length() {
        let header = br#"{"x":{"dtype":"F32","shape":[1],"data_offsets":[0,4]}}"#;
        let file = [&(header.len() as u64).to_le_bytes()[..], header, &[1, 2, 3, 4]].concat();
        for seed in 0..100 {
            let changed = mutated(&file, Form::Safetensors, seed).unwrap();
            let length = u64::from_le_bytes(changed[..8].try_into().unwrap()) as usize;
            assert!(serde_json::from_slice::<Value>(&changed[8..8 + length]).is_ok());
            assert_eq!(&changed[8 + length..], [1, 2, 3, 4]);
        }
    }

    #[test]
    fn what_lacks_its_form_is_left_to_others() {
        assert_eq!(mutated(b"{", Form::Json, 1), None);
        assert_eq!(mutated(b"1234567", Form::Safetensors, 1), None);
        assert_eq!(mutated(b"{}", Form::Bytes, 1), None);
        assert!((0..50).all(|seed| mutated(b"\n", Form::JsonLines, seed).is_none()), "no line, no form");
    }
}
