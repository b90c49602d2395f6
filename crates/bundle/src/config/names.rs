//! Names of a model's tensors by their role, as in transformers 5, and their order in a bundle.

use serde::Serialize;

use super::form::{NormPlacement, Scored};
use super::model::{Architecture, ModelConfig};
use super::{Audio, Experts, Feed, audio};

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
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cross: Option<CrossNames>,
    /// After attention.
    #[serde(rename = "attention_norm_behind", skip_serializing_if = "Option::is_none")]
    pub post_attention_norm: Option<NormNames>,
    /// Before the MLP.
    pub mlp_norm: Option<NormNames>,
    /// `[gate, up]` of a gated MLP, or one already fused tensor of both; otherwise `[up]`. The MLP is the one that all
    /// tokens go through: a layer of experts alone has no tensors here.
    pub gate_up: LinearNames,
    pub down: LinearNames,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub experts: Option<ExpertNames>,
    /// `[heads]`
    #[serde(skip_serializing_if = "Option::is_none")]
    pub sinks: Option<String>,
    /// After the MLP.
    #[serde(rename = "mlp_norm_behind", skip_serializing_if = "Option::is_none")]
    pub post_mlp_norm: Option<NormNames>,
}

/// The tensors of attention to the vectors of audio, between a layer's own attention and its MLP.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct CrossNames {
    /// Before it, of the queries alone.
    pub norm: NormNames,
    pub q: LinearNames,
    /// `[k, v]`, of the vectors of audio.
    pub kv: LinearNames,
    pub output: LinearNames,
}

/// The tensors of a mixture of experts.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct ExpertNames {
    /// `[experts, hidden]`
    pub router: LinearNames,
    /// `[1, hidden]`: how much of the MLP that all tokens go through is added.
    pub shared_gate: Option<LinearNames>,
    /// `gate_up` and `down` of each.
    pub each: Vec<[LinearNames; 2]>,
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
    pub(super) experts: ExpertParts,
}

/// The names of a layer's experts.
pub(super) struct ExpertParts {
    router: &'static str,
    /// Before the number of an expert, and behind it its parts.
    each: &'static str,
    gate_up: [&'static str; 2],
    down: &'static str,
}

/// The names of the MLP beside experts that all tokens go through: of gate and up, of down, and of its own gate.
const SHARED: ([&str; 2], &str, &str) = (
    ["mlp.shared_expert.gate_proj", "mlp.shared_expert.up_proj"],
    "mlp.shared_expert.down_proj",
    "mlp.shared_expert_gate",
);

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
    experts: ExpertParts {
        router: "mlp.gate",
        each: "mlp.experts",
        gate_up: ["gate_proj", "up_proj"],
        down: "down_proj",
    },
};

const GEMMA: Parts = Parts { before: ["input_layernorm", "pre_feedforward_layernorm"], ..LLAMA };

const PHI3: Parts = Parts { qkv: &["self_attn.qkv_proj"], gate_up: &["mlp.gate_up_proj"], ..LLAMA };

const PHI: Parts = Parts {
    output: "self_attn.dense",
    gate_up: &["mlp.fc1"],
    down: "mlp.fc2",
    final_norm: "model.final_layernorm",
    ..ONE_NORM
};

/// Attention and MLP share a norm.
const ONE_NORM: Parts = Parts { before: ["input_layernorm", ""], ..LLAMA };

const GPT_NEOX: Parts = Parts {
    embedding: "gpt_neox.embed_in",
    final_norm: "gpt_neox.final_layer_norm",
    layers: "gpt_neox.layers",
    qkv: &["attention.query_key_value"],
    output: "attention.dense",
    gate_up: &["mlp.dense_h_to_4h"],
    down: "mlp.dense_4h_to_h",
    ..LLAMA
};

const STARCODER2: Parts = Parts { gate_up: &["mlp.c_fc"], down: "mlp.c_proj", ..LLAMA };

const GLM: Parts = Parts { gate_up: PHI3.gate_up, ..LLAMA };

const GLM4: Parts = Parts { behind: ["post_self_attn_layernorm", "post_mlp_layernorm"], ..GLM };

const MIXTRAL: Parts = Parts {
    experts: ExpertParts {
        router: "block_sparse_moe.gate",
        each: "block_sparse_moe.experts",
        gate_up: ["w1", "w3"],
        down: "w2",
    },
    ..LLAMA
};

const GPT_OSS: Parts = Parts { experts: ExpertParts { router: "mlp.router", ..LLAMA.experts }, ..LLAMA };

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
            Architecture::Phi => &PHI,
            Architecture::Cohere => &ONE_NORM,
            Architecture::Stablelm if self.form.parallel => &ONE_NORM,
            Architecture::GptNeox => &GPT_NEOX,
            Architecture::Starcoder2 => &STARCODER2,
            Architecture::Glm => &GLM,
            Architecture::Glm4 => &GLM4,
            Architecture::Mixtral => &MIXTRAL,
            Architecture::GptOss => &GPT_OSS,
            Architecture::Whisper => &audio::DECODER,
            Architecture::WhisperEncoder => &audio::ENCODER,
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

    pub fn lm_head_bias(&self) -> Option<String> {
        self.head_bias.then(|| "lm_head.bias".into())
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
        let norms = |names: [&str; 2], is_there: bool| {
            names.map(|part| (is_there && !part.is_empty()).then(|| self.norm(&at(part))))
        };
        let [attention_norm, mlp_norm] = norms(parts.before, has_before);
        let [post_attention_norm, post_mlp_norm] = norms(parts.behind, placement != NormPlacement::Before);
        let (gate_up, down) = match self.layers[index].feed {
            Feed::Mlp(mlp) => (linear(parts.gate_up, mlp.bias, at), linear(&[parts.down], mlp.bias, at)),
            Feed::Experts(Experts { shared: Some(mlp), .. }) => {
                (linear(&SHARED.0, mlp.bias, at), linear(&[SHARED.1], mlp.bias, at))
            }
            Feed::Experts(_) => (linear(&[], false, at), linear(&[], false, at)),
        };
        // With norms before blocks, a norm of the embeddings is the first layer's.
        let has_first = index > 0 || self.embedding_norm().is_none();
        LayerNames {
            attention_norm: attention_norm.filter(|_| has_first),
            qkv: linear(parts.qkv, self.qkv_bias, at),
            q_norm: self.qk_norm.then(|| at("self_attn.q_norm.weight")),
            k_norm: self.qk_norm.then(|| at("self_attn.k_norm.weight")),
            output: linear(&[parts.output], self.output_bias, at),
            cross: self.audio.map(|_| self.cross(at)),
            post_attention_norm,
            mlp_norm,
            gate_up,
            down,
            experts: self.experts(index).map(|experts| self.expert_names(&experts, at)),
            sinks: self.form.sinks.then(|| at("self_attn.sinks")),
            post_mlp_norm,
        }
    }

    fn expert_names(&self, experts: &Experts, at: impl Fn(&str) -> String) -> ExpertNames {
        let (parts, bias) = (&self.parts().experts, experts.each.bias);
        let of = |expert: usize, names: &[&str]| {
            linear(names, bias, |part| at(&format!("{}.{expert}.{part}", parts.each)))
        };
        ExpertNames {
            router: linear(&[parts.router], experts.router_bias, &at),
            shared_gate: experts.shared.map(|_| linear(&[SHARED.2], false, &at)),
            each: (0..experts.count)
                .map(|expert| [of(expert, &parts.gate_up), of(expert, &[parts.down])])
                .collect(),
        }
    }

    /// Whether a layer has a gate in one tensor with the other half of its MLP.
    pub(super) fn has_fused_gate(&self, index: usize) -> bool {
        matches!(self.layers[index].feed, Feed::Mlp(mlp) if mlp.gated) && self.parts().gate_up.len() == 1
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
        if self.architecture != Architecture::WhisperEncoder {
            add(&self.embedding(), &[self.vocab_size, hidden]);
        }
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
            if let Some(name) = &layer.sinks {
                add(name, &[self.heads]);
            }
            linear(&mut add, &layer.output, &[hidden], q_rows);
            if let Some(cross) = &layer.cross {
                norm(&mut add, Some(&cross.norm));
                linear(&mut add, &cross.q, &[hidden], hidden);
                linear(&mut add, &cross.kv, &[hidden, hidden], hidden);
                linear(&mut add, &cross.output, &[hidden], hidden);
            }
            norm(&mut add, layer.post_attention_norm.as_ref());
            norm(&mut add, layer.mlp_norm.as_ref());
            let mlp = self.mlp(index);
            let rows = if self.has_fused_gate(index) { 2 * mlp.width } else { mlp.width };
            linear(&mut add, &layer.gate_up, &[rows, rows], hidden);
            linear(&mut add, &layer.down, &[hidden], mlp.width);
            if let (Some(names), Some(experts)) = (&layer.experts, self.experts(index)) {
                linear(&mut add, &names.router, &[experts.count], hidden);
                if let Some(gate) = &names.shared_gate {
                    linear(&mut add, gate, &[1], hidden);
                }
                // Those of all experts are adjacent, so that they can be read as one.
                let width = experts.each.width;
                for (part, rows, columns) in [(0, &[width, width][..], hidden), (1, &[hidden], width)] {
                    let each = names.each.iter().map(|expert| &expert[part]);
                    let weights = each.clone().flat_map(|names| names.weights.iter().zip(rows));
                    weights.for_each(|(name, &rows)| add(name, &[rows, columns]));
                    let biases = each.flat_map(|names| names.biases.iter().zip(rows));
                    biases.for_each(|(name, &rows)| add(name, &[rows]));
                }
            }
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
        if let Some(name) = self.lm_head_bias() {
            add(&name, &[self.vocab_size]);
        }
        if let (Some(audio), Some(encoder)) = (self.audio, self.audio_encoder()) {
            for (names, bands) in self.stem().iter().zip([audio.bands, hidden]) {
                add(&names.weights[0], &[hidden, bands, Audio::WIDTH]);
                add(&names.biases[0], &[hidden]);
            }
            specs.extend(encoder.tensors());
        }
        specs
    }
}

pub(super) fn linear(parts: &[&str], bias: bool, at: impl Fn(&str) -> String) -> LinearNames {
    let named = |kind: &str| parts.iter().map(|part| at(&format!("{part}.{kind}"))).collect();
    LinearNames { weights: named("weight"), biases: if bias { named("bias") } else { Vec::new() } }
}
