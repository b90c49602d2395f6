//! Earlier spellings of commands and flags, and words that people try: they work, and a hint names the present spelling.

use std::ffi::OsString;

use clap::builder::StyledStr;
use clap::error::{ContextKind, ContextValue, ErrorKind};
use clap::{CommandFactory, Parser};

use super::Cli;

/// Commands. What follows them stays.
const COMMANDS: [(&str, &[&str]); 7] = [
    ("bundles", &["cache"]),
    ("models", &["list", "models"]),
    ("frameworks", &["list", "frameworks"]),
    ("engines", &["list", "frameworks"]),
    ("suites", &["list", "suites"]),
    ("bench", &["compare"]),
    ("regress", &["check"]),
];

/// Flags that take the same value as before, or none.
const FLAGS: [(&str, &str); 11] = [
    ("--bundle", "--archive"),
    ("--dtype", "--precision"),
    ("--export-metrics", "--export"),
    ("--kv-precision", "--kv-type"),
    ("--out", "--output"),
    ("--patience", "--quiet-timeout"),
    ("--prompts", "--prompt-file"),
    ("--reference", "--parity-reference"),
    ("--runs", "--rounds"),
    ("--seq", "--prompt-tokens"),
    ("--shards", "--tensor-parallel"),
];

/// Flags that had another form, with their values: those before become those after.
const FORMS: [(&str, &[&str]); 5] = [
    ("--fair-comparison=false", &["--allow-unfair"]),
    ("--fair-comparison=true", &[]),
    ("--fair-comparison", &[]),
    ("--latest", &["latest"]),
    ("--no-half", &["--precision", "f32"]),
];

/// Flags without a value that may come before a command.
const BEFORE_COMMANDS: [&str; 3] = ["-v", "--verbose", "--dry-run"];

/// Reads words as typed, the program's name first, with a hint for each earlier spelling.
pub(crate) fn read(words: impl IntoIterator<Item = String>) -> (clap::error::Result<Cli>, Vec<String>) {
    let (words, hints) = present(words.into_iter().collect());
    (Cli::try_parse_from(words), hints)
}

/// The same for the words of this program's own start. Paths need not be UTF-8; then the present spellings alone are read.
pub(crate) fn read_start(words: Vec<OsString>) -> (clap::error::Result<Cli>, Vec<String>) {
    let texts: Option<Vec<String>> = words.iter().map(|word| word.to_str().map(str::to_owned)).collect();
    texts.map_or_else(|| (Cli::try_parse_from(&words), Vec::new()), read)
}

/// The same without hints: for words that were recorded, or that this program writes.
pub(crate) fn parse(words: impl IntoIterator<Item = String>) -> clap::error::Result<Cli> {
    read(words).0
}

/// Adds the flags that take names to an error about a name without its flag, such as `compare candle`. `words` as typed, the
/// program's name first.
pub(crate) fn with_tip(mut error: clap::Error, words: &[OsString]) -> clap::Error {
    let program = Cli::command();
    let command = words.iter().skip(1).find_map(|word| program.find_subcommand(word)).unwrap_or(&program);
    let names = ["framework", "frameworks"];
    let takes_names =
        command.get_arguments().any(|flag| flag.get_long().is_some_and(|it| names.contains(&it)));

    let unexpected = error.get(ContextKind::InvalidArg).or_else(|| error.get(ContextKind::InvalidSubcommand));
    let is_flag = |word: &ContextValue| matches!(word, ContextValue::String(word) if word.starts_with('-'));
    let is_name = unexpected.is_some_and(|word| !is_flag(word));
    let kinds = [ErrorKind::UnknownArgument, ErrorKind::ArgumentConflict];
    if takes_names && kinds.contains(&error.kind()) && is_name && error.get(ContextKind::Suggested).is_none()
    {
        let tip = "frameworks follow `--frameworks` with commas between them, a model follows `--model`";
        error.insert(ContextKind::Suggested, ContextValue::StyledStrs(vec![StyledStr::from(tip)]));
    }
    error
}

/// The words in their present spelling, with hints. Those after `--` are another command's.
pub(super) fn present(words: Vec<String>) -> (Vec<String>, Vec<String>) {
    let end = words.iter().position(|word| word == "--").unwrap_or(words.len());
    let (own, others) = words.split_at(end);
    let mut hints = Vec::new();
    let mut hint = |earlier: &str, present: &[&str]| {
        hints.push(match present {
            [] => format!("hint: leave out {earlier}, which is the default"),
            present => format!("hint: write {} in place of {earlier}", present.join(" ")),
        });
    };
    let mut spelt = Vec::new();
    // Behind any other flag it may be the flag's value.
    let is_before = |word: &String| BEFORE_COMMANDS.contains(&word.as_str());
    let at = own.iter().skip(1).position(|word| !is_before(word)).map(|at| at + 1);
    for (place, word) in own.iter().enumerate() {
        if Some(place) == at
            && let Some((earlier, present)) = COMMANDS.iter().find(|(earlier, _)| earlier == word)
        {
            hint(earlier, present);
            spelt.extend(present.iter().map(|word| (*word).to_owned()));
            continue;
        }
        if let Some((earlier, present)) = FORMS.iter().find(|(earlier, _)| earlier == word) {
            hint(earlier, present);
            spelt.extend(present.iter().map(|word| (*word).to_owned()));
            continue;
        }
        let (name, value) =
            word.split_once('=').map_or((word.as_str(), None), |(name, value)| (name, Some(value)));
        match FLAGS.iter().find(|(earlier, _)| *earlier == name) {
            Some((earlier, present)) => {
                hint(earlier, &[present]);
                spelt.push(value.map_or((*present).to_owned(), |value| format!("{present}={value}")));
            }
            None => spelt.push(word.clone()),
        }
    }
    spelt.extend(others.iter().cloned());
    (spelt, hints)
}

// The parts of the help other than flags: version, examples, exit codes.

/// Version, commit and build, for bug reports.
pub(super) const VERSION: &str = concat!(
    env!("CARGO_PKG_VERSION"),
    " (commit ",
    env!("BUILD_COMMIT"),
    ", ",
    env!("BUILD_PROFILE"),
    " build for ",
    env!("BUILD_TARGET"),
    ")"
);

pub(super) const AFTER_HELP: &str = "\
Examples:
  photofinish                                candle, tch and ort on the default model: 3 minutes
  photofinish --quick --model ~/models/mine  a first look at a model of yours
  photofinish --frameworks candle,ort --time-budget 8";

pub(super) const AFTER_LONG_HELP: &str = "\
Examples:
  photofinish                                candle, tch and ort on the default model: 3 minutes
  photofinish --quick --model ~/models/mine  a first look at a model of yours
  photofinish --frameworks candle,ort --time-budget 8

Exit codes:
  0    success: everything was measured, or is not supported by its framework
  1    a framework failed or was struck, or nothing could be measured
  2    bad usage
  3    the machine was too noisy for a verdict
  4    `check` found a regression
  130  interrupted; what was measured is saved";

/// Headings of flags. Flags that the short help hides are in the long one.
pub(super) const COMPARE: &str = "What to compare";

pub(super) const EXPERT: &str = "Expert";

pub(super) const WORK: &str = "What work";

// Values that people expect and that are not supported, each with the reason: docs/reference/not-supported.md has the
// same.

/// Kinds of devices.
const DEVICES: [(&[&str], &str); 1] = [(
    &[
        "tpu", "mps", "metal", "ane", "rocm", "hip", "amd", "xpu", "npu", "vulkan", "webgpu", "wgpu",
        "opencl", "directml",
    ],
    "no column computes there: the workers and their libraries are built for CPUs and for CUDA",
)];

/// Precisions.
const PRECISIONS: [(&[&str], &str); 4] = [
    (
        &["mixed", "amp", "autocast"],
        "mixed precision is no single precision that all frameworks share: name one, such as bf16; the row says what activations are computed in",
    ),
    (&["fp8", "float8", "int2", "q2"], "no column computes in it"),
    (&["fp32", "float32", "float"], "it is written f32"),
    (&["fp16", "float16", "half", "bfloat16"], "16 bits are written f16 or bf16"),
];

/// The reason why a device is not supported, if it is one that people expect.
pub(super) fn device(named: &str) -> Option<&'static str> {
    let kind = named.split(':').next().unwrap_or(named).to_ascii_lowercase();
    reason(&DEVICES, &kind)
}

/// The same of a precision.
pub(super) fn precision(named: &str) -> Option<&'static str> {
    reason(&PRECISIONS, named)
}

/// The names of all precisions that have a reason.
pub(super) fn precisions() -> impl Iterator<Item = &'static str> {
    PRECISIONS.iter().flat_map(|(names, _)| names.iter().copied())
}

fn reason(table: &[(&[&str], &'static str)], named: &str) -> Option<&'static str> {
    table.iter().find(|(names, _)| names.contains(&named)).map(|(_, reason)| *reason)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn spelt(line: &str) -> (String, usize) {
        let (words, hints) = present(line.split(' ').map(str::to_owned).collect());
        (words.join(" "), hints.len())
    }

    #[test]
    fn earlier_spellings_become_present_ones_with_a_hint_each() {
        let cases = [
            ("p report . --bundle", "p report . --archive", 1),
            (
                "p compare --reference=tch --seq 4,8",
                "p compare --parity-reference=tch --prompt-tokens 4,8",
                2,
            ),
            ("p --fair-comparison=false --no-half", "p --allow-unfair --precision f32", 2),
            ("p --fair-comparison --quick", "p --quick", 1),
            ("p -v models", "p -v list models", 1),
            ("p compare --prompt bundles", "p compare --prompt bundles", 0),
        ];
        for (earlier, present, hints) in cases {
            assert_eq!(spelt(earlier), (present.to_owned(), hints), "{earlier}");
        }
    }

    #[test]
    fn a_name_without_its_flag_gets_a_tip_and_an_unknown_flag_does_not() {
        let tip = |line: &str| {
            let words: Vec<String> = line.split(' ').map(str::to_owned).collect();
            let error = parse(words.clone()).unwrap_err();
            let error = with_tip(error, &words.into_iter().map(OsString::from).collect::<Vec<_>>());
            error.to_string().contains("follow `--frameworks`")
        };
        assert!(tip("photofinish compare candle ort") && tip("photofinish trace ort"));
        assert!(!tip("photofinish compare --frames candle") && !tip("photofinish trace"));
        assert!(!tip("photofinish doctor candle"));
    }

    #[test]
    fn every_present_spelling_can_be_typed() {
        let command = Cli::command();
        for (_, present) in COMMANDS {
            let first = command.find_subcommand(present[0]).unwrap_or_else(|| panic!("{present:?}"));
            assert!(
                present.get(1).is_none_or(|second| first.find_subcommand(second).is_some()
                    || first.get_positionals().next().is_some()),
                "{present:?}"
            );
        }
        let of_all = command.get_subcommands().flat_map(|command| {
            command.get_arguments().chain(command.get_subcommands().flat_map(clap::Command::get_arguments))
        });
        let flags: Vec<String> = of_all.filter_map(|flag| Some(format!("--{}", flag.get_long()?))).collect();
        for (_, present) in FLAGS {
            assert!(flags.iter().any(|flag| flag == present), "{present}");
        }
    }
}
