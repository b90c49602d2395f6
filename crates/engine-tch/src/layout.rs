//! The layout of the weights of linear layers: the fastest for this machine and precision, unless the
//! settings name one. The README has the measurements.

use tch::{Device, Kind, Tensor};
use worker::engine::{EngineError, Options, Precision, Result, Settings};

use crate::framework;
use crate::reader::kind;
use crate::shim;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Layout {
    /// The file's elements, in place; on a GPU, a copy.
    Plain,
    /// Two copies, bf16: one for one or two rows, which libtorch multiplies faster without oneDNN (unlike a mapped file, it
    /// has huge pages), and one in the blocked layout of oneDNN's kernels for more.
    ByRow,
    /// In place, f16, on a CPU without f16 arithmetic. There libtorch is fast with one row and slow with
    /// several, so products of many rows are computed in f32.
    Widened,
    /// In place, bf16 or f16; converted to f32 for every product.
    Converted,
    /// A copy in the blocked layout of oneDNN's kernels.
    Onednn,
    /// A copy in the layout of XNNPACK's kernels, f32.
    Xnnpack,
    /// Codes in place, for `_weight_int8pack_mm`.
    Int8,
    /// A copy of the codes, for `_weight_int4pack_mm_for_cpu`.
    Int4,
}

impl Layout {
    pub(crate) fn choose(settings: &Settings, device: Device) -> Result<Layout> {
        let fused = settings.flag("fused", true)?;
        let named = settings.options.get("linear").map(String::as_str);
        if settings.converts_weights()? {
            return converted(device, fused, named);
        }
        if settings.precision.is_quantised() && !emulated(settings) {
            return quantised(settings.precision, device, fused, named);
        }
        let kind = kind(settings.precision);
        match named {
            Some(name @ ("onednn" | "xnnpack")) if !fused => {
                Err(EngineError::Input(format!("linear={name} goes with fused=true")))
            }
            Some("mapped") => Ok(Layout::in_place(device, kind, fused)),
            Some("onednn") => onednn(device, kind).map(|()| Layout::Onednn),
            Some("xnnpack") => xnnpack(device, kind).map(|()| Layout::Xnnpack),
            Some(other) => Err(EngineError::Input(format!(
                "option linear is {other:?}; there are mapped, onednn and xnnpack"
            ))),
            None if !fused || device != Device::Cpu => Ok(Layout::in_place(device, kind, fused)),
            // A script has a single operator for each linear layer, and the variant without a JIT needs the
            // same layers for the comparison.
            None if kind == Kind::BFloat16
                && !settings.options.contains_key("execution")
                && onednn(device, kind).is_ok()
                && !multiplies_tiles() =>
            {
                Ok(Layout::ByRow)
            }
            None => Ok(Layout::fastest(kind)),
        }
    }

    /// The layout for encoders, which only have products of many rows. XNNPACK is the fastest for single rows
    /// on most machines, but takes 1.9 times as long as oneDNN for many.
    pub(crate) fn of_many_rows(settings: &Settings, device: Device) -> Result<Layout> {
        let chosen = Layout::choose(settings, device)?;
        if !matches!(chosen, Layout::Xnnpack | Layout::ByRow) || settings.options.contains_key("linear") {
            return Ok(chosen);
        }
        let kind = kind(settings.precision);
        Ok(match onednn(device, kind) {
            Ok(()) => Layout::Onednn,
            Err(_) => Layout::in_place(device, kind, true),
        })
    }

    fn in_place(device: Device, kind: Kind, fused: bool) -> Layout {
        match kind {
            Kind::Half if fused && device == Device::Cpu && onednn(device, kind).is_err() => Layout::Widened,
            _ => Layout::Plain,
        }
    }

    /// The fastest layout on the CPU. Nothing is timed: the processes of a comparison must have equal settings.
    fn fastest(kind: Kind) -> Layout {
        // MKL's f32 kernels are as fast as memory allows on Intel's CPUs, and much slower on others.
        if kind == Kind::Float && tch::utils::has_mkl() && shim::cpu_is_intel() {
            return Layout::Plain;
        }
        if xnnpack(Device::Cpu, kind).is_ok() {
            return Layout::Xnnpack;
        }
        match onednn(Device::Cpu, kind) {
            Ok(()) => Layout::Onednn,
            Err(_) => Layout::in_place(Device::Cpu, kind, true),
        }
    }

    /// Element type of attention, and of keys and values.
    pub(crate) fn attention_kind(self, kind: Kind) -> Kind {
        match (self, kind) {
            (Layout::Widened, _) | (Layout::Converted, Kind::Half) => Kind::Float,
            _ => kind,
        }
    }
}

/// Whether quantised weights are dequantised at load.
pub(crate) fn emulated(settings: &Settings) -> bool {
    settings.precision.is_quantised() && (settings.dequantised || settings.precision == Precision::Nf4)
}

fn converted(device: Device, fused: bool, named: Option<&str>) -> Result<Layout> {
    if !fused || named.is_some() {
        return Err(EngineError::Input("weights=converted goes with fused=true and without linear".into()));
    }
    match device {
        Device::Cpu => Ok(Layout::Converted),
        _ => Err(EngineError::Unsupported("weights are converted for every product on a CPU alone".into())),
    }
}

fn quantised(precision: Precision, device: Device, fused: bool, named: Option<&str>) -> Result<Layout> {
    if precision == Precision::File {
        return Err(EngineError::Unsupported(
            "libtorch's kernels for codes have one scale a row or keep scales in bf16, which cannot hold those of a GGUF's \
             blocks: ask for int8 or int4"
                .into(),
        ));
    }
    if let Some(name) = named {
        return Err(EngineError::Input(format!("linear={name}: at {precision} there is one layout")));
    }
    if !fused {
        return Err(EngineError::Unsupported(format!("fused=false at {precision}: its kernels are fused")));
    }
    if device != Device::Cpu {
        return Err(EngineError::Unsupported(format!(
            "{precision} on a GPU: this engine drives libtorch's quantised kernels for the CPU alone"
        )));
    }
    Ok(if precision == Precision::Int8 { Layout::Int8 } else { Layout::Int4 })
}

/// Whether oneDNN multiplies bf16 by AMX: its packed kernels are then the fastest for one row, too.
fn multiplies_tiles() -> bool {
    const AMX_BF16: u32 = 1 << 22;
    #[cfg(target_arch = "x86_64")]
    let features = std::arch::x86_64::__cpuid_count(7, 0).edx;
    #[cfg(not(target_arch = "x86_64"))]
    let features = 0;
    // `tch-noamx` takes AMX away by this variable.
    features & AMX_BF16 != 0 && std::env::var_os("ONEDNN_MAX_CPU_ISA").is_none()
}

/// Whether this CPU has instructions for products in bf16, so that products of many rows repay the widening of codes.
pub(crate) fn multiplies_bf16() -> bool {
    #[cfg(target_arch = "x86_64")]
    return is_x86_feature_detected!("avx512bf16");
    #[cfg(not(target_arch = "x86_64"))]
    return false;
}

/// Whether oneDNN has kernels for `kind` here. There is no query for this, so it packs a small weight as a
/// test.
fn onednn(device: Device, kind: Kind) -> Result<()> {
    if device != Device::Cpu {
        return Err(EngineError::Unsupported("packed weights exist on the CPU alone".into()));
    }
    let small = Tensor::f_zeros([16, 16], (kind, device)).map_err(framework)?;
    match shim::NativeLinear::onednn(&small, None, None) {
        Ok(_) => Ok(()),
        Err(error) => Err(EngineError::Unsupported(format!("packed weights: {}", framework(error)))),
    }
}

fn xnnpack(device: Device, kind: Kind) -> Result<()> {
    match (device, kind) {
        (Device::Cpu, Kind::Float) if shim::has_xnnpack() => Ok(()),
        (Device::Cpu, Kind::Float) => {
            let reason = "this libtorch was built without XNNPACK, or this worker without OpenMP";
            Err(EngineError::Unsupported(reason.into()))
        }
        _ => Err(EngineError::Unsupported("libtorch drives XNNPACK for f32 on the CPU alone".into())),
    }
}
