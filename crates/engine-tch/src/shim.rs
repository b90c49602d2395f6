//! Parts of libtorch's C++ interface that torch-sys does not wrap: see `shim.cpp`.

use std::ffi::{CStr, c_char, c_void};
use std::marker::PhantomData;
use std::ptr::NonNull;

use bundle::Activation;
use tch::{TchError, Tensor};
use torch_sys::C_tensor;

#[allow(unsafe_code)]
unsafe extern "C" {
    safe fn engine_tch_built_for() -> *const c_char;
    safe fn engine_tch_cpu_capability() -> *const c_char;
    safe fn engine_tch_cpu_is_intel() -> bool;
    safe fn engine_tch_last_error() -> *const c_char;
    safe fn engine_tch_has_xnnpack() -> bool;
    safe fn engine_tch_attend_without_cudnn() -> bool;
    fn engine_tch_allocated(index: i64, in_use: *mut i64, peak: *mut i64) -> bool;
    fn engine_tch_linear_plain(weight: *const C_tensor, bias: *const C_tensor) -> *mut c_void;
    fn engine_tch_linear_onednn(
        weight: *const C_tensor,
        bias: *const C_tensor,
        activation: *const c_char,
        algorithm: *const c_char,
    ) -> *mut c_void;
    fn engine_tch_linear_xnnpack(weight: *const C_tensor, bias: *const C_tensor) -> *mut c_void;
    fn engine_tch_multiply_without_onednn(weight: *const C_tensor, input: *const C_tensor) -> *mut C_tensor;
    fn engine_tch_linear_multiply(linear: *const c_void, input: *const C_tensor) -> *mut C_tensor;
    fn engine_tch_linear_free(linear: *mut c_void);
    safe fn engine_tch_enter_inference_mode() -> *mut c_void;
    fn engine_tch_leave_inference_mode(mode: *mut c_void);
    /// libtorch's own C interface: its version as bytes, with the major version in the highest.
    safe fn aoti_torch_abi_version() -> u64;
}

/// The libtorch version that the shim was built for.
pub(crate) fn built_for() -> String {
    // SAFETY: the shim returns its own text.
    #[allow(unsafe_code)]
    unsafe {
        text(engine_tch_built_for())
    }
}

/// The version that the loaded libtorch reports.
pub(crate) fn loaded() -> String {
    let [major, minor, patch, ..] = aoti_torch_abi_version().to_be_bytes();
    format!("{major}.{minor}.{patch}")
}

/// The vector extensions that libtorch's own kernels use here, for example `AVX512`.
pub(crate) fn cpu_capability() -> Option<String> {
    let told = NonNull::new(engine_tch_cpu_capability().cast_mut())?;
    // SAFETY: as above.
    #[allow(unsafe_code)]
    unsafe {
        Some(text(told.as_ptr()))
    }
}

pub(crate) fn cpu_is_intel() -> bool {
    engine_tch_cpu_is_intel()
}

/// Inference mode on this thread while it lives: `no_grad` and no bookkeeping of views and versions. tch
/// wraps only `no_grad`. A tensor made in this mode may only be used in it.
pub(crate) struct InferenceMode {
    mode: *mut c_void,
    /// Keeps it on the thread that it was made on.
    _thread: PhantomData<*const ()>,
}

impl InferenceMode {
    pub(crate) fn enter() -> InferenceMode {
        let mode = engine_tch_enter_inference_mode();
        assert!(!mode.is_null(), "libtorch enters no inference mode: {}", last_error());
        InferenceMode { mode, _thread: PhantomData }
    }
}

impl Drop for InferenceMode {
    fn drop(&mut self) {
        // SAFETY: the shim has allocated it, on this thread, and it is freed once.
        #[allow(unsafe_code)]
        unsafe {
            engine_tch_leave_inference_mode(self.mode);
        }
    }
}

/// Whether this libtorch was built with XNNPACK and the shim with OpenMP, which divides the products.
pub(crate) fn has_xnnpack() -> bool {
    engine_tch_has_xnnpack()
}

/// Lets attention on a GPU choose among libtorch's own kernels, without cuDNN's.
pub(crate) fn attend_without_cudnn() -> Result<(), TchError> {
    if engine_tch_attend_without_cudnn() { Ok(()) } else { Err(last_error()) }
}

/// Bytes allocated from libtorch's allocator on GPU `index`: current and peak.
pub(crate) fn allocated(index: usize) -> Option<(u64, u64)> {
    let (mut in_use, mut peak) = (0, 0);
    // SAFETY: the shim writes to both.
    #[allow(unsafe_code)]
    let told = unsafe { engine_tch_allocated(i64::try_from(index).ok()?, &raw mut in_use, &raw mut peak) };
    told.then_some((u64::try_from(in_use).ok()?, u64::try_from(peak).ok()?))
}

/// `input · weightᵀ` by libtorch's own kernels, with oneDNN switched off.
pub(crate) fn multiply_without_onednn(weight: &Tensor, input: &Tensor) -> Result<Tensor, TchError> {
    // SAFETY: both tensors are live and only read.
    #[allow(unsafe_code)]
    let product = unsafe { engine_tch_multiply_without_onednn(weight.as_ptr(), input.as_ptr()) };
    // SAFETY: the shim has just made it, or returned null, and keeps no pointer to it.
    #[allow(unsafe_code)]
    unsafe {
        owned(product)
    }
}

/// `input · weightᵀ + bias` as an object for C++ and TorchScript.
pub(crate) struct NativeLinear(NonNull<c_void>);

impl NativeLinear {
    /// The weight, `[out, in]`, in place.
    pub(crate) fn plain(weight: &Tensor, bias: Option<&Tensor>) -> Result<NativeLinear, TchError> {
        NativeLinear::hold(engine_tch_linear_plain, weight, bias)
    }

    /// A copy of the weight in oneDNN's blocked layout. The product includes `activation`, if given.
    pub(crate) fn onednn(
        weight: &Tensor,
        bias: Option<&Tensor>,
        activation: Option<Activation>,
    ) -> Result<NativeLinear, TchError> {
        let (activation, algorithm) = match activation {
            None => (c"none", c""),
            Some(Activation::Relu) => (c"relu", c""),
            Some(Activation::Silu) => (c"swish", c""),
            Some(Activation::GeluErf) => (c"gelu", c"none"),
            Some(Activation::GeluTanh) => (c"gelu", c"tanh"),
        };
        let bias = bias.map_or(std::ptr::null(), Tensor::as_ptr);
        // SAFETY: the pointers refer to live tensors and texts, or are null if that is allowed, and are only
        // read.
        #[allow(unsafe_code)]
        let linear = unsafe {
            engine_tch_linear_onednn(weight.as_ptr(), bias, activation.as_ptr(), algorithm.as_ptr())
        };
        NonNull::new(linear).map(NativeLinear).ok_or_else(last_error)
    }

    /// A copy of weight and bias, f32, packed by XNNPACK.
    pub(crate) fn xnnpack(weight: &Tensor, bias: Option<&Tensor>) -> Result<NativeLinear, TchError> {
        NativeLinear::hold(engine_tch_linear_xnnpack, weight, bias)
    }

    fn hold(
        hold: unsafe extern "C" fn(*const C_tensor, *const C_tensor) -> *mut c_void,
        weight: &Tensor,
        bias: Option<&Tensor>,
    ) -> Result<NativeLinear, TchError> {
        let bias = bias.map_or(std::ptr::null(), Tensor::as_ptr);
        // SAFETY: the pointers refer to live tensors, or are null if that is allowed, and are only read.
        #[allow(unsafe_code)]
        let linear = unsafe { hold(weight.as_ptr(), bias) };
        NonNull::new(linear).map(NativeLinear).ok_or_else(last_error)
    }

    pub(crate) fn forward(&self, input: &Tensor) -> Result<Tensor, TchError> {
        // SAFETY: the tensor is live and only read; `hold` made the layer.
        #[allow(unsafe_code)]
        let product = unsafe { engine_tch_linear_multiply(self.0.as_ptr(), input.as_ptr()) };
        // SAFETY: the shim has just made it, or returned null, and keeps no pointer to it.
        #[allow(unsafe_code)]
        unsafe {
            owned(product)
        }
    }

    pub(crate) fn as_ptr(&self) -> *const c_void {
        self.0.as_ptr()
    }
}

impl Drop for NativeLinear {
    fn drop(&mut self) {
        // SAFETY: `hold` made it, and it is freed once.
        #[allow(unsafe_code)]
        unsafe {
            engine_tch_linear_free(self.0.as_ptr());
        }
    }
}

/// Takes ownership of a tensor that the shim returned; its last error if that is null.
///
/// # Safety
///
/// `tensor` is null, or points to a tensor that is not used or freed elsewhere.
#[allow(unsafe_code)]
pub(crate) unsafe fn owned(tensor: *mut C_tensor) -> Result<Tensor, TchError> {
    if tensor.is_null() {
        return Err(last_error());
    }
    // SAFETY: it is not null, and the caller passes on its ownership.
    let tensor = unsafe { Tensor::from_ptr(tensor) };
    Ok(tensor)
}

/// The error of the shim's last call on this thread that returned null or false.
pub(crate) fn last_error() -> TchError {
    // SAFETY: the shim returns its own text, which is valid until this thread calls the shim again.
    #[allow(unsafe_code)]
    TchError::Torch(unsafe { text(engine_tch_last_error()) })
}

/// A copy of a text.
///
/// # Safety
///
/// `text` points to bytes that end with a zero and are not changed or freed meanwhile.
#[allow(unsafe_code)]
unsafe fn text(text: *const c_char) -> String {
    // SAFETY: the caller promises the same.
    let text = unsafe { CStr::from_ptr(text) };
    text.to_string_lossy().into_owned()
}

#[cfg(test)]
mod tests {
    use tch::{Device, Kind};

    use super::*;

    #[test]
    fn what_libtorch_throws_is_an_error_that_says_it() {
        let _mode = InferenceMode::enter();
        let (weight, unlike) = (matrix(4, 8), matrix(2, 5));
        let linear = NativeLinear::plain(&weight, None).unwrap();
        let thrown = [linear.forward(&unlike), multiply_without_onednn(&weight, &unlike)];
        for error in thrown.map(|product| product.unwrap_err().to_string()) {
            assert!(error.contains("2x5") && error.contains("8x4"), "{error}");
        }
        assert!(NativeLinear::onednn(&matrix(2, 0).view([0]), None, None).is_err());
        assert_eq!(allocated(usize::from(u8::MAX)), None);
        assert!(cpu_capability().is_some());
    }

    #[test]
    fn a_weight_packed_for_other_threads_is_refused() {
        if !has_xnnpack() {
            return;
        }
        let _mode = InferenceMode::enter();
        let threads = tch::get_num_threads();
        let linear = NativeLinear::xnnpack(&matrix(64, 8), None).unwrap();
        assert!(linear.forward(&matrix(1, 8)).is_ok());
        tch::set_num_threads(threads + 1);
        let error = linear.forward(&matrix(1, 8)).unwrap_err().to_string();
        tch::set_num_threads(threads);
        let expected = format!("packed for {threads} threads is multiplied on {}", threads + 1);
        assert!(error.contains(&expected), "{error}");
    }

    fn matrix(rows: i64, columns: i64) -> Tensor {
        Tensor::ones([rows, columns], (Kind::Float, Device::Cpu))
    }
}
