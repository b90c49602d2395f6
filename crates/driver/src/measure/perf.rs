//! Where a worker spends its time. The worker runs one job under `perf record`, which is only switched on for the
//! requests, so load, warm-up and hashing are excluded. A table shows the parts; a comparison takes the share of the
//! engine's own arithmetic from them (rule R19).

use std::collections::BTreeMap;
use std::fs::File;
use std::io::Write;
use std::ops::RangeInclusive;
use std::path::Path;
use std::time::Duration;

use clap::ValueEnum;
use comparison::facts::run::Ending;
use comparison::plan::{Failure, Result};
use configs::OwnCode;
use protocol::{Case, Decode, Finish, GenerateWork, Job, KvCache, Measure, Task, Warmup, Work, untrusted};
use serde::Deserialize;
use setup::tooling::process::{command, output_of};

use crate::measure::machine::Confinement;
use crate::measure::process::{Process, now};
use crate::measure::running_worker::RunningWorker;
use crate::measure::worker::Worker;
use crate::measure::{self, Scratch};

/// Samples a second, of a table of parts and of the share of own arithmetic, which is small: no divisors of the kernel's
/// ticks.
const FREQUENCY: &str = "997";
const MANY: &str = "4999";

/// Most iterations of warm-up.
const MOST_WARMUP: usize = 2;

/// Symbols shown per part, and the least share shown, in percent.
const SYMBOLS: usize = 3;

const LEAST: f64 = 0.5;

/// Fails unless perf is installed; the error says how to install it.
pub(crate) fn require_perf() -> Result<()> {
    if !cfg!(target_os = "linux") {
        return Err(Failure::usage(
            "a profile needs perf, which only Linux has; `photofinish profile --trace` works here",
        ));
    }
    let found = output_of(command("perf").arg("--version"));
    found.map(drop).map_err(|_| {
        Failure::usage(
            "perf is not installed: on Debian and Ubuntu `apt-get install linux-perf` (or linux-tools-generic)",
        )
    })
}

/// Profiles so many requests of a worker with a job of [`task`]: a table of parts with their shares. Messages name
/// it by its label.
pub(crate) fn profile(
    label: &str,
    worker: &Worker,
    job: &Job,
    requests: usize,
    rules: &[Rule],
) -> Result<String> {
    let samples = sampled(label, worker, (job, 0), requests..=requests, FREQUENCY)?;
    Ok(table(&parts(rules, samples)))
}

/// Time of one phase that is sampled, if fewer requests than [`MOST_REQUESTS`] fill it.
const SAMPLED: Duration = Duration::from_secs(1);

const MOST_REQUESTS: usize = 1000;

/// How much of the worker's CPU time is arithmetic of the engine, by the parts that the rules call so. `job`: the job of a
/// phase, the case whose requests are that phase, and its name.
pub(crate) fn own_code(
    label: &str,
    worker: &Worker,
    job: impl Fn(Phase) -> (Job, usize, &'static str),
    rules: &[Rule],
) -> Result<OwnCode> {
    let mut own = OwnCode::default();
    let mut all: Vec<(String, f64)> = Vec::new();
    for phase in [Phase::Decode, Phase::Prefill] {
        let (job, case, named) = job(phase);
        let samples = busy(rules, sampled(label, worker, (&job, case), 1..=MOST_REQUESTS, MANY)?);
        let parts = own_parts(rules, &samples);
        let share = parts.iter().fold(0.0, |sum, (_, share)| sum + share);
        match phase {
            Phase::Decode => own.decode = share,
            Phase::Prefill => own.prefill = share,
        }
        if let Some(most) = samples.iter().max_by(|a, b| a.share.total_cmp(&b.share)) {
            let (name, object) = (short(&most.symbol), &most.object);
            own.kernels.push(format!("{named}: {name} of {object}, {:.0} %", most.share));
        }
        all.extend(parts);
    }
    all.sort_by(|a, b| b.1.total_cmp(&a.1));
    for (name, _) in all.into_iter().filter(|(_, share)| *share >= LEAST / 100.0) {
        if !own.parts.contains(&name) {
            own.parts.push(name);
        }
    }
    Ok(own)
}

/// The samples in which something was computed, as percent of these alone.
fn busy(rules: &[Rule], mut samples: Vec<Sample>) -> Vec<Sample> {
    samples.retain(|sample| part(rules, sample).is_none_or(|rule| !rule.idle));
    let all: f64 = samples.iter().map(|sample| sample.share).sum();
    samples.iter_mut().for_each(|sample| sample.share *= 100.0 / all);
    samples
}

/// The parts that are arithmetic of the engine, with their share of these samples, 0 to 1.
fn own_parts(rules: &[Rule], samples: &[Sample]) -> Vec<(String, f64)> {
    let mut parts = parts(rules, samples.to_vec());
    parts.retain(|part| rules.iter().any(|rule| rule.own && rule.part == part.name));
    parts.into_iter().map(|part| (part.name, part.share / 100.0)).collect()
}

/// Whether some rule says which part of this framework's engine is arithmetic of its own.
pub(crate) fn knows_own_code(rules: &[Rule]) -> bool {
    rules.iter().any(|rule| rule.own)
}

/// perf's samples of a job and a case: of the fewest requests at least, and of more up to the most, until [`SAMPLED`].
fn sampled(
    label: &str,
    worker: &Worker,
    job: (&Job, usize),
    requests: RangeInclusive<usize>,
    frequency: &str,
) -> Result<Vec<Sample>> {
    let scratch = Scratch::new().map_err(|error| failed(&error))?;
    measure::finished(label, record(worker, job, (requests, frequency), scratch.path())?)?;
    report(&scratch.path().join("data"))
}

/// perf's samples, by symbol.
fn report(data: &Path) -> Result<Vec<Sample>> {
    let mut report = command("perf");
    report.args(["report", "--stdio", "--no-children", "-g", "none", "--percent-limit", "0"]);
    report.args(["--sort", "dso,symbol", "--field-separator", ";", "--input"]).arg(data);
    let samples = self::samples(&output_of(&mut report).map_err(|error| failed(&error))?);
    if samples.is_empty() {
        let text = "perf took no sample: the job was too short, or perf may not record here";
        return Err(Failure::failed(text));
    }
    Ok(samples)
}

/// Runs the worker under perf, which records from the end of warm-up to the last answer.
fn record(
    worker: &Worker,
    (job, case): (&Job, usize),
    (requests, frequency): (RangeInclusive<usize>, &str),
    scratch: &Path,
) -> Result<Ending> {
    let control = scratch.join("control");
    output_of(command("mkfifo").arg(&control)).map_err(|error| failed(&error))?;
    let fifo = format!("fifo:{}", control.display());
    let (data, binary) = (scratch.join("data").display().to_string(), worker.binary.display().to_string());
    let arguments =
        ["record", "--quiet", "--no-buildid-cache", "-e", "cpu-clock", "-F", frequency, "-D", "-1"];
    let arguments = [&arguments[..], &["--control", &fifo, "--output", &data, "--", &binary]].concat();
    let perf = Process::spawn("perf".as_ref(), &arguments, &worker.environment, worker.cpus.as_deref());
    let perf = perf.map_err(|error| Failure::failed(format!("cannot start perf: {error}")))?;
    // For reading as well, so that opening does not wait for perf.
    let mut control =
        File::options().read(true).write(true).open(&control).map_err(|error| failed(&error))?;
    let mut switch = |word: &str| control.write_all(word.as_bytes()).map_err(|error| failed(&error));
    let mut running = RunningWorker::start(Ok(perf), worker, job, None, Confinement::default(), None);
    if running.warm_up(MOST_WARMUP) {
        switch("enable\n")?;
        let begun = now();
        let is_due =
            |done: usize| done < *requests.start() || (done < *requests.end() && begun.elapsed() < SAMPLED);
        let mut done = 0;
        while is_due(done) && running.request(case, None).is_some() {
            done += 1;
        }
        if !is_due(done) {
            switch("disable\n")?;
            running.ask_to_finish(Finish::default());
        }
    }
    match running.end().ending {
        Ending::Broken { last_words: Some(words), .. } if words.contains("perf_event_paranoid") => {
            Err(Failure::failed(
                "perf may not record here: as root, `sysctl kernel.perf_event_paranoid=2` allows it until the next start",
            ))
        }
        ending => Ok(ending),
    }
}

/// The failure of a tool. The cause may be an interruption by the user.
fn failed(error: &impl ToString) -> Failure {
    match measure::progress::requested() {
        true => Failure::Interrupted,
        false => Failure::failed(error.to_string()),
    }
}

fn table(parts: &[Part]) -> String {
    let mut text = "| part | share | most of it in |\n|---|---:|---|\n".to_owned();
    for part in parts.iter().filter(|part| part.share >= LEAST) {
        let shown = |sample: &&Sample| sample.share >= LEAST;
        let symbol = |sample: &Sample| format!("`{}` {:.0} %", short(&sample.symbol), sample.share);
        let symbols: Vec<_> = part.symbols.iter().filter(shown).take(SYMBOLS).map(symbol).collect();
        text += &format!("| {} | {:.1} % | {} |\n", part.name, part.share, symbols.join(", "));
    }
    text
}

// Assigns perf's samples to parts, by the rules in `configs/profile.toml`.

pub(crate) const RULES: &str = "profile.toml";

/// Which symbols belong to which part.
#[derive(Debug, Clone, Deserialize)]
pub(crate) struct Rule {
    part: String,
    #[serde(default)]
    object: String,
    #[serde(default)]
    symbols: Vec<String>,
    /// Whether it is arithmetic of the engine, not of its framework (rule R19).
    #[serde(default)]
    own: bool,
    /// Whether it computes nothing: how long a thread spins depends on how busy the machine is.
    #[serde(default)]
    idle: bool,
}

impl Rule {
    fn takes(&self, sample: &Sample) -> bool {
        sample.object.contains(&self.object)
            && (self.symbols.is_empty() || self.symbols.iter().any(|name| sample.symbol.contains(name)))
    }
}

/// The rules for one framework, in the order in which they are tried.
pub(crate) fn rules(file: &Path, framework: &str) -> Result<Vec<Rule>> {
    let cannot = |why: String| Failure::usage(format!("cannot read {}: {why}", file.display()));
    let text = untrusted::file::read_text(file, untrusted::file::CONFIG)
        .map_err(|error| cannot(error.to_string()))?;
    let mut all: BTreeMap<String, Vec<Rule>> =
        toml::from_str(&text).map_err(|error| cannot(error.to_string()))?;
    let mut rules = all.remove(framework).unwrap_or_default();
    rules.extend(all.remove("all").unwrap_or_default());
    Ok(rules)
}

/// perf's line for one symbol.
#[derive(Debug, Clone, PartialEq)]
struct Sample {
    /// Percent of all samples.
    share: f64,
    object: String,
    symbol: String,
}

/// Reads the output of `perf report`, one line per symbol: `12.34;object;[.] name`.
fn samples(report: &str) -> Vec<Sample> {
    let sample = |line: &str| {
        let mut fields = line.trim().splitn(3, ';');
        let share = fields.next()?.trim().trim_end_matches('%').parse().ok()?;
        let (object, symbol) = (fields.next()?.trim(), fields.next()?);
        // An empty column for call graphs, which are not recorded, may follow.
        let symbol = symbol.split(';').next()?.trim();
        // `[.]` is user code, `[k]` the kernel.
        let symbol = symbol.split_once("] ").map_or(symbol, |(_, name)| name);
        Some(Sample { share, object: object.to_owned(), symbol: symbol.trim().to_owned() })
    };
    report.lines().filter(|line| !line.starts_with('#')).filter_map(sample).collect()
}

/// One part's share and its symbols, the largest first.
#[derive(Debug, PartialEq)]
struct Part {
    name: String,
    share: f64,
    symbols: Vec<Sample>,
}

/// The first rule that takes a sample.
fn part<'a>(rules: &'a [Rule], sample: &Sample) -> Option<&'a Rule> {
    rules.iter().find(|rule| rule.takes(sample))
}

fn parts(rules: &[Rule], samples: Vec<Sample>) -> Vec<Part> {
    let mut parts: BTreeMap<String, Vec<Sample>> = BTreeMap::new();
    for sample in samples {
        let name = part(rules, &sample).map_or("other", |rule| &rule.part).to_owned();
        parts.entry(name).or_default().push(sample);
    }
    let mut parts: Vec<Part> = parts
        .into_iter()
        .map(|(name, mut symbols)| {
            symbols.sort_by(|a, b| b.share.total_cmp(&a.share));
            Part { name, share: symbols.iter().map(|sample| sample.share).sum(), symbols }
        })
        .collect();
    parts.sort_by(|a, b| b.share.total_cmp(&a.share));
    parts
}

/// A symbol's name for a table: the end of its path, without type arguments, which can fill pages.
fn short(symbol: &str) -> String {
    const LONGEST: usize = 48;
    let mut plain = String::new();
    let mut depth = 0_usize;
    for c in symbol.chars() {
        match c {
            '<' | '(' => depth += 1,
            '>' | ')' => depth = depth.saturating_sub(1),
            _ if depth == 0 => plain.push(c),
            _ => {}
        }
    }
    let plain = plain.replace(['|', '`'], "");
    // A method of `<T as Trait>` has lost everything except its own name.
    let plain = if plain.trim_matches(':').len() < 8 { symbol.replace(['|', '`'], "") } else { plain };
    let tail: Vec<&str> = plain.trim_start_matches(':').rsplitn(3, "::").take(2).collect();
    let tail = tail.into_iter().rev().collect::<Vec<_>>().join("::");
    tail.trim().chars().take(LONGEST).collect()
}

// The profiled work: continuing a prompt.

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum Phase {
    Decode,
    Prefill,
}

#[derive(Debug, Clone, clap::Args)]
pub(crate) struct WorkArgs {
    /// Part of a request that most of the work is in
    #[arg(long, value_enum, default_value = "decode")]
    pub(crate) phase: Phase,
    /// Tokens of the prompt, or with --trace of each text [default: 16 for decode, 512 for prefill]
    #[arg(short, long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    prompt_tokens: Option<u32>,
    /// Tokens that are added [default: 128 for decode, 1 for prefill, 8 with --trace]
    #[arg(short, long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    new_tokens: Option<u32>,
}

impl Phase {
    pub(crate) fn name(self) -> &'static str {
        match self {
            Phase::Decode => "decode",
            Phase::Prefill => "prefill",
        }
    }

    /// Recorded requests.
    pub(crate) fn requests(self) -> usize {
        match self {
            Phase::Decode => 3,
            Phase::Prefill => 8,
        }
    }
}

impl WorkArgs {
    /// Numbers of prompt tokens and of new tokens.
    pub(crate) fn lengths(&self) -> (usize, usize) {
        let (prompt, new) = match self.phase {
            Phase::Decode => (16, 128),
            Phase::Prefill => (512, 1),
        };
        (self.prompt_tokens.unwrap_or(prompt) as usize, self.new_tokens.unwrap_or(new) as usize)
    }

    /// Numbers of prompt tokens and of new tokens of a timeline, which is short.
    pub(crate) fn of_trace(&self) -> (u32, u32) {
        (self.prompt_tokens.unwrap_or(16), self.new_tokens.unwrap_or(8))
    }

    pub(crate) fn says_new_tokens(&self) -> bool {
        self.new_tokens.is_some()
    }
}

/// A measuring job of requests with so many tokens of the prompt and new ones. The choice of tokens does not affect the work.
pub(crate) fn task(vocab_size: usize, (prompt, new_tokens): (usize, usize)) -> Task {
    let tokens = |count: usize| (0..count).map(|i| ((100 + i % 100) % vocab_size) as u32).collect();
    let case = Case { prompts: vec![tokens(prompt)], trace: vec![tokens(new_tokens)], ..Case::default() };
    measured(Work::Generate(GenerateWork {
        cases: vec![case],
        new_tokens,
        decode: Decode::Forced,
        kv_cache: KvCache::On,
        prefill_chunk: None,
    }))
}

pub(crate) fn measured(work: Work) -> Task {
    Task::Measure(Measure {
        work,
        warmup: Warmup {
            min_iterations: 1,
            max_iterations: MOST_WARMUP,
            max_ns: 30_000_000_000,
            settled_within: 0.05,
            from_cold: false,
        },
        lead_in: 0,
        load: None,
    })
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

    fn rule(part: &str, object: &str, symbols: &[&str]) -> Rule {
        let symbols = symbols.iter().map(|name| (*name).to_owned()).collect();
        Rule { part: part.into(), object: object.into(), symbols, own: false, idle: false }
    }

    #[test]
    fn the_first_rule_that_matches_takes_a_sample_and_the_rest_is_other() {
        let report = "# header\n 60.50;libx.so;[.] gemm_kernel<float>  ;-  -\n  9.50;libx.so;[.] wait\n\n 30.00;worker;[.] a::b\n";
        let rules = [rule("products", "", &["gemm"]), rule("library", "libx", &[])];
        let found = parts(&rules, samples(report));
        let shares: Vec<_> = found.iter().map(|part| (part.name.as_str(), part.share)).collect();
        assert_eq!(shares, [("products", 60.5), ("other", 30.0), ("library", 9.5)]);
    }

    #[test]
    fn own_arithmetic_is_a_share_of_the_time_that_is_not_idle() {
        let mut rules = [rule("waiting", "", &["spin"]), rule("own norms", "", &["engine::norm"])];
        (rules[0].idle, rules[1].own) = (true, true);
        let report = "50.00;w;[.] spin\n40.00;w;[.] framework::gemm\n10.00;w;[.] engine::norm::rms\n";
        let samples = busy(&rules, samples(report));
        assert_eq!(samples.iter().map(|sample| sample.share).collect::<Vec<_>>(), [80.0, 20.0]);
        assert_eq!(own_parts(&rules, &samples), [("own norms".to_owned(), 0.2)]);
        assert_eq!(own_parts(&rules, &samples[..1]), []);
    }

    #[test]
    fn every_framework_with_an_engine_has_rules() {
        let file = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../configs").join(RULES);
        let of_all = rules(&file, "no such framework").unwrap().len();
        for framework in ["candle", "tch", "ort"] {
            let found = rules(&file, framework).unwrap();
            assert!(found.len() > of_all && knows_own_code(&found), "{framework}");
        }
    }

    #[test]
    fn the_shares_that_engines_record_are_those_of_the_published_run() {
        let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
        let report = std::fs::read_to_string(root.join("results/published/report.json")).unwrap();
        let report: serde_json::Value = serde_json::from_str(&report).unwrap();
        let configs = configs::Layers::single(root.join("configs"));
        for row in report["rows"].as_array().unwrap() {
            let name = row["framework"].as_str().unwrap();
            let recorded = configs::engine(&configs, name).unwrap().own_code.expect(name);
            for (share, phase) in [(recorded.decode, "decode"), (recorded.prefill, "prefill")] {
                let measured = row["own_code"][phase].as_f64().unwrap();
                assert!(
                    (share - measured).abs() < 1e-4,
                    "{name}, {phase}: {share}, and {measured} in the run"
                );
            }
        }
    }

    #[test]
    fn a_symbol_is_shortened_to_the_end_of_its_path() {
        assert_eq!(short("candle_core::quantized::k_quants::matmul<f32>"), "k_quants::matmul");
        assert_eq!(short("void at::native::(anonymous namespace)::kernel<8, 1>(float*)"), "::kernel");
        assert!(!short("a|b").contains('|'), "a cell of a table stays one");
    }

    #[test]
    fn a_job_is_mostly_of_the_phase_asked_for() {
        let lengths = |phase| WorkArgs { phase, prompt_tokens: None, new_tokens: None }.lengths();
        let tokens = |phase| match task(1000, lengths(phase)) {
            Task::Measure(Measure { work: Work::Generate(work), .. }) => {
                (work.cases[0].prompts[0].len(), work.cases[0].trace[0].len())
            }
            other => panic!("{other:?}"),
        };
        assert_eq!((tokens(Phase::Decode), tokens(Phase::Prefill)), ((16, 128), (512, 1)));
    }
}
