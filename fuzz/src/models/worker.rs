//! A worker that runs a model for two tokens, with a limit on memory and time.

use std::fs::{self, File};
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::ExitStatus;
use std::time::Duration;

use anyhow::{Context, Result};
use bundle::{Bundle, Precision};
use protocol::{Answer, Case, Decode, Event, GenerateWork, Job, KvCache, Settings, Task, Work};
use setup::tooling::process::command;

/// Address space of a worker, in bytes. The frameworks' libraries use most of it.
const MEMORY: u64 = 8 << 30;
/// Longest run of a tiny model: a start of libtorch from a cold disk takes seconds.
const LIMIT: Duration = Duration::from_secs(120);
const STEP: Duration = Duration::from_millis(5);
const NEW_TOKENS: usize = 2;

/// The worker of an engine.
#[derive(Debug, Clone)]
pub struct Worker {
    pub framework: String,
    pub binary: PathBuf,
}

/// How a run ended.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Ended {
    Computed,
    /// The sentence with which the worker refused the model.
    Refused(String),
    /// A crash, a hang or too much memory.
    Finding(String),
}

impl Worker {
    /// The worker of `framework` among the programs in `binaries`, if it was built.
    pub fn find(framework: &str, binaries: &Path) -> Option<Worker> {
        // It is started in another directory.
        let binary = std::path::absolute(binaries.join(format!("engine-{framework}"))).ok()?;
        binary.is_file().then(|| Worker { framework: framework.to_owned(), binary })
    }

    /// Runs the model in `bundle`. Files of the run are in `scratch`.
    ///
    /// # Errors
    ///
    /// The worker cannot be started, or its output cannot be read.
    pub fn run(&self, bundle: &Path, precision: Precision, scratch: &Path) -> Result<Ended> {
        let prompt = prompt(bundle)?;
        let mut input = tempfile::tempfile_in(scratch)?;
        writeln!(input, "{}", serde_json::to_string(&job(bundle, precision, prompt))?)?;
        std::io::Seek::rewind(&mut input)?;
        let (stdout, stderr) = (scratch.join("stdout"), scratch.join("stderr"));
        let mut child = command("prlimit")
            .arg(format!("--as={MEMORY}"))
            .arg("--core=0")
            .arg(&self.binary)
            .current_dir(scratch)
            .stdin(input)
            .stdout(File::create(&stdout)?)
            .stderr(File::create(&stderr)?)
            .spawn()
            .context("cannot start prlimit, which is of util-linux")?;
        let mut left = LIMIT;
        let status = loop {
            if let Some(status) = child.try_wait()? {
                break status;
            }
            if left.is_zero() {
                child.kill()?;
                child.wait()?;
                return Ok(Ended::Finding(format!("it did not end within {} s", LIMIT.as_secs())));
            }
            std::thread::sleep(STEP);
            left = left.saturating_sub(STEP);
        };
        let read = |path: &Path| fs::read(path).map(|bytes| String::from_utf8_lossy(&bytes).into_owned());
        Ok(judged(status, &read(&stdout)?, &read(&stderr)?))
    }
}

/// Two tokens of the vocabulary, or one where the context is that short.
fn prompt(bundle: &Path) -> Result<Vec<u32>> {
    let bundle = Bundle::open(bundle)?;
    let config = bundle.config();
    let length = config.max_positions.saturating_sub(NEW_TOKENS).clamp(1, 2);
    Ok((0..length).map(|at| (at * 7 % config.vocab_size) as u32).collect())
}

fn job(bundle: &Path, precision: Precision, prompt: Vec<u32>) -> Job {
    Job {
        protocol: protocol::VERSION,
        bundle: bundle.display().to_string(),
        model: serde_json::Value::Null,
        settings: Settings::on_cpu(precision, 1),
        spawned_at_ns: None,
        evict: false,
        task: Task::Answer(Answer {
            work: Work::Generate(GenerateWork {
                cases: vec![Case { prompts: vec![prompt], ..Case::default() }],
                new_tokens: NEW_TOKENS,
                decode: Decode::Greedy,
                kv_cache: KvCache::On,
                prefill_chunk: None,
            }),
            parity: None,
        }),
    }
}

fn judged(status: ExitStatus, stdout: &str, stderr: &str) -> Ended {
    let last = stdout.lines().last().unwrap_or_default();
    let words = stderr.lines().rfind(|line| !line.trim().is_empty()).unwrap_or_default();
    match serde_json::from_str::<Event>(last) {
        Ok(Event::Done) if status.success() => Ended::Computed,
        Ok(Event::Failed(failed)) if status.code().is_some() => {
            if failed.reason.is_empty() || failed.reason.lines().count() > 20 {
                return Ended::Finding(format!("its reason is no sentence: {:?}", failed.reason));
            }
            Ended::Refused(failed.reason.to_string())
        }
        _ => Ended::Finding(format!("{status}; its last line was {last:?}, its last words {words:?}")),
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::process::ExitStatusExt;

    use super::*;

    #[test]
    fn only_a_sentence_or_an_answer_is_no_finding() {
        let (fine, refused, killed) =
            (ExitStatus::from_raw(0), ExitStatus::from_raw(1 << 8), ExitStatus::from_raw(11));
        assert_eq!(judged(fine, "{\"event\":\"done\"}\n", ""), Ended::Computed);
        let failed = r#"{"event":"failed","kind":"input","reason":"too long"}"#;
        assert_eq!(judged(refused, failed, ""), Ended::Refused("too long".into()));
        for (status, stdout) in
            [(killed, failed), (killed, "{\"event\":\"done\"}"), (fine, ""), (refused, "x")]
        {
            assert!(matches!(judged(status, stdout, ""), Ended::Finding(_)), "{status} {stdout}");
        }
    }
}
