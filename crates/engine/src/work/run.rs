//! The capability to run an ONNX file: named tensors to named tensors.

use bundle::{Dtype, Graph};

use crate::EngineError;

/// A tensor in host memory.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Tensor {
    pub name: String,
    pub dtype: Dtype,
    pub shape: Vec<usize>,
    /// The numbers, little-endian, row-major; a `bool` is 0 or 1.
    pub data: Vec<u8>,
}

/// Runs the loaded graph.
pub trait Run {
    /// The graph that is loaded.
    fn graph(&self) -> &Graph;

    /// Takes the inputs of the following runs, one for each of the graph's and in that order: puts them where
    /// the framework reads them. Not timed: programs keep their inputs in such tensors.
    fn feed(&mut self, inputs: &[Tensor]) -> Result<(), EngineError>;

    /// Computes all outputs of the graph. Complete on return, in host memory.
    ///
    /// # Errors
    /// [`EngineError::Unsupported`] with the operator's name if the framework only now finds that it does not
    /// implement it.
    fn run(&mut self) -> Result<(), EngineError>;

    /// The outputs of the last run, in the order of the graph's outputs. Not timed.
    fn outputs(&mut self) -> Result<Vec<Tensor>, EngineError>;
}

/// Runs framework code that reads an untrusted file. A panic of the framework becomes an error; its message
/// goes to stderr.
pub fn without_panic<T>(
    framework: &str,
    work: impl FnOnce() -> Result<T, EngineError>,
) -> Result<T, EngineError> {
    std::panic::catch_unwind(std::panic::AssertUnwindSafe(work)).unwrap_or_else(|payload| {
        let said = payload.downcast_ref::<String>().map(String::as_str);
        let said = said.or(payload.downcast_ref::<&str>().copied()).unwrap_or("it gave no reason");
        Err(EngineError::Framework(format!("{framework} gave up on this file: {}", said.replace('\n', " "))))
    })
}

impl Tensor {
    /// Number of elements of a shape.
    pub fn elements(shape: &[usize]) -> usize {
        shape.iter().product()
    }
}
