//! Names of the graph's inputs and outputs.

use crate::proto::DataType;

/// Token ids `[batch, positions]`.
pub const TOKENS: &str = "tokens";
/// Position of each token `[batch, positions]`, if the graph has this input: see
/// `Attention::takes_positions`.
pub const POSITIONS: &str = "positions";
/// Which of the appended positions get logits, `[rows]`, counted through all sequences.
pub const ROWS: &str = "rows";
pub const LOGITS: &str = "logits";
/// Output of an encoder's head, `[texts, labels]` or `[tokens, labels]`.
pub const SCORES: &str = "scores";

/// Name of the output that holds the residual stream after `layer` layers; the embeddings for 0,
/// after the final norm for the last.
pub fn hidden_state(layer: usize) -> String {
    format!("hidden.{layer}")
}

/// Name of the graph's output that holds [`hidden_state`] in f32.
pub fn hidden_output(layer: usize, float: DataType) -> String {
    match float {
        DataType::Float => hidden_state(layer),
        _ => format!("{}.f32", hidden_state(layer)),
    }
}

/// For each sequence, tokens in the cache after this append, less one: `[batch]`, int32.
pub const LAST_POSITIONS: &str = "seqlens_k";
/// Tokens in the cache after this append: a scalar, int32.
pub const TOTAL: &str = "total_sequence_length";
/// Rotary tables `[capacity, rotated dimensions / 2]`, if positions are rotary: those of the first rotation.
pub const COS: &str = "cos";
pub const SIN: &str = "sin";

/// The tables of each of `bundle::ModelConfig::rotations`.
pub fn rotary_names(rotation: usize) -> [String; 2] {
    [COS, SIN].map(|table| if rotation == 0 { table.to_owned() } else { format!("{table}.{rotation}") })
}

/// One layer's cache: names of the graph's inputs and outputs, `[batch, kv_heads, capacity,
/// cached_head_dim]` each. The same memory is bound to the past and the present of one cache.
pub struct CacheNames {
    pub past: String,
    pub present: String,
}

/// Keys and values of `layer`.
pub fn cache_names(layer: usize) -> [CacheNames; 2] {
    ["key", "value"].map(|part| CacheNames {
        past: format!("past.{layer}.{part}"),
        present: format!("present.{layer}.{part}"),
    })
}

/// The part of the model that a node computes, by its name, in the words of `engine::ProfileEvent`; `None`
/// for a node that a runtime has named itself. A norm is fused with the addition before it.
pub fn part(node: &str) -> Option<String> {
    let mut words = node.split('.');
    let (first, second) = (words.next()?, words.next());
    match (first, second) {
        ("embed", _) | ("hidden", Some("0")) => Some("embedding".into()),
        ("hidden", Some(_)) => Some("final norm".into()),
        ("head", _) | (LOGITS | SCORES, None) => Some("head".into()),
        ("layer", Some(layer)) => {
            let part = match words.next()? {
                "attention_norm" => "attention norm",
                "qkv" | "attended" | "output" => "attention",
                "mlp_norm" => "mlp norm",
                "mlp" | "down" => "mlp",
                _ => return None,
            };
            Some(format!("layer {layer} {part}"))
        }
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_node_is_of_the_part_that_its_name_says() {
        let parts = [
            ("hidden.0", "embedding"),
            ("embed.token", "embedding"),
            ("layer.0.attention_norm", "layer 0 attention norm"),
            ("layer.12.qkv.query.rotated", "layer 12 attention"),
            ("layer.3.attended", "layer 3 attention"),
            ("layer.3.output", "layer 3 attention"),
            ("layer.3.mlp_norm", "layer 3 mlp norm"),
            ("layer.3.mlp.gate_up.biased", "layer 3 mlp"),
            ("layer.3.down", "layer 3 mlp"),
            ("layer.3.output.normed", "layer 3 attention"),
            ("layer.3.down.sum", "layer 3 mlp"),
            ("hidden.30", "final norm"),
            ("head.rows", "head"),
            (LOGITS, "head"),
            (SCORES, "head"),
        ];
        for (node, expected) in parts {
            assert_eq!(part(node).as_deref(), Some(expected), "{node}");
        }
        for node in ["MatMul_token_3", "", "layer", "layer.3.unheard_of"] {
            assert_eq!(part(node), None, "{node}");
        }
    }
}
