//! A model whose logits show in what a framework multiplies.
//!
//! It is a llama of one layer that adds nothing and a head that is the identity: a logit is the number that the head's
//! product read, times [`FACTOR`]. It was rounded to bf16, or divided into blocks of 8-bit integers, or nothing happened
//! to it: `comparison::facts::arithmetic` tells. Every weight is the same number in every precision.

use serde_json::{Value, json};

/// Names of the models behind `synthetic:`, with their width: which kernels run, and how many numbers share a scale, can
/// depend on whether a row is a multiple of 256.
pub const WIDTHS: [(&str, usize); 2] = [("arithmetic", 512), ("arithmetic-576", 576)];

/// Numbers of a head.
const HEAD: usize = 64;

pub const VOCABULARY: usize = 512;

/// Columns of the hidden state that logits show. The others are 0: a weight of theirs fixes the scale of each row of
/// 8-bit codes.
pub const SHOWN: usize = 448;

/// What the head multiplies with: a power of two, exact in every precision of [`head`]. Codes of int4 reach further below 0
/// than above, so that it is eight steps of a power of two in that one, too.
pub const FACTOR: f32 = -0.5;

/// As a `config.json` says it.
pub fn config(width: usize) -> Value {
    json!({
        "model_type": "llama", "hidden_act": "silu", "hidden_size": width, "initializer_range": 0.02,
        "intermediate_size": width, "max_position_embeddings": 256, "num_attention_heads": width / HEAD,
        "num_hidden_layers": 1, "num_key_value_heads": width / HEAD, "rms_norm_eps": 1e-6, "rope_theta": 10_000.0,
        "tie_word_embeddings": false, "vocab_size": VOCABULARY,
    })
}

/// The embedding of a token: numbers of seven bits, which bf16 and f16 hold, of sizes that differ from column to column
/// and from one group of 32 columns to the next.
pub fn embedding(token: u32, width: usize) -> Vec<f32> {
    let number = |column: usize| {
        if column >= SHOWN {
            return 0.0;
        }
        let bits = mixed((u64::from(token) << 32) | column as u64);
        let group = mixed((u64::from(token) << 32) | (1 << 31) | (column / 32) as u64) % 4;
        let mantissa = 1.0 + (bits % 64) as f32 / 64.0;
        let sign = if bits & (1 << 20) == 0 { 1.0 } else { -1.0 };
        sign * mantissa * 2.0_f32.powi(-((bits >> 32) as i32 & 3) - group as i32)
    };
    (0..width).map(number).collect()
}

/// A row of the head: what one logit multiplies each column with. The last rows add all columns, which shows in what a
/// framework adds.
pub fn head(row: usize, width: usize) -> Vec<f32> {
    let mut weights = vec![0.0; width];
    match weights[..SHOWN].get_mut(row) {
        Some(own) => *own = FACTOR,
        None => weights[..SHOWN].fill(FACTOR),
    }
    // 127 codes of 2^-7, so that FACTOR is 64 of them.
    weights[width - 1] = 127.0 / 128.0;
    weights
}

/// Bits that look like chance (Steele, Lea and Flood, "Fast Splittable Pseudorandom Number Generators", 2014).
fn mixed(seed: u64) -> u64 {
    let mut bits = seed.wrapping_add(0x9e37_79b9_7f4a_7c15);
    bits = (bits ^ (bits >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    bits = (bits ^ (bits >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    bits ^ (bits >> 31)
}
