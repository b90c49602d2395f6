//! Settings for an encoder other than the texts: the task, and the lengths of the texts.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::str::FromStr;

use clap::{Args, ValueEnum};
use protocol::{Arrivals, Load, Search, Serve, Way};
use rand::{RngExt, SeedableRng};
use rand_chacha::ChaCha8Rng;
use serde::{Deserialize, Serialize};

use crate::plan::{Failure, Result, flags};

/// Settings for encoders.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, Args)]
#[serde(default, deny_unknown_fields)]
pub struct EncodeAsked {
    /// Task of an encoder: vectors of texts, scores of texts, or scores of their tokens [default: as the model's files say]
    #[arg(long, value_enum, value_name = "embed|rerank|classify", hide_possible_values = true, help_heading = flags::ENCODERS, hide_short_help = true)]
    pub task: Option<TaskAsked>,
    #[command(flatten)]
    #[serde(skip_serializing_if = "VectorsAsked::is_default")]
    pub vectors: VectorsAsked,
    /// Lengths of an encoder's texts in tokens: real, fixed:N, or uniform:A-B, drawn for each text [default: real]
    #[arg(long, value_name = "real|fixed:N|uniform:A-B", help_heading = flags::ENCODERS, hide_short_help = true)]
    pub lengths: LengthsAsked,
    /// Cut texts that are longer than an encoder takes: its max_seq_length, or its positions
    #[arg(long, help_heading = flags::ENCODERS, hide_short_help = true)]
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub truncate: bool,
    /// Time an encoder's tokenizer, too: from text to vector, with the crate tokenizers for all frameworks
    #[arg(long, help_heading = flags::ENCODERS, hide_short_help = true)]
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub include_tokenizer: bool,
}

impl EncodeAsked {
    pub fn is_default(&self) -> bool {
        *self == EncodeAsked::default()
    }

    /// Whether a study may choose the lengths of texts: none are asked for, and tokenising is not timed.
    pub(crate) fn has_real_lengths(&self) -> bool {
        self.lengths == LengthsAsked::Real && !self.include_tokenizer
    }
}

/// How the vectors of texts are made.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, Args)]
#[serde(default, deny_unknown_fields)]
pub struct VectorsAsked {
    /// How an encoder makes the vector of a text from those of its tokens [default: as its files say, else mean]
    #[arg(long, value_enum, value_name = "WAY", help_heading = flags::ENCODERS, hide_short_help = true)]
    pub pooling: Option<PoolingAsked>,
    /// Whether an encoder's vectors are divided by their length [default: as its files say]
    #[arg(long, value_name = "true|false", help_heading = flags::ENCODERS, hide_short_help = true)]
    pub normalise: Option<bool>,
    /// Put this prompt of an encoder's files in front of each text, or none [default: default_prompt_name of its files]
    #[arg(long, value_name = "NAME|none", help_heading = flags::ENCODERS, hide_short_help = true)]
    pub prompt_name: Option<String>,
}

impl VectorsAsked {
    pub fn is_default(&self) -> bool {
        *self == VectorsAsked::default()
    }
}

/// A way to make one vector of a text from those of its tokens.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, ValueEnum)]
#[serde(rename_all = "snake_case")]
pub enum PoolingAsked {
    /// The first token's
    Cls,
    /// The mean
    Mean,
    /// The largest of each component
    Max,
    /// The last token's
    Last,
    /// The sum, divided by the root of the number of tokens
    MeanSqrtLen,
    /// The mean with the place of each token as its weight
    WeightedMean,
}

impl PoolingAsked {
    /// The name on the command line.
    pub fn name(self) -> String {
        self.to_possible_value().map_or_else(String::new, |value| value.get_name().to_owned())
    }

    pub(crate) fn way(self) -> Way {
        match self {
            PoolingAsked::Cls => Way::Cls,
            PoolingAsked::Mean => Way::Mean,
            PoolingAsked::Max => Way::Max,
            PoolingAsked::Last => Way::Last,
            PoolingAsked::MeanSqrtLen => Way::MeanSqrtLen,
            PoolingAsked::WeightedMean => Way::WeightedMean,
        }
    }
}

/// The task of an encoder.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, ValueEnum, strum::IntoStaticStr)]
#[serde(rename_all = "snake_case")]
#[strum(serialize_all = "snake_case")]
pub enum TaskAsked {
    /// Vectors
    Embed,
    /// Scores of texts, such as pairs of a question and an answer
    Rerank,
    /// Scores of the tokens of texts
    Classify,
}

impl TaskAsked {
    /// The name on the command line.
    pub fn name(self) -> &'static str {
        self.into()
    }
}

/// Lengths of texts in tokens, special tokens included.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum LengthsAsked {
    /// The texts' own.
    #[default]
    Real,
    /// All equal: longer texts are cut, shorter ones repeated.
    Fixed(u32),
    /// Drawn for each text, all lengths in the range equally likely.
    Uniform { from: u32, to: u32 },
}

impl LengthsAsked {
    /// The longest length asked for, if any.
    pub(crate) fn longest(self) -> Option<usize> {
        match self {
            LengthsAsked::Real => None,
            LengthsAsked::Fixed(tokens) | LengthsAsked::Uniform { to: tokens, .. } => Some(tokens as usize),
        }
    }
}

impl FromStr for LengthsAsked {
    type Err = String;

    fn from_str(text: &str) -> std::result::Result<LengthsAsked, String> {
        let wanted =
            || format!("{text:?} is none of real, fixed:N and uniform:A-B, with lengths from 1 token");
        let length = |text: &str| text.parse::<u32>().ok().filter(|&length| length > 0).ok_or_else(wanted);
        match text.split_once(':') {
            None if text == "real" => Ok(LengthsAsked::Real),
            Some(("fixed", tokens)) => length(tokens).map(LengthsAsked::Fixed),
            Some(("uniform", range)) => {
                let (from, to) = range.split_once('-').ok_or_else(wanted)?;
                let (from, to) = (length(from)?, length(to)?);
                if from > to {
                    return Err(format!(
                        "{text:?} goes from {from} down to {to}: name the shorter length first"
                    ));
                }
                Ok(LengthsAsked::Uniform { from, to })
            }
            _ => Err(wanted()),
        }
    }
}

/// Draws the lengths of texts.
pub(crate) struct Lengths {
    asked: LengthsAsked,
    random: ChaCha8Rng,
}

impl Lengths {
    pub(crate) fn new(asked: LengthsAsked, seed: u64) -> Lengths {
        Lengths { asked, random: ChaCha8Rng::seed_from_u64(seed) }
    }

    /// The places of the tokens that make a text of `tokens` tokens as long as asked for. The last token
    /// stays the last; a text that is too short is repeated between its first and its last.
    pub(crate) fn places(&mut self, tokens: usize) -> Vec<usize> {
        let wanted = match self.asked {
            LengthsAsked::Real => tokens,
            LengthsAsked::Fixed(length) => length as usize,
            LengthsAsked::Uniform { from, to } => self.random.random_range(from..=to) as usize,
        };
        let last = tokens.saturating_sub(1);
        let inner = (0..last).chain((1.min(last)..last).chain((last < 2).then_some(0)).cycle());
        inner.take(wanted.saturating_sub(1)).chain([last]).collect()
    }
}

// Settings for an ONNX file: sizes of its free dimensions, and its inputs.

/// Settings for ONNX files.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct GraphAsked {
    /// Sizes of free dimensions by name. With several, each combination is a case of its own.
    pub dims: BTreeMap<String, Vec<u32>>,
    /// Values of inputs, by name; the others are drawn.
    pub inputs: BTreeMap<String, InputAsked>,
}

impl GraphAsked {
    pub fn is_default(&self) -> bool {
        *self == GraphAsked::default()
    }

    /// Files that inputs come from, by input.
    pub fn files(&self) -> impl Iterator<Item = (&str, &PathBuf)> {
        self.inputs.iter().filter_map(|(name, asked)| match asked {
            InputAsked::File(path) => Some((name.as_str(), path)),
            InputAsked::Drawn { .. } => None,
        })
    }
}

/// The source of an input.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum InputAsked {
    /// Values from `low` to below `high`, drawn by the seed; all are `low` if the two are equal.
    Drawn { low: f64, high: f64 },
    /// An array of NumPy's: `.npy`, or the one with the input's name in `.npz`.
    File(PathBuf),
}

/// Sizes of dimensions as typed: `batch=1,8,width=640`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Dims(pub BTreeMap<String, Vec<u32>>);

impl FromStr for Dims {
    type Err = String;

    fn from_str(text: &str) -> std::result::Result<Dims, String> {
        let size = |text: &str| text.trim().parse::<u32>().ok().filter(|&size| size > 0);
        let wrong = |part: &str| {
            let size = "with a size from 1 (for 0: an array of that shape, --input NAME=FILE.npy)";
            format!("{part:?} is no NAME=SIZE, {size}; such as batch=1,width=640")
        };
        let mut dims: BTreeMap<String, Vec<u32>> = BTreeMap::new();
        let mut latest: Option<String> = None;
        for part in text.split(',') {
            // The name of a dimension may contain an equals sign; a size does not.
            let (name, number) = match (part.rsplit_once('='), &latest) {
                (Some((name, number)), _) => (name.trim().to_owned(), number),
                (None, Some(name)) => (name.clone(), part),
                (None, None) => return Err(wrong(part)),
            };
            let number = size(number).filter(|_| !name.is_empty()).ok_or_else(|| wrong(part))?;
            dims.entry(name.clone()).or_default().push(number);
            latest = Some(name);
        }
        Ok(Dims(dims))
    }
}

/// An input as typed: `ids=0..30000`, `rate=16000` or `images=FILE.npy`.
#[derive(Debug, Clone, PartialEq)]
pub struct NamedInput(pub String, pub InputAsked);

impl FromStr for NamedInput {
    type Err = String;

    fn from_str(text: &str) -> std::result::Result<NamedInput, String> {
        let wrong = || format!("{text:?} is none of NAME=LOW..HIGH, NAME=NUMBER and NAME=FILE.npy");
        let (name, value) = text.split_once('=').filter(|(name, _)| !name.is_empty()).ok_or_else(wrong)?;
        let number = |text: &str| text.trim().parse::<f64>().ok().filter(|number| number.is_finite());
        if let Some(number) = number(value) {
            return Ok(NamedInput(name.to_owned(), InputAsked::Drawn { low: number, high: number }));
        }
        let range = value.split_once("..").map(|(low, high)| (number(low), number(high)));
        if let Some((Some(low), Some(high))) = range {
            if low >= high {
                return Err(format!("{text:?} has no value: name the lower end first, {name}={high}..{low}"));
            }
            return Ok(NamedInput(name.to_owned(), InputAsked::Drawn { low, high }));
        }
        let is_array =
            value.to_ascii_lowercase().ends_with(".npy") || value.to_ascii_lowercase().ends_with(".npz");
        if !is_array {
            return Err(wrong());
        }
        Ok(NamedInput(name.to_owned(), InputAsked::File(PathBuf::from(value))))
    }
}

// Settings for several callers: their number or rate, and how they are served.

/// Most callers with a request in progress, if requests come at random.
const MAX_CALLERS: usize = 64;

/// Requests of a turn if they come at random: those of so many seconds, and at most `MAX_REQUESTS`.
const TURN_SECONDS: f64 = 2.0;

const MAX_REQUESTS: usize = 4096;

/// Default number of requests of a turn: for each caller, and at least in all.
#[derive(Debug, Clone, Copy)]
pub(crate) struct UsualRequests {
    pub(crate) each: usize,
    pub(crate) least: usize,
}

/// Settings for several callers.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, Args)]
#[serde(default, deny_unknown_fields)]
pub struct ServingAsked {
    /// Callers, of which each makes a request for one text, one prompt or one run when its last is answered; several
    /// numbers are a study: 1,4,16,64
    #[arg(long, value_name = "N,…", value_delimiter = ',', value_parser = flags::count(1, 1024),
          help_heading = flags::SERVING, hide_short_help = true)]
    pub callers: Vec<u32>,
    /// Requests a second that come at random, whatever becomes of those before; latency counts from when they were due
    #[arg(long, value_name = "N,…", value_delimiter = ',', value_parser = flags::count(1, 100_000),
          help_heading = flags::SERVING, hide_short_help = true)]
    pub rate: Vec<u32>,
    /// Requests of a turn of callers [default: some for each caller; at a rate those of two seconds]
    #[arg(long, value_name = "N", value_parser = flags::count(1, 4096), help_heading = flags::SERVING,
          hide_short_help = true)]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub requests: Option<u32>,
    /// How callers are served, a column for each: shared (one model, a request at a time), pool:K (K models), or
    /// batch:B:W (up to B waiting requests at once; the first waits at most W for others) [default: shared]
    #[arg(long, value_name = "shared|pool:K|batch:B:W", value_delimiter = ',', help_heading = flags::SERVING,
          hide_short_help = true)]
    pub serve: Vec<Serve>,
    /// Find the highest rate at which 99 of 100 answers come within this time, such as 50ms
    #[arg(long = "slo", value_name = "TIME", value_parser = flags::limit, conflicts_with = "rate",
          help_heading = flags::SERVING, hide_short_help = true)]
    pub slo_us: Option<u64>,
}

impl ServingAsked {
    pub fn is_default(&self) -> bool {
        *self == ServingAsked::default()
    }

    /// Whether there are callers besides the one of every comparison.
    pub fn has_callers(&self) -> bool {
        !self.callers.is_empty() || !self.rate.is_empty()
    }

    /// Whether that makes several comparisons.
    pub fn is_study(&self) -> bool {
        self.callers.len() > 1 || self.rate.len() > 1
    }

    /// When requests come, if there are several callers.
    pub(crate) fn load(&self, usual: UsualRequests, seed: u64) -> Result<Option<Load>> {
        if self.slo_us.is_some() && !self.rate.is_empty() {
            return Err(Failure::usage("--slo finds the highest rate itself: leave --rate out"));
        }
        if !self.has_callers() && self.slo_us.is_none() {
            return match self.is_default() {
                true => Ok(None),
                false => Err(Failure::usage(
                    "--serve and --requests say how callers are served: add --callers, --rate or --slo",
                )),
            };
        }
        let is_closed = self.slo_us.is_none() && self.rate.is_empty();
        let callers = self.callers.first().map_or(MAX_CALLERS, |&callers| callers as usize);
        let requests = match (self.requests, self.rate.first()) {
            (Some(asked), _) => asked as usize,
            (None, Some(&rate)) => {
                ((f64::from(rate) * TURN_SECONDS) as usize).clamp(usual.least, MAX_REQUESTS)
            }
            (None, None) if is_closed => (usual.each * callers).clamp(usual.least, MAX_REQUESTS),
            // The search decides how many requests it makes.
            (None, None) => usual.least,
        };
        Ok(Some(Load {
            callers,
            requests,
            arrivals: self.rate.first().map(|&rate| Arrivals { rate: f64::from(rate), seed }),
            search: self.slo_us.map(|limit_us| Search { limit_ns: limit_us * 1000, seed }),
        }))
    }
}

// The bundled text or texts by which a study judges an engine's output, or the cost of a precision.

/// Data that is computed once, apart from the timed requests.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum QualityData {
    /// A text, each token of which is predicted from those before it.
    Text(Prose),
    /// The input of an encoder.
    Retrieval(Retrieval),
}

/// Token ids of a text, without special ones.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Prose {
    pub tokens: Vec<u32>,
    /// The special tokens that every part of the text begins with.
    pub before: Vec<u32>,
}

/// Texts that queries are to find.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Retrieval {
    /// Token ids. For vectors: the queries, then the documents. For scores of texts: each query with every
    /// document, query by query.
    pub texts: Vec<Vec<u32>>,
    /// The type of each token; all 0 if empty.
    pub types: Vec<Vec<u32>>,
    /// Number of queries; 0 if nothing is searched, because a text has several scores.
    pub queries: usize,
    /// Whether each text is a query with a document.
    pub pairs: bool,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lengths_are_read_as_typed() {
        let read = |text: &str| text.parse::<LengthsAsked>();
        assert_eq!(read("real"), Ok(LengthsAsked::Real));
        assert_eq!(read("fixed:128"), Ok(LengthsAsked::Fixed(128)));
        assert_eq!(read("uniform:16-512"), Ok(LengthsAsked::Uniform { from: 16, to: 512 }));
        assert!(read("uniform:9-3").unwrap_err().contains("from 9 down to 3"));
        for wrong in ["fixed", "fixed:0", "fixed:x", "uniform:3", "normal:1-2", ""] {
            assert!(read(wrong).unwrap_err().contains("none of real, fixed:N and uniform:A-B"), "{wrong}");
        }
    }

    #[test]
    fn a_text_is_cut_or_repeated_between_its_ends() {
        let places = |asked, tokens| Lengths::new(asked, 1).places(tokens);
        assert_eq!(places(LengthsAsked::Real, 4), [0, 1, 2, 3]);
        assert_eq!(places(LengthsAsked::Fixed(3), 5), [0, 1, 4]);
        assert_eq!(places(LengthsAsked::Fixed(7), 4), [0, 1, 2, 1, 2, 1, 3]);
        assert_eq!(places(LengthsAsked::Fixed(3), 1), [0, 0, 0]);
        assert_eq!(places(LengthsAsked::Fixed(4), 2), [0, 0, 0, 1]);
    }

    #[test]
    fn drawn_lengths_are_in_the_range_and_the_same_for_a_seed() {
        let drawn = |seed| {
            let mut lengths = Lengths::new(LengthsAsked::Uniform { from: 3, to: 9 }, seed);
            (0..200).map(|_| lengths.places(5).len()).collect::<Vec<_>>()
        };
        let lengths = drawn(1);
        assert_eq!((lengths.iter().min(), lengths.iter().max()), (Some(&3), Some(&9)));
        assert_eq!(lengths, drawn(1));
        assert_ne!(lengths, drawn(2));
    }

    #[test]
    fn sizes_are_read_as_typed() {
        let read = |text: &str| text.parse::<Dims>().map(|dims| dims.0);
        let expected = BTreeMap::from([("batch".to_owned(), vec![1, 8]), ("width".to_owned(), vec![640])]);
        assert_eq!(read("batch=1,8,width=640"), Ok(expected));
        for wrong in ["", "batch", "batch=", "batch=0", "=3", "batch=x", "1,batch=2"] {
            assert!(read(wrong).unwrap_err().contains("no NAME=SIZE"), "{wrong}");
        }
    }

    #[test]
    fn inputs_are_read_as_typed() {
        let read = |text: &str| text.parse::<NamedInput>().map(|input| input.1);
        assert_eq!(read("ids=0..30000"), Ok(InputAsked::Drawn { low: 0.0, high: 30000.0 }));
        assert_eq!(read("x=-1.5..1e1"), Ok(InputAsked::Drawn { low: -1.5, high: 10.0 }));
        assert_eq!(read("rate=16000"), Ok(InputAsked::Drawn { low: 16000.0, high: 16000.0 }));
        assert_eq!(read("x=a=b.npy"), Ok(InputAsked::File("a=b.npy".into())));
        assert!(read("x=3..1").unwrap_err().contains("x=1..3"));
        for wrong in ["x", "=3", "x=", "x=nan", "x=0..inf", "x=a.png"] {
            assert!(read(wrong).unwrap_err().contains("none of NAME=LOW..HIGH"), "{wrong}");
        }
    }

    #[test]
    fn a_turn_holds_several_requests_of_each_caller_or_those_of_some_seconds() {
        let usual = UsualRequests { each: 8, least: 32 };
        let requests = |callers: &[u32], rate: &[u32]| {
            let asked =
                ServingAsked { callers: callers.to_vec(), rate: rate.to_vec(), ..ServingAsked::default() };
            asked.load(usual, 1).unwrap().map(|load| load.requests)
        };
        assert_eq!(requests(&[], &[]), None);
        let counts = [
            requests(&[1], &[]),
            requests(&[16], &[]),
            requests(&[], &[1]),
            requests(&[], &[100]),
            requests(&[], &[9999]),
        ];
        assert_eq!(counts.map(Option::unwrap), [32, 128, 32, 200, 4096]);
        let alone = ServingAsked { serve: vec![Serve::Pool(2)], ..ServingAsked::default() };
        assert!(alone.load(usual, 1).unwrap_err().to_string().contains("add --callers, --rate or --slo"));
    }
}
