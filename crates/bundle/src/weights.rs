//! Tensors of a safetensors file as mapped bytes.

use std::collections::HashMap;
use std::ops::Range;
use std::path::{Path, PathBuf};

use memmap2::Mmap;
use protocol::untrusted;
use safetensors::SafeTensors;

use crate::config::{Llama3Scaling, LongRope, ModelConfig, Rotary, StoredTensor};
use crate::{BundleError, TensorView, touch};
use crate::{Element, Precision};

#[cfg(unix)]
use memmap2::UncheckedAdvice;

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
}

impl Weights {
    /// Maps `path` and checks that it holds each of `expected` ([`crate::ModelConfig::stored`]).
    pub fn map(path: &Path, precision: Precision, expected: &[StoredTensor]) -> Result<Weights, BundleError> {
        let file = untrusted::file::open(path).map_err(BundleError::io(path))?;
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
            let entry = Entry { shape: info.shape.clone(), element: spec.element, range };
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
                return Err(BundleError::Malformed {
                    path: self.path.clone(),
                    reason: format!(
                        "{name} does not lie directly behind {}; prepare the model again",
                        names[0]
                    ),
                });
            }
            whole.shape[0] += next.shape[0];
            end = next.range.end;
        }
        whole.bytes = &self.map[start..end];
        Ok(whole)
    }

    /// The codes and scales of adjacent quantised tensors, stacked like [`Weights::stacked`].
    pub fn quantised(&self, names: &[String]) -> Result<Quantised<'_>, BundleError> {
        let codes = self.stacked(names)?;
        let scales: Vec<_> = names.iter().map(|name| scale_name(name)).collect();
        let scales = self.stacked(&scales)?;
        // Two weights to a byte.
        let columns = codes.shape[1] * if self.precision.bits() == 4 { 2 } else { 1 };
        Ok(Quantised { precision: self.precision, rows: codes.shape[0], columns, codes, scales })
    }

    /// Whether `name` is stored as codes with scales.
    pub fn is_quantised(&self, name: &str) -> bool {
        self.precision.is_quantised() && self.tensors.contains_key(&scale_name(name))
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

// Weights below 16 bits: codes and scales, computed once by `prepare`, so that "same weights" holds for them
// too.
//
// A quantised tensor `NAME` of shape `[out, in]` is stored as its codes under its own name and its scales,
// f32, under `NAME.scale`. Every framework's kernels can use these forms unchanged:
//
// | precision | codes | scales | weight |
// |---|---|---|---|
// | int8 | I8 `[out, in]`, −127 … 127 | `[out]` | code · scale |
// | int4 | U8 `[out, in / 2]`, two to a byte, the even column in the low half, 0 … 15 | `[out, in / 32]` | (code − 8) · scale |
// | nf4 | U8 `[out, in / 2]`, two to a byte, the even column in the high half | `[out · in / 64]`, over the row-major weight | [`NF4`]`[code]` · scale |
//
// Scales of int8 and int4 have eight significant bits and fit f16 and bf16 exactly, so that a kernel may
// hold them in either. Their products with a code are exact in f32; so is the result of
// [`Quantised::dequantised`], and engines can be required to match it bit for bit. The layout of nf4 is that
// of bitsandbytes, and of ONNX Runtime's `MatMulBnb4`.

/// Consecutive inputs of a row that share a scale in int4. Rows of every quantised tensor are a multiple of it.
pub const INT4_GROUP: usize = 32;

/// Consecutive weights that share a scale in nf4.
pub const NF4_BLOCK: usize = 64;

/// Added to an integer of 4 bits to store it.
pub const INT4_OFFSET: i8 = 8;

/// The sixteen values of NormalFloat: quantiles of the normal distribution, scaled to ±1, with an exact zero.
/// Dettmers, Pagnoni, Holtzman and Zettlemoyer, "QLoRA: Efficient Finetuning of Quantized LLMs" (2023),
/// appendix E.
pub const NF4: [f32; 16] = [
    -1.0,
    -0.696_192_8,
    -0.525_073_05,
    -0.394_917_5,
    -0.284_441_38,
    -0.184_773_43,
    -0.091_050_036,
    0.0,
    0.079_580_3,
    0.160_930_2,
    0.246_112_3,
    0.337_915_24,
    0.440_709_83,
    0.562_617,
    0.722_956_84,
    1.0,
];

/// Name of the tensor that holds the scales of `name`.
pub fn scale_name(name: &str) -> String {
    format!("{name}.scale")
}

/// Shape of the scales of a tensor of `[rows, columns]`.
pub(crate) fn scale_shape(precision: Precision, rows: usize, columns: usize) -> Vec<usize> {
    match precision {
        Precision::Int4 => vec![rows, columns / INT4_GROUP],
        Precision::Nf4 => vec![rows * columns / NF4_BLOCK],
        _ => vec![rows],
    }
}

/// A quantised tensor, or several adjacent ones.
#[derive(Debug, Clone)]
pub struct Quantised<'a> {
    pub precision: Precision,
    /// Outputs.
    pub rows: usize,
    /// Inputs.
    pub columns: usize,
    pub codes: TensorView<'a>,
    /// f32.
    pub scales: TensorView<'a>,
}

impl Quantised<'_> {
    /// Scale `index`, in the order in which they are stored.
    pub fn scale(&self, index: usize) -> f32 {
        let bytes = &self.scales.bytes[4 * index..];
        f32::from_le_bytes([bytes[0], bytes[1], bytes[2], bytes[3]])
    }

    /// All scales, in the order in which they are stored.
    pub fn scale_values(&self) -> Vec<f32> {
        self.scales.bytes.as_chunks().0.iter().map(|bytes| f32::from_le_bytes(*bytes)).collect()
    }

    /// The signed integers of row `row` of int8 or int4.
    ///
    /// Panics for nf4, whose codes are no integers.
    pub fn integers(&self, row: usize) -> Vec<i8> {
        match self.precision {
            Precision::Int8 => {
                self.codes.bytes[row * self.columns..][..self.columns].iter().map(|&b| b as i8).collect()
            }
            Precision::Int4 => {
                let bytes = &self.codes.bytes[row * self.columns / 2..][..self.columns / 2];
                let signed = |nibble: u8| nibble as i8 - INT4_OFFSET;
                bytes.iter().flat_map(|&byte| [signed(byte & 15), signed(byte >> 4)]).collect()
            }
            other => panic!("{other} has no integers"),
        }
    }

    /// Row `row` in f32, into `out` of [`Self::columns`] elements.
    pub fn row(&self, row: usize, out: &mut [f32]) {
        let columns = self.columns;
        match self.precision {
            Precision::Int8 => {
                let (scale, codes) = (self.scale(row), &self.codes.bytes[row * columns..][..columns]);
                for (out, &code) in out.iter_mut().zip(codes) {
                    *out = f32::from(code as i8) * scale;
                }
            }
            Precision::Int4 => {
                let groups = columns / INT4_GROUP;
                let codes = &self.codes.bytes[row * columns / 2..][..columns / 2];
                let parts = out.chunks_exact_mut(INT4_GROUP).zip(codes.chunks_exact(INT4_GROUP / 2));
                for (group, (out, codes)) in parts.enumerate() {
                    let scale = self.scale(row * groups + group);
                    for (pair, &byte) in out.as_chunks_mut::<2>().0.iter_mut().zip(codes) {
                        let signed = |nibble: u8| f32::from(nibble as i8 - INT4_OFFSET);
                        *pair = [signed(byte & 15) * scale, signed(byte >> 4) * scale];
                    }
                }
            }
            _ => {
                let codes = &self.codes.bytes[row * columns / 2..][..columns / 2];
                for (at, (pair, &byte)) in out.as_chunks_mut::<2>().0.iter_mut().zip(codes).enumerate() {
                    // Blocks have an even number of weights, so that a pair never spans two.
                    let scale = self.scale((row * columns + 2 * at) / NF4_BLOCK);
                    *pair = [NF4[usize::from(byte >> 4)] * scale, NF4[usize::from(byte & 15)] * scale];
                }
            }
        }
    }

    /// The whole weight in f32, `[rows, columns]` row-major.
    pub fn dequantised(&self) -> Vec<f32> {
        let mut whole = vec![0.0; self.rows * self.columns];
        for (row, out) in whole.chunks_exact_mut(self.columns).enumerate() {
            self.row(row, out);
        }
        whole
    }
}

// Rotary position embedding tables (Su et al. 2021, "RoFormer", arXiv:2104.09864), in the
// rotate-half convention of Hugging Face transformers. Computed here once so that all engines
// rotate by bit-identical angles.

/// Inverse frequencies θ^(−2i/d) for i in 0..d/2 with d rotated dimensions, scaled according to the
/// configuration. In f32 like the reference implementation's. For LongRoPE, those of a short context.
pub fn inverse_frequencies(rotary: &Rotary, dims: usize) -> Vec<f32> {
    match &rotary.longrope {
        None => scaled(rotary, dims),
        Some(longrope) => divided(scaled(rotary, dims), &longrope.short),
    }
}

fn divided(frequencies: Vec<f32>, divisors: &[f64]) -> Vec<f32> {
    frequencies.into_iter().zip(divisors).map(|(frequency, &divisor)| frequency / divisor as f32).collect()
}

fn scaled(rotary: &Rotary, dims: usize) -> Vec<f32> {
    let base = (0..dims / 2).map(|i| {
        let exponent = (2 * i) as f32 / dims as f32;
        (1.0 / rotary.theta.powf(f64::from(exponent))) as f32
    });
    let base = base.map(|f| f / rotary.linear_factor as f32);
    match &rotary.llama3 {
        None => base.collect(),
        Some(scaling) => base.map(|f| llama3(f, scaling)).collect(),
    }
}

/// Llama 3's piecewise scaling: long wavelengths are divided by `factor`, short ones kept, those
/// between interpolated (transformers, `modeling_rope_utils.py`, `_compute_llama3_parameters`).
fn llama3(frequency: f32, s: &Llama3Scaling) -> f32 {
    let frequency = f64::from(frequency);
    let wavelength = 2.0 * std::f64::consts::PI / frequency;
    let low_wavelength = s.original_max_positions as f64 / s.low_freq_factor;
    let high_wavelength = s.original_max_positions as f64 / s.high_freq_factor;
    let scaled = if wavelength > low_wavelength {
        frequency / s.factor
    } else if wavelength < high_wavelength {
        frequency
    } else {
        let smooth = (s.original_max_positions as f64 / wavelength - s.low_freq_factor)
            / (s.high_freq_factor - s.low_freq_factor);
        (1.0 - smooth) * frequency / s.factor + smooth * frequency
    };
    scaled as f32
}

/// `(cos, sin)`, each `[positions, dims / 2]` row-major. For LongRoPE, `positions`, the room for the whole
/// context, decides whether the context is a long one: cached keys are not rotated again.
pub fn cos_sin(rotary: &Rotary, dims: usize, positions: usize) -> (Vec<f32>, Vec<f32>) {
    let (frequencies, scale) = match &rotary.longrope {
        None => (scaled(rotary, dims), None),
        Some(LongRope { short, long, original_max_positions, scale }) => {
            let divisors = if positions > *original_max_positions { long } else { short };
            (divided(scaled(rotary, dims), divisors), Some(*scale as f32))
        }
    };
    let angles = (0..positions)
        .flat_map(|position| frequencies.iter().map(move |frequency| position as f32 * frequency));
    let scale = scale.unwrap_or(1.0);
    angles.map(|angle| (angle.cos() * scale, angle.sin() * scale)).unzip()
}

/// The tables of each of [`ModelConfig::rotations`], as from [`cos_sin`].
pub fn tables(config: &ModelConfig, positions: usize) -> Vec<(Vec<f32>, Vec<f32>)> {
    let rotations = config.rotations().into_iter();
    rotations.map(|rotary| cos_sin(rotary, config.rotary_dim(), positions)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_frequency_turns_one_radian_a_position() {
        let rotary = Rotary::plain(10_000.0);
        let (cos, sin) = cos_sin(&rotary, 4, 3);
        assert_eq!(cos.len(), 6);
        assert_eq!((cos[0], sin[0]), (1.0, 0.0));
        assert!((cos[2] - 1f32.cos()).abs() < 1e-7 && (sin[4] - 2f32.sin()).abs() < 1e-7);
        assert!((sin[3] - 0.01f32.sin()).abs() < 1e-7);
    }

    #[test]
    fn llama3_scaling_divides_long_waves_and_keeps_short_ones() {
        let scaling = Llama3Scaling {
            factor: 8.0,
            low_freq_factor: 1.0,
            high_freq_factor: 4.0,
            original_max_positions: 64,
        };
        assert_eq!(llama3(1.0, &scaling), 1.0);
        assert_eq!(llama3(1e-3, &scaling), 1e-3 / 8.0);
        let between = llama3(0.2, &scaling);
        assert!(between < 0.2 && between > 0.2 / 8.0);
    }
}
