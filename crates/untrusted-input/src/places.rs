//! Text made harmless for the place where it is shown.

use std::borrow::Cow;

use crate::visible::line;

/// One line of Markdown that reads as the text does. Code in backticks stays code, since our own sentences quote
/// commands so, but only where every span is closed: no text reaches beyond itself.
pub fn markdown(text: &str) -> String {
    escaped(text, false)
}

/// The same for a cell of a table: there a bar ends the cell, also within code.
pub fn cell(text: &str) -> String {
    escaped(text, true)
}

fn escaped(text: &str, in_cell: bool) -> String {
    let text = line(text);
    let has_code = !text.contains("``") && text.matches('`').count().is_multiple_of(2);
    let mut is_code = false;
    let mut shown = String::with_capacity(text.len());
    let mut characters = text.chars().peekable();
    while let Some(character) = characters.next() {
        let next = characters.peek().copied();
        match character {
            '`' if has_code => {
                is_code = !is_code;
                shown.push('`');
            }
            '|' if in_cell => shown.push_str("\\|"),
            character if is_code => shown.push(character),
            '&' => shown.push_str("&amp;"),
            '<' => shown.push_str("&lt;"),
            '\\' | '`' => shown.extend(['\\', character]),
            // A star before a space opens nothing, and a bracket before anything else begins no link.
            '*' if next.is_some_and(|next| !next.is_whitespace()) => shown.push_str("\\*"),
            ']' if matches!(next, Some('(' | '[' | ':')) => shown.push_str("\\]"),
            '~' if next == Some('~') => shown.push_str("\\~"),
            character => shown.push(character),
        }
    }
    shown
}

/// The text for a cell of a spreadsheet. If it begins like a formula, it gets an apostrophe in front, which
/// spreadsheets read as "this is text"; a number stays a number.
pub fn spreadsheet(text: &str) -> Cow<'_, str> {
    let begins_formula = text.starts_with(['=', '+', '-', '@', '\t', '\r', '＝', '＋', '－', '＠']);
    if begins_formula && !is_number(text) {
        return Cow::Owned(format!("'{}", line(text)));
    }
    line(text)
}

/// A number, or a share in per cent.
fn is_number(text: &str) -> bool {
    let bare = text.strip_suffix('%').map_or(text, str::trim_end);
    bare.parse::<f64>().is_ok()
}
