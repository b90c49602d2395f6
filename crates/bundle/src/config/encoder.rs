//! Encoders: a vector, or scores, for each text.

use super::fields::Fields;
use super::form::{self, Encoder, Form, NormPlacement, RelativePositions, Scored};
use super::model::{Architecture, HeadNames, LayerNames, LinearNames, ModelConfig, NormNames};
use super::{Activation, Position, Rotary, activation, even_share, rope};
use crate::{BundleError, config};

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

/// The class named by the first of `architectures`. It is compared as a whole: a `LlamaEncoderModel` or a
/// `Qwen3BidirectionalModel` is no body of these architectures.
pub(super) fn class(
    architecture: Architecture,
    model_type: &str,
    fields: &Fields<'_>,
) -> Result<Option<Class>, BundleError> {
    let names = fields.optional_texts("architectures")?.unwrap_or_default();
    let Some(&name) = names.first() else { return Ok(None) };
    let of_family: &[_] = if has(architecture) { &OF_ENCODERS } else { &OF_DECODERS };
    let heads: &[_] = if has(architecture) || can_encode(architecture) { &OF_HEADS } else { &[] };
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
    Err(BundleError::Config(format!(
        "the class {name} (field \"architectures\") is not supported for model_type {model_type:?}; supported are {}",
        supported.join(", ")
    )))
}

/// The description of BERT and related models.
pub(super) fn read(
    architecture: Architecture,
    class: Option<Class>,
    fields: &Fields<'_>,
) -> Result<ModelConfig, BundleError> {
    if fields.flag("is_decoder", false)? {
        return Err(BundleError::Config(
            "is_decoder is true; of this architecture only encoders are supported".into(),
        ));
    }
    // These classes attend both ways, and have no head over the vocabulary here.
    fields.ignore(&["is_causal", "tie_word_embeddings"]);
    let mut config = match architecture {
        Architecture::ModernBert => modernbert(fields)?,
        Architecture::NomicBert => nomic_bert(fields)?,
        _ => bert(architecture, fields)?,
    };
    if let Some(encoder) = &mut config.encoder {
        encoder.head = config::head(architecture, class, fields)?;
        check(encoder, config.vocab_size)?;
    }
    Ok(config)
}

/// A decoder without a head over its vocabulary encodes texts: its last token has seen all of them. So does one that
/// attends both ways. `None` if this one continues texts.
pub(super) fn of_decoder(
    config: &ModelConfig,
    class: Option<Class>,
    fields: &Fields<'_>,
) -> Result<Option<Encoder>, BundleError> {
    let architecture = config.architecture;
    let attends_both_ways = !config.causal && config.mask_token.is_none();
    if !can_encode(architecture) {
        if attends_both_ways {
            let reason = "is_causal is false, which is not supported for this architecture";
            return Err(BundleError::Config(reason.into()));
        }
        return Ok(None);
    }
    let head = config::head(architecture, class, fields)?;
    if head.is_none() && class != Some(Class::Body) && !attends_both_ways {
        return Ok(None);
    }
    Ok(Some(Encoder {
        token_types: 0,
        first_position: 0,
        // Never looked up: padding is after every text.
        pad_token: 0,
        embedding_norm: false,
        final_norm: true,
        relative: None,
        head,
    }))
}

/// A token's id, the largest for one that no vocabulary has.
fn id(token: usize) -> u32 {
    u32::try_from(token).unwrap_or(u32::MAX)
}

/// Rejects absurd table sizes.
pub(super) fn check(encoder: &Encoder, vocabulary: usize) -> Result<(), BundleError> {
    let &Encoder { token_types, pad_token, .. } = encoder;
    if token_types >= 1 << 16 {
        return Err(BundleError::Config(format!("type_vocab_size is {token_types}, which no model has")));
    }
    if pad_token as usize >= vocabulary {
        let reason = format!("pad_token_id {pad_token} is outside the vocabulary of {vocabulary} tokens");
        return Err(BundleError::Config(reason));
    }
    Ok(())
}

/// Layers of the form norm(x + block(x)) over learned positions.
fn bert(architecture: Architecture, fields: &Fields<'_>) -> Result<ModelConfig, BundleError> {
    use Architecture::{DistilBert, Mpnet, Roberta};
    let is_distil = architecture == DistilBert;
    let name = |usual: &'static str, distil: &'static str| if is_distil { distil } else { usual };
    if let Some(given) = fields.optional_text("position_embedding_type")?.filter(|given| *given != "absolute")
    {
        let reason = format!("position_embedding_type is {given:?}; only \"absolute\" is supported");
        return Err(BundleError::Config(reason));
    }
    let hidden_size = fields.count(name("hidden_size", "dim"))?;
    let heads = fields.count(name("num_attention_heads", "n_heads"))?;
    let counts_from_padding = matches!(architecture, Roberta | Mpnet);
    let pad_token = fields.optional_count("pad_token_id")?.unwrap_or(usize::from(counts_from_padding));
    // mpnet has a fixed padding row.
    let padding_row = if architecture == Mpnet { 1 } else { pad_token };
    let first_position = if counts_from_padding { padding_row.saturating_add(1) } else { 0 };
    let table = fields.optional_count("max_position_embeddings")?.unwrap_or(512);
    let token_types = match architecture {
        DistilBert | Mpnet => 0,
        _ => fields.optional_count("type_vocab_size")?.unwrap_or(2),
    };
    let relative = match architecture {
        Mpnet => Some(RelativePositions {
            buckets: buckets(fields.optional_count("relative_attention_num_buckets")?.unwrap_or(32))?,
            distance: RELATIVE_DISTANCE,
        }),
        _ => None,
    };
    let activation_name = fields.optional_text(name("hidden_act", "activation"))?.unwrap_or("gelu");
    let sizes = Sizes {
        hidden_size,
        intermediate_size: fields.count(name("intermediate_size", "hidden_dim"))?,
        layers: fields.count(name("num_hidden_layers", "n_layers"))?,
        heads,
        vocab_size: fields.count("vocab_size")?,
        max_positions: table.saturating_sub(first_position),
        norm_epsilon: fields.epsilon("layer_norm_eps", 1e-12)?,
        activation: activation(activation_name)?,
    };
    let encoder = Encoder {
        token_types,
        first_position,
        pad_token: id(pad_token),
        embedding_norm: true,
        final_norm: false,
        relative,
        head: None,
    };
    let form = Form { norms: NormPlacement::OfSum, ..Form::default() };
    sizes.config(architecture, form, encoder)
}

/// transformers computes with 32 whatever the configuration says.
fn buckets(count: usize) -> Result<usize, BundleError> {
    if count == 32 {
        return Ok(count);
    }
    Err(BundleError::Config(format!("relative_attention_num_buckets is {count}; only 32 is supported")))
}

/// ModernBERT (Warner and others 2024): norms before blocks, gated MLPs, rotations; two layers of three see
/// only nearby tokens.
fn modernbert(fields: &Fields<'_>) -> Result<ModelConfig, BundleError> {
    let activation_name = fields.optional_text("hidden_activation")?.unwrap_or("gelu");
    let hidden_size = fields.count("hidden_size")?;
    let sizes = Sizes {
        hidden_size,
        intermediate_size: fields.count("intermediate_size")?,
        layers: fields.count("num_hidden_layers")?,
        heads: fields.count("num_attention_heads")?,
        vocab_size: fields.count("vocab_size")?,
        max_positions: fields.optional_count("max_position_embeddings")?.unwrap_or(8192),
        norm_epsilon: fields.epsilon("norm_eps", 1e-5)?,
        activation: activation(activation_name)?,
    };
    let encoder = Encoder {
        token_types: 0,
        first_position: 0,
        pad_token: id(fields.optional_count("pad_token_id")?.unwrap_or(0)),
        embedding_norm: true,
        final_norm: true,
        relative: None,
        head: None,
    };
    fields.ignore(&["layer_norm_eps"]);
    let form = Form { norm_without_bias: !fields.flag("norm_bias", false)?, ..Form::default() };
    let mut config = sizes.config(Architecture::ModernBert, form, encoder)?;
    config.gated_mlp = true;
    config.qkv_bias = fields.flag("attention_bias", false)?;
    config.output_bias = config.qkv_bias;
    config.mlp_bias = fields.flag("mlp_bias", false)?;
    config.check()?;
    let listed = form::layer_types(&config, fields)?;
    let interval = fields.optional_count("global_attn_every_n_layers")?.unwrap_or(3).max(1);
    let sliding = listed.unwrap_or_else(|| {
        (0..config.layers).map(|layer| !layer.is_multiple_of(interval)).collect::<Vec<_>>()
    });
    // A token sees half of `local_attention` on each side, and itself.
    let half = fields.optional_count("local_attention")?.unwrap_or(128) / 2;
    let (main, own) = rope::modernbert(fields, (config.head_dim, config.max_positions))?;
    if sliding.contains(&true) {
        config.form.window = Some((half + 1).min(config.max_positions));
        config.form.sliding_rotary = (own != main).then_some(own);
        config.form.sliding = if sliding.contains(&false) { sliding } else { Vec::new() };
    }
    config.position = Position::Rotary(main);
    Ok(config)
}

/// Nomic's BERT (Nussbaum and others 2024): BERT's layers with rotations and gated MLPs, and no biases but
/// the norms'. Fields without a name in transformers 5 are those of the code published with the model.
fn nomic_bert(fields: &Fields<'_>) -> Result<ModelConfig, BundleError> {
    let refused = [("prenorm", false), ("use_rms_norm", false), ("parallel_block", false), ("causal", false)]
        .into_iter()
        .chain([("rotary_emb_interleaved", false), ("qkv_proj_bias", false)])
        .chain([("mlp_fc1_bias", false), ("mlp_fc2_bias", false)]);
    for (name, usual) in refused {
        if fields.flag(name, usual)? != usual {
            return Err(BundleError::Config(format!("{name} is {}, which is not supported", !usual)));
        }
    }
    for (name, usual) in [("rotary_emb_fraction", 1.0), ("num_experts", 0.0)] {
        let given = fields.number(name, usual)?;
        if given != usual {
            return Err(BundleError::Config(format!("{name} is {given}; only {usual} is supported")));
        }
    }
    // The positions of the code published with the model: `prepare` has put the smaller number into
    // max_position_embeddings, within which no frequency is scaled.
    fields.ignore(&["n_positions", "max_trained_positions", "rotary_scaling_factor"]);
    if let Some(other) = fields.optional_text("activation_function")? {
        let reason = format!("activation_function is {other:?}; supported are swiglu and geglu");
        return Err(BundleError::Config(reason));
    }
    let activation_name = fields.optional_text("hidden_act")?.unwrap_or("silu");
    let sizes = Sizes {
        hidden_size: fields.count("hidden_size")?,
        intermediate_size: fields.count("intermediate_size")?,
        layers: fields.count("num_hidden_layers")?,
        heads: fields.count("num_attention_heads")?,
        vocab_size: fields.count("vocab_size")?,
        max_positions: fields.optional_count("max_position_embeddings")?.unwrap_or(2048),
        norm_epsilon: fields.epsilon("layer_norm_eps", 1e-12)?,
        activation: activation(activation_name)?,
    };
    let encoder = Encoder {
        token_types: fields.optional_count("type_vocab_size")?.unwrap_or(2),
        first_position: 0,
        pad_token: id(fields.optional_count("pad_token_id")?.unwrap_or(0)),
        embedding_norm: true,
        final_norm: false,
        relative: None,
        head: None,
    };
    let form = Form { norms: NormPlacement::OfSum, ..Form::default() };
    let mut config = sizes.config(Architecture::NomicBert, form, encoder)?;
    config.gated_mlp = true;
    (config.qkv_bias, config.output_bias, config.mlp_bias) = (false, false, false);
    if let Some(dim) = fields.optional_count("head_dim")? {
        config.head_dim = dim;
    }
    config.check()?;
    config.position = Position::Rotary(rope::plain(
        config.architecture,
        fields,
        1000.0,
        (config.head_dim, config.max_positions),
    )?);
    Ok(config)
}

/// The sizes of every encoder, whatever their names.
struct Sizes {
    hidden_size: usize,
    intermediate_size: usize,
    layers: usize,
    heads: usize,
    vocab_size: usize,
    max_positions: usize,
    norm_epsilon: f64,
    activation: Activation,
}

impl Sizes {
    /// BERT's description, except for the given parts.
    fn config(
        self,
        architecture: Architecture,
        form: Form,
        encoder: Encoder,
    ) -> Result<ModelConfig, BundleError> {
        use Architecture::{ModernBert, NomicBert};
        let is_rotated = matches!(architecture, ModernBert | NomicBert);
        Ok(ModelConfig {
            architecture,
            hidden_size: self.hidden_size,
            intermediate_size: self.intermediate_size,
            layers: self.layers,
            heads: self.heads,
            kv_heads: self.heads,
            head_dim: even_share(self.hidden_size, self.heads)?,
            vocab_size: self.vocab_size,
            max_positions: self.max_positions,
            norm_epsilon: self.norm_epsilon,
            activation: self.activation,
            position: if is_rotated { Position::Rotary(Rotary::plain(10_000.0)) } else { Position::Learned },
            qkv_bias: true,
            output_bias: true,
            mlp_bias: true,
            // There is no head over the vocabulary.
            tied_embeddings: true,
            form,
            encoder: Some(encoder),
            ..ModelConfig::default()
        })
    }
}

// Names of an encoder's tensors, as in transformers 5. With a head, those of the body have the body's name
// as a prefix.

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
