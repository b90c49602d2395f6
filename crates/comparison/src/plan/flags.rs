//! Values of flags: how a word on the command line becomes a field of a request. An error says which values are valid.
//!
//! Each flag is declared once, by clap, on the field that it sets.

use bundle::Precision;
use clap::builder::{PossibleValue, PossibleValuesParser, TypedValueParser};
use protocol::{Algorithm, KvCache};

use crate::plan::{KernelCache, RoundsAsked, SliceAsked};

// Headings of flags that are of no kind of work, each a topic of the help.

pub const COMPARE: &str = "What to compare";
pub const WORK: &str = "What work";
pub const EVIDENCE: &str = "How much evidence";
pub const EXPERT: &str = "Expert";

// Values that people expect and that are not supported, each with the reason: docs/explanation/limits.md has the
// same.

const OTHER_DEVICES: [&str; 14] = [
    "tpu", "mps", "metal", "ane", "rocm", "hip", "amd", "xpu", "npu", "vulkan", "webgpu", "wgpu", "opencl",
    "directml",
];

const OTHER_PRECISIONS: [(&[&str], &str); 5] = [
    (
        &["mixed", "amp", "autocast"],
        "mixed precision is no single precision that all frameworks share: name one, such as bf16; the row says what activations are computed in",
    ),
    (&["fp8", "float8", "int2", "q2"], "no column computes in it"),
    (
        &["gguf", "q4_0", "q4_1", "q4_k", "q4_k_m", "q4_k_s", "q5_k", "q5_k_m", "q6_k", "q8_0"],
        "blocks that a GGUF has are measured as they are by `--precision file`; no other model is rounded to them",
    ),
    (&["fp32", "float32", "float"], "it is written f32"),
    (&["fp16", "float16", "half", "bfloat16"], "16 bits are written f16 or bf16"),
];

/// A precision by its name; help and errors list the names.
pub fn precision() -> impl TypedValueParser<Value = Precision> {
    let known = Precision::ALL.into_iter().map(|precision| PossibleValue::new(precision.name()));
    let others = OTHER_PRECISIONS.iter().flat_map(|(names, _)| *names);
    let others = others.map(|name| PossibleValue::new(*name).hide(true));
    PossibleValuesParser::new(known.chain(others)).try_map(|name| {
        match OTHER_PRECISIONS.iter().find(|(names, _)| names.contains(&name.as_str())) {
            Some((_, reason)) => Err((*reason).to_owned()),
            None => name.parse::<Precision>().map_err(|error| error.to_string()),
        }
    })
}

/// The device of a request until the workers have said whether they can use a GPU.
pub const AUTO: &str = "auto";

pub fn device(text: &str) -> Result<String, String> {
    if [AUTO, "cpu"].contains(&text) {
        return Ok(text.into());
    }
    let numbers = protocol::gpus(text);
    let mut distinct = numbers.clone();
    distinct.sort_unstable();
    distinct.dedup();
    match numbers[..] {
        [] => match text.split_once(':').unwrap_or((text, "0")) {
            ("gpu" | "nvidia", number) => device(&format!("cuda:{number}")),
            (kind, _) if OTHER_DEVICES.contains(&kind.to_ascii_lowercase().as_str()) => {
                Err("no column computes there: the workers and their libraries are built for CPUs and for CUDA"
                    .into())
            }
            _ => Err(
                "must be auto, cpu or cuda[:N], or several GPUs that share the weights, such as cuda:0,cuda:1"
                    .into(),
            ),
        },
        _ if distinct.len() < numbers.len() => Err("the same GPU twice: name each once".into()),
        _ => Ok(numbers.iter().map(|number| format!("cuda:{number}")).collect::<Vec<_>>().join(",")),
    }
}

pub fn on_off() -> impl TypedValueParser<Value = bool> {
    PossibleValuesParser::new(["on", "off"]).map(|word| word == "on")
}

pub(crate) fn kv_cache() -> impl TypedValueParser<Value = KvCache> {
    on_off().map(|on| if on { KvCache::On } else { KvCache::Off })
}

pub(crate) fn kernel_cache() -> impl TypedValueParser<Value = KernelCache> {
    let names = PossibleValuesParser::new(["keep", "fresh"]);
    names.map(|word| if word == "keep" { KernelCache::Keep } else { KernelCache::Fresh })
}

pub(crate) fn algorithm() -> impl TypedValueParser<Value = Algorithm> {
    let named = |name: String| Algorithm::ALL.into_iter().find(|algorithm| algorithm.name() == name);
    PossibleValuesParser::new(Algorithm::ALL.map(Algorithm::name))
        .try_map(move |name| named(name).ok_or("no such algorithm"))
}

pub(crate) fn rounds(text: &str) -> Result<RoundsAsked, String> {
    match text.parse::<u32>() {
        _ if text == "auto" => Ok(RoundsAsked::Auto),
        Ok(rounds @ 1..=10_000) => Ok(RoundsAsked::Fixed(rounds)),
        _ => Err("auto, or a number from 1 to 10000".into()),
    }
}

pub(crate) fn slice(text: &str) -> Result<SliceAsked, String> {
    match text.parse::<u32>() {
        _ if text == "auto" => Ok(SliceAsked::Auto),
        _ if text == "off" => Ok(SliceAsked::Off),
        Ok(tokens @ 1..=100_000) => Ok(SliceAsked::Tokens(tokens)),
        _ => Err("auto, off, or a number of tokens from 1 to 100000".into()),
    }
}

/// A whole number from `least` to `most`.
pub fn count(least: i64, most: i64) -> clap::builder::RangedI64ValueParser<u32> {
    clap::value_parser!(u32).range(least..=most)
}

/// A number of threads.
pub fn threads(text: &str) -> Result<u32, String> {
    match text.parse() {
        Ok(threads @ 1..=1024) => Ok(threads),
        _ if ["all", "auto", "max", "0"].contains(&text) => {
            Err("leave it out for all that this process may use".into())
        }
        _ => Err("a number from 1 to 1024".into()),
    }
}

/// A whole number from 1.
pub fn number() -> clap::builder::RangedI64ValueParser<u32> {
    clap::value_parser!(u32).range(1..)
}

/// Units of time, in seconds. Those that end others come last.
const UNITS: [(&str, f64); 6] =
    [("min", 60.0), ("ms", 1e-3), ("us", 1e-6), ("s", 1.0), ("m", 60.0), ("h", 3600.0)];

/// Seconds, of a time with its unit: 90s, 3m, 1.5h, 200ms. Zero needs none.
fn time(text: &str) -> Option<f64> {
    if text == "0" {
        return Some(0.0);
    }
    let (number, unit) =
        UNITS.iter().find_map(|(unit, seconds)| Some((text.strip_suffix(unit)?, *seconds)))?;
    Some(number.trim().parse::<f64>().ok()? * unit)
}

/// Minutes of a time as it is typed: `90s`, `3m`.
pub fn minutes(text: &str) -> Result<f64, String> {
    match time(text).map(|seconds| seconds / 60.0) {
        Some(minutes) if minutes > 0.0 && minutes <= 10_080.0 => Ok(minutes),
        _ => Err("a time with its unit, such as 90s, 3m or 1h, at most a week".into()),
    }
}

pub(crate) fn seconds(text: &str) -> Result<f64, String> {
    match time(text) {
        Some(seconds) if (0.0..=3600.0).contains(&seconds) => Ok(seconds),
        _ => Err("a time from 0s to 1h with its unit, such as 90s or 2m".into()),
    }
}

/// Whole seconds.
pub fn timeout(text: &str) -> Result<u64, String> {
    match time(text) {
        Some(seconds) if (1.0..=86_400.0).contains(&seconds) => Ok(seconds.round() as u64),
        _ => Err("a time from 1s to 24h with its unit, such as 90s or 5m".into()),
    }
}

/// Microseconds.
pub(crate) fn limit(text: &str) -> Result<u64, String> {
    let within = time(text).map(|seconds| 1e6 * seconds).filter(|us| (1.0..=6e7).contains(us));
    within.map(|us| us as u64).ok_or_else(|| "a time from 1us to 60s with its unit, such as 50ms".to_owned())
}

pub(crate) fn gigabytes(text: &str) -> Result<f64, String> {
    let units = [("GB", 1.0), ("G", 1.0), ("MB", 1e-3), ("M", 1e-3), ("TB", 1e3), ("T", 1e3)];
    let upper = text.trim().to_uppercase();
    let unit = units.into_iter().find_map(|(unit, gigabytes)| Some((upper.strip_suffix(unit)?, gigabytes)));
    let (number, unit) = unit.unwrap_or((&upper, 1.0));
    match number.trim().parse::<f64>() {
        Ok(number) if (0.001..=1e6).contains(&(number * unit)) => Ok(number * unit),
        _ => Err("gigabytes, from 0.001 to 1000000: 8, 8GB or 500MB".into()),
    }
}

pub(crate) fn margin(text: &str) -> Result<f64, String> {
    match text.strip_suffix('%').unwrap_or(text).trim().parse::<f64>() {
        Ok(percent) if percent > 0.0 && percent <= 50.0 => Ok(percent),
        _ => Err("percent above 0, up to 50: 2% or 2".into()),
    }
}

/// "5%" or "5". A share of 1, as other tools write it, is refused.
pub fn share(text: &str) -> Result<f64, String> {
    if let Ok(share) = text.trim().parse::<f64>()
        && share > 0.0
        && share < 1.0
    {
        let percent = (share * 1e4).round() / 100.0;
        return Err(format!("it is in percent: write {percent}%, or {text}% for so little"));
    }
    match text.trim().trim_end_matches('%').trim_end().parse::<f64>() {
        Ok(percent) if (0.0..=1000.0).contains(&percent) => Ok(percent / 100.0),
        _ => Err("a number of percent from 0 to 1000, as in 5%".into()),
    }
}

pub fn temperature(text: &str) -> Result<f32, String> {
    match text.parse::<f32>() {
        Ok(temperature) if (0.0..=1000.0).contains(&temperature) => Ok(temperature),
        _ => Err("a number from 0 to 1000".into()),
    }
}

pub fn top_p(text: &str) -> Result<f32, String> {
    match text.parse::<f32>() {
        Ok(share) if share > 0.0 && share <= 1.0 => Ok(share),
        _ => Err("a share above 0, up to 1".into()),
    }
}

pub(crate) fn eps(text: &str) -> Result<f32, String> {
    match text.parse::<f32>() {
        Ok(eps) if (0.0..1.0).contains(&eps) => Ok(eps),
        _ => Err("a time from 0 up to less than 1".into()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_have_units() {
        assert_eq!(["90s", "3m", "1.5h", "3min"].map(|text| minutes(text).unwrap()), [1.5, 3.0, 90.0, 3.0]);
        assert_eq!(["0", "200ms", "2m"].map(|text| seconds(text).unwrap()), [0.0, 0.2, 120.0]);
        assert_eq!((timeout("90s"), timeout("600").is_err()), (Ok(90), true));
        assert_eq!((limit("50ms"), limit("50").is_err()), (Ok(50_000), true));
        for text in ["", "m", "3", "-3m", "3 days", "infm"] {
            assert!(minutes(text).is_err(), "{text}");
        }
    }

    #[test]
    fn percent_may_have_its_sign() {
        assert_eq!(["2", "2%", "0.5 %"].map(|text| margin(text).unwrap()), [2.0, 2.0, 0.5]);
        assert!(margin("%").is_err() && margin("60%").is_err());
    }

    #[test]
    fn all_threads_are_the_default() {
        assert_eq!(threads("8"), Ok(8));
        assert!(threads("all").unwrap_err().contains("leave it out") && threads("-1").is_err());
    }

    #[test]
    fn memory_may_have_its_unit() {
        assert_eq!(["8", "8GB", "8 gb", "500MB"].map(|text| gigabytes(text).unwrap()), [8.0, 8.0, 8.0, 0.5]);
        assert!(gigabytes("GB").is_err() && gigabytes("8KB").is_err());
    }

    #[test]
    fn a_gpu_is_found_under_its_usual_names() {
        let found = ["gpu", "nvidia", "gpu:1"].map(|text| device(text).unwrap());
        assert_eq!(found, ["cuda:0", "cuda:0", "cuda:1"]);
        assert!(device("gpu:x").is_err() && device("tpu").unwrap_err().starts_with("no column"));
    }
}
