//! A model's description as plain data, for workers that cannot call this crate.

use std::collections::BTreeMap;

use serde::Serialize;
use serde_json::Value;

use crate::config::{HeadNames, LayerNames, ModelConfig, NormNames};
use crate::rotary;

/// What [`ModelConfig`] and its methods say, resolved: no reader needs to know an architecture.
#[derive(Serialize)]
struct Described<'a> {
    #[serde(flatten)]
    config: &'a ModelConfig,
    /// `[head_dim / 2]`, or none where positions are learned.
    inverse_frequencies: Option<Vec<f32>>,
    /// Likewise of sliding layers, where they have a rotation of their own.
    #[serde(skip_serializing_if = "Option::is_none")]
    sliding_inverse_frequencies: Option<Vec<f32>>,
    /// What a plain layer has not, by name, in words: to be known or refused.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    features: BTreeMap<&'static str, &'static str>,
    tensors: Tensors,
}

/// Names of tensors by what they are for.
#[derive(Serialize)]
struct Tensors {
    embedding: String,
    position_embedding: Option<String>,
    layers: Vec<LayerNames>,
    final_norm: NormNames,
    lm_head: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    encoder: Option<EncoderTensors>,
}

/// Names of what an encoder has and a decoder has not; null where this one has none.
#[derive(Serialize)]
struct EncoderTensors {
    token_type_embedding: Option<String>,
    embedding_norm: Option<NormNames>,
    relative_bias: Option<String>,
    head: Option<HeadNames>,
}

impl ModelConfig {
    /// The properties, the names of the tensors and the frequencies of the rotation, as `docs/reference/protocol.md`
    /// has them.
    pub fn described(&self) -> Value {
        let rotations = self.rotations().into_iter();
        let mut frequencies = rotations.map(|rotary| rotary::inverse_frequencies(rotary, self.rotary_dim()));
        let (inverse_frequencies, sliding_inverse_frequencies) = (frequencies.next(), frequencies.next());
        let features = self.features().into_iter().map(|feature| (feature.name(), feature.words())).collect();
        let tensors = Tensors {
            embedding: self.embedding(),
            position_embedding: self.position_embedding(),
            layers: (0..self.layers).map(|index| self.layer(index)).collect(),
            final_norm: self.final_norm(),
            lm_head: self.lm_head(),
            encoder: self.encoder.as_ref().map(|_| EncoderTensors {
                token_type_embedding: self.token_type_embedding(),
                embedding_norm: self.embedding_norm(),
                relative_bias: self.relative_bias(),
                head: self.head(),
            }),
        };
        let described =
            Described { config: self, inverse_frequencies, sliding_inverse_frequencies, features, tensors };
        // Strings and numbers alone: there is nothing that JSON cannot hold.
        serde_json::to_value(described).unwrap_or_default()
    }
}
