//! Figures of one contender: of its row in a cell, or along an axis.

use facts::text::QualityScore;
use judge::Metric;
use judge::report::work::memory;
use judge::study::compiled::Compiled;
use judge::study::{Cell, CellRow, StudyReport};
use plan::{Axis, Settings};
use serde::Deserialize;

use crate::cells::{quiet, row};
use crate::found::{Found, Interval, Outcome};

/// A figure of a growth along an axis.
#[derive(Debug, Clone, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Growth {
    /// k of `figure ∝ valueᵏ`.
    Exponent,
    /// Ratio of the figure at this value to that at the first.
    Ratio(f64),
    /// That ratio ÷ the ratio of the values.
    Efficiency(f64),
}

/// A figure of a benchmark with too short a warm-up.
#[derive(Debug, Clone, Copy, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Short {
    /// Tokens per second that the script would have reported.
    Reported,
    /// Tokens per second at the same places in steady processes.
    Steady,
    /// The first ÷ the second.
    Share,
    /// The second ÷ the first.
    Understated,
}

/// A figure of compiling.
#[derive(Debug, Clone, Copy, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Compiling {
    /// Time that it takes once, in seconds.
    Cost,
    /// Tokens after which that is gained back.
    PaysFrom,
}

/// A figure of a prompt's first time.
#[derive(Debug, Clone, Copy, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum NewPrompt {
    /// Time to first token of the first request, and of later ones, in milliseconds.
    First,
    Later,
    /// The extra time of the first, in seconds.
    Cost,
    /// First ÷ later.
    Ratio,
}

/// A part of the memory.
#[derive(Debug, Clone, Copy, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Part {
    Framework,
    Parameters,
    /// Keys and values as allocated, and as the shapes predict.
    KvCache,
    KvCachePredicted,
    Activations,
    Remainder,
    Peak,
    /// Parameters and KV cache.
    Needed,
}

/// A metric with the range over processes.
pub(crate) fn figure(cell: &Cell, framework: &str, metric: Metric) -> Outcome {
    let row = row(cell, framework)?;
    if metric.depends_on_speed() {
        quiet(cell)?;
    }
    let absent = || format!("{framework} has no {}", metric.words());
    let value = row.typical(metric).ok_or_else(absent)?;
    let figure = row.metrics.get(&metric).ok_or_else(absent)?;
    // The figure is a mean over blocks, the range one of medians: with few processes it may be outside of them.
    let bounds = (figure.min.min(value), figure.max.max(value));
    let interval = Interval { bounds, is_confidence: false };
    Ok(Found { value, interval: Some(interval) })
}

/// One figure ÷ another, with everything that the ranges of both allow.
pub(crate) fn quotient(first: Found, second: Found) -> Found {
    let bounds = first.interval.zip(second.interval);
    let interval = bounds.map(|(Interval { bounds: (low, high), .. }, second)| Interval {
        bounds: (low / second.bounds.1, high / second.bounds.0),
        is_confidence: false,
    });
    Found { value: first.value / second.value, interval }
}

pub(crate) fn scaling(
    report: &StudyReport,
    framework: &str,
    axis: Axis,
    of: &Growth,
    at: &Settings,
) -> Outcome {
    for cell in &report.cells {
        if at.iter().all(|(axis, value)| cell.settings.get(axis) == Some(value)) && cell.refused.is_none() {
            quiet(cell)?;
            row(cell, framework)?;
        }
    }
    let is_meant = |found: &&judge::study::scaling::Scaling| {
        let is_at = at.iter().all(|(axis, value)| found.at.get(axis) == Some(value));
        found.framework == framework && found.axis == axis && is_at
    };
    let mut found = report.scaling.iter().filter(is_meant);
    let absent = || format!("{framework} has no growth along {}", axis.title().to_lowercase());
    let scaling = found.next().ok_or_else(absent)?;
    if found.next().is_some() {
        return Err(format!(
            "{framework} has several growths along {}: the claim must say which",
            axis.title()
        ));
    }
    let point = |at: f64| scaling.points.iter().find(|point| point.value == at);
    let value = match *of {
        Growth::Exponent => scaling.exponent,
        Growth::Ratio(at) => point(at).map(|point| point.ratio),
        Growth::Efficiency(at) => point(at).and_then(|point| point.efficiency),
    };
    value.map(Found::alone).ok_or_else(absent)
}

pub(crate) fn short_warmup(row: &CellRow, of: Short) -> Outcome {
    let short = row.steadiness.short_warmup.as_ref();
    let short = short.ok_or_else(|| format!("{} generated too few tokens for it", row.framework))?;
    Ok(Found::alone(match of {
        Short::Reported => short.tokens_per_second,
        Short::Steady => short.steady_tokens_per_second,
        Short::Share => 1.0 + short.error,
        Short::Understated => 1.0 / (1.0 + short.error),
    }))
}

pub(crate) fn iteration(row: &CellRow, number: usize) -> Outcome {
    let point = row.steadiness.curve.iter().find(|point| point.iteration == number);
    let ratio = point.and_then(|point| point.ratio);
    ratio.map(Found::alone).ok_or_else(|| format!("{} has no iteration {number}", row.framework))
}

pub(crate) fn compiling(cell: &Cell, row: &CellRow, of: Compiling) -> Outcome {
    let absent = || format!("{} was not measured without its JIT as well", row.framework);
    let compiled = Compiled::new(cell, row).ok_or_else(absent)?;
    match of {
        Compiling::Cost => Ok(Found::alone(compiled.compiling_ms / 1e3)),
        Compiling::PaysFrom => match compiled.pays_from() {
            Some(tokens) => Ok(Found::alone(tokens as f64)),
            None => Err("it gains nothing by a token, so it never pays".into()),
        },
    }
}

pub(crate) fn new_prompt(row: &CellRow, tokens: usize, of: NewPrompt) -> Outcome {
    let prompts = row.steadiness.first_runs.iter().flat_map(|runs| &runs.prompts);
    let mut meant = prompts.filter(|prompt| prompt.tokens == tokens);
    let absent = || format!("{} has no prompt of {tokens} tokens", row.framework);
    let prompt = meant.next().ok_or_else(absent)?;
    Ok(Found::alone(match of {
        NewPrompt::First => prompt.first_ms,
        NewPrompt::Later => prompt.steady_ms,
        NewPrompt::Cost => (prompt.first_ms - prompt.steady_ms) / 1e3,
        NewPrompt::Ratio => prompt.first_ms / prompt.steady_ms,
    }))
}

pub(crate) fn memory(row: &CellRow, part: Part) -> Outcome {
    let parts = row.memory.as_ref().ok_or_else(|| format!("{} has no memory by part", row.framework))?;
    let bytes = match part {
        Part::Framework => Some(parts.framework),
        Part::Parameters => Some(parts.parameters),
        Part::KvCache => memory::Part::KvCacheObserved.bytes(parts),
        Part::KvCachePredicted => Some(parts.predicted_cache()),
        Part::Activations => Some(parts.activations),
        Part::Remainder => Some(parts.remainder),
        Part::Peak => Some(parts.peak),
        Part::Needed => Some(parts.needed),
    };
    bytes
        .map(Found::alone)
        .ok_or_else(|| format!("{} does not report the size of its KV cache", row.framework))
}

pub(crate) fn perplexity(row: &CellRow) -> Outcome {
    let text = row
        .text
        .and_then(QualityScore::text)
        .ok_or_else(|| format!("{} was not scored on the text", row.framework))?;
    Ok(Found::alone(text.perplexity))
}

#[cfg(test)]
mod tests {
    use judge::report::State;
    use judge::study::cell::Figure;

    use super::*;
    use crate::testing::{cell, row};

    fn measured(typical: f64, min: f64, max: f64) -> Cell {
        let mut cell = cell(&[]);
        let mut row = row("x");
        let figure = Figure { typical: Some(typical), median: typical, min, max };
        row.metrics.insert(Metric::Throughput, figure);
        row.metrics.insert(Metric::PeakMemory, figure);
        cell.rows.push(row);
        cell
    }

    #[test]
    fn a_figure_comes_with_the_range_over_processes() {
        let found = figure(&measured(10.0, 8.0, 12.0), "x", Metric::Throughput).unwrap();
        assert_eq!(found.value, 10.0);
        assert_eq!(found.interval, Some(Interval { bounds: (8.0, 12.0), is_confidence: false }));
        let half = quotient(found, found);
        assert_eq!(half.interval.unwrap().bounds, (8.0 / 12.0, 12.0 / 8.0));
    }

    #[test]
    fn a_range_holds_its_figure() {
        let found = figure(&measured(10.0, 11.0, 12.0), "x", Metric::Throughput).unwrap();
        assert_eq!(found.interval.unwrap().bounds, (10.0, 12.0));
    }

    #[test]
    fn noise_hides_speed_and_not_memory() {
        let mut noisy = measured(10.0, 8.0, 12.0);
        noisy.exit_code = 3;
        assert!(figure(&noisy, "x", Metric::Throughput).unwrap_err().contains("noisy"));
        assert!(figure(&noisy, "x", Metric::PeakMemory).is_ok());
    }

    #[test]
    fn a_contender_that_was_struck_gives_its_reason() {
        let mut struck = measured(10.0, 8.0, 12.0);
        struck.rows[0].state = State::Struck;
        struck.rows[0].reasons = vec!["R5: too many threads".to_owned().into()];
        let reason = figure(&struck, "x", Metric::Throughput).unwrap_err();
        assert_eq!(reason, "x is struck: R5: too many threads");
    }
}
