//! Models that `prepare` accepts and that try an engine most, run for two tokens by the workers that were built.
//! `cargo xtask test` builds them first; a worker that is not there is reported as ignored.

use std::path::{Path, PathBuf};

use bundle::Precision;
use fuzz::models::{Ended, Model, Worker, originals, prepared};
use libtest_mimic::{Arguments, Failed, Trial};
use serde_json::{Value, json};

/// A name, the model, and the change of its configuration.
type Change = (&'static str, &'static str, fn(&mut Value));

/// Changes of a configuration. Every one of these is accepted.
const CHANGES: [Change; 7] = [
    ("the longest context there is", "llama-gqa-tied", |config| {
        config["max_position_embeddings"] = json!((1 << 28) - 1);
    }),
    ("a context of one token", "qwen3-qknorm", |config| config["max_position_embeddings"] = json!(1)),
    ("heads of two numbers", "llama-gqa-tied", |config| {
        config["num_attention_heads"] = json!(32);
        config["num_key_value_heads"] = json!(16);
        config["head_dim"] = json!(2);
    }),
    ("an epsilon of nothing", "qwen2-bias", |config| config["rms_norm_eps"] = json!(0.0)),
    ("an epsilon beyond f32", "llama-gqa-tied", |config| config["rms_norm_eps"] = json!(1e300)),
    ("a rotation that hardly turns", "llama-gqa-tied", |config| {
        config["rope_parameters"] = json!({"rope_theta": 1e308, "rope_type": "default"});
    }),
    ("a rotation that is divided away", "llama3-rope-scaled", |config| {
        config["rope_parameters"] = json!({
            "rope_theta": 10000.0, "rope_type": "llama3", "factor": 1e6, "low_freq_factor": 1.0,
            "high_freq_factor": 4.0, "original_max_position_embeddings": 8192
        });
    }),
];

fn main() {
    let binaries = Path::new(env!("CARGO_MANIFEST_DIR")).join("../target/release");
    let mut trials = Vec::new();
    for framework in ["candle", "tch", "ort"] {
        let worker = Worker::find(framework, &binaries);
        for (name, model) in models() {
            let (worker, title) = (worker.clone(), format!("{framework}: {name}"));
            let is_absent = worker.is_none();
            trials.push(Trial::test(title, move || run(worker, &model)).with_ignored_flag(is_absent));
        }
    }
    libtest_mimic::run(&Arguments::from_args(), trials).exit();
}

fn models() -> Vec<(String, Model)> {
    let originals = originals().unwrap();
    let original = |name: &str| originals.iter().find(|(known, _)| known == name).unwrap().1.clone();
    let changed = CHANGES.iter().map(|(title, name, change)| {
        let Model::Directory(mut files) = original(name) else { panic!("{name} is a directory") };
        let mut config: Value = serde_json::from_slice(&files["config.json"]).unwrap();
        change(&mut config);
        files.insert("config.json".to_owned(), config.to_string().into_bytes());
        ((*title).to_owned(), Model::Directory(files))
    });
    // Each architecture and each family of types of GGUF, as they are.
    let ggufs = originals.iter().filter(|(_, model)| matches!(model, Model::Gguf(_))).cloned();
    changed.chain(ggufs).collect()
}

fn run(worker: Option<Worker>, model: &Model) -> Result<(), Failed> {
    let worker = worker.ok_or("the worker was not built")?;
    let scratch = tempfile::tempdir()?;
    let bundle: PathBuf = prepared(model, Precision::F32, scratch.path())?
        .map_err(|refusal| format!("it was to be accepted: {refusal}"))?;
    match worker.run(&bundle, Precision::F32, scratch.path())? {
        Ended::Computed | Ended::Refused(_) => Ok(()),
        Ended::Finding(what) => Err(what.into()),
    }
}
