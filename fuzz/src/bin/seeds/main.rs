//! Writes the seeds of every target, `corpus/NAME/seed-…`, from files of this repository. Files with other
//! names, which were findings, stay.
//!
//! They are small: a change of a byte changes more of the meaning of a small file.

mod gguf;
mod weights;

use std::fs;
use std::io::{Cursor, Write};
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use driver::measure;
use fuzz::{TARGETS, Target, root};
use protocol::Tensor;
use serde_json::Value;
use zip::CompressionMethod;
use zip::write::SimpleFileOptions;

fn main() -> Result<()> {
    for target in &TARGETS {
        let directory = root().join("corpus").join(target.name);
        fs::create_dir_all(&directory)?;
        for file in target.corpus()? {
            if file.file_name().is_some_and(|name| name.to_string_lossy().starts_with("seed-")) {
                fs::remove_file(file)?;
            }
        }
        let seeds = seeds(target).with_context(|| format!("the seeds of {}", target.name))?;
        let bytes: usize = seeds.iter().map(|(_, seed)| seed.len()).sum();
        println!("{}: {} seeds, {bytes} bytes", target.name, seeds.len());
        for (name, seed) in seeds {
            fs::write(directory.join(format!("seed-{name}")), seed)?;
        }
    }
    Ok(())
}

/// Names and contents.
type Seeds = Vec<(String, Vec<u8>)>;

fn seeds(target: &Target) -> Result<Seeds> {
    match target.name {
        "gguf" => gguf::seeds(),
        "safetensors" => weights::files(),
        "onnx" => onnx(),
        "index" => Ok(vec![("one-file".to_owned(), weights::index()?.into())]),
        "config" => of_tiny_models("config.json"),
        "tokenizer" => gguf::tokenizers(),
        "manifest" => Ok(vec![("bundle".to_owned(), weights::manifest())]),
        "events" => Ok(vec![("processes".to_owned(), events()?)]),
        "job" => Ok(vec![("measure".to_owned(), job()?)]),
        "journal" => journals(),
        "report" | "page" => {
            Ok(vec![("run".to_owned(), read(&repository().join("results/published/report.json"))?)])
        }
        "history" => Ok(vec![("four".to_owned(), first_lines("docs/examples/history.jsonl", 4)?)]),
        "plan" => Ok(vec![("run".to_owned(), read(&repository().join("results/published/plan.json"))?)]),
        "configs" => configs(),
        "prompts" => prompts(),
        "arrays" => arrays(),
        "vocabulary" => vocabularies(),
        "text" => Ok(vec![("hostile".to_owned(), "=1+1 \u{1b}[2J <b>|x|</b>\r\nGröße \u{202e}".into())]),
        other => anyhow::bail!("nobody says what the seeds of {other} are"),
    }
}

/// One of each format that comes before tokenizer.json.
fn vocabularies() -> Result<Seeds> {
    let data = repository().join("crates/prepare/tests/data");
    Ok(vec![
        ("bpe".to_owned(), read(&data.join("bpe.model"))?),
        ("bytes".to_owned(), br#"{"a":0,"b":1,"ab":2}"#.to_vec()),
        ("words".to_owned(), b"[UNK]\n[CLS]\n[SEP]\n[PAD]\n[MASK]\na\n##b\n".to_vec()),
    ])
}

fn repository() -> PathBuf {
    root().join("..")
}

fn read(path: &Path) -> Result<Vec<u8>> {
    fs::read(path).with_context(|| path.display().to_string())
}

fn results(name: &str) -> PathBuf {
    repository().join("crates/comparison/tests/fixtures/candle-ort").join(name)
}

fn of_tiny_models(name: &str) -> Result<Seeds> {
    let mut seeds = Seeds::new();
    for model in ["gpt2", "llama-gqa-tied", "llama3-rope-scaled", "qwen2-bias", "qwen3-qknorm"] {
        let file = repository().join("crates/conformance/fixtures/tiny").join(model).join(name);
        seeds.push((model.to_owned(), read(&file)?));
    }
    Ok(seeds)
}

/// The files that engines are held to.
fn onnx() -> Result<Seeds> {
    let mut seeds = Seeds::new();
    for name in ["if-twice", "external", "inputs", "quantised"] {
        let file = repository().join("crates/conformance/graphs").join(name).with_extension("onnx");
        seeds.push((name.to_owned(), read(&file)?));
    }
    Ok(seeds)
}

/// A file of floats, one of a boolean without dimensions, and an archive.
fn arrays() -> Result<Seeds> {
    let file = |dtype: &str, shape: &[usize], data: &[u8]| {
        let tensor =
            Tensor { name: "x".into(), dtype: dtype.into(), shape: shape.to_vec(), data: data.to_vec() };
        measure::arrays::npy(&tensor).context("a type of NumPy's")
    };
    let floats = file("float32", &[2, 1, 3], &[0x3f; 24])?;
    let mut archive = zip::ZipWriter::new(Cursor::new(Vec::new()));
    for (name, method) in [("y.npy", CompressionMethod::Stored), ("x.npy", CompressionMethod::Deflated)] {
        archive.start_file(name, SimpleFileOptions::default().compression_method(method))?;
        archive.write_all(&floats)?;
    }
    let archive = archive.finish()?.into_inner();
    Ok(vec![
        ("floats".to_owned(), floats),
        ("scalar".to_owned(), file("bool", &[], &[1])?),
        ("archive".to_owned(), archive),
    ])
}

fn journal() -> Result<Vec<Value>> {
    let text = fs::read_to_string(results("samples.jsonl"))?;
    Ok(text.lines().map(serde_json::from_str).collect::<Result<_, _>>()?)
}

fn lines(values: impl IntoIterator<Item = Value>) -> Vec<u8> {
    values.into_iter().flat_map(|value| format!("{value}\n").into_bytes()).collect()
}

/// The events of the first rounds' processes, with their answers to turns before their usage.
fn events() -> Result<Vec<u8>> {
    let mut events = Vec::new();
    for run in journal()?.iter().filter(|fact| fact["purpose"] == "measure").take(4) {
        for event in run["events"].as_array().into_iter().flatten() {
            if event["event"] == "usage" {
                for turn in run["turns"].as_array().into_iter().flatten() {
                    let mut sample = turn["sample"].clone();
                    sample["event"] = "sample".into();
                    events.push(sample);
                }
            }
            events.push(event.clone());
        }
    }
    Ok(lines(events))
}

/// The first two rounds, and a block of turns as interleaved rounds have them.
fn journals() -> Result<Seeds> {
    let facts = journal()?;
    let end = facts.iter().enumerate().filter(|(_, fact)| fact["fact"] == "round_done").nth(1);
    let first = facts[..end.map_or(facts.len(), |(at, _)| at + 1)].to_vec();
    let published = fs::read_to_string(repository().join("results/published/samples.jsonl"))?;
    let mut kinds = std::collections::BTreeSet::new();
    let mut of_each_kind = Vec::new();
    for line in published.lines().filter(|line| line.len() < 8000) {
        let fact: Value = serde_json::from_str(line)?;
        if kinds.insert(fact["fact"].to_string()) {
            of_each_kind.push(fact);
        }
    }
    Ok(vec![("rounds".to_owned(), lines(first)), ("kinds".to_owned(), lines(of_each_kind))])
}

fn first_lines(file: &str, count: usize) -> Result<Vec<u8>> {
    let text = fs::read_to_string(repository().join(file))?;
    Ok(text.lines().take(count).flat_map(|line| [line, "\n"].concat().into_bytes()).collect())
}

/// The job and the turns that docs/reference/protocol.md names as an example.
fn job() -> Result<Vec<u8>> {
    read(&repository().join("docs/examples/job.jsonl"))
}

fn configs() -> Result<Seeds> {
    let mut seeds = Seeds::new();
    for file in
        ["engines/ort", "engines/hybrid-tch-ort", "models/smollm2-135m", "suites/default", "suites/kv-cache"]
    {
        let path = repository().join("configs").join(file).with_extension("toml");
        if path.is_file() {
            seeds.push((file.replace('/', "-"), read(&path)?));
        }
    }
    Ok(seeds)
}

fn prompts() -> Result<Seeds> {
    let lines = "The quick brown fox\n\nGröße, 東京 and 1234\n";
    let toml =
        "[[prompts]]\nname = \"a\"\ntext = \"The quick brown fox\"\n\n[[prompts]]\ntokens = [1, 2, 3]\n";
    Ok(vec![("lines".to_owned(), lines.into()), ("toml".to_owned(), toml.into())])
}
