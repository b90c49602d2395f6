//! The configurations of each architecture, as read.

use bundle::{Feature, LayerAttention, ModelConfig, NormPlacement};
use serde_json::{Value, json};

fn read(model_type: &str, more: Value) -> Result<ModelConfig, String> {
    let mut config = json!({
        "model_type": model_type, "hidden_size": 64, "intermediate_size": 160, "num_hidden_layers": 6,
        "num_attention_heads": 4, "num_key_value_heads": 2, "vocab_size": 320, "max_position_embeddings": 256
    });
    config.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
    ModelConfig::from_json(&config).map_err(|error| error.to_string())
}

fn config(model_type: &str, more: Value) -> ModelConfig {
    read(model_type, more).unwrap()
}

fn windows(config: &ModelConfig) -> Vec<usize> {
    (0..config.layers).map(|layer| config.layer_attention(layer).window.unwrap_or(0)).collect()
}

#[test]
fn llama_s_way_has_no_features() {
    for name in ["llama", "falcon3", "aquila", "skywork", "xverse", "mistral", "qwen2", "qwen3"] {
        assert_eq!(config(name, json!({})).features(), [], "{name}");
    }
}

#[test]
fn a_resolved_configuration_of_every_architecture_is_read_back_as_it_was() {
    for name in ["gemma2", "gemma3", "gemma3_text", "phi3", "olmo2", "smollm3", "granite"] {
        let resolved = config(name, json!({ "sliding_window": 16 }));
        let written = serde_json::to_string(&resolved).unwrap();
        assert_eq!(serde_json::from_str::<ModelConfig>(&written).unwrap(), resolved, "{written}");
    }
}

#[test]
fn a_description_names_the_features_in_words() {
    let described = config("granite", json!({ "residual_multiplier": 0.5 })).described();
    assert_eq!(described["features"]["residual_multiplier"], "a multiplier of residuals");
    assert!(config("llama", json!({})).described().get("features").is_none());
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
    let thetas: Vec<f64> = listed.rotations().iter().map(|rotary| rotary.theta).collect();
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
        let config = config(model_type, json!({ "sliding_window": 16 }));
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
fn what_is_not_supported_is_refused_by_name() {
    for (model_type, more, parts) in [
        ("llama", json!({ "partial_rotary_factor": 0.5 }), ["partial_rotary_factor", "0.5"]),
        ("llama", json!({ "attn_logit_softcapping": 30.0 }), ["attn_logit_softcapping", "30"]),
        ("llama", json!({ "residual_multiplier": 0.5 }), ["residual_multiplier", "0.5"]),
        ("llama", json!({ "rms_norm_eps": -1.0 }), ["rms_norm_eps", "-1"]),
        (
            "llama",
            json!({ "layer_types": vec!["sliding_attention"; 6] }),
            ["sliding_attention", "not supported"],
        ),
        (
            "gemma3",
            json!({ "layer_types": vec!["linear_attention"; 6] }),
            ["linear_attention", "full_attention"],
        ),
        ("gemma3", json!({ "layer_types": ["full_attention"] }), ["layer_types", "6 layers"]),
        ("gemma3", json!({ "use_bidirectional_attention": true }), ["bidirectional", "not supported"]),
        ("gemma3", json!({ "sliding_window": 512 }), ["sliding_window is 512", "context is 256"]),
        ("mistral", json!({ "sliding_window": 0 }), ["sliding_window is 0", "context is 256"]),
        ("granite", json!({ "logits_scaling": 0.0 }), ["logits_scaling", "above 0"]),
        ("smollm3", json!({ "no_rope_layers": [1, 1] }), ["no_rope_layers", "2 entries"]),
        ("smollm3", json!({ "rope_scaling": { "type": "yarn" } }), ["yarn", "longrope"]),
        (
            "phi3",
            json!({ "rope_scaling": { "type": "su", "short_factor": [1.0], "long_factor": [1.0] } }),
            ["short_factor", "1 divisors"],
        ),
    ] {
        let text = read(model_type, more).unwrap_err();
        assert!(parts.iter().all(|part| text.contains(part)) && !text.contains('\n'), "{text}");
    }
}

#[test]
fn a_window_of_phi3_beyond_the_context_slides_nothing() {
    assert_eq!(windows(&config("phi3", json!({ "sliding_window": 512 }))), [0; 6]);
}
