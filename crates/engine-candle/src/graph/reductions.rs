//! Sums and extremes along axes.

use bundle::Dtype;
use candle_core::{DType, Result, Tensor};

use super::operators::{Call, Made};
use super::products::products;
use super::{Typed, element};

impl Call<'_> {
    pub(super) fn reduce(&self) -> Made<Tensor> {
        let x = self.input(0)?;
        let axes = match self.given_axes(1)? {
            Some(axes) if !axes.is_empty() => self.node.axes(&axes, x.rank())?,
            _ if self.node.int("noop_with_empty_axes") == Some(1) => return Ok(x.clone()),
            _ => (0..x.rank()).collect(),
        };
        let sum = |x: &Tensor| summed(x, &axes);
        let each = |x: &Tensor, f: fn(&Tensor, usize) -> Result<Tensor>| {
            axes.iter().try_fold(x.clone(), |x, &axis| f(&x, axis))
        };
        let count: usize = axes.iter().map(|&axis| x.dims()[axis]).product();
        let y = match self.node.operator.as_str() {
            "ReduceSum" => sum(x)?,
            "ReduceMean" => (sum(x)? / count as f64)?,
            "ReduceMax" => each(x, |x, axis| x.max_keepdim(axis))?,
            "ReduceMin" => each(x, |x, axis| x.min_keepdim(axis))?,
            "ReduceProd" => each(x, multiplied)?,
            "ReduceL1" => sum(&x.abs()?)?,
            "ReduceL2" => sum(&x.sqr()?)?.sqrt()?,
            "ReduceSumSquare" => sum(&x.sqr()?)?,
            "ReduceLogSum" => sum(x)?.log()?,
            "ReduceLogSumExp" => {
                let largest = each(x, |x, axis| x.max_keepdim(axis))?;
                (sum(&x.broadcast_sub(&largest)?.exp()?)?.log()? + largest)?
            }
            _ => return Ok(self.node.unsupported("this reduction is not computed here")?),
        };
        if self.node.int("keepdims").unwrap_or(1) != 0 {
            return Ok(y);
        }
        let kept = (0..x.rank()).filter(|axis| !axes.contains(axis)).map(|axis| x.dims()[axis]);
        Ok(y.reshape(kept.collect::<Vec<_>>())?)
    }

    pub(super) fn best_place(&self) -> Made<Typed> {
        let x = self.input(0)?;
        let axis = self.node.axis("axis", 0, x.rank())?;
        if self.node.int("select_last_index").unwrap_or(0) != 0 {
            return Ok(self.node.unsupported("candle finds the first of equal elements")?);
        }
        let is_max = self.node.operator == "ArgMax";
        let places = if is_max { x.argmax_keepdim(axis)? } else { x.argmin_keepdim(axis)? };
        let places =
            if self.node.int("keepdims").unwrap_or(1) != 0 { places } else { places.squeeze(axis)? };
        Ok(Typed { tensor: places.to_dtype(element(Dtype::Int64))?, dtype: Dtype::Int64 })
    }

    /// candle multiplies with a matrix of ones, which it has for floats: those of 64 bits hold whole numbers exactly.
    pub(super) fn cumulative_sum(&self) -> Made<Tensor> {
        let x = self.input(0)?;
        let Some(&[given]) = self.inputs.ints(1)?.as_deref() else {
            return Ok(self.node.failed("it has not one axis")?);
        };
        let axis = onnx::program::axis(given, x.rank())?;
        let is_float = self.inputs.tensor(0)?.dtype.is_float();
        let mut sums = if is_float { x.clone() } else { x.to_dtype(DType::F64)? };
        let is_reverse = self.node.int("reverse") == Some(1);
        if is_reverse {
            sums = sums.flip(&[axis])?;
        }
        if self.node.int("exclusive") == Some(1) {
            let size = sums.dim(axis)?;
            sums = sums.pad_with_zeros(axis, 1, 0)?.narrow(axis, 0, size)?;
        }
        sums = sums.contiguous()?.cumsum(axis)?;
        if is_reverse {
            sums = sums.contiguous()?.flip(&[axis])?;
        }
        Ok(sums.to_dtype(x.dtype())?)
    }
}

/// Sums along axes. Of axes before the last, candle's sum takes as long as sixty products with ones.
fn summed(x: &Tensor, axes: &[usize]) -> Result<Tensor> {
    let (Some(&first), Some(&last)) = (axes.first(), axes.last()) else { return Ok(x.clone()) };
    let inner: usize = x.dims()[last + 1..].iter().product();
    if inner < 2 || last - first + 1 != axes.len() || !matches!(x.dtype(), DType::F32 | DType::F64) {
        return x.sum_keepdim(axes);
    }
    let count: usize = axes.iter().map(|&axis| x.dims()[axis]).product();
    let outer: usize = x.dims()[..first].iter().product();
    let ones = Tensor::ones((1, 1, count), x.dtype(), x.device())?;
    let sums = products(&ones, &x.reshape((outer, count, inner))?)?;
    let mut shape = x.dims().to_vec();
    axes.iter().for_each(|&axis| shape[axis] = 1);
    sums.reshape(shape)
}

fn multiplied(x: &Tensor, axis: usize) -> Result<Tensor> {
    let first = x.narrow(axis, 0, 1)?;
    (1..x.dim(axis)?).try_fold(first, |product, place| product * x.narrow(axis, place, 1)?)
}
