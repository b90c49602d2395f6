//! A decoder loaded by rten from a graph written for it, over the bundle's mapped weights.

use std::sync::Arc;

use bundle::{ModelConfig, Precision, Weights};
use onnx::graph::{
    COS, LAST_POSITIONS, LOGITS, POSITIONS, ROWS, SIN, TOKENS, TOTAL, cache_names, hidden_state,
};
use onnx::{Storage, Written};
use reference_portable::{self as portable, Form};
use rten::{ModelOptions, NodeId, RunOptions, ThreadPool};
use worker::engine::{Bundle, EngineError, Settings};

/// What the graph calls the weights file: rten takes no other ending.
pub(crate) const WEIGHTS: &str = "weights.data";

#[derive(Debug)]
pub(crate) struct Model {
    pub(crate) config: ModelConfig,
    pub(crate) loaded: Loaded,
    pub(crate) nodes: Nodes,
    /// Whether the graph puts out its hidden states.
    pub(crate) hidden_states: bool,
}

/// A graph in rten, and what it computes with.
#[derive(Debug)]
pub(crate) struct Loaded {
    pub(crate) model: rten::Model,
    pool: Arc<ThreadPool>,
    /// Threads of `pool`, as it says.
    pub(crate) threads: usize,
    /// What `model` points into: the last field, for it must be dropped after that.
    _weights: Weights,
}

/// The graph's inputs and outputs, as rten numbers them.
#[derive(Debug)]
pub(crate) struct Nodes {
    pub(crate) tokens: NodeId,
    pub(crate) rows: NodeId,
    pub(crate) last_positions: NodeId,
    pub(crate) total: NodeId,
    pub(crate) positions: Option<NodeId>,
    /// cos and sin.
    pub(crate) rotary: Option<[NodeId; 2]>,
    /// Keys and values of each layer in turn.
    pub(crate) past: Vec<NodeId>,
    /// Logits, then keys and values of each layer in turn, then the hidden states if there are any.
    pub(crate) outputs: Vec<NodeId>,
}

impl Model {
    pub(crate) fn load(bundle: &Bundle, settings: &Settings) -> Result<Model, EngineError> {
        let config = bundle.config().clone();
        let storage = Storage::File(WEIGHTS.into());
        let graph = portable::build(bundle, Form::Contributed, storage, settings.hidden_states)?;
        let loaded = Loaded::new(bundle, &graph, settings)?;
        let nodes = Nodes::find(&loaded, &config, settings.hidden_states)?;
        Ok(Model { config, loaded, nodes, hidden_states: settings.hidden_states })
    }
}

impl Loaded {
    /// `graph`, whose weights are those of `bundle` in the file [`WEIGHTS`].
    pub(crate) fn new(bundle: &Bundle, graph: &Written, settings: &Settings) -> Result<Loaded, EngineError> {
        let pool = ThreadPool::with_num_threads(settings.threads);
        let threads = pool.run(rayon::current_num_threads);
        let weights = bundle.weights(Precision::F32)?;
        std::hint::black_box(weights.touch());
        let model = load_mapped(graph, &weights, settings.jit)?;
        Ok(Loaded { model, pool: Arc::new(pool), threads, _weights: weights })
    }

    pub(crate) fn node(&self, name: &str) -> Result<NodeId, EngineError> {
        self.model.node_id(name).map_err(|error| EngineError::Framework(error.to_string()))
    }

    pub(crate) fn run_options(&self) -> RunOptions {
        RunOptions::default().with_thread_pool(Some(Arc::clone(&self.pool)))
    }
}

/// rten's model over the mapped `weights`, of which it keeps no copy: [`Loaded`] keeps them for as long as this lives.
fn load_mapped(graph: &Written, weights: &Weights, optimise: bool) -> Result<rten::Model, EngineError> {
    // SAFETY: the mapping stays where it is when `Weights` is moved, and `Loaded` drops rten's model first. What rten
    // hands out of a run is its own.
    #[allow(unsafe_code)]
    let mapped: &'static [u8] =
        unsafe { std::slice::from_raw_parts(weights.file().as_ptr(), weights.file().len()) };
    let mut options = ModelOptions::with_all_ops();
    options.enable_optimization(optimise).external_data_static(WEIGHTS, mapped);
    options.load(graph.model.clone()).map_err(|error| EngineError::Framework(error.to_string()))
}

impl Nodes {
    fn find(loaded: &Loaded, config: &ModelConfig, hidden_states: bool) -> Result<Nodes, EngineError> {
        let node = |name: &str| loaded.node(name);
        let learned = config.position_embedding().is_some();
        let rotary = if learned { None } else { Some([node(COS)?, node(SIN)?]) };
        let names: Vec<_> = (0..config.layers.len()).flat_map(cache_names).collect();
        let mut outputs = vec![node(LOGITS)?];
        for names in &names {
            outputs.push(node(&names.present)?);
        }
        for layer in (0..=config.layers.len()).filter(|_| hidden_states) {
            outputs.push(node(&hidden_state(layer))?);
        }
        Ok(Nodes {
            tokens: node(TOKENS)?,
            rows: node(ROWS)?,
            last_positions: node(LAST_POSITIONS)?,
            total: node(TOTAL)?,
            positions: if learned { Some(node(POSITIONS)?) } else { None },
            rotary,
            past: names.iter().map(|names| node(&names.past)).collect::<Result<_, _>>()?,
            outputs,
        })
    }
}
