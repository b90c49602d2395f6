//! What makes a verdict worth its word: guards, controls, automatic rounds; with engines whose truth is known.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use crate::common::{Installation, Ran, row};

#[test]
fn five_rounds_are_inconclusive_and_the_reason_is_said() {
    let installation =
        Installation::new().timed("quick", &[("token_ms", "1")]).timed("slow", &[("token_ms", "3")]);
    let ran = installation.run(&["--frameworks", "quick,slow", "--rounds", "5"]);
    assert!(
        ran.stdout.contains("inconclusive: a verdict takes 6 rounds, and there were 5"),
        "{}",
        ran.stdout
    );
    assert!(!ran.stdout.contains("faster"), "{}", ran.stdout);
}

#[test]
fn automatic_rounds_end_when_the_difference_is_clear() {
    let installation =
        Installation::new().timed("quick", &[("token_ms", "2")]).timed("slow", &[("token_ms", "6")]);
    let ran = installation.run(&["--frameworks", "quick,slow", "--rounds", "auto", "--format", "json"]);
    let report = ran.json();
    let rounds = report["rounds"].as_u64().unwrap();
    assert!((6..=12).contains(&rounds), "{rounds} rounds for a factor of three");
    assert_eq!(report["end"]["kind"], "clear");
    assert_eq!(report["comparisons"][3]["verdict"], "faster", "{}", report["comparisons"][3]);
    assert_eq!(report["comparisons"][3]["verdict_of_b"], "slower");
}

#[test]
fn a_time_budget_ends_automatic_rounds_but_never_before_six() {
    // Nothing is clear about two engines that are the same and noisy.
    let noisy = [("token_ms", "1"), ("process_noise", "0.5"), ("clock", "scripted")];
    let installation = Installation::new().engine("one", &noisy);
    let budget = ["--frameworks", "one,one", "--rounds", "auto", "--time-budget", "0.0001"];
    let report = installation.run(&[&budget[..], &["--format", "json"]].concat()).json();
    assert_eq!((report["rounds"].as_u64(), report["end"]["kind"].as_str()), (Some(6), Some("budget")));
}

#[test]
fn one_engine_under_two_names_gives_the_floor() {
    let installation = Installation::new().engine("one", &[("token_ms", "1")]);
    let ran = installation.run(&["--frameworks", "one,one"]);
    assert!(ran.stdout.contains("A/A floor: one"), "{}", ran.stdout);
}

#[test]
fn a_scripted_delay_is_found() {
    let token = [("token_ms", "3"), ("clock", "scripted")];
    let installation = Installation::new().engine("one", &token).configured(
        "slowed",
        &token,
        "[settings]\nslowdown = 0.5\n",
    );
    let report = installation.run(&["--frameworks", "one,slowed", "--format", "json"]).json();
    let throughput = &report["comparisons"][3];
    assert_eq!((throughput["metric"].as_str(), throughput["a"].as_str()), (Some("throughput"), Some("one")));
    let advantage = throughput["advantage"].as_f64().unwrap();
    assert!((1.49..1.51).contains(&advantage), "{throughput}");
}

#[test]
fn threads_beyond_the_budget_are_struck_by_r5() {
    let installation = Installation::new()
        .engine("good", &[("token_ms", "2")])
        .engine("greedy", &[("token_ms", "20"), ("busy_threads", "5")]);
    let ran = installation.run(&["--frameworks", "good,greedy", "--threads", "1", "--format", "json"]);
    let report = ran.json();
    assert_eq!(row(&report, "greedy")["state"], "struck", "{}", row(&report, "greedy")["threads"]);
    let reason = row(&report, "greedy")["reasons"][0].as_str().unwrap();
    assert!(reason.starts_with("R5: ") && reason.contains("the budget is 1"), "{reason}");
    assert_eq!(row(&report, "good")["state"], "measured", "{}", row(&report, "good")["reasons"]);
    assert_eq!(ran.code, Some(1));
}

#[test]
fn a_thread_variable_of_a_configuration_is_struck_by_r5() {
    let installation =
        Installation::new().engine("good", &[]).configured("own", &[], "[env]\nOMP_NUM_THREADS = \"4\"\n");
    let ran = installation.run(&["--frameworks", "good,own", "--rounds", "2", "--threads", "2"]);
    assert!(
        ran.stdout.contains("own struck: R5: its configuration sets OMP_NUM_THREADS=4"),
        "{}",
        ran.stdout
    );
}

#[test]
fn an_optimisation_that_is_off_for_one_is_struck_by_r14() {
    let installation = Installation::new()
        .engine("on", &[("optimised", "true")])
        .engine("off", &[("optimised", "false")])
        .engine("without", &[]);
    let ran = installation.run(&["--frameworks", "on,off,without", "--rounds", "1", "--format", "json"]);
    let report = ran.json();
    assert_eq!(row(&report, "off")["state"], "struck");
    assert!(row(&report, "off")["reasons"][0].as_str().unwrap().starts_with("R14"), "{report}");
    assert_eq!(row(&report, "on")["state"], "measured");
    assert_eq!(row(&report, "without")["state"], "measured");
}

#[test]
fn warm_up_and_the_curve_are_told() {
    let ramp = [("token_ms", "3"), ("ramp", "4"), ("ramp_steps", "40"), ("clock", "scripted")];
    let installation = Installation::new().engine("warming", &ramp);
    let arguments = ["--frameworks", "warming", "--rounds", "1", "--iterations", "6", "--new-tokens", "20"];
    let report = installation.run(&[&arguments[..], &["--format", "json"]].concat()).json();
    let curve = row(&report, "warming")["steadiness"]["curve"].as_array().unwrap();
    let gap = |index: usize| curve[index]["gap_ms"].as_f64().unwrap();
    assert!(gap(0) > 1.5 * gap(curve.len() - 1), "{curve:?}");
    assert!(curve.len() >= 8, "two of warm-up at least, and six measured: {curve:?}");
}

#[cfg(target_os = "linux")]
#[test]
fn a_file_that_another_process_maps_cannot_be_evicted_and_that_is_said() {
    let installation = Installation::new().engine("one", &[]);
    let file = std::fs::File::open(installation.path("model/f32.safetensors")).unwrap();
    // SAFETY: nobody changes the file while this test runs.
    #[allow(unsafe_code)]
    let map = unsafe { memmap2::Mmap::map(&file) }.unwrap();
    assert!(map.iter().map(|&byte| u64::from(byte)).sum::<u64>() > 0, "touched");
    let report = installation.run(&["--frameworks", "one", "--rounds", "1", "--format", "json"]).json();
    let load = &row(&report, "one")["load"];
    assert!(load["cold_unavailable"].as_str().unwrap().contains("eviction failed, 100 %"), "{load}");
    assert_eq!(
        (load["cold"].as_array().unwrap().len(), load["cold_resident_before"].as_f64()),
        (0, Some(1.0))
    );
    assert_eq!(load["warm_resident_before"].as_f64(), Some(1.0));
}

/// Keeps every CPU busy while it lives.
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

/// On a machine whose every CPU is kept busy.
fn on_a_busy_machine(arguments: &[&str]) -> (Ran, Installation) {
    // A worker must be watched for half a second before the kernel's counters say anything.
    let installation = Installation::new().engine("one", &[("load_ms", "900")]);
    let common = ["--frameworks", "one,one", "--patience", "0", "--rounds", "1", "--cold-load", "off"];
    let _burner = Burner::new();
    let output = installation.guarded(&[&common[..], arguments].concat()).output().unwrap();
    (Ran::from(output), installation)
}

#[cfg(target_os = "linux")]
#[test]
fn on_a_busy_machine_a_start_is_done_again_and_then_no_speed_is_measurable() {
    let (ran, installation) = on_a_busy_machine(&["--format", "json"]);
    assert_eq!(ran.code, Some(3), "{}{}", ran.stdout, ran.stderr);
    let report = ran.json();
    assert_eq!(report["end"]["kind"], "noisy");
    let of_speed = report["comparisons"].as_array().unwrap().iter().filter(|c| c["metric"] != "peak_memory");
    assert!(of_speed.map(|c| &c["verdict"]).all(|verdict| verdict == "not_measurable"), "{report}");
    let attempts: Vec<_> =
        installation.samples().iter().map(|run| run["attempt"].as_u64().unwrap()).collect();
    assert!(attempts.starts_with(&[0, 1]), "a start is done again: {attempts:?}");
    let load = &row(&report, "one")["metrics"][0];
    assert!(load["median"].as_f64().is_some(), "disturbed figures are kept: {load}");
    assert!(ran.stderr.contains("it is done again"), "{}", ran.stderr);
}

#[cfg(target_os = "linux")]
#[test]
fn noise_that_is_accepted_is_printed() {
    let (ran, _) = on_a_busy_machine(&["--accept-noise"]);
    assert_eq!(ran.code, Some(0), "{}{}", ran.stdout, ran.stderr);
    assert!(ran.stdout.contains("warning: R12: ") && ran.stdout.contains("was accepted"), "{}", ran.stdout);
}
