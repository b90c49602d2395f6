//! Operators that move elements and compute none, and `Resize`.

use bundle::Dtype;
use candle_core::{Device, Result, Tensor};
use onnx::program::{Array, Operations};

use super::operators::{Call, Made};
use super::pieces::{by_rows, part};
use super::{Candle, Typed};

/// The elements of these places of an axis.
pub(super) fn picked(x: &Tensor, axis: usize, places: &[usize]) -> Result<Tensor> {
    let places: Vec<u32> = places.iter().map(|&place| place as u32).collect();
    let places = Tensor::from_vec(places.clone(), places.len(), &Device::Cpu)?;
    x.contiguous()?.index_select(&places, axis)
}

/// The same of an axis that is stretched. candle's own function takes half the time where it takes the same places.
fn nearest_places(x: &Tensor, axis: usize, places: &[usize]) -> Result<Tensor> {
    let (old, new) = (x.dim(axis)?, places.len());
    if axis + 2 < x.rank() || (0..new).any(|place| places[place] != place * old / new) {
        return picked(x, axis, places);
    }
    let outer: usize = x.dims()[..x.rank() - 2].iter().product();
    let mut sizes = [x.dim(x.rank() - 2)?, x.dim(x.rank() - 1)?];
    let flat = x.contiguous()?.reshape((outer, 1, sizes[0], sizes[1]))?;
    sizes[axis + 2 - x.rank()] = new;
    let [rows, columns] = sizes;
    let part = part(outer, rows * columns);
    let y = by_rows(x.dtype(), (outer, rows * columns), part, |part| {
        flat.narrow(0, part.start, part.len())?.upsample_nearest2d(rows, columns)
    })?;
    let mut shape = x.dims().to_vec();
    shape[axis] = new;
    y.reshape(shape)
}

impl Call<'_> {
    pub(super) fn reshaped(&self) -> Made<Tensor> {
        let x = self.input(0)?;
        let (node, sizes) = (self.node, x.dims());
        let shape = match node.operator.as_str() {
            "Flatten" => node.flatten(sizes)?,
            "Squeeze" => node.squeeze(sizes, self.given_axes(1)?.as_deref())?,
            "Unsqueeze" => node.unsqueeze(sizes, &self.given_axes(1)?.unwrap_or_default())?,
            _ => {
                let given = self.inputs.ints(1)?.or_else(|| node.ints("shape").map(<[i64]>::to_vec));
                node.reshape(sizes, &given.unwrap_or_default())?
            }
        };
        Ok(x.reshape(shape)?)
    }

    pub(super) fn transposed(&self) -> Made<Tensor> {
        let x = self.input(0)?;
        Ok(x.permute(self.node.permutation(x.rank())?)?)
    }

    pub(super) fn concat(&self) -> Made<Tensor> {
        let axis = self.node.axis("axis", 1, self.input(0)?.rank())?;
        let mut all = Vec::new();
        for place in 0..self.inputs.len() {
            let x = self.input(place)?;
            if x.dim(axis)? > 0 {
                all.push(x.contiguous()?);
            }
        }
        match all.is_empty() {
            true => Ok(self.input(0)?.clone()),
            false => Ok(Tensor::cat(&all, axis)?),
        }
    }

    pub(super) fn split(&self) -> Made<Vec<Typed>> {
        let x = self.input(0)?;
        let axis = self.node.axis("axis", 0, x.rank())?;
        let given = self.inputs.ints(1)?.or_else(|| self.node.ints("split").map(<[i64]>::to_vec));
        let mut first = 0;
        let mut all = Vec::new();
        for part in self.node.parts(x.dim(axis)?, given.as_deref())? {
            all.push(self.typed(x.narrow(axis, first, part)?)?);
            first += part;
        }
        Ok(all)
    }

    pub(super) fn slice(&self) -> Made<Tensor> {
        let mut x = self.input(0)?.clone();
        let given = |place: usize, name: &str| {
            Made::Ok(self.inputs.ints(place)?.or_else(|| self.node.ints(name).map(<[i64]>::to_vec)))
        };
        let (starts, ends) = (given(1, "starts")?.unwrap_or_default(), given(2, "ends")?.unwrap_or_default());
        let (axes, steps) = (given(3, "axes")?, given(4, "steps")?);
        for slice in self.node.slices(x.dims(), &starts, &ends, axes.as_deref(), steps.as_deref())? {
            let (axis, step) = (slice.axis, slice.step.unsigned_abs() as usize);
            if slice.step == 1 || slice.count == 0 {
                x = x.narrow(axis, slice.start, slice.count)?;
            } else if slice.step > 0 {
                // A view with that step.
                let x_in = x.narrow(axis, slice.start, (slice.count - 1) * step + 1)?;
                x = x_in.unfold(axis, 1, step)?.squeeze(x.rank())?;
            } else {
                let places: Vec<usize> = (0..slice.count).map(|place| slice.start - place * step).collect();
                x = picked(&x, axis, &places)?;
            }
        }
        Ok(x)
    }

    pub(super) fn expand(&self) -> Made<Tensor> {
        let x = self.input(0)?;
        let wanted = self.inputs.ints(1)?.unwrap_or_default();
        let wanted: Vec<usize> = wanted.iter().map(|&size| usize::try_from(size).unwrap_or(0)).collect();
        let shape = x.shape().broadcast_shape_binary_op(&wanted.into(), "expand")?;
        Ok(x.broadcast_as(shape)?)
    }

    pub(super) fn tile(&self) -> Made<Tensor> {
        let repeats = self.inputs.ints(1)?.unwrap_or_default();
        let repeats: Vec<usize> = repeats.iter().map(|&count| usize::try_from(count).unwrap_or(0)).collect();
        Ok(self.input(0)?.repeat(repeats)?)
    }

    pub(super) fn pad(&self) -> Made<Tensor> {
        let mut x = self.input(0)?.clone();
        let pads =
            self.inputs.ints(1)?.or_else(|| self.node.ints("pads").map(<[i64]>::to_vec)).unwrap_or_default();
        let axes = match self.inputs.ints(3)? {
            Some(axes) => axes
                .iter()
                .map(|&given| onnx::program::axis(given, x.rank()))
                .collect::<std::result::Result<_, _>>()?,
            None => (0..x.rank()).collect::<Vec<usize>>(),
        };
        if pads.len() != 2 * axes.len() {
            return Ok(self.node.failed("its pads do not go with its axes")?);
        }
        let mode = self.node.string("mode").unwrap_or("constant");
        for (place, &axis) in axes.iter().enumerate() {
            let [before, behind] = [pads[place], pads[place + axes.len()]];
            let size = x.dim(axis)? as i64;
            if [before, behind] == [0, 0] {
                continue;
            }
            if mode != "constant" {
                let last = size - 1;
                let source = |place: i64| match mode {
                    "edge" => place.clamp(0, last),
                    "wrap" => place.rem_euclid(size.max(1)),
                    _ => last - (last - place.rem_euclid((2 * last).max(1))).abs(),
                };
                let places: Vec<usize> =
                    (-before..size + behind).map(|place| source(place) as usize).collect();
                x = picked(&x, axis, &places)?;
                continue;
            }
            let kept = size + before.min(0) + behind.min(0);
            if kept < 0 {
                return Ok(self.node.failed("its pads leave nothing")?);
            }
            x = x.narrow(axis, (-before).max(0) as usize, kept as usize)?;
            let (before, behind) = (before.max(0) as usize, behind.max(0) as usize);
            let mut all = Vec::new();
            for size in [before, 0, behind] {
                let mut shape = x.dims().to_vec();
                shape[axis] = size;
                match (size, all.len()) {
                    (0, 1) if before > 0 => all.push(x.contiguous()?),
                    (0, 0) if before == 0 && all.is_empty() => all.push(x.contiguous()?),
                    (0, _) => {}
                    _ => all.push(self.fill(&shape, &x)?),
                }
            }
            x = Tensor::cat(&all, axis)?;
        }
        Ok(x)
    }

    /// A tensor of what `Pad` fills in.
    fn fill(&self, shape: &[usize], like: &Tensor) -> Made<Tensor> {
        let value = self.node.float("value").map(f64::from);
        let value = match self.optional(2)? {
            Some(given) => given.to_dtype(like.dtype())?,
            None => Tensor::new(value.unwrap_or(0.0), &Device::Cpu)?.to_dtype(like.dtype())?,
        };
        Ok(value.reshape(())?.broadcast_as(shape)?.contiguous()?)
    }

    pub(super) fn triangle(&self) -> Made<Tensor> {
        let x = self.input(0)?;
        let (rows, columns) = (x.dim(x.rank() - 2)?, x.dim(x.rank() - 1)?);
        let shift = self.inputs.ints(1)?.and_then(|shift| shift.first().copied()).unwrap_or(0);
        let is_upper = self.node.int("upper").unwrap_or(1) != 0;
        let kept = (0..rows * columns).map(|place| {
            let distance = (place % columns) as i64 - (place / columns) as i64;
            u8::from(if is_upper { distance >= shift } else { distance <= shift })
        });
        let kept =
            Tensor::from_vec(kept.collect(), (rows, columns), &Device::Cpu)?.broadcast_as(x.shape())?;
        Ok(kept.where_cond(x, &x.zeros_like()?)?)
    }

    pub(super) fn depth_and_space(&self) -> Made<Tensor> {
        let x = self.input(0)?;
        let (batch, channels, rows, columns) = x.dims4()?;
        let block = usize::try_from(self.node.int("blocksize").unwrap_or(1)).unwrap_or(0).max(1);
        if self.node.operator == "SpaceToDepth" {
            let x = x.reshape((batch, channels, rows / block, block, columns / block, block))?;
            let shape = (batch, channels * block * block, rows / block, columns / block);
            let order = match self.node.string("mode") {
                Some("CRD") => [0, 1, 3, 5, 2, 4],
                _ => [0, 3, 5, 1, 2, 4],
            };
            return Ok(x.permute(order.as_slice())?.reshape(shape)?);
        }
        let depth = channels / (block * block);
        let x = if self.node.string("mode") == Some("CRD") {
            x.reshape((batch, depth, block, block, rows, columns))?.permute((0, 1, 4, 2, 5, 3))?
        } else {
            x.reshape((batch, block, block, depth, rows, columns))?.permute((0, 3, 4, 1, 5, 2))?
        };
        Ok(x.reshape((batch, depth, rows * block, columns * block))?)
    }

    /// One element, repeated.
    pub(super) fn filled(&self) -> Made<Typed> {
        let shape = self.inputs.ints(0)?.unwrap_or_default();
        let shape: Vec<usize> = shape.iter().map(|&size| usize::try_from(size).unwrap_or(0)).collect();
        let zero = Array::from_floats(&[1], &[0.0]);
        let Typed { tensor, dtype } = Candle::default().upload(self.node.array("value").unwrap_or(&zero))?;
        Ok(Typed { tensor: tensor.reshape(())?.broadcast_as(shape)?.contiguous()?, dtype })
    }

    pub(super) fn range(&self) -> Made<Tensor> {
        let dtype = self.inputs.tensor(0)?.dtype;
        let tensor = if dtype.is_float() {
            let all =
                [0, 1, 2].map(|place| self.inputs.floats(place).map(|given| given.unwrap_or_default()[0]));
            let [start, limit, step] = all;
            let (start, limit, step) = (start?, limit?, step?);
            let count = ((limit - start) / step).ceil().max(0.0) as usize;
            let numbers: Vec<f32> = (0..count).map(|place| start + place as f32 * step).collect();
            Tensor::from_vec(numbers, count, &Device::Cpu)?
        } else {
            let all =
                [0, 1, 2].map(|place| self.inputs.ints(place).map(|given| given.unwrap_or_default()[0]));
            let [start, limit, step] = all;
            Tensor::arange_step(start?, limit?, step?, &Device::Cpu)?
        };
        Ok(tensor.to_dtype(super::element(dtype))?)
    }

    pub(super) fn resize(&self) -> Made<Tensor> {
        let mut x = self.input(0)?.clone();
        let node = self.node;
        let scales_at = if node.operator == "Upsample" || node.opset < 11 { 1 } else { 2 };
        let scales = self.inputs.floats(scales_at)?.filter(|scales| !scales.is_empty());
        let scales = scales.or_else(|| node.floats("scales").map(<[f32]>::to_vec));
        let sizes = self.inputs.ints(3)?.filter(|sizes| !sizes.is_empty());
        let axes = match node.ints("axes") {
            Some(axes) => axes
                .iter()
                .map(|&given| onnx::program::axis(given, x.rank()))
                .collect::<std::result::Result<_, _>>()?,
            None => (0..x.rank()).collect::<Vec<usize>>(),
        };
        let mode = node.string("mode").unwrap_or("nearest");
        let usual = if scales_at == 1 { "asymmetric" } else { "half_pixel" };
        let transformation = node.string("coordinate_transformation_mode").unwrap_or(usual);
        let policy = node.string("keep_aspect_ratio_policy").unwrap_or("stretch");
        if !matches!(mode, "nearest" | "linear")
            || policy != "stretch"
            || node.int("antialias").unwrap_or(0) != 0
        {
            return Ok(
                node.unsupported("it is neither nearest nor linear, or smooths, or keeps proportions")?
            );
        }
        let rounding = node.string("nearest_mode").unwrap_or(if scales_at == 1 {
            "floor"
        } else {
            "round_prefer_floor"
        });
        for (place, &axis) in axes.iter().enumerate() {
            let old = x.dim(axis)?;
            let scale = scales.as_ref().and_then(|scales| scales.get(place)).copied();
            let (new, scale) = match (sizes.as_ref().and_then(|sizes| sizes.get(place)), scale) {
                (Some(&size), _) => (usize::try_from(size).unwrap_or(0), size as f32 / old as f32),
                (None, Some(scale)) => ((old as f32 * scale).floor() as usize, scale),
                (None, None) => return Ok(node.failed("it has neither sizes nor scales")?),
            };
            if new == old && scale == 1.0 {
                continue;
            }
            let source = |place: usize| {
                let place = place as f32;
                match transformation {
                    "asymmetric" => place / scale,
                    "align_corners" if new == 1 => 0.0,
                    "align_corners" => place * (old as f32 - 1.0) / (old as f32 * scale - 1.0),
                    "pytorch_half_pixel" if new == 1 => 0.0,
                    _ => (place + 0.5) / scale - 0.5,
                }
            };
            if !matches!(transformation, "asymmetric" | "align_corners" | "pytorch_half_pixel" | "half_pixel")
            {
                return Ok(node.unsupported("its coordinates are not computed here")?);
            }
            let sources: Vec<f32> = (0..new).map(source).collect();
            let last = old as f32 - 1.0;
            if mode == "nearest" {
                let nearest = |source: f32| match rounding {
                    "floor" => source.floor(),
                    "ceil" => source.ceil(),
                    "round_prefer_ceil" => (source + 0.5).floor(),
                    _ => (source - 0.5).ceil(),
                };
                let places: Vec<usize> =
                    sources.iter().map(|&source| nearest(source).clamp(0.0, last) as usize).collect();
                x = nearest_places(&x, axis, &places)?;
            } else {
                let clamped: Vec<f32> = sources.iter().map(|source| source.clamp(0.0, last)).collect();
                let low: Vec<usize> = clamped.iter().map(|source| source.floor() as usize).collect();
                let high: Vec<usize> = low.iter().map(|&low| (low + 1).min(old - 1)).collect();
                let shares: Vec<f32> = clamped.iter().map(|source| source - source.floor()).collect();
                let mut shape = vec![1; x.rank()];
                shape[axis] = new;
                let shares = Tensor::from_vec(shares, shape, &Device::Cpu)?.to_dtype(x.dtype())?;
                let low = picked(&x, axis, &low)?;
                let difference = (picked(&x, axis, &high)? - &low)?;
                x = (low + difference.broadcast_mul(&shares)?)?;
            }
        }
        Ok(x)
    }

    /// Truth values as places, which only the host can count.
    pub(super) fn nonzero(&self) -> Made<Typed> {
        let x = self.input(0)?;
        let is_set = x.ne(0.0)?.flatten_all()?.to_vec1::<u8>()?;
        let places: Vec<usize> = (0..is_set.len()).filter(|&place| is_set[place] != 0).collect();
        let mut all = Vec::new();
        let mut below = x.elem_count();
        for &size in x.dims() {
            below /= size.max(1);
            all.extend(places.iter().map(|&place| (place / below % size) as i64));
        }
        let tensor = Tensor::from_vec(all, (x.rank(), places.len()), &Device::Cpu)?;
        Ok(Typed { tensor, dtype: Dtype::Int64 })
    }
}
