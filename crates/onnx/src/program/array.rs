//! Tensors in host memory.

use bundle::Dtype;
use half::f16;

use super::ProgramError;

/// A tensor in host memory: an initialiser, a shape, an attribute.
#[derive(Debug, Clone, PartialEq)]
pub struct Array {
    pub dtype: Dtype,
    pub shape: Vec<usize>,
    /// The numbers, little-endian, row-major; a `bool` is 0 or 1.
    pub data: Vec<u8>,
}

/// How many elements a tensor of that shape has, if so many can be addressed.
pub(super) fn elements(shape: &[usize]) -> Option<usize> {
    shape.iter().try_fold(1usize, |product, &size| product.checked_mul(size))
}

impl Array {
    /// An array of that many bytes.
    ///
    /// # Errors
    /// If the shape has another number of bytes than there are.
    pub fn new(dtype: Dtype, shape: Vec<usize>, data: Vec<u8>) -> Result<Array, ProgramError> {
        let expected = elements(&shape).and_then(|elements| elements.checked_mul(dtype.bytes()));
        if expected != Some(data.len()) {
            let bytes = data.len();
            return Err(ProgramError::Failed(format!(
                "{bytes} bytes are no {dtype} tensor of shape {shape:?}"
            )));
        }
        Ok(Array { dtype, shape, data })
    }

    /// An array of 64-bit numbers; those that the shape has not are left out, or are 0.
    pub fn from_ints(shape: &[usize], numbers: &[i64]) -> Array {
        Array::whole(Dtype::Int64, shape, numbers.iter().copied())
    }

    /// An array of f32; numbers that the shape has not are left out, or are 0.
    pub fn from_floats(shape: &[usize], numbers: &[f32]) -> Array {
        let mut data: Vec<u8> = numbers.iter().flat_map(|number| number.to_le_bytes()).collect();
        data.resize(shape.iter().product::<usize>() * 4, 0);
        Array { dtype: Dtype::Float32, shape: shape.to_vec(), data }
    }

    /// An array of whole numbers of that type, which wrap around; a `bool` is whether a number is not 0.
    pub(super) fn whole(dtype: Dtype, shape: &[usize], numbers: impl Iterator<Item = i64>) -> Array {
        let bytes = dtype.bytes();
        let mut data = Vec::new();
        for number in numbers {
            let number = if dtype == Dtype::Bool { i64::from(number != 0) } else { number };
            data.extend_from_slice(&number.to_le_bytes()[..bytes]);
        }
        data.resize(shape.iter().product::<usize>() * bytes, 0);
        Array { dtype, shape: shape.to_vec(), data }
    }

    pub fn elements(&self) -> usize {
        self.data.len() / self.dtype.bytes()
    }

    /// The numbers of an array of whole numbers or of `bool`. Of `uint64`, those above the largest `int64` wrap around.
    pub fn ints(&self) -> Option<Vec<i64>> {
        if self.dtype.is_float() {
            return None;
        }
        let is_signed = matches!(self.dtype, Dtype::Int8 | Dtype::Int16 | Dtype::Int32 | Dtype::Int64);
        let chunks = self.data.chunks_exact(self.dtype.bytes());
        Some(
            chunks
                .map(|chunk| {
                    let is_negative = is_signed && chunk.last().is_some_and(|&byte| byte >= 128);
                    let mut wide = [if is_negative { 255 } else { 0 }; 8];
                    wide[..chunk.len()].copy_from_slice(chunk);
                    i64::from_le_bytes(wide)
                })
                .collect(),
        )
    }

    /// The numbers of an array of floats, rounded to f32.
    pub fn floats(&self) -> Option<Vec<f32>> {
        if !self.dtype.is_float() {
            return None;
        }
        let number = |chunk: &[u8]| match *chunk {
            [a, b] => f16::from_le_bytes([a, b]).to_f32(),
            [a, b, c, d] => f32::from_le_bytes([a, b, c, d]),
            [a, b, c, d, e, f, g, h] => f64::from_le_bytes([a, b, c, d, e, f, g, h]) as f32,
            _ => f32::NAN,
        };
        Some(self.data.chunks_exact(self.dtype.bytes()).map(number).collect())
    }

    /// The elements at these places of the row-major order.
    pub(super) fn picked(&self, shape: Vec<usize>, places: &[usize]) -> Result<Array, ProgramError> {
        let bytes = self.dtype.bytes();
        let mut data = Vec::with_capacity(places.len() * bytes);
        for &place in places {
            let element = self.data.get(place * bytes..(place + 1) * bytes);
            let element =
                element.ok_or_else(|| ProgramError::Failed("an index is outside a tensor".into()))?;
            data.extend_from_slice(element);
        }
        Array::new(self.dtype, shape, data)
    }
}

/// Places of a tensor's elements, as a shape with a step in row-major order along each axis.
#[derive(Debug, Clone)]
pub(super) struct View {
    pub(super) shape: Vec<usize>,
    pub(super) steps: Vec<isize>,
    pub(super) start: usize,
}

impl View {
    pub(super) fn whole(shape: &[usize]) -> View {
        let mut steps = vec![0; shape.len()];
        let mut step = 1isize;
        for axis in (0..shape.len()).rev() {
            steps[axis] = step;
            step = step.saturating_mul(isize::try_from(shape[axis]).unwrap_or(isize::MAX));
        }
        View { shape: shape.to_vec(), steps, start: 0 }
    }

    /// The same elements repeated to fill a larger shape; `None` if that is not possible.
    pub(super) fn broadcast(mut self, shape: &[usize]) -> Option<View> {
        let missing = shape.len().checked_sub(self.shape.len())?;
        self.steps.splice(0..0, std::iter::repeat_n(0, missing));
        self.shape.splice(0..0, std::iter::repeat_n(1, missing));
        for (axis, &wanted) in shape.iter().enumerate() {
            match (self.shape[axis], wanted) {
                (own, wanted) if own == wanted => {}
                (1, _) => self.steps[axis] = 0,
                _ => return None,
            }
        }
        self.shape = shape.to_vec();
        Some(self)
    }

    pub(super) fn places(&self) -> Vec<usize> {
        let count = elements(&self.shape).unwrap_or(0);
        let mut places = Vec::with_capacity(count);
        let mut index = vec![0usize; self.shape.len()];
        let mut place = self.start as isize;
        for _ in 0..count {
            places.push(usize::try_from(place).unwrap_or(usize::MAX));
            for axis in (0..index.len()).rev() {
                index[axis] += 1;
                place += self.steps[axis];
                if index[axis] < self.shape[axis] {
                    break;
                }
                place -= self.steps[axis] * self.shape[axis] as isize;
                index[axis] = 0;
            }
        }
        places
    }
}

/// The shape of an elementwise operation on these, by ONNX's rule; `None` if they do not go together.
pub(super) fn broadcast_shape(shapes: &[&[usize]]) -> Option<Vec<usize>> {
    let rank = shapes.iter().map(|shape| shape.len()).max().unwrap_or(0);
    let mut all = vec![1; rank];
    for shape in shapes {
        for (size, &own) in all[rank - shape.len()..].iter_mut().zip(*shape) {
            match (*size, own) {
                (_, 1) => {}
                (1, own) => *size = own,
                (size, own) if size == own => {}
                _ => return None,
            }
        }
    }
    Some(all)
}
