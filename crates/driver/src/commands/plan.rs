//! `photofinish shard plan`: one study on many machines. The plan's cells are cut into shards, which any scheduler can run
//! (`run`); `merge` puts their results together. A cell with all its frameworks is never divided, because its verdicts
//! need rounds on one machine.

use measure::resolve::drawn_seed;
use measure::saved::pretty;
use plan::ab::engines_of;
use plan::{Failure, Result, StudyRequest};

use super::shards::{Job, PlanFile, SCHEMA, save};
use crate::cli::{Command, Places, PlanArgs, first_line, spelling};
use crate::output::print;

pub(crate) fn plan(args: &PlanArgs) -> Result<u8> {
    let plan = made(args)?;
    save(&args.out, &(pretty(&plan) + "\n"))?;
    let last = plan.shards.len() - 1;
    print(&format!(
        "{}\nrun each of 0 to {last}: photofinish shard run --plan {} --shard I\n",
        described(&plan, args),
        args.out.display(),
    ))?;
    Ok(0)
}

/// The plan in one line.
pub(super) fn described(plan: &PlanFile, args: &PlanArgs) -> String {
    let (cells, shards) = (plan.planned.len(), plan.shards.len());
    format!("{}: {cells} cells in {shards} shards: {}", plan.study, args.out.display())
}

/// The requested plan. Nothing is written.
pub(super) fn made(args: &PlanArgs) -> Result<PlanFile> {
    let (mut asked, places) = parse(&args.command)?;
    asked.request.seed.get_or_insert_with(drawn_seed);
    let places = places.find()?;
    // A wrong name is better found now than by every job.
    engines_of(&asked.request, &places)?;
    let study = asked.plan(&places)?;
    let planned = study.settings();
    let count = args.shards as usize;
    if count > planned.len() {
        return Err(Failure::usage(format!(
            "--shards {count}: `{}` has {} cells, and a cell cannot be divided",
            study.name,
            planned.len()
        )));
    }
    let machines: Vec<Option<String>> =
        if args.machines.is_empty() { vec![None] } else { args.machines.iter().cloned().map(Some).collect() };
    let parts = divide(planned.len(), count);
    let jobs = machines.iter().flat_map(|machine| parts.iter().map(move |cells| (machine, cells)));
    let jobs = jobs.enumerate().map(|(index, (machine, cells))| Job {
        index,
        machine: machine.clone(),
        cells: cells.clone(),
    });
    Ok(PlanFile {
        schema: SCHEMA,
        study: study.name,
        view: study.view,
        asked,
        shards: jobs.collect(),
        planned,
    })
}

/// Cells of each shard, dealt back and forth. Neighbours cost about the same, and no shard gets all the larger values
/// of the last axis.
fn divide(cells: usize, shards: usize) -> Vec<Vec<usize>> {
    let mut parts = vec![Vec::new(); shards];
    for cell in 0..cells {
        let (row, place) = (cell / shards, cell % shards);
        parts[if row % 2 == 0 { place } else { shards - 1 - place }].push(cell);
    }
    parts
}

/// The study that a command describes.
fn parse(arguments: &[String]) -> Result<(StudyRequest, Places)> {
    let words = ["photofinish".to_owned()].into_iter().chain(arguments.iter().cloned());
    let typed = arguments.join(" ");
    let cli = spelling::parse(words)
        .map_err(|error| Failure::usage(format!("`{typed}` cannot be planned: {}", first_line(&error))))?;
    match cli.command {
        Some(Command::Sweep(args)) if args.resume.is_none() => Ok((args.study(), args.compare.here.places)),
        Some(Command::Ab(args)) if args.resume.is_none() => Ok((args.study(), args.compare.here.places)),
        _ => Err(Failure::usage(format!(
            "`{typed}` cannot be planned: there are `sweep` and `ab`, without --resume; \
             a single comparison is a sweep of one cell"
        ))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_cell_falls_to_one_shard_and_shards_are_even() {
        assert_eq!(divide(7, 3), [vec![0, 5, 6], vec![1, 4], vec![2, 3]]);
        for (cells, shards) in [(1, 1), (12, 5), (9, 9)] {
            let mut all = divide(cells, shards).concat();
            all.sort_unstable();
            assert_eq!(all, (0..cells).collect::<Vec<_>>());
        }
    }
}
