//! The pipeline end to end, with engines whose times are known.

use std::collections::BTreeSet;

use serde_json::{Value, json};

use crate::common::{
    Installation, Ran, array, descendants, has_outcome, heard, outcome, read, row, samples_so_far, signal,
    stat, wait_for, wait_for_end,
};

#[test]
fn known_differences_are_found_with_their_sizes_and_every_sample_and_the_environment_are_saved() {
    let quick = [("token_ms", "1")];
    let slowed = "clock = \"scripted\"\n[settings]\nslowdown = 0.5\n";
    let installation = Installation::new()
        .timed("quick", &quick)
        .timed("slow", &[("token_ms", "2")])
        .configured("slowed", &quick, slowed);
    let report = installation.json(0, "--frameworks quick,slow,slowed --new-tokens 20 --seed 7");
    let throughput: Vec<&Value> =
        array(&report["comparisons"]).iter().filter(|one| one["metric"] == "throughput").collect();
    for (b, advantage) in [("slow", 1.99..2.01), ("slowed", 1.49..1.51)] {
        let found = throughput.iter().find(|one| one["a"] == "quick" && one["b"] == b).unwrap();
        assert_eq!((&found["verdict"], &found["verdict_of_b"]), (&json!("faster"), &json!("slower")));
        assert!(advantage.contains(&found["advantage"].as_f64().unwrap()), "{found}");
    }
    let agreement = &row(&report, "quick")["agreement"];
    assert_eq!((&agreement["broken"], &agreement["max_abs"]), (&Value::Null, &json!(0.0)));

    let samples = installation.samples();
    let pids: BTreeSet<_> = samples.iter().map(|run| run["pid"].as_u64().unwrap()).collect();
    assert_eq!((samples.len(), pids.len()), (18, 18), "three in six rounds, each in a process of its own");
    let orders: BTreeSet<_> =
        samples.chunks(3).map(|round| round[0]["framework"].as_str().unwrap()).collect();
    assert_eq!(orders.len(), 3, "the order is shuffled between rounds");
    let environment = read(&installation.results().join("environment.json"));
    assert!(environment["memory_bytes"].as_u64().unwrap() > 0);
    assert!(array(&environment["command"]).contains(&json!("--seed")), "{environment}");
    for file in ["plan.json", "report.json", "report.md", "report.csv"] {
        assert!(installation.results().join(file).is_file(), "{file}");
    }
}

#[test]
fn the_same_seed_gives_the_same_order() {
    let order = |seed: u64| {
        let installation = Installation::new().timed("a", &[]).timed("b", &[]).timed("c", &[]);
        installation.run(&format!("--frameworks a,b,c --rounds 2 --iterations 1 --seed {seed}"));
        installation.samples().into_iter().map(|mut run| run["framework"].take()).collect::<Vec<_>>()
    };
    assert_eq!(order(3), order(3));
    assert_ne!(order(3), order(4));
}

/// A framework with a fault: its name, its options, its state, and words of its reasons.
pub(crate) type Bad<'a> = (&'a str, &'a [(&'a str, &'a str)], &'a str, &'a [&'a str]);

/// Compares a good framework with these: a fault of one is its row's reason, and the others keep their
/// results.
pub(crate) fn beside_a_good_one(bad: &[Bad<'_>], more: &str) -> (Installation, Ran) {
    let good = Installation::new().timed("good", &[("optimised", "true")]);
    let all = bad.iter().fold(good, |all, (name, options, ..)| all.timed(name, options));
    let names: Vec<&str> = bad.iter().map(|bad| bad.0).collect();
    let ran = all.run(&format!("--frameworks good,{} {more} --format json", names.join(","))).exits(1);
    let report = ran.json();
    assert_eq!(outcome(&report, "good"), ("measured", ""));
    for (name, _, state, parts) in bad {
        let (found, first) = outcome(&report, name);
        let reasons = row(&report, name)["reasons"].to_string();
        let is_said = parts.iter().all(|part| reasons.contains(part));
        assert!(found == *state && is_said && !reasons.contains("backtrace"), "{name}: {found}: {reasons}");
        assert!(found != "struck" || first.starts_with(parts[0]), "{name}: {first}");
    }
    (all, ran)
}

const BAD: &[Bad<'_>] = &[
    ("crash", &[("fault", "crash"), ("fault_at", "8")], "failed", &["SIGABRT", "this crash was asked for"]),
    ("panic", &[("fault", "panic"), ("fault_at", "2")], "failed", &["this panic was asked for"]),
    ("error", &[("fault", "error"), ("fault_at", "3")], "failed", &["this error was asked for"]),
    ("memory", &[("fault", "memory"), ("fault_at", "3")], "failed", &["out of memory: ", "1073741824", "GB"]),
    ("garbage", &[("fault", "garbage")], "failed", &["not a valid event", "load"]),
    ("flood", &[("fault", "flood")], "failed", &["flooded"]),
    ("leave", &[("fault", "leave")], "failed", &["before its job was done"]),
    ("twice", &[("fault", "twice")], "failed", &["not asked for"]),
    ("version", &[("fault", "version")], "failed", &["protocol 9"]),
    ("none", &[("unsupported", "it has no kernels")], "unsupported", &["it has no kernels"]),
    ("wrong", &[("perturb", "0.5")], "struck", &["R11: ", "5.00e-1"]),
    ("precision", &[("claimed_precision", "bf16")], "struck", &["R2: ", "f32", "bf16"]),
    ("cache", &[("claimed_cache", "bf16")], "struck", &["R17: ", "f32", "bf16"]),
    ("off", &[("optimised", "false")], "struck", &["R14: "]),
];

#[test]
fn what_is_wrong_with_one_framework_is_its_row_s_reason_and_the_others_stand() {
    let (all, ran) = beside_a_good_one(BAD, "--rounds 2");
    let report = ran.json();
    assert_eq!(row(&report, "good")["rounds"], 2);
    assert_eq!(report["comparisons"], json!([]), "none of the others takes part in a verdict");
    let facts = all.all_samples();
    let ends = |name: &str| {
        facts.iter().find(|fact| fact["fact"] == "ended" && fact["process"]["framework"] == name)
    };
    assert_eq!(ends("memory").unwrap()["failure"]["kind"], "out_of_memory");
    let is_crash = |name: &Value| name == "crash";
    let kept =
        facts.iter().filter(|fact| is_crash(&fact["framework"]) || is_crash(&fact["process"]["framework"]));
    let events: Vec<&Value> = kept.flat_map(|fact| fact["events"].as_array()).flatten().collect();
    assert!(
        events.iter().any(|event| event["event"] == "cold_start"),
        "what came before is kept: {events:?}"
    );
    let line = ends("error").unwrap()["failure"]["repeat"].as_str().unwrap();
    let repeated = std::process::Command::new("sh").args(["-c", line]).output().unwrap();
    assert_eq!(repeated.status.code(), Some(1));
    assert_eq!(String::from_utf8_lossy(&repeated.stderr).trim(), "this error was asked for");
    let alone = all.json(1, "--frameworks none --rounds 1");
    assert_eq!(outcome(&alone, "none").0, "unsupported", "nothing was measured");
}

#[test]
fn fresh_kernel_caches_are_named_and_recorded() {
    let installation = Installation::new().timed("one", &[]).timed("other", &[]);
    let file = installation.path("configs/engines/one.toml");
    let text = std::fs::read_to_string(&file).unwrap();
    std::fs::write(&file, format!("kernel_cache = [\"MOCK_CACHE\"]\n{text}")).unwrap();
    let run = |line: &str| {
        let ran = installation.run(&format!("--frameworks {line} --rounds 1 --format json"));
        let report = ran.json();
        let is_said = report["summary"]["heading"].as_str().unwrap().contains("fresh kernel caches");
        (report["plan"]["kernel_cache"].as_str().unwrap().to_owned(), is_said, ran.stderr)
    };
    let (asked, is_said, stderr) = run("one,other --kernel-cache fresh");
    assert_eq!((asked.as_str(), is_said), ("fresh", true));
    // The mock compiles nothing.
    assert_eq!(stderr.matches("it wrote nothing into its fresh kernel cache").count(), 1, "{stderr}");
    let records = installation.records();
    let is_fresh = |record: &Value| record["settings"]["kernel_cache"] == "fresh";
    assert!(records.len() == 2 && records.iter().all(is_fresh), "{records:?}");
    let (asked, is_said, _) = run("one,other");
    assert_eq!((asked.as_str(), is_said), ("keep", false));
    let (_, is_said, stderr) = run("other --kernel-cache fresh");
    assert!(!is_said && !stderr.contains("kernel cache"), "it keeps no kernels: {stderr}");
}

#[test]
fn a_broken_rule_is_only_labelled_when_that_is_asked_for() {
    let installation = Installation::new()
        .timed("good", &[])
        .timed("precision", &[("claimed_precision", "bf16")])
        .configured("threads", &[], "[env]\nOMP_NUM_THREADS = \"4\"\n");
    let line = "--frameworks good,precision,threads --rounds 1 --threads 2 --allow-unfair";
    let report = installation.json(0, line);
    for (name, rule) in [("precision", "R2: "), ("threads", "R5: its configuration sets OMP_NUM_THREADS=4")] {
        let (state, reason) = outcome(&report, name);
        assert!(state == "labelled" && reason.starts_with(rule), "{name}: {state}: {reason}");
    }
}

/// Nothing is clear about two engines that are the same and noisy.
#[test]
fn one_engine_under_two_labels_is_an_a_a_control_and_a_budget_ends_it_but_never_before_six_rounds() {
    let installation = Installation::new().timed("one", &[("token_ms", "1"), ("process_noise", "0.5")]);
    let report = installation.json(0, "--frameworks one,one --rounds auto --time-budget 0.01s");
    assert_eq!((&report["rounds"], &report["end"]["kind"]), (&6.into(), &"budget".into()));
    assert_eq!(outcome(&report, "one (2)").0, "measured");
    assert_ne!(array(&report["floor"]), [Value::Null; 0]);
}

#[test]
fn greedy_decoding_the_cache_switched_off_or_in_16_bits_and_batches_agree_too() {
    for more in ["--decode greedy", "--kv-cache off", "--batch 3", "--kv-type f16"] {
        let installation = Installation::new().timed("one", &[]).timed("two", &[]);
        let report = installation.json(0, &format!("--frameworks one,two --rounds 1 --warmup 4 {more}"));
        let agreement = &row(&report, "two")["agreement"];
        assert_eq!(agreement["timed_mismatches"], 0, "{more}");
        // The data type of keys and values is asked of all, told, and has its own tolerance.
        let is_f16 = more == "--kv-type f16";
        assert_eq!(report["plan"]["contenders"][0]["kv_precision"] == "f16", is_f16, "{more}");
        assert_eq!(report["summary"]["heading"].to_string().contains("KV cache in f16"), is_f16, "{more}");
        assert_eq!(agreement["tolerance"]["top1"] == 0.98, is_f16, "{agreement}");
        let samples = installation.samples();
        let warmup = array(&samples[0]["events"]).iter().find(|event| event["event"] == "warmup").unwrap();
        assert_eq!(array(&warmup["iterations"]).len(), 4, "as long as was asked for: {warmup}");
    }
}

#[test]
fn an_interrupt_saves_what_there_is_and_leaves_no_process() {
    let installation = Installation::new().engine("slow", &[("token_ms", "20")]);
    let child = heard(installation.driver("--frameworks slow --rounds 50"));
    wait_for(|| samples_so_far(&installation) >= 2);
    let workers = descendants(child.id());
    if cfg!(target_os = "linux") {
        let first_to_die = |pid: &u32| {
            std::fs::read_to_string(format!("/proc/{pid}/oom_score_adj"))
                .is_ok_and(|adj| adj.trim() == "1000")
        };
        assert!(workers.iter().any(first_to_die), "a worker is the first that the kernel kills: {workers:?}");
    }
    signal(child.id(), "-INT");
    let output = child.wait_with_output().unwrap();
    assert_eq!(output.status.code(), Some(130));
    assert!(String::from_utf8_lossy(&output.stdout).contains("interrupted"), "a table of what there is");
    assert!(installation.results().join("report.json").is_file() && !installation.samples().is_empty());
    let records = installation.records();
    assert_eq!((records.len(), &records[0]["interrupted"]), (1, &Value::Bool(true)));
    assert!(records[0]["metrics"]["throughput"]["typical"].as_f64().unwrap() > 0.0, "what there is is kept");
    crate::schema::validate_record(&records[0]);
    workers.into_iter().for_each(wait_for_end);
}

#[cfg(target_os = "linux")]
#[test]
fn a_worker_killed_from_outside_is_a_failed_row() {
    // It hangs in the measurement, so that another framework is the reference.
    let hangs = [("fault", "hang"), ("fault_at", "12")];
    let installation = Installation::new().timed("slow", &hangs).timed("good", &[]);
    let line = "--frameworks good,slow --parity-reference good --rounds 2 --format json";
    let child = heard(installation.driver(line));
    let mut idle = std::collections::HashMap::new();
    wait_for(|| {
        // The one that has computed nothing for two seconds: the others wait for a quiet machine at most. One that waits
        // for its turn is stopped, and does not hang.
        let hanging = descendants(child.id()).into_iter().find(|&worker| {
            let ticks = stat(worker).filter(|one| !one.is_stopped).map(|one| one.ticks);
            let (before, polls) = idle.entry(worker).or_insert((ticks, 0));
            if ticks.is_some() && *before == ticks {
                *polls += 1;
            } else {
                (*before, *polls) = (ticks, 0);
            }
            *polls > 200
        });
        hanging.is_some_and(|worker| signal(worker, "-KILL"))
    });
    let report = Ran::from(child.wait_with_output().unwrap()).exits(1).json();
    has_outcome(&report, "slow", "failed", &["signal 9"]);
}

#[cfg(target_os = "linux")]
#[test]
fn a_full_disk_costs_the_files_but_not_the_table() {
    // A limit on the size of files fails writes as a full disk does: 8 blocks of 512 bytes are enough for the
    // exchange of workers and driver, and too few for samples and report.
    let installation = Installation::new().engine("one", &[]);
    let command = installation.driver("--frameworks one --rounds 2");
    let words = std::iter::once(command.get_program()).chain(command.get_args());
    let line: Vec<_> = words.map(|word| format!("'{}'", word.display())).collect();
    let mut shell = std::process::Command::new("sh");
    // Signal 25 is SIGXFSZ: ignored, the write fails with an error instead.
    let limits = "trap '' XFSZ 2>/dev/null || trap '' 25; ulimit -f 8";
    shell.arg("-c").arg(format!("{limits}; exec {}", line.join(" ")));
    shell.envs(command.get_envs().map(|(name, value)| (name, value.unwrap())));
    let ran = Ran::output_of(&mut shell).exits(1);
    assert!(ran.stdout.contains("Average Throughput"), "the table is still printed: {}", ran.stdout);
    assert!(!ran.stdout.contains("failed"), "measuring went on: {}", ran.stdout);
    assert!(ran.stderr.contains("cannot save to"), "{}", ran.stderr);
    assert!(!installation.results().join("report.json").exists(), "no half-written report");
    let samples = installation.result("samples.jsonl");
    assert!(samples.is_empty() || samples.ends_with('\n'), "no half-written line");
}

/// A framework that cannot divide its weights says so.
#[test]
fn weights_over_several_devices_are_a_column_each_and_one_prompt_at_several_lengths_a_case_for_each() {
    let installation = Installation::new().timed("a", &[]);
    let line = "--frameworks a --tensor-parallel 1,2 --prompt x --prompt-lengths 4,6 --rounds 1";
    let report = installation.json(0, line);
    assert_eq!(outcome(&report, "a").0, "measured");
    has_outcome(&report, "a on 2 devices", "unsupported", &["not divided over devices (2 "]);
    let prompts = array(&report["plan"]["work"]["generate"]["prompts"]).iter();
    let told: Vec<_> = prompts.map(|prompt| (&prompt["name"], array(&prompt["tokens"]).len())).collect();
    assert_eq!(told, [(&json!("4 tokens"), 4), (&json!("6 tokens"), 6)]);
    let two = "--frameworks a --prompt x --prompt y --prompt-lengths 4";
    installation.refuses(&[(two, &["--prompt-lengths takes one prompt"])]);
}
