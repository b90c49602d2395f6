//! One comparison, measured, judged and saved: the part that `compare`, studies and `check` share.

use std::path::{Path, PathBuf};

use judge::Report;
use judge::report::{Facts, Prepared};
use measure::saved::{self, ENVIRONMENT, PLAN, SAMPLES};
use measure::{Places, Results, Session, environment, resolve};
use plan::{Failure, Request, Result};
use time::OffsetDateTime;
use time::format_description::well_known::Rfc3339;

use super::outputs::save;

/// The places of a comparison's results other than its own directory.
pub(crate) struct Destination<'a> {
    /// Parent of the results directory.
    pub(crate) parent: &'a Path,
    /// Directory of the history of all runs.
    pub(crate) history: &'a Path,
    pub(crate) quiet: bool,
}

/// The requested directory of results, or the usual one.
pub(crate) fn results_dir(asked: Option<&PathBuf>, places: &Places) -> PathBuf {
    asked.cloned().unwrap_or_else(|| places.results())
}

/// One saved comparison, with the reason if something could not be saved.
pub(crate) fn measure(
    request: &Request,
    places: &Places,
    destination: &Destination<'_>,
) -> Result<(Report, Option<String>)> {
    let started = OffsetDateTime::now_utc();
    let (plan, bundle) = resolve::resolve(request, places, destination.quiet)?;
    let environment = environment::read(places, started.format(&Rfc3339).unwrap_or_default());
    let model = Prepared::new(&bundle);
    let mut results = Results::create(destination.parent, started, "", SAMPLES)?;
    results.write(ENVIRONMENT, saved::pretty(&environment));
    results.write(PLAN, saved::plan_text(&plan, &model));
    let session = Session::new(&plan, &bundle, places, results, destination.quiet)?;
    let (evidence, mut results) = session.compare()?;
    let directory = results.directory().display().to_string();
    let facts = Facts { environment, plan, model, evidence, results: directory };
    let report = Report::new(&facts);
    let unsaved = save(&report, &facts.evidence, &mut results, destination.history);
    Ok((report, unsaved))
}

/// The exit code of a comparison.
pub(crate) fn ended(report: &Report, unsaved: Option<String>) -> Result<u8> {
    if let Some(reason) = unsaved {
        return Err(Failure::failed(reason));
    }
    if report.interrupted {
        return Err(Failure::Interrupted);
    }
    Ok(report.exit_code())
}
