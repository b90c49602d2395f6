//! TorchScript modules compiled from source, which tch does not wrap: see `script.cpp`.

use std::ffi::{CString, c_char, c_void};
use std::ptr::NonNull;

use tch::{TchError, Tensor};
use torch_sys::C_tensor;

use crate::shim::{NativeLinear, last_error};

#[allow(unsafe_code)]
unsafe extern "C" {
    safe fn engine_tch_script_new() -> *mut c_void;
    fn engine_tch_script_tensor(script: *mut c_void, name: *const c_char, tensor: *const C_tensor) -> bool;
    fn engine_tch_script_linear(script: *mut c_void, name: *const c_char, linear: *const c_void) -> bool;
    fn engine_tch_script_int(script: *mut c_void, name: *const c_char, value: i64) -> bool;
    fn engine_tch_script_float(script: *mut c_void, name: *const c_char, value: f64) -> bool;
    fn engine_tch_script_string(script: *mut c_void, name: *const c_char, value: *const c_char) -> bool;
    fn engine_tch_script_compile(script: *mut c_void, source: *const c_char) -> bool;
    fn engine_tch_script_run(script: *mut c_void, tensors: *const *const C_tensor, count: usize) -> bool;
    fn engine_tch_script_free(script: *mut c_void);
    safe fn engine_tch_script_set_profiling(profiling: bool);
    safe fn engine_tch_script_fuses_on_cpu() -> bool;
}

/// Whether the JIT can fuse operators into its own kernels on the CPU.
pub(crate) fn fuses_on_cpu() -> bool {
    engine_tch_script_fuses_on_cpu()
}

/// Whether the JIT records shapes in the first runs and then fuses kernels for them; for the whole process.
pub(crate) fn set_profiling(profiling: bool) {
    engine_tch_script_set_profiling(profiling);
}

/// The value of a module's attribute.
pub(crate) enum Attribute<'a> {
    Tensor(&'a Tensor),
    /// Its method `multiply` computes the product.
    Linear(&'a NativeLinear),
    Int(i64),
    Float(f64),
    String(&'a str),
    None,
}

/// A compiled module. Its method `forward` takes tensors and returns nothing.
pub(crate) struct Script(NonNull<c_void>);

impl Script {
    /// Compiles the methods that `source` defines. The module is frozen: its attributes are constants.
    pub(crate) fn compile(source: &str, attributes: &[(&str, Attribute)]) -> Result<Script, TchError> {
        let script = NonNull::new(engine_tch_script_new()).map(Script).ok_or_else(last_error)?;
        let module = script.0.as_ptr();
        for (name, value) in attributes {
            let name = c_string(name)?;
            let name = name.as_ptr();
            // SAFETY: the module and the attributes' values are live, strings end with a zero, and everything
            // except the module is only read. The module shares ownership of tensors and layers.
            #[allow(unsafe_code)]
            done(unsafe {
                match value {
                    Attribute::Tensor(tensor) => engine_tch_script_tensor(module, name, tensor.as_ptr()),
                    Attribute::None => engine_tch_script_tensor(module, name, std::ptr::null()),
                    Attribute::Linear(linear) => engine_tch_script_linear(module, name, linear.as_ptr()),
                    Attribute::Int(value) => engine_tch_script_int(module, name, *value),
                    Attribute::Float(value) => engine_tch_script_float(module, name, *value),
                    Attribute::String(value) => {
                        engine_tch_script_string(module, name, c_string(value)?.as_ptr())
                    }
                }
            })?;
        }
        let source = c_string(source)?;
        // SAFETY: the module is live, and the source ends with a zero.
        #[allow(unsafe_code)]
        done(unsafe { engine_tch_script_compile(module, source.as_ptr()) })?;
        Ok(script)
    }

    /// Calls `forward` with `tensors`, some of which it may change.
    pub(crate) fn run<const COUNT: usize>(&self, tensors: [Option<&Tensor>; COUNT]) -> Result<(), TchError> {
        let pointers = tensors.map(|tensor| tensor.map_or(std::ptr::null(), Tensor::as_ptr));
        // SAFETY: the module is live, and so are the tensors, of which there are `COUNT`.
        #[allow(unsafe_code)]
        done(unsafe { engine_tch_script_run(self.0.as_ptr(), pointers.as_ptr(), COUNT) })
    }
}

impl Drop for Script {
    fn drop(&mut self) {
        // SAFETY: `compile` made it, and it is freed once.
        #[allow(unsafe_code)]
        unsafe {
            engine_tch_script_free(self.0.as_ptr());
        }
    }
}

fn c_string(text: &str) -> Result<CString, TchError> {
    CString::new(text).map_err(|error| TchError::Torch(error.to_string()))
}

fn done(succeeded: bool) -> Result<(), TchError> {
    if succeeded { Ok(()) } else { Err(last_error()) }
}
