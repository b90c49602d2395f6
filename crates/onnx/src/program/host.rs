//! Small arrays of whole numbers, truth values and f32, computed here: shapes, and what decides them.

use super::array::{View, broadcast_shape, elements};
use super::{Array, Node, Result};

/// Elements of the largest array that is computed here.
pub(super) const LARGEST: usize = 65_536;

/// The result of `Shape` or `Size`.
pub(super) fn shape(node: &Node, shape: &[usize]) -> Array {
    let sizes: Vec<i64> = shape.iter().map(|&size| size as i64).collect();
    if node.operator == "Size" {
        return Array::from_ints(&[], &[sizes.iter().product()]);
    }
    let rank = sizes.len() as i64;
    let bound = |name: &str, default: i64| {
        let value = node.int(name).unwrap_or(default);
        (if value < 0 { value.saturating_add(rank) } else { value }).clamp(0, rank) as usize
    };
    let (start, end) = (bound("start", 0), bound("end", rank));
    let sizes = sizes.get(start..end).unwrap_or(&[]);
    Array::from_ints(&[sizes.len()], sizes)
}

/// A shape, and for each input the places of its elements in that shape.
type Broadcast = (Vec<usize>, Vec<Vec<usize>>);

/// The inputs of a node that is computed here.
pub(super) struct Given<'a> {
    pub(super) node: &'a Node,
    pub(super) inputs: &'a [Option<&'a Array>],
}

/// A node's outputs; `None` if it is to be computed by the framework.
///
/// # Errors
/// If the node makes no sense for these inputs.
pub(super) fn evaluate(node: &Node, inputs: &[Option<&Array>]) -> Result<Option<Vec<Array>>> {
    if inputs.iter().flatten().any(|array| array.elements() > LARGEST)
        || inputs.first().is_none_or(Option::is_none)
    {
        return Ok(None);
    }
    let given = Given { node, inputs };
    if node.operator == "Split" {
        return given.split();
    }
    let made = match node.operator.as_str() {
        "Gather" => given.gather(),
        "Concat" => given.concat(),
        "Unsqueeze" | "Squeeze" | "Reshape" | "Flatten" => given.reshaped(),
        "Slice" => given.slice(),
        "Transpose" => given.transpose(),
        "Expand" => given.expand(),
        "Tile" => given.tile(),
        "Identity" => Ok(Some(given.array(0)?.clone())),
        "ConstantOfShape" => given.filled(),
        "Range" => given.range(),
        "Cast" => given.cast(),
        "Where" => given.choose(),
        "ScatterND" => given.scatter(),
        "ReduceProd" | "ReduceSum" | "ReduceMax" | "ReduceMin" => given.reduce(),
        "Not" | "Neg" | "Abs" | "Floor" | "Ceil" | "Sqrt" => given.unary(),
        "Add" | "Sub" | "Mul" | "Div" | "Mod" | "Pow" | "Min" | "Max" | "And" | "Or" | "Xor" | "Equal"
        | "Less" | "Greater" | "LessOrEqual" | "GreaterOrEqual" => given.elementwise(),
        _ => Ok(None),
    };
    Ok(made?.map(|array| vec![array]))
}

impl Given<'_> {
    pub(super) fn array(&self, place: usize) -> Result<&Array> {
        match self.inputs.get(place).copied().flatten() {
            Some(array) => Ok(array),
            None => self.node.failed(&format!("it has no input {place}")),
        }
    }

    fn has(&self, place: usize) -> bool {
        self.inputs.get(place).copied().flatten().is_some()
    }

    pub(super) fn ints(&self, place: usize) -> Result<Vec<i64>> {
        match self.array(place)?.ints() {
            Some(numbers) => Ok(numbers),
            None => self.node.failed(&format!("input {place} is not of whole numbers")),
        }
    }

    /// Numbers that older operators have as an attribute and newer ones as an input.
    pub(super) fn listed(&self, name: &str, place: usize) -> Result<Option<Vec<i64>>> {
        match self.node.ints(name) {
            Some(numbers) => Ok(Some(numbers.to_vec())),
            None if self.has(place) => self.ints(place).map(Some),
            None => Ok(None),
        }
    }

    pub(super) fn axis(&self, axis: i64, rank: usize) -> Result<usize> {
        super::axis(axis, rank).or_else(|error| self.node.failed(&error.to_string()))
    }

    pub(super) fn wrong<T>(&self) -> Result<T> {
        self.node.failed("the shapes of its inputs do not go together")
    }

    /// The elements that a view of the first input names, if they are few enough.
    fn viewed(&self, view: &View) -> Result<Option<Array>> {
        match elements(&view.shape) {
            Some(count) if count <= LARGEST => {
                self.array(0)?.picked(view.shape.clone(), &view.places()).map(Some)
            }
            _ => Ok(None),
        }
    }

    fn gather(&self) -> Result<Option<Array>> {
        let (data, indices) = (self.array(0)?, self.array(1)?);
        let axis = self.axis(self.node.int("axis").unwrap_or(0), data.shape.len())?;
        let size = data.shape[axis];
        let shape = [&data.shape[..axis], &indices.shape, &data.shape[axis + 1..]].concat();
        if elements(&shape).is_none_or(|count| count > LARGEST) {
            return Ok(None);
        }
        let inner: usize = data.shape[axis + 1..].iter().product();
        let outer: usize = data.shape[..axis].iter().product();
        let indices = self.ints(1)?;
        let mut places = Vec::new();
        for before in 0..outer {
            for &index in &indices {
                let index = self.axis(index, size)?;
                places.extend((0..inner).map(|after| (before * size + index) * inner + after));
            }
        }
        data.picked(shape, &places).map(Some)
    }

    fn concat(&self) -> Result<Option<Array>> {
        let first = self.array(0)?;
        let axis = self.axis(self.node.int("axis").unwrap_or(1), first.shape.len())?;
        let mut shape = first.shape.clone();
        shape[axis] = 0;
        let outer: usize = shape[..axis].iter().product();
        let mut rows: Vec<std::slice::ChunksExact<'_, u8>> = Vec::new();
        for place in 0..self.inputs.len() {
            let array = self.array(place)?;
            let fits = array.dtype == first.dtype && array.shape.len() == shape.len();
            if !fits
                || (0..shape.len()).any(|other| other != axis && array.shape[other] != first.shape[other])
            {
                return self.wrong();
            }
            shape[axis] += array.shape[axis];
            if !array.data.is_empty() {
                rows.push(array.data.chunks_exact(array.data.len() / outer.max(1)));
            }
        }
        let mut data = Vec::new();
        for _ in 0..outer {
            rows.iter_mut().filter_map(Iterator::next).for_each(|row| data.extend_from_slice(row));
        }
        Array::new(first.dtype, shape, data).map(Some)
    }

    fn reshaped(&self) -> Result<Option<Array>> {
        let data = self.array(0)?;
        let shape = match self.node.operator.as_str() {
            "Reshape" => {
                let wanted = self.listed("shape", 1)?.unwrap_or_default();
                self.node.reshape(&data.shape, &wanted)?
            }
            "Unsqueeze" => {
                let axes = self.listed("axes", 1)?.unwrap_or_default();
                self.node.unsqueeze(&data.shape, &axes)?
            }
            "Squeeze" => self.node.squeeze(&data.shape, self.listed("axes", 1)?.as_deref())?,
            _ => self.node.flatten(&data.shape)?,
        };
        Array::new(data.dtype, shape, data.data.clone()).map(Some)
    }

    fn slice(&self) -> Result<Option<Array>> {
        let data = self.array(0)?;
        let (starts, ends) = (self.listed("starts", 1)?, self.listed("ends", 2)?);
        let (Some(starts), Some(ends)) = (starts, ends) else { return self.wrong() };
        let (axes, steps) = (self.listed("axes", 3)?, if self.has(4) { Some(self.ints(4)?) } else { None });
        let mut view = View::whole(&data.shape);
        for slice in self.node.slices(&data.shape, &starts, &ends, axes.as_deref(), steps.as_deref())? {
            view.start = view.start.saturating_add(slice.start * view.steps[slice.axis].unsigned_abs());
            view.steps[slice.axis] = view.steps[slice.axis].saturating_mul(slice.step as isize);
            view.shape[slice.axis] = slice.count;
        }
        self.viewed(&view)
    }

    fn split(&self) -> Result<Option<Vec<Array>>> {
        let data = self.array(0)?;
        let axis = self.axis(self.node.int("axis").unwrap_or(0), data.shape.len())?;
        let parts = self.node.parts(data.shape[axis], self.listed("split", 1)?.as_deref())?;
        let mut arrays = Vec::new();
        let mut start = 0;
        for part in parts {
            let mut view = View::whole(&data.shape);
            view.start = start * view.steps[axis].unsigned_abs();
            view.shape[axis] = part;
            start += part;
            arrays.push(data.picked(view.shape.clone(), &view.places())?);
        }
        Ok(Some(arrays))
    }

    fn transpose(&self) -> Result<Option<Array>> {
        let view = View::whole(&self.array(0)?.shape);
        let order = self.node.permutation(view.shape.len())?;
        let shape = order.iter().map(|&axis| view.shape[axis]).collect();
        let steps = order.iter().map(|&axis| view.steps[axis]).collect();
        self.viewed(&View { shape, steps, start: 0 })
    }

    fn sizes(&self, place: usize) -> Result<Vec<usize>> {
        let sizes = self.ints(place)?.into_iter().map(usize::try_from).collect::<std::result::Result<_, _>>();
        sizes.or_else(|_| self.node.failed("a size is below 0"))
    }

    fn expand(&self) -> Result<Option<Array>> {
        let (data, wanted) = (self.array(0)?, self.sizes(1)?);
        let Some(shape) = broadcast_shape(&[&data.shape, &wanted]) else { return self.wrong() };
        match View::whole(&data.shape).broadcast(&shape) {
            Some(view) => self.viewed(&view),
            None => self.wrong(),
        }
    }

    fn tile(&self) -> Result<Option<Array>> {
        let (data, repeats) = (self.array(0)?, self.sizes(1)?);
        let view = View::whole(&data.shape);
        if repeats.len() != view.shape.len() {
            return self.wrong();
        }
        // Each axis as two: the repeats, which stand still, and its own.
        let (mut shape, mut steps, mut result) = (Vec::new(), Vec::new(), Vec::new());
        for (axis, &repeat) in repeats.iter().enumerate() {
            shape.extend([repeat, view.shape[axis]]);
            steps.extend([0, view.steps[axis]]);
            result.push(repeat.saturating_mul(view.shape[axis]));
        }
        let Some(mut array) = self.viewed(&View { shape, steps, start: 0 })? else { return Ok(None) };
        array.shape = result;
        Ok(Some(array))
    }

    fn filled(&self) -> Result<Option<Array>> {
        let shape = self.sizes(0)?;
        let value = self.node.array("value").cloned().unwrap_or_else(|| Array::from_floats(&[], &[0.0]));
        match elements(&shape) {
            Some(count) if count <= LARGEST => value.picked(shape, &vec![0; count]).map(Some),
            _ => Ok(None),
        }
    }

    /// The places of each input's elements, broadcast to one shape; `None` if that is too large.
    pub(super) fn broadcast(&self) -> Result<Option<Broadcast>> {
        let mut shapes: Vec<&[usize]> = Vec::new();
        for place in 0..self.inputs.len() {
            shapes.push(&self.array(place)?.shape);
        }
        let Some(shape) = broadcast_shape(&shapes) else { return self.wrong() };
        if elements(&shape).is_none_or(|count| count > LARGEST) {
            return Ok(None);
        }
        let views = shapes.iter().map(|own| View::whole(own).broadcast(&shape).map(|view| view.places()));
        match views.collect::<Option<Vec<_>>>() {
            Some(places) => Ok(Some((shape, places))),
            None => self.wrong(),
        }
    }

    fn choose(&self) -> Result<Option<Array>> {
        let (condition, yes, no) = (self.ints(0)?, self.array(1)?, self.array(2)?);
        let Some((shape, places)) = self.broadcast()? else { return Ok(None) };
        if yes.dtype != no.dtype {
            return self.wrong();
        }
        // Both in one array, the second after the first.
        let both = [yes.data.as_slice(), &no.data].concat();
        let both = Array::new(yes.dtype, vec![yes.elements() + no.elements()], both)?;
        let mut chosen = Vec::new();
        for place in 0..places[0].len() {
            let is_yes = condition[places[0][place]] != 0;
            chosen.push(if is_yes { places[1][place] } else { yes.elements() + places[2][place] });
        }
        both.picked(shape, &chosen).map(Some)
    }

    fn scatter(&self) -> Result<Option<Array>> {
        let (data, indices, updates) = (self.array(0)?, self.array(1)?, self.array(2)?);
        let given = self.ints(1)?;
        let Some(&depth) = indices.shape.last() else { return self.wrong() };
        if self.node.string("reduction").is_some_and(|reduction| reduction != "none") {
            return Ok(None);
        }
        if depth > data.shape.len() || updates.dtype != data.dtype || depth == 0 {
            return self.wrong();
        }
        let inner: usize = data.shape[depth..].iter().product();
        let bytes = inner * data.dtype.bytes();
        let mut result = data.clone();
        if updates.data.len() != given.len() / depth * bytes {
            return self.wrong();
        }
        for (turn, index) in given.chunks_exact(depth).enumerate() {
            let mut place = 0;
            for (&index, &size) in index.iter().zip(&data.shape) {
                place = place * size + self.axis(index, size)?;
            }
            result.data[place * bytes..(place + 1) * bytes]
                .copy_from_slice(&updates.data[turn * bytes..(turn + 1) * bytes]);
        }
        Ok(Some(result))
    }
}
