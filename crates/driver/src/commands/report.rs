//! `photofinish report` and `show`: every output again, from saved results, and several runs combined.

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use comparison::facts::Evidence;
use comparison::history::Record;
use comparison::judge;
use comparison::judge::combined::{Runs, difference, unfit};
use comparison::judge::records::{self, HISTORY};
use comparison::judge::report::layer_parity::{self, ParityReport};
use comparison::judge::study::StudyReport;
use comparison::judge::{Metric, Report};
use comparison::plan::{Failure, Result};
use render::combined::Combined;
use render::{Exporter, JsonText, Markdown, export};

use super::compare::{Output, Outputs, report_outputs, study_outputs};
use super::study::{self, CELLS};
use super::{archive, history};
use crate::cli::{ReportArgs, ShowArgs};
use crate::measure::results::{self, PARITY, REPORT, SAMPLES, write_whole};
use crate::output::{print, screen, shown};

pub(crate) fn report(args: &ReportArgs) -> Result<u8> {
    if let (Some(file), Some(signers)) = (&args.verify, &args.signers) {
        return archive::signature::verify(file, signers);
    }
    if args.directories.len() > 1 {
        if args.rejudge || args.archive || args.open || args.cite || args.picture.is_some() {
            let what = "--rejudge, --archive, --cite, --open and --picture are for one results directory, and several \
                        are given";
            return Err(Failure::usage(what));
        }
        return match args.directories.iter().any(|directory| is_run(directory)) {
            true => combined(args),
            false => parts(args),
        };
    }
    let directory = match args.directories.first() {
        Some(directory) => directory.clone(),
        None => latest(&args.from.directory()?)?,
    };
    if args.open {
        return open(&directory);
    }
    if args.archive {
        let packed = archive::pack(&directory)?;
        let signed = args.sign.as_ref().map(|key| archive::signature::sign(&packed, key)).transpose()?;
        let files: Vec<String> =
            [packed].iter().chain(&signed).map(|file| format!("{}\n", shown(file))).collect();
        print(&files.concat())?;
        return Ok(0);
    }
    if args.cite {
        return cite(&directory);
    }
    if let Some(metric) = args.picture {
        return picture(&directory, metric, args.title.as_deref());
    }
    if args.rejudge {
        return rejudge(&directory, args.in_place);
    }
    written(&directory, outputs(&directory)?)
}

/// One table of several parts of a study. Cells that are missing are counted, and the exit code is 1 then.
fn parts(args: &ReportArgs) -> Result<u8> {
    let report = study::together(&args.directories)?;
    print(&export(&report, args.format, &screen()))?;
    if let Some(out) = args.out.as_deref() {
        std::fs::create_dir_all(out)
            .map_err(|e| Failure::usage(format!("cannot write to {}: {e}", out.display())))?;
        written(out, study_outputs(&report, out))?;
    }
    let (found, all) = (report.cells.len(), report.planned.len());
    if found < all {
        protocol::say!("warning: {found} of {all} cells are there");
    }
    Ok(report.exit_code().max(u8::from(found < all)))
}

/// A study has a file of its cells, or a report that names it.
fn is_run(directory: &Path) -> bool {
    let of_study =
        || results::text(&directory.join(REPORT)).is_ok_and(|text| text.is_some_and(|it| is_of_study(&it)));
    let is_any = [REPORT, SAMPLES].iter().any(|name| directory.join(name).is_file());
    is_any && !directory.join(CELLS).is_file() && !of_study()
}

/// Several runs of one case, combined in one table.
fn combined(args: &ReportArgs) -> Result<u8> {
    if args.out.is_some() {
        return Err(Failure::usage("--output is for parts of a study, and runs are given"));
    }
    let mut runs: Vec<(String, Vec<Record>)> = Vec::new();
    for directory in &args.directories {
        let name = directory.display().to_string();
        let refused = |what: String| Err(Failure::usage(format!("{name} {what}")));
        let Saved::Run(report, _) = saved(directory)? else {
            return refused(
                "is no run, and others are: name runs of one case, or the parts of one study".into(),
            );
        };
        let records = records::records(&report, None);
        if records.is_empty() {
            return refused("has no contender: leave it out".into());
        }
        if let Some(why) = unfit(&records) {
            return refused(format!("is {why}, so its figures support no verdict: leave it out"));
        }
        let key = |records: &[Record]| (records[0].run.clone(), records[0].time.clone());
        for (first, others) in &runs {
            if key(others) == key(&records) {
                return refused(format!("is the same run as {first}: name it once"));
            }
            if let Some((what, theirs, ours)) = difference(others, &records) {
                return refused(format!(
                    "cannot be combined with {first}: its {what} is {ours}, and there it is {theirs}; name runs of one \
                     case"
                ));
            }
        }
        runs.push((name, records));
    }
    let found = Runs::new(runs.iter().map(|(_, records)| records.as_slice()).collect());
    if found.pairs.is_empty() {
        let why = "no two frameworks have figures of at least six rounds in two of these runs: nothing can be combined";
        return Err(Failure::failed(why));
    }
    print(&export(&Combined(&[found]), args.format, &screen()))?;
    Ok(0)
}

/// Prints an entry of BibTeX and a sentence.
fn cite(directory: &Path) -> Result<u8> {
    let Saved::Run(report, _) = saved(directory)? else {
        let why = format!("{} is no run: name a run, or a cell of a study", directory.display());
        return Err(Failure::usage(why));
    };
    let archive = archive::path_of(directory)?;
    let sha256 = archive.is_file().then(|| bundle::sha256_of(&archive)).transpose();
    let sha256 =
        sha256.map_err(|error| Failure::failed(format!("cannot read {}: {error}", archive.display())))?;
    print(&render::cited(&report, sha256.as_deref()))?;
    Ok(0)
}

fn written(directory: &Path, outputs: Outputs) -> Result<u8> {
    let mut lines = String::new();
    for (name, contents) in outputs.files {
        let path = directory.join(&name);
        write_whole(directory, &name, &contents)
            .map_err(|e| Failure::failed(format!("cannot save to {}: {e}", path.display())))?;
        lines += &format!("{}\n", shown(&path));
    }
    print(&lines)?;
    outputs.missing.map_or(Ok(0), |reason| Err(Failure::failed(reason)))
}

/// The newest results directory. Names begin with the time of the run, so it is the last by name.
pub(super) fn latest(results: &Path) -> Result<PathBuf> {
    let none = |reason: String| Failure::usage(format!("no results in {}: {reason}", results.display()));
    let entries = std::fs::read_dir(results).map_err(|e| none(e.to_string()))?;
    let directories = entries.flatten().map(|entry| entry.path());
    let newest = directories
        .filter(|path| [REPORT, SAMPLES, CELLS].iter().any(|name| path.join(name).is_file()))
        .max();
    newest.ok_or_else(|| none("measure something first, or name another place with --results-dir".into()))
}

/// `photofinish history --page`.
pub(super) fn page_of_history(directory: &Path) -> Result<u8> {
    written(directory, Outputs { files: of_history(directory)?, missing: None })
}

fn of_history(directory: &Path) -> Result<Vec<Output>> {
    let path = directory.join(HISTORY);
    let read = history::read(&path)?;
    if read.records.is_empty() {
        let reason = "it has no records; measure something first, or name another place with --results-dir";
        return Err(Failure::usage(format!("no history in {}: {reason}", path.display())));
    }
    render::page::history(&read.records, read.skipped.len()).map_err(Failure::failed)
}

/// Writes the picture of one metric of a run.
fn picture(directory: &Path, metric: Metric, title: Option<&str>) -> Result<u8> {
    let path = directory.join(REPORT);
    let cannot = |reason: String| Failure::usage(format!("{}: {reason}", path.display()));
    let text = results::text(&path)?
        .ok_or_else(|| cannot("there is no such report; name a results directory".into()))?;
    if is_of_study(&text) {
        return Err(cannot("it is a study's; name the directory of one of its cells".into()));
    }
    let report = judge::report::read(&text).map_err(cannot)?;
    if !report.rows.iter().any(|row| row.typical(metric).is_some()) {
        return Err(cannot(format!("no framework has a figure of {}", metric.words())));
    }
    let files = render::page::picture(&report, metric, title).map_err(Failure::failed)?;
    written(directory, Outputs { files, missing: None })
}

fn is_of_study(text: &str) -> bool {
    #[derive(serde::Deserialize)]
    struct Head {
        study: Option<serde::de::IgnoredAny>,
    }
    serde_json::from_str::<Head>(text).is_ok_and(|head| head.study.is_some())
}

/// What is saved in a results directory.
enum Saved {
    /// With its samples, if they had to be read.
    Run(Box<Report>, Option<Evidence>),
    Study(Box<StudyReport>),
    Parity(Box<ParityReport>),
}

/// Reads a report. A run or a study that was killed has none: it is judged from what was measured.
fn saved(directory: &Path) -> Result<Saved> {
    let path = directory.join(REPORT);
    let unreadable =
        |path: &Path, reason: String| Failure::usage(format!("{} cannot be shown: {reason}", path.display()));
    if let Some(text) = results::text(&path)? {
        return Ok(match is_of_study(&text) {
            true => Saved::Study(Box::new(judge::study::read(&text).map_err(|why| unreadable(&path, why))?)),
            false => {
                Saved::Run(Box::new(judge::report::read(&text).map_err(|why| unreadable(&path, why))?), None)
            }
        });
    }
    let parity = directory.join(PARITY);
    if let Some(text) = results::text(&parity)? {
        let report = layer_parity::read(&text).map_err(|why| unreadable(&parity, why))?;
        return Ok(Saved::Parity(Box::new(report)));
    }
    if let Some(report) = study::unfinished(directory)? {
        return Ok(Saved::Study(Box::new(report)));
    }
    let (report, evidence) = results::judged(directory)?;
    Ok(Saved::Run(Box::new(report), Some(evidence)))
}

/// Writes every output of the run or study in this directory.
fn outputs(directory: &Path) -> Result<Outputs> {
    Ok(match saved(directory)? {
        Saved::Study(report) => study_outputs(&report, directory),
        Saved::Parity(report) => {
            let files = vec![
                (PARITY.into(), JsonText.export(&*report).into_bytes()),
                ("parity.md".into(), Markdown::Whole.export(&*report).into_bytes()),
            ];
            Outputs { files, missing: None }
        }
        Saved::Run(report, evidence) => {
            // A page without samples has fewer charts, and is still useful.
            let evidence = evidence.unwrap_or_else(|| match results::facts(directory) {
                Ok((facts, _)) => facts.evidence,
                Err(why) => {
                    protocol::say!("warning: {why}; the page has no charts of single requests");
                    Evidence::default()
                }
            });
            report_outputs(&report, &evidence)
        }
    })
}

/// Judges a run again, and lists what changed.
fn rejudge(directory: &Path, in_place: bool) -> Result<u8> {
    if !directory.join(SAMPLES).is_file() {
        return Err(Failure::usage(format!(
            "{} holds no {SAMPLES}: there is nothing to decide from",
            directory.display()
        )));
    }
    let (mut report, evidence) = results::judged(directory)?;
    let mut text = match results::text(&directory.join(REPORT))?.map(|text| judge::report::read(&text)) {
        None => "there is no report to compare with: everything is decided for the first time\n".to_owned(),
        Some(Err(reason)) => format!("the recorded report cannot be compared with: {reason}\n"),
        Some(Ok(recorded)) => {
            let changes = render::result::changes(&recorded, &report);
            // Samples do not say it.
            report.other_runs = recorded.other_runs;
            match changes.as_slice() {
                [] => "no verdict changed\n".to_owned(),
                changes => changes.iter().map(|change| format!("{change}\n")).collect(),
            }
        }
    };
    let to = if in_place { directory.to_path_buf() } else { directory.join("rejudged") };
    results::make_itself(&to).map_err(|e| Failure::usage(format!("cannot make {}: {e}", to.display())))?;
    text += "\n";
    print(&text)?;
    written(&to, report_outputs(&report, &evidence))
}

// `photofinish report --open`: shows the page of a run in the browser.

fn open(directory: &Path) -> Result<u8> {
    let page = directory.join("report.html");
    if !page.is_file() {
        let directory = directory.display();
        let why = format!("{directory} has no report.html: `photofinish report {directory}` writes it");
        return Err(Failure::usage(why));
    }
    print(&format!("{}\n", shown(&page)))?;
    let is_shown = OPENERS.iter().any(|(program, before)| {
        #[expect(clippy::disallowed_methods, reason = "the system's own program shows the page")]
        let mut opener = Command::new(program);
        opener.args(*before).arg(&page).stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
        opener.status().is_ok_and(|status| status.success())
    });
    if !is_shown {
        protocol::say!("no program on this machine opens pages: open the file above in a browser");
    }
    Ok(0)
}

/// Programs that show a file as the user's desktop does, with the words before the file.
const OPENERS: &[(&str, &[&str])] =
    if cfg!(target_os = "macos") { &[("open", &[])] } else { &[("xdg-open", &[]), ("wslview", &[])] };

// `photofinish show`: the output of a run again.

pub(crate) fn show(args: &ShowArgs) -> Result<u8> {
    let directory = match &args.directory {
        Some(directory) => directory.clone(),
        None => latest(&args.from.directory()?)?,
    };
    print(&match saved(&directory)? {
        Saved::Run(report, _) => export(&*report, args.format, &screen()),
        Saved::Study(report) => export(&*report, args.format, &screen()),
        Saved::Parity(report) => export(&*report, args.format, &screen()),
    })?;
    Ok(0)
}
