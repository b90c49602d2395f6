//! The results directory of one run: every sample as JSON lines, written to disk round by round, and the report.
//!
//! Writing may fail at any time (a full disk). The user then gets one message, and measuring goes on. No file
//! is left half-written: an incomplete line is removed, and a report is written completely or not at all. At
//! the end, a run that could not be saved completely goes to the system's temporary directory, and one
//! sentence says where the parts are.

use std::fs::{File, OpenOptions};
use std::io::{Read, Seek, SeekFrom, Write};
use std::path::{Path, PathBuf};
use std::time::Instant;

use comparison::facts::evidence::{Fact, Stage, Stages};
use comparison::facts::{Environment, Evidence};
use comparison::judge::Report;
use comparison::judge::report::{self, Facts, Prepared, SCHEMA, Warning};
use comparison::plan::{Contender, Failure, Plan, Result};
use protocol::untrusted;
use serde::{Deserialize, Serialize};
use serde_json::Value;
use time::OffsetDateTime;
use time::macros::format_description;

use crate::measure::places;

pub struct Results {
    directory: PathBuf,
    /// Name of the file of records.
    log: &'static str,
    samples: File,
    /// Length of that file up to the last complete line, in bytes.
    complete: u64,
    /// Lines that could not be written yet.
    pending: Vec<String>,
    /// Lines that were written.
    lines: usize,
    /// Names of the files that were written.
    saved: Vec<String>,
    /// Files that could not be written, by name.
    unsaved: Vec<(String, Vec<u8>)>,
    failure: Option<String>,
}

impl Results {
    /// Makes `<parent>/<UTC time>-<host>/`, with `-<study>` if that has a name. Records go to the file `log`. A failure
    /// here costs nothing, because nothing has been measured yet.
    pub fn create(parent: &Path, started: OffsetDateTime, study: &str, log: &'static str) -> Result<Results> {
        std::fs::create_dir_all(parent).map_err(|e| cannot(parent, e))?;
        let stamp = started
            .format(format_description!("[year][month][day]T[hour][minute][second]Z"))
            .expect("the format has no failing part");
        let host: String =
            places::host().chars().map(|c| if c.is_ascii_alphanumeric() { c } else { '-' }).collect();
        let study = if study.is_empty() { String::new() } else { format!("-{}", study.replace(' ', "-")) };
        let name = format!("{stamp}-{host}{study}");
        let mut directory = parent.join(&name);
        for number in 2.. {
            match std::fs::create_dir(&directory) {
                Ok(()) => break,
                // Two runs may start in one second: each has a directory of its own.
                Err(e) if e.kind() == std::io::ErrorKind::AlreadyExists && number < 1000 => {
                    directory = parent.join(format!("{name}-{number}"));
                }
                Err(e) => return Err(cannot(&directory, e)),
            }
        }
        let path = directory.join(log);
        let samples =
            OpenOptions::new().create_new(true).write(true).open(&path).map_err(|e| cannot(&path, e))?;
        Ok(Results::at(directory, log, samples, 0))
    }

    /// Continues in an existing directory. Returns its records, without an incomplete last one.
    pub fn reopen(directory: &Path, log: &'static str) -> Result<(Results, Vec<String>)> {
        let path = directory.join(log);
        let text = complete_lines(&path).map_err(|e| cannot(&path, e))?;
        let complete = text.len();
        let mut samples = OpenOptions::new().write(true).open(&path).map_err(|e| cannot(&path, e))?;
        samples.set_len(complete as u64).map_err(|e| cannot(&path, e))?;
        samples.seek(SeekFrom::End(0)).map_err(|e| cannot(&path, e))?;
        let lines: Vec<String> = text.lines().map(str::to_owned).collect();
        let results = Results::at(directory.to_path_buf(), log, samples, complete as u64);
        Ok((Results { lines: lines.len(), ..results }, lines))
    }

    fn at(directory: PathBuf, log: &'static str, samples: File, complete: u64) -> Results {
        let (pending, saved, unsaved) = (Vec::new(), Vec::new(), Vec::new());
        Results { directory, log, samples, complete, lines: 0, pending, saved, unsaved, failure: None }
    }

    pub fn directory(&self) -> &Path {
        &self.directory
    }

    /// Appends a record to the samples, and waits until it is on the disk.
    pub fn append(&mut self, record: &impl Serialize) {
        self.append_soon(record);
        if let Err(error) = self.samples.sync_data() {
            self.failed(&self.directory.join(self.log), &error);
        }
    }

    /// Appends a record to the samples. It survives a crash of this program, but not of the machine.
    pub fn append_soon(&mut self, record: &impl Serialize) {
        let mut line =
            serde_json::to_string(record).expect("records have string keys and no failing serialiser");
        line.push('\n');
        self.pending.push(line);
        self.flush();
    }

    /// Writes a file completely or not at all.
    pub fn write(&mut self, name: &str, contents: impl AsRef<[u8]>) {
        match write_whole(&self.directory, name, contents.as_ref()) {
            Ok(()) => self.saved.push(name.to_owned()),
            Err(error) => {
                self.unsaved.push((name.to_owned(), contents.as_ref().to_vec()));
                self.failed(&self.directory.join(name), &error);
            }
        }
    }

    /// The reason why not everything could be saved in its place, and the place of the rest; `None` if all
    /// was saved.
    pub fn finish(&mut self) -> Option<String> {
        self.flush();
        let reason = self.failure.clone()?;
        if self.pending.is_empty() && self.unsaved.is_empty() {
            // There was room again, and the pending lines were written.
            return None;
        }
        let holds = self.holds();
        Some(match self.rescue() {
            Ok(directory) => {
                let directory = shlex::try_quote(&directory.display().to_string())
                    .map_or_else(|_| directory.display().to_string(), std::borrow::Cow::into_owned);
                format!(
                    "{reason}; {holds}; the whole run is in {directory}: move it to where there is room, and \
                     `photofinish report {directory}`, with the place that it then has, writes every output again"
                )
            }
            Err(error) => format!(
                "{reason}, nor to a temporary directory: {error}; {holds}; what is printed is all there is of the rest"
            ),
        })
    }

    /// The contents of the results directory, in words.
    fn holds(&self) -> String {
        let all = self.lines + self.pending.len();
        let lines = format!("{} of {all} lines of {}", self.lines, self.log);
        let held: Vec<&str> =
            std::iter::once(lines.as_str()).chain(self.saved.iter().map(String::as_str)).collect();
        format!("{} holds {}", self.directory.display(), held.join(", "))
    }

    /// Saves the whole run, saved and unsaved parts, in a directory for temporary files.
    fn rescue(&self) -> std::io::Result<PathBuf> {
        let directory = tempfile::Builder::new().prefix("photofinish-results-").tempdir()?;
        for name in &self.saved {
            std::fs::copy(self.directory.join(name), directory.path().join(name))?;
        }
        let mut log = File::create(directory.path().join(self.log))?;
        // Without the lines that were saved, the unsaved ones are still worth keeping.
        if let Ok(saved) = untrusted::file::open(&self.directory.join(self.log)) {
            std::io::copy(&mut saved.take(self.complete), &mut log)?;
        }
        log.write_all(self.pending.concat().as_bytes())?;
        for (name, contents) in &self.unsaved {
            std::fs::write(directory.path().join(name), contents)?;
        }
        Ok(directory.keep())
    }

    fn flush(&mut self) {
        let text = self.pending.concat();
        match self.samples.write_all(text.as_bytes()) {
            Ok(()) => {
                self.complete += text.len() as u64;
                self.lines += self.pending.len();
                self.pending.clear();
            }
            Err(error) => {
                // The incomplete part is removed, so that the file ends with a whole line.
                let _ = self.samples.set_len(self.complete);
                let _ = self.samples.seek(SeekFrom::Start(self.complete));
                self.failed(&self.directory.join(self.log), &error);
            }
        }
    }

    fn failed(&mut self, path: &Path, error: &std::io::Error) {
        let text = format!("cannot save to {}: {error}", path.display());
        if self.failure.is_none() {
            protocol::say!("warning: {text}; measuring goes on");
        }
        self.failure = Some(text);
    }
}

/// The complete lines of a journal. An incomplete last line, which may end within a character, is left out.
pub fn complete_lines(path: &Path) -> std::io::Result<String> {
    let mut bytes = untrusted::file::read(path, untrusted::file::RESULTS)?;
    bytes.truncate(bytes.iter().rposition(|&byte| byte == b'\n').map_or(0, |end| end + 1));
    String::from_utf8(bytes).map_err(|error| std::io::Error::new(std::io::ErrorKind::InvalidData, error))
}

/// Writes a file completely or not at all, and replaces an existing one.
pub fn write_whole(directory: &Path, name: &str, contents: &[u8]) -> std::io::Result<()> {
    let path = directory.join(name);
    let mut file = tempfile::NamedTempFile::new_in(directory)?;
    file.write_all(contents)?;
    file.as_file().sync_all()?;
    file.persist(&path).map_err(|e| e.error)?;
    readable_by_all(&path);
    Ok(())
}

fn cannot(path: &Path, error: std::io::Error) -> Failure {
    Failure::usage(format!(
        "cannot write results to {}: {error}; choose another place with --results-dir",
        path.display()
    ))
}

/// Gives a temporary file the usual permissions: temporary files are private, results are not.
pub fn readable_by_all(path: &Path) {
    #[cfg(unix)]
    {
        use std::os::unix::fs::PermissionsExt;
        // A result that only its owner can read is still a result.
        let _ = std::fs::set_permissions(path, std::fs::Permissions::from_mode(0o644));
    }
    #[cfg(not(unix))]
    let _ = path;
}

// The facts of a run. Every fact is written to the journal before it joins the evidence, so a killed run
// keeps its facts.

pub(crate) struct Recorder {
    pub(crate) results: Results,
    pub(crate) evidence: Evidence,
    /// The wall time so far, by stage.
    pub(crate) time: Stages,
}

impl Recorder {
    pub(crate) fn new(results: Results) -> Recorder {
        Recorder { results, evidence: Evidence::default(), time: Stages::new() }
    }

    /// The evidence, and the directory that it was written to.
    pub(crate) fn finish(self) -> (Evidence, Results) {
        (self.evidence, self.results)
    }

    /// Writes a fact to the journal and adds it to the evidence.
    pub(crate) fn record(&mut self, fact: Fact) {
        match fact {
            // These decide which figures count. The others are written as well, but need not wait for the
            // disk between two processes.
            Fact::Run(_) | Fact::Ended(_) | Fact::PutAside { .. } | Fact::RoundDone | Fact::End { .. } => {
                self.results.append(&fact)
            }
            _ => self.results.append_soon(&fact),
        }
        self.evidence.note(fact);
    }

    /// Adds the time since `begun` to this stage.
    pub(crate) fn add_time(&mut self, stage: Stage, begun: Instant) {
        *self.time.entry(stage).or_default() += begun.elapsed().as_secs_f64();
    }

    /// Moves some of the time of one stage to another.
    pub(crate) fn shift(&mut self, from: Stage, to: Stage, seconds: f64) {
        *self.time.entry(from).or_default() -= seconds;
        *self.time.entry(to).or_default() += seconds;
    }

    pub(crate) fn record_time(&mut self) {
        self.record(Fact::Time { stages: self.time.clone() });
    }

    pub(crate) fn is_absent(&self, contender: &Contender) -> bool {
        self.evidence.absent.contains_key(&contender.label)
    }
}

/// Name of the file of a parity check.
const PARITY: &str = "parity.json";

/// Judges the facts of a results directory, even of a run that was killed before it could write its report. A
/// missing file is a warning.
pub fn judged(directory: &Path) -> Result<(Report, Evidence)> {
    let name = directory.file_name().unwrap_or_default().to_string_lossy();
    if name.ends_with("-parity") || directory.join(PARITY).is_file() {
        return Err(Failure::usage(format!(
            "{} is of `photofinish parity`, whose samples alone are no comparison",
            directory.display()
        )));
    }
    let (mut facts, missing) = facts(directory)?;
    facts.evidence = facts.evidence.rejudged(&facts.plan);
    let mut report = Report::new(&facts);
    report.warnings.extend(missing.into_iter().map(Warning::Missing));
    Ok((report, facts.evidence))
}

// Reads back everything that is written to a results directory.

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

#[cfg(all(test, target_os = "linux"))]
mod tests {
    use super::*;

    /// A results directory with a journal that cannot be written from now on.
    fn without_room() -> (tempfile::TempDir, Results) {
        let parent = tempfile::tempdir().unwrap();
        let mut results =
            Results::create(parent.path(), OffsetDateTime::now_utc(), "", "samples.jsonl").unwrap();
        results.write("environment.json", "{}");
        results.append_soon(&"first");
        results.samples = OpenOptions::new().write(true).open("/dev/full").unwrap();
        (parent, results)
    }

    #[test]
    fn a_full_disk_is_one_sentence_and_the_whole_run_lies_elsewhere() {
        let (_parent, mut results) = without_room();
        results.append_soon(&"second");
        results.append_soon(&"third");
        let told = results.finish().unwrap();
        let place = results.directory().display().to_string();
        assert!(told.contains("samples.jsonl: No space left on device"), "{told}");
        assert!(
            told.contains(&format!("{place} holds 1 of 3 lines of samples.jsonl, environment.json")),
            "{told}"
        );
        let elsewhere = told.split("the whole run is in ").nth(1).unwrap().split(':').next().unwrap();
        assert!(told.contains(&format!("`photofinish report {elsewhere}`")), "{told}");
        let elsewhere = Path::new(elsewhere);
        let journal = std::fs::read_to_string(elsewhere.join("samples.jsonl")).unwrap();
        assert_eq!(journal, "\"first\"\n\"second\"\n\"third\"\n");
        assert_eq!(std::fs::read_to_string(elsewhere.join("environment.json")).unwrap(), "{}");
        std::fs::remove_dir_all(elsewhere).unwrap();
    }

    #[test]
    fn a_disk_that_has_room_again_holds_everything() {
        let (_parent, mut results) = without_room();
        results.append_soon(&"second");
        let path = results.directory().join("samples.jsonl");
        results.samples = OpenOptions::new().append(true).open(&path).unwrap();
        results.append_soon(&"third");
        assert_eq!(results.finish(), None);
        assert_eq!(std::fs::read_to_string(path).unwrap(), "\"first\"\n\"second\"\n\"third\"\n");
    }
}
