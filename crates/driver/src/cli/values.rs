//! Parsers of flag values. An error is a sentence that says which values are valid.

use std::path::PathBuf;

use bundle::Precision;
use clap::builder::{PossibleValue, PossibleValuesParser, TypedValueParser};
use clap::{Args, Subcommand, ValueEnum};
use comparison::judge::Metric;
use comparison::judge::regression::{parse_metric, parse_share};
use comparison::plan::{self, KernelCache, RoundsAsked, ScheduleAsked, SliceAsked, Switch};

use super::Places;
use super::commands::Output;
use crate::measure;

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum OnOff {
    On,
    Off,
}

// Values that people expect and that are not supported, each with the reason: docs/reference/not-supported.md has the same.

/// Kinds of devices.
const OTHER_DEVICES: [&str; 14] = [
    "tpu", "mps", "metal", "ane", "rocm", "hip", "amd", "xpu", "npu", "vulkan", "webgpu", "wgpu", "opencl",
    "directml",
];

const OTHER_PRECISIONS: [(&[&str], &str); 4] = [
    (
        &["mixed", "amp", "autocast"],
        "mixed precision is no single precision that all frameworks share: name one, such as bf16; the row says what activations are computed in",
    ),
    (&["fp8", "float8", "int2", "q2"], "no column computes in it"),
    (&["fp32", "float32", "float"], "it is written f32"),
    (&["fp16", "float16", "half", "bfloat16"], "16 bits are written f16 or bf16"),
];

/// Parses a precision by its name; help and errors list the names.
pub(super) fn precisions() -> impl TypedValueParser<Value = Precision> {
    let known = Precision::ALL.into_iter().map(|precision| PossibleValue::new(precision.name()));
    let others = OTHER_PRECISIONS
        .iter()
        .flat_map(|(names, _)| *names)
        .map(|name| PossibleValue::new(*name).hide(true));
    PossibleValuesParser::new(known.chain(others)).try_map(|name| {
        match OTHER_PRECISIONS.iter().find(|(names, _)| names.contains(&name.as_str())) {
            Some((_, reason)) => Err((*reason).to_owned()),
            None => name.parse::<Precision>().map_err(|error| error.to_string()),
        }
    })
}

pub(super) fn parse_device(text: &str) -> Result<String, String> {
    if [measure::resolve::AUTO, "cpu"].contains(&text) {
        return Ok(text.into());
    }
    let numbers = protocol::gpus(text);
    let mut distinct = numbers.clone();
    distinct.sort_unstable();
    distinct.dedup();
    match numbers[..] {
        [] => match text.split_once(':').unwrap_or((text, "0")) {
            ("gpu" | "nvidia", number) => parse_device(&format!("cuda:{number}")),
            (kind, _) if OTHER_DEVICES.contains(&kind.to_ascii_lowercase().as_str()) => {
                Err("no column computes there: the workers and their libraries are built for CPUs and for CUDA".into())
            }
            _ => Err("must be auto, cpu or cuda[:N], or several GPUs that share the weights, such as cuda:0,cuda:1".into()),
        },
        _ if distinct.len() < numbers.len() => Err("the same GPU twice: name each once".into()),
        _ => Ok(numbers.iter().map(|number| format!("cuda:{number}")).collect::<Vec<_>>().join(",")),
    }
}

/// A number of sequences, or the largest that fits.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum BatchArg {
    Number(u32),
    Max,
}

pub(super) fn parse_batch(text: &str) -> Result<BatchArg, String> {
    match text.parse::<u32>() {
        _ if text == "max" => Ok(BatchArg::Max),
        Ok(number @ 1..=4096) => Ok(BatchArg::Number(number)),
        _ => Err("max, or a number from 1 to 4096".into()),
    }
}

pub(super) fn parse_rounds(text: &str) -> Result<RoundsAsked, String> {
    match text.parse::<u32>() {
        _ if text == "auto" => Ok(RoundsAsked::Auto),
        Ok(rounds @ 1..=10_000) => Ok(RoundsAsked::Fixed(rounds)),
        _ => Err("auto, or a number from 1 to 10000".into()),
    }
}

pub(super) fn parse_schedule(text: &str) -> Result<ScheduleAsked, String> {
    serde_json::from_value(text.into()).map_err(|_| "auto, interleaved or sequential".into())
}

pub(super) fn parse_slice(text: &str) -> Result<SliceAsked, String> {
    match text.parse::<u32>() {
        _ if text == "auto" => Ok(SliceAsked::Auto),
        _ if text == "off" => Ok(SliceAsked::Off),
        Ok(tokens @ 1..=100_000) => Ok(SliceAsked::Tokens(tokens)),
        _ => Err("auto, off, or a number of tokens from 1 to 100000".into()),
    }
}

pub(super) fn parse_kernel_cache(text: &str) -> Result<KernelCache, String> {
    serde_json::from_value(text.into()).map_err(|_| "keep or fresh".into())
}

pub(super) fn parse_switch(text: &str) -> Result<Switch, String> {
    Switch::named(text).ok_or_else(|| "one of cache, jit, precision and fused".into())
}

/// Units of time, in seconds. Those that end others come last.
const UNITS: [(&str, f64); 6] =
    [("min", 60.0), ("ms", 1e-3), ("us", 1e-6), ("s", 1.0), ("m", 60.0), ("h", 3600.0)];

/// Seconds, of a time with its unit: 90s, 3m, 1.5h, 200ms. A bare number is of units of `bare` seconds; without that, a
/// unit must be typed.
pub(super) fn seconds(text: &str, bare: Option<f64>) -> Option<f64> {
    let with_unit = UNITS.iter().find_map(|(unit, seconds)| Some((text.strip_suffix(unit)?, *seconds)));
    let (number, unit) = with_unit.or_else(|| Some((text, bare?)))?;
    Some(number.trim().parse::<f64>().ok()? * unit)
}

/// Minutes.
pub(super) fn parse_minutes(text: &str) -> Result<f64, String> {
    match seconds(text, Some(60.0)).map(|seconds| seconds / 60.0) {
        Some(minutes) if minutes > 0.0 && minutes <= 10_080.0 => Ok(minutes),
        _ => Err("a time such as 90s, 3m or 1h, at most a week; a bare number is of minutes".into()),
    }
}

/// Whole seconds.
pub(super) fn parse_timeout(text: &str) -> Result<u64, String> {
    match seconds(text, Some(1.0)) {
        Some(seconds) if (1.0..=86_400.0).contains(&seconds) => Ok(seconds.round() as u64),
        _ => Err("a time from 1s to 24h, such as 90s or 5m; a bare number is of seconds".into()),
    }
}

pub(super) fn parse_gigabytes(text: &str) -> Result<f64, String> {
    match text.parse::<f64>() {
        Ok(gigabytes) if (0.001..=1e6).contains(&gigabytes) => Ok(gigabytes),
        _ => Err("a number of gigabytes from 0.001 to 1000000".into()),
    }
}

pub(super) fn parse_margin(text: &str) -> Result<f64, String> {
    match text.strip_suffix('%').unwrap_or(text).trim().parse::<f64>() {
        Ok(percent) if percent > 0.0 && percent <= 50.0 => Ok(percent),
        _ => Err("percent above 0, up to 50: 2% or 2".into()),
    }
}

pub(super) fn parse_temperature(text: &str) -> Result<f32, String> {
    match text.parse::<f32>() {
        Ok(temperature) if (0.0..=1000.0).contains(&temperature) => Ok(temperature),
        _ => Err("a number from 0 to 1000".into()),
    }
}

pub(super) fn parse_top_p(text: &str) -> Result<f32, String> {
    match text.parse::<f32>() {
        Ok(share) if share > 0.0 && share <= 1.0 => Ok(share),
        _ => Err("a share above 0, up to 1".into()),
    }
}

pub(super) fn parse_seconds(text: &str) -> Result<f64, String> {
    match self::seconds(text, Some(1.0)) {
        Some(seconds) if (0.0..=3600.0).contains(&seconds) => Ok(seconds),
        _ => Err("a time from 0s to 1h, such as 90s or 2m; a bare number is of seconds".into()),
    }
}

/// Overwrites `place` with a typed value.
pub(super) fn set<T: Clone>(place: &mut T, typed: Option<&T>) {
    if let Some(typed) = typed {
        place.clone_from(typed);
    }
}

/// Overwrites `place` with a typed list.
pub(super) fn set_list<T: Clone>(place: &mut Vec<T>, typed: &[T]) {
    if !typed.is_empty() {
        *place = typed.to_vec();
    }
}

// The flags of the commands that work on earlier results, as typed: `diff` and `report`.

#[derive(Debug, Clone, Args)]
pub(crate) struct DiffArgs {
    /// A report.json, a results directory, a history.jsonl (#RUN picks one of its runs; the default is its newest), or
    /// a RUN of the history
    pub(crate) a: String,
    pub(crate) b: String,
    /// Metrics to compare, by their names in JSON; all: every one [default: those of the table]
    #[arg(long, value_name = "NAME,…", value_delimiter = ',', value_parser = parse_metric)]
    pub(crate) metrics: Vec<String>,
    /// Margin of equivalence: smaller differences count as none
    #[arg(long, value_name = "PERCENT", default_value = "2%", value_parser = parse_share)]
    pub(crate) margin: f64,
    /// Directory of the results
    #[arg(long, value_name = "DIR")]
    pub(crate) results_dir: Option<PathBuf>,
    /// Format of the output on stdout
    #[arg(long = "format", value_name = "FORMAT", value_enum, default_value_t = Output::Table)]
    pub(crate) output: Output,
    #[command(flatten)]
    pub(crate) places: Places,
}

#[derive(Debug, Clone, Args)]
#[command(args_conflicts_with_subcommands = true)]
pub(crate) struct ReportArgs {
    #[command(subcommand)]
    pub(crate) command: Option<ReportCommand>,
    /// A results directory [default: the newest one]; several are parts of one study (`sweep --cells 1/4`), and make one
    /// table
    #[arg(value_name = "DIR")]
    pub(crate) directories: Vec<PathBuf>,
    /// Also write the outputs of the whole study there, if several parts are given
    #[arg(short, long = "output", value_name = "OUT", requires = "directories")]
    pub(crate) out: Option<PathBuf>,
    /// Judge the samples again with today's rules, and list the verdicts that changed. The outputs go to DIR/rejudged
    #[arg(long)]
    pub(crate) rejudge: bool,
    /// Replace the old outputs by the new judgement
    #[arg(long, requires = "rejudge")]
    pub(crate) in_place: bool,
    /// Pack the run's facts into DIR.tar.gz, without paths and without the names of the machine and its user
    #[arg(long, conflicts_with_all = ["rejudge", "in_place"])]
    pub(crate) archive: bool,
    /// Write a picture of one metric, such as throughput: METRIC.png and METRIC.svg in the results directory
    #[arg(long, value_name = "METRIC", value_parser = parse_one, conflicts_with_all = ["rejudge", "in_place", "archive"])]
    pub(crate) picture: Option<Metric>,
    /// Title of the picture [default: the frameworks and the model]
    #[arg(long, value_name = "TEXT", requires = "picture")]
    pub(crate) title: Option<String>,
    #[command(flatten)]
    pub(crate) from: ResultsArgs,
}

/// A metric by its name, or by its words.
pub(super) fn parse_one(text: &str) -> Result<Metric, String> {
    Metric::parse(text).ok_or_else(|| {
        let names: Vec<String> = Metric::ALL.into_iter().map(Metric::flag).collect();
        format!("there are {}", names.join(", "))
    })
}

/// Where results are.
#[derive(Debug, Clone, Args)]
pub(crate) struct ResultsArgs {
    /// Directory of the results
    #[arg(long, value_name = "DIR")]
    pub(crate) results_dir: Option<PathBuf>,
    #[command(flatten)]
    pub(crate) places: Places,
}

impl ResultsArgs {
    /// The directory that was typed, or the usual one.
    pub(crate) fn directory(&self) -> plan::Result<PathBuf> {
        match &self.results_dir {
            Some(directory) => Ok(directory.clone()),
            None => self.places.find().map(|places| places.results()),
        }
    }
}

#[derive(Debug, Clone, Subcommand)]
pub(crate) enum ReportCommand {
    /// The newest results directory, as without a word
    #[command(hide = true)]
    Latest(ResultsArgs),
    /// Write the page and pictures of all runs over time
    History(ResultsArgs),
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_have_units_and_bare_numbers_the_usual_one() {
        let minutes = ["3", "90s", "3m", "1.5h", "3min"].map(|text| parse_minutes(text).unwrap());
        assert_eq!(minutes, [3.0, 1.5, 3.0, 90.0, 3.0]);
        assert_eq!(["10", "200ms", "2m"].map(|text| parse_seconds(text).unwrap()), [10.0, 0.2, 120.0]);
        assert_eq!(["600", "90s"].map(|text| parse_timeout(text).unwrap()), [600, 90]);
        assert_eq!((seconds("50ms", None), seconds("50", None)), (Some(0.05), None));
        for text in ["", "m", "-3", "3 days", "inf"] {
            assert!(parse_minutes(text).is_err(), "{text}");
        }
    }

    #[test]
    fn percent_may_have_its_sign() {
        assert_eq!(["2", "2%", "0.5 %"].map(|text| parse_margin(text).unwrap()), [2.0, 2.0, 0.5]);
        assert!(parse_margin("%").is_err() && parse_margin("60%").is_err());
    }

    #[test]
    fn a_gpu_is_found_under_its_usual_names() {
        assert_eq!(
            ["gpu", "nvidia", "gpu:1"].map(|text| parse_device(text).unwrap()),
            ["cuda:0", "cuda:0", "cuda:1"]
        );
        assert!(parse_device("gpu:x").is_err() && parse_device("tpu").is_err());
    }
}
