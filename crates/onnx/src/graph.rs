//! Writes an ONNX graph node by node. Values are known by name; every name is written once.

use std::collections::HashSet;

use bundle::{Element, ModelConfig, TensorView};
use prost::Message;

use crate::proto::{
    AttributeProto, AttributeType, DataLocation, DataType, Dimension, DimensionProto, GraphProto, ModelProto,
    NodeProto, OperatorSetIdProto, StringStringEntryProto, TensorProto, TensorShapeProto, TensorTypeProto,
    TypeProto, ValueInfoProto,
};

/// The standard operators.
pub const ONNX: &str = "";

/// ONNX Runtime's own operators
/// (<https://github.com/microsoft/onnxruntime/blob/main/docs/ContribOperators.md>).
pub const MICROSOFT: &str = "com.microsoft";

pub enum Attribute {
    Float(&'static str, f32),
    Int(&'static str, i64),
    Ints(&'static str, Vec<i64>),
    Text(&'static str, &'static str),
}

pub enum Dim {
    Fixed(usize),
    Named(&'static str),
}

pub enum Storage {
    /// In this file, relative to the folder given to the session: the runtime maps it.
    File(String),
    /// In a file in memory ([`Written::in_memory`]), if they differ from the bundle's. Not in the graph
    /// itself, because a protobuf message has at most 2 GiB.
    Memory(Vec<u8>),
}

pub struct GraphBuilder {
    graph: GraphProto,
    opset: i64,
    storage: Storage,
    initializers: HashSet<String>,
}

/// A graph, ready for a session.
pub struct Written {
    pub model: Vec<u8>,
    /// The file [`IN_MEMORY`], if weights are in it.
    pub in_memory: Option<Vec<u8>>,
}

const PRODUCER: &str = "photofinish";

pub const IN_MEMORY: &str = "weights";

/// Tensors in memory begin at multiples of this.
const ALIGNMENT: usize = 64;

/// ONNX's type of these numbers.
pub(crate) fn float_type(element: Element) -> DataType {
    match element {
        Element::F16 => DataType::Float16,
        Element::Bf16 => DataType::Bfloat16,
        _ => DataType::Float,
    }
}

impl GraphBuilder {
    pub fn new(name: &str, storage: Storage) -> GraphBuilder {
        GraphBuilder {
            graph: GraphProto { name: name.into(), ..GraphProto::default() },
            opset: 21,
            storage,
            initializers: HashSet::new(),
        }
    }

    /// Uses version `opset` of the standard operators rather than 21.
    pub fn with_opset(self, opset: i64) -> GraphBuilder {
        GraphBuilder { opset, ..self }
    }

    pub fn input(&mut self, name: &str, data_type: DataType, dims: &[Dim]) {
        self.graph.input.push(value_info(name, data_type, dims));
    }

    pub fn output(&mut self, name: &str, data_type: DataType, dims: &[Dim]) {
        self.graph.output.push(value_info(name, data_type, dims));
    }

    /// As [`Self::weight`], for f32, f16 or bf16 and in the tensor's own shape.
    pub fn float_weight(&mut self, name: &str, tensor: &TensorView<'_>) {
        self.weight(name, float_type(tensor.element), &tensor.shape, tensor);
    }

    /// A tensor of the weights file. Its bytes are interpreted as `dims` of `data_type`. A second call for
    /// the same name has no effect.
    pub fn weight(&mut self, name: &str, data_type: DataType, dims: &[usize], tensor: &TensorView<'_>) {
        match &self.storage {
            Storage::File(file) => {
                let place = (file.clone(), tensor.file_offset, tensor.bytes.len());
                self.external(name, data_type, dims, place);
            }
            Storage::Memory(_) => self.computed(name, data_type, dims, || tensor.bytes.to_vec()),
        }
    }

    /// A weight that is in no file: it goes into the one in memory, or else into the graph.
    pub fn computed(
        &mut self,
        name: &str,
        data_type: DataType,
        dims: &[usize],
        bytes: impl FnOnce() -> Vec<u8>,
    ) {
        if self.initializers.contains(name) {
            return;
        }
        let Storage::Memory(memory) = &mut self.storage else {
            return self.bytes(name, data_type, dims, bytes());
        };
        let offset = memory.len().next_multiple_of(ALIGNMENT);
        memory.resize(offset, 0);
        memory.append(&mut bytes());
        let place = (IN_MEMORY.to_owned(), offset as u64, memory.len() - offset);
        self.external(name, data_type, dims, place);
    }

    /// A list of whole numbers, such as a shape.
    pub fn integers(&mut self, name: &str, values: &[i64]) {
        let bytes = values.iter().flat_map(|value| value.to_le_bytes()).collect();
        self.bytes(name, DataType::Int64, &[values.len()], bytes);
    }

    pub fn floats(&mut self, name: &str, dims: &[usize], values: impl IntoIterator<Item = f32>) {
        let bytes = values.into_iter().flat_map(f32::to_le_bytes).collect();
        self.bytes(name, DataType::Float, dims, bytes);
    }

    /// One f32 number, for computations in `data_type`.
    pub fn number(&mut self, name: &str, data_type: DataType, value: f64) {
        if data_type == DataType::Float {
            return self.floats(name, &[1], [value as f32]);
        }
        let wide = format!("{name}.f32");
        if !self.initializers.contains(&wide) {
            self.floats(&wide, &[1], [value as f32]);
            self.cast(&wide, data_type, name);
        }
    }

    pub fn bytes(&mut self, name: &str, data_type: DataType, dims: &[usize], bytes: Vec<u8>) {
        self.initializer(TensorProto {
            dims: dims.iter().map(|&size| size as i64).collect(),
            data_type: data_type.into(),
            name: name.into(),
            raw_data: bytes,
            ..TensorProto::default()
        });
    }

    /// `out` = `input` as `data_type`.
    pub fn cast(&mut self, input: &str, data_type: DataType, out: &str) {
        self.node((ONNX, "Cast"), &[input], &[out], &[Attribute::Int("to", data_type as i64)]);
    }

    /// Adds a node named after its first output. An empty name means an optional input or output that is left
    /// out.
    pub fn node(&mut self, op: (&str, &str), inputs: &[&str], outputs: &[&str], attributes: &[Attribute]) {
        self.named_node(outputs[0], op, inputs, outputs, attributes);
    }

    /// As [`Self::node`], named after the part that it computes, if its output's name belongs to another
    /// part.
    pub fn named_node(
        &mut self,
        name: &str,
        (domain, op): (&str, &str),
        inputs: &[&str],
        outputs: &[&str],
        attributes: &[Attribute],
    ) {
        let names = |values: &[&str]| values.iter().map(|&name| name.to_owned()).collect();
        self.graph.node.push(NodeProto {
            input: names(inputs),
            output: names(outputs),
            name: name.into(),
            op_type: op.into(),
            attribute: attributes.iter().map(Attribute::to_proto).collect(),
            domain: domain.into(),
        });
    }

    pub fn finish(self) -> Written {
        let opset = |domain: &str, version| OperatorSetIdProto { domain: domain.into(), version };
        let model = ModelProto {
            // The version of the format that was released with the opset.
            ir_version: if self.opset > 22 { 11 } else { 10 },
            producer_name: PRODUCER.into(),
            graph: Some(self.graph),
            opset_import: vec![opset(ONNX, self.opset), opset(MICROSOFT, 1)],
        };
        let in_memory = match self.storage {
            Storage::File(_) => None,
            Storage::Memory(memory) => Some(memory),
        };
        Written { model: model.encode_to_vec(), in_memory }
    }

    /// A tensor of `length` bytes at `offset` of `file`.
    fn external(
        &mut self,
        name: &str,
        data_type: DataType,
        dims: &[usize],
        (file, offset, length): (String, u64, usize),
    ) {
        let entry = |key: &str, value: String| StringStringEntryProto { key: key.into(), value };
        self.initializer(TensorProto {
            dims: dims.iter().map(|&size| size as i64).collect(),
            data_type: data_type.into(),
            name: name.into(),
            external_data: vec![
                entry("location", file),
                entry("offset", offset.to_string()),
                entry("length", length.to_string()),
            ],
            data_location: DataLocation::External.into(),
            ..TensorProto::default()
        });
    }

    /// Whether there is an initialiser of this name.
    pub(crate) fn has(&self, name: &str) -> bool {
        self.initializers.contains(name)
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
            Attribute::Ints(name, _) => (name, AttributeType::Ints),
            Attribute::Text(name, _) => (name, AttributeType::String),
        };
        let mut proto =
            AttributeProto { name: (*name).into(), r#type: kind.into(), ..AttributeProto::default() };
        match self {
            Attribute::Float(_, value) => proto.f = Some(*value),
            Attribute::Int(_, value) => proto.i = Some(*value),
            Attribute::Ints(_, values) => proto.ints = values.clone(),
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

// Structure of a model's attention.
//
// GroupQueryAttention rotates whole heads of a size that is a multiple of 16 and attends over heads of a
// size that is a multiple of 8. For other sizes the rotation is a separate operator, and heads are padded
// with zeros, which add nothing to a score and leave the output's first numbers unchanged.
//
// It is causal. A model that attends both ways uses MultiHeadAttention, with the rotation as a separate
// operator. Such a model has no cache; nor has one that encodes texts.

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Rotation {
    /// Positions are not rotary.
    None,
    /// Within GroupQueryAttention.
    Fused,
    /// A RotaryEmbedding node each for queries and keys.
    Separate,
}

/// Structure of a model's attention.
#[derive(Debug, Clone, Copy)]
pub struct Attention {
    pub rotation: Rotation,
    pub cached_head_dim: usize,
    /// Whether positions attend only to earlier ones.
    pub causal: bool,
    /// Whether keys and values are kept from one run to the next.
    pub cached: bool,
}

impl Attention {
    /// The plan for a model's heads and positions.
    pub fn plan(config: &ModelConfig) -> Attention {
        let fused = config.head_dim.is_multiple_of(16) && config.rotary_dim() == config.head_dim;
        let rotation = match config.rotations.is_empty() {
            true => Rotation::None,
            false if config.causal && fused => Rotation::Fused,
            false => Rotation::Separate,
        };
        let multiple = if config.causal { 8 } else { 1 };
        Attention {
            rotation,
            cached_head_dim: config.head_dim.next_multiple_of(multiple),
            causal: config.causal,
            cached: config.causal && !config.encodes(),
        }
    }

    /// Whether the graph has the input [`POSITIONS`](POSITIONS). The fused rotation counts
    /// positions itself.
    pub fn takes_positions(self) -> bool {
        self.rotation != Rotation::Fused
    }

    /// The operators that compute it, for people.
    pub fn operators(self) -> &'static str {
        match self.rotation {
            Rotation::None if !self.causal => "MultiHeadAttention",
            _ if !self.causal => "RotaryEmbedding, MultiHeadAttention (both ways)",
            Rotation::None => "GroupQueryAttention",
            Rotation::Fused => "GroupQueryAttention with rotation",
            Rotation::Separate => "RotaryEmbedding, GroupQueryAttention",
        }
    }
}

// Names of the graph's inputs and outputs.

/// Token ids `[batch, positions]`.
pub const TOKENS: &str = "tokens";

/// The rows that the head multiplies, `[rows, hidden]`.
pub(crate) const HEAD_ROWS: &str = "head.rows";

/// Position of each token `[batch, positions]`, if the graph has this input: see
/// `Attention::takes_positions`.
pub const POSITIONS: &str = "positions";

/// Which of the appended positions get logits, `[rows]`, counted through all sequences.
pub const ROWS: &str = "rows";

pub const LOGITS: &str = "logits";

/// Output of a head that gives scores, `[texts, labels]` or `[tokens, labels]`.
pub const SCORES: &str = "scores";

/// Name of the output that holds the residual stream after `layer` layers; the embeddings for 0,
/// after the final norm for the last.
pub fn hidden_state(layer: usize) -> String {
    format!("hidden.{layer}")
}

/// Name of the graph's output that holds [`hidden_state`] in f32.
pub fn hidden_output(layer: usize, float: DataType) -> String {
    match float {
        DataType::Float => hidden_state(layer),
        _ => format!("{}.f32", hidden_state(layer)),
    }
}

/// For each sequence, tokens in the cache after this append, less one: `[batch]`, int32.
pub const LAST_POSITIONS: &str = "seqlens_k";

/// Tokens in the cache after this append: a scalar, int32.
pub const TOTAL: &str = "total_sequence_length";

/// Rotary tables `[capacity, rotated dimensions / 2]`, if positions are rotary: those of the first rotation.
pub const COS: &str = "cos";

pub const SIN: &str = "sin";

/// The tables of each of `bundle::ModelConfig::rotations`.
pub fn rotary_names(rotation: usize) -> [String; 2] {
    [COS, SIN].map(|table| if rotation == 0 { table.to_owned() } else { format!("{table}.{rotation}") })
}

/// One layer's cache: names of the graph's inputs and outputs, `[batch, kv_heads, capacity,
/// cached_head_dim]` each. The same memory is bound to the past and the present of one cache.
pub struct CacheNames {
    pub past: String,
    pub present: String,
}

/// Keys and values of `layer`.
pub fn cache_names(layer: usize) -> [CacheNames; 2] {
    ["key", "value"].map(|part| CacheNames {
        past: format!("past.{layer}.{part}"),
        present: format!("present.{layer}.{part}"),
    })
}

/// Keys, scaled, and values that the decoder's layer `layer` has of the audio, `[1, heads, vectors, head_dim]`: the
/// audio graph's outputs and the decoder's inputs.
pub fn heard_names(layer: usize) -> [String; 2] {
    ["key", "value"].map(|part| format!("heard.{layer}.{part}"))
}

/// The part of the model that a node computes, by its name, in the words of `engine::Profile`; `None`
/// for a node that a runtime has named itself. A norm is fused with the addition before it.
pub fn part(node: &str) -> Option<String> {
    let mut words = node.split('.');
    let (first, second) = (words.next()?, words.next());
    match (first, second) {
        ("embed" | "stem", _) | ("hidden", Some("0")) => Some("embedding".into()),
        ("heard", Some(_)) => Some("keys and values".into()),
        ("hidden", Some(_)) => Some("final norm".into()),
        ("head", _) | (LOGITS | SCORES, None) => Some("head".into()),
        ("layer", Some(layer)) => {
            let part = match words.next()? {
                "attention_norm" | "cross_norm" => "attention norm",
                "qkv" | "attended" | "output" | "cross" => "attention",
                "mlp_norm" => "mlp norm",
                "mlp" | "down" => "mlp",
                _ => return None,
            };
            Some(format!("layer {layer} {part}"))
        }
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_node_is_of_the_part_that_its_name_says() {
        let parts = [
            ("hidden.0", "embedding"),
            ("embed.token", "embedding"),
            ("layer.0.attention_norm", "layer 0 attention norm"),
            ("layer.12.qkv.query.rotated", "layer 12 attention"),
            ("layer.3.attended", "layer 3 attention"),
            ("layer.3.output", "layer 3 attention"),
            ("layer.3.cross_norm", "layer 3 attention norm"),
            ("layer.3.cross.attended", "layer 3 attention"),
            ("heard.3.both.biased", "keys and values"),
            ("layer.3.mlp_norm", "layer 3 mlp norm"),
            ("layer.3.mlp.gate_up.biased", "layer 3 mlp"),
            ("layer.3.down", "layer 3 mlp"),
            ("layer.3.output.normed", "layer 3 attention"),
            ("layer.3.down.sum", "layer 3 mlp"),
            ("hidden.30", "final norm"),
            ("head.rows", "head"),
            (LOGITS, "head"),
            (SCORES, "head"),
        ];
        for (node, expected) in parts {
            assert_eq!(part(node).as_deref(), Some(expected), "{node}");
        }
        for node in ["MatMul_token_3", "", "layer", "layer.3.unheard_of"] {
            assert_eq!(part(node), None, "{node}");
        }
    }
}
