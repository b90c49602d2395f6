//! The operations of burn's backend trait that the decoder is made of, under short names. All of them compute
//! on flex; what is said of a copy is so there.

use burn_backend::ops::{ActivationOps, FloatTensorOps};
use burn_backend::{DType, TensorData};
use burn_flex::Flex;
pub(crate) use burn_flex::FlexTensor as Tensor;

/// # Panics
/// If the tensor has fewer than `D` dimensions.
pub(crate) fn dims<const D: usize>(x: &Tensor) -> [usize; D] {
    let shape = x.layout().shape();
    std::array::from_fn(|dimension| shape[dimension])
}

/// A view where the elements are in that order, else a copy.
pub(crate) fn reshape<const D: usize>(x: Tensor, shape: [usize; D]) -> Tensor {
    x.reshape(shape.into())
}

/// A view with the last two dimensions swapped.
pub(crate) fn transpose(x: Tensor) -> Tensor {
    Flex::float_transpose(x)
}

/// A view with two dimensions swapped.
pub(crate) fn swap(x: Tensor, first: usize, second: usize) -> Tensor {
    Flex::float_swap_dims(x, first, second)
}

/// A view of `count` indices of one dimension, from `start` on.
pub(crate) fn narrow(x: &Tensor, dimension: usize, start: usize, count: usize) -> Tensor {
    x.narrow(dimension, start, count)
}

pub(crate) fn cat(parts: Vec<Tensor>, dimension: usize) -> Tensor {
    Flex::float_cat(parts, dimension)
}

/// `[…, rows, inner]` × `[…, inner, columns]`. Views are read where they are, but in bf16.
pub(crate) fn matmul(x: Tensor, y: Tensor) -> Tensor {
    Flex::float_matmul(x, y)
}

/// Dimensions of size 1 are repeated.
pub(crate) fn add(x: Tensor, y: Tensor) -> Tensor {
    Flex::float_add(x, y)
}

/// As [`add`].
pub(crate) fn multiply(x: Tensor, y: Tensor) -> Tensor {
    Flex::float_mul(x, y)
}

pub(crate) fn scale(x: Tensor, factor: f64) -> Tensor {
    Flex::float_mul_scalar(x, factor.into())
}

pub(crate) fn cast(x: Tensor, dtype: DType) -> Tensor {
    Flex::float_cast(x, dtype.into())
}

/// x / √(mean(x²) + ε) over the last dimension, computed in f32 (Zhang and Sennrich 2019, arXiv:1910.07467).
pub(crate) fn rms_norm(x: Tensor, epsilon: f64) -> Tensor {
    let dtype = x.dtype();
    let last = x.layout().shape().len() - 1;
    let x = cast(x, DType::F32);
    let mean = Flex::float_mean_dim(multiply(x.clone(), x.clone()), last);
    let root = Flex::float_sqrt(Flex::float_add_scalar(mean, epsilon.into()));
    cast(multiply(x, Flex::float_recip(root)), dtype)
}

pub(crate) fn softmax(x: Tensor) -> Tensor {
    let last = x.layout().shape().len() - 1;
    Flex::softmax(x, last)
}

/// x · σ(x)
pub(crate) fn silu(x: Tensor) -> Tensor {
    multiply(x.clone(), Flex::sigmoid(x))
}

/// ½x · (1 + tanh(√(2/π) · (x + 0.044715x³)))
pub(crate) fn gelu_tanh(x: Tensor) -> Tensor {
    let cube = multiply(multiply(x.clone(), x.clone()), x.clone());
    let inner = scale(add(x.clone(), scale(cube, 0.044_715)), (2.0 / std::f64::consts::PI).sqrt());
    scale(multiply(x, Flex::float_add_scalar(Flex::float_tanh(inner), 1.0.into())), 0.5)
}

/// By the error function.
pub(crate) fn gelu(x: Tensor) -> Tensor {
    Flex::gelu(x)
}

pub(crate) fn relu(x: Tensor) -> Tensor {
    Flex::relu(x)
}

/// An f32 tensor of `numbers`, then cast to `dtype`.
pub(crate) fn from_floats<const D: usize>(numbers: Vec<f32>, shape: [usize; D], dtype: DType) -> Tensor {
    cast(Tensor::from_data(TensorData::new(numbers, shape)), dtype)
}

/// As f32; without a copy, if it is f32 and nobody else holds it.
pub(crate) fn into_data(x: Tensor) -> TensorData {
    cast(x, DType::F32).into_data()
}
