//! `config.json` in Hugging Face's field names, resolved into the properties that an engine needs.
//!
//! An engine never asks which architecture it runs: it reads the properties here and the tensor names of
//! [`ModelConfig::layer`].

mod activation;
mod attention;
mod encoder;
mod encoder_names;
mod features;
mod fields;
mod form;
mod graph;
mod head;
mod layers;
mod model;
mod named;
mod names;
mod parts;
mod position;
mod read;
mod rope;
mod stored;

pub use activation::Activation;
pub use attention::LayerAttention;
pub use features::Feature;
pub use form::{Dense, Encoder, Form, Head, HeadActivation, NormPlacement, RelativePositions, Scored};
pub use graph::{Dtype, GRAPH_FILE, Graph, GraphInput, GraphOutput, Size};
pub use model::{Architecture, ModelConfig};
pub use named::{HeadNames, LayerNames, LinearNames, NormNames, TensorSpec};
pub use position::{Llama3Scaling, LongRope, Position, Rotary};
pub use stored::StoredTensor;

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn llama() -> Value {
        json!({
            "model_type": "llama", "hidden_size": 64, "intermediate_size": 160, "num_hidden_layers": 2,
            "num_attention_heads": 4, "num_key_value_heads": 2, "vocab_size": 320,
            "max_position_embeddings": 256, "tie_word_embeddings": true
        })
    }

    fn with(name: &str, value: Value) -> Value {
        let mut config = llama();
        config[name] = value;
        config
    }

    fn error(config: Value) -> String {
        ModelConfig::from_json(&config).unwrap_err().to_string()
    }

    #[test]
    fn fused_tensors_lie_side_by_side() {
        let names: Vec<_> =
            ModelConfig::from_json(&llama()).unwrap().tensors().into_iter().map(|t| t.name).collect();
        let at = |part: &str| names.iter().position(|n| n.ends_with(part)).unwrap();
        assert_eq!(at("k_proj.weight"), at("q_proj.weight") + 1);
        assert_eq!(at("v_proj.weight"), at("q_proj.weight") + 2);
        assert_eq!(at("up_proj.weight"), at("gate_proj.weight") + 1);
    }

    #[test]
    fn an_unknown_architecture_is_named_with_those_supported_and_the_nearest() {
        let text = error(with("model_type", json!("granit")));
        assert!(text.contains("\"granit\"") && text.contains("qwen3"), "{text}");
        assert!(text.ends_with("the nearest is granite"), "{text}");
        let text = error(with("model_type", json!("xyz")));
        assert!(!text.contains("nearest"), "{text}");
    }

    #[test]
    fn errors_name_the_field() {
        assert!(error(with("hidden_size", json!("big"))).contains("hidden_size"));
        assert!(error(with("vocab_size", Value::Null)).contains("vocab_size"));
        assert!(error(with("hidden_act", json!("mish"))).contains("mish"));
        assert!(error(with("num_key_value_heads", json!(3))).contains('3'));
        assert!(error(with("rope_scaling", json!({"rope_type": "yarn", "factor": 4.0}))).contains("yarn"));
        assert!(error(with("num_hidden_layers", json!(1u64 << 40))).contains("layers"));
    }

    #[test]
    fn what_a_message_quotes_is_cut() {
        let text = error(with("hidden_size", json!("x".repeat(100_000))));
        assert!(text.contains("… (cut), not a whole number") && text.len() < 200, "{text}");
    }

    #[test]
    fn sizes_that_no_disk_holds_are_refused_before_anything_is_computed_from_them() {
        let largest = json!((1u64 << 28) - 1);
        let mut config = with("intermediate_size", largest.clone());
        config["hidden_size"] = largest;
        config["head_dim"] = json!(16);
        assert!(error(config).contains("weights, which no disk holds"));
        assert!(error(with("head_dim", json!(1 << 20))).contains("head dimension is 1048576"));
        assert!(error(with("num_hidden_layers", json!(5000))).contains("number of layers is 5000"));
    }

    #[test]
    fn a_rotation_is_scaled_by_numbers_that_leave_it_finite() {
        for factor in [json!(0.0), json!(-1.0), json!(1e300)] {
            let scaling = json!({"rope_type": "linear", "factor": factor});
            let text = error(with("rope_scaling", scaling));
            assert!(text.contains("\"factor\"") && text.contains("between"), "{text}");
        }
    }

    #[test]
    fn rope_is_read_in_the_old_and_the_new_spelling() {
        let old = with("rope_theta", json!(5e5));
        let new = with("rope_parameters", json!({"rope_type": "default", "rope_theta": 5e5}));
        assert_eq!(ModelConfig::from_json(&old).unwrap(), ModelConfig::from_json(&new).unwrap());
    }

    #[test]
    fn a_resolved_configuration_is_read_back_as_it_was() {
        let gpt2 = json!({"model_type": "gpt2", "n_embd": 64, "n_head": 4, "n_layer": 2, "n_positions": 256,
            "vocab_size": 320});
        let llama3 = with(
            "rope_scaling",
            json!({"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
                "original_max_position_embeddings": 8192}),
        );
        let others = ["mistral", "qwen2", "qwen3", "Dream"].map(|name| {
            let mut config = with("mask_token_id", json!(5));
            config["model_type"] = json!(name);
            config
        });
        for config in [llama(), llama3, gpt2].into_iter().chain(others) {
            let resolved = ModelConfig::from_json(&config).unwrap();
            let written = serde_json::to_string(&resolved).unwrap();
            assert_eq!(serde_json::from_str::<ModelConfig>(&written).unwrap(), resolved, "{written}");
        }
    }

    #[test]
    fn a_description_names_every_tensor_and_frequency() {
        let encoder = |architecture: &str, class: &str| {
            json!({"model_type": architecture, "architectures": [class], "hidden_size": 64, "intermediate_size": 96,
                "num_hidden_layers": 4, "num_attention_heads": 4, "vocab_size": 320})
        };
        let bert = encoder("bert", "BertForSequenceClassification");
        let (mpnet, modernbert) =
            (encoder("mpnet", "MPNetModel"), encoder("modernbert", "ModernBertForTokenClassification"));
        for (json, rotations) in [(llama(), 1), (bert, 0), (mpnet, 0), (modernbert, 2)] {
            let config = ModelConfig::from_json(&json).unwrap();
            let described = config.described();
            assert_eq!(described["hidden_size"], 64);
            let frequencies =
                ["inverse_frequencies", "sliding_inverse_frequencies"].map(|name| &described[name]);
            let counts = frequencies.iter().filter_map(|list| list.as_array()).map(Vec::len);
            assert_eq!(counts.collect::<Vec<_>>(), vec![config.head_dim / 2; rotations]);
            let text = described["tensors"].to_string();
            let is_named = |name: &str| text.contains(&format!("{name:?}"));
            assert!(config.tensors().iter().all(|tensor| is_named(&tensor.name)), "{text}");
        }
    }

    #[test]
    fn a_masked_diffusion_model_attends_both_ways_and_has_a_mask_in_its_vocabulary() {
        let dream = |mask: Value| {
            let mut config = with("mask_token_id", mask);
            config["model_type"] = json!("Dream");
            config
        };
        let config = ModelConfig::from_json(&dream(json!(319))).unwrap();
        assert_eq!((config.causal, config.mask_token, config.qkv_bias), (false, Some(319), true));
        let body = config.clone().autoregressive();
        assert_eq!((body.causal, body.mask_token, body.tensors()), (true, None, config.tensors()));
        let outside = error(dream(json!(320)));
        assert_eq!(
            outside.split(": ").last().unwrap(),
            "mask_token_id 320 is outside the vocabulary of 320 tokens"
        );
        assert!(error(dream(Value::Null)).contains("mask_token_id"));
        assert!(ModelConfig::from_json(&llama()).unwrap().causal);
    }
}
