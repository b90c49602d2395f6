//! A bundle and a job for engines that read no weights.

use std::path::Path;

use protocol::{Job, Precision, Settings, Task};

/// A bundle in `directory` with a weights file of `weights` meaningless bytes.
pub(crate) fn bundle(directory: &Path, vocabulary: usize, weights: usize) {
    let config = format!(
        r#"{{"model_type": "llama", "hidden_size": 4, "intermediate_size": 4, "num_hidden_layers": 1,
        "num_attention_heads": 2, "vocab_size": {vocabulary}, "max_position_embeddings": 64}}"#
    );
    let manifest = format!(
        r#"{{"format": 1, "name": "nothing", "source": {{"kind": "test", "sha256": {{}}}}, "files":
        {{"f32.safetensors": {{"sha256": "", "bytes": {weights}, "derived": "for a test"}}}}}}"#
    );
    std::fs::write(directory.join("config.json"), config).unwrap();
    std::fs::write(directory.join("manifest.json"), manifest).unwrap();
    std::fs::write(directory.join("f32.safetensors"), vec![7; weights]).unwrap();
}

pub(crate) fn job(bundle: &Path, task: Task) -> Job {
    Job {
        protocol: protocol::VERSION,
        bundle: bundle.display().to_string(),
        model: serde_json::Value::Null,
        settings: Settings::on_cpu(Precision::F32, 2),
        spawned_at_ns: None,
        evict: false,
        task,
    }
}
