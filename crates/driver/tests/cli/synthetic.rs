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
    // Prompts are extended to a length without a tokenizer, too.
    let tokens = report["plan"]["work"]["generate"]["prompts"][0]["tokens"].as_array().unwrap();
    assert_eq!((tokens.len(), &tokens[..2]), (5, &[97.into(), 98.into()][..]));
    let bundles = std::fs::read_dir(installation.path("cache/photofinish/bundles")).unwrap().flatten();
    let names = bundles.map(|entry| entry.file_name().into_string().unwrap());
    assert_eq!(names.filter(|name| name.starts_with("synthetic-llama-tiny-")).count(), 1);

    // Without a tokenizer, text is read byte by byte, and the output says so; ids are no text.
    let generate = |more: &str| {
        let line = format!("generate --framework one --new-tokens 2 --format json {more}");
        let ran = installation.run(&line).exits(0);
        (ran.json(), ran.stderr.matches("byte by byte").count())
    };
    let (generated, said) = generate(&format!("{TINY} --prompt Hé"));
    assert_eq!((&generated["prompt_tokens"], said), (&json!([0x48, 0xc3, 0xa9]), 1));
    assert_eq!(generated["text"], Value::Null);
    // The other model has a vocabulary of 16.
    assert_eq!(generate("--prompt Hé").0["prompt_tokens"], json!([8, 3, 9]));
    assert_eq!(generate("--tokens 1").1, 0);
}
