//! Reads back everything that is written to a results directory.

use std::path::Path;

use facts::Environment;
use facts::evidence::{Evidence, Fact};
use judge::report::{self, Facts, Prepared, SCHEMA};
use plan::{Failure, Plan, Result};
use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::results::complete_lines;

/// Names of the files of a comparison.
pub const PLAN: &str = "plan.json";
pub const ENVIRONMENT: &str = "environment.json";
pub const SAMPLES: &str = "samples.jsonl";
pub const REPORT: &str = "report.json";

/// `plan.json`: the plan, and its model.
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

/// The facts of a comparison, from its plan and its journal, and a list of missing files. Works for a run
/// that was killed, too.
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
    report::check_schema(&value)
        .map_err(|why| Failure::usage(format!("{} cannot be read: {why}", plan_path.display())))?;
    let PlanFile { plan, prepared: model, .. } = typed(&plan_path, value)?;
    let evidence = Evidence::from_facts(journal(&directory.join(SAMPLES))?);
    check_rounds(directory, &plan, &evidence)?;
    let environment = match json(&directory.join(ENVIRONMENT))? {
        Some(value) => typed(&directory.join(ENVIRONMENT), value)?,
        None => {
            missing.push(format!("{ENVIRONMENT}: the machine and the command are not known"));
            Environment::default()
        }
    };
    if json(&directory.join(REPORT))?.is_none() {
        missing.push(format!("{REPORT}: it was judged again from the samples"));
    }
    let results = directory.display().to_string();
    Ok((Facts { environment, plan, model, evidence, results }, missing))
}

/// Most rounds of a run. Figures are listed by round, so a journal with a huge round number could use any
/// amount of memory.
const MOST_ROUNDS: usize = 100_000;

/// Rejects rounds that the plan does not have: the journal was changed by hand.
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

/// The facts of a journal, without an incomplete last line.
fn journal(path: &Path) -> Result<Vec<Fact>> {
    let text = complete_lines(path)
        .map_err(|error| Failure::usage(format!("cannot read {}: {error}", path.display())))?;
    let fact = |(index, line): (usize, &str)| {
        Fact::read(line)
            .map_err(|error| Failure::usage(format!("{}, line {}: {error}", path.display(), index + 1)))
    };
    text.lines().enumerate().map(fact).collect()
}

/// Reads a JSON file; `None` if it does not exist.
pub fn json(path: &Path) -> Result<Option<Value>> {
    let text = match untrusted::file::read_text(path, untrusted::file::RESULTS) {
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
