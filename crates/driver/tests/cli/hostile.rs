//! Workers and files that report false values, hang, or do harm: each is a row with its reason or a sentence,
//! and the driver goes on.
#![cfg(target_os = "linux")]

use std::process::{Command, Stdio};

use serde_json::Value;

use crate::common::{
    Installation, Ran, array, descendants, has_outcome, heard, outcome, photofinish, program, row, rule,
    samples_so_far, stat, unheard, wait_for, wait_for_end,
};
use crate::pipeline::{Bad, beside_a_good_one};

/// The processes that were killed according to stderr; all must be gone.
fn killed(stderr: &str) -> usize {
    let lists = stderr.lines().filter_map(|line| line.split_once("outlived it and were killed: "));
    let processes: Vec<&str> = lists.flat_map(|(_, list)| list.split(", ")).collect();
    for process in &processes {
        let (pid, name) = process.split_once(' ').unwrap();
        // It is called setsid before it becomes sleep.
        assert!(["(sleep)", "(setsid)"].contains(&name), "{name}");
        wait_for_end(pid.parse().unwrap());
    }
    processes.len()
}

const HOSTILE: &[Bad<'_>] = &[
    // Its child holds its pipes, and ends no wait.
    ("orphan", &[("fault", "orphan")], "failed", &["before its job was done"]),
    ("detach", &[("fault", "detach")], "measured", &[]),
    ("vanish", &[("fault", "vanish")], "measured", &[]),
    ("pipe", &[("fault", "parity_pipe")], "struck", &["R11: ", "not in a regular file"]),
    ("link", &[("fault", "parity_link")], "struck", &["R11: ", "it is a link"]),
    ("huge", &[("fault", "parity_huge")], "struck", &["R11: ", "1099511627776 bytes"]),
    // Its weights are cut off while they are mapped.
    ("cut-off", &[("fault", "cut_off")], "failed", &["signal 7 (SIGBUS)"]),
    ("echo", &[("fault", "echo")], "struck", &["R11: ", "timed tokens are not the reference's"]),
    // Its last bits are others in timed steps alone.
    ("rounded", &[("perturb_last", "0.005")], "struck", &["R11: ", "drawn behind timed steps"]),
    ("unproved", &[("say", "logits/values=[]")], "failed", &["asked for 1 × 8 logits"]),
    // The fields left out would have shown that a rule is kept.
    ("hello", &[("leave_out", "hello")], "struck", &["R10: "]),
    ("loaded", &[("leave_out", "loaded")], "struck", &["R1: ", "R2: "]),
    ("usage", &[("leave_out", "usage")], "struck", &["R1: ", "R5: "]),
    ("parity", &[("leave_out", "parity")], "struck", &["R11: "]),
    (
        "peak",
        &[("say", "usage/peak_bytes=18446744073709551615")],
        "failed",
        &["`usage`", "peak_bytes is 18446744"],
    ),
    ("wall-0", &[("say", "usage/wall_ns=0")], "failed", &["wall_ns is 0"]),
    ("wall-inf", &[("say", "usage/wall_ns=1e308")], "failed", &["wall_ns is 1e+308"]),
    ("load", &[("say", "loaded/load_ns=-0.0")], "failed", &["load_ns is -0.0"]),
    ("cold", &[("say", "cold_start/marks_ns/0=18446744073709551615")], "failed", &["marks_ns is 18446744"]),
    ("first", &[("say", "sample/marks_ns/0=0")], "failed", &["`sample`", "marks_ns is 0"]),
    (
        "long",
        &[("say", "sample/marks_ns=[1,2,3,4,5,6,7]")],
        "failed",
        &["`sample`", "marks_ns is a list of 7"],
    ),
    ("unmarked", &[("say", "sample/marks_ns=[]")], "failed", &["marks_ns is empty"]),
    ("late", &[("say", "sample/marks_ns/1=18446744073709551615")], "failed", &["marks_ns is 18446744"]),
];

#[test]
fn what_a_hostile_worker_does_is_its_row_s_reason_and_the_others_stand() {
    // A worker that hangs would outlast the test.
    let (_, ran) = beside_a_good_one(HOSTILE, "--rounds 1 --timeout 3600s");
    let report = ran.json();
    // A value that was not observed is not shown.
    let unread = row(&report, "loaded");
    assert!(unread["precision"]["observed"].is_null() && unread["in_effect"].is_null(), "{unread}");
    assert!(row(&report, "parity")["agreement"].is_null());
    // The orphan's, and one of each process of the others.
    assert!(killed(&ran.stderr) >= 5, "{}", ran.stderr);
    let rule = rule(&report, "R7");
    let says = |label: &str| {
        let mut notes = array(&rule["notes"]).iter().filter(|note| note["framework"] == label);
        notes.any(|note| note["finding"].as_str().unwrap().contains("outlived it"))
    };
    // A process that detaches is killed, too; its worker is only known if it detached before the worker was
    // warm.
    assert!(says("detach"), "{rule}: {}", ran.stderr);
}

#[test]
fn a_worker_that_returns_what_its_job_tells_is_struck_where_it_would_feed_itself_too() {
    let installation = Installation::new().engine("good", &[]).engine("echo", &[("fault", "echo")]);
    let report = installation.json(1, "--frameworks good,echo --rounds 1 --decode greedy");
    has_outcome(&report, "echo", "struck", &["R11: "]);
    assert_eq!(outcome(&report, "good"), ("measured", ""));
    let rule = rule(&report, "R11");
    assert!(rule["unverified"].is_null(), "{rule}");
}

#[test]
fn a_model_that_spins_costs_one_time_limit() {
    let installation = Installation::new().engine("spin", &[("fault", "hang")]).timed("good", &[]);
    let report = installation.json(1, "--frameworks spin,good --rounds 1 --timeout 3s");
    has_outcome(&report, "spin", "failed", &["not done after 3 s (--timeout)"]);
    assert_eq!(outcome(&report, "good"), ("measured", ""));
    let facts = installation.all_samples();
    let mut of_spin = facts.iter().filter(|fact| fact["framework"] == "spin").map(|fact| &fact["fact"]);
    let is_no_process = |fact: &Value| fact == "absent" || fact == "shipped";
    assert!(of_spin.all(is_no_process), "it was the reference's worker, and was not started again");
}

#[test]
fn nothing_is_written_by_way_of_a_link_in_a_directory_of_results() {
    use std::os::unix::fs::symlink;
    let installation = Installation::new().timed("one", &[]);
    let elsewhere = installation.path("elsewhere");
    symlink(&elsewhere, installation.path("results/history.jsonl")).unwrap();
    let ran = installation.run("--frameworks one --rounds 1");
    assert!(ran.stderr.contains("it is a link, which may lead anywhere"), "{}", ran.stderr);
    assert!(!elsewhere.exists(), "nothing was appended");
    let directory = installation.results();
    std::fs::create_dir(&elsewhere).unwrap();
    symlink(&elsewhere, directory.join("rejudged")).unwrap();
    let rejudged = photofinish(&format!("report {} --rejudge", directory.display())).output().unwrap();
    let said = crate::common::joined(&String::from_utf8_lossy(&rejudged.stderr));
    assert!(!rejudged.status.success() && said.contains("it is a link, which may lead anywhere"), "{said}");
    assert_eq!(std::fs::read_dir(&elsewhere).unwrap().count(), 0);
}

#[test]
fn paths_that_are_no_utf8_are_paths() {
    use std::os::unix::ffi::OsStrExt;
    let installation = Installation::new().timed("one", &[]);
    let table = installation.path("").join(std::ffi::OsStr::from_bytes(b"r\xff.md"));
    let mut command = installation.driver("compare --frameworks one --rounds 1");
    let ran = crate::common::Ran::output_of(command.arg("--output").arg(&table));
    assert_eq!(ran.code, Some(0), "{}", ran.stderr);
    assert!(table.is_file());
}

#[test]
fn pipes_devices_and_directories_are_no_files() {
    let installation = Installation::new().timed("one", &[]);
    let at = |name: &str| installation.path(name).display().to_string();
    let pipe = at("pipe");
    assert!(Command::new("mkfifo").arg(&pipe).status().unwrap().success());
    std::fs::create_dir(installation.path("run")).unwrap();
    assert!(Command::new("mkfifo").arg(at("run/samples.jsonl")).status().unwrap().success());
    let no_file = &["not a regular file"][..];
    for path in [pipe.as_str(), "/dev/zero", "/tmp"] {
        installation.refuses(&[(&format!("--frameworks one --prompt-file {path}"), no_file)]);
    }
    installation.run(&format!("report {}", at("run"))).refused(&[]);
    std::fs::create_dir_all(installation.path("results")).unwrap();
    assert!(Command::new("mkfifo").arg(at("results/history.jsonl")).status().unwrap().success());
    let history = installation.run(&format!("history --results-dir {}", at("results")));
    assert!(history.code != Some(0) && history.stderr.contains(no_file[0]), "{}", history.stderr);
}

#[test]
fn a_full_disk_under_stderr_ends_no_run() {
    let installation = Installation::new().timed("one", &[]);
    let full = std::fs::File::options().write(true).open("/dev/full").unwrap();
    let mut command = installation.driver("--frameworks one --rounds 1");
    assert!(command.stdout(Stdio::null()).stderr(full).status().unwrap().success());
    assert_eq!(installation.samples().len(), 1, "what was measured is kept");
}

#[test]
fn more_prompts_than_can_be_measured_are_refused() {
    let installation = Installation::new().timed("one", &[]);
    let file = installation.path("prompts.txt");
    std::fs::write(&file, "a prompt\n".repeat(100_000)).unwrap();
    installation.refuses(&[
        (&format!("--frameworks one --prompt-file {}", file.display()), &["100000 prompts", "at most 1000"]),
        ("--frameworks one --prompt-file /dev/zero", &["/dev/zero", "not a regular file"]),
    ]);
}

#[test]
fn temporary_directories_of_a_killed_driver_are_removed_by_the_next() {
    let installation = Installation::new().engine("slow", &[("load_ms", "60000")]).timed("one", &[]);
    let temporary = installation.path("tmp");
    std::fs::create_dir(&temporary).unwrap();
    let count = || std::fs::read_dir(&temporary).unwrap().count();
    let mut command = installation.driver("--frameworks slow --rounds 1");
    command.env("TMPDIR", &temporary);
    let mut child = unheard(command);
    wait_for(|| {
        let mut entries = std::fs::read_dir(&temporary).unwrap();
        entries.any(|entry| entry.unwrap().path().join(".lock").exists())
    });
    child.kill().unwrap();
    child.wait().unwrap();
    assert_eq!(count(), 1, "a killed program cannot tidy up");
    let mut next = installation.driver("--frameworks one --rounds 1");
    assert!(next.env("TMPDIR", &temporary).output().unwrap().status.success());
    assert_eq!(count(), 0);
}

/// Adds a worker that is a script which starts the mock without `exec`, after this line.
fn wrapped(installation: Installation, name: &str, before: &str, more: &str) -> Installation {
    let script = format!("#!/bin/sh\n{before}\n{} \"$@\"\n", program("engine-mock").display());
    installation.script(name, &script);
    let options = format!("[options]\ntoken_ms = \"20\"\n{more}\n");
    installation.of_worker(name, "mock", &format!("{{root}}/{name}"), &options);
    installation
}

#[test]
fn all_processes_of_a_worker_count_and_wait() {
    let burns = "[ \"$1\" = --hello ] || setsid sh -c 'while :; do :; done' </dev/null >/dev/null 2>&1 &";
    let installation = Installation::new().engine("plain", &[("token_ms", "20")]);
    let installation = wrapped(wrapped(installation, "shell", "", ""), "ghost", burns, "");
    let line = "--frameworks plain,shell,ghost --rounds 1 --iterations 4 --threads 1";
    installation.run(line);
    let facts = installation.all_samples();
    for end in facts.iter().filter(|fact| fact["fact"] == "ended") {
        let (label, seen, waited) =
            (end["process"]["framework"].as_str().unwrap(), &end["seen"], &end["waited"]);
        let usage = array(&end["events"]).iter().find(|event| event["event"] == "usage").unwrap();
        let number = |value: &serde_json::Value| value.as_f64().unwrap_or_else(|| panic!("{label}: {end}"));
        assert!(waited["was_stopped"] == true && number(&waited["cpu_s"]) < 0.05, "{label}: {waited}");
        assert!(number(&seen["peak_bytes"]) > 0.9 * number(&usage["peak_bytes"]), "{label}: {seen}");
        assert!(number(&seen["cpu_ns"]) > 0.8 * number(&usage["cpu_ns"]), "{label}: {seen}");
        assert_eq!(seen["family_bytes"].is_null(), label == "plain", "{seen}");
        let more = number(&seen["cpu_ns"]) - number(&usage["cpu_ns"]);
        assert!(label != "ghost" || more > 50e6, "{seen}");
    }
}

#[test]
fn a_reference_that_two_others_contradict_strikes_none_of_them() {
    let installation = wrapped(Installation::new(), "wrong", "", "perturb = \"2\"");
    let installation = wrapped(installation, "shell", "", "").engine("good", &[("token_ms", "20")]);
    let report = installation.json(1, "--frameworks wrong,shell,good --rounds 1 --iterations 2");
    has_outcome(&report, "wrong", "struck", &["R11: ", "reference: shell in f32"]);
    assert!(["shell", "good"].map(|name| outcome(&report, name).0) == ["measured"; 2], "{report}");
}

#[test]
fn who_changes_the_cpus_of_a_worker_that_waits_disturbs_the_run_and_strikes_no_row() {
    use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};
    let mine = sched_getaffinity(None).unwrap();
    if mine.count() < 2 {
        return;
    }
    let mut one = CpuSet::new();
    one.set((0..CpuSet::MAX_CPU).find(|&cpu| mine.is_set(cpu)).unwrap());
    let slow = [("token_ms", "30")];
    let installation = Installation::new().engine("one", &slow).engine("two", &slow);
    let line = "--frameworks one,two --rounds 1 --iterations 6 --threads 2 --format json";
    let driver = heard(installation.driver(line));
    let is_stopped = |pid: &u32| stat(*pid).is_some_and(|one| one.is_stopped);
    wait_for(|| {
        let stopped = descendants(driver.id()).into_iter().find(is_stopped);
        let is_warm = samples_so_far(&installation) >= 2;
        let stopped = stopped.filter(|_| is_warm).and_then(|pid| rustix::process::Pid::from_raw(pid as i32));
        stopped.is_some_and(|pid| sched_setaffinity(Some(pid), &one).is_ok())
    });
    let report = Ran::from(driver.wait_with_output().unwrap()).json();
    assert!(["one", "two"].map(|name| outcome(&report, name).0) == ["measured"; 2], "{report}");
    let facts = installation.all_samples();
    let said = facts.iter().filter_map(|fact| fact["reason"].as_str());
    assert_eq!(said.filter(|reason| reason.contains("it changed its CPUs")).count(), 1);
}
