//! Links of pages lead somewhere: to a file of the repository, and to a heading if they name one.

use std::collections::{BTreeMap, BTreeSet};

use setup::tooling::pages;

use crate::tidy::Finding;

const RULE: &str = "links of pages lead somewhere";

/// Pages that a program writes, with their own test.
const GENERATED: &str = "results/published/";

/// Files and directories, by name from the root.
pub(crate) struct Tree(BTreeSet<String>);

impl Tree {
    pub(crate) fn new(files: &[String]) -> Tree {
        let mut names = BTreeSet::new();
        for file in files {
            let ends = file.match_indices('/').map(|(end, _)| end).chain([file.len()]);
            names.extend(ends.map(|end| file[..end].to_owned()));
        }
        Tree(names)
    }

    pub(crate) fn has(&self, path: &str) -> bool {
        self.0.contains(path.trim_end_matches('/'))
    }

    /// Whether a path with one `*` fits a file.
    pub(crate) fn fits(&self, before: &str, after: &str) -> bool {
        let length = before.len() + after.len();
        self.0.iter().any(|name| name.len() > length && name.starts_with(before) && name.ends_with(after))
    }
}

pub(crate) fn check(texts: &[(String, String)], tree: &Tree) -> Vec<Finding> {
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
            let is_there = file.as_ref().is_some_and(|file| tree.has(file));
            let known = file.as_ref().and_then(|file| headings.get(file.as_str()));
            let remedy = if !is_there {
                "link to a file of the repository"
            } else if !heading.is_empty() && known.is_some_and(|known| !known.contains(heading)) {
                "link to a heading of that page"
            } else {
                continue;
            };
            let found = format!("{page}:{line} links to {target}, which is not there");
            findings.push(Finding { rule: RULE, place: (*page).to_owned(), found, remedy });
        }
    }
    findings
}

/// Relative targets of links and pictures, with the numbers of their lines.
pub(crate) fn targets(text: &str) -> Vec<(usize, String)> {
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
pub(crate) fn resolved(page: &str, path: &str) -> Option<String> {
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

// Rules on pages of Markdown.

pub(crate) const WIDE: &str = "a line of prose has at most 120 columns";

const WIDEST: usize = 120;

pub(crate) fn pages_check(name: &str, text: &str) -> Vec<Finding> {
    let mut findings = Vec::new();
    if let Err(found) = check_markers(text) {
        findings.push(Finding {
            rule: "markers of spliced text come in pairs",
            place: name.to_owned(),
            found: format!("{name} {found}"),
            remedy: "write `<!-- NAME: begin -->` and `<!-- NAME: end -->` around it",
        });
    }
    if name.starts_with("docs/") || ["README.md", "CONTRIBUTING.md"].contains(&name) {
        findings.extend(wide_lines(text).into_iter().map(|line| Finding {
            rule: WIDE,
            place: name.to_owned(),
            found: format!("{name}:{line} is wider"),
            remedy: "break it",
        }));
    }
    findings
}

/// Numbers of the lines of prose that are too wide, without tables, code, spliced text and the targets of
/// links.
fn wide_lines(text: &str) -> Vec<usize> {
    let mut wide = Vec::new();
    let mut in_code = false;
    // The output of programs is not changed.
    let mut in_spliced = false;
    for (index, line) in text.lines().enumerate() {
        if let Some(marker) = line.trim().strip_prefix("<!-- ").and_then(|rest| rest.strip_suffix(" -->")) {
            in_spliced = marker.ends_with(": begin");
        }
        if line.trim_start().starts_with("```") {
            in_code = !in_code;
        }
        let is_table = line.trim_start().starts_with('|');
        if !in_code && !in_spliced && !is_table && width(line) > WIDEST {
            wide.push(index + 1);
        }
    }
    wide
}

/// Columns of a line without its unbreakable parts: targets of links, and addresses.
fn width(line: &str) -> usize {
    let mut pieces = line.split("](");
    let first = pieces.next().unwrap_or_default();
    let rest = pieces.map(|piece| piece.split_once(')').map_or(piece, |(_, after)| after));
    let plain: Vec<&str> = std::iter::once(first).chain(rest).collect();
    let is_address = |word: &&str| word.contains("://");
    let addresses: usize =
        plain.iter().flat_map(|piece| piece.split(' ')).filter(is_address).map(str::len).sum();
    plain.iter().map(|piece| piece.chars().count()).sum::<usize>() - addresses
}

fn check_markers(text: &str) -> Result<(), String> {
    let mut open: Option<&str> = None;
    for line in text.lines() {
        let marker = line.trim().strip_prefix("<!-- ").and_then(|rest| rest.strip_suffix(" -->"));
        match (marker.and_then(|marker| marker.rsplit_once(": ")), open) {
            (Some((name, "begin")), None) => open = Some(name),
            (Some((name, "end")), Some(begun)) if name == begun => open = None,
            (Some((name, "begin" | "end")), _) => return Err(format!("has an unpaired marker of {name}")),
            _ => {}
        }
    }
    open.map_or(Ok(()), |name| Err(format!("never ends {name}")))
}

// Paths of the repository, and names in its crates, that pages and comments mention in backticks exist.

const PATHS_RULE: &str = "paths that are named exist";

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

pub(crate) fn paths_check(texts: &[(String, String)], tree: &Tree) -> Vec<Finding> {
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
                find(PATHS_RULE, name, code.line, word, "name it as it is from the root of the repository");
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

    fn found(page: &str, text: &str) -> Vec<String> {
        let other = "# The `first` page\n## A, b\n## A, b\n```\n# no heading\n```\n";
        let files = ["README.md", "docs/other.md", "docs/page.md", "src/a.rs", page].map(str::to_owned);
        let texts = [(page.to_owned(), text.to_owned()), ("docs/other.md".to_owned(), other.to_owned())];
        check(&texts, &Tree::new(&files)).into_iter().map(|finding| finding.found).collect()
    }

    #[test]
    fn links_to_what_is_there_are_well() {
        let text = "# Here\n[a](other.md) [b](../src/a.rs#L1) [`c`](../src) ![d](../README.md \"title\") [e](#here)\n\
                    [f](other.md#the-first-page) [g](other.md#a-b-1) <https://example.org> [h](https://example.org/x)\n\
                    `[i](nowhere)` <img src=\"../src/a.rs\">\n\n[j]: other.md\n";
        assert_eq!(found("docs/page.md", text), [""; 0]);
    }

    #[test]
    fn links_to_nothing_are_found() {
        for target in
            ["none.md", "../docs", "other.md#c", "other.md#no-heading", "#here", "../../x", "/src/a.rs"]
        {
            let is_well = target == "../docs";
            let expected = format!("docs/page.md:2 links to {target}, which is not there");
            let expected = if is_well { vec![] } else { vec![expected] };
            assert_eq!(found("docs/page.md", &format!("\n[a]({target})")), expected);
        }
        assert_eq!(found("docs/page.md", "<img src=\"none.svg\">\n[a]: none.md\n").len(), 2);
    }

    #[test]
    fn generated_pages_have_their_own_test() {
        assert_eq!(found("results/published/report.md", "[a](none.md)"), [""; 0]);
    }

    #[test]
    fn markers_must_pair() {
        let rules = |text: &str| {
            pages_check("README.md", text).into_iter().map(|found| found.rule).collect::<Vec<_>>()
        };
        let pair = "<!-- table: begin -->\nx\n<!-- table: end -->\n";
        assert_eq!(rules(pair), [""; 0]);
        assert_eq!(rules(&pair.repeat(2)), [""; 0]);
        for text in ["<!-- table: begin -->", "<!-- table: end -->", "<!-- a: begin -->\n<!-- b: end -->"] {
            assert_eq!(rules(text), ["markers of spliced text come in pairs"], "{text}");
        }
    }

    #[test]
    fn what_was_spliced_stays_as_it_was_printed() {
        let wide = "x".repeat(121);
        assert_eq!(wide_lines(&format!("<!-- run: begin -->\n{wide}\n<!-- run: end -->\n{wide}\n")), [4]);
    }

    #[test]
    fn prose_ends_at_120_columns() {
        let (fits, wide) = ("x".repeat(120), "é ".repeat(61));
        let link = format!("{} [page](https://example.org/{})", "x".repeat(100), "y".repeat(60));
        let address = format!("see https://example.org/{} there", "y".repeat(150));
        let table = format!("| {wide} |");
        let code = format!("```sh\n{wide}\n```");
        for text in [&fits, &link, &address, &table, &code] {
            assert_eq!(wide_lines(text), [0; 0], "{text}");
        }
        assert_eq!(wide_lines(&format!("{code}\n{fits}\n{wide}\n- {wide}")), [5, 6]);
    }

    #[test]
    fn pages_of_engines_are_as_wide_as_they_like() {
        assert_eq!(pages_check("crates/engine-tch/README.md", &"x".repeat(200)), []);
        assert_eq!(pages_check("docs/measures.md", &"x".repeat(200)).len(), 1);
    }
}

#[cfg(test)]
mod paths_tests {
    use super::*;

    fn found(name: &str, text: &str) -> Vec<String> {
        let source = "pub mod inner;\npub fn made() {}\n// gone\n";
        let own = ("crates/a-b/src/lib.rs".to_owned(), source.to_owned());
        let texts = [own, (name.to_owned(), text.to_owned())];
        let files: Vec<String> =
            ["crates/a-b/src/lib.rs", "crates/a-b/src/inner.rs", "docs/x.md"].map(str::to_owned).into();
        let findings = paths_check(&texts, &Tree::new(&files)).into_iter();
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
