//! An ONNX file as a list of operations that a framework computes with its own functions.
//!
//! [`Program::read`] reads the file; [`Compiled`] runs it on what implements [`Operations`]. The framework is asked
//! for what depends on the numbers of the inputs. Weights are uploaded once, and what follows from weights alone is
//! computed once. What follows from the shapes of the inputs is computed once for these shapes; small whole numbers are
//! computed here.

mod arithmetic;
mod array;
mod compiled;
mod host;
mod messages;
mod read;
mod shapes;
mod simplify;
#[cfg(test)]
mod tests;

use std::cell::{Cell, OnceCell};
use std::collections::BTreeMap;
use std::rc::Rc;

use bundle::Dtype;

pub use array::Array;
pub use compiled::Compiled;
pub use shapes::{Slice, axis};

/// Why a program cannot be read or computed: a sentence.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ProgramError {
    /// It takes something that is not implemented. The sentence names the operator and the node.
    Unsupported(String),
    Failed(String),
}

impl std::fmt::Display for ProgramError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let (ProgramError::Unsupported(text) | ProgramError::Failed(text)) = self;
        f.write_str(text)
    }
}

impl std::error::Error for ProgramError {}

pub(crate) type Result<T> = std::result::Result<T, ProgramError>;

fn failed<T>(text: impl Into<String>) -> Result<T> {
    Err(ProgramError::Failed(text.into()))
}

/// The type that ONNX's `TensorProto.DataType` numbers so, as `Cast` names it; `None` of one that no array has.
pub fn dtype(number: i32) -> Option<Dtype> {
    crate::read::dtype(number)
}

/// An attribute of a node.
#[derive(Debug, Clone, PartialEq)]
pub enum Attribute {
    Int(i64),
    Float(f32),
    Ints(Vec<i64>),
    Floats(Vec<f32>),
    String(String),
    Strings(Vec<String>),
    Array(Array),
    /// A type of elements for which no operator is computed here.
    Other,
}

/// A node: the operator, and the attributes that the file gives. ONNX's defaults are the asker's affair.
#[derive(Debug, Clone, PartialEq)]
pub struct Node {
    pub name: String,
    /// `Conv`, or with a domain that is not the standard's `com.microsoft::Gelu`.
    pub operator: String,
    /// Version of the operators of its domain.
    pub opset: i64,
    /// How many outputs the file names, unused ones included.
    pub outputs: usize,
    attributes: BTreeMap<String, Attribute>,
}

impl Node {
    /// A node without attributes, of the standard's operators of that version.
    pub fn new(name: impl Into<String>, operator: impl Into<String>, opset: i64) -> Node {
        let (name, operator) = (name.into(), operator.into());
        Node { name, operator, opset, outputs: 1, attributes: BTreeMap::new() }
    }

    #[must_use]
    pub fn with(mut self, name: &str, attribute: Attribute) -> Node {
        self.attributes.insert(name.to_owned(), attribute);
        self
    }

    pub fn int(&self, name: &str) -> Option<i64> {
        if let Some(Attribute::Int(value)) = self.attributes.get(name) { Some(*value) } else { None }
    }

    pub fn float(&self, name: &str) -> Option<f32> {
        if let Some(Attribute::Float(value)) = self.attributes.get(name) { Some(*value) } else { None }
    }

    /// An empty list counts as none.
    pub fn ints(&self, name: &str) -> Option<&[i64]> {
        match self.attributes.get(name) {
            Some(Attribute::Ints(values)) if !values.is_empty() => Some(values),
            _ => None,
        }
    }

    /// An empty list counts as none.
    pub fn floats(&self, name: &str) -> Option<&[f32]> {
        match self.attributes.get(name) {
            Some(Attribute::Floats(values)) if !values.is_empty() => Some(values),
            _ => None,
        }
    }

    pub fn string(&self, name: &str) -> Option<&str> {
        if let Some(Attribute::String(value)) = self.attributes.get(name) { Some(value) } else { None }
    }

    pub fn strings(&self, name: &str) -> Option<&[String]> {
        if let Some(Attribute::Strings(values)) = self.attributes.get(name) { Some(values) } else { None }
    }

    pub fn array(&self, name: &str) -> Option<&Array> {
        if let Some(Attribute::Array(value)) = self.attributes.get(name) { Some(value) } else { None }
    }

    /// # Errors
    /// Always: `Conv (node conv1): why`.
    pub fn unsupported<T>(&self, why: &str) -> Result<T> {
        Err(ProgramError::Unsupported(format!("{self}: {why}")))
    }

    /// # Errors
    /// Always, with the same words before the reason.
    pub fn failed<T>(&self, why: &str) -> Result<T> {
        failed(format!("{self}: {why}"))
    }
}

impl std::fmt::Display for Node {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{} (node {})", self.operator, self.name.replace('\n', " "))
    }
}

/// What a framework computes.
pub trait Operations {
    /// A tensor of the framework. Cloning one copies no elements.
    type Tensor: Clone;

    /// # Errors
    /// If the framework has no such type, or reports an error.
    fn upload(&self, array: &Array) -> Result<Self::Tensor>;

    /// # Errors
    /// If the framework reports an error.
    fn download(&self, tensor: &Self::Tensor) -> Result<Array>;

    fn shape(&self, tensor: &Self::Tensor) -> Vec<usize>;

    fn dtype(&self, tensor: &Self::Tensor) -> Dtype;

    /// Computes a node's outputs, in the file's order. Unused ones at the end may be left out.
    ///
    /// # Errors
    /// [`Node::unsupported`] of what it does not implement.
    fn compute(&self, node: &Node, inputs: &Inputs<'_, Self>) -> Result<Vec<Self::Tensor>>
    where
        Self: Sized;
}

/// On what a value depends.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Origin {
    File,
    /// Also on the shapes of the inputs.
    Shapes,
    /// On the inputs' numbers.
    Numbers,
}

/// A value in a run.
#[derive(Debug)]
struct Value<T> {
    content: Content<T>,
    origin: Origin,
    /// Its shape does not depend on the inputs' numbers.
    has_fixed_shape: bool,
}

#[derive(Debug)]
enum Content<T> {
    Host(Rc<Held<T>>),
    Tensor(T),
}

/// An array, and its copy in the framework once that was asked for.
#[derive(Debug)]
struct Held<T> {
    array: Array,
    uploaded: OnceCell<T>,
}

impl<T: Clone> Clone for Value<T> {
    fn clone(&self) -> Value<T> {
        let content = match &self.content {
            Content::Host(held) => Content::Host(Rc::clone(held)),
            Content::Tensor(tensor) => Content::Tensor(tensor.clone()),
        };
        Value { content, ..*self }
    }
}

impl<T> Value<T> {
    fn host(array: Array, origin: Origin) -> Value<T> {
        let held = Held { array, uploaded: OnceCell::new() };
        Value { content: Content::Host(Rc::new(held)), origin, has_fixed_shape: origin < Origin::Numbers }
    }

    fn array(&self) -> Option<&Array> {
        if let Content::Host(held) = &self.content { Some(&held.array) } else { None }
    }
}

/// The inputs of a node. A constant of the file, or a value that follows from shapes alone, is known on the host if it
/// is small; large constants are so only until the framework has their copy.
pub struct Inputs<'a, O: Operations> {
    operations: &'a O,
    node: &'a Node,
    values: Vec<Option<Value<O::Tensor>>>,
    /// Whether numbers were asked for that depend on those of the program's inputs.
    reads_back: Cell<bool>,
}

impl<O: Operations> Inputs<'_, O> {
    /// How many the file names, empty names included.
    pub fn len(&self) -> usize {
        self.values.len()
    }

    pub fn is_empty(&self) -> bool {
        self.values.is_empty()
    }

    fn value(&self, place: usize) -> Option<&Value<O::Tensor>> {
        self.values.get(place).and_then(Option::as_ref)
    }

    /// Whether the input is there.
    pub fn has(&self, place: usize) -> bool {
        self.value(place).is_some()
    }

    /// Whether it is the same in all runs with the same shapes.
    pub fn is_constant(&self, place: usize) -> bool {
        self.value(place).is_some_and(|value| value.origin < Origin::Numbers)
    }

    /// The input in the framework. An array of the host is uploaded the first time, and kept.
    ///
    /// # Errors
    /// If it is absent, or cannot be uploaded.
    pub fn tensor(&self, place: usize) -> Result<&O::Tensor> {
        match self.optional(place)? {
            Some(tensor) => Ok(tensor),
            None => self.node.failed(&format!("it has no input {place}")),
        }
    }

    /// As [`tensor`](Self::tensor); `None` of an input that the file leaves out.
    ///
    /// # Errors
    /// If it cannot be uploaded.
    pub fn optional(&self, place: usize) -> Result<Option<&O::Tensor>> {
        match self.value(place).map(|value| &value.content) {
            None => Ok(None),
            Some(Content::Tensor(tensor)) => Ok(Some(tensor)),
            Some(Content::Host(held)) => {
                if held.uploaded.get().is_none() {
                    let tensor = self.operations.upload(&held.array)?;
                    let _ = held.uploaded.set(tensor);
                }
                Ok(held.uploaded.get())
            }
        }
    }

    /// The input if it is known on the host and constant.
    pub fn host(&self, place: usize) -> Option<&Array> {
        self.value(place).filter(|value| value.origin < Origin::Numbers).and_then(Value::array)
    }

    fn read(&self, place: usize) -> Result<Option<Array>> {
        let Some(value) = self.value(place) else { return Ok(None) };
        if value.origin == Origin::Numbers {
            self.reads_back.set(true);
        }
        match &value.content {
            Content::Host(held) => Ok(Some(held.array.clone())),
            Content::Tensor(tensor) => self.operations.download(tensor).map(Some),
        }
    }

    /// The numbers of an input of whole numbers, read back from the framework if they are only there; `None` if the
    /// input is absent.
    ///
    /// # Errors
    /// If it is of floats, or cannot be read back.
    pub fn ints(&self, place: usize) -> Result<Option<Vec<i64>>> {
        let Some(array) = self.read(place)? else { return Ok(None) };
        match array.ints() {
            Some(numbers) => Ok(Some(numbers)),
            None => self.node.failed(&format!("input {place} is of {}, not of whole numbers", array.dtype)),
        }
    }

    /// The numbers of an input of floats, rounded to f32, in the same way.
    ///
    /// # Errors
    /// If it is of whole numbers, or cannot be read back.
    pub fn floats(&self, place: usize) -> Result<Option<Vec<f32>>> {
        let Some(array) = self.read(place)? else { return Ok(None) };
        match array.floats() {
            Some(numbers) => Ok(Some(numbers)),
            None => self.node.failed(&format!("input {place} is of {}, not of floats", array.dtype)),
        }
    }
}

/// A node with its place among the others.
#[derive(Debug, Clone)]
struct Step {
    node: Node,
    inputs: Vec<Option<usize>>,
    /// `None` of an output without a name.
    outputs: Vec<Option<usize>>,
    /// The bodies of an `If`, for true and for false.
    branches: Option<[usize; 2]>,
    /// Every value that its bodies name.
    captured: Vec<usize>,
}

impl Step {
    fn uses(&self) -> impl Iterator<Item = usize> {
        self.inputs.iter().flatten().chain(&self.captured).copied()
    }
}

#[derive(Debug, Clone, Default)]
struct Body {
    steps: Vec<Step>,
    outputs: Vec<usize>,
}

/// A file's operations in their order, and its constants. Values have numbers, which are the program's own.
#[derive(Debug, Clone)]
pub struct Program {
    /// The first is the file's graph.
    bodies: Vec<Body>,
    constants: BTreeMap<usize, Array>,
    inputs: Vec<usize>,
    values: usize,
}

impl Program {
    /// How many nodes are left to compute, those of nested graphs included.
    pub fn nodes(&self) -> usize {
        self.bodies.iter().map(|body| body.steps.len()).sum()
    }

    /// The file's constants, after weights were folded into one another.
    pub fn constants(&self) -> impl Iterator<Item = &Array> {
        self.constants.values()
    }
}
