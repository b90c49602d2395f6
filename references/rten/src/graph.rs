//! An ONNX file as it is, in rten.
//!
//! rten has tensors of f32, i32, i8 and u8. It reads weights of other types into these, and so are inputs put into
//! them and outputs put back into the types that the file has.

use std::path::Path;
use std::sync::Arc;

use bundle::{Bundle, Dtype, Graph};
use half::f16;
use rten::{ModelOptions, NodeId, RunOptions, ThreadPool, Value, ValueOrView};
use rten_tensor::prelude::*;
use worker::engine::{EngineError, InferenceEngine, Run, Settings, Tensor, without_panic};

/// What computes, for people.
pub(crate) const KERNELS: [&str; 2] =
    ["the file's operators", "float64 and float16 in f32, int64 and bool in i32, as rten has them"];

#[derive(Debug)]
pub(crate) struct GraphModel {
    graph: Graph,
    model: rten::Model,
    pool: Arc<ThreadPool>,
    pub(crate) threads: usize,
    /// Inputs and outputs, as rten numbers them.
    places: (Vec<NodeId>, Vec<NodeId>),
    inputs: Vec<Value>,
    outputs: Vec<Value>,
}

impl GraphModel {
    pub(crate) fn load(
        bundle: &Bundle,
        graph: &Graph,
        settings: &Settings,
    ) -> Result<GraphModel, EngineError> {
        if let Some(input) = graph.inputs.iter().find(|input| !is_held(input.dtype)) {
            let (name, dtype) = (&input.name, input.dtype);
            return Err(EngineError::Unsupported(format!(
                "its input {name} is of {dtype}, which rten has not"
            )));
        }
        let pool = ThreadPool::with_num_threads(settings.threads);
        let threads = pool.run(rayon::current_num_threads);
        let model = open(&crate::Rten::weights_file(bundle, settings)?, settings.jit)?;
        let node =
            |name: &str| model.node_id(name).map_err(|error| EngineError::Framework(error.to_string()));
        let inputs = graph.inputs.iter().map(|input| node(&input.name)).collect::<Result<_, _>>()?;
        let outputs = graph.outputs.iter().map(|output| node(&output.name)).collect::<Result<_, _>>()?;
        Ok(GraphModel {
            graph: graph.clone(),
            model,
            pool: Arc::new(pool),
            threads,
            places: (inputs, outputs),
            inputs: Vec::new(),
            outputs: Vec::new(),
        })
    }
}

fn open(path: &Path, optimise: bool) -> Result<rten::Model, EngineError> {
    let mut options = ModelOptions::with_all_ops();
    options.enable_optimization(optimise);
    // It names the node and its operator.
    options.load_file(path).map_err(|error| EngineError::Unsupported(one_line(&error.to_string())))
}

impl Run for GraphModel {
    fn graph(&self) -> &Graph {
        &self.graph
    }

    fn feed(&mut self, inputs: &[Tensor]) -> Result<(), EngineError> {
        self.inputs = inputs.iter().map(value).collect::<Result<_, _>>()?;
        Ok(())
    }

    fn run(&mut self) -> Result<(), EngineError> {
        // The last outputs go before the new ones come.
        self.outputs.clear();
        let views = self.inputs.iter().map(|value| ValueOrView::View(value.as_view()));
        let inputs = self.places.0.iter().copied().zip(views).collect();
        let options = RunOptions::default().with_thread_pool(Some(Arc::clone(&self.pool)));
        let run = || {
            self.model.run(inputs, &self.places.1, Some(options)).map_err(|error| refused(error.to_string()))
        };
        self.outputs = without_panic("rten", run)?;
        Ok(())
    }

    fn outputs(&mut self) -> Result<Vec<Tensor>, EngineError> {
        let outputs = self.graph.outputs.iter().zip(&self.outputs);
        outputs.map(|(output, value)| tensor(&output.name, output.dtype, value)).collect()
    }
}

fn is_held(dtype: Dtype) -> bool {
    !matches!(dtype, Dtype::Int16 | Dtype::Uint16 | Dtype::Uint32 | Dtype::Uint64)
}

fn one_line(text: &str) -> String {
    text.replace('\n', " ")
}

/// What rten says in a run where it has an operator not in this form.
fn refused(text: String) -> EngineError {
    let text = one_line(&text);
    match text.contains("nsupported") || text.contains("not supported") {
        true => EngineError::Unsupported(text),
        false => EngineError::Framework(text),
    }
}

/// Numbers of so many bytes each.
fn numbers<const BYTES: usize, T>(tensor: &Tensor, number: impl Fn([u8; BYTES]) -> T) -> Vec<T> {
    tensor.data.as_chunks::<BYTES>().0.iter().map(|bytes| number(*bytes)).collect()
}

fn value(tensor: &Tensor) -> Result<Value, EngineError> {
    let beyond = || {
        let name = &tensor.name;
        EngineError::Unsupported(format!(
            "input {name} has a number beyond 32 bits, which rten's integers have"
        ))
    };
    let shape = tensor.shape.as_slice();
    let made = match tensor.dtype {
        Dtype::Float32 => Value::from_shape(shape, numbers(tensor, f32::from_le_bytes)).ok(),
        Dtype::Float64 => {
            Value::from_shape(shape, numbers(tensor, |bytes| f64::from_le_bytes(bytes) as f32)).ok()
        }
        Dtype::Float16 => {
            Value::from_shape(shape, numbers(tensor, |bytes| f16::from_le_bytes(bytes).to_f32())).ok()
        }
        Dtype::Int32 => Value::from_shape(shape, numbers(tensor, i32::from_le_bytes)).ok(),
        Dtype::Int64 => {
            let wide = numbers(tensor, i64::from_le_bytes).into_iter().map(i32::try_from);
            Value::from_shape(shape, wide.collect::<Result<Vec<i32>, _>>().map_err(|_| beyond())?).ok()
        }
        Dtype::Bool => {
            Value::from_shape(shape, tensor.data.iter().map(|&bool| i32::from(bool)).collect()).ok()
        }
        Dtype::Int8 => Value::from_shape(shape, numbers(tensor, i8::from_le_bytes)).ok(),
        Dtype::Uint8 => Value::from_shape(shape, tensor.data.clone()).ok(),
        Dtype::Int16 | Dtype::Uint16 | Dtype::Uint32 | Dtype::Uint64 => None,
    };
    made.ok_or_else(|| {
        EngineError::Framework(format!("rten takes no input {} of {}", tensor.name, tensor.dtype))
    })
}

/// An output in the type that the file says.
fn tensor(name: &str, dtype: Dtype, value: &Value) -> Result<Tensor, EngineError> {
    let (shape, data) = match value {
        Value::FloatTensor(found) => {
            let each = found.iter().copied();
            let data: Option<Vec<u8>> = match dtype {
                Dtype::Float32 => Some(each.flat_map(f32::to_le_bytes).collect()),
                Dtype::Float64 => Some(each.flat_map(|number| f64::from(number).to_le_bytes()).collect()),
                Dtype::Float16 => Some(each.flat_map(|number| f16::from_f32(number).to_le_bytes()).collect()),
                _ => None,
            };
            (found.shape().to_vec(), data)
        }
        Value::Int32Tensor(found) => {
            let each = found.iter().copied();
            let data: Option<Vec<u8>> = match dtype {
                Dtype::Int32 => Some(each.flat_map(i32::to_le_bytes).collect()),
                Dtype::Int64 => Some(each.flat_map(|number| i64::from(number).to_le_bytes()).collect()),
                Dtype::Bool => Some(each.map(|number| u8::from(number != 0)).collect()),
                _ => None,
            };
            (found.shape().to_vec(), data)
        }
        Value::Int8Tensor(found) if dtype == Dtype::Int8 => {
            (found.shape().to_vec(), Some(found.iter().flat_map(|number| number.to_le_bytes()).collect()))
        }
        Value::UInt8Tensor(found) if dtype == Dtype::Uint8 => {
            (found.shape().to_vec(), Some(found.iter().copied().collect()))
        }
        _ => (Vec::new(), None),
    };
    let data = data.ok_or_else(|| {
        EngineError::Framework(format!("rten gives the output {name} as {}, not as {dtype}", value.dtype()))
    })?;
    Ok(Tensor { name: name.to_owned(), dtype, shape, data })
}
