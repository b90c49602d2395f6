//! Decision rules of the field on the same recordings and at the same machine time: how often each calls one build under
//! two names different, and how often it finds a difference. Their rules are in Python, in `crates/evidence/rules`, each
//! from its own source; ours is the product's.
//!
//! The state of a machine lasts for rounds, and rounds drawn at random do not show that. So comparisons are stretches of
//! rounds that followed each other, and an interval counts those that do not overlap.

use std::io::{BufRead, BufReader, Read, Write};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::{fs, thread};

use anyhow::{Context, Result, ensure};
use flate2::Compression;
use flate2::read::GzDecoder;
use flate2::write::GzEncoder;
use serde::{Deserialize, Serialize};
use statistics::{Looks, Moments, Outcome, Series, Settings, decide, detectable_shift, median};

use crate::calibrate::page::{METRICS, THROUGHPUT, error_share, percent, score_interval, wrapped};
use crate::calibrate::recorded::{Estimator, Process, Recording};

/// Recordings of one build under two names, and the weather that they were made in.
pub const RECORDED: &str = "crates/evidence/rules/recorded.jsonl.gz";

/// The rules of others.
const RULES: &str = "crates/evidence/rules/rules.py";

/// Their packages, with the hashes of their files.
const REQUIREMENTS: &str = "crates/evidence/rules/requirements.txt";

/// Rounds of a comparison. Every round has a process of each name.
const ROUNDS: usize = 10;

/// Rounds from the start of one comparison to that of the next.
const STEP: usize = 3;

/// How many times as long a token of the second arm takes.
const SLOWER: [f64; 3] = [1.0, 1.03, 1.05];

/// A run.
#[derive(Debug, Serialize, Deserialize)]
pub struct Weathered {
    pub weather: String,
    /// The processor, and the month in which it was measured.
    pub machine: String,
    /// Of a round, with start, warm-up and pauses.
    pub seconds: f64,
    pub recording: Recording,
}

#[derive(Debug, Deserialize)]
struct Rule {
    name: String,
    source: String,
    text: String,
}

/// Whose turn it is when.
#[derive(Debug, Clone, Copy, PartialEq)]
enum Schedule {
    /// All processes of one arm, then all of the other.
    OneAfterAnother,
    InTurns,
}

/// The two arms of a comparison: by process, the microseconds a token of each request.
#[derive(Serialize)]
struct Arms {
    a: Vec<Vec<f64>>,
    b: Vec<Vec<f64>>,
}

/// A stretch of rounds, played with one schedule and one difference.
struct Comparison<'a> {
    run: &'a Weathered,
    from: usize,
    schedule: Schedule,
    slower: f64,
}

impl Comparison<'_> {
    fn rounds(&self) -> &[Vec<Process>] {
        &self.run.recording.rounds[self.from..self.from + ROUNDS]
    }

    fn arms(&self) -> Arms {
        let costs = |process: &Process, factor: f64| -> Vec<f64> {
            process.requests.iter().map(|request| factor * (-request.speed()).exp()).collect()
        };
        let all = self.rounds();
        let (mut a, mut b) = (Vec::new(), Vec::new());
        for (number, round) in all.iter().enumerate() {
            for (place, process) in round.iter().enumerate() {
                let is_second = match self.schedule {
                    Schedule::OneAfterAnother => 2 * number >= all.len(),
                    Schedule::InTurns => place == 1,
                };
                match is_second {
                    true => b.push(costs(process, self.slower)),
                    false => a.push(costs(process, 1.0)),
                }
            }
        }
        Arms { a, b }
    }

    /// The product's verdict on throughput, of all its hypotheses, at the last look: 1 if the second arm is slower.
    fn ours(&self, seed: u64) -> i8 {
        let mut figures = vec![vec![Vec::new(); 2]; METRICS.len()];
        for round in self.rounds() {
            let mut found = Estimator::USED.figures(round);
            let [_, _, throughput, first, total] = &mut found[1];
            *throughput /= self.slower;
            *first *= self.slower;
            *total *= self.slower;
            for (contender, process) in found.into_iter().enumerate() {
                for (figures, figure) in figures.iter_mut().zip(process) {
                    figures[contender].push(Some(figure));
                }
            }
        }
        let series =
            |metric: usize| Series::new(&figures[metric][0], &figures[metric][1], error_share(metric));
        let family: Vec<Series<'_>> = (0..METRICS.len()).map(series).collect();
        let settings = Settings { seed, ..Settings::default() };
        let decisions = decide(&family, &Looks::fixed(ROUNDS), true, &settings);
        match &decisions[THROUGHPUT] {
            Some(decision) if decision.outcome == Outcome::Different && decision.ratio > 1.0 => 1,
            Some(decision) if decision.outcome == Outcome::Different => -1,
            _ => 0,
        }
    }
}

/// Adds the runs of these results directories to the recordings.
pub fn record(weather: &str, directories: &[PathBuf]) -> Result<()> {
    let mut runs = match Path::new(RECORDED).is_file() {
        true => read(Path::new(RECORDED))?,
        false => Vec::new(),
    };
    for directory in directories {
        let text = |name: &str| {
            let path = directory.join(name);
            fs::read_to_string(&path).with_context(|| format!("cannot read {}", path.display()))
        };
        let (journal, environment) = (text("samples.jsonl")?, text("environment.json")?);
        let recording = Recording::of_journal(&journal)?;
        ensure!(recording.is_of_one(), "{} compares different contenders", directory.display());
        ensure!(recording.rounds.len() >= ROUNDS, "{} has fewer than {ROUNDS} rounds", directory.display());
        let environment: serde_json::Value = serde_json::from_str(&environment)?;
        let of = |name: &str| environment[name].as_str().unwrap_or_default().to_owned();
        let machine = format!("{}, {}", of("cpu"), of("started").get(..7).unwrap_or("?"));
        let seconds = seconds(&journal).context("its journal does not say what took the time")?;
        runs.push(Weathered {
            weather: weather.to_owned(),
            machine,
            seconds: seconds / recording.rounds.len() as f64,
            recording,
        });
        println!("{}: {} rounds", directory.display(), runs[runs.len() - 1].recording.rounds.len());
    }
    let mut file = GzEncoder::new(Vec::new(), Compression::best());
    for run in &runs {
        writeln!(file, "{}", serde_json::to_string(run)?)?;
    }
    fs::write(RECORDED, file.finish()?).with_context(|| format!("cannot write {RECORDED}"))
}

/// What its rounds took, without what comes before the first and after the last.
fn seconds(journal: &str) -> Option<f64> {
    let facts = journal.lines().filter_map(|line| serde_json::from_str::<serde_json::Value>(line).ok());
    let stages = facts.filter(|fact| fact["fact"] == "time").last()?["stages"].take();
    ["starts", "requests", "turns", "probes"].iter().map(|stage| stages[stage].as_f64()).sum()
}

fn read(path: &Path) -> Result<Vec<Weathered>> {
    let cannot = || format!("cannot read {}", path.display());
    let bytes = fs::read(path).with_context(cannot)?;
    let mut text = String::new();
    GzDecoder::new(&bytes[..])
        .read_to_string(&mut text)
        .with_context(|| format!("cannot read {RECORDED}"))?;
    text.lines().map(|line| serde_json::from_str(line).context("not a recording")).collect()
}

/// Decisions of each rule on each comparison, `[comparison][rule]`, ours last. `python` has the packages of
/// `crates/evidence/rules/requirements.txt`.
fn decided(python: &Path, comparisons: &[Comparison<'_>], seed: u64) -> Result<(Vec<Rule>, Vec<Vec<i8>>)> {
    let mut program = Command::new(python);
    let cannot = || format!("cannot run {} {RULES}", python.display());
    let mut program =
        program.arg(RULES).stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().with_context(cannot)?;
    let (input, output) = (program.stdin.take(), program.stdout.take());
    let (mut input, output) = (input.context("no stdin")?, output.context("no stdout")?);
    let (lines, ours) = thread::scope(|scope| {
        let sent = scope.spawn(move || {
            for comparison in comparisons {
                writeln!(input, "{}", serde_json::to_string(&comparison.arms())?)?;
            }
            anyhow::Ok(())
        });
        let ours = scope.spawn(move || comparisons.iter().map(|one| one.ours(seed)).collect::<Vec<i8>>());
        let lines = BufReader::new(output).lines().collect::<std::io::Result<Vec<String>>>();
        // A program that ends early closes its stdin: its exit code says so.
        let _ = sent.join();
        (lines, ours.join())
    });
    ensure!(program.wait()?.success(), "{RULES} failed; its words are above");
    let lines = lines?;
    let (first, decisions) = lines.split_first().context("the rules said nothing")?;
    let rules: Vec<Rule> = serde_json::from_str(first)?;
    let mut found = Vec::new();
    for (line, own) in decisions.iter().zip(ours.unwrap_or_default()) {
        let mut of_rules: Vec<i8> = serde_json::from_str(line)?;
        ensure!(of_rules.len() == rules.len(), "{} rules made {} decisions", rules.len(), of_rules.len());
        of_rules.push(own);
        found.push(of_rules);
    }
    ensure!(found.len() == comparisons.len(), "{} of {} were decided", found.len(), comparisons.len());
    Ok((rules, found))
}

/// How often a rule decides that the arms differ, with a 95 % score interval of as many comparisons as do not overlap.
#[derive(Default)]
struct Rate {
    hits: usize,
    of: usize,
    apart: f64,
}

impl std::fmt::Display for Rate {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let value = self.hits as f64 / self.of.max(1) as f64;
        let (low, high) = score_interval(value, self.apart);
        write!(f, "{} ({:.0}–{:.0})", percent(value, 0), 100.0 * low, 100.0 * high)
    }
}

/// How often the product finds the difference that the runs before it, at most five of the same weather, promise to be
/// found in four of five comparisons (`comparison::judge::power`, whose formula this is). By weather.
fn promised(runs: &[Weathered], weathers: &[&str], seed: u64) -> Vec<(Rate, f64)> {
    let level = 0.05 * error_share(THROUGHPUT) / (0..METRICS.len()).map(error_share).sum::<f64>();
    let ratio = |round: &Vec<Process>| {
        let figures = Estimator::USED.figures(round);
        (figures[0][THROUGHPUT] / figures[1][THROUGHPUT]).ln()
    };
    let mut found = Vec::new();
    for weather in weathers {
        let of: Vec<&Weathered> = runs.iter().filter(|run| run.weather == *weather).collect();
        let (mut rate, mut sum) = (Rate::default(), 0.0);
        for (number, run) in of.iter().enumerate().skip(1) {
            let earlier = &of[number.saturating_sub(5)..number];
            let stretches = earlier.iter().flat_map(|run| run.recording.rounds.chunks_exact(ROUNDS));
            let of_stretch =
                |rounds: &[Vec<Process>]| Moments::new(&rounds.iter().map(ratio).collect::<Vec<f64>>());
            let deviations: Vec<f64> =
                stretches.filter_map(of_stretch).filter_map(|found| found.standard_deviation).collect();
            let Some(deviation) = median(&deviations) else { continue };
            let slower = (detectable_shift(ROUNDS, (ROUNDS - 1) as f64, level, 0.8) * deviation).exp();
            let rounds = run.recording.rounds.len();
            for from in (0..=rounds - ROUNDS).step_by(STEP) {
                let one = Comparison { run, from, schedule: Schedule::InTurns, slower };
                rate.hits += usize::from(one.ours(seed) > 0);
                rate.of += 1;
                rate.apart += (rounds / ROUNDS) as f64 / ((rounds - ROUNDS) / STEP + 1) as f64;
                sum += slower - 1.0;
            }
        }
        let mean = sum / rate.of.max(1) as f64;
        found.push((rate, mean));
    }
    found
}

/// The page.
pub fn page(python: &Path, seed: u64) -> Result<String> {
    let runs = read(Path::new(RECORDED))?;
    let mut weathers: Vec<&str> = runs.iter().map(|run| run.weather.as_str()).collect();
    weathers.dedup();
    let mut comparisons = Vec::new();
    for schedule in [Schedule::OneAfterAnother, Schedule::InTurns] {
        for slower in SLOWER {
            for run in &runs {
                let starts = (0..=run.recording.rounds.len() - ROUNDS).step_by(STEP);
                comparisons.extend(starts.map(|from| Comparison { run, from, schedule, slower }));
            }
        }
    }
    let (rules, decisions) = decided(python, &comparisons, seed)?;
    let rate = |rule: usize, schedule: Schedule, slower: f64, weather: Option<&str>| {
        let mut rate = Rate::default();
        for (comparison, decisions) in comparisons.iter().zip(&decisions) {
            let is_of = weather.is_none_or(|weather| weather == comparison.run.weather);
            if comparison.schedule != schedule || comparison.slower != slower || !is_of {
                continue;
            }
            let rounds = comparison.run.recording.rounds.len();
            let is_hit = if slower == 1.0 { decisions[rule] != 0 } else { decisions[rule] > 0 };
            rate.hits += usize::from(is_hit);
            rate.of += 1;
            rate.apart += (rounds / ROUNDS) as f64 / ((rounds - ROUNDS) / STEP + 1) as f64;
        }
        rate.to_string()
    };
    let table = |schedule: Schedule| {
        let of_weather: Vec<String> = weathers.iter().map(|weather| format!("false, {weather}")).collect();
        let header = format!("rule | {} | false, all | 3 % found | 5 % found", of_weather.join(" | "));
        let mut lines = format!("| {header} |\n|{}\n", "---|".repeat(4 + weathers.len()));
        let names = rules.iter().map(|rule| rule.name.as_str()).chain(["Photofinish"]);
        for (rule, name) in names.enumerate() {
            // Its figures are of rounds, which one arm after the other does not have.
            if schedule == Schedule::OneAfterAnother && rule == rules.len() {
                continue;
            }
            let mut cells = vec![name.to_owned()];
            cells.extend(weathers.iter().map(|weather| rate(rule, schedule, 1.0, Some(weather))));
            cells.push(rate(rule, schedule, 1.0, None));
            cells.extend(SLOWER[1..].iter().map(|&slower| rate(rule, schedule, slower, None)));
            lines += &format!("| {} |\n", cells.join(" | "));
        }
        lines
    };
    let of_rule = |rule: &Rule| format!("| {} | {} | {} |\n", rule.name, rule.text, rule.source);
    let mut recorded =
        String::from("| beside | machine | runs | rounds | minutes of ten rounds |\n|---|---|---|---|---|\n");
    for weather in &weathers {
        let of: Vec<&Weathered> = runs.iter().filter(|run| run.weather == *weather).collect();
        let rounds: usize = of.iter().map(|run| run.recording.rounds.len()).sum();
        let seconds = of.iter().map(|run| run.seconds).sum::<f64>() / of.len() as f64;
        let minutes = seconds * ROUNDS as f64 / 60.0;
        recorded += &format!("| {weather} | {} | {} | {rounds} | {minutes:.1} |\n", of[0].machine, of.len());
    }
    let mut kept = String::from("| beside | difference promised | found |\n|---|---|---|\n");
    for (weather, (rate, difference)) in weathers.iter().zip(promised(&runs, &weathers, seed)) {
        kept += &format!("| {weather} | {} | {rate} |\n", percent(difference, 1));
    }
    let text = format!(
        "# Ten decision rules on the same recordings\n\n\
         How often does a rule say that two builds differ which are one? This page is written by\n\n\
         ```\ncargo xtask calibrate --rules --seed {seed}\n```\n\n\
         One build ran under two names, process by process in turns. Each rule gets the same {ROUNDS} rounds, so the same \
         machine time, and the microseconds a token of every request. *False*: it says that the arms differ. *Found*: every \
         time of the second arm is multiplied by 1.03 or 1.05, and it says that the second is slower. Comparisons are \
         stretches of rounds that followed each other, because the state of a machine lasts for rounds. Brackets are 95 % score intervals \
         (Wilson 1927) that count only stretches that do not overlap.\n\n\
         ## As the tools run: one arm after the other\n\n\
         The first arm is both processes of the first {half} rounds, the second those of the others.\n\n{}\n\
         ## The same rules in turns\n\n\
         Every round has a process of each arm. Photofinish decides on throughput, with half of an error rate of 5 % that \
         all questions of its table share; it compares slices within rounds.\n\n{}\n\
         ## What was promised before\n\n\
         Before a comparison Photofinish says which difference it finds in four of five, by the noise of the last runs of the \
         case. Here each run has the one that the runs before it promise, in the mean as in the table.\n\n{kept}\n\
         ## The rules\n\n\
         | rule | says that the arms differ if | source |\n|---|---|---|\n{}\
         | Photofinish | `crates/statistics`, at the last look | [methodology](../explanation/methodology.md) |\n\n\
         Another rule is a function of two lists of processes in `crates/evidence/rules/rules.py`.\n\n\
         ## The recordings\n\n{recorded}\n\
         Each run is `photofinish compare --frameworks candle,candle --model synthetic:llama-15m --rounds 60 --new-tokens 16 \
         --cold-load off --accept-noise`, on a busy machine also `--threads 1 --warmup 2`. `cargo xtask calibrate --rules \
         --weather NAME --record DIR…` adds yours.\n",
        table(Schedule::OneAfterAnother),
        table(Schedule::InTurns),
        rules.iter().map(of_rule).collect::<String>(),
        half = ROUNDS / 2,
    );
    Ok(text.lines().map(|line| wrapped(line) + "\n").collect())
}

/// The interpreter that runs the rules, in `target`: their packages are installed once.
pub fn environment() -> Result<PathBuf> {
    let place = Path::new("target/rules");
    let python = place.join("bin/python");
    let done = place.join("installed.txt");
    let wanted = fs::read_to_string(REQUIREMENTS).with_context(|| format!("cannot read {REQUIREMENTS}"))?;
    if fs::read_to_string(&done).is_ok_and(|there| there == wanted) {
        return Ok(python);
    }
    let place = place.display().to_string();
    let install = ["-m", "pip", "install", "--quiet", "--require-hashes", "-r", REQUIREMENTS];
    for (program, arguments) in
        [(Path::new("python3"), &["-m", "venv", "--clear", &place][..]), (&python, &install[..])]
    {
        let status = Command::new(program).args(arguments).status();
        let status = status.with_context(|| format!("cannot start {}", program.display()))?;
        ensure!(status.success(), "`{} {}` failed", program.display(), arguments.join(" "));
    }
    fs::write(&done, wanted)?;
    Ok(python)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn arms_have_as_many_processes_and_ours_sees_what_is_large() {
        let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
        let runs = read(&root.join(RECORDED)).unwrap();
        assert!(runs.iter().all(|run| run.recording.is_of_one() && run.seconds > 0.0));
        for (schedule, slower) in [(Schedule::OneAfterAnother, 1.0), (Schedule::InTurns, 1.5)] {
            let one = Comparison { run: &runs[0], from: 3, schedule, slower };
            let Arms { a, b } = one.arms();
            assert_eq!((a.len(), b.len()), (ROUNDS, ROUNDS), "{schedule:?}");
            assert_eq!(one.ours(1), i8::from(slower > 1.0));
        }
    }
}
