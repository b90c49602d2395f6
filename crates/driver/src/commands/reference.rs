//! `photofinish reference`: every command and flag as a page of Markdown, from clap. `docs/reference/cli.md` is printed
//! from here. `photofinish reference fields` prints the fields of files.

mod fields;

use clap::{Arg, ArgAction, Command, CommandFactory};

use crate::cli::{Cli, ReferencePage};

const WIDEST: usize = 120;

const TITLE: &str = "\
# Command line

Printed by `photofinish reference`; a test compares this page with the code. Do not edit it by hand.

`photofinish --help` has the same text. Without a command, `compare` runs. A flag that takes a list takes it with commas
or is given several times.
";

const EXIT_CODES: &str = "\
## Exit codes

| code | meaning |
|---|---|
| 0 | success: everything was measured, or is not supported by its framework |
| 1 | a framework failed, a row was struck, nothing could be measured, or results could not be saved |
| 2 | bad usage or input, or a file of another schema; nothing was measured |
| 3 | the machine was too noisy for a verdict on speed (`--accept-noise` overrides) |
| 4 | `check` or `gate` found a regression |
| 130 | interrupted; what was measured is saved and printed, unless a second signal came |

Some commands add to this:

| command | code | when |
|---|---|---|
| `compare --quantize`, `sweep`, `ab`, `report DIR DIR` | the largest | of all comparisons and cells |
| `report DIR DIR` | at least 1 | cells are missing |
| `parity` | 1 | a framework diverges or failed, or nothing could be compared |
| `check`, `gate` | 1 | a framework failed, computed something other than the reference, or broke a fairness rule |
| | 2 | also: the two runs must not be compared |
| | 3 | also: too little evidence, or a machine that changed between the runs. It says nothing about the change |
| `report` | 2 | there is no plan, the schema is not 5, or the journal has `iteration` events |
| `worker-check` | 1 | a phase does not hold |
";

pub(crate) fn page(page: ReferencePage) -> String {
    match page {
        ReferencePage::Commands => markdown(),
        ReferencePage::Fields => fields::markdown(),
    }
}

/// The text of `docs/reference/cli.md`.
fn markdown() -> String {
    let mut command = Cli::command();
    command.build();
    let compare = command.find_subcommand("compare").cloned().unwrap_or_default();
    let mut page = TITLE.to_owned() + "\n" + &overview(&command);
    page += "\n## Flags of every command\n\n";
    page += &table("flag", command.get_arguments().filter(|arg| arg.is_global_set()));
    write(&mut page, &command, "", &compare);
    page + "\n" + EXIT_CODES
}

/// The commands below `of`, each with its description.
fn overview(of: &Command) -> String {
    let mut text = String::from("| command | what it does |\n|---|---|\n");
    for command in visible(of) {
        let about = command.get_about().map_or(String::new(), |about| one_line(&about.to_string()));
        text += &format!("| [`{0}`](#{0}) | {1} |\n", command.get_name(), untrusted::cell(&about));
    }
    text + "| | [exit codes](#exit-codes) |\n"
}

fn visible(of: &Command) -> impl Iterator<Item = &Command> {
    of.get_subcommands().filter(|command| !command.is_hide_set() && command.get_name() != "help")
}

/// A section for each command below `of`, named with the words `before` it.
fn write(page: &mut String, of: &Command, before: &str, compare: &Command) {
    for command in visible(of) {
        let name = format!("{before}{}", command.get_name());
        *page += &format!("\n## {name}\n\n{}", about(command));
        *page += &arguments(command, compare);
        write(page, command, &format!("{name} "), compare);
    }
}

/// A command's description, and its other names.
fn about(command: &Command) -> String {
    let text = command.get_long_about().or_else(|| command.get_about());
    let text = text.map_or(String::new(), ToString::to_string);
    let paragraphs = text.split("\n\n").map(|paragraph| {
        let line = untrusted::markdown(&one_line(paragraph));
        let end = if line.ends_with(['.', ':', '`']) { "" } else { "." };
        wrapped(&(line + end))
    });
    let mut text = paragraphs.collect::<Vec<_>>().join("\n\n") + "\n";
    let aliases: Vec<String> = command.get_visible_aliases().map(|alias| format!("`{alias}`")).collect();
    if !aliases.is_empty() {
        text += &format!("\nAlso called {}.\n", aliases.join(", "));
    }
    text
}

/// Tables of the arguments of a command: those without a name, then its flags by heading. Flags that `compare` has
/// just so are only named.
fn arguments(command: &Command, compare: &Command) -> String {
    let is_shown = |arg: &&Arg| !arg.is_hide_set() && !arg.is_global_set() && !is_of_clap(arg);
    let is_shared = |arg: &&Arg| {
        command.get_name() != compare.get_name() && compare.get_arguments().any(|theirs| is_same(arg, theirs))
    };
    let (shared, own): (Vec<&Arg>, Vec<&Arg>) = command.get_arguments().filter(is_shown).partition(is_shared);
    let mut text = String::new();
    let mut section = |title: String, args: Vec<&Arg>| {
        if !args.is_empty() {
            text += &format!("\n{}", table(&title, args.into_iter()));
        }
    };
    section("argument".to_owned(), own.iter().copied().filter(|arg| arg.is_positional()).collect());
    let flags: Vec<&Arg> = own.into_iter().filter(|arg| !arg.is_positional()).collect();
    let mut headings: Vec<Option<&str>> = Vec::new();
    for heading in flags.iter().map(|arg| arg.get_help_heading()) {
        if !headings.contains(&heading) {
            headings.push(heading);
        }
    }
    for heading in headings {
        let of_heading = flags.iter().copied().filter(|arg| arg.get_help_heading() == heading);
        section(heading.map_or("flag".to_owned(), str::to_lowercase), of_heading.collect());
    }
    text + &named(&shared, compare)
}

/// Whether a flag of one command has the same help and values as a flag of another.
fn is_same(ours: &Arg, theirs: &Arg) -> bool {
    ours.get_long().is_some() && spelled(ours) == spelled(theirs) && help(ours) == help(theirs)
}

/// The sentence on the flags that a command shares with `compare`.
fn named(shared: &[&Arg], compare: &Command) -> String {
    let own = compare
        .get_arguments()
        .filter(|arg| !arg.is_hide_set() && !arg.is_global_set() && !is_of_clap(arg) && !arg.is_positional());
    let missing: Vec<String> = own
        .filter(|theirs| !shared.iter().any(|ours| is_same(ours, theirs)))
        .map(|arg| format!("`--{}`", arg.get_long().unwrap_or_default()))
        .collect();
    let names = |names: &[String]| names.join(", ");
    let sentence = match (shared, missing.len()) {
        ([], _) => return String::new(),
        (_, 0) => "It also takes every flag of [compare](#compare).".to_owned(),
        (shared, left) if left < shared.len() => {
            format!("It also takes the flags of [compare](#compare), except {}.", names(&missing))
        }
        (shared, _) => {
            let flags: Vec<String> =
                shared.iter().map(|arg| format!("`--{}`", arg.get_long().unwrap_or_default())).collect();
            format!("As in [compare](#compare): {}.", names(&flags))
        }
    };
    format!("\n{}\n", wrapped(&sentence))
}

fn table<'a>(title: &str, args: impl Iterator<Item = &'a Arg>) -> String {
    let rows =
        args.map(|arg| format!("| {} | {} |\n", untrusted::cell(&spelled(arg)), untrusted::cell(&help(arg))));
    format!("| {title} | what it does |\n|---|---|\n") + &rows.collect::<String>()
}

/// `--help` and `--version`, which clap adds.
fn is_of_clap(arg: &Arg) -> bool {
    ["help", "version"].contains(&arg.get_id().as_str())
}

/// "`-m`, `--model NAME,…`", with other names of the flag.
fn spelled(arg: &Arg) -> String {
    let takes = match arg.get_action() {
        ArgAction::SetTrue | ArgAction::SetFalse | ArgAction::Count => String::new(),
        _ => value_names(arg),
    };
    let aliases = arg.get_visible_aliases().unwrap_or_default();
    let short = arg.get_short().map(|short| format!("-{short}"));
    let long = arg.get_long().into_iter().chain(aliases).map(|long| format!("--{long}"));
    let names: Vec<String> = short.into_iter().chain(long).collect();
    match names.split_last() {
        None => format!("`{takes}`"),
        Some((last, _)) if takes.is_empty() && names.len() == 1 => format!("`{last}`"),
        Some((last, before)) => {
            let before = before.iter().map(|name| format!("`{name}`, ")).collect::<String>();
            format!("{before}`{}`", format!("{last} {takes}").trim_end())
        }
    }
}

/// A flag's values as the help names them: the possible ones, if they are limited.
fn value_names(arg: &Arg) -> String {
    let values = arg.get_possible_values();
    let known: Vec<&str> =
        values.iter().filter(|value| !value.is_hide_set()).map(|value| value.get_name()).collect();
    let is_given = arg.get_value_names().is_some_and(|names| {
        names.iter().any(|name| !name.as_str().eq_ignore_ascii_case(&arg.get_id().as_str().replace('-', "_")))
    });
    match arg.get_value_names() {
        Some(names) if is_given || known.is_empty() => {
            names.iter().map(|name| name.as_str()).collect::<Vec<_>>().join(" ")
        }
        _ => known.join("|"),
    }
}

/// The help of an argument in one line, with its values and its default.
fn help(arg: &Arg) -> String {
    let text = arg.get_long_help().or_else(|| arg.get_help()).map_or(String::new(), ToString::to_string);
    let mut text = one_line(&text);
    let values = arg.get_possible_values();
    let explained = values.iter().filter(|value| !value.is_hide_set());
    let explained = explained.filter_map(|value| Some((value.get_name(), value.get_help()?)));
    for (name, meaning) in explained {
        text += &format!("; `{name}`: {}", one_line(&meaning.to_string()));
    }
    let defaults: Vec<String> =
        arg.get_default_values().iter().map(|value| value.to_string_lossy().into_owned()).collect();
    if arg.get_action().takes_values() && !defaults.is_empty() && !arg.is_hide_default_value_set() {
        text += &format!(" [default: {}]", defaults.join(","));
    }
    if arg.is_required_set() && !arg.is_positional() {
        text += " (required)";
    }
    text.trim_start_matches("; ").trim().to_owned()
}

fn one_line(text: &str) -> String {
    text.split_whitespace().collect::<Vec<_>>().join(" ")
}

/// A paragraph as lines of at most 120 columns.
fn wrapped(text: &str) -> String {
    let mut lines = vec![String::new()];
    for word in text.split(' ') {
        let line = lines.last_mut().expect("there is a first line");
        if line.is_empty() {
            line.push_str(word);
        } else if line.chars().count() + 1 + word.chars().count() <= WIDEST {
            *line += &format!(" {word}");
        } else {
            lines.push(word.to_owned());
        }
    }
    lines.join("\n")
}

#[cfg(test)]
mod tests {
    use super::*;

    const PAGE: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/reference/cli.md");

    /// Compares a page with the printed text; `UPDATE_REFERENCE=1` writes the page instead.
    pub(super) fn compare(page: &str, printed: &str) {
        if std::env::var_os("UPDATE_REFERENCE").is_some() {
            std::fs::write(page, printed).unwrap();
        }
        let written = std::fs::read_to_string(page).expect("the page is part of the checkout");
        assert_eq!(written, printed, "print it again: UPDATE_REFERENCE=1 cargo test -p driver reference");
    }

    #[test]
    fn the_page_for_people_is_printed_from_the_commands() {
        compare(PAGE, &markdown());
    }

    #[test]
    fn a_flag_is_spelled_with_all_its_names_and_what_it_takes() {
        let flag = Arg::new("model").short('m').long("model").value_name("NAME,…");
        assert_eq!(spelled(&flag), "`-m`, `--model NAME,…`");
        assert_eq!(spelled(&Arg::new("quiet").long("quiet").action(ArgAction::SetTrue)), "`--quiet`");
        assert_eq!(spelled(&Arg::new("dir").value_name("DIR")), "`DIR`");
    }

    #[test]
    fn a_flag_of_compare_is_explained_once() {
        let model = || Arg::new("model").long("model").help("which");
        let compare = Command::new("compare").arg(model()).arg(Arg::new("rounds").long("rounds"));
        let other = Command::new("sweep").arg(model()).arg(Arg::new("own").long("own").help("its own"));
        let text = arguments(&other, &compare);
        assert!(text.contains("| `--own` | its own |"), "{text}");
        assert!(text.ends_with("\nAs in [compare](#compare): `--model`.\n"), "{text}");
        assert!(arguments(&compare, &compare).contains("| `--model` | which |"));
    }

    #[test]
    fn what_a_table_cannot_hold_is_escaped() {
        let arg = Arg::new("rounds").long("rounds").value_name("auto|N").help("a | b").default_value("auto");
        assert_eq!(
            table("flag", [&arg].into_iter()),
            "| flag | what it does |\n|---|---|\n| `--rounds auto\\|N` | a \\| b [default: auto] |\n"
        );
    }
}
