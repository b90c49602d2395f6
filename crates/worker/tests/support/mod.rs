//! An engine that answers at once, its bundle, and jobs for it.

use std::path::Path;

use engine::{
    Bundle, Device, EngineError, InEffect, InferenceEngine, KvCachePolicy, Precision, Runtime, Settings, Want,
};
use protocol::{Event, Job, Task};

pub(crate) const VOCABULARY: usize = 8;

/// Logits that depend on how many tokens have gone before.
pub(crate) struct Counting {
    appended: usize,
    batch: usize,
    logits: Vec<f32>,
}

/// What [`Counting::append`] sleeps, at least.
pub(crate) const APPEND: std::time::Duration = std::time::Duration::from_millis(1);

impl InferenceEngine for Counting {
    const FRAMEWORK: &'static str = "counting";

    fn runtime() -> Result<Runtime, EngineError> {
        let name = || "counting".to_owned();
        Ok(Runtime { binding: name(), library: name(), library_path: None, cpu_capability: None })
    }

    fn load(_: &Bundle, _: &Settings) -> Result<Self, EngineError> {
        Ok(Counting { appended: 0, batch: 0, logits: Vec::new() })
    }

    fn in_effect(&self) -> InEffect {
        InEffect {
            weights: Precision::F32,
            activations: "f32".into(),
            kv_cache: "f32".into(),
            kv_cache_policy: KvCachePolicy::Preallocated,
            device: Device::Cpu,
            threads: 1,
            jit: "none".into(),
            optimised: None,
            weight_storage: "none".into(),
            kernels: vec!["counting".into()],
        }
    }

    fn begin(&mut self, batch: usize, _: usize) -> Result<(), EngineError> {
        (self.batch, self.appended) = (batch, 0);
        Ok(())
    }

    fn append(&mut self, tokens: &[u32], want: Want) -> Result<&[f32], EngineError> {
        std::thread::sleep(APPEND);
        let positions = tokens.len() / self.batch;
        let rows = self.batch * if want == Want::All { positions } else { 1 };
        self.appended += positions;
        self.logits.clear();
        self.logits.extend((0..rows * VOCABULARY).map(|i| ((self.appended * 31 + i * 7) % 13) as f32));
        Ok(&self.logits)
    }
}

/// A bundle in `directory` whose weights file holds `weights` bytes of no meaning.
pub(crate) fn bundle(directory: &Path, weights: usize) {
    let config = format!(
        r#"{{"model_type": "llama", "hidden_size": 4, "intermediate_size": 4, "num_hidden_layers": 1,
        "num_attention_heads": 2, "vocab_size": {VOCABULARY}, "max_position_embeddings": 64}}"#
    );
    let manifest = r#"{"format": 1, "name": "nothing", "source": {"kind": "test", "sha256": {}}, "files":
        {"f32.safetensors": {"sha256": "", "bytes": 3, "derived": "for a test"}}}"#;
    std::fs::write(directory.join("config.json"), config).unwrap();
    std::fs::write(directory.join("manifest.json"), manifest).unwrap();
    std::fs::write(directory.join("f32.safetensors"), vec![7; weights]).unwrap();
}

pub(crate) fn job(bundle: &Path, task: Task) -> Job {
    Job {
        protocol: protocol::VERSION,
        bundle: bundle.display().to_string(),
        settings: protocol::Settings {
            precision: "f32".into(),
            device: "cpu".into(),
            threads: 2,
            jit: true,
            hidden_states: false,
            options: Default::default(),
            slowdown: 0.0,
        },
        spawned_at_ns: None,
        evict: false,
        task,
    }
}

/// The events that a worker of [`Counting`] answers with.
pub(crate) fn serve(job: &Job) -> Vec<Event> {
    let mut output = Vec::new();
    // How it ends is the last event.
    let _ = worker::serve::<Counting>(&serde_json::to_string(job).unwrap(), 0, &mut output);
    String::from_utf8(output).unwrap().lines().map(|line| serde_json::from_str(line).unwrap()).collect()
}
