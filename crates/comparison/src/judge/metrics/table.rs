//! The one table of metrics. To add a metric, add a variant to [`Metric`] and its entry here, and define it in
//! `docs/reference/measures.md`; `UPDATE_SCHEMAS=1 cargo xtask test -p comparison` then adds it to the schemas. A variant's
//! comment is its definition there. Tables, charts, sentences, flags, CSV and JSON take names, units and directions
//! from here.

use super::Phrases;
use super::process::{Steps, decoded_a_second, padding};
use super::{
    ARRIVALS, CALLERS, GIVEN, GOODPUT, LATENCIES, MANY_TEXTS, RUNS, SINGLE_TEXTS, STEPS, TEXTS, TOKENS,
};
use super::{Entry, Source};
use super::{a_second, goodput, kept_up, ms, whole_s};
use crate::judge::metrics::Metric;

/// The usual values of an entry. An entry gives its metric, its source, and its own differences.
const fn entry(metric: Metric, source: Source) -> Entry {
    Entry {
        metric,
        source,
        key: "",
        kinds: &[],
        title: "",
        short_title: None,
        words: "",
        unit: "ms",
        higher_is_better: false,
        error_share: 0.0,
        decides: false,
        depends_on_speed: true,
        phrases: None,
    }
}

pub(super) const ENTRIES: &[Entry] = &[
    Entry {
        key: "load",
        title: "Model Load (s)",
        short_title: Some("Load (s)"),
        words: "load",
        unit: "s",
        phrases: Some(Phrases {
            verb: "loads",
            comparative: "faster",
            superlative: "loads fastest",
            equal: "load equally fast",
        }),
        error_share: 0.05,
        ..entry(Metric::Load, Source::Reading(|run, _| Some(run.load_ns()? as f64 / 1e9)))
    },
    Entry {
        key: "cold_start",
        title: "Cold Start (ms)",
        short_title: Some("Cold start (ms)"),
        words: "cold start",
        phrases: Some(Phrases {
            verb: "gives its first result after loading",
            comparative: "sooner",
            superlative: "gives its first result soonest after loading",
            equal: "give their first result after loading equally soon",
        }),
        error_share: 0.05,
        ..entry(Metric::ColdStart, Source::Reading(|run, _| Some(ms(run.cold_start()?.marks_ns.first()))))
    },
    Entry {
        key: "first_token",
        kinds: TOKENS,
        title: "First Token (ms)",
        words: "time to first token",
        error_share: 0.2,
        phrases: Some(Phrases {
            verb: "returns the first token",
            comparative: "sooner",
            superlative: "returns the first token soonest",
            equal: "return the first token equally soon",
        }),
        ..entry(Metric::FirstToken, Source::Mean(|request| Some(ms(request.sample.marks_ns.first()))))
    },
    Entry {
        key: "latency",
        kinds: TOKENS,
        title: "Steady-State Latency (ms)",
        short_title: Some("Latency (ms)"),
        words: "latency",
        ..entry(Metric::Latency, Source::Slices(|request| Some(request.mean_gap_ns()? / 1e6)))
    },
    Entry {
        key: "throughput",
        kinds: TOKENS,
        title: "Average Throughput (tok/s)",
        short_title: Some("Decode (tok/s)"),
        words: "throughput",
        unit: "tok/s",
        higher_is_better: true,
        decides: true,
        phrases: Some(Phrases {
            verb: "decodes",
            comparative: "faster",
            superlative: "decodes fastest",
            equal: "decode equally fast",
        }),
        error_share: 0.5,
        ..entry(Metric::Throughput, Source::Slices(decoded_a_second))
    },
    Entry {
        key: "total",
        title: "Whole Request (ms)",
        short_title: Some("Request (ms)"),
        words: "total time",
        error_share: 0.2,
        phrases: Some(Phrases {
            verb: "completes whole requests",
            comparative: "sooner",
            superlative: "completes whole requests soonest",
            equal: "complete whole requests equally soon",
        }),
        ..entry(Metric::Total, Source::Mean(|request| Some(ms(request.sample.marks_ns.end()))))
    },
    Entry {
        key: "peak_memory",
        title: "Peak Memory (GB)",
        short_title: Some("Peak (GB)"),
        words: "peak memory",
        unit: "GB",
        depends_on_speed: false,
        phrases: Some(Phrases {
            verb: "needs",
            comparative: "less memory",
            superlative: "needs the least memory",
            equal: "need equally much memory",
        }),
        ..entry(Metric::PeakMemory, Source::Reading(|run, _| Some(run.peak_bytes()? as f64 / 1e9)))
    },
    Entry {
        key: "startup",
        title: "Start-up (ms)",
        words: "start-up",
        ..entry(Metric::Startup, Source::Reading(|run, _| Some(ms(run.started()?.startup_ns?))))
    },
    Entry {
        key: "spawn_to_first_token",
        title: "Spawn to First Token (ms)",
        words: "spawn to first token",
        ..entry(
            Metric::SpawnToFirstToken,
            Source::Reading(|run, _| Some(ms(run.cold_start()?.since_spawn_ns?))),
        )
    },
    Entry {
        key: "first_request",
        title: "First Request (s)",
        words: "first request",
        unit: "s",
        ..entry(
            Metric::FirstRequest,
            Source::Reading(|run, _| {
                let cold = run.cold_start()?;
                whole_s(run, cold.marks_ns.first())
            }),
        )
    },
    Entry {
        key: "first_answer",
        title: "First Answer (s)",
        words: "first answer",
        unit: "s",
        ..entry(
            Metric::FirstAnswer,
            Source::Reading(|run, _| whole_s(run, run.cold_start()?.since_spawn_ns?)),
        )
    },
    Entry {
        key: "prefill_throughput",
        kinds: TOKENS,
        title: "Prefill Throughput (tok/s)",
        short_title: Some("Prefill (tok/s)"),
        words: "prefill throughput",
        unit: "tok/s",
        higher_is_better: true,
        phrases: Some(Phrases {
            verb: "reads prompts",
            comparative: "faster",
            superlative: "reads prompts fastest",
            equal: "read prompts equally fast",
        }),
        ..entry(
            Metric::PrefillThroughput,
            Source::Mean(|request| {
                let seconds = request.sample.marks_ns.first() as f64 / 1e9;
                (seconds > 0.0).then(|| request.size.prompt_tokens as f64 / seconds)
            }),
        )
    },
    Entry {
        key: "latency_p50",
        kinds: LATENCIES,
        title: "Latency p50 (ms)",
        words: "latency p50",
        ..entry(Metric::LatencyP50, Source::Percentile(0.5))
    },
    Entry {
        key: "latency_p90",
        kinds: LATENCIES,
        title: "Latency p90 (ms)",
        words: "latency p90",
        ..entry(Metric::LatencyP90, Source::Percentile(0.9))
    },
    Entry {
        key: "latency_p95",
        kinds: LATENCIES,
        title: "Latency p95 (ms)",
        words: "latency p95",
        ..entry(Metric::LatencyP95, Source::Percentile(0.95))
    },
    Entry {
        key: "latency_p99",
        kinds: LATENCIES,
        title: "Latency p99 (ms)",
        words: "latency p99",
        ..entry(Metric::LatencyP99, Source::Pooled(0.99))
    },
    Entry {
        key: "peak_throughput",
        kinds: TOKENS,
        title: "Peak Throughput (tok/s)",
        short_title: Some("Peak (tok/s)"),
        words: "peak throughput",
        unit: "tok/s",
        higher_is_better: true,
        ..entry(Metric::PeakThroughput, Source::Peak(decoded_a_second))
    },
    Entry {
        key: "efficiency",
        kinds: TOKENS,
        title: "Efficiency (tok/s per GB)",
        short_title: Some("tok/s per GB"),
        words: "efficiency",
        unit: "tok/s per GB",
        higher_is_better: true,
        ..entry(Metric::Efficiency, Source::Quotient(Metric::Throughput, Metric::PeakMemory))
    },
    Entry {
        key: "memory_per_sequence",
        title: "Peak Memory per Sequence (MB)",
        short_title: Some("MB a sequence"),
        words: "peak memory per sequence",
        unit: "MB",
        depends_on_speed: false,
        ..entry(
            Metric::MemoryPerSequence,
            Source::Reading(|run, size| Some(run.peak_bytes()? as f64 / 1e6 / size.batch.max(1) as f64)),
        )
    },
    Entry {
        key: "step_time",
        kinds: STEPS,
        title: "Time per Step (ms)",
        short_title: Some("Step (ms)"),
        words: "time per step",
        ..entry(
            Metric::StepTime,
            Source::Slices(|request| Steps::new(request).map(|steps| steps.ns / steps.count / 1e6)),
        )
    },
    Entry {
        key: "denoising_throughput",
        kinds: STEPS,
        title: "Average Throughput (tok/s)",
        short_title: Some("Denoise (tok/s)"),
        words: "denoising throughput",
        unit: "tok/s",
        higher_is_better: true,
        phrases: Some(Steps::TOLD),
        ..entry(
            Metric::DenoisingThroughput,
            Source::Slices(|request| Steps::new(request).map(|steps| steps.tokens / steps.ns * 1e9)),
        )
    },
    Entry {
        key: "steps_per_second",
        kinds: STEPS,
        title: "Steps (1/s)",
        words: "steps per second",
        unit: "1/s",
        higher_is_better: true,
        ..entry(
            Metric::StepsPerSecond,
            Source::Slices(|request| Steps::new(request).map(|steps| steps.count / steps.ns * 1e9)),
        )
    },
    Entry {
        key: "sampler_share",
        kinds: STEPS,
        title: "Sampler's Share (%)",
        words: "sampler's share",
        unit: "%",
        ..entry(
            Metric::SamplerShare,
            Source::Slices(|request| Steps::new(request).map(|steps| steps.sampler_ns / steps.ns * 100.0)),
        )
    },
    Entry {
        key: "encoding_throughput",
        kinds: MANY_TEXTS,
        title: "Average Throughput (texts/s)",
        short_title: Some("Embed (texts/s)"),
        words: "embedding throughput",
        unit: "texts/s",
        higher_is_better: true,
        phrases: Some(Phrases {
            verb: "embeds batches",
            comparative: "faster",
            superlative: "embeds batches fastest",
            equal: "embed batches equally fast",
        }),
        ..entry(
            Metric::EncodingThroughput,
            Source::Mean(|request| {
                let several = request.size.batch > 1;
                several.then(|| a_second(request, request.size.batch)).flatten()
            }),
        )
    },
    Entry {
        key: "single_text",
        kinds: SINGLE_TEXTS,
        title: "Time of a Single Text (ms)",
        short_title: Some("1 text (ms)"),
        words: "time of a single text",
        phrases: Some(Phrases {
            verb: "embeds a single text",
            comparative: "sooner",
            superlative: "embeds a single text soonest",
            equal: "embed a single text equally soon",
        }),
        ..entry(
            Metric::SingleText,
            Source::Mean(|request| (request.size.batch == 1).then(|| ms(request.sample.marks_ns.end()))),
        )
    },
    Entry {
        key: "encoded_tokens",
        kinds: TEXTS,
        title: "Tokens without Padding (tok/s)",
        short_title: Some("Tokens (tok/s)"),
        words: "tokens per second",
        unit: "tok/s",
        higher_is_better: true,
        ..entry(Metric::EncodedTokens, Source::Mean(|request| a_second(request, request.size.prompt_tokens)))
    },
    Entry {
        key: "padding_share",
        kinds: TEXTS,
        title: "Padding (%)",
        words: "share of padding",
        unit: "%",
        depends_on_speed: false,
        ..entry(Metric::PaddingShare, Source::Mean(padding))
    },
    Entry {
        key: "run_time",
        kinds: RUNS,
        title: "Time of a Run (ms)",
        short_title: Some("Run (ms)"),
        words: "time of a run",
        ..entry(Metric::RunTime, Source::Mean(|request| Some(ms(request.sample.marks_ns.end()))))
    },
    Entry {
        key: "run_throughput",
        kinds: RUNS,
        title: "Average Throughput (runs/s)",
        short_title: Some("Runs (1/s)"),
        words: "throughput of runs",
        unit: "runs/s",
        higher_is_better: true,
        phrases: Some(Phrases {
            verb: "runs it",
            comparative: "faster",
            superlative: "runs it fastest",
            equal: "run it equally fast",
        }),
        ..entry(Metric::RunThroughput, Source::Mean(|request| a_second(request, 1)))
    },
    Entry {
        key: "request_throughput",
        kinds: GIVEN,
        title: "Average Throughput (requests/s)",
        short_title: Some("Requests (1/s)"),
        words: "throughput of requests",
        unit: "requests/s",
        higher_is_better: true,
        phrases: Some(Phrases {
            verb: "serves callers",
            comparative: "faster",
            superlative: "serves callers fastest",
            equal: "serve callers equally fast",
        }),
        ..entry(
            Metric::RequestThroughput,
            Source::Mean(|request| a_second(request, request.sample.calls.len())),
        )
    },
    Entry {
        key: "goodput",
        kinds: GOODPUT,
        title: "Goodput (requests/s)",
        words: "goodput",
        unit: "requests/s",
        higher_is_better: true,
        phrases: Some(Phrases {
            verb: "answers in time",
            comparative: "more requests",
            superlative: "answers the most requests in time",
            equal: "answer equally many requests in time",
        }),
        ..entry(Metric::Goodput, Source::Mean(goodput))
    },
    Entry {
        key: "call_latency",
        kinds: CALLERS,
        title: "Latency of a Request (ms)",
        short_title: Some("Latency (ms)"),
        words: "latency of a request",
        phrases: Some(Phrases {
            verb: "answers",
            comparative: "sooner",
            superlative: "answers soonest",
            equal: "answer equally soon",
        }),
        ..entry(Metric::CallLatency, Source::Mean(|request| request.mean_latency_ms()))
    },
    Entry {
        key: "kept_up",
        kinds: ARRIVALS,
        title: "Kept Up (%)",
        words: "share of the rate that it keeps up with",
        unit: "%",
        higher_is_better: true,
        ..entry(Metric::KeptUp, Source::Mean(kept_up))
    },
];
