//! Work as a value: the inputs and outputs of requests. Each kind of work has a file here. Turns, warm-up,
//! clock and journal read [`Marks`] and never name a token.

mod denoise;
mod encode;
mod generate;
mod graph;

use std::ops::Range;

pub use denoise::{Algorithm, Denoise, DenoiseWork, MaskedCase, Steps, states};
pub use encode::{
    Dense, EncodeTask, EncodeWork, Pooling, Residual, Step, StepActivation, TextBatch, Vectors, Way,
};
pub use generate::{
    CacheUsage, Case, Continued, Decode, GenerateWork, HandOver, Heard, Hybrid, KvCache, KvCachePolicy,
    Padding, Sampling, Side,
};
pub use graph::{Fed, Feed, GraphCase, GraphWork, ROTATED, Tensor, Values};
use serde::{Deserialize, Serialize};

use crate::Call;

/// The requests of a job, by kind of work.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "snake_case")]
pub enum Work {
    /// Continue prompts token by token. A request's marks: its first token, and each further one.
    Generate(GenerateWork),
    /// Fill in masks after prompts, by masked diffusion. A request's marks: the end of each step.
    Denoise(DenoiseWork),
    /// Turn batches of texts into vectors. A request's mark: the end.
    Encode(EncodeWork),
    /// Run an ONNX file. A request's mark: the end.
    Graph(GraphWork),
}

impl Work {
    pub fn cases(&self) -> usize {
        match self {
            Work::Generate(work) => work.cases.len(),
            Work::Denoise(work) => work.cases.len(),
            Work::Encode(work) => work.cases.len(),
            Work::Graph(work) => work.cases.len(),
        }
    }

    /// Most sequences of a case, new tokens of each, and marks of a request.
    pub fn sizes(&self) -> (usize, usize, usize) {
        fn most<T>(cases: &[T], count: impl Fn(&T) -> usize) -> usize {
            cases.iter().map(count).max().unwrap_or(0)
        }
        match self {
            Work::Generate(work) => {
                (most(&work.cases, |case| case.prompts.len()), work.new_tokens, work.new_tokens)
            }
            Work::Denoise(work) => {
                (most(&work.cases, |case| case.prompts.len()), work.new_tokens, work.how.steps)
            }
            Work::Encode(work) => (most(&work.cases, |case| case.texts.len()), 0, 1),
            Work::Graph(work) => (0, 0, most(&work.cases, |case| case.sets)),
        }
    }

    /// Whether keys and values are to be kept from one mark to the next, where the model has any.
    pub fn kv_cache(&self) -> KvCache {
        match self {
            Work::Generate(work) => work.kv_cache,
            Work::Denoise(_) | Work::Encode(_) | Work::Graph(_) => KvCache::On,
        }
    }

    /// This work with the outputs of requests, one for each case, as its traces: logits are then computed
    /// along them.
    pub fn along(mut self, outputs: &[Output]) -> Work {
        match &mut self {
            Work::Generate(work) => {
                for (case, output) in work.cases.iter_mut().zip(outputs) {
                    case.trace = output.tokens().to_vec();
                }
            }
            Work::Denoise(work) => {
                for (case, output) in work.cases.iter_mut().zip(outputs) {
                    case.trace = output.tokens().to_vec();
                    case.unmasked = output.unmasked().to_vec();
                }
            }
            Work::Encode(_) | Work::Graph(_) => {}
        }
        self
    }
}

/// The input of one request in place of its case's own.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Input {
    /// Prompts to continue, and what steps are fed.
    Continue(Continued),
    /// The token ids of each text of the batch, as long as the case's own.
    Texts(Vec<Vec<u32>>),
    /// Seed of a graph's drawn inputs.
    Seed(u64),
}

/// The output of a request, which parity reads.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Output {
    /// `[batch][new tokens]`: the most likely token at each step, or the one drawn, chosen inside the timed loop.
    Tokens(Vec<Vec<u32>>),
    Steps(Steps),
    Vectors(Vectors),
    /// In the order of the graph's outputs.
    Tensors(Vec<Tensor>),
}

/// Tensors whose shapes are kept without their numbers.
const KEPT_TENSORS: usize = 8;

impl Output {
    /// `[batch][new tokens]`
    pub fn tokens(&self) -> &[Vec<u32>] {
        match self {
            Output::Tokens(tokens) => tokens,
            Output::Steps(steps) => &steps.tokens,
            Output::Vectors(_) | Output::Tensors(_) => &[],
        }
    }

    /// A vector for each text that was encoded, or its scores; empty for other work.
    pub fn into_vectors(self) -> Vec<Vec<f32>> {
        match self {
            Output::Vectors(output) => output.vectors,
            Output::Tokens(_) | Output::Steps(_) | Output::Tensors(_) => Vec::new(),
        }
    }

    /// Number of numbers in its vectors or tensors; 0 for other work.
    pub fn numbers(&self) -> usize {
        match self {
            Output::Vectors(output) => output.vectors.iter().map(Vec::len).sum(),
            Output::Tensors(tensors) => {
                tensors.iter().map(|tensor| tensor.shape.iter().product::<usize>()).sum()
            }
            Output::Tokens(_) | Output::Steps(_) => 0,
        }
    }

    /// Frees the numbers of vectors and tensors, which are large; other outputs stay, and the shapes of the first
    /// tensors: the length of audio that was made is there.
    pub fn clear_numbers(&mut self) {
        match self {
            Output::Vectors(output) => output.vectors.clear(),
            Output::Tensors(tensors) => {
                tensors.truncate(KEPT_TENSORS);
                tensors.iter_mut().for_each(|tensor| tensor.data = Vec::new());
            }
            Output::Tokens(_) | Output::Steps(_) => {}
        }
    }

    /// The step that unmasks each token, `[batch][new tokens]`; empty where nothing is masked.
    pub fn unmasked(&self) -> &[Vec<u32>] {
        match self {
            Output::Tokens(_) | Output::Vectors(_) | Output::Tensors(_) => &[],
            Output::Steps(steps) => &steps.unmasked,
        }
    }
}

impl Default for Output {
    fn default() -> Output {
        Output::Tokens(Vec::new())
    }
}

// The times of a request.

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

// One request: its times and its output.

/// One request: the answer to a turn, or a part of a warm-up iteration.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct Sample {
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
    /// Nanoseconds since it began when its audio was encoded, before its first mark, if it has any.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub heard_ns: Option<u64>,
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
    fn marks_are_times_since_the_request_began() {
        let marks = Marks::new(9, [2, 3]);
        assert_eq!(serde_json::to_string(&marks).unwrap(), "[9,11,14]");
        assert_eq!((marks.first(), marks.end(), marks.len()), (9, 14, 3));
        assert_eq!(marks.gaps().collect::<Vec<_>>(), [2, 3]);
        assert_eq!(Marks(vec![u64::MAX, 1]).gaps().collect::<Vec<_>>(), [0], "workers may send anything");
        assert_eq!((Marks::default().first(), Marks::default().end()), (0, 0));
    }

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
