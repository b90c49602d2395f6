//! A table of where a worker spends its time. The worker runs one job under `perf record`, which is only
//! switched on for the requests, so load, warm-up and hashing are excluded.

mod parts;
mod work;

use std::fs::File;
use std::io::Write;
use std::path::Path;

use facts::run::Ending;
use measure::Scratch;
use measure::clock::now;
use measure::process::{Process, Said};
use measure::worker::Worker;
use measure::worker_errors::{describe, last_line};
use plan::{Failure, Result};
use protocol::{Event, Finish, Job, Turn};
use serde::Serialize;
use tooling::process::{command, output_of};

use parts::{Part, Sample};
pub(crate) use parts::{RULES, Rule, rules};
pub(crate) use work::WorkArgs;

/// Samples a second: not a divisor of the kernel's ticks.
const FREQUENCY: &str = "997";
/// Symbols shown per part, and the least share shown, in percent.
const SYMBOLS: usize = 3;
const LEAST: f64 = 0.5;

/// The profiled worker and its job.
pub(crate) struct Subject<'a> {
    /// Its name in messages.
    pub(crate) label: &'a str,
    pub(crate) worker: &'a Worker,
    /// A job of [`WorkArgs::task`].
    pub(crate) job: &'a Job,
    /// Number of recorded requests.
    pub(crate) requests: usize,
}

/// Fails unless perf is installed; the error says how to install it.
pub(crate) fn require_perf() -> Result<()> {
    if !cfg!(target_os = "linux") {
        return Err(Failure::usage(
            "a profile needs perf, which only Linux has; `photofinish trace` works here",
        ));
    }
    let found = output_of(command("perf").arg("--version"));
    found.map(drop).map_err(|_| {
        Failure::usage(
            "perf is not installed: on Debian and Ubuntu `apt-get install linux-perf` (or linux-tools-generic)",
        )
    })
}

/// Profiles the worker: a table of parts with their shares.
pub(crate) fn profile(subject: &Subject<'_>, rules: &[Rule]) -> Result<String> {
    let scratch = Scratch::new().map_err(|error| failed(&error))?;
    record(subject, scratch.path())?;
    Ok(table(&parts::parts(rules, report(&scratch.path().join("data"))?)))
}

/// perf's samples, by symbol.
fn report(data: &Path) -> Result<Vec<Sample>> {
    let mut report = command("perf");
    report.args(["report", "--stdio", "--no-children", "-g", "none", "--percent-limit", "0"]);
    report.args(["--sort", "dso,symbol", "--field-separator", ";", "--input"]).arg(data);
    let samples = parts::samples(&output_of(&mut report).map_err(|error| failed(&error))?);
    if samples.is_empty() {
        let text = "perf took no sample: the job was too short, or perf may not record here";
        return Err(Failure::failed(text));
    }
    Ok(samples)
}

/// Runs the worker under perf, which records from the end of warm-up to the last answer.
fn record(subject: &Subject<'_>, scratch: &Path) -> Result<()> {
    let Subject { label, worker, job, requests } = subject;
    let control = scratch.join("control");
    output_of(command("mkfifo").arg(&control)).map_err(|error| failed(&error))?;
    let fifo = format!("fifo:{}", control.display());
    let (data, binary) = (scratch.join("data").display().to_string(), worker.binary.display().to_string());
    let arguments =
        ["record", "--quiet", "--no-buildid-cache", "-e", "cpu-clock", "-F", FREQUENCY, "-D", "-1"];
    let arguments = [&arguments[..], &["--control", &fifo, "--output", &data, "--", &binary]].concat();
    let perf = Process::spawn("perf".as_ref(), &arguments, &worker.environment, worker.cpus.as_deref());
    let mut perf = perf.map_err(|error| Failure::failed(format!("cannot start perf: {error}")))?;
    // For reading as well, so that opening does not wait for perf.
    let mut control =
        File::options().read(true).write(true).open(&control).map_err(|error| failed(&error))?;
    let mut switch = |word: &str| control.write_all(word.as_bytes()).map_err(|error| failed(&error));
    let broken = |reason: String, last_words| measure::finished(label, Ending::Broken { reason, last_words });
    let late = || broken(format!("it was not done after {} s (--timeout)", worker.timeout.as_secs()), None);
    let until = now() + worker.timeout;
    let mut answers = 0;
    perf.send(line(job));
    loop {
        let text = match perf.listen(until) {
            Said::Line(text) => text,
            Said::Closed => break,
            Said::Interrupted => return Err(Failure::Interrupted),
            Said::Nothing | Said::TooLong => return late(),
        };
        match serde_json::from_str(&text) {
            Ok(Event::Warmup(_)) => {
                switch("enable\n")?;
                (0..*requests).for_each(|_| perf.send(line(&Turn::request(0))));
            }
            Ok(Event::Sample(_)) => {
                answers += 1;
                if answers == *requests {
                    switch("disable\n")?;
                    perf.send(line(&Turn::Finish(Finish::default())));
                }
            }
            Ok(Event::Failed(reported)) => return measure::finished(label, Ending::Reported(reported)),
            Ok(_) => {}
            Err(_) => return broken("it sent a line that is not a valid event".into(), None),
        }
    }
    if !perf.has_ended(until) {
        return late();
    }
    let ended = perf.reap();
    match ended.status.success() {
        true if answers < *requests => broken("it ended before its job was done".into(), None),
        true => Ok(()),
        false if ended.stderr.contains("perf_event_paranoid") => Err(Failure::failed(
            "perf may not record here: as root, `sysctl kernel.perf_event_paranoid=2` allows it until the next start",
        )),
        false => broken(describe(ended.status), last_line(&ended.stderr)),
    }
}

fn line(value: &impl Serialize) -> String {
    serde_json::to_string(value).expect("protocol types have string keys and no failing serialiser")
}

/// The failure of a tool. The cause may be an interruption by the user.
fn failed(error: &impl ToString) -> Failure {
    match measure::interrupt::requested() {
        true => Failure::Interrupted,
        false => Failure::failed(error.to_string()),
    }
}

fn table(parts: &[Part]) -> String {
    let mut text = "| part | share | most of it in |\n|---|---:|---|\n".to_owned();
    for part in parts.iter().filter(|part| part.share >= LEAST) {
        let shown = |sample: &&Sample| sample.share >= LEAST;
        let symbol = |sample: &Sample| format!("`{}` {:.0} %", parts::short(&sample.symbol), sample.share);
        let symbols: Vec<_> = part.symbols.iter().filter(shown).take(SYMBOLS).map(symbol).collect();
        text += &format!("| {} | {:.1} % | {} |\n", part.name, part.share, symbols.join(", "));
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_table_shows_parts_and_their_largest_symbols() {
        let sample = |share, symbol: &str| Sample { share, object: "o".into(), symbol: symbol.into() };
        let symbols = vec![sample(70.0, "a::b::c"), sample(0.1, "rare")];
        let part = |name: &str, share, symbols| Part { name: name.into(), share, symbols };
        let text = table(&[part("products", 70.1, symbols), part("nothing much", 0.2, Vec::new())]);
        assert!(text.ends_with("| products | 70.1 % | `b::c` 70 % |\n"), "{text}");
    }
}
