//! The fused layer as TorchScript: the same operations, compiled from `scripted.py` and run by libtorch's JIT.

use std::ffi::{CString, c_char, c_void};
use std::ptr::NonNull;

use bundle::{Activation, Feature, ModelConfig};
use tch::{Device, Kind, TchError, Tensor};
use torch_sys::C_tensor;
use worker::engine::{EngineError, Result, Settings};

use crate::attend::Qkv;
use crate::cross::Cross;
use crate::experts::Feed;
use crate::layer;
use crate::norm::{Norm, Residual};
use crate::sequences::Step;
use crate::shim::{NativeLinear, last_error};
use crate::{framework, fused};

const SOURCE: &str = include_str!("scripted.py");

/// Whether layers run as TorchScript; `None` if the settings do not request it.
pub(crate) fn chosen(settings: &Settings, fused: bool) -> Result<Option<bool>> {
    match settings.options.get("execution").map(String::as_str) {
        None | Some("eager") => Ok(None),
        Some("torchscript") if !fused => {
            Err(EngineError::Input("execution=torchscript goes with fused=true".into()))
        }
        Some("torchscript") => Ok(Some(settings.jit)),
        Some(other) => {
            Err(EngineError::Input(format!("option execution is {other:?}; there are eager and torchscript")))
        }
    }
}

pub(crate) struct Layer {
    script: Script,
    /// Keys and values of audio.
    heard: Option<[Tensor; 2]>,
}

impl Layer {
    pub(crate) fn compile(layer: fused::Layer, config: &ModelConfig) -> Result<Layer> {
        if let Some(words) =
            config.beyond(&[Feature::LongRope, Feature::Yarn, Feature::FusedGateUp, Feature::Audio])
        {
            let reason = format!("execution=torchscript computes plain layers alone: the model has {words}");
            return Err(EngineError::Unsupported(reason));
        }
        let fused::Layer { attention_norms, attention, cross, mlp_norms, feed, .. } = layer;
        let fused::Attention { qkv, output, .. } = attention;
        let Qkv { linear: qkv, norm: qk_norm, heads, epsilon, .. } = qkv;
        let (Some(attention_norm), Some(mlp_norm), Feed::Mlp(mlp)) =
            (attention_norms.before, mlp_norms.before, feed)
        else {
            return Err(EngineError::Unsupported("execution=torchscript norms what a block takes".into()));
        };
        let (qkv, output) = (qkv.into_native()?, output.into_native()?);
        let (gate_up, down) = (mlp.gate_up.into_native()?, mlp.down.into_native()?);
        let cross = cross.map(|Cross { norm, q, output, keys, values, .. }| {
            Ok::<_, EngineError>((norm, [q.into_native()?, output.into_native()?], [keys, values]))
        });
        let cross = cross.transpose()?;
        let cross_norm = cross.as_ref().map(|(norm, ..)| norm);
        let cross_linear = |place: usize| match &cross {
            Some((_, linears, _)) => Attribute::Linear(&linears[place]),
            None => Attribute::None,
        };
        let flag = |set| Attribute::Int(i64::from(set));
        let tensor = |tensor| Option::map_or(tensor, Attribute::None, Attribute::Tensor);
        let activation = match mlp.activation {
            Activation::Silu => "silu",
            Activation::GeluTanh => "tanh",
            Activation::GeluErf => "none",
            Activation::Relu => "relu",
        };
        // Without a fuser, profiling only delays the first tokens, by 4 ms per layer.
        set_profiling(attention_norm.weight().device() != Device::Cpu || fuses_on_cpu());
        let attributes = [
            ("hidden", Attribute::Int(config.hidden_size as i64)),
            ("query", Attribute::Int(heads.query)),
            ("kv", Attribute::Int(heads.kv)),
            ("dim", Attribute::Int(heads.dim)),
            ("epsilon", Attribute::Float(epsilon)),
            ("scale", Attribute::Float(1.0 / (heads.dim as f64).sqrt())),
            ("rms_norm", flag(config.rms_norm)),
            ("grouped", flag(heads.query != heads.kv && mlp_norm.weight().kind() != Kind::Float)),
            ("activation", Attribute::String(activation)),
            ("gated", flag(mlp.gated)),
            ("causal", flag(config.causal)),
            ("attention_norm", Attribute::Tensor(attention_norm.weight())),
            ("attention_norm_bias", tensor(attention_norm.bias())),
            ("qkv", Attribute::Linear(&qkv)),
            ("qk_norm", tensor(qk_norm.as_ref())),
            ("output", Attribute::Linear(&output)),
            ("cross_norm", tensor(cross_norm.map(Norm::weight))),
            ("cross_norm_bias", tensor(cross_norm.and_then(Norm::bias))),
            ("cross_q", cross_linear(0)),
            ("cross_output", cross_linear(1)),
            ("mlp_norm", Attribute::Tensor(mlp_norm.weight())),
            ("mlp_norm_bias", tensor(mlp_norm.bias())),
            ("gate_up", Attribute::Linear(&gate_up)),
            ("down", Attribute::Linear(&down)),
        ];
        let script = Script::compile(SOURCE, &attributes).map_err(framework)?;
        Ok(Layer { script, heard: cross.map(|(.., heard)| heard) })
    }
}

impl layer::Layer for Layer {
    fn forward(&self, residual: &mut Residual, step: &mut Step, index: usize) -> Result<(), TchError> {
        let rotation = step.rotations.first();
        self.script.run([
            Some(residual.both()),
            rotation.map(|rotation| &rotation.cos),
            rotation.map(|rotation| &rotation.sin),
            Some(&step.slots[index]),
            Some(&step.keys[index]),
            Some(&step.values[index]),
            step.mask.as_ref(),
            self.heard.as_ref().map(|[keys, _]| keys),
            self.heard.as_ref().map(|[_, values]| values),
        ])
    }
}

// TorchScript modules compiled from source, which tch does not wrap: see `script.cpp`.

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
