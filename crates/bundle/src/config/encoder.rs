//! Encoders: a vector, or scores, for each text.

use protocol::EncodeTask;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use super::fields::Fields;
use super::form::{self, Dense, Form, Head, HeadActivation, NormPlacement, RelativePositions, Scored};
use super::model::{Architecture, ModelConfig};
use super::names::{LLAMA, NormNames, Parts};
use super::{Activation, Mlp, activation, even_share, read, refused, rope};
use crate::{BundleError, Pooling};

/// Parts that an encoder has and a decoder does not.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Encoder {
    /// Rows of the table of token types, which is added to the embeddings; 0 without one.
    pub token_types: usize,
    /// Row of the first token of a text in the table of positions.
    pub first_position: usize,
    /// The token that pads texts to the length of the longest.
    pub pad_token: u32,
    /// Whether the sum of the embeddings is normed.
    pub embedding_norm: bool,
    /// Whether the vectors after the last layer are normed.
    pub final_norm: bool,
    /// Bias added to scores of attention by the distance of two tokens.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub relative: Option<RelativePositions>,
    /// Turns the vectors of tokens into scores.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub head: Option<Head>,
}

/// Distances between MPNet's tokens up to this have a bucket of their own or share one; larger ones share the
/// last.
const RELATIVE_DISTANCE: usize = 128;

/// What a model's class computes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Class {
    /// The vectors of tokens. Also a head that no text vector goes through, such as that of a …ForMaskedLM.
    Body,
    Continues,
    ScoresTexts,
    ScoresTokens,
}

/// Ends of names of classes. The rest of a name is the architecture's own.
const OF_BODIES: [(&str, Class); 1] = [("Model", Class::Body)];
const OF_DECODERS: [(&str, Class); 4] = [
    ("ForCausalLM", Class::Continues),
    ("LMHeadModel", Class::Continues),
    ("DoubleHeadsModel", Class::Continues),
    ("ForConditionalGeneration", Class::Continues),
];
const OF_ENCODERS: [(&str, Class); 4] = [
    ("ForMaskedLM", Class::Body),
    ("ForPreTraining", Class::Body),
    ("ForQuestionAnswering", Class::Body),
    ("ForNextSentencePrediction", Class::Body),
];
const OF_HEADS: [(&str, Class); 2] =
    [("ForSequenceClassification", Class::ScoresTexts), ("ForTokenClassification", Class::ScoresTokens)];

/// Classes of other code that compute a BERT's or a RoBERTa's body: facebook/contriever, princeton-nlp's SimCSE.
const BODIES_OF_OTHERS: [(&str, &str); 3] =
    [("bert", "Contriever"), ("bert", "BertForCL"), ("roberta", "RobertaForCL")];

/// Architectures of decoders whose bodies and heads can encode texts.
fn can_encode(architecture: Architecture) -> bool {
    use Architecture::{Llama, Mistral, Qwen2, Qwen3};
    matches!(architecture, Llama | Mistral | Qwen2 | Qwen3)
}

impl Class {
    /// The class named by the first of `architectures`. It is compared as a whole: a `LlamaEncoderModel` or a
    /// `Qwen3BidirectionalModel` is no body of these architectures.
    pub(super) fn read(
        architecture: Architecture,
        model_type: &str,
        fields: &Fields<'_>,
    ) -> Result<Option<Class>, BundleError> {
        let names = fields.optional_texts("architectures")?.unwrap_or_default();
        let Some(&name) = names.first() else { return Ok(None) };
        let of_family: &[_] = if architecture.only_encodes() { &OF_ENCODERS } else { &OF_DECODERS };
        let heads: &[_] =
            if architecture.only_encodes() || can_encode(architecture) { &OF_HEADS } else { &[] };
        let ends = || OF_BODIES.iter().chain(of_family).chain(heads);
        let families = Architecture::classes_of(model_type);
        let known = families.iter().find_map(|family| {
            let end = name.strip_prefix(family)?;
            ends().find(|(known, _)| *known == end).map(|(_, class)| *class)
        });
        // The repository's own code for a body that attends both ways, which is what this field says.
        let both_ways = || {
            let is_body = name.ends_with("Model") && families.iter().any(|family| name.starts_with(family));
            Ok::<_, BundleError>(can_encode(architecture) && is_body && !fields.flag("is_causal", true)?)
        };
        if known.is_some() {
            return Ok(known);
        }
        if BODIES_OF_OTHERS.contains(&(model_type, name)) || both_ways()? {
            return Ok(Some(Class::Body));
        }
        let supported: Vec<String> =
            ends().map(|(end, _)| format!("{}{end}", families.first().unwrap_or(&""))).collect();
        refused(format!(
            "the class {name} (field \"architectures\") is not supported for model_type {model_type:?}; supported \
             are {}",
            supported.join(", ")
        ))
    }
}

impl ModelConfig {
    /// The description of BERT and related models.
    pub(super) fn read_encoder(
        architecture: Architecture,
        class: Option<Class>,
        fields: &Fields<'_>,
    ) -> Result<ModelConfig, BundleError> {
        use Architecture::{DistilBert, ModernBert, Mpnet, NomicBert, Roberta};
        if fields.flag("is_decoder", false)? {
            return refused("is_decoder is true; of this architecture only encoders are supported");
        }
        // These classes attend both ways, and have no head over the vocabulary here.
        fields.ignore(&["is_causal", "tie_word_embeddings"]);
        match architecture {
            ModernBert => {}
            NomicBert => check_nomic_bert(fields)?,
            _ => match fields.optional_text("position_embedding_type")? {
                None | Some("absolute") => {}
                Some(other) => {
                    return refused(format!(
                        "position_embedding_type is {other:?}; only \"absolute\" is supported"
                    ));
                }
            },
        }
        let is_rotated = matches!(architecture, ModernBert | NomicBert);
        let [hidden, intermediate, layers, heads] = match architecture {
            DistilBert => ["dim", "hidden_dim", "n_layers", "n_heads"],
            _ => ["hidden_size", "intermediate_size", "num_hidden_layers", "num_attention_heads"],
        };
        // The name of each field, and its default.
        let (act, epsilon, positions) = match architecture {
            DistilBert => (("activation", "gelu"), ("layer_norm_eps", 1e-12), 512),
            ModernBert => (("hidden_activation", "gelu"), ("norm_eps", 1e-5), 8192),
            NomicBert => (("hidden_act", "silu"), ("layer_norm_eps", 1e-12), 2048),
            _ => (("hidden_act", "gelu"), ("layer_norm_eps", 1e-12), 512),
        };
        let (hidden_size, heads) = (fields.count(hidden)?, fields.count(heads)?);
        let counts_from_padding = matches!(architecture, Roberta | Mpnet);
        let pad_token = fields.optional_count("pad_token_id")?.unwrap_or(usize::from(counts_from_padding));
        // mpnet has a fixed padding row.
        let padding_row = if architecture == Mpnet { 1 } else { pad_token };
        let first_position = if counts_from_padding { padding_row.saturating_add(1) } else { 0 };
        let table = fields.optional_count("max_position_embeddings")?.unwrap_or(positions);
        let encoder = Encoder {
            token_types: match architecture {
                DistilBert | Mpnet | ModernBert => 0,
                _ => fields.optional_count("type_vocab_size")?.unwrap_or(2),
            },
            first_position,
            // The largest for one that no vocabulary has.
            pad_token: u32::try_from(pad_token).unwrap_or(u32::MAX),
            embedding_norm: true,
            final_norm: architecture == ModernBert,
            relative: if architecture == Mpnet { Some(relative(fields)?) } else { None },
            head: head(architecture, class, fields)?,
        };
        let mut mlp = Mlp {
            width: fields.count(intermediate)?,
            activation: activation(fields.optional_text(act.0)?.unwrap_or(act.1))?,
            gated: is_rotated,
            bias: !is_rotated,
        };
        if architecture == ModernBert {
            mlp.bias = fields.flag("mlp_bias", false)?;
        }
        let mut config = ModelConfig {
            architecture,
            hidden_size,
            layers: read::layers(fields.count(layers)?, is_rotated.then_some(0), mlp)?,
            heads,
            kv_heads: heads,
            head_dim: even_share(hidden_size, heads)?,
            vocab_size: fields.count("vocab_size")?,
            max_positions: table.saturating_sub(first_position),
            norm_epsilon: fields.epsilon(epsilon.0, epsilon.1)?,
            qkv_bias: !is_rotated,
            output_bias: !is_rotated,
            // There is no head over the vocabulary.
            tied_embeddings: true,
            form: Form { norms: NormPlacement::OfSum, ..Form::default() },
            encoder: Some(encoder),
            ..ModelConfig::default()
        };
        match architecture {
            ModernBert => modernbert(&mut config, fields)?,
            NomicBert => nomic_bert(&mut config, fields)?,
            _ => {}
        }
        Ok(config)
    }

    /// A decoder without a head over its vocabulary encodes texts: its last token has seen all of them. So does one
    /// that attends both ways. The others are left as they are.
    pub(super) fn encoding(
        mut self,
        class: Option<Class>,
        fields: &Fields<'_>,
    ) -> Result<ModelConfig, BundleError> {
        let architecture = self.architecture;
        let attends_both_ways = !self.causal && self.mask_token.is_none();
        if !can_encode(architecture) {
            if attends_both_ways {
                return refused("is_causal is false, which is not supported for this architecture");
            }
            return Ok(self);
        }
        let head = head(architecture, class, fields)?;
        if head.is_none() && class != Some(Class::Body) && !attends_both_ways {
            return Ok(self);
        }
        // No padding is looked up: it is after every text.
        self.encoder = Some(Encoder { final_norm: true, head, ..Encoder::default() });
        // There is no head over the vocabulary.
        self.tied_embeddings = true;
        Ok(self)
    }

    /// Rejects absurd sizes of what only an encoder has.
    pub(super) fn check_encoder(&self) -> Result<(), BundleError> {
        let Some(&Encoder { token_types, pad_token, .. }) = self.encoder.as_ref() else { return Ok(()) };
        if token_types >= 1 << 16 {
            return refused(format!("type_vocab_size is {token_types}, which no model has"));
        }
        if pad_token as usize >= self.vocab_size {
            let vocabulary = self.vocab_size;
            return refused(format!(
                "pad_token_id {pad_token} is outside the vocabulary of {vocabulary} tokens"
            ));
        }
        Ok(())
    }
}

/// transformers computes with 32 buckets whatever the configuration says.
fn relative(fields: &Fields<'_>) -> Result<RelativePositions, BundleError> {
    match fields.optional_count("relative_attention_num_buckets")?.unwrap_or(32) {
        32 => Ok(RelativePositions { buckets: 32, distance: RELATIVE_DISTANCE }),
        count => refused(format!("relative_attention_num_buckets is {count}; only 32 is supported")),
    }
}

/// ModernBERT (Warner and others 2024): norms before blocks, gated MLPs, rotations; two layers of three see
/// only nearby tokens.
fn modernbert(config: &mut ModelConfig, fields: &Fields<'_>) -> Result<(), BundleError> {
    fields.ignore(&["layer_norm_eps"]);
    config.form = Form { norm_without_bias: !fields.flag("norm_bias", false)?, ..Form::default() };
    config.qkv_bias = fields.flag("attention_bias", false)?;
    config.output_bias = config.qkv_bias;
    config.check()?;
    let count = config.layers.len();
    let listed = form::layer_types(count, fields)?;
    let interval = fields.optional_count("global_attn_every_n_layers")?.unwrap_or(3).max(1);
    let sliding =
        listed.unwrap_or_else(|| (0..count).map(|layer| !layer.is_multiple_of(interval)).collect::<Vec<_>>());
    // A token sees half of `local_attention` on each side, and itself.
    let half = fields.optional_count("local_attention")?.unwrap_or(128) / 2;
    let (main, own) = rope::modernbert(fields, (config.head_dim, config.max_positions))?;
    config.slide((half + 1).min(config.max_positions), &sliding);
    config.rotations = vec![main];
    form::rotate_sliding(config, own);
    Ok(())
}

/// Refuses what the code published with Nomic's BERT has and transformers 5 has not.
fn check_nomic_bert(fields: &Fields<'_>) -> Result<(), BundleError> {
    for name in "prenorm use_rms_norm parallel_block causal rotary_emb_interleaved qkv_proj_bias mlp_fc1_bias mlp_fc2_bias"
        .split(' ')
    {
        if fields.flag(name, false)? {
            return refused(format!("{name} is true, which is not supported"));
        }
    }
    for (name, usual) in [("rotary_emb_fraction", 1.0), ("num_experts", 0.0)] {
        let given = fields.number(name, usual)?;
        if given != usual {
            return refused(format!("{name} is {given}; only {usual} is supported"));
        }
    }
    // The positions of the code published with the model: `prepare` has put the smaller number into
    // max_position_embeddings, within which no frequency is scaled.
    fields.ignore(&["n_positions", "max_trained_positions", "rotary_scaling_factor"]);
    if let Some(other) = fields.optional_text("activation_function")? {
        return refused(format!("activation_function is {other:?}; supported are swiglu and geglu"));
    }
    Ok(())
}

/// Nomic's BERT (Nussbaum and others 2024): BERT's layers with rotations and gated MLPs, and no biases but
/// the norms'.
fn nomic_bert(config: &mut ModelConfig, fields: &Fields<'_>) -> Result<(), BundleError> {
    if let Some(dim) = fields.optional_count("head_dim")? {
        config.head_dim = dim;
    }
    config.check()?;
    let sizes = (config.head_dim, config.max_positions);
    config.rotations = vec![rope::plain(config.architecture, fields, 1000.0, sizes)?];
    Ok(())
}

impl ModelConfig {
    /// Whether the model turns texts into vectors or scores, and continues none.
    pub fn encodes(&self) -> bool {
        self.encoder.is_some()
    }

    /// Number of types of tokens; 0 for a model without types.
    pub fn token_types(&self) -> usize {
        self.encoder.as_ref().map_or(0, |encoder| encoder.token_types)
    }

    /// The head that turns the vectors of an encoder's tokens into scores, if it has one.
    pub fn scoring(&self) -> Option<&Head> {
        self.encoder.as_ref()?.head.as_ref()
    }

    /// Numbers of an encoder's output for a text of so many tokens.
    pub fn width(&self, task: EncodeTask, tokens: usize) -> usize {
        match task {
            EncodeTask::Embed { pooling: Pooling::Each, .. } => self.hidden_size * tokens,
            EncodeTask::Embed { .. } => self.hidden_size,
            EncodeTask::Score => self.scoring().map_or(0, |head| head.numbers(tokens)),
        }
    }

    pub(super) fn relative_positions(&self) -> Option<RelativePositions> {
        self.encoder.as_ref()?.relative
    }

    /// Rows of the table of positions, with those before the first token's.
    pub(super) fn position_rows(&self) -> usize {
        self.encoder.as_ref().map_or(0, |encoder| encoder.first_position) + self.max_positions
    }

    /// Whether there is a norm after the last layer: in every decoder.
    pub fn has_final_norm(&self) -> bool {
        self.encoder.as_ref().is_none_or(|encoder| encoder.final_norm)
    }
}

// Heads of encoders: scores for a text, or for each of its tokens, instead of a vector.

/// More labels than any model has: the output of a head must not fill memory.
const MOST_LABELS: usize = 1 << 20;

/// The head of the model's class, if it is one.
fn head(
    architecture: Architecture,
    class: Option<Class>,
    fields: &Fields<'_>,
) -> Result<Option<Head>, BundleError> {
    use Architecture::{
        Bert, DistilBert, Llama, Mistral, ModernBert, Mpnet, NomicBert, Qwen2, Qwen3, Roberta,
    };
    if architecture == ModernBert {
        fields.ignore(&["classifier_activation", "classifier_bias", "classifier_pooling"]);
    }
    let of_texts = match class {
        Some(Class::ScoresTexts) => true,
        Some(Class::ScoresTokens) => false,
        _ => return Ok(None),
    };
    let plain = |activation| Some(Dense { activation, bias: true, norm: false });
    let dense = match (architecture, of_texts) {
        (Bert | NomicBert | Roberta | Mpnet, true) => plain(HeadActivation::Tanh),
        (DistilBert, true) => plain(HeadActivation::Of(Activation::Relu)),
        (ModernBert, _) => {
            let name = fields.optional_text("classifier_activation")?.unwrap_or("gelu");
            let activation = HeadActivation::Of(activation(name)?);
            Some(Dense { activation, bias: fields.flag("classifier_bias", false)?, norm: true })
        }
        _ => None,
    };
    let pooling = match architecture {
        Llama | Mistral | Qwen2 | Qwen3 => Pooling::Last,
        ModernBert => match fields.optional_text("classifier_pooling")?.unwrap_or("cls") {
            "cls" => Pooling::Cls,
            "mean" => Pooling::Mean,
            other => {
                return refused(format!("classifier_pooling is {other:?}; supported are cls and mean"));
            }
        },
        _ => Pooling::Cls,
    };
    let labels = labels(fields)?;
    let of = if of_texts { Scored::Texts(pooling) } else { Scored::Tokens };
    Ok(Some(Head { of, labels, dense, bias: !(of_texts && pooling == Pooling::Last) }))
}

/// transformers writes a name for each label, and assumes two labels without names.
fn labels(fields: &Fields<'_>) -> Result<usize, BundleError> {
    let counted = fields.optional_count("num_labels")?;
    let labels = fields.object("id2label")?.map(|names| names.len()).or(counted).unwrap_or(2);
    if (1..=MOST_LABELS).contains(&labels) {
        return Ok(labels);
    }
    refused(format!("its head has {labels} labels, which no model has"))
}

// Names of tensors.

const BERT: Parts = Parts {
    body: "bert.",
    embedding: "embeddings.word_embeddings",
    positions: "embeddings.position_embeddings",
    embedding_norm: "embeddings.LayerNorm",
    final_norm: "final_norm",
    layers: "encoder.layer",
    qkv: &["attention.self.query", "attention.self.key", "attention.self.value"],
    output: "attention.output.dense",
    gate_up: &["intermediate.dense"],
    down: "output.dense",
    before: ["", ""],
    behind: ["attention.output.LayerNorm", "output.LayerNorm"],
    head: ["bert.pooler.dense", "classifier"],
    of_tokens: "classifier",
    ..LLAMA
};

const ROBERTA: Parts = Parts { body: "roberta.", head: ["classifier.dense", "classifier.out_proj"], ..BERT };

const DISTILBERT: Parts = Parts {
    body: "distilbert.",
    layers: "transformer.layer",
    qkv: &["attention.q_lin", "attention.k_lin", "attention.v_lin"],
    output: "attention.out_lin",
    gate_up: &["ffn.lin1"],
    down: "ffn.lin2",
    behind: ["sa_layer_norm", "output_layer_norm"],
    head: ["pre_classifier", "classifier"],
    ..BERT
};

const MPNET: Parts = Parts {
    body: "mpnet.",
    qkv: &["attention.attn.q", "attention.attn.k", "attention.attn.v"],
    output: "attention.attn.o",
    behind: ["attention.LayerNorm", "output.LayerNorm"],
    ..ROBERTA
};

const MODERNBERT: Parts = Parts {
    body: "model.",
    embedding: "embeddings.tok_embeddings",
    embedding_norm: "embeddings.norm",
    layers: "layers",
    qkv: &["attn.Wqkv"],
    output: "attn.Wo",
    gate_up: &["mlp.Wi"],
    down: "mlp.Wo",
    before: ["attn_norm", "mlp_norm"],
    head: ["head.dense", "classifier"],
    ..BERT
};

const NOMICBERT: Parts = Parts {
    body: "nomic_bert.",
    layers: "layers",
    qkv: LLAMA.qkv,
    output: LLAMA.output,
    gate_up: LLAMA.gate_up,
    down: LLAMA.down,
    behind: ["post_attention_layernorm", "post_mlp_layernorm"],
    head: ["nomic_bert.pooler.dense", "classifier"],
    ..BERT
};

impl Architecture {
    /// Whether it has no head over a vocabulary, whatever its class.
    pub(super) fn only_encodes(self) -> bool {
        self.encoder_parts().is_some()
    }

    pub(super) fn encoder_parts(self) -> Option<&'static Parts> {
        match self {
            Architecture::Bert => Some(&BERT),
            Architecture::Roberta => Some(&ROBERTA),
            Architecture::DistilBert => Some(&DISTILBERT),
            Architecture::Mpnet => Some(&MPNET),
            Architecture::ModernBert => Some(&MODERNBERT),
            Architecture::NomicBert => Some(&NOMICBERT),
            _ => None,
        }
    }
}

impl ModelConfig {
    /// The table of token types, if it has one.
    pub fn token_type_embedding(&self) -> Option<String> {
        (self.token_types() > 0).then(|| self.at("embeddings.token_type_embeddings.weight"))
    }

    /// The norm of the embeddings, if it has one.
    pub fn embedding_norm(&self) -> Option<NormNames> {
        let encoder = self.encoder.as_ref().filter(|encoder| encoder.embedding_norm);
        encoder.map(|_| self.norm(&self.at(self.parts().embedding_norm)))
    }

    /// The table of biases added to scores by the distance of two tokens, `[buckets, heads]`, if it has
    /// one.
    pub fn relative_bias(&self) -> Option<String> {
        self.relative_positions().map(|_| self.at("encoder.relative_attention_bias.weight"))
    }
    /// Adds these names to those of all models' tensors.
    pub(crate) fn describe_encoder(&self, tensors: &mut Value) {
        if self.encodes() {
            tensors["encoder"] = json!({
                "token_type_embedding": self.token_type_embedding(),
                "embedding_norm": self.embedding_norm(),
                "relative_bias": self.relative_bias(),
                "head": self.head(),
            });
        }
    }
}
