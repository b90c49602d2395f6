//! The shape of a line: its fields, their types, and which of them may be `null`. The tables of `events` are
//! made of these; a test compares them with the types of crate `protocol`.

use serde_json::{Map, Value};

use crate::problem::Problem;

/// A field of an event.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Field {
    pub(crate) name: &'static str,
    pub(crate) kind: Kind,
    /// Whether it may be `null`, or left out, which means the same.
    pub(crate) may_be_null: bool,
}

/// The type of a value.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Kind {
    /// With an example.
    Text(&'static str),
    /// One of these texts.
    OneOf(&'static [&'static str]),
    /// A whole number, 0 or more, with an example.
    Whole(u64),
    Number(f64),
    Bool(bool),
    List(&'static Kind),
    Object(&'static [Field]),
}

/// A field that must be there.
pub(crate) const fn must(name: &'static str, kind: Kind) -> Field {
    Field { name, kind, may_be_null: false }
}

/// A field that may be `null` or left out.
pub(crate) const fn may(name: &'static str, kind: Kind) -> Field {
    Field { name, kind, may_be_null: true }
}

/// Every field of `object` that is missing or of another type than it should be.
pub(crate) fn problems(fields: &'static [Field], object: &Map<String, Value>) -> Vec<Problem> {
    let mut found = Vec::new();
    of_object(fields, object, "", &mut found);
    found
}

fn of_object(fields: &'static [Field], object: &Map<String, Value>, path: &str, found: &mut Vec<Problem>) {
    for field in fields {
        let path = if path.is_empty() { field.name.to_owned() } else { format!("{path}.{}", field.name) };
        match object.get(field.name) {
            None | Some(Value::Null) if field.may_be_null => {}
            None => {
                let text = format!("missing: expected {}; send {}", field.kind.words(), field.kind.example());
                found.push(Problem::at(&path, text));
            }
            Some(value) => of_value(field.kind, value, &path, found),
        }
    }
}

fn of_value(kind: Kind, value: &Value, path: &str, found: &mut Vec<Problem>) {
    match (kind, value) {
        (Kind::Object(fields), Value::Object(object)) => of_object(fields, object, path, found),
        (Kind::List(each), Value::Array(values)) => {
            let before = found.len();
            for (index, value) in values.iter().enumerate() {
                of_value(*each, value, &format!("{path}[{index}]"), found);
                // The others most likely have the same problems.
                if found.len() > before {
                    break;
                }
            }
        }
        (kind, value) if kind.takes(value) => {}
        (kind, value) => {
            let text =
                format!("expected {}, found {}; send {}", kind.words(), described(value), kind.example());
            found.push(Problem::at(path, text));
        }
    }
}

impl Kind {
    fn takes(self, value: &Value) -> bool {
        match self {
            Kind::Text(_) => value.is_string(),
            Kind::OneOf(texts) => value.as_str().is_some_and(|text| texts.contains(&text)),
            Kind::Whole(_) => value.is_u64(),
            Kind::Number(_) => value.is_number(),
            Kind::Bool(_) => value.is_boolean(),
            Kind::List(_) => value.is_array(),
            Kind::Object(_) => value.is_object(),
        }
    }

    /// The type in words: "a list of whole numbers".
    fn words(self) -> String {
        match self {
            Kind::Text(_) => "a text".into(),
            Kind::OneOf(texts) => {
                let quoted: Vec<String> = texts.iter().map(|text| format!("{text:?}")).collect();
                format!("one of {}", quoted.join(", "))
            }
            Kind::Whole(_) => "a whole number, 0 or more".into(),
            Kind::Number(_) => "a number".into(),
            Kind::Bool(_) => "true or false".into(),
            Kind::List(each) => format!("a list of {}", each.plural()),
            Kind::Object(_) => "an object".into(),
        }
    }

    fn plural(self) -> String {
        match self {
            Kind::Text(_) | Kind::OneOf(_) => "texts".into(),
            Kind::Whole(_) => "whole numbers".into(),
            Kind::Number(_) => "numbers".into(),
            Kind::Bool(_) => "true or false".into(),
            Kind::List(each) => format!("lists of {}", each.plural()),
            Kind::Object(_) => "objects".into(),
        }
    }

    /// A value of this type. An object has all its fields.
    pub(crate) fn example(self) -> Value {
        match self {
            Kind::Text(text) => text.into(),
            Kind::OneOf(texts) => texts.first().copied().into(),
            Kind::Whole(number) => number.into(),
            Kind::Number(number) => number.into(),
            Kind::Bool(value) => value.into(),
            Kind::List(each) => vec![each.example()].into(),
            Kind::Object(fields) => example(fields).into(),
        }
    }
}

/// An object with all these fields.
pub(crate) fn example(fields: &[Field]) -> Map<String, Value> {
    fields.iter().map(|field| (field.name.to_owned(), field.kind.example())).collect()
}

/// Paths of the fields that may be `null`, as in `memory.peak_bytes`.
pub(crate) fn nullable(fields: &[Field]) -> Vec<String> {
    let mut paths = Vec::new();
    for field in fields {
        if field.may_be_null {
            paths.push(field.name.to_owned());
        }
        let (inner, mark) = match field.kind {
            Kind::Object(inner) => (inner, ""),
            Kind::List(Kind::Object(inner)) => (*inner, "[]"),
            _ => continue,
        };
        paths.extend(nullable(inner).into_iter().map(|path| format!("{}{mark}.{path}", field.name)));
    }
    paths
}

/// A value as found, cut short.
fn described(value: &Value) -> String {
    let what = match value {
        Value::Null => return "null".into(),
        Value::Object(_) => return "an object".into(),
        Value::Array(_) => return "a list".into(),
        Value::String(_) => "the text ",
        Value::Number(_) => "the number ",
        Value::Bool(_) => "",
    };
    let text = value.to_string();
    let start: String = text.chars().take(40).collect();
    format!("{what}{start}{}", if start.len() < text.len() { "…" } else { "" })
}
