//! A model that is an ONNX file: its inputs and outputs.

use serde::{Deserialize, Serialize};
use serde_json::Value;

/// `model_type` in the config.json of a bundle that holds an ONNX file.
pub(super) const MODEL_TYPE: &str = "onnx";
/// The file itself.
pub const GRAPH_FILE: &str = "graph.onnx";

/// Properties of an ONNX file that a run needs.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Graph {
    /// Version of the operators of the standard's own domain.
    pub opset: i64,
    /// In the file's order, without those that have a value in the file.
    pub inputs: Vec<GraphInput>,
    pub outputs: Vec<GraphOutput>,
    /// Bytes of the file and of its external weights files.
    pub bytes: u64,
    /// The type of most weights, such as `f32` or `int8`; `None` without weights.
    pub stored: Option<String>,
    /// Nodes by operator, those of nested graphs included, such as `Conv` or `com.microsoft::QLinearAdd`.
    pub operators: std::collections::BTreeMap<String, usize>,
}

/// An input tensor of a run.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct GraphInput {
    pub name: String,
    pub dtype: Dtype,
    /// `None` if the file does not say how many dimensions it has.
    pub shape: Option<Vec<Size>>,
}

/// An output tensor of a run.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct GraphOutput {
    pub name: String,
    pub dtype: Dtype,
}

/// The size of a dimension.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(untagged)]
pub enum Size {
    Fixed(usize),
    /// Any, but the same wherever the name occurs.
    Free(String),
}

/// The type of a tensor's numbers, by NumPy's name.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Dtype {
    Float16,
    Float32,
    Float64,
    Int8,
    Int16,
    Int32,
    Int64,
    Uint8,
    Uint16,
    Uint32,
    Uint64,
    Bool,
}

impl Dtype {
    pub const ALL: [Dtype; 12] = [
        Dtype::Float16,
        Dtype::Float32,
        Dtype::Float64,
        Dtype::Int8,
        Dtype::Int16,
        Dtype::Int32,
        Dtype::Int64,
        Dtype::Uint8,
        Dtype::Uint16,
        Dtype::Uint32,
        Dtype::Uint64,
        Dtype::Bool,
    ];

    pub fn name(self) -> &'static str {
        match self {
            Dtype::Float16 => "float16",
            Dtype::Float32 => "float32",
            Dtype::Float64 => "float64",
            Dtype::Int8 => "int8",
            Dtype::Int16 => "int16",
            Dtype::Int32 => "int32",
            Dtype::Int64 => "int64",
            Dtype::Uint8 => "uint8",
            Dtype::Uint16 => "uint16",
            Dtype::Uint32 => "uint32",
            Dtype::Uint64 => "uint64",
            Dtype::Bool => "bool",
        }
    }

    pub fn from_name(name: &str) -> Option<Dtype> {
        Dtype::ALL.into_iter().find(|dtype| dtype.name() == name)
    }

    /// Bytes of one number.
    pub fn bytes(self) -> usize {
        match self {
            Dtype::Int8 | Dtype::Uint8 | Dtype::Bool => 1,
            Dtype::Float16 | Dtype::Int16 | Dtype::Uint16 => 2,
            Dtype::Float32 | Dtype::Int32 | Dtype::Uint32 => 4,
            Dtype::Float64 | Dtype::Int64 | Dtype::Uint64 => 8,
        }
    }

    pub fn is_float(self) -> bool {
        matches!(self, Dtype::Float16 | Dtype::Float32 | Dtype::Float64)
    }
}

impl std::fmt::Display for Dtype {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.pad(self.name())
    }
}

impl Graph {
    /// Names of free dimensions of inputs, each once, in the inputs' order.
    pub fn free(&self) -> Vec<&str> {
        let mut names: Vec<&str> = Vec::new();
        for size in self.inputs.iter().flat_map(|input| input.shape.iter().flatten()) {
            if let Size::Free(name) = size
                && !names.contains(&name.as_str())
            {
                names.push(name);
            }
        }
        names
    }

    /// The config.json of its bundle.
    pub fn config_json(&self) -> Value {
        serde_json::json!({ "model_type": MODEL_TYPE, "graph": self })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ModelConfig;

    #[test]
    fn a_configuration_is_read_as_it_was_written() {
        let input = |name: &str, shape| GraphInput { name: name.into(), dtype: Dtype::Float32, shape };
        let free = || Size::Free("batch".into());
        let graph = Graph {
            opset: 17,
            inputs: vec![
                input("a", Some(vec![free(), Size::Fixed(3), Size::Free("width".into())])),
                input("b", Some(vec![free()])),
                input("c", None),
            ],
            outputs: vec![GraphOutput { name: "d".into(), dtype: Dtype::Int64 }],
            bytes: 7,
            stored: Some("f16".into()),
            operators: [("Conv".to_owned(), 2)].into(),
        };
        assert_eq!(graph.free(), ["batch", "width"]);
        let config = ModelConfig::from_json(&graph.config_json()).unwrap();
        assert_eq!(config.graph, Some(graph));
        assert!(config.tensors().is_empty() && config.quantised().is_empty());
        let written = serde_json::to_string(&config).unwrap();
        assert_eq!(serde_json::from_str::<ModelConfig>(&written).unwrap(), config);
        assert!(Dtype::ALL.iter().all(|dtype| Dtype::from_name(dtype.name()) == Some(*dtype)));
    }
}
