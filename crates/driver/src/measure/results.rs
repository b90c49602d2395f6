//! The results directory of one run: every sample as JSON lines, written to disk round by round, and the report.
//!
//! Writing may fail at any time (a full disk), and the directory may be moved or removed. The user then gets one
//! message, and measuring goes on. No file is left half-written: an incomplete line is removed, and a report is written
//! completely or not at all. At the end, a run that is not whole in its place goes to the system's temporary directory,
//! from memory, and one sentence says where the parts are.

use std::fs::{File, OpenOptions, Permissions};
use std::io::{BufRead, BufReader, Read, Seek, SeekFrom, Write};
use std::os::unix::fs::{OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::time::Instant;

use comparison::facts::evidence::{Fact, Stage, Stages};
use comparison::facts::{Environment, Evidence, agreement};
use comparison::judge::Report;
use comparison::judge::report::{Facts, Prepared, SCHEMA, Warning};
use comparison::plan::{Contender, Failure, Plan, Result};
use protocol::untrusted;
use serde::{Deserialize, Serialize};
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
    /// Every line, and how many of them were written.
    lines: Vec<String>,
    written: usize,
    /// Lines that are surely on the disk, if a flush failed: the system may have dropped what it was to flush.
    flushed: Option<usize>,
    /// Every other file, by name.
    files: Vec<(String, Vec<u8>)>,
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
        let mut samples = open_itself(OpenOptions::new().write(true), &path).map_err(|e| cannot(&path, e))?;
        samples.set_len(complete as u64).map_err(|e| cannot(&path, e))?;
        samples.seek(SeekFrom::End(0)).map_err(|e| cannot(&path, e))?;
        let lines: Vec<String> = text.lines().map(str::to_owned).collect();
        let mut results = Results::at(directory.to_path_buf(), log, samples, complete as u64);
        results.lines = text.split_inclusive('\n').map(str::to_owned).collect();
        results.written = results.lines.len();
        Ok((results, lines))
    }

    fn at(directory: PathBuf, log: &'static str, samples: File, complete: u64) -> Results {
        let (lines, files) = (Vec::new(), Vec::new());
        Results { directory, log, samples, complete, lines, written: 0, flushed: None, files, failure: None }
    }

    pub fn directory(&self) -> &Path {
        &self.directory
    }

    /// Appends a record to the samples, and waits until it is on the disk.
    pub fn append(&mut self, record: &impl Serialize) {
        let before = self.written;
        self.append_soon(record);
        if let Err(error) = self.samples.sync_data() {
            self.flushed.get_or_insert(before);
            self.failed(&self.directory.join(self.log), &error);
        }
    }

    /// Appends a record to the samples. It survives a crash of this program, but not of the machine.
    pub fn append_soon(&mut self, record: &impl Serialize) {
        let mut line =
            serde_json::to_string(record).expect("records have string keys and no failing serialiser");
        line.push('\n');
        self.lines.push(line);
        self.flush();
    }

    /// Writes a file completely or not at all.
    pub fn write(&mut self, name: &str, contents: impl AsRef<[u8]>) {
        let contents = contents.as_ref();
        self.files.retain(|(known, _)| known != name);
        self.files.push((name.to_owned(), contents.to_vec()));
        if let Err(error) = write_whole(&self.directory, name, contents) {
            self.failed(&self.directory.join(name), &error);
        }
    }

    /// The reason why not everything is saved in its place, and the place of the rest; `None` if all is there.
    pub fn finish(&mut self) -> Option<String> {
        self.flush();
        let (lines, names) = self.found();
        if lines == self.lines.len() && names.len() == self.files.len() {
            // Whatever failed meanwhile, there was room again.
            return None;
        }
        let place = self.directory.display();
        let gone = || format!("{place} was moved, changed or removed during the run");
        let reason = self.failure.clone().unwrap_or_else(gone);
        let of_log = format!("{lines} of {} lines of {}", self.lines.len(), self.log);
        let held = std::iter::once(of_log.as_str()).chain(names).collect::<Vec<_>>().join(", ");
        let holds = format!("{place} holds {held}");
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

    /// The lines and the names of files that are in the directory now.
    fn found(&self) -> (usize, Vec<&str>) {
        let holds = |name: &str, text: &[u8]| {
            let found = untrusted::file::read(&self.directory.join(name), text.len() as u64);
            found.is_ok_and(|found| found == text)
        };
        let lines = self.lines[..self.written].concat();
        let is_whole = holds(self.log, lines.as_bytes());
        let lines = if is_whole { self.flushed.unwrap_or(self.written) } else { 0 };
        let is_there = |(name, text): &&(String, Vec<u8>)| holds(name, text);
        (lines, self.files.iter().filter(is_there).map(|(name, _)| name.as_str()).collect())
    }

    /// Saves the whole run in a directory for temporary files.
    fn rescue(&self) -> std::io::Result<PathBuf> {
        let directory = tempfile::Builder::new().prefix("photofinish-results-").tempdir()?;
        write_whole(directory.path(), self.log, self.lines.concat().as_bytes())?;
        for (name, contents) in &self.files {
            write_whole(directory.path(), name, contents)?;
        }
        Ok(directory.keep())
    }

    fn flush(&mut self) {
        let text = self.lines[self.written..].concat();
        match self.samples.write_all(text.as_bytes()) {
            Ok(()) => {
                self.complete += text.len() as u64;
                self.written = self.lines.len();
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

/// Opens a file that is changed and that others may have put there: not by way of a link, which may lead anywhere.
pub fn open_itself(options: &mut OpenOptions, path: &Path) -> std::io::Result<File> {
    options.custom_flags(rustix::fs::OFlags::NOFOLLOW.bits() as i32);
    options.open(path).map_err(|error| if path.is_symlink() { is_link() } else { error })
}

/// As [`open_itself`], for a directory below another's.
pub fn make_itself(directory: &Path) -> std::io::Result<()> {
    if directory.is_symlink() { Err(is_link()) } else { std::fs::create_dir_all(directory) }
}

fn is_link() -> std::io::Error {
    let what = "it is a link, which may lead anywhere: put what it leads to in its place";
    std::io::Error::new(std::io::ErrorKind::InvalidInput, what)
}

/// Writes a file completely or not at all, and replaces an existing one.
pub fn write_whole(directory: &Path, name: impl AsRef<Path>, contents: &[u8]) -> std::io::Result<()> {
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
    // A result that only its owner can read is still a result.
    let _ = std::fs::set_permissions(path, Permissions::from_mode(0o644));
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

/// Of a parity check, in the place of a report.
pub const PARITY: &str = "parity.json";

/// `plan.json`: the plan, and its model.
#[derive(Serialize)]
struct PlanFile<'a> {
    schema: u32,
    #[serde(flatten)]
    plan: &'a Plan,
    prepared: &'a Prepared,
}

#[derive(Deserialize)]
struct PreparedOf {
    prepared: Prepared,
}

pub fn plan_text(plan: &Plan, prepared: &Prepared) -> String {
    pretty(&PlanFile { schema: SCHEMA, plan, prepared })
}

/// JSON for files that people open.
pub fn pretty(value: &impl Serialize) -> String {
    serde_json::to_string_pretty(value).expect("plain data serialises")
}

/// The facts of a comparison, from its plan and its journal, and descriptions of the files that are missing. Works for a
/// run that was killed, too.
pub fn facts(directory: &Path) -> Result<(Facts, Vec<String>)> {
    let mut missing = Vec::new();
    let plan_path = directory.join(PLAN);
    if !directory.is_dir() {
        return Err(Failure::usage(format!("{}: there is no such directory", directory.display())));
    }
    let text = text(&plan_path)?.ok_or_else(|| {
        Failure::usage(format!(
            "{} holds no {PLAN}: it is not the results directory of a comparison",
            directory.display()
        ))
    })?;
    let unreadable = |path: &Path, why: &dyn std::fmt::Display| {
        Failure::usage(format!("{} cannot be read: {why}", path.display()))
    };
    let what = "the plan of a comparison";
    let plan: Plan = agreement::document(&text, SCHEMA, what).map_err(|why| unreadable(&plan_path, &why))?;
    // Apart, because a field that holds the rest of an object is read through a copy of all of it.
    let PreparedOf { prepared: model } =
        serde_json::from_str(&text).map_err(|why| unreadable(&plan_path, &why))?;
    let evidence = Evidence::from_facts(journal(&directory.join(SAMPLES))?);
    check_rounds(directory, &plan, &evidence)?;
    let path = directory.join(ENVIRONMENT);
    let environment = match self::text(&path)? {
        Some(text) => serde_json::from_str(&text).map_err(|why| unreadable(&path, &why))?,
        None => {
            missing.push(format!("{ENVIRONMENT}: the machine and the command are not known"));
            Environment::default()
        }
    };
    if !directory.join(REPORT).is_file() {
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

/// Most bytes of a line of a journal: one is read at a time, through a copy of some times its size.
const MOST_OF_LINE: u64 = 48 << 20;

/// The facts of a journal, without an incomplete last line. Never more than a line of it is in memory as text.
fn journal(path: &Path) -> Result<Vec<Fact>> {
    let cannot = |error: std::io::Error| Failure::usage(format!("cannot read {}: {error}", path.display()));
    let mut file = BufReader::new(untrusted::file::open(path).map_err(cannot)?);
    let (mut facts, mut line) = (Vec::new(), Vec::new());
    loop {
        line.clear();
        let read = file.by_ref().take(MOST_OF_LINE + 1).read_until(b'\n', &mut line).map_err(cannot)?;
        let refused =
            |why: &str| Failure::usage(format!("{}, line {}: {why}", path.display(), facts.len() + 1));
        if read as u64 > MOST_OF_LINE {
            return Err(refused(&format!("it has more than {} MiB", MOST_OF_LINE >> 20)));
        }
        if !line.ends_with(b"\n") {
            return Ok(facts);
        }
        let text = std::str::from_utf8(&line).map_err(|error| refused(&error.to_string()))?;
        facts.push(Fact::read(text.trim_end()).map_err(|why| refused(&why))?);
    }
}

/// The text of a plan or a report; `None` if there is none.
pub fn text(path: &Path) -> Result<Option<String>> {
    match untrusted::file::read_text(path, untrusted::file::INPUT) {
        Ok(text) => Ok(Some(text)),
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(None),
        Err(error) => Err(Failure::usage(format!("cannot read {}: {error}", path.display()))),
    }
}

#[cfg(all(test, target_os = "linux"))]
mod tests {
    use super::*;

    /// A results directory with two files.
    fn begun() -> (tempfile::TempDir, Results) {
        let parent = tempfile::tempdir().unwrap();
        let mut results = Results::create(parent.path(), OffsetDateTime::now_utc(), "", SAMPLES).unwrap();
        results.write(ENVIRONMENT, "{}");
        results.append(&"first");
        (parent, results)
    }

    /// The same with a journal that cannot be written from now on.
    fn without_room() -> (tempfile::TempDir, Results) {
        let (parent, mut results) = begun();
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
        lies_elsewhere(&told, "\"first\"\n\"second\"\n\"third\"\n");
    }

    /// Asserts that the whole run lies where it is said to be, and removes it.
    fn lies_elsewhere(told: &str, journal: &str) {
        let elsewhere = told.split("the whole run is in ").nth(1).unwrap().split(':').next().unwrap();
        assert!(told.contains(&format!("`photofinish report {elsewhere}`")), "{told}");
        let read = |name: &str| std::fs::read_to_string(Path::new(elsewhere).join(name)).unwrap();
        assert_eq!((read(SAMPLES).as_str(), read(ENVIRONMENT).as_str()), (journal, "{}"));
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

    #[test]
    fn a_directory_that_is_gone_and_a_flush_that_failed_cost_nothing() {
        type Harm = fn(&mut Results);
        let harms: [(Harm, &str); 3] = [
            (
                |results| std::fs::remove_dir_all(results.directory()).unwrap(),
                "holds 0 of 2 lines of samples.jsonl;",
            ),
            (
                |results| {
                    std::fs::rename(results.directory(), results.directory().join("../elsewhere")).unwrap()
                },
                "was moved, changed or removed during the run",
            ),
            // As if the flush of the second line had failed.
            (|results| results.flushed = Some(1), "holds 1 of 2 lines of samples.jsonl, environment.json;"),
        ];
        for (harm, part) in harms {
            let (_parent, mut results) = begun();
            harm(&mut results);
            results.append(&"second");
            let told = results.finish().unwrap();
            assert!(told.contains(part), "{told}");
            lies_elsewhere(&told, "\"first\"\n\"second\"\n");
        }
    }
}
