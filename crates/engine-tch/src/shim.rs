//! What libtorch offers to C++ and torch-sys does not wrap: see `shim.cpp`.

use std::ffi::{CStr, c_char};

use tch::{TchError, Tensor};
use torch_sys::C_tensor;

#[allow(unsafe_code)]
unsafe extern "C" {
    safe fn engine_tch_built_for() -> *const c_char;
    safe fn engine_tch_cpu_capability() -> *const c_char;
    safe fn engine_tch_cpu_is_intel() -> bool;
    safe fn engine_tch_last_error() -> *const c_char;
    fn engine_tch_pack(weight: *const C_tensor) -> *mut C_tensor;
    fn engine_tch_packed_linear(
        input: *const C_tensor,
        weight: *const C_tensor,
        bias: *const C_tensor,
    ) -> *mut C_tensor;
    /// libtorch's own C interface: its version as bytes, major in the highest.
    safe fn aoti_torch_abi_version() -> u64;
}

/// The version of the libtorch that was built for.
pub(crate) fn built_for() -> String {
    text(engine_tch_built_for())
}

/// The version that the loaded libtorch reports.
pub(crate) fn loaded() -> String {
    let [major, minor, patch, ..] = aoti_torch_abi_version().to_be_bytes();
    format!("{major}.{minor}.{patch}")
}

/// The vector extensions that libtorch's own kernels use here, for example `AVX512`.
pub(crate) fn cpu_capability() -> String {
    text(engine_tch_cpu_capability())
}

pub(crate) fn cpu_is_intel() -> bool {
    engine_tch_cpu_is_intel()
}

/// `weight` in oneDNN's blocked layout: an opaque tensor that [`packed_linear`] alone understands.
pub(crate) fn pack(weight: &Tensor) -> Result<Tensor, TchError> {
    // SAFETY: the pointer is that of a live tensor, and is only read.
    #[allow(unsafe_code)]
    let packed = unsafe { engine_tch_pack(weight.as_ptr()) };
    owned(packed)
}

/// `input · weightᵀ + bias`, where `weight` comes from [`pack`].
pub(crate) fn packed_linear(
    input: &Tensor,
    weight: &Tensor,
    bias: Option<&Tensor>,
) -> Result<Tensor, TchError> {
    let bias = bias.map_or(std::ptr::null(), Tensor::as_ptr);
    // SAFETY: the pointers are those of live tensors, or null where that is allowed; all are only read.
    #[allow(unsafe_code)]
    let product = unsafe { engine_tch_packed_linear(input.as_ptr(), weight.as_ptr(), bias) };
    owned(product)
}

fn owned(tensor: *mut C_tensor) -> Result<Tensor, TchError> {
    if tensor.is_null() {
        return Err(TchError::Torch(text(engine_tch_last_error())));
    }
    // SAFETY: the shim has just allocated it and keeps no pointer to it.
    #[allow(unsafe_code)]
    let tensor = unsafe { Tensor::from_ptr(tensor) };
    Ok(tensor)
}

fn text(text: *const c_char) -> String {
    // SAFETY: every caller passes what the shim returned: never null, ended by a zero, and valid
    // until this thread calls the shim again.
    #[allow(unsafe_code)]
    let text = unsafe { CStr::from_ptr(text) };
    text.to_string_lossy().into_owned()
}
