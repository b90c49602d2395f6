//! A whole installation in a temporary directory: mock engines, a tiny model, a results directory.

use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::time::Duration;

use serde_json::Value;
use tempfile::TempDir;

/// Commands that measure: they take the flags of a comparison, and wait for a quiet machine.
const MEASURING: [&str; 4] = ["compare", "sweep", "check", "parity"];
/// Commands that judge an earlier measurement: the model is the baseline's.
const JUDGING: [&str; 2] = ["check", "diff"];
/// The cache is of all models.
const OF_NO_MODEL: &str = "list";

pub(crate) struct Installation {
    pub(crate) directory: TempDir,
    /// The driver, among the programs that cargo has built.
    pub(crate) driver: &'static str,
}

impl Installation {
    pub(crate) fn new() -> Installation {
        Installation::of_model(&config("llama"))
    }

    /// With a model that reads enough in a step for the figures of a GPU: 12 MB in f16.
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
        config["num_key_value_heads"] = 2.into();
        Installation::of_model(&config)
    }

    /// With an encoder that pools by means according to its files, and four texts.
    pub(crate) fn encoder() -> Installation {
        Installation::encoder_of("BertModel")
    }

    /// With an encoder of this class of transformers', one label if it has a head, four texts and two pairs.
    pub(crate) fn encoder_of(class: &str) -> Installation {
        let installation = Installation::of_model(&serde_json::json!({
            "model_type": "bert", "hidden_size": 32, "intermediate_size": 32, "num_hidden_layers": 1,
            "num_attention_heads": 2, "vocab_size": 256, "max_position_embeddings": 64, "hidden_act": "gelu",
            "architectures": [class], "id2label": {"0": "LABEL_0"}
        }));
        std::fs::create_dir_all(installation.path("configs/texts")).unwrap();
        let pairs = "[\"who\", \"me\"]\n{\"query\": \"what is it\", \"text\": \"that\"}\n";
        std::fs::write(installation.path("configs/texts/pairs.jsonl"), pairs).unwrap();
        keep(&installation, bundle::POOLING, "{\"pooling\": \"mean\", \"normalise\": false}");
        let texts = "a text\none that is longer\nb\nsome more words\n";
        std::fs::write(installation.path("configs/texts/encoders.txt"), texts).unwrap();
        installation
    }

    fn of_model(config: &Value) -> Installation {
        let installation = Installation { directory: tempfile::tempdir().unwrap(), driver: "photofinish" };
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

    /// A mock engine that takes exactly the times in its options, however loaded the machine is.
    pub(crate) fn timed(self, name: &str, options: &[(&str, &str)]) -> Installation {
        self.engine(name, &[options, &[("clock", "scripted")]].concat())
    }

    /// With more lines for its configuration.
    pub(crate) fn configured(self, name: &str, options: &[(&str, &str)], more: &str) -> Installation {
        let options = options.iter().map(|(option, value)| format!("{option} = \"{value}\"\n"));
        let options = options.collect::<String>();
        self.of_worker(name, "mock", "engine-mock", &format!("[options]\n{options}{more}"));
        self
    }

    /// Adds an engine of any framework and worker, with more lines for its configuration.
    pub(crate) fn of_worker(&self, name: &str, framework: &str, worker: &str, more: &str) {
        let text = format!("framework = {framework:?}\nworker = {worker:?}\nsummary = \"\"\n{more}");
        std::fs::write(self.path(&format!("configs/engines/{name}.toml")), text).unwrap();
    }

    /// Adds a program.
    pub(crate) fn script(&self, name: &str, text: &str) -> PathBuf {
        let path = self.path(name);
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        std::fs::write(&path, text).unwrap();
        std::fs::set_permissions(&path, std::os::unix::fs::PermissionsExt::from_mode(0o755)).unwrap();
        path
    }

    /// The driver with the words of this line and all paths, and without provisioning. Tests run at the same
    /// time, so that the noise that they make for each other is accepted.
    pub(crate) fn driver(&self, line: &str) -> Command {
        let mut command = self.guarded(line);
        if MEASURING.contains(&command_of(line)) {
            command.arg("--accept-noise");
        }
        command
    }

    /// As [`Self::driver`], on its guard against noise.
    pub(crate) fn guarded(&self, line: &str) -> Command {
        let workers = program("engine-mock").parent().unwrap().to_path_buf();
        let (mut command, name) = (Command::new(program(self.driver)), command_of(line));
        command.args(shlex::split(line).unwrap());
        let judges = JUDGING.contains(&name);
        if MEASURING.contains(&name) || judges {
            command.arg("--results-dir").arg(self.path("results"));
        }
        if !line.contains("--model ") && !judges && name != OF_NO_MODEL {
            command.arg("--model").arg(self.path("model"));
        }
        command.arg("--configs").arg(self.path("configs")).arg("--workers").arg(workers);
        command.env("XDG_CACHE_HOME", self.path("cache")).env("PHOTOFINISH_PROVISIONED", "1");
        command
    }

    pub(crate) fn run(&self, line: &str) -> Ran {
        Ran::output_of(&mut self.driver(line))
    }

    /// Its output as JSON; it must exit with this code.
    pub(crate) fn json(&self, code: i32, line: &str) -> Value {
        self.run(&format!("{line} --format json")).exits(code).json()
    }

    /// Asserts that each line is refused as bad usage with these words.
    pub(crate) fn refuses(&self, lines: &[(&str, &[&str])]) {
        lines.iter().for_each(|(line, parts)| self.run(line).refused(parts));
    }

    /// The directories of all results, oldest first.
    pub(crate) fn all_results(&self) -> Vec<PathBuf> {
        let entries = std::fs::read_dir(self.path("results")).unwrap().map(|entry| entry.unwrap().path());
        let mut directories: Vec<_> = entries.filter(|entry| entry.is_dir()).collect();
        directories.sort();
        directories
    }

    /// The only results directory there is.
    pub(crate) fn results(&self) -> PathBuf {
        <[PathBuf; 1]>::try_from(self.all_results()).expect("one results directory")[0].clone()
    }

    pub(crate) fn result(&self, name: &str) -> String {
        std::fs::read_to_string(self.results().join(name)).unwrap()
    }

    pub(crate) fn records(&self) -> Vec<Value> {
        lines(&std::fs::read_to_string(self.path("results/history.jsonl")).unwrap())
    }

    /// The messages of the measured processes up to the end of their warm-up.
    pub(crate) fn samples(&self) -> Vec<Value> {
        let mut samples = self.all_samples();
        samples.retain(|fact| fact["fact"] == "warm" && fact["purpose"] == "measure");
        samples
    }

    pub(crate) fn all_samples(&self) -> Vec<Value> {
        lines(&self.result("samples.jsonl"))
    }
}

/// Adds a file to a bundle and to its manifest.
pub(crate) fn keep(installation: &Installation, name: &str, content: &str) {
    let (path, manifest) = (installation.path("model").join(name), installation.path("model/manifest.json"));
    std::fs::write(&path, content).unwrap();
    let mut value = read(&manifest);
    let sha256 = bundle::sha256_of(&path).unwrap();
    value["files"][name] =
        serde_json::json!({"sha256": sha256, "bytes": content.len(), "derived": "written"});
    std::fs::write(manifest, value.to_string()).unwrap();
}

pub(crate) fn program(name: &str) -> PathBuf {
    let program = assert_cmd::cargo::cargo_bin("photofinish");
    let program = program.with_file_name(format!("{name}{}", std::env::consts::EXE_SUFFIX));
    assert!(program.is_file(), "build it first: cargo build --release -p {name}");
    program
}

/// The program with the words of this line alone.
pub(crate) fn photofinish(line: &str) -> Command {
    let mut command = Command::new(program("photofinish"));
    command.args(shlex::split(line).unwrap());
    command
}

/// What that prints, with these results.
pub(crate) fn of_results(results: &Path, line: &str) -> Ran {
    Ran::output_of(photofinish(line).arg("--results-dir").arg(results))
}

/// Starts a command whose output nobody reads.
pub(crate) fn unheard(mut command: Command) -> Child {
    command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap()
}

/// Starts a command whose output is read when it has ended.
pub(crate) fn heard(mut command: Command) -> Child {
    command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap()
}

fn command_of(line: &str) -> &str {
    line.split_whitespace().next().filter(|first| !first.starts_with('-')).unwrap_or("compare")
}

pub(crate) fn read(path: &Path) -> Value {
    serde_json::from_str(&std::fs::read_to_string(path).unwrap()).unwrap()
}

/// JSON, line by line.
pub(crate) fn lines(text: &str) -> Vec<Value> {
    text.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
}

pub(crate) fn array(value: &Value) -> &[Value] {
    value.as_array().unwrap_or_else(|| panic!("no list: {value}"))
}

/// The row of a framework in a report.
pub(crate) fn row<'a>(report: &'a Value, framework: &str) -> &'a Value {
    array(&report["rows"]).iter().find(|row| row["framework"] == framework).unwrap()
}

/// The verdict about a metric, of two frameworks.
pub(crate) fn verdict<'a>(report: &'a Value, metric: &str) -> &'a Value {
    array(&report["comparisons"]).iter().find(|one| one["metric"] == metric).unwrap()
}

pub(crate) fn rule<'a>(report: &'a Value, id: &str) -> &'a Value {
    array(&report["rules"]).iter().find(|rule| rule["id"] == id).unwrap()
}

/// A framework's figure for a metric.
pub(crate) fn figure(report: &Value, framework: &str, metric: &str) -> Option<f64> {
    let figures = array(&row(report, framework)["metrics"]);
    figures.iter().find(|one| one["metric"] == metric)?["typical"].as_f64()
}

/// State and first reason of a row.
pub(crate) fn outcome<'a>(report: &'a Value, framework: &str) -> (&'a str, &'a str) {
    let row = row(report, framework);
    (row["state"].as_str().unwrap(), row["reasons"][0].as_str().unwrap_or_default())
}

/// Asserts the state of a row, and that its first reason says all of this; a reason to strike it begins so.
pub(crate) fn has_outcome(report: &Value, framework: &str, state: &str, parts: &[&str]) {
    let (found, reason) = outcome(report, framework);
    let is_said = parts.iter().all(|part| reason.contains(part));
    assert!(found == state && is_said, "{framework}: {found}: {reason}");
    assert!(found != "struck" || reason.starts_with(parts[0]), "{framework}: {reason}");
}

/// The text with its lines joined: where they break depends on the processor's name.
pub(crate) fn joined(text: &str) -> String {
    text.split_whitespace().collect::<Vec<_>>().join(" ")
}

pub(crate) struct Ran {
    pub(crate) code: Option<i32>,
    pub(crate) stdout: String,
    pub(crate) stderr: String,
}

impl From<Output> for Ran {
    fn from(output: Output) -> Ran {
        let text = |bytes| String::from_utf8(bytes).unwrap();
        Ran { code: output.status.code(), stdout: text(output.stdout), stderr: text(output.stderr) }
    }
}

impl Ran {
    pub(crate) fn output_of(command: &mut Command) -> Ran {
        command.output().unwrap().into()
    }

    /// Asserts how it ended.
    pub(crate) fn exits(self, code: i32) -> Ran {
        assert_eq!(self.code, Some(code), "{}{}", self.stdout, self.stderr);
        self
    }

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
        let mut header = serde_json::to_string(&header).unwrap();
        // As in every file of safetensors: what follows is aligned.
        header.extend(std::iter::repeat_n(' ', header.len().next_multiple_of(8) - header.len()));
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

// Processes, as the system shows them.

/// Number of processes of the only run that are warm.
pub(crate) fn samples_so_far(installation: &Installation) -> usize {
    let journals = installation.all_results().into_iter().map(|results| results.join("samples.jsonl"));
    let text: String = journals.filter_map(|journal| std::fs::read_to_string(journal).ok()).collect();
    text.matches("\"fact\":\"warm\"").count()
}

/// A process that has not ended (proc_pid_stat(5)).
pub(crate) struct Stat {
    pub(crate) is_stopped: bool,
    parent: u32,
    /// The time for which it has computed, in hundredths of a second.
    pub(crate) ticks: u64,
}

pub(crate) fn stat(pid: u32) -> Option<Stat> {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    let fields: Vec<&str> = stat.rsplit_once(')')?.1.split_whitespace().collect();
    let number = |place: usize| fields.get(place)?.parse::<u64>().ok();
    let state = *fields.first()?;
    let ticks = number(11)? + number(12)?;
    (state != "Z").then_some(Stat { is_stopped: state == "T", parent: number(1)? as u32, ticks })
}

/// The processes that this one has started, and those that they have started.
pub(crate) fn descendants(of: u32) -> Vec<u32> {
    let parent = |pid: u32| Some(stat(pid)?.parent);
    let entries = std::fs::read_dir("/proc").unwrap().flatten();
    let pids = entries.filter_map(|entry| entry.file_name().to_str()?.parse().ok());
    pids.filter(|&pid| std::iter::successors(parent(pid), |&above| parent(above)).any(|above| above == of))
        .collect()
}

/// Sends a signal, and returns whether there was a process to get it.
pub(crate) fn signal(pid: u32, name: &str) -> bool {
    let mut kill = Command::new("kill");
    kill.args([name, &pid.to_string()]).stderr(Stdio::null()).status().unwrap().success()
}

pub(crate) fn wait_for(mut condition: impl FnMut() -> bool) {
    for _ in 0..2000 {
        if condition() {
            return;
        }
        std::thread::sleep(Duration::from_millis(10));
    }
    panic!("it did not come to pass within 20 s");
}

pub(crate) fn wait_for_end(pid: u32) {
    wait_for(|| !Path::new(&format!("/proc/{pid}/exe")).exists());
}
