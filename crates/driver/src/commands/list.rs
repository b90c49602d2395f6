//! `photofinish list`: the names that flags accept.

use clap::CommandFactory;
use clap::builder::{PossibleValue, PossibleValuesParser};
use comparison::plan::{Failure, Result};
use configs::{Engine, Layers};
use protocol::untrusted;
use render::table::{Cell, Column, Table};
use serde_json::{Map, Value, json};

use crate::cli::{Cli, DoctorArgs, Format, ListArgs, ListKind, Places};
use crate::measure::doctor;
use crate::output::{print, screen};

pub(crate) fn list(args: &ListArgs) -> Result<u8> {
    let configs = args.here.places.find()?.configs;
    let all = [ListKind::Frameworks, ListKind::Models, ListKind::Suites];
    let mut values = Map::new();
    for kind in all.into_iter().filter(|kind| args.kind.is_none_or(|asked| asked == *kind)) {
        let named = match kind {
            ListKind::Frameworks => frameworks(&configs)?,
            ListKind::Models => models(&configs)?,
            ListKind::Suites => suites(&configs)?,
            // Commands of their own, which `all` has not.
            ListKind::Cache | ListKind::Footprint => continue,
        };
        let table = named.table();
        print(&match args.format {
            Format::Json => {
                values.insert(named.kind.to_owned(), named.json());
                continue;
            }
            Format::Markdown => table.markdown() + "\n",
            Format::Csv => table.csv(),
            Format::Table => table.terminal(&screen()) + "\n",
        })?;
        protocol::say!("{}", named.hint);
    }
    if args.format == Format::Json {
        print(&format!("{:#}\n", Value::Object(values)))?;
    }
    Ok(0)
}

/// Names with their meanings, and how they are used.
struct Named {
    kind: &'static str,
    titles: &'static [&'static str],
    rows: Vec<Vec<String>>,
    hint: &'static str,
}

impl Named {
    fn json(&self) -> Value {
        let object = |row: &Vec<String>| {
            let fields = self.titles.iter().zip(row);
            Value::Object(fields.map(|(title, text)| ((*title).to_owned(), json!(text))).collect())
        };
        Value::Array(self.rows.iter().map(object).collect())
    }

    fn table(&self) -> Table {
        let mut table = Table::new(self.titles.iter().map(|title| Column::left(*title)));
        for row in &self.rows {
            table.add(row.iter().map(|text| Cell::from(text.clone())));
        }
        table
    }
}

const KINDS: [&str; 4] = ["engine", "yours", "reference", "variant"];

fn frameworks(configs: &Layers) -> Result<Named> {
    let row = |engine: Engine| {
        let kind = match (engine.reference, engine.is_plain()) {
            (true, _) => "reference",
            _ if engine.yours => "yours",
            (false, true) => "engine",
            (false, false) => "variant",
        };
        vec![engine.name, kind.to_owned(), engine.summary]
    };
    let mut rows: Vec<Vec<String>> = configs::engines(configs)?.into_iter().map(row).collect();
    rows.sort_by_key(|row| (KINDS.iter().position(|kind| *kind == row[1]), row[0].clone()));
    Ok(Named {
        kind: "frameworks",
        titles: &["name", "kind", "summary"],
        rows,
        hint: "use them as in `photofinish --frameworks candle,ort`; `photofinish doctor` checks which can run here",
    })
}

fn models(configs: &Layers) -> Result<Named> {
    let row = |name: String| Ok(vec![name.clone(), configs::model(configs, &name)?.summary]);
    let rows: Result<Vec<Vec<String>>> = configs::models(configs)?.into_iter().map(row).collect();
    Ok(Named {
        kind: "models",
        titles: &["name", "summary"],
        rows: rows?,
        hint: "use them as in `photofinish --model NAME`; a directory, a .gguf or .onnx file, hf:owner/name and \
               synthetic:NAME are models, too",
    })
}

fn suites(configs: &Layers) -> Result<Named> {
    let row = |name: String| {
        let suite = configs::suite(configs, &name)?;
        let what = match suite.command.as_str() {
            "" => format!("{} prompts", suite.prompts.len()),
            command => format!("photofinish {command}"),
        };
        Ok(vec![name, what])
    };
    let rows: Result<Vec<Vec<String>>> = configs::suites(configs)?.into_iter().map(row).collect();
    Ok(Named {
        kind: "suites",
        titles: &["name", "runs"],
        rows: rows?,
        hint: "use them as in `photofinish --suite NAME`",
    })
}

// `photofinish completions` and `photofinish man`: files that packages install with the program.

pub(crate) fn completions(shell: clap_complete::Shell, places: &Places) -> Result<u8> {
    let configs = places.find()?.configs;
    let frameworks: Vec<String> = configs::engines(&configs)?.into_iter().map(|engine| engine.name).collect();
    let named = [
        ("framework", frameworks.clone()),
        ("frameworks", frameworks),
        ("model", configs::models(&configs)?),
        ("suite", configs::suites(&configs)?),
    ];
    let mut command =
        named.iter().fold(Cli::command(), |command, (flag, names)| naming(command, flag, names));
    let mut text = Vec::new();
    clap_complete::generate(shell, &mut command, "photofinish", &mut text);
    print(&String::from_utf8_lossy(&text)).map(|()| 0)
}

/// The command, and all below it, with these names after this flag.
fn naming(command: clap::Command, flag: &str, names: &[String]) -> clap::Command {
    let has_flag = command.get_arguments().any(|known| known.get_id() == flag && known.get_long().is_some());
    // Texts of a command live as long as the program.
    let values = || names.iter().map(|name| PossibleValue::new(&*name.clone().leak()));
    let command = match has_flag {
        true => command.mut_arg(flag, |known| known.value_parser(PossibleValuesParser::new(values()))),
        false => command,
    };
    command.mut_subcommands(|below| naming(below, flag, names))
}

pub(crate) fn man() -> Result<u8> {
    let mut text = Vec::new();
    clap_mangen::Man::new(Cli::command())
        .render(&mut text)
        .map_err(|error| Failure::failed(format!("cannot write the man page: {error}")))?;
    print(&String::from_utf8_lossy(&text)).map(|()| 0)
}

// `photofinish doctor`: lists what can run here, and how to make the rest run.

pub(crate) fn doctor(args: &DoctorArgs) -> Result<u8> {
    let found = doctor::examine(&args.places.find()?, args.deep)?;
    print(&untrusted::lines(&found.text()))?;
    Ok(if found.can_all_run() { 0 } else { 1 })
}
