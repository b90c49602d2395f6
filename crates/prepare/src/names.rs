//! Names of tensors and fields. Files of one model differ in them: with or without the prefix of a body, with names that
//! transformers changes on load (transformers 5.24.0, `conversion_mapping.py`, and `base_model_prefix` of each modeling
//! file).

use bundle::{Architecture, ModelConfig};
use serde_json::{Value, json};

use crate::mxfp4;
use crate::safetensors::Entry;

/// Parts of names that are replaced, for one architecture or for all. A part is a number of whole words between dots.
const RENAMES: [(Option<Architecture>, &str, &str); 16] = [
    // BERT checkpoints converted from TensorFlow, google-bert/bert-base-uncased among them.
    (None, "LayerNorm.gamma", "LayerNorm.weight"),
    (None, "LayerNorm.beta", "LayerNorm.bias"),
    // The code published with the model.
    (Some(Architecture::NomicBert), "encoder.layers", "layers"),
    (Some(Architecture::NomicBert), "emb_ln", "embeddings.LayerNorm"),
    (Some(Architecture::NomicBert), "attn.out_proj", "self_attn.o_proj"),
    (Some(Architecture::NomicBert), "attn.Wqkv", "self_attn.qkv_proj"),
    (Some(Architecture::NomicBert), "fc11", "up_proj"),
    (Some(Architecture::NomicBert), "fc12", "gate_proj"),
    (Some(Architecture::NomicBert), "fc2", "down_proj"),
    (Some(Architecture::NomicBert), "norm1", "post_attention_layernorm"),
    (Some(Architecture::NomicBert), "norm2", "post_mlp_layernorm"),
    // transformers 5 gives it the others' name.
    (Some(Architecture::GptNeox), "embed_out", "lm_head"),
    // Of models that hear.
    (Some(Architecture::Whisper), "proj_out", "lm_head"),
    // Multimodal models, and those that transformers 5.10 to 5.23 saved.
    (None, "language_model.lm_head", "lm_head"),
    (None, "language_model.model.model", "language_model"),
    (None, "language_model.model", "language_model"),
];

/// Prefixes of a body's names in a model with a head, longest first. They are each architecture's own: `transformer.` also
/// begins distilbert's own names.
fn bodies(architecture: Architecture) -> &'static [&'static str] {
    use Architecture::{Bert, DistilBert, Gemma3, Gpt2, GptNeox, Mistral, Mpnet, NomicBert, Roberta};
    match architecture {
        Gemma3 | Mistral => &["model.language_model.", "language_model.", "model."],
        Gpt2 => &["transformer."],
        Bert => &["bert."],
        Roberta => &["roberta.", "xlm_roberta."],
        DistilBert => &["distilbert."],
        Mpnet => &["mpnet."],
        NomicBert => &["nomic_bert.", "bert."],
        GptNeox => &["gpt_neox."],
        _ => &["model."],
    }
}

/// The name by which a tensor is found, of the file's name and of the bundle's.
pub(crate) fn plain(name: &str, architecture: Architecture) -> String {
    let mut name = name.to_owned();
    for (whose, old, new) in RENAMES {
        if whose.is_none_or(|whose| whose == architecture)
            && let Some(at) = position(&name, old)
        {
            name.replace_range(at..at + old.len(), new);
        }
    }
    let bare = bodies(architecture).iter().find_map(|prefix| name.strip_prefix(prefix));
    bare.map_or(name.clone(), str::to_owned)
}

/// Where `part` is in a name, as whole words.
fn position(name: &str, part: &str) -> Option<usize> {
    name.match_indices(part).map(|(at, _)| at).find(|&at| {
        let (before, behind) = (&name[..at], &name[at + part.len()..]);
        (before.is_empty() || before.ends_with('.')) && (behind.is_empty() || behind.starts_with('.'))
    })
}

/// The tensors that a tensor consists of, by their plain names: nomic_bert's queries, keys and values are one in the files
/// of the code that was published with the model, and so are gpt_oss's experts.
pub(crate) fn parts(plain: String, entry: Entry, architecture: Architecture) -> Vec<(String, Entry)> {
    if let Some((layer, part)) =
        plain.split_once("mlp.experts.").filter(|_| architecture == Architecture::GptOss)
    {
        return experts(layer, part, &entry).unwrap_or_else(|| vec![(plain, entry)]);
    }
    const WHOLE: &str = "self_attn.qkv_proj";
    let at = position(&plain, WHOLE).filter(|_| architecture == Architecture::NomicBert);
    let (rows, bytes) = (entry.shape.first().copied().unwrap_or(0), entry.range.len());
    let (Some(at), true) = (at, rows.is_multiple_of(3) && bytes.is_multiple_of(3)) else {
        return vec![(plain, entry)];
    };
    let cut = ["q_proj", "k_proj", "v_proj"].into_iter().enumerate().map(|(place, part)| {
        let mut name = plain.clone();
        name.replace_range(at..at + WHOLE.len(), &format!("self_attn.{part}"));
        let (mut shape, start) = (entry.shape.clone(), entry.range.start + place * (bytes / 3));
        if let Some(first) = shape.first_mut() {
            *first = rows / 3;
        }
        (name, Entry { dtype: entry.dtype.clone(), shape, range: start..start + bytes / 3 })
    });
    cut.collect()
}

/// More experts than any layer has: a file must not make their names fill memory.
pub(crate) const MOST_EXPERTS: usize = 1 << 12;

/// The part of each expert: of `gate_up_proj` once as the gate and once as the other half.
fn experts(layer: &str, part: &str, entry: &Entry) -> Option<Vec<(String, Entry)>> {
    let (halves, kind): (&[&str], _) = match part {
        "gate_up_proj" => (&["gate_proj", "up_proj"], "weight"),
        "gate_up_proj_bias" => (&["gate_proj", "up_proj"], "bias"),
        "gate_up_proj_blocks" => (&["gate_proj", "up_proj"], "weight"),
        "gate_up_proj_scales" => (&["gate_proj", "up_proj"], mxfp4::SCALES),
        "down_proj_blocks" => (&["down_proj"], "weight"),
        "down_proj_scales" => (&["down_proj"], mxfp4::SCALES),
        "down_proj" => (&["down_proj"], "weight"),
        "down_proj_bias" => (&["down_proj"], "bias"),
        _ => return None,
    };
    let (&count, shape) = entry.shape.split_first().filter(|(count, _)| **count <= MOST_EXPERTS)?;
    let bytes = entry.range.len().checked_div(count).filter(|bytes| bytes * count == entry.range.len())?;
    let each = (0..count).flat_map(|expert| halves.iter().map(move |half| (expert, half)));
    let one = |(expert, half): (usize, &&str)| {
        let start = entry.range.start + expert * bytes;
        let range = start..start + bytes;
        (
            format!("{layer}mlp.experts.{expert}.{half}.{kind}"),
            Entry { dtype: entry.dtype.clone(), shape: shape.to_vec(), range },
        )
    };
    Some(each.map(one).collect())
}

// Tensors whose rows a bundle has in another order than the source.

/// How many rows the source's tensor has, and which of them each row of the bundle's is, where they differ. In a
/// bundle queries come before keys before values, heads are rotated by halves, and a gate comes first.
pub(crate) fn source_rows(config: &ModelConfig, name: &str) -> Option<(usize, Vec<usize>)> {
    let has = |part: &str| name.split('.').any(|word| word == part);
    let (dim, rotated) = (config.head_dim, config.rotary_dim());
    match config.architecture {
        Architecture::GptNeox if has("query_key_value") => {
            let parts = (0..3).flat_map(|part| (0..config.heads).map(move |head| 3 * head + part));
            let rows: Vec<usize> = parts.flat_map(|at| at * dim..(at + 1) * dim).collect();
            Some((rows.len(), rows))
        }
        Architecture::Cohere | Architecture::Glm | Architecture::Glm4 if has("q_proj") || has("k_proj") => {
            let heads = if has("q_proj") { config.heads } else { config.kv_heads };
            let evens_and_odds = (0..rotated).step_by(2).chain((1..rotated).step_by(2));
            let head: Vec<usize> = evens_and_odds.chain(rotated..dim).collect();
            let rows = (0..heads).flat_map(|at| head.iter().map(move |row| at * dim + row));
            Some((heads * dim, rows.collect()))
        }
        Architecture::GptOss if has("gate_proj") || has("up_proj") => {
            let width = config.mlp(0).width;
            let first = usize::from(has("up_proj"));
            Some((2 * width, (0..width).map(|row| 2 * row + first).collect()))
        }
        _ => None,
    }
}

/// Why a tensor with such a name is not read, by the beginning or the end of the name.
pub(crate) fn foreign(name: &str) -> Option<&'static str> {
    const BEGINNINGS: [(&str, &str); 8] = [
        ("module.", "was saved by PyTorch's DataParallel: remove \"module.\" from the names"),
        ("_orig_mod.", "was saved by torch.compile: remove \"_orig_mod.\" from the names"),
        ("base_model.model.", "was saved by PEFT: merge the adapter (merge_and_unload) and save again"),
        ("0.auto_model.", "is from sentence-transformers' state_dict: save with SentenceTransformer.save"),
        (
            "tok_embeddings.",
            "has a name of Meta's and Mistral's own files: take the model.safetensors of the hub",
        ),
        ("v_head.", "is TRL's value head, which is no part of the model: remove it"),
        ("qa_outputs.", "is the head of a ...ForQuestionAnswering, but config.json names another class"),
        ("score.", "is the head of a ...ForSequenceClassification, but config.json names another class"),
    ];
    const ENDS: [&str; 4] = [
        ".weight_g",
        ".weight_v",
        ".parametrizations.weight.original0",
        ".parametrizations.weight.original1",
    ];
    if ENDS.iter().any(|end| name.ends_with(end)) {
        return Some(
            "is a part of a weight (weight_norm), which is not supported: remove the parametrisation",
        );
    }
    BEGINNINGS.iter().find(|(beginning, _)| name.starts_with(beginning)).map(|(_, reason)| *reason)
}

/// Constants that older versions of transformers saved with the weights.
pub(crate) fn is_buffer(plain: &str) -> bool {
    [
        ".attn.bias",
        ".attn.masked_bias",
        ".attention.bias",
        ".attention.masked_bias",
        "inv_freq",
        "embeddings.position_ids",
        "embeddings.token_type_ids",
    ]
    .iter()
    .any(|part| plain.ends_with(part))
        || position(plain, "rotary_emb").is_some()
}

/// Whether a tensor belongs to a head of an encoder that no text vector goes through.
pub(crate) fn is_head(plain: &str) -> bool {
    ["pooler.", "cls.", "lm_head.", "vocab_", "head.", "decoder.", "qa_outputs."]
        .iter()
        .any(|part| plain.starts_with(part))
}

/// Whether models of this architecture may have a vision part, which is not read.
pub(crate) fn has_text_part(config: &ModelConfig) -> bool {
    matches!(config.architecture, Architecture::Gemma3 | Architecture::Mistral)
}

/// Whether a tensor belongs to that part.
pub(crate) fn sees(plain: &str) -> bool {
    ["vision_tower.", "multi_modal_projector."].iter().any(|part| plain.starts_with(part))
}

// A nomic_bert of the code that was published with the model, under the names of transformers 5.

/// The description with the names of transformers 5; `None` of one that has them already, and of other models.
pub(crate) fn described(config: &Value) -> Option<Value> {
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

#[cfg(test)]
mod tests {
    use Architecture::{Bert, DistilBert, Gemma3, Gpt2, Mistral, ModernBert, NomicBert, Qwen2, Roberta};

    use super::*;

    #[test]
    fn the_names_of_published_files_are_those_of_the_bundle() {
        let gemma3 = [
            "language_model.model",
            "model.language_model",
            "language_model.model.model",
            "model.language_model.model",
            "model",
        ];
        let gemma3 = gemma3.map(|prefix| (Gemma3, format!("{prefix}.layers.0.x"), "model.layers.0.x"));
        let others = [
            (Bert, "bert.encoder.layer.0.output.LayerNorm.gamma", "encoder.layer.0.output.LayerNorm.weight"),
            (Bert, "bert.embeddings.LayerNorm.beta", "embeddings.LayerNorm.bias"),
            (Bert, "encoder.layer.1.output.dense.weight", "bert.encoder.layer.1.output.dense.weight"),
            (Gpt2, "h.3.attn.c_attn.weight", "transformer.h.3.attn.c_attn.weight"),
            (DistilBert, "distilbert.transformer.layer.0.ffn.lin1.bias", "transformer.layer.0.ffn.lin1.bias"),
            (DistilBert, "transformer.layer.0.ffn.lin1.bias", "distilbert.transformer.layer.0.ffn.lin1.bias"),
            (Qwen2, "layers.0.mlp.up_proj.weight", "model.layers.0.mlp.up_proj.weight"),
            (NomicBert, "bert.encoder.layers.3.mlp.fc11.weight", "layers.3.mlp.up_proj.weight"),
            (NomicBert, "encoder.layers.3.norm1.bias", "layers.3.post_attention_layernorm.bias"),
            (NomicBert, "emb_ln.weight", "nomic_bert.embeddings.LayerNorm.weight"),
            (Mistral, "language_model.lm_head.weight", "lm_head.weight"),
            (Roberta, "roberta.embeddings.word_embeddings.weight", "embeddings.word_embeddings.weight"),
            (ModernBert, "model.layers.0.attn.Wqkv.weight", "layers.0.attn.Wqkv.weight"),
        ];
        let others = others.map(|(architecture, held, ours)| (architecture, held.to_owned(), ours));
        for (architecture, held, ours) in gemma3.into_iter().chain(others) {
            assert_eq!(plain(&held, architecture), plain(ours, architecture), "{held}");
        }
    }

    #[test]
    fn parts_of_words_are_left_alone() {
        for (architecture, name) in [
            (NomicBert, "layers.0.prenorm1.weight"),
            (Bert, "layers.0.mlp.fc2.weight"),
            (Bert, "a.LayerNorm.gamma2"),
        ] {
            assert_eq!(plain(name, architecture), name);
        }
    }
}
