//! `driver check` and `driver diff`: is a run worse than another, for certain, and by more than is put up with?
//! `docs/regressions.md` tells people how it is used and what stands behind it.

pub(crate) mod args;
mod ci;
mod document;
mod interleaved;
mod machine;
mod pairing;
mod render;
mod repeat;
mod reports;
mod source;
#[cfg(test)]
mod testing;
#[cfg(test)]
mod tests;
mod verdicts;

use std::path::Path;

use clap::Parser;
use time::OffsetDateTime;

use args::{CheckArgs, DiffArgs, Different, Output, Thresholds};
use document::{Broken, Document, Kind, Side};
use machine::Speed;
use pairing::Pair;
use source::{LATEST, Run, Runs};
use verdicts::Bar;

use crate::cli::{Cli, Command};
use crate::failure::{Failure, Result};
use crate::places::Places;
use crate::records::{self, HISTORY};
use crate::{compare, environment, interrupt};

pub(crate) fn check(args: &CheckArgs) -> Result<u8> {
    let outcome = checked(args);
    if let (Output::Github, Err(failure @ (Failure::Usage(_) | Failure::Failed(_)))) =
        (args.own.output, &outcome)
    {
        crate::print(&ci::refusal(&failure.to_string()))?;
    }
    outcome
}

fn checked(args: &CheckArgs) -> Result<u8> {
    interrupt::listen()?;
    let places = Places::find(&args.compare.model.places)?;
    if let Some(directory) = &args.own.base_workers {
        let (document, report) = interleaved::check(args, directory, &places)?;
        return told(&document, args.own.output, Some(Path::new(&report.results)));
    }
    let results = args.compare.results_dir.clone().unwrap_or_else(|| places.results());
    let history = results.join(HISTORY);
    let asked = args.own.baseline.as_deref().unwrap_or(LATEST);
    let (baseline, current, saved) = match args.own.current.as_deref() {
        Some(current) => {
            if repeat::says_what_to_measure(&args.typed) {
                return Err(Failure::usage(
                    "--current names a run that was measured: flags of a comparison have nothing to act on",
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
            let here = records::fingerprint(&environment::read(&places, String::new()));
            let baseline = match asked {
                LATEST => newest_here(&here, args, &history)?,
                asked => named(asked, &history, &places)?,
            };
            refuse_another_machine(&baseline, &here, args)?;
            let (current, saved) = measured(args, &baseline, &places)?;
            (baseline, current, Some(saved))
        }
    };
    let document = judged(&baseline, &current, args)?;
    told(&document, args.own.output, saved.as_deref().map(Path::new))
}

pub(crate) fn diff(args: &DiffArgs) -> Result<u8> {
    let places = Places::find(&args.places)?;
    let history = args.results_dir.clone().unwrap_or_else(|| places.results()).join(HISTORY);
    let (a, b) = (named(&args.a, &history, &places)?, named(&args.b, &history, &places)?);
    let thresholds = Thresholds::all(args.margin);
    let pairing = pairing::pair(&a.records, &b.records, false);
    let mut document =
        Document::new(Kind::Diff, Side::of(&a.source, &a.records), Side::of(&b.source, &b.records));
    note_differences(&mut document, &pairing.pairs);
    note_failures(&mut document, &pairing.pairs);
    document.unmeasurable = noise(&pairing.pairs);
    let measured: Vec<Pair<'_>> = pairing.pairs.iter().copied().filter(is_measured).collect();
    let subjects: Vec<_> =
        measured.iter().flat_map(|pair| verdicts::subjects(*pair, &args.metrics)).collect();
    document.findings =
        verdicts::unpaired(&subjects, &Bar { thresholds: &thresholds, gates: false, speed: Speed::SAME });
    document.alone = pairing.alone;
    told(&document.concluded(), args.output, None)
}

/// A file, or what the history knows by this name.
fn named(text: &str, history: &Path, places: &Places) -> Result<Run> {
    match source::file(text) {
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

/// The newest run before `current` that has a framework of its in the same case, on the same machine.
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

/// The newest run of this machine that is no part of a study and has the frameworks that are asked for.
fn newest_here(fingerprint: &str, args: &CheckArgs, history: &Path) -> Result<Run> {
    let runs = Runs::read(history)?;
    let found = runs.newest(|run| {
        let has = |name: &String| run.iter().any(|record| record.framework == *name);
        let plain =
            run[0].study.is_none() && !run.iter().any(|record| record.framework.ends_with(interleaved::BASE));
        plain && run[0].machine.fingerprint == fingerprint && args.compare.frameworks.iter().all(has)
    });
    found.ok_or_else(|| nothing(&runs, "complete run of this machine"))
}

/// Before minutes are spent on measuring what will not be compared.
fn refuse_another_machine(baseline: &Run, here: &str, args: &CheckArgs) -> Result<()> {
    let machine = &baseline.records[0].machine;
    if machine.fingerprint == here || args.own.allows(Different::Machine) {
        return Ok(());
    }
    Err(Failure::usage(format!(
        "the baseline {} is another machine's: {} ({}, {} cores to use), fingerprint {}, and this one's is {here}; \
         --allow-different machine compares all the same",
        baseline.source, machine.host, machine.cpu, machine.available_cores, machine.fingerprint
    )))
}

/// Measures what the baseline measured; with the results directory.
fn measured(args: &CheckArgs, baseline: &Run, places: &Places) -> Result<(Run, String)> {
    let records: Vec<&history::Record> = baseline.records.iter().collect();
    let command = repeat::command(&records, &args.typed)?;
    let parsed = Cli::try_parse_from(&command).map_err(|error| {
        let text = error.to_string();
        Failure::usage(format!(
            "`{}` makes no sense: {}",
            command.join(" "),
            text.lines().next().unwrap_or_default().trim_start_matches("error: ")
        ))
    })?;
    let Some(Command::Compare(mut compare)) = parsed.command else {
        return Err(Failure::usage("the baseline is no comparison"));
    };
    compare.model.places = args.compare.model.places.clone();
    compare.results_dir.clone_from(&args.compare.results_dir);
    if !compare.model.quiet {
        eprintln!("measuring: {}", command.join(" "));
    }
    compare.study.command = command;
    let (report, unsaved) = compare::measure(&compare, places, compare.results_dir.as_deref())?;
    if let Some(reason) = unsaved {
        return Err(Failure::failed(reason));
    }
    if report.interrupted {
        return Err(Failure::Interrupted);
    }
    let source = report.results.clone();
    Ok((Run { source: source.clone(), records: records::records(&report, None) }, source))
}

fn judged(baseline: &Run, current: &Run, args: &CheckArgs) -> Result<Document> {
    let loosely = args.own.allows(Different::Settings);
    let pairing = pairing::pair(&baseline.records, &current.records, loosely);
    pairing::check_common(&pairing, &args.own.allow_different)?;
    let mut document = Document::new(
        Kind::Check,
        Side::of(&baseline.source, &baseline.records),
        Side::of(&current.source, &current.records),
    );
    note_differences(&mut document, &pairing.pairs);
    refuse_differences(&pairing.pairs, args)?;
    note_failures(&mut document, &pairing.pairs);
    document.unmeasurable = noise(&pairing.pairs);
    document.alone = pairing.alone;
    let measured: Vec<Pair<'_>> = pairing.pairs.into_iter().filter(is_measured).collect();
    if document.unmeasurable.is_none()
        && let Some(first) = measured.first()
    {
        let speed = match args.own.allows(Different::Machine) {
            true => Speed::SAME,
            false => Speed::between(&first.baseline.machine, &first.current.machine),
        };
        let changes = machine::changes(&first.baseline.machine, &first.current.machine);
        document.warnings.extend(changes.iter().map(machine::Change::sentence));
        let thresholds = args.own.thresholds();
        let subjects: Vec<_> =
            measured.iter().flat_map(|pair| verdicts::subjects(*pair, &args.own.metrics)).collect();
        document.findings =
            verdicts::unpaired(&subjects, &Bar { thresholds: &thresholds, gates: true, speed });
    }
    if document.unmeasurable.is_none() && document.failures.is_empty() && document.findings.is_empty() {
        document.unmeasurable = Some("no framework has figures of these metrics in both runs".into());
    }
    Ok(document.concluded())
}

fn note_differences(document: &mut Document, pairs: &[Pair<'_>]) {
    let Some(first) = pairs.first() else { return };
    document.differences = machine::differences(first.baseline, first.current);
    for pair in pairs {
        let found = pairing::differences(pair);
        document.differences.extend(found.iter().map(|what| format!("{}: {what}", pair.current.framework)));
    }
}

fn refuse_differences(pairs: &[Pair<'_>], args: &CheckArgs) -> Result<()> {
    let Some(first) = pairs.first() else { return Ok(()) };
    let refuse = |found: &[String], what: &str, flag: Different| match found {
        [] => Ok(()),
        _ if args.own.allows(flag) => Ok(()),
        found => Err(Failure::usage(format!(
            "the runs are not of the same {what}: {}; --allow-different {what} compares all the same",
            found.join("; ")
        ))),
    };
    refuse(&machine::differences(first.baseline, first.current), "machine", Different::Machine)?;
    pairs.iter().try_for_each(|pair| refuse(&pairing::differences(pair), "settings", Different::Settings))
}

/// Frameworks that had figures in the baseline and have none that count now.
fn note_failures(document: &mut Document, pairs: &[Pair<'_>]) {
    for Pair { baseline, current } in pairs {
        let broken = match current.state.as_str() {
            "failed" | "struck" => current.reasons.first().cloned(),
            "unsupported" if takes_part(baseline) => current.reasons.first().cloned(),
            _ => None,
        };
        let framework = current.framework.clone();
        if let Some(reason) = broken {
            document.failures.push(Broken { framework, reason });
        } else if !takes_part(baseline) && takes_part(current) {
            let why = baseline.reasons.first().map_or("it was not measured", String::as_str);
            document.warnings.push(format!("{framework} has no baseline: {why}"));
        }
    }
}

fn takes_part(record: &history::Record) -> bool {
    matches!(record.state.as_str(), "measured" | "labelled")
}

fn is_measured(pair: &Pair<'_>) -> bool {
    takes_part(pair.baseline) && takes_part(pair.current)
}

fn noise(pairs: &[Pair<'_>]) -> Option<String> {
    let of = |record: &history::Record, side: &str| {
        record.noise.as_ref().map(|noise| format!("the machine was too noisy in the {side}: {noise}"))
    };
    pairs.iter().find_map(|pair| of(pair.current, "current run").or_else(|| of(pair.baseline, "baseline")))
}

/// Prints it, keeps it beside what was measured for it, and gives its exit code.
fn told(document: &Document, output: Output, results: Option<&Path>) -> Result<u8> {
    let text = match output {
        Output::Table => render::table(document),
        Output::Json => compare::pretty(document) + "\n",
        Output::Markdown => render::markdown(document),
        Output::Csv => render::csv(document),
        Output::Github => ci::github(document),
        Output::Junit => ci::junit(document, OffsetDateTime::now_utc()),
    };
    if let Some(results) = results {
        for (name, text) in
            [("check.json", compare::pretty(document) + "\n"), ("check.md", render::markdown(document))]
        {
            if let Err(error) = std::fs::write(results.join(name), text) {
                eprintln!("warning: cannot save {}: {error}", results.join(name).display());
            }
        }
    }
    crate::print(&text)?;
    if output == Output::Github {
        ci::summarise(document)?;
    }
    Ok(document.exit_code)
}
