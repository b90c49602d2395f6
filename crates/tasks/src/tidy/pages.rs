//! Rules on pages: links lead somewhere, the book has every page of docs, and prose is in plain English.

use std::collections::{BTreeMap, BTreeSet};

use setup::tooling::pages;

use crate::tidy::Finding;

/// Pages that a program writes, with their own test.
const GENERATED: &str = "results/published/";

/// Links of pages lead to a file of the repository, and to a heading if they name one.
pub(super) fn links(texts: &[(String, String)], files: &[String]) -> Vec<Finding> {
    let mut tree = BTreeSet::new();
    for file in files {
        let ends = file.match_indices('/').map(|(end, _)| end).chain([file.len()]);
        tree.extend(ends.map(|end| &file[..end]));
    }
    let is_page = |name: &str| name.ends_with(".md") && !name.starts_with(GENERATED);
    let pages: BTreeMap<&str, &str> = texts
        .iter()
        .map(|(name, text)| (name.as_str(), text.as_str()))
        .filter(|(name, _)| is_page(name))
        .collect();
    let headings: BTreeMap<&str, BTreeSet<String>> =
        pages.iter().map(|(name, text)| (*name, headings(text))).collect();
    let mut findings = Vec::new();
    for (page, text) in &pages {
        for (line, target) in targets(text) {
            let (path, heading) = target.split_once('#').unwrap_or((target.as_str(), ""));
            let file = if path.is_empty() { Some((*page).to_owned()) } else { resolved(page, path) };
            let is_there = file.as_ref().is_some_and(|file| tree.contains(file.as_str()));
            let known = file.as_ref().and_then(|file| headings.get(file.as_str()));
            let remedy = if !is_there {
                "link to a file of the repository"
            } else if !heading.is_empty() && known.is_some_and(|known| !known.contains(heading)) {
                "link to a heading of that page"
            } else {
                continue;
            };
            let found = format!("{page}:{line} links to {target}, which is not there");
            findings.push(Finding { rule: "links of pages lead somewhere", found, remedy });
        }
    }
    findings
}

/// Relative targets of links and pictures, with the numbers of their lines.
fn targets(text: &str) -> Vec<(usize, String)> {
    let (_, prose) = pages::split(text);
    let mut targets = Vec::new();
    for (index, line) in prose.lines().enumerate() {
        for (opening, closing) in [("](", &[')', ' '][..]), ("src=\"", &['"'][..]), ("href=\"", &['"'][..])] {
            let ends = line.split(opening).skip(1);
            targets.extend(ends.filter_map(|rest| Some((index + 1, rest.split(closing).next()?.to_owned()))));
        }
        if let Some((_, target)) = line.split_once("]: ").filter(|(name, _)| name.starts_with('[')) {
            targets.push((index + 1, target.split(' ').next().unwrap_or_default().to_owned()));
        }
    }
    targets.retain(|(_, target)| !target.contains("://") && !target.starts_with("mailto:"));
    targets
}

/// A relative path from the root; `None` if it leads out of the repository.
fn resolved(page: &str, path: &str) -> Option<String> {
    let mut parts: Vec<&str> = page.split('/').collect();
    parts.pop();
    for part in path.trim_end_matches('/').split('/') {
        match part {
            "." => {}
            ".." => drop(parts.pop()?),
            part => parts.push(part),
        }
    }
    Some(parts.join("/"))
}

/// The anchors of a page's headings, as on GitHub.
fn headings(text: &str) -> BTreeSet<String> {
    let mut found = BTreeSet::new();
    let mut in_code = false;
    for line in text.lines() {
        in_code ^= line.trim_start().starts_with("```");
        let title = line.trim_start_matches('#');
        let depth = line.len() - title.len();
        if in_code || !(1..=6).contains(&depth) || !title.starts_with(' ') {
            continue;
        }
        let name = anchor(title.trim());
        let numbered = (1..).map(|number| format!("{name}-{number}"));
        let free = std::iter::once(name.clone()).chain(numbered).find(|name| !found.contains(name));
        found.extend(free);
    }
    found
}

fn anchor(title: &str) -> String {
    let mut shown = String::new();
    let mut in_target = false;
    for (index, c) in title.char_indices() {
        match c {
            '(' if title[..index].ends_with(']') => in_target = true,
            ')' if in_target => in_target = false,
            _ if in_target => {}
            ' ' => shown.push('-'),
            c if c.is_alphanumeric() || c == '-' || c == '_' => shown.extend(c.to_lowercase()),
            _ => {}
        }
    }
    shown
}

const SUMMARY: &str = "docs/SUMMARY.md";

/// Every page of docs is in the table of contents of the book, once, and every entry is a page of docs.
pub(super) fn book(texts: &[(String, String)]) -> Vec<Finding> {
    let finding = |found, remedy| Finding { rule: "the book has every page of docs once", found, remedy };
    let Some((_, summary)) = texts.iter().find(|(name, _)| name == SUMMARY) else {
        return vec![finding(format!("{SUMMARY} is missing"), "list the pages of docs in it")];
    };
    let names = texts.iter().map(|(name, _)| name.as_str());
    let pages = names.filter(|name| name.starts_with("docs/") && name.ends_with(".md") && *name != SUMMARY);
    let mut listed: BTreeMap<&str, usize> = pages.map(|page| (page, 0)).collect();
    let mut findings = Vec::new();
    for (line, target) in targets(summary) {
        let page = resolved(SUMMARY, &target);
        match page.as_ref().and_then(|page| listed.get_mut(page.as_str())) {
            Some(count) => *count += 1,
            None => {
                let found = format!("{SUMMARY}:{line} lists {target}, which is no page of docs");
                findings.push(finding(found, "list pages of docs alone"));
            }
        }
    }
    findings.extend(
        listed
            .into_iter()
            .filter(|(_, count)| *count != 1)
            .map(|(page, count)| finding(format!("{SUMMARY} lists {page} {count} times"), "list it once")),
    );
    findings
}

/// Words of the pages that users read, README included. A page that is longer replaces another's words.
const MOST_WORDS: usize = 22_000;

/// Pages that a program prints, evidence, and those for people who write workers or work on this repository.
const NOT_FOR_USERS: [&str; 9] = [
    "docs/SUMMARY.md",
    "docs/evidence/",
    "docs/explanation/architecture.md",
    "docs/how-to/add-an-engine.md",
    "docs/reference/cli.md",
    "docs/reference/fairness.md",
    "docs/reference/fields.md",
    "docs/reference/protocol.md",
    "docs/tutorials/first-worker.md",
];

/// The pages that users read are short enough to be read.
pub(super) fn words(texts: &[(String, String)]) -> Vec<Finding> {
    let is_page = |name: &str| name == "README.md" || name.starts_with("docs/") && name.ends_with(".md");
    let is_read = |name: &str| is_page(name) && !NOT_FOR_USERS.iter().any(|other| name.starts_with(other));
    let read = texts.iter().filter(|(name, _)| is_read(name));
    let count: usize = read.map(|(_, text)| text.split_whitespace().count()).sum();
    let finding = || Finding {
        rule: "the pages for users have at most 22,000 words",
        found: format!("they have {count}"),
        remedy: "leave out what another page, a message or --help says",
    };
    (count > MOST_WORDS).then(finding).into_iter().collect()
}

const MOST_IN_THOUSAND: usize = 3;

const WORDS: &str = "lie lies stand stands mend mends mended tell tells told who whoever whom nobody everybody beside \
                     likewise";

const PAIRS: [[&str; 2]; 2] = [["held", "against"], ["hold", "against"]];

/// Relative clauses of persons may begin with *who*; those of programs begin with *which*.
const PERSONS: [&str; 9] =
    ["people", "person", "persons", "users", "readers", "maintainers", "authors", "anyone", "those"];

/// Pages are in plain English: idioms that read as translated are counted, page by page.
pub(super) fn idioms(texts: &[(String, String)]) -> Vec<Finding> {
    let is_page = |name: &str| name == "README.md" || (name.starts_with("docs/") && name.ends_with(".md"));
    let mut findings = Vec::new();
    for (name, text) in texts.iter().filter(|(name, _)| is_page(name)) {
        let (idioms, words) = read(text);
        // A single one is many in no page, however short.
        if idioms.len() > 1 && idioms.len() * 1000 > MOST_IN_THOUSAND * words {
            findings.push(Finding {
                rule: "a page has at most 3 idioms in 1,000 words",
                found: format!("{name} has {} in {words} words ({})", idioms.len(), idioms.join(", ")),
                remedy: "say it in plain words: subject, verb, object",
            });
        }
    }
    findings
}

/// The idioms of a page, without code, each with its line, and the number of its words.
fn read(text: &str) -> (Vec<String>, usize) {
    let (_, prose) = pages::split(text);
    let mut idioms = Vec::new();
    let mut words: Vec<String> = Vec::new();
    for (index, line) in prose.lines().enumerate() {
        let mut found = |words: &str| idioms.push(format!("{}: {words}", index + 1));
        for word in line.split_whitespace().map(plain).filter(|word| !word.is_empty()) {
            let before = words.last().map_or("", String::as_str);
            let is_person = word == "who" && PERSONS.contains(&before);
            if WORDS.split(' ').any(|idiom| idiom == word) && !is_person {
                found(&word);
            } else if PAIRS.contains(&[before, word.as_str()]) {
                found(&format!("{before} {word}"));
            }
            words.push(word);
        }
        let sentences = line.split(". ").flat_map(|part| part.split("| "));
        let clauses = sentences.filter(|sentence| !line.starts_with('#') && begins_with_what(sentence));
        clauses.for_each(|_| found("What …"));
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

    fn broken_links(page: &str, text: &str) -> Vec<String> {
        let other = "# The `first` page\n## A, b\n## A, b\n```\n# no heading\n```\n";
        let files = ["README.md", "docs/other.md", "docs/page.md", "src/a.rs", page].map(str::to_owned);
        let texts = [(page.to_owned(), text.to_owned()), ("docs/other.md".to_owned(), other.to_owned())];
        links(&texts, &files).into_iter().map(|finding| finding.found).collect()
    }

    #[test]
    fn links_to_what_is_there_are_well() {
        let text = "# Here\n[a](other.md) [b](../src/a.rs#L1) [`c`](../src) ![d](../README.md \"title\") [e](#here)\n\
                    [f](other.md#the-first-page) [g](other.md#a-b-1) <https://example.org> [h](https://example.org/x)\n\
                    `[i](nowhere)` <img src=\"../src/a.rs\">\n\n[j]: other.md\n";
        assert_eq!(broken_links("docs/page.md", text), [""; 0]);
    }

    #[test]
    fn links_to_nothing_are_found() {
        for target in
            ["none.md", "../docs", "other.md#c", "other.md#no-heading", "#here", "../../x", "/src/a.rs"]
        {
            let is_well = target == "../docs";
            let expected = format!("docs/page.md:2 links to {target}, which is not there");
            let expected = if is_well { vec![] } else { vec![expected] };
            assert_eq!(broken_links("docs/page.md", &format!("\n[a]({target})")), expected);
        }
        assert_eq!(broken_links("docs/page.md", "<img src=\"none.svg\">\n[a]: none.md\n").len(), 2);
    }

    #[test]
    fn generated_pages_have_their_own_test() {
        assert_eq!(broken_links("results/published/report.md", "[a](none.md)"), [""; 0]);
    }

    #[test]
    fn the_book_lists_every_page_of_docs_once_and_nothing_else() {
        let page = |name: &str, text: &str| (name.to_owned(), text.to_owned());
        let found = |summary: &str| -> Vec<String> {
            let texts = [
                page(SUMMARY, summary),
                page("docs/index.md", "[b](a/b.md)"),
                page("docs/a/b.md", ""),
                page("README.md", ""),
            ];
            book(&texts).into_iter().map(|finding| finding.found).collect()
        };
        assert_eq!(found("[Index](index.md)\n\n- [B](a/b.md)\n"), [""; 0]);
        assert_eq!(found("[Index](index.md)\n"), ["docs/SUMMARY.md lists docs/a/b.md 0 times"]);
        let twice = "[Index](index.md)\n- [B](a/b.md)\n- [C](a/b.md)\n";
        assert_eq!(found(twice), ["docs/SUMMARY.md lists docs/a/b.md 2 times"]);
        for target in ["a/none.md", "../README.md", "SUMMARY.md"] {
            let summary = format!("[Index](index.md)\n- [B](a/b.md)\n- [x]({target})\n");
            let expected = format!("docs/SUMMARY.md:3 lists {target}, which is no page of docs");
            assert_eq!(found(&summary), [expected]);
        }
        assert_eq!(book(&[]).len(), 1, "the table of contents itself");
    }

    #[test]
    fn idioms_are_found_with_their_lines() {
        for (text, found) in [
            ("It stands\nbeside **nobody**.", &["1: stands", "2: beside", "2: nobody"][..]),
            ("It is held\nagainst it, likewise.", &["2: held against", "2: likewise"]),
            ("A framework who waits, people who wait", &["1: who"]),
            ("| a | What it lacks is missing. What is it? |", &["1: What …"]),
        ] {
            assert_eq!(read(text).0, found);
        }
    }

    #[test]
    fn pages_for_users_have_a_limit_of_words_and_the_others_have_none() {
        let text = "word ".repeat(MOST_WORDS);
        let found = |name: &str, more: &str| words(&[(name.into(), text.clone() + more)]).len();
        let long =
            ["README.md", "docs/how-to/a.md", "docs/evidence/a.md", "docs/reference/cli.md", "other.md"];
        assert_eq!(long.map(|name| found(name, "word")), [1, 1, 0, 0, 0]);
        assert_eq!(found("README.md", ""), 0);
    }

    #[test]
    fn code_headings_and_other_words_are_free() {
        assert_eq!(read("## What is measured\n\n`told` understands besides\n\n```\nlies\n```\n").0, [""; 0]);
        assert_eq!(read("one `two` three | 4 |").1, 3);
    }

    #[test]
    fn three_in_a_thousand_words_are_allowed() {
        let page = |idioms: usize, words: usize| {
            let text = "told ".repeat(idioms) + &"word ".repeat(words - idioms);
            [("docs/a.md".to_owned(), text), ("crates/a/README.md".to_owned(), "told".to_owned())]
        };
        assert_eq!(idioms(&page(3, 1000)), []);
        let many = idioms(&page(4, 1000));
        assert!(many[0].found.starts_with("docs/a.md has 4 in 1000 words (1: told, "), "{many:?}");
    }
}
