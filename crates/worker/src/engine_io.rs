//! Between the protocol's types and the engine's: neither crate knows the other.

use engine::{Device, EngineError, InEffect, Runtime, Settings};
use protocol::{Build, FailureKind, Hello, Task};

use crate::work::cache;

pub(crate) fn settings(wire: &protocol::Settings) -> Result<Settings, EngineError> {
    if wire.shards != 1 {
        let reason = format!("its weights are not divided over devices ({} were asked for)", wire.shards);
        return Err(EngineError::Unsupported(reason));
    }
    let precision = wire.precision.parse().map_err(EngineError::Input)?;
    Ok(Settings {
        precision,
        cache: cache::precision(&wire.decoder, precision)?,
        device: device(&wire.device)?,
        threads: wire.threads,
        jit: wire.jit,
        hidden_states: wire.hidden_states,
        dequantised: wire.dequantised,
        options: wire.options.clone(),
    })
}

pub(crate) fn device(text: &str) -> Result<Device, EngineError> {
    let unknown = || EngineError::Input(format!("unknown device {text:?}; there are cpu and cuda:N"));
    match text.split_once(':') {
        None if text == "cpu" => Ok(Device::Cpu),
        Some(("cuda", index)) => Ok(Device::Cuda(index.parse().map_err(|_| unknown())?)),
        _ => Err(unknown()),
    }
}

pub(crate) fn hello(framework: &str, runtime: Runtime) -> Hello {
    Hello {
        protocol: protocol::VERSION,
        framework: framework.into(),
        binding: runtime.binding.into(),
        library: runtime.library.into(),
        library_path: runtime.library_path.map(|path| path.display().to_string().into()),
        cpu_capability: runtime.cpu_capability.map(Into::into),
        slices: Some(true),
        build: Build {
            profile: env!("BUILD_PROFILE").into(),
            rustc: Some(env!("BUILD_RUSTC").into()),
            rustflags: Some(env!("BUILD_RUSTFLAGS").into()),
            target_features: Some(env!("BUILD_FEATURES").split(',').collect()),
            target: Some(env!("BUILD_TARGET").into()),
            toolchain: None,
        },
    }
}

/// The settings in effect for a task.
pub(crate) fn in_effect(
    observed: InEffect,
    hybrid: Option<engine::Hybrid>,
    task: &Task,
) -> protocol::InEffect {
    let cache = cache::in_effect(&observed, task);
    protocol::InEffect {
        precision: observed.weights.name().into(),
        activations: observed.activations.into(),
        cache,
        device: observed.device.to_string().into(),
        threads: observed.threads,
        jit: observed.jit.into(),
        optimised: observed.optimised,
        weight_storage: observed.weight_storage.into(),
        kernels: observed.kernels.into(),
        // No engine in Rust divides its weights over devices.
        shard_bytes: None,
        hybrid: hybrid.map(|engine::Hybrid { prefill, decode, alone, .. }| protocol::Hybrid {
            prefill: prefill.into(),
            decode: decode.into(),
            alone: alone.map(Into::into),
        }),
    }
}

pub(crate) fn failure_kind(error: &EngineError) -> FailureKind {
    match error {
        EngineError::Unsupported(_) => FailureKind::Unsupported,
        EngineError::Input(_) | EngineError::Bundle(_) => FailureKind::Input,
        EngineError::Framework(_) => FailureKind::Failed,
    }
}
