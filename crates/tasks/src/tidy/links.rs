//! Links of pages lead somewhere: to a file of the repository, and to a heading if they name one.

use std::collections::{BTreeMap, BTreeSet};

use tooling::pages;

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
}
