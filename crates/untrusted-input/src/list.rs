//! Lists of texts that somebody else wrote.

use std::fmt;
use std::ops::Deref;

use serde::de::{Deserialize, Deserializer, SeqAccess, Visitor};
use serde::{Serialize, Serializer};

use crate::Foreign;

/// Most entries of a list: more than a processor has features.
pub const ENTRIES: usize = 256;

/// A list of [`Foreign`] texts, of at most [`ENTRIES`]. The last entry of a longer one says how many are left out.
#[derive(Clone, Default, PartialEq, Eq, Debug)]
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
    fn ended(mut kept: Vec<Foreign>, more: usize) -> Self {
        if more > 0 {
            kept.truncate(ENTRIES - 1);
            kept.push(format!("… ({} more cut)", more + 1).into());
        }
        Self(kept)
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

impl Serialize for Foreigns {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        self.0.serialize(serializer)
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
