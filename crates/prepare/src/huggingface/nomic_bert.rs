//! A nomic_bert of the code that was published with the model, under the names of transformers 5.

use std::collections::BTreeMap;

use serde_json::{Value, json};

use crate::safetensors::Entry;

/// The description with the names of transformers 5; `None` of one that has them already, and of other models.
pub(super) fn described(config: &Value) -> Option<Value> {
    const NAMES: [(&str, &str); 5] = [
        ("n_embd", "hidden_size"),
        ("n_inner", "intermediate_size"),
        ("n_layer", "num_hidden_layers"),
        ("n_head", "num_attention_heads"),
        ("layer_norm_epsilon", "layer_norm_eps"),
    ];
    let mut fields = config.as_object().filter(|fields| fields.contains_key("n_embd"))?.clone();
    if fields.get("model_type")? != "nomic_bert" {
        return None;
    }
    for (published, name) in NAMES {
        if let Some(value) = fields.remove(published) {
            fields.insert(name.to_owned(), value);
        }
    }
    // Beyond those that it was trained on, frequencies change with the length of the text.
    let positions =
        ["n_positions", "max_trained_positions"].map(|name| fields.get(name).and_then(Value::as_u64));
    if let Some(positions) = positions.into_iter().flatten().min() {
        fields.insert("max_position_embeddings".to_owned(), positions.into());
    }
    // Another activation stays, and is refused by its name.
    let gated = match fields.get("activation_function").and_then(Value::as_str) {
        None | Some("swiglu") => Some("silu"),
        Some("geglu") => Some("gelu"),
        Some(_) => None,
    };
    if let Some(activation) = gated {
        fields.remove("activation_function");
        fields.insert("hidden_act".to_owned(), activation.into());
    }
    let theta = fields.remove("rotary_emb_base").unwrap_or(json!(1000.0));
    fields.insert("rope_parameters".to_owned(), json!({ "rope_theta": theta, "rope_type": "default" }));
    fields.remove("auto_map");
    Some(Value::Object(fields))
}

/// The tensors of a nomic_bert under the names of transformers 5, where they have those of the code that was published with
/// the model: there, queries, keys and values are one tensor.
pub(super) fn tensors(held: BTreeMap<String, (usize, Entry)>) -> BTreeMap<String, (usize, Entry)> {
    const PARTS: [(&str, &str); 7] = [
        ("attn.out_proj.", "self_attn.o_proj."),
        ("mlp.fc11.", "mlp.up_proj."),
        ("mlp.fc12.", "mlp.gate_proj."),
        ("mlp.fc2.", "mlp.down_proj."),
        ("norm1.", "post_attention_layernorm."),
        ("norm2.", "post_mlp_layernorm."),
        ("emb_ln.", "embeddings.LayerNorm."),
    ];
    let mut renamed = BTreeMap::new();
    for (name, (shard, entry)) in held {
        let mut new = name.replace("encoder.layers.", "layers.");
        let Some((layer, kind)) = new.split_once("attn.Wqkv.").filter(|(layer, _)| layer.ends_with('.'))
        else {
            for (published, part) in PARTS {
                // `.` before a part, or the beginning: `norm1` is no end of another word.
                let found = new.find(published);
                if let Some(at) = found.filter(|&at| at == 0 || new.as_bytes()[at - 1] == b'.') {
                    new.replace_range(at..at + published.len(), part);
                }
            }
            renamed.insert(new, (shard, entry));
            continue;
        };
        let rows = entry.shape.first().copied().unwrap_or(0);
        let bytes = entry.range.len();
        if !rows.is_multiple_of(3) || !bytes.is_multiple_of(3) {
            renamed.insert(name, (shard, entry));
            continue;
        }
        for (place, part) in ["q_proj", "k_proj", "v_proj"].into_iter().enumerate() {
            let start = entry.range.start + place * (bytes / 3);
            let mut shape = entry.shape.clone();
            shape[0] = rows / 3;
            let part_of = Entry { dtype: entry.dtype.clone(), shape, range: start..start + bytes / 3 };
            renamed.insert(format!("{layer}self_attn.{part}.{kind}"), (shard, part_of));
        }
    }
    renamed
}
