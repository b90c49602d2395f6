//! Rules on pages of Markdown.

use crate::tidy::Finding;

pub(crate) const WIDE: &str = "a line of prose has at most 120 columns";
const WIDEST: usize = 120;

pub(crate) fn check(name: &str, text: &str) -> Vec<Finding> {
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn markers_must_pair() {
        let rules =
            |text: &str| check("README.md", text).into_iter().map(|found| found.rule).collect::<Vec<_>>();
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
        assert_eq!(check("crates/engine-tch/README.md", &"x".repeat(200)), []);
        assert_eq!(check("docs/measures.md", &"x".repeat(200)).len(), 1);
    }
}
