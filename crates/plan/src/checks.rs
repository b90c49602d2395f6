//! Limits of requests that do not depend on the model.

use configs::{Engine, Suite};

use crate::{Failure, Request, Result};

/// The limits of the flags of the same names.
const LONGEST_PAUSE_S: f64 = 3600.0;
const LONGEST_BUDGET_MIN: f64 = 10_080.0;
const MOST_MEMORY_GB: f64 = 1e6;
const WIDEST_MARGIN_PERCENT: f64 = 50.0;
const LONGEST_TIMEOUT_S: u64 = 86_400;
const LARGEST_BATCH: u32 = 4096;

/// Rejects numbers that no flag accepts: a request may come from a file.
pub(crate) fn ranges(request: &Request) -> Result<()> {
    let within = |value: f64, most: f64| (0.0..=most).contains(&value);
    let none = |values: &[u32]| !values.contains(&0);
    let ranges = [
        ("delay_s", within(request.delay_s, LONGEST_PAUSE_S)),
        ("patience_s", within(request.patience_s, LONGEST_PAUSE_S)),
        ("time_budget_min", within(request.time_budget_min, LONGEST_BUDGET_MIN)),
        ("memory_gb", request.memory_gb.is_none_or(|asked| within(asked, MOST_MEMORY_GB))),
        ("margin_percent", within(request.margin_percent, WIDEST_MARGIN_PERCENT)),
        ("timeout_s", (1..=LONGEST_TIMEOUT_S).contains(&request.timeout_s)),
        ("threads", none(&request.threads)),
        ("batch", request.batch.iter().all(|batch| (1..=LARGEST_BATCH).contains(batch))),
        ("prompt_tokens", none(&request.prompt_tokens)),
        ("prompt_lengths", none(&request.prompt_lengths)),
        ("shards", none(&request.shards)),
    ];
    match ranges.iter().find(|(_, is_within)| !is_within) {
        None => Ok(()),
        Some((name, _)) => Err(Failure::usage(format!("the request's {name} is out of range"))),
    }
}

/// Rejects more parts of the weights than GPUs, and GPUs without a part.
pub(crate) fn devices(request: &Request) -> Result<()> {
    let (device, count) = (&request.device, request.devices());
    match request.shards[..] {
        [] => Ok(()),
        [asked] if asked == count => Ok(()),
        _ if !request.is_on_gpu() => Ok(()),
        _ => Err(Failure::usage(format!(
            "--tensor-parallel: on GPUs each holds one part of the weights, and --device {device} names {count}; leave --tensor-parallel out \
             and name as many GPUs as there shall be parts, such as --device cuda:0,cuda:1"
        ))),
    }
}

/// Rejects several lengths for several prompts, and two flags for the length.
pub(crate) fn lengths(request: &Request, suite: &Suite) -> Result<()> {
    if request.prompt_lengths.is_empty() {
        return Ok(());
    }
    if !request.prompt_tokens.is_empty() {
        return Err(Failure::usage(
            "--prompt-lengths and --prompt-tokens both say how long prompts are: leave one out",
        ));
    }
    if suite.prompts.len() > 1 && request.names_prompts() {
        return Err(Failure::usage(
            "--prompt-lengths takes one prompt, whose lengths they are: name one with --prompt",
        ));
    }
    Ok(())
}

pub(crate) fn reference(request: &Request, engines: &[Engine]) -> Result<()> {
    match &request.reference {
        Some(reference) if !engines.iter().any(|engine| engine.name == *reference) => {
            let names: Vec<_> = engines.iter().map(|engine| engine.name.as_str()).collect();
            Err(Failure::usage(format!(
                "--parity-reference {reference:?} is not among the frameworks compared: {}",
                names.join(", ")
            )))
        }
        _ => Ok(()),
    }
}
