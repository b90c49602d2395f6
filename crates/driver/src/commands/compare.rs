//! `photofinish compare`: plan, measure, judge, report.

use std::path::{Path, PathBuf};

use bundle::{Bundle, Precision};
use comparison::facts::Evidence;
use comparison::facts::run::Environment;
use comparison::history::{History, Record};
use comparison::judge::Report;
use comparison::judge::combined::OtherRuns;
use comparison::judge::metrics::Metric;
use comparison::judge::power::{Asked, Power};
use comparison::judge::records::{self, HISTORY};
use comparison::judge::report::generate::Times;
use comparison::judge::report::{Facts, Prepared};
use comparison::judge::study::StudyReport;
use comparison::plan::sweep::SweepKind;
use comparison::plan::{Failure, Request, Result, Rounds, StudyKind, StudyRequest};
use configs::{Published, Suite};
use render::result::precisions::Precisions;
use render::{Csv, Exporter, JsonText, Markdown, export};
use time::OffsetDateTime;
use time::format_description::well_known::Rfc3339;

use super::history::{export_runs, prepare_export};
use super::study;
use crate::cli::{Command, CompareArgs, Format, RequestArgs, first_line, spelling};
use crate::measure::perf;
use crate::measure::progress::Progress;
use crate::measure::results::{self, ENVIRONMENT, PLAN, REPORT, SAMPLES};
use crate::measure::{self, Places, Results, Session, arithmetic, places, progress, resolve};
use crate::output::{print, screen};

pub(crate) fn compare(args: &CompareArgs) -> Result<u8> {
    progress::listen()?;
    check(args)?;
    prepare_export(args.export.as_deref())?;
    let places = args.here.places.find()?;
    if let Some(asked) = study_of_suite(args, &places)? {
        return study::run(&asked, args, None);
    }
    let request = args.request.request();
    if request.serving.is_study() {
        let asked = StudyRequest { kind: StudyKind::Sweep(SweepKind::Callers), request };
        return study::run(&asked, args, None);
    }
    if request.quantize.is_empty() {
        let results = &results_dir(args.results_dir.as_ref(), &places);
        let (report, unsaved) = measure(&request, &places, &Destination::in_one(results, args.here.quiet))?;
        print(&rendered(&report, args))?;
        finish(std::slice::from_ref(&report), args, results)?;
        return ended(&report, unsaved);
    }
    precisions(&request, args, &places)
}

/// Refuses flags that do not go together, and a plan that is not the registered one.
pub(super) fn check(args: &CompareArgs) -> Result<()> {
    if let Some(registered) = &args.registered {
        let request = args.request.request();
        let seed = request.seed.ok_or_else(|| {
            Failure::usage("--registered needs the --seed that the plan was registered with")
        })?;
        let own = request.registered(seed);
        if !own.starts_with(registered.as_str()) {
            return Err(Failure::usage(format!(
                "this plan is {own}, and {registered} was registered: something else was asked for, or another seed; \
                 --dry-run prints a plan and its digest"
            )));
        }
    }
    if args.show_text && !matches!(args.format(), Format::Table | Format::Markdown) {
        return Err(Failure::usage(
            "--show-text writes text: take --format table or markdown; report.json has the tokens",
        ));
    }
    let format = args.output.as_ref().and_then(|file| file.to_str());
    if let Some(format) = format.filter(|name| ["json", "csv", "md", "markdown", "table"].contains(name)) {
        let format = if format == "md" { "markdown" } else { format };
        return Err(Failure::usage(format!("--output is a file; the format on stdout is --format {format}")));
    }
    let page = args.output.as_ref().filter(|file| file.extension().is_some_and(|ending| ending == "html"));
    if let Some(file) = page {
        return Err(Failure::usage(format!(
            "--output {}: files are .md, .json, .csv or text; each run leaves its page, report.html, in its results: \
             --results-dir DIR",
            file.display()
        )));
    }
    Ok(())
}

/// The study that --suite names, if its file has a command instead of prompts.
pub(super) fn study_of_suite(args: &CompareArgs, places: &Places) -> Result<Option<StudyRequest>> {
    let Some(name) = &args.request.prompts.suite else { return Ok(None) };
    let suite = configs::suite(&places.configs, name)?;
    if suite.command.is_empty() {
        return Ok(None);
    }
    suite_study(name, &suite, &args.request).map(Some)
}

/// Shows the text if it is requested, and exports the records.
fn finish(reports: &[Report], args: &CompareArgs, results: &Path) -> Result<()> {
    for report in reports.iter().filter(|_| args.show_text) {
        print(&texts(report, args.format())?)?;
    }
    let runs: Vec<String> = reports.iter().map(|report| report.results.clone()).collect();
    export_runs(&runs, results, args.export.as_deref())
}

/// The chosen tokens as text. All measurements have ended, so that the tokenizer disturbs none.
pub(super) fn texts(report: &Report, format: Format) -> Result<String> {
    let bundle = Bundle::open(Path::new(&report.model.bundle))
        .map_err(|error| Failure::failed(format!("cannot show the text: {error}")))?;
    let text = measure::tokenizer::text(&bundle)?;
    let decoded = |tokens: &[u32]| text.decode(tokens).ok().flatten();
    Ok(render::result::texts(report, &decoded, format))
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
        _ => return Err(cannot("its command is no sweep")),
    };
    let mut typed = typed.clone();
    typed.prompts.suite = None;
    study.request = typed.applied_to(study.request);
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

/// Runs `--quantize`: a comparison at each precision, then a summary of all.
fn precisions(request: &Request, args: &CompareArgs, places: &Places) -> Result<u8> {
    let results = &results_dir(args.results_dir.as_ref(), places);
    let destination = Destination::in_one(results, args.here.quiet);
    let mut reports = Vec::new();
    let mut worst = 0;
    let mut failure = None;
    for request in at_each_precision(request) {
        let measured = measure(&request, places, &destination).and_then(|(report, unsaved)| {
            // Tables are shown as they come. The other formats are one document.
            if args.format() == Format::Table {
                print(&format!("{}\n", export(&report, Format::Table, &screen())))?;
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
        finish(&reports, args, results)?;
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
    let together = export(&Precisions(reports), format, &screen());
    if format != Format::Markdown {
        return together;
    }
    let each = reports.iter().map(|report| export(report, format, &screen()) + "\n");
    each.chain([together]).collect()
}

fn rendered(report: &Report, args: &CompareArgs) -> String {
    match args.format() {
        Format::Markdown if args.short => Markdown::Short.export(report),
        format => export(report, format, &screen()),
    }
}

// One comparison, measured, judged and saved: the part that `compare`, studies and `check` share.

/// The places of a comparison's results other than its own directory.
pub(crate) struct Destination<'a> {
    /// Parent of the results directory.
    pub(crate) parent: &'a Path,
    /// Directory of the history of all runs.
    pub(crate) history: &'a Path,
    pub(crate) quiet: bool,
}

impl Destination<'_> {
    /// A directory for the results and for the history.
    pub(crate) fn in_one(results: &Path, quiet: bool) -> Destination<'_> {
        Destination { parent: results, history: results, quiet }
    }
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
    let environment = places::read(places, started.format(&Rfc3339).unwrap_or_default());
    let model = Prepared::new(&bundle);
    let history = destination.history.join(HISTORY);
    let known = crate::history_file::read(&history).unwrap_or_else(|error| {
        protocol::say!("warning: what earlier runs gave is not shown: {error}");
        History::default()
    });
    let expected = expected(&plan.request, plan.contenders.len(), plan.rounds, known.records, &environment);
    if let Some(power) = expected.filter(|_| !destination.quiet) {
        protocol::say!("to expect: {}", power.words());
    }
    let mut results = Results::create(destination.parent, started, "", SAMPLES)?;
    results.write(ENVIRONMENT, results::pretty(&environment));
    results.write(PLAN, results::plan_text(&plan, &model));
    let session = Session::new(&plan, &bundle, places, results, destination.quiet)?;
    let arithmetic = arithmetic::model(&plan, &bundle, places);
    let rules = places.directory_of(perf::RULES).join(perf::RULES);
    let (evidence, mut results) = session.compare(arithmetic.as_ref(), &rules)?;
    let directory = results.directory().display().to_string();
    let facts = Facts { environment, plan, model, evidence, results: directory };
    let progress = Progress::new(1, None, destination.quiet);
    progress.message("all rounds are done: verdicts, page and pictures");
    let mut report = Report::new(&facts);
    // Read again: other runs may have ended meanwhile. Without it the warning above was given.
    let known = crate::history_file::read(&history).unwrap_or_default();
    report.other_runs = OtherRuns::new(&report, &known.records);
    let unsaved = save(&report, &facts.evidence, &mut results, destination.history);
    progress.done();
    Ok((report, unsaved))
}

/// What this comparison can show, by the last runs of its case on this machine; `None` without any.
pub(super) fn expected(
    request: &Request,
    contenders: usize,
    rounds: Rounds,
    mut records: Vec<Record>,
    environment: &Environment,
) -> Option<Power> {
    let machine = records::fingerprint(environment);
    records.retain(|record| record.machine.fingerprint == machine);
    let asked = Asked { request, contenders, rounds };
    Power::expected(&records, &asked)
}

pub(crate) fn ended(report: &Report, unsaved: Option<String>) -> Result<u8> {
    if let Some(reason) = unsaved {
        return Err(Failure::failed(reason));
    }
    if report.interrupted {
        return Err(Failure::Interrupted);
    }
    Ok(report.exit_code())
}

// The output files of a report, and how the report of a new measurement is saved.

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

pub(super) fn report_outputs(report: &Report, evidence: &Evidence) -> Outputs {
    let files = vec![
        (REPORT.to_owned(), JsonText.export(report).into_bytes()),
        ("report.md".to_owned(), Markdown::Whole.export(report).into_bytes()),
        ("summary.md".to_owned(), Markdown::Short.export(report).into_bytes()),
        ("report.csv".to_owned(), Csv.export(report).into_bytes()),
    ];
    Outputs::new(files, render::page::run(report, &Times::new(evidence)))
}

/// Every file of a study; its cells are in `directory`.
pub(super) fn study_outputs(report: &StudyReport, directory: &Path) -> Outputs {
    let files = vec![
        (REPORT.to_owned(), JsonText.export(report).into_bytes()),
        ("report.md".to_owned(), Markdown::Whole.export(report).into_bytes()),
        ("report.csv".to_owned(), Csv.export(report).into_bytes()),
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
    let kept = crate::history_file::append(&history.join(HISTORY), &records::records(report, study));
    let unkept = kept.err();
    match (unsaved, unkept) {
        (Some(reason), Some(error)) => Some(format!("{reason}; the history lacks it: {error}")),
        (None, Some(error)) => Some(format!("{error}; the run itself is in {}", report.results)),
        (unsaved, None) => unsaved,
    }
}
