//! Work cut over the threads of candle's pool, each piece of it calls of candle on one thread.

use std::ops::Range;

use candle_core::{DType, Device, Result, Tensor};

use crate::elements::with_f32;
use crate::parallel::{threads, try_for_each};

/// Less work than with this many elements is not worth another thread.
const WORTH_A_THREAD: usize = 1 << 15;
/// Multiplications of a product in the time that other functions take for an element.
const MULTIPLIED: usize = 32;
/// Pieces per thread: with several, threads wait less for the last.
const PIECES: usize = 4;
/// From this many elements candle divides an elementwise operation over its pool, which a piece must not ask for.
pub(super) const DIVIDED: usize = 1 << 16;
/// Elements of a piece that stays in a core's cache.
const IN_CACHE: usize = 1 << 13;

/// What multiplications cost, in elements.
pub(super) fn multiplied(multiplications: usize) -> usize {
    multiplications.div_ceil(MULTIPLIED)
}

/// Whether work on so many elements is to be divided.
pub(super) fn is_worth(cost: usize) -> bool {
    threads() > 1 && cost >= WORTH_A_THREAD
}

/// How many rows of a matrix each piece gets, if a row costs as much as so many elements; all if they are not worth
/// more threads.
pub(super) fn part(rows: usize, cost: usize) -> usize {
    if !is_worth(rows.saturating_mul(cost)) {
        return rows.max(1);
    }
    rows.div_ceil(PIECES * threads()).max(1)
}

/// `[rows, width]` of what `f` makes of ranges of `part` rows. Types other than f32 are computed at once.
pub(super) fn by_rows(
    dtype: DType,
    (rows, width): (usize, usize),
    part: usize,
    f: impl Fn(Range<usize>) -> Result<Tensor> + Send + Sync,
) -> Result<Tensor> {
    if dtype != DType::F32 || part >= rows || width == 0 {
        return f(0..rows)?.reshape((rows, width));
    }
    let mut out = vec![0.0; rows * width];
    try_for_each(out.chunks_mut(part * width).enumerate().collect(), |(index, out): (usize, &mut [f32])| {
        let first = index * part;
        let made = f(first..first + out.len() / width)?.contiguous()?;
        with_f32(&made, |made| out.copy_from_slice(made))
    })?;
    Tensor::from_vec(out, (rows, width), &Device::Cpu)
}

/// The same of ranges of columns, which cover all in their order; `cost` is that of all.
pub(super) fn by_columns(
    dtype: DType,
    (rows, width): (usize, usize),
    (ranges, cost): (Vec<Range<usize>>, usize),
    f: impl Fn(Range<usize>) -> Result<Tensor> + Send + Sync,
) -> Result<Tensor> {
    if ranges.len() < 2 || rows == 0 {
        return f(0..width)?.reshape((rows, width));
    }
    if dtype != DType::F32 {
        return Tensor::cat(&ranges.into_iter().map(f).collect::<Result<Vec<_>>>()?, 1);
    }
    let mut out = vec![0.0; rows * width];
    let mut pieces: Vec<_> = ranges.into_iter().map(|range| (range, Vec::with_capacity(rows))).collect();
    for mut row in out.chunks_exact_mut(width) {
        for (range, piece) in &mut pieces {
            let (part, rest) = row.split_at_mut(range.len());
            piece.push(part);
            row = rest;
        }
    }
    let fill = |(columns, rows): (Range<usize>, Vec<&mut [f32]>)| {
        let count = columns.len();
        with_f32(&f(columns)?.contiguous()?, |made| {
            for (row, made) in rows.into_iter().zip(made.chunks_exact(count)) {
                row.copy_from_slice(made);
            }
        })
    };
    if is_worth(cost) {
        try_for_each(pieces, fill)?
    } else {
        pieces.into_iter().try_for_each(fill)?
    }
    Tensor::from_vec(out, (rows, width), &Device::Cpu)
}

/// Ranges of `part` that cover `range`.
pub(super) fn ranges(range: Range<usize>, part: usize) -> impl Iterator<Item = Range<usize>> {
    range.clone().step_by(part.max(1)).map(move |first| first..range.end.min(first + part))
}

/// A copy of a view in the order of its elements. candle's loops over two operands follow a view with steps in half the
/// time of its `contiguous`, or less (README).
pub(super) fn copied(view: &Tensor) -> Result<Tensor> {
    if view.is_contiguous() { Ok(view.clone()) } else { view.maximum(view) }
}

/// Several elementwise operations of candle after one another, while a piece of the tensor is in a core's cache.
pub(super) fn each(x: &Tensor, f: impl Fn(&Tensor) -> Result<Tensor> + Send + Sync) -> Result<Tensor> {
    let count = x.elem_count();
    if x.dtype() != DType::F32 || count < WORTH_A_THREAD {
        return f(x);
    }
    let flat = x.flatten_all()?;
    by_rows(DType::F32, (count, 1), IN_CACHE, |part| f(&flat.narrow(0, part.start, part.len())?))?
        .reshape(x.shape())
}
