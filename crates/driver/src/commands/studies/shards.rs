//! One study on many machines: a plan of its cells, cut into shards that any scheduler can run on their own
//! (`super::merge` lays together what they measured). A cell, with all its frameworks, is never divided: its verdicts need
//! rounds on one machine.

use std::path::{Path, PathBuf};

use clap::{Args, Parser};
use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};

use super::{Study, ab_study, sweep_study};
use crate::axes::Settings;
use crate::cli::{Cli, Command, CompareArgs, Format, Places as PlacesArgs};
use crate::compare::pretty;
use crate::failure::{Failure, Result};
use crate::places::Places;
use crate::results::write_whole;
use crate::{plan, records};

/// Version of the plan file.
pub(super) const SCHEMA: u32 = 1;

#[derive(Debug, Args)]
pub(crate) struct PlanArgs {
    /// Into how many jobs to divide the study, for each machine
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=10_000))]
    shards: u32,
    /// Labels of machines, as the scheduler calls them: each runs the whole study
    #[arg(long, value_name = "NAME,…", value_delimiter = ',')]
    machines: Vec<String>,
    /// Where to write the plan
    #[arg(long, value_name = "FILE", default_value = "plan.json")]
    out: PathBuf,
    /// The study: `-- sweep forward --batch 1,2,4`, `-- ab kv-cache`
    #[arg(last = true, required = true, value_name = "COMMAND")]
    command: Vec<String>,
}

#[derive(Debug, Args)]
pub(crate) struct RunArgs {
    /// Which shard, counted from 0 [default: the whole plan]
    #[arg(long, value_name = "I")]
    shard: Option<usize>,
    /// The plan
    #[arg(long, value_name = "FILE", default_value = "plan.json")]
    plan: PathBuf,
    /// Go on with an interrupted shard: its results directory. Finished cells are not repeated
    #[arg(long, value_name = "DIR")]
    resume: Option<PathBuf>,
    /// Where results are kept
    #[arg(long, value_name = "DIR")]
    results_dir: Option<PathBuf>,
    #[arg(long, value_enum, default_value_t = Format::Table)]
    format: Format,
    /// No progress on stderr
    #[arg(long)]
    quiet: bool,
    #[command(flatten)]
    places: PlacesArgs,
}

/// The file that every shard is run from.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(super) struct Plan {
    schema: u32,
    study: String,
    /// As typed, with the seed, so that every shard draws what the whole would have drawn.
    pub(super) arguments: Vec<String>,
    pub(super) planned: Vec<Settings>,
    pub(super) shards: Vec<Job>,
}

/// What one job does.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(super) struct Job {
    pub(super) index: usize,
    /// Label of the machine it is for.
    pub(super) machine: Option<String>,
    /// Of `planned`, counted from 0.
    pub(super) cells: Vec<usize>,
}

/// What a results directory says of the plan that it is a part of.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(super) struct Shard {
    pub(super) plan: Plan,
    pub(super) sha256: String,
    /// `None`: all of it.
    index: Option<usize>,
}

impl Shard {
    /// Label of the machine that it was for.
    pub(super) fn machine(&self) -> Option<&str> {
        self.plan.shards[self.index?].machine.as_deref()
    }
}

pub(crate) fn plan(args: &PlanArgs) -> Result<u8> {
    let mut arguments = args.command.clone();
    let (_, asked) = parse(&arguments)?;
    if asked.seed.is_none() {
        arguments.extend(["--seed".to_owned(), plan::drawn_seed().to_string()]);
    }
    let (study, asked) = parse(&arguments)?;
    // A name that does not exist is better found now than by every job.
    plan::engines(&asked, &Places::find(&asked.model.places)?)?;
    let planned: Vec<Settings> = study.cells.iter().map(|(settings, _)| settings.clone()).collect();
    let count = args.shards as usize;
    if count > planned.len() {
        return Err(Failure::usage(format!(
            "--shards {count}: `{}` has {} cells, and a cell is not divided",
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
    let plan = Plan { schema: SCHEMA, study: study.name, arguments, shards: jobs.collect(), planned };
    save(&args.out, &(pretty(&plan) + "\n"))?;
    let last = plan.shards.len() - 1;
    crate::print(&format!(
        "{}: {} cells in {} shards: {}\nrun each of 0 to {last}: driver run --plan {} --shard I\n",
        plan.study,
        plan.planned.len(),
        plan.shards.len(),
        args.out.display(),
        args.out.display(),
    ))?;
    Ok(0)
}

/// Cells of each shard, dealt there and back again: neighbours cost about the same, and the last axis' larger
/// values do not all fall to one.
fn divide(cells: usize, shards: usize) -> Vec<Vec<usize>> {
    let mut parts = vec![Vec::new(); shards];
    for cell in 0..cells {
        let (row, place) = (cell / shards, cell % shards);
        parts[if row % 2 == 0 { place } else { shards - 1 - place }].push(cell);
    }
    parts
}

pub(crate) fn run(args: &RunArgs) -> Result<u8> {
    let plan = read(&args.plan)?;
    let job = match args.shard {
        None => None,
        Some(index) => Some(plan.shards.get(index).ok_or_else(|| {
            Failure::usage(format!(
                "--shard {index}: {} has shards 0 to {}",
                args.plan.display(),
                plan.shards.len() - 1
            ))
        })?),
    };
    let (mut study, mut asked) = parse(&plan.arguments)?;
    let planned: Vec<Settings> = study.cells.iter().map(|(settings, _)| settings.clone()).collect();
    if study.name != plan.study || planned != plan.planned {
        return Err(Failure::usage(format!(
            "{} was made by another version of the driver, which understood its command differently: plan again",
            args.plan.display()
        )));
    }
    if let Some(job) = job {
        let mut index = 0..;
        study.cells.retain(|_| index.next().is_some_and(|index| job.cells.contains(&index)));
    }
    // Where things are is this machine's business.
    for args_of in study.cells.iter_mut().map(|(_, args)| args).chain([&mut asked]) {
        args_of.results_dir.clone_from(&args.results_dir);
        args_of.model.places = args.places.clone();
        args_of.model.quiet = args.quiet;
        args_of.format = args.format;
    }
    let sha256 = records::hex(&Sha256::digest(pretty(&plan)));
    study.shard = Some(Shard { index: args.shard, sha256, plan });
    study.run(&asked, args.resume.as_deref())
}

/// The study that a command stands for.
pub(super) fn parse(arguments: &[String]) -> Result<(Study, CompareArgs)> {
    let words = ["driver".to_owned()].into_iter().chain(arguments.iter().cloned());
    let typed = arguments.join(" ");
    let cli = Cli::try_parse_from(words).map_err(|error| {
        let text = error.to_string();
        let line = text.lines().next().unwrap_or_default().trim_start_matches("error: ").to_owned();
        Failure::usage(format!("`{typed}` cannot be planned: {line}"))
    })?;
    match cli.command {
        Some(Command::Sweep(args)) if args.resume.is_none() => Ok((sweep_study(&args)?, args.compare)),
        Some(Command::Ab(args)) if args.resume.is_none() => Ok((ab_study(&args)?, args.compare)),
        _ => Err(Failure::usage(format!(
            "`{typed}` cannot be planned: there are `sweep` and `ab`, without --resume; \
             a single comparison is a sweep of one cell"
        ))),
    }
}

fn read(path: &Path) -> Result<Plan> {
    let unreadable = |reason: &dyn std::fmt::Display| {
        Failure::usage(format!("{} is no plan: {reason}; make one with `driver plan`", path.display()))
    };
    let text = std::fs::read_to_string(path).map_err(|e| unreadable(&e))?;
    let plan: Plan = serde_json::from_str(&text).map_err(|e| unreadable(&e))?;
    let cells = plan.planned.len();
    if plan.schema != SCHEMA || plan.shards.is_empty() {
        return Err(unreadable(&"it is of another version"));
    }
    if plan.shards.iter().flat_map(|job| &job.cells).any(|&cell| cell >= cells) {
        return Err(unreadable(&"a shard names a cell that it does not have"));
    }
    Ok(plan)
}

/// Writes a file whole or not at all.
pub(super) fn save(path: &Path, text: &str) -> Result<()> {
    let directory = path.parent().filter(|parent| !parent.as_os_str().is_empty()).unwrap_or(Path::new("."));
    let cannot =
        |reason: &dyn std::fmt::Display| Failure::usage(format!("cannot write {}: {reason}", path.display()));
    let name = path.file_name().and_then(|name| name.to_str()).ok_or_else(|| cannot(&"it names no file"))?;
    write_whole(directory, name, text.as_bytes()).map_err(|e| cannot(&e))
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
