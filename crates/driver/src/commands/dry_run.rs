//! `--dry-run`: resolves a command as far as that is possible without building, fetching or preparing anything, prints
//! the plan, and measures nothing. Of a command that measures nothing the arguments alone are checked.

mod planned;

use judge::study::cell;
use judge::study::report::varied;
use measure::resolve::{self, available_threads};
use measure::{Places, provision};
use plan::sweep::SweepKind;
use plan::{Contender, Failure, Request, Result, Settings, StudyKind, StudyPlan, StudyRequest};

use super::work::{self, Described, parity};
use super::{compare, single};
use crate::cli::{Cli, Command, CompareArgs, Format};
use crate::output::print;
use planned::{Comparison, Planned, Resolved};

pub(super) fn dry_run(cli: &Cli) -> Result<u8> {
    let (planned, format) = match &cli.command {
        None => comparison(&cli.compare)?,
        Some(Command::Compare(args)) => comparison(args)?,
        Some(Command::Sweep(args)) => study(&args.study(), &args.compare)?,
        Some(Command::Ab(args)) => study(&args.study(), &args.compare)?,
        Some(Command::Parity(args)) => {
            let (request, places) = (parity::request(args)?, args.here.places.find()?);
            (comparisons("parity", &request, std::slice::from_ref(&request), &places)?, args.format)
        }
        Some(Command::Job(job)) => match work::described(job)? {
            Some(described) => one(described)?,
            None => return said(VALID),
        },
        Some(_) => return said(VALID),
    };
    said(&match format {
        Format::Json => planned.json() + "\n",
        Format::Table | Format::Markdown | Format::Csv => planned.text(),
    })
}

const VALID: &str = "the arguments are valid; nothing was done\n";

fn said(text: &str) -> Result<u8> {
    print(&untrusted::lines(text)).map(|()| 0)
}

fn comparison(args: &CompareArgs) -> Result<(Planned, Format)> {
    compare::check(args)?;
    let places = args.here.places.find()?;
    if let Some(asked) = compare::study_of_suite(args, &places)? {
        return Ok((cells(&asked, &asked.plan(&places)?, &places)?, args.format()));
    }
    let request = args.request.request();
    if request.serving.is_study() {
        let asked = StudyRequest { kind: StudyKind::Sweep(SweepKind::Callers), request };
        return study(&asked, args);
    }
    let each = match compare::at_each_precision(&request) {
        none if none.is_empty() => vec![request.clone()],
        each => each,
    };
    Ok((comparisons("compare", &request, &each, &places)?, args.format()))
}

/// Comparisons of which each must be possible.
fn comparisons(command: &str, request: &Request, each: &[Request], places: &Places) -> Result<Planned> {
    let resolved = |request: &Request| -> Result<Comparison> {
        let draft = resolve::draft(request, places)?;
        Ok(Comparison::planned(Settings::new(), Resolved::new(&draft)))
    };
    let comparisons: Result<Vec<Comparison>> = each.iter().map(resolved).collect();
    Ok(Planned::new(command, request.to_json(), comparisons?))
}

fn study(asked: &StudyRequest, args: &CompareArgs) -> Result<(Planned, Format)> {
    compare::no_text(args)?;
    let places = args.here.places.find()?;
    Ok((cells(asked, &asked.plan(&places)?, &places)?, args.format()))
}

/// The cells of a study. A cell that cannot run is a row with its reason, as in the study itself.
fn cells(asked: &StudyRequest, study: &StudyPlan, places: &Places) -> Result<Planned> {
    let axes = varied(&study.settings());
    let mut comparisons = Vec::new();
    let mut failures = Vec::new();
    for planned in &study.cells {
        let mut comparison = match resolve::draft(&planned.request, places) {
            Ok(draft) => Comparison::planned(planned.settings.clone(), Resolved::new(&draft)),
            Err(failure) => {
                let refused = Comparison::refused(planned.settings.clone(), failure.to_string());
                failures.push(failure);
                refused
            }
        };
        comparison.name = cell::name(&planned.settings, &axes);
        comparisons.push(comparison);
    }
    // The same mistake in every cell is one of the request itself.
    let is_whole = failures.len() == comparisons.len()
        && failures.iter().all(|failure| failure.to_string() == failures[0].to_string());
    match failures.pop() {
        Some(failure) if is_whole => Err(failure),
        _ => {
            let request = serde_json::to_value(asked).map_err(|e| Failure::failed(e.to_string()))?;
            Ok(Planned::new(&study.name, request, comparisons))
        }
    }
}

/// A command's job for one framework.
fn one(described: Described<'_>) -> Result<(Planned, Format)> {
    let Described { command, on, prompts, added, format } = described;
    let places = on.here.places.find()?;
    let (request, engine) = single::asked(on, &places)?;
    provision::find_model(&places, request.model())?;
    let contender = Contender::new(on.framework.clone(), engine, &request, available_threads());
    let resolved = Resolved::of_job(&request, contender, prompts, added);
    Ok((
        Planned::new(command, request.to_json(), vec![Comparison::planned(Settings::new(), resolved)]),
        format,
    ))
}
