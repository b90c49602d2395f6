//! Rules on the text of the repository's files.

use std::collections::BTreeMap;

use setup::tooling;

use crate::tidy::{Finding, links};

pub(crate) const NAMED_OF: &str = "a function's name says what it gives";

pub(crate) const BEGINS_WITH_OF: &str = "a doc comment begins with a noun or a verb";

pub(crate) const OPENS_FILE: &str = "foreign files are opened with `untrusted::file`";

pub(crate) const SETS_CLOCK: &str = "the clock is set by worker and engine-mock alone";

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

pub(crate) fn check(name: &str, text: &str) -> Vec<Finding> {
    let mut findings = Vec::new();
    let finding = |rule, found, remedy| Finding { rule, place: place_of(name), found, remedy };
    findings.extend(lines_where(text, |_, line| names_a_machine_path(line)).map(|line| {
        let remedy = "write it relative to the repository, or take it from the environment";
        finding("no absolute path of a machine", format!("{name}:{line} has one"), remedy)
    }));
    if name.ends_with(".md") {
        findings.extend(links::pages_check(name, text));
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

// Every page of docs is in the table of contents of the book, once, and every entry is a page of docs.

const RULE: &str = "the book has every page of docs once";

const SUMMARY: &str = "docs/SUMMARY.md";

pub(crate) fn book_check(texts: &[(String, String)]) -> Vec<Finding> {
    let finding = |place: &str, found, remedy| Finding { rule: RULE, place: place.to_owned(), found, remedy };
    let Some((_, summary)) = texts.iter().find(|(name, _)| name == SUMMARY) else {
        return vec![finding(SUMMARY, format!("{SUMMARY} is missing"), "list the pages of docs in it")];
    };
    let mut listed: BTreeMap<&str, usize> = pages(texts).map(|page| (page, 0)).collect();
    let mut findings = Vec::new();
    for (line, target) in links::targets(summary) {
        let page = links::resolved(SUMMARY, &target);
        match page.as_ref().and_then(|page| listed.get_mut(page.as_str())) {
            Some(count) => *count += 1,
            None => {
                let found = format!("{SUMMARY}:{line} lists {target}, which is no page of docs");
                findings.push(finding(SUMMARY, found, "list pages of docs alone"));
            }
        }
    }
    findings.extend(
        listed.into_iter().filter(|(_, count)| *count != 1).map(|(page, count)| {
            finding(page, format!("{SUMMARY} lists {page} {count} times"), "list it once")
        }),
    );
    findings
}

fn pages(texts: &[(String, String)]) -> impl Iterator<Item = &str> {
    let names = texts.iter().map(|(name, _)| name.as_str());
    names.filter(|name| name.starts_with("docs/") && name.ends_with(".md") && *name != SUMMARY)
}

// Pages are in plain English: idioms that read as translated are counted, page by page.

const IDIOMS_RULE: &str = "a page has at most 3 idioms in 1,000 words";

const MOST_IN_THOUSAND: usize = 3;

/// Pages that still have more. The list only shrinks: a page that keeps to the rule must leave it.
const ABOVE: [&str; 0] = [];

const WORDS: [&str; 17] = [
    "lie",
    "lies",
    "stand",
    "stands",
    "mend",
    "mends",
    "mended",
    "tell",
    "tells",
    "told",
    "who",
    "whoever",
    "whom",
    "nobody",
    "everybody",
    "beside",
    "likewise",
];

const PAIRS: [[&str; 2]; 2] = [["held", "against"], ["hold", "against"]];

/// Relative clauses of persons may begin with *who*; those of programs begin with *which*.
const PERSONS: [&str; 9] =
    ["people", "person", "persons", "users", "readers", "maintainers", "authors", "anyone", "those"];

/// An idiom, and its line.
#[derive(Debug, PartialEq, Eq)]
struct Idiom {
    line: usize,
    words: String,
}

pub(crate) fn idioms_check(texts: &[(String, String)]) -> Vec<Finding> {
    check_but(texts, &ABOVE)
}

/// `above` are the pages that may have more.
fn check_but(texts: &[(String, String)], above: &[&str]) -> Vec<Finding> {
    let is_page = |name: &str| name == "README.md" || (name.starts_with("docs/") && name.ends_with(".md"));
    let finding =
        |name: &str, found, remedy| Finding { rule: IDIOMS_RULE, place: name.to_owned(), found, remedy };
    let mut findings = Vec::new();
    for (name, text) in texts.iter().filter(|(name, _)| is_page(name)) {
        let (idioms, words) = read(text);
        // A single one is many in no page, however short.
        let has_many = idioms.len() > 1 && idioms.len() * 1000 > MOST_IN_THOUSAND * words;
        let is_listed = above.contains(&name.as_str());
        if has_many && !is_listed {
            let places: Vec<String> =
                idioms.iter().map(|idiom| format!("{}: {}", idiom.line, idiom.words)).collect();
            let found = format!("{name} has {} in {words} words ({})", idioms.len(), places.join(", "));
            findings.push(finding(name, found, "say it in plain words: subject, verb, object"));
        } else if is_listed && !has_many {
            let found = format!("{name} is listed as above, with {} in {words} words", idioms.len());
            findings.push(finding(name, found, "take it out of the list in crates/tasks/src/tidy/idioms.rs"));
        }
    }
    let is_missing = |name: &&&str| !texts.iter().any(|(page, _)| page == **name);
    findings.extend(above.iter().filter(is_missing).map(|name| {
        let remedy = "take it out of the list in crates/tasks/src/tidy/idioms.rs";
        finding(name, format!("{name} is listed and does not exist"), remedy)
    }));
    findings
}

/// The idioms of a page, without code, and the number of its words.
fn read(text: &str) -> (Vec<Idiom>, usize) {
    let (_, prose) = tooling::pages::split(text);
    let mut idioms = Vec::new();
    let mut words: Vec<String> = Vec::new();
    for (index, line) in prose.lines().enumerate() {
        let line_number = index + 1;
        let mut found = |words: String| idioms.push(Idiom { line: line_number, words });
        for word in line.split_whitespace().map(plain).filter(|word| !word.is_empty()) {
            let before = words.last().map_or("", String::as_str);
            let is_person = word == "who" && PERSONS.contains(&before);
            if WORDS.contains(&word.as_str()) && !is_person {
                found(word.clone());
            } else if PAIRS.contains(&[before, word.as_str()]) {
                found(format!("{before} {word}"));
            }
            words.push(word);
        }
        let sentences = line.split(". ").flat_map(|part| part.split("| "));
        let clauses = sentences.filter(|sentence| !line.starts_with('#') && begins_with_what(sentence));
        clauses.for_each(|_| found("What …".to_owned()));
    }
    (idioms, words.len())
}

/// A word without the signs around it, in small letters.
fn plain(word: &str) -> String {
    word.trim_matches(|c: char| !c.is_alphanumeric()).to_lowercase()
}

/// Whether a sentence has a clause as its subject ("What it lacks is …"), and is no question.
fn begins_with_what(sentence: &str) -> bool {
    let begins = sentence.trim_start_matches(|c: char| !c.is_alphanumeric()).starts_with("What ");
    begins && !sentence.contains('?')
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
        assert_eq!(rules("crates/comparison/src/x.rs", text), [OPENS_FILE]);
        for name in [
            "crates/engine-ort/src/x.rs",
            "crates/comparison/tests/x.rs",
            "crates/protocol/src/untrusted/file.rs",
        ] {
            assert_eq!(rules(name, text), [""; 0], "{name}");
        }
        let late = "#[cfg(test)]\nuse x;\nfn f() { File::open(path) }\n";
        assert_eq!(rules("crates/comparison/src/x.rs", late), [OPENS_FILE]);
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

    fn found(summary: &str) -> Vec<String> {
        let page = |name: &str, text: &str| (name.to_owned(), text.to_owned());
        let texts = [
            page(SUMMARY, summary),
            page("docs/index.md", "[b](a/b.md)"),
            page("docs/a/b.md", ""),
            page("README.md", ""),
        ];
        book_check(&texts).into_iter().map(|finding| finding.found).collect()
    }

    #[test]
    fn a_book_with_every_page_is_well() {
        assert_eq!(found("[Index](index.md)\n\n- [B](a/b.md)\n"), [""; 0]);
    }

    #[test]
    fn a_page_must_be_listed_once() {
        assert_eq!(found("[Index](index.md)\n"), ["docs/SUMMARY.md lists docs/a/b.md 0 times"]);
        let twice = "[Index](index.md)\n- [B](a/b.md)\n- [C](a/b.md)\n";
        assert_eq!(found(twice), ["docs/SUMMARY.md lists docs/a/b.md 2 times"]);
    }

    #[test]
    fn an_entry_must_be_a_page_of_docs() {
        for target in ["a/none.md", "../README.md", "SUMMARY.md"] {
            let summary = format!("[Index](index.md)\n- [B](a/b.md)\n- [x]({target})\n");
            let expected = format!("docs/SUMMARY.md:3 lists {target}, which is no page of docs");
            assert_eq!(found(&summary), [expected]);
        }
    }

    #[test]
    fn a_book_needs_its_table_of_contents() {
        assert_eq!(book_check(&[]).len(), 1);
    }

    fn idioms(text: &str) -> Vec<String> {
        read(text).0.into_iter().map(|idiom| format!("{} {}", idiom.line, idiom.words)).collect()
    }

    #[test]
    fn idioms_are_found_with_their_lines() {
        assert_eq!(idioms("It stands\nbeside **nobody**."), ["1 stands", "2 beside", "2 nobody"]);
        assert_eq!(idioms("It is held\nagainst it, likewise."), ["2 held against", "2 likewise"]);
        assert_eq!(idioms("A framework who waits, people who wait"), ["1 who"]);
        assert_eq!(idioms("| a | What it lacks is missing. What is it? |"), ["1 What …"]);
    }

    #[test]
    fn code_headings_and_other_words_are_free() {
        assert_eq!(idioms("## What is measured\n\n`told` understands besides\n\n```\nlies\n```\n"), [""; 0]);
        assert_eq!(read("one `two` three | 4 |").1, 3);
    }

    #[test]
    fn three_in_a_thousand_words_are_allowed() {
        let page = |idioms: usize, words: usize| {
            let text = "told ".repeat(idioms) + &"word ".repeat(words - idioms);
            [("docs/a.md".to_owned(), text), ("crates/a/README.md".to_owned(), "told".to_owned())]
        };
        assert_eq!(check_but(&page(3, 1000), &[]), []);
        let found = check_but(&page(4, 1000), &[]);
        assert!(found[0].found.starts_with("docs/a.md has 4 in 1000 words (1: told, "), "{found:?}");
        assert_eq!(check_but(&page(4, 1000), &["docs/a.md"]), []);
    }

    #[test]
    fn the_list_of_pages_above_must_shrink() {
        let page = [("docs/a.md".to_owned(), "plain words".to_owned())];
        assert_eq!(
            check_but(&page, &["docs/a.md"])[0].found,
            "docs/a.md is listed as above, with 0 in 2 words"
        );
        assert_eq!(check_but(&[], &["docs/a.md"])[0].found, "docs/a.md is listed and does not exist");
    }
}
