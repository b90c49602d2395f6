//! Settings for an ONNX file as people type them, and the sizes of its dimensions: as asked for, and of arrays in
//! files.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::result::Result;
use std::str::FromStr;

use bundle::{Graph as Description, Size};
use protocol::Fed;
use serde::{Deserialize, Serialize};

use super::Given;

/// Settings for ONNX files.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct GraphAsked {
    /// Sizes of free dimensions by name. With several, each combination is a case of its own.
    pub dims: BTreeMap<String, Vec<u32>>,
    /// Values of inputs, by name; the others are drawn.
    pub inputs: BTreeMap<String, InputAsked>,
    /// Outputs that the next run is fed with; none if nothing is named, and those that their names tell without a list.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub state: Option<Vec<Fed>>,
    /// Runs of a request, one after another.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub runs: Option<u32>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub audio: Option<Audio>,
    /// Files that frameworks run in place of the ONNX file, by contender.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub artefacts: BTreeMap<String, PathBuf>,
}

/// A file of a framework's own, as typed: `tch=FILE.pt`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Artefact(pub String, pub PathBuf);

impl FromStr for Artefact {
    type Err = String;

    fn from_str(text: &str) -> Result<Artefact, String> {
        let both = text.split_once('=').filter(|(name, file)| !name.is_empty() && !file.is_empty());
        let (name, file) =
            both.ok_or_else(|| format!("{text:?} is no FRAMEWORK=FILE, such as tch=model.pt"))?;
        Ok(Artefact(name.to_owned(), PathBuf::from(file)))
    }
}

/// How much audio a run is about.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Audio {
    /// A run takes, or makes, so many seconds.
    Seconds(f64),
    /// A run makes this output, with so many samples a second.
    Output { name: String, rate: f64 },
}

impl FromStr for Audio {
    type Err = String;

    fn from_str(text: &str) -> Result<Audio, String> {
        let positive =
            |text: &str| text.trim().parse::<f64>().ok().filter(|number| number.is_finite() && *number > 0.0);
        if let Some(seconds) = positive(text.strip_suffix('s').unwrap_or(text)) {
            return Ok(Audio::Seconds(seconds));
        }
        let output = text.rsplit_once('=').and_then(|(name, rate)| Some((name, positive(rate)?)));
        let (name, rate) = output.ok_or_else(|| {
            format!("{text:?} is none of SECONDS, such as 0.032, and OUTPUT=HERTZ, such as audio=22050")
        })?;
        Ok(Audio::Output { name: name.to_owned(), rate })
    }
}

/// What is fed to the next run, as typed: `stateN=state`, several with commas, or `none`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct State(pub Vec<Fed>);

impl FromStr for State {
    type Err = String;

    fn from_str(text: &str) -> Result<State, String> {
        if text == "none" {
            return Ok(State(Vec::new()));
        }
        let mut state = Vec::new();
        for pair in text.split(',') {
            let both = pair.split_once('=').filter(|(output, input)| !output.is_empty() && !input.is_empty());
            let (output, input) = both.ok_or_else(|| {
                format!("{pair:?} is no OUTPUT=INPUT, such as stateN=state; none feeds nothing")
            })?;
            state.push(Fed { output: output.to_owned(), input: input.to_owned() });
        }
        Ok(State(state))
    }
}

/// The outputs that by their names are what the next run's inputs are: `stateN` of `state`, `hn` of `h`, `h_out` of
/// `h_in`.
pub(super) fn recognised(graph: &Description) -> Vec<Fed> {
    const AFTER: [&str; 8] = ["_out", "_next", "_new", ".out", "Out", "New", "N", "n"];
    const BEFORE: [&str; 5] = ["_in", "_prev", "_old", ".in", "In"];
    // Of an image and the image that is made of it, people want one run.
    const WORDS: [&str; 6] = ["state", "hidden", "cell", "cache", "carry", "memory"];
    let is_state = |stem: &str| {
        ["h", "c", "hx", "cx", "h0", "c0"].contains(&stem) || WORDS.iter().any(|word| stem.contains(word))
    };
    let stem = |name: &str, ends: &[&str]| -> String {
        let of_end = ends.iter().find_map(|end| name.strip_suffix(end).filter(|stem| !stem.is_empty()));
        of_end.unwrap_or(name).trim_start_matches("new_").trim_start_matches("prev_").to_owned()
    };
    let mut state = Vec::new();
    for output in &graph.outputs {
        let of_output = stem(&output.name, &AFTER);
        if of_output == output.name || !is_state(&of_output) {
            continue;
        }
        let is_it = |input: &&bundle::GraphInput| {
            input.dtype == output.dtype && stem(&input.name, &BEFORE) == of_output
        };
        if let Some(input) = graph.inputs.iter().find(is_it) {
            state.push(Fed { output: output.name.clone(), input: input.name.clone() });
        }
    }
    state
}

impl GraphAsked {
    pub fn is_default(&self) -> bool {
        *self == GraphAsked::default()
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
    /// A picture, whose darkest value becomes `low` and whose brightest `high`: `.png`.
    Picture { path: PathBuf, low: f64, high: f64 },
    /// Sound, of which each run has a piece that begins so many samples after the last one's: `.wav`.
    Sound { path: PathBuf, hop: Option<usize> },
    /// A few numbers.
    Numbers(Vec<f64>),
}

impl InputAsked {
    /// The file that it comes from.
    pub fn path(&self) -> Option<&PathBuf> {
        match self {
            InputAsked::File(path) | InputAsked::Picture { path, .. } | InputAsked::Sound { path, .. } => {
                Some(path)
            }
            InputAsked::Drawn { .. } | InputAsked::Numbers(_) => None,
        }
    }
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

/// An input as typed: `ids=0..30000`, `rate=16000`, `scales=[0,1,0]`, `images=FILE.npy`, `images=FILE.png:-1..1` or
/// `samples=FILE.wav:512`.
#[derive(Debug, Clone, PartialEq)]
pub struct NamedInput(pub String, pub InputAsked);

impl FromStr for NamedInput {
    type Err = String;

    fn from_str(text: &str) -> std::result::Result<NamedInput, String> {
        let wrong = || {
            format!(
                "{text:?} is none of NAME=LOW..HIGH, NAME=NUMBER, NAME=[NUMBER,…], NAME=FILE.npy, NAME=FILE.png and NAME=FILE.wav"
            )
        };
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
        if let Some(list) = value.strip_prefix('[').and_then(|rest| rest.strip_suffix(']')) {
            let numbers: Option<Vec<f64>> = list.split(',').map(number).collect();
            return Ok(NamedInput(name.to_owned(), InputAsked::Numbers(numbers.ok_or_else(wrong)?)));
        }
        // What stands behind the file's name, after a colon.
        let of_kind = |end: &str| {
            let lower = value.to_ascii_lowercase();
            let place = lower.rfind(end)? + end.len();
            let (path, rest) = (value.get(..place)?, value.get(place..)?);
            (rest.is_empty() || rest.starts_with(':'))
                .then(|| (PathBuf::from(path), rest.trim_start_matches(':')))
        };
        let asked = if let Some((path, rest)) = of_kind(".png") {
            let (low, high) = match rest {
                "" => (0.0, 1.0),
                range => {
                    let both = range.split_once("..").map(|(low, high)| (number(low), number(high)));
                    let Some((Some(low), Some(high))) = both else { return Err(wrong()) };
                    (low, high)
                }
            };
            InputAsked::Picture { path, low, high }
        } else if let Some((path, rest)) = of_kind(".wav") {
            let hop = rest.parse().ok().filter(|&hop: &usize| hop > 0);
            if hop.is_none() && !rest.is_empty() {
                return Err(wrong());
            }
            InputAsked::Sound { path, hop }
        } else if of_kind(".npy").or_else(|| of_kind(".npz")).is_some_and(|(_, rest)| rest.is_empty()) {
            InputAsked::File(PathBuf::from(value))
        } else {
            return Err(wrong());
        };
        Ok(NamedInput(name.to_owned(), asked))
    }
}

/// The requested sizes, by the names in the file. A dimension may also be named by its place, as in
/// `images.0`.
pub(super) fn named(
    graph: &Description,
    asked: &BTreeMap<String, Vec<u32>>,
) -> Result<BTreeMap<String, Vec<u32>>, String> {
    let places = graph.inputs.iter().flat_map(|input| {
        input
            .shape
            .iter()
            .flatten()
            .enumerate()
            .map(move |(axis, size)| (format!("{}.{axis}", input.name), size))
    });
    let places: BTreeMap<String, &Size> = places.collect();
    let free = graph.free();
    let mut found = BTreeMap::new();
    for (typed, sizes) in asked {
        let name = match places.get(typed) {
            _ if free.contains(&typed.as_str()) => typed,
            Some(Size::Free(name)) => name,
            _ => {
                let dims = if free.is_empty() { "none".to_owned() } else { free.join(", ") };
                return Err(format!("it has no free dimension {typed:?}; it has {dims}"));
            }
        };
        if found.insert(name.clone(), sizes.clone()).is_some() {
            return Err(format!("--dim sets the dimension {name:?} twice"));
        }
    }
    Ok(found)
}

/// Sizes of free dimensions that follow from the shapes of files.
pub(super) fn of_files(
    graph: &Description,
    given: &BTreeMap<String, Given>,
) -> Result<BTreeMap<String, usize>, String> {
    let mut sizes: BTreeMap<String, usize> = BTreeMap::new();
    for input in &graph.inputs {
        let Some(array) = given.get(&input.name) else { continue };
        let (name, shape) = (&input.name, &array.shape);
        if array.dtype != input.dtype {
            return Err(format!(
                "its input {name:?} takes {}, and the file holds {}: write it with .astype({:?})",
                input.dtype,
                array.dtype,
                input.dtype.name()
            ));
        }
        let Some(wanted) = &input.shape else { continue };
        let fits = |(size, found): (&Size, &usize)| !matches!(size, Size::Fixed(size) if size != found);
        if wanted.len() != shape.len() || !wanted.iter().zip(shape).all(fits) {
            return Err(format!(
                "its input {name:?} has the shape {}, and the file's is {}",
                shape_words(wanted),
                dims(shape)
            ));
        }
        for (size, &found) in wanted.iter().zip(shape) {
            let Size::Free(size) = size else { continue };
            let before = *sizes.entry(size.clone()).or_insert(found);
            if before != found {
                return Err(format!("its files give the dimension {size:?} two sizes, {before} and {found}"));
            }
        }
    }
    Ok(sizes)
}

/// Every combination of the requested sizes; the last name changes fastest.
pub(super) fn combinations(dims: &BTreeMap<String, Vec<u32>>) -> Vec<BTreeMap<String, usize>> {
    let mut all = vec![BTreeMap::new()];
    for (name, sizes) in dims {
        let with = |before: &BTreeMap<String, usize>| -> Vec<_> {
            let one = |&size: &u32| {
                let mut after = before.clone();
                after.insert(name.clone(), size as usize);
                after
            };
            sizes.iter().map(one).collect()
        };
        all = all.iter().flat_map(with).collect();
    }
    all
}

/// A shape in writing: "1x3x640x640".
pub fn dims(shape: &[usize]) -> String {
    match shape {
        [] => "scalar".to_owned(),
        shape => shape.iter().map(usize::to_string).collect::<Vec<_>>().join("x"),
    }
}

pub(super) fn shape_words(shape: &[Size]) -> String {
    let size = |size: &Size| match size {
        Size::Fixed(size) => size.to_string(),
        Size::Free(name) => name.clone(),
    };
    if shape.is_empty() { "scalar".to_owned() } else { shape.iter().map(size).collect::<Vec<_>>().join("x") }
}

#[cfg(test)]
mod tests {
    use super::*;

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
    fn state_is_told_by_names_or_typed() {
        let fed = |output: &str, input: &str| Fed { output: output.into(), input: input.into() };
        let graph = |inputs: &[&str], outputs: &[&str]| Description {
            opset: 17,
            inputs: inputs
                .iter()
                .map(|name| bundle::GraphInput {
                    name: (*name).into(),
                    dtype: bundle::Dtype::Float32,
                    shape: None,
                })
                .collect(),
            outputs: outputs
                .iter()
                .map(|name| bundle::GraphOutput { name: (*name).into(), dtype: bundle::Dtype::Float32 })
                .collect(),
            bytes: 1,
            stored: None,
            operators: BTreeMap::new(),
        };
        for (inputs, outputs, state) in [
            (&["input", "state", "sr"][..], &["output", "stateN"][..], vec![fed("stateN", "state")]),
            (&["x", "h", "c"], &["y", "hn", "cn"], vec![fed("hn", "h"), fed("cn", "c")]),
            (&["h_in"], &["h_out"], vec![fed("h_out", "h_in")]),
            (&["x"], &["y", "in"], Vec::new()),
        ] {
            assert_eq!(recognised(&graph(inputs, outputs)), state, "{outputs:?}");
        }
        assert_eq!("a=b,c=d".parse(), Ok(State(vec![fed("a", "b"), fed("c", "d")])));
        assert_eq!("none".parse(), Ok(State(Vec::new())));
        assert!("a".parse::<State>().unwrap_err().contains("OUTPUT=INPUT"));
        assert_eq!("0.032".parse(), Ok(Audio::Seconds(0.032)));
        assert_eq!("y=22050".parse(), Ok(Audio::Output { name: "y".into(), rate: 22050.0 }));
        assert!("y=0".parse::<Audio>().is_err() && "x".parse::<Audio>().is_err());
    }

    #[test]
    fn inputs_are_read_as_typed() {
        let read = |text: &str| text.parse::<NamedInput>().map(|input| input.1);
        assert_eq!(read("ids=0..30000"), Ok(InputAsked::Drawn { low: 0.0, high: 30000.0 }));
        assert_eq!(read("x=-1.5..1e1"), Ok(InputAsked::Drawn { low: -1.5, high: 10.0 }));
        assert_eq!(read("rate=16000"), Ok(InputAsked::Drawn { low: 16000.0, high: 16000.0 }));
        assert_eq!(read("x=a=b.npy"), Ok(InputAsked::File("a=b.npy".into())));
        assert!(read("x=3..1").unwrap_err().contains("x=1..3"));
        assert_eq!(read("s=[0,1.5]"), Ok(InputAsked::Numbers(vec![0.0, 1.5])));
        let picture = |low, high| Ok(InputAsked::Picture { path: "a.png".into(), low, high });
        assert_eq!((read("x=a.png"), read("x=a.png:-1..1")), (picture(0.0, 1.0), picture(-1.0, 1.0)));
        assert_eq!(read("x=a.WAV:512"), Ok(InputAsked::Sound { path: "a.WAV".into(), hop: Some(512) }));
        for wrong in ["x", "=3", "x=", "x=nan", "x=0..inf", "x=a.jpg", "x=a.png:1", "x=a.wav:0", "x=[1,b]"] {
            assert!(read(wrong).unwrap_err().contains("none of NAME=LOW..HIGH"), "{wrong}");
        }
    }
}
