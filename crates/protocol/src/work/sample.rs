//! One request: its times and its output.

use std::ops::Range;

use serde::{Deserialize, Serialize};

use super::{Marks, Output};
use crate::Call;

/// One request: the answer to a turn, or a part of a warm-up iteration.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct Sample {
    /// Number of the case.
    pub case: usize,
    /// On the host: a mark is taken when its result can be read. Preparation before the request, such as
    /// computing its context, is not included.
    pub marks_ns: Marks,
    /// Places, among the gaps between marks, of steps computed just after a pause within the request, with
    /// cold caches. They are part of the request's time, but of none of its step figures. The driver records
    /// them.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub lead_in: Vec<usize>,
    /// The requests of the turn if several callers make them, in the order of its texts.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub calls: Vec<Call>,
    pub output: Output,
}

impl Sample {
    /// The gaps that count: all but those just after a pause.
    pub fn timed_gaps(&self) -> impl Iterator<Item = u64> {
        let gaps = self.marks_ns.gaps().enumerate();
        gaps.filter(|(place, _)| !self.lead_in.contains(place)).map(|(_, ns)| ns)
    }

    /// The slices of the request, each as places among its gaps: it begins just after a pause. Those without
    /// a gap that counts are left out. A request without pauses is one slice.
    pub fn slices(&self) -> Vec<Range<usize>> {
        let pauses = self.lead_in.iter().copied().filter(|&place| place > 0);
        let starts: Vec<usize> = [0].into_iter().chain(pauses).collect();
        let ends = starts[1..].iter().copied().chain([self.marks_ns.gaps().len()]);
        let slices = starts.iter().zip(ends).map(|(&start, end)| start..end);
        slices.filter(|slice| slice.clone().any(|place| !self.lead_in.contains(&place))).collect()
    }
}

/// One pass over all cases.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Iteration {
    pub index: usize,
    pub cases: Vec<Sample>,
}

impl Iteration {
    /// Nanoseconds from each mark to the next, of all its requests.
    pub fn steps_ns(&self) -> impl Iterator<Item = u64> {
        self.cases.iter().flat_map(|case| case.marks_ns.gaps())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_slice_begins_just_after_a_pause_and_has_a_gap_that_counts() {
        let slices = |lead_in: &[usize]| {
            let marks_ns = Marks::new(5, [1, 1, 1, 1, 1]);
            let sample = Sample { marks_ns, lead_in: lead_in.to_vec(), ..Sample::default() };
            sample.slices().into_iter().map(|slice| (slice.start, slice.end)).collect::<Vec<_>>()
        };
        assert_eq!(slices(&[]), [(0, 5)]);
        assert_eq!(slices(&[0, 2]), [(0, 2), (2, 5)]);
        assert_eq!(slices(&[1, 4]), [(0, 1), (1, 4)], "of the last slice no gap counts");
        assert_eq!(slices(&[0, 1, 3, 4]), [(1, 3)], "two gaps after each pause do not count");
    }
}
