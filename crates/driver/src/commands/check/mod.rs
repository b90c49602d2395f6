//! `photofinish check`: is a run significantly worse than another, by more than the threshold? `docs/how-to/gate-ci.md`
//! describes its use and its method.

mod again;
mod interleaved;
mod source;
#[cfg(test)]
mod tests;

use std::io::Write;
use std::path::Path;

use judge::records::{self, HISTORY, takes_part};
use judge::regression::machine::{self, Speed};
use judge::regression::verdicts::{self, Bar};
use judge::regression::{Broken, Document, Kind, Pair, Pairing, Side, pairing, preflight};
use measure::{Places, environment, interrupt};
use plan::{Engines, Failure, Request, Result, RoundsAsked};
use render::regression;
use time::OffsetDateTime;

use super::archive;
use super::measured::{self, Destination, results_dir};
use crate::cli::check::{CheckArgs, Different, Output};
use crate::output::{print, screen};
use again::{again, says_what_to_measure};
use source::{LATEST, Run, Runs};

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
    interrupt::listen()?;
    let places = args.here.places.find()?;
    if let Some(base) = interleaved::Base::asked(args) {
        let (document, report) = interleaved::check(args, &base, &places)?;
        return told(&document, args.output, Some(Path::new(&report.results)));
    }
    let results = results_dir(args.results_dir.as_ref(), &places);
    let history = results.join(HISTORY);
    let asked = args.baseline.as_deref().unwrap_or(LATEST);
    let (baseline, current, saved) = match args.current.as_deref() {
        Some(current) => {
            if says_what_to_measure(args) {
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
            let here = records::fingerprint(&environment::read(&places, String::new()));
            let baseline = match asked {
                LATEST => newest_here(&here, &asked_names(args, &places)?, &history)?,
                asked => named(asked, &history, &places)?,
            };
            refuse_another_machine(&baseline, &here, args)?;
            let (current, saved) = measured(args, &baseline, &places)?;
            (baseline, current, Some(saved))
        }
    };
    let document = judged(&baseline, &current, args)?;
    told(&document, args.output, saved.as_deref().map(Path::new))
}

/// The runs of a file, or of the history under this name.
pub(super) fn named(text: &str, history: &Path, places: &Places) -> Result<Run> {
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
    if args.request.frameworks.is_empty() {
        return Ok(Vec::new());
    }
    Ok(places.selected(&args.request.frameworks)?.into_iter().map(|engine| engine.name).collect())
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
    if machine.fingerprint == here || args.allows(Different::Machine) {
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
    if let Some(reason) = preflight::unfit(&baseline.records).or_else(|| preflight::too_few_rounds(asked)) {
        return Err(Failure::usage(regression::undecidable(&reason, &baseline.source)));
    }
    let others = preflight::other_case(&baseline.records[0], asked);
    if others.is_empty() || args.allows(Different::Settings) {
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
        untrusted::say!("measuring what {} measured: {}", baseline.source, summarize_request(&request));
    }
    let results = results_dir(args.results_dir.as_ref(), places);
    let destination = Destination { parent: &results, history: &results, quiet: args.here.quiet };
    let (report, unsaved) = measured::measure(&request, places, &destination)?;
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
    let loosely = args.allows(Different::Settings);
    let pairing = pairing::pair(&baseline.records, &current.records, loosely);
    check_common(&pairing, &args.allow_different)?;
    let mut document = Document::new(
        Kind::Check,
        Side::new(&baseline.source, &baseline.records),
        Side::new(&current.source, &current.records),
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
        let speed = match args.allows(Different::Machine) {
            true => Speed::SAME,
            false => Speed::between(&first.baseline.machine, &first.current.machine),
        };
        let changes = machine::changes(&first.baseline.machine, &first.current.machine);
        document.warnings.extend(changes.iter().map(machine::Change::sentence));
        let thresholds = args.thresholds();
        let subjects: Vec<_> =
            measured.iter().flat_map(|pair| verdicts::subjects(*pair, &args.metrics)).collect();
        document.findings =
            verdicts::unpaired(&subjects, &Bar { thresholds: &thresholds, gates: true, speed });
    }
    if document.unmeasurable.is_none() && document.failures.is_empty() && document.findings.is_empty() {
        document.unmeasurable = Some("no framework has figures of these metrics in both runs".into());
    }
    Ok(document.concluded())
}

pub(super) fn note_differences(document: &mut Document, pairs: &[Pair<'_>]) {
    let Some(first) = pairs.first() else { return };
    document.differences = machine::differences(first.baseline, first.current);
    document.differences.extend(pairing::all_differences(pairs));
}

fn refuse_differences(pairs: &[Pair<'_>], args: &CheckArgs) -> Result<()> {
    let Some(first) = pairs.first() else { return Ok(()) };
    let refuse = |found: &[String], what: &str, flag: Different| match found {
        [] => Ok(()),
        _ if args.allows(flag) => Ok(()),
        found => Err(Failure::usage(format!(
            "the runs are not of the same {what}: {}; to compare anyway: --allow-different {what}",
            found.join("; ")
        ))),
    };
    refuse(&machine::differences(first.baseline, first.current), "machine", Different::Machine)?;
    refuse(&pairing::all_differences(pairs), "settings", Different::Settings)
}

/// Refuses two runs that have no case in common.
fn check_common(pairing: &Pairing<'_>, allowed: &[Different]) -> Result<()> {
    if !pairing.pairs.is_empty() {
        return Ok(());
    }
    let of = |side: &str| {
        let alone = pairing.alone.iter().filter(|alone| alone.side == side);
        alone.map(|alone| format!("{} ({})", alone.framework, alone.case)).collect::<Vec<_>>().join("; ")
    };
    let remedy = match allowed.contains(&Different::Settings) {
        true => "",
        false => "; --allow-different settings compares a framework with itself in another case",
    };
    Err(Failure::usage(format!(
        "the runs have no framework in the same case: the baseline has {}, the current run {}{remedy}",
        of("baseline"),
        of("current")
    )))
}

/// Frameworks that had figures in the baseline and have no valid figures now.
pub(super) fn note_failures(document: &mut Document, pairs: &[Pair<'_>]) {
    for Pair { baseline, current } in pairs {
        let broken = match current.state.as_str() {
            "failed" | "struck" => current.reasons.first().cloned(),
            "unsupported" if takes_part(baseline) => current.reasons.first().cloned(),
            _ => None,
        };
        let framework = current.framework.clone();
        if let Some(reason) = broken {
            document.failures.push(Broken { framework, reason: reason.into() });
        } else if !takes_part(baseline) && takes_part(current) {
            let why = baseline.reasons.first().map_or("it was not measured", |reason| reason.as_str());
            document.warnings.push(format!("{framework} has no baseline: {why}"));
        }
    }
}

pub(super) fn is_measured(pair: &Pair<'_>) -> bool {
    takes_part(pair.baseline) && takes_part(pair.current)
}

pub(super) fn noise(pairs: &[Pair<'_>]) -> Option<String> {
    let of = |record: &history::Record, side: &str| {
        record.noise.as_ref().map(|noise| format!("the machine was too noisy in the {side}: {noise}"))
    };
    pairs.iter().find_map(|pair| of(pair.current, "current run").or_else(|| of(pair.baseline, "baseline")))
}

/// Prints the outcome, saves it with the new measurement if there is one, and returns the exit code.
pub(super) fn told(document: &Document, output: Output, results: Option<&Path>) -> Result<u8> {
    let text = match output {
        Output::Table => regression::table(document, &screen()),
        Output::Json => regression::json(document) + "\n",
        Output::Markdown => regression::markdown(document),
        Output::Csv => regression::csv(document),
        Output::Github => regression::github(document),
        Output::Junit => regression::junit(document, OffsetDateTime::now_utc()),
    };
    if let Some(results) = results {
        for (name, text) in
            [("check.json", regression::json(document) + "\n"), ("check.md", regression::markdown(document))]
        {
            if let Err(error) = std::fs::write(results.join(name), text) {
                untrusted::say!("warning: cannot save {}: {error}", results.join(name).display());
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
