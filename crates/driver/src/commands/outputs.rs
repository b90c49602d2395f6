//! The output files of a report, and how the report of a new measurement is saved.

use std::path::Path;

use facts::Evidence;
use judge::Report;
use judge::records::{self, HISTORY};
use judge::report::work::generate::Times;
use judge::study::StudyReport;
use measure::Results;
use measure::saved::REPORT;

/// The name and the content of a file to write.
pub(super) type Output = (String, Vec<u8>);

/// Files, and why some of them could not be made.
pub(super) struct Outputs {
    pub(super) files: Vec<Output>,
    pub(super) missing: Option<String>,
}

impl Outputs {
    /// If a page cannot be drawn, the other files are still written.
    fn new(mut files: Vec<Output>, page: std::result::Result<Vec<Output>, String>) -> Outputs {
        let missing = match page {
            Ok(pages) => {
                files.extend(pages);
                None
            }
            Err(reason) => Some(reason),
        };
        Outputs { files, missing }
    }
}

/// Every file of a comparison.
pub(super) fn report_outputs(report: &Report, evidence: &Evidence) -> Outputs {
    let files = vec![
        (REPORT.to_owned(), render::comparison::json(report).into_bytes()),
        ("report.md".to_owned(), render::comparison::markdown(report).into_bytes()),
        ("summary.md".to_owned(), render::comparison::short_markdown(report).into_bytes()),
        ("report.csv".to_owned(), render::comparison::csv(report).into_bytes()),
    ];
    Outputs::new(files, render::page::run(report, &Times::new(evidence)))
}

/// Every file of a study; its cells are in `directory`.
pub(super) fn study_outputs(report: &StudyReport, directory: &Path) -> Outputs {
    let files = vec![
        (REPORT.to_owned(), render::study::json(report).into_bytes()),
        ("report.md".to_owned(), render::study::markdown(report).into_bytes()),
        ("report.csv".to_owned(), render::study::csv(report).into_bytes()),
    ];
    Outputs::new(
        files,
        render::page::study(report, &|cell| directory.join(cell).join("report.html").is_file()),
    )
}

/// Saves the run's own files, then its records in the history, so that the history only names files that exist. Returns
/// the reason if something could not be saved.
pub(super) fn save(
    report: &Report,
    evidence: &Evidence,
    results: &mut Results,
    history: &Path,
) -> Option<String> {
    let outputs = report_outputs(report, evidence);
    for (name, contents) in &outputs.files {
        results.write(name, contents);
    }
    let unsaved = results.finish().or(outputs.missing);
    let study = Some(report.plan.request.study.name.as_str()).filter(|name| !name.is_empty());
    let kept = ::history::append(&history.join(HISTORY), &records::records(report, study));
    let unkept = kept.err();
    match (unsaved, unkept) {
        (Some(reason), Some(error)) => Some(format!("{reason}; the history lacks it: {error}")),
        (None, Some(error)) => Some(format!("{error}; the run itself is in {}", report.results)),
        (unsaved, None) => unsaved,
    }
}
