//! Interleaved rounds: processes that run at the same time and take turns, also if one of them fails.

use std::collections::BTreeSet;

use serde_json::Value;

use crate::common::{
    Installation, array, descendants, has_outcome, outcome, row, rule, samples_so_far, unheard, wait_for,
    wait_for_end,
};

/// The labels of each block's turns, in the order they were taken.
fn blocks(installation: &Installation) -> Vec<Vec<String>> {
    let blocks = installation.all_samples().into_iter().filter(|fact| fact["fact"] == "block");
    let label = |turn: &Value| turn[0].as_str().unwrap().to_owned();
    blocks.map(|block| array(&block["turns"]).iter().map(label).collect()).collect()
}

#[test]
fn every_block_has_a_turn_of_everybody_in_an_order_of_its_own() {
    let installation = Installation::new().timed("a", &[]).timed("b", &[]).timed("c", &[]);
    installation.run("--frameworks a,b,c --rounds 2 --iterations 6").exits(0);
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
    let report = installation.json(0, "--frameworks a,b,c,d,e --rounds 6 --iterations 2 --memory 0.8");
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
    let with_b = array(&report["comparisons"]).iter().filter(across);
    let figures = with_b.filter(|verdict| verdict["advantage"].is_number()).count();
    assert_eq!(figures, 4, "b has a figure beside each");
    let processes = installation.samples().iter().filter(|run| run["framework"] == "a").count();
    assert_eq!(processes, 6, "the first lives through both groups of a round");
}

/// Each turn's number of gaps and the places of those just after a pause.
fn pauses(installation: &Installation) -> BTreeSet<(usize, Vec<u64>)> {
    let facts = installation.all_samples();
    let blocks = facts.iter().filter(|fact| fact["fact"] == "block");
    let of_turn = |turn: &Value| {
        let sample = &turn[1]["sample"];
        let places = sample["lead_in"].as_array().into_iter().flatten().filter_map(Value::as_u64);
        (array(&sample["marks_ns"]).len() - 1, places.collect())
    };
    blocks.flat_map(|block| array(&block["turns"])).map(of_turn).collect()
}

#[test]
fn contenders_alternate_within_requests_unless_that_is_off_or_a_turn_has_nobody_to_alternate_with() {
    let of = |flags: &str| {
        let installation = Installation::new().timed("a", &[]).timed("b", &[]);
        let report = installation.json(0, &format!("--rounds 1 --iterations 2 --new-tokens 8 {flags}"));
        let is_alone = !flags.contains("a,b") || report["plan"]["schedule"] == "sequential";
        assert!(blocks(&installation).iter().all(|block| (block.len() == 1) == is_alone), "{flags}");
        (pauses(&installation), report["slices"]["tokens"].clone(), report["slices"]["reason"].is_string())
    };
    let whole = (BTreeSet::from([(7, vec![])]), Value::Null, true);
    assert_eq!(of("--frameworks a,b --slice 2"), (BTreeSet::from([(7, vec![0, 3, 6])]), 2.into(), false));
    assert_eq!(of("--frameworks a,b --slice off"), whole);
    assert_eq!(of("--frameworks a --slice 2"), whole);
    assert_eq!(of("--frameworks a,b --slice 2 --schedule sequential"), whole);
}

#[test]
fn automatic_rounds_end_when_the_difference_is_clear_with_blocks_by_costs_and_variances() {
    let installation = Installation::new().timed("a", &[("token_ms", "2")]).timed("b", &[("token_ms", "6")]);
    let suite = "new_tokens = 6\n[[prompts]]\ntokens = [1, 2, 3, 4]\n";
    std::fs::write(installation.path("configs/suites/open.toml"), suite).unwrap();
    let report = installation.json(0, "--suite open --frameworks a,b --rounds auto");
    let rounds = report["rounds"].as_u64().unwrap();
    assert!((6..=12).contains(&rounds), "{rounds} rounds for a factor of three");
    assert_eq!(report["end"]["kind"], "clear");
    let facts = installation.all_samples();
    let chosen: Vec<&Value> = facts.iter().filter(|fact| fact["fact"] == "blocks").collect();
    assert!(chosen.iter().all(|chosen| (2..=32).contains(&chosen["blocks"].as_u64().unwrap())), "{chosen:?}");
    let blocks: Vec<&Value> = facts.iter().filter(|fact| fact["fact"] == "block").collect();
    for round in 0..rounds {
        let of_round = chosen.iter().rfind(|chosen| chosen["from_round"].as_u64().unwrap() <= round).unwrap();
        let count = blocks.iter().filter(|block| block["round"] == round).count() as u64;
        assert_eq!(of_round["blocks"], count, "after each round the number is chosen again");
    }
    let stands = |block: &&Value| array(&block["turns"]).iter().all(|turn| turn[1]["stands"] == true);
    assert!(blocks.iter().all(stands));
    assert_eq!(row(&report, "a")["rounds"], report["rounds"]);
}

#[cfg(target_os = "linux")]
#[test]
fn threads_that_spin_between_turns_are_stopped_with_their_process() {
    let spinning = [("token_ms", "30"), ("busy_threads", "1"), ("busy_waiting", "true")];
    let installation = Installation::new().engine("spins", &spinning).engine("calm", &[("token_ms", "30")]);
    let report = installation.json(0, "--frameworks spins,calm --rounds 1 --iterations 6 --threads 2");
    let rule = rule(&report, "R15");
    assert_eq!((array(&rule["broken_by"]), &rule["unverified"]), (&[][..], &Value::Null));
    let facts = installation.all_samples();
    let ends = facts.iter().filter(|fact| fact["fact"] == "ended");
    for end in ends {
        let waited = &end["waited"];
        assert!(waited["was_stopped"] == true && waited["seconds"].as_f64().unwrap() > 0.5, "{waited}");
        assert!(waited["cpu_s"].as_f64().unwrap() < 0.02, "{waited}");
    }
}

#[test]
fn a_worker_that_dies_or_hangs_is_a_failed_row_and_the_others_go_on() {
    // In a whole request, and between two pauses of one.
    for (flags, at) in [("--slice off", "30"), ("--new-tokens 8 --slice 2", "40")] {
        let installation = Installation::new()
            .timed("good", &[])
            .timed("crash", &[("fault", "crash"), ("fault_at", at)])
            .timed("hang", &[("fault", "hang"), ("fault_at", at)])
            .timed("early", &[("fault", "hang"), ("fault_at", "2")])
            .timed("fine", &[]);
        let line =
            format!("--frameworks good,crash,hang,early,fine --rounds 2 --iterations 4 --timeout 2s {flags}");
        let report = installation.json(1, &line);
        for label in ["good", "fine"] {
            assert_eq!(outcome(&report, label), ("measured", ""));
            assert_eq!(row(&report, label)["rounds"], 2);
        }
        let limit = "not done after 2 s";
        for (label, said) in [("crash", "SIGABRT"), ("hang", limit), ("early", limit)] {
            has_outcome(&report, label, "failed", &[said]);
            let turns = blocks(&installation).concat().iter().filter(|taken| *taken == label).count();
            assert!(turns > 0 || label == "early", "what {label} did before is kept");
        }
    }
}

/// Workers that sleep as long as the honest one and look faster, each with the metric in which it does.
#[test]
fn a_worker_that_tells_less_time_than_passes_has_no_verdict_where_it_lies() {
    let sliced: [(&str, &str, &[(&str, &str)]); 5] = [
        ("half", "throughput", &[("clock", "shortened")]),
        ("slightly", "throughput", &[("clock", "shortened"), ("told", "0.93")]),
        ("first", "first_token", &[("clock", "shortened"), ("told_of", "prompt")]),
        ("load", "load", &[("clock", "shortened"), ("told_of", "load")]),
        ("moved", "throughput", &[("after_pause", "1.8")]),
    ];
    let whole: [(&str, &str, &[(&str, &str)]); 2] = [
        ("context", "throughput", &[("clock", "shortened")]),
        ("rarely", "total", &[("clock", "shortened"), ("told_rarely", "true")]),
    ];
    let times = |token_ms, load_ms| [("token_ms", token_ms), ("prefill_token_ms", "2"), ("load_ms", load_ms)];
    let runs = [
        (&sliced[..], "--new-tokens 10 --slice 2 --iterations 2"),
        (&whole[..], "--new-tokens 6 --slice off --context 8 --iterations 5"),
    ];
    for (liars, flags) in runs {
        let mut installation =
            Installation::new().engine("honest", &times("10", "60")).engine("slower", &times("20", "120"));
        for (name, _, lie) in liars {
            installation = installation.engine(name, &[&times("10", "60")[..], lie].concat());
        }
        let names: Vec<&str> = liars.iter().map(|(name, ..)| *name).collect();
        let line = format!("--frameworks honest,slower,{} --rounds 6 {flags}", names.join(","));
        let report = installation.json(0, &line);
        let found = |other: &str, metric: &str| {
            let is_it = |one: &&Value| {
                let pair = [&one["a"], &one["b"]].map(|label| label.as_str().unwrap());
                one["metric"] == metric && pair.contains(&"honest") && pair.contains(&other)
            };
            report["comparisons"].as_array().unwrap().iter().find(is_it).unwrap()
        };
        for (name, metric, _) in liars {
            let pair = found(name, metric);
            assert!(
                pair["verdict"] == "not_measurable" || pair["verdict"] == "inconclusive",
                "{name}: {pair}"
            );
            assert!(pair["reason"]["clocks"].is_object() || *name != "half", "{name}: {pair}");
            assert_eq!(outcome(&report, name).0, "measured");
        }
        let pair = found("slower", "throughput");
        assert_eq!(pair["verdict"], "faster", "the honest keep theirs: {pair}");
    }
}

#[cfg(target_os = "linux")]
#[test]
fn no_stopped_process_outlives_a_driver_that_is_ended_in_whatever_way() {
    // In the load, in warm-up, and in a turn of one while the other is stopped.
    let [load, warm_up, turn] = [[("load_ms", "900")], [("cold_ms", "900")], [("token_ms", "120")]];
    std::thread::scope(|scope| {
        for (slow, signal) in
            [(load, "-KILL"), (warm_up, "-KILL"), (turn, "-KILL"), (turn, "-INT"), (turn, "-TERM")]
        {
            scope.spawn(move || no_worker_is_left(&slow, signal));
        }
    });
}

#[cfg(target_os = "linux")]
fn no_worker_is_left(slow: &[(&str, &str)], signal: &str) {
    let installation = Installation::new().engine("slow", slow).engine("other", &[]);
    let line = "--frameworks slow,other --rounds 50 --parity-reference other";
    let mut child = unheard(installation.driver(line));
    let mut workers = BTreeSet::new();
    wait_for(|| {
        workers.extend(descendants(child.id()));
        samples_so_far(&installation) >= 2
    });
    workers.extend(descendants(child.id()));
    crate::common::signal(child.id(), signal);
    child.wait().unwrap();
    workers.into_iter().for_each(wait_for_end);
}
