//! Probes: runs operators of the model in graphs of one node; the results show how the kernels work.
//!
//! A session does not report two properties that matter to a comparison: whether attention writes into the
//! given cache or copies it, and whether a product rounds its activations. Both show in the results for
//! suitable inputs. The graphs add some milliseconds to loading.

use bundle::quantised::{INT4_GROUP, INT4_OFFSET, NF4_BLOCK};
use bundle::{Element, ModelConfig, Precision, Quantised, TensorView};
use engine::EngineError;
use onnx::names::{CacheNames, LAST_POSITIONS, TOTAL, cache_names};
use onnx::{
    Attention, Attribute, DataType, Dim, GraphBuilder, MICROSOFT, Products, Storage, WITH_INT8,
    quantised_product,
};
use ort::memory::Allocator;
use ort::session::Session;
use ort::value::Tensor;

use crate::options::Optimization;
use crate::runtime::{Library, commit, framework, session_builder};

/// Whether GroupQueryAttention writes into the cache in place if past and present are one tensor.
pub(crate) fn cache_is_shared(
    library: &Library,
    config: &ModelConfig,
    attention: Attention,
) -> Result<bool, EngineError> {
    keeps_free_rows(library, config, attention, true).map_err(framework)
}

/// Whether the free rows of the present cache keep their contents, with past and present bound to
/// `one_tensor` or to two. If the operator copies the past, it fills the free rows with zeros.
pub(crate) fn keeps_free_rows(
    library: &Library,
    config: &ModelConfig,
    attention: Attention,
    one_tensor: bool,
) -> ort::Result<bool> {
    const CAPACITY: usize = 4;
    let (head, mark) = (attention.cached_head_dim, 1.0);
    let (query, key) = (config.heads * head, config.kv_heads * head);
    let mut graph = GraphBuilder::new("attention", Storage::Memory(Vec::new()));
    let widths = [("query", query), ("key", key), ("value", key)];
    for (name, width) in widths {
        graph.input(name, DataType::Float, &[Dim::Fixed(1), Dim::Fixed(1), Dim::Fixed(width)]);
    }
    graph.input(LAST_POSITIONS, DataType::Int32, &[Dim::Fixed(1)]);
    graph.input(TOTAL, DataType::Int32, &[]);
    let dims = [1, config.kv_heads, CAPACITY, head];
    let names = cache_names(0);
    for CacheNames { past, present } in &names {
        graph.input(past, DataType::Float, &dims.map(Dim::Fixed));
        graph.output(present, DataType::Float, &dims.map(Dim::Fixed));
    }
    graph.output("attended", DataType::Float, &[Dim::Fixed(1), Dim::Fixed(1), Dim::Fixed(query)]);
    let [keys, values] = &names;
    let inputs = ["query", "key", "value", &keys.past, &values.past, LAST_POSITIONS, TOTAL];
    let outputs = ["attended", keys.present.as_str(), &values.present];
    let attributes = [
        Attribute::Int("num_heads", config.heads as i64),
        Attribute::Int("kv_num_heads", config.kv_heads as i64),
    ];
    graph.node((MICROSOFT, "GroupQueryAttention"), &inputs, &outputs, &attributes);
    let mut session = compile(library, graph)?;

    let allocator = Allocator::default();
    let mut binding = session.create_binding()?;
    for (name, width) in widths {
        binding.bind_input(name, &Tensor::from_array(([1, 1, width], vec![1.0f32; width]))?)?;
    }
    binding.bind_input(LAST_POSITIONS, &Tensor::from_array(([1], vec![0i32]))?)?;
    binding.bind_input(TOTAL, &Tensor::from_array(([0usize; 0], vec![1i32]))?)?;
    let marked = || {
        let mut tensor = Tensor::<f32>::new(&allocator, dims)?;
        tensor.extract_tensor_mut().1.fill(mark);
        Ok::<_, ort::Error>(tensor)
    };
    let mut cache = [marked()?, marked()?];
    for (CacheNames { past, present }, tensor) in names.iter().zip(&mut cache) {
        if one_tensor {
            binding.bind_input(past, tensor)?;
        } else {
            binding.bind_input(past, &marked()?)?;
        }
        binding.bind_output(present, tensor)?;
    }
    binding.bind_output("attended", Tensor::<f32>::new(&allocator, [1, 1, query])?)?;
    session.run_binding(&binding)?;
    Ok(cache.iter().all(|tensor| tensor.extract_tensor().1.iter().all(|&number| number == mark)))
}

/// Precision of the activations in a quantised product of a decode step.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Activations {
    F32,
    Int8,
}

impl Activations {
    pub(crate) fn name(self) -> &'static str {
        match self {
            Activations::F32 => "f32",
            Activations::Int8 => "int8",
        }
    }
}

/// Multiplies a large activation by 0 and a small one by 1. In f32 the sum is the small one. If activations
/// are rounded to steps of 1/127 of the largest, it is 0.
pub(crate) fn activations(library: &Library, products: Products) -> Result<Activations, EngineError> {
    const LARGE: f32 = 1000.0;
    let product = multiply(library, products, [LARGE, 1.0]).map_err(framework)?;
    match product {
        1.0 => Ok(Activations::F32),
        0.0 => Ok(Activations::Int8),
        other => {
            let operator = products.operator();
            Err(EngineError::Framework(format!("{operator} makes {other} of {LARGE} · 0 + 1 · 1")))
        }
    }
}

/// `inputs[0]` · 0 + `inputs[1]` · 1, by the operator of `products`.
fn multiply(library: &Library, products: Products, inputs: [f32; 2]) -> ort::Result<f32> {
    const ROWS: usize = 16;
    const COLUMNS: usize = NF4_BLOCK;
    // Every row is 0, 1, 0, 0, … with scales of 1.
    let (zero, one) = match products.precision {
        Precision::Int4 => (INT4_OFFSET as u8, INT4_OFFSET as u8 + 1),
        Precision::Nf4 => (7, 15),
        _ => (0, 1),
    };
    let row: Vec<u8> = (0..COLUMNS).map(|column| if column == 1 { one } else { zero }).collect();
    let pair = |pair: &[u8]| match products.precision {
        Precision::Int4 => vec![pair[0] | pair[1] << 4],
        Precision::Nf4 => vec![pair[0] << 4 | pair[1]],
        _ => pair.to_vec(),
    };
    let codes: Vec<u8> = row.chunks_exact(2).flat_map(pair).collect::<Vec<_>>().repeat(ROWS);
    let blocks = match products.precision {
        Precision::Int4 => COLUMNS / INT4_GROUP,
        _ => 1,
    };
    let scales = 1.0f32.to_le_bytes().repeat(ROWS * blocks);
    let view = |shape, element, bytes| TensorView { shape, element, bytes, file_offset: 0 };
    let weight = Quantised {
        precision: products.precision,
        rows: ROWS,
        columns: COLUMNS,
        codes: view(vec![ROWS, codes.len() / ROWS], Element::U8, &codes),
        scales: view(vec![ROWS, blocks], Element::F32, &scales),
    };
    let mut graph = GraphBuilder::new("product", Storage::Memory(Vec::new()));
    graph.input("in", DataType::Float, &[Dim::Fixed(1), Dim::Fixed(COLUMNS)]);
    graph.output("out", DataType::Float, &[Dim::Fixed(1), Dim::Fixed(ROWS)]);
    quantised_product(&mut graph, products, WITH_INT8, ("in", ("weight", &weight), "out"));
    let mut session = compile(library, graph)?;
    let mut row = vec![0.0f32; COLUMNS];
    row[..2].copy_from_slice(&inputs);
    let outputs = session.run(ort::inputs!["in" => Tensor::from_array(([1, COLUMNS], row))?])?;
    Ok(outputs["out"].try_extract_tensor::<f32>()?.1[0])
}

fn compile(library: &Library, graph: GraphBuilder) -> ort::Result<Session> {
    commit(session_builder(library, Optimization::Basic)?.with_intra_threads(1)?, graph.finish())
}
