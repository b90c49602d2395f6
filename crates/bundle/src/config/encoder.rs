//! Encoders: every position attends to all, and what is wanted is a vector of each text.

use super::fields::Fields;
use super::form::{Encoder, Form, NormPlacement};
use super::model::{Architecture, ModelConfig};
use super::parts::{activation, even_share};
use super::position::Position;
use crate::error::BundleError;

/// The description of BERT and its relatives, of which each layer is norm(x + block(x)).
pub(super) fn read(architecture: Architecture, fields: &Fields<'_>) -> Result<ModelConfig, BundleError> {
    use Architecture::{DistilBert, Roberta};
    let is_distil = architecture == DistilBert;
    let name = |usual: &'static str, distil: &'static str| if is_distil { distil } else { usual };
    if let Some(given) = fields.optional_text("position_embedding_type")?.filter(|given| *given != "absolute")
    {
        let reason = format!("position_embedding_type is {given:?}; only \"absolute\" is supported");
        return Err(BundleError::Config(reason));
    }
    if fields.flag("is_decoder", false)? {
        return Err(BundleError::Config(
            "is_decoder is true; of this architecture only encoders are supported".into(),
        ));
    }
    let hidden_size = fields.count(name("hidden_size", "dim"))?;
    let heads = fields.count(name("num_attention_heads", "n_heads"))?;
    let pad_token =
        fields.optional_count("pad_token_id")?.unwrap_or(if architecture == Roberta { 1 } else { 0 });
    let first_position = if architecture == Roberta { pad_token.saturating_add(1) } else { 0 };
    let table = fields.optional_count("max_position_embeddings")?.unwrap_or(512);
    let token_types = match is_distil {
        true => 0,
        false => fields.optional_count("type_vocab_size")?.unwrap_or(2),
    };
    if token_types >= 1 << 16 {
        let reason = format!("type_vocab_size is {token_types}, which no model has");
        return Err(BundleError::Config(reason));
    }
    let vocab_size = fields.count("vocab_size")?;
    if pad_token >= vocab_size {
        let reason = format!("pad_token_id {pad_token} is outside the vocabulary of {vocab_size} tokens");
        return Err(BundleError::Config(reason));
    }
    let activation_name = fields.optional_text(name("hidden_act", "activation"))?.unwrap_or("gelu");
    Ok(ModelConfig {
        architecture,
        hidden_size,
        intermediate_size: fields.count(name("intermediate_size", "hidden_dim"))?,
        layers: fields.count(name("num_hidden_layers", "n_layers"))?,
        heads,
        kv_heads: heads,
        head_dim: even_share(hidden_size, heads)?,
        vocab_size,
        max_positions: table.saturating_sub(first_position),
        rms_norm: false,
        norm_epsilon: fields.epsilon("layer_norm_eps", 1e-12)?,
        activation: activation(activation_name)?,
        gated_mlp: false,
        position: Position::Learned,
        qkv_bias: true,
        output_bias: true,
        mlp_bias: true,
        qk_norm: false,
        // There is no head over the vocabulary.
        tied_embeddings: true,
        causal: false,
        mask_token: None,
        form: Form { norms: NormPlacement::OfSum, ..Form::default() },
        encoder: Some(Encoder { token_types, first_position, pad_token: pad_token as u32 }),
    })
}
