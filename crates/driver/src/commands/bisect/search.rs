//! The search for the first bad one of commits in order.

use std::collections::BTreeSet;
use std::ops::Range;

/// The finding about a commit.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Outcome {
    /// As fast as the good one.
    Good,
    /// As slow as the bad one.
    Bad,
    /// It does not compile, or could not be distinguished from both.
    Skipped,
}

/// Commits after a good one, by number, the last of which is bad.
#[derive(Debug, Clone)]
pub(super) struct Search {
    /// The commits that may be the first bad one; the last of them is bad.
    left: Range<usize>,
    skipped: BTreeSet<usize>,
}

impl Search {
    /// The search among so many commits, one at least.
    pub(super) fn new(commits: usize) -> Search {
        Search { left: 0..commits, skipped: BTreeSet::new() }
    }

    /// The commit to test: the one that is not skipped nearest to the middle; `None` if there is none.
    pub(super) fn next(&self) -> Option<usize> {
        let last = self.left.end - 1;
        let middle = (self.left.start + last) / 2;
        let open = (self.left.start..last).filter(|commit| !self.skipped.contains(commit));
        open.min_by_key(|commit| commit.abs_diff(middle))
    }

    pub(super) fn record(&mut self, commit: usize, outcome: Outcome) {
        match outcome {
            Outcome::Good => self.left.start = commit + 1,
            Outcome::Bad => self.left.end = commit + 1,
            Outcome::Skipped => drop(self.skipped.insert(commit)),
        }
    }

    /// Those among which the first bad one is.
    pub(super) fn left(&self) -> Range<usize> {
        self.left.clone()
    }

    /// About how many tests are missing.
    pub(super) fn missing(&self) -> u32 {
        usize::BITS - (self.left.len() - 1).leading_zeros()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The commits that are left, and how many were tested.
    fn found(commits: usize, first_bad: usize, skipped: &[usize]) -> (Range<usize>, usize) {
        let mut search = Search::new(commits);
        let mut tests = 0;
        while let Some(commit) = search.next() {
            let outcome = match commit {
                commit if skipped.contains(&commit) => Outcome::Skipped,
                commit if commit >= first_bad => Outcome::Bad,
                _ => Outcome::Good,
            };
            search.record(commit, outcome);
            tests += 1;
        }
        (search.left(), tests)
    }

    #[test]
    fn the_first_bad_one_is_found_wherever_it_is() {
        for commits in [1, 2, 3, 31, 32] {
            for first_bad in 0..commits {
                let (left, tests) = found(commits, first_bad, &[]);
                assert_eq!(left, first_bad..first_bad + 1, "of {commits}");
                assert!(tests <= 5);
            }
        }
        assert_eq!(
            (Search::new(1).missing(), Search::new(31).missing(), Search::new(32).missing()),
            (0, 5, 5)
        );
    }

    #[test]
    fn one_that_cannot_be_tested_costs_a_test_and_hides_only_its_neighbour() {
        for first_bad in 0..31 {
            let (left, tests) = found(31, first_bad, &[15]);
            let expected = match first_bad {
                15 | 16 => 15..17,
                _ => first_bad..first_bad + 1,
            };
            assert_eq!(left, expected);
            assert!(tests <= 6, "{tests}");
        }
    }
}
