//! Text that programs put into pages, between a pair of markers.

use anyhow::{Result, bail, ensure};

/// `text` with `shown` between `<!-- BLOCK: begin -->` and `<!-- BLOCK: end -->`.
pub fn splice(text: &str, block: &str, shown: &str) -> Result<String> {
    let (begin, end) = (format!("<!-- {block}: begin -->"), format!("<!-- {block}: end -->"));
    let Some((before, rest)) = text.split_once(&begin) else { bail!("has no line {begin}") };
    let Some((_, after)) = rest.split_once(&end) else { bail!("has no line {end} after {begin}") };
    ensure!(!after.contains(&begin), "has more than one {begin}");
    Ok(format!("{before}{begin}\n{}\n{end}{after}", shown.trim()))
}

#[cfg(test)]
mod tests {
    use super::*;

    const BEGIN: &str = "<!-- table: begin -->";
    const END: &str = "<!-- table: end -->";

    #[test]
    fn the_text_between_the_markers_is_replaced() {
        let text = format!("above\n{BEGIN}\nold\n{END}\nbelow\n");
        let once = splice(&text, "table", "new\n").unwrap();
        assert_eq!(once, format!("above\n{BEGIN}\nnew\n{END}\nbelow\n"));
        assert_eq!(splice(&once, "table", "new").unwrap(), once);
    }

    #[test]
    fn text_without_a_pair_of_markers_is_refused() {
        for text in ["", BEGIN, END, &format!("{END}{BEGIN}"), &format!("{BEGIN}{END}{BEGIN}{END}")] {
            assert!(splice(text, "table", "new").is_err(), "{text:?}");
        }
    }

    #[test]
    fn other_blocks_of_a_page_are_left_alone() {
        let text = format!("<!-- other: begin -->\nkept\n<!-- other: end -->\n{BEGIN}\nold\n{END}\n");
        let spliced = splice(&text, "table", "new").unwrap();
        assert_eq!(spliced, text.replace("old", "new"));
    }
}
