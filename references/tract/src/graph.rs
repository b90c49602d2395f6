//! An ONNX file as it is, in tract.
//!
//! Where tract can work with sizes that the file leaves free, the file is compiled while it is loaded. Where it
//! cannot, it is compiled for the shapes of its inputs in the first run with these: programs set them before they
//! optimise a model.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Instant, SystemTime, UNIX_EPOCH};

use bundle::{Bundle, Dtype, Graph};
use rayon::{ThreadPool, ThreadPoolBuilder};
use tract_linalg::multithread::Executor;
use tract_onnx::prelude::*;
use tract_onnx::tract_core::plan::eval;
use tract_onnx::tract_core::runtime::RunOptions;
use tract_onnx::tract_hir::internal::format_err;
use worker::engine::{
    EngineError, InferenceEngine, Profile, ProfileClock, ProfileEvent, Run, Settings, Tensor, without_panic,
};

use crate::model::framework;

/// Shapes for which a plan is kept.
const PLANS: usize = 64;

pub(crate) struct GraphPlan {
    graph: Graph,
    /// The file as it was read.
    model: InferenceModel,
    /// The plan for all shapes, or the reason why there is none.
    general: Result<Arc<TypedSimplePlan>, String>,
    /// Plans for single shapes of the inputs.
    single: BTreeMap<Vec<Vec<usize>>, Arc<TypedSimplePlan>>,
    pool: ThreadPool,
    pub(crate) threads: usize,
    inputs: TVec<TValue>,
    outputs: TVec<TValue>,
    /// The nodes that were computed since a profile began.
    profile: Option<Vec<ProfileEvent>>,
}

impl std::fmt::Debug for GraphPlan {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("GraphPlan").field("graph", &self.graph).finish_non_exhaustive()
    }
}

impl GraphPlan {
    pub(crate) fn load(
        bundle: &Bundle,
        graph: &Graph,
        settings: &Settings,
    ) -> Result<GraphPlan, EngineError> {
        let pool =
            ThreadPoolBuilder::new().num_threads(settings.threads).thread_name(|n| format!("tract-{n}"));
        let pool = pool.build().map_err(|error| EngineError::Framework(error.to_string()))?;
        let threads = pool.install(rayon::current_num_threads);
        let path = crate::Tract::weights_file(bundle, settings)?;
        let read = || {
            let onnx = tract_onnx::onnx().with_ignore_output_shapes(true).with_ignore_value_info(true);
            let model = onnx.model_for_path(&path)?;
            ordered(model, graph)
        };
        let model: InferenceModel = pool.install(read).map_err(refused)?;
        let general = pool.install(|| compile(model.clone())).map_err(|error| format!("{error:#}"));
        let has_free = graph.inputs.iter().any(|input| input.shape.is_none()) || !graph.free().is_empty();
        if let Err(reason) = &general
            && !has_free
        {
            // No other shape will do better.
            return Err(refused(format_err!("{reason}")));
        }
        Ok(GraphPlan {
            graph: graph.clone(),
            model,
            general,
            single: BTreeMap::new(),
            pool,
            threads,
            inputs: TVec::new(),
            outputs: TVec::new(),
            profile: None,
        })
    }

    pub(crate) fn kernels(&self) -> Vec<String> {
        let plan = match self.general {
            Ok(_) => "compiled while loading",
            Err(_) => "compiled for the shapes of the inputs in the first run with these",
        };
        vec!["the file's operators".into(), plan.into()]
    }

    fn plan(&mut self) -> TractResult<Arc<TypedSimplePlan>> {
        if let Ok(plan) = &self.general {
            return Ok(Arc::clone(plan));
        }
        let shapes: Vec<Vec<usize>> = self.inputs.iter().map(|input| input.shape().to_vec()).collect();
        if let Some(plan) = self.single.get(&shapes) {
            return Ok(Arc::clone(plan));
        }
        let mut model = self.model.clone();
        for (place, input) in self.inputs.iter().enumerate() {
            model.set_input_fact(place, InferenceFact::dt_shape(input.datum_type(), input.shape()))?;
        }
        let plan = self.pool.install(|| compile(model))?;
        if self.single.len() >= PLANS {
            self.single.clear();
        }
        self.single.insert(shapes, Arc::clone(&plan));
        Ok(plan)
    }
}

/// The model with its inputs in the order of the description. Outputs are in the file's.
fn ordered(mut model: InferenceModel, graph: &Graph) -> TractResult<InferenceModel> {
    let inputs: Vec<&str> = graph.inputs.iter().map(|input| input.name.as_str()).collect();
    model.set_input_names(&inputs)?;
    Ok(model)
}

fn compile(model: InferenceModel) -> TractResult<Arc<TypedSimplePlan>> {
    let options = RunOptions { executor: Some(Executor::RayonGlobal), ..RunOptions::default() };
    TypedSimplePlan::new_with_options(model.into_typed()?.into_decluttered()?.into_optimized()?, &options)
}

/// What tract cannot read or compile: its error names the node and its operator.
fn refused(error: TractError) -> EngineError {
    EngineError::Unsupported(format!("tract cannot compile it: {error:#}").replace('\n', " "))
}

impl Run for GraphPlan {
    fn graph(&self) -> &Graph {
        &self.graph
    }

    fn feed(&mut self, inputs: &[Tensor]) -> Result<(), EngineError> {
        let put = |tensor: &Tensor| {
            // SAFETY: the bytes are numbers of that type, as many as the shape has: `from_raw_dt` checks their length.
            #[allow(unsafe_code)]
            let made = unsafe {
                tract_onnx::prelude::Tensor::from_raw_dt(datum(tensor.dtype), &tensor.shape, &tensor.data)
            };
            Ok(made.map_err(framework)?.into_tvalue())
        };
        self.inputs = inputs.iter().map(put).collect::<Result<_, EngineError>>()?;
        Ok(())
    }

    fn run(&mut self) -> Result<(), EngineError> {
        self.outputs.clear();
        without_panic("tract", || {
            let plan = self.plan().map_err(refused)?;
            let inputs = self.inputs.clone();
            let outputs = match &mut self.profile {
                None => self.pool.install(|| plan.run(inputs)),
                Some(events) => self.pool.install(|| profiled(&plan, inputs, events)),
            };
            self.outputs = outputs.map_err(framework)?;
            Ok(())
        })
    }

    fn outputs(&mut self) -> Result<Vec<Tensor>, EngineError> {
        let read = |(output, value): (&bundle::GraphOutput, &TValue)| {
            let wanted = datum(output.dtype);
            // Sizes are numbers of tract's own until somebody wants them as others.
            let cast = value.cast_to_dt(wanted).map_err(framework)?;
            let plain = cast.try_as_plain_ram().map_err(framework)?;
            Ok(Tensor {
                name: output.name.clone(),
                dtype: output.dtype,
                shape: cast.shape().to_vec(),
                data: plain.as_bytes().to_vec(),
            })
        };
        self.graph.outputs.iter().zip(&self.outputs).map(read).collect()
    }
}

/// A run whose nodes are timed, as tract's own command line does it: through the function that evaluates each.
fn profiled(
    plan: &Arc<TypedSimplePlan>,
    inputs: TVec<TValue>,
    events: &mut Vec<ProfileEvent>,
) -> TractResult<TVec<TValue>> {
    let mut state = TypedSimpleState::new(plan)?;
    state.run_plan_with_eval(inputs, |context, own, node, inputs| {
        let (start, clock) = (SystemTime::now(), Instant::now());
        let outputs = eval(context, own, node, inputs);
        let since = start.duration_since(UNIX_EPOCH).unwrap_or_default();
        events.push(ProfileEvent {
            name: node.op().name().as_ref().into(),
            part: None,
            thread: "nodes".into(),
            start_ns: since.as_nanos() as u64,
            duration_ns: clock.elapsed().as_nanos() as u64,
            details: BTreeMap::from([("node".into(), node.name.as_str().into())]),
        });
        outputs
    })
}

impl GraphPlan {
    pub(crate) fn begin_profile(&mut self) {
        self.profile = Some(Vec::new());
    }

    pub(crate) fn end_profile(&mut self) -> Result<Profile, EngineError> {
        let events = self.profile.take();
        let events = events.ok_or_else(|| EngineError::Input("end_profile before begin_profile".into()))?;
        let profiler = "tract's evaluation of each node, timed".to_owned();
        Ok(Profile { profiler, clock: ProfileClock::Realtime, events, notes: Vec::new() })
    }
}

fn datum(dtype: Dtype) -> DatumType {
    match dtype {
        Dtype::Float16 => DatumType::F16,
        Dtype::Float32 => DatumType::F32,
        Dtype::Float64 => DatumType::F64,
        Dtype::Int8 => DatumType::I8,
        Dtype::Int16 => DatumType::I16,
        Dtype::Int32 => DatumType::I32,
        Dtype::Int64 => DatumType::I64,
        Dtype::Uint8 => DatumType::U8,
        Dtype::Uint16 => DatumType::U16,
        Dtype::Uint32 => DatumType::U32,
        Dtype::Uint64 => DatumType::U64,
        Dtype::Bool => DatumType::Bool,
    }
}
