//! `photofinish shard run`: runs a plan, or one shard of it.

use measure::{Places, interrupt};
use plan::{Failure, Result, Settings, StudyPlan};

use super::shards::{PlanFile, Shard, read};
use super::study;
use crate::cli::RunArgs;

pub(crate) fn run(args: &RunArgs) -> Result<u8> {
    interrupt::listen()?;
    let places = args.places.find()?;
    let Part { plan, cells, whole } = part(args, &places)?;
    let asked = plan.asked.clone();
    let options = study::Options {
        can_resume: true,
        resume: args.resume.clone(),
        results_dir: args.results_dir.clone(),
        format: args.format,
        quiet: args.quiet,
        places: args.places.clone(),
        export: None,
        shard: Some(Shard::new(plan, args.shard)),
    };
    study::run_cells(&asked, cells, whole, &options, &places)
}

/// The part of a plan that is to be run.
pub(super) struct Part {
    pub(super) plan: PlanFile,
    pub(super) cells: StudyPlan,
    /// The places of all cells of the plan.
    whole: Vec<Settings>,
}

/// Reads the plan, and picks the cells of the shard.
pub(super) fn part(args: &RunArgs, places: &Places) -> Result<Part> {
    let plan = read(&args.plan)?;
    let job = match args.shard {
        None => None,
        Some(index) => Some(plan.shards.get(index).cloned().ok_or_else(|| {
            Failure::usage(format!(
                "--shard {index}: {} has shards 0 to {}",
                args.plan.display(),
                plan.shards.len() - 1
            ))
        })?),
    };
    let mut cells = plan.asked.plan(places)?;
    let whole: Vec<Settings> = cells.settings();
    if cells.name != plan.study || whole != plan.planned {
        return Err(Failure::usage(format!(
            "{} was made by another version of the program, which understood its study differently: plan again",
            args.plan.display()
        )));
    }
    if let Some(job) = job {
        let mut index = 0..;
        cells.cells.retain(|_| index.next().is_some_and(|index| job.cells.contains(&index)));
    }
    Ok(Part { plan, cells, whole })
}
