//! Interleaved rounds: processes that live together and take turns, and what becomes of them when something breaks.

use std::collections::BTreeSet;
use std::process::Stdio;

use serde_json::Value;

use crate::common::{Installation, row};
use crate::pipeline::wait_for;

/// The labels of each block's turns, in the order they were taken.
fn blocks(installation: &Installation) -> Vec<Vec<String>> {
    let blocks = installation.all_samples().into_iter().filter(|fact| fact["fact"] == "block");
    let label = |turn: &Value| turn[0].as_str().unwrap().to_owned();
    blocks.map(|block| block["turns"].as_array().unwrap().iter().map(label).collect()).collect()
}

#[test]
fn every_block_has_a_turn_of_everybody_in_an_order_of_its_own() {
    let installation = Installation::new().timed("a", &[]).timed("b", &[]).timed("c", &[]);
    let ran = installation.run(&["--frameworks", "a,b,c", "--rounds", "2", "--iterations", "6"]);
    assert_eq!(ran.code, Some(0), "{}", ran.stderr);
    let blocks = blocks(&installation);
    assert_eq!(blocks.len(), 12, "six in each round");
    let has_all = |block: &Vec<String>| block.iter().collect::<BTreeSet<_>>().len() == 3;
    assert!(blocks.iter().all(has_all), "{blocks:?}");
    assert!(blocks.iter().collect::<BTreeSet<_>>().len() > 2, "orders are shuffled: {blocks:?}");
    let begun_by = |label: &str| blocks.iter().filter(|block| block[0] == label).count();
    assert_eq!(["a", "b", "c"].map(begun_by), [4; 3], "each begins as often");
}

#[test]
fn what_does_not_fit_together_takes_turns_in_groups_that_share_the_first() {
    let installation = ["a", "b", "c", "d", "e"]
        .into_iter()
        .fold(Installation::new(), |installation, name| installation.timed(name, &[]));
    let asked = ["--frameworks", "a,b,c,d,e", "--rounds", "6", "--iterations", "2", "--memory", "0.8"];
    let report = installation.run(&[&asked[..], &["--format", "json"]].concat()).json();
    assert_eq!(report["plan"]["schedule"], "grouped");
    let blocks = blocks(&installation);
    let groups: BTreeSet<BTreeSet<String>> =
        blocks.iter().map(|block| block.iter().cloned().collect()).collect();
    let names = |names: &[&str]| names.iter().map(|name| (*name).to_owned()).collect::<BTreeSet<_>>();
    assert_eq!(groups, BTreeSet::from([names(&["a", "b", "c"]), names(&["a", "d", "e"])]));
    assert_eq!(blocks.len(), 6 * 2 * 2, "each round has two blocks of each group");
    for name in ["a", "b", "c", "d", "e"] {
        let row = row(&report, name);
        assert_eq!((&row["state"], &row["rounds"]), (&"measured".into(), &6.into()), "{row}");
    }
    let across = |verdict: &&Value| {
        verdict["metric"] == "throughput" && [&verdict["a"], &verdict["b"]].contains(&&"b".into())
    };
    let with_b = report["comparisons"].as_array().unwrap().iter().filter(across);
    assert_eq!(
        with_b.filter(|verdict| verdict["advantage"].is_number()).count(),
        4,
        "b has a figure beside each"
    );
    let processes = installation.samples().iter().filter(|run| run["framework"] == "a").count();
    assert_eq!(processes, 6, "the first lives through both groups of a round");
}

#[test]
fn one_after_another_where_that_is_asked_for() {
    let installation = Installation::new().timed("a", &[]).timed("b", &[]);
    let ran = installation.run(&["--frameworks", "a,b", "--rounds", "1", "--schedule", "sequential"]);
    assert_eq!(ran.code, Some(0), "{}", ran.stderr);
    assert!(blocks(&installation).iter().all(|block| block.len() == 1));
    // Where its lines break depends on the processor's name.
    let words: Vec<_> = ran.stdout.split_whitespace().collect();
    assert!(words.join(" ").contains("; sequential: one framework after"), "{}", ran.stdout);
}

#[test]
fn a_pilot_chooses_the_number_of_blocks_and_takes_no_part_in_verdicts() {
    let installation = Installation::new().timed("a", &[]).timed("b", &[]);
    let suite = "new_tokens = 6\n[[prompts]]\ntokens = [1, 2, 3, 4]\n";
    std::fs::write(installation.path("configs/suites/open.toml"), suite).unwrap();
    let arguments = ["--suite", "open", "--frameworks", "a,b", "--rounds", "auto", "--format", "json"];
    let report = installation.run(&arguments).json();
    let chosen = report["blocks"]["blocks"].as_u64().unwrap();
    assert!((4..=32).contains(&chosen), "{}", report["blocks"]);
    let facts = installation.all_samples();
    let (pilot, measured): (Vec<_>, Vec<_>) =
        facts.iter().filter(|fact| fact["fact"] == "block").partition(|block| block["is_pilot"] == true);
    assert_eq!(measured.len() as u64, chosen * report["rounds"].as_u64().unwrap());
    assert!(!pilot.is_empty());
    let stands =
        |block: &&Value| block["turns"].as_array().unwrap().iter().all(|turn| turn[1]["stands"] == true);
    assert!(!pilot.iter().any(stands) && measured.iter().all(stands));
    assert_eq!(row(&report, "a")["rounds"], report["rounds"]);
}

#[cfg(target_os = "linux")]
#[test]
fn threads_that_spin_between_turns_are_stopped_with_their_process() {
    let spinning = [("token_ms", "30"), ("busy_threads", "1"), ("busy_waiting", "true")];
    let installation = Installation::new().engine("spins", &spinning).engine("calm", &[("token_ms", "30")]);
    let arguments = ["--frameworks", "spins,calm", "--rounds", "1", "--iterations", "6", "--threads", "2"];
    let report = installation.run(&[&arguments[..], &["--format", "json"]].concat()).json();
    let rule = report["rules"].as_array().unwrap().iter().find(|rule| rule["id"] == "R15").unwrap();
    assert_eq!((rule["broken_by"].as_array().unwrap().len(), &rule["unverified"]), (0, &Value::Null));
    let facts = installation.all_samples();
    let ends = facts.iter().filter(|fact| fact["fact"] == "ended");
    for end in ends {
        let waited = &end["waited"];
        assert!(waited["was_stopped"] == true && waited["seconds"].as_f64().unwrap() > 0.5, "{waited}");
        assert!(waited["cpu_s"].as_f64().unwrap() < 0.02, "{waited}");
    }
}

/// What a worker that misbehaves in one of its turns is told to have done. The others go on.
fn in_a_turn(options: &[(&str, &str)], arguments: &[&str]) -> String {
    let installation = Installation::new().timed("good", &[]).timed("bad", options).timed("fine", &[]);
    let common = ["--frameworks", "good,bad,fine", "--rounds", "2", "--iterations", "4", "--format", "json"];
    let report = installation.run(&[&common[..], arguments].concat()).json();
    for label in ["good", "fine"] {
        assert_eq!(row(&report, label)["state"], "measured", "{}", row(&report, label)["reasons"]);
        assert_eq!(row(&report, label)["rounds"], 2);
    }
    assert_eq!(row(&report, "bad")["state"], "failed");
    let facts = installation.all_samples();
    let turns = facts.iter().filter(|fact| fact["fact"] == "block").flat_map(|fact| fact["turns"].as_array());
    let of_bad = turns.flatten().filter(|turn| turn[0] == "bad").count();
    assert!(of_bad > 0, "what it did before is kept");
    row(&report, "bad")["reasons"][0].as_str().unwrap().to_owned()
}

#[test]
fn a_worker_that_dies_or_hangs_in_its_turn_is_a_failed_row() {
    let at = ("fault_at", "30");
    let reason = in_a_turn(&[("fault", "crash"), at], &[]);
    assert!(reason.contains("SIGABRT"), "{reason}");
    let reason = in_a_turn(&[("fault", "hang"), at], &["--timeout", "2"]);
    assert!(reason.contains("not done after 2 s"), "{reason}");
}

#[test]
fn a_worker_that_answers_twice_is_found_out() {
    let installation = Installation::new().timed("good", &[]).timed("bad", &[("fault", "twice")]);
    let ran = installation.run(&["--frameworks", "good,bad", "--rounds", "1", "--format", "json"]);
    let reason = row(&ran.json(), "bad")["reasons"][0].as_str().unwrap().to_owned();
    assert!(reason.contains("not asked for"), "{reason}");
}

#[cfg(target_os = "linux")]
#[test]
fn no_stopped_process_outlives_a_driver_that_is_ended_in_whatever_way() {
    // In the load, in warm-up, and in a turn of one while the other is stopped.
    for slow in [[("load_ms", "900")], [("token_ms", "120")], [("cold_ms", "900")]] {
        for signal in ["-KILL", "-INT", "-TERM"] {
            let installation = Installation::new().engine("slow", &slow).engine("other", &[]);
            let mut command = installation.driver(&[
                "--frameworks",
                "slow,other",
                "--rounds",
                "50",
                "--reference",
                "other",
            ]);
            let mut child = command.stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap();
            let pid = child.id().to_string();
            let mut workers = BTreeSet::new();
            wait_for(|| {
                workers.extend(crate::pipeline::children(&pid));
                crate::pipeline::samples_so_far(&installation) >= 2
            });
            workers.extend(crate::pipeline::children(&pid));
            std::process::Command::new("kill").args([signal, &pid]).status().unwrap();
            child.wait().unwrap();
            for worker in &workers {
                wait_for(|| !std::path::Path::new(&format!("/proc/{worker}/exe")).exists());
            }
        }
    }
}
