//! `photofinish compare`: plan, measure, judge, report.

use std::path::{Path, PathBuf};

use bundle::{Bundle, Precision};
use configs::{Published, Suite};
use judge::Report;
use judge::metrics::Metric;
use measure::{Places, interrupt};
use plan::sweep::SweepKind;
use plan::{Failure, Request, Result, StudyKind, StudyRequest};

use super::history::{export_runs, prepare_export};
use super::measured::{Destination, ended, measure, results_dir};
use super::study;
use crate::cli::{Command, CompareArgs, Format, RequestArgs, first_line, spelling};
use crate::output::{print, screen};

pub(crate) fn compare(args: &CompareArgs) -> Result<u8> {
    interrupt::listen()?;
    check(args)?;
    prepare_export(args.export.as_deref())?;
    let places = args.here.places.find()?;
    if let Some(asked) = study_of_suite(args, &places)? {
        let options = study::Options { can_resume: false, ..study::Options::new(args, None) };
        return study::run(&asked, &options);
    }
    let request = args.request.request();
    if request.serving.is_study() {
        no_text(args)?;
        let asked = StudyRequest { kind: StudyKind::Sweep(SweepKind::Callers), request };
        return study::run(&asked, &study::Options { can_resume: false, ..study::Options::new(args, None) });
    }
    if request.quantize.is_empty() {
        let destination = destination(args, &places);
        let (report, unsaved) = measure(&request, &places, &destination.borrowed())?;
        print(&rendered(&report, args))?;
        finish(std::slice::from_ref(&report), args, &destination)?;
        return ended(&report, unsaved);
    }
    precisions(&request, args, &places)
}

/// Refuses flags that do not go together.
pub(super) fn check(args: &CompareArgs) -> Result<()> {
    if args.show_text && !matches!(args.format(), Format::Table | Format::Markdown) {
        return Err(Failure::usage(
            "--show-text writes text: take --format table or markdown; report.json has the tokens",
        ));
    }
    Ok(())
}

/// The study that --suite names, if its file has a command instead of prompts.
pub(super) fn study_of_suite(args: &CompareArgs, places: &Places) -> Result<Option<StudyRequest>> {
    let Some(name) = &args.request.suite else { return Ok(None) };
    let suite = configs::suite(&places.configs, name)?;
    if suite.command.is_empty() {
        return Ok(None);
    }
    no_text(args)?;
    suite_study(name, &suite, &args.request).map(Some)
}

/// Shows the text if it is requested, and exports the records.
fn finish(reports: &[Report], args: &CompareArgs, destination: &Owned) -> Result<()> {
    for report in reports.iter().filter(|_| args.show_text) {
        print(&texts(report, args.format())?)?;
    }
    let runs: Vec<String> = reports.iter().map(|report| report.results.clone()).collect();
    export_runs(&runs, &destination.results, args.export.as_deref())
}

/// The chosen tokens as text. All measurements have ended, so that the tokenizer disturbs none.
fn texts(report: &Report, format: Format) -> Result<String> {
    let bundle = Bundle::open(Path::new(&report.model.bundle))
        .map_err(|error| Failure::failed(format!("cannot show the text: {error}")))?;
    let text = measure::apart::text(&bundle)?;
    let decoded = |tokens: &[u32]| text.decode(tokens).ok().flatten();
    Ok(render::comparison::texts(report, &decoded, format.into()))
}

/// Refuses --show-text for studies.
pub(super) fn no_text(args: &CompareArgs) -> Result<()> {
    if args.show_text {
        return Err(Failure::usage(
            "--show-text is for one comparison, not for a study: use it with `photofinish compare`",
        ));
    }
    Ok(())
}

/// Runs a suite that names a study: its command, with the typed flags applied to it.
fn suite_study(name: &str, suite: &Suite, typed: &RequestArgs) -> Result<StudyRequest> {
    let program = ["photofinish".to_owned()];
    let cannot =
        |reason: &str| Failure::usage(format!("suite {name:?} is `photofinish {}`: {reason}", suite.command));
    let words = shlex::split(&suite.command).ok_or_else(|| cannot("its quotes do not match"))?;
    let parsed = spelling::parse(program.into_iter().chain(words)).map_err(|e| cannot(&first_line(&e)))?;
    let mut study = match &parsed.command {
        Some(Command::Sweep(args)) => args.study(),
        Some(Command::Ab(args)) => args.study(),
        _ => return Err(cannot("its command is neither a sweep nor an ab")),
    };
    study.request = typed.without_suite().applied_to(study.request);
    study.request.study.analysis = suite.analysis.split_whitespace().collect::<Vec<_>>().join(" ");
    study.request.study.published = published(suite).map_err(|reason| cannot(&reason))?;
    Ok(study)
}

/// The published figures of a suite, each of a metric that exists.
fn published(suite: &Suite) -> std::result::Result<Option<Published>, String> {
    let figures =
        suite.published.iter().flat_map(|published| &published.rows).flat_map(|row| row.figures.keys());
    match figures.into_iter().find(|name| Metric::ALL.iter().all(|metric| metric.name() != name.as_str())) {
        Some(unknown) => {
            Err(format!("its published figures have {unknown:?}, which is the key of no metric"))
        }
        None => Ok(suite.published.clone()),
    }
}

/// The [`Destination`] that the flags of a comparison name.
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

/// Runs `--quantize`: a comparison at each precision, then a summary of all.
fn precisions(request: &Request, args: &CompareArgs, places: &Places) -> Result<u8> {
    let mut reports = Vec::new();
    let mut worst = 0;
    let mut failure = None;
    for request in at_each_precision(request) {
        let destination = destination(args, places);
        let measured = measure(&request, places, &destination.borrowed()).and_then(|(report, unsaved)| {
            // Tables are shown as they come. The other formats are one document.
            if args.format() == Format::Table {
                print(&format!("{}\n", render::comparison::table(&report, &screen())))?;
            }
            let ended = ended(&report, unsaved);
            reports.push(report);
            ended
        });
        match measured {
            Ok(code) => worst = code.max(worst),
            // Finished comparisons are reported even after a failure.
            Err(why) => {
                failure = Some(why);
                break;
            }
        }
    }
    if !reports.is_empty() {
        print(&side_by_side(&reports, args.format()))?;
        finish(&reports, args, &destination(args, places))?;
    }
    failure.map_or(Ok(worst), Err)
}

/// The comparisons for `--quantize`: one at each precision.
pub(super) fn at_each_precision(request: &Request) -> Vec<Request> {
    let at = |&precision: &Precision| Request {
        precisions: vec![precision],
        quantize: Vec::new(),
        ..request.clone()
    };
    request.quantize.iter().map(at).collect()
}

fn side_by_side(reports: &[Report], format: Format) -> String {
    use render::comparison::precisions;
    match format {
        Format::Table => precisions::table(reports, &screen()),
        Format::Json => precisions::json(reports) + "\n",
        Format::Markdown => {
            let each: String =
                reports.iter().map(|report| render::comparison::markdown(report) + "\n").collect();
            each + &precisions::markdown(reports)
        }
        Format::Csv => precisions::csv(reports),
    }
}

fn rendered(report: &Report, args: &CompareArgs) -> String {
    match args.format() {
        Format::Markdown if args.short => render::comparison::short_markdown(report),
        Format::Table => render::comparison::table(report, &screen()),
        Format::Json => render::comparison::json(report) + "\n",
        Format::Markdown => render::comparison::markdown(report),
        Format::Csv => render::comparison::csv(report),
    }
}
