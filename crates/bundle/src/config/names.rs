//! Names, shapes and order of the tensors of a bundle: Hugging Face's names, in an order that lets fused
//! weights be views.

use super::encoder_names;
use super::form::NormPlacement;
use super::model::{Architecture, ModelConfig};
use super::named::{LayerNames, LinearNames, NormNames, TensorSpec};
use super::position::Position;

impl ModelConfig {
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
        if let (Some(name), Some(encoder)) = (self.token_type_embedding(), &self.encoder) {
            add(&name, &[encoder.token_types, hidden]);
        }
        norm(&mut add, self.embedding_norm().as_ref());
        let relative = self.encoder.as_ref().and_then(|encoder| encoder.relative);
        if let (Some(name), Some(relative)) = (self.relative_bias(), relative) {
            add(&name, &[relative.buckets, self.heads]);
        }
        for index in 0..self.layers {
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
            let fused = self.gated_mlp && layer.gate_up.weights.len() == 1;
            let rows = if fused { 2 * self.intermediate_size } else { self.intermediate_size };
            linear(&mut add, &layer.gate_up, &[rows, rows], hidden);
            linear(&mut add, &layer.down, &[hidden], self.intermediate_size);
            norm(&mut add, layer.post_mlp_norm.as_ref());
        }
        if self.encoder.as_ref().is_none_or(|encoder| encoder.final_norm) {
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

    pub fn embedding(&self) -> String {
        match self.architecture {
            Architecture::Gpt2 => "transformer.wte.weight".into(),
            architecture if encoder_names::has(architecture) => self.encoder_embedding(),
            _ => "model.embed_tokens.weight".into(),
        }
    }

    pub fn position_embedding(&self) -> Option<String> {
        let name = || match encoder_names::has(self.architecture) {
            false => "transformer.wpe.weight".to_owned(),
            true => self.encoder_positions(),
        };
        (self.position == Position::Learned).then(name)
    }

    /// The norm after the last layer, of a decoder and of an encoder that has one.
    pub fn final_norm(&self) -> NormNames {
        match self.architecture {
            Architecture::Gpt2 => self.norm("transformer.ln_f"),
            architecture if encoder_names::has(architecture) => self.encoder_final_norm(),
            _ => self.norm("model.norm"),
        }
    }

    /// The output head's weight, `[vocabulary, hidden]`, of a decoder: the embedding itself if they are tied.
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
                attention_norm: Some(self.norm(&at("ln_1"))),
                qkv: linear("attn.c_attn"),
                q_norm: None,
                k_norm: None,
                output: linear("attn.c_proj"),
                post_attention_norm: None,
                mlp_norm: Some(self.norm(&at("ln_2"))),
                gate_up: linear("mlp.c_fc"),
                down: linear("mlp.c_proj"),
                post_mlp_norm: None,
            };
        }
        if let Some(names) = self.encoder_layer(index) {
            return names;
        }
        let at = |part: &str| format!("model.layers.{index}.{part}");
        let linear = |parts: &[&str], bias: bool| {
            let named = |kind: &str| parts.iter().map(|part| at(&format!("{part}.{kind}"))).collect();
            LinearNames { weights: named("weight"), biases: if bias { named("bias") } else { Vec::new() } }
        };
        let fused = self.architecture == Architecture::Phi3;
        let qkv: &[&str] = match fused {
            true => &["self_attn.qkv_proj"],
            false => &["self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj"],
        };
        let gate_up: &[&str] = if fused { &["mlp.gate_up_proj"] } else { &["mlp.gate_proj", "mlp.up_proj"] };
        let placement = self.form.norms;
        let before = |part: &str| (placement != NormPlacement::After).then(|| self.norm(&at(part)));
        let behind = |part: &str| (placement != NormPlacement::Before).then(|| self.norm(&at(part)));
        // If blocks have norms after them, one of those has the name that otherwise belongs to the norm
        // before the MLP.
        let mlp_norm = match placement {
            NormPlacement::Before => "post_attention_layernorm",
            _ => "pre_feedforward_layernorm",
        };
        LayerNames {
            attention_norm: before("input_layernorm"),
            qkv: linear(qkv, self.qkv_bias),
            q_norm: self.qk_norm.then(|| at("self_attn.q_norm.weight")),
            k_norm: self.qk_norm.then(|| at("self_attn.k_norm.weight")),
            output: linear(&["self_attn.o_proj"], self.output_bias),
            post_attention_norm: behind("post_attention_layernorm"),
            mlp_norm: before(mlp_norm),
            gate_up: linear(gate_up, self.mlp_bias),
            down: linear(&["mlp.down_proj"], self.mlp_bias),
            post_mlp_norm: behind("post_feedforward_layernorm"),
        }
    }
}
