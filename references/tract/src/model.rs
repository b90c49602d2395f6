//! A graph compiled by tract, which is written for it.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;

use bundle::{BundleError, ModelConfig, Precision};
use onnx::graph::{LOGITS, hidden_state};
use onnx::{Storage, Written};
use rayon::{ThreadPool, ThreadPoolBuilder};
use reference_portable::{self as portable, Form};
use tract_linalg::multithread::{Executor, set_threading_panel_threshold};
use tract_onnx::prelude::*;
use tract_onnx::tract_core::runtime::RunOptions;
use tract_onnx::tract_core::transform::get_transform;
use tract_onnx::tract_hir::internal::format_err;
use worker::engine::{Bundle, EngineError, Settings};

/// Recognises what decoders are made of: rotation, masks, caches that a graph concatenates and hands back.
const DETECT: &str = "transformers_detect_all";
/// The operators that are reported where the compiled plan has them: attention that keeps its own cache, what it is
/// where tract has not fused the two, attention's softmax where products are around it, the rotation, and products.
const TOLD: [&str; 7] = [
    "InPlaceKvSdpa",
    "FlashSDPA",
    "DynamicKeyValueCache",
    "ScaledMaskedSoftmax",
    "ApplyRope",
    "OptMatMul",
    "EinSum",
];

#[derive(Debug)]
pub(crate) struct Model {
    pub(crate) config: ModelConfig,
    pub(crate) loaded: Loaded,
    /// Where the plan puts out logits, and the hidden states if it has them.
    pub(crate) logits: usize,
    pub(crate) hidden: Vec<usize>,
    /// Whether the graph puts out its hidden states.
    pub(crate) hidden_states: bool,
}

/// A graph as tract has compiled it, and what it computes with.
#[derive(Debug)]
pub(crate) struct Loaded {
    pub(crate) plan: Arc<TypedSimplePlan>,
    /// Names of the plan's inputs, in its order.
    pub(crate) inputs: Vec<String>,
    /// All that computes runs in it. tract's own executor would hand over every single product to another thread.
    pub(crate) pool: ThreadPool,
    /// Threads of `pool`, as it says.
    pub(crate) threads: usize,
    /// Operators of the compiled plan that do the work, with how many there are.
    pub(crate) kernels: Vec<String>,
}

impl Model {
    pub(crate) fn load(bundle: &Bundle, settings: &Settings) -> Result<Model, EngineError> {
        let config = bundle.config().clone();
        let write = |storage| portable::build(bundle, Form::Standard, storage, settings.hidden_states);
        let loaded = Loaded::new(bundle, settings, write)?;
        let states = if settings.hidden_states { config.layers.len() + 1 } else { 0 };
        let hidden = (0..states).map(|layer| loaded.output(&hidden_state(layer)));
        Ok(Model {
            logits: loaded.output(LOGITS)?,
            hidden: hidden.collect::<Result<_, _>>()?,
            hidden_states: settings.hidden_states,
            config,
            loaded,
        })
    }
}

impl Loaded {
    /// The graph that `write` writes, over the weights of `bundle`.
    pub(crate) fn new(
        bundle: &Bundle,
        settings: &Settings,
        write: impl FnOnce(Storage) -> Result<Written, BundleError>,
    ) -> Result<Loaded, EngineError> {
        let pool =
            ThreadPoolBuilder::new().num_threads(settings.threads).thread_name(|n| format!("tract-{n}"));
        let pool = pool.build().map_err(|error| EngineError::Framework(error.to_string()))?;
        let threads = pool.install(rayon::current_num_threads);
        // By default a product runs on several threads from 64 panels of rows on, which at a hidden size of 576 the output
        // head alone has. tract's documentation advises less for transformers.
        set_threading_panel_threshold(0);
        let weights = bundle.weights_path(Precision::F32)?;
        let weights = weights.canonicalize().map_err(BundleError::io(&weights))?;
        let (Some(folder), Some(file)) =
            (weights.parent(), weights.file_name().and_then(|name| name.to_str()))
        else {
            return Err(EngineError::Input(format!("{} is no file that tract can name", weights.display())));
        };
        let graph = write(Storage::File(file.to_owned()))?;
        let plan = pool.install(|| compile(&graph, folder)).map_err(framework)?;
        let model = plan.model();
        let inputs = model.inputs.iter().map(|outlet| model.node(outlet.node).name.clone()).collect();
        Ok(Loaded { inputs, kernels: kernels(&plan), plan, pool, threads })
    }

    /// Where the plan puts out `name`.
    pub(crate) fn output(&self, name: &str) -> Result<usize, EngineError> {
        let place = self.plan.model().outputs.iter().position(|outlet| label(&self.plan, *outlet) == name);
        place.ok_or_else(|| EngineError::Framework(format!("tract has lost the output {name}")))
    }
}

/// tract's error, in one line.
pub(crate) fn framework(error: TractError) -> EngineError {
    EngineError::Framework(format!("{error:#}").replace('\n', " "))
}

fn compile(graph: &Written, folder: &Path) -> TractResult<Arc<TypedSimplePlan>> {
    // Rows, positions and past are symbols: one plan serves prompts and single tokens, and packs the weights once.
    let onnx = tract_onnx::onnx().with_ignore_output_shapes(true).with_ignore_value_info(true);
    let proto = onnx.proto_model_for_read(&mut graph.model.as_slice())?;
    let parsed = onnx.parse(&proto, folder.to_str())?;
    let mut model = parsed.model.into_typed()?.into_decluttered()?;
    let detect = get_transform(DETECT)?.ok_or_else(|| format_err!("this build of tract has no {DETECT}"))?;
    detect.transform(&mut model)?;
    let options = RunOptions { executor: Some(Executor::RayonGlobal), ..RunOptions::default() };
    TypedSimplePlan::new_with_options(model.into_decluttered()?.into_optimized()?, &options)
}

/// The name of an output in the graph as it was written.
fn label(plan: &TypedSimplePlan, outlet: OutletId) -> &str {
    let model = plan.model();
    model.outlet_label(outlet).unwrap_or(&model.node(outlet.node).name)
}

fn kernels(plan: &TypedSimplePlan) -> Vec<String> {
    let mut counts: BTreeMap<String, usize> = BTreeMap::new();
    for node in plan.model().nodes() {
        *counts.entry(node.op().name().into_owned()).or_default() += 1;
    }
    TOLD.iter().filter_map(|name| Some(format!("{} {name}", counts.get(*name)?))).collect()
}
