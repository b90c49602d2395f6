//! Differences of a model from a plain layer, by name: an engine says which of them it knows, and rejects the
//! rest rather than ignore it.

use super::form::NormPlacement;
use super::model::ModelConfig;

/// Features of some models that llama, qwen3 and gpt2 do not have.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Feature {
    NormsBehind,
    NormOffset,
    WholeNorms,
    AttentionScale,
    AttentionCap,
    Window,
    TwoRotations,
    UnrotatedLayers,
    PartialRotation,
    LongRope,
    EmbeddingMultiplier,
    ResidualMultiplier,
    LogitsMultiplier,
    LogitsCap,
    FusedGateUp,
    RelativePositions,
    Encoder,
}

impl Feature {
    /// The name in a model's description ([`ModelConfig::described`]).
    pub fn name(self) -> &'static str {
        match self {
            Feature::NormsBehind => "norms_behind",
            Feature::NormOffset => "norm_offset",
            Feature::WholeNorms => "whole_norms",
            Feature::AttentionScale => "attention_scale",
            Feature::AttentionCap => "attention_cap",
            Feature::Window => "window",
            Feature::TwoRotations => "two_rotations",
            Feature::UnrotatedLayers => "unrotated_layers",
            Feature::PartialRotation => "partial_rotation",
            Feature::LongRope => "longrope",
            Feature::EmbeddingMultiplier => "embedding_multiplier",
            Feature::ResidualMultiplier => "residual_multiplier",
            Feature::LogitsMultiplier => "logits_multiplier",
            Feature::LogitsCap => "logits_cap",
            Feature::FusedGateUp => "fused_gate_up",
            Feature::RelativePositions => "relative_positions",
            Feature::Encoder => "encoder",
        }
    }

    /// For people, after "the model has".
    pub fn words(self) -> &'static str {
        match self {
            Feature::NormsBehind => "norms behind its blocks",
            Feature::NormOffset => "norms whose weights are stored less 1",
            Feature::WholeNorms => "norms over all heads of queries and keys together",
            Feature::AttentionScale => "a scale of attention other than 1/√head_dim",
            Feature::AttentionCap => "soft-capped attention scores",
            Feature::Window => "a sliding window of attention",
            Feature::TwoRotations => "two rotary bases",
            Feature::UnrotatedLayers => "layers without rotary positions",
            Feature::PartialRotation => "heads of which a part is rotated",
            Feature::LongRope => "LongRoPE scaling of rotary frequencies",
            Feature::EmbeddingMultiplier => "a multiplier of embeddings",
            Feature::ResidualMultiplier => "a multiplier of residuals",
            Feature::LogitsMultiplier => "a multiplier of logits",
            Feature::LogitsCap => "soft-capped logits",
            Feature::FusedGateUp => "the gate and the other half of its MLP in one tensor",
            Feature::RelativePositions => "scores of attention that depend on how far apart tokens are",
            Feature::Encoder => "an encoder's embeddings and norms, and no head over a vocabulary",
        }
    }
}

impl ModelConfig {
    /// The features of this model beyond a plain layer.
    pub fn features(&self) -> Vec<Feature> {
        let form = &self.form;
        let layers = || (0..self.layers).map(|index| self.layer_attention(index));
        let rotates = !self.rotations().is_empty();
        let has = [
            (Feature::NormsBehind, matches!(form.norms, NormPlacement::After | NormPlacement::Both)),
            (Feature::NormOffset, form.norm_offset != 0.0),
            (Feature::WholeNorms, self.qk_norm && form.whole_qk_norm),
            (Feature::AttentionScale, form.attention_scale.is_some()),
            (Feature::AttentionCap, form.attention_cap.is_some()),
            (Feature::Window, layers().any(|layer| layer.window.is_some())),
            (Feature::TwoRotations, self.rotations().len() > 1),
            (Feature::UnrotatedLayers, rotates && layers().any(|layer| layer.rotation.is_none())),
            (Feature::PartialRotation, self.rotary_dim() != self.head_dim),
            (Feature::LongRope, self.rotations().iter().any(|rotary| rotary.longrope.is_some())),
            (Feature::EmbeddingMultiplier, form.embedding_multiplier.is_some()),
            (Feature::ResidualMultiplier, form.residual_multiplier.is_some()),
            (Feature::LogitsMultiplier, form.logits_multiplier.is_some()),
            (Feature::LogitsCap, form.logits_cap.is_some()),
            (Feature::RelativePositions, self.relative_bias().is_some()),
            (Feature::Encoder, self.encoder.is_some()),
            (Feature::FusedGateUp, self.gated_mlp && self.layer(0).gate_up.weights.len() == 1),
        ];
        has.into_iter().filter_map(|(feature, has)| has.then_some(feature)).collect()
    }

    /// The words for those features of the model that are not `known`; `None` if all are.
    pub fn beyond(&self, known: &[Feature]) -> Option<String> {
        let unknown = self.features().into_iter().filter(|feature| !known.contains(feature));
        let words: Vec<&str> = unknown.map(Feature::words).collect();
        (!words.is_empty()).then(|| words.join(", "))
    }
}
