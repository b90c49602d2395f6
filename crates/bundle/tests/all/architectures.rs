//! The configurations of each architecture, as read.

use bundle::{Feature, LayerAttention, ModelConfig, NormPlacement};
use serde_json::{Value, json};

/// A small configuration with these fields in place of its own, or beside them.
fn fields(model_type: &str, more: Value) -> Value {
    let mut config = json!({
        "model_type": model_type, "hidden_size": 64, "intermediate_size": 160, "num_hidden_layers": 6,
        "num_attention_heads": 4, "num_key_value_heads": 2, "vocab_size": 320, "max_position_embeddings": 256
    });
    config.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
    config
}

fn read(model_type: &str, more: Value) -> Result<ModelConfig, String> {
    ModelConfig::checked(&fields(model_type, more)).map_err(|error| error.to_string())
}

fn config(model_type: &str, more: Value) -> ModelConfig {
    read(model_type, more).unwrap()
}

/// For the architectures that have one.
fn small_window(model_type: &str) -> Value {
    if model_type.starts_with("gemma") { json!({ "sliding_window": 16 }) } else { json!({}) }
}

fn windows(config: &ModelConfig) -> Vec<usize> {
    (0..config.layers.len()).map(|layer| config.layer_attention(layer).window.unwrap_or(0)).collect()
}

#[test]
fn llama_s_way_has_no_features() {
    for name in ["llama", "falcon3", "aquila", "skywork", "xverse", "mistral", "qwen2", "qwen3"] {
        assert_eq!(config(name, json!({})).features(), [], "{name}");
    }
}

#[test]
fn a_resolved_configuration_of_every_architecture_is_read_back_as_it_was() {
    let names = "gemma2 gemma3 gemma3_text phi3 olmo2 smollm3 granite llama mistral qwen2 qwen3 Dream bert mpnet modernbert";
    let of_names = names.split(' ').map(|name| {
        let mut more = small_window(name);
        more["mask_token_id"] = json!(5);
        ModelConfig::from_json(&fields(name, more)).unwrap()
    });
    let gpt2 = json!({ "model_type": "gpt2", "n_embd": 64, "n_head": 4, "n_layer": 2, "n_positions": 256, "vocab_size": 320 });
    let llama3 = json!({ "rope_scaling": { "rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0,
        "high_freq_factor": 4.0, "original_max_position_embeddings": 8192 } });
    for resolved in of_names.chain([ModelConfig::from_json(&gpt2).unwrap(), config("llama", llama3)]) {
        let written = serde_json::to_string(&resolved).unwrap();
        assert_eq!(serde_json::from_str::<ModelConfig>(&written).unwrap(), resolved, "{written}");
    }
}

#[test]
fn a_description_of_an_earlier_version_is_read_layer_by_layer() {
    let earlier = |form: Value| {
        let described = json!({
            "architecture": "gemma3", "hidden_size": 64, "intermediate_size": 160, "layers": 3, "heads": 4,
            "kv_heads": 2, "head_dim": 16, "vocab_size": 320, "max_positions": 256, "rms_norm": true, "norm_epsilon": 1e-6,
            "activation": "silu", "gated_mlp": true, "qkv_bias": false, "output_bias": false, "mlp_bias": false,
            "position": { "rotary": { "theta": 1e6, "linear_factor": 1.0, "llama3": null } }, "qk_norm": true,
            "tied_embeddings": true, "form": form
        });
        let config: ModelConfig = serde_json::from_value(described).unwrap();
        assert_eq!(config.mlp(2).width, 160);
        let layers = config.layers.iter().map(|layer| (layer.window, layer.rotation)).collect::<Vec<_>>();
        (config, layers)
    };
    let (config, layers) = earlier(json!({
        "norms": "both", "window": 16, "sliding": [true, false, true],
        "sliding_rotary": { "theta": 1e4, "linear_factor": 1.0, "llama3": null }
    }));
    assert_eq!(layers, [(Some(16), Some(1)), (None, Some(0)), (Some(16), Some(1))]);
    assert_eq!((config.form.norms, config.rotations.len()), (NormPlacement::Both, 2));
    let (_, layers) = earlier(json!({ "window": 16, "unrotated": [false, true, false] }));
    assert_eq!(layers, [(Some(16), Some(0)), (Some(16), None), (Some(16), Some(0))]);
}

#[test]
fn a_description_names_the_features_in_words_and_every_tensor_and_frequency() {
    let described = config("granite", json!({ "residual_multiplier": 0.5 })).described();
    assert_eq!(described["features"]["residual_multiplier"], "a multiplier of residuals");
    assert!(config("llama", json!({})).described().get("features").is_none());
    for (model_type, class, rotations) in [
        ("llama", "LlamaForCausalLM", 1),
        ("bert", "BertForSequenceClassification", 0),
        ("mpnet", "MPNetModel", 0),
        ("modernbert", "ModernBertForTokenClassification", 2),
    ] {
        let config =
            ModelConfig::from_json(&fields(model_type, json!({ "architectures": [class] }))).unwrap();
        let described = config.described();
        assert_eq!(described["hidden_size"], 64);
        let counts = described["rotations"].as_array().unwrap().iter();
        let counts = counts.map(|rotary| rotary["inverse_frequencies"].as_array().unwrap().len());
        assert_eq!(counts.collect::<Vec<_>>(), vec![config.head_dim / 2; rotations]);
        let text = described["tensors"].to_string();
        let is_named = |name: &str| text.contains(&format!("{name:?}"));
        assert!(config.tensors().iter().all(|tensor| is_named(&tensor.name)), "{text}");
    }
}

#[test]
fn a_masked_diffusion_model_attends_both_ways_and_has_a_mask_in_its_vocabulary() {
    let config = config("Dream", json!({ "mask_token_id": 319 }));
    assert_eq!((config.causal, config.mask_token, config.qkv_bias), (false, Some(319), true));
    let body = config.clone().autoregressive();
    assert_eq!((body.causal, body.mask_token, body.tensors()), (true, None, config.tensors()));
}

#[test]
fn a_query_sees_as_many_keys_as_its_window_and_itself_among_them() {
    let attention = LayerAttention { window: Some(4), causal: true, rotation: None };
    assert_eq!([0, 3, 4, 9].map(|position| attention.first_key(position)), [0, 0, 1, 6]);
    assert_eq!(LayerAttention { window: None, ..attention }.first_key(9), 0);
    assert_eq!([attention.keys(9, 20), attention.keys(1, 20)], [6..10, 0..2]);
    let both = LayerAttention { causal: false, ..attention };
    assert_eq!([both.keys(9, 20), both.keys(1, 20), both.keys(19, 20)], [6..13, 0..5, 16..20]);
    assert_eq!([4, 5].map(|length| both.sees_all(length)), [true, false]);
    assert_eq!([1, 2].map(|length| attention.sees_all(length)), [true, false]);
}

#[test]
fn the_window_of_mistral_and_of_qwen_s_last_layers_slides() {
    assert_eq!(windows(&config("mistral", json!({ "sliding_window": 128 }))), [128; 6]);
    let qwen = json!({ "sliding_window": 64, "use_sliding_window": true, "max_window_layers": 4 });
    let qwen = config("qwen2", qwen);
    assert_eq!((windows(&qwen), qwen.max_positions), (vec![0, 0, 0, 0, 64, 64], 256));
    let unused = json!({ "sliding_window": 64, "use_sliding_window": false });
    assert_eq!(windows(&config("qwen2", unused)), [0; 6]);
}

#[test]
fn gemmas_alternate_sliding_and_full_layers() {
    assert_eq!(windows(&config("gemma2", json!({ "sliding_window": 16 }))), [16, 0, 16, 0, 16, 0]);
    assert_eq!(windows(&config("gemma3", json!({ "sliding_window": 16 }))), [16, 16, 16, 16, 16, 0]);
    let kinds = json!(["full_attention", "sliding_attention", "full_attention"].repeat(2));
    let listed = config("gemma3_text", json!({ "sliding_window": 16, "layer_types": kinds }));
    assert_eq!(windows(&listed), [0, 16, 0, 0, 16, 0]);
    let sliding = LayerAttention { window: Some(16), causal: true, rotation: Some(1) };
    assert_eq!((listed.layer_attention(1), listed.layer_attention(0).rotation), (sliding, Some(0)));
    let thetas: Vec<f64> = listed.rotations.iter().map(|rotary| rotary.theta).collect();
    assert_eq!(thetas, [1e6, 1e4]);
}

#[test]
fn gemma2_caps_scores_and_logits_unless_its_configuration_says_null() {
    let caps = |config: ModelConfig| (config.form.attention_cap, config.form.logits_cap);
    let window = json!({ "sliding_window": 16 });
    assert_eq!(caps(config("gemma2", window.clone())), (Some(50.0), Some(30.0)));
    assert_eq!(caps(config("gemma3", window)), (None, None));
    let none =
        json!({ "sliding_window": 16, "attn_logit_softcapping": null, "final_logit_softcapping": 20.0 });
    assert_eq!(caps(config("gemma2", none)), (None, Some(20.0)));
}

#[test]
fn a_gemma_that_sees_is_read_by_its_text_part() {
    let text = json!({ "model_type": "gemma3_text", "hidden_size": 64, "intermediate_size": 160,
        "num_hidden_layers": 6, "sliding_window": 16 });
    let whole = json!({ "model_type": "gemma3", "text_config": text, "vision_config": {} });
    let config = ModelConfig::from_json(&whole).unwrap();
    assert_eq!((config.heads, config.kv_heads, config.head_dim, config.tied_embeddings), (8, 4, 256, true));
}

#[test]
fn norms_stand_where_the_architecture_has_them() {
    let norms = |model_type: &str| {
        let config = config(model_type, small_window(model_type));
        let layer = config.layer(0);
        let all = [layer.attention_norm, layer.post_attention_norm, layer.mlp_norm, layer.post_mlp_norm];
        let names = all.map(|norm| norm.map(|norm| norm.weight.split('.').nth(3).unwrap().to_owned()));
        (config.form.norms, names.map(Option::unwrap_or_default))
    };
    let [input, attention] = ["input_layernorm", "post_attention_layernorm"];
    let [before, behind] = ["pre_feedforward_layernorm", "post_feedforward_layernorm"];
    let owned = |names: [&str; 4]| names.map(str::to_owned);
    assert_eq!(norms("granite"), (NormPlacement::Before, owned([input, "", attention, ""])));
    assert_eq!(norms("olmo2"), (NormPlacement::After, owned(["", attention, "", behind])));
    assert_eq!(norms("gemma2"), (NormPlacement::Both, owned([input, attention, before, behind])));
}

#[test]
fn every_fourth_layer_of_smollm3_does_not_rotate_unless_a_list_says_which() {
    let rotations = |more: Value| {
        let config = config("smollm3", more);
        (0..6).map(|layer| config.layer_attention(layer).rotation.is_some()).collect::<Vec<_>>()
    };
    assert_eq!(rotations(json!({})), [true, true, true, false, true, true]);
    assert_eq!(
        rotations(json!({ "no_rope_layers": [1, 0, 1, 1, 1, 0] })),
        [true, false, true, true, true, false]
    );
}

#[test]
fn longrope_divides_by_one_list_within_the_original_context_and_by_the_other_beyond() {
    let longrope = json!({ "original_max_position_embeddings": 32, "rope_scaling": {
        "type": "longrope", "short_factor": vec![1.0; 8], "long_factor": vec![2.0; 8] } });
    let config = config("phi3", longrope);
    assert!(config.features().contains(&Feature::LongRope));
    let sin = |positions: usize| bundle::rotary::tables(&config, positions)[0].1[8];
    let scale = (1.0 + 8f32.ln() / 32f32.ln()).sqrt();
    assert!((sin(32) - scale * 1f32.sin()).abs() < 1e-6);
    assert!((sin(33) - scale * 0.5f32.sin()).abs() < 1e-6);
}

#[test]
fn a_part_of_phi3_s_heads_may_be_rotated() {
    let config = config("phi3", json!({ "partial_rotary_factor": 0.75 }));
    assert_eq!((config.rotary_dim(), bundle::rotary::tables(&config, 1)[0].0.len()), (12, 6));
}

#[test]
fn experts_that_no_model_has_and_norms_that_no_engine_has_are_refused() {
    let moe = |more: Value| {
        let mut fields = json!({ "num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 32 });
        fields.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        read("qwen3_moe", fields)
    };
    assert_eq!(
        moe(json!({ "mlp_only_layers": [1] })).unwrap().experts(0).map(|experts| experts.top),
        Some(2)
    );
    let oss = |more: Value| json!({ "num_local_experts": 4, "num_experts_per_tok": 2, "swiglu_limit": more });
    for (found, part) in [
        (moe(json!({ "moe_intermediate_size": 0 })), "intermediate size is 0"),
        (moe(json!({ "num_experts_per_tok": 5 })), "of 4 experts each token goes through 5"),
        (moe(json!({ "num_experts": 1 << 20 })), "experts, which no model has"),
        (read("gpt_oss", oss(json!(6.0))), "swiglu_limit is 6"),
        (read("phi", json!({ "qk_layernorm": true })), "qk_layernorm"),
        (read("stablelm", json!({ "qk_layernorm": true })), "qk_layernorm"),
        (read("cohere", json!({ "use_qk_norm": true })), "use_qk_norm"),
    ] {
        let error = found.unwrap_err();
        assert!(error.contains(part), "{error}");
    }
    // A description of somebody else's report.
    let mut described = serde_json::to_value(moe(json!({})).unwrap()).unwrap();
    described["layers"][0]["feed"]["experts"]["count"] = json!(1u64 << 40);
    assert!(serde_json::from_value::<ModelConfig>(described).is_err());
}

#[test]
fn what_is_not_supported_is_refused_by_name() {
    let phi3 = |more: Value| json!({ "type": "su", "short_factor": [1.0], "long_factor": more });
    let llama3 =
        json!({ "rope_type": "llama3", "factor": 8.0, "low_freq_factor": 4.0, "high_freq_factor": 4.0 });
    let both = json!({ "rope_scaling": { "type": "linear", "factor": 2.0 },
        "rope_parameters": { "rope_type": "linear", "factor": 4.0 } });
    let scaled = json!({ "type": "su", "short_factor": vec![1.0; 8], "long_factor": vec![1.0; 8], "attention_factor": -1.0 });
    let class = |name: &str| json!({ "architectures": [name] });
    let full = json!({ "sliding_window": 16, "layer_types": vec!["full_attention"; 6] });
    let visual = json!({ "text_config": { "model_type": "ministral3" } });
    let linear = |factor: f64| json!({ "rope_scaling": { "rope_type": "linear", "factor": factor } });
    let huge =
        json!({ "intermediate_size": (1u64 << 28) - 1, "hidden_size": (1u64 << 28) - 1, "head_dim": 16 });
    for (model_type, more, parts) in [
        (
            "granit",
            json!({}),
            ["\"granit\" is not supported; supported are llama", "; the nearest is granite"],
        ),
        ("llama", json!({ "hidden_size": "big" }), ["hidden_size", "a whole number"]),
        (
            "llama",
            json!({ "hidden_size": "x".repeat(100_000) }),
            ["hidden_size", "… (cut), not a whole number"],
        ),
        ("llama", json!({ "vocab_size": null }), ["vocab_size", "missing"]),
        ("llama", json!({ "hidden_act": "mish" }), ["mish", "silu"]),
        ("llama", json!({ "num_key_value_heads": 3 }), ["4 attention heads", "share 3"]),
        ("llama", json!({ "num_hidden_layers": 1u64 << 40 }), ["number of layers is", "no model has"]),
        ("llama", json!({ "num_hidden_layers": 5000 }), ["number of layers is 5000", "no model has"]),
        ("llama", json!({ "head_dim": 1 << 20 }), ["head dimension is 1048576", "no model has"]),
        ("llama", huge, ["weights", "no disk holds"]),
        ("llama", linear(0.0), ["\"factor\" is 0", "between"]),
        ("llama", linear(-1.0), ["\"factor\" is -1", "between"]),
        ("llama", linear(1e300), ["\"factor\" is 1", "between"]),
        ("Dream", json!({ "mask_token_id": null }), ["mask_token_id", "missing"]),
        ("Dream", json!({ "mask_token_id": 320 }), ["mask_token_id 320", "outside the vocabulary of 320"]),
        ("llama", json!({ "partial_rotary_factor": 0.5 }), ["partial_rotary_factor", "0.5"]),
        ("llama", json!({ "rms_norm_eps": -1.0 }), ["rms_norm_eps", "-1"]),
        (
            "llama",
            json!({ "layer_types": vec!["sliding_attention"; 6] }),
            ["sliding_attention", "layer_types"],
        ),
        ("llama", json!({ "rope_scaling": llama3 }), ["low_freq_factor is 4", "larger"]),
        ("llama", both, ["rope_scaling", "rope_parameters"]),
        ("llama", class("LlamaEncoderModel"), ["LlamaEncoderModel", "LlamaModel, LlamaForCausalLM"]),
        ("qwen3", class("Qwen3BidirectionalModel"), ["Qwen3BidirectionalModel", "Qwen3ForCausalLM"]),
        ("phi3", class("Phi3ForSequenceClassification"), ["Phi3ForSequenceClassification", "Phi3Model"]),
        ("bert", class("BertForMultipleChoice"), ["BertForMultipleChoice", "BertForMaskedLM"]),
        ("bert", json!({ "pad_token_id": (1u64 << 32) + 1 }), ["pad_token_id", "outside the vocabulary"]),
        ("nomic_bert", json!({ "type_vocab_size": 1u64 << 60 }), ["weights", "no disk holds"]),
        ("phi3", json!({ "rope_scaling": scaled }), ["attention_factor", "is -1"]),
        ("granite", json!({ "is_causal": false }), ["is_causal", "not supported"]),
        ("mistral", json!({ "is_causal": false, "sliding_window": 16 }), ["sliding window", "both ways"]),
        ("mistral", full, ["full_attention", "sliding_window"]),
        ("mistral3", visual, ["ministral3", "mistral"]),
        (
            "gemma3",
            json!({ "layer_types": vec!["linear_attention"; 6] }),
            ["linear_attention", "full_attention"],
        ),
        ("gemma3", json!({ "layer_types": ["full_attention"] }), ["layer_types", "6 layers"]),
        ("gemma3", json!({ "use_bidirectional_attention": true }), ["bidirectional", "not supported"]),
        ("gemma3", json!({ "sliding_window": null }), ["sliding_window", "null"]),
        ("mistral", json!({ "sliding_window": 0 }), ["sliding_window", "is 0"]),
        ("granite", json!({ "logits_scaling": 0.0 }), ["logits_scaling", "above 0"]),
        ("smollm3", json!({ "no_rope_layers": [1, 1] }), ["no_rope_layers", "2 entries"]),
        ("smollm3", json!({ "rope_scaling": { "type": "mrope" } }), ["mrope", "longrope"]),
        ("llama", json!({ "rope_scaling": { "type": "dynamic", "factor": 0.5 } }), ["factor", "0.5"]),
        ("phi3", json!({ "rope_scaling": phi3(json!([1.0])) }), ["short_factor", "1 divisors"]),
    ] {
        let text = read(model_type, more).unwrap_err();
        assert!(parts.iter().all(|part| text.contains(part)) && !text.contains('\n'), "{text}");
        assert!(text.len() < 600, "{text}");
    }
    assert!(!read("xyz", json!({})).unwrap_err().contains("nearest"));
}

#[test]
fn a_field_that_is_not_known_is_refused_by_its_path_unless_its_value_changes_nothing() {
    let rope = json!({ "rope_type": "linear", "factor": 2.0, "rope_theta": 1e5, "mystery": 1 });
    for (model_type, more, left) in [
        ("llama", json!({ "mystery": 2 }), "mystery"),
        ("llama", json!({ "attn_logit_softcapping": 30.0 }), "attn_logit_softcapping"),
        ("llama", json!({ "residual_multiplier": 0.5 }), "residual_multiplier"),
        ("llama", json!({ "sliding_window": 16 }), "sliding_window"),
        ("qwen2", json!({ "mlp_bias": true }), "mlp_bias"),
        ("llama", json!({ "rope_scaling": { "factor": 2.0 } }), "rope_scaling.factor"),
        (
            "gemma3",
            json!({ "rope_parameters": { "full_attention": rope } }),
            "rope_parameters.full_attention.mystery",
        ),
    ] {
        let text = read(model_type, more).unwrap_err();
        assert!(text.contains(&format!("field {left:?} is not supported")), "{text}");
    }
    let harmless = json!({ "mystery": null, "mlp_bias": false, "residual_multiplier": 1.0, "pretraining_tp": 2,
        "unsloth_version": "1", "num_experts": 0, "pruned_heads": {}, "rope_scaling": null });
    assert_eq!(config("qwen2", harmless), config("qwen2", json!({})));
    // A bundle is read as the version that wrote it meant it.
    let of_bundle = fields("llama", json!({ "mystery": 2 }));
    assert!(ModelConfig::from_json(&of_bundle).is_ok() && ModelConfig::checked(&of_bundle).is_err());
}

#[test]
fn a_window_beyond_the_context_hides_nothing() {
    for name in ["phi3", "mistral", "gemma2"] {
        assert_eq!(windows(&config(name, json!({ "sliding_window": 512 }))), [0; 6], "{name}");
    }
    // The sliding layers of gemma3 have another rotation.
    let gemma3 = config("gemma3", json!({ "sliding_window": 512 }));
    assert_eq!((windows(&gemma3), gemma3.rotations.len()), (vec![256, 256, 256, 256, 256, 0], 2));
}

#[test]
fn absent_fields_are_what_the_class_assumes_and_null_is_not() {
    let long = json!({ "max_position_embeddings": 8192 });
    let without = json!({ "max_position_embeddings": 8192, "sliding_window": null });
    assert_eq!([long, without].map(|more| windows(&config("mistral", more))), [[4096; 6], [0; 6]]);
    let mut heads = fields("mistral", json!({ "num_attention_heads": 16 }));
    heads.as_object_mut().unwrap().remove("num_key_value_heads");
    assert_eq!(ModelConfig::checked(&heads).unwrap().kv_heads, 8);
    heads["num_key_value_heads"] = Value::Null;
    assert_eq!(ModelConfig::checked(&heads).unwrap().kv_heads, 16);
}

#[test]
fn a_decoder_that_is_not_causal_encodes_texts_both_ways() {
    for class in ["Qwen2ForCausalLM", "Qwen2Model", "Qwen2BidirectionalModel"] {
        let config = config("qwen2", json!({ "is_causal": false, "architectures": [class] }));
        assert!(config.encodes() && !config.causal, "{class}");
    }
    assert!(config("qwen2", json!({ "architectures": ["Qwen2Model"] })).causal);
}

#[test]
fn the_base_is_that_of_the_object_that_scales() {
    let theta = |more: Value| config("llama", more).rotations[0].theta;
    assert_eq!(theta(json!({ "rope_theta": 5e5 })), 5e5);
    let scaling = json!({ "rope_type": "linear", "factor": 4.0, "rope_theta": 5e5 });
    assert_eq!(theta(json!({ "rope_scaling": scaling, "rope_theta": null })), 5e5);
    assert_eq!(theta(json!({ "rope_parameters": scaling, "rope_theta": 1e4 })), 5e5);
    assert_eq!(theta(json!({ "rope_parameters": scaling, "rope_scaling": scaling })), 5e5);
    // Dynamic scaling begins beyond the context.
    let dynamic = json!({ "rope_scaling": { "type": "dynamic", "factor": 2.0 } });
    assert_eq!(config("llama", dynamic), config("llama", json!({})));
}

#[test]
fn yarn_s_scale_is_that_of_transformers() {
    let yarn = |more: Value| {
        let mut scaling = json!({ "type": "yarn", "original_max_position_embeddings": 64 });
        scaling.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        let config = config("qwen2", json!({ "rope_scaling": scaling }));
        assert_eq!(config.features(), [Feature::Yarn]);
        let yarn = config.rotations[0].yarn.clone().unwrap();
        (yarn.factor, yarn.scale)
    };
    for (more, factor, scale) in [
        // Without a factor, that of the context.
        (json!({}), 4.0, 1.138_629_436_111_989),
        (json!({ "factor": 40.0, "mscale": 0.707, "mscale_all_dim": 0.707 }), 40.0, 1.0),
        (json!({ "factor": 40.0, "mscale": 1.0, "mscale_all_dim": 0.5 }), 40.0, 1.155_721_990_196_260_8),
        (json!({ "factor": 40.0, "mscale": 1.0, "mscale_all_dim": 0.0 }), 40.0, 1.368_887_945_411_393_6),
        (json!({ "factor": 1.0, "mscale": 2.0, "attention_factor": null, "beta_fast": 0 }), 1.0, 1.0),
        (json!({ "factor": 4.0, "attention_factor": 2.0, "finetuned": true }), 4.0, 2.0),
    ] {
        let found = yarn(more);
        assert!(found.0 == factor && (found.1 - scale).abs() < 1e-12, "{found:?} {factor} {scale}");
    }
}
