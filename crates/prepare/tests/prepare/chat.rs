//! A bundle keeps the chat template of its source, with the special tokens that the template may name.

use std::path::Path;

use bundle::{Bundle, Precision};
use candle_core::quantized::gguf_file;
use prepare::{Source, prepare};
use serde_json::{Value, json};
use tempfile::TempDir;

use crate::common::{Model, prepared, refusal, request};
use crate::gguf::{Gguf, GgufInTests};
use crate::tokenizer::with_tokenizer;

fn source(files: &[(&str, &str)]) -> TempDir {
    let directory = Model::tiny("qwen2-bias").write();
    for (name, text) in files {
        std::fs::write(directory.path().join(name), text).unwrap();
    }
    directory
}

fn kept_of(bundle: &Bundle) -> Option<Value> {
    let path = bundle.chat_template()?;
    bundle.verify("tokenizer_config.json").unwrap();
    Some(serde_json::from_slice(&std::fs::read(path).unwrap()).unwrap())
}

/// The template in the bundle of a directory with these files.
fn kept(files: &[(&str, &str)]) -> Option<Value> {
    let directory = source(files);
    let (_bundles, bundle) = prepared(Source::Directory(directory.path().into()));
    kept_of(&bundle)
}

#[test]
fn of_a_configuration_the_template_and_the_special_tokens_are_kept() {
    let config = json!({
        "chat_template": "{{ bos_token }}", "bos_token": {"content": "<s>", "lstrip": false}, "eos_token": "</s>",
        "pad_token": null, "add_bos_token": true, "model_max_length": 512, "tokenizer_class": "X"
    });
    let expected = json!({ "chat_template": "{{ bos_token }}", "bos_token": "<s>", "eos_token": "</s>" });
    assert_eq!(kept(&[("tokenizer_config.json", &config.to_string())]), Some(expected));
}

#[test]
fn a_template_in_a_file_of_its_own_takes_precedence() {
    let config = json!({ "chat_template": "old", "eos_token": "</s>" }).to_string();
    let files = [("tokenizer_config.json", config.as_str()), ("chat_template.jinja", "new")];
    assert_eq!(kept(&files), Some(json!({ "chat_template": "new", "eos_token": "</s>" })));
    assert_eq!(kept(&files[1..]), Some(json!({ "chat_template": "new" })));
}

#[test]
fn of_several_templates_the_default_one_is_kept() {
    let named = json!({ "chat_template": [
        {"name": "tool_use", "template": "tools"}, {"name": "default", "template": "usual"}
    ] });
    assert_eq!(
        kept(&[("tokenizer_config.json", &named.to_string())]),
        Some(json!({ "chat_template": "usual" }))
    );
}

#[test]
fn without_a_template_nothing_is_kept() {
    assert_eq!(kept(&[]), None);
    assert_eq!(kept(&[("tokenizer_config.json", r#"{"eos_token": "</s>"}"#)]), None);
}

#[test]
fn a_configuration_that_does_not_parse_is_damaged() {
    let directory = source(&[("tokenizer_config.json", "{")]);
    let error = refusal(Source::Directory(directory.path().into()), Precision::F32).to_string();
    assert!(error.contains("tokenizer_config.json is damaged: it does not parse"), "{error}");
}

#[test]
fn another_template_makes_another_bundle() {
    let bundles = tempfile::tempdir().unwrap();
    let directory = source(&[("chat_template.jinja", "one")]);
    let prepare = |directory: &Path| {
        let mut request = request(Source::Directory(directory.into()), &[Precision::F32], bundles.path());
        request.name = Some("tiny".into());
        prepare(&request).unwrap()
    };
    let one = prepare(directory.path());
    std::fs::write(directory.path().join("chat_template.jinja"), "two").unwrap();
    assert_ne!(prepare(directory.path()), one);
}

#[test]
fn a_gguf_s_template_comes_with_the_texts_of_its_tokens() {
    let mut gguf = with_tokenizer(Gguf::from_tiny("llama-gqa-tied"), "gpt-2");
    assert_eq!(kept_of(&gguf.prepared().1), None);
    let template = gguf_file::Value::String("{{ bos_token }}hello".into());
    gguf.metadata.insert("tokenizer.chat_template".into(), template);
    let (_bundles, bundle) = gguf.prepared();
    let expected = json!({ "chat_template": "{{ bos_token }}hello", "bos_token": "<|begin|>" });
    assert_eq!(kept_of(&bundle), Some(expected));
}
