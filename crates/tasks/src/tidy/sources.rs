//! Rules on the text of sources that neither the compiler nor clippy can express.

use crate::tidy::Finding;

/// The crates that read what users, workers and other programs wrote.
const READERS: [&str; 7] = ["bundle", "comparison", "configs", "driver", "prepare", "protocol", "render"];

/// Files of these crates that may open files directly: kernel files, files opened without following links, and
/// `untrusted::file` itself.
const OPENERS: [&str; 5] = [
    "crates/protocol/src/untrusted/file.rs",
    "crates/driver/src/history_file.rs",
    "crates/driver/src/measure/logits.rs",
    "crates/driver/src/measure/machine/",
    "crates/driver/src/measure/places.rs",
];

pub(super) fn check(name: &str, text: &str) -> Vec<Finding> {
    let mut findings = Vec::new();
    let mut find = |rule, line: usize, remedy| {
        findings.push(Finding { rule, found: format!("{name}:{line}"), remedy });
    };
    let is_source = name.ends_with(".rs");
    let place = name.strip_prefix("crates/").and_then(|rest| rest.split('/').next()).unwrap_or(name);
    let may_set_clock = ["worker", "engine-mock"].contains(&place);
    let may_open = !READERS.contains(&place) || OPENERS.iter().any(|opener| name.starts_with(opener));
    // The file's own tests are its end.
    let end = if is_of_tests(name) { 0 } else { text.find("\nmod tests {").unwrap_or(text.len()) };
    let product_lines = text[..end].lines().count();
    for (index, line) in text.lines().enumerate() {
        let line_number = index + 1;
        if names_a_machine_path(line) {
            let remedy = "write it relative to the repository, or take it from the environment";
            find("no absolute path of a machine", line_number, remedy);
        }
        if is_source && !may_set_clock && names_clock_setter(line) {
            let remedy = "leave the clock to `worker` (crates/worker/src/clock.rs)";
            find("the clock is set by worker and engine-mock alone", line_number, remedy);
        }
        if is_source && !may_open && index < product_lines && opens_file(line) {
            let remedy = "call `untrusted::file::open`, which refuses pipes, devices and endless files";
            find("foreign files are opened with `untrusted::file`", line_number, remedy);
        }
    }
    findings
}

fn is_of_tests(name: &str) -> bool {
    name.contains("/tests/") || name.ends_with("/tests.rs") || name.ends_with("/testing.rs")
}

/// The names are put together from two words, so that this file follows the rule.
fn names_clock_setter(line: &str) -> bool {
    ["stop", "advance"].iter().any(|verb| line.contains(&format!("{verb}_clock")))
}

fn opens_file(line: &str) -> bool {
    let code = line.split("//").next().unwrap_or_default();
    let is_word = |before: &str| before.ends_with(|last: char| last.is_alphanumeric() || last == '_');
    ["File::open(", "fs::read(", "fs::read_to_string("]
        .iter()
        .any(|call| code.match_indices(call).any(|(at, _)| !is_word(&code[..at])))
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

    #[test]
    fn sources_that_break_a_rule_are_found_where_it_holds() {
        let clock = ["stop", "advance"].map(|verb| format!("use worker::{verb}_clock as wait;\n")).concat();
        let opens =
            "fn f() { std::fs::read(path) }\n#[cfg(test)]\nmod tests {\n    fs::read_to_string(x)\n}\n";
        let late = "#[cfg(test)]\nuse x;\nfn f() { File::open(path) }\n";
        for (name, text, count) in [
            ("crates/engine-ort/src/lib.rs", clock.as_str(), 2),
            ("references/rten/benches/x.rs", &clock, 2),
            ("crates/worker/src/lib.rs", &clock, 0),
            ("crates/engine-mock/tests/x.rs", &clock, 0),
            ("crates/engine-ort/src/lib.rs", "let stopped = clock.stop();", 0),
            ("crates/comparison/src/x.rs", opens, 1),
            ("crates/comparison/src/x.rs", late, 1),
            ("crates/engine-ort/src/x.rs", opens, 0),
            ("crates/comparison/tests/x.rs", opens, 0),
            ("crates/protocol/src/untrusted/file.rs", opens, 0),
        ] {
            assert_eq!(check(name, text).len(), count, "{name}: {text}");
        }
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
            assert_eq!(!check("README.md", &line).is_empty(), expected, "{line}");
        }
    }
}
