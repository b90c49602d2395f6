//! `photofinish list footprint`: the files that must be shipped to run each framework.

use comparison::plan::{Failure, Result};
use protocol::untrusted;
use render::table::{Cell, Column, Table};
use serde_json::json;

use crate::cli::{Format, ListArgs};
use crate::measure::footprint::{self as measured, Footprint};
use crate::measure::{progress, provision};
use crate::output::{print, screen};

pub(crate) fn footprint(args: &ListArgs) -> Result<u8> {
    if !cfg!(target_os = "linux") {
        return Err(Failure::usage("footprint reads Linux programs, by ldd and strip: run it on Linux"));
    }
    progress::listen()?;
    let places = args.here.places.find()?;
    let engines = configs::selected(&places.configs, &args.frameworks)?;
    provision::workers(&places, &engines, args.here.quiet)?;
    let (mut found, mut absent) = (Vec::new(), Vec::new());
    for engine in &engines {
        if args.build && !args.here.quiet {
            protocol::say!("{}: built twice from nothing, which takes minutes", engine.name);
        }
        match measured::footprint(&places, engine, args.build) {
            Ok(one) => found.push(one),
            Err(error) => absent.push((engine.name.clone(), format!("{error:#}"))),
        }
    }
    print(&match args.format {
        Format::Json => {
            let absent = absent.iter().map(|(name, reason)| json!({ "framework": name, "reason": reason }));
            let value = json!({ "footprints": found, "absent": absent.collect::<Vec<_>>() });
            format!("{value:#}\n")
        }
        Format::Csv => table(&found).csv(),
        Format::Markdown => table(&found).markdown() + "\n",
        Format::Table => table(&found).terminal(&screen()) + "\n",
    })?;
    if matches!(args.format, Format::Table | Format::Markdown) {
        for one in &found {
            let system = if one.system.is_empty() { "nothing".to_owned() } else { one.system.join(", ") };
            protocol::say!("{} needs of the system: {}", one.framework, untrusted::line(&system));
        }
    }
    for (name, reason) in &absent {
        protocol::say!("{name} was left out: {}", untrusted::line(reason));
    }
    Ok(if found.is_empty() { 1 } else { 0 })
}

fn table(found: &[Footprint]) -> Table {
    let has_builds = found.iter().any(|one| one.builds.is_some());
    let titles =
        ["Shipped (MB)", "Files", "Program (MB)", "Libraries (MB)", "Crates or packages", "Start-up (ms)"];
    let builds = ["Smallest program (MB)", "Cold build (s)"];
    let titles = titles.into_iter().chain(builds.into_iter().filter(|_| has_builds));
    let mut table = Table::new([Column::left("")].into_iter().chain(titles.map(Column::right)));
    let megabytes = |bytes: u64| format!("{:.1}", bytes as f64 / 1e6);
    let dash = || "–".to_owned();
    for one in found {
        let libraries: u64 = one.libraries.values().sum::<u64>() + one.environment_bytes.unwrap_or(0);
        let mut cells = vec![
            one.framework.clone(),
            megabytes(one.shipped_bytes),
            one.files.to_string(),
            one.binary_bytes.map_or_else(dash, megabytes),
            if libraries == 0 { dash() } else { megabytes(libraries) },
            one.packages.map_or_else(dash, |count| count.to_string()),
            format!("{:.1}", one.startup_ms),
        ];
        if has_builds {
            cells.push(one.builds.map_or_else(dash, |builds| megabytes(builds.smallest_bytes)));
            cells.push(one.builds.map_or_else(dash, |builds| format!("{:.0}", builds.cold_build_s)));
        }
        table.add(cells.into_iter().map(Cell::from));
    }
    table
}
