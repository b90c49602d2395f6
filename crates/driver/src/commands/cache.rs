//! `photofinish list cache`: the prepared models in the cache, and their removal; `photofinish setup --models`.

use std::path::Path;
use std::time::SystemTime;

use bundle::Precision;
use comparison::plan::{CacheAsked, Result};
use render::table::{Cell, Column, Table};
use serde_json::{Value, json};
use time::OffsetDateTime;
use time::format_description::well_known::Rfc3339;

use crate::cli::{Format, ListArgs, SetupArgs, models};
use crate::measure::bundles::{self, CachedBundle, Contents, Fate};
use crate::measure::progress;
use crate::measure::provision::{self, Wanted};
use crate::output::{print, screen, shown};

pub(crate) fn cache(args: &ListArgs, dry_run: bool) -> Result<u8> {
    if args.prune {
        return prune(args, dry_run);
    }
    let directory = args.here.places.find()?.bundles();
    let found = bundles::list(&directory)?;
    let lines: Vec<Line<'_>> = found.iter().map(|bundle| Line { bundle, fate: None }).collect();
    show(&lines, &directory, args.format)?;
    let bytes = found.iter().map(|bundle| bundle.bytes).sum();
    protocol::say!("{}, {}, in {}", counted(found.len()), size(bytes), directory.display());
    Ok(0)
}

fn prune(args: &ListArgs, dry_run: bool) -> Result<u8> {
    let directory = args.here.places.find()?.bundles();
    let found = bundles::list(&directory)?;
    let rule = args.rule();
    rule.check(&found)?;
    let now = SystemTime::now();
    let mut lines = Vec::new();
    let (mut count, mut bytes) = (0, 0);
    for bundle in &found {
        let mut fate = bundle.fate(&rule, now);
        if fate == Fate::Goes && !dry_run && !bundle.remove()? {
            fate = Fate::InUse;
        }
        if fate == Fate::Goes {
            count += 1;
            bytes += bundle.bytes;
        }
        lines.push(Line { bundle, fate: Some((fate, !dry_run)) });
    }
    show(&lines, &directory, args.format)?;
    match (count, dry_run) {
        (0, _) => protocol::say!("there is nothing to remove"),
        (_, false) => protocol::say!("removed {}, {}", counted(count), size(bytes)),
        (_, true) => {
            protocol::say!("without --dry-run {} would be removed, {}", counted(count), size(bytes))
        }
    }
    Ok(0)
}

/// A bundle; for `prune` also the action, and whether it has been done.
struct Line<'a> {
    bundle: &'a CachedBundle,
    fate: Option<(Fate, bool)>,
}

fn show(lines: &[Line<'_>], directory: &Path, format: Format) -> Result<()> {
    if format == Format::Json {
        let all: Vec<Value> = lines.iter().map(Line::json).collect();
        let text = json!({ "directory": directory.display().to_string(), "bundles": all });
        return print(&format!("{text:#}\n"));
    }
    if lines.is_empty() && format != Format::Csv {
        return Ok(());
    }
    let is_pruning = lines.iter().any(|line| line.fate.is_some());
    let mut columns = vec![Column::left("bundle"), Column::left("source"), Column::left("precisions")];
    columns.extend([Column::right("size"), Column::right("last used")]);
    columns.extend(is_pruning.then(|| Column::left("removed")));
    let mut table = Table::new(columns);
    for line in lines {
        table.add(line.cells());
    }
    print(&match format {
        Format::Markdown => table.markdown() + "\n",
        Format::Csv => table.csv(),
        Format::Table | Format::Json => table.terminal(&screen()) + "\n",
    })
}

impl Line<'_> {
    fn cells(&self) -> Vec<Cell> {
        let bundle = self.bundle;
        let source = match &bundle.contents {
            Contents::Bundle(manifest) => match self.files()[..] {
                // Drawn weights are made from the shape alone; they have no source file.
                _ if manifest.source.seed.is_some() => manifest.source.kind.clone(),
                [file] => format!("{}: {file}", manifest.source.kind),
                ref files => format!("{}: {} files", manifest.source.kind, files.len()),
            },
            Contents::Unreadable(_) => "unreadable".to_owned(),
            Contents::Unfinished => "unfinished".to_owned(),
        };
        let precisions: Vec<_> = bundle.precisions().into_iter().map(Precision::name).collect();
        let last_used = match bundle.idle_days(SystemTime::now()) {
            _ if bundle.in_use => "in use".to_owned(),
            0 => "today".to_owned(),
            1 => "1 day ago".to_owned(),
            days => format!("{days} days ago"),
        };
        let mut cells = vec![bundle.address(), source, precisions.join(", "), size(bundle.bytes), last_used];
        cells.extend(self.fate.map(|fate| verdict(fate).to_owned()));
        cells.into_iter().map(Cell::from).collect()
    }

    /// Names of the files that the bundle was made from.
    fn files(&self) -> Vec<&str> {
        let Contents::Bundle(manifest) = &self.bundle.contents else { return Vec::new() };
        manifest.source.sha256.keys().map(String::as_str).collect()
    }

    fn json(&self) -> Value {
        let bundle = self.bundle;
        let last_used = OffsetDateTime::from(bundle.last_used).format(&Rfc3339).unwrap_or_default();
        let mut value = json!({
            "bundle": bundle.address(),
            "directory": bundle.directory.display().to_string(),
            "files": self.files(),
            "precisions": bundle.precisions(),
            "bytes": bundle.bytes,
            "last_used": last_used,
            "in_use": bundle.in_use,
        });
        match &bundle.contents {
            Contents::Bundle(manifest) => {
                value["model"] = manifest.name.clone().into();
                value["source"] = manifest.source.kind.clone().into();
            }
            Contents::Unreadable(reason) => value["unreadable"] = reason.clone().into(),
            Contents::Unfinished => value["unfinished"] = true.into(),
        }
        if let Some(fate) = self.fate {
            value["removed"] = (fate == (Fate::Goes, true)).into();
            value["verdict"] = verdict(fate).into();
        }
        value
    }
}

fn verdict((fate, done): (Fate, bool)) -> &'static str {
    match fate {
        Fate::Goes if done => "yes",
        Fate::Goes => "without --dry-run",
        Fate::InUse => "no: in use",
        Fate::Named => "no: named by --keep",
        Fate::UsedLately => "no: used lately",
    }
}

fn counted(bundles: usize) -> String {
    if bundles == 1 { "1 bundle".to_owned() } else { format!("{bundles} bundles") }
}

fn size(bytes: u64) -> String {
    if bytes < 10_000_000 {
        return format!("{:.1} MB", bytes as f64 / 1e6);
    }
    format!("{:.2} GB", bytes as f64 / 1e9)
}

// `photofinish setup --models`: prepares models ahead of the runs that need them.

pub(crate) fn prepare(args: &SetupArgs) -> Result<u8> {
    progress::listen()?;
    let (places, quiet) = (args.places.find()?, args.asked.quiet);
    let models = models(&args.models);
    for model in &models {
        provision::find_model(&places, model)?;
    }
    provision::tools(&places, quiet)?;
    for model in &models {
        let wanted = Wanted {
            model,
            precisions: args.precision.clone(),
            reference: false,
            device: "cpu",
            cache: CacheAsked::default(),
            sequences: (1, 1),
        };
        let bundle = provision::model(&places, &wanted, quiet)?;
        print(&format!("{}\n", shown(bundle.directory())))?;
    }
    Ok(0)
}
