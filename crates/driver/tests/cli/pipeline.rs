//! The pipeline end to end, with engines whose truth is known.

use std::time::Duration;

use crate::common::{Installation, row};
use serde_json::Value;

fn verdict<'a>(report: &'a Value, metric: &str) -> &'a Value {
    let comparisons = report["comparisons"].as_array().unwrap();
    comparisons.iter().find(|comparison| comparison["metric"] == metric).unwrap()
}

#[test]
fn a_known_difference_is_found_and_its_size_is_right() {
    let installation =
        Installation::new().timed("quick", &[("token_ms", "1")]).timed("slow", &[("token_ms", "2")]);
    let ran = installation.run(&["--frameworks", "quick,slow", "--new-tokens", "20", "--format", "json"]);
    assert_eq!(ran.code, Some(0), "{}", ran.stderr);
    let report = ran.json();
    let comparison = verdict(&report, "throughput");
    assert_eq!((comparison["verdict"].as_str(), comparison["a"].as_str()), (Some("faster"), Some("quick")));
    let advantage = comparison["advantage"].as_f64().unwrap();
    assert!((1.99..2.01).contains(&advantage), "{comparison}");
    assert_eq!(row(&report, "quick")["agreement"]["broken"], Value::Null);
    assert_eq!(row(&report, "quick")["agreement"]["max_abs"], 0.0);
}

#[test]
fn every_sample_and_the_environment_are_saved() {
    let installation = Installation::new().engine("one", &[]).engine("two", &[]);
    let ran = installation.run(&["--frameworks", "one,two", "--seed", "7"]);
    assert_eq!(ran.code, Some(0), "{}", ran.stderr);
    let samples = installation.samples();
    assert_eq!(samples.len(), 12, "two frameworks in six rounds");
    let pids: std::collections::BTreeSet<_> =
        samples.iter().map(|run| run["pid"].as_u64().unwrap()).collect();
    assert_eq!(pids.len(), 12, "each in a process of its own");
    let orders: std::collections::BTreeSet<_> =
        samples.chunks(2).map(|round| round[0]["framework"].as_str().unwrap()).collect();
    assert_eq!(orders.len(), 2, "the order is shuffled between rounds");
    let environment = std::fs::read_to_string(installation.results().join("environment.json")).unwrap();
    let environment: Value = serde_json::from_str(&environment).unwrap();
    assert!(environment["memory_bytes"].as_u64().unwrap() > 0);
    assert!(environment["command"].as_array().unwrap().iter().any(|word| word == "--seed"));
    for file in ["plan.json", "report.json", "report.md", "report.csv"] {
        assert!(installation.results().join(file).is_file(), "{file}");
    }
}

#[test]
fn the_same_seed_gives_the_same_order() {
    let order = |seed: &str| {
        let installation = Installation::new().engine("a", &[]).engine("b", &[]).engine("c", &[]);
        installation.run(&["--frameworks", "a,b,c", "--rounds", "4", "--iterations", "1", "--seed", seed]);
        let runs = installation.samples();
        runs.iter().map(|run| run["framework"].as_str().unwrap().to_owned()).collect::<Vec<_>>()
    };
    assert_eq!(order("3"), order("3"));
    assert_ne!(order("3"), order("4"));
}

#[test]
fn a_warm_up_is_as_long_as_was_asked_for() {
    let installation = Installation::new().timed("one", &[]);
    let ran = installation.run(&["--frameworks", "one", "--rounds", "1", "--warmup", "4"]);
    assert_eq!(ran.code, Some(0), "{}", ran.stderr);
    let samples = installation.samples();
    let events = samples[0]["events"].as_array().unwrap();
    let warmup = events.iter().find(|event| event["event"] == "warmup").unwrap();
    assert_eq!(warmup["iterations"].as_array().unwrap().len(), 4, "{warmup}");
    assert!(!ran.stdout.contains("warm-up hit its limit"), "{}", ran.stdout);
}

/// What goes wrong with one framework is its row's reason, and the others stand.
fn one_bad_of_two(options: &[(&str, &str)], arguments: &[&str]) -> (Value, String) {
    let installation = Installation::new().engine("good", &[]).engine("bad", options);
    let mut all = vec!["--frameworks", "good,bad", "--rounds", "2", "--format", "json"];
    all.extend_from_slice(arguments);
    let ran = installation.run(&all);
    assert_eq!(ran.code, Some(1), "{}", ran.stderr);
    let report = ran.json();
    assert_eq!(row(&report, "good")["state"], "measured");
    assert_eq!(row(&report, "good")["rounds"], 2);
    let reason = row(&report, "bad")["reasons"][0].as_str().unwrap().to_owned();
    (row(&report, "bad").clone(), reason)
}

#[test]
fn a_crash_is_a_failed_row_with_its_last_words() {
    let (row, reason) = one_bad_of_two(&[("fault", "crash"), ("fault_at", "3")], &[]);
    assert_eq!(row["state"], "failed");
    assert!(reason.contains("SIGABRT") && reason.contains("this crash was asked for"), "{reason}");
}

#[test]
fn a_panic_is_one_sentence() {
    let (_, reason) = one_bad_of_two(&[("fault", "panic"), ("fault_at", "2")], &[]);
    assert!(reason.contains("this panic was asked for") && !reason.contains("backtrace"), "{reason}");
}

#[test]
fn a_hang_ends_at_the_time_limit() {
    let (_, reason) = one_bad_of_two(&[("fault", "hang"), ("fault_at", "2")], &["--timeout", "2"]);
    assert!(reason.contains("not done after 2 s"), "{reason}");
}

#[test]
fn nonsense_is_quoted() {
    let (_, reason) = one_bad_of_two(&[("fault", "garbage")], &[]);
    assert!(reason.contains("not a valid event") && reason.contains("load"), "{reason}");
}

#[test]
fn a_flood_is_stopped() {
    let (_, reason) = one_bad_of_two(&[("fault", "flood")], &[]);
    assert!(reason.contains("flooded"), "{reason}");
}

#[test]
fn leaving_early_is_noticed_whatever_the_exit_code() {
    let (_, reason) = one_bad_of_two(&[("fault", "leave")], &[]);
    assert!(reason.contains("before its job was done"), "{reason}");
}

#[test]
fn another_version_of_the_protocol_is_refused() {
    let (_, reason) = one_bad_of_two(&[("fault", "version")], &[]);
    let claimed = format!("protocol 9{}", protocol::VERSION);
    assert!(reason.contains(&claimed), "{reason}");
}

#[test]
fn an_error_of_the_framework_is_told_and_can_be_repeated() {
    let installation =
        Installation::new().engine("good", &[]).engine("bad", &[("fault", "error"), ("fault_at", "3")]);
    let ran = installation.run(&["--frameworks", "good,bad", "--rounds", "1"]);
    assert!(ran.stdout.contains("bad failed: this error was asked for"), "{}", ran.stdout);
    let line = ran.stderr.lines().find_map(|line| line.trim().strip_prefix("to repeat it: ")).unwrap();
    let repeated = std::process::Command::new("sh").args(["-c", line]).output().unwrap();
    assert_eq!(repeated.status.code(), Some(1));
    assert_eq!(String::from_utf8_lossy(&repeated.stderr).trim(), "this error was asked for");
}

#[test]
fn what_was_measured_before_a_failure_is_kept() {
    let installation = Installation::new().engine("bad", &[("fault", "crash"), ("fault_at", "8")]);
    let ran = installation.run(&["--frameworks", "bad", "--rounds", "1"]);
    assert_eq!(ran.code, Some(1));
    let events: Vec<Value> = installation
        .all_samples()
        .iter()
        .flat_map(|fact| fact["events"].as_array().cloned())
        .flatten()
        .collect();
    assert!(events.iter().any(|event| event["event"] == "cold_start"));
}

#[test]
fn fresh_kernel_caches_are_named_and_recorded() {
    let installation = Installation::new().timed("one", &[]).timed("other", &[]);
    let file = installation.path("configs/engines/one.toml");
    let text = std::fs::read_to_string(&file).unwrap();
    std::fs::write(&file, format!("kernel_cache = [\"MOCK_CACHE\"]\n{text}")).unwrap();
    let run = |frameworks, flags: &[&str]| {
        let common = ["--frameworks", frameworks, "--rounds", "1", "--format", "json"];
        let ran = installation.run(&[&common[..], flags].concat());
        let report = ran.json();
        let is_said = report["summary"]["heading"].as_str().unwrap().contains("fresh kernel caches");
        (report["plan"]["kernel_cache"].as_str().unwrap().to_owned(), is_said, ran.stderr)
    };
    let (asked, is_said, stderr) = run("one,other", &["--kernel-cache", "fresh"]);
    assert_eq!((asked.as_str(), is_said), ("fresh", true));
    // The mock compiles nothing.
    assert_eq!(stderr.matches("put nothing into its fresh kernel cache").count(), 1, "{stderr}");
    let history = std::fs::read_to_string(installation.path("results/history.jsonl")).unwrap();
    let settings =
        history.lines().map(|line| serde_json::from_str::<Value>(line).unwrap()["settings"].clone());
    assert!(settings.map(|settings| settings["kernel_cache"] == "fresh").eq([true; 2]), "{history}");
    let (asked, is_said, _) = run("one,other", &[]);
    assert_eq!((asked.as_str(), is_said), ("keep", false));
    let (_, is_said, stderr) = run("other", &["--kernel-cache", "fresh"]);
    assert!(!is_said && !stderr.contains("kernel cache"), "it keeps no kernels: {stderr}");
}

#[test]
fn wrong_answers_are_struck_and_take_no_part_in_verdicts() {
    let (row, reason) = one_bad_of_two(&[("perturb", "0.5")], &[]);
    assert_eq!(row["state"], "struck");
    assert!(reason.starts_with("R11: a logit differs by 5.00e-1"), "{reason}");
    let installation = Installation::new().engine("good", &[]).engine("bad", &[("perturb", "0.5")]);
    let ran = installation.run(&["--frameworks", "good,bad"]);
    assert!(ran.stdout.contains("BROKEN") && !ran.stdout.contains("faster"), "{}", ran.stdout);
}

#[test]
fn another_precision_than_asked_is_struck_or_labelled() {
    let (row, reason) = one_bad_of_two(&[("claimed_precision", "bf16")], &[]);
    assert_eq!(row["state"], "struck");
    assert!(reason.starts_with("R2: asked for f32, it ran bf16"), "{reason}");
    let installation =
        Installation::new().engine("good", &[]).engine("bad", &[("claimed_precision", "bf16")]);
    let ran = installation.run(&["--frameworks", "good,bad", "--rounds", "1", "--fair-comparison=false"]);
    assert_eq!(ran.code, Some(0), "{}", ran.stderr);
    assert!(ran.stdout.contains("bad not matched: R2"), "{}", ran.stdout);
}

#[test]
fn what_cannot_run_is_a_row_with_its_reason() {
    let installation = Installation::new().engine("one", &[("unsupported", "it has no kernels")]);
    let ran = installation.run(&["--frameworks", "one", "--rounds", "1"]);
    assert_eq!(ran.code, Some(1), "nothing was measured");
    assert!(ran.stdout.contains("one unsupported: it has no kernels"), "{}", ran.stdout);
}

#[test]
fn one_engine_under_two_labels_is_an_a_a_control() {
    let installation = Installation::new().engine("one", &[]);
    let ran = installation.run(&["--frameworks", "one,one", "--format", "json"]);
    assert_eq!(ran.code, Some(0), "{}", ran.stderr);
    assert_eq!(row(&ran.json(), "one (2)")["state"], "measured");
}

#[test]
fn greedy_decoding_the_cache_switched_off_and_batches_agree_too() {
    let installation = Installation::new().engine("one", &[]).engine("two", &[]);
    let common = ["--frameworks", "one,two", "--rounds", "1", "--format", "json"];
    for more in [["--decode", "greedy"], ["--kv-cache", "off"], ["--batch", "3"]] {
        let ran = installation.run(&[&common[..], &more[..]].concat());
        assert_eq!(ran.code, Some(0), "{more:?}: {}", ran.stderr);
        assert_eq!(row(&ran.json(), "two")["agreement"]["timed_mismatches"], 0, "{more:?}");
    }
}

#[cfg(unix)]
#[test]
fn an_interrupt_saves_what_there_is_and_leaves_no_process() {
    use std::process::Stdio;
    let installation = Installation::new().engine("slow", &[("token_ms", "20")]);
    let mut command = installation.driver(&["--frameworks", "slow", "--rounds", "50"]);
    let child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    let pid = child.id().to_string();
    wait_for(|| samples_so_far(&installation) >= 2);
    let workers = children(&pid);
    std::process::Command::new("kill").args(["-INT", &pid]).status().unwrap();
    let output = child.wait_with_output().unwrap();
    assert_eq!(output.status.code(), Some(130));
    assert!(String::from_utf8_lossy(&output.stdout).contains("interrupted"), "a table of what there is");
    assert!(installation.results().join("report.json").is_file());
    assert!(!installation.samples().is_empty());
    for worker in workers {
        wait_for(|| !std::path::Path::new(&format!("/proc/{worker}/exe")).exists());
    }
}

#[cfg(target_os = "linux")]
#[test]
fn a_worker_killed_from_outside_is_a_failed_row() {
    use std::process::Stdio;
    // It hangs when it is measured: another one gives the reference.
    let hangs = [("fault", "hang"), ("fault_at", "12")];
    let installation = Installation::new().engine("slow", &hangs).engine("good", &[]);
    let arguments = ["--frameworks", "good,slow", "--reference", "good", "--rounds", "2"];
    let mut command = installation.driver(&arguments);
    let child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    let pid = child.id().to_string();
    let mut idle = std::collections::HashMap::new();
    wait_for(|| {
        // The one that has computed nothing for two seconds: the others wait for a quiet machine at most.
        let workers = children(&pid);
        let hanging = workers.into_iter().find(|worker| {
            let times = cpu_ticks(worker);
            let (before, polls) = idle.entry(worker.clone()).or_insert((times.clone(), 0));
            if times.is_some() && *before == times {
                *polls += 1;
            } else {
                (*before, *polls) = (times, 0);
            }
            *polls > 200
        });
        hanging.is_some_and(|worker| {
            std::process::Command::new("kill").args(["-KILL", &worker]).status().unwrap().success()
        })
    });
    let output = child.wait_with_output().unwrap();
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    assert_eq!(output.status.code(), Some(1), "{text}");
    assert!(text.contains("failed: it was ended by signal 9"), "{text}");
}

#[cfg(target_os = "linux")]
#[test]
fn a_full_disk_costs_the_files_but_not_the_table() {
    // A limit on the size of files fails writes as a full disk does: 8 blocks of 512 bytes are enough for
    // what workers and driver exchange here, and too few for samples and report.
    let installation = Installation::new().engine("one", &[]);
    let command = installation.driver(&["--frameworks", "one", "--rounds", "2"]);
    let mut line = vec![command.get_program().to_string_lossy().into_owned()];
    line.extend(command.get_args().map(|argument| argument.to_string_lossy().into_owned()));
    let line = line.iter().map(|word| format!("'{word}'")).collect::<Vec<_>>().join(" ");
    let mut shell = std::process::Command::new("sh");
    // Signal 25 is SIGXFSZ: ignored, the write fails with an error instead.
    shell.arg("-c").arg(format!("trap '' XFSZ 2>/dev/null || trap '' 25; ulimit -f 8; exec {line}"));
    for (name, value) in command.get_envs() {
        shell.env(name, value.unwrap());
    }
    let output = shell.output().unwrap();
    let (stdout, stderr) = (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    assert_eq!(output.status.code(), Some(1), "{stdout}{stderr}");
    assert!(stdout.contains("Average Throughput"), "the table is printed all the same: {stdout}{stderr}");
    assert!(!stdout.contains("failed"), "measuring went on: {stdout}{stderr}");
    assert!(stderr.contains("cannot save to"), "{stderr}");
    let results = installation.results();
    assert!(!results.join("report.json").exists(), "no half-written report");
    let samples = std::fs::read_to_string(results.join("samples.jsonl")).unwrap();
    assert!(samples.is_empty() || samples.ends_with('\n'), "no half-written line");
}

pub(crate) fn samples_so_far(installation: &Installation) -> usize {
    let Ok(entries) = std::fs::read_dir(installation.path("results")) else { return 0 };
    let mut samples = entries.map(|entry| entry.unwrap().path().join("samples.jsonl"));
    let Some(samples) = samples.find(|samples| samples.is_file()) else { return 0 };
    std::fs::read_to_string(samples).map_or(0, |text| text.matches("\"fact\":\"warm\"").count())
}

#[cfg(unix)]
pub(crate) fn children(pid: &str) -> Vec<String> {
    let path = format!("/proc/{pid}/task/{pid}/children");
    let text = std::fs::read_to_string(path).unwrap_or_default();
    text.split_whitespace().map(str::to_owned).collect()
}

/// User and system time of a process that has neither ended nor was stopped, as `/proc` has them (proc_pid_stat(5)). One
/// that waits for its turn is stopped, and does not hang.
#[cfg(target_os = "linux")]
fn cpu_ticks(pid: &str) -> Option<String> {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    let fields: Vec<&str> = stat.rsplit_once(')')?.1.split_whitespace().collect();
    (!["Z", "T"].contains(fields.first()?)).then(|| fields.get(11..13).map(|times| times.join(" ")))?
}

pub(crate) fn wait_for(mut condition: impl FnMut() -> bool) {
    for _ in 0..2000 {
        if condition() {
            return;
        }
        std::thread::sleep(Duration::from_millis(10));
    }
    panic!("it did not come to pass within 20 s");
}

#[test]
fn weights_over_several_devices_are_a_column_each_and_who_cannot_divide_them_says_so() {
    let installation = Installation::new().timed("a", &[]);
    let asked = ["--frameworks", "a", "--shards", "1,2", "--rounds", "1", "--format", "json"];
    let report = installation.run(&asked).json();
    assert_eq!(row(&report, "a")["state"], "measured");
    let divided = row(&report, "a on 2 devices");
    assert_eq!(divided["state"], "unsupported");
    assert!(
        divided["reasons"].to_string().contains("not divided over devices (2 were asked for)"),
        "{divided}"
    );
}

#[test]
fn one_prompt_at_several_lengths_is_a_case_for_each() {
    let installation = Installation::new().timed("a", &[]);
    let asked = [
        "--frameworks",
        "a",
        "--prompt",
        "x",
        "--prompt-lengths",
        "4,6",
        "--rounds",
        "1",
        "--format",
        "json",
    ];
    let report = installation.run(&asked).json();
    let prompts = report["plan"]["prompts"].as_array().unwrap();
    let told: Vec<_> = prompts
        .iter()
        .map(|prompt| (prompt["name"].as_str(), prompt["tokens"].as_array().unwrap().len()))
        .collect();
    assert_eq!(told, [(Some("4 tokens"), 4), (Some("6 tokens"), 6)]);
    installation
        .run(&["--frameworks", "a", "--prompt", "x", "--prompt", "y", "--prompt-lengths", "4"])
        .refused(&["--prompt-lengths takes one prompt"]);
}
