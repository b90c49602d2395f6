//! The steps of a plan, each a command of `photofinish` in a separate process.

use std::collections::BTreeSet;
use std::ffi::OsString;
use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use serde::Deserialize;
use setup::tooling::BadInput;
use setup::tooling::process::{command, output_of, status_within};

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Plan {
    step: Vec<Step>,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Step {
    /// Also the name of its directory.
    name: String,
    /// The question that it answers.
    asks: String,
    /// The time limit.
    minutes: f64,
    /// The arguments of `photofinish`.
    command: String,
}

/// The program, arguments and variables of the steps.
pub(super) struct Machine {
    pub(super) program: PathBuf,
    /// Further arguments, for every step.
    pub(super) arguments: Vec<OsString>,
    pub(super) variables: Vec<(String, OsString)>,
}

/// How a step ended.
enum End {
    Complete,
    Failed(String),
    OutOfTime,
}

/// In the directory of a step: it is complete. Holds the command.
const COMPLETE: &str = "complete";
/// The output of its command.
const LOG: &str = "log.txt";

impl Plan {
    pub(super) fn read(file: &Path) -> Result<Plan> {
        let text = fs::read_to_string(file)
            .with_context(|| BadInput(format!("--plan {}: cannot be read", file.display())))?;
        Self::parse(&text).with_context(|| file.display().to_string())
    }

    fn parse(text: &str) -> Result<Plan> {
        let plan: Plan = toml::from_str(text)?;
        let mut names = BTreeSet::new();
        for step in &plan.step {
            let is_name =
                !step.name.is_empty() && step.name.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'-');
            ensure!(is_name, "step {:?}: a name has letters, digits and hyphens", step.name);
            ensure!(names.insert(&step.name), "two steps are called {}", step.name);
            ensure!(step.minutes > 0.0, "step {}: minutes must be above 0", step.name);
            step.words()?;
        }
        Ok(plan)
    }

    /// The frameworks that any step names.
    pub(super) fn frameworks(&self) -> Vec<String> {
        let mut names = BTreeSet::new();
        for step in &self.step {
            let words = step.words().unwrap_or_default();
            let named = words.iter().skip_while(|word| *word != "--frameworks").nth(1);
            names.extend(named.iter().flat_map(|list| list.split(',')).map(str::to_owned));
        }
        names.into_iter().collect()
    }

    /// Runs the steps that are not complete in `results`, as long as there is time, and prints the outcome of
    /// each. Returns whether all are complete now.
    ///
    /// # Errors
    /// The results directory cannot be written, or the user interrupted. A step that fails is no error.
    #[expect(clippy::disallowed_methods, reason = "a borrowed machine's minutes, and progress")]
    pub(super) fn follow(&self, machine: &Machine, results: &Path, minutes: f64) -> Result<bool> {
        ensure!(minutes > 0.0, BadInput(format!("--minutes {minutes}: a number above 0")));
        let (started, limit) = (Instant::now(), Duration::from_secs_f64(60.0 * minutes));
        let mut left = Vec::new();
        for step in &self.step {
            let directory = results.join(&step.name);
            if directory.join(COMPLETE).is_file() {
                println!("{}: complete from an earlier call", step.name);
                continue;
            }
            let own = Duration::from_secs_f64(60.0 * step.minutes);
            if started.elapsed() + own > limit {
                println!("{}: waits, {} min no longer fit", step.name, step.minutes);
                left.push(step.name.as_str());
                continue;
            }
            println!("{}: {}", step.name, step.asks);
            let begun = Instant::now();
            let end = step.run(machine, &directory, own)?;
            let seconds = begun.elapsed().as_secs();
            match end {
                End::Complete => println!("{}: complete after {seconds} s", step.name),
                End::Failed(cause) => {
                    println!(
                        "{}: failed after {seconds} s ({cause}): {} says why",
                        step.name,
                        directory.join(LOG).display()
                    );
                    left.push(step.name.as_str());
                }
                End::OutOfTime => {
                    println!("{}: ended by its limit of {} min", step.name, step.minutes);
                    left.push(step.name.as_str());
                }
            }
            for archive in archive(machine, &directory) {
                println!("{}: {}", step.name, archive.display());
            }
        }
        if !left.is_empty() {
            println!("not complete: {}. The same command goes on with them.", left.join(", "));
        }
        Ok(left.is_empty())
    }
}

impl Step {
    fn words(&self) -> Result<Vec<String>> {
        let words = shlex::split(&self.command).filter(|words| !words.is_empty());
        words.with_context(|| format!("step {}: its command has no words, or an open quote", self.name))
    }

    fn run(&self, machine: &Machine, directory: &Path, limit: Duration) -> Result<End> {
        let lacks = || format!("cannot write to {}", directory.display());
        fs::create_dir_all(directory).with_context(lacks)?;
        let log = directory.join(LOG);
        let file = File::create(&log).with_context(lacks)?;
        let mut run = command(&machine.program);
        run.args(self.words()?).args(["--device", "cuda", "--quiet", "--results-dir"]).arg(directory);
        run.args(&machine.arguments);
        run.envs(machine.variables.iter().map(|(name, value)| (name, value)));
        run.stdout(file.try_clone().with_context(lacks)?).stderr(file);
        match status_within(&mut run, limit)? {
            None => Ok(End::OutOfTime),
            Some(status) if status.success() => {
                fs::write(directory.join(COMPLETE), format!("{}\n", self.command)).with_context(lacks)?;
                Ok(End::Complete)
            }
            Some(status) => Ok(End::Failed(status.to_string())),
        }
    }
}

/// Packs every result of a step that is not packed yet; returns the archives. A result that cannot be packed
/// is kept as it is.
fn archive(machine: &Machine, directory: &Path) -> Vec<PathBuf> {
    let entries = fs::read_dir(directory).into_iter().flatten().flatten();
    let is_left =
        |path: &PathBuf| path.join("report.json").is_file() && !path.with_extension("tar.gz").is_file();
    let results = entries.map(|entry| entry.path()).filter(is_left);
    let pack = |result: PathBuf| {
        let packed = output_of(command(&machine.program).arg("report").arg(&result).arg("--archive"));
        packed.map_err(|error| println!("{}: not packed: {error:#}", result.display())).ok()
    };
    results.filter_map(pack).map(|said| PathBuf::from(said.trim())).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn plan(steps: &[(&str, f64, &str)]) -> Plan {
        let step = |&(name, minutes, command): &(&str, f64, &str)| Step {
            name: name.into(),
            asks: String::new(),
            minutes,
            command: command.into(),
        };
        Plan { step: steps.iter().map(step).collect() }
    }

    /// A program that writes which step ran, and ends as its first word says.
    #[cfg(unix)]
    fn machine(directory: &Path) -> Machine {
        use std::os::unix::fs::PermissionsExt;
        let program = directory.join("program");
        let script = format!(
            "#!/bin/sh\necho $1 >> {}/ran\n[ $1 = slow ] && exec sleep 60\n[ $1 = good ]\n",
            directory.display()
        );
        fs::write(&program, script).unwrap();
        fs::set_permissions(&program, fs::Permissions::from_mode(0o755)).unwrap();
        Machine { program, arguments: Vec::new(), variables: Vec::new() }
    }

    #[test]
    fn the_plan_that_is_shipped_is_sound() {
        let plan = Plan::parse(include_str!("../../../../configs/gpu-run.toml")).unwrap();
        assert_eq!(plan.frameworks(), ["candle", "jax", "ort", "tch", "transformers"]);
    }

    #[test]
    fn unsound_plans_are_refused() {
        let refusal = |text: &str| format!("{:#}", Plan::parse(text).unwrap_err());
        let step = "[[step]]\nname = \"a\"\nasks = \"\"\nminutes = 1.0\ncommand = \"compare\"\n";
        assert!(Plan::parse(step).is_ok());
        assert!(refusal(&step.repeat(2)).contains("two steps are called a"));
        assert!(refusal(&step.replace("\"a\"", "\"../a\"")).contains("letters, digits"));
        assert!(refusal(&step.replace("1.0", "0.0")).contains("above 0"));
        assert!(refusal(&step.replace("\"compare\"", "\"a 'b\"")).contains("open quote"));
    }

    #[cfg(unix)]
    #[test]
    fn complete_steps_are_not_repeated_and_failed_ones_are() {
        let directory = tempfile::tempdir().unwrap();
        let machine = machine(directory.path());
        let plan = plan(&[("a", 1.0, "good"), ("b", 1.0, "bad"), ("c", 1.0, "good")]);
        let results = directory.path().join("results");
        assert!(!plan.follow(&machine, &results, 9.0).unwrap());
        assert!(!plan.follow(&machine, &results, 9.0).unwrap());
        let ran = fs::read_to_string(directory.path().join("ran")).unwrap();
        assert_eq!(ran.lines().collect::<Vec<_>>(), ["good", "bad", "good", "bad"]);
    }

    #[cfg(unix)]
    #[test]
    fn a_step_that_does_not_fit_waits_and_one_that_takes_too_long_is_ended() {
        let directory = tempfile::tempdir().unwrap();
        let machine = machine(directory.path());
        let results = directory.path().join("results");
        let plan = plan(&[("long", 2.0, "good"), ("slow", 0.005, "slow"), ("short", 0.5, "good")]);
        assert!(!plan.follow(&machine, &results, 1.0).unwrap());
        let ran = fs::read_to_string(directory.path().join("ran")).unwrap();
        assert_eq!(ran.lines().collect::<Vec<_>>(), ["slow", "good"]);
        assert!(
            !results.join("slow").join(COMPLETE).exists() && results.join("short").join(COMPLETE).exists()
        );
    }
}
