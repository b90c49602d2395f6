//! Decision rules of the field on the same recordings, with as many processes each: how often each calls one build under
//! two names different, and how often it finds a difference. Their rules are in Python, in `crates/evidence/rules`, each
//! from its own source; ours is the product's.
//!
//! The state of a machine lasts for rounds, and rounds drawn at random do not show that. So comparisons are stretches of
//! rounds that followed each other, and an interval counts those that do not overlap.

use std::io::{BufRead, BufReader, Write};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::{fs, thread};

use anyhow::{Context, Result, ensure};
use comparison::facts::evidence::of_rounds;
use comparison::facts::run::Environment;
use comparison::judge::power;
use serde::{Deserialize, Serialize};
use statistics::{Looks, Moments, Outcome, Series, Settings, decide, median};

use crate::calibrate::page::{METRICS, THROUGHPUT, error_share, percent, score_interval, wrapped};
use crate::calibrate::recorded::{self, Estimator, Process, Recording, Request};

/// Recordings of one build under two names, and the weather that they were made in.
pub const RECORDED: &str = "crates/evidence/rules/recorded.jsonl.gz";

/// The rules of others.
const RULES: &str = "crates/evidence/rules/rules.py";

/// Their packages, with the hashes of their files.
const REQUIREMENTS: &str = "crates/evidence/rules/requirements.txt";

/// Processes of an arm.
const EACH: usize = 10;

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
    /// Seconds that a round took, with starts, warm-up and pauses.
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
    /// All processes of one arm, then all of the other. Of each round one process counts: the two of a round share its
    /// moments, and would not be as independent as those of a tool that runs one at a time.
    OneAfterAnother,
    InTurns,
}

impl Schedule {
    /// Rounds of a comparison.
    fn rounds(self) -> usize {
        match self {
            Schedule::OneAfterAnother => 2 * EACH,
            Schedule::InTurns => EACH,
        }
    }

    /// The first rounds of the comparisons of a run.
    fn starts(self, run: &Weathered) -> impl Iterator<Item = usize> {
        (0..=run.recording.rounds.len() - self.rounds()).step_by(STEP)
    }
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
        &self.run.recording.rounds[self.from..self.from + self.schedule.rounds()]
    }

    fn arms(&self) -> Arms {
        let costs = |process: &Process, factor: f64| -> Vec<f64> {
            process.requests.iter().map(|request| factor * (-request.speed()).exp()).collect()
        };
        let rounds = self.rounds();
        let (first, second) = rounds.split_at(rounds.len() / 2);
        let of = |rounds: &[Vec<Process>], place: usize, factor| {
            rounds.iter().map(|round| costs(&round[place], factor)).collect()
        };
        match self.schedule {
            Schedule::OneAfterAnother => {
                let place = self.from % 2;
                Arms { a: of(first, place, 1.0), b: of(second, place, self.slower) }
            }
            Schedule::InTurns => Arms { a: of(rounds, 0, 1.0), b: of(rounds, 1, self.slower) },
        }
    }

    /// How many comparisons of its run do not overlap, of how many.
    fn apart(&self) -> (usize, usize) {
        let rounds = self.run.recording.rounds.len();
        (rounds / self.schedule.rounds(), self.schedule.starts(self.run).count())
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
        let decisions = decide(&family, &Looks::fixed(EACH), true, &settings);
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
        let journal = recorded::evidence(&text("samples.jsonl")?)?;
        let recording = Recording::new(&journal)?;
        let (name, rounds) = (directory.display(), recording.rounds.len());
        ensure!(recording.is_of_one(), "{name} compares different contenders");
        ensure!(rounds >= 2 * EACH, "{name} has fewer than {} rounds", 2 * EACH);
        let environment: Environment = serde_json::from_str(&text("environment.json")?)?;
        let month = environment.started.get(..7).context("the run has no time")?;
        let seconds = of_rounds(&journal.time).context("its journal does not say what took the time")?;
        runs.push(Weathered {
            weather: weather.to_owned(),
            machine: format!("{}, {month}", environment.cpu),
            seconds: seconds / rounds as f64,
            recording,
        });
        println!("{name}: {rounds} rounds");
    }
    fs::write(RECORDED, recorded::write(&runs)?).with_context(|| format!("cannot write {RECORDED}"))
}

fn read(path: &Path) -> Result<Vec<Weathered>> {
    recorded::read(&fs::read(path).with_context(|| format!("cannot read {}", path.display()))?)
}

/// Decisions of the rules of others, `[comparison][rule]`. `python` has the packages of
/// `crates/evidence/rules/requirements.txt`.
fn decided(python: &Path, comparisons: &[Arms]) -> Result<(Vec<Rule>, Vec<Vec<i8>>)> {
    let mut program = Command::new(python);
    let cannot = || format!("cannot run {} {RULES}", python.display());
    let mut program =
        program.arg(RULES).stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().with_context(cannot)?;
    let (input, output) = (program.stdin.take(), program.stdout.take());
    let (mut input, output) = (input.context("no stdin")?, output.context("no stdout")?);
    let (sent, lines) = thread::scope(|scope| {
        let sent = scope.spawn(move || {
            for arms in comparisons {
                writeln!(input, "{}", serde_json::to_string(arms)?)?;
            }
            anyhow::Ok(())
        });
        let lines = BufReader::new(output).lines().collect::<std::io::Result<Vec<String>>>();
        (sent.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic)), lines)
    });
    ensure!(program.wait()?.success(), "{RULES} failed; its words are above");
    sent.with_context(cannot)?;
    let lines = lines?;
    let (first, decisions) = lines.split_first().context("the rules said nothing")?;
    let rules: Vec<Rule> = serde_json::from_str(first)?;
    let count = comparisons.len();
    ensure!(decisions.len() == count, "{} of {count} were decided", decisions.len());
    let mut found = Vec::new();
    for line in decisions {
        let of_rules: Vec<i8> = serde_json::from_str(line)?;
        ensure!(of_rules.len() == rules.len(), "{} rules made {} decisions", rules.len(), of_rules.len());
        found.push(of_rules);
    }
    Ok((rules, found))
}

/// How often a rule decides that the arms differ, with a 95 % score interval of as many comparisons as do not overlap.
#[derive(Default)]
struct Rate {
    hits: usize,
    of: usize,
    apart: f64,
}

impl Rate {
    /// `apart`: how many such comparisons do not overlap, of how many.
    fn add(&mut self, apart: (usize, usize), is_hit: bool) {
        self.hits += usize::from(is_hit);
        self.of += 1;
        self.apart += apart.0 as f64 / apart.1 as f64;
    }
}

impl std::fmt::Display for Rate {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let value = self.hits as f64 / self.of.max(1) as f64;
        let (low, high) = score_interval(value, self.apart);
        write!(f, "{} ({:.0}–{:.0})", percent(value, 0), 100.0 * low, 100.0 * high)
    }
}

/// How often the product finds the difference that the runs before it, at most five of the same weather, promise to be
/// found in four of five comparisons (`comparison::judge::power`). By weather.
fn promised(runs: &[Weathered], weathers: &[&str], seed: u64) -> Vec<(Rate, f64)> {
    let share = error_share(THROUGHPUT) / (0..METRICS.len()).map(error_share).sum::<f64>();
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
            let stretches = earlier.iter().flat_map(|run| run.recording.rounds.chunks_exact(EACH));
            let of_stretch =
                |rounds: &[Vec<Process>]| Moments::new(&rounds.iter().map(ratio).collect::<Vec<f64>>());
            let deviations: Vec<f64> =
                stretches.filter_map(of_stretch).filter_map(|found| found.standard_deviation).collect();
            let Some(deviation) = median(&deviations) else { continue };
            let difference = power::smallest(EACH, deviation, share, statistics::DEFAULT_MARGIN);
            for from in Schedule::InTurns.starts(run) {
                let one = Comparison { run, from, schedule: Schedule::InTurns, slower: 1.0 + difference };
                rate.add(one.apart(), one.ours(seed) > 0);
                sum += difference;
            }
        }
        let mean = sum / rate.of.max(1) as f64;
        found.push((rate, mean));
    }
    found
}

// Trends: histories of runs.

/// Runs of a history; the second half may be slower.
const HISTORY: usize = 20;

/// Runs from the start of one history to that of the next.
const HISTORY_STEP: usize = 2;

/// How many times as long a token of the second half takes.
const LATER: [f64; 4] = [1.0, 1.02, 1.03, 1.05];

/// The column that has the decisions of a trend.
const OF_TREND: &str = "Otava";

/// A run after another: of each, the mean time of a token over ten rounds.
struct History<'a> {
    weather: &'a str,
    slower: f64,
    runs: Vec<f64>,
    /// How many histories of its weather do not overlap, of how many.
    apart: (usize, usize),
}

impl History<'_> {
    fn arms(&self) -> Arms {
        let (a, b) = self.runs.split_at(HISTORY / 2);
        let of = |runs: &[f64]| runs.iter().map(|run| vec![*run]).collect();
        Arms { a: of(a), b: of(b) }
    }

    /// The product's: 1 if it finds that the runs become slower.
    fn ours(&self, seed: u64) -> i8 {
        let places = statistics::changes(&self.runs, seed);
        let (Some(&first), Some(&last)) = (places.first(), places.last()) else { return 0 };
        let is_slower = median(&self.runs[last..]) > median(&self.runs[..first]);
        if is_slower { 1 } else { -1 }
    }
}

/// The histories of each weather: its runs in their order, ten rounds as one run.
fn histories<'a>(runs: &[Weathered], weathers: &[&'a str]) -> Vec<History<'a>> {
    let mut found = Vec::new();
    for &weather in weathers {
        for place in 0..2 {
            let mean = |rounds: &[Vec<Process>]| {
                let of_process = |process: &Process| {
                    let speeds = process.requests.iter().map(Request::speed);
                    speeds.sum::<f64>() / process.requests.len() as f64
                };
                let speeds = rounds.iter().map(|round| of_process(&round[place]));
                (-speeds.sum::<f64>() / rounds.len() as f64).exp()
            };
            let of = runs.iter().filter(|run| run.weather == weather);
            let times: Vec<f64> =
                of.flat_map(|run| run.recording.rounds.chunks_exact(EACH).map(mean)).collect();
            let starts = (0..=times.len().saturating_sub(HISTORY)).step_by(HISTORY_STEP);
            // The columns share their moments: they count as one.
            let apart = (times.len() / HISTORY, 2 * starts.clone().count());
            for (from, slower) in starts.flat_map(|from| LATER.map(|slower| (from, slower))) {
                let Some(stretch) = times.get(from..from + HISTORY) else { continue };
                let run = |(number, time): (usize, &f64)| {
                    if number >= HISTORY / 2 { slower * time } else { *time }
                };
                let runs = stretch.iter().enumerate().map(run).collect();
                found.push(History { weather, slower, runs, apart });
            }
        }
    }
    found
}

/// How often Otava and `history --trend` say that the runs of a history change.
fn trends(histories: &[History<'_>], others: &[i8], weathers: &[&str], seed: u64) -> String {
    let of_weather: Vec<String> = weathers.iter().map(|weather| format!("false, {weather}")).collect();
    let of_change: Vec<String> =
        LATER[1..].iter().map(|by| format!("{:.0} % found", 100.0 * (by - 1.0))).collect();
    let header = format!("rule | {} | false, all | {}", of_weather.join(" | "), of_change.join(" | "));
    let mut text = format!("| {header} |\n|{}\n", "---|".repeat(5 + weathers.len()));
    let ours: Vec<i8> = histories.iter().map(|history| history.ours(seed)).collect();
    for (name, decisions) in [(OF_TREND, others), ("`history --trend`", &ours)] {
        let rate = |slower: f64, weather: Option<&str>| {
            let mut rate = Rate::default();
            for (history, &decision) in histories.iter().zip(decisions) {
                if history.slower == slower && weather.is_none_or(|weather| weather == history.weather) {
                    rate.add(history.apart, if slower == 1.0 { decision != 0 } else { decision > 0 });
                }
            }
            rate.to_string()
        };
        let mut cells = vec![name.to_owned()];
        cells.extend(weathers.iter().map(|weather| rate(1.0, Some(weather))));
        cells.push(rate(1.0, None));
        cells.extend(LATER[1..].iter().map(|&slower| rate(slower, weathers.first().copied())));
        text += &format!("| {} |\n", cells.join(" | "));
    }
    text
}

/// The page.
pub fn page(python: &Path, seed: u64) -> Result<String> {
    let runs = read(Path::new(RECORDED))?;
    let mut weathers: Vec<&str> = Vec::new();
    for run in &runs {
        if !weathers.contains(&run.weather.as_str()) {
            weathers.push(&run.weather);
        }
    }
    let mut comparisons = Vec::new();
    for schedule in [Schedule::OneAfterAnother, Schedule::InTurns] {
        for slower in SLOWER {
            for run in &runs {
                let starts = schedule.starts(run);
                comparisons.extend(starts.map(|from| Comparison { run, from, schedule, slower }));
            }
        }
    }
    let histories = histories(&runs, &weathers);
    let mut arms: Vec<Arms> = comparisons.iter().map(Comparison::arms).collect();
    arms.extend(histories.iter().map(History::arms));
    let (rules, mut decisions) = decided(python, &arms)?;
    let place =
        rules.iter().position(|rule| rule.name.starts_with(OF_TREND)).context("no rule is Otava's")?;
    let otava: Vec<i8> =
        decisions.split_off(comparisons.len()).iter().map(|of_rules| of_rules[place]).collect();
    for (comparison, decisions) in comparisons.iter().zip(&mut decisions) {
        if comparison.schedule == Schedule::InTurns {
            decisions.push(comparison.ours(seed));
        }
    }
    let rate = |rule: usize, schedule: Schedule, slower: f64, weather: Option<&str>| {
        let mut rate = Rate::default();
        for (comparison, decisions) in comparisons.iter().zip(&decisions) {
            let is_of = weather.is_none_or(|weather| weather == comparison.run.weather);
            if comparison.schedule != schedule || comparison.slower != slower || !is_of {
                continue;
            }
            rate.add(
                comparison.apart(),
                if slower == 1.0 { decisions[rule] != 0 } else { decisions[rule] > 0 },
            );
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
        let minutes = seconds * EACH as f64 / 60.0;
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
         One build ran under two names, process by process in turns. Each rule gets {EACH} processes of each arm, and the \
         microseconds a token of every request, without turns that were left out because others disturbed them. *False*: \
         it says that the arms differ. *Found*: every time of the second arm is multiplied by 1.03 or 1.05, and it says \
         that the second is slower. Comparisons are stretches of rounds that followed each other, because the state of a \
         machine lasts for rounds. Brackets are 95 % score intervals (Wilson 1927) that count only stretches that do not \
         overlap.\n\n\
         ## As the tools run: one arm after the other\n\n\
         The first arm is one process of each of {EACH} rounds, the second one of each of the next {EACH}.\n\n{}\n\
         ## The same rules in turns\n\n\
         Every round has a process of each arm. Photofinish decides on throughput, with half of an error rate of 5 % that \
         all questions of its table share; it compares slices within rounds.\n\n{}\n\
         ## What was promised before\n\n\
         Before a comparison Photofinish says which difference it finds in four of five, by the noise of the last runs of the \
         case. Here each run has the one that the runs before it promise, in the mean as in the table.\n\n{kept}\n\
         ## A trend\n\n\
         A history has {HISTORY} runs of {EACH} rounds of one build, whose means are what `history` keeps. *Found*: every \
         time of the second half is multiplied by 1.02, 1.03 or 1.05, in runs of *{}*, and the rule says that the runs become \
         slower. *False*: it says that unchanged runs change. The level of \
         `history --trend` was chosen on these recordings. Where the machine itself is slower for many runs, both say \
         so.\n\n{}\n\
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
        weathers.first().copied().unwrap_or_default(),
        trends(&histories, &otava, &weathers, seed),
        rules.iter().map(of_rule).collect::<String>(),
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
        for schedule in [Schedule::OneAfterAnother, Schedule::InTurns] {
            let Arms { a, b } = Comparison { run: &runs[0], from: 3, schedule, slower: 1.0 }.arms();
            assert_eq!((a.len(), b.len()), (EACH, EACH), "{schedule:?}");
            assert_ne!(a, b);
        }
        let ours =
            |slower| Comparison { run: &runs[0], from: 3, schedule: Schedule::InTurns, slower }.ours(1);
        assert_eq!([ours(1.0), ours(1.5), ours(0.7)], [0, 1, -1]);
    }
}
