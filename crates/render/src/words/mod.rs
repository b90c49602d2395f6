//! A report in words, and small pieces of text that several outputs share.

pub(crate) mod answer;
pub(crate) mod findings;
pub(crate) mod verdicts;

use comparison::history::Record;
use comparison::judge::report::{Figure, Reason, Row, State};
pub(crate) use findings::summary;
use serde::{Deserialize, Serialize, Serializer};
use serde_json::Value;

pub(crate) use crate::table::DASH;
use crate::table::Tone;

/// A report in words: the text above and below the table.
#[derive(Debug, Clone, Default, PartialEq, Serialize)]
pub(crate) struct Summary {
    /// The answer in one or two sentences, which every output begins with.
    pub(crate) answer: Vec<String>,
    /// The subject of the measurement: the model, the hardware, the work, and whose code computed it.
    pub(crate) heading: String,
    /// Why rows have no figures or no part in verdicts, and what else limits the answer.
    pub(crate) notes: Vec<Line>,
    pub(crate) verdicts: Vec<Line>,
    pub(crate) details: Vec<Line>,
}

/// A sentence with a line of its own.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Line {
    pub(crate) tone: Tone,
    pub(crate) text: String,
    /// Whether it limits the trust in the figures; the page shows such lines separately.
    pub(crate) qualifies: bool,
    /// Length of the label before the sentence, which a page leaves out among others of the kind.
    label: usize,
}

impl Line {
    pub(crate) fn new(tone: Tone, text: impl Into<String>) -> Line {
        Line { tone, text: text.into(), qualifies: false, label: 0 }
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

    pub(crate) fn unlabelled(&self) -> &str {
        &self.text[self.label..]
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

pub(crate) fn or_dash<T>(value: Option<T>, text: impl FnOnce(T) -> String) -> String {
    value.map_or_else(|| DASH.to_owned(), text)
}

/// A readable value, with a minus sign.
pub(crate) fn number(value: f64) -> String {
    comparison::judge::report::number(value).replace('-', "−")
}

/// Two ends as "1.20 – 1.40"; empty if there are none.
pub(crate) fn range(interval: Option<(f64, f64)>) -> String {
    interval.map_or_else(String::new, |(low, high)| format!("{} – {}", number(low), number(high)))
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

/// "1 round", "3 rounds".
pub(crate) fn count(number: usize, noun: &str) -> String {
    if number == 1 { format!("1 {noun}") } else { format!("{number} {noun}s") }
}

/// The values of each key, in the order of its first appearance.
pub(crate) fn grouped<K: PartialEq, V>(pairs: impl IntoIterator<Item = (K, V)>) -> Vec<(K, Vec<V>)> {
    let mut groups: Vec<(K, Vec<V>)> = Vec::new();
    for (key, value) in pairs {
        match groups.iter_mut().find(|(other, _)| *other == key) {
            Some((_, values)) => values.push(value),
            None => groups.push((key, vec![value])),
        }
    }
    groups
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

/// Lines of at most `width` columns; a longer word has a line of its own.
pub(crate) fn wrapped_at(text: &str, width: usize) -> String {
    textwrap::fill(text, textwrap::Options::new(width).break_words(false))
}

// Ratios and figures in words. There is one form of a ratio: "1.09x".

/// Beyond this an interval says nothing that a reader could use.
const BEYOND: f64 = 1000.0;

/// How many times: "1.09x", "3.4x", "38x". Where two digits would say 1, there are three.
pub(crate) fn times(ratio: f64) -> String {
    let decimals = if ratio != 1.0 && (ratio - 1.0).abs() < 0.005 { 3 } else { decimals(ratio) };
    format!("{ratio:.decimals$}x")
}

/// Both ends: "1.04–1.14".
pub(crate) fn between(low: f64, high: f64) -> String {
    if !(high < BEYOND && low > 1.0 / BEYOND) {
        return "no useful interval".to_owned();
    }
    let with = |decimals: usize| [low, high].map(|end| format!("{end:.decimals$}"));
    let [from, to] = with(decimals(low));
    let [from, to] = if from == to && low < high { with(3) } else { [from, to] };
    format!("{from}–{to}")
}

fn decimals(ratio: f64) -> usize {
    match ratio {
        ratio if ratio >= 9.95 => 0,
        ratio if ratio >= 1.995 => 1,
        _ => 2,
    }
}

/// A figure of the table: at most three digits, and never fewer than the unit.
pub(crate) fn figure(value: f64) -> String {
    let decimals = match value.abs() {
        v if v >= 99.95 => 0,
        v if v >= 9.995 => 1,
        v if v >= 0.095 || v == 0.0 => 2,
        v if v >= 0.0095 => 3,
        _ => 4,
    };
    format!("{value:.decimals$}")
}

/// Figures of a sentence: as few digits as keep unlike figures apart.
pub(crate) fn figures(values: &[f64]) -> Vec<String> {
    let short = |value: &f64| match value.abs() {
        v if v >= 9.95 => format!("{value:.0}"),
        v if v >= 0.995 => format!("{value:.1}"),
        _ => figure(*value),
    };
    let texts: Vec<String> = values.iter().map(short).collect();
    let are_apart = (1..texts.len()).all(|at| values[at] == values[at - 1] || texts[at] != texts[at - 1]);
    if are_apart { texts } else { values.iter().map(|&value| figure(value)).collect() }
}

/// "p = 0.012".
pub(crate) fn p(p: f64) -> String {
    let text = p_alone(p);
    if text.starts_with('<') { format!("p {text}") } else { format!("p = {text}") }
}

/// Two digits are enough.
fn p_alone(p: f64) -> String {
    let text = match p {
        p if p < 0.0001 => "< 0.0001".to_owned(),
        p if p < 0.001 => format!("{p:.4}"),
        p if p < 0.1 => format!("{p:.3}"),
        p => format!("{p:.2}"),
    };
    text.trim_end_matches('0').trim_end_matches('.').to_owned()
}

// A command as it is repeated on another machine.

/// Flags that say where things are on one machine.
const OF_A_MACHINE: [&str; 5] = ["--configs", "--workers", "--results-dir", "--resume", "--export"];

/// The command for another machine, and the last parts of paths that it named.
pub(crate) fn elsewhere(command: &[String], seed: Option<u64>) -> (Vec<String>, Vec<String>) {
    let (mut told, mut local) = (vec!["photofinish".to_owned()], Vec::new());
    let mut given = command.iter().skip(1);
    while let Some(word) = given.next() {
        let (name, value) =
            word.split_once('=').map_or((word.as_str(), None), |(name, value)| (name, Some(value)));
        if OF_A_MACHINE.contains(&name) {
            if value.is_none() {
                given.next();
            }
        } else if let Some(path) = value.filter(|value| is_path(value)) {
            told.push(format!("{name}={}", last(path, &mut local)));
        } else if is_path(word) {
            told.push(last(word, &mut local));
        } else {
            told.push(word.clone());
        }
    }
    if let Some(seed) =
        seed.filter(|_| !told.iter().any(|word| word == "--seed" || word.starts_with("--seed=")))
    {
        told.extend(["--seed".to_owned(), seed.to_string()]);
    }
    (told, local)
}

fn last(path: &str, local: &mut Vec<String>) -> String {
    let name = without_directories(path);
    local.push(name.clone());
    name
}

pub(crate) fn quoted(words: &[String]) -> String {
    let is_bare = |c: char| c.is_ascii_alphanumeric() || "-_.,=:/+@%".contains(c);
    let quoted = |word: &String| match shlex::try_quote(word) {
        // A list of names stays bare, since people read it.
        _ if !word.is_empty() && word.chars().all(is_bare) => word.clone(),
        Ok(quoted) => quoted.into_owned(),
        // A word with a NUL cannot be quoted for a shell.
        Err(_) => word.clone(),
    };
    words.iter().map(quoted).collect::<Vec<_>>().join(" ")
}

// JSON to which sentences are added. Fields keep their order, which `serde_json::Value` does not.

/// A value with its fields in order.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(untagged)]
pub enum Json {
    Fields(#[serde(with = "in_order")] Vec<(String, Json)>),
    List(Vec<Json>),
    /// A number, a text, true, false or null.
    Plain(Value),
}

mod in_order {
    use std::fmt;

    use serde::de::{Deserializer, MapAccess, Visitor};
    use serde::ser::Serializer;

    use super::Json;

    type Fields = Vec<(String, Json)>;

    pub(super) fn serialize<S: Serializer>(fields: &Fields, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_map(fields.iter().map(|(name, value)| (name, value)))
    }

    pub(super) fn deserialize<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Fields, D::Error> {
        struct InOrder;

        impl<'de> Visitor<'de> for InOrder {
            type Value = Fields;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("an object")
            }

            fn visit_map<A: MapAccess<'de>>(self, mut entries: A) -> Result<Fields, A::Error> {
                let mut fields = Vec::new();
                while let Some(field) = entries.next_entry()? {
                    fields.push(field);
                }
                Ok(fields)
            }
        }
        deserializer.deserialize_map(InOrder)
    }
}

impl Json {
    pub(crate) fn new(value: &impl Serialize) -> Json {
        let text = serde_json::to_string(value).expect("plain data serialises");
        serde_json::from_str(&text).expect("what was written is read")
    }

    pub(crate) fn pretty(&self) -> String {
        serde_json::to_string_pretty(self).expect("plain data serialises")
    }

    pub(crate) fn field(&mut self, name: &str) -> Option<&mut Json> {
        let Json::Fields(fields) = self else { return None };
        fields.iter_mut().find(|(other, _)| other == name).map(|(_, value)| value)
    }

    /// Adds a field to this object, or replaces the field's value.
    pub(crate) fn set(&mut self, name: &str, value: Json) {
        if let Some(old) = self.field(name) {
            *old = value;
        } else if let Json::Fields(fields) = self {
            fields.push((name.to_owned(), value));
        }
    }

    /// Changes each item of the list `name` by the value that it was written from.
    pub(crate) fn each<T>(&mut self, name: &str, values: &[T], change: impl Fn(&mut Json, &T)) {
        if let Some(Json::List(items)) = self.field(name) {
            items.iter_mut().zip(values).for_each(|(item, value)| change(item, value));
        }
    }
}

impl From<String> for Json {
    fn from(text: String) -> Json {
        Json::Plain(text.into())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_have_three_digits() {
        assert_eq!([number(1234.5), number(12.34), number(-0.01234)], ["1234", "12.3", "−0.012"]);
    }

    #[test]
    fn a_ratio_has_two_or_three_digits_and_is_never_rounded_to_nothing() {
        let ratios = [1.004, 1.0, 1.094, 1.996, 3.41, 14.2, 0.97];
        assert_eq!(ratios.map(times), ["1.004x", "1.00x", "1.09x", "2.0x", "3.4x", "14x", "0.97x"]);
        assert_eq!(between(0.9799, 1.3101), "0.98–1.31");
        assert_eq!([between(1.0, 1.002), between(1.8, 2.01)], ["1.000–1.002", "1.80–2.01"]);
        assert_eq!(between(1e-9, 1e9), "no useful interval");
    }

    #[test]
    fn a_figure_has_three_digits_and_a_sentence_two() {
        assert_eq!(
            [0.1012, 48.04, 626.6, 0.0123, 14_993.0].map(figure),
            ["0.10", "48.0", "627", "0.012", "14993"]
        );
        assert_eq!(figures(&[54.3, 49.8]), ["54", "50"]);
        assert_eq!(figures(&[54.3, 53.9]), ["54.3", "53.9"]);
    }

    #[test]
    fn p_has_two_digits() {
        assert_eq!(
            [0.00001, 0.00041, 0.0078, 0.081, 1.0].map(p),
            ["p < 0.0001", "p = 0.0004", "p = 0.008", "p = 0.081", "p = 1"]
        );
    }

    fn told(command: &str, seed: Option<u64>) -> (String, Vec<String>) {
        let words: Vec<String> = command.split(' ').map(str::to_owned).collect();
        let (words, local) = elsewhere(&words, seed);
        (words.join(" "), local)
    }

    #[test]
    fn places_of_one_machine_go_and_the_seed_comes() {
        let (line, local) = told(
            "target/release/photofinish --configs configs --workers=target/release --results-dir results",
            Some(7),
        );
        assert_eq!((line.as_str(), local.len()), ("photofinish --seed 7", 0));
        let (line, _) = told("photofinish compare --seed 3 --quick", Some(3));
        assert_eq!(line, "photofinish compare --seed 3 --quick");
        let (line, _) = told("photofinish sweep generate --batch 1,2 --results-dir /x", None);
        assert_eq!(line, "photofinish sweep generate --batch 1,2");
    }

    #[test]
    fn a_path_leaves_its_name() {
        let (line, local) = told("photofinish --model ~/models/tiny/ --prompt-file=../p.txt", None);
        assert_eq!(line, "photofinish --model tiny --prompt-file=p.txt");
        assert_eq!(local, ["tiny", "p.txt"]);
    }

    #[test]
    fn sentences_are_added_and_all_else_stays_as_it_was_written() {
        let text = r#"{"b":[{"x":0.1,"a":null},{"x":-1}],"a":{"k":"v"}}"#;
        let mut json: Json = serde_json::from_str(text).unwrap();
        assert_eq!(serde_json::to_string(&json).unwrap(), text);
        json.each("b", &["one", "two"], |item, told| item.set("told", (*told).to_owned().into()));
        json.field("a").unwrap().set("k", "w".to_owned().into());
        assert_eq!(json.field("missing"), None);
        let told = r#"{"b":[{"x":0.1,"a":null,"told":"one"},{"x":-1,"told":"two"}],"a":{"k":"w"}}"#;
        assert_eq!(serde_json::to_string(&json).unwrap(), told);
    }
}
