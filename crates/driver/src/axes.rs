//! What a sweep varies: the flags that take a list. A comparison has one value of each.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::cli::{CompareArgs, ModelArgs};
use crate::failure::{Failure, Result};

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Axis {
    /// Of an A/B study, whose arms differ in something else.
    Framework,
    Model,
    Precision,
    Threads,
    Batch,
    Context,
    PromptTokens,
    NewTokens,
}

/// A cell's place on an axis.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(untagged)]
pub(crate) enum Setting {
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

pub(crate) type Settings = BTreeMap<Axis, Setting>;

impl Axis {
    /// In the order in which cells are nested, the outermost first: models and precisions, which take preparing.
    const TYPED: [Axis; 7] = [
        Axis::Model,
        Axis::Precision,
        Axis::Threads,
        Axis::Batch,
        Axis::Context,
        Axis::PromptTokens,
        Axis::NewTokens,
    ];

    pub(crate) fn title(self) -> &'static str {
        match self {
            Axis::Framework => "Framework",
            Axis::Model => "Model",
            Axis::Precision => "Precision",
            Axis::Threads => "Threads",
            Axis::Batch => "Batch",
            Axis::Context => "Context",
            Axis::PromptTokens => "Prompt",
            Axis::NewTokens => "New tokens",
        }
    }

    fn flag(self) -> &'static str {
        match self {
            Axis::Framework => "--frameworks",
            Axis::Model => "--model",
            Axis::Precision => "--precision",
            Axis::Threads => "--threads",
            Axis::Batch => "--batch",
            Axis::Context => "--context",
            Axis::PromptTokens => "--prompt-tokens",
            Axis::NewTokens => "--new-tokens",
        }
    }

    /// As typed.
    fn values(self, args: &CompareArgs) -> Vec<Setting> {
        let numbers = |values: &[u32]| values.iter().map(|&value| Setting::Number(value)).collect();
        let model = &args.model;
        match self {
            Axis::Framework => Vec::new(),
            Axis::Model => model.model.iter().cloned().map(Setting::Name).collect(),
            Axis::Precision => model.precision.iter().map(|p| Setting::Name(p.name().into())).collect(),
            Axis::Threads => model.threads.iter().map(|&threads| Setting::Number(threads.into())).collect(),
            Axis::Batch => numbers(&args.batch),
            Axis::Context => numbers(&args.context),
            Axis::PromptTokens => numbers(&args.prompt_tokens),
            Axis::NewTokens => numbers(&args.new_tokens),
        }
    }

    /// Leaves value `index` alone.
    fn keep(self, args: &mut CompareArgs, index: usize) {
        fn one<T: Clone>(values: &mut Vec<T>, index: usize) {
            *values = vec![values[index].clone()];
        }
        match self {
            Axis::Framework => {}
            Axis::Model => one(&mut args.model.model, index),
            Axis::Precision => one(&mut args.model.precision, index),
            Axis::Threads => one(&mut args.model.threads, index),
            Axis::Batch => one(&mut args.batch, index),
            Axis::Context => one(&mut args.context, index),
            Axis::PromptTokens => one(&mut args.prompt_tokens, index),
            Axis::NewTokens => one(&mut args.new_tokens, index),
        }
    }
}

/// Every combination of what was typed, with the comparison that it stands for. Axes without a value are the
/// comparison's to choose.
pub(crate) fn cells(args: &CompareArgs) -> Vec<(Settings, CompareArgs)> {
    let mut cells = vec![(Settings::new(), args.clone())];
    for axis in Axis::TYPED {
        let values = axis.values(args);
        if values.is_empty() {
            continue;
        }
        let with = |(settings, args): &(Settings, CompareArgs)| -> Vec<_> {
            let each = values.iter().enumerate().map(|(index, value)| {
                let (mut settings, mut args) = (settings.clone(), args.clone());
                settings.insert(axis, value.clone());
                axis.keep(&mut args, index);
                (settings, args)
            });
            each.collect()
        };
        cells = cells.iter().flat_map(with).collect();
    }
    cells
}

/// Axes with several values.
pub(crate) fn varied(args: &CompareArgs) -> Vec<Axis> {
    Axis::TYPED.into_iter().filter(|axis| axis.values(args).len() > 1).collect()
}

pub(crate) fn check_single(args: &CompareArgs) -> Result<()> {
    match varied(args).first() {
        None => Ok(()),
        Some(axis) => Err(Failure::usage(format!(
            "{} takes one value here; several are a sweep: `driver sweep generate`",
            axis.flag()
        ))),
    }
}

pub(crate) fn check_single_model(model: &ModelArgs) -> Result<()> {
    let several = [
        (Axis::Model, model.model.len()),
        (Axis::Precision, model.precision.len()),
        (Axis::Threads, model.threads.len()),
    ];
    match several.iter().find(|(_, count)| *count > 1) {
        None => Ok(()),
        Some((axis, _)) => Err(Failure::usage(format!("{} takes one value here", axis.flag()))),
    }
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;
    use crate::cli::Cli;

    fn args(typed: &[&str]) -> CompareArgs {
        Cli::try_parse_from([&["driver"], typed].concat()).unwrap().compare
    }

    #[test]
    fn cells_are_every_combination_the_last_axis_changing_fastest() {
        let cells = cells(&args(&["--batch", "1,2", "--prompt-tokens", "8,16"]));
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
        assert!(check_single(&args(&["--batch", "2"])).is_ok());
        let error = check_single(&args(&["--threads", "1,2"])).unwrap_err().to_string();
        assert!(error.starts_with("--threads takes one value here; several are a sweep"), "{error}");
    }
}
