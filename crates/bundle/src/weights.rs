//! Tensors of a safetensors file as mapped bytes.

use std::collections::HashMap;
use std::ops::Range;
use std::path::{Path, PathBuf};

use memmap2::Mmap;
#[cfg(unix)]
use memmap2::UncheckedAdvice;
use safetensors::SafeTensors;

use crate::BundleError;
use crate::config::StoredTensor;
use crate::quantised::{Quantised, scale_name};
use crate::{BlockKind, Element, Precision};
use crate::{TensorView, touch};

/// A mapped weights file. Dropping it unmaps the pages: code that builds tensors over
/// [`TensorView::bytes`] without copying keeps it alive.
#[derive(Debug)]
pub struct Weights {
    path: PathBuf,
    precision: Precision,
    map: Mmap,
    tensors: HashMap<String, Entry>,
}

#[derive(Debug)]
struct Entry {
    shape: Vec<usize>,
    element: Element,
    range: Range<usize>,
    blocks: Option<BlockKind>,
}

impl Weights {
    /// Maps `path` and checks that it holds each of `expected` ([`crate::ModelConfig::stored`]).
    pub fn map(path: &Path, precision: Precision, expected: &[StoredTensor]) -> Result<Weights, BundleError> {
        let file = protocol::untrusted::file::open(path).map_err(BundleError::io(path))?;
        // SAFETY: bundles are immutable by contract; a file truncated by another process while mapped would
        // fault, as it would under any framework that maps weights.
        #[allow(unsafe_code)]
        let map = unsafe { Mmap::map(&file) }.map_err(BundleError::io(path))?;
        let malformed = |e: safetensors::SafeTensorError| BundleError::Malformed {
            path: path.to_path_buf(),
            reason: e.to_string(),
        };
        // `deserialize` checks the header against the file's size and the tensors against each other.
        SafeTensors::deserialize(&map).map_err(malformed)?;
        let (header, metadata) = SafeTensors::read_metadata(&map).map_err(malformed)?;
        let data = 8 + header;
        let mut tensors = HashMap::with_capacity(expected.len());
        for spec in expected {
            let Some(info) = metadata.info(&spec.name) else {
                return Err(BundleError::MissingTensor { path: path.to_path_buf(), name: spec.name.clone() });
            };
            if info.shape != spec.shape {
                return Err(BundleError::Shape {
                    path: path.to_path_buf(),
                    name: spec.name.clone(),
                    found: info.shape.clone(),
                    expected: spec.shape.clone(),
                });
            }
            let found = format!("{:?}", info.dtype);
            if found != spec.element.name() {
                return Err(BundleError::ElementType {
                    path: path.to_path_buf(),
                    name: spec.name.clone(),
                    found,
                    expected: spec.element,
                });
            }
            let range = data + info.data_offsets.0..data + info.data_offsets.1;
            let alignment = alignment(precision, spec);
            if !range.start.is_multiple_of(alignment) {
                let (path, name, start) = (path.to_path_buf(), spec.name.clone(), range.start);
                return Err(BundleError::Alignment { path, name, start, alignment });
            }
            let entry =
                Entry { shape: info.shape.clone(), element: spec.element, range, blocks: spec.blocks };
            tensors.insert(spec.name.clone(), entry);
        }
        Ok(Weights { path: path.to_path_buf(), precision, map, tensors })
    }

    pub fn path(&self) -> &Path {
        &self.path
    }

    pub fn precision(&self) -> Precision {
        self.precision
    }

    /// Bytes of the whole file.
    pub fn file_bytes(&self) -> u64 {
        self.map.len() as u64
    }

    pub fn contains(&self, name: &str) -> bool {
        self.tensors.contains_key(name)
    }

    pub fn tensor(&self, name: &str) -> Result<TensorView<'_>, BundleError> {
        let entry = self.entry(name)?;
        Ok(TensorView {
            shape: entry.shape.clone(),
            element: entry.element,
            bytes: &self.map[entry.range.clone()],
            file_offset: entry.range.start as u64,
        })
    }

    /// Several adjacent tensors, stacked along their first dimension: a fused weight (`q_proj`, `k_proj`,
    /// `v_proj` → `[q + k + v, hidden]`) without a copy.
    pub fn stacked(&self, names: &[String]) -> Result<TensorView<'_>, BundleError> {
        let mut whole = self.tensor(&names[0])?;
        let mut end = self.entry(&names[0])?.range.end;
        let start = whole.file_offset as usize;
        for name in &names[1..] {
            let next = self.entry(name)?;
            let alike = next.shape[1..] == whole.shape[1..] && next.element == whole.element;
            if next.range.start != end || !alike {
                return Err(self.apart(name, &names[0]));
            }
            whole.shape[0] += next.shape[0];
            end = next.range.end;
        }
        whole.bytes = &self.map[start..end];
        Ok(whole)
    }

    /// The codes and scales of adjacent quantised tensors, stacked like [`Weights::stacked`].
    pub fn quantised(&self, names: &[String]) -> Result<Quantised<'_>, BundleError> {
        if self.precision == Precision::File {
            return self.blocks(names);
        }
        let codes = self.stacked(names)?;
        let scales: Vec<_> = names.iter().map(|name| scale_name(name)).collect();
        let scales = self.stacked(&scales)?;
        // Two weights to a byte.
        let columns = codes.shape[1] * if self.precision.bits() == 4 { 2 } else { 1 };
        Ok(Quantised {
            precision: self.precision,
            rows: codes.shape[0],
            columns,
            codes,
            scales,
            blocks: Vec::new(),
        })
    }

    /// Adjacent tensors in a file's own blocks, which may be of several types.
    fn blocks(&self, names: &[String]) -> Result<Quantised<'_>, BundleError> {
        let mut codes = self.tensor(&names[0])?;
        let mut blocks: Vec<(BlockKind, usize)> = Vec::new();
        let (mut end, mut columns) = (codes.file_offset as usize, None);
        for name in names {
            let entry = self.entry(name)?;
            let kind = entry.blocks.unwrap_or(BlockKind::F32);
            let width = entry.shape[1] / kind.bytes() * kind.elements();
            if entry.range.start != end || *columns.get_or_insert(width) != width {
                return Err(self.apart(name, &names[0]));
            }
            end = entry.range.end;
            match blocks.last_mut() {
                Some((last, rows)) if *last == kind => *rows += entry.shape[0],
                _ => blocks.push((kind, entry.shape[0])),
            }
        }
        codes.bytes = &self.map[codes.file_offset as usize..end];
        codes.shape = vec![codes.bytes.len()];
        let scales = TensorView { shape: vec![0], element: Element::F32, bytes: &[], ..codes.clone() };
        let rows = blocks.iter().map(|(_, rows)| rows).sum();
        Ok(Quantised {
            precision: self.precision,
            rows,
            columns: columns.unwrap_or(0),
            codes,
            scales,
            blocks,
        })
    }

    fn apart(&self, name: &str, first: &str) -> BundleError {
        let reason = format!("{name} does not lie directly behind {first}; prepare the model again");
        BundleError::Malformed { path: self.path.clone(), reason }
    }

    /// Whether `name` is stored as codes with scales, or in a file's own blocks.
    pub fn is_quantised(&self, name: &str) -> bool {
        let is_of_blocks = || self.tensors.get(name).is_some_and(|entry| entry.blocks.is_some());
        self.precision.is_quantised() && (self.tensors.contains_key(&scale_name(name)) || is_of_blocks())
    }

    /// The whole file; [`TensorView::file_offset`] is an offset into it.
    pub fn file(&self) -> &[u8] {
        &self.map
    }

    /// Reads one byte of every page, so that the cost of paging in the weights is part of load, not of the
    /// first token. Returns a checksum so that the reads cannot be optimised away.
    pub fn touch(&self) -> u64 {
        touch(&self.map)
    }

    /// Lets the system take back the pages of `view`, of which the caller keeps a converted copy. If they are
    /// read again, the system reloads them from the file.
    pub fn release(&self, view: &TensorView<'_>) {
        #[cfg(unix)]
        {
            let (start, length) = (view.file_offset as usize, view.bytes.len());
            // SAFETY: the mapping is shared and never written to, so a page that is reloaded is unchanged.
            #[allow(unsafe_code)]
            let released =
                unsafe { self.map.unchecked_advise_range(UncheckedAdvice::DontNeed, start, length) };
            // Only advice: if the system ignores it, the pages stay resident.
            let _ = released;
        }
        #[cfg(not(unix))]
        let _ = view;
    }

    fn entry(&self, name: &str) -> Result<&Entry, BundleError> {
        self.tensors
            .get(name)
            .ok_or_else(|| BundleError::MissingTensor { path: self.path.clone(), name: name.to_owned() })
    }
}

/// What the offset of a tensor's first byte must be a multiple of: engines read it in place, by aligned loads. A block
/// begins with its scale in f16. Blocks of any length may be before a vector at precision `file`, which engines copy.
fn alignment(precision: Precision, stored: &StoredTensor) -> usize {
    match stored.blocks {
        Some(BlockKind::F32) => 4,
        Some(_) => 2,
        None if precision == Precision::File => 1,
        None => stored.element.bytes(),
    }
}
