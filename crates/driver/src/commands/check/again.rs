//! Repeats a baseline's measurement: its recorded request, with the typed flags applied to it.

use history::Record;
use plan::{Failure, Request, Result, RoundsAsked, ScheduleAsked, StudySettings};

use super::interleaved;
use crate::cli::{CheckArgs, Command, RequestArgs, first_line, spelling};

/// Whether a flag was typed that decides what to measure.
pub(super) fn says_what_to_measure(args: &CheckArgs) -> bool {
    args.request.without_conditions() != RequestArgs::default()
}

/// A request without the settings that a new measurement does not inherit: whether noise is accepted, how long to wait
/// for a quiet machine, and the seed.
fn of_now(request: Request) -> Request {
    let Request { accept_noise, patience_s, seed, .. } = Request::default();
    Request { accept_noise, patience_s, seed, ..request }
}

/// The request that repeats the measurement of one run's records.
pub(super) fn again(records: &[Record]) -> Result<Request> {
    let first = records.first().ok_or_else(|| Failure::usage("the baseline holds nothing"))?;
    let recorded = match &first.request {
        Some(request) => Request::from_json(request).map_err(|error| error.to_string()),
        None => typed_then(&first.command),
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
        // Records that do not say so are of the time before turns.
        schedule: match first.settings.schedule.as_deref() {
            Some("interleaved" | "grouped") => recorded.schedule,
            _ => ScheduleAsked::Sequential,
        },
        precisions: precision.map_or(recorded.precisions.clone(), |precision| vec![precision]),
        quantize: Vec::new(),
        study: StudySettings::default(),
        ..recorded
    }))
}

/// The request from the command of an older record, which did not keep the request itself.
fn typed_then(command: &[String]) -> std::result::Result<Request, String> {
    let parsed = spelling::parse(command.iter().cloned()).map_err(|error| first_line(&error))?;
    match &parsed.command {
        None => Ok(parsed.compare.request.request()),
        Some(Command::Compare(args)) => Ok(args.request.request()),
        Some(Command::Check(args)) => Ok(args.request.request()),
        Some(_) => Err(format!("it is `photofinish {}`", command.get(1).map_or("", String::as_str))),
    }
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
