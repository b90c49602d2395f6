//! How a model encodes the position of a token.

use serde::{Deserialize, Serialize};

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Position {
    /// A learned embedding is added to the token's.
    Learned,
    /// Queries and keys are rotated, rotate-half convention.
    Rotary(Rotary),
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Rotary {
    pub theta: f64,
    /// Frequencies are divided by this (`rope_type` "linear"); 1 without such scaling.
    pub linear_factor: f64,
    pub llama3: Option<Llama3Scaling>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub longrope: Option<LongRope>,
}

impl Rotary {
    /// Frequencies by `theta` alone, unscaled.
    pub fn plain(theta: f64) -> Rotary {
        Rotary { theta, linear_factor: 1.0, llama3: None, longrope: None }
    }
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Llama3Scaling {
    pub factor: f64,
    pub low_freq_factor: f64,
    pub high_freq_factor: f64,
    pub original_max_positions: usize,
}

/// Divisors of the frequencies, one list for short contexts and one for long ones (Ding and others, "LongRoPE", 2024,
/// arXiv:2402.13753).
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct LongRope {
    pub short: Vec<f64>,
    pub long: Vec<f64>,
    /// The longest context that counts as short.
    pub original_max_positions: usize,
    /// Factor of cosines and sines.
    pub scale: f64,
}
