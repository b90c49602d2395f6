//! However large a model is, only pieces of its tensors are in memory.
#![expect(clippy::disallowed_methods, reason = "the peak of a process is that of a process of its own")]

use std::process::{Command, Stdio};
use std::time::Duration;

use half::bf16;
use serde_json::json;

use crate::common::{Model, Tensor};

/// Rows and columns of the largest tensor: 96 MiB in f32.
const VOCABULARY: usize = 49_152;
const WIDTH: usize = 512;

/// A llama with small layers and a large embedding, in bf16.
fn model() -> Model {
    let mut model = Model::tiny("llama-gqa-tied");
    let layers = 1;
    model.config = json!({
        "model_type": "llama", "hidden_size": WIDTH, "intermediate_size": 64, "num_hidden_layers": layers,
        "num_attention_heads": 8, "vocab_size": VOCABULARY, "max_position_embeddings": 64,
        "tie_word_embeddings": true
    });
    let config = bundle::ModelConfig::from_json(&model.config).unwrap();
    let tensor = |shape: &[usize]| {
        let count: usize = shape.iter().product();
        let values = (0..count).map(|i| bf16::from_f32((i % 251) as f32 / 251.0 - 0.5));
        let bytes = values.flat_map(|value| value.to_le_bytes()).collect();
        Tensor { dtype: "BF16".into(), shape: shape.to_vec(), bytes }
    };
    model.tensors = config.tensors().into_iter().map(|spec| (spec.name, tensor(&spec.shape))).collect();
    model
}

/// The most memory that a process has had so far, file pages included, in bytes.
fn peak(process: u32) -> Option<usize> {
    let status = std::fs::read_to_string(format!("/proc/{process}/status")).ok()?;
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:"))?;
    Some(1024 * line.trim().trim_end_matches(" kB").parse::<usize>().ok()?)
}

#[test]
fn the_peak_is_below_1_2_times_the_largest_tensor_in_f32() {
    let (source, bundles) = (model().write(), tempfile::tempdir().unwrap());
    let mut command = Command::new(assert_cmd::cargo::cargo_bin("prepare"));
    command.arg(source.path()).args(["--precision", "f32,bf16,int8,int4,nf4", "--quiet", "--bundles"]);
    command.arg(bundles.path()).stdout(Stdio::null());
    let mut process = command.spawn().unwrap();
    let mut most = 0;
    let status = loop {
        most = most.max(peak(process.id()).unwrap_or(0));
        if let Some(status) = process.try_wait().unwrap() {
            break status;
        }
        std::thread::sleep(Duration::from_millis(1));
    };
    assert!(status.success());
    let largest = 4 * VOCABULARY * WIDTH;
    assert!(most > 0 && 5 * most < 6 * largest, "{most} bytes at its peak; the tensor has {largest}");
}
