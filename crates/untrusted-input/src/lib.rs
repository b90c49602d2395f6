//! Text from others: workers, models, libraries, results of other machines.
//!
//! Files with such text are opened by [`file`]. It is sanitised twice. On input, it becomes a [`Foreign`]:
//! one line of bounded length without hidden characters. On output, it is made harmless for that place: a
//! terminal ([`line`], [`lines`]), Markdown ([`markdown`], [`cell`]), a spreadsheet ([`spreadsheet`]). HTML
//! escapes by itself (`maud`), and so does JSON.

pub mod file;
mod list;
mod places;
mod visible;

pub use list::{ENTRIES, Foreigns};
pub use places::{cell, markdown, spreadsheet};
pub use visible::{line, lines, shortened};

use std::borrow::{Borrow, Cow};
use std::fmt;
use std::io::Write;
use std::ops::Deref;

use serde::de::{Deserialize, Deserializer, Visitor};
use serde::{Serialize, Serializer};

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
    ($($text:tt)*) => { $crate::say_on_stderr(::std::format_args!($($text)*)) };
}

#[doc(hidden)]
pub fn say_on_stderr(text: fmt::Arguments<'_>) {
    // One call, so that lines of several threads do not mix.
    let _ = std::io::stderr().write_all(format!("{text}\n").as_bytes());
}

/// Text from others: one line of at most `MOST` characters, in which every character can be seen. It is cut
/// on reading, so that a longer one is never in memory.
#[derive(Clone, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Foreign<const MOST: usize = SENTENCE>(String);

/// A text of several sentences.
pub type ForeignText = Foreign<TEXT>;

/// A path, or flags.
pub type ForeignPath = Foreign<PATH>;

impl<const MOST: usize> Foreign<MOST> {
    pub fn new(text: &str) -> Self {
        Self(visible::shortened(text, MOST))
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

impl<const MOST: usize> AsRef<str> for Foreign<MOST> {
    fn as_ref(&self) -> &str {
        &self.0
    }
}

impl<const MOST: usize> AsRef<std::ffi::OsStr> for Foreign<MOST> {
    fn as_ref(&self) -> &std::ffi::OsStr {
        self.0.as_ref()
    }
}

impl<const MOST: usize> AsRef<std::path::Path> for Foreign<MOST> {
    fn as_ref(&self) -> &std::path::Path {
        self.0.as_ref()
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

impl<const MOST: usize> From<&String> for Foreign<MOST> {
    fn from(text: &String) -> Self {
        Self::new(text)
    }
}

impl<const MOST: usize> From<Cow<'_, str>> for Foreign<MOST> {
    fn from(text: Cow<'_, str>) -> Self {
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

impl<const MOST: usize> PartialEq<Foreign<MOST>> for &str {
    fn eq(&self, other: &Foreign<MOST>) -> bool {
        *self == other.0
    }
}

impl<const MOST: usize> PartialEq<String> for Foreign<MOST> {
    fn eq(&self, other: &String) -> bool {
        self.0 == *other
    }
}

impl<const MOST: usize> PartialEq<Foreign<MOST>> for String {
    fn eq(&self, other: &Foreign<MOST>) -> bool {
        *self == other.0
    }
}

impl<const MOST: usize> Serialize for Foreign<MOST> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(&self.0)
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

#[cfg(test)]
mod tests;
