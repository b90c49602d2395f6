//! An ONNX file, unchanged: a session that reads and writes tensors in host memory.

use bundle::{Bundle, Dtype, Graph, Precision};
use ort::memory::Allocator;
use ort::session::SessionInputValue;
use ort::session::builder::SessionBuilder;
use ort::value::{DynTensor, DynTensorValueType, TensorElementType};
use worker::engine::{
    Device, EngineError, Foreigns, InEffect, InferenceEngine, KvCachePolicy, Result, Run, Settings, Tensor,
};

use crate::Ort;
use crate::running::Running;
use crate::runtime::{Library, Optimization, Options, framework, session_builder};

pub(crate) struct GraphSession {
    graph: Graph,
    pub(crate) running: Running,
    inputs: Vec<(String, DynTensor)>,
    outputs: Vec<DynTensor>,
}

impl GraphSession {
    pub(crate) fn load(
        library: &Library,
        bundle: &Bundle,
        graph: &Graph,
        settings: &Settings,
    ) -> Result<GraphSession> {
        if settings.device() != Device::Cpu {
            return Err(EngineError::Unsupported("ONNX files run on a CPU alone here".into()));
        }
        let options = Options::from_settings(settings, bundle.config())?;
        let path = Ort::weights_file(bundle, settings)?;
        let made = |mut builder: SessionBuilder| builder.commit_from_file(&path);
        let running = session_builder(library, options.optimization)
            .and_then(|builder| Running::start(builder, (settings.threads, options), made))
            .map_err(refused)?;
        Ok(GraphSession { graph: graph.clone(), running, inputs: Vec::new(), outputs: Vec::new() })
    }

    pub(crate) fn in_effect(&self) -> InEffect {
        let optimization = self.running.options.optimization;
        InEffect {
            precision: Precision::F32.into(),
            activations: "as the file says".into(),
            kv_cache_precision: Precision::F32.into(),
            kv_cache: KvCachePolicy::None,
            device: Device::Cpu.into(),
            threads: self.running.threads,
            jit: format!("graph optimisation: {}", optimization.name()).into(),
            optimised: Some(optimization != Optimization::Off),
            weight_storage: "packed copy where a kernel has another layout".into(),
            kernels: vec!["the file's operators on the CPU execution provider"].into(),
            shard_bytes: None,
            hybrid: None,
            semi_public: Foreigns::default(),
            changed_defaults: Foreigns::default(),
            artefact: None,
        }
    }
}

impl Run for GraphSession {
    fn graph(&self) -> &Graph {
        &self.graph
    }

    fn feed(&mut self, inputs: &[Tensor]) -> Result<()> {
        let allocator = Allocator::default();
        let put = |tensor: &Tensor| {
            let mut value =
                DynTensor::new(&allocator, element(tensor.dtype), tensor.shape.clone()).map_err(framework)?;
            if value.size() != Some(tensor.data.len()) {
                return Err(EngineError::Framework(format!(
                    "ONNX Runtime's tensor {} has another size",
                    tensor.name
                )));
            }
            let place = value.data_ptr_mut().cast::<u8>();
            if !tensor.data.is_empty() {
                // SAFETY: the tensor is in host memory, was just made with this many bytes, and is not
                // shared.
                #[allow(unsafe_code)]
                unsafe {
                    place.copy_from_nonoverlapping(tensor.data.as_ptr(), tensor.data.len());
                }
            }
            Ok((tensor.name.clone(), value))
        };
        self.inputs = inputs.iter().map(put).collect::<Result<_, _>>()?;
        Ok(())
    }

    fn run(&mut self) -> Result<()> {
        // Free the last outputs before new ones are allocated.
        self.outputs.clear();
        let inputs: Vec<(&str, SessionInputValue<'_>)> =
            self.inputs.iter().map(|(name, value)| (name.as_str(), value.into())).collect();
        let mut outputs = self.running.session.run(inputs).map_err(refused)?;
        for output in &self.graph.outputs {
            let value = outputs.remove(&output.name);
            let value = value.ok_or_else(|| EngineError::Framework(format!("no output {}", output.name)))?;
            self.outputs.push(value.downcast::<DynTensorValueType>().map_err(framework)?);
        }
        Ok(())
    }

    fn outputs(&mut self) -> Result<Vec<Tensor>> {
        self.graph
            .outputs
            .iter()
            .zip(&self.outputs)
            .map(|(output, value)| tensor(&output.name, value))
            .collect()
    }
}

fn tensor(name: &str, value: &DynTensor) -> Result<Tensor> {
    let Some(dtype) = Dtype::ALL.into_iter().find(|dtype| element(*dtype) == *value.data_type()) else {
        let found = value.data_type();
        return Err(EngineError::Unsupported(format!(
            "its output {name} is of {found}, which is not read here"
        )));
    };
    let shape: Vec<usize> = value.shape().iter().map(|&size| size.max(0) as usize).collect();
    let (place, bytes) = (value.data_ptr().cast::<u8>(), value.size().unwrap_or(0));
    let data = if bytes == 0 {
        Vec::new()
    } else {
        // SAFETY: the CPU provider's tensor has this many bytes of host memory, valid while it is borrowed.
        #[allow(unsafe_code)]
        unsafe { std::slice::from_raw_parts(place, bytes) }.to_vec()
    };
    Ok(Tensor { name: name.to_owned(), dtype, shape, data })
}

fn element(dtype: Dtype) -> TensorElementType {
    match dtype {
        Dtype::Float16 => TensorElementType::Float16,
        Dtype::Float32 => TensorElementType::Float32,
        Dtype::Float64 => TensorElementType::Float64,
        Dtype::Int8 => TensorElementType::Int8,
        Dtype::Int16 => TensorElementType::Int16,
        Dtype::Int32 => TensorElementType::Int32,
        Dtype::Int64 => TensorElementType::Int64,
        Dtype::Uint8 => TensorElementType::Uint8,
        Dtype::Uint16 => TensorElementType::Uint16,
        Dtype::Uint32 => TensorElementType::Uint32,
        Dtype::Uint64 => TensorElementType::Uint64,
        Dtype::Bool => TensorElementType::Bool,
    }
}

/// ONNX Runtime's messages if it has no kernel for an operator, or none of this version.
const MISSING: [&str; 5] = [
    "No Op registered for",
    "is not a registered function/op",
    "Could not find an implementation for",
    "Unsupported model IR version",
    "only *guarantees* support for models stamped with official released onnx opset versions",
];

/// The error for a file that the library does not run. Missing operators count as unsupported.
fn refused<T>(error: ort::Error<T>) -> EngineError {
    let text = error.to_string();
    match MISSING.iter().any(|missing| text.contains(missing)) {
        true => EngineError::Unsupported(text),
        false => EngineError::Framework(text),
    }
}
