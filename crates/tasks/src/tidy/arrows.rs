//! The allowed dependencies between crates, as data.

/// Our crates, and which of ours each may depend on.
pub(crate) const ALLOWED: &[(&str, &[&str])] = &[
    ("bundle", &["untrusted-input"]),
    ("calibrate", &["engine-mock", "facts", "judge", "plan", "statistics"]),
    ("charts", &[]),
    ("claims", &["facts", "judge", "plan", "statistics", "tooling"]),
    ("configs", &["bundle", "untrusted-input"]),
    (
        "driver",
        &[
            "bundle",
            "charts",
            "configs",
            "facts",
            "untrusted-input",
            "history",
            "judge",
            "measure",
            "plan",
            "tooling",
            "protocol",
            "render",
            "setup",
            "statistics",
            "worker-check",
        ],
    ),
    ("engine", &["bundle"]),
    ("engine-candle", &["bundle", "engine", "worker"]),
    ("engine-hybrid", &["bundle", "engine", "engine-candle", "engine-ort", "engine-tch", "worker"]),
    ("engine-mock", &["bundle", "engine", "nvml-fake", "worker"]),
    ("engine-ort", &["bundle", "engine", "onnx", "worker"]),
    ("engine-tch", &["bundle", "engine", "worker"]),
    // Only tests of engines use it; it is part of no program.
    ("conformance", &["bundle", "engine", "prepare", "protocol", "worker"]),
    ("facts", &["bundle", "configs", "untrusted-input", "plan", "protocol", "statistics"]),
    ("features", &[]),
    ("features-large", &[]),
    // A tool for developers that calls every reader there is.
    (
        "fuzz",
        &[
            "bundle",
            "configs",
            "facts",
            "untrusted-input",
            "history",
            "judge",
            "measure",
            "onnx",
            "plan",
            "prepare",
            "protocol",
            "render",
            "tooling",
        ],
    ),
    ("untrusted-input", &[]),
    ("gpu", &[]),
    ("history", &["untrusted-input"]),
    ("hub", &[]),
    (
        "judge",
        &["bundle", "configs", "facts", "untrusted-input", "history", "plan", "protocol", "statistics"],
    ),
    (
        "measure",
        &[
            "bundle",
            "configs",
            "facts",
            "untrusted-input",
            "gpu",
            "judge",
            "plan",
            "protocol",
            "setup",
            "statistics",
            "tooling",
        ],
    ),
    ("nvml-fake", &[]),
    ("onnx", &["bundle"]),
    ("plan", &["bundle", "configs", "untrusted-input", "protocol", "statistics"]),
    ("prepare", &["bundle", "untrusted-input", "onnx"]),
    ("protocol", &["untrusted-input"]),
    (
        "render",
        &[
            "charts",
            "configs",
            "facts",
            "untrusted-input",
            "history",
            "judge",
            "plan",
            "protocol",
            "statistics",
        ],
    ),
    ("setup", &["tooling"]),
    ("statistics", &[]),
    ("tasks", &["configs", "gpu", "nvml-fake", "protocol", "setup", "tooling", "xtask"]),
    ("tooling", &["xtask"]),
    ("worker", &["bundle", "engine", "gpu", "protocol"]),
    // It starts workers with `measure`, so that it cannot differ from a run; it judges only their form.
    ("worker-check", &["bundle", "facts", "untrusted-input", "judge", "measure", "plan", "protocol"]),
    ("xtask", &[]),
];

/// Crates of ours without code: they only name features, and any crate may depend on them.
pub(crate) const FEATURES: [&str; 2] = ["features", "features-large"];

/// Crates of the frameworks, and our crates of this workspace that may depend on each, also indirectly.
/// `prepare` reads GGUF with candle-core.
pub(crate) const FRAMEWORKS: &[(&str, &[&str])] = &[
    ("burn-backend", &[]),
    ("burn-flex", &[]),
    ("candle-core", &["conformance", "engine-candle", "engine-hybrid", "fuzz", "prepare"]),
    ("candle-nn", &["engine-candle", "engine-hybrid"]),
    ("candle-transformers", &[]),
    ("fastembed", &[]),
    ("tch", &["engine-hybrid", "engine-tch"]),
    ("torch-sys", &["engine-hybrid", "engine-tch"]),
    ("ort", &["engine-hybrid", "engine-ort"]),
    ("ort-sys", &["engine-hybrid", "engine-ort"]),
    ("rten", &[]),
    ("tract-onnx", &[]),
];

/// Crates that link a native library when they are built.
pub(crate) const NATIVE: [&str; 1] = ["torch-sys"];
