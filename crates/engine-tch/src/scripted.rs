//! The fused layer as TorchScript: the same operations, compiled from `scripted.py` and run by libtorch's JIT.

use bundle::{Activation, Feature, ModelConfig};
use engine::{EngineError, Settings};
use tch::{Device, Kind, TchError};

use crate::error::framework;
use crate::fused;
use crate::layer;
use crate::norm::Residual;
use crate::qkv::Qkv;
use crate::script::{self, Attribute, Script};
use crate::sequences::Step;

const SOURCE: &str = include_str!("scripted.py");

/// Whether layers run as TorchScript; `None` if the settings do not request it.
pub(crate) fn chosen(settings: &Settings, fused: bool) -> Result<Option<bool>, EngineError> {
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

pub(crate) struct Layer(Script);

impl Layer {
    pub(crate) fn compile(layer: fused::Layer, config: &ModelConfig) -> Result<Layer, EngineError> {
        if let Some(words) = config.beyond(&[Feature::LongRope, Feature::FusedGateUp]) {
            let reason = format!("execution=torchscript computes plain layers alone: the model has {words}");
            return Err(EngineError::Unsupported(reason));
        }
        let fused::Layer { attention_norms, attention, mlp_norms, mlp } = layer;
        let fused::Attention { qkv, output, .. } = attention;
        let Qkv { linear: qkv, norm: qk_norm, heads, epsilon, .. } = qkv;
        let (Some(attention_norm), Some(mlp_norm)) = (attention_norms.before, mlp_norms.before) else {
            return Err(EngineError::Unsupported("execution=torchscript norms what a block takes".into()));
        };
        let (qkv, output) = (qkv.into_native()?, output.into_native()?);
        let (gate_up, down) = (mlp.gate_up.into_native()?, mlp.down.into_native()?);
        let flag = |set| Attribute::Int(i64::from(set));
        let tensor = |tensor| Option::map_or(tensor, Attribute::None, Attribute::Tensor);
        let activation = match mlp.activation {
            Activation::Silu => "silu",
            Activation::GeluTanh => "tanh",
            Activation::GeluErf => "none",
            Activation::Relu => "relu",
        };
        // Without a fuser, profiling only delays the first tokens, by 4 ms per layer.
        script::set_profiling(attention_norm.weight().device() != Device::Cpu || script::fuses_on_cpu());
        let attributes = [
            ("hidden", Attribute::Int(config.hidden_size as i64)),
            ("query", Attribute::Int(heads.query)),
            ("kv", Attribute::Int(heads.kv)),
            ("dim", Attribute::Int(heads.dim)),
            ("epsilon", Attribute::Float(epsilon)),
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
            ("mlp_norm", Attribute::Tensor(mlp_norm.weight())),
            ("mlp_norm_bias", tensor(mlp_norm.bias())),
            ("gate_up", Attribute::Linear(&gate_up)),
            ("down", Attribute::Linear(&down)),
        ];
        Script::compile(SOURCE, &attributes).map(Layer).map_err(framework)
    }
}

impl layer::Layer for Layer {
    fn forward(&self, residual: &mut Residual, step: &mut Step, index: usize) -> Result<(), TchError> {
        let rotation = step.rotations.first();
        self.0.run([
            Some(residual.both()),
            rotation.map(|rotation| &rotation.cos),
            rotation.map(|rotation| &rotation.sin),
            Some(&step.slots[index]),
            Some(&step.keys[index]),
            Some(&step.values[index]),
            step.mask.as_ref(),
        ])
    }
}
