//! Text in which every character can be seen.

use std::borrow::Cow;

/// The end of a text that was cut.
const CUT: &str = "… (cut)";
/// A single line is never shown longer than this, from any source.
const SHOWN: usize = 4000;

/// One line for a terminal or a log. No character of it moves the cursor, changes colours or the direction of writing,
/// or stays hidden; the ends of lines are spaces.
pub fn line(text: &str) -> Cow<'_, str> {
    if text.len() <= SHOWN && text.chars().all(is_visible) {
        return Cow::Borrowed(text);
    }
    Cow::Owned(shortened(text, SHOWN))
}

/// The same for text of several lines, which keeps its lines, its tabs and its length.
pub fn lines(text: &str) -> Cow<'_, str> {
    let stays = |c: char| matches!(c, '\n' | '\t') || is_visible(c);
    if text.chars().all(stays) {
        return Cow::Borrowed(text);
    }
    let mut shown = String::with_capacity(text.len());
    for character in text.chars() {
        if stays(character) { shown.push(character) } else { shown.extend(character.escape_unicode()) }
    }
    Cow::Owned(shown)
}

/// One line of at most `most` characters.
pub fn shortened(text: &str, most: usize) -> String {
    let mut shown = String::new();
    let mut count = 0;
    // The length where the line ends if there turns out to be too much of it.
    let mut kept = 0;
    let room = most.saturating_sub(CUT.chars().count());
    let mut push = |shown: &mut String, character: char| {
        shown.push(character);
        count += 1;
        if count <= room {
            kept = shown.len();
        }
        count <= most
    };
    let mut behind_space = false;
    for character in text.chars() {
        let is_end =
            matches!(character, '\n' | '\r' | '\t' | '\u{b}' | '\u{c}' | '\u{85}' | '\u{2028}' | '\u{2029}');
        let fits = if is_end {
            behind_space || push(&mut shown, ' ')
        } else if is_visible(character) {
            push(&mut shown, character)
        } else {
            character.escape_unicode().all(|part| push(&mut shown, part))
        };
        if !fits {
            shown.truncate(kept);
            return shown + CUT;
        }
        behind_space = is_end;
    }
    shown
}

/// Whether a reader sees this character, and it changes nothing else.
fn is_visible(character: char) -> bool {
    !character.is_control()
        && !matches!(
            character,
            // Soft hyphen; direction of writing; zero width; ends of lines; byte order mark; annotations; tags.
            '\u{ad}'
                | '\u{61c}'
                | '\u{180e}'
                | '\u{200b}'
                | '\u{200e}' | '\u{200f}'
                | '\u{2028}'..='\u{202e}'
                | '\u{2060}'..='\u{206f}'
                | '\u{feff}'
                | '\u{fff9}'..='\u{fffb}'
                | '\u{e0000}'..='\u{e007f}'
        )
}
