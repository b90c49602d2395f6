//! The one table of metrics. To add a metric, add a variant to [`Metric`] and its entry here, and define it in
//! `docs/reference/measures.md`; `UPDATE_SCHEMAS=1 cargo xtask test -p comparison` then adds it to the schemas. A
//! variant's comment is its definition there. Tables, charts, sentences, flags, CSV and JSON take names, units and
//! directions from here.

use super::Phrases;
use super::process::{Steps, decoded_a_second, padding};
use super::{
    ARRIVALS, AUDIO, CALLERS, GIVEN, GOODPUT, LATENCIES, MANY_TEXTS, PROMPTS, RUNS, SINGLE_TEXTS, SPEECH,
    STEPS, TEXTS, TOKENS,
};
use super::{Entry, Source};
use super::{a_second, goodput, kept_up, ms, real_time, run_ms, whole_s};
use crate::judge::metrics::Metric;

/// The usual values of an entry. An entry gives its metric, its source, and its own differences.
const fn entry(metric: Metric, source: Source) -> Entry {
    Entry {
        metric,
        source,
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

/// The words for differences: "a VERB", "a VERB COMPARATIVE than b", "a SUPERLATIVE", "a and b EQUAL".
const fn told(
    verb: &'static str,
    comparative: &'static str,
    superlative: &'static str,
    equal: &'static str,
) -> Option<Phrases> {
    Some(Phrases { verb, comparative, superlative, equal })
}

pub(super) const ENTRIES: &[Entry] = &[
    Entry {
        title: "Model Load (s)",
        short_title: Some("Load (s)"),
        words: "load",
        unit: "s",
        phrases: told("loads", "faster", "loads fastest", "load equally fast"),
        error_share: 0.05,
        ..entry(Metric::Load, Source::Reading(|run, _| Some(run.load_ns()? as f64 / 1e9)))
    },
    Entry {
        title: "Cold Start (ms)",
        short_title: Some("Cold start (ms)"),
        words: "cold start",
        phrases: told(
            "gives its first result after loading",
            "sooner",
            "gives its first result soonest after loading",
            "give their first result after loading equally soon",
        ),
        error_share: 0.05,
        ..entry(Metric::ColdStart, Source::Reading(|run, _| Some(ms(run.cold_start()?.marks_ns.first()))))
    },
    Entry {
        kinds: TOKENS,
        title: "First Token (ms)",
        words: "time to first token",
        error_share: 0.2,
        phrases: told(
            "returns the first token",
            "sooner",
            "returns the first token soonest",
            "return the first token equally soon",
        ),
        ..entry(Metric::FirstToken, Source::Mean(|request| Some(ms(request.sample.marks_ns.first()))))
    },
    Entry {
        kinds: TOKENS,
        title: "Steady-State Latency (ms)",
        short_title: Some("Latency (ms)"),
        words: "latency",
        ..entry(Metric::Latency, Source::Slices(|request| Some(request.mean_gap_ns()? / 1e6)))
    },
    Entry {
        kinds: TOKENS,
        title: "Average Throughput (tok/s)",
        short_title: Some("Decode (tok/s)"),
        words: "throughput",
        unit: "tok/s",
        higher_is_better: true,
        decides: true,
        phrases: told("decodes", "faster", "decodes fastest", "decode equally fast"),
        error_share: 0.5,
        ..entry(Metric::Throughput, Source::Slices(decoded_a_second))
    },
    Entry {
        title: "Whole Request (ms)",
        short_title: Some("Request (ms)"),
        words: "total time",
        error_share: 0.2,
        phrases: told(
            "completes whole requests",
            "sooner",
            "completes whole requests soonest",
            "complete whole requests equally soon",
        ),
        ..entry(Metric::Total, Source::Mean(|request| Some(ms(request.sample.marks_ns.end()))))
    },
    Entry {
        title: "Peak Memory (GB)",
        short_title: Some("Peak (GB)"),
        words: "peak memory",
        unit: "GB",
        depends_on_speed: false,
        phrases: told("needs", "less memory", "needs the least memory", "need equally much memory"),
        ..entry(Metric::PeakMemory, Source::Reading(|run, _| Some(run.peak_bytes()? as f64 / 1e9)))
    },
    Entry {
        title: "Start-up (ms)",
        words: "start-up",
        ..entry(Metric::Startup, Source::Reading(|run, _| Some(ms(run.started()?.startup_ns?))))
    },
    Entry {
        title: "Spawn to First Token (ms)",
        words: "spawn to first token",
        ..entry(
            Metric::SpawnToFirstToken,
            Source::Reading(|run, _| Some(ms(run.cold_start()?.since_spawn_ns?))),
        )
    },
    Entry {
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
        title: "First Answer (s)",
        words: "first answer",
        unit: "s",
        ..entry(
            Metric::FirstAnswer,
            Source::Reading(|run, _| whole_s(run, run.cold_start()?.since_spawn_ns?)),
        )
    },
    Entry {
        kinds: PROMPTS,
        title: "Prefill Throughput (tok/s)",
        short_title: Some("Prefill (tok/s)"),
        words: "prefill throughput",
        unit: "tok/s",
        higher_is_better: true,
        phrases: told("reads prompts", "faster", "reads prompts fastest", "read prompts equally fast"),
        ..entry(
            Metric::PrefillThroughput,
            Source::Mean(|request| {
                let seconds = request.sample.marks_ns.first() as f64 / 1e9;
                (seconds > 0.0).then(|| request.size.prompt_tokens as f64 / seconds)
            }),
        )
    },
    Entry {
        kinds: LATENCIES,
        title: "Latency p50 (ms)",
        words: "latency p50",
        ..entry(Metric::LatencyP50, Source::Percentile(0.5))
    },
    Entry {
        kinds: LATENCIES,
        title: "Latency p90 (ms)",
        words: "latency p90",
        ..entry(Metric::LatencyP90, Source::Percentile(0.9))
    },
    Entry {
        kinds: LATENCIES,
        title: "Latency p95 (ms)",
        words: "latency p95",
        ..entry(Metric::LatencyP95, Source::Percentile(0.95))
    },
    Entry {
        kinds: LATENCIES,
        title: "Latency p99 (ms)",
        words: "latency p99",
        ..entry(Metric::LatencyP99, Source::Pooled(0.99))
    },
    Entry {
        kinds: TOKENS,
        title: "Peak Throughput (tok/s)",
        short_title: Some("Peak (tok/s)"),
        words: "peak throughput",
        unit: "tok/s",
        higher_is_better: true,
        ..entry(Metric::PeakThroughput, Source::Peak(decoded_a_second))
    },
    Entry {
        kinds: TOKENS,
        title: "Efficiency (tok/s per GB)",
        short_title: Some("tok/s per GB"),
        words: "efficiency",
        unit: "tok/s per GB",
        higher_is_better: true,
        ..entry(Metric::Efficiency, Source::Quotient(Metric::Throughput, Metric::PeakMemory))
    },
    Entry {
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
        kinds: STEPS,
        title: "Average Throughput (tok/s)",
        short_title: Some("Denoise (tok/s)"),
        words: "denoising throughput",
        unit: "tok/s",
        higher_is_better: true,
        phrases: told("denoises", "faster", "denoises fastest", "denoise equally fast"),
        ..entry(
            Metric::DenoisingThroughput,
            Source::Slices(|request| Steps::new(request).map(|steps| steps.tokens / steps.ns * 1e9)),
        )
    },
    Entry {
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
        kinds: MANY_TEXTS,
        title: "Average Throughput (texts/s)",
        short_title: Some("Embed (texts/s)"),
        words: "embedding throughput",
        unit: "texts/s",
        higher_is_better: true,
        phrases: told("embeds batches", "faster", "embeds batches fastest", "embed batches equally fast"),
        ..entry(
            Metric::EncodingThroughput,
            Source::Mean(|request| {
                let several = request.size.batch > 1;
                several.then(|| a_second(request, request.size.batch)).flatten()
            }),
        )
    },
    Entry {
        kinds: SINGLE_TEXTS,
        title: "Time of a Single Text (ms)",
        short_title: Some("1 text (ms)"),
        words: "time of a single text",
        phrases: told(
            "embeds a single text",
            "sooner",
            "embeds a single text soonest",
            "embed a single text equally soon",
        ),
        ..entry(
            Metric::SingleText,
            Source::Mean(|request| (request.size.batch == 1).then(|| ms(request.sample.marks_ns.end()))),
        )
    },
    Entry {
        kinds: TEXTS,
        title: "Tokens without Padding (tok/s)",
        short_title: Some("Tokens (tok/s)"),
        words: "tokens per second",
        unit: "tok/s",
        higher_is_better: true,
        ..entry(Metric::EncodedTokens, Source::Mean(|request| a_second(request, request.size.prompt_tokens)))
    },
    Entry {
        kinds: TEXTS,
        title: "Padding (%)",
        words: "share of padding",
        unit: "%",
        depends_on_speed: false,
        ..entry(Metric::PaddingShare, Source::Mean(padding))
    },
    Entry {
        kinds: RUNS,
        title: "Time of a Run (ms)",
        short_title: Some("Run (ms)"),
        words: "time of a run",
        ..entry(Metric::RunTime, Source::Mean(run_ms))
    },
    Entry {
        kinds: RUNS,
        title: "Average Throughput (runs/s)",
        short_title: Some("Runs (1/s)"),
        words: "throughput of runs",
        unit: "runs/s",
        higher_is_better: true,
        phrases: told("runs it", "faster", "runs it fastest", "run it equally fast"),
        ..entry(
            Metric::RunThroughput,
            Source::Mean(|request| a_second(request, request.sample.marks_ns.len())),
        )
    },
    Entry {
        kinds: GIVEN,
        title: "Average Throughput (requests/s)",
        short_title: Some("Requests (1/s)"),
        words: "throughput of requests",
        unit: "requests/s",
        higher_is_better: true,
        phrases: told("serves callers", "faster", "serves callers fastest", "serve callers equally fast"),
        ..entry(
            Metric::RequestThroughput,
            Source::Mean(|request| a_second(request, request.sample.calls.len())),
        )
    },
    Entry {
        kinds: GOODPUT,
        title: "Goodput (requests/s)",
        words: "goodput",
        unit: "requests/s",
        higher_is_better: true,
        phrases: told(
            "answers in time",
            "more requests",
            "answers the most requests in time",
            "answer equally many requests in time",
        ),
        ..entry(Metric::Goodput, Source::Mean(goodput))
    },
    Entry {
        kinds: CALLERS,
        title: "Latency of a Request (ms)",
        short_title: Some("Latency (ms)"),
        words: "latency of a request",
        phrases: told("answers", "sooner", "answers soonest", "answer equally soon"),
        ..entry(Metric::CallLatency, Source::Mean(|request| request.mean_latency_ms()))
    },
    Entry {
        kinds: ARRIVALS,
        title: "Kept Up (%)",
        words: "share of the rate that it keeps up with",
        unit: "%",
        higher_is_better: true,
        ..entry(Metric::KeptUp, Source::Mean(kept_up))
    },
    Entry {
        kinds: AUDIO,
        title: "Real-Time Factor (s/s)",
        words: "real-time factor",
        unit: "s/s",
        phrases: told(
            "keeps pace with audio",
            "better",
            "keeps pace with audio best",
            "keep pace with audio equally well",
        ),
        ..entry(Metric::RealTimeFactor, Source::Mean(real_time))
    },
    Entry {
        kinds: SPEECH,
        title: "Encoder (ms)",
        words: "time to encode audio",
        ..entry(Metric::EncoderTime, Source::Mean(|request| Some(ms(request.sample.heard_ns?))))
    },
];
