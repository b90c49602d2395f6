//! Small pieces of text that several outputs share.

use history::Record;
use judge::report::Figure;

/// The text in place of a missing figure.
pub(crate) const DASH: &str = "–";

/// A value, or a dash.
pub(crate) fn or_dash<T>(value: Option<T>, text: impl FnOnce(T) -> String) -> String {
    value.map_or_else(|| DASH.to_owned(), text)
}

/// A number for programs, with every digit; empty if there is none.
pub(crate) fn exact(value: Option<f64>) -> String {
    value.map_or_else(String::new, |value| value.to_string())
}

/// An interval as "1.20 – 1.40"; empty if there is none.
pub(crate) fn range(interval: Option<(f64, f64)>) -> String {
    interval
        .map_or_else(String::new, |(low, high)| format!("{} – {}", charts::number(low), charts::number(high)))
}

/// A change as "+11.0 %".
pub(crate) fn change(share: f64) -> String {
    format!("{:+.1} %", share * 100.0).replace("-0.0 %", "+0.0 %")
}

/// The figures of the processes that have one.
pub(crate) fn known(figure: &Figure) -> Vec<f64> {
    figure.values.iter().copied().flatten().collect()
}

/// The 95 % interval of the median over processes.
pub(crate) fn interval(figure: &Figure) -> Option<(f64, f64)> {
    statistics::median_interval(&known(figure))
}

/// The names, each once, in the order of first appearance.
pub(crate) fn distinct(names: impl Iterator<Item = String>) -> Vec<String> {
    let mut seen = std::collections::BTreeSet::new();
    names.filter(|name| seen.insert(name.clone())).collect()
}

/// An RFC 3339 time as "2026-01-01 00:00:00".
pub(crate) fn second(time: &str) -> String {
    time.split('.').next().unwrap_or_default().trim_end_matches('Z').replace('T', " ")
}

/// An RFC 3339 time as "2026-01-01".
pub(crate) fn day(time: &str) -> String {
    time.get(..10).unwrap_or(time).to_owned()
}

/// An RFC 3339 time as "2026-01-01 00:00".
pub(crate) fn minute(time: &str) -> String {
    time.get(..16).unwrap_or(time).replace('T', " ")
}

/// The first digits of the commit, with a plus if tracked files differed from it.
pub(crate) fn commit(record: &Record) -> String {
    let short = or_dash(record.git_commit.as_ref(), |commit| commit.chars().take(8).collect());
    if record.git_modified == Some(true) { short + "+" } else { short }
}

/// The host, with enough of the fingerprint to distinguish machines.
pub(crate) fn machine(record: &Record) -> String {
    let fingerprint: String = record.machine.fingerprint.chars().take(8).collect();
    format!("{} ({fingerprint})", record.machine.host)
}

/// Lines of at most 100 characters; a longer word has a line of its own.
pub(crate) fn wrapped(text: &str) -> String {
    wrapped_at(text, 100)
}

/// Lines of at most `width` characters; a longer word has a line of its own.
pub(crate) fn wrapped_at(text: &str, width: usize) -> String {
    let mut lines = vec![String::new()];
    for word in text.split_whitespace() {
        let line = lines.last_mut().expect("there is one from the start");
        if line.is_empty() {
            *line = word.to_owned();
        } else if line.chars().count() + 1 + word.chars().count() <= width {
            *line += &format!(" {word}");
        } else {
            lines.push(word.to_owned());
        }
    }
    lines.join("\n")
}
