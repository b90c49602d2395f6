//! A model's description as plain data, for workers that cannot call this crate.

use std::collections::BTreeMap;

use serde::Serialize;
use serde_json::Value;

use crate::config::{LayerNames, ModelConfig, NormNames, Position};
use crate::rotary;

/// What [`ModelConfig`] and its methods say, resolved: no reader needs to know an architecture.
#[derive(Serialize)]
struct Described<'a> {
    #[serde(flatten)]
    config: &'a ModelConfig,
    /// `[head_dim / 2]`, or none where positions are learned.
    inverse_frequencies: Option<Vec<f32>>,
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
}

impl ModelConfig {
    /// The properties, the names of the tensors and the frequencies of the rotation, as `docs/protocol.md` has them.
    pub fn described(&self) -> Value {
        let inverse_frequencies = match &self.position {
            Position::Learned => None,
            Position::Rotary(rotary) => Some(rotary::inverse_frequencies(rotary, self.rotary_dim())),
        };
        let features = self.features().into_iter().map(|feature| (feature.name(), feature.words())).collect();
        let tensors = Tensors {
            embedding: self.embedding(),
            position_embedding: self.position_embedding(),
            layers: (0..self.layers).map(|index| self.layer(index)).collect(),
            final_norm: self.final_norm(),
            lm_head: self.lm_head(),
        };
        // Strings and numbers alone: there is nothing that JSON cannot hold.
        serde_json::to_value(Described { config: self, inverse_frequencies, features, tensors })
            .unwrap_or_default()
    }
}
