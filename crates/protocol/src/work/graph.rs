//! An ONNX file: named tensors to named tensors.

use std::path::PathBuf;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use serde::{Deserialize, Deserializer, Serialize, Serializer, de};

/// Requests that run a graph.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct GraphWork {
    /// An iteration of warm-up runs each of these once, in this order.
    pub cases: Vec<GraphCase>,
}

/// The inputs of a run.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct GraphCase {
    /// A tensor for each input of the graph, in the graph's order.
    pub inputs: Vec<Feed>,
    /// Seed of drawn values. A request may have another ([`Input::Seed`](super::Input)).
    pub seed: u64,
    /// Sets of inputs, a run each. The seed and a set's number determine what it draws.
    #[serde(default = "one", skip_serializing_if = "is_one")]
    pub sets: usize,
    /// Outputs that are the inputs of the next set's run: the runs of a request are a sequence.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub state: Vec<Fed>,
    /// Whether the numbers of files are rotated by the seed, as they are where a request has a seed of its own.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub rotated: bool,
}

/// Numbers from which on those of a file are rotated by a request's seed, so that a worker cannot know the answer from
/// before: fewer are lengths and scales, whose places have a meaning.
pub const ROTATED: usize = 1024;

/// An output that a later run is fed with.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct Fed {
    pub output: String,
    pub input: String,
}

fn one() -> usize {
    1
}

fn is_one(sets: &usize) -> bool {
    *sets == 1
}

/// The tensor of an input. Its type is the graph's.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Feed {
    pub name: String,
    pub shape: Vec<usize>,
    pub values: Values,
}

/// Where the values of a tensor come from.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Values {
    /// Each from `low` to below `high`, whole numbers where the type has no others; all are `low` if the two
    /// are equal. `docs/reference/protocol.md` says how they are drawn, so that workers in all languages draw
    /// the same.
    Drawn { low: f64, high: f64 },
    /// A file of only the numbers, little-endian, row-major: of one run, the same in all, or of each run in turn.
    File(PathBuf),
}

/// An output tensor of a run.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Tensor {
    pub name: String,
    /// NumPy's name: `float32`, `int64`, `bool`.
    pub dtype: String,
    pub shape: Vec<usize>,
    /// The numbers, little-endian, row-major; in JSON as base64.
    #[serde(serialize_with = "to_base64", deserialize_with = "from_base64")]
    pub data: Vec<u8>,
}

fn to_base64<S: Serializer>(data: &[u8], to: S) -> Result<S::Ok, S::Error> {
    to.serialize_str(&STANDARD.encode(data))
}

fn from_base64<'de, D: Deserializer<'de>>(from: D) -> Result<Vec<u8>, D::Error> {
    let text = std::borrow::Cow::<'_, str>::deserialize(from)?;
    STANDARD.decode(text.as_bytes()).map_err(|error| de::Error::custom(format!("not base64: {error}")))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_numbers_of_a_tensor_are_base64() {
        let tensor = Tensor {
            name: "y".into(),
            dtype: "int64".into(),
            shape: vec![1],
            data: vec![1, 0, 0, 0, 0, 0, 0, 0],
        };
        let text = serde_json::to_string(&tensor).unwrap();
        assert_eq!(text, r#"{"name":"y","dtype":"int64","shape":[1],"data":"AQAAAAAAAAA="}"#);
        assert_eq!(serde_json::from_str::<Tensor>(&text).unwrap(), tensor);
        assert!(serde_json::from_str::<Tensor>(&text.replace("AQ", "*")).is_err());
    }
}
