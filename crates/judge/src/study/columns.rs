//! The columns of a sweep's table.

use super::cell::{Cell, CellRow};
use super::compiled::Compiled;
use super::scaling::Scaling;
use crate::metrics::Metric;
use crate::report::number;
use crate::report::work::memory::Part;
use plan::sweep::SweepKind;

/// The content of a column.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Column {
    Metric(Metric),
    /// Megabytes (10⁶ bytes).
    Memory(Part),
    /// Throughput ÷ throughput at the first value of the axis of batches or threads, and the efficiency: that ratio ÷
    /// the ratio of the values.
    Efficiency,
    Perplexity,
    Kl,
    Top1,
    /// Cosine of the vectors of texts with those in f32.
    MeanCosine,
    MinCosine,
    /// Share of the ten best documents in f32 that are found at this precision.
    Top10,
    KendallTau,
    /// Bytes of the weights as stored.
    WeightsSize,
    /// Extra time of cold start and warm-up over the same work later.
    FirstRuns,
    /// The part of it that disappears without the JIT.
    Compiling,
    /// Number of tokens from which on compiling pays.
    PaysFrom,
    SettledAt,
    /// The result of 5 tokens of warm-up and a test of 15, and of the same tokens in a steady process.
    ShortWarmup,
    ShortSteady,
    ShortError,
    /// New tokens of all sequences ÷ time of the request, for either way of generating.
    Tokens,
    Parity,
}

impl Column {
    /// The heading, with the unit.
    pub fn title(self) -> String {
        match self {
            Column::Metric(metric) => metric.short_title().to_owned(),
            Column::Memory(Part::Activations) => "Activations (MB)".into(),
            Column::Memory(part) => part.title().into(),
            Column::Efficiency => "Against the first".into(),
            Column::Perplexity => "Perplexity".into(),
            Column::Kl => "KL from f32".into(),
            Column::Top1 => "Top-1 of f32".into(),
            Column::MeanCosine => "Cosine with f32".into(),
            Column::MinCosine => "Least cosine".into(),
            Column::Top10 => "Top-10 of f32".into(),
            Column::KendallTau => "Kendall's τ".into(),
            Column::WeightsSize => "Weights (GB)".into(),
            Column::FirstRuns => "First runs (ms)".into(),
            Column::Compiling => "Compiling (ms)".into(),
            Column::PaysFrom => "Pays from".into(),
            Column::SettledAt => "Settled at".into(),
            Column::ShortWarmup => "Short warm-up says (tok/s)".into(),
            Column::ShortSteady => "Steady (tok/s)".into(),
            Column::ShortError => "Error".into(),
            Column::Tokens => "tok/s in all".into(),
            Column::Parity => "Parity".into(),
        }
    }

    /// The value for people; a dash if it is not available.
    pub fn text(self, cell: &Cell, row: &CellRow, scaling: &[Scaling]) -> String {
        let dash = || "–".to_owned();
        match self {
            Column::Parity => row.parity.clone(),
            Column::Efficiency => {
                let point = scaling.iter().find_map(|scaling| scaling.share(cell, &row.framework));
                point.map_or_else(dash, |(ratio, efficiency)| {
                    format!("{ratio:.2}x ({:.0} %)", efficiency * 100.0)
                })
            }
            Column::Kl => self.value(cell, row).map_or_else(dash, |kl| format!("{kl:.1e}")),
            Column::Top1 | Column::Top10 => {
                self.value(cell, row).map_or_else(dash, |share| format!("{:.1} %", 100.0 * share))
            }
            Column::MeanCosine | Column::MinCosine => {
                self.value(cell, row).map_or_else(dash, |cosine| format!("{cosine:.6}"))
            }
            Column::KendallTau => self.value(cell, row).map_or_else(dash, |tau| format!("{tau:.4}")),
            Column::SettledAt => self.value(cell, row).map_or_else(dash, |at| format!("iteration {at}")),
            Column::ShortError => {
                self.value(cell, row).map_or_else(dash, |error| format!("{:+.0} %", 100.0 * error))
            }
            Column::PaysFrom => match Compiled::new(cell, row) {
                None => dash(),
                Some(compiled) => {
                    compiled.pays_from().map_or("never".into(), |tokens| format!("{tokens} tokens"))
                }
            },
            Column::Memory(_) => {
                self.value(cell, row).map_or_else(dash, |megabytes| format!("{megabytes:.1}"))
            }
            _ => self.value(cell, row).map_or_else(dash, number),
        }
    }

    /// The value as a number; `None` if it is not one.
    pub fn value(self, cell: &Cell, row: &CellRow) -> Option<f64> {
        match self {
            Column::Metric(metric) => row.typical(metric),
            Column::Memory(part) => Some(part.bytes(row.memory.as_ref()?)? / 1e6),
            Column::Perplexity => Some(row.text?.text()?.perplexity),
            Column::Kl => row.text?.text()?.mean_kl,
            Column::Top1 => row.text?.text()?.top1,
            Column::MeanCosine => Some(row.text?.retrieval()?.mean_cosine),
            Column::MinCosine => Some(row.text?.retrieval()?.min_cosine),
            Column::Top10 => row.text?.retrieval()?.top10,
            Column::KendallTau => row.text?.retrieval()?.kendall_tau,
            Column::WeightsSize => Some(cell.weights_bytes? / 1e9),
            Column::FirstRuns => Some(row.steadiness.first_runs.as_ref()?.cost_ms),
            Column::Compiling => Some(Compiled::new(cell, row)?.compiling_ms),
            Column::PaysFrom => Some(Compiled::new(cell, row)?.pays_from()? as f64),
            Column::SettledAt => row.steadiness.settled_at.map(|at| at as f64),
            Column::ShortWarmup => Some(row.steadiness.short_warmup.as_ref()?.tokens_per_second),
            Column::ShortSteady => Some(row.steadiness.short_warmup.as_ref()?.steady_tokens_per_second),
            Column::ShortError => Some(row.steadiness.short_warmup.as_ref()?.error),
            Column::Tokens => {
                let tokens = row.tokens.as_ref()?;
                let count =
                    tokens.iter().flatten().map(Vec::len).sum::<usize>() as f64 / tokens.len().max(1) as f64;
                Some(count / row.typical(Metric::Total)? * 1e3)
            }
            Column::Efficiency | Column::Parity => None,
        }
    }

    /// For CSV.
    pub fn name(self) -> Option<String> {
        match self {
            Column::Metric(metric) => Some(metric.name().to_owned()),
            Column::Memory(part) => Some(format!("memory_{}_mb", format!("{part:?}").to_lowercase())),
            Column::Perplexity => Some("perplexity".into()),
            Column::Kl => Some("mean_kl".into()),
            Column::Top1 => Some("top1".into()),
            Column::MeanCosine => Some("mean_cosine".into()),
            Column::MinCosine => Some("min_cosine".into()),
            Column::Top10 => Some("top10".into()),
            Column::KendallTau => Some("kendall_tau".into()),
            Column::WeightsSize => Some("weights_gb".into()),
            Column::FirstRuns => Some("first_runs_cost_ms".into()),
            Column::Compiling => Some("compiling_ms".into()),
            Column::PaysFrom => Some("pays_from_tokens".into()),
            Column::SettledAt => Some("settled_at".into()),
            Column::ShortWarmup => Some("short_warmup_tokens_per_second".into()),
            Column::ShortSteady => Some("steady_tokens_per_second".into()),
            Column::ShortError => Some("short_warmup_error".into()),
            Column::Tokens => Some("tokens_per_second".into()),
            Column::Efficiency | Column::Parity => None,
        }
    }
}

/// The columns of a study of callers.
const SERVED: [Metric; 6] = [
    Metric::RequestThroughput,
    Metric::CallLatency,
    Metric::LatencyP50,
    Metric::LatencyP95,
    Metric::LatencyP99,
    Metric::PeakMemory,
];

/// The columns of a study of masked diffusion.
const DENOISED: [Column; 5] = [
    Column::Metric(Metric::StepTime),
    Column::Metric(Metric::Total),
    Column::Tokens,
    Column::Metric(Metric::SamplerShare),
    Column::Metric(Metric::PeakMemory),
];

/// The columns of a study of encoders. Batches of several texts have no time of a single one, and vice versa.
const ENCODED: [Metric; 6] = [
    Metric::EncodingThroughput,
    Metric::SingleText,
    Metric::EncodedTokens,
    Metric::PaddingShare,
    Metric::Load,
    Metric::PeakMemory,
];

/// The columns of a study of an encoder's precisions.
const ENCODED_PRECISIONS: [Column; 9] = [
    Column::Metric(Metric::EncodingThroughput),
    Column::Metric(Metric::SingleText),
    Column::Metric(Metric::Load),
    Column::Metric(Metric::PeakMemory),
    Column::Metric(Metric::Efficiency),
    Column::MeanCosine,
    Column::MinCosine,
    Column::Top10,
    Column::KendallTau,
];

/// The columns of figures, after those of the axes and the framework's. Models that continue texts have
/// others than encoders.
pub fn columns(kind: SweepKind, cells: &[Cell]) -> Vec<Column> {
    let mut rows = cells.iter().flat_map(|cell| &cell.rows);
    let encodes = rows.any(|row| row.metrics.contains_key(&Metric::EncodedTokens));
    let middle = match kind {
        SweepKind::Precision if encodes => ENCODED_PRECISIONS.to_vec(),
        SweepKind::Size if encodes => {
            [Column::WeightsSize].into_iter().chain(ENCODED.map(Column::Metric)).collect()
        }
        SweepKind::Forward => vec![
            Column::Metric(Metric::PrefillThroughput),
            Column::Metric(Metric::FirstToken),
            Column::Memory(Part::Activations),
            Column::Metric(Metric::PeakMemory),
            Column::Efficiency,
        ],
        SweepKind::Generate => vec![
            Column::Metric(Metric::FirstToken),
            Column::Metric(Metric::PrefillThroughput),
            Column::Metric(Metric::Latency),
            Column::Metric(Metric::Throughput),
            Column::Metric(Metric::PeakMemory),
            Column::Efficiency,
        ],
        SweepKind::Warmup => vec![
            Column::Metric(Metric::ColdStart),
            Column::FirstRuns,
            Column::SettledAt,
            Column::Metric(Metric::Latency),
            Column::Compiling,
            Column::PaysFrom,
            Column::ShortWarmup,
            Column::ShortError,
        ],
        SweepKind::ShortWarmup => {
            vec![
                Column::ShortWarmup,
                Column::ShortSteady,
                Column::ShortError,
                Column::Metric(Metric::Throughput),
            ]
        }
        SweepKind::Memory => Part::ALL.map(Column::Memory).to_vec(),
        SweepKind::Precision => vec![
            Column::Metric(Metric::Load),
            Column::Metric(Metric::PrefillThroughput),
            Column::Metric(Metric::Throughput),
            Column::Metric(Metric::PeakMemory),
            Column::Metric(Metric::Efficiency),
            Column::Perplexity,
            Column::Kl,
            Column::Top1,
        ],
        SweepKind::Denoise => DENOISED.to_vec(),
        SweepKind::Embed => ENCODED.map(Column::Metric).to_vec(),
        SweepKind::Callers => SERVED.map(Column::Metric).to_vec(),
        SweepKind::Size => vec![
            Column::WeightsSize,
            Column::Metric(Metric::Load),
            Column::Metric(Metric::FirstToken),
            Column::Metric(Metric::Throughput),
            Column::Metric(Metric::PeakMemory),
        ],
    };
    middle.into_iter().chain([Column::Parity]).collect()
}
