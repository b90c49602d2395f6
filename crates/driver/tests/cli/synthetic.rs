//! Models of published shapes; `prepare` draws their weights.

use serde_json::{Value, json};

use crate::common::{Installation, program};

const TINY: &str = "--model synthetic:llama-tiny";

#[test]
fn a_synthetic_model_is_prepared_and_compared_like_any_other() {
    program("prepare");
    let installation = Installation::new().timed("one", &[]);
    let line = format!("--frameworks one --rounds 1 --prompt ab --prompt-tokens 5 {TINY}");
    let report = installation.json(0, &line);
    assert_eq!(report["model"]["name"], "synthetic-llama-tiny");
    assert_eq!(report["rows"][0]["state"], "measured");
    // Ids are drawn in place of the text, up to the length that is asked for, and the report says so.
    let tokens = report["plan"]["work"]["generate"]["prompts"][0]["tokens"].as_array().unwrap();
    assert_eq!(tokens.len(), 5);
    assert!(report["plan"]["drawn"].as_str().unwrap().contains("a synthetic model has none"));
    let bundles = std::fs::read_dir(installation.path("cache/photofinish/bundles")).unwrap().flatten();
    let names = bundles.map(|entry| entry.file_name().into_string().unwrap());
    assert_eq!(names.filter(|name| name.starts_with("synthetic-llama-tiny-")).count(), 1);

    // Text is refused with the reason each time; ids are no text.
    let generate = |more: &str| installation.run(&format!("generate --framework one --new-tokens 2 {more}"));
    for _ in 0..2 {
        generate(&format!("{TINY} --prompt Hé"))
            .refused(&["has no tokenizer: a synthetic model has none", "--tokens"]);
    }
    let generated = generate(&format!("{TINY} --tokens 72 --format json")).exits(0).json();
    assert_eq!((&generated["prompt_tokens"], &generated["text"]), (&json!([72]), &Value::Null));
}
