//! Writes an ONNX graph node by node. Values are known by name; every name is written once.

use std::collections::HashSet;

use bundle::TensorView;
use prost::Message;

use crate::onnx::{
    AttributeProto, AttributeType, DataLocation, DataType, Dimension, DimensionProto, GraphProto, ModelProto,
    NodeProto, OperatorSetIdProto, StringStringEntryProto, TensorProto, TensorShapeProto, TensorTypeProto,
    TypeProto, ValueInfoProto,
};

/// The standard operators.
pub(crate) const ONNX: &str = "";
/// ONNX Runtime's own operators
/// (<https://github.com/microsoft/onnxruntime/blob/main/docs/ContribOperators.md>).
pub(crate) const MICROSOFT: &str = "com.microsoft";

pub(crate) enum Attribute {
    Float(&'static str, f32),
    Int(&'static str, i64),
    Text(&'static str, &'static str),
}

/// A dimension of a graph input or output.
pub(crate) enum Dim {
    Fixed(usize),
    Named(&'static str),
}

pub(crate) struct GraphBuilder {
    graph: GraphProto,
    /// File that holds the weights, relative to the folder that the session is told of.
    weights_file: String,
    initializers: HashSet<String>,
}

impl GraphBuilder {
    pub(crate) fn new(name: &str, weights_file: &str) -> GraphBuilder {
        GraphBuilder {
            graph: GraphProto { name: name.into(), ..GraphProto::default() },
            weights_file: weights_file.into(),
            initializers: HashSet::new(),
        }
    }

    pub(crate) fn input(&mut self, name: &str, data_type: DataType, dims: &[Dim]) {
        self.graph.input.push(value_info(name, data_type, dims));
    }

    pub(crate) fn output(&mut self, name: &str, data_type: DataType, dims: &[Dim]) {
        self.graph.output.push(value_info(name, data_type, dims));
    }

    /// A tensor that stays in the weights file: the runtime maps it. Asking twice is asking once.
    pub(crate) fn weight(&mut self, name: &str, tensor: &TensorView<'_>) {
        let entry = |key: &str, value: String| StringStringEntryProto { key: key.into(), value };
        self.initializer(TensorProto {
            dims: tensor.shape.iter().map(|&size| size as i64).collect(),
            data_type: DataType::Float.into(),
            name: name.into(),
            external_data: vec![
                entry("location", self.weights_file.clone()),
                entry("offset", tensor.file_offset.to_string()),
                entry("length", tensor.bytes.len().to_string()),
            ],
            data_location: DataLocation::External.into(),
            ..TensorProto::default()
        });
    }

    /// A list of whole numbers, such as a shape.
    pub(crate) fn integers(&mut self, name: &str, values: &[i64]) {
        self.initializer(TensorProto {
            dims: vec![values.len() as i64],
            data_type: DataType::Int64.into(),
            name: name.into(),
            raw_data: values.iter().flat_map(|value| value.to_le_bytes()).collect(),
            ..TensorProto::default()
        });
    }

    /// Adds a node named after its first output. An empty name stands for an optional input or
    /// output that is left out.
    pub(crate) fn node(
        &mut self,
        (domain, op): (&str, &str),
        inputs: &[&str],
        outputs: &[&str],
        attributes: &[Attribute],
    ) {
        let names = |values: &[&str]| values.iter().map(|&name| name.to_owned()).collect();
        self.graph.node.push(NodeProto {
            input: names(inputs),
            output: names(outputs),
            name: outputs[0].into(),
            op_type: op.into(),
            attribute: attributes.iter().map(Attribute::to_proto).collect(),
            domain: domain.into(),
        });
    }

    /// The model as the bytes of a `.onnx` file.
    pub(crate) fn finish(self) -> Vec<u8> {
        let opset = |domain: &str, version| OperatorSetIdProto { domain: domain.into(), version };
        let model = ModelProto {
            ir_version: 10,
            producer_name: env!("CARGO_PKG_NAME").into(),
            graph: Some(self.graph),
            opset_import: vec![opset(ONNX, 21), opset(MICROSOFT, 1)],
        };
        model.encode_to_vec()
    }

    fn initializer(&mut self, tensor: TensorProto) {
        if self.initializers.insert(tensor.name.clone()) {
            self.graph.initializer.push(tensor);
        }
    }
}

impl Attribute {
    fn to_proto(&self) -> AttributeProto {
        let (name, kind) = match self {
            Attribute::Float(name, _) => (name, AttributeType::Float),
            Attribute::Int(name, _) => (name, AttributeType::Int),
            Attribute::Text(name, _) => (name, AttributeType::String),
        };
        let mut proto =
            AttributeProto { name: (*name).into(), r#type: kind.into(), ..AttributeProto::default() };
        match self {
            Attribute::Float(_, value) => proto.f = Some(*value),
            Attribute::Int(_, value) => proto.i = Some(*value),
            Attribute::Text(_, value) => proto.s = Some(value.as_bytes().to_vec()),
        }
        proto
    }
}

fn value_info(name: &str, data_type: DataType, dims: &[Dim]) -> ValueInfoProto {
    let dimension = |dim: &Dim| DimensionProto {
        value: Some(match dim {
            Dim::Fixed(size) => Dimension::Fixed(*size as i64),
            Dim::Named(name) => Dimension::Named((*name).into()),
        }),
    };
    let shape = TensorShapeProto { dim: dims.iter().map(dimension).collect() };
    let tensor_type = TensorTypeProto { elem_type: data_type.into(), shape: Some(shape) };
    ValueInfoProto { name: name.into(), r#type: Some(TypeProto { tensor_type: Some(tensor_type) }) }
}
