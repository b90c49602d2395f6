//! Names, shapes and order of the tensors of a bundle: Hugging Face's names, in an order that lets fused
//! weights be views.

use serde::Serialize;

use super::model::{Architecture, ModelConfig, Position};

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

/// The tensors of one layer, in the order in which they lie in the file.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct LayerNames {
    pub attention_norm: NormNames,
    /// `[q, k, v]`, or one already fused tensor of `[q + k + v, hidden]`.
    pub qkv: LinearNames,
    pub q_norm: Option<String>,
    pub k_norm: Option<String>,
    pub output: LinearNames,
    pub mlp_norm: NormNames,
    /// `[gate, up]` of a gated MLP, or `[up]`.
    pub gate_up: LinearNames,
    pub down: LinearNames,
}

impl ModelConfig {
    /// Every tensor a bundle of this model holds, in file order.
    pub fn tensors(&self) -> Vec<TensorSpec> {
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
        let norm = |add: &mut dyn FnMut(&str, &[usize]), names: &NormNames| {
            add(&names.weight, &[hidden]);
            if let Some(bias) = &names.bias {
                add(bias, &[hidden]);
            }
        };
        add(&self.embedding(), &[self.vocab_size, hidden]);
        if let Some(name) = self.position_embedding() {
            add(&name, &[self.max_positions, hidden]);
        }
        for index in 0..self.layers {
            let layer = self.layer(index);
            norm(&mut add, &layer.attention_norm);
            if layer.qkv.weights.len() == 3 {
                linear(&mut add, &layer.qkv, &[q_rows, kv_rows, kv_rows], hidden);
            } else {
                linear(&mut add, &layer.qkv, &[q_rows + 2 * kv_rows], hidden);
            }
            for name in layer.q_norm.iter().chain(&layer.k_norm) {
                add(name, &[self.head_dim]);
            }
            linear(&mut add, &layer.output, &[hidden], q_rows);
            norm(&mut add, &layer.mlp_norm);
            linear(&mut add, &layer.gate_up, &[self.intermediate_size, self.intermediate_size], hidden);
            linear(&mut add, &layer.down, &[hidden], self.intermediate_size);
        }
        norm(&mut add, &self.final_norm());
        if !self.tied_embeddings {
            add(&self.lm_head(), &[self.vocab_size, hidden]);
        }
        specs
    }

    pub fn embedding(&self) -> String {
        match self.architecture {
            Architecture::Gpt2 => "transformer.wte.weight".into(),
            _ => "model.embed_tokens.weight".into(),
        }
    }

    pub fn position_embedding(&self) -> Option<String> {
        (self.position == Position::Learned).then(|| "transformer.wpe.weight".into())
    }

    pub fn final_norm(&self) -> NormNames {
        match self.architecture {
            Architecture::Gpt2 => self.norm("transformer.ln_f"),
            _ => self.norm("model.norm"),
        }
    }

    /// The output head's weight, `[vocabulary, hidden]`: the embedding itself where they are tied.
    pub fn lm_head(&self) -> String {
        if self.tied_embeddings { self.embedding() } else { "lm_head.weight".into() }
    }

    pub fn layer(&self, index: usize) -> LayerNames {
        if self.architecture == Architecture::Gpt2 {
            let at = |part: &str| format!("transformer.h.{index}.{part}");
            let linear = |part: &str| LinearNames {
                weights: vec![at(&format!("{part}.weight"))],
                biases: vec![at(&format!("{part}.bias"))],
            };
            return LayerNames {
                attention_norm: self.norm(&at("ln_1")),
                qkv: linear("attn.c_attn"),
                q_norm: None,
                k_norm: None,
                output: linear("attn.c_proj"),
                mlp_norm: self.norm(&at("ln_2")),
                gate_up: linear("mlp.c_fc"),
                down: linear("mlp.c_proj"),
            };
        }
        let at = |part: &str| format!("model.layers.{index}.{part}");
        let linear = |parts: &[&str], bias: bool| {
            let named = |kind: &str| parts.iter().map(|part| at(&format!("{part}.{kind}"))).collect();
            LinearNames { weights: named("weight"), biases: if bias { named("bias") } else { Vec::new() } }
        };
        LayerNames {
            attention_norm: self.norm(&at("input_layernorm")),
            qkv: linear(&["self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj"], self.qkv_bias),
            q_norm: self.qk_norm.then(|| at("self_attn.q_norm.weight")),
            k_norm: self.qk_norm.then(|| at("self_attn.k_norm.weight")),
            output: linear(&["self_attn.o_proj"], self.output_bias),
            mlp_norm: self.norm(&at("post_attention_layernorm")),
            gate_up: linear(&["mlp.gate_proj", "mlp.up_proj"], self.mlp_bias),
            down: linear(&["mlp.down_proj"], self.mlp_bias),
        }
    }

    fn norm(&self, prefix: &str) -> NormNames {
        NormNames {
            weight: format!("{prefix}.weight"),
            bias: (!self.rms_norm).then(|| format!("{prefix}.bias")),
        }
    }
}
