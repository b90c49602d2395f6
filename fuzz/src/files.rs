//! The files of a model, from the hub or from any disk. `prepare` maps files, so each input is written to a
//! file, in memory where the system has such a place.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::LazyLock;

use bundle::{Bundle, Graph, Manifest, ModelConfig, Precision};
use comparison::plan;
use comparison::plan::prompts::Text;
use onnx::read::Unreadable;
use prepare::{PrepareError, Progress, Request, Source, prepare};
use tempfile::TempDir;

use crate::roundtrip::written_and_read;
use crate::{Outcome, sentence, text};

/// Texts that a tokenizer is tried with.
const TEXTS: [&str; 4] = ["", "The quick brown fox, 1234 times", " \u{0}\u{7f}\n\t\r", "Größe 東京 👩‍👧 ﷽"];

/// The weights of the targets `safetensors` and `index` are compared with this.
const CONFIG: &str = include_str!("../scene/config.json");
/// Weights that fit it.
const WEIGHTS: &[u8] = include_bytes!("../corpus/safetensors/seed-f16");

/// A directory of this process.
static SCRATCH: LazyLock<TempDir> = LazyLock::new(|| {
    let memory = Path::new("/dev/shm");
    let made = if memory.is_dir() { tempfile::tempdir_in(memory) } else { tempfile::tempdir() };
    made.expect("a directory for temporary files")
});

/// The calling thread's own: tests run targets on several.
fn scratch() -> PathBuf {
    SCRATCH.path().join(format!("{:?}", std::thread::current().id()))
}

fn write(name: &str, bytes: &[u8]) -> PathBuf {
    let path = scratch().join(name);
    fs::create_dir_all(path.parent().expect("it is below another")).expect("a directory");
    fs::write(&path, bytes).expect("room for a small file");
    path
}

pub(crate) fn gguf(input: &[u8]) -> Outcome {
    prepared(Source::Gguf(write("model.gguf", input)))
}

/// An ONNX file next to a file that it may name for its weights. Accepted input is made into a bundle, the
/// bundle is opened, and runs of it are planned.
pub(crate) fn onnx(input: &[u8]) -> Outcome {
    let described = onnx::read::described(input).map_err(|why| match why {
        Unreadable::NotOnnx(reason) | Unreadable::Unsupported(reason) => reason,
    })?;
    let config =
        ModelConfig::from_json(&described.graph.config_json()).expect("what was accepted is read back");
    let graph = config.graph.expect("it is an ONNX file");
    assert_eq!(graph, described.graph);
    planned(&graph);
    let source = write("onnx/model.onnx", input);
    write("onnx/external.data", &[0; 256]);
    write("outside.data", &[0; 256]);
    let bundles = scratch().join("bundles");
    let request = Request {
        source: Source::Onnx(source),
        name: None,
        precisions: vec![Precision::F32],
        bundles,
        progress: Progress::Silent,
    };
    let made = prepare(&request);
    if let Ok(directory) = &made {
        let bundle = Bundle::open(directory).expect("a bundle that was just made");
        assert_eq!(bundle.config().graph.as_ref().expect("an ONNX file").inputs, graph.inputs);
        bundle.check_weights(Precision::F32).expect("files that were just written");
        let files = described.external.iter().map(String::as_str);
        assert!(files.into_iter().all(|file| file == "external.data"), "it leads out of its directory");
    }
    let _ = fs::remove_dir_all(&request.bundles);
    made.map(drop).map_err(refusal)
}

/// Plans runs with every free dimension at 1, as far as that is accepted.
fn planned(graph: &Graph) {
    let mut request = plan::Request { models: vec!["model.onnx".into()], ..plan::Request::default() };
    request.graph.dims = graph.free().into_iter().map(|name| (name.to_owned(), vec![1])).collect();
    if let Ok(work) = plan::work::graph::resolve(&request, graph, &BTreeMap::new(), 1) {
        assert!(work.cases.iter().all(|case| case.inputs.len() == graph.inputs.len()));
        assert!(!plan::work::Describe::words(&work).is_empty());
        for case in 0..work.cases.len() {
            let _ = plan::work::Describe::case_tokens(&work, case);
        }
    }
}

pub(crate) fn safetensors(input: &[u8]) -> Outcome {
    let config = write("safetensors/config.json", CONFIG.as_bytes());
    write("safetensors/model.safetensors", input);
    prepared(Source::Directory(config.with_file_name("")))
}

/// A vocabulary from before tokenizer.json; its first byte is its kind. A model of SentencePiece begins with 10.
pub(crate) fn vocabulary(input: &[u8]) -> Outcome {
    let (name, class) = match input.first() {
        Some(b'[') => ("vocab.txt", "BertTokenizer"),
        Some(b'{') => ("vocab.json", "GPT2Tokenizer"),
        Some(b'\r') => ("sentencepiece.bpe.model", "XLMRobertaTokenizer"),
        Some(first) if first % 2 == 1 => ("tokenizer.model", "TokenizersBackend"),
        _ => ("tokenizer.model", "LlamaTokenizer"),
    };
    let config = write("vocabulary/config.json", CONFIG.as_bytes());
    write("vocabulary/model.safetensors", WEIGHTS);
    write("vocabulary/merges.txt", b"a b\n");
    let said = format!("{{\"tokenizer_class\": \"{class}\"}}");
    write("vocabulary/tokenizer_config.json", said.as_bytes());
    let file = write(&format!("vocabulary/{name}"), input);
    let made = prepared(Source::Directory(config.with_file_name("")));
    fs::remove_file(file).expect("it was just written");
    made
}

/// Opens a source, and where that is accepted makes a bundle of it and opens that.
fn prepared(source: Source) -> Outcome {
    let value = prepare::config(&source, Progress::Silent).map_err(refusal)?;
    let config = ModelConfig::from_json(&value).expect("what was accepted is read back");
    let bundles = scratch().join("bundles");
    let precisions = vec![Precision::F32, Precision::F16];
    let request = Request { source, name: None, precisions, bundles, progress: Progress::Silent };
    let made = prepare(&request);
    if let Ok(directory) = &made {
        let bundle = Bundle::open(directory).expect("a bundle that was just made");
        assert_eq!(bundle.config(), &config);
        for precision in bundle.precisions() {
            bundle.weights(precision).expect("weights that were just written");
        }
        // A tokenizer that was built may still be refused, in a sentence.
        if let Some(tokenizer) = bundle.tokenizer() {
            let _ = self::tokenizer(&fs::read(tokenizer).expect("a file of the bundle"));
        }
    }
    // The next input's bundle must not find this one's files.
    let _ = fs::remove_dir_all(&request.bundles);
    made.map(drop).map_err(refusal)
}

/// The sentence of a refusal. The machine is never at fault here.
fn refusal(error: PrepareError) -> String {
    assert!(error.is_bad_input(), "{error}");
    sentence(error)
}

/// An index next to a file that it may name, and below one that it may not.
pub(crate) fn index(input: &[u8]) -> Outcome {
    let config = write("index/model/config.json", CONFIG.as_bytes());
    write("index/model/inside.safetensors", WEIGHTS);
    write("index/outside.safetensors", WEIGHTS);
    write("index/model/model.safetensors.index.json", input);
    let source = Source::Directory(config.with_file_name(""));
    prepare::config(&source, Progress::Silent).map_err(refusal)?;
    let value: serde_json::Value = serde_json::from_slice(input).expect("it was accepted");
    let files = value["weight_map"].as_object().expect("it was accepted");
    assert!(files.values().all(|file| file == "inside.safetensors"), "it leads out of its directory");
    Ok(())
}

pub(crate) fn config(input: &[u8]) -> Outcome {
    let value = serde_json::from_slice(input).map_err(|error| format!("it does not parse: {error}"))?;
    let config = ModelConfig::from_json(&value).map_err(sentence)?;
    written_and_read(&config);
    // Sizes that are computed from it before any weights are seen must neither overflow nor need memory.
    for precision in Precision::ALL {
        if let Ok(tensors) = config.stored(precision) {
            tensors.iter().map(|tensor| tensor.bytes()).sum::<u64>();
        }
    }
    assert!(config.described().is_object());
    Ok(())
}

pub(crate) fn tokenizer(input: &[u8]) -> Outcome {
    // Each such step doubles the bytes beyond ASCII. The program runs tokenizers in a process with limits on
    // memory and time, which the driver's tests try.
    const MOST_DOUBLED: usize = 6;
    if input.windows(11).filter(|&word| word == b"\"ByteLevel\"").count() > MOST_DOUBLED {
        return Err("it multiplies a text".into());
    }
    let text = Text::parse("the model", input).map_err(sentence)?;
    for sample in TEXTS {
        let tokens = text.encode(sample).map_err(sentence)?;
        // Ids are checked against the model's vocabulary, which need not be this tokenizer's.
        text.decode(&tokens).map_err(sentence)?;
    }
    Ok(())
}

pub(crate) fn manifest(input: &[u8]) -> Outcome {
    let manifest = Manifest::parse(Path::new("bundle"), text(input)?).map_err(sentence)?;
    let written = serde_json::to_string(&manifest).expect("a manifest is plain data");
    assert_eq!(Manifest::parse(Path::new("bundle"), &written).expect("it is read back"), manifest);
    Ok(())
}
