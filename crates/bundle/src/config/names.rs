//! Names of a model's tensors by their role, as in transformers 5, and their order in a bundle.

use serde::Serialize;

use super::form::{NormPlacement, Scored};
use super::model::{Architecture, ModelConfig};

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

#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct HeadNames {
    /// Before the scores.
    pub dense: Option<LinearNames>,
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

/// The names of an architecture.
pub(super) struct Parts {
    /// Prefix of the names below where the model has a head.
    pub(super) body: &'static str,
    pub(super) embedding: &'static str,
    pub(super) positions: &'static str,
    pub(super) embedding_norm: &'static str,
    pub(super) final_norm: &'static str,
    /// Before the number of a layer, and behind it its parts.
    pub(super) layers: &'static str,
    pub(super) qkv: &'static [&'static str],
    pub(super) output: &'static str,
    pub(super) gate_up: &'static [&'static str],
    pub(super) down: &'static str,
    /// The norms before attention and before the MLP.
    pub(super) before: [&'static str; 2],
    /// The norms after them.
    pub(super) behind: [&'static str; 2],
    /// The layers of a head that scores texts.
    pub(super) head: [&'static str; 2],
    /// The one that scores tokens.
    pub(super) of_tokens: &'static str,
}

pub(super) const LLAMA: Parts = Parts {
    body: "",
    embedding: "model.embed_tokens",
    positions: "",
    embedding_norm: "",
    final_norm: "model.norm",
    layers: "model.layers",
    qkv: &["self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj"],
    output: "self_attn.o_proj",
    gate_up: &["mlp.gate_proj", "mlp.up_proj"],
    down: "mlp.down_proj",
    before: ["input_layernorm", "post_attention_layernorm"],
    // With norms after blocks, one has the name that is otherwise that of the norm before the MLP.
    behind: ["post_attention_layernorm", "post_feedforward_layernorm"],
    head: ["", "score"],
    of_tokens: "score",
};

const GEMMA: Parts = Parts { before: ["input_layernorm", "pre_feedforward_layernorm"], ..LLAMA };

const PHI3: Parts = Parts { qkv: &["self_attn.qkv_proj"], gate_up: &["mlp.gate_up_proj"], ..LLAMA };

const GPT2: Parts = Parts {
    embedding: "transformer.wte",
    positions: "transformer.wpe",
    final_norm: "transformer.ln_f",
    layers: "transformer.h",
    qkv: &["attn.c_attn"],
    output: "attn.c_proj",
    gate_up: &["mlp.c_fc"],
    down: "mlp.c_proj",
    before: ["ln_1", "ln_2"],
    ..LLAMA
};

impl ModelConfig {
    pub(super) fn parts(&self) -> &'static Parts {
        match self.architecture {
            Architecture::Gemma2 | Architecture::Gemma3 => &GEMMA,
            Architecture::Phi3 => &PHI3,
            Architecture::Gpt2 => &GPT2,
            architecture => architecture.encoder_parts().unwrap_or(&LLAMA),
        }
    }

    /// A part of the body.
    pub(super) fn at(&self, part: &str) -> String {
        let prefix = if self.scoring().is_some() { self.parts().body } else { "" };
        format!("{prefix}{part}")
    }

    /// The tensors of a norm with names that begin with `prefix`.
    pub(super) fn norm(&self, prefix: &str) -> NormNames {
        NormNames {
            weight: format!("{prefix}.weight"),
            bias: (!self.rms_norm && !self.form.norm_without_bias).then(|| format!("{prefix}.bias")),
        }
    }

    pub fn embedding(&self) -> String {
        self.at(&format!("{}.weight", self.parts().embedding))
    }

    pub fn position_embedding(&self) -> Option<String> {
        let name = || self.at(&format!("{}.weight", self.parts().positions));
        self.rotations.is_empty().then(name)
    }

    /// The norm after the last layer, if there is one ([`Self::has_final_norm`]).
    pub fn final_norm(&self) -> NormNames {
        self.norm(&self.at(self.parts().final_norm))
    }

    /// The output head's weight, `[vocabulary, hidden]`, of a decoder: the embedding itself if they are tied.
    pub fn lm_head(&self) -> String {
        if self.tied_embeddings { self.embedding() } else { "lm_head.weight".into() }
    }

    pub fn head(&self) -> Option<HeadNames> {
        let (head, parts) = (self.scoring()?, self.parts());
        let [dense, of_texts] = parts.head;
        let scores = if head.of == Scored::Tokens { parts.of_tokens } else { of_texts };
        Some(HeadNames {
            dense: head.dense.map(|layer| linear(&[dense], layer.bias, str::to_owned)),
            norm: head.dense.filter(|layer| layer.norm).map(|_| self.norm("head.norm")),
            scores: linear(&[scores], head.bias, str::to_owned),
        })
    }

    pub fn layer(&self, index: usize) -> LayerNames {
        let parts = self.parts();
        let at = |part: &str| self.at(&format!("{}.{index}.{part}", parts.layers));
        let placement = self.form.norms;
        let has_before = matches!(placement, NormPlacement::Before | NormPlacement::Both);
        let norms =
            |names: [&str; 2], is_there: bool| names.map(|part| is_there.then(|| self.norm(&at(part))));
        let [attention_norm, mlp_norm] = norms(parts.before, has_before);
        let [post_attention_norm, post_mlp_norm] = norms(parts.behind, placement != NormPlacement::Before);
        let mlp = self.mlp(index);
        // With norms before blocks, a norm of the embeddings is the first layer's.
        let has_first = index > 0 || self.embedding_norm().is_none();
        LayerNames {
            attention_norm: attention_norm.filter(|_| has_first),
            qkv: linear(parts.qkv, self.qkv_bias, at),
            q_norm: self.qk_norm.then(|| at("self_attn.q_norm.weight")),
            k_norm: self.qk_norm.then(|| at("self_attn.k_norm.weight")),
            output: linear(&[parts.output], self.output_bias, at),
            post_attention_norm,
            mlp_norm,
            gate_up: linear(parts.gate_up, mlp.bias, at),
            down: linear(&[parts.down], mlp.bias, at),
            post_mlp_norm,
        }
    }

    /// Whether a layer has a gate in one tensor with the other half of its MLP.
    pub(super) fn has_fused_gate(&self, index: usize) -> bool {
        self.mlp(index).gated && self.layer(index).gate_up.weights.len() == 1
    }

    /// Every tensor in a bundle of this model, in file order.
    pub fn tensors(&self) -> Vec<TensorSpec> {
        if self.graph.is_some() {
            return Vec::new();
        }
        let hidden = self.hidden_size;
        let (q_rows, kv_rows) = self.qkv_rows();
        let mut specs = Vec::new();
        let mut add = |name: &str, shape: &[usize]| {
            specs.push(TensorSpec { name: name.to_owned(), shape: shape.to_vec() });
        };
        let linear =
            |add: &mut dyn FnMut(&str, &[usize]), names: &LinearNames, rows: &[usize], columns: usize| {
                for (name, rows) in names.weights.iter().zip(rows) {
                    add(name, &[*rows, columns]);
                }
                for (name, rows) in names.biases.iter().zip(rows) {
                    add(name, &[*rows]);
                }
            };
        let norm = |add: &mut dyn FnMut(&str, &[usize]), names: Option<&NormNames>| {
            if let Some(names) = names {
                add(&names.weight, &[hidden]);
                if let Some(bias) = &names.bias {
                    add(bias, &[hidden]);
                }
            }
        };
        add(&self.embedding(), &[self.vocab_size, hidden]);
        if let Some(name) = self.position_embedding() {
            add(&name, &[self.position_rows(), hidden]);
        }
        if let Some(name) = self.token_type_embedding() {
            add(&name, &[self.token_types(), hidden]);
        }
        norm(&mut add, self.embedding_norm().as_ref());
        if let (Some(name), Some(relative)) = (self.relative_bias(), self.relative_positions()) {
            add(&name, &[relative.buckets, self.heads]);
        }
        for index in 0..self.layers.len() {
            let layer = self.layer(index);
            norm(&mut add, layer.attention_norm.as_ref());
            if layer.qkv.weights.len() == 3 {
                linear(&mut add, &layer.qkv, &[q_rows, kv_rows, kv_rows], hidden);
            } else {
                linear(&mut add, &layer.qkv, &[q_rows + 2 * kv_rows], hidden);
            }
            for (name, rows) in [(&layer.q_norm, q_rows), (&layer.k_norm, kv_rows)] {
                if let Some(name) = name {
                    add(name, &[if self.form.whole_qk_norm { rows } else { self.head_dim }]);
                }
            }
            linear(&mut add, &layer.output, &[hidden], q_rows);
            norm(&mut add, layer.post_attention_norm.as_ref());
            norm(&mut add, layer.mlp_norm.as_ref());
            let mlp = self.mlp(index);
            let rows = if self.has_fused_gate(index) { 2 * mlp.width } else { mlp.width };
            linear(&mut add, &layer.gate_up, &[rows, rows], hidden);
            linear(&mut add, &layer.down, &[hidden], mlp.width);
            norm(&mut add, layer.post_mlp_norm.as_ref());
        }
        if self.has_final_norm() {
            norm(&mut add, Some(&self.final_norm()));
        }
        let labels = self.scoring().map(|head| head.labels);
        if let (Some(head), Some(labels)) = (self.head(), labels) {
            if let Some(dense) = &head.dense {
                linear(&mut add, dense, &[hidden], hidden);
            }
            norm(&mut add, head.norm.as_ref());
            linear(&mut add, &head.scores, &[labels], hidden);
        }
        if !self.tied_embeddings {
            add(&self.lm_head(), &[self.vocab_size, hidden]);
        }
        specs
    }
}

fn linear(parts: &[&str], bias: bool, at: impl Fn(&str) -> String) -> LinearNames {
    let named = |kind: &str| parts.iter().map(|part| at(&format!("{part}.{kind}"))).collect();
    LinearNames { weights: named("weight"), biases: if bias { named("bias") } else { Vec::new() } }
}
