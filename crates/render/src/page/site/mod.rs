//! The static site of published results: a page for each pair of frameworks, model, precision and machine, at an address
//! that does not change, and a list of them with filters. Nothing is ranked across machines.

mod data;
mod index;
mod pair;
#[cfg(test)]
mod tests;

use std::collections::BTreeMap;

use judge::Report;
use judge::records::collection::{Published, slug};

use super::Files;

/// Directory of the site that has a directory for each published run, with its page and the files that were submitted.
pub const RUNS: &str = "runs";
/// Every figure of the site, at its root.
pub const DATA: &str = "results.json";
const CITATION: &str = "CITATION.cff";

/// The results of one address.
struct Page<'a> {
    /// The directory of its `index.html`, from the root of the site.
    address: String,
    /// The pair in alphabetical order.
    pair: [&'a str; 2],
    /// The newest first.
    results: Vec<Result<'a>>,
}

/// A run's result for a pair.
struct Result<'a> {
    published: &'a Published,
    /// The report on the pair alone.
    report: Report,
}

/// Every file of the site but those of [`RUNS`], by its path from the root. `base` is the address of the root, where it is
/// known.
///
/// # Errors
/// If a picture cannot be drawn.
pub fn files(entries: &[Published], base: Option<&str>) -> std::result::Result<Files, String> {
    let pages = pages(entries);
    let mut files = vec![
        ("index.html".to_owned(), index::html(&pages, base).into_bytes()),
        (DATA.to_owned(), data::all(&pages)),
        (CITATION.to_owned(), data::citation(entries, base).into_bytes()),
    ];
    for page in &pages {
        files.extend(pair::files(page, base)?);
    }
    Ok(files)
}

/// The pages in the order of their addresses.
fn pages(entries: &[Published]) -> Vec<Page<'_>> {
    let mut pages: BTreeMap<String, Page> = BTreeMap::new();
    for published in entries {
        for pair in published.report.pairs() {
            let address = address(&published.report, pair);
            let page = Page { address: address.clone(), pair, results: Vec::new() };
            let result = Result { published, report: published.report.of_pair(pair) };
            pages.entry(address).or_insert(page).results.push(result);
        }
    }
    let mut pages: Vec<Page> = pages.into_values().collect();
    for page in &mut pages {
        let started =
            |result: &Result| (result.report.environment.started.clone(), result.published.name.clone());
        page.results.sort_by_key(|result| std::cmp::Reverse(started(result)));
    }
    pages
}

/// `pairs/candle-vs-ort/smollm2-135m/f32/amd-epyc-2-cpus-linux-debian-gnu-linux-12`.
fn address(report: &Report, [a, b]: [&str; 2]) -> String {
    let machine = [processor(report), format!("{} cpus", report.environment.available_cores), system(report)];
    let [a, b, model, precision] = [a, b, &report.model.name, report.plan.precision.name()].map(slug);
    format!("pairs/{a}-vs-{b}/{model}/{precision}/{}", machine.map(|part| slug(&part)).join("-"))
}

fn processor(report: &Report) -> String {
    report.environment.processor(&report.plan.device)
}

fn system(report: &Report) -> String {
    report.environment.os.clone().unwrap_or_else(|| "unknown system".into())
}

fn memory(report: &Report) -> String {
    format!("{:.0} GB", report.environment.memory_bytes as f64 / 1e9)
}

/// "AMD EPYC, 2 CPUs, 25 GB, Linux (Debian GNU/Linux 12)".
fn machine(report: &Report) -> String {
    let cpus = report.environment.available_cores;
    let cpus = format!("{cpus} CPU{}", if cpus == 1 { "" } else { "s" });
    [processor(report), cpus, memory(report), system(report)].join(", ")
}

/// The library of each contender with its version, and its binding where that is another.
fn versions(report: &Report) -> Vec<String> {
    let hellos = report.rows.iter().filter_map(|row| row.hello.as_ref());
    let named = hellos.flat_map(|hello| [hello.library.to_string(), hello.binding.to_string()]);
    crate::words::distinct(named.filter(|version| !version.is_empty()))
}

/// The origins of the contenders' code: `tuned`, `stock`.
fn kinds(report: &Report) -> Vec<String> {
    crate::words::distinct(report.rows.iter().map(|row| <&str>::from(row.kind).to_owned()))
}
