//! Pages are in plain English: idioms that read as translated are counted, page by page.

use crate::tidy::Finding;

const RULE: &str = "a page has at most 3 idioms in 1,000 words";
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

pub(crate) fn check(texts: &[(String, String)]) -> Vec<Finding> {
    check_but(texts, &ABOVE)
}

/// `above` are the pages that may have more.
fn check_but(texts: &[(String, String)], above: &[&str]) -> Vec<Finding> {
    let is_page = |name: &str| name == "README.md" || (name.starts_with("docs/") && name.ends_with(".md"));
    let finding = |name: &str, found, remedy| Finding { rule: RULE, place: name.to_owned(), found, remedy };
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
