//! Requests as metrics read them, and figures of single kinds of work from marks and outputs.

mod denoise;
mod encode;
mod generate;

use std::ops::Range;

use protocol::{Output, Sample};

use super::Size;

pub(super) use denoise::Steps;
pub(super) use encode::padding;
pub(super) use generate::decoded_a_second;

/// One measured request, or a slice of it.
pub(super) struct Request<'a> {
    pub(super) sample: &'a Sample,
    pub(super) size: Size,
    /// Places of its gaps, or of the slice's.
    gaps: Range<usize>,
}

impl<'a> Request<'a> {
    pub(super) fn new(sample: &'a Sample, size: Size) -> Request<'a> {
        Request { sample, size, gaps: 0..sample.marks_ns.gaps().len() }
    }

    /// Its slices; itself if it was not sliced.
    pub(super) fn slices(self) -> impl Iterator<Item = Request<'a>> {
        let Request { sample, size, .. } = self;
        sample.slices().into_iter().map(move |gaps| Request { sample, size, gaps })
    }

    /// Latencies in nanoseconds: the times of several callers' requests, or the gaps between tokens; for a
    /// single encoded text or a run of a graph, the time of the request.
    pub(super) fn latencies_ns(&self) -> Vec<u64> {
        if !self.sample.calls.is_empty() {
            return self.sample.calls.iter().map(|call| call.done_ns.saturating_sub(call.asked_ns)).collect();
        }
        match &self.sample.output {
            Output::Vectors(_) if self.size.batch == 1 => vec![self.sample.marks_ns.end()],
            Output::Tensors(_) => vec![self.sample.marks_ns.end()],
            Output::Vectors(_) => Vec::new(),
            _ => self.sample.timed_gaps().collect(),
        }
    }

    pub(super) fn mean_latency_ns(&self) -> Option<f64> {
        let latencies = self.latencies_ns();
        (!latencies.is_empty()).then(|| latencies.iter().sum::<u64>() as f64 / latencies.len() as f64)
    }

    pub(super) fn mean_latency_ms(&self) -> Option<f64> {
        Some(self.mean_latency_ns()? / 1e6)
    }

    /// Whether the gap with this place counts.
    pub(super) fn times(&self, place: usize) -> bool {
        self.gaps.contains(&place) && !self.sample.lead_in.contains(&place)
    }

    /// Mean gap in nanoseconds; `None` without gaps.
    pub(super) fn mean_gap_ns(&self) -> Option<f64> {
        let gaps = self.sample.marks_ns.gaps().enumerate().filter(|(place, _)| self.times(*place));
        let (sum, count) = gaps.fold((0, 0), |(sum, count), (_, ns)| (sum + ns, count + 1));
        (count > 0).then(|| sum as f64 / count as f64)
    }
}
