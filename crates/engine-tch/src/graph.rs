//! An ONNX file, node by node with libtorch's functions, and then as TorchScript.
//!
//! The first run with given shapes computes every node by itself. Where no node reads numbers back, the same run is
//! then traced and frozen; later runs with these shapes run that module. A file whose inputs have fixed shapes is
//! traced while it is loaded.

mod artefact;
mod layers;
mod moves;
mod operators;
mod recurrent;
mod resize;
#[cfg(test)]
mod tests;
mod trace;

use std::collections::HashMap;
use std::path::{Path, PathBuf};
use std::rc::Rc;

use bundle::{Bundle, Dtype, Graph, Precision, Size};
use onnx::program::{Array, Compiled, Program, ProgramError};
use operators::Libtorch;
use tch::TchError;
use trace::Module;
use worker::engine::{
    ARTEFACT, Artefact, Device, EngineError, Foreigns, InEffect, InferenceEngine, KvCachePolicy, Options,
    Result, Run, Settings, Tensor, without_panic,
};

use crate::shim::InferenceMode;
use crate::{Tch, framework, reason, scripted};

/// Shapes for which a module is kept.
const MODULES: usize = 64;

/// Largest difference between a module's output and that of the nodes one by one, as a share of the largest number.
const TOLERANCE: f64 = 1e-3;

/// Why there is no module, after that was said or where none is wanted.
const NOT_TRACED: &str = "it is not traced";

pub(crate) struct GraphModule {
    graph: Graph,
    path: PathBuf,
    optimises: bool,
    threads: usize,
    runs: Runs,
    inputs: Vec<Rc<tch::Tensor>>,
    outputs: Vec<tch::Tensor>,
    shapes: Vec<Vec<usize>>,
    /// What is said of the artefact, or of a trace while loading.
    said: Option<String>,
    /// How the weights of an artefact compare with the file's.
    compared: Option<Artefact>,
    marked: bool,
}

/// A run as a module.
struct Traced {
    module: Module,
    /// What it takes after the file's inputs: weights in oneDNN's layouts.
    weights: Vec<tch::Tensor>,
}

impl Traced {
    fn run(&self, inputs: &[Rc<tch::Tensor>]) -> std::result::Result<Vec<tch::Tensor>, TchError> {
        let given: Vec<&tch::Tensor> = inputs.iter().map(Rc::as_ref).chain(&self.weights).collect();
        self.module.run(&given)
    }
}

enum Runs {
    /// An artefact, for all shapes.
    Artefact(Traced),
    Nodes {
        /// `None` once no further run needs it; it is read again for other shapes.
        compiled: Option<Box<Compiled<Libtorch>>>,
        /// By the shapes of the inputs: a module, or `None` where nodes are computed one by one.
        modules: HashMap<Vec<Vec<usize>>, Option<Traced>>,
    },
}

impl GraphModule {
    pub(crate) fn load(bundle: &Bundle, graph: &Graph, settings: &Settings) -> Result<GraphModule> {
        settings.check_options(&[ARTEFACT])?;
        if settings.device() != Device::Cpu {
            return Err(EngineError::Unsupported("ONNX files run on a CPU alone here".into()));
        }
        let file = Tch::weights_file(bundle, settings)?;
        let own = bundle.weights_path(Precision::F32)?;
        // Profiling runs only delay the first runs where the JIT has no fuser for this processor.
        scripted::set_profiling(scripted::fuses_on_cpu());
        let _mode = InferenceMode::enter();
        let mut said = None;
        let mut compared = None;
        let is_onnx = file == own || file.extension().is_some_and(|end| end.eq_ignore_ascii_case("onnx"));
        let runs = if is_onnx {
            Runs::Nodes { compiled: Some(compiled(&file, graph)?), modules: HashMap::new() }
        } else {
            let module = artefact::load(&file)?;
            compared = Some(artefact::compare(&module, &own, graph)?);
            said = Some(format!("TorchScript of {}", file.file_name().unwrap_or_default().to_string_lossy()));
            Runs::Artefact(Traced { module, weights: Vec::new() })
        };
        let path = file;
        let threads = usize::try_from(tch::get_num_threads()).unwrap_or(0);
        let (graph, optimises) = (graph.clone(), settings.jit);
        let (inputs, outputs, shapes) = (Vec::new(), Vec::new(), Vec::new());
        let marked = false;
        let mut loaded = GraphModule {
            graph,
            path,
            optimises,
            threads,
            runs,
            inputs,
            outputs,
            shapes,
            said,
            compared,
            marked,
        };
        if let (Some(drawn), None, true) = (loaded.drawn(), &loaded.said, optimises) {
            loaded.feed(&drawn)?;
            let traced = without_panic("tch", || loaded.run_nodes());
            loaded.said = Some(match traced {
                Ok(None) => "traced while loading: TorchScript, frozen".into(),
                Ok(Some(why)) => format!("node by node: {why}"),
                // Such inputs may make no sense to the file: the first run tells.
                Err(EngineError::Unsupported(why)) => return Err(EngineError::Unsupported(why)),
                Err(error) => format!("traced in the first run: while loading, {error}"),
            });
            (loaded.inputs, loaded.outputs) = (Vec::new(), Vec::new());
        }
        Ok(loaded)
    }

    /// Switches the flag that the engine's profile is on, and returns the old state.
    pub(crate) fn set_marked(&mut self, marked: bool) -> bool {
        std::mem::replace(&mut self.marked, marked)
    }

    /// Inputs for a first run, if no size is free: floats from 0 to 1, and zeros.
    fn drawn(&self) -> Option<Vec<Tensor>> {
        let mut tensors = Vec::new();
        for input in &self.graph.inputs {
            let mut shape = Vec::new();
            for size in input.shape.as_ref()? {
                let Size::Fixed(size) = size else { return None };
                shape.push(*size);
            }
            let elements = Tensor::elements(&shape);
            let mut data = vec![0; elements * input.dtype.bytes()];
            if input.dtype == Dtype::Float32 {
                // Unlike each other, so that what a trace leaves out shows.
                data = (0..elements)
                    .flat_map(|place| ((place * 37 % 101) as f32 / 101.0).to_le_bytes())
                    .collect();
            }
            tensors.push(Tensor { name: input.name.clone(), dtype: input.dtype, shape, data });
        }
        Some(tensors)
    }

    pub(crate) fn in_effect(&self) -> InEffect {
        let is_artefact = matches!(self.runs, Runs::Artefact(_));
        let jit = match (is_artefact, self.optimises) {
            (true, _) => "TorchScript as the file has it",
            (false, true) => "TorchScript: traced and frozen",
            (false, false) => "eager: JIT is off",
        };
        let traced = match (&self.said, self.optimises) {
            (Some(said), _) => said.clone(),
            (None, true) => {
                "traced in the first run with given shapes; node by node where numbers decide what is computed".into()
            }
            (None, false) => "node by node".into(),
        };
        InEffect {
            precision: Precision::F32.into(),
            activations: "as the file says".into(),
            kv_cache_precision: Precision::F32.into(),
            kv_cache: KvCachePolicy::None,
            device: Device::Cpu.into(),
            threads: self.threads,
            jit: jit.into(),
            optimised: Some(is_artefact || self.optimises),
            weight_storage: "copy in memory, packed by oneDNN for convolutions".into(),
            kernels: vec!["the file's operators by libtorch's functions".to_owned(), traced].into(),
            shard_bytes: None,
            hybrid: None,
            semi_public: (!is_artefact).then_some("mkldnn::_convolution_pointwise").into_iter().collect(),
            changed_defaults: Foreigns::default(),
            artefact: self.compared,
        }
    }

    /// Runs the nodes one by one, and makes a module for these shapes. Returns why there is none.
    fn run_nodes(&mut self) -> Result<Option<String>> {
        let Runs::Nodes { compiled, modules } = &mut self.runs else { return Ok(None) };
        let program = match compiled {
            Some(program) => program,
            None => compiled.insert(self::compiled(&self.path, &self.graph)?),
        };
        let outputs = program.run(&self.inputs).map_err(refused)?;
        self.outputs = finished(outputs.iter().map(Rc::as_ref))?;
        if !self.optimises {
            return Ok(Some(NOT_TRACED.into()));
        }
        if modules.contains_key(&self.shapes) {
            return Ok(Some(NOT_TRACED.into()));
        }
        let traced = match program.reads_back(&self.inputs) {
            Some(node) => Err(format!("{node} reads numbers back")),
            None => trace(program, &self.inputs, &self.outputs),
        };
        if modules.len() >= MODULES {
            modules.clear();
        }
        let why = match traced {
            Ok(module) => {
                modules.insert(self.shapes.clone(), Some(module));
                // The module holds what it needs of the weights.
                *compiled = None;
                None
            }
            Err(why) => {
                modules.insert(self.shapes.clone(), None);
                Some(why)
            }
        };
        Ok(why)
    }
}

fn compiled(path: &Path, graph: &Graph) -> Result<Box<Compiled<Libtorch>>> {
    let program = Program::read(path, graph).map_err(refused)?;
    Ok(Box::new(Compiled::new(program, Libtorch::default())))
}

/// The run as a module that gives the same outputs; a sentence if there is none.
fn trace(
    program: &mut Compiled<Libtorch>,
    inputs: &[Rc<tch::Tensor>],
    expected: &[tch::Tensor],
) -> std::result::Result<Traced, String> {
    let said = |error: TchError| format!("libtorch does not trace it: {}", reason(error));
    let weights = program.operations().opaque();
    let given: Vec<&tch::Tensor> = inputs.iter().map(Rc::as_ref).chain(&weights).collect();
    let compute = || {
        let outputs = program.run(inputs).map_err(|error| TchError::Torch(error.to_string()))?;
        outputs.iter().map(|output| output.f_contiguous()).collect()
    };
    let mut module = Module::trace::<TchError>(&given, compute).map_err(said)?;
    module.freeze().map_err(said)?;
    let traced = Traced { module, weights };
    let found = traced.run(inputs).map_err(said)?;
    for (found, expected) in found.iter().zip(expected) {
        if !is_near(found, expected).map_err(said)? {
            return Err("its trace gives other numbers".into());
        }
    }
    Ok(traced)
}

fn is_near(found: &tch::Tensor, expected: &tch::Tensor) -> std::result::Result<bool, TchError> {
    if found.size() != expected.size() || found.kind() != expected.kind() {
        return Ok(false);
    }
    if expected.numel() == 0 || found.f_equal(expected)? {
        return Ok(true);
    }
    if !expected.is_floating_point() {
        return Ok(false);
    }
    let [found, expected] =
        [found, expected].map(|tensor| tensor.f_to_dtype(tch::Kind::Double, false, false));
    let (found, expected) = (found?, expected?);
    // Infinities and what is no number must be in the same places.
    let difference = found.f_sub(&expected)?.f_abs()?.f_nan_to_num(0.0, f64::INFINITY, f64::INFINITY)?;
    let largest = expected.f_abs()?.f_nan_to_num(0.0, 0.0, 0.0)?.f_max()?;
    let same = found.f_isfinite()?.f_equal(&expected.f_isfinite()?)?;
    let number = |tensor: &tch::Tensor| f64::try_from(tensor);
    Ok(same && number(&difference.f_max()?)? <= TOLERANCE * number(&largest)?.max(0.01))
}

/// Outputs row by row in memory, as every framework hands them over.
fn finished<'a>(outputs: impl Iterator<Item = &'a tch::Tensor>) -> Result<Vec<tch::Tensor>> {
    outputs.map(|output| output.f_contiguous().map_err(framework)).collect()
}

pub(crate) fn refused(error: ProgramError) -> EngineError {
    match error {
        ProgramError::Unsupported(text) => EngineError::Unsupported(text),
        ProgramError::Failed(text) => EngineError::Framework(text),
    }
}

impl Run for GraphModule {
    fn graph(&self) -> &Graph {
        &self.graph
    }

    fn feed(&mut self, inputs: &[Tensor]) -> Result<()> {
        let _mode = InferenceMode::enter();
        self.inputs.clear();
        for input in inputs {
            let array = Array::new(input.dtype, input.shape.clone(), input.data.clone()).map_err(refused)?;
            self.inputs.push(Rc::new(operators::upload(&array).map_err(refused)?));
        }
        self.shapes = inputs.iter().map(|input| input.shape.clone()).collect();
        Ok(())
    }

    fn run(&mut self) -> Result<()> {
        let _mode = InferenceMode::enter();
        // Free the last outputs before new ones are allocated.
        self.outputs.clear();
        let module = match &self.runs {
            Runs::Artefact(module) => Some(module),
            Runs::Nodes { modules, .. } => modules.get(&self.shapes).and_then(Option::as_ref),
        };
        if let Some(module) = module {
            let outputs = module.run(&self.inputs).map_err(framework)?;
            artefact::check_count(outputs.len(), &self.graph)?;
            self.outputs = finished(outputs.iter())?;
            return Ok(());
        }
        if let Some(why) = without_panic("tch", || self.run_nodes())?
            && why != NOT_TRACED
        {
            eprintln!("tch computes node by node: {why}");
        }
        Ok(())
    }

    fn outputs(&mut self) -> Result<Vec<Tensor>> {
        let mut tensors = Vec::new();
        for (output, value) in self.graph.outputs.iter().zip(&self.outputs) {
            let Array { dtype, shape, data } = operators::download(value).map_err(refused)?;
            let name = output.name.clone();
            check_type(&name, dtype, output.dtype)?;
            tensors.push(Tensor { name, dtype, shape, data });
        }
        Ok(tensors)
    }
}

fn check_type(name: &str, found: Dtype, wanted: Dtype) -> Result<()> {
    if found == wanted {
        return Ok(());
    }
    Err(EngineError::Framework(format!("its output {name} is of {found}, the file says {wanted}")))
}
