//! The two models of candle-transformers, driven as its examples `llama` and `quantized` drive them.

use std::fs::File;
use std::path::Path;

use bundle::ModelConfig;
use candle_core::quantized::gguf_file;
use candle_core::{DType, Device, Result, Tensor};
use candle_nn::VarBuilder;
use candle_transformers::models::{llama, quantized_llama};
use worker::engine::EngineError;

use crate::error::framework;

#[derive(Debug)]
pub(crate) enum Model {
    Llama {
        model: llama::Llama,
        /// Rotary tables and no keys or values yet: what every request starts from.
        fresh: llama::Cache,
        cache: llama::Cache,
    },
    Quantized(quantized_llama::ModelWeights),
}

impl Model {
    pub(crate) fn llama(
        file: &Path,
        config: &ModelConfig,
        dtype: DType,
    ) -> std::result::Result<Model, EngineError> {
        let config = llama_config(config)?;
        let load = || {
            // SAFETY: bundles are immutable by contract, and what candle makes of the mapping are copies.
            #[allow(unsafe_code)]
            let tensors = unsafe { VarBuilder::from_mmaped_safetensors(&[file], dtype, &Device::Cpu)? };
            let fresh = llama::Cache::new(true, dtype, &config, &Device::Cpu)?;
            Ok(Model::Llama { model: llama::Llama::load(tensors, &config)?, cache: fresh.clone(), fresh })
        };
        load().map_err(framework)
    }

    pub(crate) fn quantized_llama(file: &Path) -> std::result::Result<Model, EngineError> {
        let load = || {
            let mut reader = File::open(file)?;
            let content = gguf_file::Content::read(&mut reader)?;
            quantized_llama::ModelWeights::from_gguf(content, &mut reader, &Device::Cpu)
        };
        load().map(Model::Quantized).map_err(|error| {
            EngineError::Framework(format!("cannot read {}: {}", file.display(), framework(error)))
        })
    }

    /// Starts new sequences.
    pub(crate) fn forget(&mut self) {
        match self {
            Model::Llama { fresh, cache, .. } => *cache = fresh.clone(),
            Model::Quantized(model) => model.clear_kv_cache(),
        }
    }

    /// Logits of the last position, `[batch, vocabulary]`.
    pub(crate) fn forward(&mut self, tokens: &Tensor, filled: usize) -> Result<Tensor> {
        match self {
            Model::Llama { model, cache, .. } => model.forward(tokens, filled, cache),
            Model::Quantized(model) => model.forward(tokens, filled),
        }
    }
}

/// As candle-transformers has it, from what the bundle's configuration resolves to.
fn llama_config(config: &ModelConfig) -> std::result::Result<llama::Config, EngineError> {
    let unsupported = |what: &str| {
        Err(EngineError::Unsupported(format!("candle-transformers' llama model does not know {what}")))
    };
    let biases = config.qkv_bias || config.output_bias || config.mlp(0).bias;
    if !config.mlp(0).gated
        || biases
        || config.qk_norm
        || config.head_dim * config.heads != config.hidden_size
    {
        return unsupported("this architecture");
    }
    let Some(rotary) = config.rotations.first() else { return unsupported("learned positions") };
    if rotary.linear_factor != 1.0 {
        return unsupported("linear scaling of rotary frequencies");
    }
    let rope_scaling = rotary.llama3.as_ref().map(|scaling| llama::Llama3RopeConfig {
        factor: scaling.factor as f32,
        low_freq_factor: scaling.low_freq_factor as f32,
        high_freq_factor: scaling.high_freq_factor as f32,
        original_max_position_embeddings: scaling.original_max_positions,
        rope_type: llama::Llama3RopeType::Llama3,
    });
    Ok(llama::Config {
        hidden_size: config.hidden_size,
        intermediate_size: config.mlp(0).width,
        vocab_size: config.vocab_size,
        num_hidden_layers: config.layers.len(),
        num_attention_heads: config.heads,
        num_key_value_heads: config.kv_heads,
        use_flash_attn: false,
        rms_norm_eps: config.norm_epsilon,
        rope_theta: rotary.theta as f32,
        bos_token_id: None,
        eos_token_id: None,
        rope_scaling,
        max_position_embeddings: config.max_positions,
        tie_word_embeddings: config.tied_embeddings,
    })
}
