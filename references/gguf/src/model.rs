//! Metadata and tensors of a model of the llama architecture, in the names that llama.cpp knows.

use bundle::{Activation, Architecture, BlockKind, BundleError, Feature, ModelConfig, NormNames, Weights};

use crate::FourBits;
use crate::blocks::{Kind, blocks, widened};
use crate::error::Error;
use crate::file::{Contents, Tensor, Value};

pub(crate) fn contents<'a>(
    weights: &'a Weights,
    config: &ModelConfig,
    four_bits: FourBits,
) -> Result<Contents<'a>, Error> {
    let theta = check(config)?;
    let names = names(config);
    let tensors = names.into_iter().map(|(gguf, ours, heads)| tensor(weights, gguf, ours, heads, four_bits));
    Ok(Contents { metadata: metadata(config, theta), tensors: tensors.collect::<Result<_, _>>()? })
}

/// The base of the rotary frequencies, of a model that GGUF's `llama` describes; what stands in the way of
/// any other.
fn check(config: &ModelConfig) -> Result<f64, Error> {
    let unsupported = |what: &str| {
        Err(Error::Unsupported(format!(
            "{what}: only plain llama models are written as GGUF for the references"
        )))
    };
    if !matches!(config.architecture, Architecture::Llama | Architecture::Mistral) {
        return unsupported(&format!("architecture {:?}", config.architecture));
    }
    // The framework that runs the file keeps within a window.
    if let Some(words) = config.beyond(&[Feature::Window]) {
        return unsupported(&words);
    }
    if config.qkv_bias || config.output_bias || config.mlp(0).bias || config.qk_norm {
        return unsupported("biases, or norms of q and k");
    }
    if config.mlp(0).activation != Activation::Silu || config.head_dim * config.heads != config.hidden_size {
        return unsupported("its activation or head dimension");
    }
    match config.rotations.first() {
        Some(rotary) if rotary.linear_factor == 1.0 && rotary.llama3.is_none() => Ok(rotary.theta),
        _ => unsupported("scaled rotary frequencies"),
    }
}

fn metadata(config: &ModelConfig, theta: f64) -> Vec<(String, Value)> {
    let count = |key: &str, value: usize| (format!("llama.{key}"), Value::U32(value as u32));
    let number = |key: &str, value: f64| (format!("llama.{key}"), Value::F32(value as f32));
    vec![
        ("general.architecture".into(), Value::Text("llama".into())),
        // Workers are fed token ids.
        ("tokenizer.ggml.model".into(), Value::Text("no_vocab".into())),
        count("vocab_size", config.vocab_size),
        count("context_length", config.max_positions),
        count("embedding_length", config.hidden_size),
        count("block_count", config.layers.len()),
        count("feed_forward_length", config.mlp(0).width),
        count("attention.head_count", config.heads),
        count("attention.head_count_kv", config.kv_heads),
        count("rope.dimension_count", config.head_dim),
        number("rope.freq_base", theta),
        number("attention.layer_norm_rms_epsilon", config.norm_epsilon),
    ]
}

/// GGUF's name of each tensor, ours, and the head dimension where rows are to be interleaved.
fn names(config: &ModelConfig) -> Vec<(String, String, Option<usize>)> {
    let mut names = vec![("token_embd.weight".to_owned(), config.embedding(), None)];
    for index in 0..config.layers.len() {
        let layer = config.layer(index);
        let [q, k, v] = <[String; 3]>::try_from(layer.qkv.weights).expect("llama's q, k and v are apart");
        let [gate, up] = <[String; 2]>::try_from(layer.gate_up.weights).expect("llama's block is gated");
        let single = |mut names: Vec<String>| names.remove(0);
        let before = |norm: Option<NormNames>| norm.expect("llama has a norm before each block").weight;
        let parts = [
            ("attn_norm", before(layer.attention_norm), None),
            ("attn_q", q, Some(config.head_dim)),
            ("attn_k", k, Some(config.head_dim)),
            ("attn_v", v, None),
            ("attn_output", single(layer.output.weights), None),
            ("ffn_norm", before(layer.mlp_norm), None),
            ("ffn_gate", gate, None),
            ("ffn_up", up, None),
            ("ffn_down", single(layer.down.weights), None),
        ];
        names.extend(parts.map(|(gguf, ours, heads)| (format!("blk.{index}.{gguf}.weight"), ours, heads)));
    }
    names.push(("output_norm.weight".into(), config.final_norm().weight, None));
    if !config.tied_embeddings {
        names.push(("output.weight".into(), config.lm_head(), None));
    }
    names
}

fn tensor<'a>(
    weights: &'a Weights,
    name: String,
    ours: String,
    head_dim: Option<usize>,
    four_bits: FourBits,
) -> Result<Tensor<'a>, BundleError> {
    if weights.is_quantised(&ours) {
        let weight = weights.quantised(&[ours])?;
        let kind = Kind::for_weight(&weight, four_bits);
        let shape = vec![weight.rows, weight.columns];
        let rows = order(weight.rows, head_dim).map(move |row| blocks(&weight, kind, row));
        return Ok(Tensor { name, shape, kind, rows: Box::new(rows) });
    }
    let view = weights.tensor(&ours)?;
    let shape = view.shape.clone();
    let &[rows, columns] = shape.as_slice() else {
        let rows = Box::new(std::iter::once(Some(widened(&view))));
        return Ok(Tensor { name, shape, kind: Kind::Blocks(BlockKind::F32), rows });
    };
    let width = columns * view.element.bytes();
    let row = move |row: usize| Some(view.bytes[row * width..][..width].to_vec());
    let kind = Kind::from_element(weights.tensor(&ours)?.element);
    Ok(Tensor { name, shape, kind, rows: Box::new(order(rows, head_dim).map(row)) })
}

/// Which of our rows comes at each place. Hugging Face rotates the halves of a head, GGUF neighbours: within a
/// head (2, d/2) becomes (d/2, 2).
fn order(rows: usize, head_dim: Option<usize>) -> Box<dyn Iterator<Item = usize>> {
    match head_dim {
        None => Box::new(0..rows),
        Some(d) => Box::new((0..rows).map(move |row| row - row % d + (row % 2) * (d / 2) + row % d / 2)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn halves_of_a_head_become_neighbours() {
        assert_eq!(order(8, Some(4)).collect::<Vec<_>>(), [0, 2, 1, 3, 4, 6, 5, 7]);
        assert_eq!(order(3, None).collect::<Vec<_>>(), [0, 1, 2]);
    }
}
