//! The names of metrics. Module `metrics` computes them.

use serde::{Deserialize, Serialize};

/// A figure of every contender in a comparison. The order of the variants is that of files and tables.
#[derive(
    Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize, strum::EnumMessage,
)]
#[serde(rename_all = "snake_case")]
pub enum Metric {
    /// Load begins → weights resident, seconds.
    Load,
    /// First request after load → its first result, milliseconds.
    ColdStart,
    /// Warm request → first token, mean over requests, milliseconds.
    FirstToken,
    /// Decode time ÷ decoded tokens of one sequence after warm-up, milliseconds.
    Latency,
    /// Decoded tokens ÷ decode time of all requests, tokens per second.
    Throughput,
    /// Warm request → last token, mean over requests, milliseconds.
    Total,
    /// Highest resident set up to the last sample, on a GPU highest memory held there, gigabytes (10⁹ bytes).
    PeakMemory,
    /// Spawn → runtime initialised, milliseconds.
    Startup,
    /// Spawn → first token, milliseconds.
    SpawnToFirstToken,
    /// First request after load → its last token, seconds.
    FirstRequest,
    /// Spawn → last token of the first request, seconds.
    FirstAnswer,
    /// Prompt tokens ÷ time to first token, mean over requests, tokens per second.
    PrefillThroughput,
    /// Median gap between successive tokens of a process, milliseconds.
    LatencyP50,
    /// 90th percentile of a process's gaps, milliseconds.
    LatencyP90,
    /// 95th percentile of a process's gaps, milliseconds.
    LatencyP95,
    /// 99th percentile of the gaps of all processes, at least 300, milliseconds.
    LatencyP99,
    /// Throughput of the fastest request, tokens per second.
    PeakThroughput,
    /// Throughput ÷ peak memory, tokens per second and gigabyte.
    Efficiency,
    /// Peak memory ÷ sequences of the batch, megabytes (10⁶ bytes).
    MemoryPerSequence,
    /// Masked diffusion: warm request ÷ its steps, milliseconds.
    StepTime,
    /// Masked diffusion: new tokens ÷ time of the request, tokens per second.
    DenoisingThroughput,
    /// Masked diffusion: steps ÷ time of the request, per second.
    StepsPerSecond,
    /// Masked diffusion: share of a request's time in which tokens are chosen and not computed, percent.
    SamplerShare,
    /// Encoders: texts ÷ time of the request, mean over batches of several texts, texts per second.
    EncodingThroughput,
    /// Encoders: time of a request of one text, milliseconds.
    SingleText,
    /// Encoders: tokens ÷ time of the request, padding left out, tokens per second.
    EncodedTokens,
    /// Encoders: share of the computed positions that hold no token, percent.
    PaddingShare,
    /// ONNX files: inputs ready → all outputs in host memory, mean over requests, milliseconds.
    RunTime,
    /// ONNX files: runs ÷ their time, mean over requests, runs per second.
    RunThroughput,
    /// Several callers: requests ÷ time until the last answer, requests per second.
    RequestThroughput,
    /// Several callers: highest rate at which 99 of 100 answers come within the limit, requests per second.
    Goodput,
    /// Several callers: request made, or due → its answer, mean over requests, milliseconds.
    CallLatency,
    /// Several callers at a given rate: requests answered a second ÷ that rate, percent; below 100 it is overloaded.
    KeptUp,
}
