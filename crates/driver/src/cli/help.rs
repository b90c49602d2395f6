//! The parts of the help other than flags: version, examples, exit codes, and the flags of a topic.

use clap::CommandFactory;
use comparison::plan::work::{denoise, encode, graph};
use comparison::plan::{flags, serving};

use super::Cli;

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

const EXAMPLES: &str = "\
Examples:
  photofinish                                candle, tch and ort on the default model: 3 minutes
  photofinish --quick --model ~/models/mine  a first look at a model of yours
  photofinish --frameworks candle,ort --time-budget 8m
";

const EXIT_CODES: &str = "
Exit codes:
  0    success: everything was measured, or is not supported by its framework
  1    a framework failed or was struck, or nothing could be measured
  2    bad usage
  3    the machine was too noisy for a verdict, or a spread exceeded --max-cv
  4    `check` found a regression
  130  interrupted; what was measured is saved";

pub(super) fn after_help() -> String {
    let topics: Vec<&str> = TOPICS[1..].iter().map(|(topic, _)| *topic).collect();
    format!("{EXAMPLES}Other flags: photofinish help {}", topics.join("|"))
}

pub(super) fn after_long_help() -> String {
    format!("{EXAMPLES}{EXIT_CODES}")
}

/// Heading of the flags that say where results go, and in what form.
pub(super) const OUTPUT: &str = "Output";

/// Topics of `photofinish help`, with the heading of their flags.
const TOPICS: [(&str, &str); 9] = [
    ("compare", flags::COMPARE),
    ("work", flags::WORK),
    encode::TOPIC,
    denoise::TOPIC,
    graph::TOPIC,
    serving::TOPIC,
    ("evidence", flags::EVIDENCE),
    ("expert", flags::EXPERT),
    ("output", OUTPUT),
];

/// The flags of a comparison that belong to a topic; `None` for another word.
pub(crate) fn topic(name: &str) -> Option<String> {
    let (_, heading) = TOPICS.iter().skip(1).find(|(topic, _)| *topic == name)?;
    let mut program = Cli::command();
    let compare = program.find_subcommand_mut("compare")?.clone();
    let of_topic = compare.mut_args(|flag| match flag.get_help_heading() == Some(*heading) {
        true => flag.hide_short_help(false),
        false => flag.hide(true),
    });
    Some(of_topic.disable_help_flag(true).help_template("{all-args}\n").render_help().to_string())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_short_help_of_compare_fits_thirty_lines_and_a_topic_has_its_flags() {
        let compare = || Cli::command().find_subcommand("compare").unwrap().clone();
        let short = compare().render_help().to_string();
        assert!(short.lines().count() <= 30, "{} lines:\n{short}", short.lines().count());
        for (name, heading) in TOPICS.into_iter().skip(1) {
            let text = topic(name).unwrap();
            assert!(text.starts_with(heading) && text.contains("\n      --"), "{name}: {text}");
            assert!(short.contains(name), "{name}");
        }
        let headings = TOPICS.map(|(_, heading)| heading);
        for flag in compare().get_arguments().filter(|flag| !flag.is_hide_set() && flag.get_id() != "help") {
            let heading = flag.get_help_heading().unwrap_or_default();
            assert!(headings.contains(&heading), "--{} has no topic", flag.get_long().unwrap_or_default());
        }
        assert_eq!(topic("doctor"), None);
    }
}
