//! `photofinish compare`: plan, measure, judge, report.

use std::path::{Path, PathBuf};

use clap::Parser;
use configs::Suite;
use judge::report::{Facts, Prepared, Report};
use measure::saved::{self, ENVIRONMENT, PLAN, SAMPLES};
use measure::{Places, Results, Session, environment, interrupt, resolve};
use plan::{Failure, Request, Result, StudyRequest};
use time::OffsetDateTime;
use time::format_description::well_known::Rfc3339;

use super::{report, study};
use crate::cli::{Cli, Command, CompareArgs, Format, RequestArgs};
use crate::output::print;

/// Where a comparison's results go, beside its own directory.
pub(crate) struct Destination<'a> {
    /// The results directory is made in here.
    pub(crate) parent: &'a Path,
    /// The history of all runs lies in here.
    pub(crate) history: &'a Path,
    pub(crate) quiet: bool,
}

pub(crate) fn compare(args: &CompareArgs) -> Result<u8> {
    interrupt::listen()?;
    let places = args.here.places.find()?;
    if let Some(name) = &args.request.suite {
        let suite = configs::suite(&places.configs, name)?;
        if !suite.command.is_empty() {
            return study::run(&suite_study(name, &suite, &args.request)?, &study::Options::new(args, None));
        }
    }
    let request = args.request.request();
    if request.quantize.is_empty() {
        let (report, unsaved) = measure(&request, &places, &destination(args, &places).borrowed())?;
        print(&rendered(&report, args.format))?;
        return ended(&report, unsaved);
    }
    precisions(&request, args, &places)
}

/// A suite that names a study: its command, with the flags that were given beside `--suite` laid upon it.
fn suite_study(name: &str, suite: &Suite, typed: &RequestArgs) -> Result<StudyRequest> {
    let words = shlex::split(&suite.command).unwrap_or_default();
    let program = ["photofinish".to_owned()];
    let cannot =
        |reason: &str| Failure::usage(format!("suite {name:?} is `photofinish {}`: {reason}", suite.command));
    let parsed =
        Cli::try_parse_from(program.into_iter().chain(words)).map_err(|e| cannot(&first_line(&e)))?;
    let mut study = match &parsed.command {
        Some(Command::Sweep(args)) => args.study(),
        Some(Command::Ab(args)) => args.study(),
        _ => return Err(cannot("its command is neither a sweep nor an ab")),
    };
    study.request = typed.without_suite().laid_upon(study.request);
    study.request.study.analysis = suite.analysis.split_whitespace().collect::<Vec<_>>().join(" ");
    Ok(study)
}

/// What is wrong, by clap's own words.
pub(crate) fn first_line(error: &clap::Error) -> String {
    let text = error.to_string();
    text.lines().next().unwrap_or_default().trim_start_matches("error: ").to_owned()
}

/// The results directory that was asked for, or the usual one.
pub(crate) fn results_dir(asked: Option<&PathBuf>, places: &Places) -> PathBuf {
    asked.cloned().unwrap_or_else(|| places.results())
}

/// [`Destination`] of the flags of a comparison.
struct Owned {
    results: PathBuf,
    quiet: bool,
}

impl Owned {
    fn borrowed(&self) -> Destination<'_> {
        Destination { parent: &self.results, history: &self.results, quiet: self.quiet }
    }
}

fn destination(args: &CompareArgs, places: &Places) -> Owned {
    Owned { results: results_dir(args.results_dir.as_ref(), places), quiet: args.here.quiet }
}

/// `--quantize`: a comparison at each precision, then what they have in common.
fn precisions(request: &Request, args: &CompareArgs, places: &Places) -> Result<u8> {
    let mut reports = Vec::new();
    let mut worst = 0;
    let mut failure = None;
    for &precision in &request.quantize {
        let request = Request { precisions: vec![precision], quantize: Vec::new(), ..request.clone() };
        let destination = destination(args, places);
        let measured = measure(&request, places, &destination.borrowed()).and_then(|(report, unsaved)| {
            // Tables are shown as they come; the other formats are one document.
            if args.format == Format::Table {
                print(&format!("{}\n", render::comparison::table(&report)))?;
            }
            let ended = ended(&report, unsaved);
            reports.push(report);
            ended
        });
        match measured {
            Ok(code) => worst = code.max(worst),
            // What has been measured is told all the same.
            Err(why) => {
                failure = Some(why);
                break;
            }
        }
    }
    if !reports.is_empty() {
        print(&side_by_side(&reports, args.format))?;
    }
    failure.map_or(Ok(worst), Err)
}

fn side_by_side(reports: &[Report], format: Format) -> String {
    use render::comparison::precisions;
    match format {
        Format::Table => precisions::table(reports),
        Format::Json => precisions::json(reports) + "\n",
        Format::Markdown => {
            let each: String =
                reports.iter().map(|report| render::comparison::markdown(report) + "\n").collect();
            each + &precisions::markdown(reports)
        }
        Format::Csv => precisions::csv(reports),
    }
}

/// One comparison, saved; with the reason why something could not be.
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
    results.write(ENVIRONMENT, &saved::pretty(&environment));
    results.write(PLAN, &saved::plan_text(&plan, &model));
    let session = Session::new(&plan, &bundle, places, results, destination.quiet)?;
    let (evidence, mut results) = session.compare()?;
    let directory = results.directory().display().to_string();
    let facts = Facts { environment, plan, model, evidence, results: directory };
    let report = Report::new(&facts);
    let unsaved = report::save(&report, &facts.evidence, &mut results, destination.history);
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

fn rendered(report: &Report, format: Format) -> String {
    match format {
        Format::Table => render::comparison::table(report),
        Format::Json => report.json() + "\n",
        Format::Markdown => render::comparison::markdown(report),
        Format::Csv => render::comparison::csv(report),
    }
}
