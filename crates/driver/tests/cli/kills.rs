//! A campaign of kills: drivers, workers, `prepare` and set-up are killed at random moments. Nothing that was
//! saved is lost, nothing is half-made, no process is left, and the next run works.
//!
//! The short form is an ordinary test. The long one is repeated by
//! `PHOTOFINISH_KILLS=1000 PHOTOFINISH_SEED=7 cargo test --release -p driver --test cli -- --ignored campaign --nocapture`.
#![cfg(target_os = "linux")]

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::{Child, Command};
use std::time::{Duration, Instant};

use bundle::Bundle;
use comparison::facts::Fact;
use rand::{RngExt, SeedableRng};
use rand_chacha::ChaCha8Rng;

use crate::common::{Installation, Ran, descendants, photofinish, program, signal, stat, unheard, wait_for};
use crate::set_up::Wheel;

/// Longest wait before a kill, in milliseconds: a run takes about as long.
const LONGEST_MS: u64 = 900;
const MODEL: &str = "synthetic:llama-tiny";

#[derive(Debug, Clone, Copy)]
enum Victim {
    Driver,
    Worker,
    /// One of two drivers that share results directory and history.
    DriverOfTwo,
    Prepare,
    SetUp,
}

const VICTIMS: [Victim; 5] =
    [Victim::Driver, Victim::Worker, Victim::DriverOfTwo, Victim::Prepare, Victim::SetUp];

struct Campaign {
    installation: Installation,
    wheel: Wheel,
    random: ChaCha8Rng,
    /// Complete lines of every journal, and of the history: they must not be lost.
    saved: BTreeMap<PathBuf, usize>,
}

impl Campaign {
    fn new(seed: u64) -> Campaign {
        let slow = [("token_ms", "2"), ("load_ms", "20")];
        let installation = Installation::new().engine("one", &slow).engine("two", &slow);
        std::fs::create_dir(installation.path("tmp")).unwrap();
        let wheel = Wheel::new(&installation);
        let random = ChaCha8Rng::seed_from_u64(seed);
        Campaign { installation, wheel, random, saved: BTreeMap::new() }
    }

    fn run(&mut self, kills: usize) {
        let began = Instant::now();
        let mut hits = [0; VICTIMS.len()];
        for number in 0..kills {
            let chosen = number % VICTIMS.len();
            hits[chosen] += usize::from(self.kill(VICTIMS[chosen]));
            self.nobody_is_left();
            self.nothing_is_lost(number);
            self.bundles_are_whole();
            self.wheel.is_whole();
            if (number + 1) % 50 == 0 {
                println!("{} of {kills} kills, after {} s", number + 1, began.elapsed().as_secs());
            }
        }
        self.next_run_works();
        let by_victim: Vec<String> =
            VICTIMS.iter().zip(hits).map(|(victim, hits)| format!("{victim:?} {hits}")).collect();
        println!(
            "{kills} kills, {} of them before the end of what was killed ({}); {} files",
            hits.iter().sum::<usize>(),
            by_victim.join(", "),
            self.saved.len()
        );
    }

    fn spawn(&self, mut command: Command) -> Child {
        command.env("TMPDIR", self.installation.path("tmp"));
        unheard(command)
    }

    fn compare(&self) -> Child {
        self.spawn(self.installation.driver("--frameworks one,two --rounds 2 --iterations 4"))
    }

    fn prepare(&self) -> Child {
        let mut command = Command::new(program("prepare"));
        command.args([MODEL, "--quiet", "--precision", "f32,bf16,int8", "--bundles"]).arg(self.bundles());
        self.spawn(command)
    }

    fn bundles(&self) -> PathBuf {
        self.installation.path("cache/photofinish/bundles")
    }

    /// Kills at a random moment. Returns whether there still was something to kill.
    fn kill(&mut self, victim: Victim) -> bool {
        let wait = Duration::from_millis(self.random.random_range(0..LONGEST_MS));
        match victim {
            Victim::Driver => {
                let driver = self.compare();
                std::thread::sleep(wait);
                end(driver)
            }
            Victim::DriverOfTwo => {
                let (victim, mut other) = (self.compare(), self.compare());
                std::thread::sleep(wait);
                let hit = end(victim);
                assert!(other.wait().unwrap().success(), "the other driver goes on");
                hit
            }
            Victim::Worker => {
                let mut driver = self.compare();
                std::thread::sleep(wait);
                let workers = descendants(driver.id());
                let chosen = self.random.random_range(0..workers.len().max(1));
                let hit = workers.get(chosen).is_some_and(|&worker| signal(worker, "-KILL"));
                let code = driver.wait().unwrap().code();
                assert!(matches!(code, Some(0 | 1)), "a killed worker is a row: {code:?}");
                hit
            }
            Victim::Prepare => {
                // A bundle that exists is not made again.
                if self.random.random_range(0..2) == 0 {
                    let _ = std::fs::remove_dir_all(self.bundles());
                }
                let prepare = self.prepare();
                std::thread::sleep(wait / 6);
                end(prepare)
            }
            Victim::SetUp => {
                match self.random.random_range(0..3) {
                    0 => drop(std::fs::remove_dir_all(self.wheel.place())),
                    1 => self.wheel.pin(self.random.random_range(0..1000)),
                    _ => {}
                }
                let set_up = self.spawn(self.wheel.set_up());
                std::thread::sleep(wait / 6);
                end(set_up)
            }
        }
    }

    /// No process, stopped or not, has this campaign's temporary directory in its environment.
    fn nobody_is_left(&self) {
        let mark = format!("TMPDIR={}", self.installation.path("tmp").display());
        wait_for(|| {
            let entries = std::fs::read_dir("/proc").unwrap().flatten();
            let environments = entries.filter_map(|entry| std::fs::read(entry.path().join("environ")).ok());
            let is_ours = |text: &Vec<u8>| text.split(|&byte| byte == 0).any(|line| line == mark.as_bytes());
            !environments.into_iter().any(|text| is_ours(&text))
        });
    }

    /// Journals and history have every complete line that they once had, and each can be read.
    fn nothing_is_lost(&mut self, number: usize) {
        let results = self.installation.path("results");
        let mut files = vec![results.join("history.jsonl")];
        files.extend(
            std::fs::read_dir(&results).unwrap().map(|entry| entry.unwrap().path().join("samples.jsonl")),
        );
        for file in files.into_iter().filter(|file| file.is_file()) {
            let known = self.saved.get(&file).copied().unwrap_or(0);
            let is_journal = file.ends_with("samples.jsonl");
            if is_journal && known > 0 {
                continue; // its run has ended
            }
            let text = complete_lines(&file);
            let count = text.lines().count();
            assert!(count >= known, "kill {number}: {} had {known} lines, now {count}", file.display());
            if is_journal {
                for line in text.lines() {
                    Fact::read(line)
                        .unwrap_or_else(|error| panic!("kill {number}: {}: {error}", file.display()));
                }
                self.report_is_made(file.parent().unwrap());
            }
            self.saved.insert(file, count.max(1));
        }
    }

    /// A run that was killed is shown as far as it got; a file is there whole or not at all.
    fn report_is_made(&self, directory: &Path) {
        for name in ["environment.json", "plan.json", "report.json"] {
            if let Ok(text) = std::fs::read_to_string(directory.join(name)) {
                let parsed = serde_json::from_str::<serde_json::Value>(&text);
                assert!(parsed.is_ok(), "{}/{name} is half-made", directory.display());
            }
        }
        if directory.join("plan.json").is_file() {
            Ran::output_of(photofinish("report").arg(directory)).exits(0);
        }
    }

    /// Every directory named as a bundle can be opened, and its files have the hashes of its manifest.
    fn bundles_are_whole(&self) {
        let entries = std::fs::read_dir(self.bundles()).into_iter().flatten().flatten();
        let bundles = entries
            .filter(|entry| !entry.file_name().to_string_lossy().starts_with('.') && entry.path().is_dir());
        for path in bundles.map(|entry| entry.path()) {
            let bundle = Bundle::open(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
            for precision in bundle.precisions() {
                bundle.verify(&precision.file_name()).unwrap();
            }
        }
    }

    fn next_run_works(&self) {
        assert!(self.compare().wait().unwrap().success());
        assert!(self.prepare().wait().unwrap().success());
        assert!(self.spawn(self.wheel.set_up()).wait().unwrap().success() && self.wheel.is_whole());
        assert_eq!(self.wheel.left_over(), 0, "what a killed set-up left is removed");
        // A directory is removed after an hour if its owner was killed before marking it as owned.
        let left = std::fs::read_dir(self.installation.path("tmp")).unwrap().flatten();
        let owned = left.filter(|entry| entry.path().join(".lock").exists()).count();
        assert_eq!(owned, 0, "temporary directories of the killed");
        let bundles: Vec<_> = std::fs::read_dir(self.bundles()).unwrap().flatten().collect();
        let partial =
            bundles.iter().filter(|entry| entry.file_name().to_string_lossy().ends_with(".partial"));
        assert_eq!(partial.count(), 0, "what a killed `prepare` left is removed");
    }
}

/// Kills a process and waits for it. Returns whether it still ran.
fn end(mut child: Child) -> bool {
    let ran = child.try_wait().unwrap().is_none();
    child.kill().unwrap();
    child.wait().unwrap();
    ran
}

fn complete_lines(file: &Path) -> String {
    let mut text = std::fs::read_to_string(file).unwrap();
    text.truncate(text.rfind('\n').map_or(0, |end| end + 1));
    text
}

#[test]
fn ten_kills_lose_nothing_and_leave_nobody() {
    Campaign::new(1).run(10);
}

#[test]
#[ignore = "takes many minutes; PHOTOFINISH_KILLS and PHOTOFINISH_SEED say how many and which"]
fn campaign() {
    let asked = |name: &str| std::env::var(name).ok().and_then(|value| value.parse().ok());
    let (kills, seed) = (asked("PHOTOFINISH_KILLS").unwrap_or(1000), asked("PHOTOFINISH_SEED").unwrap_or(7));
    Campaign::new(seed).run(kills as usize);
}

/// Kills a driver once what it has started computes, and expects that nothing of it is left two seconds later.
fn nothing_survives(what: &str, driver: Command) {
    let mut driver = unheard(driver);
    let mut started = Vec::new();
    wait_for(|| {
        started = descendants(driver.id());
        assert!(driver.try_wait().unwrap().is_none(), "{what}: the driver ended before");
        started.iter().any(|&pid| stat(pid).is_some_and(|one| one.ticks >= 20))
    });
    assert!(end(driver));
    let since = Instant::now();
    while started.iter().any(|&pid| stat(pid).is_some()) {
        assert!(since.elapsed() < Duration::from_secs(2), "{what}: it outlives its driver");
        std::thread::sleep(Duration::from_millis(10));
    }
}

#[test]
fn what_computes_and_reads_no_stdin_ends_with_its_driver() {
    let installation = Installation::new().timed("one", &[]);
    installation.of_worker("burns", "burns", "{root}/burns", "");
    let wheel = Wheel::new(&installation);
    for name in ["burns", "workers/prepare", "programs/python3"] {
        installation.script(name, "#!/bin/sh\nwhile :; do :; done\n");
    }
    nothing_survives("a worker", installation.driver("--frameworks burns"));
    nothing_survives("set-up", wheel.set_up());
    let mut prepares = photofinish("compare --frameworks one --model synthetic:llama-tiny --configs");
    prepares.arg(installation.path("configs")).arg("--workers").arg(installation.path("workers"));
    prepares.env("XDG_CACHE_HOME", installation.path("cache")).env("PHOTOFINISH_PROVISIONED", "1");
    nothing_survives("the preparation", prepares);
    // Its normalizer doubles the text again and again.
    let double = serde_json::json!({"type": "Replace", "pattern": {"String": "o"}, "content": "oo"});
    let doubles = serde_json::json!({"type": "Sequence", "normalizers": vec![double; 22]});
    let installation = crate::chat::with(None, "normalizer", &doubles);
    nothing_survives("the tokenizer", installation.driver("--frameworks one --prompt 'hello world'"));
}
