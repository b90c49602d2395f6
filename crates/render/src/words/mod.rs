//! A report in words, and small pieces of text that several outputs share.

pub(crate) mod amounts;
pub(crate) mod answer;
pub(crate) mod command;
pub(crate) mod effort;
mod findings;
mod gpu;
mod json;
pub(crate) mod verdicts;
pub(crate) mod warnings;
mod work;

use history::Record;
use judge::report::{Figure, Reason, Row, State};
use serde::{Serialize, Serializer};

use crate::screen::Tone;

pub(crate) use crate::table::DASH;
pub(crate) use findings::summary;
pub(crate) use json::Json;

/// A report in words: the text above and below the table.
#[derive(Debug, Clone, Default, PartialEq, Serialize)]
pub(crate) struct Summary {
    /// The answer in one or two sentences, which every output begins with.
    pub(crate) answer: Vec<String>,
    /// The subject of the measurement: the model, the hardware, the work, and whose code computed it.
    pub(crate) heading: String,
    /// Why rows have no figures or no part in verdicts, and what else limits the answer.
    pub(crate) notes: Vec<Line>,
    /// The verdict on every pair and metric.
    pub(crate) verdicts: Vec<Line>,
    /// Further findings.
    pub(crate) details: Vec<Line>,
}

/// A sentence with a line of its own.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Line {
    pub(crate) tone: Tone,
    pub(crate) text: String,
    /// Whether it limits the trust in the figures; the page shows such lines separately.
    pub(crate) qualifies: bool,
    /// Whether the page has a table with the same.
    pub(crate) is_tabled: bool,
    /// Length of the label before the sentence, which a page leaves out among others of the kind.
    label: usize,
}

impl Line {
    pub(crate) fn new(tone: Tone, text: impl Into<String>) -> Line {
        Line { tone, text: text.into(), qualifies: false, is_tabled: false, label: 0 }
    }

    pub(crate) fn plain(text: impl Into<String>) -> Line {
        Line::new(Tone::Plain, text)
    }

    /// One that says how far the figures can be trusted.
    pub(crate) fn qualifying(tone: Tone, text: impl Into<String>) -> Line {
        Line { qualifies: true, ..Line::new(tone, text) }
    }

    /// One that says how far the figures can be trusted, labelled as a warning.
    pub(crate) fn warning(text: &str) -> Line {
        const LABEL: &str = "warning: ";
        Line { label: LABEL.len(), ..Line::qualifying(Tone::Warning, format!("{LABEL}{text}")) }
    }

    /// The sentence without its label.
    pub(crate) fn unlabelled(&self) -> &str {
        &self.text[self.label..]
    }

    fn tabled(text: String) -> Line {
        Line { is_tabled: true, ..Line::plain(text) }
    }
}

/// Files have the text alone.
impl Serialize for Line {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        self.text.serialize(serializer)
    }
}

/// The name of a row: "candle", or "candle ✗ R5" where rule R5 is the first reason why it was struck.
pub(crate) fn title(row: &Row) -> String {
    titled(&row.framework, row.state, &row.reasons)
}

/// The same of a row of a study.
pub(crate) fn titled(framework: &str, state: State, reasons: &[Reason]) -> String {
    match (state, reasons.first()) {
        (State::Struck, Some(Reason::Rule { id, .. })) => format!("{framework} ✗ {id}"),
        (State::Struck, _) => format!("{framework} ✗"),
        _ => framework.to_owned(),
    }
}

/// A value, or a dash.
pub(crate) fn or_dash<T>(value: Option<T>, text: impl FnOnce(T) -> String) -> String {
    value.map_or_else(|| DASH.to_owned(), text)
}

/// A number for programs, with every digit; empty if there is none.
pub(crate) fn exact(value: Option<f64>) -> String {
    value.map_or_else(String::new, |value| value.to_string())
}

/// Two ends as "1.20 – 1.40"; empty if there are none.
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

/// Whether a word is a path, as opposed to a name such as `hf:owner/name`.
pub(crate) fn is_path(word: &str) -> bool {
    word.starts_with(['/', '~', '.']) || word.get(1..3).is_some_and(|drive| drive == ":\\")
}

/// The last part of a path; any other word as it is.
pub(crate) fn without_directories(word: &str) -> String {
    if !is_path(word) {
        return word.to_owned();
    }
    let last = word.trim_end_matches(['/', '\\']).rsplit(['/', '\\']).next();
    last.filter(|last| !last.is_empty()).unwrap_or(word).to_owned()
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
    short_commit(record.git_commit.as_deref(), record.git_modified)
}

/// The first signs of a commit, with a `+` where files differed from it.
pub(crate) fn short_commit(commit: Option<&str>, modified: Option<bool>) -> String {
    let short = or_dash(commit, |commit| commit.chars().take(8).collect());
    if modified == Some(true) { short + "+" } else { short }
}

/// The host, with enough of the fingerprint to distinguish machines.
pub(crate) fn machine(record: &Record) -> String {
    let fingerprint: String = record.machine.fingerprint.chars().take(8).collect();
    format!("{} ({fingerprint})", record.machine.host)
}

/// Lines of at most 100 columns; a longer word has a line of its own.
pub(crate) fn wrapped(text: &str) -> String {
    wrapped_at(text, 100)
}

/// Lines of at most `width` columns; a longer word has a line of its own.
pub(crate) fn wrapped_at(text: &str, width: usize) -> String {
    textwrap::fill(text, textwrap::Options::new(width).break_words(false))
}
