//! The fields of a config.json: typed access to them, and which of them were looked at.

use std::cell::RefCell;
use std::collections::BTreeSet;

use serde_json::Value;

use crate::BundleError;

/// The values that were looked at, by their place in memory. The path of one is made only for a refusal.
#[derive(Default)]
pub(super) struct Read(RefCell<BTreeSet<*const Value>>);

/// Typed access to the fields of one JSON object, with errors that name the field. An absent field and null mean the
/// same in these files.
#[derive(Clone, Copy)]
pub(super) struct Fields<'a> {
    value: &'a Value,
    read: &'a Read,
}

impl<'a> Fields<'a> {
    pub(super) fn new(value: &'a Value, read: &'a Read) -> Fields<'a> {
        Fields { value, read }
    }

    /// Even if it is null.
    fn get_even_null(&self, name: &str) -> Option<&'a Value> {
        let value = self.value.get(name)?;
        self.read.0.borrow_mut().insert(value);
        Some(value)
    }

    fn get(&self, name: &str) -> Option<&'a Value> {
        self.get_even_null(name).filter(|value| !value.is_null())
    }

    /// Counts these fields as read: the model's class in transformers does not look at them.
    pub(super) fn ignore(&self, names: &[&str]) {
        for name in names {
            self.get(name);
        }
    }

    /// The first field that was not read and may change the computation, such as `rope_parameters.mystery`.
    pub(super) fn left_over(&self) -> Option<String> {
        self.value.as_object()?.iter().find_map(|(name, value)| {
            let is_read = self.read.0.borrow().contains(&std::ptr::from_ref(value));
            match value {
                _ if is_harmless(name, value) => None,
                _ if !is_read => Some(name.clone()),
                Value::Object(_) => {
                    Fields { value, ..*self }.left_over().map(|inner| format!("{name}.{inner}"))
                }
                _ => None,
            }
        })
    }

    fn wrong(name: &str, value: &Value, wanted: &str) -> BundleError {
        const LONGEST: usize = 80;
        let mut text = value.to_string();
        if let Some((end, _)) = text.char_indices().nth(LONGEST) {
            text.truncate(end);
            text.push_str("… (cut)");
        }
        BundleError::Config(format!("field {name:?} is {text}, not {wanted}"))
    }

    fn missing(name: &str) -> BundleError {
        BundleError::Config(format!("field {name:?} is missing"))
    }

    /// The field as `read` has it, where it is there; `wanted` is what it should be.
    fn optional<T>(
        &self,
        name: &str,
        wanted: &str,
        read: impl Fn(&'a Value) -> Option<T>,
    ) -> Result<Option<T>, BundleError> {
        let read = |value: &'a Value| read(value).ok_or_else(|| Self::wrong(name, value, wanted));
        self.get(name).map(read).transpose()
    }

    /// The same of each value in a list.
    fn each<T>(
        &self,
        name: &str,
        wanted: &str,
        read: impl Fn(&'a Value) -> Option<T>,
    ) -> Result<Option<Vec<T>>, BundleError> {
        let read = |value: &'a Value| read(value).ok_or_else(|| Self::wrong(name, value, wanted));
        let list = self.optional(name, "a list", Value::as_array)?;
        list.map(|list| list.iter().map(read).collect()).transpose()
    }

    pub(super) fn optional_text(&self, name: &str) -> Result<Option<&'a str>, BundleError> {
        self.optional(name, "a string", Value::as_str)
    }

    pub(super) fn text(&self, name: &str) -> Result<&'a str, BundleError> {
        self.optional_text(name)?.ok_or_else(|| Self::missing(name))
    }

    pub(super) fn optional_count(&self, name: &str) -> Result<Option<usize>, BundleError> {
        self.optional(name, "a whole number", |value| value.as_u64().map(|count| count as usize))
    }

    pub(super) fn count(&self, name: &str) -> Result<usize, BundleError> {
        self.optional_count(name)?.ok_or_else(|| Self::missing(name))
    }

    /// As [`Fields::optional_count`], but an absent field means `default`, and null means `None`.
    pub(super) fn count_unless_null(
        &self,
        name: &str,
        default: Option<usize>,
    ) -> Result<Option<usize>, BundleError> {
        if self.get_even_null(name).is_none() { Ok(default) } else { self.optional_count(name) }
    }

    pub(super) fn optional_number(&self, name: &str) -> Result<Option<f64>, BundleError> {
        self.optional(name, "a number", Value::as_f64)
    }

    pub(super) fn required_number(&self, name: &str) -> Result<f64, BundleError> {
        self.optional_number(name)?.ok_or_else(|| Self::missing(name))
    }

    pub(super) fn number(&self, name: &str, default: f64) -> Result<f64, BundleError> {
        Ok(self.optional_number(name)?.unwrap_or(default))
    }

    /// The number that a norm adds before its root: not negative.
    pub(super) fn epsilon(&self, name: &str, default: f64) -> Result<f64, BundleError> {
        match self.number(name, default)? {
            epsilon if epsilon >= 0.0 => Ok(epsilon),
            _ => Err(Self::wrong(name, &self.value[name], "a number that is not below 0")),
        }
    }

    /// As [`Fields::optional_number`], but an absent field means `default`, and null means `None`.
    pub(super) fn number_unless_null(
        &self,
        name: &str,
        default: Option<f64>,
    ) -> Result<Option<f64>, BundleError> {
        if self.get_even_null(name).is_none() { Ok(default) } else { self.optional_number(name) }
    }

    pub(super) fn numbers(&self, name: &str) -> Result<Vec<f64>, BundleError> {
        self.each(name, "a number", Value::as_f64)?.ok_or_else(|| Self::missing(name))
    }

    pub(super) fn optional_counts(&self, name: &str) -> Result<Option<Vec<usize>>, BundleError> {
        self.each(name, "a whole number", |value| value.as_u64().map(|count| count as usize))
    }

    pub(super) fn optional_texts(&self, name: &str) -> Result<Option<Vec<&'a str>>, BundleError> {
        self.each(name, "a string", Value::as_str)
    }

    /// A list of 0 and 1, or of false and true.
    pub(super) fn optional_flags(&self, name: &str) -> Result<Option<Vec<bool>>, BundleError> {
        let flag = |value: &Value| match value.as_u64() {
            Some(number @ 0..=1) => Some(number == 1),
            _ => value.as_bool(),
        };
        self.each(name, "0 or 1", flag)
    }

    pub(super) fn flag(&self, name: &str, default: bool) -> Result<bool, BundleError> {
        Ok(self.optional(name, "true or false", Value::as_bool)?.unwrap_or(default))
    }

    /// A copy of one field; null if there is none.
    pub(super) fn value(&self, name: &str) -> Value {
        self.get(name).cloned().unwrap_or_default()
    }

    /// Number of fields.
    pub(super) fn len(&self) -> usize {
        self.value.as_object().map_or(0, serde_json::Map::len)
    }

    pub(super) fn object(&self, name: &str) -> Result<Option<Fields<'a>>, BundleError> {
        let read = |value: &'a Value| value.is_object().then_some(Fields { value, ..*self });
        self.optional(name, "an object", read)
    }
}

// Fields that change nothing that is computed here.

/// Harmless with any value. From the `configuration_*.py` of transformers 5.24.0 and from published config.json files.
const HARMLESS: &str = "
    model_type architectures transformers_version transformers.js_config torch_dtype dtype _name_or_path name_or_path
    _commit_hash auto_map custom_pipelines license adapters adapter_fusion sentence_transformers problem_type id2label
    label2id num_labels _num_labels name finetuning_task task_specific_params language mlx_lm model_name hf_version
    sbert_ce_default_activation_function keys_to_ignore_at_inference tokenizer_class processor_class
    image_processor_type model_max_length seq_length max_sequence_length max_tokenizer_truncation

    _attn_implementation _attn_implementation_autoset _attn_implementation_internal attn_implementation
    _flash_attn_2_enabled use_flash_attn use_flash_attention use_flash_attention_2 use_sdpa reference_compile
    repad_logits_with_grad deterministic_flash_attn fused_bias_fc fused_dropout_add_ln use_xentropy torchscript
    use_bfloat16 return_dict output_attentions output_hidden_states chunk_size_feed_forward reorder_and_upcast_attn
    use_memory_efficient_attention use_cache gradient_checkpointing cache_implementation

    initializer_range initializer_cutoff_factor initializer_factor mlp_init_std attention_dropout
    attention_probs_dropout_prob hidden_dropout_prob hidden_dropout attn_pdrop embd_pdrop resid_pdrop dropout
    embedding_dropout residual_dropout mlp_dropout qa_dropout seq_classif_dropout classifier_dropout
    classifier_dropout_prob
    summary_first_dropout summary_last_dropout layerdrop sparse_prediction sparse_pred_ignore_index loss_type z_loss
    router_aux_loss_coef router_jitter_noise pad_vocab_size_multiple vocab_size_or_config_json_file pretraining_tp

    bos_token_id eos_token_id pad_token_id sep_token_id cls_token_id decoder_start_token_id forced_bos_token_id
    forced_eos_token_id do_sample temperature top_k top_p typical_p num_beams num_beam_groups diversity_penalty
    early_stopping length_penalty repetition_penalty no_repeat_ngram_size encoder_no_repeat_ngram_size bad_words_ids
    num_return_sequences max_length min_length max_new_tokens output_scores return_dict_in_generate
    remove_invalid_values exponential_decay_length_penalty suppress_tokens begin_suppress_tokens prefix epsilon_cutoff
    eta_cutoff encoder_repetition_penalty mask_token

    decoder_bias summary_type summary_use_proj summary_activation summary_proj_to_labels directionality pooler_fc_size
    pooler_num_attention_heads pooler_num_fc_layers pooler_size_per_head pooler_type n_ctx output_past tie_weights_
    is_llama_config dense_seq_output parallel_block_tied_norm sinusoidal_pos_embds finetuned

    vision_config audio_config mm_tokens_per_image image_token_index image_token_id boi_token_index boi_token_id
    eoi_token_index eoi_token_id video_token_index projector_hidden_act vision_feature_layer
    vision_feature_select_strategy multimodal_projector_bias spatial_merge_size image_seq_length";

/// Harmless while they are false. An architecture that has such a property reads its field.
const OFF: &str = "
    attention_bias mlp_bias qkv_bias use_qkv_bias lm_head_bias mlp_fc1_bias mlp_fc2_bias use_sliding_window use_mrope
    is_decoder is_encoder_decoder add_cross_attention tie_encoder_decoder use_bidirectional_attention
    scale_attn_by_inverse_layer_idx use_qk_norm alibi new_decoder_architecture parallel_attn parallel_block prenorm
    causal use_rms_norm residual_in_fp32 mup_scale use_logit_cap rope_interleaved rotary_emb_interleaved qk_layernorm
    output_router_logits";

/// Harmless while they are true.
const ON: &str = "is_causal scale_attn_weights use_pooler rms_norm use_rope";

/// Harmless while they are 1.
const ONE: &str = "
    embedding_multiplier residual_multiplier attention_multiplier logits_scaling partial_rotary_factor rotary_pct
    rotary_emb_fraction full_attn_mod interpolate_factor ffn_div extrapolation_factor attn_factor";

/// Harmless while they are 0.
const ZERO: &str = "num_experts n_routed_experts num_local_experts num_nextn_predict_layers";

fn is_harmless(name: &str, value: &Value) -> bool {
    let listed = |list: &str| list.split_ascii_whitespace().any(|known| known == name);
    let text = value.as_str().unwrap_or_default();
    match value {
        Value::Null => true,
        Value::Object(fields) if fields.is_empty() => true,
        Value::Array(list) if list.is_empty() => true,
        _ if listed(HARMLESS) || name.starts_with("unsloth_") => true,
        Value::Bool(value) => listed(if *value { ON } else { OFF }),
        Value::Number(number) if number.as_f64() == Some(1.0) => listed(ONE),
        Value::Number(number) if number.as_f64() == Some(0.0) => listed(ZERO),
        // Gemma's classes read hidden_activation.
        Value::String(_) if name == "hidden_act" => ["gelu_pytorch_tanh", "gelu"].contains(&text),
        Value::String(_) if name == "position_embedding_type" => {
            ["absolute", "rope", "rotary"].contains(&text)
        }
        _ => false,
    }
}
