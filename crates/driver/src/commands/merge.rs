//! `photofinish shard merge`: merges the results of a plan's shards, as one run would have given them;
//! machines stay separate.

use std::path::{Path, PathBuf};

use serde::{Serialize, Serializer};

use judge::study::{Cell, StudyReport};
use measure::saved::pretty;
use plan::{Failure, Result, StudyPlan};

use super::shards::{Job, PlanFile, SCHEMA, save};
use super::study::{self, Computer, Part, read_part};
use crate::cli::{Format, MergeArgs};
use crate::output::print;

pub(crate) fn merge(args: &MergeArgs) -> Result<u8> {
    let mut parts = Vec::new();
    for directory in &args.directories {
        parts.push((directory.as_path(), read_part(directory)?));
    }
    let (first, plan) = (parts[0].0, parts[0].1.shard.plan.clone());
    if let Some((other, _)) = parts.iter().find(|(_, part)| part.shard.sha256 != parts[0].1.shard.sha256) {
        return Err(Failure::usage(format!(
            "{} and {} belong to different plans: merge them separately",
            first.display(),
            other.display()
        )));
    }
    let mut machines: Vec<Machine> = Vec::new();
    for (directory, part) in parts {
        let label = part.shard.machine().map(str::to_owned);
        let place = machines.iter_mut().find(|machine| {
            machine.label == label && machine.computer.fingerprint == part.machine.fingerprint
        });
        match place {
            Some(machine) => machine.add(directory, part, &plan)?,
            None => {
                let mut machine = Machine::new(label, &part);
                machine.add(directory, part, &plan)?;
                machines.push(machine);
            }
        }
    }
    let merged = machines.into_iter().map(|machine| machine.merged(&plan)).collect::<Result<Vec<_>>>()?;
    let text = rendered(&merged, args.format);
    if let Some(directory) = &args.out {
        std::fs::create_dir_all(directory).map_err(|e| {
            Failure::usage(format!("cannot make {}: {e}; choose another --output", directory.display()))
        })?;
        let formats =
            [("report.json", Format::Json), ("report.md", Format::Markdown), ("report.csv", Format::Csv)];
        for (name, format) in formats {
            save(&directory.join(name), &rendered(&merged, format))?;
        }
    }
    print(&text)?;
    let mut code = 0;
    for machine in &merged {
        code = code.max(machine.document.exit_code());
        if !machine.missing.is_empty() {
            code = code.max(1);
            let shards: Vec<String> = machine.missing.iter().map(usize::to_string).collect();
            untrusted::say!(
                "warning: {}: {} of {} cells are there; unfinished or not given: shard {}",
                machine.title(),
                machine.document.cells.len(),
                plan.planned.len(),
                shards.join(", ")
            );
        }
    }
    Ok(code)
}

/// The parts that one machine measured.
struct Machine {
    label: Option<String>,
    computer: Computer,
    started: String,
    /// Cells by their place in the plan, each with the directory that it came from.
    cells: Vec<Option<(Cell, PathBuf)>>,
}

/// The measurements of one machine, as one study.
struct Merged {
    machine: Option<String>,
    fingerprint: String,
    processor: String,
    /// Shards with missing cells.
    missing: Vec<usize>,
    document: StudyReport,
}

/// The serialised form adds the sentences that files show.
impl Serialize for Merged {
    fn serialize<S: Serializer>(&self, serializer: S) -> std::result::Result<S::Ok, S::Error> {
        #[derive(Serialize)]
        struct Told<'a, D> {
            machine: &'a Option<String>,
            fingerprint: &'a str,
            processor: &'a str,
            missing: &'a [usize],
            #[serde(flatten)]
            document: D,
        }
        let Merged { machine, fingerprint, processor, missing, document } = self;
        Told { machine, fingerprint, processor, missing, document: render::study::told(document) }
            .serialize(serializer)
    }
}

impl Machine {
    fn new(label: Option<String>, part: &Part) -> Machine {
        let cells = vec![None; part.shard.plan.planned.len()];
        Machine { label, computer: part.machine.clone(), started: part.started.clone(), cells }
    }

    fn add(&mut self, directory: &Path, part: Part, plan: &PlanFile) -> Result<()> {
        for cell in part.cells {
            let Some(index) = plan.planned.iter().position(|settings| *settings == cell.settings) else {
                return Err(Failure::usage(format!(
                    "{} has a cell that is not in its plan",
                    directory.display()
                )));
            };
            if let Some((_, earlier)) = &self.cells[index] {
                return Err(Failure::usage(format!(
                    "{} and {} measured the same cell on one machine: give one of them",
                    earlier.display(),
                    directory.display()
                )));
            }
            self.cells[index] = Some((cell, directory.to_path_buf()));
        }
        self.started = part.started.min(std::mem::take(&mut self.started));
        Ok(())
    }

    fn merged(self, plan: &PlanFile) -> Result<Merged> {
        let missing = |job: &&Job| {
            job.machine == self.label && job.cells.iter().any(|&index| self.cells[index].is_none())
        };
        let missing: Vec<usize> = plan.shards.iter().filter(missing).map(|job| job.index).collect();
        let cells: Vec<Cell> = self.cells.into_iter().flatten().map(|(cell, _)| cell).collect();
        let places = (self.started, "in the directories of the shards".to_owned());
        let study = StudyPlan { name: plan.study.clone(), view: plan.view.clone(), cells: Vec::new() };
        let mut document = study::study_report(&study, cells, &plan.asked.request.study, false, places);
        document.planned.clone_from(&plan.planned);
        Ok(Merged {
            machine: self.label,
            fingerprint: self.computer.fingerprint,
            processor: self.computer.name,
            missing,
            document: judge::study::report::new(document),
        })
    }
}

impl Merged {
    fn title(&self) -> String {
        let Merged { machine, fingerprint, processor, .. } = self;
        let label = machine.as_ref().map_or(String::new(), |machine| format!("{machine}: "));
        format!("{label}{processor} ({fingerprint})")
    }
}

fn rendered(merged: &[Merged], format: Format) -> String {
    match (format, merged) {
        (Format::Json, _) => pretty(&serde_json::json!({ "schema": SCHEMA, "machines": merged })) + "\n",
        (Format::Csv, _) => {
            let tables = merged.iter().map(|one| (one.title(), study::rendered(&one.document, Format::Csv)));
            let mut text = String::new();
            for (number, (title, table)) in tables.enumerate() {
                let field = format!("\"{}\"", title.replace('"', "\"\""));
                for (line_number, line) in table.lines().enumerate().skip(usize::from(number > 0)) {
                    let first = if line_number == 0 { "machine" } else { &field };
                    text += &format!("{first},{line}\n");
                }
            }
            text
        }
        (_, [one]) => study::rendered(&one.document, format),
        _ => {
            let each = merged.iter().map(|one| match format {
                Format::Markdown => {
                    format!("## {}\n\n{}", one.title(), study::rendered(&one.document, format))
                }
                _ => format!("{}\n{}", one.title(), study::rendered(&one.document, format)),
            });
            each.collect::<Vec<_>>().join("\n")
        }
    }
}
