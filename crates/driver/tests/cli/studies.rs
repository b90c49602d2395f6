//! Sweeps, A/B studies and `--quantize`: whole comparisons, one after the other.

use std::path::PathBuf;

use serde_json::{Value, json};

use crate::common::{Installation, Ran, array, joined, lines, outcome, photofinish, read, row};
use crate::report::two;

fn cells(document: &Value) -> &[Value] {
    array(&document["cells"])
}

#[test]
fn a_sweep_measures_every_combination_on_every_framework_and_tells_the_parity_of_each() {
    let installation = Installation::new().timed("one", &[]).timed("wrong", &[("perturb", "6")]);
    let sweep =
        "sweep forward --frameworks one,wrong --batch 1,2 --prompt-tokens 4,80 --rounds 1 --format csv";
    // The wrong one is struck.
    let csv = installation.run(sweep).exits(1).stdout;
    let header = "model,batch,prompt,new_tokens,contender,state,parity,metric,median,min,max,rounds";
    assert_eq!(csv.lines().next(), Some(header));
    let document = read(&installation.results().join("report.json"));
    let places: Vec<_> = cells(&document).iter().map(|cell| cell["settings"].clone()).collect();
    let expected = [(1, 4), (1, 80), (2, 4), (2, 80)];
    assert_eq!(places.len(), expected.len());
    for (place, (batch, prompt)) in places.iter().zip(expected) {
        assert_eq!((&place["batch"], &place["prompt_tokens"]), (&json!(batch), &json!(prompt)));
    }
    for cell in cells(&document).iter().step_by(2) {
        let of = |name: &str| (outcome(cell, name).0, row(cell, name)["parity"].as_str().unwrap());
        assert_eq!((of("one"), of("wrong")), (("measured", "ok, Δ = 0"), ("struck", "BROKEN")));
        assert!(row(cell, "one")["metrics"]["prefill_throughput"]["median"].as_f64().unwrap() > 0.0);
    }
    // A cell that cannot run is listed with its reason.
    assert_eq!(cells(&document)[0]["refused"], Value::Null);
    let reason = cells(&document)[1]["refused"].as_str().unwrap();
    assert!(reason.contains("context of 64 tokens"), "{reason}");
    let table = installation.result("report.md");
    assert!(table.contains("batch 1, prompt 80: not run: "), "{table}");
}

#[test]
fn prompts_are_read_in_chunks() {
    let installation = Installation::new().timed("one", &[("prefill_token_ms", "1")]);
    let line =
        "sweep generate --frameworks one --prompt-tokens 8 --new-tokens 3 --prefill-chunk 0,2 --rounds 1";
    let document = installation.json(0, line);
    let chunks: Vec<&Value> =
        cells(&document).iter().map(|cell| &cell["settings"]["prefill_chunk"]).collect();
    assert_eq!(chunks, [&json!(0), &json!(2)]);
    for cell in cells(&document) {
        let row = row(cell, "one");
        assert_eq!((&row["state"], &row["parity"]), (&json!("measured"), &json!("ok, Δ = 0")));
        let first_token = row["metrics"]["first_token"]["median"].as_f64().unwrap();
        assert!((first_token - 8.0).abs() < 0.1, "all chunks are part of the first token: {first_token}");
    }
    installation.refuses(&[
        ("--frameworks one --prefill-chunk 2 --kv-cache off", &["leave --kv-cache off out"]),
        ("--frameworks one --prefill-chunk 2 --callers 2", &["leave --prefill-chunk out"]),
    ]);
}

#[test]
fn an_interrupted_sweep_goes_on_where_it_was() {
    let installation = Installation::new().timed("one", &[]);
    let sweep = |lengths: &str| {
        format!("sweep generate --frameworks one --prompt-tokens {lengths} --seed 1 --rounds 1")
    };
    let whole = installation.json(0, &sweep("4,6,8"));
    let directory = installation.results();
    // As if the driver had been killed while it wrote the second cell.
    let text = installation.result("cells.jsonl");
    let first = text.find('\n').unwrap() + 1;
    std::fs::write(directory.join("cells.jsonl"), &text[..first + 40]).unwrap();

    let resume = |lengths: &str| format!("{} --resume {}", sweep(lengths), directory.display());
    let ran = installation.run(&format!("{} --format json", resume("4,6,8"))).exits(0);
    let resumed = ran.json();
    assert_eq!((cells(&resumed).len(), &cells(&resumed)[0]), (3, &cells(&whole)[0]), "not measured again");
    assert_ne!(cells(&resumed)[1]["results"], cells(&whole)[1]["results"]);
    assert!(!ran.stderr.contains("cell 1 of 3") && ran.stderr.contains("cell 2 of 3"), "{}", ran.stderr);
    assert_eq!(installation.result("cells.jsonl").lines().count(), 3);
    installation.refuses(&[(&resume("4,6"), &["cannot be resumed", "other cells"])]);
}

#[test]
fn what_is_wrong_with_every_cell_is_a_mistake_and_leaves_nothing() {
    let installation = Installation::new().engine("one", &[]);
    installation.refuses(&[
        ("sweep forward --frameworks none --batch 1,2", &["unknown framework \"none\""]),
        ("sweep one", &["\"one\" alone is no study"]),
    ]);
    assert!(installation.all_results().is_empty());
}

#[test]
fn the_kv_cache_is_worth_more_the_longer_the_text_and_changes_no_token() {
    let installation = Installation::new().timed("one", &[("token_ms", "1"), ("prefill_token_ms", "1")]);
    // A rule that the comparison departs from on purpose strikes no row.
    let line = "sweep kv-cache --frameworks one --prompt-tokens 2 --new-tokens 4,24 --rounds 6";
    let document = installation.json(0, line);
    let outcomes = array(&document["outcomes"]);
    for (outcome, tokens) in outcomes.iter().zip([4, 24]) {
        assert_eq!((&outcome["tokens"], &outcome["same_tokens"]), (&json!(tokens), &json!(tokens)));
        assert_eq!(outcome["parity"], json!(["ok, Δ = 0", "ok, Δ = 0"]));
    }
    // A step over n tokens takes n ms rather than 1.
    let speedup = |index: usize| outcomes[index]["speedup"].as_f64().unwrap();
    assert!(speedup(0) > 1.0 && speedup(1) > speedup(0), "{} {}", speedup(0), speedup(1));
}

#[test]
fn two_variants_are_held_against_each_other_in_the_order_they_were_named() {
    let installation = Installation::new()
        .timed("quick", &[("token_ms", "2")])
        .timed("slow", &[("token_ms", "20")])
        .timed("quick-base", &[]);
    let document = installation.json(0, "sweep slow quick --prompt-tokens 4 --new-tokens 6 --rounds 6");
    let speedup = document["outcomes"][0]["speedup"].as_f64().unwrap();
    assert!(speedup < 1.0, "{speedup}");
    // A framework without the other side is listed with its reason.
    let line = "sweep fused --frameworks slow,quick --rounds 1 --prompt-tokens 4 --new-tokens 4";
    let told = installation.run(line).exits(0).stdout;
    assert!(told.contains("slow: not run: slow has no variant"), "{told}");
}

#[test]
fn a_suite_that_names_a_study_is_that_study_with_the_flags_typed_beside_it() {
    let installation = Installation::new().timed("one", &[]);
    let suite = "command = \"sweep generate --prompt-tokens 4,8 --rounds 2\"\n";
    std::fs::write(installation.path("configs/suites/lengths.toml"), suite).unwrap();
    let document = installation.json(0, "compare --suite lengths --frameworks one --rounds 1");
    assert_eq!(cells(&document).len(), 2);
    assert_eq!(cells(&document)[0]["rows"][0]["framework"], "one");
    let sweep = "sweep generate --suite lengths --frameworks one";
    installation.refuses(&[(sweep, &["\"lengths\"", "sweep generate --prompt-tokens 4,8"])]);
}

#[test]
fn a_suite_has_published_figures_beside_those_of_its_study() {
    let installation = Installation::new().timed("one", &[]);
    let suite = |metric: &str| {
        let text = format!(
            "command = \"sweep generate --frameworks one --prompt-tokens 4 --rounds 1\"\n\
             [published]\nsource = \"A guide\"\nconditions = \"a GPU\"\n\
             [[published.rows]]\nname = \"theirs\"\nframework = \"one\"\nprecision = \"f32\"\n\
             figures = {{ {metric} = 81.25 }}\n"
        );
        std::fs::write(installation.path("configs/suites/guide.toml"), text).unwrap();
    };
    suite("throughput");
    let told = installation.run("compare --suite guide").exits(0).stdout;
    assert!(
        told.contains("Published: theirs") && told.contains("81.2") && told.contains("one, f32"),
        "{told}"
    );
    suite("speed");
    installation.refuses(&[("compare --suite guide", &["\"guide\"", "\"speed\"", "no metric"])]);
}

#[test]
fn a_sweep_over_precisions_compares_each_and_tells_what_quantising_costs() {
    let installation = Installation::new()
        .timed("one", &[("quantised", "3")])
        .timed("wrong", &[("quantised", "3"), ("perturb", "6")]);
    let run = |format: &str| {
        let line = "--frameworks one,wrong --quantize f32,int8 --rounds 1 --format";
        installation.run(&format!("{line} {format}")).exits(1)
    };
    let all = run("json").json();
    let [exact, quantised] = array(&all["reports"]) else { panic!("{all}") };
    assert_eq!([exact, quantised].map(|report| &report["plan"]["precision"]), ["f32", "int8"]);
    assert_eq!(row(exact, "one")["agreement"]["quantisation_loss"], Value::Null);
    // Compared with the same codes in f32 nothing differs; against the model before, much.
    let agreement = &row(quantised, "one")["agreement"];
    assert_eq!((&agreement["max_abs"], &agreement["broken"]), (&json!(0.0), &Value::Null));
    assert!(agreement["quantisation_loss"]["mean_kl"].as_f64().unwrap() > 0.1);
    assert!(row(quantised, "wrong")["agreement"]["broken"].is_string());

    let table = run("table").stdout;
    let summary = table.rsplit("\n\n").find(|part| part.contains("KL from f32")).unwrap();
    let of_one = summary.lines().filter(|line| line.split_whitespace().nth(1) == Some("one"));
    let rows: Vec<_> = of_one.filter_map(|line| line.split_whitespace().next()).collect();
    assert_eq!(rows, ["f32", "int8"], "{summary}");
    let csv = run("csv").stdout;
    assert_eq!(csv.lines().filter(|line| line.starts_with("framework,")).count(), 1);
    assert!(csv.contains("\none,measured,int8,load,"), "{csv}");
}

// `sweep mistakes`: each is made for real, the most expensive is first, and a mistake that cannot be made has its reason.

/// The mistakes of a study in its order, with how many times as long a request takes.
fn costs(study: &Value) -> Vec<(&str, Option<f64>)> {
    let of = |outcome: &'_ Value| outcome["speedup"].as_f64();
    let outcomes = array(&study["outcomes"]).iter();
    outcomes.map(|outcome| (outcome["settings"]["mistake"].as_str().unwrap(), of(outcome))).collect()
}

#[test]
fn mistakes_are_made_and_told_by_their_cost() {
    let installation = Installation::new()
        .timed("one", &[("load_ms", "90"), ("token_ms", "1"), ("prefill_token_ms", "1")])
        .timed("one-growing", &[("load_ms", "90"), ("token_ms", "2"), ("prefill_token_ms", "1")]);
    let study =
        installation.json(0, "sweep mistakes --framework one --new-tokens 3 --prompt-tokens 4 --seed 7");
    let costs = costs(&study);
    let cost = |name: &str| costs.iter().find(|(mistake, _)| *mistake == name).unwrap().1;
    // Four tokens of prompt and two steps take 6 ms, and two slower steps 2 ms more.
    assert!((cost("a new session per request").unwrap() - 96.0 / 6.0).abs() < 0.1, "{costs:?}");
    assert!((cost("a growing cache").unwrap() - 8.0 / 6.0).abs() < 0.01, "{costs:?}");
    assert_eq!(cost("twice as many threads").map(f64::round), Some(1.0));
    assert_eq!((costs[0].0, costs[1].0), ("a new session per request", "a growing cache"));
    let verdicts: Vec<&Value> = array(&study["outcomes"]).iter().map(|outcome| &outcome["verdict"]).collect();
    assert_eq!(verdicts[..2], [&json!("faster"), &json!("faster")]);
    let of_build = array(&study["cells"]).iter().find(|cell| cell["settings"]["mistake"] == "debug build");
    let reason = of_build.unwrap()["refused"].as_str().unwrap();
    assert!(reason.contains("no variant that makes this mistake"), "{reason}");
}

#[test]
fn mistakes_of_encoders_are_theirs() {
    let installation =
        Installation::encoder().engine("one", &[]).engine("one-padded-512", &[("padded", "true")]);
    let study = installation.json(0, "sweep mistakes --framework one --rounds 1");
    let made: Vec<&str> = costs(&study).into_iter().map(|(mistake, _)| mistake).collect();
    assert!(made.contains(&"padding to 512 tokens") && !made.contains(&"a growing cache"), "{made:?}");
    installation.refuses(&[
        ("sweep mistakes --frameworks one --callers 2", &["has one caller"]),
        ("sweep mistakes --frameworks one --model x.onnx", &["x.onnx"]),
    ]);
}

// `sweep optimised` on scripted engines with known ratios.

/// A token takes 1 ms with all switches on, 8 without the cache, 2 without fusing, 12 without both. The JIT
/// has no effect.
fn with_switches() -> Installation {
    let with =
        |token_ms: &'static str| [("token_ms", token_ms), ("prefill_token_ms", "1"), ("clock", "scripted")];
    let variants = "compiles = \"a script\"\nwithout_cache = \"one-nocache\"\nwithout_fused = \"one-base\"\n";
    let installation = Installation::new()
        .engine("one-nocache", &with("8"))
        .engine("one-base", &with("2"))
        .engine("one-nocache-base", &with("12"))
        .timed("bare", &[]);
    let options = "[options]\ntoken_ms = \"1\"\nprefill_token_ms = \"1\"\nclock = \"scripted\"\n";
    installation.of_worker("one", "mock", "engine-mock", &format!("{variants}{options}"));
    installation
}

const OPTIMISED: &str = "sweep optimised --frameworks one,bare --prompt-tokens 4 --new-tokens 6 --rounds";

#[test]
fn all_switches_and_each_alone_are_an_ab_that_every_output_shows() {
    let installation = with_switches();
    let document = installation.json(0, &format!("{OPTIMISED} 6"));
    let expected = [
        ("all on", 12.0, "faster"),
        ("cache", 6.0, "faster"),
        ("JIT", 1.0, "equivalent"),
        ("fused", 1.5, "faster"),
    ];
    let outcomes = array(&document["outcomes"]);
    for (outcome, (switch, speedup, verdict)) in outcomes.iter().zip(expected) {
        assert_eq!((&outcome["settings"]["switch"], &outcome["verdict"]), (&switch.into(), &verdict.into()));
        let found = outcome["speedup"].as_f64().unwrap();
        assert!((found / speedup - 1.0).abs() < 1e-3, "{switch}: {found} is not {speedup}");
    }
    let refused = outcomes[4]["reason"].as_str().unwrap();
    assert!(outcomes.len() == 5 && refused.starts_with("bare has too few switches"), "{refused}");

    let answer = document["summary"]["answer"][0].as_str().unwrap();
    assert_eq!(
        answer,
        "switched on against all off: faster in 3 of 4 cells (1.50x to 12x), equally fast in 1."
    );
    let table = joined(&installation.result("report.md"));
    for told in ["| one | all on |", "12.00x", refused] {
        assert!(table.contains(told), "{told}: {table}");
    }
    assert!(installation.results().join("comparison.png").is_file());
}

#[test]
fn what_a_framework_lacks_is_refused() {
    with_switches().refuses(&[
        ("sweep optimised --frameworks bare", &["bare has too few switches", "cache"]),
        ("sweep optimised --frameworks bare --switches cache,jit", &["bare has no switch jit"]),
        ("sweep optimised --frameworks one --switches cache", &["two switches"]),
        ("sweep optimised --frameworks one --switches cache,speed", &["cache, jit, precision and fused"]),
        ("sweep jit --frameworks one --switches cache,jit", &["--switches is for `sweep optimised`"]),
    ]);
}

// A study in parts, and their measurements together.

const SWEEP: &str = "sweep generate --frameworks quick,slow --prompt-tokens 4,6 --new-tokens 4 --seed 5 \
                     --rounds";

/// Runs a part of the sweep, or all of it; returns its directory, which is moved to `place`.
fn measured_part(installation: &Installation, part: &str, place: &str) -> String {
    installation.run(&format!("{SWEEP} 6 {part}")).exits(0);
    let to = installation.path(place);
    std::fs::rename(installation.results(), &to).unwrap();
    to.display().to_string()
}

fn together(directories: &str) -> Ran {
    Ran::output_of(&mut photofinish(&format!("report {directories}")))
}

/// Cells without the figures that a scripted clock does not script.
fn scripted(merged: &Value) -> Value {
    let of_row = |row: &Value| {
        let of_clock = ["latency", "throughput", "first_token", "prefill_throughput", "total"];
        let metrics = of_clock.map(|name| row["metrics"][name].clone());
        json!([row["framework"], row["parity"], metrics, row["tokens"]])
    };
    let of_cell = |cell: &Value| {
        let rows: Vec<Value> = array(&cell["rows"]).iter().map(of_row).collect();
        let mut verdicts = array(&cell["verdicts"]).to_vec();
        verdicts.retain(|verdict| ["latency", "throughput"].contains(&verdict["metric"].as_str().unwrap()));
        json!([cell["settings"], rows, verdicts, cell["rounds"]])
    };
    array(&merged["cells"]).iter().map(of_cell).collect()
}

#[test]
fn parts_together_are_what_one_run_gives_and_what_cannot_be_put_together_is_told() {
    let installation = two();
    let whole = read(&PathBuf::from(measured_part(&installation, "", "whole")).join("report.json"));
    let [first, second] = ["1", "2"]
        .map(|part| measured_part(&installation, &format!("--cells {part}/2"), &format!("part-{part}")));
    let out = installation.path("out");
    let table = together(&format!("{second} {first} --output {}", out.display())).exits(0);
    assert!(table.stdout.contains("2 cells, 6 rounds each"), "{}", table.stdout);
    let all = read(&out.join("report.json"));
    assert_eq!(scripted(&all), scripted(&whole));
    let verdicts = array(&all["cells"][0]["verdicts"]);
    assert!(verdicts.iter().any(|verdict| verdict["verdict"] == "faster"), "{verdicts:?}");

    let cells = PathBuf::from(&first).join("cells.jsonl");
    let mut cell = lines(&std::fs::read_to_string(&cells).unwrap()).remove(0);
    std::fs::write(&cells, "").unwrap();
    let missing = together(&format!("{first} {second}")).exits(1);
    assert!(missing.stderr.contains("1 of 2 cells are there"), "{}", missing.stderr);
    cell["rows"][0]["metrics"]["latency"]["median"] = json!(1e308);
    together(&format!("{second} {second}")).refused(&["measured the same cell"]);
    std::fs::write(&cells, format!("{cell}\n")).unwrap();
    let model = installation.path("model");
    together(&format!("{first} {second}")).refused(&["cells.jsonl, line 1: latency of", "1e308 ms"]);
    together(&format!("{second} {}", model.display())).refused(&["is not of a study"]);
    installation.run(&format!("{SWEEP} 6 --cells 1/9")).refused(&["--cells 1/9", "2 cells"]);
    for wrong in ["0/4", "5/4", "1", "x/y"] {
        installation.run(&format!("{SWEEP} 6 --cells {wrong}")).refused(&["a part is I/N"]);
    }
}
