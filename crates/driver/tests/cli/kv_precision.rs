//! What keys and values are kept in: asked of all, observed, and held against one another.

use crate::common::{Installation, row};

#[test]
fn a_cache_in_16_bits_is_asked_of_all_and_told() {
    let installation = Installation::new().engine("one", &[]).engine("two", &[]);
    let asked = ["--frameworks", "one,two", "--rounds", "1", "--kv-precision", "f16", "--format", "json"];
    let report = installation.run(&asked).json();
    assert_eq!(report["plan"]["contenders"][0]["kv_precision"], "f16");
    for label in ["one", "two"] {
        assert_eq!(row(&report, label)["state"], "measured");
        assert_eq!(row(&report, label)["agreement"]["tolerance"]["top1"], 0.98, "that of f16");
    }
    let again = installation.run(&["--frameworks", "one,two", "--rounds", "1"]);
    // Where lines break depends on the processor's name.
    let words = |text: String| text.split_whitespace().collect::<Vec<_>>().join(" ");
    let title = words(installation.run(&asked[..6]).stdout);
    assert!(title.contains("KV cache in f16"), "{title}");
    let usual = words(again.stdout);
    assert!(!usual.contains("KV cache in"), "{usual}");
}

#[test]
fn a_cache_other_than_asked_is_struck_by_r17() {
    let installation = Installation::new().engine("one", &[]).engine("liar", &[("claimed_cache", "bf16")]);
    let report = installation.run(&["--frameworks", "one,liar", "--rounds", "1", "--format", "json"]).json();
    assert_eq!(row(&report, "one")["state"], "measured");
    let struck = row(&report, "liar").to_string();
    assert!(struck.contains("R17: its KV cache is asked to be f32, and is bf16"), "{struck}");
}

#[test]
fn a_type_that_no_cache_has_is_refused_with_those_there_are() {
    let installation = Installation::new().engine("one", &[]);
    let ran = installation.run(&["--frameworks", "one", "--kv-precision", "int8"]);
    assert_eq!(ran.code, Some(2));
    assert!(ran.stderr.contains("auto, f32, bf16, f16"), "{}", ran.stderr);
}
