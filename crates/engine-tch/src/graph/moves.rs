//! Operators that choose, move, join and count elements.

use tch::{Device, Kind, Tensor};

use super::operators::{Call, Outcome, dtype, kind, row, shape, sizes, upload};

/// Along one axis the elements at these places.
fn along(tensor: &Tensor, axis: usize, places: &[i64]) -> Outcome<Tensor> {
    Ok(tensor.f_index_select(axis as i64, &row(places)?)?)
}

impl Call<'_> {
    fn axis(&self, default: i64, rank: usize) -> Outcome<i64> {
        Ok(self.node.axis("axis", default, rank)? as i64)
    }

    /// Indices that count from the start: those below 0 count from the end.
    fn counted(&self, place: usize, size: i64) -> Outcome<Tensor> {
        if let Some(array) = self.inputs.host(place)
            && let Some(mut numbers) = array.ints()
        {
            for number in &mut numbers {
                *number = if *number < 0 { number.saturating_add(size) } else { *number };
                if *number < 0 || *number >= size {
                    return self.failed(&format!("there is no place {number} of {size}"));
                }
            }
            return Ok(row(&numbers)?.f_reshape(sizes(&array.shape))?);
        }
        let indices = self.tensor(place)?.f_to_dtype(Kind::Int64, false, false)?;
        let is_below = indices.f_lt(0)?;
        Ok(indices.f_add_scalar(size)?.f_where_self(&is_below, &indices)?)
    }

    pub(super) fn gather(&self) -> Outcome<Tensor> {
        let data = self.tensor(0)?;
        let axis = self.axis(0, data.dim())?;
        let size = data.size();
        let indices = self.counted(1, size[axis as usize])?;
        if let (0, Some(array)) = (indices.dim(), self.inputs.host(1))
            && let Some(&[index]) = array.ints().as_deref()
        {
            let index = if index < 0 { index + size[axis as usize] } else { index };
            return Ok(data.f_select(axis, index)?);
        }
        let gathered = data.f_index_select(axis, &indices.f_reshape([-1])?)?;
        let result = [&size[..axis as usize], &indices.size(), &size[axis as usize + 1..]].concat();
        Ok(gathered.f_reshape(result)?)
    }

    pub(super) fn gather_elements(&self) -> Outcome<Tensor> {
        let data = self.tensor(0)?;
        let axis = self.axis(0, data.dim())?;
        let indices = self.counted(1, data.size()[axis as usize])?;
        Ok(data.f_gather(axis, &indices, false)?)
    }

    /// The indices of `GatherND` and `ScatterND`, a tensor for each axis.
    fn places(&self) -> Outcome<Vec<Option<Tensor>>> {
        let indices = self.tensor(1)?.f_to_dtype(Kind::Int64, false, false)?;
        let (depth, rank) = (indices.size().last().copied().unwrap_or(0), self.rank(0)?);
        if depth == 0 || depth > rank as i64 {
            return self.failed("its indices do not go with its data");
        }
        (0..depth).map(|axis| Ok(Some(indices.f_select(-1, axis)?))).collect()
    }

    pub(super) fn gather_places(&self) -> Outcome<Tensor> {
        if self.node.int("batch_dims").unwrap_or(0) != 0 {
            return self.unsupported("batch_dims");
        }
        Ok(self.tensor(0)?.f_index(&self.places()?)?)
    }

    pub(super) fn scatter_places(&self) -> Outcome<Tensor> {
        let adds = match self.node.string("reduction").unwrap_or("none") {
            "none" => false,
            "add" => true,
            other => return self.unsupported(&format!("reduction {other}")),
        };
        Ok(self.tensor(0)?.f_index_put(&self.places()?, self.tensor(2)?, adds)?)
    }

    pub(super) fn scatter_elements(&self) -> Outcome<Tensor> {
        let data = self.tensor(0)?;
        let axis = self.axis(0, data.dim())?;
        let indices = self.counted(1, data.size()[axis as usize])?;
        let updates = self.tensor(2)?;
        Ok(match self.node.string("reduction").unwrap_or("none") {
            "none" => data.f_scatter(axis, &indices, updates)?,
            "add" => data.f_scatter_add(axis, &indices, updates)?,
            "mul" => data.f_scatter_reduce(axis, &indices, updates, "prod")?,
            other => return self.unsupported(&format!("reduction {other}")),
        })
    }

    pub(super) fn one_hot(&self) -> Outcome<Tensor> {
        let indices = self.tensor(0)?.f_to_dtype(Kind::Int64, false, false)?;
        let Some(&[depth]) = self.inputs.ints(1)?.as_deref() else {
            return self.failed("its depth is not one number");
        };
        let axis = self.axis(-1, indices.dim() + 1)?;
        let mut size = vec![1; indices.dim() + 1];
        size[axis as usize] = depth;
        let all = Tensor::f_arange(depth, (Kind::Int64, Device::Cpu))?.f_reshape(size)?;
        let counted = indices.f_remainder(depth)?.f_where_self(&indices.f_ge(-depth)?, &indices)?;
        let counted = counted.f_where_self(&indices.f_lt(depth)?, &indices)?;
        let is_there = counted.f_unsqueeze(axis)?.f_eq_tensor(&all)?;
        let values = self.tensor(2)?;
        Ok(values.f_select(0, 1)?.f_where_self(&is_there, &values.f_select(0, 0)?)?)
    }

    pub(super) fn concat(&self) -> Outcome<Tensor> {
        let tensors = self.tensors()?;
        Ok(Tensor::f_cat(&tensors, self.axis(1, self.rank(0)?)?)?)
    }

    pub(super) fn split(&self) -> Outcome<Vec<Tensor>> {
        let data = self.tensor(0)?;
        let axis = self.axis(0, data.dim())?;
        let parts = self.node.parts(shape(data)[axis as usize], self.listed("split", 1)?.as_deref())?;
        Ok(data.f_split_with_sizes(sizes(&parts), axis)?)
    }

    pub(super) fn slice(&self) -> Outcome<Tensor> {
        let data = self.tensor(0)?;
        let (starts, ends) = (self.listed("starts", 1)?, self.listed("ends", 2)?);
        let (Some(starts), Some(ends)) = (starts, ends) else { return self.failed("it has no bounds") };
        let (axes, steps) = (self.listed("axes", 3)?, self.inputs.ints(4)?);
        let mut result = data.shallow_clone();
        let slices = self.node.slices(&shape(data), &starts, &ends, axes.as_deref(), steps.as_deref())?;
        for slice in slices {
            let (axis, start, count) = (slice.axis as i64, slice.start as i64, slice.count as i64);
            if count == 0 {
                result = result.f_narrow(axis, 0, 0)?;
                continue;
            }
            let last = start + (count - 1) * slice.step;
            let (first, step) = (start.min(last), slice.step.abs());
            result = result.f_slice(axis, first, start.max(last) + 1, step)?;
            if slice.step < 0 {
                result = result.f_flip([axis])?;
            }
        }
        Ok(result)
    }

    pub(super) fn reshaped(&self) -> Outcome<Tensor> {
        let data = self.tensor(0)?;
        let own = shape(data);
        let wanted = match self.node.operator.as_str() {
            "Reshape" => self.node.reshape(&own, &self.listed("shape", 1)?.unwrap_or_default())?,
            "Unsqueeze" => self.node.unsqueeze(&own, &self.listed("axes", 1)?.unwrap_or_default())?,
            "Squeeze" => self.node.squeeze(&own, self.listed("axes", 1)?.as_deref())?,
            _ => self.node.flatten(&own)?,
        };
        Ok(data.f_reshape(sizes(&wanted))?)
    }

    pub(super) fn transpose(&self) -> Outcome<Tensor> {
        let order = self.node.permutation(self.rank(0)?)?;
        Ok(self.tensor(0)?.f_permute(sizes(&order))?)
    }

    fn given(&self, place: usize) -> Outcome<Vec<i64>> {
        match self.inputs.ints(place)? {
            Some(numbers) if numbers.iter().all(|&number| number >= 0) => Ok(numbers),
            _ => self.failed("its sizes are missing or below 0"),
        }
    }

    pub(super) fn expand(&self) -> Outcome<Tensor> {
        let (data, mut wanted) = (self.tensor(0)?, self.given(1)?);
        let own = data.size();
        // A size of 1 leaves the tensor's own.
        let missing = own.len().saturating_sub(wanted.len());
        wanted.splice(0..0, std::iter::repeat_n(1, missing));
        let offset = wanted.len() - own.len();
        for (axis, &size) in own.iter().enumerate() {
            if wanted[offset + axis] == 1 {
                wanted[offset + axis] = size;
            }
        }
        Ok(data.f_expand(wanted, false)?)
    }

    pub(super) fn tile(&self) -> Outcome<Tensor> {
        Ok(self.tensor(0)?.f_repeat(self.given(1)?)?)
    }

    pub(super) fn pad(&self) -> Outcome<Tensor> {
        let data = self.tensor(0)?;
        let rank = data.dim();
        let given = self.listed("pads", 1)?.unwrap_or_default();
        let axes = match self.inputs.ints(3)? {
            Some(axes) => {
                axes.iter().map(|&axis| onnx::program::axis(axis, rank)).collect::<Result<Vec<_>, _>>()?
            }
            None => (0..rank).collect(),
        };
        if given.len() != 2 * axes.len() {
            return self.failed("its pads do not go with the axes");
        }
        let mut pads = vec![(0, 0); rank];
        for (place, &axis) in axes.iter().enumerate() {
            pads[axis] = (given[place], given[axes.len() + place]);
        }
        let mode = self.node.string("mode").unwrap_or("constant");
        if mode == "constant" {
            let value = match (self.node.float("value"), dtype(data).is_float()) {
                (Some(value), _) => f64::from(value),
                (None, true) => {
                    self.inputs.floats(2)?.and_then(|all| all.first().copied()).unwrap_or(0.0).into()
                }
                (None, false) => {
                    self.inputs.ints(2)?.and_then(|all| all.first().copied()).unwrap_or(0) as f64
                }
            };
            let mut reversed: Vec<i64> =
                pads.iter().rev().flat_map(|&(before, after)| [before, after]).collect();
            while let [rest @ .., 0, 0] = &reversed[..] {
                reversed.truncate(rest.len());
            }
            return Ok(data.f_pad(reversed, "constant", value)?);
        }
        let mut result = data.shallow_clone();
        for (axis, (before, after)) in pads.into_iter().enumerate() {
            if (before, after) == (0, 0) {
                continue;
            }
            let size = data.size()[axis];
            if size == 0 || before.max(after) > 1 << 30 {
                return self.failed("it pads what is empty, or by too much");
            }
            let inside = |place: i64| match mode {
                "reflect" if size == 1 => 0,
                "reflect" => {
                    let turned = place.rem_euclid(2 * (size - 1));
                    turned.min(2 * (size - 1) - turned)
                }
                "edge" => place.clamp(0, size - 1),
                _ => place.rem_euclid(size),
            };
            let places: Vec<i64> = (-before..size + after).map(inside).collect();
            result = along(&result, axis, &places)?;
        }
        Ok(result)
    }

    pub(super) fn range(&self) -> Outcome<Tensor> {
        let kind = self.tensor(0)?.kind();
        let options = (kind, Device::Cpu);
        if dtype(self.tensor(0)?).is_float() {
            let bounds = [self.inputs.floats(0)?, self.inputs.floats(1)?, self.inputs.floats(2)?];
            let [Some([start]), Some([end]), Some([step])] = bounds.each_ref().map(Option::as_deref) else {
                return self.failed("its bounds are not three numbers");
            };
            let [start, end, step] = [*start, *end, *step].map(f64::from);
            return Ok(Tensor::f_arange_start_step(start, end, step, options)?);
        }
        let bounds = [self.inputs.ints(0)?, self.inputs.ints(1)?, self.inputs.ints(2)?];
        let [Some([start]), Some([end]), Some([step])] = bounds.each_ref().map(Option::as_deref) else {
            return self.failed("its bounds are not three numbers");
        };
        // Of bounds in the wrong order libtorch makes an error, ONNX an empty tensor.
        let end = if *step > 0 { (*end).max(*start) } else { (*end).min(*start) };
        Ok(Tensor::f_arange_start_step(*start, end, *step, options)?)
    }

    pub(super) fn filled(&self) -> Outcome<Tensor> {
        let value = match self.node.array("value") {
            Some(array) => upload(array)?,
            None => Tensor::f_zeros([1], (Kind::Float, Device::Cpu))?,
        };
        Ok(value.f_reshape([-1])?.f_select(0, 0)?.f_expand(self.given(0)?, false)?.f_contiguous()?)
    }

    pub(super) fn triangle(&self) -> Outcome<Tensor> {
        let diagonal = match self.inputs.ints(1)?.as_deref() {
            Some(&[diagonal]) => diagonal,
            _ => 0,
        };
        let data = self.tensor(0)?;
        let is_upper = self.node.int("upper").unwrap_or(1) != 0;
        Ok(if is_upper { data.f_triu(diagonal)? } else { data.f_tril(diagonal)? })
    }

    pub(super) fn running_sum(&self) -> Outcome<Tensor> {
        let data = self.tensor(0)?;
        let Some(&[axis]) = self.inputs.ints(1)?.as_deref() else {
            return self.failed("its axis is not one number");
        };
        let is_set = |name: &str| self.node.int(name).unwrap_or(0) != 0;
        let data = if is_set("reverse") { data.f_flip([axis])? } else { data.shallow_clone() };
        let mut sums = data.f_cumsum(axis, data.kind())?;
        if is_set("exclusive") {
            sums = sums.f_sub(&data)?;
        }
        Ok(if is_set("reverse") { sums.f_flip([axis])? } else { sums })
    }

    pub(super) fn depth_and_space(&self) -> Outcome<Tensor> {
        let data = self.tensor(0)?;
        let block = self.node.int("blocksize").unwrap_or(1).max(1);
        let &[n, c, h, w] = &data.size()[..] else { return self.failed("its input is no picture") };
        if self.node.operator == "SpaceToDepth" {
            let cut = data.f_reshape([n, c, h / block, block, w / block, block])?;
            let moved = cut.f_permute([0, 3, 5, 1, 2, 4])?;
            return Ok(moved.f_reshape([n, c * block * block, h / block, w / block])?);
        }
        let depth = c / (block * block);
        let moved = match self.node.string("mode").unwrap_or("DCR") {
            "CRD" => data.f_reshape([n, depth, block, block, h, w])?.f_permute([0, 1, 4, 2, 5, 3])?,
            _ => data.f_reshape([n, block, block, depth, h, w])?.f_permute([0, 3, 4, 1, 5, 2])?,
        };
        Ok(moved.f_reshape([n, depth, h * block, w * block])?)
    }

    pub(super) fn place_of_largest(&self) -> Outcome<Tensor> {
        let data = self.tensor(0)?;
        let axis = self.axis(0, data.dim())?;
        let keeps = self.node.int("keepdims").unwrap_or(1) != 0;
        let takes_last = self.node.int("select_last_index").unwrap_or(0) != 0;
        let turned = if takes_last { data.f_flip([axis])? } else { data.shallow_clone() };
        let places = match self.node.operator.as_str() {
            "ArgMax" => turned.f_argmax(axis, keeps)?,
            _ => turned.f_argmin(axis, keeps)?,
        };
        let last = data.size()[axis as usize] - 1;
        Ok(if takes_last { places.f_neg()?.f_add_scalar(last)? } else { places })
    }

    pub(super) fn top(&self) -> Outcome<Vec<Tensor>> {
        let data = self.tensor(0)?;
        let axis = self.axis(-1, data.dim())?;
        let Some(&[count]) = self.inputs.ints(1)?.as_deref() else {
            return self.failed("its k is not one number");
        };
        // Of equal elements ONNX takes the first; topk takes any.
        let is_largest = self.node.int("largest").unwrap_or(1) != 0;
        let (values, places) = data.f_sort_stable(true, axis, is_largest)?;
        Ok(vec![values.f_narrow(axis, 0, count)?, places.f_narrow(axis, 0, count)?])
    }

    pub(super) fn reduce(&self) -> Outcome<Tensor> {
        let data = self.tensor(0)?;
        let keeps = self.node.int("keepdims").unwrap_or(1) != 0;
        let given = self.listed("axes", 1)?.filter(|axes| !axes.is_empty());
        if given.is_none() && self.node.int("noop_with_empty_axes") == Some(1) {
            return Ok(data.shallow_clone());
        }
        let all: Vec<i64> = (0..data.dim() as i64).collect();
        let axes = sizes(&self.node.axes(&given.unwrap_or(all), data.dim())?);
        if axes.is_empty() {
            return Ok(data.shallow_clone());
        }
        let sum = |tensor: &Tensor| tensor.f_sum_dim_intlist(&axes[..], keeps, tensor.kind());
        Ok(match self.node.operator.as_str() {
            "ReduceMean" => data.f_mean_dim(&axes[..], keeps, data.kind())?,
            "ReduceSum" => sum(data)?,
            "ReduceMax" => data.f_amax(&axes[..], keeps)?,
            "ReduceMin" => data.f_amin(&axes[..], keeps)?,
            "ReduceL1" => sum(&data.f_abs()?)?,
            "ReduceL2" => sum(&data.f_square()?)?.f_sqrt()?,
            "ReduceSumSquare" => sum(&data.f_square()?)?,
            "ReduceLogSum" => sum(data)?.f_log()?,
            "ReduceLogSumExp" => data.f_logsumexp(&axes[..], keeps)?,
            "ReduceProd" => {
                let mut product = data.shallow_clone();
                for &axis in axes.iter().rev() {
                    product = product.f_prod_dim_int(axis, keeps, data.kind())?;
                }
                product
            }
            _ => return self.unsupported("engine-tch has no function for this operator"),
        })
    }

    /// An input of codes as numbers in which their sums and products are exact.
    pub(super) fn exact(&self, codes: usize, zero: usize) -> Outcome<Tensor> {
        let codes = self.tensor(codes)?.f_to_dtype(Kind::Double, false, false)?;
        match self.optional(zero)? {
            None => Ok(codes),
            Some(zero) => Ok(codes.f_sub(&zero.f_to_dtype(Kind::Double, false, false)?)?),
        }
    }

    /// The type of an output that has a zero point's type.
    pub(super) fn kind_of_codes(&self, zero: usize) -> Outcome<Kind> {
        Ok(match self.optional(zero)? {
            Some(zero) => zero.kind(),
            None => kind(bundle::Dtype::Uint8).unwrap_or(Kind::Uint8),
        })
    }
}
