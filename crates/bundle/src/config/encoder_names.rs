//! Names of an encoder's tensors, as in transformers 5. With a head, those of the body have the body's name
//! as a prefix.

use super::form::{NormPlacement, Scored};
use super::model::{Architecture, ModelConfig};
use super::named::{HeadNames, LayerNames, LinearNames, NormNames};
use super::position::Position;

/// Names of the parts of a layer, and the prefix before the layer's number.
struct Parts {
    layers: &'static str,
    qkv: &'static [&'static str],
    output: &'static str,
    gate_up: &'static [&'static str],
    down: &'static str,
    /// That of attention, and that of the MLP.
    norms: [&'static str; 2],
}

const BERT: Parts = Parts {
    layers: "encoder.layer",
    qkv: &["attention.self.query", "attention.self.key", "attention.self.value"],
    output: "attention.output.dense",
    gate_up: &["intermediate.dense"],
    down: "output.dense",
    norms: ["attention.output.LayerNorm", "output.LayerNorm"],
};
const DISTILBERT: Parts = Parts {
    layers: "transformer.layer",
    qkv: &["attention.q_lin", "attention.k_lin", "attention.v_lin"],
    output: "attention.out_lin",
    gate_up: &["ffn.lin1"],
    down: "ffn.lin2",
    norms: ["sa_layer_norm", "output_layer_norm"],
};
const MPNET: Parts = Parts {
    qkv: &["attention.attn.q", "attention.attn.k", "attention.attn.v"],
    output: "attention.attn.o",
    norms: ["attention.LayerNorm", "output.LayerNorm"],
    ..BERT
};
const MODERNBERT: Parts = Parts {
    layers: "layers",
    qkv: &["attn.Wqkv"],
    output: "attn.Wo",
    gate_up: &["mlp.Wi"],
    down: "mlp.Wo",
    norms: ["attn_norm", "mlp_norm"],
};
const NOMICBERT: Parts = Parts {
    layers: "layers",
    qkv: &["self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj"],
    output: "self_attn.o_proj",
    gate_up: &["mlp.gate_proj", "mlp.up_proj"],
    down: "mlp.down_proj",
    norms: ["post_attention_layernorm", "post_mlp_layernorm"],
};

/// Whether the names of this architecture are those of [`Parts`], and not a decoder's.
pub(super) fn has(architecture: Architecture) -> bool {
    parts(architecture).is_some()
}

fn parts(architecture: Architecture) -> Option<&'static Parts> {
    Some(match architecture {
        Architecture::Bert | Architecture::Roberta => &BERT,
        Architecture::DistilBert => &DISTILBERT,
        Architecture::Mpnet => &MPNET,
        Architecture::ModernBert => &MODERNBERT,
        Architecture::NomicBert => &NOMICBERT,
        _ => return None,
    })
}

impl ModelConfig {
    /// Prefix of the body's names.
    fn body(&self) -> &'static str {
        if self.encoder.as_ref().is_none_or(|encoder| encoder.head.is_none()) {
            return "";
        }
        match self.architecture {
            Architecture::Bert => "bert.",
            Architecture::Roberta => "roberta.",
            Architecture::DistilBert => "distilbert.",
            Architecture::Mpnet => "mpnet.",
            Architecture::NomicBert => "nomic_bert.",
            Architecture::ModernBert => "model.",
            _ => "",
        }
    }

    pub(super) fn encoder_embedding(&self) -> String {
        let part = match self.architecture {
            Architecture::ModernBert => "tok_embeddings",
            _ => "word_embeddings",
        };
        format!("{}embeddings.{part}.weight", self.body())
    }

    pub(super) fn encoder_positions(&self) -> String {
        format!("{}embeddings.position_embeddings.weight", self.body())
    }

    /// The norm of the embeddings, if the encoder has one.
    pub fn embedding_norm(&self) -> Option<NormNames> {
        let part = match self.architecture {
            Architecture::ModernBert => "norm",
            _ => "LayerNorm",
        };
        let prefix = format!("{}embeddings.{part}", self.body());
        self.encoder.as_ref().filter(|encoder| encoder.embedding_norm).map(|_| self.norm(&prefix))
    }

    /// The table of token types, if the encoder has one.
    pub fn token_type_embedding(&self) -> Option<String> {
        let types = self.encoder.as_ref().filter(|encoder| encoder.token_types > 0);
        types.map(|_| format!("{}embeddings.token_type_embeddings.weight", self.body()))
    }

    /// The table of biases added to scores by the distance of two tokens, `[buckets, heads]`, if the encoder
    /// has one.
    pub fn relative_bias(&self) -> Option<String> {
        let relative = self.encoder.as_ref().and_then(|encoder| encoder.relative);
        relative.map(|_| format!("{}encoder.relative_attention_bias.weight", self.body()))
    }

    pub(super) fn encoder_final_norm(&self) -> NormNames {
        self.norm(&format!("{}final_norm", self.body()))
    }

    /// The encoder's head, if it has one.
    pub fn head(&self) -> Option<HeadNames> {
        let head = self.scoring()?;
        let of_texts = matches!(head.of, Scored::Texts(_));
        let [dense, scores] = match (self.architecture, of_texts) {
            (Architecture::Bert, true) => ["bert.pooler.dense", "classifier"],
            (Architecture::NomicBert, true) => ["nomic_bert.pooler.dense", "classifier"],
            (Architecture::Roberta | Architecture::Mpnet, true) => {
                ["classifier.dense", "classifier.out_proj"]
            }
            (Architecture::DistilBert, true) => ["pre_classifier", "classifier"],
            (Architecture::ModernBert, _) => ["head.dense", "classifier"],
            (architecture, _) if has(architecture) => ["", "classifier"],
            _ => ["", "score"],
        };
        let linear = |name: &str, bias: bool| LinearNames {
            weights: vec![format!("{name}.weight")],
            biases: if bias { vec![format!("{name}.bias")] } else { Vec::new() },
        };
        Some(HeadNames {
            dense: head.dense.map(|layer| linear(dense, layer.bias)),
            norm: head.dense.filter(|layer| layer.norm).map(|_| self.norm("head.norm")),
            scores: linear(scores, head.bias),
        })
    }

    /// The tensors of an encoder's layer; `None` if they have a decoder's names.
    pub(super) fn encoder_layer(&self, index: usize) -> Option<LayerNames> {
        let parts = parts(self.architecture)?;
        let at = |part: &str| format!("{}{}.{index}.{part}", self.body(), parts.layers);
        let linear = |names: &[&str], bias: bool| {
            let named = |kind: &str| names.iter().map(|part| at(&format!("{part}.{kind}"))).collect();
            LinearNames { weights: named("weight"), biases: if bias { named("bias") } else { Vec::new() } }
        };
        let [attention, mlp] = parts.norms.map(|part| self.norm(&at(part)));
        let is_before = self.form.norms == NormPlacement::Before;
        // With norms before blocks, the norm of the embeddings is the first layer's.
        let has_first = index > 0 || self.embedding_norm().is_none();
        Some(LayerNames {
            attention_norm: (is_before && has_first).then(|| attention.clone()),
            qkv: linear(parts.qkv, self.qkv_bias),
            q_norm: None,
            k_norm: None,
            output: linear(&[parts.output], self.output_bias),
            post_attention_norm: (!is_before).then_some(attention),
            mlp_norm: is_before.then(|| mlp.clone()),
            gate_up: linear(parts.gate_up, self.mlp_bias),
            down: linear(&[parts.down], self.mlp_bias),
            post_mlp_norm: (!is_before).then_some(mlp),
        })
    }

    /// Rows of the table of positions.
    pub(super) fn position_rows(&self) -> usize {
        let before = self.encoder.as_ref().map_or(0, |encoder| encoder.first_position);
        if self.position == Position::Learned { before + self.max_positions } else { 0 }
    }
}
