//! `ab optimised` on scripted engines with a known product.

use serde_json::Value;

use crate::common::{Installation, array, joined, read};

/// A token takes 1 ms with all switches on, 8 without the cache, 2 without fusing, 12 without both. The JIT
/// has no effect.
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

const STUDY: &str = "ab optimised --frameworks one,bare --prompt-tokens 4 --new-tokens 6 --rounds";

fn close(effect: &Value, expected: f64) {
    let found = effect["ratio"].as_f64().unwrap();
    assert!((found / expected - 1.0).abs() < 1e-3, "{found} is not {expected}: {effect}");
    let (low, high) = (effect["interval"][0].as_f64().unwrap(), effect["interval"][1].as_f64().unwrap());
    assert!(low <= found * (1.0 + 1e-9) && found <= high * (1.0 + 1e-9), "{effect}");
}

#[test]
fn each_switch_has_its_part_by_both_orders_and_every_output_shows_it() {
    let installation = installation();
    let document = installation.json(0, &format!("{STUDY} 6"));
    let crossed = &document["cells"][0]["crossed"];
    assert_eq!(array(&document["cells"][0]["rows"]).len(), 8);
    let switches = array(&crossed["switches"]);
    let expected = [
        ("cache", 6.0, 8.0, 48f64.sqrt(), "faster"),
        ("JIT", 1.0, 1.0, 1.0, "equivalent"),
        ("fused", 1.5, 2.0, 3f64.sqrt(), "faster"),
    ];
    assert_eq!(switches.len(), expected.len());
    for (switch, (name, alone, left_out, share, verdict)) in switches.iter().zip(expected) {
        assert_eq!((&switch["switch"], &switch["share"]["verdict"]), (&name.into(), &verdict.into()));
        close(&switch["alone"], alone);
        close(&switch["left_out"], left_out);
        close(&switch["share"], share);
    }
    close(&crossed["together"]["share"], 12.0);
    close(&crossed["together"]["alone"], 9.0);
    close(&crossed["together"]["left_out"], 16.0);
    let product: f64 = switches.iter().map(|switch| switch["share"]["ratio"].as_f64().unwrap()).product();
    let whole = crossed["together"]["share"]["ratio"].as_f64().unwrap();
    assert!((product / whole - 1.0).abs() < 1e-9, "{product} {whole}");
    let refused = document["cells"][1]["refused"].as_str().unwrap();
    assert!(refused.starts_with("bare has too few switches"), "{refused}");

    let answer = document["summary"]["answer"][0].as_str().unwrap();
    assert!(answer.starts_with("one (all on) decodes 12x as fast as one (all off)"), "{answer}");
    let table = joined(&installation.result("report.md"));
    for told in ["Against all off", "one (cache + JIT)", "12.00x", refused] {
        assert!(table.contains(told), "{told}: {table}");
    }
    assert!(installation.result("report.html").contains("<h2>Every combination</h2>"));
    assert!(installation.results().join("comparison.png").is_file());
}

#[test]
fn a_look_gives_estimates_and_no_verdict() {
    let installation = installation();
    let table = joined(&installation.run(&format!("{STUDY} 1")).exits(0).stdout);
    let document = read(&installation.results().join("report.json"));
    let whole = &document["cells"][0]["crossed"]["together"]["share"];
    assert_eq!((&whole["interval"], whole["verdict"].as_str()), (&Value::Null, Some("inconclusive")));
    assert!(table.contains("A first look") && table.contains("bare: not run: "), "{table}");
}

#[test]
fn what_a_framework_lacks_is_refused() {
    installation().refuses(&[
        ("ab optimised --frameworks bare", &["bare has too few switches", "cache"]),
        ("ab optimised --frameworks bare --switches cache,jit", &["bare has no switch jit"]),
        ("ab optimised --frameworks one --switches cache", &["two switches"]),
        ("ab optimised --frameworks one --switches cache,speed", &["cache, jit, precision and fused"]),
        ("ab jit --frameworks one --switches cache,jit", &["--switches is for `ab optimised`"]),
    ]);
}
