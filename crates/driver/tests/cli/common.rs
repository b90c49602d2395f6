//! A whole installation in a temporary directory: mock engines, a tiny model, a results directory.

use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use serde_json::Value;
use tempfile::TempDir;

/// Commands that take the flags of a comparison.
const MEASURING: [&str; 4] = ["compare", "sweep", "ab", "check"];
/// Commands that are on their guard against noise.
const GUARDED: [&str; 5] = ["compare", "sweep", "ab", "check", "parity"];
/// Commands that judge what was measured: the model is the baseline's.
const JUDGING: [&str; 2] = ["check", "diff"];

pub(crate) struct Installation {
    pub(crate) directory: TempDir,
}

impl Installation {
    pub(crate) fn new() -> Installation {
        Installation::of_model(&config("llama"))
    }

    /// With a model whose steps read enough for the figures of a GPU: 12 MB in f16.
    pub(crate) fn large() -> Installation {
        let mut config = config("llama");
        for (name, size) in [("hidden_size", 512), ("intermediate_size", 1536), ("num_hidden_layers", 2)] {
            config[name] = size.into();
        }
        Installation::of_model(&config)
    }

    /// With a model that generates by masked diffusion; its mask is token 15.
    pub(crate) fn diffusion() -> Installation {
        let mut config = config("Dream");
        config["mask_token_id"] = 15.into();
        Installation::of_model(&config)
    }

    fn of_model(config: &Value) -> Installation {
        let installation = Installation { directory: tempfile::tempdir().unwrap() };
        let at = |path: &str| installation.path(path);
        for directory in ["configs/engines", "configs/models", "configs/suites", "model", "cache", "results"]
        {
            std::fs::create_dir_all(at(directory)).unwrap();
        }
        let suite = "new_tokens = 6\nrounds = 6\niterations = 2\n[[prompts]]\ntokens = [1, 2, 3, 4]\n";
        std::fs::write(at("configs/suites/default.toml"), suite).unwrap();
        write_model(&at("model"), config);
        installation
    }

    pub(crate) fn path(&self, path: &str) -> PathBuf {
        self.directory.path().join(path)
    }

    /// A mock engine of this name, with these options.
    pub(crate) fn engine(self, name: &str, options: &[(&str, &str)]) -> Installation {
        self.configured(name, options, "")
    }

    /// A mock engine whose times are exactly its options', however loaded the machine is.
    pub(crate) fn timed(self, name: &str, options: &[(&str, &str)]) -> Installation {
        self.engine(name, &[options, &[("clock", "scripted")]].concat())
    }

    /// With more lines for its configuration.
    pub(crate) fn configured(self, name: &str, options: &[(&str, &str)], more: &str) -> Installation {
        let mut text =
            String::from("framework = \"mock\"\nworker = \"engine-mock\"\nsummary = \"\"\n[options]\n");
        for (option, value) in options {
            text += &format!("{option} = \"{value}\"\n");
        }
        text += more;
        std::fs::write(self.path(&format!("configs/engines/{name}.toml")), text).unwrap();
        self
    }

    /// The driver, told where everything is, and to provision nothing. Tests run beside each other, so the
    /// noise that they make for each other is accepted.
    pub(crate) fn driver(&self, arguments: &[&str]) -> Command {
        let named = arguments.first().is_some_and(|first| !first.starts_with('-'));
        let mut command = self.guarded(arguments);
        if !named || GUARDED.contains(&arguments[0]) {
            command.arg("--accept-noise");
        }
        command
    }

    /// As [`Self::driver`], on its guard against noise.
    pub(crate) fn guarded(&self, arguments: &[&str]) -> Command {
        let binary = assert_cmd::cargo::cargo_bin("photofinish");
        let workers = binary.parent().unwrap().to_path_buf();
        let mock = workers.join(format!("engine-mock{}", std::env::consts::EXE_SUFFIX));
        assert!(mock.is_file(), "build the mock first: cargo build --release -p engine-mock");
        let mut command = Command::new(binary);
        command.args(arguments);
        let named = arguments.first().is_some_and(|first| !first.starts_with('-'));
        let measures = !named || MEASURING.contains(&arguments[0]);
        let judges = arguments.first().is_some_and(|first| JUDGING.contains(first));
        if measures || judges {
            command.arg("--results-dir").arg(self.path("results"));
        }
        // A plan says which model it is for, what is merged needs no installation, and bundles are of all models.
        let has_none = ["run", "merge", "bundles"].contains(&arguments[0]);
        if !arguments.contains(&"--model") && !judges && !has_none {
            command.arg("--model").arg(self.path("model"));
        }
        if arguments[0] != "merge" {
            command.arg("--configs").arg(self.path("configs")).arg("--workers").arg(&workers);
        }
        command.env("XDG_CACHE_HOME", self.path("cache")).env("PHOTOFINISH_PROVISIONED", "1");
        command
    }

    pub(crate) fn run(&self, arguments: &[&str]) -> Ran {
        Ran::from(self.driver(arguments).output().unwrap())
    }

    /// The only results directory there is.
    pub(crate) fn results(&self) -> PathBuf {
        let entries = std::fs::read_dir(self.path("results")).unwrap().map(|entry| entry.unwrap().path());
        let mut directories = entries.filter(|entry| entry.is_dir());
        let directory = directories.next().expect("a results directory");
        assert!(directories.next().is_none(), "one results directory");
        directory
    }

    /// What the processes that were measured said up to the end of their warm-up.
    pub(crate) fn samples(&self) -> Vec<Value> {
        let mut samples = self.all_samples();
        samples.retain(|fact| fact["fact"] == "warm" && fact["purpose"] == "measure");
        samples
    }

    /// Every fact of the journal.
    pub(crate) fn all_samples(&self) -> Vec<Value> {
        let text = std::fs::read_to_string(self.results().join("samples.jsonl")).unwrap();
        text.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
    }
}

/// The row of a framework in a report.
pub(crate) fn row<'a>(report: &'a Value, framework: &str) -> &'a Value {
    let rows = report["rows"].as_array().unwrap();
    rows.iter().find(|row| row["framework"] == framework).unwrap()
}

pub(crate) struct Ran {
    pub(crate) code: Option<i32>,
    pub(crate) stdout: String,
    pub(crate) stderr: String,
}

impl From<Output> for Ran {
    fn from(output: Output) -> Ran {
        Ran {
            code: output.status.code(),
            stdout: String::from_utf8(output.stdout).unwrap(),
            stderr: String::from_utf8(output.stderr).unwrap(),
        }
    }
}

impl Ran {
    pub(crate) fn json(&self) -> Value {
        serde_json::from_str(&self.stdout).unwrap_or_else(|e| panic!("{e}: {}\n{}", self.stdout, self.stderr))
    }

    /// Asserts bad usage: exit 2, one sentence on stderr that says all of this, nothing on stdout.
    pub(crate) fn refused(&self, parts: &[&str]) {
        assert_eq!(self.code, Some(2), "{}{}", self.stdout, self.stderr);
        assert_eq!(self.stdout, "");
        for part in parts {
            assert!(self.stderr.contains(part), "{part:?} is not in: {}", self.stderr);
        }
        assert!(!self.stderr.contains("panicked"), "{}", self.stderr);
    }
}

fn config(model_type: &str) -> Value {
    serde_json::json!({
        "model_type": model_type, "hidden_size": 32, "intermediate_size": 32, "num_hidden_layers": 1,
        "num_attention_heads": 2, "vocab_size": 16, "max_position_embeddings": 64, "tie_word_embeddings": true
    })
}

/// A bundle of a model with a vocabulary of 16 and a context of 64. The mock reads no weights, but the
/// driver checks their shapes and hash, so they are real: zeros.
fn write_model(directory: &Path, config: &Value) {
    std::fs::write(directory.join("config.json"), config.to_string()).unwrap();
    let config = bundle::ModelConfig::read(&directory.join("config.json")).unwrap();
    let mut files = serde_json::Map::new();
    use bundle::Precision::{Bf16, F16, F32, Int8};
    for precision in [F32, Bf16, F16, Int8] {
        let mut header = serde_json::Map::new();
        let mut end = 0;
        for tensor in config.stored(precision).unwrap() {
            let (kind, next) = (tensor.element.name(), end + tensor.bytes() as usize);
            let entry =
                serde_json::json!({"dtype": kind, "shape": tensor.shape, "data_offsets": [end, next]});
            header.insert(tensor.name, entry);
            end = next;
        }
        let header = serde_json::to_string(&header).unwrap();
        let mut file = (header.len() as u64).to_le_bytes().to_vec();
        file.extend_from_slice(header.as_bytes());
        file.resize(file.len() + end, 0);
        let path = directory.join(precision.file_name());
        std::fs::write(&path, &file).unwrap();
        let sha256 = bundle::sha256_of(&path).unwrap();
        let record = serde_json::json!({"sha256": sha256, "bytes": file.len(), "derived": "zeros"});
        files.insert(precision.file_name(), record);
    }
    let manifest = serde_json::json!({
        "format": bundle::MANIFEST_FORMAT, "name": "nothing", "source": {"kind": "test", "sha256": {}}, "files": files
    });
    std::fs::write(directory.join(bundle::MANIFEST), manifest.to_string()).unwrap();
}
