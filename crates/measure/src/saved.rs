//! Reads back everything that is written to a results directory.

use std::path::{Path, PathBuf};

use bundle::Bundle;
use judge::evidence::{Evidence, Fact};
use judge::report::{self, Facts, Prepared, SCHEMA};
use judge::{Environment, Report, Run};
use plan::{Failure, Plan, Result};
use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::results::complete_lines;

/// Names of the files of a comparison.
pub const PLAN: &str = "plan.json";
pub const ENVIRONMENT: &str = "environment.json";
pub const SAMPLES: &str = "samples.jsonl";
pub const REPORT: &str = "report.json";

/// `plan.json`: what will be done, and to which model.
#[derive(Debug, Serialize, Deserialize)]
struct PlanFile {
    schema: u32,
    #[serde(flatten)]
    plan: Plan,
    prepared: Prepared,
}

/// The text of `plan.json`.
pub fn plan_text(plan: &Plan, prepared: &Prepared) -> String {
    pretty(&PlanFile { schema: SCHEMA, plan: plan.clone(), prepared: prepared.clone() })
}

/// JSON for files that people open.
pub fn pretty(value: &impl Serialize) -> String {
    serde_json::to_string_pretty(value).expect("plain data serialises")
}

/// Descriptions of the files that a directory lacks, for readers of outputs made from the rest.
pub type Missing = Vec<String>;

/// The facts of a comparison, from its plan and its journal, and a list of what is missing. Works for a run that was
/// killed, too.
pub fn facts(directory: &Path) -> Result<(Facts, Missing)> {
    let mut missing = Missing::new();
    let plan_path = directory.join(PLAN);
    if !directory.is_dir() {
        return Err(Failure::usage(format!("{}: there is no such directory", directory.display())));
    }
    let value = json(&plan_path)?.ok_or_else(|| {
        Failure::usage(format!(
            "{} holds no {PLAN}: it is not the results directory of a comparison",
            directory.display()
        ))
    })?;
    let journal = lines(&directory.join(SAMPLES))?;
    let report = json(&directory.join(REPORT))?.and_then(|value| report::read(value).ok());
    let (plan, model, evidence) = match schema_of(&value) {
        None => of_schema_2(&plan_path, value, &journal, report.as_ref())?,
        Some(_) => {
            check_schema(&plan_path, &value)?;
            let file: PlanFile = typed(&plan_path, value)?;
            let facts = journal.iter().map(|line| line.fact()).collect::<Result<Vec<_>>>()?;
            (file.plan, file.prepared, Evidence::from_facts(facts))
        }
    };
    check_rounds(directory, &plan, &evidence)?;
    let environment = match json(&directory.join(ENVIRONMENT))? {
        Some(value) => typed(&directory.join(ENVIRONMENT), value)?,
        None => {
            missing.push(format!("{ENVIRONMENT}: the machine and the command are not known"));
            Environment::default()
        }
    };
    if report.is_none() {
        missing.push(format!("{REPORT}: it was judged again from the samples"));
    }
    let results = directory.display().to_string();
    Ok((Facts { environment, plan, model, evidence, results }, missing))
}

/// Most rounds of a run. Figures are listed by round, so that a journal that names a later one would take any memory.
const MOST_ROUNDS: usize = 100_000;

/// Refuses rounds that the plan does not have: a journal that was changed by hand.
fn check_rounds(directory: &Path, plan: &Plan, evidence: &Evidence) -> Result<()> {
    let runs = evidence.runs.iter().chain(&evidence.repeated);
    let most = plan.rounds.max().min(MOST_ROUNDS);
    match runs.map(|run| run.round).find(|&round| round >= most) {
        None => Ok(()),
        Some(round) => Err(Failure::usage(format!(
            "{} has a process of round {}, and there are at most {most} rounds",
            directory.join(SAMPLES).display(),
            round.saturating_add(1),
        ))),
    }
}

/// Journals of schema 2 hold only processes; the model is in the report.
fn of_schema_2(
    path: &Path,
    value: Value,
    journal: &[Line],
    report: Option<&Report>,
) -> Result<(Plan, Prepared, Evidence)> {
    let plan: Plan = typed(path, value)?;
    let runs = journal.iter().map(Line::run).collect::<Result<Vec<Run>>>()?;
    let of_report = report.map(|report| report.model.clone());
    let bundle = of_report.as_ref().map(|model| PathBuf::from(&model.bundle)).or_else(|| {
        let file = runs.iter().find_map(|run| Some(run.loaded()?.weights_file.clone()))?;
        Path::new(&file).parent().map(Path::to_path_buf)
    });
    let opened = bundle.and_then(|directory| Bundle::open(&directory).ok());
    let model = match (of_report, opened) {
        (Some(model), Some(bundle)) => Prepared { config: Some(bundle.config().clone()), ..model },
        (Some(model), None) => model,
        (None, Some(bundle)) => Prepared::new(&bundle),
        (None, None) => {
            return Err(Failure::usage(format!(
                "{} is of schema 2, which does not describe the model, and its prepared model is gone: prepare the \
                 model again, or measure again",
                path.display()
            )));
        }
    };
    let labels: Vec<String> = plan.contenders.iter().map(|contender| contender.label.clone()).collect();
    let evidence = Evidence::from_runs(runs, &labels);
    let evidence = match report {
        Some(report) => report.completed(evidence),
        None => evidence,
    };
    Ok((plan, model, evidence))
}

/// A line of a journal, with its place for error messages.
struct Line {
    path: PathBuf,
    number: usize,
    text: String,
}

impl Line {
    fn fact(&self) -> Result<Fact> {
        Fact::read(&self.text).map_err(|error| self.unreadable(&error))
    }

    fn run(&self) -> Result<Run> {
        serde_json::from_str(&self.text).map_err(|error| self.unreadable(&error))
    }

    fn unreadable(&self, error: &dyn std::fmt::Display) -> Failure {
        Failure::usage(format!("{}, line {}: {error}", self.path.display(), self.number))
    }
}

/// The complete lines of a journal, without one that was cut off in mid-write.
fn lines(path: &Path) -> Result<Vec<Line>> {
    let text = complete_lines(path)
        .map_err(|error| Failure::usage(format!("cannot read {}: {error}", path.display())))?;
    let line = |(index, text): (usize, &str)| Line {
        path: path.to_path_buf(),
        number: index + 1,
        text: text.to_owned(),
    };
    Ok(text.lines().enumerate().map(line).collect())
}

/// Reads a JSON file; `None` if it does not exist.
pub fn json(path: &Path) -> Result<Option<Value>> {
    let text = match std::fs::read_to_string(path) {
        Ok(text) => text,
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(None),
        Err(error) => return Err(Failure::usage(format!("cannot read {}: {error}", path.display()))),
    };
    let parsed = serde_json::from_str(&text);
    parsed.map(Some).map_err(|error| Failure::usage(format!("{} is not JSON: {error}", path.display())))
}

fn typed<T: serde::de::DeserializeOwned>(path: &Path, value: Value) -> Result<T> {
    serde_json::from_value(value)
        .map_err(|error| Failure::usage(format!("{} cannot be read: {error}", path.display())))
}

fn schema_of(value: &Value) -> Option<u64> {
    value.get("schema").and_then(Value::as_u64)
}

fn check_schema(path: &Path, value: &Value) -> Result<()> {
    match schema_of(value) {
        Some(schema) if schema > 2 && report::READ.iter().any(|&read| schema == u64::from(read)) => Ok(()),
        // A comparison's plan of schema 2 has none.
        Some(schema) if schema < u64::from(SCHEMA) => {
            Err(Failure::usage(format!("{} is the plan of a study, not of a comparison", path.display())))
        }
        schema => Err(Failure::usage(format!(
            "{}: its schema is {}, and this program reads up to {SCHEMA}; use the program that wrote it",
            path.display(),
            schema.unwrap_or_default()
        ))),
    }
}
