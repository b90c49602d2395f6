//! The mock as a worker in this process: a job in, events out.

mod job;
mod trace;

use std::path::Path;

use engine_mock::Mock;
use protocol::{Event, Job, Settings, Task};

/// A bundle of a model with 8 tokens of vocabulary and 64 positions; the mock reads no weights.
fn bundle(layers: usize) -> tempfile::TempDir {
    let directory = tempfile::tempdir().unwrap();
    let config = format!(
        r#"{{"model_type": "llama", "hidden_size": 4, "intermediate_size": 4, "num_hidden_layers": {layers},
        "num_attention_heads": 2, "vocab_size": 8, "max_position_embeddings": 64}}"#
    );
    let manifest = r#"{"format": 1, "name": "nothing", "source": {"kind": "test", "sha256": {}}, "files":
        {"f32.safetensors": {"sha256": "", "bytes": 3, "derived": "for a test"}}}"#;
    for (name, text) in [("config.json", &*config), ("manifest.json", manifest), ("f32.safetensors", "abc")] {
        std::fs::write(directory.path().join(name), text).unwrap();
    }
    directory
}

fn settings(options: &[(&str, &str)]) -> Settings {
    let options = options.iter().map(|&(name, value)| (name.to_owned(), value.to_owned())).collect();
    Settings { options, ..Settings::on_cpu(protocol::Precision::F32, 1) }
}

fn job(bundle: &Path, settings: Settings, task: Task) -> String {
    let job = Job {
        protocol: protocol::VERSION,
        bundle: bundle.display().to_string(),
        model: serde_json::Value::Null,
        settings,
        spawned_at_ns: None,
        evict: false,
        task,
    };
    serde_json::to_string(&job).unwrap()
}

/// What the first such event tells.
fn first<T>(events: &[Event], told: impl Fn(&Event) -> Option<T>) -> T {
    events.iter().find_map(told).unwrap_or_else(|| panic!("not told: {events:?}"))
}

fn events_of(job: &str, turns: &str) -> Vec<Event> {
    let mut output = Vec::new();
    let _ = worker::serve::<Mock>(job, &mut turns.as_bytes(), 0, &mut output);
    let text = String::from_utf8(output).unwrap();
    text.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
}
