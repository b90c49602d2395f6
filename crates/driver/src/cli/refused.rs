//! Values that people expect and that are not supported, each with the reason: docs/reference/not-supported.md has the
//! same.

/// Kinds of devices.
const DEVICES: [(&[&str], &str); 1] = [(
    &[
        "tpu", "mps", "metal", "ane", "rocm", "hip", "amd", "xpu", "npu", "vulkan", "webgpu", "wgpu",
        "opencl", "directml",
    ],
    "no column computes there: the workers and their libraries are built for CPUs and for CUDA",
)];

/// Precisions.
const PRECISIONS: [(&[&str], &str); 4] = [
    (
        &["mixed", "amp", "autocast"],
        "mixed precision is no single precision that all frameworks share: name one, such as bf16; the row says what activations are computed in",
    ),
    (&["fp8", "float8", "int2", "q2"], "no column computes in it"),
    (&["fp32", "float32", "float"], "it is written f32"),
    (&["fp16", "float16", "half", "bfloat16"], "16 bits are written f16 or bf16"),
];

/// The reason why a device is not supported, if it is one that people expect.
pub(super) fn device(named: &str) -> Option<&'static str> {
    let kind = named.split(':').next().unwrap_or(named).to_ascii_lowercase();
    reason(&DEVICES, &kind)
}

/// The same of a precision.
pub(super) fn precision(named: &str) -> Option<&'static str> {
    reason(&PRECISIONS, named)
}

/// The names of all precisions that have a reason.
pub(super) fn precisions() -> impl Iterator<Item = &'static str> {
    PRECISIONS.iter().flat_map(|(names, _)| names.iter().copied())
}

fn reason(table: &[(&[&str], &'static str)], named: &str) -> Option<&'static str> {
    table.iter().find(|(names, _)| names.contains(&named)).map(|(_, reason)| *reason)
}
