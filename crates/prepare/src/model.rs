//! A source, opened and checked: the common parts of all kinds.

use std::collections::BTreeMap;
use std::fs::Metadata;
use std::ops::Range;
use std::path::{Component, Path, PathBuf};

use bundle::{BundleError, Element, GRAPH_FILE, ModelConfig, Precision, TensorSpec};
use half::slice::HalfFloatSliceExt;
use half::{bf16, f16};
use memmap2::Mmap;
use onnx::read::{Described, Unreadable, described};
use protocol::untrusted;
use serde::Serialize;
use serde_json::{Map, Value};

use crate::PrepareError;

#[cfg(unix)]
use memmap2::UncheckedAdvice;

/// The text files of a bundle, called as Hugging Face calls them.
pub(crate) const CONFIG: &str = "config.json";

pub(crate) const TOKENIZER: &str = "tokenizer.json";

/// Weights in one file, as transformers and sentence-transformers call it.
pub(crate) const WEIGHTS: &str = "model.safetensors";

/// A model; every tensor is known to exist in the shape that the configuration requires.
/// No weights have been read yet.
pub(crate) struct Model {
    pub(crate) name: String,
    /// The manifest's word for this kind of source.
    pub(crate) kind: &'static str,
    /// Every file that the bundle is made from; none where it is made from nothing but its shape.
    pub(crate) files: Vec<SourceFile>,
    pub(crate) seed: Option<u64>,
    pub(crate) config: ModelConfig,
    pub(crate) config_json: Document,
    /// Or the reason why there is none.
    pub(crate) tokenizer: Result<Document, String>,
    /// Files that some models have: the chat template, how an encoder's vectors are pooled, and the weights of what
    /// follows, with their names in the bundle.
    pub(crate) others: Vec<(&'static str, Document)>,
    pub(crate) tensors: Box<dyn Tensors>,
    /// Files that are copied unchanged instead of weights, with their names in the bundle; none of a
    /// transformer.
    pub(crate) verbatim: Vec<(String, SourceFile)>,
    /// For the manifest: the origin of the weights and their changes before rounding.
    pub(crate) derived: String,
}

pub(crate) struct Document {
    pub(crate) bytes: Vec<u8>,
    /// For the manifest.
    pub(crate) derived: String,
}

impl Document {
    /// As people write JSON.
    pub(crate) fn pretty(value: &impl Serialize, derived: impl Into<String>) -> Document {
        let mut bytes = serde_json::to_vec_pretty(value).expect("plain data are valid JSON");
        bytes.push(b'\n');
        Document { bytes, derived: derived.into() }
    }
}

/// The weights of a source, in pieces: a tensor may be larger than the memory.
pub(crate) trait Tensors {
    /// These rows of the bundle's tensor called `spec.name`, row-major, in the bundle's layout. A vector is one row.
    fn read(&self, spec: &TensorSpec, rows: Range<usize>) -> Result<Vec<f32>, PrepareError>;

    /// The bytes of these rows as the source has them, of a tensor of [`ModelConfig::blocks`].
    fn blocks(&self, _spec: &TensorSpec, _rows: Range<usize>) -> Vec<u8> {
        Vec::new()
    }

    /// Why precision `file` does not have the source's weights.
    fn check_blocks(&self, _config: &ModelConfig) -> Result<(), PrepareError> {
        Err(BundleError::NoBlocks.into())
    }

    /// The type that most weights are stored in, as `Q4_1` or `bf16`; `None` if they are stored nowhere.
    fn stored(&self) -> Option<String> {
        None
    }

    fn path_of(&self, name: &str) -> &Path;
}

/// Number of rows of a tensor, and elements of each.
pub(crate) fn matrix(spec: &TensorSpec) -> (usize, usize) {
    match spec.shape.split_last() {
        Some((&columns, rows)) => (rows.iter().product(), columns),
        None => (1, 1),
    }
}

pub(crate) fn directory_name(directory: &Path) -> String {
    // `.` and `..` must be resolved to get a name.
    let full = directory.canonicalize();
    let full = full.as_deref().unwrap_or(directory);
    full.file_name().unwrap_or_default().to_string_lossy().into_owned()
}

pub(crate) struct SourceFile {
    path: PathBuf,
    /// As named within the model's directory.
    name: String,
    /// As it was when the file was opened.
    metadata: Metadata,
    map: std::sync::Arc<Mmap>,
}

impl SourceFile {
    /// Opens a file of a model's directory. A link out of the directory is refused: otherwise a model could
    /// name any file of this machine, which would become part of the bundle.
    pub(crate) fn within(directory: &Path, name: &str) -> Result<SourceFile, PrepareError> {
        let path = directory.join(name);
        let home = directory.canonicalize().map_err(PrepareError::reading(directory))?;
        let target = path.canonicalize().map_err(PrepareError::reading(&path))?;
        let of_hub = blobs_of(&home).is_some_and(|blobs| target.starts_with(blobs));
        if !target.starts_with(&home) && !of_hub {
            let target = target.display();
            return Err(PrepareError::not_a_model(
                path,
                format!(
                    "it is a link that leaves the model's directory, to {target}; put the file itself there"
                ),
            ));
        }
        Ok(SourceFile { name: name.to_owned(), ..SourceFile::open(&path)? })
    }

    /// A file that a model may have. A dangling link counts as a file, and is refused.
    pub(crate) fn optional(directory: &Path, name: &str) -> Result<Option<SourceFile>, PrepareError> {
        let is_there = directory.join(name).symlink_metadata().is_ok();
        is_there.then(|| SourceFile::within(directory, name)).transpose()
    }

    pub(crate) fn open(path: &Path) -> Result<SourceFile, PrepareError> {
        let file = untrusted::file::open(path).map_err(|error| match error.kind() {
            std::io::ErrorKind::InvalidInput => PrepareError::not_a_model(path, error.to_string()),
            _ => PrepareError::reading(path)(error),
        })?;
        let metadata = file.metadata().map_err(PrepareError::reading(path))?;
        // SAFETY: a source that someone truncates while it is being read would fault; reading it
        // into memory instead would cost the size of the model.
        #[allow(unsafe_code)]
        let map = unsafe { Mmap::map(&file) }.map_err(PrepareError::reading(path))?;
        if let Some(reason) = untrusted::file::substitute(&map) {
            return Err(PrepareError::not_a_model(path, reason));
        }
        let name = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
        Ok(SourceFile { path: path.to_path_buf(), name, metadata, map: std::sync::Arc::new(map) })
    }

    /// The same mapping once more.
    pub(crate) fn share(&self) -> SourceFile {
        let (path, name, metadata) = (self.path.clone(), self.name.clone(), self.metadata.clone());
        SourceFile { path, name, metadata, map: self.map.clone() }
    }

    pub(crate) fn metadata(&self) -> &Metadata {
        &self.metadata
    }

    pub(crate) fn path(&self) -> &Path {
        &self.path
    }

    pub(crate) fn bytes(&self) -> &[u8] {
        &self.map
    }

    /// The error of a file whose format is not the wanted one: what it is, or `reason` if that cannot be seen.
    pub(crate) fn not(&self, reason: impl Into<String>) -> PrepareError {
        let reason = untrusted::file::other_format(self.bytes()).map_or_else(|| reason.into(), str::to_owned);
        PrepareError::not_a_model(&self.path, reason)
    }

    /// Lets the system reclaim the memory of these bytes, which are read from the file again if they are used
    /// again.
    pub(crate) fn release(&self, range: Range<usize>) {
        #[cfg(unix)]
        {
            // SAFETY: the mapping is shared and never written to, so that a page that is read again is the
            // same.
            #[allow(unsafe_code)]
            let released = unsafe {
                self.map.unchecked_advise_range(UncheckedAdvice::DontNeed, range.start, range.len())
            };
            // It is advice: if the system ignores it, the pages stay.
            let _ = released;
        }
        #[cfg(not(unix))]
        let _ = range;
    }

    pub(crate) fn name(&self) -> String {
        self.name.clone()
    }
}

/// Where the hub's cache has the files of a snapshot, which itself contains links: `snapshots/COMMIT/FILE` is
/// a link to `../../blobs/HASH`, and files may be in directories below that of the commit.
fn blobs_of(directory: &Path) -> Option<PathBuf> {
    let mut above = directory.ancestors().skip(1);
    let snapshots = above.find(|path| path.file_name().is_some_and(|name| name == "snapshots"))?;
    Some(snapshots.with_file_name("blobs"))
}

/// Refuses a configuration with more layers than the source could hold, before a list of all their
/// tensors is made.
pub(crate) fn check_layers(config: &ModelConfig, path: &Path, held: usize) -> Result<(), PrepareError> {
    if config.layers.len() > held {
        let layers = config.layers.len();
        let reason = format!("the configuration has {layers} layers, but there are only {held} tensors");
        return Err(PrepareError::damaged(path, reason));
    }
    Ok(())
}

/// The type of most elements, given each tensor's type and number of elements.
pub(crate) fn most_common(tensors: impl Iterator<Item = (String, usize)>) -> Option<String> {
    let mut elements = BTreeMap::new();
    for (stored, count) in tensors {
        *elements.entry(stored).or_insert(0) += count;
    }
    elements.into_iter().max_by_key(|(_, count)| *count).map(|(stored, _)| stored)
}

// The chat template of a source as the bundle keeps it: `tokenizer_config.json` with the template, the special tokens
// that it may name, and nothing else.

pub(crate) const TOKENIZER_CONFIG: &str = "tokenizer_config.json";

/// Where newer models have their template; it overrides the one in `tokenizer_config.json`.
pub(crate) const TEMPLATE: &str = "chat_template.jinja";

const FIELD: &str = "chat_template";

/// The document of a Hugging Face directory's files, if one of them has a template.
pub(crate) fn of_files(
    config: Option<&SourceFile>,
    template: Option<&SourceFile>,
) -> Result<Option<Document>, PrepareError> {
    let damaged = |file: &SourceFile, reason: String| PrepareError::damaged(file.path(), reason);
    let config_json = match config {
        None => Value::Null,
        Some(file) => parse(file)?,
    };
    let (text, name) = match (template, default_template(&config_json)) {
        (Some(file), _) => {
            let text = std::str::from_utf8(file.bytes());
            let text = text.map_err(|_| damaged(file, "it is not UTF-8".into()))?;
            (text, TEMPLATE)
        }
        (None, Some(text)) => (text, TOKENIZER_CONFIG),
        (None, None) => return Ok(None),
    };
    let tokens = config_json.as_object().into_iter().flatten();
    let tokens = tokens.filter_map(|(name, value)| Some((name.as_str(), content(value)?)));
    Ok(Some(document(text, tokens, format!("the template of the source's {name}, with its special tokens"))))
}

/// `tokens` are names and texts; only those called `…_token` are kept.
pub(crate) fn document<'a>(
    template: &str,
    tokens: impl Iterator<Item = (&'a str, &'a str)>,
    derived: String,
) -> Document {
    let tokens = tokens.filter(|(name, _)| name.ends_with("_token"));
    let mut fields: Map<_, _> = tokens.map(|(name, text)| (name.to_owned(), Value::from(text))).collect();
    fields.insert(FIELD.to_owned(), template.into());
    Document::pretty(&fields, derived)
}

/// The template, or of several the one for chats without tools.
fn default_template(config: &Value) -> Option<&str> {
    match &config[FIELD] {
        Value::String(text) => Some(text),
        Value::Array(named) => named.iter().find(|one| one["name"] == "default")?["template"].as_str(),
        _ => None,
    }
}

/// A special token is a text, or an object with a text.
pub(crate) fn content(token: &Value) -> Option<&str> {
    token.as_str().or_else(|| token["content"].as_str())
}

/// The value of a JSON file, which may have at most as many bytes as prompts may.
pub(crate) fn parse(file: &SourceFile) -> Result<Value, PrepareError> {
    let (size, most) = (file.bytes().len() as u64, untrusted::file::INPUT);
    if size > most {
        return Err(PrepareError::damaged(file.path(), format!("it has more than {} MiB", most >> 20)));
    }
    serde_json::from_slice(file.bytes()).map_err(|e| match file.bytes() {
        [] => file.not(""),
        _ => PrepareError::damaged(file.path(), format!("it does not parse: {e}")),
    })
}

// Numbers to and from the little-endian bytes of a file.

/// Appends `values` to `out`, rounded to nearest even where `element`, a type of floats, is
/// narrower than f32. On failure returns the index of the first finite value that `element` cannot hold.
pub(crate) fn encode(values: &[f32], element: Element, out: &mut Vec<u8>) -> Result<(), usize> {
    match element {
        Element::F32 => out.extend(values.iter().flat_map(|value| value.to_le_bytes())),
        Element::Bf16 => {
            let mut rounded = vec![bf16::ZERO; values.len()];
            rounded.convert_from_f32_slice(values);
            first(&rounded, |value| !value.is_finite())?;
            out.extend(rounded.iter().flat_map(|value| value.to_le_bytes()));
        }
        Element::F16 => {
            let mut rounded = vec![f16::ZERO; values.len()];
            rounded.convert_from_f32_slice(values);
            first(&rounded, |value| !value.is_finite())?;
            out.extend(rounded.iter().flat_map(|value| value.to_le_bytes()));
        }
        Element::I8 | Element::U8 => unreachable!("codes are made by `quantise`"),
    }
    Ok(())
}

/// The first of the values that is wrong, as an error.
fn first<T>(values: &[T], is_wrong: impl Fn(&T) -> bool) -> Result<(), usize> {
    values.iter().position(is_wrong).map_or(Ok(()), Err)
}

/// The inverse of [`encode`]; every value of these types is exact in f32.
pub(crate) fn decode(bytes: &[u8], stored: Element) -> Vec<f32> {
    match stored {
        Element::F32 => bytes.chunks_exact(4).map(|b| f32::from_le_bytes([b[0], b[1], b[2], b[3]])).collect(),
        Element::Bf16 => bytes.chunks_exact(2).map(|b| bf16::from_le_bytes([b[0], b[1]]).to_f32()).collect(),
        Element::F16 => bytes.chunks_exact(2).map(|b| f16::from_le_bytes([b[0], b[1]]).to_f32()).collect(),
        Element::I8 | Element::U8 => unreachable!("a source's weights are floats"),
    }
}

/// `[rows, columns]` to `[columns, rows]`, in square blocks so that both sides stay in cache.
pub(crate) fn transpose(values: &[f32], rows: usize, columns: usize) -> Vec<f32> {
    const BLOCK: usize = 32;
    let mut out = vec![0.0; values.len()];
    for row_block in (0..rows).step_by(BLOCK) {
        for column_block in (0..columns).step_by(BLOCK) {
            for row in row_block..rows.min(row_block + BLOCK) {
                for column in column_block..columns.min(column_block + BLOCK) {
                    out[column * rows + row] = values[row * columns + column];
                }
            }
        }
    }
    out
}

// An ONNX file, which is its own description: the bundle has unchanged copies of it and of the files with
// its weights.

pub(crate) fn open(path: &Path) -> Result<Model, PrepareError> {
    let file = SourceFile::open(path)?;
    let Described { mut graph, external } = described(file.bytes()).map_err(|why| match why {
        Unreadable::NotOnnx(reason) => file.not(reason),
        Unreadable::Unsupported(reason) => PrepareError::unsupported(path, reason),
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
    Ok(Model {
        name: path.file_stem().unwrap_or_default().to_string_lossy().into_owned(),
        kind: "onnx",
        files,
        seed: None,
        config: ModelConfig::from_json(&config).map_err(PrepareError::model(path))?,
        config_json: Document { bytes: config.to_string().into_bytes(), derived },
        tokenizer: Err("an ONNX file has none".into()),
        others: Vec::new(),
        tensors: Box::new(InFile { path: path.to_path_buf(), stored }),
        verbatim,
        derived: "as they are".into(),
    })
}

/// Names of files that bundles have for other things.
const OURS: [&str; 7] =
    [GRAPH_FILE, bundle::MANIFEST, bundle::POOLING, bundle::MODULES, CONFIG, TOKENIZER, TOKENIZER_CONFIG];

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
    Err(PrepareError::unsupported(
        path,
        format!(
            "it names {name:?} for its weights: put them into a file beside it whose name {what}, such as model.data"
        ),
    ))
}

/// No tensor is read one by one.
struct InFile {
    path: PathBuf,
    stored: Option<String>,
}

impl Tensors for InFile {
    fn read(&self, spec: &TensorSpec, _: Range<usize>) -> Result<Vec<f32>, PrepareError> {
        Err(PrepareError::tensor(&self.path, &spec.name, "is read by frameworks alone"))
    }

    fn stored(&self) -> Option<String> {
        self.stored.clone()
    }

    fn path_of(&self, _: &str) -> &Path {
        &self.path
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn encoded(values: &[f32], element: Element) -> Result<Vec<u8>, usize> {
        let mut out = Vec::new();
        encode(values, element, &mut out).map(|()| out)
    }

    #[test]
    fn rounding_is_to_nearest_even() {
        // Halfway between two neighbours of bf16 (8 bits of significand) and of f16 (11 bits): the even one.
        let halves = [1.0 + 1.0 / 256.0, 1.0 + 3.0 / 256.0, -1.0 - 1.0 / 256.0];
        let bytes = encoded(&halves, Element::Bf16).unwrap();
        assert_eq!(decode(&bytes, Element::Bf16), [1.0, 1.0 + 4.0 / 256.0, -1.0]);
        let halves = [1.0 + 1.0 / 2048.0, 1.0 + 3.0 / 2048.0, 1.0 + 1.1 / 2048.0];
        let bytes = encoded(&halves, Element::F16).unwrap();
        assert_eq!(decode(&bytes, Element::F16), [1.0, 1.0 + 4.0 / 2048.0, 1.0 + 2.0 / 2048.0]);
    }

    #[test]
    fn what_is_already_narrow_comes_back_bit_for_bit() {
        for bits in (0..=u16::MAX).filter(|&bits| bf16::from_bits(bits).is_finite()) {
            let bytes = encoded(&decode(&bits.to_le_bytes(), Element::Bf16), Element::Bf16);
            assert_eq!(bytes.unwrap(), bits.to_le_bytes());
        }
        for bits in (0..=u16::MAX).filter(|&bits| f16::from_bits(bits).is_finite()) {
            let bytes = encoded(&decode(&bits.to_le_bytes(), Element::F16), Element::F16);
            assert_eq!(bytes.unwrap(), bits.to_le_bytes());
        }
    }

    #[test]
    fn a_value_that_does_not_fit_is_pointed_out() {
        assert_eq!(encoded(&[1.0, 65504.0, 65520.0], Element::F16), Err(2));
        assert_eq!(encoded(&[1.0, f32::MAX], Element::Bf16), Err(1));
        assert!(encoded(&[65519.0], Element::F16).is_ok(), "rounds down to the largest f16");
    }

    #[test]
    fn transposing_swaps_rows_and_columns() {
        let (rows, columns) = (37, 65);
        let values: Vec<f32> = (0..rows * columns).map(|i| i as f32).collect();
        let turned = transpose(&values, rows, columns);
        assert_eq!(turned[3 * rows + 36], values[36 * columns + 3]);
        assert_eq!(transpose(&turned, columns, rows), values);
    }
}
