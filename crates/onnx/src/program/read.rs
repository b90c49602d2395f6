//! Reads a file's nodes and constants.

use std::collections::{BTreeMap, HashMap};
use std::fs::File;
use std::io::{Read, Seek, SeekFrom};
use std::path::{Component, Path};

use bundle::Dtype;
use prost::Message;

use super::messages::{self, attribute_type};
use super::{Array, Attribute, Body, Node, Program, ProgramError, Result, Step, failed};
use crate::read::{Kind, MOST_PARTS, count, dtype};

/// Graphs within graphs.
const DEEPEST: usize = 16;
/// `DataLocation.EXTERNAL`
const EXTERNAL: i32 = 1;

impl Program {
    /// Reads a file with its external data, which is beside it. `graph` gives the order of inputs and outputs.
    ///
    /// # Errors
    /// A sentence without the file's name: it is no such file, or has parts that are not supported.
    pub fn read(path: &Path, graph: &bundle::Graph) -> Result<Program> {
        let bytes = std::fs::read(path).map_err(|error| ProgramError::Failed(error.to_string()))?;
        let directory = path.parent().unwrap_or(Path::new("."));
        let (mut program, constants) = raw(&bytes, directory, graph)?;
        drop(bytes);
        program.constants = constants;
        program.simplify();
        Ok(program)
    }

    /// The file's own constants, nothing folded: initialisers and those of nodes `Constant`, nested graphs included.
    ///
    /// # Errors
    /// As [`read`](Self::read).
    pub fn stored(path: &Path, graph: &bundle::Graph) -> Result<Vec<Array>> {
        let bytes = std::fs::read(path).map_err(|error| ProgramError::Failed(error.to_string()))?;
        let (_, constants) = raw(&bytes, path.parent().unwrap_or(Path::new(".")), graph)?;
        Ok(constants.into_values().collect())
    }
}

/// The program without its constants, and these.
fn raw(bytes: &[u8], directory: &Path, graph: &bundle::Graph) -> Result<(Program, BTreeMap<usize, Array>)> {
    let mut parts = 0;
    let _ = count(Kind::Model, bytes, 0, &mut parts);
    if parts > MOST_PARTS {
        return failed(format!("it has more than {MOST_PARTS} nodes, tensors and sizes"));
    }
    let model = messages::Model::decode(bytes)
        .map_err(|error| ProgramError::Failed(format!("it does not parse as ONNX: {error}")))?;
    if let Some(function) = model.functions.first() {
        let name = &function.name;
        return Err(ProgramError::Unsupported(format!("functions of the file's own, such as {name}")));
    }
    let Some(main) = model.graph.filter(|_| model.ir_version > 0) else {
        return failed("it has no ONNX graph");
    };
    let opsets = model.opset_import.into_iter().map(|opset| (opset.domain, opset.version)).collect();
    let mut reader = Reader { directory, opsets, bodies: vec![Body::default()], ..Reader::default() };
    let mut names = HashMap::new();
    let mut inputs = Vec::new();
    for input in &graph.inputs {
        let value = reader.new_value();
        inputs.push(value);
        names.insert(input.name.clone(), value);
    }
    let wanted: Vec<String> = graph.outputs.iter().map(|output| output.name.clone()).collect();
    let body = reader.body(main, &mut vec![names], Some(wanted))?;
    reader.bodies[0] = body;
    let Reader { bodies, constants, values, .. } = reader;
    Ok((Program { bodies, constants: BTreeMap::new(), inputs, values }, constants))
}

/// Values by their names in a graph.
type Scope = HashMap<String, usize>;

/// The value that a name means in the innermost graph: names of the graphs around it are visible.
fn find(scopes: &[Scope], name: &str) -> Option<usize> {
    scopes.iter().rev().find_map(|scope| scope.get(name)).copied()
}

fn define(scopes: &mut [Scope], name: String, value: usize) {
    if let Some(innermost) = scopes.last_mut() {
        innermost.insert(name, value);
    }
}

struct Reader<'a> {
    directory: &'a Path,
    opsets: HashMap<String, i64>,
    bodies: Vec<Body>,
    constants: BTreeMap<usize, Array>,
    values: usize,
}

impl Default for Reader<'_> {
    fn default() -> Self {
        Reader {
            directory: Path::new("."),
            opsets: HashMap::new(),
            bodies: Vec::new(),
            constants: BTreeMap::new(),
            values: 0,
        }
    }
}

impl Reader<'_> {
    fn new_value(&mut self) -> usize {
        self.values += 1;
        self.values - 1
    }

    /// Reads a graph, whose names go into the innermost scope. Its outputs are in that order, else in the graph's own.
    fn body(
        &mut self,
        graph: messages::Graph,
        scopes: &mut Vec<Scope>,
        wanted: Option<Vec<String>>,
    ) -> Result<Body> {
        if scopes.len() > DEEPEST {
            return failed(format!("it has graphs within graphs, more than {DEEPEST} deep"));
        }
        if !graph.sparse_initializer.is_empty() {
            return Err(ProgramError::Unsupported("initialisers that leave out zeros".into()));
        }
        for tensor in graph.initializer {
            let name = tensor.name.clone();
            let array = self.array(tensor, &name)?;
            let value = self.new_value();
            self.constants.insert(value, array);
            define(scopes, name, value);
        }
        let mut steps = Vec::new();
        for node in graph.node {
            if let Some(step) = self.node(node, scopes)? {
                steps.push(step);
            }
        }
        let wanted = wanted.unwrap_or_else(|| graph.output.into_iter().map(|output| output.name).collect());
        let mut outputs = Vec::new();
        for name in wanted {
            match find(scopes, &name) {
                Some(value) => outputs.push(value),
                None => return failed(format!("its output {name:?} is computed by no node")),
            }
        }
        Ok(Body { steps, outputs })
    }

    /// Reads a node; `None` of a constant.
    fn node(&mut self, message: messages::Node, scopes: &mut Vec<Scope>) -> Result<Option<Step>> {
        let is_standard = matches!(message.domain.as_str(), "" | "ai.onnx");
        let operator = match is_standard {
            true => message.op_type,
            false => format!("{}::{}", message.domain, message.op_type),
        };
        let domains: &[&str] = if is_standard { &["", "ai.onnx"] } else { &[&message.domain] };
        let opset = domains.iter().find_map(|domain| self.opsets.get(*domain)).copied().unwrap_or(1);
        let name = match message.name.is_empty() {
            true => message.output.first().cloned().unwrap_or_default(),
            false => message.name,
        };
        let outputs = message.output.len();
        let mut node = Node { name, operator, opset, outputs, attributes: BTreeMap::new() };
        let mut graphs = HashMap::new();
        for mut attribute in message.attribute {
            if let Some(graph) = attribute.g.take() {
                graphs.insert(attribute.name, *graph);
                continue;
            }
            let name = std::mem::take(&mut attribute.name);
            let attribute = self.attribute(attribute, &node)?;
            node.attributes.insert(name, attribute);
        }
        let mut inputs = Vec::new();
        for name in &message.input {
            match find(scopes, name) {
                _ if name.is_empty() => inputs.push(None),
                Some(value) => inputs.push(Some(value)),
                None => return node.failed(&format!("its input {name:?} is computed by no node before it")),
            }
        }
        let is_constant = node.operator == "Constant";
        let mut branches = None;
        if node.operator == "If" {
            let mut both = [0; 2];
            for (place, name) in both.iter_mut().zip(["then_branch", "else_branch"]) {
                let Some(graph) = graphs.remove(name) else {
                    return node.failed(&format!("it has no {name}"));
                };
                scopes.push(Scope::new());
                let body = self.body(graph, scopes, None)?;
                scopes.pop();
                if body.outputs.len() < outputs {
                    return node.failed(&format!("its {name} has too few outputs"));
                }
                *place = self.bodies.len();
                self.bodies.push(body);
            }
            if inputs.first().copied().flatten().is_none() {
                return node.failed("it has no condition");
            }
            branches = Some(both);
        } else if !graphs.is_empty() {
            return node.unsupported("graphs within a node are run of If alone");
        }
        let mut places = Vec::new();
        for name in message.output {
            let named = !name.is_empty();
            let value = named.then(|| self.new_value());
            if let Some(value) = value {
                define(scopes, name, value);
            }
            places.push(value);
        }
        if is_constant {
            let array = constant(&node)?;
            self.constants.extend(places.first().copied().flatten().map(|value| (value, array)));
            return Ok(None);
        }
        Ok(Some(Step { node, inputs, outputs: places, branches, captured: Vec::new() }))
    }

    fn attribute(&self, message: messages::Attribute, node: &Node) -> Result<Attribute> {
        Ok(match message.r#type {
            attribute_type::FLOAT => Attribute::Float(message.f),
            attribute_type::INT => Attribute::Int(message.i),
            attribute_type::STRING => Attribute::String(String::from_utf8_lossy(&message.s).into_owned()),
            attribute_type::FLOATS => Attribute::Floats(message.floats),
            attribute_type::INTS => Attribute::Ints(message.ints),
            attribute_type::STRINGS => {
                let text = |bytes: &Vec<u8>| String::from_utf8_lossy(bytes).into_owned();
                Attribute::Strings(message.strings.iter().map(text).collect())
            }
            attribute_type::TENSOR => match message.t {
                Some(tensor) => Attribute::Array(self.array(tensor, &node.name)?),
                None => return node.failed("an attribute has no tensor"),
            },
            _ => Attribute::Other,
        })
    }

    fn array(&self, tensor: messages::Tensor, name: &str) -> Result<Array> {
        let Some(dtype) = dtype(tensor.data_type) else {
            let number = tensor.data_type;
            return Err(ProgramError::Unsupported(format!(
                "the tensor {name:?} is of ONNX's type {number}, which is not run here"
            )));
        };
        let sizes = tensor.dims.iter().map(|&size| usize::try_from(size));
        let shape = sizes.collect::<std::result::Result<Vec<usize>, _>>();
        let shape =
            shape.map_err(|_| ProgramError::Failed(format!("the tensor {name:?} has a size below 0")))?;
        let wrong = |error: ProgramError| ProgramError::Failed(format!("the tensor {name:?}: {error}"));
        let mut data = if tensor.data_location == EXTERNAL {
            external(self.directory, &tensor.external_data).map_err(wrong)?
        } else if !tensor.raw_data.is_empty() {
            tensor.raw_data
        } else {
            typed(&tensor, dtype)
        };
        if dtype == Dtype::Bool {
            data.iter_mut().for_each(|byte| *byte = u8::from(*byte != 0));
        }
        Array::new(dtype, shape, data).map_err(wrong)
    }
}

/// The bytes of numbers that are given one by one.
fn typed(tensor: &messages::Tensor, dtype: Dtype) -> Vec<u8> {
    let bytes = dtype.bytes();
    match dtype {
        Dtype::Float32 => tensor.float_data.iter().flat_map(|number| number.to_le_bytes()).collect(),
        Dtype::Float64 => tensor.double_data.iter().flat_map(|number| number.to_le_bytes()).collect(),
        Dtype::Int64 => tensor.int64_data.iter().flat_map(|number| number.to_le_bytes()).collect(),
        Dtype::Uint32 | Dtype::Uint64 => {
            tensor.uint64_data.iter().flat_map(|number| number.to_le_bytes()[..bytes].to_vec()).collect()
        }
        // The bits of a float16 too.
        _ => tensor.int32_data.iter().flat_map(|number| number.to_le_bytes()[..bytes].to_vec()).collect(),
    }
}

/// Reads a tensor's bytes from a file beside the ONNX file.
fn external(directory: &Path, entries: &[messages::Entry]) -> Result<Vec<u8>> {
    let entry = |key: &str| entries.iter().find(|entry| entry.key == key).map(|entry| entry.value.as_str());
    let number = |key: &str| match entry(key) {
        None => Ok(None),
        Some(text) => match text.parse::<u64>() {
            Ok(number) => Ok(Some(number)),
            Err(_) => failed(format!("the {key} of its external data is {text:?}")),
        },
    };
    let Some(location) = entry("location") else { return failed("its external data has no location") };
    let path = Path::new(location);
    if !path.components().all(|part| matches!(part, Component::Normal(_) | Component::CurDir)) {
        return failed(format!("its external data is at {location:?}, outside the directory"));
    }
    let (offset, length) = (number("offset")?.unwrap_or(0), number("length")?);
    let read = || {
        let mut file = File::open(directory.join(path))?;
        let left = file.metadata()?.len().saturating_sub(offset);
        let length = length.unwrap_or(left).min(left);
        file.seek(SeekFrom::Start(offset))?;
        let mut bytes = Vec::new();
        file.take(length).read_to_end(&mut bytes)?;
        Ok(bytes)
    };
    read().map_err(|error: std::io::Error| ProgramError::Failed(format!("{location}: {error}")))
}

/// The value of a node `Constant`.
fn constant(node: &Node) -> Result<Array> {
    if let Some(array) = node.array("value") {
        return Ok(array.clone());
    }
    match node.attributes.iter().next() {
        Some((_, Attribute::Int(value))) => Ok(Array::from_ints(&[], &[*value])),
        Some((_, Attribute::Float(value))) => Ok(Array::from_floats(&[], &[*value])),
        Some((_, Attribute::Ints(values))) => Ok(Array::from_ints(&[values.len()], values)),
        Some((_, Attribute::Floats(values))) => Ok(Array::from_floats(&[values.len()], values)),
        _ => node.unsupported("its value is no tensor of numbers"),
    }
}
