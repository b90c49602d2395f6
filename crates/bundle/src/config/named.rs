//! Names of tensors by their role.

use serde::Serialize;

use super::model::ModelConfig;

/// Name and shape of one tensor of a bundle.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TensorSpec {
    pub name: String,
    pub shape: Vec<usize>,
}

/// A linear layer: `weights` are `[out, in]`, to be stacked ([`crate::Weights::stacked`]) into one
/// or used one by one; `biases` are `[out]` each, or empty.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct LinearNames {
    pub weights: Vec<String>,
    pub biases: Vec<String>,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct NormNames {
    pub weight: String,
    pub bias: Option<String>,
}

/// The tensors of an encoder's head.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct HeadNames {
    /// Before the scores.
    pub dense: Option<LinearNames>,
    /// After `dense`.
    pub norm: Option<NormNames>,
    /// `[labels, hidden]`
    pub scores: LinearNames,
}

/// The tensors of one layer, in the order in which they are in the file.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct LayerNames {
    /// Before attention.
    pub attention_norm: Option<NormNames>,
    /// `[q, k, v]`, or one already fused tensor of `[q + k + v, hidden]`.
    pub qkv: LinearNames,
    pub q_norm: Option<String>,
    pub k_norm: Option<String>,
    pub output: LinearNames,
    /// After attention.
    #[serde(rename = "attention_norm_behind", skip_serializing_if = "Option::is_none")]
    pub post_attention_norm: Option<NormNames>,
    /// Before the MLP.
    pub mlp_norm: Option<NormNames>,
    /// `[gate, up]` of a gated MLP, or one already fused tensor of both; otherwise `[up]`.
    pub gate_up: LinearNames,
    pub down: LinearNames,
    /// After the MLP.
    #[serde(rename = "mlp_norm_behind", skip_serializing_if = "Option::is_none")]
    pub post_mlp_norm: Option<NormNames>,
}

impl ModelConfig {
    /// The tensors of a norm with names that begin with `prefix`.
    pub(super) fn norm(&self, prefix: &str) -> NormNames {
        NormNames {
            weight: format!("{prefix}.weight"),
            bias: (!self.rms_norm && !self.form.norm_without_bias).then(|| format!("{prefix}.bias")),
        }
    }
}
