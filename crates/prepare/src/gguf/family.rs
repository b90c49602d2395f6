//! The metadata of architectures beyond llama's, as llama.cpp reads it.

use serde_json::{Value, json};

use super::reader::{Metadata, missing};

/// Where sizes of a llama-like model are looked up.
pub(super) struct Family<'a> {
    pub(super) architecture: &'a str,
    pub(super) metadata: &'a Metadata<'a>,
    pub(super) head_dim: usize,
    pub(super) layers: usize,
    /// The divisors of a LongRoPE, short and long.
    pub(super) longrope: Option<[Vec<f32>; 2]>,
}

/// The base of gemma3's sliding layers, which no metadata named until lately.
const SLIDING_BASE: f64 = 10_000.0;
/// Every so many layers of gemma3 one does not slide.
const GEMMA3_PATTERN: usize = 6;

impl Family<'_> {
    fn at(&self, key: &str) -> String {
        format!("{}.{key}", self.architecture)
    }

    fn number(&self, key: &str) -> Result<Option<f64>, String> {
        self.metadata.number(&self.at(key))
    }

    /// Adds the fields of a config.json that llama's has not.
    pub(super) fn add_to(&self, config: &mut Value) -> Result<(), String> {
        match self.architecture {
            "gemma2" | "gemma3" => self.gemma(config)?,
            "granite" => self.granite(config)?,
            "phi3" => self.phi3(config)?,
            _ => {}
        }
        Ok(())
    }

    fn window(&self) -> Result<Option<usize>, String> {
        Ok(self.metadata.count(&self.at("attention.sliding_window"))?.filter(|&window| window > 0))
    }

    fn gemma(&self, config: &mut Value) -> Result<(), String> {
        config["hidden_activation"] = json!("gelu_pytorch_tanh");
        config["query_pre_attn_scalar"] = json!(self.query_scalar(config)?);
        for (field, key) in [
            ("attn_logit_softcapping", "attn_logit_softcapping"),
            ("final_logit_softcapping", "final_logit_softcapping"),
        ] {
            if let Some(cap) = self.number(key)?.filter(|&cap| cap != 0.0) {
                config[field] = json!(cap);
            }
        }
        let window = self.window()?;
        match window {
            Some(window) => config["sliding_window"] = json!(window),
            None => {
                let key = self.at("attention.sliding_window");
                return Err(missing(&key));
            }
        }
        if self.architecture == "gemma3" {
            config["rope_local_base_freq"] =
                json!(self.number("rope.freq_base_swa")?.unwrap_or(SLIDING_BASE));
            self.pattern(config)?;
        }
        Ok(())
    }

    /// 1/scale² of attention, which most GGUFs leave out: llama.cpp takes the head's size, and for the models
    /// of 27 billion parameters, which it recognises by their layers, the hidden size divided by the heads.
    fn query_scalar(&self, config: &Value) -> Result<f64, String> {
        if let Some(scale) = self.number("attention.scale")?.filter(|&scale| scale > 0.0) {
            return Ok(1.0 / (scale * scale));
        }
        let of_27b = matches!((self.architecture, self.layers), ("gemma2", 46) | ("gemma3", 62));
        let number = |field: &str| config[field].as_f64().unwrap_or(1.0);
        Ok(match of_27b {
            true => number("hidden_size") / number("num_attention_heads"),
            false => self.head_dim as f64,
        })
    }

    /// Which layers slide: all but every n-th, or those that a list names.
    fn pattern(&self, config: &mut Value) -> Result<(), String> {
        let key = self.at("attention.sliding_window_pattern");
        if !self.metadata.is_list(&key) {
            let pattern = self.metadata.count(&key)?.unwrap_or(GEMMA3_PATTERN);
            config["sliding_window_pattern"] = json!(pattern);
            return Ok(());
        }
        let slides = self.metadata.flags(&key)?.unwrap_or_default();
        let kind = |&slides: &bool| if slides { "sliding_attention" } else { "full_attention" };
        config["layer_types"] = json!(slides.iter().map(kind).collect::<Vec<_>>());
        Ok(())
    }

    fn granite(&self, config: &mut Value) -> Result<(), String> {
        for (field, key) in [
            ("attention_multiplier", "attention.scale"),
            ("embedding_multiplier", "embedding_scale"),
            ("residual_multiplier", "residual_scale"),
            ("logits_scaling", "logit_scale"),
        ] {
            // llama.cpp reads 0 as none.
            if let Some(number) = self.number(key)?.filter(|&number| number != 0.0) {
                config[field] = json!(number);
            } else if field == "attention_multiplier" {
                config[field] = json!((self.head_dim as f64).sqrt().recip());
            }
        }
        Ok(())
    }

    fn phi3(&self, config: &mut Value) -> Result<(), String> {
        if let Some(window) = self.window()? {
            config["sliding_window"] = json!(window);
        }
        let rotated = self.metadata.count(&self.at("rope.dimension_count"))?.unwrap_or(self.head_dim);
        if rotated != self.head_dim {
            config["partial_rotary_factor"] = json!(rotated as f64 / self.head_dim as f64);
        }
        let original = self.metadata.count(&self.at("rope.scaling.original_context_length"))?;
        let Some([short, long]) = &self.longrope else { return Ok(()) };
        let original = original.or(config["max_position_embeddings"].as_u64().map(|count| count as usize));
        let mut scaling = json!({ "rope_type": "longrope", "short_factor": short, "long_factor": long });
        if let Some(factor) = self.number("rope.scaling.attn_factor")?.filter(|&factor| factor != 0.0) {
            scaling["attention_factor"] = json!(factor);
        }
        config["original_max_position_embeddings"] = json!(original);
        config["rope_scaling"] = scaling;
        Ok(())
    }
}
