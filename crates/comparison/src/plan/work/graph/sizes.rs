//! Settings for an ONNX file, and the sizes of its dimensions: as asked for, and of arrays in files.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::result::Result;
use std::str::FromStr;

use bundle::{Graph as Description, Size};
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
}
