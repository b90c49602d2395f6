//! Metadata and tensors of a model of one of a few architectures, in the names that llama.cpp knows.

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
    let (name, theta) = check(config)?;
    let tensors = names(config, name == "llama").into_iter().map(|(gguf, mut ours, heads)| {
        if let [_] = ours[..] {
            return tensor(weights, gguf, ours.remove(0), heads, four_bits);
        }
        // Those of all experts are one tensor.
        let each = ours.into_iter().map(|ours| tensor(weights, String::new(), ours, None, four_bits));
        let each = each.collect::<Result<Vec<_>, BundleError>>()?;
        let (kind, shape) = (each[0].kind, [&[each.len()], &each[0].shape[..]].concat());
        let rows = Box::new(each.into_iter().flat_map(|expert| expert.rows));
        Ok(Tensor { name: gguf, shape, kind, rows })
    });
    let tensors = tensors.collect::<Result<_, BundleError>>()?;
    Ok(Contents { metadata: metadata(config, name, theta), tensors })
}

/// GGUF's name of the architecture, and the base of the rotary frequencies; why any other is not written.
fn check(config: &ModelConfig) -> Result<(&'static str, f64), Error> {
    let unsupported = |what: &str| {
        Err(Error::Unsupported(format!(
            "{what}: only plain llama, mixtral, qwen2, qwen3 and qwen3_moe are written as GGUF for the references"
        )))
    };
    let name = match config.architecture {
        Architecture::Llama | Architecture::Mistral | Architecture::Mixtral => "llama",
        Architecture::Qwen2 => "qwen2",
        Architecture::Qwen3 => "qwen3",
        Architecture::Qwen3Moe => "qwen3moe",
        other => return unsupported(&format!("architecture {other:?}")),
    };
    // The framework that runs the file keeps within a window.
    if let Some(words) = config.beyond(&[Feature::Window, Feature::Experts]) {
        return unsupported(&words);
    }
    if name == "llama" && (config.qkv_bias || config.head_dim * config.heads != config.hidden_size) {
        return unsupported("biases, or its head dimension");
    }
    if config.output_bias || config.mlp(0).bias || config.mlp(0).activation != Activation::Silu {
        return unsupported("biases, or its activation");
    }
    if name == "qwen3moe" && config.qkv_bias {
        return unsupported("biases");
    }
    // llama.cpp's graph of an architecture has experts in all layers or in none, and takes shares of the chosen ones.
    let experts = (0..config.layers.len()).map(|index| config.experts(index));
    if experts.clone().any(|of_layer| of_layer.is_some_and(|experts| !experts.normalised))
        || experts.clone().any(|of_layer| of_layer != config.experts(0))
    {
        return unsupported("experts in some layers, or with shares of all of them");
    }
    match config.rotations.first() {
        Some(rotary) if rotary.linear_factor == 1.0 && rotary.llama3.is_none() => Ok((name, rotary.theta)),
        _ => unsupported("scaled rotary frequencies"),
    }
}

fn metadata(config: &ModelConfig, name: &str, theta: f64) -> Vec<(String, Value)> {
    let count = |key: &str, value: usize| (format!("{name}.{key}"), Value::U32(value as u32));
    let number = |key: &str, value: f64| (format!("{name}.{key}"), Value::F32(value as f32));
    let mut metadata = vec![
        ("general.architecture".into(), Value::Text(name.into())),
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
    ];
    if name != "llama" {
        metadata.extend(
            ["attention.key_length", "attention.value_length"].map(|key| count(key, config.head_dim)),
        );
    }
    if let Some(experts) = config.experts(0) {
        metadata.extend([
            count("expert_count", experts.count),
            count("expert_used_count", experts.top),
            count("expert_feed_forward_length", experts.each.width),
        ]);
    }
    metadata
}

/// GGUF's name of each tensor, ours, and the head dimension where rows are to be interleaved.
fn names(config: &ModelConfig, interleaves: bool) -> Vec<(String, Vec<String>, Option<usize>)> {
    let heads = Some(config.head_dim).filter(|_| interleaves);
    let mut names = vec![("token_embd.weight".to_owned(), vec![config.embedding()], None)];
    for index in 0..config.layers.len() {
        let layer = config.layer(index);
        let [q, k, v] = <[String; 3]>::try_from(layer.qkv.weights).expect("their q, k and v are apart");
        let before = |norm: Option<NormNames>| vec![norm.expect("they have a norm before each block").weight];
        let mut parts = vec![
            ("attn_norm.weight", before(layer.attention_norm), None),
            ("attn_q.weight", vec![q], heads),
            ("attn_k.weight", vec![k], heads),
            ("attn_v.weight", vec![v], None),
            ("attn_output.weight", layer.output.weights, None),
            ("ffn_norm.weight", before(layer.mlp_norm), None),
        ];
        let biases = ["attn_q.bias", "attn_k.bias", "attn_v.bias"].into_iter().zip(layer.qkv.biases);
        parts.extend(biases.map(|(gguf, ours)| (gguf, vec![ours], None)));
        let norms = [("attn_q_norm.weight", layer.q_norm), ("attn_k_norm.weight", layer.k_norm)];
        parts.extend(norms.into_iter().filter_map(|(gguf, ours)| Some((gguf, vec![ours?], None))));
        match layer.experts {
            None => {
                let [gate, up] =
                    <[String; 2]>::try_from(layer.gate_up.weights).expect("their blocks are gated");
                let mlp = [("ffn_gate.weight", vec![gate]), ("ffn_up.weight", vec![up])];
                parts.extend(mlp.map(|(gguf, ours)| (gguf, ours, None)));
                parts.push(("ffn_down.weight", layer.down.weights, None));
            }
            Some(experts) => {
                let of = |part: usize, place: usize| {
                    experts.each.iter().map(|linears| linears[part].weights[place].clone()).collect()
                };
                let (gate, up, down) = (of(0, 0), of(0, 1), of(1, 0));
                parts.push(("ffn_gate_inp.weight", experts.router.weights.clone(), None));
                let each = [
                    ("ffn_gate_exps.weight", gate),
                    ("ffn_up_exps.weight", up),
                    ("ffn_down_exps.weight", down),
                ];
                parts.extend(each.map(|(gguf, ours)| (gguf, ours, None)));
            }
        }
        names.extend(
            parts.into_iter().map(|(gguf, ours, heads)| (format!("blk.{index}.{gguf}"), ours, heads)),
        );
    }
    names.push(("output_norm.weight".into(), vec![config.final_norm().weight], None));
    if !config.tied_embeddings {
        names.push(("output.weight".into(), vec![config.lm_head()], None));
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
