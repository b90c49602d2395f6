//! Names of the graph's inputs and outputs.

use crate::proto::DataType;

/// Token ids `[batch, positions]`.
pub const TOKENS: &str = "tokens";
/// Position of each token `[batch, positions]`, where the graph asks for it: see
/// `Attention::takes_positions`.
pub const POSITIONS: &str = "positions";
/// Which of the appended positions get logits, `[rows]`.
pub const ROWS: &str = "rows";
pub const LOGITS: &str = "logits";

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

/// Tokens in the cache after this append, less one, of each sequence: `[batch]`, int32.
pub const LAST_POSITIONS: &str = "seqlens_k";
/// Tokens in the cache after this append: a scalar, int32.
pub const TOTAL: &str = "total_sequence_length";
/// Rotary tables `[capacity, head_dim / 2]`, where positions are rotary.
pub const COS: &str = "cos";
pub const SIN: &str = "sin";

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
