//! What ONNX's operators make of a shape and their attributes: for the arrays here and for frameworks alike.

use super::{Node, Result, failed};

/// The part of one axis that `Slice` takes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Slice {
    pub axis: usize,
    /// The first place. It is in the axis unless `count` is 0.
    pub start: usize,
    /// From one place to the next; never 0.
    pub step: i64,
    pub count: usize,
}

/// An axis that may be counted from the end.
///
/// # Errors
/// If there is none.
pub fn axis(axis: i64, rank: usize) -> Result<usize> {
    let counted = if axis < 0 { axis.saturating_add(rank as i64) } else { axis };
    match usize::try_from(counted) {
        Ok(counted) if counted < rank => Ok(counted),
        _ => failed(format!("there is no axis {axis} of {rank}")),
    }
}

impl Node {
    /// The axis of the attribute `name`.
    ///
    /// # Errors
    /// If the tensor has no such axis.
    pub fn axis(&self, name: &str, default: i64, rank: usize) -> Result<usize> {
        axis(self.int(name).unwrap_or(default), rank).or_else(|error| self.failed(&error.to_string()))
    }

    /// Each axis once, in their order.
    ///
    /// # Errors
    /// If the tensor has no such axis.
    pub fn axes(&self, axes: &[i64], rank: usize) -> Result<Vec<usize>> {
        let counted = axes.iter().map(|&given| axis(given, rank)).collect::<Result<Vec<usize>>>();
        let mut counted = counted.or_else(|error| self.failed(&error.to_string()))?;
        counted.sort_unstable();
        counted.dedup();
        Ok(counted)
    }

    /// The shape that `Reshape` makes of a shape.
    ///
    /// # Errors
    /// If the wanted shape has another number of elements.
    pub fn reshape(&self, shape: &[usize], wanted: &[i64]) -> Result<Vec<usize>> {
        let keeps_zeros = self.int("allowzero") == Some(1);
        let mut sizes = Vec::new();
        let mut open = None;
        for (place, &size) in wanted.iter().enumerate() {
            sizes.push(match size {
                -1 if open.is_none() => {
                    open = Some(place);
                    1
                }
                0 if !keeps_zeros => match shape.get(place) {
                    Some(&size) => size,
                    None => return self.failed("it keeps a size that its input does not have"),
                },
                size => match usize::try_from(size) {
                    Ok(size) => size,
                    Err(_) => return self.failed("it reshapes to a size below 0"),
                },
            });
        }
        let total = super::array::elements(shape);
        let rest = super::array::elements(&sizes);
        match (open, total, rest) {
            (Some(place), Some(total), Some(rest)) if rest > 0 && total % rest == 0 => {
                sizes[place] = total / rest
            }
            (None, Some(total), Some(rest)) if total == rest => {}
            _ => return self.failed(&format!("{shape:?} cannot be reshaped to {wanted:?}")),
        }
        Ok(sizes)
    }

    /// # Errors
    /// If an axis is outside the result.
    pub fn unsqueeze(&self, shape: &[usize], axes: &[i64]) -> Result<Vec<usize>> {
        let axes = self.axes(axes, shape.len() + axes.len())?;
        let mut sizes = shape.to_vec();
        for axis in axes {
            if axis > sizes.len() {
                return self.failed("it names an axis twice");
            }
            sizes.insert(axis, 1);
        }
        Ok(sizes)
    }

    /// # Errors
    /// If a size is not 1.
    pub fn squeeze(&self, shape: &[usize], axes: Option<&[i64]>) -> Result<Vec<usize>> {
        let Some(axes) = axes else { return Ok(shape.iter().copied().filter(|&size| size != 1).collect()) };
        let axes = self.axes(axes, shape.len())?;
        if axes.iter().any(|&axis| shape[axis] != 1) {
            return self.failed("it drops an axis whose size is not 1");
        }
        let kept = (0..shape.len()).filter(|axis| !axes.contains(axis));
        Ok(kept.map(|axis| shape[axis]).collect())
    }

    /// # Errors
    /// If the tensor has no such axis.
    pub fn flatten(&self, shape: &[usize]) -> Result<Vec<usize>> {
        let axis = self.int("axis").unwrap_or(1);
        let axis = if axis == shape.len() as i64 { shape.len() } else { self.axis("axis", 1, shape.len())? };
        Ok(vec![shape[..axis].iter().product(), shape[axis..].iter().product()])
    }

    /// The order of the axes after `Transpose`.
    ///
    /// # Errors
    /// If it is no order of these.
    pub fn permutation(&self, rank: usize) -> Result<Vec<usize>> {
        let Some(order) = self.ints("perm") else { return Ok((0..rank).rev().collect()) };
        if order.len() != rank || self.axes(order, rank)?.len() != rank {
            return self.failed("its perm is no order of the axes");
        }
        order.iter().map(|&given| axis(given, rank)).collect()
    }

    /// The parts of each axis that `Slice` takes.
    ///
    /// # Errors
    /// If there is no such axis, or a step is 0.
    pub fn slices(
        &self,
        shape: &[usize],
        starts: &[i64],
        ends: &[i64],
        axes: Option<&[i64]>,
        steps: Option<&[i64]>,
    ) -> Result<Vec<Slice>> {
        let mut slices = Vec::new();
        for (place, (&start, &end)) in starts.iter().zip(ends).enumerate() {
            let given = axes.map_or(Some(place as i64), |axes| axes.get(place).copied());
            let step = steps.map_or(Some(1), |steps| steps.get(place).copied());
            let (Some(given), Some(step @ (1.. | ..=-1))) = (given, step) else {
                return self.failed("its axes and steps do not go with its starts");
            };
            let axis = axis(given, shape.len()).or_else(|error| self.failed(&error.to_string()))?;
            let size = shape[axis] as i64;
            let counted = |bound: i64| if bound < 0 { bound.saturating_add(size) } else { bound };
            let (start, end) = if step > 0 {
                (counted(start).clamp(0, size), counted(end).clamp(0, size))
            } else {
                (counted(start).clamp(-1, size - 1), counted(end).clamp(-1, size - 1))
            };
            let distance = if step > 0 { end - start } else { start - end };
            let count =
                if distance > 0 { (distance as u64).div_ceil(step.unsigned_abs()) as usize } else { 0 };
            let start = if count == 0 { 0 } else { start as usize };
            slices.push(Slice { axis, start, step, count });
        }
        Ok(slices)
    }

    /// The sizes that `Split` cuts an axis of that size into.
    ///
    /// # Errors
    /// If they do not add up.
    pub fn parts(&self, size: usize, given: Option<&[i64]>) -> Result<Vec<usize>> {
        if let Some(given) = given {
            let parts: Vec<usize> = given.iter().filter_map(|&part| usize::try_from(part).ok()).collect();
            let total = parts.iter().try_fold(0usize, |total, &part| total.checked_add(part));
            if parts.len() != given.len() || total != Some(size) {
                return self.failed(&format!("its parts {given:?} do not add up to {size}"));
            }
            return Ok(parts);
        }
        let count =
            self.int("num_outputs").and_then(|count| usize::try_from(count).ok()).unwrap_or(self.outputs);
        if count == 0 || count > size.max(1) {
            return self.failed("it cuts an axis into more parts than it has places");
        }
        let part = size.div_ceil(count);
        Ok((0..count).map(|place| part.min(size.saturating_sub(place * part))).collect())
    }
}
