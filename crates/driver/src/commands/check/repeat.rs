//! Measuring again what a baseline measured: its recorded command, with what is typed now in its place.

use std::ffi::OsString;

use clap::parser::ValueSource;
use clap::{ArgAction, ArgMatches, Args, Command, CommandFactory};
use history::Record;

use crate::cli::{Cli, CompareArgs};
use crate::failure::{Failure, Result};

/// A flag of a comparison as it was typed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Typed {
    /// As clap knows it.
    id: String,
    /// `--name=value`, once for each value.
    words: Vec<OsString>,
}

/// What a measurement does not inherit: where things are, what is printed, whether noise is put up with, and the
/// draw of the seed.
const NOT_REPEATED: [&str; 8] =
    ["format", "results_dir", "configs", "workers", "quiet", "accept_noise", "seed", "patience"];

/// Of the flags of a comparison, those that were typed.
pub(super) fn typed(matches: &ArgMatches) -> Vec<Typed> {
    let flags = CompareArgs::augment_args(Command::new("compare"));
    let of_flag = |flag: &clap::Arg| {
        let (id, long) = (flag.get_id().as_str(), flag.get_long()?);
        if matches.value_source(id) != Some(ValueSource::CommandLine) {
            return None;
        }
        let with_value = |value: &std::ffi::OsStr| {
            let mut word = OsString::from(format!("--{long}="));
            word.push(value);
            word
        };
        let words = match flag.get_action() {
            ArgAction::SetTrue => vec![OsString::from(format!("--{long}"))],
            _ => matches.get_raw(id)?.map(with_value).collect(),
        };
        Some(Typed { id: id.to_owned(), words })
    };
    flags.get_arguments().filter_map(of_flag).collect()
}

/// Whether anything that decides what is measured was typed.
pub(super) fn says_what_to_measure(typed: &[Typed]) -> bool {
    typed.iter().any(|flag| !NOT_REPEATED.contains(&flag.id.as_str()))
}

/// The command that measures what `baseline` measured, except for what is typed now.
pub(super) fn command(baseline: &[&Record], typed_now: &[Typed]) -> Result<Vec<String>> {
    let first = baseline.first().ok_or_else(|| Failure::usage("the baseline holds nothing"))?;
    if let Some(study) = &first.study {
        return Err(Failure::usage(format!(
            "the baseline {} is a cell of the study {study:?}, which cannot be measured again by itself: name the run \
             to judge with --current",
            first.run
        )));
    }
    let recorded = parse(&first.command).map_err(|error| {
        Failure::usage(format!(
            "the baseline's command cannot be repeated ({error}): name the run to judge with --current"
        ))
    })?;
    let mut flags: Vec<Typed> = Vec::new();
    let mut set = |id: &str, values: Vec<String>| {
        let words = values.into_iter().map(|value| format!("--{}={value}", id.replace('_', "-")).into());
        flags.push(Typed { id: id.to_owned(), words: words.collect() });
    };
    set("frameworks", frameworks(baseline));
    let rounds = baseline.iter().map(|record| record.rounds).max().unwrap_or(0).max(1);
    set("rounds", vec![rounds.to_string()]);
    if recorded.iter().any(|flag| flag.id == "quantize") {
        set("precision", vec![first.case.precision.clone()]);
    }
    let ours = |flags: &[Typed], id: &str| flags.iter().any(|flag| flag.id == id);
    let kept = recorded.into_iter().filter(|flag| {
        let replaced = ours(&flags, &flag.id) || flag.id == "quantize";
        !replaced && !NOT_REPEATED.contains(&flag.id.as_str())
    });
    let kept: Vec<Typed> = kept.collect();
    flags.extend(kept);
    flags.retain(|flag| !ours(typed_now, &flag.id));
    // Ways to say the same, of which a command has one.
    for group in [["prompt", "prompts", "suite"], ["precision", "no_half", "quantize"]] {
        if group.iter().any(|id| ours(typed_now, id)) {
            flags.retain(|flag| !group.contains(&flag.id.as_str()));
        }
    }
    flags.extend_from_slice(typed_now);
    let words = flags.iter().flat_map(|flag| &flag.words).map(|word| word.to_string_lossy().into_owned());
    Ok(["driver".to_owned(), "compare".to_owned()].into_iter().chain(words).collect())
}

/// In the order of the table; an A/A control's copies are named as often as they ran, a base of an interleaved
/// check not at all.
fn frameworks(baseline: &[&Record]) -> Vec<String> {
    let engine = |record: &&Record| {
        let label = record.framework.as_str();
        let copied = label.rsplit_once(" (").filter(|(_, rest)| rest.ends_with(')'));
        let name = copied.map_or(label, |(name, _)| name);
        (!name.ends_with(super::interleaved::BASE)).then(|| name.to_owned())
    };
    baseline.iter().filter_map(engine).collect()
}

/// Flags of a comparison in a recorded command.
fn parse(command: &[String]) -> std::result::Result<Vec<Typed>, String> {
    let said = |error: clap::Error| {
        let text = error.to_string();
        text.lines().next().unwrap_or_default().trim_start_matches("error: ").to_owned()
    };
    let matches = Cli::command().try_get_matches_from(command).map_err(said)?;
    match matches.subcommand() {
        None => Ok(typed(&matches)),
        Some(("compare" | "check", matches)) => Ok(typed(matches)),
        Some((other, _)) => Err(format!("it is `driver {other}`")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::check::testing;

    fn now(words: &[&str]) -> Vec<Typed> {
        let words: Vec<String> = words.iter().map(|word| (*word).to_owned()).collect();
        parse(&[&["driver".to_owned()][..], &words].concat()).unwrap()
    }

    fn repeated(recorded: &[&str], typed: &[&str]) -> String {
        let mut record = testing::record("one", 100.0);
        record.command = recorded.iter().map(|word| (*word).to_owned()).collect();
        command(&[&record], &now(typed)).unwrap().join(" ")
    }

    #[test]
    fn settings_are_repeated_and_places_are_not() {
        let recorded = ["driver", "--frameworks", "one,two", "--model", "m", "--workers", "w", "--no-jit"];
        assert_eq!(
            repeated(&recorded, &[]),
            "driver compare --frameworks=one --rounds=6 --model=m --no-jit",
            "one of the two frameworks is in the record"
        );
    }

    #[test]
    fn what_is_typed_now_wins() {
        let recorded = ["driver", "compare", "--prompt", "a b", "--new-tokens", "8", "--no-half"];
        let found = repeated(&recorded, &["--new-tokens", "9", "--prompt", "c", "--precision=bf16"]);
        assert_eq!(
            found,
            "driver compare --frameworks=one --rounds=6 --precision=bf16 --prompt=c --new-tokens=9"
        );
    }

    #[test]
    fn a_study_is_not_repeated() {
        let mut record = testing::record("one", 100.0);
        record.command = ["driver", "sweep", "forward"].map(str::to_owned).into();
        let error = command(&[&record], &[]).unwrap_err().to_string();
        assert!(error.contains("`driver sweep`") && error.contains("--current"), "{error}");
    }
}
