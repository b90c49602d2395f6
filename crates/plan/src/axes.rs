//! The axes of a sweep: flags that take a list. A comparison has one value of each.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::{Failure, Request, Result};

/// A setting that may differ from cell to cell of a study.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Axis {
    /// The framework: an axis of A/B studies, which vary something else in their arms.
    Framework,
    Model,
    Precision,
    Threads,
    Batch,
    Context,
    PromptTokens,
    NewTokens,
    /// Tokens of a prompt that are read at once.
    PrefillChunk,
    /// Steps of masked diffusion.
    Steps,
    /// Callers that make requests, one at a time each.
    Callers,
    /// Requests a second at random times.
    Rate,
    /// The mistake: an axis of `ab mistakes`.
    Mistake,
}

/// A cell's place on an axis.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(untagged)]
pub enum Setting {
    Number(u32),
    Name(String),
}

impl std::fmt::Display for Setting {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Setting::Number(number) => number.fmt(f),
            Setting::Name(name) => name.fmt(f),
        }
    }
}

/// The place of a cell: its value on each axis.
pub type Settings = BTreeMap<Axis, Setting>;

impl Axis {
    /// Every axis in the order in which cells are nested. The outermost come first: models and precisions, which must
    /// be prepared.
    const TYPED: [Axis; 11] = [
        Axis::Model,
        Axis::Precision,
        Axis::Threads,
        Axis::Batch,
        Axis::Context,
        Axis::PromptTokens,
        Axis::NewTokens,
        Axis::PrefillChunk,
        Axis::Steps,
        Axis::Callers,
        Axis::Rate,
    ];

    /// The heading of the column of this axis.
    pub fn title(self) -> &'static str {
        match self {
            Axis::Framework => "Framework",
            Axis::Model => "Model",
            Axis::Precision => "Precision",
            Axis::Threads => "Threads",
            Axis::Batch => "Batch",
            Axis::Context => "Context",
            Axis::PromptTokens => "Prompt",
            Axis::NewTokens => "New tokens",
            Axis::PrefillChunk => "Chunk",
            Axis::Steps => "Steps",
            Axis::Callers => "Callers",
            Axis::Rate => "Requests a second",
            Axis::Mistake => "Mistake",
        }
    }

    /// The command-line flag of this axis.
    pub fn flag(self) -> &'static str {
        match self {
            Axis::Framework => "--frameworks",
            Axis::Model => "--model",
            Axis::Precision => "--precision",
            Axis::Threads => "--threads",
            Axis::Batch => "--batch",
            Axis::Context => "--context",
            Axis::PromptTokens => "--prompt-tokens",
            Axis::NewTokens => "--new-tokens",
            Axis::PrefillChunk => "--prefill-chunk",
            Axis::Steps => "--steps",
            Axis::Callers => "--callers",
            Axis::Rate => "--rate",
            Axis::Mistake => "ab mistakes",
        }
    }

    /// The values of this axis, as typed.
    pub fn values(self, request: &Request) -> Vec<Setting> {
        let numbers = |values: &[u32]| values.iter().map(|&value| Setting::Number(value)).collect();
        match self {
            Axis::Framework | Axis::Mistake => Vec::new(),
            Axis::Model => request.models.iter().cloned().map(Setting::Name).collect(),
            Axis::Precision => request.precisions.iter().map(|p| Setting::Name(p.name().into())).collect(),
            Axis::Threads => numbers(&request.threads),
            Axis::Batch => numbers(&request.batch),
            Axis::Context => numbers(&request.context),
            Axis::PromptTokens => numbers(&request.prompt_tokens),
            Axis::NewTokens => numbers(&request.new_tokens),
            Axis::PrefillChunk => numbers(&request.prefill_chunk),
            Axis::Steps => numbers(&request.denoise.steps),
            Axis::Callers => numbers(&request.serving.callers),
            Axis::Rate => numbers(&request.serving.rate),
        }
    }

    /// Keeps only the value at `index`.
    fn keep(self, request: &mut Request, index: usize) {
        fn one<T: Clone>(values: &mut Vec<T>, index: usize) {
            *values = vec![values[index].clone()];
        }
        match self {
            Axis::Framework | Axis::Mistake => {}
            Axis::Model => one(&mut request.models, index),
            Axis::Precision => one(&mut request.precisions, index),
            Axis::Threads => one(&mut request.threads, index),
            Axis::Batch => one(&mut request.batch, index),
            Axis::Context => one(&mut request.context, index),
            Axis::PromptTokens => one(&mut request.prompt_tokens, index),
            Axis::NewTokens => one(&mut request.new_tokens, index),
            Axis::PrefillChunk => one(&mut request.prefill_chunk, index),
            Axis::Steps => one(&mut request.denoise.steps, index),
            Axis::Callers => one(&mut request.serving.callers, index),
            Axis::Rate => one(&mut request.serving.rate, index),
        }
    }
}

/// Every combination of the typed values, each with its comparison. An axis without a value is left to the comparison.
pub fn cells(request: &Request) -> Vec<(Settings, Request)> {
    let mut cells = vec![(Settings::new(), request.clone())];
    for axis in Axis::TYPED {
        let values = axis.values(request);
        if values.is_empty() {
            continue;
        }
        let with = |(settings, request): &(Settings, Request)| -> Vec<_> {
            let each = values.iter().enumerate().map(|(index, value)| {
                let (mut settings, mut request) = (settings.clone(), request.clone());
                settings.insert(axis, value.clone());
                axis.keep(&mut request, index);
                (settings, request)
            });
            each.collect()
        };
        cells = cells.iter().flat_map(with).collect();
    }
    cells
}

/// The axes with several values.
pub fn varied(request: &Request) -> Vec<Axis> {
    Axis::TYPED.into_iter().filter(|axis| axis.values(request).len() > 1).collect()
}

/// Rejects a list if only one comparison is possible. Batches are for [`check_batches`].
pub fn check_single(request: &Request) -> Result<()> {
    varied(request).into_iter().find(|&axis| axis != Axis::Batch).map_or(Ok(()), |axis| Err(several(axis)))
}

/// Rejects several batch sizes, unless for an encoder: in its comparison, each is a request of its own.
pub fn check_batches(request: &Request, encodes: bool) -> Result<()> {
    if encodes || request.batch.len() < 2 { Ok(()) } else { Err(several(Axis::Batch)) }
}

fn several(axis: Axis) -> Failure {
    let flag = axis.flag();
    Failure::usage(format!("{flag} takes one value here; several are a sweep: `photofinish sweep generate`"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cells_are_every_combination_the_last_axis_changing_fastest() {
        let cells = cells(&Request { batch: vec![1, 2], prompt_tokens: vec![8, 16], ..Request::default() });
        let places: Vec<_> =
            cells.iter().map(|(s, _)| format!("{} {}", s[&Axis::Batch], s[&Axis::PromptTokens])).collect();
        assert_eq!(places, ["1 8", "1 16", "2 8", "2 16"]);
        assert_eq!(
            (cells[2].1.batch[..].to_vec(), cells[2].1.prompt_tokens[..].to_vec()),
            (vec![2], vec![8])
        );
    }

    #[test]
    fn a_comparison_of_several_values_is_told_what_it_is() {
        assert!(check_single(&Request { batch: vec![2], ..Request::default() }).is_ok());
        let error =
            check_single(&Request { threads: vec![1, 2], ..Request::default() }).unwrap_err().to_string();
        assert!(error.starts_with("--threads takes one value here; several are a sweep"), "{error}");
        let batches = Request { batch: vec![1, 2], ..Request::default() };
        assert!(check_batches(&batches, true).is_ok());
        let error = check_batches(&batches, false).unwrap_err().to_string();
        assert!(error.starts_with("--batch takes one value here"), "{error}");
    }
}
