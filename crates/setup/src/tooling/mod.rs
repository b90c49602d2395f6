//! Functions that the repository's tools share: starting other programs, ending them when the user
//! interrupts, showing long work, reading pages and the files of a checkout, and exit codes.

pub mod pages;
pub mod process;

use std::fs::File;
use std::io::IsTerminal;
use std::path::Path;
use std::process::ExitCode;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};
use indicatif::{ProgressBar, ProgressStyle};
use tempfile::TempDir;

use crate::tooling::process::{command, output_of};

// Exit codes: 0 done, 1 something failed, 2 bad usage or input, 130 interrupted.

/// The caller can correct this one: wrong argument, wrong variable, missing program. Exit code 2.
#[derive(Debug)]
pub struct BadInput(pub String);

impl std::fmt::Display for BadInput {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for BadInput {}

#[derive(Debug)]
pub struct Interrupted;

impl Interrupted {
    /// As in shells: 128 + SIGINT.
    pub const CODE: u8 = 130;
}

impl std::fmt::Display for Interrupted {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("interrupted")
    }
}

impl std::error::Error for Interrupted {}

pub fn exit_code(error: &anyhow::Error) -> ExitCode {
    ExitCode::from(match error {
        error if is_bad_input(error) => 2,
        error if error.downcast_ref::<Interrupted>().is_some() => Interrupted::CODE,
        _ => 1,
    })
}

pub fn is_bad_input(error: &anyhow::Error) -> bool {
    error.downcast_ref::<BadInput>().is_some()
}

// Ctrl-C and SIGTERM for tasks that have something to clean up: they end the running program, and this one
// continues to its own end.

static LISTENING: AtomicBool = AtomicBool::new(false);
static REQUESTED: AtomicBool = AtomicBool::new(false);
static RUNNING: Mutex<Vec<u32>> = Mutex::new(Vec::new());

/// Whether an end at once would lose nothing.
static EXPENDABLE: AtomicBool = AtomicBool::new(false);

/// Turns SIGINT, SIGTERM and SIGHUP into an end in good order. A second signal ends this program at once.
pub fn listen() -> Result<()> {
    if LISTENING.swap(true, Ordering::SeqCst) {
        return Ok(());
    }
    ctrlc::set_handler(|| {
        let is_second = REQUESTED.swap(true, Ordering::SeqCst);
        let running = running().clone();
        if is_second || (running.is_empty() && EXPENDABLE.load(Ordering::SeqCst)) {
            eprintln!("error: interrupted");
            std::process::exit(i32::from(Interrupted::CODE));
        }
        running.into_iter().for_each(terminate);
    })
    .context("cannot listen for Ctrl-C")
}

pub fn requested() -> bool {
    REQUESTED.load(Ordering::SeqCst)
}

/// The error [`Interrupted`] if the user has interrupted.
pub fn check() -> Result<()> {
    if requested() { Err(Interrupted.into()) } else { Ok(()) }
}

/// Says that there is nothing to save or to tidy up, until the returned value is dropped: a signal ends this program at
/// once, unless it waits for another.
pub fn expendable() -> Expendable {
    EXPENDABLE.store(true, Ordering::SeqCst);
    Expendable
}

pub struct Expendable;

impl Drop for Expendable {
    fn drop(&mut self) {
        EXPENDABLE.store(false, Ordering::SeqCst);
    }
}

/// Forwards signals to a program, until it [`has_ended`].
pub(crate) fn pass_on(id: u32) {
    running().push(id);
    if requested() {
        // The signal arrived between the start and here.
        terminate(id);
    }
}

pub(crate) fn has_ended(id: u32) {
    running().retain(|other| *other != id);
}

fn running() -> std::sync::MutexGuard<'static, Vec<u32>> {
    RUNNING.lock().unwrap_or_else(std::sync::PoisonError::into_inner)
}

/// Asks a program to end. A signal from a terminal has reached it already; a second one does no harm.
pub(crate) fn terminate(id: u32) {
    #[cfg(unix)]
    if let Some(id) = i32::try_from(id).ok().and_then(rustix::process::Pid::from_raw) {
        // An error means that the program has just ended.
        let _ = rustix::process::kill_process(id, rustix::process::Signal::TERM);
    }
    #[cfg(not(unix))]
    let _ = id;
}

// Text that programs put into pages, between a pair of markers.

/// `text` with `shown` between `<!-- BLOCK: begin -->` and `<!-- BLOCK: end -->`.
pub fn splice(text: &str, block: &str, shown: &str) -> Result<String> {
    let (begin, end) = (format!("<!-- {block}: begin -->"), format!("<!-- {block}: end -->"));
    let Some((before, rest)) = text.split_once(&begin) else { bail!("has no line {begin}") };
    let Some((_, after)) = rest.split_once(&end) else { bail!("has no line {end} after {begin}") };
    ensure!(!after.contains(&begin), "has more than one {begin}");
    Ok(format!("{before}{begin}\n{}\n{end}{after}", shown.trim()))
}

// The display of long work: bars on a terminal, plain lines elsewhere, always on stderr.

#[derive(Clone, Copy)]
pub struct Reporter {
    quiet: bool,
    bars: bool,
}

impl Reporter {
    pub fn new(quiet: bool) -> Self {
        Self { quiet, bars: !quiet && std::io::stderr().is_terminal() }
    }

    /// For work that runs at the same time as other work with bars.
    pub fn without_bars(self) -> Self {
        Self { bars: false, ..self }
    }

    pub fn is_quiet(self) -> bool {
        self.quiet
    }

    /// A useful message that `--quiet` hides.
    pub fn note(self, text: &str) {
        if !self.quiet {
            eprintln!("{text}");
        }
    }

    /// Something that must be known.
    pub fn warn(self, text: &str) {
        eprintln!("warning: {text}");
    }

    /// The start of long work of unknown length.
    pub fn begin(self, what: &str) {
        eprintln!("{what}");
    }

    /// Long work on `bytes`, of which `done` are: shown as a bar until the returned value is dropped.
    pub fn transfer(self, what: &str, done: u64, bytes: u64) -> Transfer {
        let (before, all) = (done / 1_000_000, megabytes(bytes));
        if done > 0 {
            eprintln!("{what}, going on from {before} of {all} MB");
        } else if !self.bars {
            eprintln!("{what} ({all} MB)");
        }
        if !self.bars {
            return Transfer(None);
        }
        let template = "{msg} {wide_bar} {decimal_bytes}/{decimal_total_bytes}, {eta} left";
        let bar = ProgressBar::new(bytes).with_message(what.to_owned()).with_position(done);
        bar.set_style(
            ProgressStyle::with_template(template).unwrap_or_else(|_| ProgressStyle::default_bar()),
        );
        // The time left is by what comes from now on.
        bar.reset_eta();
        bar.enable_steady_tick(Duration::from_millis(100));
        Transfer(Some(bar))
    }
}

pub struct Transfer(Option<ProgressBar>);

impl Transfer {
    pub fn at(&self, bytes: u64) {
        if let Some(bar) = &self.0 {
            // A file that is being moved is counted twice for a moment.
            bar.set_position(bytes.min(bar.length().unwrap_or(bytes)));
        }
    }
}

impl Drop for Transfer {
    fn drop(&mut self) {
        if let Some(bar) = &self.0 {
            bar.finish_and_clear();
        }
    }
}

pub fn megabytes(bytes: u64) -> u64 {
    bytes.div_ceil(1_000_000)
}

// Temporary directories that outlive no program: those of a program that was killed are removed by the next one.

const PREFIX: &str = "photofinish-scratch-";

/// A file that the owner holds a lock on. The system drops the lock with the process, however that ends.
const LOCK: &str = ".lock";

/// Age from which on a directory without such a file is abandoned: its owner was killed before it made the
/// file.
const ORPHANED: Duration = Duration::from_secs(3600);

/// A temporary directory, removed when this value is dropped.
pub struct Scratch {
    directory: TempDir,
    _lock: File,
}

impl Scratch {
    /// A new directory in the system's temporary directory. Abandoned ones are removed first.
    pub fn new() -> Result<Scratch> {
        Scratch::inside(&std::env::temp_dir())
    }

    fn inside(parent: &Path) -> Result<Scratch> {
        sweep(parent);
        let cannot = || format!("cannot make a temporary directory in {}", parent.display());
        let directory = tempfile::Builder::new().prefix(PREFIX).tempdir_in(parent).with_context(cannot)?;
        let lock = File::create(directory.path().join(LOCK)).with_context(cannot)?;
        lock.try_lock().with_context(cannot)?;
        Ok(Scratch { directory, _lock: lock })
    }

    pub fn path(&self) -> &Path {
        self.directory.path()
    }
}

/// Removes our abandoned directories. If that fails, the next program tries again.
fn sweep(parent: &Path) {
    let entries = std::fs::read_dir(parent).into_iter().flatten().flatten();
    let ours = entries.filter(|entry| entry.file_name().to_string_lossy().starts_with(PREFIX));
    for path in ours.map(|entry| entry.path()).filter(|path| is_own_directory(path)) {
        let age = || path.metadata().ok()?.modified().ok()?.elapsed().ok();
        // Held until the directory is gone.
        let lock = File::open(path.join(LOCK));
        let is_abandoned = match &lock {
            Ok(lock) => lock.try_lock().is_ok(),
            Err(_) => age().is_some_and(|age| age >= ORPHANED),
        };
        if is_abandoned {
            let _ = std::fs::remove_dir_all(&path);
        }
    }
}

/// Whether it is a directory, no link to one, and this user's: others may put anything into a shared
/// directory.
fn is_own_directory(path: &Path) -> bool {
    let Ok(metadata) = path.symlink_metadata() else { return false };
    #[cfg(unix)]
    let is_own = std::os::unix::fs::MetadataExt::uid(&metadata) == rustix::process::geteuid().as_raw();
    #[cfg(not(unix))]
    let is_own = true;
    metadata.is_dir() && is_own
}

/// Puts a copy of a file into a place, whole or not at all: one that is there may be running.
pub fn replace(from: &Path, to: &Path) -> std::io::Result<()> {
    let new = to.with_extension("new");
    std::fs::copy(from, &new)?;
    std::fs::rename(new, to)
}

// The files of a checkout.

/// The repository's files that are text, each with its name from the root.
pub fn texts(root: &Path) -> Result<Vec<(String, String)>> {
    // A listed file may be missing: deleted, but not committed yet.
    let read = |name: String| Some((std::fs::read_to_string(root.join(&name)).ok()?, name));
    Ok(files(root)?.into_iter().filter_map(read).map(|(text, name)| (name, text)).collect())
}

/// Tracked files and those about to be, by name from the root; all files if there is no git.
pub fn files(root: &Path) -> Result<Vec<String>> {
    let mut git = command("git");
    git.current_dir(root).args(["ls-files", "-z", "--cached", "--others", "--exclude-standard"]);
    match output_of(&mut git) {
        Ok(names) => Ok(names.split('\0').filter(|name| !name.is_empty()).map(str::to_owned).collect()),
        Err(_) => {
            let mut found = Vec::new();
            walk(root, root, &mut found)?;
            Ok(found)
        }
    }
}

fn walk(root: &Path, directory: &Path, found: &mut Vec<String>) -> Result<()> {
    let entries =
        std::fs::read_dir(directory).with_context(|| format!("cannot read {}", directory.display()))?;
    for entry in entries {
        let entry = entry?;
        let path = entry.path();
        let name = path.strip_prefix(root)?.to_string_lossy().into_owned();
        if entry.file_type()?.is_dir() {
            if !["target", "results", ".git"].contains(&name.as_str()) {
                walk(root, &path, found)?;
            }
        } else {
            found.push(name);
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::io::{BufRead, BufReader};
    use std::process::Stdio;
    use std::time::SystemTime;

    use super::*;
    use process::succeeds;

    /// Says to the process below that it is the one that is interrupted.
    const ROLE: &str = "PHOTOFINISH_TEST_INTERRUPTED";
    const NAME: &str = "tooling::tests::a_signal_ends_what_runs_and_is_an_error_here";

    #[cfg(unix)]
    #[test]
    fn a_signal_ends_what_runs_and_is_an_error_here() {
        if std::env::var_os(ROLE).is_some() {
            listen().unwrap();
            let error = succeeds(command("sh").args(["-c", "echo runs; exec sleep 60"])).unwrap_err();
            assert!(error.downcast_ref::<Interrupted>().is_some(), "{error}");
            return;
        }
        let begun = SystemTime::now();
        let mut again = command(std::env::current_exe().unwrap());
        again.args(["--exact", NAME, "--nocapture"]).env(ROLE, "1").stdout(Stdio::piped());
        let mut child = again.spawn().unwrap();
        let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
        assert!(lines.any(|line| line.unwrap().ends_with("runs")), "it started the program");
        terminate(child.id());
        assert!(lines.count() > 0 && child.wait().unwrap().success());
        assert!(begun.elapsed().unwrap() < Duration::from_secs(50), "the signal was passed on");
    }

    #[test]
    fn bad_input_stays_bad_input_under_context() {
        let error = Err::<(), _>(BadInput("x".into())).context("while reading").unwrap_err();
        assert!(is_bad_input(&error));
        assert!(!is_bad_input(&anyhow::anyhow!("x")));
    }

    const BEGIN: &str = "<!-- table: begin -->";
    const END: &str = "<!-- table: end -->";

    #[test]
    fn the_text_between_the_markers_is_replaced() {
        let other = "<!-- other: begin -->\nkept\n<!-- other: end -->\n";
        let text = format!("above\n{other}{BEGIN}\nold\n{END}\nbelow\n");
        let once = splice(&text, "table", "new\n").unwrap();
        assert_eq!(once, text.replace("old", "new"));
        assert_eq!(splice(&once, "table", "new").unwrap(), once);
        for text in ["", BEGIN, END, &format!("{END}{BEGIN}"), &format!("{BEGIN}{END}{BEGIN}{END}")] {
            assert!(splice(text, "table", "new").is_err(), "{text:?}");
        }
    }

    #[test]
    fn what_a_killed_program_left_is_removed_by_the_next_and_what_lives_stays() {
        let parent = tempfile::tempdir().unwrap();
        let living = Scratch::inside(parent.path()).unwrap();
        let dead = parent.path().join(format!("{PREFIX}dead"));
        std::fs::create_dir(&dead).unwrap();
        std::fs::write(dead.join(LOCK), "").unwrap();
        let begun = parent.path().join(format!("{PREFIX}begun"));
        std::fs::create_dir(&begun).unwrap();
        let results = parent.path().join("photofinish-results-kept");
        std::fs::create_dir(&results).unwrap();
        let next = Scratch::inside(parent.path()).unwrap();
        let there = [living.path(), next.path(), &begun, &results, &dead].map(Path::exists);
        assert_eq!(there, [true, true, true, true, false], "only the dead one goes");
        let place = next.path().to_path_buf();
        drop(next);
        assert!(!place.exists());
    }

    #[test]
    fn without_git_the_files_are_found_all_the_same() {
        let root = tempfile::tempdir().unwrap();
        std::fs::create_dir_all(root.path().join("crates/x")).unwrap();
        std::fs::create_dir_all(root.path().join("target/release")).unwrap();
        std::fs::write(root.path().join("crates/x/lib.rs"), "").unwrap();
        std::fs::write(root.path().join("target/release/x.rs"), "").unwrap();
        let mut found = Vec::new();
        walk(root.path(), root.path(), &mut found).unwrap();
        assert_eq!(found, ["crates/x/lib.rs"]);
    }
}
