//! Parsers of flag values. An error is a sentence that says which values are valid.

use bundle::Precision;
use clap::ValueEnum;
use clap::builder::{PossibleValue, PossibleValuesParser, TypedValueParser};

use plan::{KernelCache, RoundsAsked, ScheduleAsked, SliceAsked, Switch};

use super::refused;

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum OnOff {
    On,
    Off,
}

/// Parses a precision by its name; help and errors list the names.
pub(super) fn precisions() -> impl TypedValueParser<Value = Precision> {
    let known = Precision::ALL.into_iter().map(|precision| PossibleValue::new(precision.name()));
    let expected = refused::precisions().map(|name| PossibleValue::new(name).hide(true));
    PossibleValuesParser::new(known.chain(expected)).try_map(|name| match refused::precision(&name) {
        Some(reason) => Err(reason.to_owned()),
        None => name.parse::<Precision>().map_err(|error| error.to_string()),
    })
}

pub(super) fn parse_device(text: &str) -> Result<String, String> {
    if [measure::device::AUTO, "cpu"].contains(&text) {
        return Ok(text.into());
    }
    let numbers = protocol::gpus(text);
    let mut distinct = numbers.clone();
    distinct.sort_unstable();
    distinct.dedup();
    match numbers[..] {
        [] => Err(refused::device(text)
            .unwrap_or(
                "must be auto, cpu or cuda[:N], or several GPUs that share the weights, such as cuda:0,cuda:1",
            )
            .into()),
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

pub(super) fn parse_minutes(text: &str) -> Result<f64, String> {
    match text.parse::<f64>() {
        Ok(minutes) if minutes > 0.0 && minutes <= 10_080.0 => Ok(minutes),
        _ => Err("a number of minutes above 0, up to 10080 (a week)".into()),
    }
}

pub(super) fn parse_gigabytes(text: &str) -> Result<f64, String> {
    match text.parse::<f64>() {
        Ok(gigabytes) if (0.001..=1e6).contains(&gigabytes) => Ok(gigabytes),
        _ => Err("a number of gigabytes from 0.001 to 1000000".into()),
    }
}

pub(super) fn parse_margin(text: &str) -> Result<f64, String> {
    match text.parse::<f64>() {
        Ok(percent) if percent > 0.0 && percent <= 50.0 => Ok(percent),
        _ => Err("a number of percent above 0, up to 50".into()),
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
    match text.parse::<f64>() {
        Ok(seconds) if (0.0..=3600.0).contains(&seconds) => Ok(seconds),
        _ => Err("a number of seconds from 0 to 3600".into()),
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
