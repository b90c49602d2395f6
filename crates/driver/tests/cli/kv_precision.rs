//! The data type of keys and values: requested of all frameworks, observed, and compared with one another.

use crate::common::{Installation, row};

#[test]
fn a_cache_in_16_bits_is_asked_of_all_and_told() {
    let installation = Installation::new().timed("one", &[]).timed("two", &[]);
    let heading = |more: &str| {
        let report = installation.json(0, &format!("--frameworks one,two --rounds 1 {more}"));
        let heading = report["summary"]["heading"].to_string();
        (report, heading.contains("KV cache in f16"))
    };
    let (report, is_told) = heading("--kv-type f16");
    assert_eq!((&report["plan"]["contenders"][0]["kv_precision"], is_told), (&"f16".into(), true));
    for label in ["one", "two"] {
        assert_eq!(row(&report, label)["state"], "measured");
        assert_eq!(row(&report, label)["agreement"]["tolerance"]["top1"], 0.98, "that of f16");
    }
    assert!(!heading("").1);
}
