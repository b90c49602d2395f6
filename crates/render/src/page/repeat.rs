//! How to repeat a measurement elsewhere: a command without the paths of the machine that it ran on, with the commit
//! and the seed.

use maud::{Markup, html};

use super::html;
use crate::words;

/// The circumstances of a command besides its words.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Source<'a> {
    pub(super) commit: Option<&'a str>,
    /// Whether files differed from the commit.
    pub(super) modified: bool,
    /// The seed that was drawn, or given.
    pub(super) seed: Option<u64>,
}

/// The command of a run, and the reasons why it cannot be repeated exactly.
pub(super) fn section(words: &[String], source: Source<'_>) -> Markup {
    html! {
        (command(words, source))
        @if source.modified {
            (html::paragraph("Files differed from that commit: the changes are not part of this page."))
        }
        @if source.commit.is_none() && !words.is_empty() {
            (html::paragraph("No commit is known that all of it ran at: take the version named above."))
        }
    }
}

/// The command; nothing where none is known.
pub(super) fn command(words: &[String], source: Source<'_>) -> Markup {
    if words.is_empty() {
        return Markup::default();
    }
    let (line, local) = words::command::elsewhere(words, source.seed);
    let checkout = source.commit.map(|commit| vec!["git".into(), "checkout".into(), commit.to_owned()]);
    let lines: Vec<Vec<String>> = checkout.into_iter().chain([line]).collect();
    html! {
        (html::paragraph("In a checkout of Photofinish:"))
        (html::commands(&lines))
        @if !local.is_empty() {
            (html::paragraph(&format!(
                "{} was a path on the machine that measured: name your own copy.",
                local.join(", ")
            )))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_cannot_be_repeated_exactly_says_so() {
        let command = ["photofinish".to_owned(), "--quick".to_owned()];
        let page = section(&command, Source { commit: Some("abc"), modified: true, seed: Some(1) }).0;
        assert!(page.contains("git checkout abc") && page.contains("Files differed"), "{page}");
        assert!(section(&command, Source::default()).0.contains("No commit is known"));
        assert_eq!(section(&[], Source::default()).0, "");
    }
}
