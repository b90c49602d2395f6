//! The part of onig that tokenizers calls, on fancy-regex. fastembed asks tokenizers for its feature `onig`, and cargo
//! would give it to every program of the workspace: they would need a C compiler, and their texts would be split by
//! another library. With this all programs split texts as tokenizers does with its feature `fancy-regex`.

use fancy_regex::Matches;
pub use fancy_regex::Error;

#[derive(Debug)]
pub struct Regex(fancy_regex::Regex);

impl Regex {
    /// # Errors
    /// What fancy-regex has against the pattern.
    pub fn new(pattern: &str) -> Result<Regex, Error> {
        fancy_regex::Regex::new(pattern).map(Regex)
    }

    pub fn find_iter<'r, 't>(&'r self, text: &'t str) -> FindMatches<'r, 't> {
        FindMatches(self.0.find_iter(text))
    }
}

/// Where each match begins and ends.
pub struct FindMatches<'r, 't>(Matches<'r, 't>);

impl Iterator for FindMatches<'_, '_> {
    type Item = (usize, usize);

    /// Ends at an error, as tokenizers does with fancy-regex.
    fn next(&mut self) -> Option<(usize, usize)> {
        self.0.next()?.ok().map(|found| (found.start(), found.end()))
    }
}
