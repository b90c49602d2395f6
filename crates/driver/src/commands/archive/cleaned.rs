//! Text that can be published: without paths, and without the names of a machine and of its user.

use serde_json::Value;

/// Replace a path and a name.
const PATH: &str = "(path)";
pub(super) const NAME: &str = "(name)";

/// Every value of JSON in the text, one a line or one in all, without paths and names. An incomplete line is
/// left out: its content is not known.
pub(super) fn cleaned(text: &str, names: &[String]) -> String {
    let clean = |text: &str| {
        let value: Value = serde_json::from_str(text).ok()?;
        Some(without(value, names).to_string() + "\n")
    };
    clean(text).unwrap_or_else(|| text.lines().filter_map(clean).collect())
}

/// The value without paths and names, also in the names of its fields: a contender's label may contain
/// either.
pub(super) fn without(value: Value, names: &[String]) -> Value {
    match value {
        Value::String(text) => Value::String(without_names(&without_paths(&text), names)),
        Value::Array(values) => values.into_iter().map(|value| without(value, names)).collect(),
        Value::Object(fields) => {
            let clean = |(field, value): (String, Value)| {
                let value = match (field.as_str(), value) {
                    ("host", Value::String(_)) => NAME.into(),
                    // A kernel may be named after the person who built it.
                    ("kernel", _) => Value::Null,
                    (_, value) => without(value, names),
                };
                (without_names(&without_paths(&field), names), value)
            };
            Value::Object(fields.into_iter().map(clean).collect())
        }
        other => other,
    }
}

/// A text without absolute paths, and without those that begin at a home directory or above.
fn without_paths(text: &str) -> String {
    if ["/", "~/"].iter().any(|start| text.starts_with(start)) && !text.contains('\n') {
        // The path may contain spaces.
        return PATH.to_owned();
    }
    let ends = |c: char| c.is_whitespace() || "\"'`,;:()<>|=".contains(c);
    let mut kept = String::with_capacity(text.len());
    let mut rest = text;
    while !rest.is_empty() {
        let word = rest.find(ends).unwrap_or(rest.len());
        kept += if is_path(&rest[..word]) { PATH } else { &rest[..word] };
        let end = rest[word..].chars().next().map_or(word, |c| word + c.len_utf8());
        kept += &rest[word..end];
        rest = &rest[end..];
    }
    kept
}

/// `GB/s` and `1/2` are no paths.
fn is_path(word: &str) -> bool {
    let begins = ["/", "~/", "./", "../", "\\\\"].iter().any(|start| word.starts_with(start));
    let windows = word.len() > 2 && word.as_bytes()[0].is_ascii_alphabetic() && word[1..].starts_with('\\');
    (begins && word.len() > 1) || windows || word.matches('/').count() > 1
}

fn without_names(text: &str, names: &[String]) -> String {
    names.iter().fold(text.to_owned(), |text, name| text.replace(name, NAME))
}

/// The fields of a value that still hold a path, the name of a host, or a kernel.
pub(super) fn personal(value: &Value) -> Vec<String> {
    let mut found = Vec::new();
    super::compared::each(value, &mut |place, name, value| {
        let is_kept = match (name, value) {
            ("host", Value::String(host)) => !host.is_empty() && host != NAME,
            ("kernel", kernel) => !kernel.is_null(),
            (_, Value::String(text)) => without_paths(text) != *text,
            _ => false,
        };
        if is_kept || without_paths(name) != name {
            found.push(place.to_owned());
        }
    });
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn paths_and_names_are_taken_out_and_units_are_not() {
        let names = ["carols-box", "carol"].map(str::to_owned);
        let said = |text: &str| without_names(&without_paths(text), &names);
        assert_eq!(said("cannot read /srv/people/carol/models/x: gone"), "cannot read (path): gone");
        assert_eq!(said("/srv/people/carol/my models/x"), "(path)");
        assert_eq!(said("2000 GB/s at 1/2, tok/s"), "2000 GB/s at 1/2, tok/s");
        assert_eq!(said("--model=~/models/a --configs ../mine"), "--model=(path) --configs (path)");
        assert_eq!(said("carols-box, by carol"), "(name), by (name)");
    }

    #[test]
    fn what_is_left_is_found_by_its_field_and_what_was_cleaned_is_not() {
        let value = serde_json::json!({
            "host": "carols-box", "kernel": "6.1-carol", "rows": [{"why": "no /srv/carol/x"}], "a:/b": 1, "n": "tok/s"
        });
        assert_eq!(personal(&value), ["a:/b", "host", "kernel", "rows[0].why"]);
        assert_eq!(personal(&without(value, &[])), [""; 0]);
    }
}
