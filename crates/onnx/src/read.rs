//! Reads an ONNX file's description: its inputs and outputs, its operators, and the names of its external
//! weights files. The weights themselves are skipped.

use std::collections::{BTreeMap, BTreeSet};

use bundle::{Dtype, Graph, GraphInput, GraphOutput, Size};
use prost::bytes::Buf;
use prost::encoding::{DecodeContext, WireType, decode_key, decode_varint, skip_field};
use prost::{DecodeError, Message};

/// A file's description.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Described {
    pub graph: Graph,
    /// Names of its external files with weights, as written in it.
    pub external: BTreeSet<String>,
}

/// Why a file cannot be run here.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Unreadable {
    /// It is no ONNX file.
    NotOnnx(String),
    /// It is an ONNX file of a kind that is not supported here.
    Unsupported(String),
}

// The messages of onnx.proto, as far as they are read here. Fields that are left out, such as the weights,
// are skipped without a copy.

#[derive(Clone, PartialEq, Message)]
struct Model {
    #[prost(int64, tag = "1")]
    ir_version: i64,
    #[prost(message, optional, tag = "7")]
    graph: Option<GraphMessage>,
    #[prost(message, repeated, tag = "8")]
    opset_import: Vec<Opset>,
    #[prost(message, repeated, tag = "25")]
    functions: Vec<Function>,
}

#[derive(Clone, PartialEq, Message)]
struct Opset {
    #[prost(string, tag = "1")]
    domain: String,
    #[prost(int64, tag = "2")]
    version: i64,
}

#[derive(Clone, PartialEq, Message)]
struct Function {
    #[prost(message, repeated, tag = "7")]
    node: Vec<Node>,
}

#[derive(Clone, PartialEq, Message)]
struct GraphMessage {
    #[prost(message, repeated, tag = "1")]
    node: Vec<Node>,
    #[prost(message, repeated, tag = "5")]
    initializer: Vec<Tensor>,
    #[prost(message, repeated, tag = "11")]
    input: Vec<Value>,
    #[prost(message, repeated, tag = "12")]
    output: Vec<Value>,
    #[prost(message, repeated, tag = "15")]
    sparse_initializer: Vec<SparseTensor>,
}

#[derive(Clone, PartialEq, Message)]
struct Node {
    #[prost(string, tag = "4")]
    op_type: String,
    #[prost(message, repeated, tag = "5")]
    attribute: Vec<Attribute>,
    #[prost(string, tag = "7")]
    domain: String,
}

#[derive(Clone, PartialEq, Message)]
struct Attribute {
    #[prost(message, optional, tag = "5")]
    t: Option<Tensor>,
    #[prost(message, optional, boxed, tag = "6")]
    g: Option<Box<GraphMessage>>,
    #[prost(message, repeated, tag = "10")]
    tensors: Vec<Tensor>,
    #[prost(message, repeated, tag = "11")]
    graphs: Vec<GraphMessage>,
}

#[derive(Clone, PartialEq, Message)]
struct Tensor {
    #[prost(int64, repeated, packed = "false", tag = "1")]
    dims: Vec<i64>,
    #[prost(int32, tag = "2")]
    data_type: i32,
    #[prost(string, tag = "8")]
    name: String,
    #[prost(message, repeated, tag = "13")]
    external_data: Vec<Entry>,
    #[prost(int32, tag = "14")]
    data_location: i32,
}

#[derive(Clone, PartialEq, Message)]
struct SparseTensor {
    #[prost(message, optional, tag = "1")]
    values: Option<Tensor>,
}

#[derive(Clone, PartialEq, Message)]
struct Entry {
    #[prost(string, tag = "1")]
    key: String,
    #[prost(string, tag = "2")]
    value: String,
}

#[derive(Clone, PartialEq, Message)]
struct Value {
    #[prost(string, tag = "1")]
    name: String,
    #[prost(message, optional, tag = "2")]
    r#type: Option<Type>,
}

#[derive(Clone, PartialEq, Message)]
struct Type {
    #[prost(message, optional, tag = "1")]
    tensor: Option<TensorType>,
}

#[derive(Clone, PartialEq, Message)]
struct TensorType {
    #[prost(int32, tag = "1")]
    elem_type: i32,
    #[prost(message, optional, tag = "2")]
    shape: Option<Shape>,
}

#[derive(Clone, PartialEq, Message)]
struct Shape {
    #[prost(message, repeated, tag = "1")]
    dim: Vec<Dimension>,
}

#[derive(Clone, PartialEq, Message)]
struct Dimension {
    #[prost(oneof = "DimensionValue", tags = "1, 2")]
    value: Option<DimensionValue>,
}

#[derive(Clone, PartialEq, prost::Oneof)]
enum DimensionValue {
    #[prost(int64, tag = "1")]
    Fixed(i64),
    #[prost(string, tag = "2")]
    Named(String),
}

/// `DataLocation.EXTERNAL`
const EXTERNAL: i32 = 1;
/// More elements than any tensor has.
const MOST_ELEMENTS: usize = 1 << 40;
/// Most messages and sizes in a file: those of large models are some hundred thousand. In memory each takes up to
/// 272 bytes, in the file no more than two.
pub(crate) const MOST_PARTS: usize = 1_000_000;

/// Counts the messages and sizes of a file without keeping them. What cannot be read ends the count: decoding says so.
pub(crate) fn count(
    message: Kind,
    mut bytes: &[u8],
    depth: u32,
    parts: &mut usize,
) -> Result<(), DecodeError> {
    while bytes.has_remaining() && depth < 100 && *parts <= MOST_PARTS {
        let (tag, wire) = decode_key(&mut bytes)?;
        match (message.part(tag), wire) {
            (Some(part), WireType::LengthDelimited) => {
                let length = decode_varint(&mut bytes)?;
                let Some(inner) = usize::try_from(length).ok().and_then(|length| bytes.get(..length)) else {
                    break;
                };
                bytes.advance(inner.len());
                // The end of each number is a byte below 128.
                *parts +=
                    if part == Kind::Sizes { inner.iter().filter(|&&byte| byte < 128).count() } else { 1 };
                count(part, inner, depth + 1, parts)?;
            }
            (part, _) => {
                // Sizes that are not packed.
                *parts += usize::from(part.is_some());
                skip_field(wire, tag, &mut bytes, DecodeContext::default())?;
            }
        }
    }
    Ok(())
}

/// The messages below, and the sizes of a tensor.
#[derive(Clone, Copy, PartialEq)]
pub(crate) enum Kind {
    Model,
    Function,
    Graph,
    Node,
    Attribute,
    Tensor,
    Sizes,
    Sparse,
    Value,
    Type,
    TensorType,
    Shape,
    /// Without parts that are read.
    Leaf,
}

impl Kind {
    /// The kind of a field, by the tags below.
    fn part(self, tag: u32) -> Option<Kind> {
        Some(match (self, tag) {
            (Kind::Model, 7) | (Kind::Attribute, 6 | 11) => Kind::Graph,
            (Kind::Model, 25) => Kind::Function,
            (Kind::Function, 7) | (Kind::Graph, 1) => Kind::Node,
            (Kind::Graph, 5) | (Kind::Attribute, 5 | 10) | (Kind::Sparse, 1) => Kind::Tensor,
            (Kind::Graph, 11 | 12) => Kind::Value,
            (Kind::Graph, 15) => Kind::Sparse,
            (Kind::Node, 5) => Kind::Attribute,
            (Kind::Tensor, 1) => Kind::Sizes,
            (Kind::Value, 2) => Kind::Type,
            (Kind::Type, 1) => Kind::TensorType,
            (Kind::TensorType, 2) => Kind::Shape,
            (Kind::Model, 8) | (Kind::Tensor, 13) | (Kind::Shape, 1) => Kind::Leaf,
            _ => return None,
        })
    }
}

/// Reads an ONNX file's description. [`Graph::bytes`] is the file's own: external files are not included.
///
/// # Errors
/// A sentence without the file's name.
pub fn described(bytes: &[u8]) -> Result<Described, Unreadable> {
    let not = |reason: String| Unreadable::NotOnnx(reason);
    let mut parts = 0;
    let _ = count(Kind::Model, bytes, 0, &mut parts);
    if parts > MOST_PARTS {
        return Err(not(format!("it has more than {MOST_PARTS} nodes, tensors and sizes")));
    }
    let model = Model::decode(bytes).map_err(|error| not(format!("it does not parse as ONNX: {error}")))?;
    let Some(graph) = model.graph.filter(|graph| model.ir_version > 0 && !graph.output.is_empty()) else {
        return Err(not("it has no ONNX graph with an output".into()));
    };
    let standard = |opset: &&Opset| matches!(opset.domain.as_str(), "" | "ai.onnx");
    let opset = model.opset_import.iter().find(standard).map_or(0, |opset| opset.version);
    let mut found = Found::default();
    found.graph(&graph);
    model.functions.iter().flat_map(|function| &function.node).for_each(|node| found.node(node));
    let given: BTreeSet<&str> = graph.initializer.iter().map(|tensor| tensor.name.as_str()).collect();
    let inputs = graph.input.iter().filter(|input| !given.contains(input.name.as_str()));
    let inputs: Vec<GraphInput> = inputs.map(input).collect::<Result<_, _>>()?;
    let outputs = graph.output.iter().map(output).collect::<Result<Vec<GraphOutput>, _>>();
    let outputs = outputs.map_err(|error| found.advised(error))?;
    for names in [
        inputs.iter().map(|one| &one.name).collect::<Vec<_>>(),
        outputs.iter().map(|one| &one.name).collect(),
    ] {
        let unlike: BTreeSet<&String> = names.iter().copied().collect();
        if unlike.len() < names.len() || unlike.iter().any(|name| name.is_empty()) {
            return Err(not("two of its inputs, or of its outputs, have one name, or one has none".into()));
        }
    }
    let stored =
        found.elements.iter().max_by_key(|(_, elements)| **elements).map(|(name, _)| (*name).to_owned());
    let graph =
        Graph { opset, inputs, outputs, bytes: bytes.len() as u64, stored, operators: found.operators };
    Ok(Described { graph, external: found.external })
}

/// The contents of nodes, tensors and nested graphs.
#[derive(Default)]
struct Found {
    operators: BTreeMap<String, usize>,
    external: BTreeSet<String>,
    /// Elements of weights by type.
    elements: BTreeMap<&'static str, u64>,
}

impl Found {
    fn graph(&mut self, graph: &GraphMessage) {
        let sparse = graph.sparse_initializer.iter().filter_map(|sparse| sparse.values.as_ref());
        graph.initializer.iter().chain(sparse).for_each(|tensor| self.tensor(tensor));
        graph.node.iter().for_each(|node| self.node(node));
    }

    /// What to do about an output that is not run here.
    fn advised(&self, error: Unreadable) -> Unreadable {
        match error {
            Unreadable::Unsupported(why)
                if self.operators.keys().any(|name| name.starts_with("ai.onnx.ml::")) =>
            {
                let exported = "export a scikit-learn classifier with the option zipmap=False and with numbers as labels";
                Unreadable::Unsupported(format!("{why}: {exported}"))
            }
            other => other,
        }
    }

    fn node(&mut self, node: &Node) {
        let name = match node.domain.as_str() {
            "" | "ai.onnx" => node.op_type.clone(),
            domain => format!("{domain}::{}", node.op_type),
        };
        *self.operators.entry(name).or_default() += 1;
        for attribute in &node.attribute {
            attribute.t.iter().chain(&attribute.tensors).for_each(|tensor| self.tensor(tensor));
            attribute
                .g
                .iter()
                .map(AsRef::as_ref)
                .chain(&attribute.graphs)
                .for_each(|graph| self.graph(graph));
        }
    }

    fn tensor(&mut self, tensor: &Tensor) {
        if let Some(stored) = stored(tensor.data_type) {
            let sizes = tensor.dims.iter().map(|&size| size.max(0) as u64);
            let elements = self.elements.entry(stored).or_default();
            *elements = elements.saturating_add(sizes.fold(1, u64::saturating_mul));
        }
        let location = tensor.external_data.iter().find(|entry| entry.key == "location");
        if let Some(location) = location.filter(|_| tensor.data_location == EXTERNAL) {
            self.external.insert(location.value.clone());
        }
    }
}

fn tensor_type<'a>(value: &'a Value, what: &str) -> Result<(Dtype, Option<&'a Shape>), Unreadable> {
    let name = &value.name;
    let tensor = value.r#type.as_ref().and_then(|r#type| r#type.tensor.as_ref()).ok_or_else(|| {
        Unreadable::Unsupported(format!(
            "its {what} {name:?} is no tensor (sequences, maps and optionals are not run here)"
        ))
    })?;
    let dtype = dtype(tensor.elem_type).ok_or_else(|| {
        let kind = match tensor.elem_type {
            8 => "strings".to_owned(),
            16 => "bfloat16".to_owned(),
            other => format!("numbers of ONNX's type {other}"),
        };
        Unreadable::Unsupported(format!("its {what} {name:?} is of {kind}, which is not run here"))
    })?;
    Ok((dtype, tensor.shape.as_ref()))
}

fn input(value: &Value) -> Result<GraphInput, Unreadable> {
    let (dtype, shape) = tensor_type(value, "input")?;
    let size = |(axis, dimension): (usize, &Dimension)| match &dimension.value {
        Some(DimensionValue::Fixed(size)) if *size >= 0 => Size::Fixed(*size as usize),
        // Some exporters name every size `?`.
        Some(DimensionValue::Named(name)) if !matches!(name.as_str(), "" | "?") => Size::Free(name.clone()),
        // Without a name it gets the one that --dim uses.
        _ => Size::Free(format!("{}.{axis}", value.name)),
    };
    let shape = shape.map(|shape| shape.dim.iter().enumerate().map(size).collect::<Vec<_>>());
    let fixed = shape.iter().flatten().map(|size| if let Size::Fixed(size) = size { *size } else { 1 });
    if fixed.fold(1, usize::saturating_mul) > MOST_ELEMENTS {
        return Err(Unreadable::NotOnnx(format!("its input {:?} is larger than any memory", value.name)));
    }
    Ok(GraphInput { name: value.name.clone(), dtype, shape })
}

fn output(value: &Value) -> Result<GraphOutput, Unreadable> {
    Ok(GraphOutput { name: value.name.clone(), dtype: tensor_type(value, "output")?.0 })
}

/// From `TensorProto.DataType`.
pub(crate) fn dtype(number: i32) -> Option<Dtype> {
    Some(match number {
        1 => Dtype::Float32,
        2 => Dtype::Uint8,
        3 => Dtype::Int8,
        4 => Dtype::Uint16,
        5 => Dtype::Int16,
        6 => Dtype::Int32,
        7 => Dtype::Int64,
        9 => Dtype::Bool,
        10 => Dtype::Float16,
        11 => Dtype::Float64,
        12 => Dtype::Uint32,
        13 => Dtype::Uint64,
        _ => return None,
    })
}

/// The type of weights, by the names of precisions. Indices and shapes, which are whole numbers too, do not
/// count.
fn stored(number: i32) -> Option<&'static str> {
    match number {
        1 => Some("f32"),
        2 => Some("uint8"),
        3 => Some("int8"),
        10 => Some("f16"),
        11 => Some("f64"),
        16 => Some("bf16"),
        21 | 22 => Some("int4"),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn value(name: &str, elem_type: i32, dims: Option<Vec<Option<DimensionValue>>>) -> Value {
        let shape =
            dims.map(|dims| Shape { dim: dims.into_iter().map(|value| Dimension { value }).collect() });
        Value { name: name.into(), r#type: Some(Type { tensor: Some(TensorType { elem_type, shape }) }) }
    }

    fn model() -> Model {
        let external = Tensor {
            dims: vec![2, 3],
            data_type: 10,
            name: "inner".into(),
            external_data: vec![Entry { key: "location".into(), value: "w.data".into() }],
            data_location: EXTERNAL,
        };
        let branch = GraphMessage {
            node: vec![Node { op_type: "Relu".into(), ..Node::default() }],
            initializer: vec![external],
            ..GraphMessage::default()
        };
        let attribute = Attribute { g: Some(Box::new(branch)), ..Attribute::default() };
        let own = Node { op_type: "Gelu".into(), domain: "com.microsoft".into(), ..Node::default() };
        let condition = Node { op_type: "If".into(), attribute: vec![attribute], ..Node::default() };
        let named = |name: &str| Some(DimensionValue::Named(name.into()));
        let graph = GraphMessage {
            node: vec![condition, own],
            initializer: vec![Tensor { name: "weight".into(), ..Tensor::default() }],
            input: vec![
                value("x", 1, Some(vec![named("batch"), Some(DimensionValue::Fixed(3)), None])),
                value("weight", 1, None),
                value("scalar", 7, Some(Vec::new())),
            ],
            output: vec![value("y", 9, None)],
            sparse_initializer: Vec::new(),
        };
        let opset = Opset { domain: String::new(), version: 17 };
        Model { ir_version: 8, graph: Some(graph), opset_import: vec![opset], functions: Vec::new() }
    }

    #[test]
    fn inputs_are_those_without_a_value_and_nested_graphs_count() {
        let Described { graph, external } = described(&model().encode_to_vec()).unwrap();
        let free = |name: &str| Size::Free(name.into());
        assert_eq!(graph.inputs.len(), 2);
        assert_eq!(graph.inputs[0].shape, Some(vec![free("batch"), Size::Fixed(3), free("x.2")]));
        assert_eq!(graph.inputs[1].shape, Some(Vec::new()), "a scalar has no dimension");
        assert_eq!(graph.outputs, [GraphOutput { name: "y".into(), dtype: Dtype::Bool }]);
        assert_eq!((graph.opset, graph.stored.as_deref()), (17, Some("f16")));
        let operators: Vec<&str> = graph.operators.keys().map(String::as_str).collect();
        assert_eq!(operators, ["If", "Relu", "com.microsoft::Gelu"]);
        assert_eq!(external, BTreeSet::from(["w.data".to_owned()]));
    }

    #[test]
    fn messages_of_two_bytes_that_would_fill_the_memory_are_counted_first() {
        // A graph of empty nodes, and one whose initializer has sizes of a byte each.
        let sizes = [&[0x0a], &varint(MOST_PARTS + 1)[..], &vec![1; MOST_PARTS + 1]].concat();
        let tensor = [&[0x2a], &varint(sizes.len())[..], &sizes].concat();
        for graph in [[0x0a, 0].repeat(MOST_PARTS + 1), tensor] {
            let file = [&[0x3a], &varint(graph.len())[..], &graph].concat();
            assert!(matches!(described(&file), Err(Unreadable::NotOnnx(why)) if why.contains("more than")));
        }
    }

    fn varint(number: usize) -> Vec<u8> {
        let mut bytes = Vec::new();
        prost::encoding::encode_varint(number as u64, &mut bytes);
        bytes
    }

    #[test]
    fn what_is_no_tensor_of_numbers_is_refused_by_name() {
        let refused = |change: fn(&mut GraphMessage)| {
            let mut model = model();
            change(model.graph.as_mut().unwrap());
            described(&model.encode_to_vec()).unwrap_err()
        };
        let strings = refused(|graph| graph.input.push(value("text", 8, None)));
        assert!(
            matches!(&strings, Unreadable::Unsupported(why) if why.contains("\"text\" is of strings")),
            "{strings:?}"
        );
        let sequence = refused(|graph| graph.output[0].r#type = Some(Type::default()));
        assert!(
            matches!(&sequence, Unreadable::Unsupported(why) if why.contains("\"y\" is no tensor")),
            "{sequence:?}"
        );
        let twice = refused(|graph| graph.output.push(value("y", 1, None)));
        assert!(matches!(&twice, Unreadable::NotOnnx(why) if why.contains("one name")), "{twice:?}");
        let huge = refused(|graph| {
            graph.input.push(value("z", 1, Some(vec![Some(DimensionValue::Fixed(i64::MAX)); 2])))
        });
        assert!(matches!(huge, Unreadable::NotOnnx(_)));
        for bytes in [&b""[..], b"hello", &[0xff; 40]] {
            assert!(matches!(described(bytes), Err(Unreadable::NotOnnx(_))));
        }
    }
}
