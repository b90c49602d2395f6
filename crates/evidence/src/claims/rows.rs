//! Figures of one contender: of its row in a cell, or along an axis.

use comparison::facts::agreement::QualityScore;
use comparison::judge::report::memory;
use comparison::judge::report::verdicts::Verdict;
use comparison::judge::study::{Cell, CellRow, Compiled, StudyReport};
use comparison::judge::{self, Metric};
use comparison::plan::{Axis, Setting, Settings};
use serde::Deserialize;
use statistics::MIN_ROUNDS;

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
    let is_meant = |found: &&judge::study::columns::Scaling| {
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

// The cells of a study and their contenders, or the reason why there is nothing to read.

/// The cell at a place, if it was measured.
pub(crate) fn cell<'a>(report: &'a StudyReport, at: &Settings) -> Result<&'a Cell, String> {
    let is_there = |cell: &&Cell| at.iter().all(|(axis, value)| cell.settings.get(axis) == Some(value));
    let place = || match place(at) {
        place if place.is_empty() => "the study".to_owned(),
        place => place,
    };
    let mut found = report.cells.iter().filter(is_there);
    let cell = found.next().ok_or_else(|| format!("{} was not measured", place()))?;
    if found.next().is_some() {
        return Err(format!("{} has several cells: the claim must say which", place()));
    }
    match &cell.refused {
        Some(reason) => Err(format!("{}: {reason}", place())),
        None => Ok(cell),
    }
}

/// A contender with figures, in a cell of a machine that was quiet.
pub(crate) fn quiet_row<'a>(
    report: &'a StudyReport,
    at: &Settings,
    framework: &str,
) -> Result<(&'a Cell, &'a CellRow), String> {
    let cell = cell(report, at)?;
    let row = row(cell, framework)?;
    quiet(cell)?;
    Ok((cell, row))
}

/// A contender that takes part in verdicts.
pub(crate) fn row<'a>(cell: &'a Cell, framework: &str) -> Result<&'a CellRow, String> {
    let row = cell.rows.iter().find(|row| row.framework == framework);
    let row = row.ok_or_else(|| format!("{framework} was not measured"))?;
    if row.state.takes_part() {
        return Ok(row);
    }
    let reason = row.reasons.first().map_or_else(String::new, |reason| format!(": {reason}"));
    Err(format!("{framework} is {}{reason}", row.state.words()))
}

pub(crate) fn quiet(cell: &Cell) -> Result<(), String> {
    if cell.is_noisy() { Err("the machine was too noisy for a verdict on speed".into()) } else { Ok(()) }
}

/// "new tokens 15, int8".
pub(crate) fn place(at: &Settings) -> String {
    let told = at.iter().map(|(axis, value)| match value {
        Setting::Name(name) => name.clone(),
        Setting::Number(number) => format!("{} {number}", axis.title().to_lowercase()),
    });
    told.collect::<Vec<_>>().join(", ")
}

// Figures of two contenders, from the verdict on the pair.

/// How many times better `a` is than `b`, with its 95 % interval.
pub(crate) fn advantage(cell: &Cell, a: &str, b: &str, metric: Metric) -> Outcome {
    // If a contender has no figures, its reason is returned first.
    row(cell, a)?;
    row(cell, b)?;
    let is_pair = |x: &str, y: &str| (x == a && y == b) || (x == b && y == a);
    let found = cell.verdicts.iter().find(|found| found.metric == metric && is_pair(&found.a, &found.b));
    let found = found.ok_or_else(|| format!("there is no verdict on {} of {a} and {b}", metric.words()))?;
    if found.verdict == Verdict::NotMeasurable {
        return Err(format!("the machine was too noisy for a verdict on {}", metric.words()));
    }
    let (Some(advantage), Some(bounds)) = (found.advantage, found.interval) else {
        return Err(match cell.rounds {
            rounds if rounds < MIN_ROUNDS => {
                format!("too few rounds: {rounds}, and an interval takes {MIN_ROUNDS}")
            }
            _ => format!("there is no interval of {}", metric.words()),
        });
    };
    let better = Found { value: advantage, interval: Some(Interval { bounds, is_confidence: true }) };
    Ok(if found.a == a { better } else { better.map(|times| 1.0 / times) })
}

/// One advantage ÷ another of other rounds: their errors on the logarithmic scale are independent, so their squares add
/// up.
pub(crate) fn pairs_quotient(large: Found, small: Found) -> Found {
    let half = |found: Found| {
        let (low, high) = found.interval?.bounds;
        Some((high.ln() - low.ln()) / 2.0)
    };
    let value = large.value / small.value;
    let interval = half(large).zip(half(small)).map(|(large, small)| {
        let factor = large.hypot(small).exp();
        Interval { bounds: (value / factor, value * factor), is_confidence: true }
    });
    Found { value, interval }
}

// A figure that was read, and how far it may be off.

/// A figure that was found, in the unit of its reader.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Found {
    pub value: f64,
    pub interval: Option<Interval>,
}

/// Bounds of a figure.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Interval {
    pub bounds: (f64, f64),
    /// A 95 % interval; else the least and largest of the processes.
    pub is_confidence: bool,
}

/// A figure, or the reason why there is none.
pub(crate) type Outcome = Result<Found, String>;

impl Found {
    pub(crate) fn alone(value: f64) -> Found {
        Found { value, interval: None }
    }

    /// The same seen through a falling or rising function.
    pub(crate) fn map(self, function: impl Fn(f64) -> f64) -> Found {
        let interval = self.interval.map(|Interval { bounds: (low, high), is_confidence }| {
            let (low, high) = (function(low), function(high));
            Interval { bounds: (low.min(high), low.max(high)), is_confidence }
        });
        Found { value: function(self.value), interval }
    }
}

// Numbers in prose.

/// The numbers of a text: 16.32, 1,024. A point or comma that no digit follows is punctuation.
pub(crate) fn numbers(text: &str) -> Vec<f64> {
    let is_part = |c: char| c.is_ascii_digit() || c == '.' || c == ',';
    let words = text.split(|c: char| !is_part(c)).map(|word| word.trim_matches(['.', ',']));
    words.filter_map(|word| word.replace(',', "").parse().ok()).collect()
}

/// Whether a number is among these, but for the rounding of its unit.
pub(crate) fn has(numbers: &[f64], number: f64) -> bool {
    numbers.iter().any(|found| (found - number).abs() <= 1e-9 * number.abs())
}

#[cfg(test)]
mod tests {
    use crate::claims::testing::{cell, row};
    use comparison::judge::report::State;
    use comparison::judge::report::verdicts::Comparison;
    use comparison::judge::study::Figure;

    use super::*;

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

    fn pair(verdict: Verdict, interval: Option<(f64, f64)>) -> Cell {
        let mut cell = cell(&[]);
        cell.rows = vec![row("fast"), row("slow")];
        cell.verdicts.push(Comparison {
            metric: Metric::Throughput,
            a: "fast".into(),
            b: "slow".into(),
            verdict,
            reason: None,
            advantage: Some(4.0),
            interval,
            statistics: None,
        });
        cell
    }

    #[test]
    fn an_advantage_is_turned_to_the_contender_that_is_asked_for() {
        let cell = pair(Verdict::Faster, Some((2.0, 8.0)));
        let found = advantage(&cell, "fast", "slow", Metric::Throughput).unwrap();
        assert_eq!((found.value, found.interval.unwrap().bounds), (4.0, (2.0, 8.0)));
        let turned = advantage(&cell, "slow", "fast", Metric::Throughput).unwrap();
        assert_eq!((turned.value, turned.interval.unwrap().bounds), (0.25, (0.125, 0.5)));
    }

    #[test]
    fn what_has_no_interval_says_why() {
        let mut few = pair(Verdict::Inconclusive, None);
        few.rounds = 2;
        let reason = |cell: &Cell| advantage(cell, "fast", "slow", Metric::Throughput).unwrap_err();
        assert!(reason(&few).starts_with("too few rounds: 2"), "{}", reason(&few));
        assert!(reason(&pair(Verdict::NotMeasurable, None)).contains("too noisy"));
        assert!(advantage(&few, "fast", "other", Metric::Throughput).unwrap_err().contains("other was not"));
    }

    #[test]
    fn a_growth_is_less_certain_than_either_advantage() {
        let found = |value: f64, factor: f64| Found {
            value,
            interval: Some(Interval { bounds: (value / factor, value * factor), is_confidence: true }),
        };
        let growth = pairs_quotient(found(20.0, 3f64.exp()), found(10.0, 4f64.exp()));
        let (low, high) = growth.interval.unwrap().bounds;
        assert_eq!(growth.value, 2.0);
        assert!((low.ln() - (2f64.ln() - 5.0)).abs() < 1e-9 && (high.ln() - (2f64.ln() + 5.0)).abs() < 1e-9);
    }

    #[test]
    fn numbers_are_found_between_words_ranges_and_units() {
        assert_eq!(numbers("GPT-2 at 1,024 positions: 10–15x, 0.63 s."), [2.0, 1024.0, 10.0, 15.0, 0.63]);
        assert!(has(&numbers("52.1 %"), 100.0 * 0.521) && !has(&numbers("52.1 %"), 52.0));
    }
}
