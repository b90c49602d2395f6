//! What people type, as other tools or earlier versions have it: the error says what is written here. For other mistakes
//! clap suggests what is nearest.

use std::ffi::OsString;

use clap::builder::StyledStr;
use clap::error::{ContextKind, ContextValue, ErrorKind};
use clap::{CommandFactory, Parser};

use super::Cli;

/// Commands and flags that people type, and what is written here.
const HINTS: [(&str, &str); 107] = [
    ("bundles", "cache"),
    ("models", "list models"),
    ("frameworks", "list frameworks"),
    ("engines", "list frameworks"),
    ("suites", "list suites"),
    ("bench", "compare"),
    ("benchmark", "compare"),
    ("regress", "check"),
    ("config", "list"),
    ("download", "setup"),
    ("install", "setup"),
    ("eval", "score"),
    ("evaluate", "score"),
    ("plot", "report"),
    ("show", "report"),
    ("html", "report"),
    ("latency", "compare"),
    ("--bundle", "--archive"),
    ("--dtype", "--precision"),
    ("--data-type", "--precision"),
    ("--export-metrics", "--export"),
    ("--benchmark-dir", "--export"),
    ("--kv-precision", "--kv-type"),
    ("--latest", "latest"),
    ("--no-half", "--precision f32"),
    ("--pytorch-no-half", "--precision f32"),
    ("--half", "--precision f16"),
    ("--fp16", "--precision f16"),
    ("--f16", "--precision f16"),
    ("--bf16", "--precision bf16"),
    ("--int8", "--precision int8"),
    ("--int4", "--precision int4"),
    ("--load-in-8bit", "--precision int8"),
    ("--load-in-4bit", "--precision int4"),
    ("--pytorch-no-compile", "--no-jit"),
    ("--no-compile", "--no-jit"),
    ("--out", "--output"),
    ("--output-file", "--output"),
    ("--output-dir", "--results-dir"),
    ("--save", "--output"),
    ("--json", "--format json"),
    ("--csv", "--format csv"),
    ("--md", "--format markdown"),
    ("--markdown", "--format markdown"),
    ("--html", "--results-dir"),
    ("--patience", "--quiet-timeout"),
    ("--prompts", "--prompt-file"),
    ("--input", "--prompt"),
    ("--text", "--prompt"),
    ("--reference", "--parity-reference"),
    ("--baseline-framework", "--parity-reference"),
    ("--runs", "--rounds"),
    ("--repetitions", "--rounds"),
    ("--repeat", "--rounds"),
    ("--reps", "--rounds"),
    ("--min-runs", "--rounds"),
    ("--iters", "--iterations"),
    ("--num-iterations", "--iterations"),
    ("--warmups", "--warmup"),
    ("--warmup-runs", "--warmup"),
    ("--shards", "--tensor-parallel"),
    ("--shard", "--tensor-parallel"),
    ("--tp", "--tensor-parallel"),
    ("--max-length", "--new-tokens"),
    ("--max-tokens", "--new-tokens"),
    ("--max-new-tokens", "--new-tokens"),
    ("--n-gen", "--new-tokens"),
    ("--n-predict", "--new-tokens"),
    ("--output-len", "--new-tokens"),
    ("--n-prompt", "--prompt-tokens"),
    ("--input-len", "--prompt-tokens"),
    ("--sequence-length", "--prompt-tokens"),
    ("--seq-len", "--prompt-tokens"),
    ("--batch-size", "--batch"),
    ("--concurrency", "--callers"),
    ("--clients", "--callers"),
    ("--users", "--callers"),
    ("--qps", "--rate"),
    ("--num-threads", "--threads"),
    ("--nthreads", "--threads"),
    ("--cores", "--threads"),
    ("--jobs", "--threads"),
    ("--gpu", "--device cuda"),
    ("--cuda", "--device cuda"),
    ("--cpu", "--device cpu"),
    ("--engine", "--frameworks"),
    ("--engines", "--frameworks"),
    ("--backend", "--frameworks"),
    ("--backends", "--frameworks"),
    ("--runtime", "--frameworks"),
    ("--runtimes", "--frameworks"),
    ("--model-path", "--model"),
    ("--checkpoint", "--model"),
    ("--gguf", "--model"),
    ("--onnx", "--model"),
    ("--timing", "profile"),
    ("--profile", "profile"),
    ("--trace", "trace"),
    ("--download", "setup"),
    ("--force-download", "setup"),
    ("--timelimit", "--time-budget"),
    ("--time-limit", "--time-budget"),
    ("--duration", "--time-budget"),
    ("--fast", "--quick"),
    ("--silent", "--quiet"),
    ("--temp", "--temperature"),
    // With a value: `--fair-comparison false`.
    ("--fair-comparison", "--allow-unfair"),
];

/// Reads words, the program's name first.
pub(crate) fn parse(words: impl IntoIterator<Item = impl Into<OsString>>) -> clap::error::Result<Cli> {
    let words: Vec<OsString> = words.into_iter().map(Into::into).collect();
    Cli::try_parse_from(&words).map_err(|error| with_hint(error, &words))
}

/// Adds to an error what is written in place of an unexpected word; to one about a name without its flag, such as
/// `compare candle`, the flags that take names.
fn with_hint(mut error: clap::Error, words: &[OsString]) -> clap::Error {
    let kinds = [
        ErrorKind::UnknownArgument,
        ErrorKind::ArgumentConflict,
        ErrorKind::InvalidSubcommand,
        ErrorKind::TooManyValues,
    ];
    let unexpected = error.get(ContextKind::InvalidArg).or_else(|| error.get(ContextKind::InvalidSubcommand));
    let Some(ContextValue::String(word)) = unexpected.filter(|_| kinds.contains(&error.kind())) else {
        return error;
    };
    // A conflict of flags names one that there is.
    let is_known = error.kind() == ErrorKind::ArgumentConflict && word.starts_with('-');
    let hint = match HINTS.iter().find(|(typed, _)| typed == word && !is_known) {
        Some((typed, written)) => format!("write `{written}` in place of `{typed}`"),
        None if is_name(word) && takes_names(words) => {
            "frameworks follow `--frameworks` with commas between them, a model follows `--model`".to_owned()
        }
        None => return error,
    };
    error.remove(ContextKind::SuggestedArg);
    error.insert(ContextKind::Suggested, ContextValue::StyledStrs(vec![StyledStr::from(hint)]));
    error
}

/// Whether a word is neither a flag nor a command.
fn is_name(word: &str) -> bool {
    !word.starts_with('-') && Cli::command().find_subcommand(word).is_none()
}

/// Whether the command that was typed has a flag for frameworks.
fn takes_names(words: &[OsString]) -> bool {
    let program = Cli::command();
    let command = words.iter().skip(1).find_map(|word| program.find_subcommand(word)).unwrap_or(&program);
    command.get_arguments().any(|flag| matches!(flag.get_long(), Some("framework" | "frameworks")))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_word_of_another_tool_and_a_name_without_its_flag_get_a_hint_and_an_unknown_flag_does_not() {
        let error = |line: &str| parse(line.split(' ')).unwrap_err().to_string();
        for (line, hint) in [
            ("photofinish report . --bundle", "write `--archive` in place of `--bundle`"),
            ("photofinish compare --dtype f32", "write `--precision` in place of `--dtype`"),
            ("photofinish --reference=tch", "write `--parity-reference` in place of `--reference`"),
            ("photofinish -v models", "write `list models` in place of `models`"),
            ("photofinish compare candle ort", "follow `--frameworks`"),
            ("photofinish trace ort", "follow `--frameworks`"),
            // Of llama-bench, hyperfine, pytest-benchmark, transformers and the guides that this program answers.
            ("photofinish --json", "write `--format json` in place of `--json`"),
            ("photofinish --max-length 100", "write `--new-tokens` in place of `--max-length`"),
            ("photofinish --pytorch-no-half", "write `--precision f32` in place of `--pytorch-no-half`"),
            ("photofinish --repetitions 3", "write `--rounds` in place of `--repetitions`"),
            ("photofinish --batch-size 4", "write `--batch` in place of `--batch-size`"),
            ("photofinish --timing", "write `profile` in place of `--timing`"),
        ] {
            assert!(error(line).contains(hint), "{line}: {}", error(line));
        }
        for line in ["compare --frames candle", "trace", "doctor candle", "--dry-run sweep size"] {
            let line = &format!("photofinish {line}");
            assert!(!error(line).contains("follow `--frameworks`"), "{line}");
        }
        let both = error("photofinish compare --fair-comparison --allow-unfair");
        assert!(both.contains("cannot be used with") && !both.contains("in place of"), "{both}");
        assert!(parse("photofinish compare --prompt bundles".split(' ')).is_ok());
    }

    #[test]
    fn every_hint_can_be_typed() {
        let command = Cli::command();
        let of_all = command.get_subcommands().flat_map(clap::Command::get_arguments);
        let flags: Vec<String> = of_all.filter_map(|flag| Some(format!("--{}", flag.get_long()?))).collect();
        for (_, written) in HINTS {
            let first = written.split(' ').next().unwrap();
            let is_known = flags.iter().any(|flag| flag == first) || command.find_subcommand(first).is_some();
            let is_known =
                is_known || command.get_subcommands().any(|of| of.find_subcommand(first).is_some());
            assert!(is_known, "{written}");
        }
    }
}
