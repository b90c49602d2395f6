//! `--chat`: prompts through the model's own chat template.

use serde_json::json;

use crate::common::{Installation, keep, signal, unheard, wait_for};

const TEMPLATE: &str = "{{ bos_token }}{% for m in messages %}<u>{{ m.content }}</u>{% endfor %}\
    {% if add_generation_prompt %}<a>{% endif %}";
/// Its tokens for "hello world".
const TOKENS: [u32; 6] = [1, 2, 5, 6, 3, 4];

/// A model with a token for each word and each special token, and with this chat template.
fn installation(template: Option<&str>) -> Installation {
    with(template, "version", &json!("1.0"))
}

/// The same with another part of the tokenizer.
pub(crate) fn with(template: Option<&str>, part: &str, value: &serde_json::Value) -> Installation {
    let installation = Installation::new().engine("one", &[]);
    let special = ["<s>", "<u>", "</u>", "<a>"].into_iter().zip(1u32..);
    let added = special.clone().map(|(token, id)| {
        json!({ "id": id, "content": token, "single_word": false, "lstrip": false, "rstrip": false,
            "normalized": false, "special": true })
    });
    let words = ["hello", "world"].into_iter().zip(5u32..).chain([("?", 0)]);
    let vocabulary: serde_json::Map<_, _> =
        words.chain(special).map(|(word, id)| (word.to_owned(), id.into())).collect();
    let mut tokenizer = json!({
        "version": "1.0", "truncation": null, "padding": null, "added_tokens": added.collect::<Vec<_>>(),
        "normalizer": null, "pre_tokenizer": {"type": "Whitespace"}, "post_processor": null, "decoder": null,
        "model": {"type": "WordLevel", "vocab": vocabulary, "unk_token": "?"}
    });
    tokenizer[part] = value.clone();
    keep(&installation, "tokenizer.json", &tokenizer.to_string());
    if let Some(template) = template {
        let config = json!({ "chat_template": template, "bos_token": "<s>" });
        keep(&installation, "tokenizer_config.json", &config.to_string());
    }
    installation
}

const COMPARE: &str = "--frameworks one --rounds 1 --chat --prompt 'hello world'";

#[test]
fn comparisons_and_generate_show_and_keep_what_the_model_is_fed() {
    let installation = installation(Some(TEMPLATE));
    let ran = installation.run(&format!("{COMPARE} --format json"));
    let report = ran.json();
    assert_eq!(report["plan"]["request"]["chat"], true);
    let prompt = &report["plan"]["work"]["generate"]["prompts"][0];
    assert_eq!((&prompt["text"], &prompt["tokens"]), (&"hello world".into(), &json!(TOKENS)));
    assert_eq!(prompt["chat"], "<s><u>hello world</u><a>");
    let told = "\"<s><u>hello world</u><a>\", 6 tokens: 1 2 5 6 3 4";
    assert!(ran.stderr.contains(told), "{}", ran.stderr);
    assert!(
        installation.result("report.html").contains("&lt;u&gt;hello world&lt;/u&gt;"),
        "the page shows it too"
    );

    let generate = |more: &str| installation.json(0, &format!("run --framework one --new-tokens 1 {more}"));
    let generated = generate("--prompt 'hello world' --chat");
    assert_eq!((&generated["chat"], &generated["prompt_tokens"]), (&prompt["chat"], &json!(TOKENS)));
    assert_eq!(generate("--prompt hello")["prompt_tokens"], json!([5]));
}

#[test]
fn a_text_begins_as_the_tokenizer_says_and_a_chat_as_the_template_does() {
    let special = json!({ "<s>": { "id": "<s>", "ids": [1], "tokens": ["<s>"] } });
    let begin = json!({ "SpecialToken": { "id": "<s>", "type_id": 0 } });
    let text = |name: &str| json!({ "Sequence": { "id": name, "type_id": 0 } });
    let processor = json!({ "type": "TemplateProcessing", "special_tokens": special,
        "single": [begin, text("A")], "pair": [begin, text("A"), text("B")] });
    let installation = with(Some(TEMPLATE), "post_processor", &processor);
    let generated = |more: &str| {
        let line = format!("run --framework one --new-tokens 1 --prompt 'hello world' {more}");
        installation.json(0, &line)["prompt_tokens"].clone()
    };
    assert_eq!((generated(""), generated("--chat")), (json!([1, 5, 6]), json!(TOKENS)));
    let ran =
        installation.run("--frameworks one --rounds 1 --prompt 'hello world' --prompt-tokens 4 --batch 2");
    assert!(ran.stdout.contains("with 1 special token each"), "{}", ran.stdout);
    let plan = installation.result("plan.json");
    let plan: serde_json::Value = serde_json::from_str(&plan).unwrap();
    assert_eq!(plan["special_tokens"], 1);
    assert_eq!(plan["work"]["generate"]["prompts"][0]["tokens"], json!([1, 5, 6, 0]));
}

#[test]
fn what_no_template_can_make_is_refused() {
    installation(None).refuses(&[(COMPARE, &["no chat template", "--chat"])]);
    Installation::new().engine("one", &[]).refuses(&[(COMPARE, &["no tokenizer"])]);
    installation(Some("{{ raise_exception('no users here') }}")).refuses(&[(COMPARE, &["no users here"])]);
    installation(Some(TEMPLATE)).refuses(&[
        ("--frameworks one --chat", &["--chat needs"]),
        ("--frameworks one --chat --prompt hello --prompt-tokens 9", &["--prompt-tokens", "leave one out"]),
        ("sweep forward --frameworks one --chat --prompt hello", &["leave one out"]),
        ("run --framework one --tokens 1,2 --chat", &["--chat needs"]),
    ]);
}

#[cfg(target_os = "linux")]
#[test]
fn a_template_that_asks_for_too_much_is_one_sentence() {
    let chain = format!("{{{{ 1{} }}}}", "+1".repeat(100_000));
    let doubling = "{% set ns = namespace(s='x' * 64) %}{% for i in range(60) %}\
        {% set ns.s = ns.s.replace('x', ns.s) %}{% endfor %}";
    for template in
        ["{{ [1]|batch(10000000000, 0)|list }}", "{{ 'x'|indent(100000000000) }}", doubling, chain.as_str()]
    {
        let begun = std::time::SystemTime::now();
        installation(Some(template)).run(COMPARE).refused(&["chat template of"]);
        // The process has 2 s for its answer.
        assert!(begun.elapsed().unwrap().as_secs() < 20, "{template:.40}");
    }
}

#[cfg(target_os = "linux")]
#[test]
fn a_tokenizer_that_asks_for_too_much_is_one_sentence() {
    let doubled = json!({ "type": "Replace", "pattern": { "String": "l" }, "content": "l".repeat(60) });
    let normalizer = json!({ "type": "Sequence", "normalizers": vec![doubled; 6] });
    let compare = "--frameworks one --rounds 1 --prompt 'hello world'";
    with(None, "normalizer", &normalizer).run(compare).refused(&["tokenizer of", "give token ids"]);
}

#[cfg(target_os = "linux")]
#[test]
fn before_anything_is_measured_a_signal_ends_the_driver_at_once() {
    // A template that runs until its time limit.
    let endless = "{% for i in range(9999) %}{% set x = range(99999)|list|sort|length %}{% endfor %}";
    let installation = installation(Some(endless));
    let mut child = unheard(installation.driver(COMPARE));
    let status = format!("/proc/{}/status", child.id());
    wait_for(|| {
        let status = std::fs::read_to_string(&status).unwrap_or_default();
        let caught = status.lines().find_map(|line| line.strip_prefix("SigCgt:"));
        let caught = caught.and_then(|caught| u64::from_str_radix(caught.trim(), 16).ok()).unwrap_or(0);
        caught & (1 << 14) != 0 // SIGTERM
    });
    signal(child.id(), "-TERM");
    assert_eq!(child.wait().unwrap().code(), Some(130));
    assert!(installation.all_results().is_empty());
}
