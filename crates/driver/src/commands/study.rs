//! `photofinish sweep` and suites: a comparison for each cell, saved as soon as it is done.

mod store;

use std::path::Path;

use comparison::judge;
use comparison::judge::study::{self, Cell, StudyReport, varied};
use comparison::plan::{Failure, Result, Settings, StudyPlan, StudyRequest};
use store::{Asked, Store};
pub(crate) use store::{CELLS, together, unfinished};

use super::compare::{self, Destination, results_dir};
use super::history::{export_runs, prepare_export};
use crate::cli::{CellArgs, CompareArgs, Format, Part};
use crate::measure::results::{self, REPORT};
use crate::measure::{self, progress};
use crate::output::{print, screen};

struct Outcome {
    cells: Vec<Cell>,
    /// The reason why no more cells were measured.
    failure: Option<Failure>,
    /// The last usage error of a cell.
    usage: Option<Failure>,
}

/// Measures every unfinished cell of a study, and reports on all cells together. `cells`: the flags for cells, if its
/// command has them.
pub(crate) fn run(asked: &StudyRequest, args: &CompareArgs, cells: Option<&CellArgs>) -> Result<u8> {
    if args.registered.is_some() {
        return Err(Failure::usage("--registered is for one comparison, and this is a study: leave it out"));
    }
    compare::check(args)?;
    progress::listen()?;
    let places = args.here.places.find()?;
    let mut plan = asked.plan(&places.on(&asked.request.device))?;
    let whole = plan.settings();
    take(&mut plan, cells.and_then(|cells| cells.cells))?;
    let places = &places;
    let asked_now = Asked::new(asked, &plan, &whole, places);
    let parent = results_dir(args.results_dir.as_ref(), places);
    prepare_export(args.export.as_deref())?;
    let resume = cells.and_then(|cells| cells.resume.as_deref());
    let (mut store, done) = Store::open(asked_now, &parent, resume)?;
    let outcome = measure_cells(&plan, &whole, done, &mut store, args, places);
    // A usage error in every cell is an error of the request itself.
    if let Some(error) = outcome.usage
        && outcome.cells.iter().all(|cell| cell.refused.is_some())
        && outcome.cells.iter().all(|cell| cell.refused == outcome.cells[0].refused)
    {
        store.discard();
        return Err(error);
    }
    let report = store.report(outcome.cells, outcome.failure.is_some());
    let unsaved = store.finish(&report);
    print(&render::export(&report, args.format(), &screen()))?;
    if args.show_text {
        print(&texts(&report, args.format())?)?;
    }
    export_runs(std::slice::from_ref(&report.results), &parent, args.export.as_deref())?;
    if matches!(outcome.failure, Some(Failure::Interrupted)) && !report.cells.is_empty() && cells.is_some() {
        protocol::say!("to continue: run the same command with --resume {}", store.directory().display());
    }
    match (outcome.failure, unsaved) {
        (Some(failure), _) => Err(failure),
        (None, Some(reason)) => Err(Failure::failed(reason)),
        (None, None) => Ok(report.exit_code()),
    }
}

/// The text of each cell, below its name. Cells that an earlier run finished are read as well.
fn texts(report: &StudyReport, format: Format) -> Result<String> {
    let axes = varied(&report.planned);
    let mut text = String::new();
    for cell in &report.cells {
        let Some(directory) = &cell.results else { continue };
        let path = Path::new(directory).join(REPORT);
        let cannot = |why: String| Failure::failed(format!("cannot show the text of {directory}: {why}"));
        let json = results::text(&path)?.ok_or_else(|| cannot(format!("it has no {REPORT}")))?;
        let of_cell = compare::texts(&judge::report::read(&json).map_err(cannot)?, format)?;
        let name = study::name(&cell.settings, &axes);
        text += &if name.is_empty() { of_cell } else { format!("\n{name}{of_cell}") };
    }
    Ok(text)
}

/// Leaves one part of the cells in the plan. They are dealt back and forth: neighbours cost about the same, and no part
/// gets all the larger values of the last axis.
fn take(plan: &mut StudyPlan, part: Option<Part>) -> Result<()> {
    let Some((part, of)) = part else { return Ok(()) };
    let count = plan.cells.len();
    if of > count {
        return Err(Failure::usage(format!(
            "--cells {part}/{of}: `{}` has {count} cells, and a cell cannot be divided",
            plan.name
        )));
    }
    let mut index = 0..;
    plan.cells.retain(|_| index.next().is_some_and(|index| dealt(index, of) == part - 1));
    Ok(())
}

/// The part that a cell belongs to, from 0.
fn dealt(cell: usize, parts: usize) -> usize {
    let (row, place) = (cell / parts, cell % parts);
    if row % 2 == 0 { place } else { parts - 1 - place }
}

fn measure_cells(
    plan: &StudyPlan,
    whole: &[Settings],
    done: Vec<Cell>,
    store: &mut Store,
    args: &CompareArgs,
    places: &measure::Places,
) -> Outcome {
    let axes = varied(whole);
    let history = results_dir(args.results_dir.as_ref(), places);
    let mut outcome = Outcome { cells: done, failure: None, usage: None };
    for (index, planned) in plan.cells.iter().enumerate() {
        if outcome.cells.iter().any(|cell| cell.settings == planned.settings) {
            continue;
        }
        if !args.here.quiet {
            let name = study::name(&planned.settings, &axes);
            protocol::say!("cell {} of {}: {name}", index + 1, plan.cells.len());
        }
        let directory = store.directory().to_path_buf();
        let destination = Destination { parent: &directory, history: &history, quiet: args.here.quiet };
        // A machine that was too noisy for one cell is not waited for again in each of the others.
        let mut request = planned.request.clone();
        if outcome.cells.iter().any(Cell::is_noisy) {
            request.patience_s = 0.0;
        }
        let cell = match compare::measure(&request, places, &destination) {
            Ok((report, _)) if report.interrupted => {
                outcome.failure = Some(Failure::Interrupted);
                break;
            }
            Ok((_, Some(reason))) => {
                outcome.failure = Some(Failure::failed(reason));
                break;
            }
            Ok((report, None)) => Cell::new(planned.settings.clone(), &report),
            Err(failure @ (Failure::Interrupted | Failure::Spoken(_))) => {
                outcome.failure = Some(failure);
                break;
            }
            // A combination that cannot run becomes a row with its reason.
            Err(error) => {
                let cell = Cell::refused(planned.settings.clone(), error.to_string());
                outcome.usage = Some(error);
                cell
            }
        };
        store.append(&cell);
        outcome.cells.push(cell);
    }
    outcome
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cells_are_dealt_back_and_forth() {
        assert_eq!((0..7).map(|cell| dealt(cell, 3)).collect::<Vec<_>>(), [0, 1, 2, 2, 1, 0, 0]);
    }
}
