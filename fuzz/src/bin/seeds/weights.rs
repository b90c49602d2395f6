//! Seeds of safetensors files, and of the files next to them.

use anyhow::Result;
use fuzz::root;
use serde_json::{Map, Value, json};

/// Every tensor is in the one file that there is.
pub(crate) fn index() -> Result<String> {
    let file = |name: String| (name, Value::String("inside.safetensors".to_owned()));
    let map: Map<_, _> = config()?.tensors().into_iter().map(|tensor| file(tensor.name)).collect();
    Ok(json!({"metadata": {"total_size": 8}, "weight_map": map}).to_string())
}

fn config() -> Result<bundle::ModelConfig> {
    let config: Value = serde_json::from_slice(&std::fs::read(root().join("scene/config.json"))?)?;
    Ok(bundle::ModelConfig::from_json(&config)?)
}

/// The weights that the scene's configuration calls for, in each type that weights may have.
pub(crate) fn files() -> Result<Vec<(String, Vec<u8>)>> {
    let config = config()?;
    let file = |dtype: &str, bytes: usize| {
        let mut header = Map::new();
        let mut data: Vec<u8> = Vec::new();
        for tensor in config.tensors() {
            let begin = data.len();
            let elements: usize = tensor.shape.iter().product();
            // Small numbers in each of the types.
            data.extend(
                (0..elements * bytes).map(|at| if at % bytes == bytes - 1 { 0x3c } else { at as u8 }),
            );
            let offsets = [begin, data.len()];
            header
                .insert(tensor.name, json!({"dtype": dtype, "shape": tensor.shape, "data_offsets": offsets}));
        }
        let header = Value::Object(header).to_string();
        [&(header.len() as u64).to_le_bytes(), header.as_bytes(), &data].concat()
    };
    Ok([("F32", 4), ("BF16", 2), ("F16", 2)]
        .map(|(dtype, bytes)| (dtype.to_lowercase(), file(dtype, bytes)))
        .to_vec())
}

pub(crate) fn manifest() -> Vec<u8> {
    let sha256 = "0".repeat(64);
    json!({
        "format": bundle::MANIFEST_FORMAT, "name": "tiny",
        "source": {"kind": "huggingface", "sha256": {"config.json": sha256, "model.safetensors": sha256}},
        "files": {
            "config.json": {"sha256": sha256, "bytes": 700, "derived": "the source's config.json, verbatim"},
            "f32.safetensors": {"sha256": sha256, "bytes": 602_800, "derived": "weights from model.safetensors"}
        }
    })
    .to_string()
    .into_bytes()
}
