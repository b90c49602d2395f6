//! The times of a request.

use serde::{Deserialize, Serialize};

/// Times within one request, in nanoseconds since it began, each later than the one before. The kind of work
/// defines the events that they mark. None includes the time between two slices of a request.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Marks(pub Vec<u64>);

impl Marks {
    /// Marks: the first after so many nanoseconds, each other one after a gap.
    pub fn new(first_ns: u64, gaps_ns: impl IntoIterator<Item = u64>) -> Marks {
        let mut marks = vec![first_ns];
        for gap in gaps_ns {
            marks.push(marks[marks.len() - 1].saturating_add(gap));
        }
        Marks(marks)
    }

    /// Number of marks.
    #[expect(clippy::len_without_is_empty, reason = "a request without a mark is none")]
    pub fn len(&self) -> usize {
        self.0.len()
    }

    /// Nanoseconds to the first; 0 without one.
    pub fn first(&self) -> u64 {
        self.0.first().copied().unwrap_or(0)
    }

    /// Nanoseconds to the last; 0 without one.
    pub fn end(&self) -> u64 {
        self.0.last().copied().unwrap_or(0)
    }

    /// Nanoseconds from the first to the last, as a sum of [`Marks::gaps`].
    pub fn after_first(&self) -> u64 {
        self.gaps().sum()
    }

    /// Nanoseconds from each to the next; 0 where one is not later than the one before, because workers may
    /// send anything.
    pub fn gaps(&self) -> impl DoubleEndedIterator<Item = u64> + ExactSizeIterator + Clone {
        self.0.windows(2).map(|pair| pair[1].saturating_sub(pair[0]))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn marks_are_times_since_the_request_began() {
        let marks = Marks::new(9, [2, 3]);
        assert_eq!(serde_json::to_string(&marks).unwrap(), "[9,11,14]");
        assert_eq!((marks.first(), marks.end(), marks.len()), (9, 14, 3));
        assert_eq!(marks.gaps().collect::<Vec<_>>(), [2, 3]);
        assert_eq!(Marks(vec![u64::MAX, 1]).gaps().collect::<Vec<_>>(), [0], "workers may send anything");
        assert_eq!((Marks::default().first(), Marks::default().end()), (0, 0));
    }
}
