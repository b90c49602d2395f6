//! candle-transformers' Whisper, driven as its example `whisper` drives it: the whole text goes through the decoder for
//! every token, and keys and values of the audio are kept.

use std::path::Path;

use bundle::{Audio, ModelConfig};
use candle_core::{DType, Device, Result, Tensor};
use candle_nn::VarBuilder;
use candle_transformers::models::whisper::Config;
use candle_transformers::models::whisper::model;
use worker::engine::{EngineError, Want};

use crate::error::framework;

#[derive(Debug)]
pub(crate) struct Whisper {
    model: model::Whisper,
    audio: Audio,
    /// `[1, positions, hidden]`, once it was heard.
    vectors: Option<Tensor>,
    /// The text so far.
    tokens: Vec<u32>,
}

impl Whisper {
    pub(crate) fn load(
        file: &Path,
        config: &ModelConfig,
        audio: Audio,
    ) -> std::result::Result<Whisper, EngineError> {
        let wide = 4 * config.hidden_size;
        if audio.mlp.width != wide || config.mlp(0).width != wide || !config.tied_embeddings {
            let reason =
                "candle-transformers' Whisper has MLPs four times as wide as the model, and a tied head";
            return Err(EngineError::Unsupported(reason.into()));
        }
        let described = Config {
            num_mel_bins: audio.bands,
            max_source_positions: audio.positions(),
            d_model: config.hidden_size,
            encoder_attention_heads: audio.heads,
            encoder_layers: audio.layers,
            vocab_size: config.vocab_size,
            max_target_positions: config.max_positions,
            decoder_attention_heads: config.heads,
            decoder_layers: config.layers.len(),
            suppress_tokens: Vec::new(),
        };
        let load = || {
            // SAFETY: bundles are immutable by contract, and what candle makes of the mapping are copies.
            #[allow(unsafe_code)]
            let tensors = unsafe { VarBuilder::from_mmaped_safetensors(&[file], DType::F32, &Device::Cpu)? };
            model::Whisper::load(&tensors, described)
        };
        let model = load().map_err(framework)?;
        Ok(Whisper { model, audio, vectors: None, tokens: Vec::new() })
    }

    pub(crate) fn forget(&mut self) {
        self.vectors = None;
        self.tokens.clear();
    }

    pub(crate) fn has_listened(&self) -> bool {
        self.vectors.is_some()
    }

    pub(crate) fn listen(&mut self, frames: &[f32]) -> Result<()> {
        let frames = Tensor::from_slice(frames, (1, self.audio.bands, self.audio.frames), &Device::Cpu)?;
        self.vectors = Some(self.model.encoder.forward(&frames, true)?);
        Ok(())
    }

    /// Logits of the last of these tokens, or of each.
    pub(crate) fn append(&mut self, tokens: &[u32], want: Want) -> Result<Vec<f32>> {
        let is_first = self.tokens.is_empty();
        self.tokens.extend_from_slice(tokens);
        let all = Tensor::from_slice(&self.tokens, (1, self.tokens.len()), &Device::Cpu)?;
        let Some(vectors) = &self.vectors else { candle_core::bail!("append before listen") };
        let x = self.model.decoder.forward(&all, vectors, is_first)?;
        let count = if want == Want::Last { 1 } else { tokens.len() };
        let wanted = x.narrow(1, self.tokens.len() - count, count)?;
        self.model.decoder.final_linear(&wanted)?.flatten_all()?.to_vec1()
    }
}
