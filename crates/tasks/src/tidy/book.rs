//! Every page of docs is in the table of contents of the book, once, and every entry is a page of docs.

use std::collections::BTreeMap;

use crate::tidy::Finding;
use crate::tidy::links;

const RULE: &str = "the book has every page of docs once";
const SUMMARY: &str = "docs/SUMMARY.md";

pub(crate) fn check(texts: &[(String, String)]) -> Vec<Finding> {
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

#[cfg(test)]
mod tests {
    use super::*;

    fn found(summary: &str) -> Vec<String> {
        let page = |name: &str, text: &str| (name.to_owned(), text.to_owned());
        let texts = [
            page(SUMMARY, summary),
            page("docs/index.md", "[b](a/b.md)"),
            page("docs/a/b.md", ""),
            page("README.md", ""),
        ];
        check(&texts).into_iter().map(|finding| finding.found).collect()
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
        assert_eq!(check(&[]).len(), 1);
    }
}
