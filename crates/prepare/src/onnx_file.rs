//! An ONNX file, which is its own description: the bundle has unchanged copies of it and of the files with
//! its weights.

use std::path::{Component, Path};

use bundle::{GRAPH_FILE, ModelConfig, Precision, TensorSpec};
use onnx::read::{Described, Unreadable, described};

use crate::error::PrepareError;
use crate::model::{Document, Model, SourceFile, Tensors};

pub(crate) fn open(path: &Path) -> Result<Model, PrepareError> {
    let file = SourceFile::open(path)?;
    let Described { mut graph, external } = described(file.bytes()).map_err(|why| match why {
        Unreadable::NotOnnx(reason) => PrepareError::NotAModel { path: path.to_path_buf(), reason },
        Unreadable::Unsupported(reason) => PrepareError::Unsupported { path: path.to_path_buf(), reason },
    })?;
    let directory = path.parent().filter(|parent| !parent.as_os_str().is_empty()).unwrap_or(Path::new("."));
    let mut verbatim = vec![(GRAPH_FILE.to_owned(), file.share())];
    let mut files = vec![file];
    for name in external {
        check_location(path, &name)?;
        let beside = SourceFile::within(directory, &name)?;
        graph.bytes += beside.bytes().len() as u64;
        verbatim.push((name, beside.share()));
        files.push(beside);
    }
    let stored = graph.stored.clone();
    let config = graph.config_json();
    let derived =
        format!("from the description in {}", path.file_name().unwrap_or_default().to_string_lossy());
    let parsed = ModelConfig::from_json(&config);
    Ok(Model {
        name: path.file_stem().unwrap_or_default().to_string_lossy().into_owned(),
        kind: "onnx",
        files,
        seed: None,
        config: parsed.map_err(|source| PrepareError::Model { path: path.to_path_buf(), source })?,
        config_json: Document { bytes: config.to_string().into_bytes(), derived },
        tokenizer: Err("an ONNX file has none".into()),
        chat: None,
        pooling: None,
        tensors: Box::new(InFile { path: path.to_path_buf(), stored }),
        verbatim,
        derived: "as they are".into(),
    })
}

/// Names of files that bundles have for other things.
const OURS: [&str; 6] = [
    GRAPH_FILE,
    bundle::MANIFEST,
    bundle::POOLING,
    crate::model::CONFIG,
    crate::model::TOKENIZER,
    crate::chat::TOKENIZER_CONFIG,
];

/// Weights must be in a file of this directory that is none of the bundle's own.
fn check_location(path: &Path, name: &str) -> Result<(), PrepareError> {
    let parts: Vec<Component<'_>> = Path::new(name).components().collect();
    let is_plain = matches!(parts.as_slice(), [Component::Normal(_)]);
    // No system permits longer names, or names with a zero.
    let is_name = name.len() <= 255 && !name.contains('\0');
    let is_ours =
        OURS.contains(&name) || Precision::ALL.iter().any(|precision| precision.file_name() == name);
    if is_plain && is_name && !is_ours {
        return Ok(());
    }
    let what = if is_ours { "is not a bundle's own" } else { "says no directory" };
    let reason = format!(
        "it names {name:?} for its weights: put them into a file beside it whose name {what}, such as model.data"
    );
    Err(PrepareError::Unsupported { path: path.to_path_buf(), reason })
}

/// No tensor is read one by one.
struct InFile {
    path: std::path::PathBuf,
    stored: Option<String>,
}

impl Tensors for InFile {
    fn read(&self, spec: &TensorSpec, _: std::ops::Range<usize>) -> Result<Vec<f32>, PrepareError> {
        Err(PrepareError::tensor(&self.path, &spec.name, "is read by frameworks alone"))
    }

    fn stored(&self) -> Option<String> {
        self.stored.clone()
    }

    fn path_of(&self, _: &str) -> &Path {
        &self.path
    }
}
