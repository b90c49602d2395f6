//! Rules on the text of the repository's files.

use crate::tidy::{Finding, pages};

pub(crate) const NAMED_OF: &str = "a function's name says what it gives";
pub(crate) const BEGINS_WITH_OF: &str = "a doc comment begins with a noun or a verb";
pub(crate) const OPENS_FILE: &str = "foreign files are opened with `untrusted::file`";
pub(crate) const SETS_CLOCK: &str = "the clock is set by worker and engine-mock alone";

/// The crates that read what users, workers and other programs wrote.
const READERS: [&str; 13] = [
    "bundle",
    "configs",
    "driver",
    "facts",
    "untrusted",
    "history",
    "judge",
    "measure",
    "plan",
    "prepare",
    "protocol",
    "render",
    "worker-check",
];
/// Files of these crates that may open files directly: kernel files, files opened without following links, and
/// `untrusted::file` itself.
const OPENERS: [&str; 4] = [
    "crates/untrusted-input/src/file.rs",
    "crates/measure/src/environment.rs",
    "crates/measure/src/logits.rs",
    "crates/measure/src/machine/",
];

pub(crate) fn check(name: &str, text: &str) -> Vec<Finding> {
    let mut findings = Vec::new();
    let finding = |rule, found, remedy| Finding { rule, place: place_of(name), found, remedy };
    findings.extend(lines_where(text, |_, line| names_a_machine_path(line)).map(|line| {
        let remedy = "write it relative to the repository, or take it from the environment";
        finding("no absolute path of a machine", format!("{name}:{line} has one"), remedy)
    }));
    if name.ends_with(".md") {
        findings.extend(pages::check(name, text));
    }
    if !name.ends_with(".rs") {
        return findings;
    }
    if !["worker", "engine-mock"].contains(&place_of(name).as_str()) {
        findings.extend(lines_where(text, |_, line| names_clock_setter(line)).map(|line| {
            let remedy = "leave the clock to `worker` (crates/worker/src/clock.rs)";
            finding(SETS_CLOCK, format!("{name}:{line} names what sets it"), remedy)
        }));
    }
    if READERS.contains(&place_of(name).as_str()) && !OPENERS.iter().any(|opener| name.starts_with(opener)) {
        findings.extend(lines_where(product_of(name, text), |_, line| opens_file(line)).map(|line| {
            let remedy = "call `untrusted::file::open`, which refuses pipes, devices and endless files";
            finding(OPENS_FILE, format!("{name}:{line} opens a file directly"), remedy)
        }));
    }
    findings.extend(lines_where(text, is_named_of).map(|line| {
        finding(NAMED_OF, format!("{name}:{line} is called `of`"), "name it for what it gives, or `new`")
    }));
    let comments = lines_where(text, begins_with_of);
    findings
        .extend(comments.map(|line| {
            finding(BEGINS_WITH_OF, format!("{name}:{line} begins with `Of`"), "say what it is")
        }));
    findings
}

/// The crate that a file belongs to, or the file itself.
pub(crate) fn place_of(name: &str) -> String {
    match name.split('/').collect::<Vec<_>>().as_slice() {
        ["crates", crate_name, _, ..] => (*crate_name).to_owned(),
        ["references", crate_name, _, ..] => format!("reference-{crate_name}"),
        ["xtask", _, ..] => "xtask".to_owned(),
        _ => name.to_owned(),
    }
}

/// Numbers of the lines for which this holds, given the line before each.
fn lines_where(text: &str, holds: fn(&str, &str) -> bool) -> impl Iterator<Item = usize> {
    let before = std::iter::once("").chain(text.lines());
    let pairs = before.zip(text.lines()).enumerate();
    pairs.filter(move |(_, (before, line))| holds(before.trim(), line.trim())).map(|(index, _)| index + 1)
}

/// The names are put together from two words, so that this file follows the rule.
fn names_clock_setter(line: &str) -> bool {
    ["stop", "advance"].iter().any(|verb| line.contains(&format!("{verb}_clock")))
}

/// The text without the file's own tests; empty for a file of tests.
fn product_of<'a>(name: &str, text: &'a str) -> &'a str {
    if name.contains("/tests/") || name.ends_with("/tests.rs") || name.ends_with("/testing.rs") {
        return "";
    }
    text.split("\nmod tests {").next().unwrap_or_default()
}

fn opens_file(line: &str) -> bool {
    let code = line.split("//").next().unwrap_or_default();
    let is_word = |before: &str| before.ends_with(|last: char| last.is_alphanumeric() || last == '_');
    ["File::open(", "fs::read(", "fs::read_to_string("]
        .iter()
        .any(|call| code.match_indices(call).any(|(at, _)| !is_word(&code[..at])))
}

fn is_named_of(_: &str, line: &str) -> bool {
    ["fn of(", "fn of<"].iter().any(|start| line.split('"').next().is_some_and(|code| code.contains(start)))
}

fn begins_with_of(before: &str, line: &str) -> bool {
    let is_comment =
        |line: &str, of: &str| ["///", "//!"].iter().any(|start| line.starts_with(&format!("{start}{of}")));
    is_comment(line, " Of ") && !is_comment(before, " ")
}

/// A path into a directory that only this or that machine has: its user's, its work.
fn names_a_machine_path(line: &str) -> bool {
    let begins_path = |before: &str| {
        before.chars().next_back().is_none_or(|last| last.is_whitespace() || "\"'`=([{<>,;:|".contains(last))
    };
    let in_name = |c: char| c.is_alphanumeric() || c == '_' || c == '.' || c == '-';
    ["home", "root", "work", "tmp"].iter().any(|directory| {
        let prefix = format!("/{directory}/");
        line.match_indices(&prefix).any(|(at, _)| {
            let rest = &line[at + prefix.len()..];
            let after_name = rest.trim_start_matches(in_name);
            // A file directly in the directory for temporary files belongs to no machine in particular.
            let is_path =
                after_name.len() < rest.len() && (*directory != "tmp" || after_name.starts_with('/'));
            begins_path(&line[..at]) && is_path
        })
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rules(name: &str, text: &str) -> Vec<&'static str> {
        check(name, text).into_iter().map(|finding| finding.rule).collect()
    }

    #[test]
    fn what_sets_the_clock_is_found_outside_worker_and_mock() {
        for verb in ["stop", "advance"] {
            let text = format!("use worker::{verb}_clock as wait;\n");
            assert_eq!(rules("crates/engine-ort/src/lib.rs", &text), [SETS_CLOCK]);
            assert_eq!(rules("references/rten/benches/x.rs", &text), [SETS_CLOCK]);
            assert_eq!(rules("crates/worker/src/lib.rs", &text), [""; 0]);
            assert_eq!(rules("crates/engine-mock/tests/x.rs", &text), [""; 0]);
        }
        assert_eq!(rules("crates/engine-ort/src/lib.rs", "let stopped = clock.stop();"), [""; 0]);
    }

    #[test]
    fn a_file_of_others_that_is_opened_otherwise_is_found() {
        let text =
            "fn f() { std::fs::read(path) }\n#[cfg(test)]\nmod tests {\n    fs::read_to_string(x)\n}\n";
        assert_eq!(rules("crates/plan/src/x.rs", text), [OPENS_FILE]);
        for name in
            ["crates/engine-ort/src/x.rs", "crates/plan/tests/x.rs", "crates/untrusted-input/src/file.rs"]
        {
            assert_eq!(rules(name, text), [""; 0], "{name}");
        }
        let late = "#[cfg(test)]\nuse x;\nfn f() { File::open(path) }\n";
        assert_eq!(rules("crates/plan/src/x.rs", late), [OPENS_FILE]);
    }

    #[test]
    fn a_path_of_a_machine_is_found() {
        // Spelt so that this file does not break the rule.
        for (line, expected) in [
            ("LIBTORCH=@home/someone/libtorch", true),
            ("see `@work/main`", true),
            ("@root/.cache", true),
            ("\"@tmp/x/y\"", true),
            ("@tmp/x", false),
            ("https://example.org@home/page", false),
            ("target@work/x", false),
            ("the directory @home/", false),
            ("~@work/x", false),
        ] {
            let line = line.replace('@', "/");
            assert_eq!(names_a_machine_path(&line), expected, "{line}");
            assert_eq!(!check("README.md", &line).is_empty(), expected, "{line}");
        }
    }

    #[test]
    fn a_function_called_of_is_found() {
        let rules = |text: &str| rules("crates/x/src/lib.rs", text);
        assert_eq!(rules("    pub fn of(x: u8) -> Self {"), [NAMED_OF]);
        assert_eq!(rules("fn of<T>(x: T) {}"), [NAMED_OF]);
        assert_eq!(rules("fn offer(x: u8) {}\nlet x = \"fn of(\";"), [""; 0]);
    }

    #[test]
    fn a_doc_comment_that_begins_with_of_is_found() {
        let rules = |text: &str| rules("crates/x/src/lib.rs", text);
        assert_eq!(rules("/// Of the whole process.\nfn f() {}"), [BEGINS_WITH_OF]);
        assert_eq!(rules("//! Of tests.\n"), [BEGINS_WITH_OF]);
        assert_eq!(rules("/// The size\n/// Of this.\n// Of that.\n/// Often."), [""; 0]);
    }

    #[test]
    fn a_file_belongs_to_its_crate() {
        let places = ["crates/a/src/lib.rs", "references/gguf/src/lib.rs", "xtask/src/main.rs", "docs/a.md"];
        assert_eq!(places.map(place_of), ["a", "reference-gguf", "xtask", "docs/a.md"]);
    }
}
