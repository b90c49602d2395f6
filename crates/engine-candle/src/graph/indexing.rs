//! Elements by their places.

use bundle::Dtype;
use candle_core::{D, DType, Device, Tensor};
use onnx::program::axis;

use super::Typed;
use super::operators::{Call, Made};

/// Places of an axis of that size, those that are counted from the end counted from the start.
fn counted(places: &Tensor, size: usize) -> candle_core::Result<Tensor> {
    let places = places.to_dtype(DType::I64)?.contiguous()?;
    let from_end = places.affine(1.0, size as f64)?;
    places.lt(0i64)?.where_cond(&from_end, &places)
}

impl Call<'_> {
    pub(super) fn gather(&self) -> Made<Tensor> {
        let (x, places) = (self.input(0)?, self.input(1)?);
        let axis = self.node.axis("axis", 0, x.rank())?;
        let size = x.dim(axis)?;
        // One place is a view.
        if let (0, Some(place)) = (places.rank(), self.number(1)) {
            let place = if place < 0.0 { place + size as f64 } else { place };
            return Ok(x.narrow(axis, place.max(0.0) as usize, 1)?.squeeze(axis)?);
        }
        let places_flat = match self.inputs.host(1).and_then(|array| array.ints()) {
            Some(all) if all.iter().all(|&place| place >= 0) => places.flatten_all()?,
            _ => counted(places, size)?.flatten_all()?,
        };
        let shape = [&x.dims()[..axis], places.dims(), &x.dims()[axis + 1..]].concat();
        Ok(x.contiguous()?.index_select(&places_flat, axis)?.reshape(shape)?)
    }

    pub(super) fn gather_elements(&self) -> Made<Tensor> {
        let (x, places) = (self.input(0)?, self.input(1)?);
        let axis = self.node.axis("axis", 0, x.rank())?;
        let mut x = x.clone();
        for (other, &size) in places.dims().iter().enumerate().filter(|(other, _)| *other != axis) {
            x = x.narrow(other, 0, size)?;
        }
        Ok(x.contiguous()?.gather(&counted(places, x.dim(axis)?)?, axis)?)
    }

    /// Places in the first axes of `x`, whose sizes those are, as places in all of them together.
    fn flat_places(&self, x: &Tensor, places: &Tensor) -> Made<Tensor> {
        let depth = places.dim(D::Minus1)?;
        if self.node.int("batch_dims").unwrap_or(0) != 0 || depth > x.rank() {
            return Ok(self.node.unsupported("places of each row alone are not computed here")?);
        }
        let mut flat = Tensor::zeros(places.elem_count() / depth.max(1), DType::I64, &Device::Cpu)?;
        for (place, &size) in x.dims()[..depth].iter().enumerate() {
            let of_axis = counted(&places.narrow(D::Minus1, place, 1)?, size)?.flatten_all()?;
            flat = (flat.affine(size as f64, 0.0)? + of_axis)?;
        }
        Ok(flat)
    }

    pub(super) fn gather_nd(&self) -> Made<Tensor> {
        let (x, places) = (self.input(0)?, self.input(1)?);
        let flat = self.flat_places(x, places)?;
        let depth = places.dim(D::Minus1)?;
        let shape = [&places.dims()[..places.rank() - 1], &x.dims()[depth..]].concat();
        let count: usize = x.dims()[..depth].iter().product();
        let width: usize = x.dims()[depth..].iter().product();
        Ok(x.contiguous()?.reshape((count, width))?.index_select(&flat, 0)?.reshape(shape)?)
    }

    pub(super) fn scatter_nd(&self) -> Made<Tensor> {
        let (x, places, updates) = (self.input(0)?, self.input(1)?, self.input(2)?);
        let flat = self.flat_places(x, places)?;
        let depth = places.dim(D::Minus1)?;
        let count: usize = x.dims()[..depth].iter().product();
        let width: usize = x.dims()[depth..].iter().product();
        let rows = flat.elem_count();
        let flat = flat.reshape((rows, 1))?.broadcast_as((rows, width))?.contiguous()?;
        let updates = updates.contiguous()?.reshape((rows, width))?;
        let made = self.scattered(&x.contiguous()?.reshape((count, width))?, &flat, &updates, 0)?;
        Ok(made.reshape(x.shape())?)
    }

    pub(super) fn scatter_elements(&self) -> Made<Tensor> {
        let (x, places, updates) = (self.input(0)?, self.input(1)?, self.input(2)?);
        let axis = self.node.axis("axis", 0, x.rank())?;
        if (0..x.rank()).any(|other| other != axis && x.dims()[other] != places.dims()[other]) {
            return Ok(self.node.unsupported("candle scatters whole rows alone")?);
        }
        self.scattered(&x.contiguous()?, &counted(places, x.dim(axis)?)?, &updates.contiguous()?, axis)
    }

    fn scattered(&self, x: &Tensor, places: &Tensor, updates: &Tensor, axis: usize) -> Made<Tensor> {
        match self.node.string("reduction").unwrap_or("none") {
            "none" => Ok(x.scatter(places, updates, axis)?),
            "add" => Ok(x.scatter_add(places, updates, axis)?),
            _ => Ok(self.node.unsupported("candle scatters or adds, and reduces in no other way")?),
        }
    }

    pub(super) fn one_hot(&self) -> Made<Typed> {
        let places = self.input(0)?;
        let depth = self.input(1)?.flatten_all()?.to_dtype(DType::I64)?.to_vec1::<i64>()?;
        let Some(&depth) = depth.first() else { return Ok(self.node.failed("it has no depth")?) };
        let place = axis(self.node.int("axis").unwrap_or(-1), places.rank() + 1)?;
        let places = counted(places, usize::try_from(depth).unwrap_or(0))?.unsqueeze(place)?;
        let mut shape = vec![1; places.rank()];
        shape[place] = usize::try_from(depth).unwrap_or(0);
        let all = Tensor::arange(0, depth, &Device::Cpu)?.reshape(shape)?;
        let is_it = places.broadcast_eq(&all)?;
        let Typed { tensor: values, dtype } = self.inputs.tensor(2)?;
        let [off, on] =
            [0, 1].map(|place| values.get(place).and_then(|value| value.broadcast_as(is_it.shape())));
        Ok(Typed { tensor: is_it.where_cond(&on?, &off?)?, dtype: *dtype })
    }

    /// The largest or smallest elements and their places; of equal ones the first come first.
    pub(super) fn top(&self) -> Made<Vec<Typed>> {
        let x = self.input(0)?;
        let place = self.node.axis("axis", -1, x.rank())?;
        let count = self.inputs.ints(1)?.and_then(|count| count.first().copied());
        let count = count.or(self.node.int("k")).and_then(|count| usize::try_from(count).ok()).unwrap_or(0);
        let x = x.transpose(place, D::Minus1)?.contiguous()?;
        let order = x.arg_sort_last_dim(self.node.int("largest").unwrap_or(1) == 0)?;
        let order = order.narrow(D::Minus1, 0, count)?.contiguous()?;
        let values = x.gather(&order, D::Minus1)?;
        let [values, order] =
            [values, order.to_dtype(DType::I64)?].map(|made| made.transpose(place, D::Minus1));
        Ok(vec![self.typed(values?)?, Typed { tensor: order?, dtype: Dtype::Int64 }])
    }
}
