//! The tensors of a bundle, under the names that candle-transformers reads.

use std::collections::HashMap;
use std::path::Path;

use bundle::ModelConfig;
use candle_core::safetensors::MmapedSafetensors;
use candle_core::{Device, Result, Tensor};

/// All tensors of a file, by name.
pub(super) fn tensors(file: &Path) -> Result<HashMap<String, Tensor>> {
    // SAFETY: bundles are immutable by contract, and what candle makes of the mapping are copies.
    #[allow(unsafe_code)]
    let mapped = unsafe { MmapedSafetensors::new(file)? };
    let names = mapped.tensors().into_iter().map(|(name, _)| name);
    names.map(|name| Ok((name.clone(), mapped.load(&name, &Device::Cpu)?))).collect()
}

/// The tensors of a nomic_bert under the names that it was published with, queries, keys and values in one.
pub(super) fn published(
    config: &ModelConfig,
    held: &HashMap<String, Tensor>,
) -> Result<HashMap<String, Tensor>> {
    let mut named: Vec<(String, Vec<String>)> = vec![
        ("embeddings.word_embeddings.weight".into(), vec![config.embedding()]),
        (
            "embeddings.token_type_embeddings.weight".into(),
            config.token_type_embedding().into_iter().collect(),
        ),
    ];
    let norm = |named: &mut Vec<(String, Vec<String>)>, part: &str, norm: Option<bundle::NormNames>| {
        if let Some(norm) = norm {
            named.push((format!("{part}.weight"), vec![norm.weight]));
            named.push((format!("{part}.bias"), norm.bias.into_iter().collect()));
        }
    };
    norm(&mut named, "emb_ln", config.embedding_norm());
    for index in 0..config.layers.len() {
        let layer = config.layer(index);
        let at = |part: &str| format!("encoder.layers.{index}.{part}");
        let gate_up = layer.gate_up.weights;
        named.push((at("attn.Wqkv.weight"), layer.qkv.weights));
        named.push((at("attn.out_proj.weight"), layer.output.weights));
        named.push((at("mlp.fc12.weight"), gate_up.iter().take(1).cloned().collect()));
        named.push((at("mlp.fc11.weight"), gate_up.iter().skip(1).cloned().collect()));
        named.push((at("mlp.fc2.weight"), layer.down.weights));
        norm(&mut named, &at("norm1"), layer.post_attention_norm);
        norm(&mut named, &at("norm2"), layer.post_mlp_norm);
    }
    let mut tensors = HashMap::new();
    for (name, parts) in named {
        let parts: Vec<&Tensor> = parts.iter().filter_map(|part| held.get(part)).collect();
        match parts[..] {
            [] => {}
            [whole] => drop(tensors.insert(name, whole.clone())),
            _ => drop(tensors.insert(name, Tensor::cat(&parts, 0)?)),
        }
    }
    Ok(tensors)
}
