//! TorchScript modules that are traced or read from a file: see `trace.cpp`.

use std::ffi::{CString, c_char, c_void};
use std::path::Path;
use std::ptr::NonNull;

use tch::{TchError, Tensor};
use torch_sys::C_tensor;

use crate::shim::{last_error, owned};

type Give = extern "C" fn(*mut c_void, *mut C_tensor);

#[allow(unsafe_code)]
unsafe extern "C" {
    fn engine_tch_trace_begin(inputs: *const *const C_tensor, count: usize) -> *mut c_void;
    safe fn engine_tch_trace_abandon();
    safe fn engine_tch_trace_pause() -> *mut c_void;
    fn engine_tch_trace_resume(paused: *mut c_void);
    fn engine_tch_trace_end(module: *mut c_void, outputs: *const *const C_tensor, count: usize) -> bool;
    fn engine_tch_trace_freeze(module: *mut c_void) -> bool;
    fn engine_tch_trace_load(path: *const c_char) -> *mut c_void;
    fn engine_tch_trace_free(module: *mut c_void);
    fn engine_tch_trace_run(
        module: *mut c_void,
        inputs: *const *const C_tensor,
        count: usize,
        context: *mut c_void,
        give: Give,
    ) -> bool;
    fn engine_tch_convolution_pack(
        weight: *const C_tensor,
        how: *const Parameters,
        size: *const i64,
    ) -> *mut C_tensor;
    fn engine_tch_convolution(
        input: *const C_tensor,
        weight: *const C_tensor,
        bias: *const C_tensor,
        how: *const Parameters,
    ) -> *mut C_tensor;
    fn engine_tch_trace_tensors(module: *mut c_void, context: *mut c_void, give: Give) -> bool;
}

/// The parameters of a convolution over two axes, as the shim takes them.
#[repr(C)]
struct Parameters {
    pads: *const i64,
    strides: *const i64,
    dilations: *const i64,
    groups: i64,
}

/// A convolution over two axes with a weight in the layout that oneDNN chooses.
pub(super) struct Convolution {
    pub(super) pads: [i64; 2],
    pub(super) strides: [i64; 2],
    pub(super) dilations: [i64; 2],
    pub(super) groups: i64,
}

impl Convolution {
    fn parameters(&self) -> Parameters {
        let Convolution { pads, strides, dilations, groups } = self;
        let (pads, strides, dilations) = (pads.as_ptr(), strides.as_ptr(), dilations.as_ptr());
        Parameters { pads, strides, dilations, groups: *groups }
    }

    /// The weight for inputs of that size, which no other function takes.
    pub(super) fn pack(&self, weight: &Tensor, size: [i64; 4]) -> Result<Tensor, TchError> {
        let parameters = self.parameters();
        // SAFETY: the tensor is live, there are as many numbers as the shim reads, and it gives up the new tensor.
        #[allow(unsafe_code)]
        unsafe {
            owned(engine_tch_convolution_pack(weight.as_ptr(), &raw const parameters, size.as_ptr()))
        }
    }

    pub(super) fn run(
        &self,
        input: &Tensor,
        weight: &Tensor,
        bias: Option<&Tensor>,
    ) -> Result<Tensor, TchError> {
        let parameters = self.parameters();
        let bias = bias.map_or(std::ptr::null(), Tensor::as_ptr);
        // SAFETY: the tensors are live or null where that is allowed, and the shim gives up the new one.
        #[allow(unsafe_code)]
        unsafe {
            owned(engine_tch_convolution(input.as_ptr(), weight.as_ptr(), bias, &raw const parameters))
        }
    }
}

/// A module whose `forward` takes tensors and returns tensors.
pub(super) struct Module(NonNull<c_void>);

impl Module {
    /// Records what `compute` does with these tensors.
    pub(super) fn trace<E: From<TchError>>(
        inputs: &[&Tensor],
        compute: impl FnOnce() -> Result<Vec<Tensor>, E>,
    ) -> Result<Module, E> {
        let pointers = pointers(inputs);
        // SAFETY: the tensors are live, and there are as many.
        #[allow(unsafe_code)]
        let begun = unsafe { engine_tch_trace_begin(pointers.as_ptr(), pointers.len()) };
        let module = NonNull::new(begun).map(Module).ok_or_else(last_error)?;
        let abandon = Abandon;
        let outputs = compute()?;
        let outputs: Vec<&Tensor> = outputs.iter().collect();
        let pointers = self::pointers(&outputs);
        // SAFETY: the module and the tensors are live.
        #[allow(unsafe_code)]
        done(unsafe { engine_tch_trace_end(module.0.as_ptr(), pointers.as_ptr(), pointers.len()) })?;
        std::mem::forget(abandon);
        Ok(module)
    }

    /// Makes constants of what it holds, and computes what follows from constants.
    pub(super) fn freeze(&mut self) -> Result<(), TchError> {
        // SAFETY: the module is live, and not shared.
        #[allow(unsafe_code)]
        done(unsafe { engine_tch_trace_freeze(self.0.as_ptr()) })
    }

    pub(super) fn load(path: &Path) -> Result<Module, TchError> {
        let path = CString::new(path.as_os_str().as_encoded_bytes());
        let path = path.map_err(|error| TchError::Torch(error.to_string()))?;
        // SAFETY: the text ends with a zero.
        #[allow(unsafe_code)]
        let loaded = unsafe { engine_tch_trace_load(path.as_ptr()) };
        NonNull::new(loaded).map(Module).ok_or_else(last_error)
    }

    pub(super) fn run(&self, inputs: &[&Tensor]) -> Result<Vec<Tensor>, TchError> {
        let pointers = pointers(inputs);
        let mut outputs: Vec<Tensor> = Vec::new();
        let context = (&raw mut outputs).cast();
        // SAFETY: the module and the tensors are live, and `take` gets the vector that it expects.
        #[allow(unsafe_code)]
        done(unsafe {
            engine_tch_trace_run(self.0.as_ptr(), pointers.as_ptr(), pointers.len(), context, take)
        })?;
        Ok(outputs)
    }

    /// Every tensor that it holds.
    pub(super) fn tensors(&self) -> Result<Vec<Tensor>, TchError> {
        let mut tensors: Vec<Tensor> = Vec::new();
        let context = (&raw mut tensors).cast();
        // SAFETY: the module is live, and `take` gets the vector that it expects.
        #[allow(unsafe_code)]
        done(unsafe { engine_tch_trace_tensors(self.0.as_ptr(), context, take) })?;
        Ok(tensors)
    }
}

impl Drop for Module {
    fn drop(&mut self) {
        // SAFETY: the shim made it, and it is freed once.
        #[allow(unsafe_code)]
        unsafe {
            engine_tch_trace_free(self.0.as_ptr());
        }
    }
}

/// Ends a trace that is not completed.
struct Abandon;

impl Drop for Abandon {
    fn drop(&mut self) {
        engine_tch_trace_abandon();
    }
}

/// What `make` makes, as a constant of a trace that is being recorded. A trace knows a tensor's numbers by the
/// functions that gave them, and those that are copied from memory by none.
pub(super) fn untraced<T>(make: impl FnOnce() -> T) -> T {
    struct Paused(*mut c_void);
    impl Drop for Paused {
        fn drop(&mut self) {
            // SAFETY: the shim has made it, on this thread, and it is freed once.
            #[allow(unsafe_code)]
            unsafe {
                engine_tch_trace_resume(self.0);
            }
        }
    }
    let _paused = Paused(engine_tch_trace_pause());
    make()
}

/// Takes a tensor from the shim into a vector.
extern "C" fn take(context: *mut c_void, tensor: *mut C_tensor) {
    // SAFETY: the callers above give a vector that is not used meanwhile, and the shim gives up the tensor.
    #[allow(unsafe_code)]
    unsafe {
        let tensors: &mut Vec<Tensor> = &mut *context.cast();
        tensors.push(Tensor::from_ptr(tensor));
    }
}

fn pointers(tensors: &[&Tensor]) -> Vec<*const C_tensor> {
    tensors.iter().map(|tensor| tensor.as_ptr()).collect()
}

fn done(succeeded: bool) -> Result<(), TchError> {
    if succeeded { Ok(()) } else { Err(last_error()) }
}
