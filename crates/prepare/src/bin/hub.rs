//! Fetches files of a repository on the Hugging Face hub into the cache that all of Hugging Face's tools share.
//! `prepare` starts this program where the cache lacks something (README.md).

use std::io::Write;
use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use clap::Parser;
use hf_hub::api::Progress;
use hf_hub::api::sync::{Api, ApiBuilder, ApiError};
use hf_hub::{Repo, RepoType};
use indicatif::ProgressBar;
use serde_json::{Value, json};

/// Fetches files of a repository on the Hugging Face hub into a cache, and prints their paths.
#[derive(Parser)]
#[command(version)]
struct Arguments {
    /// The repository: owner/name
    repository: String,
    /// Files to fetch; without any, the names of all files are printed, with the commit that has them
    files: Vec<String>,
    /// A branch, a tag or a commit
    #[arg(long, default_value = "main")]
    revision: String,
    /// Directory of the cache
    #[arg(long, value_name = "DIR")]
    cache: PathBuf,
    /// No progress bars
    #[arg(long)]
    quiet: bool,
}

fn main() -> ExitCode {
    end_with_parent();
    match run(&Arguments::parse()) {
        Ok(()) => ExitCode::SUCCESS,
        // `prepare` prints the reason. If it is gone, the message is lost.
        Err(reason) => {
            let _ = say(&json!({ "error": reason }));
            ExitCode::from(2)
        }
    }
}

fn run(arguments: &Arguments) -> Result<(), String> {
    let model = |revision: &str| {
        Repo::with_revision(arguments.repository.clone(), RepoType::Model, revision.to_owned())
    };
    let api = api(arguments).map_err(|e| format!("cannot reach the hub: {e}"))?;
    let repository = api.repo(model(&arguments.revision));
    end_in_silence();
    if !arguments.quiet {
        eprintln!("waiting for the hub: {}", arguments.repository);
    }
    if arguments.files.is_empty() {
        let info = repository.info().map_err(|e| format!("cannot find it on the hub: {e}"))?;
        let files: Vec<_> = info.siblings.into_iter().map(|sibling| sibling.rfilename).collect();
        return say(&json!({ "commit": info.sha, "files": files }));
    }
    for file in &arguments.files {
        NEWS.fetch_add(1, Ordering::Relaxed);
        let bar = if arguments.quiet { ProgressBar::hidden() } else { ProgressBar::new(0) };
        let path = repository
            .download_with_progress(file, Heard(bar))
            .map_err(|e| format!("cannot fetch {file}: {e}"))?;
        say(&json!({ "file": file, "path": path }))?;
    }
    Ok(())
}

fn api(arguments: &Arguments) -> Result<Api, ApiError> {
    let mut builder =
        ApiBuilder::from_env().with_cache_dir(arguments.cache.clone()).with_progress(!arguments.quiet);
    if let Ok(token) = std::env::var("HF_TOKEN") {
        builder = builder.with_token(Some(token));
    }
    builder.build()
}

/// Longest silence of the server, in seconds; a test has less.
const SILENCE_S: u64 = 60;
const SILENCE: &str = "PHOTOFINISH_HUB_SILENCE_S";

/// Counts what came from the server.
static NEWS: AtomicU64 = AtomicU64::new(0);

/// A bar that also counts.
struct Heard(ProgressBar);

impl Progress for Heard {
    fn init(&mut self, size: usize, filename: &str) {
        NEWS.fetch_add(1, Ordering::Relaxed);
        self.0.init(size, filename);
    }

    fn update(&mut self, size: usize) {
        NEWS.fetch_add(1, Ordering::Relaxed);
        Progress::update(&mut self.0, size);
    }

    fn finish(&mut self) {
        Progress::finish(&mut self.0);
    }
}

/// Ends the program once nothing has come for long: a server that accepts and says nothing would be awaited for ever.
fn end_in_silence() {
    let most = std::env::var(SILENCE).ok().and_then(|text| text.parse().ok()).unwrap_or(SILENCE_S);
    // Without a thread for it, the program waits.
    let _ = std::thread::Builder::new().spawn(move || {
        let (mut heard, mut silent) = (0, 0);
        while silent < most {
            std::thread::sleep(Duration::from_secs(1));
            let news = NEWS.load(Ordering::Relaxed);
            silent = if news == heard { silent + 1 } else { 0 };
            heard = news;
        }
        let _ = say(&json!({ "error": format!("the hub has said nothing for {most} s; try again later") }));
        std::process::exit(2);
    });
}

/// Prints one line of JSON.
fn say(line: &Value) -> Result<(), String> {
    writeln!(std::io::stdout(), "{line}").map_err(|e| format!("cannot write to stdout: {e}"))
}

/// A signal that ends `prepare` must end the download, too.
fn end_with_parent() {
    #[cfg(target_os = "linux")]
    let _ = rustix::process::set_parent_process_death_signal(Some(rustix::process::Signal::TERM));
}
