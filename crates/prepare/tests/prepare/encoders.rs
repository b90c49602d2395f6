//! Encoders with files that differ from transformers' own.

use bundle::{Bundle, Pooling, Precision};
use prepare::Source;
use serde_json::json;

use crate::common::{Model, Tensor, prepared, refusal};

fn encoder(name: &str) -> Model {
    Model::read(&conformance::fixtures().with_file_name("encoders").join(name))
}

fn weights(bundle: &Bundle) -> Vec<u8> {
    std::fs::read(bundle.weights_path(Precision::F32).unwrap()).unwrap()
}

/// A nomic_bert as the code that was published with it names its fields; the tensors of the fixture have its names.
fn published() -> Model {
    let mut model = encoder("nomic-bert");
    let fields = [
        ("hidden_size", "n_embd"),
        ("intermediate_size", "n_inner"),
        ("num_hidden_layers", "n_layer"),
        ("num_attention_heads", "n_head"),
        ("max_position_embeddings", "n_positions"),
        ("layer_norm_eps", "layer_norm_epsilon"),
    ];
    for (name, published) in fields {
        model.config[published] = model.config[name].take();
    }
    model.config.as_object_mut().unwrap().retain(|_, value| !value.is_null());
    model.config["activation_function"] = json!("swiglu");
    model.config["rotary_emb_base"] = json!(1000);
    for name in ["hidden_act", "rope_parameters", "head_dim"] {
        model.config.as_object_mut().unwrap().remove(name);
    }
    model
}

/// The same with the names of tensors that transformers 5 has in memory, as it need not write them.
fn under_new_names() -> Model {
    let parts = [
        ("encoder.layers.", "layers."),
        ("attn.out_proj", "self_attn.o_proj"),
        ("mlp.fc11", "mlp.up_proj"),
        ("mlp.fc12", "mlp.gate_proj"),
        ("mlp.fc2", "mlp.down_proj"),
        ("norm1", "post_attention_layernorm"),
        ("norm2", "post_mlp_layernorm"),
        ("emb_ln", "embeddings.LayerNorm"),
    ];
    let mut model = encoder("nomic-bert");
    for (name, tensor) in std::mem::take(&mut model.tensors) {
        let Some(layer) = name.strip_suffix("attn.Wqkv.weight") else {
            let renamed = parts.iter().fold(name, |name, (published, ours)| name.replace(published, ours));
            model.tensors.insert(renamed, tensor);
            continue;
        };
        let layer = layer.replace("encoder.layers.", "layers.");
        let values = tensor.values();
        let shape = [tensor.shape[0] / 3, tensor.shape[1]];
        for (part, values) in ["q", "k", "v"].iter().zip(values.chunks_exact(values.len() / 3)) {
            model.tensors.insert(format!("{layer}self_attn.{part}_proj.weight"), Tensor::f32(&shape, values));
        }
    }
    model
}

#[test]
fn a_nomic_bert_under_its_published_names_is_the_one_under_those_of_transformers() {
    let sources = [under_new_names().write(), published().write()];
    let [(_kept, usual), (_also, renamed)] =
        sources.each_ref().map(|source| prepared(Source::Directory(source.path().into())));
    assert_eq!(renamed.config(), usual.config());
    assert!(weights(&renamed) == weights(&usual));
}

#[test]
fn an_activation_of_nomic_bert_that_is_not_gated_is_refused_by_its_name() {
    let mut model = published();
    model.config["activation_function"] = json!("gelu");
    let source = model.write();
    let refused = refusal(Source::Directory(source.path().into()), Precision::F32).to_string();
    assert!(refused.contains("activation_function is \"gelu\"; supported are swiglu and geglu"), "{refused}");
}

#[test]
fn a_decoder_whose_files_say_how_to_pool_is_an_encoder() {
    let mut model = encoder("qwen3-embed");
    model.config["architectures"] = json!(["Qwen3ForCausalLM"]);
    let source = model.write();
    let directory = source.path().to_path_buf();
    let (_kept, decoder) = prepared(Source::Directory(directory.clone()));
    assert_eq!(decoder.config().encoder, None);
    std::fs::create_dir(directory.join("1_Pooling")).unwrap();
    std::fs::write(directory.join("1_Pooling/config.json"), "{\"pooling_mode\": \"lasttoken\"}").unwrap();
    let modules = json!([{"type": "sentence_transformers.models.Pooling"}, {"type": "x.Normalize"}]);
    std::fs::write(directory.join("modules.json"), modules.to_string()).unwrap();
    let (_also, encoder) = prepared(Source::Directory(directory.clone()));
    assert!(encoder.config().encoder.is_some() && encoder.config().causal);
    let pooled = encoder.pooled().unwrap().unwrap();
    assert_eq!((pooled.pooling, pooled.normalise), (Pooling::Last, true));
    let modules = json!([{"type": "sentence_transformers.models.Dense"}]);
    std::fs::write(directory.join("modules.json"), modules.to_string()).unwrap();
    let refused = refusal(Source::Directory(directory), Precision::F32).to_string();
    assert!(refused.contains("sentence_transformers.models.Dense"), "{refused}");
}
