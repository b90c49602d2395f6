//! What people type, as other tools or earlier versions have it: the error says what is written here. For other mistakes
//! clap suggests what is nearest.

use std::ffi::OsString;
use std::path::Path;

use clap::builder::StyledStr;
use clap::error::{ContextKind, ContextValue, ErrorKind};
use clap::{CommandFactory, Parser};

use super::Cli;

/// Commands and flags that people type, and what is written here.
const HINTS: [(&str, &str); 106] = [
    ("bundles", "list cache"),
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
    ("eval", "run"),
    ("evaluate", "parity"),
    ("plot", "report"),
    ("html", "report"),
    ("latency", "compare"),
    ("--bundle", "--archive"),
    ("--dtype", "--precision"),
    ("--data-type", "--precision"),
    ("--export-metrics", "--export"),
    ("--benchmark-dir", "--export"),
    ("--kv-precision", "--kv-type"),
    ("--latest", "--baseline latest"),
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
    ("--trace", "profile --trace"),
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

/// Earlier names of commands, of one word or two, and what is written today. They still work.
const RENAMED: [(&str, &str); 19] = [
    ("generate", "run --task generate"),
    ("denoise", "run --task denoise"),
    ("embed", "run --task embed"),
    ("rerank", "run --task rerank"),
    ("classify", "run --task classify"),
    ("infer", "run --task infer"),
    ("score", "run --task score"),
    ("ab", "sweep"),
    ("ablate", "sweep"),
    ("gate", "check"),
    ("trace", "profile --trace"),
    ("open", "report --open"),
    ("report latest", "report"),
    ("report history", "history --page"),
    ("history export", "history --export"),
    ("prepare", "setup --models"),
    ("cache prune", "list cache --prune"),
    ("cache", "list cache"),
    ("footprint", "list footprint"),
];

/// Words as they are typed, and what they mean today.
pub(crate) struct Typed {
    words: Vec<OsString>,
    /// What the typed command is called today.
    pub(crate) hint: Option<String>,
}

impl Typed {
    /// Words, the program's name first. Flags before the command are put behind it, an earlier name of a command is
    /// replaced by today's, and a model's file without its flag gets it.
    pub(crate) fn new(words: impl IntoIterator<Item = impl Into<OsString>>) -> Typed {
        let mut words: Vec<OsString> = words.into_iter().map(Into::into).collect();
        let mut hint = None;
        let first = 1 + flags_of_all(&words[1.min(words.len())..]);
        let word = |place: usize| words.get(place).and_then(|word: &OsString| word.to_str());
        let Some(command) = word(first) else { return Typed { words, hint } };
        let two = word(first + 1).map(|second| format!("{command} {second}"));
        let known =
            |typed: &str| RENAMED.iter().find(|(before, _)| *before == typed).map(|(_, today)| *today);
        let both = two.as_deref().and_then(known).map(|today| (2, today));
        let split = |today: &str| today.split(' ').map(str::to_owned).collect::<Vec<String>>();
        let model = |path: &str| ["compare", "--model", path].map(str::to_owned).to_vec();
        let (count, today) = match both.or_else(|| known(command).map(|today| (1, today))) {
            Some((count, today)) => {
                let typed = if count == 2 { two.unwrap_or_default() } else { command.to_owned() };
                hint = Some(format!("`photofinish {typed}` is `photofinish {today}` now"));
                (count, split(today))
            }
            None if is_model(command) => (1, model(command)),
            // `help generate` is `help run`.
            None if command == "help" => match word(first + 1).and_then(known) {
                Some(today) => (2, vec!["help".to_owned(), split(today).swap_remove(0)]),
                None => (1, split(command)),
            },
            None => match word(first + 1).filter(|next| command == "compare" && is_model(next)) {
                Some(path) => (2, model(path)),
                None if is_command(command) => (1, split(command)),
                None => return Typed { words, hint },
            },
        };
        let before: Vec<OsString> = words.drain(1..first).collect();
        let length = today.len();
        words.splice(1..=count, today.into_iter().map(OsString::from));
        words.splice(1 + length..1 + length, before);
        Typed { words, hint }
    }

    pub(crate) fn parse(&self) -> clap::error::Result<Cli> {
        Cli::try_parse_from(&self.words).map_err(|error| with_hint(error, &self.words))
    }
}

/// Number of words in front that are flags of every command, with their values.
fn flags_of_all(words: &[OsString]) -> usize {
    let mut count = 0;
    while let Some(word) = words.get(count).and_then(|word| word.to_str()) {
        match word {
            "-v" | "--verbose" | "-q" | "--quiet" | "--dry-run" => count += 1,
            "--color" => count += 2,
            _ if word.starts_with("--color=") => count += 1,
            _ => break,
        }
    }
    count
}

/// Flags of `compare` that are given as variables of the environment, which are not read.
pub(crate) fn flags_as_variables(names: impl Iterator<Item = String>) -> Vec<String> {
    let is_flag = |name: &String| {
        let program = Cli::command();
        let compare = program.find_subcommand("compare");
        compare.is_some_and(|compare| compare.get_arguments().any(|flag| flag.get_long() == Some(name)))
    };
    let flags =
        names.filter_map(|name| Some(name.strip_prefix("PHOTOFINISH_")?.to_lowercase().replace('_', "-")));
    // The tests' own.
    flags.filter(|name| name != "seed" && is_flag(name)).map(|name| format!("--{name}")).collect()
}

/// Whether a word names a model's file or directory, and no command.
fn is_model(word: &str) -> bool {
    let is_file =
        word.ends_with(".gguf") || word.ends_with(".onnx") || Path::new(word).join("config.json").is_file();
    !is_command(word) && (is_file || word.starts_with("hf:") || word.starts_with("synthetic:"))
}

fn is_command(word: &str) -> bool {
    Cli::command().find_subcommand(word).is_some()
}

/// Reads words, the program's name first.
pub(crate) fn parse(words: impl IntoIterator<Item = impl Into<OsString>>) -> clap::error::Result<Cli> {
    Typed::new(words).parse()
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
    !word.starts_with('-') && !is_command(word)
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

    fn error(line: &str) -> String {
        parse(line.split(' ')).unwrap_err().to_string()
    }

    /// Spellings of llama-bench, hyperfine, pytest-benchmark, transformers, git, and guides: words behind `photofinish`,
    /// and a part of the error, or nothing where they are understood. Every hint and every earlier name is one, too.
    const SPELLINGS: [(&str, &str); 64] = [
        ("--dry-run compare", ""),
        ("-v compare --quick", ""),
        ("-q compare", ""),
        ("--color never list", ""),
        ("--color=never history --trend", ""),
        ("-v --dry-run sweep size", ""),
        ("model.gguf", ""),
        ("model.onnx --quick", ""),
        ("compare model.gguf", ""),
        ("-v model.gguf", ""),
        ("hf:owner/name", ""),
        ("synthetic:llama-tiny --rounds 6", ""),
        ("--framework candle", ""),
        ("--depth 5", ""),
        ("--length 5", ""),
        ("sweep prefill", ""),
        ("sweep decode", ""),
        ("ls", ""),
        ("list engines", ""),
        ("--texts file.txt", ""),
        ("--device gpu", ""),
        ("--device gpu:1", ""),
        ("--time-budget 5m", ""),
        ("--timeout 1.5h", ""),
        ("--memory 8GB", ""),
        ("--memory 8", ""),
        ("--margin 3%", ""),
        ("--margin 3", ""),
        ("--fair-comparison", ""),
        ("history --metric throughput", ""),
        ("--time-budget 5", "with its unit"),
        ("--timeout 5", "with its unit"),
        ("--delay 5", "with its unit"),
        ("--quiet-timeout 5", "with its unit"),
        ("--slo 50", "with its unit"),
        ("--threads all", "leave it out"),
        ("--threads auto", "leave it out"),
        ("--precision fp16", "f16 or bf16"),
        ("--precision float16", "f16 or bf16"),
        ("--precision q4_k_m", "--precision file"),
        ("--precision 4bit", "possible"),
        ("--device mps", "no column computes there"),
        ("--device tpu", "no column computes there"),
        ("--rounds many", "auto, or a number"),
        ("--batch all", "max, or a number"),
        ("candle ort", "follow `--frameworks`"),
        ("candle", "follow `--frameworks`"),
        ("compare candle ort", "follow `--frameworks`"),
        ("compare --frameworks candle ort", "follow `--frameworks`"),
        ("profile ort", "follow `--frameworks`"),
        ("--reference=tch", "write `--parity-reference` in place of `--reference`"),
        ("-v models", "write `list models` in place of `models`"),
        ("report . --bundle", "write `--archive` in place of `--bundle`"),
        ("--fair-comparison=false", "write `--allow-unfair`"),
        ("--frames candle", "similar argument exists: '--frameworks'"),
        ("--modle x", "similar argument exists: '--model'"),
        ("sweep", "required arguments"),
        ("run --model x", "--framework"),
        ("check --threshold 0.05", "percent"),
        ("--cold-load maybe", "possible values: on, off"),
        ("--kv-cache none", "possible values: on, off"),
        ("--schedule random", "auto, interleaved, sequential"),
        ("--format yaml", "table, json, markdown, csv"),
        ("--top-k 5", "--temperature"),
    ];

    #[test]
    fn what_people_type_is_understood_or_gets_the_right_tip() {
        let count = SPELLINGS.len() + HINTS.len() + RENAMED.len();
        assert!(count >= 120, "{count} spellings");
        for (line, tip) in SPELLINGS {
            let words = format!("photofinish {line}");
            match (parse(words.split(' ')), tip) {
                (Ok(_), "") => {}
                (Ok(_), tip) => panic!("{line} is understood, and {tip:?} is expected"),
                (Err(error), tip) => {
                    let error = error.to_string();
                    assert!(!tip.is_empty() && error.contains(tip), "{line}: {tip:?}: {error}");
                }
            }
        }
        for (typed, written) in HINTS.iter().filter(|(typed, _)| *typed != "--fair-comparison") {
            // A command's flag, where `compare` has one of that name.
            let line = format!("photofinish {typed}");
            let Err(error) = parse(line.split(' ')) else { continue };
            let tip = format!("write `{written}` in place of `{typed}`");
            let error = error.to_string();
            assert!(error.contains(&tip) || error.contains("a value is required"), "{line}: {error}");
        }
    }

    #[test]
    fn an_earlier_name_is_understood_and_says_todays() {
        let rest = |before: &str| match before {
            "generate" | "denoise" => "--framework a --tokens 1",
            "embed" | "classify" => "--framework a --text a",
            "rerank" => "--framework a --pair a b",
            "infer" => "--framework a --output a",
            "score" => "--framework a --tokens-file a --output b",
            "ab" | "ablate" => "kv-cache",
            "gate" => "--framework candle --base main --threshold 3%",
            "trace" => "--framework a --batch 2 --output a",
            "prepare" => "a b --precision int8",
            "history export" => "a --all",
            "cache prune" => "--unused-for 3 --keep a",
            "footprint" => "--frameworks a --build",
            _ => "",
        };
        for (before, today) in RENAMED {
            let line = format!("photofinish {before} {}", rest(before));
            let typed = Typed::new(line.split_whitespace());
            assert!(typed.hint.as_ref().is_some_and(|hint| hint.contains(today)), "{line}: {:?}", typed.hint);
            if let Err(error) = typed.parse() {
                panic!("{line}: {error}");
            }
        }
        assert_eq!(Typed::new(["photofinish", "compare", "--prompt", "generate"]).hint, None);
        assert_eq!(Typed::new(["photofinish", "history"]).hint, None);
        assert_eq!(Typed::new(["photofinish", "help", "ab"]).words, ["photofinish", "help", "sweep"]);
    }

    #[test]
    fn a_flag_as_a_variable_is_named() {
        let names = ["PHOTOFINISH_TIME_BUDGET", "PHOTOFINISH_MIRROR", "THREADS", "PHOTOFINISH_SEED"];
        assert_eq!(flags_as_variables(names.map(str::to_owned).into_iter()), ["--time-budget"]);
    }

    #[test]
    fn an_unknown_flag_has_no_hint_about_names() {
        for line in ["compare --frames candle", "profile", "doctor candle", "--dry-run sweep"] {
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
