//! Workers and files that lie, hang on, or hurt: each is a row with its reason or a sentence, and the driver goes on.
#![cfg(target_os = "linux")]

use std::process::{Command, Stdio};

use serde_json::Value;

use crate::common::{Installation, row};
use crate::pipeline::wait_for;

/// The report of a comparison of `good` with `bad`, whose options are these, and what was said on stderr.
fn beside_a_good_one(options: &[(&str, &str)]) -> (Value, String) {
    let installation = Installation::new().timed("good", &[]).timed("bad", options);
    // Whoever hangs would do so until long after the test was given up.
    let asked = ["--frameworks", "good,bad", "--rounds", "1", "--reference", "good", "--timeout", "3600"];
    let ran = installation.run(&[&asked[..], &["--format", "json"]].concat());
    let report = ran.json();
    assert_eq!(row(&report, "good")["state"], "measured", "{}", row(&report, "good")["reasons"]);
    (report, ran.stderr)
}

/// State and first reason of the bad one.
fn verdict(options: &[(&str, &str)]) -> (String, String) {
    let (report, _) = beside_a_good_one(options);
    let row = row(&report, "bad");
    let reason = row["reasons"][0].as_str().unwrap_or_default();
    (row["state"].as_str().unwrap().to_owned(), reason.to_owned())
}

/// The processes that are said to have been killed, all of which must be gone.
fn killed(stderr: &str) -> usize {
    let lists = stderr.lines().filter_map(|line| line.split_once("outlived it and were killed: "));
    let processes: Vec<&str> = lists.flat_map(|(_, list)| list.split(", ")).collect();
    for process in &processes {
        let (pid, name) = process.split_once(' ').unwrap();
        // It is setsid until it has become sleep.
        assert!(["(sleep)", "(setsid)"].contains(&name), "{name}");
        wait_for(|| !std::path::Path::new(&format!("/proc/{pid}/exe")).exists());
    }
    processes.len()
}

#[test]
fn the_end_of_a_worker_ends_the_wait_though_a_child_of_it_holds_its_pipes() {
    let (report, stderr) = beside_a_good_one(&[("fault", "orphan")]);
    let row = row(&report, "bad");
    assert!(row["reasons"][0].as_str().unwrap().contains("before its job was done"), "{row}");
    assert!(killed(&stderr) >= 1, "{stderr}");
}

#[test]
fn a_child_that_detached_itself_is_found_killed_and_noted() {
    let (report, stderr) = beside_a_good_one(&[("fault", "detach")]);
    assert_eq!(row(&report, "bad")["state"], "measured", "{}", row(&report, "bad")["reasons"]);
    assert!(killed(&stderr) >= 2, "after its load from a cold cache, and after its round: {stderr}");
    let rule = report["rules"].as_array().unwrap().iter().find(|rule| rule["id"] == "R7").unwrap();
    let note = rule["notes"][0]["finding"].as_str().unwrap();
    assert!(note.contains("outlived it and were killed"), "{note}");
}

#[test]
fn a_parity_file_that_is_no_file_of_its_size_strikes_by_r11() {
    for (fault, said) in [
        ("parity_pipe", "not in a regular file"),
        ("parity_link", "it is a link"),
        ("parity_huge", "has 1099511627776 bytes"),
    ] {
        let (state, reason) = verdict(&[("fault", fault)]);
        assert_eq!(state, "struck", "{fault}: {reason}");
        assert!(reason.starts_with("R11: ") && reason.contains(said), "{fault}: {reason}");
    }
}

#[test]
fn weights_that_are_cut_off_while_they_are_mapped_end_a_row_and_not_the_run() {
    let (state, reason) = verdict(&[("fault", "cut_off")]);
    assert_eq!((state.as_str(), reason.as_str()), ("failed", "it was ended by signal 7 (SIGBUS)"));
}

#[test]
fn an_event_that_is_left_out_strikes_by_the_rule_that_it_would_have_shown() {
    for (event, rule) in [("hello", "R10: "), ("loaded", "R1: "), ("usage", "R1: "), ("parity", "R11: ")] {
        let (report, _) = beside_a_good_one(&[("leave_out", event)]);
        let row = row(&report, "bad");
        let reasons: Vec<&str> =
            row["reasons"].as_array().unwrap().iter().filter_map(Value::as_str).collect();
        assert_eq!(row["state"], "struck", "{event}: {reasons:?}");
        assert!(reasons[0].starts_with(rule), "{event}: {reasons:?}");
        if event == "loaded" {
            assert!(row["precision"]["observed"].is_null() && row["in_effect"].is_null(), "{row}");
            assert!(reasons.iter().any(|reason| reason.starts_with("R2: ")), "{reasons:?}");
        }
        if event == "usage" {
            assert!(reasons.iter().any(|reason| reason.starts_with("R5: ")), "{reasons:?}");
        }
        if event == "parity" {
            assert!(row["agreement"].is_null(), "what was not observed is not shown: {row}");
        }
    }
}

#[test]
fn an_impossible_reading_ends_its_row_by_name() {
    for (say, name) in [
        (
            "usage/peak_bytes=18446744073709551615",
            "`usage` has an impossible reading: peak_bytes is 18446744",
        ),
        ("usage/wall_ns=0", "wall_ns is 0"),
        ("usage/wall_ns=1e308", "wall_ns is 1e+308"),
        ("loaded/load_ns=-0.0", "load_ns is -0.0"),
        ("cold_start/first_token_ns=18446744073709551615", "first_token_ns is 18446744073709551615"),
        ("sample/first_token_ns=0", "`sample` has an impossible reading: first_token_ns is 0"),
        ("sample/gaps_ns/0=18446744073709551615", "gaps_ns is 18446744073709551615"),
    ] {
        let (state, reason) = verdict(&[("say", say)]);
        assert_eq!(state, "failed", "{say}: {reason}");
        assert!(reason.contains(name), "{say}: {reason}");
    }
}

#[test]
fn more_prompts_than_can_be_measured_are_refused() {
    let installation = Installation::new().timed("one", &[]);
    let file = installation.path("prompts.txt");
    std::fs::write(&file, "a prompt\n".repeat(100_000)).unwrap();
    let ran = installation.run(&["--frameworks", "one", "--prompts", file.to_str().unwrap()]);
    ran.refused(&["100000 prompts are asked for", "at most 1000", "choose fewer"]);
    installation
        .run(&["--frameworks", "one", "--prompts", "/dev/zero"])
        .refused(&["/dev/zero has more than 64 MiB of prompts"]);
}

#[test]
fn before_anything_is_measured_a_signal_ends_the_driver_at_once() {
    let installation = Installation::new().timed("one", &[]);
    let pipe = installation.path("prompts");
    assert!(Command::new("mkfifo").arg(&pipe).status().unwrap().success());
    // Nobody ever writes there.
    let mut command = installation.driver(&["--frameworks", "one", "--prompts", pipe.to_str().unwrap()]);
    let mut child = command.stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap();
    let status = format!("/proc/{}/status", child.id());
    wait_for(|| {
        let status = std::fs::read_to_string(&status).unwrap_or_default();
        let caught = status.lines().find_map(|line| line.strip_prefix("SigCgt:"));
        let caught = caught.and_then(|caught| u64::from_str_radix(caught.trim(), 16).ok()).unwrap_or(0);
        caught & (1 << 14) != 0 // SIGTERM
    });
    Command::new("kill").args(["-TERM", &child.id().to_string()]).status().unwrap();
    assert_eq!(child.wait().unwrap().code(), Some(130));
    assert_eq!(std::fs::read_dir(installation.path("results")).unwrap().count(), 0);
}

#[test]
fn temporary_directories_of_a_killed_driver_are_removed_by_the_next() {
    let installation = Installation::new().engine("slow", &[("load_ms", "60000")]).timed("one", &[]);
    let temporary = installation.path("tmp");
    std::fs::create_dir(&temporary).unwrap();
    let count = || std::fs::read_dir(&temporary).unwrap().count();
    let is_owned = || {
        let mut entries = std::fs::read_dir(&temporary).unwrap();
        entries.any(|entry| entry.unwrap().path().join(".lock").exists())
    };
    let mut command = installation.driver(&["--frameworks", "slow", "--rounds", "1"]);
    command.env("TMPDIR", &temporary).stdout(Stdio::null()).stderr(Stdio::null());
    let mut child = command.spawn().unwrap();
    wait_for(is_owned);
    child.kill().unwrap();
    child.wait().unwrap();
    assert_eq!(count(), 1, "a killed program cannot tidy up");
    let mut next = installation.driver(&["--frameworks", "one", "--rounds", "1"]);
    assert!(next.env("TMPDIR", &temporary).output().unwrap().status.success());
    assert_eq!(count(), 0);
}
