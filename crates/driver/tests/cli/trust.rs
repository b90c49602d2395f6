//! Tests of what makes verdicts trustworthy: guards, controls, automatic rounds; with engines whose times are
//! known.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use crate::common::{Installation, Ran, array, has_outcome, outcome, row, rule};

#[test]
fn five_rounds_are_inconclusive_and_the_reason_is_said() {
    let installation =
        Installation::new().timed("quick", &[("token_ms", "1")]).timed("slow", &[("token_ms", "3")]);
    let report = installation.json(0, "--frameworks quick,slow --rounds 5");
    let verdicts = array(&report["comparisons"]).iter().map(|comparison| &comparison["verdict"]);
    assert!(verdicts.filter(|verdict| *verdict != "inconclusive").count() == 0, "{}", report["comparisons"]);
    assert!(report["summary"].to_string().contains("a verdict takes 6"), "{}", report["summary"]);
}

#[test]
fn threads_beyond_the_budget_are_struck_by_r5() {
    let installation = Installation::new()
        .engine("good", &[("token_ms", "2")])
        .engine("greedy", &[("token_ms", "20"), ("busy_threads", "5")]);
    let report = installation.json(1, "--frameworks good,greedy --threads 1 --rounds 2");
    has_outcome(&report, "greedy", "struck", &["R5: ", "the budget is 1"]);
    assert_eq!(outcome(&report, "good"), ("measured", ""));
}

#[test]
fn warm_up_and_the_curve_are_told() {
    let ramp = [("token_ms", "3"), ("ramp", "4"), ("ramp_steps", "40")];
    let installation = Installation::new().timed("warming", &ramp);
    let report = installation.json(0, "--frameworks warming --rounds 1 --iterations 6 --new-tokens 20");
    let curve = array(&row(&report, "warming")["steadiness"]["curve"]);
    let gap = |index: usize| curve[index]["gap_ms"].as_f64().unwrap();
    assert!(gap(0) > 1.5 * gap(curve.len() - 1), "{curve:?}");
    assert!(curve.len() >= 8, "two of warm-up at least, and six measured: {curve:?}");
}

#[cfg(target_os = "linux")]
#[test]
fn no_secret_of_a_configuration_is_in_any_output() {
    const SECRETS: &str =
        "[env]\nMY_TOKEN = \"swordfish-1\"\nPLACE = \"https://bob:swordfish@host/?key=swordfish\"\n";
    let installation =
        Installation::new().configured("one", &[("clock", "scripted")], SECRETS).timed("two", &[]);
    // A worker that tells what it was given.
    let script = "#!/bin/sh\necho \"401 of $PLACE for $MY_TOKEN\" | tee /dev/stderr\nexit 3\n";
    let leaky = installation.script("leaky", script).display().to_string();
    installation.of_worker("leaky", "mock", &leaky, SECRETS);
    let ran = installation.run("--frameworks one,two,leaky --rounds 1 --format json");
    let report = ran.json();
    has_outcome(&report, "leaky", "failed", &["***"]);
    let directory = installation.results();
    let archive = format!("report {} --archive", directory.display());
    let archived = crate::common::Ran::output_of(&mut crate::common::photofinish(&archive)).exits(0);
    let mut written = vec![ran.stdout, ran.stderr, archived.stdout, archived.stderr];
    let archive = std::fs::File::open(directory.with_extension("tar.gz")).unwrap();
    let mut packed = Vec::new();
    std::io::Read::read_to_end(&mut flate2::read::GzDecoder::new(archive), &mut packed).unwrap();
    written.push(String::from_utf8_lossy(&packed).into_owned());
    let files = std::fs::read_dir(&directory).unwrap().map(|entry| entry.unwrap().path());
    let files: Vec<_> =
        files.chain([installation.path("results/history.jsonl")]).filter(|path| path.is_file()).collect();
    assert!(files.len() > 4, "{files:?}");
    written
        .extend(files.iter().map(|path| String::from_utf8_lossy(&std::fs::read(path).unwrap()).into_owned()));
    assert!(written.iter().all(|text| !text.contains("swordfish")));
    assert!(written.iter().any(|text| text.contains("\"MY_TOKEN\": \"***\"")));
}

#[cfg(target_os = "linux")]
#[test]
fn a_file_that_another_process_maps_cannot_be_evicted_and_that_is_said() {
    let installation = Installation::new().engine("one", &[]);
    let file = std::fs::File::open(installation.path("model/f32.safetensors")).unwrap();
    // SAFETY: nothing changes the file while this test runs.
    #[allow(unsafe_code)]
    let map = unsafe { memmap2::Mmap::map(&file) }.unwrap();
    assert!(map.iter().map(|&byte| u64::from(byte)).sum::<u64>() > 0, "touched");
    let report = installation.json(0, "--frameworks one --rounds 1");
    let load = &row(&report, "one")["load"];
    assert!(load["cold_unavailable"].as_str().unwrap().contains("100 %"), "{load}");
    assert_eq!((array(&load["cold"]), &load["cold_resident_before"]), (&[][..], &1.0.into()));
    assert_eq!(load["warm_resident_before"], 1.0);
}

/// Keeps every CPU busy until it is dropped.
pub(crate) struct Burner {
    stop: Arc<AtomicBool>,
}

impl Burner {
    pub(crate) fn new() -> Burner {
        let stop = Arc::new(AtomicBool::new(false));
        // One thread for each CPU that there is: workers may be pinned to any.
        let stat = std::fs::read_to_string("/proc/stat").unwrap_or_default();
        let is_cpu = |line: &&str| line.starts_with("cpu") && !line.starts_with("cpu ");
        for _ in 0..stat.lines().filter(is_cpu).count().max(1) {
            let stop = Arc::clone(&stop);
            std::thread::spawn(move || while !stop.load(Ordering::Relaxed) {});
        }
        Burner { stop }
    }
}

impl Drop for Burner {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
    }
}

#[cfg(target_os = "linux")]
#[test]
fn on_a_busy_machine_a_start_is_done_again_and_no_speed_is_measurable_unless_noise_is_accepted() {
    // A worker must be watched for half a second before the kernel's counters say anything.
    let installation = Installation::new().engine("one", &[("load_ms", "900")]);
    let line = "--frameworks one,one --quiet-timeout 0s --rounds 1 --cold-load off --format json";
    let burner = Burner::new();
    let ran = Ran::output_of(&mut installation.guarded(line));
    let samples = installation.samples();
    let accepted = installation.run(line);
    drop(burner);
    let report = ran.exits(3).json();
    assert_eq!(report["end"]["kind"], "noisy");
    let of_speed = array(&report["comparisons"]).iter().filter(|c| c["metric"] != "peak_memory");
    assert!(of_speed.map(|c| &c["verdict"]).all(|verdict| verdict == "not_measurable"), "{report}");
    let attempts: Vec<_> = samples.iter().map(|run| run["attempt"].as_u64().unwrap()).collect();
    assert!(attempts.starts_with(&[0, 1]), "a start is done again: {attempts:?}");
    let load = &row(&report, "one")["metrics"][0];
    assert!(load["median"].as_f64().is_some(), "disturbed figures are kept: {load}");
    let report = accepted.exits(0).json();
    let rule = rule(&report, "R12");
    assert!(rule["broken_by"][0]["finding"].as_str().unwrap().contains("accepted"), "{rule}");
}
