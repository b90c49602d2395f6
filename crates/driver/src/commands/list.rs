//! `photofinish list`: the names that flags take.

use configs::Layers;
use plan::Result;
use render::table::{Cell, Column, Table};
use serde_json::{Value, json};

use crate::cli::{Format, ListArgs, ListKind};
use crate::output::{print, screen};

pub(crate) fn list(args: &ListArgs) -> Result<u8> {
    let configs = args.places.find()?.configs;
    let named = match args.kind {
        ListKind::Frameworks => frameworks(&configs)?,
        ListKind::Models => models(&configs)?,
        ListKind::Suites => suites(&configs)?,
    };
    if args.format == Format::Json {
        let all = named.rows.iter().map(|row| {
            let fields = named.titles.iter().zip(row);
            Value::Object(fields.map(|(title, text)| ((*title).to_owned(), json!(text))).collect())
        });
        return print(&format!("{:#}\n", Value::Array(all.collect()))).map(|()| 0);
    }
    let mut table = Table::new(named.titles.iter().map(|title| Column::left(*title)));
    for row in named.rows {
        table.add(row.into_iter().map(Cell::from));
    }
    print(&match args.format {
        Format::Markdown => table.markdown() + "\n",
        Format::Csv => table.csv(),
        Format::Table | Format::Json => table.terminal(&screen()) + "\n",
    })?;
    untrusted::say!("{}", named.hint);
    Ok(0)
}

/// Names with what each means, and how they are used.
struct Named {
    titles: &'static [&'static str],
    rows: Vec<Vec<String>>,
    hint: &'static str,
}

fn frameworks(configs: &Layers) -> Result<Named> {
    let row = |engine: configs::Engine| {
        let kind = match (engine.reference, engine.is_plain()) {
            (true, _) => "reference",
            (false, true) => "engine",
            (false, false) => "variant",
        };
        vec![engine.name, kind.to_owned(), engine.summary]
    };
    let mut rows: Vec<Vec<String>> = configs::engines(configs)?.into_iter().map(row).collect();
    rows.sort_by_key(|row| {
        (["engine", "reference", "variant"].iter().position(|kind| *kind == row[1]), row[0].clone())
    });
    Ok(Named {
        titles: &["name", "kind", "summary"],
        rows,
        hint: "use them as in `photofinish --frameworks candle,ort`; `photofinish doctor` checks which can run here",
    })
}

fn models(configs: &Layers) -> Result<Named> {
    let row = |name: String| {
        let model = configs::model(configs, &name)?;
        Ok(vec![name, model.source])
    };
    let rows: Result<Vec<Vec<String>>> = configs::models(configs)?.into_iter().map(row).collect();
    Ok(Named {
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
    Ok(Named { titles: &["name", "runs"], rows: rows?, hint: "use them as in `photofinish --suite NAME`" })
}
