//! `photofinish reference`: every command and flag as a page of Markdown, from clap. `docs/reference/cli.md` is printed
//! from here. `photofinish reference fields` prints the fields of files.

use clap::{Arg, ArgAction, Command, CommandFactory};
use protocol::untrusted;
use serde_json::{Map, Value};

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
| 3 | the machine was too noisy for a verdict on speed (`--accept-noise` overrides), or a column varies by more than `--max-cv` |
| 4 | `check` found a regression |
| 130 | interrupted; what was measured is saved and printed, unless a second signal came |

Some commands add to this:

| command | code | when |
|---|---|---|
| `compare --quantize`, `sweep`, `report DIR DIR` | the largest | of all comparisons and cells |
| `report DIR DIR` | at least 1 | cells are missing |
| `parity` | 1 | a framework diverges or failed, or nothing could be compared |
| `check` | 1 | a framework failed, computed something other than the reference, or broke a fairness rule |
| | 2 | also: the two runs must not be compared |
| | 3 | also: too little evidence, or a machine that changed between the runs. It says nothing about the change |
| `report` | 2 | there is no plan, the schema is not 5, or the journal has `iteration` events |
| `worker-check` | 1 | a phase does not hold |
";

pub(crate) fn page(page: ReferencePage) -> String {
    match page {
        ReferencePage::Commands => markdown(),
        ReferencePage::Fields => fields_markdown(),
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
    let is_shown = !arg.is_hide_possible_values_set();
    let explained = values.iter().filter(|value| is_shown && !value.is_hide_set());
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

/// A paragraph as lines of at most 120 columns, each as long as it can be.
fn wrapped(text: &str) -> String {
    let options = textwrap::Options::new(WIDEST)
        .wrap_algorithm(textwrap::WrapAlgorithm::FirstFit)
        .word_separator(textwrap::WordSeparator::AsciiSpace)
        .word_splitter(textwrap::WordSplitter::NoHyphenation)
        .break_words(false);
    textwrap::fill(text, options)
}

// The fields of `report.json` and `history.jsonl` as a page, from their JSON Schemas. `docs/reference/fields.md` is
// printed from here.

const SCHEMAS: [(&str, &str, &str); 2] = [
    ("report.json", "report.schema.json", include_str!("../../../../docs/report.schema.json")),
    ("history.jsonl", "history.schema.json", include_str!("../../../../docs/history.schema.json")),
];

const FIELDS_TITLE: &str = "\
# Fields of report.json and history.jsonl

Printed by `photofinish reference fields`; a test compares this page with the code. Do not edit it by hand.

[Files](files.md) describes the files. `null` is \"not available\". An optional field is left out if it has no value.
Fields may be added within a schema version; ignore unknown ones.
";

/// Values of an enumeration that are listed.
const MOST_VALUES: usize = 12;

/// The text of `docs/reference/fields.md`.
fn fields_markdown() -> String {
    let mut page = FIELDS_TITLE.to_owned();
    for (file, name, schema) in SCHEMAS {
        let schema: Value = serde_json::from_str(schema).expect("a schema of this repository is JSON");
        page += &format!("\n## `{file}`\n\n[{name}](../{name}) is its JSON Schema (2020-12).\n");
        page += "\n| field | type | meaning |\n|---|---|---|\n";
        let mut fields = Fields { schema: &schema, named: Vec::new(), rows: String::new() };
        fields.list(&schema, "");
        page += &fields.rows;
    }
    page
}

struct Fields<'a> {
    schema: &'a Value,
    /// Definitions that were listed, each with the field that it was listed at.
    named: Vec<(String, String)>,
    rows: String,
}

impl<'a> Fields<'a> {
    /// Rows of the properties of an object: `rows`, which others refer to, and then in alphabetical order.
    fn list(&mut self, object: &'a Value, before: &str) {
        let Some(properties) = object["properties"].as_object() else { return };
        if let Some(shared) = shared_definition(properties) {
            self.row(&format!("{before}NAME"), shared, true, None);
            return;
        }
        let required: Vec<&str> =
            object["required"].as_array().into_iter().flatten().filter_map(Value::as_str).collect();
        let (rows, others): (Vec<_>, Vec<_>) = properties.iter().partition(|(name, _)| *name == "rows");
        for (name, value) in rows.into_iter().chain(others) {
            let own = value["description"].as_str();
            self.row(&format!("{before}{name}"), value, required.contains(&name.as_str()), own);
        }
    }

    fn row(&mut self, path: &str, value: &'a Value, is_required: bool, own: Option<&'a str>) {
        let (definition, meant) = self.resolved(value);
        let is_list = value["type"] == "array" || value["type"][0] == "array";
        let path = if is_list { format!("{path}[]") } else { path.to_owned() };
        let (inner_definition, inner) = match meant.get("items") {
            Some(items) if is_list => self.resolved(items),
            _ => (None, meant),
        };
        // A definition without properties is as short as its name.
        let definition = definition.or(inner_definition).filter(|_| inner["properties"].is_object());
        let known = definition.and_then(|name| self.named.iter().find(|(known, _)| known == name).cloned());
        let mut meaning = own.or_else(|| meant["description"].as_str()).unwrap_or_default().to_owned();
        if let Some((_, place)) = &known {
            meaning += &format!("{}as `{place}`", if meaning.is_empty() { "" } else { "; " });
        }
        let values = listed(meant);
        if !values.is_empty() && !meaning.contains(&values[0]) {
            let values = values.iter().map(|value| format!("`{value}`")).collect::<Vec<_>>().join(", ");
            meaning += &format!("{}{values}", if meaning.is_empty() { "" } else { ": " });
        }
        let optional = if is_required { "" } else { ", optional" };
        let kind = kind(value, meant);
        let meaning = untrusted::cell(&meaning);
        self.rows += &format!("| `{path}` | {kind}{optional} | {meaning} |\n");
        if known.is_none() {
            self.named.extend(definition.map(|name| (name.to_owned(), path.clone())));
            self.list(inner, &format!("{path}."));
        }
    }

    /// Resolves a reference to a definition (and returns its name), and drops the alternative `null`.
    fn resolved(&self, value: &'a Value) -> (Option<&'a str>, &'a Value) {
        let alternatives = ["anyOf", "oneOf"].iter().find_map(|key| value[*key].as_array());
        let value =
            alternatives.and_then(|all| all.iter().find(|one| one["type"] != "null")).unwrap_or(value);
        match value["$ref"].as_str().and_then(|link| link.strip_prefix("#/$defs/")) {
            Some(name) => (Some(name), &self.schema["$defs"][name]),
            None => (None, value),
        }
    }
}

/// The definition that all properties share, if each of them is only that: metrics by name.
fn shared_definition(properties: &Map<String, Value>) -> Option<&Value> {
    let mut links = properties.values().map(|value| value["allOf"].get(0));
    let first = links.next()??;
    links.all(|link| link == Some(first)).then_some(first)
}

fn listed(value: &Value) -> Vec<String> {
    let values = value["enum"].as_array().filter(|values| values.len() <= MOST_VALUES);
    values.into_iter().flatten().filter_map(|value| value.as_str().map(str::to_owned)).collect()
}

/// "string or null".
fn kind(value: &Value, meant: &Value) -> String {
    let names = |value: &Value| -> Vec<String> {
        match &value["type"] {
            Value::String(name) => vec![name.clone()],
            Value::Array(names) => names.iter().filter_map(Value::as_str).map(str::to_owned).collect(),
            _ if value["const"].is_number() => vec!["number".to_owned()],
            _ => vec!["string".to_owned()],
        }
    };
    let may_be_null = ["anyOf", "oneOf"]
        .iter()
        .any(|key| value[*key].as_array().is_some_and(|all| all.iter().any(|one| one["type"] == "null")));
    let mut names = names(meant);
    if may_be_null && !names.iter().any(|name| name == "null") {
        names.push("null".to_owned());
    }
    names.join(" or ")
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

#[cfg(test)]
mod fields_tests {
    use super::*;
    use serde_json::json;

    const PAGE: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/reference/fields.md");

    fn rows(schema: &Value) -> String {
        let mut fields = Fields { schema, named: Vec::new(), rows: String::new() };
        fields.list(schema, "");
        fields.rows
    }

    #[test]
    fn the_page_for_people_is_printed_from_the_schemas() {
        super::tests::compare(PAGE, &fields_markdown());
    }

    #[test]
    fn fields_within_fields_have_rows_of_their_own() {
        let schema = json!({
            "properties": {
                "end": {"description": "why", "type": ["object", "null"], "properties": {
                    "kind": {"enum": ["planned", "killed"]}
                }},
                "rows": {"type": "array", "items": {"$ref": "#/$defs/row"}}
            },
            "required": ["end"],
            "$defs": {"row": {"description": "one", "type": "object", "properties": {"n": {"type": "integer"}}}}
        });
        let expected = "| `rows[]` | array, optional |  |\n\
                        | `rows[].n` | integer, optional |  |\n\
                        | `end` | object or null | why |\n\
                        | `end.kind` | string, optional | `planned`, `killed` |\n";
        assert_eq!(rows(&schema), expected);
    }

    #[test]
    fn a_definition_is_listed_once_and_then_named() {
        let row = json!({"$ref": "#/$defs/row"});
        let schema = json!({
            "properties": {"a": row, "b": row},
            "required": ["a", "b"],
            "$defs": {"row": {"type": "object", "properties": {"n": {"type": "integer"}}, "required": ["n"]}}
        });
        let expected = "| `a` | object |  |\n| `a.n` | integer |  |\n| `b` | object | as `a` |\n";
        assert_eq!(rows(&schema), expected);
    }
}
