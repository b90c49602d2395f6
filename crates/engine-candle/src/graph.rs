//! An ONNX file, its nodes computed one by one by candle's public functions.
//!
//! `onnx::program` reads the file and keeps the order; here are the operations. Tensors are of candle's types, which
//! are fewer than ONNX's: see [`Typed`].

mod convolution;
mod elementwise;
mod indexing;
mod operators;
mod pieces;
mod pooling;
mod products;
mod recurrent;
mod reductions;
mod shaping;
#[cfg(test)]
mod tests;

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::time::{Instant, SystemTime, UNIX_EPOCH};

use bundle::{Bundle, Dtype, Graph, Precision};
use candle_core::{DType, Device as CandleDevice, Tensor as CandleTensor, WithDType};
use half::f16;
use onnx::program::{Array, Compiled, Inputs, Node, Operations, Program, ProgramError};
use worker::engine::{
    ARTEFACT, Device, EngineError, Foreigns, InEffect, InferenceEngine, KvCachePolicy, Profile, ProfileClock,
    ProfileEvent, Result, Run, Settings, Tensor, without_panic,
};

use crate::elements::with_elements;
use crate::parallel;

/// A tensor, and the type that the file gives it: candle has no `bool`, and of whole numbers only u8, u32 and i64 with
/// all its functions. So `bool` is u8, and all others but uint8 are i64, which holds them exactly; a sum that leaves
/// the file's type does not wrap around before it is read.
#[derive(Debug, Clone)]
pub(crate) struct Typed {
    tensor: CandleTensor,
    dtype: Dtype,
}

/// candle's type for the elements.
fn element(dtype: Dtype) -> DType {
    match dtype {
        Dtype::Float16 => DType::F16,
        Dtype::Float32 => DType::F32,
        Dtype::Float64 => DType::F64,
        Dtype::Uint8 | Dtype::Bool => DType::U8,
        _ => DType::I64,
    }
}

/// Why an operation gives no tensor.
enum Stop {
    Program(ProgramError),
    Candle(candle_core::Error),
}

impl From<ProgramError> for Stop {
    fn from(error: ProgramError) -> Stop {
        Stop::Program(error)
    }
}

impl From<candle_core::Error> for Stop {
    fn from(error: candle_core::Error) -> Stop {
        Stop::Candle(error)
    }
}

/// The first line of candle's error. It appends a backtrace if the environment requests one.
fn failed(error: candle_core::Error) -> ProgramError {
    ProgramError::Failed(error.to_string().lines().next().unwrap_or_default().to_owned())
}

/// candle's functions as a program's operations.
#[derive(Default)]
pub(crate) struct Candle {
    /// The nodes that were computed since a profile began: candle has no profiler, and computes each when it is called.
    profile: RefCell<Option<Vec<ProfileEvent>>>,
}

impl Operations for Candle {
    type Tensor = Typed;

    fn upload(&self, array: &Array) -> std::result::Result<Typed, ProgramError> {
        let (dtype, shape) = (array.dtype, array.shape.as_slice());
        let tensor = match element(dtype) {
            DType::I64 => CandleTensor::from_vec(array.ints().unwrap_or_default(), shape, &CandleDevice::Cpu),
            of_bytes => CandleTensor::from_raw_buffer(&array.data, of_bytes, shape, &CandleDevice::Cpu),
        };
        Ok(Typed { tensor: tensor.map_err(failed)?, dtype })
    }

    fn download(&self, tensor: &Typed) -> std::result::Result<Array, ProgramError> {
        let Typed { tensor, dtype } = tensor;
        let data = match tensor.dtype() {
            DType::F16 => bytes(tensor, |number: f16| number.to_le_bytes()),
            DType::F32 => bytes(tensor, f32::to_le_bytes),
            DType::F64 => bytes(tensor, f64::to_le_bytes),
            DType::U8 => bytes(tensor, u8::to_le_bytes),
            _ => narrowed(tensor, dtype.bytes()),
        };
        Array::new(*dtype, tensor.dims().to_vec(), data.map_err(failed)?)
    }

    fn shape(&self, tensor: &Typed) -> Vec<usize> {
        tensor.tensor.dims().to_vec()
    }

    fn dtype(&self, tensor: &Typed) -> Dtype {
        tensor.dtype
    }

    fn compute(
        &self,
        node: &Node,
        inputs: &Inputs<'_, Self>,
    ) -> std::result::Result<Vec<Typed>, ProgramError> {
        // Without a profile, a run reads no clock.
        let begun = self.profile.borrow().is_some().then(|| (SystemTime::now(), Instant::now()));
        let computed = operators::Call { node, inputs }.compute();
        if let (Some((start, clock)), Some(events)) = (begun, self.profile.borrow_mut().as_mut()) {
            events.push(ProfileEvent {
                name: node.operator.as_str().into(),
                part: None,
                thread: "nodes".into(),
                start_ns: start.duration_since(UNIX_EPOCH).unwrap_or_default().as_nanos() as u64,
                duration_ns: clock.elapsed().as_nanos() as u64,
                details: BTreeMap::from([("node".into(), node.name.as_str().into())]),
            });
        }
        computed.map_err(|stop| match stop {
            Stop::Program(error) => error,
            Stop::Candle(error) => ProgramError::Failed(format!("{node}: {}", failed(error))),
        })
    }
}

fn bytes<T: WithDType, const N: usize>(
    tensor: &CandleTensor,
    number: impl Fn(T) -> [u8; N],
) -> candle_core::Result<Vec<u8>> {
    let mut all = Vec::with_capacity(tensor.elem_count() * N);
    with_elements::<T, _>(&tensor.contiguous()?, |numbers| {
        numbers.iter().for_each(|&each| all.extend_from_slice(&number(each)));
    })?;
    Ok(all)
}

/// The lowest bytes of each number.
fn narrowed(tensor: &CandleTensor, size: usize) -> candle_core::Result<Vec<u8>> {
    let mut all = Vec::with_capacity(tensor.elem_count() * size);
    with_elements::<i64, _>(&tensor.contiguous()?, |numbers| {
        numbers.iter().for_each(|each| all.extend_from_slice(&each.to_le_bytes()[..size]));
    })?;
    Ok(all)
}

/// A file that has been read, and the tensors of the present inputs and outputs.
pub(crate) struct GraphRun {
    graph: Graph,
    compiled: Compiled<Candle>,
    inputs: Vec<Typed>,
    outputs: Vec<Typed>,
}

impl std::fmt::Debug for GraphRun {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("GraphRun").field("graph", &self.graph).finish_non_exhaustive()
    }
}

impl GraphRun {
    pub(crate) fn load(bundle: &Bundle, graph: &Graph, settings: &Settings) -> Result<GraphRun> {
        if settings.device() != Device::Cpu {
            return Err(EngineError::Unsupported("ONNX files run on a CPU alone here".into()));
        }
        if settings.options.keys().any(|option| option != ARTEFACT) {
            let reason = "candle's options are for models that continue or encode texts";
            return Err(EngineError::Unsupported(reason.into()));
        }
        parallel::request_threads(settings.threads, false);
        let program =
            Program::read(&crate::Candle::weights_file(bundle, settings)?, graph).map_err(refused)?;
        let compiled = Compiled::new(program, Candle::default());
        Ok(GraphRun { graph: graph.clone(), compiled, inputs: Vec::new(), outputs: Vec::new() })
    }

    pub(crate) fn begin_profile(&self) {
        self.compiled.operations().profile.replace(Some(Vec::new()));
    }

    pub(crate) fn end_profile(&self) -> Result<Profile> {
        let events = self.compiled.operations().profile.take();
        let events = events.ok_or_else(|| EngineError::Input("end_profile before begin_profile".into()))?;
        let profiler = "the time of each call of candle's functions".to_owned();
        Ok(Profile { profiler, clock: ProfileClock::Realtime, events, notes: Vec::new() })
    }

    pub(crate) fn in_effect(&self) -> InEffect {
        InEffect {
            precision: Precision::F32.into(),
            activations: "as the file says".into(),
            kv_cache_precision: Precision::F32.into(),
            kv_cache: KvCachePolicy::None,
            device: Device::Cpu.into(),
            threads: parallel::threads(),
            jit: "none".into(),
            optimised: None,
            weight_storage: "as the file has them".into(),
            kernels: vec!["candle's operations, one by one, as the file's nodes say"].into(),
            shard_bytes: None,
            hybrid: None,
            semi_public: Foreigns::default(),
            changed_defaults: Foreigns::default(),
            artefact: None,
        }
    }
}

impl Run for GraphRun {
    fn graph(&self) -> &Graph {
        &self.graph
    }

    fn feed(&mut self, inputs: &[Tensor]) -> Result<()> {
        let put = |tensor: &Tensor| {
            let array = Array::new(tensor.dtype, tensor.shape.clone(), tensor.data.clone());
            array.and_then(|array| self.compiled.operations().upload(&array)).map_err(refused)
        };
        self.inputs = inputs.iter().map(put).collect::<Result<_>>()?;
        Ok(())
    }

    fn run(&mut self) -> Result<()> {
        // Free the last outputs before new ones are allocated.
        self.outputs.clear();
        without_panic("candle", || {
            self.outputs = self.compiled.run(&self.inputs).map_err(refused)?;
            Ok(())
        })
    }

    fn outputs(&mut self) -> Result<Vec<Tensor>> {
        let read = |(output, value): (&bundle::GraphOutput, &Typed)| {
            let Array { dtype, shape, data } = self.compiled.operations().download(value).map_err(refused)?;
            Ok(Tensor { name: output.name.clone(), dtype, shape, data })
        };
        self.graph.outputs.iter().zip(&self.outputs).map(read).collect()
    }
}

fn refused(error: ProgramError) -> EngineError {
    match error {
        ProgramError::Unsupported(text) => EngineError::Unsupported(text),
        ProgramError::Failed(text) => EngineError::Framework(text),
    }
}
