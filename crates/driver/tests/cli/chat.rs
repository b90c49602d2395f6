//! `--chat`: prompts through the model's own chat template.

use serde_json::{Value, json};

use crate::common::Installation;

const TEMPLATE: &str = "{{ bos_token }}{% for m in messages %}<u>{{ m.content }}</u>{% endfor %}\
    {% if add_generation_prompt %}<a>{% endif %}";
/// Its tokens for "hello world".
const TOKENS: [u32; 6] = [1, 2, 5, 6, 3, 4];

/// A model whose words and special tokens are a token each, with this chat template.
fn installation(template: Option<&str>) -> Installation {
    let installation = Installation::new().engine("one", &[]);
    let special = ["<s>", "<u>", "</u>", "<a>"].into_iter().zip(1u32..);
    let added = special.clone().map(|(token, id)| {
        json!({ "id": id, "content": token, "single_word": false, "lstrip": false, "rstrip": false,
            "normalized": false, "special": true })
    });
    let words = ["hello", "world"].into_iter().zip(5u32..).chain([("?", 0)]);
    let vocabulary: serde_json::Map<_, _> =
        words.chain(special).map(|(word, id)| (word.to_owned(), id.into())).collect();
    let tokenizer = json!({
        "version": "1.0", "truncation": null, "padding": null, "added_tokens": added.collect::<Vec<_>>(),
        "normalizer": null, "pre_tokenizer": {"type": "Whitespace"}, "post_processor": null, "decoder": null,
        "model": {"type": "WordLevel", "vocab": vocabulary, "unk_token": "?"}
    });
    keep(&installation, "tokenizer.json", &tokenizer);
    if let Some(template) = template {
        let config = json!({ "chat_template": template, "bos_token": "<s>" });
        keep(&installation, "tokenizer_config.json", &config);
    }
    installation
}

/// Adds a file to the bundle.
fn keep(installation: &Installation, name: &str, value: &Value) {
    std::fs::write(installation.path("model").join(name), value.to_string()).unwrap();
    let path = installation.path("model/manifest.json");
    let mut manifest: Value = serde_json::from_str(&std::fs::read_to_string(&path).unwrap()).unwrap();
    manifest["files"][name] = json!({ "sha256": "", "bytes": 0, "derived": "" });
    std::fs::write(path, manifest.to_string()).unwrap();
}

const COMPARE: [&str; 8] =
    ["--frameworks", "one", "--rounds", "1", "--chat", "--prompt", "hello world", "--format=json"];

#[test]
fn a_comparison_shows_and_keeps_what_the_model_is_fed() {
    let installation = installation(Some(TEMPLATE));
    let ran = installation.run(&COMPARE);
    let report = ran.json();
    assert_eq!(report["plan"]["request"]["chat"], true);
    let prompt = &report["plan"]["prompts"][0];
    assert_eq!((&prompt["text"], &prompt["tokens"]), (&"hello world".into(), &json!(TOKENS)));
    assert_eq!(prompt["chat"], "<s><u>hello world</u><a>");
    let told = "prompt 1 as a chat: \"<s><u>hello world</u><a>\", 6 tokens: 1 2 5 6 3 4";
    assert!(ran.stderr.contains(told), "{}", ran.stderr);
    let page = std::fs::read_to_string(installation.results().join("report.html")).unwrap();
    assert!(page.contains("&lt;u&gt;hello world&lt;/u&gt;"), "the page shows it too");
}

#[test]
fn generate_feeds_the_chat() {
    let installation = installation(Some(TEMPLATE));
    let generate = |more: &[&str]| {
        let arguments = ["generate", "--framework", "one", "--new-tokens", "1", "--format", "json"];
        installation.run(&[&arguments, more].concat())
    };
    let generated = generate(&["--prompt", "hello world", "--chat"]).json();
    assert_eq!(generated["chat"], "<s><u>hello world</u><a>");
    assert_eq!(generated["prompt_tokens"], json!(TOKENS));
    assert_eq!(generate(&["--prompt", "hello"]).json()["prompt_tokens"], json!([5]));
    generate(&["--tokens", "1,2", "--chat"]).refused(&["--chat needs a text"]);
}

#[test]
fn a_model_without_a_template_or_a_tokenizer_is_refused() {
    installation(None).run(&COMPARE).refused(&["nothing has no chat template: leave out --chat"]);
    let bare = Installation::new().engine("one", &[]);
    bare.run(&COMPARE).refused(&["nothing has no tokenizer"]);
}

#[test]
fn a_template_that_fails_is_told_in_its_own_words() {
    let installation = installation(Some("{{ raise_exception('no users here') }}"));
    installation.run(&COMPARE).refused(&["the chat template of nothing fails: ", "no users here"]);
}

#[test]
fn what_no_template_can_make_is_refused_before_anything_is_built() {
    let installation = installation(Some(TEMPLATE));
    let run = |more: &[&str]| installation.run(&[&["--frameworks", "one", "--chat"], more].concat());
    run(&[]).refused(&["--chat needs prompts that are texts"]);
    run(&["--prompt", "hello", "--prompt-tokens", "9"]).refused(&["--prompt-tokens", "leave one out"]);
    let swept = installation.run(&["sweep", "forward", "--frameworks", "one", "--chat", "--prompt", "hello"]);
    swept.refused(&["leave one out"]);
}
