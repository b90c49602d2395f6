//! `photofinish list`: the names that flags accept.

use configs::{Engine, Layers};
use plan::Result;
use render::table::{Cell, Column, Table};
use serde_json::{Map, Value, json};

use crate::cli::{Format, ListArgs, ListKind};
use crate::output::{print, screen};

pub(crate) fn list(args: &ListArgs) -> Result<u8> {
    let configs = args.places.find()?.configs;
    let all = [ListKind::Frameworks, ListKind::Models, ListKind::Suites];
    let mut values = Map::new();
    for kind in all.into_iter().filter(|kind| args.kind.is_none_or(|asked| asked == *kind)) {
        let named = match kind {
            ListKind::Frameworks => frameworks(&configs)?,
            ListKind::Models => models(&configs)?,
            ListKind::Suites => suites(&configs)?,
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
        untrusted::say!("{}", named.hint);
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

const KINDS: [&str; 3] = ["engine", "reference", "variant"];

fn frameworks(configs: &Layers) -> Result<Named> {
    let row = |engine: Engine| {
        let kind = match (engine.reference, engine.is_plain()) {
            (true, _) => "reference",
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
    let row = |name: String| Ok(vec![name.clone(), configs::model(configs, &name)?.source]);
    let rows: Result<Vec<Vec<String>>> = configs::models(configs)?.into_iter().map(row).collect();
    Ok(Named {
        kind: "models",
        titles: &["name", "source"],
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
