//! A model's description as plain data, for workers that cannot call this crate.

use std::collections::BTreeMap;

use serde::Serialize;
use serde_json::Value;

use crate::config::{HeadNames, LayerNames, ModelConfig, NormNames};
use crate::rotary;

/// The values of [`ModelConfig`] and its methods, resolved: readers need no knowledge of architectures.
#[derive(Serialize)]
struct Described<'a> {
    #[serde(flatten)]
    config: &'a ModelConfig,
    /// `[head_dim / 2]`, or `null` if positions are learned.
    inverse_frequencies: Option<Vec<f32>>,
    /// The same for sliding layers, if they have a rotation of their own.
    #[serde(skip_serializing_if = "Option::is_none")]
    sliding_inverse_frequencies: Option<Vec<f32>>,
    /// Features beyond a plain layer, by name, in words: a reader must know or reject each.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    features: BTreeMap<&'static str, &'static str>,
    tensors: Tensors,
}

/// Names of tensors by their role.
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

/// Names of tensors that an encoder has and a decoder does not; null if this one has none.
#[derive(Serialize)]
struct EncoderTensors {
    token_type_embedding: Option<String>,
    embedding_norm: Option<NormNames>,
    relative_bias: Option<String>,
    head: Option<HeadNames>,
}

impl ModelConfig {
    /// The properties, the names of the tensors and the frequencies of the rotation, in the form of
    /// `docs/reference/protocol.md`.
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
        // Only strings and numbers: JSON can hold all of it.
        serde_json::to_value(described).unwrap_or_default()
    }
}
