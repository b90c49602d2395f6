//! Figures as flat lines: every CSV is made of them.

use serde_json::Value;

use crate::table::Table;

/// Names with their values, in order.
pub(crate) type Line = Vec<(String, Value)>;

/// The name of a column, and its value in the line of a `T`.
pub(crate) type Field<T> = (&'static str, fn(&T) -> Value);

/// Pairs of names and values as a line.
pub(crate) fn line<const N: usize>(fields: [(&str, Value); N]) -> Line {
    fields.map(|(name, value)| (name.to_owned(), value)).into()
}

/// A table with these columns, which it has without a line too, and one for every other name that occurs in a line.
pub(crate) fn table(titles: &[&str], lines: &[Line]) -> Table {
    let mut names: Vec<&str> = titles.to_vec();
    for (name, _) in lines.iter().flatten() {
        if !names.contains(&name.as_str()) {
            names.push(name);
        }
    }
    let mut table = Table::plain(names.iter().copied());
    for line in lines {
        let value = |name: &&str| line.iter().find(|(found, _)| found == name).map(|(_, value)| cell(value));
        table.add(names.iter().map(|name| value(name).unwrap_or_default()));
    }
    table
}

/// Booleans are spelt as in Python, which pandas, DuckDB and scripts that compare text all accept.
fn cell(value: &Value) -> String {
    match value {
        Value::Null => String::new(),
        Value::Bool(true) => "True".into(),
        Value::Bool(false) => "False".into(),
        Value::String(text) => text.clone(),
        Value::Number(number) if number.is_f64() => number.as_f64().unwrap_or_default().to_string(),
        other => other.to_string(),
    }
}
