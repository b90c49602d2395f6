//! Requests that went token by token.

use facts::run::Turn;
use serde::{Deserialize, Serialize};

/// One request with figures that count.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Request {
    pub case: usize,
    pub block: usize,
    pub first: u64,
    pub gaps: Vec<u64>,
    /// Places of the gaps just after a pause.
    pub lead_in: Vec<usize>,
}

impl Request {
    /// A turn.
    pub(crate) fn new(turn: &Turn) -> Request {
        let us = |ns: u64| ns / 1000;
        Request {
            case: turn.sample.case,
            block: turn.block,
            first: us(turn.sample.marks_ns.first()),
            gaps: turn.sample.marks_ns.gaps().map(us).collect(),
            lead_in: turn.sample.lead_in.clone(),
        }
    }

    /// Microseconds to the last token.
    pub(crate) fn end(&self) -> u64 {
        self.first + self.gaps.iter().sum::<u64>()
    }

    /// The logarithm of its tokens per microsecond.
    pub(crate) fn speed(&self) -> f64 {
        self.speed_of(0, self.gaps.len())
    }

    /// The same of each of its slices.
    pub(crate) fn slice_speeds(&self) -> Vec<f64> {
        self.slices().map(|(from, to)| self.speed_of(from, to)).collect()
    }

    /// The logarithm of the gaps per microsecond between two places.
    fn speed_of(&self, from: usize, to: usize) -> f64 {
        let (mut count, mut sum) = (0_u64, 0);
        for place in (from..to).filter(|place| !self.lead_in.contains(place)) {
            (count, sum) = (count + 1, sum + self.gaps[place]);
        }
        (count as f64 / sum as f64).ln()
    }

    /// From where to where its slices go: each begins with a gap just after a pause. A request without pauses is one.
    fn slices(&self) -> impl Iterator<Item = (usize, usize)> {
        let mut starts = self.lead_in.clone();
        if starts.is_empty() {
            starts.push(0);
        }
        let ends = starts.clone().into_iter().skip(1).chain([self.gaps.len()]);
        let lead_in = self.lead_in.len().min(1);
        // A slice of the gap after the pause alone has no figure.
        starts.into_iter().zip(ends).filter(move |(from, to)| to - from > lead_in)
    }
}

#[cfg(test)]
impl Request {
    /// Whether it has the parts that are replayed.
    pub(crate) fn is_played(&self) -> bool {
        self.first > 0 && !self.gaps.is_empty()
    }

    /// A request with a pause in its middle. Its tokens take so many microseconds before it and twice as many
    /// after it.
    pub(crate) fn with_pause(case: usize, gap: u64) -> Request {
        let gaps = vec![9 * gap, gap, gap, 9 * gap, 2 * gap, 2 * gap];
        Request { case, block: case, first: 3 * gap, gaps, lead_in: vec![0, 3] }
    }
}
