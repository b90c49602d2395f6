//! `photofinish check`: is a run significantly worse than another, by more than the threshold? `docs/how-to/gate-ci.md`
//! describes its use and its method.

mod interleaved;

use std::io::Write;
use std::path::{Path, PathBuf};

use comparison::history::Record;
use comparison::judge;
use comparison::judge::records::{self, HISTORY};
use comparison::judge::regression::{Different, Document, Run, pairing};
use comparison::plan::{
    Engines, Failure, Request, Result, RoundsAsked, Schedule, ScheduleAsked, StudySettings,
};
use render::{Format, export, regression};
use setup::versions::Repository;
use time::OffsetDateTime;

use super::compare::{self, Destination, results_dir};
use super::{archive, history};
use crate::cli::commands::{CheckArgs, Output};
use crate::measure::provision::failure;
use crate::measure::results::{self, REPORT};
use crate::measure::{Places, places, progress};
use crate::output::{print, screen};

pub(crate) fn check(args: &CheckArgs) -> Result<u8> {
    if let Some(archive) = &args.archive {
        return archive::check(archive);
    }
    let outcome = checked(args);
    if let (Output::Github, Err(failure @ (Failure::Usage(_) | Failure::Failed(_)))) = (args.output, &outcome)
    {
        print(&regression::refusal(&failure.to_string()))?;
    }
    outcome
}

fn checked(args: &CheckArgs) -> Result<u8> {
    progress::listen()?;
    let places = args.here.places.find()?;
    if let Some(base) = interleaved::Base::asked(args)? {
        let (document, report) = interleaved::check(args, &base, &places)?;
        return told(&document, args.output, Some(Path::new(&report.results)));
    }
    let results = results_dir(args.results_dir.as_ref(), &places);
    let history = results.join(HISTORY);
    let Some(asked) = args.baseline.as_deref() else {
        return Err(Failure::usage(
            "check compares with --base REV (a commit of the framework in this checkout), --base-version VERSION, \
             --base-workers DIR, or --baseline latest (or a RUN, a commit, a file): name one",
        ));
    };
    let (baseline, current, saved) = match args.current.as_deref() {
        Some(current) => {
            if args.request.say_what_to_measure() {
                return Err(Failure::usage(
                    "--current names a finished run: the flags of a comparison have nothing to act on",
                ));
            }
            let current = named(current, &history, &places)?;
            let baseline = match asked {
                LATEST => before(&current, &history)?,
                asked => named(asked, &history, &places)?,
            };
            (baseline, current, None)
        }
        None => {
            let here = records::fingerprint(&places::read(&places, String::new()));
            let baseline = match asked {
                LATEST => newest_here(&here, &asked_names(args, &places)?, &history)?,
                asked => named(asked, &history, &places)?,
            };
            refuse_another_machine(&baseline, &here, args)?;
            let (current, saved) = measured(args, &baseline, &places)?;
            (baseline, current, Some(saved))
        }
    };
    let document = comparison::judge::regression::check(&baseline, &current, &args.asked)?;
    told(&document, args.output, saved.as_deref().map(Path::new))
}

/// The runs of a file, or of the history under this name.
pub(super) fn named(text: &str, history: &Path, places: &Places) -> Result<Run> {
    match file(text) {
        Some(run) => run,
        None if text == LATEST => {
            let runs = Runs::read(history)?;
            runs.newest(|_| true).ok_or_else(|| nothing(&runs, "complete run"))
        }
        None => Runs::read(history)?.find(text, places),
    }
}

fn nothing(runs: &Runs, what: &str) -> Failure {
    Failure::usage(format!(
        "{} holds no {what}: measure one first, or name another place with --results-dir",
        runs.path().display()
    ))
}

/// The newest run before `current` that has one of its frameworks in the same case, on the same machine.
fn before(current: &Run, history: &Path) -> Result<Run> {
    let runs = Runs::read(history)?;
    let first = &current.records[0];
    let found = runs.newest(|run| {
        let earlier = run[0].time < first.time && run[0].run != first.run;
        let same_machine = run[0].machine.fingerprint == first.machine.fingerprint;
        earlier && same_machine && !pairing::pair(run, &current.records, false).pairs.is_empty()
    });
    found.ok_or_else(|| nothing(&runs, "earlier run of this case on this machine"))
}

/// The requested columns; none if any will do.
fn asked_names(args: &CheckArgs, places: &Places) -> Result<Vec<String>> {
    let frameworks = args.request.request().frameworks;
    if frameworks.is_empty() {
        return Ok(Vec::new());
    }
    Ok(places.selected(&frameworks)?.into_iter().map(|engine| engine.name).collect())
}

/// The newest run of this machine that is not part of a study and has the requested frameworks.
fn newest_here(fingerprint: &str, names: &[String], history: &Path) -> Result<Run> {
    let runs = Runs::read(history)?;
    let found = runs.newest(|run| {
        let has = |name: &String| run.iter().any(|record| record.framework == *name);
        let plain =
            run[0].study.is_none() && !run.iter().any(|record| record.framework.ends_with(interleaved::BASE));
        plain && run[0].machine.fingerprint == fingerprint && names.iter().all(has)
    });
    found.ok_or_else(|| nothing(&runs, "complete run of this machine"))
}

/// Refuses a comparison across machines, before minutes are spent on measuring.
fn refuse_another_machine(baseline: &Run, here: &str, args: &CheckArgs) -> Result<()> {
    let machine = &baseline.records[0].machine;
    if machine.fingerprint == here || args.asked.allows(Different::Machine) {
        return Ok(());
    }
    Err(Failure::usage(format!(
        "the baseline {} is another machine's: {} ({}, {} cores to use), fingerprint {}, and this one's is {here}; \
         to compare anyway: --allow-different machine",
        baseline.source, machine.host, machine.cpu, machine.available_cores, machine.fingerprint
    )))
}

/// Refuses a check that no measurement could decide, before minutes are spent on it.
fn refuse_undecidable(baseline: &Run, asked: &Request, args: &CheckArgs) -> Result<()> {
    if let Some(reason) = pairing::unfit(&baseline.records).or_else(|| pairing::too_few_rounds(asked)) {
        return Err(Failure::usage(regression::undecidable(&reason, &baseline.source)));
    }
    let others = pairing::other_case(&baseline.records[0], asked);
    if others.is_empty() || args.asked.allows(Different::Settings) {
        return Ok(());
    }
    Err(Failure::usage(format!(
        "that is another case than the baseline's: {}; leave the flag out, or compare all the same with \
         --allow-different settings",
        others.iter().map(regression::other_setting).collect::<Vec<_>>().join("; ")
    )))
}

/// Human-readable form of a request: its frameworks, model and rounds, and every setting that is not the
/// default.
fn summarize_request(request: &Request) -> String {
    let as_json = |request: &Request| serde_json::to_value(request).expect("a request serialises");
    let (asked, usual) = (as_json(request), as_json(&Request::default()));
    let is_other = |name: &str| !["frameworks", "models", "rounds"].contains(&name);
    let others = asked.as_object().into_iter().flatten();
    let others = others.filter(|(name, value)| is_other(name) && usual.get(name) != Some(value));
    let rounds = match request.rounds {
        Some(RoundsAsked::Fixed(rounds)) => rounds.to_string(),
        _ => "automatic".to_owned(),
    };
    let frameworks = request.frameworks.join(", ");
    let mut text = format!("{frameworks} on {}, rounds: {rounds}", request.model());
    for (name, value) in others {
        text += &format!(", {name}: {value}");
    }
    text
}

/// Repeats the measurement of the baseline. Returns the records with the results directory.
fn measured(args: &CheckArgs, baseline: &Run, places: &Places) -> Result<(Run, String)> {
    let request = args.request.applied_to(again(&baseline.records)?);
    refuse_undecidable(baseline, &request, args)?;
    if !args.here.quiet {
        protocol::say!("measuring what {} measured: {}", baseline.source, summarize_request(&request));
    }
    let results = results_dir(args.results_dir.as_ref(), places);
    let destination = Destination::in_one(&results, args.here.quiet);
    let (report, unsaved) = compare::measure(&request, places, &destination)?;
    if let Some(reason) = unsaved {
        return Err(Failure::failed(reason));
    }
    if report.interrupted {
        return Err(Failure::Interrupted);
    }
    let source = report.results.clone();
    Ok((Run { source: source.clone(), records: records::records(&report, None) }, source))
}

/// Prints the outcome, saves it with the new measurement if there is one, and returns the exit code.
pub(super) fn told(document: &Document, output: Output, results: Option<&Path>) -> Result<u8> {
    let shown = |format| export(document, format, &screen());
    let text = match output {
        Output::Table => shown(Format::Table),
        Output::Json => shown(Format::Json),
        Output::Markdown => shown(Format::Markdown),
        Output::Csv => shown(Format::Csv),
        Output::Github => regression::github(document),
        Output::Junit => regression::junit(document, OffsetDateTime::now_utc()),
    };
    if let Some(results) = results {
        for (name, text) in [("check.json", shown(Format::Json)), ("check.md", shown(Format::Markdown))] {
            if let Err(error) = std::fs::write(results.join(name), text) {
                protocol::say!("warning: cannot save {}: {error}", results.join(name).display());
            }
        }
    }
    print(&text)?;
    if output == Output::Github {
        summarise(document)?;
    }
    Ok(document.exit_code)
}

/// Appends to the job's summary, if this is a job of a GitHub workflow.
fn summarise(document: &Document) -> Result<()> {
    let Some(path) = std::env::var_os("GITHUB_STEP_SUMMARY").filter(|path| !path.is_empty()) else {
        return Ok(());
    };
    let text = regression::job_summary(document);
    let file = std::fs::OpenOptions::new().create(true).append(true).open(&path);
    file.and_then(|mut file| file.write_all(text.as_bytes())).map_err(|error| {
        Failure::failed(format!("cannot add to the job's summary {}: {error}", path.to_string_lossy()))
    })
}

// Repeats a baseline's measurement: its recorded request, with the typed flags applied to it.

/// A request without the settings that a new measurement does not inherit: whether noise is accepted, how long to wait
/// for a quiet machine, and the seed.
fn of_now(request: Request) -> Request {
    let Request { accept_noise, patience_s, seed, .. } = Request::default();
    Request { accept_noise, patience_s, seed, ..request }
}

/// The request that repeats the measurement of one run's records.
fn again(records: &[Record]) -> Result<Request> {
    let first = records.first().ok_or_else(|| Failure::usage("the baseline holds nothing"))?;
    let recorded = match &first.request {
        Some(request) => Request::from_json(request).map_err(|error| error.to_string()),
        None => Err("it does not hold its request".to_owned()),
    };
    // The report of a cell does not say of which study it is; its request does.
    let of_request =
        recorded.as_ref().ok().map(|request| &request.study.name).filter(|name| !name.is_empty());
    if let Some(study) = first.study.as_ref().or(of_request) {
        return Err(Failure::usage(format!(
            "the baseline {} is a cell of the study {study:?}, which cannot be measured again by itself: name the run \
             to judge with --current",
            first.run
        )));
    }
    let recorded = recorded.map_err(|error| {
        Failure::usage(format!(
            "what the baseline {} measured cannot be repeated ({error}): name the run to judge with --current",
            first.run
        ))
    })?;
    let rounds = records.iter().map(|record| record.rounds).max().unwrap_or(0).max(1);
    let quantised = !recorded.quantize.is_empty();
    let precision = first.case.precision.parse().ok().filter(|_| quantised);
    Ok(of_now(Request {
        frameworks: frameworks(records),
        rounds: Some(RoundsAsked::Fixed(rounds as u32)),
        iterations: u32::try_from(first.settings.iterations).ok().or(recorded.iterations),
        schedule: match first.settings.schedule {
            Schedule::Sequential => ScheduleAsked::Sequential,
            _ => recorded.schedule,
        },
        precisions: precision.map_or(recorded.precisions.clone(), |precision| vec![precision]),
        quantize: Vec::new(),
        study: StudySettings::default(),
        ..recorded
    }))
}

/// Frameworks in the order of the table. A framework is named as often as its copies ran (an A/A control); the base of
/// an interleaved check is left out.
fn frameworks(records: &[Record]) -> Vec<String> {
    let engine = |record: &Record| {
        let label = record.framework.as_str();
        let copied = label.rsplit_once(" (").filter(|(_, rest)| rest.ends_with(')'));
        let name = copied.map_or(label, |(name, _)| name);
        (!name.ends_with(interleaved::BASE)).then(|| name.to_owned())
    };
    records.iter().filter_map(engine).collect()
}

// Sources of runs: files from anywhere, or the history.

pub(in crate::commands) struct Runs {
    path: PathBuf,
    runs: Vec<Vec<Record>>,
}

/// Ends a sentence on a directory that was taken for results.
const IS_DIRECTORY: &str = "is a directory that holds neither report.json nor history.jsonl: name the directory of one \
                            run, its report.json, or a history.jsonl";

pub(in crate::commands) const LATEST: &str = "latest";

/// Shortest prefix of a commit that is accepted, in digits; shorter ones match too many commits.
const SHORTEST_COMMIT: usize = 4;

/// The run in a file, if `text` names one: a report, a directory with a report, or a history, of which `#RUN` picks a
/// run.
pub(in crate::commands) fn file(text: &str) -> Option<Result<Run>> {
    let (path, run) = match text.rsplit_once('#') {
        Some((path, run)) if !Path::new(text).exists() => (Path::new(path), Some(run)),
        _ => (Path::new(text), None),
    };
    let path = match path {
        path if path.join(REPORT).is_file() => path.join(REPORT),
        path if path.join(HISTORY).is_file() => path.join(HISTORY),
        path => path.to_path_buf(),
    };
    if path.is_dir() && text.contains(['/', '\\', '.']) {
        return Some(Err(Failure::usage(format!("{text} {IS_DIRECTORY}"))));
    }
    if !path.is_file() {
        let looks_like_a_file =
            text.contains(['/', '\\']) || text.ends_with(".json") || text.ends_with(".jsonl");
        return looks_like_a_file.then(|| Err(Failure::usage(format!("{text}: there is no such file"))));
    }
    Some(read(text, &path, run))
}

fn read(text: &str, path: &Path, run: Option<&str>) -> Result<Run> {
    if path.extension().is_some_and(|extension| extension == "jsonl") {
        let history = Runs::read(path)?;
        let found = match run {
            Some(run) => history.named(run),
            None => history.newest(|_| true),
        };
        return found.ok_or_else(|| {
            let what = run.map_or("complete run".to_owned(), |run| format!("run {run:?}"));
            Failure::usage(format!("{}: it holds no {what}", path.display()))
        });
    }
    let saved = results::text(path)?.unwrap_or_default();
    let report =
        judge::report::read(&saved).map_err(|why| Failure::usage(format!("{}: {why}", path.display())))?;
    let records = records::records(&report, None);
    if records.is_empty() {
        return Err(Failure::usage(format!("{}: it is the report of no framework at all", path.display())));
    }
    Ok(Run { source: text.to_owned(), records })
}

impl Runs {
    pub(in crate::commands) fn read(path: &Path) -> Result<Runs> {
        let read = history::read(path)?;
        let mut runs: Vec<Vec<Record>> = Vec::new();
        for record in read.records {
            match runs.iter_mut().rev().find(|run| run[0].run == record.run) {
                Some(run) => run.push(record),
                None => runs.push(vec![record]),
            }
        }
        Ok(Runs { path: path.to_path_buf(), runs })
    }

    pub(in crate::commands) fn named(&self, name: &str) -> Option<Run> {
        self.run(self.runs.iter().rfind(|run| run[0].run == name))
    }

    /// The newest of the runs that were completed.
    pub(in crate::commands) fn newest(&self, is_meant: impl Fn(&[Record]) -> bool) -> Option<Run> {
        self.run(self.runs.iter().rfind(|run| is_complete(run) && is_meant(run)))
    }

    /// The newest complete run of a commit, by a prefix of its hash. A run without local changes is preferred.
    fn of_commit(&self, prefix: &str) -> Option<Run> {
        let is_meant = |run: &[Record]| {
            let commit = run[0].git_commit.as_deref().unwrap_or_default();
            prefix.len() >= SHORTEST_COMMIT && commit.starts_with(&prefix.to_lowercase())
        };
        let unmodified = |run: &[Record]| is_meant(run) && run[0].git_modified == Some(false);
        self.newest(unmodified).or_else(|| self.newest(is_meant))
    }

    fn run(&self, run: Option<&Vec<Record>>) -> Option<Run> {
        let records = run?.clone();
        Some(Run { source: format!("{}#{}", self.path.display(), records[0].run), records })
    }

    /// A run by its name or by its commit. The commit may be anything that git can resolve: a branch, a tag, HEAD~3.
    pub(in crate::commands) fn find(&self, text: &str, places: &Places) -> Result<Run> {
        let by_name = || self.named(text).or_else(|| self.of_commit(text));
        let by_git = || self.of_commit(&places::commit(places, text)?);
        by_name().or_else(by_git).ok_or_else(|| {
            if Path::new(text).is_dir() {
                return Failure::usage(format!("{text} {IS_DIRECTORY}"));
            }
            Failure::usage(format!(
                "{text:?} is not a file, and {} holds no run and no complete run of a commit of this name; `photofinish \
                 history` lists what there is",
                self.path.display()
            ))
        })
    }

    pub(in crate::commands) fn path(&self) -> &Path {
        &self.path
    }
}

fn is_complete(run: &[Record]) -> bool {
    run.iter().all(|record| !record.interrupted && record.noise.is_none())
}

// `--base`: between two commits of a framework.

/// The version to judge and the one to compare it with, as `interleaved` has them, and the same in words.
pub(super) fn commits(args: &CheckArgs) -> Result<(interleaved::Base, String)> {
    let repository = Repository::at(&args.checkout).map_err(|error| failure(&error))?;
    let commit = |revision: &String| repository.commit(revision).map_err(|error| failure(&error));
    let base = args.base.as_ref().map(commit).transpose()?.unwrap_or_default();
    let head = args.head.as_ref().map(commit).transpose()?;
    let frameworks = args.request.request().frameworks;
    let [framework] = frameworks.as_slice() else {
        return Err(Failure::usage(
            "--base is about one framework: --frameworks NAME, the one of the checkout",
        ));
    };
    let root = repository.root();
    let version = head.as_ref().map_or(root.to_owned(), |head| repository.version(head));
    let head = head.map_or("the checkout as it is".to_owned(), |head| format!("commit {head}"));
    let sides = format!("{framework} of {root}: {head}, against commit {base}");
    let head = Some(format!("{framework}@{version}"));
    Ok((interleaved::Base::Version { version: repository.version(&base), head }, sides))
}

#[cfg(test)]
mod unit {
    use comparison::judge::regression::testing::{self, record};
    use comparison::judge::regression::{CheckAsked, parse_threshold};
    use comparison::judge::report::State;

    use super::*;

    #[test]
    fn the_answer_names_the_framework_that_failed_or_slowed_down_and_every_difference() {
        let run = |records| Run { source: "h.jsonl#run".into(), records };
        let threshold = vec![parse_threshold("5%").unwrap()];
        let metrics = vec!["throughput".to_owned()];
        let asked = CheckAsked { threshold, metrics, allow_different: vec![Different::Machine] };
        let answer = |current: Vec<Record>| {
            let baseline = run(vec![record("one", 100.0), record("two", 100.0)]);
            comparison::judge::regression::check(&baseline, &run(current), &asked).unwrap()
        };
        let slower = answer(vec![record("one", 92.0), record("two", 100.0)]);
        assert_eq!(regression::conclusion(&slower), "regression: throughput of one");
        let mut broken = record("two", 100.0);
        (broken.state, broken.reasons) = (State::Struck, vec!["R11: top-1 differs".into()]);
        assert_eq!(regression::conclusion(&answer(vec![record("one", 50.0), broken])), "failed: two");
        let mut uncertain = record("one", 92.0);
        let values = [60.0, 130.0, 80.0, 110.0, 75.0, 110.0].map(Some);
        uncertain.metrics.get_mut("throughput").unwrap().values = values.into();
        (uncertain.machine.fingerprint, uncertain.machine.cpu) = ("g".into(), "Another".into());
        let document = answer(vec![uncertain, record("two", 100.0)]);
        assert!(regression::conclusion(&document).contains("inconclusive: throughput of one"));
        assert!(
            render::export(&document, Format::Json, &screen()).contains("rounds in each run would decide")
        );
        assert!(render::export(&document, Format::Table, &screen()).contains("NOT THE SAME: processor"));
    }

    fn history(runs: &[(&str, &str, bool)]) -> Runs {
        let run = |(name, commit, modified): &(&str, &str, bool)| {
            let mut record = testing::record("one", 100.0);
            (record.run, record.git_commit) = ((*name).to_owned(), Some((*commit).to_owned()));
            record.git_modified = Some(*modified);
            vec![record]
        };
        Runs { path: "h.jsonl".into(), runs: runs.iter().map(run).collect() }
    }

    fn name(run: Option<Run>) -> Option<String> {
        run.map(|run| run.records[0].run.clone())
    }

    #[test]
    fn a_commit_is_its_newest_run_of_an_unmodified_tree() {
        let history = history(&[("a", "abcd01", false), ("b", "abcd01", true), ("c", "ffff02", false)]);
        assert_eq!(name(history.of_commit("abcd")).as_deref(), Some("a"));
        assert_eq!(name(history.of_commit("FFFF02")).as_deref(), Some("c"));
        assert_eq!(name(history.of_commit("ab")), None, "too short to mean one");
    }

    #[test]
    fn what_was_interrupted_or_noisy_is_no_baseline() {
        let mut history = history(&[("a", "abcd01", false), ("b", "abcd01", false), ("c", "abcd01", false)]);
        history.runs[2][0].interrupted = true;
        history.runs[1][0].noise = Some("other processes".into());
        assert_eq!(name(history.newest(|_| true)).as_deref(), Some("a"));
        assert_eq!(name(history.named("c")).as_deref(), Some("c"), "by its name it can be had");
    }
}
