//! The bundle's quantised weights in candle's block formats, byte for byte.
//!
//! Two cut a row into blocks of 32 inputs with a scale in f16 each, one into blocks of 256:
//!
//! | precision | blocks | bytes of a block |
//! |---|---|---|
//! | int8 | Q8_0 | scale, 32 integers; the row's scale is repeated in each of its blocks |
//! | int4 | Q4_0 | scale, 16 bytes; byte i holds code i in its low half and code i + 16 in its high half |
//! | int4 | Q4_K, where the bundle's scales allow it: candle repacks no other type of 4 bits | [`Quantised::q4_k`] |
//!
//! At precision `file` the blocks are the file's own, of one type or, stacked, of several.
//!
//! The blocks are copied and not quantised again, so that they hold the bundle's integers and scales. In
//! products, candle rounds the activations to 8 bits, in blocks of 32, or of 256 for Q4_K, with a scale each.

use std::borrow::Cow;
use std::sync::Arc;

use bundle::{BlockKind, Precision, Quantised};
use candle_core::quantized::k_quants::{self, BlockQ4K};
use candle_core::quantized::{GgmlDType, QMatMul, QStorage, QTensor};
use candle_core::{DType, Device, Module, Result, Tensor, bail};
use half::f16;
use rayon::prelude::*;

use crate::elements::with_f32;
use crate::kernels::Kernels;

/// candle repacks so many rows together (`TILE_N` in its `repack_x86.rs`).
const REPACKED_ROWS: usize = 16;

/// Inputs that share a scale.
const BLOCK: usize = 32;

const SCALE_BYTES: usize = 2;

const Q8_0_BYTES: usize = SCALE_BYTES + BLOCK;

const Q4_0_BYTES: usize = SCALE_BYTES + BLOCK / 2;

/// The blocks of an int8 or int4 weight, `[out, in]`.
fn encode(weight: &Quantised<'_>) -> Result<QTensor> {
    if weight.rows.is_multiple_of(REPACKED_ROWS) {
        let rows: Option<Vec<Vec<u8>>> =
            (0..weight.rows).into_par_iter().map(|row| weight.q4_k(row)).collect();
        if let Some(rows) = rows {
            return own(BlockKind::Q4K, (weight.rows, weight.columns), &rows.concat());
        }
    }
    let (dtype, block_bytes) = match weight.precision {
        Precision::Int8 => (GgmlDType::Q8_0, Q8_0_BYTES),
        Precision::Int4 => (GgmlDType::Q4_0, Q4_0_BYTES),
        other => bail!("candle has no blocks for {other}"),
    };
    let row_blocks = weight.columns / BLOCK;
    let mut bytes = vec![0; weight.rows * row_blocks * block_bytes];
    bytes.par_chunks_exact_mut(row_blocks * block_bytes).enumerate().try_for_each(|(row, blocks)| {
        for (index, block) in blocks.chunks_exact_mut(block_bytes).enumerate() {
            let (scale, codes) = block.split_at_mut(SCALE_BYTES);
            let first = row * row_blocks + index;
            if dtype == GgmlDType::Q8_0 {
                scale.copy_from_slice(&exact(weight.scale(row))?.to_le_bytes());
                codes.copy_from_slice(&weight.codes.bytes[first * BLOCK..][..BLOCK]);
            } else {
                scale.copy_from_slice(&exact(weight.scale(first))?.to_le_bytes());
                interleave(&weight.codes.bytes[first * BLOCK / 2..][..BLOCK / 2], codes);
            }
        }
        Ok::<_, candle_core::Error>(())
    })?;
    let storage = QStorage::from_data(Cow::Owned(bytes), &Device::Cpu, dtype)?;
    QTensor::new(storage, (weight.rows, weight.columns))
}

/// Rows in a file's own blocks.
fn own(kind: BlockKind, (rows, columns): (usize, usize), bytes: &[u8]) -> Result<QTensor> {
    let dtype = match kind {
        BlockKind::F32 => GgmlDType::F32,
        BlockKind::Q4_0 => GgmlDType::Q4_0,
        BlockKind::Q4_1 => GgmlDType::Q4_1,
        BlockKind::Q5_0 => GgmlDType::Q5_0,
        BlockKind::Q5_1 => GgmlDType::Q5_1,
        BlockKind::Q8_0 => GgmlDType::Q8_0,
        BlockKind::Q2K => GgmlDType::Q2K,
        BlockKind::Q3K => GgmlDType::Q3K,
        BlockKind::Q4K => GgmlDType::Q4K,
        BlockKind::Q5K => GgmlDType::Q5K,
        BlockKind::Q6K => GgmlDType::Q6K,
    };
    QTensor::new(QStorage::from_data(Cow::Borrowed(bytes), &Device::Cpu, dtype)?, (rows, columns))
}

/// Changes the order of codes: two neighbours per byte become codes half a block apart.
fn interleave(pairs: &[u8], halves: &mut [u8]) {
    let code = |index: usize| pairs[index / 2] >> (4 * (index % 2)) & 15;
    for (index, byte) in halves.iter_mut().enumerate() {
        *byte = code(index) | code(index + BLOCK / 2) << 4;
    }
}

/// The scale as f16, the type of candle's blocks, if that loses nothing.
fn exact(scale: f32) -> Result<f16> {
    let half = f16::from_f32(scale);
    if half.to_f32() != scale {
        bail!("scale {scale} does not fit f16, in which candle's blocks hold it: prepare the model again");
    }
    Ok(half)
}

/// A quantised weight as candle holds it. Clones share it.
#[derive(Debug, Clone)]
pub(crate) struct Blocks {
    /// One above the other. There is one unless a file has rows of several types.
    tensors: Vec<Arc<QTensor>>,
    precision: Precision,
    /// Whether candle has made a second, repacked copy for its faster kernels.
    repacked: bool,
    kernels: Kernels,
}

impl Blocks {
    /// Encodes the weight and multiplies once, so that candle repacks it now, if it repacks this shape on
    /// this machine. Otherwise the time for it would be part of the first token and not of the load.
    pub(crate) fn new(weight: &Quantised<'_>, kernels: Kernels) -> Result<Blocks> {
        let tensors = match weight.precision {
            Precision::File => weight
                .parts()
                .map(|(kind, rows, bytes)| own(kind, (rows, weight.columns), bytes))
                .collect::<Result<Vec<_>>>()?,
            _ => vec![encode(weight)?],
        };
        let mut blocks = Blocks {
            tensors: tensors.into_iter().map(Arc::new).collect(),
            precision: weight.precision,
            repacked: false,
            kernels,
        };
        // Some types are repacked for more than one row alone.
        for rows in [1, 2] {
            let x = Tensor::zeros((rows, weight.columns), DType::F32, &Device::Cpu)?;
            let repacked = blocks.tensors.iter().map(|tensor| is_repacked(tensor, &x));
            blocks.repacked |= repacked.collect::<Result<Vec<_>>>()?.into_iter().all(|repacked| repacked);
            blocks.product(&x)?;
        }
        Ok(blocks)
    }

    /// Outputs and inputs.
    pub(crate) fn dims(&self) -> Result<(usize, usize)> {
        let rows = self.tensors.iter().map(|tensor| tensor.shape().dims()[0]).sum();
        Ok((rows, self.tensors[0].shape().dims()[1]))
    }

    pub(crate) fn precision(&self) -> Precision {
        self.precision
    }

    /// The types of blocks.
    pub(crate) fn dtypes(&self) -> Vec<GgmlDType> {
        self.tensors.iter().map(|tensor| tensor.dtype()).collect()
    }

    pub(crate) fn is_repacked(&self) -> bool {
        self.repacked
    }

    /// Whose code dequantises them, human-readable.
    pub(crate) fn dequantises(&self) -> &'static str {
        if self.own_loop().is_some() { "the engine's own loops" } else { "candle" }
    }

    /// The engine's own code for a row, with the bytes of a block.
    fn own_loop(&self) -> Option<(usize, fn(&[u8], &mut [f32]))> {
        match self.tensors[0].dtype() {
            _ if self.kernels == Kernels::Candle || self.precision == Precision::File => None,
            GgmlDType::Q8_0 => Some((Q8_0_BYTES, dequantise_q8_0)),
            GgmlDType::Q4_0 => Some((Q4_0_BYTES, dequantise_q4_0)),
            _ => None,
        }
    }

    /// `[rows, in]` → `[rows, out]` by candle's quantised kernel.
    pub(crate) fn product(&self, x: &Tensor) -> Result<Tensor> {
        let one = x.dim(0)? == 1;
        let product = |tensor: &Arc<QTensor>| match one && takes_row_by_blocks(tensor.dtype()) {
            true => row_by_blocks(tensor, x),
            false => QMatMul::QTensor(tensor.clone()).forward(x),
        };
        match &self.tensors[..] {
            [tensor] => product(tensor),
            tensors => Tensor::cat(&tensors.iter().map(product).collect::<Result<Vec<_>>>()?, 1),
        }
    }

    /// The rows from `first`, as many as fit into `out`, in f32.
    pub(crate) fn dequantise(&self, first: usize, out: &mut [f32]) -> Result<()> {
        let (_, columns) = self.dims()?;
        let Some((block_bytes, dequantise)) = self.own_loop() else {
            return self.dequantise_by_candle(first, columns, out);
        };
        let (bytes, row_bytes) = (self.tensors[0].data()?, columns / BLOCK * block_bytes);
        for (row, out) in out.chunks_exact_mut(columns).enumerate() {
            dequantise(&bytes[(first + row) * row_bytes..][..row_bytes], out);
        }
        Ok(())
    }
}

impl Blocks {
    /// candle dequantises whole tensors: the rows of each become one, which copies their blocks.
    fn dequantise_by_candle(&self, first: usize, columns: usize, out: &mut [f32]) -> Result<()> {
        let (mut above, end) = (0, first + out.len() / columns);
        for tensor in &self.tensors {
            let (rows, dtype) = (tensor.shape().dims()[0], tensor.dtype());
            let wanted = first.max(above)..end.min(above + rows);
            if wanted.start < wanted.end {
                let width = columns / dtype.block_size() * dtype.type_size();
                let blocks = &tensor.data()?[(wanted.start - above) * width..(wanted.end - above) * width];
                let storage = QStorage::from_data(Cow::Borrowed(blocks), &Device::Cpu, dtype)?;
                let wide = QTensor::new(storage, (wanted.len(), columns))?.dequantize(&Device::Cpu)?;
                let out = &mut out[(wanted.start - first) * columns..(wanted.end - first) * columns];
                with_f32(&wide, |wide| out.copy_from_slice(wide))?;
            }
            above += rows;
        }
        Ok(())
    }
}

/// Whether one row is multiplied by the blocks as they are, also where candle has repacked them. Repacked, Q4_K has 6 bits
/// a weight in place of 4.5, and from main memory candle's kernel gets them no sooner: all products of a token of
/// synthetic:llama-160m took 4.9 ms repacked and 3.1 as they are, of two rows 5.7 and 6.3 (Zen 4, two threads). ARM's
/// kernels are others.
pub(crate) fn takes_row_by_blocks(dtype: GgmlDType) -> bool {
    cfg!(target_arch = "x86_64") && dtype == GgmlDType::Q4K
}

/// The product of one row with blocks of Q4_K, by what `QMatMul` calls for blocks that are not repacked.
#[allow(unsafe_code)]
fn row_by_blocks(tensor: &QTensor, x: &Tensor) -> Result<Tensor> {
    let (out, input) = tensor.shape().dims2()?;
    let bytes = tensor.data()?;
    // SAFETY: a block is integers and f16 alone, so that any bytes are one, and `align_to` takes no part of one.
    let (before, blocks, after) = unsafe { bytes.align_to::<BlockQ4K>() };
    if !before.is_empty() || !after.is_empty() {
        bail!("{} bytes are not whole blocks in their place", bytes.len());
    }
    let mut y = vec![0.0; out];
    with_f32(x, |x| k_quants::matmul((1, input, out), x, blocks, &mut y))??;
    Tensor::from_vec(y, (1, out), &Device::Cpu)
}

/// Whether candle repacks this weight. Only this one of its public functions depends on it.
#[cfg(not(feature = "before-0-11-1"))]
fn is_repacked(tensor: &QTensor, row: &Tensor) -> Result<bool> {
    Ok(QTensor::gemv_fused_shared_lhs(&[tensor], row)?.is_some())
}

/// candle says so since 0.11.1.
#[cfg(feature = "before-0-11-1")]
fn is_repacked(_: &QTensor, _: &Tensor) -> Result<bool> {
    Ok(false)
}

fn dequantise_q8_0(row: &[u8], out: &mut [f32]) {
    for (block, out) in row.as_chunks::<Q8_0_BYTES>().0.iter().zip(out.as_chunks_mut::<BLOCK>().0) {
        let (scale, codes) = split_scale(block);
        out.iter_mut().zip(codes).for_each(|(out, code)| *out = f32::from(*code as i8) * scale);
    }
}

/// Converts the codes of many blocks first and then applies their scales. The compiler turns a single loop
/// for both into scalar code, which takes six times as long.
fn dequantise_q4_0(row: &[u8], out: &mut [f32]) {
    const BLOCKS: usize = 64;
    let mut codes = [0_i8; BLOCKS * BLOCK];
    for (blocks, out) in row.chunks(BLOCKS * Q4_0_BYTES).zip(out.chunks_mut(BLOCKS * BLOCK)) {
        let blocks = blocks.as_chunks::<Q4_0_BYTES>().0;
        for (block, codes) in blocks.iter().zip(codes.as_chunks_mut::<BLOCK>().0) {
            let (low, high) = codes.split_at_mut(BLOCK / 2);
            let bytes = &block[SCALE_BYTES..];
            low.iter_mut().zip(bytes).for_each(|(low, byte)| *low = (byte & 15) as i8 - 8);
            high.iter_mut().zip(bytes).for_each(|(high, byte)| *high = (byte >> 4) as i8 - 8);
        }
        for ((block, codes), out) in
            blocks.iter().zip(codes.as_chunks::<BLOCK>().0).zip(out.as_chunks_mut::<BLOCK>().0)
        {
            let (scale, _) = split_scale(block);
            out.iter_mut().zip(codes).for_each(|(out, code)| *out = f32::from(*code) * scale);
        }
    }
}

fn split_scale(block: &[u8]) -> (f32, &[u8]) {
    let (scale, codes) = block.split_at(SCALE_BYTES);
    (f16::from_le_bytes([scale[0], scale[1]]).to_f32(), codes)
}

#[cfg(test)]
mod tests {
    use bundle::{Element, TensorView};

    use super::*;

    fn view<'a>(shape: &[usize], element: Element, bytes: &'a [u8]) -> TensorView<'a> {
        TensorView { shape: shape.to_vec(), element, bytes, file_offset: 0 }
    }

    fn blocks(precision: Precision, rows: usize, columns: usize, codes: &[u8], scales: &[f32]) -> Blocks {
        Blocks::new(&quantised(precision, rows, columns, codes, &bytes(scales)), Kernels::Own).unwrap()
    }

    fn bytes(scales: &[f32]) -> Vec<u8> {
        scales.iter().flat_map(|scale| scale.to_le_bytes()).collect()
    }

    fn quantised<'a>(
        precision: Precision,
        rows: usize,
        columns: usize,
        codes: &'a [u8],
        scales: &'a [u8],
    ) -> Quantised<'a> {
        let element = if precision == Precision::Int8 { Element::I8 } else { Element::U8 };
        Quantised {
            precision,
            rows,
            columns,
            codes: view(&[rows, codes.len() / rows], element, codes),
            scales: view(&[scales.len() / 4], Element::F32, scales),
            blocks: Vec::new(),
        }
    }

    /// Neighbouring codes differ, and so do the scales of neighbouring groups; those of `multiples` are whole multiples of
    /// one number.
    fn example(precision: Precision, rows: usize, columns: usize, multiples: usize) -> (Vec<u8>, Vec<f32>) {
        let (codes, scales) = match precision {
            Precision::Int8 => (rows * columns, rows),
            _ => (rows * columns / 2, rows * columns / BLOCK),
        };
        let codes = (0..codes).map(|i| (i * 37 % 255) as u8 ^ 0x80);
        (codes.collect(), (0..scales).map(|i| (1 + i % multiples) as f32 / 256.0).collect())
    }

    /// On some machines candle repacks only some of these, and the last alone are blocks of Q4_K.
    const SHAPES: [(usize, usize, usize); 3] = [(5, 96, 200), (16, 256, 200), (16, 512, 63)];

    #[test]
    fn blocks_are_of_the_type_that_candle_repacks_where_the_scales_allow_it() {
        let types = SHAPES.map(|(rows, columns, multiples)| {
            let (codes, scales) = example(Precision::Int4, rows, columns, multiples);
            blocks(Precision::Int4, rows, columns, &codes, &scales).dtypes()
        });
        assert_eq!(types.concat(), [GgmlDType::Q4_0, GgmlDType::Q4_0, GgmlDType::Q4K]);
    }

    #[test]
    fn blocks_hold_the_bundle_s_integers_and_scales_bit_for_bit() {
        for (rows, columns, multiples) in SHAPES {
            for precision in [Precision::Int8, Precision::Int4] {
                let (codes, scales) = example(precision, rows, columns, multiples);
                let scales = bytes(&scales);
                let weight = quantised(precision, rows, columns, &codes, &scales);
                let ours = weight.dequantised();
                for kernels in [Kernels::Candle, Kernels::Own] {
                    let held = Blocks::new(&weight, kernels).unwrap();
                    let mut whole = vec![0.0; rows * columns];
                    held.dequantise(0, &mut whole).unwrap();
                    assert_eq!(whole, ours, "{precision}");
                    held.dequantise(2, &mut whole[..columns]).unwrap();
                    assert_eq!(whole[..columns], ours[2 * columns..3 * columns], "{precision}");
                }
            }
        }
    }

    #[test]
    fn a_scale_that_f16_cannot_hold_is_refused() {
        let scales = bytes(&[1.0 + f32::EPSILON]);
        let weight = quantised(Precision::Int8, 1, BLOCK, &[1; BLOCK], &scales);
        assert!(Blocks::new(&weight, Kernels::Candle).unwrap_err().to_string().contains("f16"));
    }

    #[test]
    fn products_are_those_with_the_dequantised_weight() {
        for (rows, columns, multiples) in SHAPES {
            for precision in [Precision::Int8, Precision::Int4] {
                let (codes, scales) = example(precision, rows, columns, multiples);
                let weight = blocks(precision, rows, columns, &codes, &scales);
                let mut wide = vec![0.0; rows * columns];
                weight.dequantise(0, &mut wide).unwrap();
                // Whole numbers up to 127, so that rounding to 8 bits loses nothing.
                let x = (0..columns).map(|i| (i % BLOCK) as f32 * 8.0 - 121.0);
                let x = Tensor::from_iter(x, &Device::Cpu).unwrap().reshape((1, columns)).unwrap();
                let wide = Tensor::from_vec(wide, (rows, columns), &Device::Cpu).unwrap();
                let expected = x.matmul(&wide.t().unwrap()).unwrap().to_vec2::<f32>().unwrap().concat();
                let product = weight.product(&x).unwrap().to_vec2::<f32>().unwrap().concat();
                let largest = expected.iter().fold(0f32, |max, x| max.max(x.abs()));
                for (product, expected) in product.iter().zip(&expected) {
                    assert!(
                        (product - expected).abs() < 1e-5 * largest,
                        "{precision}: {product} for {expected}"
                    );
                }
            }
        }
    }
}
