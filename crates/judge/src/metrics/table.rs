//! The one table of metrics. To add a metric, add a variant and its entry here, and define it in `docs/measures.md`;
//! `UPDATE_SCHEMAS=1 cargo xtask test -p judge` then adds it to the schemas. A variant's comment is its definition
//! there. Tables, charts, sentences, flags, CSV and JSON take names, units and directions from here.

use protocol::CaseSample;
use serde::{Deserialize, Serialize};
use statistics::quantile;

use super::steps::Steps;
use super::told::{Amount, Told};
use super::{Denoising, Entry, Samples, Source};

/// A figure that a comparison gives of every contender. The order of the variants is that of files and tables.
#[derive(
    Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize, strum::EnumMessage,
)]
#[serde(rename_all = "snake_case")]
pub enum Metric {
    /// Load begins → weights resident, seconds.
    Load,
    /// First request after load → its first token, milliseconds.
    ColdStart,
    /// Decode time ÷ decoded tokens of one sequence after warm-up, milliseconds.
    Latency,
    /// Decoded tokens ÷ decode time, tokens per second.
    Throughput,
    /// Highest resident set up to the last sample, on a GPU highest memory held there, gigabytes (10⁹ bytes).
    PeakMemory,
    /// Spawn → runtime initialised, milliseconds.
    Startup,
    /// Spawn → first token, milliseconds.
    SpawnToFirstToken,
    /// Warm request → first token, milliseconds.
    FirstToken,
    /// Prompt tokens ÷ time to first token, tokens per second.
    PrefillThroughput,
    /// Median gap between successive tokens, milliseconds.
    LatencyP50,
    /// 90th percentile of the gaps, milliseconds.
    LatencyP90,
    /// 99th percentile of the gaps, milliseconds.
    LatencyP99,
    /// Warm request → last token, milliseconds.
    Total,
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
}

/// The common values of most metrics. An entry gives only its own differences.
const PLAIN: Entry = Entry {
    metric: Metric::Load,
    key: "",
    title: "",
    short_title: None,
    words: "",
    unit: "ms",
    higher_is_better: false,
    source: Source::Process(|_, _| None),
    in_table: false,
    decides: false,
    without_decoding: None,
    when_denoising: Denoising::Alike,
    follows: None,
    depends_on_speed: true,
    place_of_prompt: None,
    amount: Amount::Times,
    told: None,
};

pub(super) const ENTRIES: &[Entry] = &[
    Entry {
        metric: Metric::Load,
        key: "load",
        title: "Model Load (s)",
        short_title: Some("Load (s)"),
        words: "load",
        unit: "s",
        source: Source::Process(|run, _| Some(run.loaded()?.load_ns as f64 / 1e9)),
        in_table: true,
        told: Some(Told { does: "loads", how: "faster", brief: "faster", most: "loads fastest" }),
        ..PLAIN
    },
    Entry {
        metric: Metric::ColdStart,
        key: "cold_start",
        title: "Cold Start (ms)",
        short_title: Some("Cold start (ms)"),
        words: "cold start",
        source: Source::Process(|run, _| Some(ms(run.cold_start()?.first_token_ns))),
        in_table: true,
        told: Some(Told {
            does: "gives its first token after loading",
            how: "sooner",
            brief: "sooner",
            most: "gives its first token soonest after loading",
        }),
        ..PLAIN
    },
    Entry {
        metric: Metric::Latency,
        key: "latency",
        title: "Steady-State Latency (ms)",
        short_title: Some("Latency (ms)"),
        words: "latency",
        source: Source::Samples(|samples| {
            let gaps = samples.gaps_ns();
            (!gaps.is_empty()).then(|| ms(gaps.iter().sum::<u64>()) / gaps.len() as f64)
        }),
        in_table: true,
        without_decoding: Some(Metric::FirstToken),
        follows: Some(Metric::Throughput),
        place_of_prompt: Some(1),
        when_denoising: Denoising::Replaced(Metric::StepTime),
        ..PLAIN
    },
    Entry {
        metric: Metric::Throughput,
        key: "throughput",
        title: "Average Throughput (tok/s)",
        short_title: Some("Decode (tok/s)"),
        words: "throughput",
        unit: "tok/s",
        higher_is_better: true,
        source: Source::Samples(|samples| decoded_a_second(&samples.gaps_ns(), samples.batch)),
        in_table: true,
        decides: true,
        without_decoding: Some(Metric::PrefillThroughput),
        place_of_prompt: Some(2),
        told: Some(Told { does: "decodes", how: "faster", brief: "faster", most: "is fastest" }),
        when_denoising: Denoising::Replaced(Metric::DenoisingThroughput),
        ..PLAIN
    },
    Entry {
        metric: Metric::PeakMemory,
        key: "peak_memory",
        title: "Peak Memory (GB)",
        short_title: Some("Peak (GB)"),
        words: "peak memory",
        unit: "GB",
        source: Source::Process(|run, _| Some(run.peak_bytes()? as f64 / 1e9)),
        in_table: true,
        depends_on_speed: false,
        amount: Amount::Less,
        told: Some(Told { does: "needs", how: "less memory", brief: "less", most: "needs the least memory" }),
        ..PLAIN
    },
    Entry {
        metric: Metric::Startup,
        key: "startup",
        title: "Start-up (ms)",
        words: "start-up",
        source: Source::Process(|run, _| Some(ms(run.started()?.startup_ns?))),
        ..PLAIN
    },
    Entry {
        metric: Metric::SpawnToFirstToken,
        key: "spawn_to_first_token",
        title: "Spawn to First Token (ms)",
        words: "spawn to first token",
        source: Source::Process(|run, _| Some(ms(run.cold_start()?.since_spawn_ns?))),
        ..PLAIN
    },
    Entry {
        metric: Metric::FirstToken,
        key: "first_token",
        title: "Time to First Token (ms)",
        short_title: Some("First token (ms)"),
        words: "time to first token",
        source: Source::Samples(|samples| samples.median(|case| ms(case.first_token_ns))),
        place_of_prompt: Some(0),
        when_denoising: Denoising::Replaced(Metric::Total),
        ..PLAIN
    },
    Entry {
        metric: Metric::PrefillThroughput,
        key: "prefill_throughput",
        title: "Prefill Throughput (tok/s)",
        short_title: Some("Prefill (tok/s)"),
        words: "prefill throughput",
        unit: "tok/s",
        higher_is_better: true,
        source: Source::Samples(|samples| {
            let seconds = samples.cases.iter().map(|case| case.first_token_ns).sum::<u64>() as f64 / 1e9;
            (!samples.cases.is_empty()).then(|| samples.prompt_tokens as f64 / seconds)
        }),
        place_of_prompt: Some(3),
        told: Some(Told { does: "reads a prompt", how: "faster", brief: "faster", most: "is fastest" }),
        when_denoising: Denoising::Replaced(Metric::StepsPerSecond),
        ..PLAIN
    },
    Entry {
        metric: Metric::LatencyP50,
        key: "latency_p50",
        title: "Latency p50 (ms)",
        words: "latency p50",
        source: Source::Samples(|samples| gap(samples, 0.5)),
        when_denoising: Denoising::Never,
        ..PLAIN
    },
    Entry {
        metric: Metric::LatencyP90,
        key: "latency_p90",
        title: "Latency p90 (ms)",
        words: "latency p90",
        source: Source::Samples(|samples| gap(samples, 0.9)),
        when_denoising: Denoising::Never,
        ..PLAIN
    },
    Entry {
        metric: Metric::LatencyP99,
        key: "latency_p99",
        title: "Latency p99 (ms)",
        words: "latency p99",
        source: Source::Samples(|samples| gap(samples, 0.99)),
        when_denoising: Denoising::Never,
        ..PLAIN
    },
    Entry {
        metric: Metric::Total,
        key: "total",
        title: "Total Time (ms)",
        words: "total time",
        source: Source::Samples(|samples| samples.median(total_ms)),
        ..PLAIN
    },
    Entry {
        metric: Metric::PeakThroughput,
        key: "peak_throughput",
        title: "Peak Throughput (tok/s)",
        short_title: Some("Peak (tok/s)"),
        words: "peak throughput",
        unit: "tok/s",
        higher_is_better: true,
        source: Source::Samples(|samples| {
            let of_request = |case: &&CaseSample| decoded_a_second(&case.gaps_ns, samples.batch);
            samples.cases.iter().filter_map(of_request).reduce(f64::max)
        }),
        when_denoising: Denoising::Never,
        ..PLAIN
    },
    Entry {
        metric: Metric::Efficiency,
        key: "efficiency",
        title: "Efficiency (tok/s per GB)",
        short_title: Some("tok/s per GB"),
        words: "efficiency",
        unit: "tok/s per GB",
        higher_is_better: true,
        source: Source::Process(|run, work| {
            let throughput = Metric::Throughput.of_process(run, work)?;
            Some(throughput / Metric::PeakMemory.of_process(run, work)?).filter(|figure| figure.is_finite())
        }),
        when_denoising: Denoising::Never,
        ..PLAIN
    },
    Entry {
        metric: Metric::MemoryPerSequence,
        key: "memory_per_sequence",
        title: "Peak Memory per Sequence (MB)",
        short_title: Some("MB a sequence"),
        words: "peak memory per sequence",
        unit: "MB",
        source: Source::Process(|run, work| Some(run.peak_bytes()? as f64 / 1e6 / work.batch.max(1) as f64)),
        depends_on_speed: false,
        amount: Amount::Less,
        ..PLAIN
    },
    Entry {
        metric: Metric::StepTime,
        key: "step_time",
        title: "Time per Step (ms)",
        short_title: Some("Step (ms)"),
        words: "time per step",
        source: Source::Samples(|samples| Steps::new(samples).map(|steps| steps.ns / steps.count / 1e6)),
        when_denoising: Denoising::Alone,
        follows: Some(Metric::DenoisingThroughput),
        ..PLAIN
    },
    Entry {
        metric: Metric::DenoisingThroughput,
        key: "denoising_throughput",
        title: "Average Throughput (tok/s)",
        short_title: Some("Denoise (tok/s)"),
        words: "denoising throughput",
        unit: "tok/s",
        higher_is_better: true,
        source: Source::Samples(|samples| Steps::new(samples).map(|steps| steps.tokens / steps.ns * 1e9)),
        when_denoising: Denoising::Alone,
        told: Some(Told { does: "denoises", how: "faster", brief: "faster", most: "is fastest" }),
        ..PLAIN
    },
    Entry {
        metric: Metric::StepsPerSecond,
        key: "steps_per_second",
        title: "Steps (1/s)",
        words: "steps per second",
        unit: "1/s",
        higher_is_better: true,
        source: Source::Samples(|samples| Steps::new(samples).map(|steps| steps.count / steps.ns * 1e9)),
        when_denoising: Denoising::Alone,
        ..PLAIN
    },
    Entry {
        metric: Metric::SamplerShare,
        key: "sampler_share",
        title: "Sampler's Share (%)",
        words: "sampler's share",
        unit: "%",
        source: Source::Samples(|samples| {
            Steps::new(samples).map(|steps| steps.sampler_ns / steps.ns * 100.0)
        }),
        when_denoising: Denoising::Alone,
        ..PLAIN
    },
];

/// Tokens of all sequences together per second of decoding; `None` without gaps.
fn decoded_a_second(gaps_ns: &[u64], batch: usize) -> Option<f64> {
    let seconds = gaps_ns.iter().sum::<u64>() as f64 / 1e9;
    (!gaps_ns.is_empty()).then(|| (gaps_ns.len() * batch) as f64 / seconds)
}

fn ms(ns: u64) -> f64 {
    ns as f64 / 1e6
}

/// This quantile of the gaps, in milliseconds.
fn gap(samples: &Samples<'_>, share: f64) -> Option<f64> {
    quantile(&samples.gaps_ns().into_iter().map(ms).collect::<Vec<_>>(), share)
}

/// One request from its beginning to its last token, in milliseconds.
fn total_ms(case: &CaseSample) -> f64 {
    ms(case.first_token_ns + case.gaps_ns.iter().sum::<u64>())
}
