//! Self-contained pages of a run, of a study and of the history, with the charts as separate files.

mod collection;
mod facts;
mod history;
mod html;
mod repeat;
mod run;
mod study;
mod table;
#[cfg(test)]
mod tests;
mod work;

use ::history::Record;
use judge::records::collection::Entry;
use judge::report::work::generate::Times;
use judge::study::StudyReport;
use judge::{Metric, Report};

use crate::pictures::{self, by_version, over_time};

/// Names of files with their content.
type Files = Vec<(String, Vec<u8>)>;

/// The page `report.html` of a run, and its pictures for sharing.
pub fn run(report: &Report, times: &Times) -> Result<Files, String> {
    let mut files = vec![("report.html".to_owned(), run::html(report, times)?.into_bytes())];
    let pictures = pictures::run::Pictures::new(report);
    files.extend(pictures::files("comparison", &pictures.comparison())?);
    files.push(("preview.png".to_owned(), pictures::preview(&pictures.preview())?));
    Ok(files)
}

/// The picture of one metric of a run, as `<metric>.png` and `<metric>.svg`, with a title of the user's if there is one.
pub fn picture(report: &Report, metric: Metric, title: Option<&str>) -> Result<Files, String> {
    pictures::files(metric.name(), &pictures::run::Pictures::new(report).one_metric(metric, title))
}

/// The page `report.html` of a study, and its picture if it has figures. `has_page` is whether the directory of a cell,
/// by its name, has a page to link to.
pub fn study(report: &StudyReport, has_page: &dyn Fn(&str) -> bool) -> Result<Files, String> {
    let figure = pictures::study::comparison(report);
    let page = study::html(report, figure.is_some(), has_page)?;
    let mut files = vec![("report.html".to_owned(), page.into_bytes())];
    if let Some(figure) = figure {
        files.extend(pictures::files("comparison", &figure)?);
    }
    Ok(files)
}

/// The page `index.html` of many results, and `collection.csv` with a line for each contender of each.
pub fn collection(entries: &[Entry]) -> Files {
    let page = collection::html(entries).into_bytes();
    vec![
        ("index.html".to_owned(), page),
        ("collection.csv".to_owned(), collection::csv(entries).into_bytes()),
    ]
}

/// The page `history.html` and its picture. `skipped` is the number of history lines that could not be read.
pub fn history(records: &[Record], skipped: usize) -> Result<Files, String> {
    let (apart, records): (Vec<&Record>, Vec<&Record>) =
        records.iter().partition(|record| !over_time::has_place(record));
    let groups = over_time::groups(&records);
    let mut files = vec![("history.html".to_owned(), history::html(&groups, &apart, skipped)?.into_bytes())];
    files.extend(pictures::files("performance_over_time", &over_time::picture(&groups))?);
    if let Some(figure) = by_version::picture(&groups) {
        files.extend(pictures::files("performance_by_version", &figure)?);
    }
    Ok(files)
}
