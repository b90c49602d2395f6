//! Models that hear: an encoder of audio, to whose vectors the layers of a decoder attend. Whisper's (Radford and others,
//! "Robust Speech Recognition via Large-Scale Weak Supervision", 2022, arXiv:2212.04356).

use std::collections::BTreeSet;

use serde::{Deserialize, Serialize};

use super::encoder::Encoder;
use super::fields::Fields;
use super::model::{Architecture, ModelConfig};
use super::names::{CrossNames, LLAMA, LinearNames, Parts, linear};
use super::{Mlp, activation, even_share, read, refused};
use crate::{BundleError, scale_name};

/// The encoder of a model's audio. Two convolutions with a GELU behind each turn frames of a log-mel spectrogram into
/// vectors, the second into half as many; a table of positions is added, and layers attend both ways. The vectors are
/// as wide as the decoder's.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Audio {
    /// Bands of the spectrogram.
    pub bands: usize,
    /// Frames of the spectrogram: audio is cut or padded to them.
    pub frames: usize,
    pub layers: usize,
    pub heads: usize,
    pub mlp: Mlp,
}

impl Audio {
    /// Frames that a convolution sees.
    pub const WIDTH: usize = 3;

    /// Samples of a second of audio, of a frame's window, and from one frame to the next.
    pub const RATE: usize = 16_000;
    pub const WINDOW: usize = 400;
    pub const HOP: usize = 160;

    /// Vectors that a decoder attends to.
    pub fn positions(&self) -> usize {
        self.frames / 2
    }

    /// Numbers of the spectrogram, `[bands, frames]`.
    pub fn numbers(&self) -> usize {
        self.bands * self.frames
    }
}

pub(super) const DECODER: Parts = Parts {
    embedding: "model.decoder.embed_tokens",
    positions: "model.decoder.embed_positions",
    final_norm: "model.decoder.layer_norm",
    layers: "model.decoder.layers",
    ..ENCODER
};

pub(super) const ENCODER: Parts = Parts {
    positions: "model.encoder.embed_positions",
    final_norm: "model.encoder.layer_norm",
    layers: "model.encoder.layers",
    output: "self_attn.out_proj",
    gate_up: &["fc1"],
    down: "fc2",
    before: ["self_attn_layer_norm", "final_layer_norm"],
    ..LLAMA
};

pub(super) fn whisper(fields: &Fields<'_>) -> Result<ModelConfig, BundleError> {
    // The fields below describe the encoder; lists of tokens are for a sampler.
    fields.ignore(&[
        "is_encoder_decoder",
        "num_hidden_layers",
        "forced_decoder_ids",
        "activation_dropout",
        "encoder_layerdrop",
        "decoder_layerdrop",
        "init_std",
        "apply_spec_augment",
        "mask_time_prob",
        "mask_time_length",
        "mask_time_min_masks",
        "mask_feature_prob",
        "mask_feature_length",
        "mask_feature_min_masks",
        "median_filter_width",
        "classifier_proj_size",
        "use_weighted_layer_sum",
        "suppress_ids",
        "suppress_ids_begin",
        "alignment_heads",
        "lang_ids",
    ]);
    if fields.flag("scale_embedding", false)? {
        return refused("scale_embedding is true, which is not supported");
    }
    let hidden_size = fields.count("d_model")?;
    let count =
        |name: &str, usual: usize| Ok::<_, BundleError>(fields.optional_count(name)?.unwrap_or(usual));
    let activation = activation(fields.optional_text("activation_function")?.unwrap_or("gelu"))?;
    let mlp = |width| Mlp { width, activation, gated: false, bias: true };
    let heads = fields.count("decoder_attention_heads")?;
    let positions = count("max_source_positions", 1500)?;
    Ok(ModelConfig {
        architecture: Architecture::Whisper,
        hidden_size,
        layers: read::layers(fields.count("decoder_layers")?, None, mlp(fields.count("decoder_ffn_dim")?))?,
        heads,
        kv_heads: heads,
        head_dim: even_share(hidden_size, heads)?,
        vocab_size: fields.count("vocab_size")?,
        max_positions: count("max_target_positions", 448)?,
        norm_epsilon: 1e-5,
        // That of the keys is 0.
        qkv_bias: true,
        output_bias: true,
        tied_embeddings: fields.flag("tie_word_embeddings", true)?,
        causal: true,
        audio: Some(Audio {
            bands: count("num_mel_bins", 80)?,
            frames: positions.saturating_mul(2),
            layers: fields.count("encoder_layers")?,
            heads: fields.count("encoder_attention_heads")?,
            mlp: mlp(fields.count("encoder_ffn_dim")?),
        }),
        ..ModelConfig::default()
    })
}

impl ModelConfig {
    /// The encoder of audio as a description of its own. Its layers are an encoder's, its input is that of
    /// [`ModelConfig::stem`], to which its positions are added.
    pub fn audio_encoder(&self) -> Option<ModelConfig> {
        let audio = self.audio?;
        Some(ModelConfig {
            architecture: Architecture::WhisperEncoder,
            layers: read::layers(audio.layers, None, audio.mlp).ok()?,
            heads: audio.heads,
            kv_heads: audio.heads,
            head_dim: self.hidden_size.checked_div(audio.heads)?,
            max_positions: audio.positions(),
            tied_embeddings: true,
            causal: false,
            encoder: Some(Encoder { final_norm: true, ..Encoder::default() }),
            audio: None,
            ..self.clone()
        })
    }

    /// The two convolutions before the layers of [`ModelConfig::audio_encoder`]: weights `[hidden, bands,
    /// Audio::WIDTH]`, then `[hidden, hidden, Audio::WIDTH]`, padded by a frame on both sides; the second takes every
    /// other frame. Behind each is a GELU by the error function.
    pub fn stem(&self) -> [LinearNames; 2] {
        ["conv1", "conv2"].map(|part| linear(&[part], true, |part| format!("model.encoder.{part}")))
    }

    /// Tensors, and their scales, that are read for a request's audio and for no token.
    pub fn read_once(&self) -> BTreeSet<String> {
        let Some(encoder) = self.audio_encoder() else { return BTreeSet::new() };
        let encoder = encoder.tensors().into_iter().map(|spec| spec.name);
        let stem = self.stem().into_iter().flat_map(|names| [names.weights, names.biases].concat());
        let cross = (0..self.layers.len()).filter_map(|index| self.layer(index).cross);
        let kv = cross.flat_map(|cross| [cross.kv.weights, cross.kv.biases].concat());
        let names = encoder.chain(stem).chain(kv);
        names.flat_map(|name| [scale_name(&name), name]).collect()
    }

    pub(super) fn cross(&self, at: impl Fn(&str) -> String + Copy) -> CrossNames {
        CrossNames {
            norm: self.norm(&at("encoder_attn_layer_norm")),
            q: linear(&["encoder_attn.q_proj"], true, at),
            kv: linear(&["encoder_attn.k_proj", "encoder_attn.v_proj"], true, at),
            output: linear(&["encoder_attn.out_proj"], true, at),
        }
    }

    /// Refuses absurd sizes of the encoder of audio.
    pub(super) fn check_audio(&self) -> Result<(), BundleError> {
        let Some(audio) = self.audio else { return Ok(()) };
        let sizes =
            [("num_mel_bins", audio.bands, 1 << 10), ("max_source_positions", audio.positions(), 1 << 16)];
        if let Some((name, size, _)) = sizes.into_iter().find(|(_, size, most)| !(1..=*most).contains(size)) {
            return refused(format!("{name} is {size}, which no model has"));
        }
        even_share(self.hidden_size, audio.heads)?;
        read::check_layers(audio.layers)?;
        self.audio_encoder().map_or(Ok(()), |encoder| encoder.check())
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    pub(super) fn tiny(changed: &[(&str, Value)]) -> Value {
        let mut config = json!({
            "model_type": "whisper", "d_model": 32, "vocab_size": 151, "encoder_layers": 2, "decoder_layers": 3,
            "encoder_attention_heads": 4, "decoder_attention_heads": 2, "encoder_ffn_dim": 64, "decoder_ffn_dim": 96,
            "num_mel_bins": 16, "max_source_positions": 24, "max_target_positions": 40
        });
        changed.iter().for_each(|(name, value)| config[name] = value.clone());
        config
    }

    #[test]
    fn an_encoder_of_audio_is_an_encoder_and_its_tensors_follow_the_decoder_s() {
        let config = ModelConfig::checked(&tiny(&[])).unwrap();
        let encoder = config.audio_encoder().unwrap();
        assert_eq!((encoder.head_dim, encoder.max_positions, encoder.layers.len()), (8, 24, 2));
        let names: Vec<String> = config.tensors().into_iter().map(|spec| spec.name).collect();
        let at = |name: &str| names.iter().position(|one| one == name).unwrap_or_else(|| panic!("{name}"));
        assert_eq!(at("model.decoder.embed_tokens.weight"), 0);
        let cross = "model.decoder.layers.2.encoder_attn";
        assert_eq!(at(&format!("{cross}.k_proj.weight")) + 1, at(&format!("{cross}.v_proj.weight")));
        assert!(at("model.decoder.layer_norm.bias") < at("model.encoder.conv1.weight"));
        assert_eq!(names.last().map(String::as_str), Some("model.encoder.layer_norm.bias"));
        assert!(config.quantised().contains("model.encoder.layers.1.fc2.weight"));
        assert!(!config.quantised().contains("model.encoder.conv2.weight"));
        let written = serde_json::to_string(&config).unwrap();
        assert_eq!(serde_json::from_str::<ModelConfig>(&written).unwrap(), config);
    }

    #[test]
    fn absurd_sizes_of_the_encoder_are_refused() {
        for (name, value, reason) in [
            ("num_mel_bins", 0, "num_mel_bins is 0"),
            ("max_source_positions", 1 << 20, "max_source_positions is 1048576"),
            ("encoder_attention_heads", 5, "does not divide into 5 heads"),
            ("encoder_layers", 1 << 20, "number of layers is 1048576"),
            ("encoder_ffn_dim", 0, "intermediate size is 0"),
        ] {
            let error = ModelConfig::checked(&tiny(&[(name, json!(value))])).unwrap_err().to_string();
            assert!(error.contains(reason), "{error}");
        }
    }
}
