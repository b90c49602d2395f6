//! Shared by the tests: the tiny reference models, intact and damaged.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use bundle::{Bundle, Precision};
use prepare::{PrepareError, Progress, Request, Source, prepare};
use serde_json::{Value, json};
use tempfile::TempDir;

pub(crate) fn tiny(name: &str) -> PathBuf {
    conformance::fixtures().join(name)
}

pub(crate) fn request(source: Source, precisions: &[Precision], bundles: &Path) -> Request {
    Request {
        source,
        name: None,
        precisions: precisions.to_vec(),
        bundles: bundles.to_path_buf(),
        progress: Progress::Silent,
    }
}

/// The bundle of `source` at f32, in a directory that exists as long as the first value.
pub(crate) fn prepared(source: Source) -> (TempDir, Bundle) {
    let bundles = tempfile::tempdir().unwrap();
    let directory = prepare(&request(source, &[Precision::F32], bundles.path())).unwrap();
    (bundles, Bundle::open(directory).unwrap())
}

/// The bundle of a directory.
pub(crate) fn prepared_at(directory: impl AsRef<Path>) -> (TempDir, Bundle) {
    prepared(Source::Directory(directory.as_ref().into()))
}

/// The digest of a bundle's weights at f32.
pub(crate) fn digest(bundle: &Bundle) -> &str {
    &bundle.manifest().files["f32.safetensors"].sha256
}

pub(crate) fn floats(bytes: &[u8]) -> Vec<f32> {
    bytes.as_chunks().0.iter().map(|bytes| f32::from_le_bytes(*bytes)).collect()
}

/// Asserts that `source` is refused in one line that contains all of `parts`.
pub(crate) fn refused(source: Source, precision: Precision, parts: &[&str]) {
    let error = refusal(source, precision);
    let text = error.to_string();
    assert!(error.is_bad_input() && !text.contains('\n'), "{text}");
    for part in parts {
        assert!(text.contains(part), "{part:?} is not in: {text}");
    }
}

/// The error for a `source` that cannot be prepared. No directory is left that could be taken for a bundle.
pub(crate) fn refusal(source: Source, precision: Precision) -> PrepareError {
    let bundles = tempfile::tempdir().unwrap();
    let error = prepare(&request(source, &[precision], bundles.path())).unwrap_err();
    let left: Vec<_> = entries(bundles.path()).into_iter().filter(|name| !name.ends_with(".lock")).collect();
    assert!(left.is_empty(), "{left:?} is left after: {error}");
    error
}

/// Names in a directory, except the digests of sources: they belong to no bundle.
pub(crate) fn entries(directory: &Path) -> Vec<String> {
    let entries = std::fs::read_dir(directory).unwrap();
    let mut names: Vec<_> = entries.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect();
    names.retain(|name| name != ".sources.json");
    names.sort();
    names
}

/// A Hugging Face model in memory, to be changed and written somewhere.
#[derive(Clone)]
pub(crate) struct Model {
    pub(crate) config: Value,
    pub(crate) tensors: BTreeMap<String, Tensor>,
}

#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Tensor {
    pub(crate) dtype: String,
    pub(crate) shape: Vec<usize>,
    pub(crate) bytes: Vec<u8>,
}

impl Tensor {
    pub(crate) fn f32(shape: &[usize], values: &[f32]) -> Tensor {
        let bytes = values.iter().flat_map(|value| value.to_le_bytes()).collect();
        Tensor { dtype: "F32".into(), shape: shape.to_vec(), bytes }
    }

    pub(crate) fn values(&self) -> Vec<f32> {
        assert_eq!(self.dtype, "F32");
        floats(&self.bytes)
    }
}

impl Model {
    pub(crate) fn tiny(name: &str) -> Model {
        Model::read(&tiny(name))
    }

    pub(crate) fn read(directory: &Path) -> Model {
        let config = std::fs::read(directory.join("config.json")).unwrap();
        let bytes = std::fs::read(directory.join("model.safetensors")).unwrap();
        let file = safetensors::SafeTensors::deserialize(&bytes).unwrap();
        let tensors = file.tensors().into_iter().map(|(name, view)| {
            let (dtype, shape) = (format!("{:?}", view.dtype()), view.shape().to_vec());
            (name, Tensor { dtype, shape, bytes: view.data().to_vec() })
        });
        Model { config: serde_json::from_slice(&config).unwrap(), tensors: tensors.collect() }
    }

    /// A fixture beside the tiny models, such as `encoders/bert`.
    pub(crate) fn fixture(path: &str) -> Model {
        Model::read(&conformance::fixtures().with_file_name(path))
    }

    /// The same under these names, with tensors that are not read.
    pub(crate) fn renamed(mut self, more: &[&str], rename: impl Fn(&str) -> String) -> Model {
        self.tensors = self.tensors.into_iter().map(|(name, tensor)| (rename(&name), tensor)).collect();
        self.tensors.extend(more.iter().map(|name| ((*name).to_owned(), Tensor::f32(&[1], &[1.0]))));
        self
    }

    pub(crate) fn prepared(&self) -> (TempDir, Bundle) {
        prepared_at(self.write().path())
    }

    /// A directory with config.json and model.safetensors.
    pub(crate) fn write(&self) -> TempDir {
        let directory = tempfile::tempdir().unwrap();
        self.write_config(directory.path());
        let file = safetensors_file(self.tensors.iter());
        std::fs::write(directory.path().join("model.safetensors"), file).unwrap();
        directory
    }

    pub(crate) fn write_config(&self, directory: &Path) {
        std::fs::write(directory.join("config.json"), self.config.to_string()).unwrap();
    }
}

/// A safetensors file by the letter of the format, without the checks of a real writer.
pub(crate) fn safetensors_file<'a>(tensors: impl Iterator<Item = (&'a String, &'a Tensor)>) -> Vec<u8> {
    let mut header = serde_json::Map::new();
    let mut data = Vec::new();
    for (name, tensor) in tensors {
        let start = data.len();
        data.extend(&tensor.bytes);
        let entry =
            json!({ "dtype": tensor.dtype, "shape": tensor.shape, "data_offsets": [start, data.len()] });
        header.insert(name.clone(), entry);
    }
    with_header(&Value::Object(header), &data)
}

pub(crate) fn with_header(header: &Value, data: &[u8]) -> Vec<u8> {
    let header = header.to_string();
    let mut file = (header.len() as u64).to_le_bytes().to_vec();
    file.extend(header.as_bytes());
    file.extend(data);
    file
}
