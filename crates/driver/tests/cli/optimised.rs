//! `ab optimised` on scripted engines with known ratios.

use crate::common::{Installation, array, joined};

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

#[test]
fn all_switches_and_each_alone_are_an_ab_that_every_output_shows() {
    let installation = installation();
    let document = installation.json(0, &format!("{STUDY} 6"));
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
    installation().refuses(&[
        ("ab optimised --frameworks bare", &["bare has too few switches", "cache"]),
        ("ab optimised --frameworks bare --switches cache,jit", &["bare has no switch jit"]),
        ("ab optimised --frameworks one --switches cache", &["two switches"]),
        ("ab optimised --frameworks one --switches cache,speed", &["cache, jit, precision and fused"]),
        ("ab jit --frameworks one --switches cache,jit", &["--switches is for `ab optimised`"]),
    ]);
}
