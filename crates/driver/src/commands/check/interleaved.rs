//! Compares two builds: each framework runs with this program's own workers and with those of another build,
//! interleaved round by round. A disturbance of the machine then affects both alike.

use std::path::Path;

use history::Record;
use statistics::{Decision, Series, Settings};

use configs::{Engine, EngineSettings};
use judge::Report;
use judge::records;
use judge::regression::machine::Speed;
use judge::regression::verdicts::{self, Bar, Subject};
use judge::regression::{Document, Kind, Pair, Side, ahead};
use measure::resolve::available_threads;
use measure::{Places, environment, launch, provision};
use plan::ab::engines_of;
use plan::{Arm, Contender, Failure, Request, Result};

use crate::cli::CheckArgs;
use crate::commands::measured::{self, Destination, results_dir};

/// The suffix of a framework's name for its other build.
pub(super) const BASE: &str = "@base";

/// Rules that may differ: the builds are the subject of the comparison.
const VARIED: &str = "R10";

pub(super) fn check(args: &CheckArgs, directory: &Path, places: &Places) -> Result<(Document, Report)> {
    let mut asked = args.request.request();
    if let Some(reason) = ahead::too_few_rounds(&asked) {
        return Err(Failure::usage(reason));
    }
    let engines = engines_of(&asked, places)?;
    provision::workers(places, &engines, args.here.quiet)?;
    let directory = directory.canonicalize().map_err(|error| {
        Failure::usage(format!("cannot find the workers of --base-workers {}: {error}", directory.display()))
    })?;
    asked.study.varied = vec![VARIED.to_owned()];
    asked.study.arms = engines.iter().flat_map(|engine| arms(engine, &directory)).collect();
    greet(&engines, &asked, places)?;
    let results = results_dir(args.results_dir.as_ref(), places);
    let destination = Destination { parent: &results, history: &results, quiet: args.here.quiet };
    let (report, unsaved) = measured::measure(&asked, places, &destination)?;
    measured::ended(&report, unsaved)?;
    Ok((document(args, &directory, &report), report))
}

/// Sides of the comparison, the base first: the base is known to be good, so it gives the reference.
fn arms(engine: &Engine, directory: &Path) -> [Arm; 2] {
    let arm = |label: String, workers: Option<&Path>| Arm {
        label,
        engine: engine.name.clone(),
        workers: workers.map(Path::to_path_buf),
        ..Arm::default()
    };
    [arm(format!("{}{BASE}", engine.name), Some(directory)), arm(engine.name.clone(), None)]
}

/// Refuses a base that this program cannot run, before anything is measured.
fn greet(engines: &[Engine], asked: &Request, places: &Places) -> Result<()> {
    let bases = asked.study.arms.iter().filter(|arm| arm.workers.is_some());
    for (arm, engine) in bases.zip(engines) {
        if engine.worker.contains('/') {
            return Err(Failure::usage(format!(
                "{} is a program that no build makes: leave it out of an interleaved check",
                engine.name
            )));
        }
        let base = Engine { settings: EngineSettings::default(), ..arm.built(engine.clone()) };
        let contender = Contender::new(arm.label.clone(), base, asked, available_threads());
        let worker = launch::worker(&contender, None, places, (asked.timeout_s, asked.huge_pages));
        worker.hello().map_err(|reason| {
            Failure::usage(format!(
                "photofinish cannot run the base's worker of {}: {reason}; to compare builds with different protocols, \
                 measure each and use --baseline",
                engine.name
            ))
        })?;
    }
    Ok(())
}

fn document(args: &CheckArgs, directory: &Path, report: &Report) -> Document {
    let records = records::records(report, None);
    let (baseline, current): (Vec<Record>, Vec<Record>) =
        records.into_iter().partition(|record| record.framework.ends_with(BASE));
    let (recorded, is_modified) = environment::origin(directory);
    // Of kept workers `cargo xtask gate` notes the commit beside them.
    let kept = foreign::file::read_text(&directory.join("commit.txt"), foreign::file::CONFIG)
        .ok()
        .map(|text| text.trim().to_owned());
    let git_modified = if kept.is_some() { Some(false) } else { is_modified };
    let git_commit = kept.or(recorded);
    let side = |source: String, records: &[Record]| Side::new(&source, records);
    let mut document = Document::new(
        Kind::Interleaved,
        Side { git_commit, git_modified, ..side(directory.display().to_string(), &baseline) },
        side("this build".to_owned(), &current),
    );
    let pairs: Vec<Pair<'_>> =
        baseline.iter().zip(&current).map(|(baseline, current)| Pair { baseline, current }).collect();
    super::note_failures(&mut document, &pairs);
    document.unmeasurable = report.noise();
    let measured: Vec<Pair<'_>> = pairs.into_iter().filter(super::is_measured).collect();
    if document.unmeasurable.is_none() {
        let subjects: Vec<Subject<'_>> =
            measured.iter().flat_map(|pair| verdicts::subjects(*pair, &args.metrics)).collect();
        let thresholds = args.thresholds();
        let bar = Bar { thresholds: &thresholds, gates: true, speed: Speed::SAME };
        document.findings = verdicts::paired(&subjects, decide(&subjects, report), &bar);
    }
    document.concluded()
}

/// Decides every metric of every framework against its base: the family that Holm's method corrects over. Frameworks
/// are not compared with each other, because more pairs would weaken every verdict.
fn decide(subjects: &[Subject<'_>], report: &Report) -> Vec<Option<Decision>> {
    let pairs = subjects.iter().map(|subject| {
        let (baseline, current) = subject.values();
        subject.turned(baseline, current)
    });
    let pairs: Vec<_> = pairs.collect();
    let family: Vec<Series<'_>> =
        pairs.iter().map(|&(a, b)| Series { a, b, state: Vec::new(), weight: 1.0 }).collect();
    let settings = Settings { margin: report.plan.margin, seed: report.plan.seed, ..Settings::default() };
    statistics::decide(&family, &report.plan.rounds.looks(), report.end.is_last_look(), &settings)
}
