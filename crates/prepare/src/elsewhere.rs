//! What a path has that names no model: a file of one, or a directory with the model under another name. One sentence for
//! each, which says what to name.

use std::path::{Path, PathBuf};

use protocol::untrusted;
use serde_json::Value;

use crate::PrepareError;
use crate::ctranslate2;
use crate::model::{CONFIG, SourceFile, parse};

/// Most entries of a directory that are looked at.
const MOST: usize = 10_000;

/// Most files that a sentence lists.
const LISTED: usize = 5;

/// The error of a file that is no model by itself.
pub(crate) fn one_file(file: &SourceFile) -> PrepareError {
    let parent =
        file.path().parent().filter(|parent| !parent.as_os_str().is_empty()).unwrap_or(Path::new("."));
    let is_ctranslate2 = ctranslate2::is_one(file.bytes());
    let is_part = is_safetensors(file.bytes()) || is_ctranslate2 || parse(file).is_ok();
    let reason = match instead(parent)
        .filter(|_| is_part && !is_ctranslate2 && !parent.join(CONFIG).is_file())
    {
        Some(found) => format!("it is one file of a model, and its directory has no {CONFIG}: {found}"),
        None if is_part => format!("it is one file of a model: name its directory, {}", parent.display()),
        None => return file.not("it is neither a directory nor a GGUF file, nor does its name end in .onnx"),
    };
    PrepareError::not_a_model(file.path(), reason)
}

/// Whether a file begins as safetensors do: with the length of a JSON object, and the object.
fn is_safetensors(bytes: &[u8]) -> bool {
    let Some((length, rest)) = bytes.split_first_chunk::<8>() else { return false };
    u64::from_le_bytes(*length) <= rest.len() as u64 && rest.first() == Some(&b'{')
}

/// What a directory has in place of config.json and safetensors; `None` if nothing is recognised.
pub(crate) fn instead(directory: &Path) -> Option<String> {
    let files = Listing::read(directory);
    files.gguf().or_else(|| files.adapter()).or_else(|| files.onnx()).or_else(|| files.below()).or_else(
        || {
            let of = |(_, sentence): &(&str, &str)| (*sentence).to_owned();
            LAYOUTS.iter().find(|(name, _)| files.has(name)).map(of).or_else(|| files.misnamed())
        },
    )
}

/// Other layouts, by a file of each. `*` is any beginning of a name.
const LAYOUTS: [(&str, &str); 9] = [
    ("model_index.json", "it is a pipeline of diffusers, which makes images; no model of text is in it"),
    (
        "params.json",
        "it is in the layout of Meta or Mistral; name a directory in transformers' layout, with config.json",
    ),
    ("*.mlpackage", "it holds a Core ML model; name a directory with safetensors, or an ONNX file"),
    ("openvino_model.xml", "it holds an OpenVINO model; name a directory with safetensors, or an ONNX file"),
    ("*.tflite", "it holds a TensorFlow Lite model; name a directory with safetensors, or an ONNX file"),
    ("saved_model.pb", "it holds a TensorFlow model; convert it to ONNX"),
    ("*.nemo", "it holds a NeMo model; convert it to safetensors"),
    ("*.ckpt", "it holds a checkpoint of training; convert it with transformers' save_pretrained"),
    ("weights.npz", "it holds weights as NumPy arrays; convert them to safetensors"),
];

/// Entries of a directory and of those below it, two levels deep, sorted.
struct Listing<'a> {
    directory: &'a Path,
    paths: Vec<PathBuf>,
}

impl Listing<'_> {
    fn read(directory: &Path) -> Listing<'_> {
        let mut paths = Vec::new();
        let mut level = vec![directory.to_path_buf()];
        for _ in 0..3 {
            let entries = level.iter().filter_map(|path| std::fs::read_dir(path).ok()).flatten().flatten();
            let mut found: Vec<_> = entries.map(|entry| entry.path()).take(MOST).collect();
            found.sort();
            // Not by way of links, which may lead anywhere.
            let is_directory = |path: &&PathBuf| path.is_dir() && !path.is_symlink();
            level = found.iter().filter(is_directory).cloned().collect();
            paths.extend(found);
        }
        Listing { directory, paths }
    }

    fn with(&self, extension: &str) -> Vec<&PathBuf> {
        let is_one = |path: &&PathBuf| {
            path.extension().is_some_and(|found| found.eq_ignore_ascii_case(extension)) && path.is_file()
        };
        self.paths.iter().filter(is_one).collect()
    }

    /// Whether the directory itself has an entry of that name.
    fn has(&self, name: &str) -> bool {
        let is_one = |path: &PathBuf| {
            let found = path.file_name().unwrap_or_default().to_string_lossy();
            let fits = name.strip_prefix('*').map_or(found == name, |end| found.ends_with(end));
            fits && path.parent() == Some(self.directory)
        };
        self.paths.iter().any(is_one)
    }

    fn gguf(&self) -> Option<String> {
        let mut files = self.with("gguf");
        // A model in parts counts once, and what reads images is no model of text.
        files.retain(|path| {
            let name = path.file_name().unwrap_or_default().to_string_lossy().to_lowercase();
            let before = name.rsplit_once("-of-").and_then(|(before, _)| before.rsplit_once('-'));
            let part = before.and_then(|(_, part)| part.parse::<u32>().ok());
            let is_later = part.is_some_and(|part| part > 1);
            !is_later && !name.contains("mmproj") && !name.contains("imatrix")
        });
        listed("a GGUF file", &files)
    }

    fn onnx(&self) -> Option<String> {
        let files = self.with("onnx");
        let usual = files.iter().find(|path| path.file_name().is_some_and(|name| name == "model.onnx"));
        listed("an ONNX file", usual.map_or(&files, std::slice::from_ref))
    }

    fn adapter(&self) -> Option<String> {
        if !self.has("adapter_config.json") {
            return None;
        }
        let file = SourceFile::within(self.directory, "adapter_config.json").ok();
        let base = file.and_then(|file| parse(&file).ok());
        let base =
            base.as_ref().and_then(|config| config.get("base_model_name_or_path").and_then(Value::as_str));
        Some(format!(
            "it is an adapter (LoRA), which changes another model: merge it into {} with merge_and_unload of peft, save the \
             result, and name that",
            base.unwrap_or("its base model")
        ))
    }

    /// A hub repository's cache, or one directory below with a model.
    fn below(&self) -> Option<String> {
        let is_model = |path: &&PathBuf| path.join(CONFIG).is_file();
        let commit = untrusted::file::read_text(&self.directory.join("refs/main"), untrusted::file::CONFIG)
            .unwrap_or_default();
        let snapshots: Vec<_> = self
            .paths
            .iter()
            .filter(|path| path.parent().is_some_and(|up| up.ends_with("snapshots")))
            .collect();
        let named = snapshots.iter().find(|path| path.ends_with(commit.trim()) && !commit.trim().is_empty());
        if let Some(snapshot) = named.or(snapshots.first()).filter(|path| is_model(path)) {
            let path = snapshot.display();
            return Some(format!("it is the root of a hub repository's cache: name {path}"));
        }
        let mut models = self.paths.iter().filter(is_model);
        match (models.next(), models.next()) {
            (Some(only), None) => Some(format!("the model is in a directory below: name {}", only.display())),
            _ => None,
        }
    }

    /// A file that is meant to be config.json.
    fn misnamed(&self) -> Option<String> {
        let is_meant = |path: &&PathBuf| {
            let name = path.file_name().unwrap_or_default().to_string_lossy().to_lowercase();
            let plain: String = name.chars().filter(|character| !character.is_whitespace()).collect();
            let plain = plain.strip_suffix(".txt").unwrap_or(&plain);
            path.parent() == Some(self.directory)
                && matches!(plain, "config.json" | "config(1).json" | "config.json.json")
        };
        let found = self.paths.iter().find(is_meant).filter(|path| !path.ends_with(CONFIG))?;
        Some(format!("rename {:?} to {CONFIG}", found.file_name().unwrap_or_default()))
    }
}

fn listed(what: &str, files: &[&PathBuf]) -> Option<String> {
    let paths: Vec<_> = files.iter().take(LISTED).map(|path| path.display().to_string()).collect();
    match paths.as_slice() {
        [] => None,
        [only] if files.len() == 1 => Some(format!("it holds {what}: name {only}")),
        several => {
            let more = files.len().saturating_sub(several.len());
            let more = if more > 0 { format!(" and {more} more") } else { String::new() };
            Some(format!("it holds {what} more than once: name one of {}{more}", several.join(", ")))
        }
    }
}
