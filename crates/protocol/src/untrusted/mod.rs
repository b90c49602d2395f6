//! Text from others: workers, models, libraries, results of other machines.
//!
//! Files with such text are opened by [`file`]. It is sanitised twice. On input, it becomes a [`Foreign`]:
//! one line of bounded length without hidden characters. On output, it is made harmless for that place: a
//! terminal ([`line`], [`lines`]), Markdown ([`markdown`], [`cell`]), a spreadsheet ([`spreadsheet`]). HTML
//! escapes by itself (`maud`), and so does JSON.

pub mod file;
pub mod secrets;
#[cfg(test)]
mod tests;

use std::borrow::{Borrow, Cow};
use std::fmt;
use std::io::Write;
use std::ops::Deref;
use std::process::ExitCode;
use std::sync::Once;

use serde::Serialize;
use serde::de::{Deserialize, Deserializer, SeqAccess, Visitor};

/// Most characters of a name, a version, a reason.
pub const SENTENCE: usize = 400;

/// Most characters of a paragraph, such as a reason with a remedy.
pub const TEXT: usize = 2000;

/// Most characters of a path, and of a compiler's flags.
pub const PATH: usize = 4096;

/// Prints a line on stderr. If stderr is closed, or its disk is full, the program goes on: the measurements
/// are worth more than the message.
#[macro_export]
macro_rules! say {
    ($($text:tt)*) => { $crate::untrusted::say_on_stderr(::std::format_args!($($text)*)) };
}

#[doc(hidden)]
pub fn say_on_stderr(text: fmt::Arguments<'_>) {
    // One call, so that lines of several threads do not mix.
    let _ = std::io::stderr().write_all(format!("{}\n", lines(&text.to_string())).as_bytes());
}

/// Runs a program. A panic is one sentence on stderr and exit code 1.
pub fn program(main: fn() -> ExitCode) -> ExitCode {
    static SAID: Once = Once::new();
    std::panic::set_hook(Box::new(|panic| {
        // Those that follow from the first say nothing new.
        SAID.call_once(|| {
            let cause = line(panic.payload_as_str().unwrap_or("unknown cause"));
            let place = panic.location().map_or(String::new(), |l| format!(" at {}:{}", l.file(), l.line()));
            say!("error: this is a fault of the program{place}: {cause}; please report it with what you ran");
        });
    }));
    std::panic::catch_unwind(main).unwrap_or(ExitCode::FAILURE)
}

/// Text from others: one line of at most `MOST` characters, in which every character can be seen and addresses have no
/// credentials. It is cut on reading, so that a longer one is never in memory.
#[derive(Clone, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
#[serde(transparent)]
pub struct Foreign<const MOST: usize = SENTENCE>(String);

/// A text of several sentences.
pub type ForeignText = Foreign<TEXT>;

/// A path, or flags.
pub type ForeignPath = Foreign<PATH>;

impl<const MOST: usize> Foreign<MOST> {
    pub fn new(text: &str) -> Self {
        Self(shortened(&secrets::without_credentials(text), MOST))
    }

    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl<const MOST: usize> Deref for Foreign<MOST> {
    type Target = str;

    fn deref(&self) -> &str {
        &self.0
    }
}

impl<const MOST: usize> Borrow<str> for Foreign<MOST> {
    fn borrow(&self) -> &str {
        &self.0
    }
}

impl<const MOST: usize> fmt::Display for Foreign<MOST> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

impl<const MOST: usize> fmt::Debug for Foreign<MOST> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

impl<const MOST: usize> From<&str> for Foreign<MOST> {
    fn from(text: &str) -> Self {
        Self::new(text)
    }
}

impl<const MOST: usize> From<String> for Foreign<MOST> {
    fn from(text: String) -> Self {
        Self::new(&text)
    }
}

impl<const MOST: usize> From<Foreign<MOST>> for String {
    fn from(text: Foreign<MOST>) -> String {
        text.0
    }
}

impl<const MOST: usize> PartialEq<str> for Foreign<MOST> {
    fn eq(&self, other: &str) -> bool {
        self.0 == other
    }
}

impl<const MOST: usize> PartialEq<&str> for Foreign<MOST> {
    fn eq(&self, other: &&str) -> bool {
        self.0 == *other
    }
}

impl<'de, const MOST: usize> Deserialize<'de> for Foreign<MOST> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Text<const MOST: usize>;

        impl<const MOST: usize> Visitor<'_> for Text<MOST> {
            type Value = Foreign<MOST>;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a string")
            }

            fn visit_str<E>(self, text: &str) -> Result<Self::Value, E> {
                Ok(Foreign::new(text))
            }
        }

        deserializer.deserialize_str(Text)
    }
}

// Lists of texts that somebody else wrote.

/// Most entries of a list: more than a processor has features.
pub const ENTRIES: usize = 256;

/// A list of [`Foreign`] texts, of at most [`ENTRIES`]. The last entry of a longer one says how many are left out.
#[derive(Clone, Default, PartialEq, Eq, Debug, Serialize)]
#[serde(transparent)]
pub struct Foreigns(Vec<Foreign>);

impl Deref for Foreigns {
    type Target = [Foreign];

    fn deref(&self) -> &[Foreign] {
        &self.0
    }
}

impl<S: Into<Foreign>> FromIterator<S> for Foreigns {
    fn from_iter<I: IntoIterator<Item = S>>(texts: I) -> Self {
        let mut texts = texts.into_iter();
        let kept = texts.by_ref().take(ENTRIES).map(Into::into).collect();
        Self::ended(kept, texts.count())
    }
}

impl<S: Into<Foreign>> From<Vec<S>> for Foreigns {
    fn from(texts: Vec<S>) -> Self {
        texts.into_iter().collect()
    }
}

impl Foreigns {
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    fn ended(mut kept: Vec<Foreign>, more: usize) -> Self {
        if more > 0 {
            kept.truncate(ENTRIES - 1);
            kept.push(format!("… ({} more cut)", more + 1).into());
        }
        Self(kept)
    }
}

impl<S: Into<Foreign>> Extend<S> for Foreigns {
    fn extend<I: IntoIterator<Item = S>>(&mut self, more: I) {
        let kept = std::mem::take(self).into_iter();
        *self = kept.chain(more.into_iter().map(Into::into)).collect();
    }
}

impl<const N: usize> PartialEq<[&str; N]> for Foreigns {
    fn eq(&self, other: &[&str; N]) -> bool {
        self.0 == *other
    }
}

impl IntoIterator for Foreigns {
    type Item = Foreign;
    type IntoIter = std::vec::IntoIter<Foreign>;

    fn into_iter(self) -> Self::IntoIter {
        self.0.into_iter()
    }
}

impl<'a> IntoIterator for &'a Foreigns {
    type Item = &'a Foreign;
    type IntoIter = std::slice::Iter<'a, Foreign>;

    fn into_iter(self) -> Self::IntoIter {
        self.0.iter()
    }
}

impl<'de> Deserialize<'de> for Foreigns {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Texts;

        impl<'de> Visitor<'de> for Texts {
            type Value = Foreigns;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a list of strings")
            }

            fn visit_seq<A: SeqAccess<'de>>(self, mut texts: A) -> Result<Foreigns, A::Error> {
                let (mut kept, mut more) = (Vec::new(), 0);
                while let Some(text) = texts.next_element::<Foreign>()? {
                    if kept.len() < ENTRIES { kept.push(text) } else { more += 1 }
                }
                Ok(Foreigns::ended(kept, more))
            }
        }

        deserializer.deserialize_seq(Texts)
    }
}

// Text made harmless for the place where it is shown.

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

// Text in which every character can be seen.

/// In place of what was cut out.
const CUT: &str = "… (cut) …";

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

/// One line of at most `most` characters. A text that is too long loses its middle: a message often ends with its
/// reason.
pub fn shortened(text: &str, most: usize) -> String {
    let (start, is_whole) = visible(text, most);
    if is_whole {
        return start;
    }
    let room = most.saturating_sub(CUT.chars().count());
    let behind = room / 3;
    let last = text.char_indices().rev().nth(behind).map_or(0, |(at, _)| at);
    let (end, _) = visible(&text[last..], usize::MAX);
    let skipped = end.chars().count().saturating_sub(behind);
    start.chars().take(room - behind).chain(CUT.chars()).chain(end.chars().skip(skipped)).collect()
}

/// The text in one line of visible characters, and whether that is all of it: it ends behind `most` characters.
fn visible(text: &str, most: usize) -> (String, bool) {
    let (mut shown, mut count, mut behind_end) = (String::new(), 0, false);
    for character in text.chars() {
        let is_end =
            matches!(character, '\n' | '\r' | '\t' | '\u{b}' | '\u{c}' | '\u{85}' | '\u{2028}' | '\u{2029}');
        if is_end && !behind_end {
            shown.push(' ');
            count += 1;
        } else if is_visible(character) {
            shown.push(character);
            count += 1;
        } else if !is_end {
            let escaped = character.escape_unicode();
            count += escaped.len();
            shown.extend(escaped);
        }
        behind_end = is_end;
        if count > most {
            return (shown, false);
        }
    }
    (shown, true)
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
