//! `ab optimised` on scripted engines whose product is known.

use serde_json::Value;

use crate::common::Installation;

/// A token takes 1 ms with everything on, 8 without the cache, 2 without fusing, 12 without both. The JIT does nothing.
fn installation() -> Installation {
    let with =
        |token_ms: &'static str| [("token_ms", token_ms), ("prefill_token_ms", "1"), ("clock", "scripted")];
    let variants = "compiles = \"a script\"\nwithout_cache = \"one-nocache\"\nwithout_fused = \"one-base\"\n";
    let installation = Installation::new()
        .engine("one-nocache", &with("8"))
        .engine("one-base", &with("2"))
        .engine("one-nocache-base", &with("12"))
        .timed("bare", &[]);
    let text = format!(
        "framework = \"mock\"\nworker = \"engine-mock\"\nsummary = \"\"\n{variants}[options]\n\
         token_ms = \"1\"\nprefill_token_ms = \"1\"\nclock = \"scripted\"\n"
    );
    std::fs::write(installation.path("configs/engines/one.toml"), text).unwrap();
    installation
}

const STUDY: [&str; 9] =
    ["ab", "optimised", "--frameworks", "one,bare", "--prompt-tokens", "4", "--new-tokens", "6", "--rounds"];

fn close(effect: &Value, expected: f64) {
    let found = effect["ratio"].as_f64().unwrap();
    assert!((found / expected - 1.0).abs() < 1e-3, "{found} is not {expected}: {effect}");
    let (low, high) = (effect["interval"][0].as_f64().unwrap(), effect["interval"][1].as_f64().unwrap());
    assert!(low <= found * (1.0 + 1e-9) && found <= high * (1.0 + 1e-9), "{effect}");
}

#[test]
fn each_switch_has_its_part_by_both_orders_and_the_parts_multiply_to_the_whole() {
    let installation = installation();
    let ran = installation.run(&[&STUDY[..], &["6", "--format", "json"]].concat());
    assert_eq!(ran.code, Some(0), "{}", ran.stderr);
    let document = ran.json();
    let crossed = &document["cells"][0]["crossed"];
    assert_eq!(document["cells"][0]["rows"].as_array().unwrap().len(), 8);
    let switches = crossed["switches"].as_array().unwrap();
    let names: Vec<&str> = switches.iter().map(|switch| switch["switch"].as_str().unwrap()).collect();
    assert_eq!(names, ["cache", "JIT", "fused"]);
    let expected = [(6.0, 8.0, 48f64.sqrt()), (1.0, 1.0, 1.0), (1.5, 2.0, 3f64.sqrt())];
    for (switch, (alone, left_out, share)) in switches.iter().zip(expected) {
        close(&switch["alone"], alone);
        close(&switch["left_out"], left_out);
        close(&switch["share"], share);
    }
    close(&crossed["together"]["share"], 12.0);
    close(&crossed["together"]["alone"], 9.0);
    close(&crossed["together"]["left_out"], 16.0);
    let verdict = |at: usize| switches[at]["share"]["verdict"].as_str().unwrap();
    assert_eq!([verdict(0), verdict(1), verdict(2)], ["faster", "equivalent", "faster"]);
    let product: f64 = switches.iter().map(|switch| switch["share"]["ratio"].as_f64().unwrap()).product();
    let whole = crossed["together"]["share"]["ratio"].as_f64().unwrap();
    assert!((product / whole - 1.0).abs() < 1e-9, "{product} {whole}");
    let answer = document["summary"]["answer"][0].as_str().unwrap();
    assert!(
        answer
            .starts_with("one: all on is 12.0x (12.0–12.0x) as fast as all off; of it the cache gives 6.93x"),
        "{answer}"
    );
    let refused = document["cells"][1]["refused"].as_str().unwrap();
    assert!(refused.starts_with("bare has too few switches to cross: it has cache"), "{refused}");
}

#[test]
fn every_output_shows_the_parts_and_the_whole() {
    let installation = installation();
    let table = installation.run(&[&STUDY[..], &["6"]].concat()).stdout;
    // Sentences are broken at the width of the terminal.
    let table = table.split_whitespace().collect::<Vec<_>>().join(" ");
    for told in [
        "one: all on is 12.0x",
        "Left out",
        "one (cache + JIT)",
        "the shares multiply to the whole: cache 6.93x × JIT 1.00x × fused 1.73x = 12.0x",
        "each gives more where the others are on",
        "bare: not run: bare has too few switches",
    ] {
        assert!(table.contains(told), "{told}: {table}");
    }
    let file = |name: &str| std::fs::read_to_string(installation.results().join(name)).unwrap();
    let markdown = file("report.md");
    assert!(markdown.starts_with("**one: all on is 12.0x") && markdown.contains("| one "), "{markdown}");
    let csv = file("report.csv");
    assert!(csv.lines().any(|line| line.contains(",one,crossed,,cache_left_out,")), "{csv}");
    assert!(file("report.html").contains("<h2>What each switch gives</h2>"));
    assert!(installation.results().join("comparison.png").is_file());
}

#[test]
fn a_look_gives_estimates_and_no_verdict() {
    let document = installation().run(&[&STUDY[..], &["1", "--format", "json"]].concat()).json();
    let whole = &document["cells"][0]["crossed"]["together"]["share"];
    assert_eq!((&whole["interval"], whole["verdict"].as_str()), (&Value::Null, Some("inconclusive")));
    let answer = document["summary"]["answer"][0].as_str().unwrap();
    assert!(answer.starts_with("A first look"), "{answer}");
}

#[test]
fn what_a_framework_lacks_is_refused() {
    let installation = installation();
    let run = |arguments: &[&str]| installation.run(&[&["ab", "optimised"], arguments].concat());
    run(&["--frameworks", "bare"]).refused(&["bare has too few switches to cross: it has cache"]);
    run(&["--frameworks", "bare", "--switches", "cache,jit"]).refused(&["bare has no switch jit"]);
    run(&["--frameworks", "one", "--switches", "cache"]).refused(&["crossing takes two switches or more"]);
    run(&["--frameworks", "one", "--switches", "cache,speed"])
        .refused(&["one of cache, jit, precision and fused"]);
    installation
        .run(&["ab", "jit", "--frameworks", "one", "--switches", "cache,jit"])
        .refused(&["--switches is for `ab optimised`"]);
}
