//! Paths of the repository, and names in its crates, that pages and comments mention in backticks exist.

use std::collections::{BTreeMap, BTreeSet};

use tooling::pages;

use crate::tidy::Finding;
use crate::tidy::links::Tree;

const RULE: &str = "paths that are named exist";
const PAGE_RULE: &str = "pages of docs that a text names exist";
const NAME_RULE: &str = "names of crates that are written in backticks exist";
/// Directories of which every path is known. Others are made by programs.
const ROOTS: [&str; 8] =
    [".cargo/", ".github/", "configs/", "crates/", "docs/", "patches/", "references/", "xtask/"];
/// Paths in a README are relative to its crate.
const OWN: [&str; 3] = ["benches/", "src/", "tests/"];
/// Pages about the past, or written by programs.
const EXEMPT: [&str; 2] = ["CHANGELOG.md", "results/published/"];

/// The identifiers in the sources of each crate, by the name that paths have.
type Identifiers<'a> = BTreeMap<String, BTreeSet<&'a str>>;

pub(crate) fn check(texts: &[(String, String)], tree: &Tree) -> Vec<Finding> {
    let identifiers = identifiers(texts);
    let mut findings = Vec::new();
    let mut find = |rule, name: &str, line: usize, what: &str, remedy| {
        let found = format!("{name}:{line} names {what}, which is not there");
        findings.push(Finding { rule, place: name.to_owned(), found, remedy });
    };
    for (name, text) in texts.iter().filter(|(name, _)| !EXEMPT.iter().any(|exempt| name.starts_with(exempt)))
    {
        for (line, page) in lines_with_pages(name, text).filter(|(_, page)| !tree.has(page)) {
            find(PAGE_RULE, name, line, page, "name a page of docs");
        }
        for code in spans(name, text) {
            let paths = words(&code.text).filter(|word| !is_page(word));
            for word in paths.filter(|word| lacks_path(name, word, tree)) {
                find(RULE, name, code.line, word, "name it as it is from the root of the repository");
            }
            for missing in lacks_name(&code.text, &identifiers) {
                find(NAME_RULE, name, code.line, &missing, "name what there is");
            }
        }
    }
    findings
}

/// The texts in backticks in a page, or in the comments of a source.
fn spans(name: &str, text: &str) -> Vec<pages::Code> {
    let code = match name.rsplit_once('.') {
        Some((_, "rs")) => pages::split(&pages::comments(text)).0,
        Some((_, "md")) => pages::split(text).0,
        _ => Vec::new(),
    };
    code.into_iter().filter(|code| !code.is_block).collect()
}

/// Pages of docs that a text names anywhere, messages included, with the numbers of their lines. Tests name pages that
/// they make up.
fn lines_with_pages<'a>(name: &str, text: &'a str) -> impl Iterator<Item = (usize, &'a str)> {
    let is_of_tests = name.contains("tests") || name.starts_with("crates/tasks/src/tidy/");
    let text = if is_of_tests { "" } else { text.split("#[cfg(test)]").next().unwrap_or_default() };
    text.lines().enumerate().flat_map(|(index, line)| {
        let pages = words(line).filter(|word| is_page(word));
        pages.map(move |page| (index + 1, page))
    })
}

fn is_page(word: &str) -> bool {
    word.starts_with("docs/") && word.ends_with(".md") && !word.contains('*')
}

fn words(text: &str) -> impl Iterator<Item = &str> {
    let is_part = |c: char| c.is_ascii_alphanumeric() || "_./*-".contains(c);
    let words = text.split(|c: char| c.is_whitespace() || "\"'()[]=,;:<>|".contains(c));
    words.map(|word| word.trim_end_matches('.')).filter(move |word| word.chars().all(is_part))
}

/// Whether a word is a path of the repository that does not exist. Capitals are placeholders:
/// `configs/engines/NAME.toml`.
fn lacks_path(page: &str, word: &str, tree: &Tree) -> bool {
    let is_placeholder = |part: &str| part.chars().filter(char::is_ascii_uppercase).count() > 1;
    let path = match ROOTS.iter().chain(&OWN).find(|root| word.starts_with(**root)) {
        // The first part of a path may be a crate: then the path lacks its beginning.
        None => return is_in_a_crate(word, tree) && !tree.has(word),
        Some(root) if OWN.contains(root) => match crate_of(page).filter(|_| page.ends_with("README.md")) {
            None => return false,
            Some(own) => format!("{own}/{word}"),
        },
        Some(_) => word.to_owned(),
    };
    let is_there = match path.split_once('*') {
        Some((before, after)) => tree.fits(before, after),
        None => tree.has(&path) || tree.has(&format!("{path}.rs")),
    };
    !is_there && !word.split('/').any(is_placeholder)
}

fn is_in_a_crate(word: &str, tree: &Tree) -> bool {
    let Some((first, rest)) = word.split_once('/') else { return false };
    OWN.iter().any(|own| rest.starts_with(own)) && tree.has(&format!("crates/{first}/src"))
}

/// The directory of the crate that a file belongs to.
fn crate_of(name: &str) -> Option<String> {
    let mut parts = name.split('/');
    let (group, member) = (parts.next()?, parts.next()?);
    (["crates", "references"].contains(&group) && parts.next().is_some()).then(|| format!("{group}/{member}"))
}

fn identifiers(texts: &[(String, String)]) -> Identifiers<'_> {
    let mut found = Identifiers::new();
    for (name, text) in texts.iter().filter(|(name, _)| name.ends_with(".rs")) {
        let Some(own) =
            crate_of(name).and_then(|own| own.strip_prefix("crates/").map(|own| own.replace('-', "_")))
        else {
            continue;
        };
        let words = text.lines().filter(|line| !line.trim_start().starts_with("//"));
        let words = words.flat_map(|line| line.split(|c: char| !c.is_alphanumeric() && c != '_'));
        found.entry(own).or_default().extend(words.chain(name.split(['/', '.'])));
    }
    found
}

/// Paths such as `worker::clock` or `worker::{clock, memory}`, if their crate has no such name.
fn lacks_name(code: &str, identifiers: &Identifiers<'_>) -> Vec<String> {
    let is_name = |c: char| c.is_alphanumeric() || c == '_';
    let Some((first, rest)) = code.split_once("::") else { return Vec::new() };
    let Some(known) = identifiers.get(first) else { return Vec::new() };
    // Arguments are not names of the crate.
    let rest = rest.split('(').next().unwrap_or_default();
    let parts = rest.split(|c: char| !is_name(c)).filter(|part| !part.is_empty());
    let is_plain = rest.chars().all(|c| is_name(c) || ":{}, ".contains(c));
    parts.filter(|part| is_plain && !known.contains(part)).map(|part| format!("{first}::{part}")).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn found(name: &str, text: &str) -> Vec<String> {
        let source = "pub mod inner;\npub fn made() {}\n// gone\n";
        let own = ("crates/a-b/src/lib.rs".to_owned(), source.to_owned());
        let texts = [own, (name.to_owned(), text.to_owned())];
        let files: Vec<String> =
            ["crates/a-b/src/lib.rs", "crates/a-b/src/inner.rs", "docs/x.md"].map(str::to_owned).into();
        let findings = check(&texts, &Tree::new(&files)).into_iter();
        findings.map(|finding| finding.found.split(" names ").nth(1).unwrap().to_owned()).collect()
    }

    #[test]
    fn what_exists_may_be_named() {
        let text = "`crates/a-b/src/lib.rs:12` `crates/a-b/` `docs/*.md` `crates/a-b/src/inner` `configs/engines/NAME.toml` \
                    `target/x` `results/y` `a/b` crates/none `a_b::made(x)` `a_b::{inner, made}` `other::name`";
        for name in ["docs/x.md", "crates/a-b/README.md"] {
            assert_eq!(found(name, text), [""; 0]);
        }
        assert_eq!(found("crates/a-b/src/inner.rs", "/// `src/lib.rs`\nlet x = \"`crates/none`\";"), [""; 0]);
        assert_eq!(found("crates/a-b/tests/x.rs", "let x = \"docs/none.md\";"), [""; 0]);
        assert_eq!(found("CHANGELOG.md", "`crates/none`"), [""; 0]);
    }

    #[test]
    fn what_does_not_exist_is_found() {
        for (name, text, expected) in [
            ("docs/x.md", "`crates/none`", "crates/none"),
            ("docs/x.md", "`cat docs/none.md | less`", "docs/none.md"),
            ("docs/x.md", "`docs/*.txt`", "docs/*.txt"),
            ("docs/x.md", "`a-b/src/lib.rs`", "a-b/src/lib.rs"),
            ("docs/x.md", "`a_b::gone`", "a_b::gone"),
            ("docs/x.md", "`a_b::{made, none}`", "a_b::none"),
            ("crates/a-b/README.md", "see `src/none.rs`\n", "src/none.rs"),
            ("crates/a-b/src/inner.rs", "    // see `crates/none`\n", "crates/none"),
            ("crates/a-b/src/inner.rs", "let x = \"(docs/none.md)\";\n", "docs/none.md"),
            ("x.toml", "# docs/none.md\n", "docs/none.md"),
        ] {
            assert_eq!(found(name, text), [format!("{expected}, which is not there")], "{text}");
        }
    }
}
