//! A bundle keeps the chat template of its source, with the special tokens that the template may name.

use std::path::Path;

use bundle::{Bundle, Precision};
use candle_core::quantized::gguf_file;
use prepare::{Source, prepare};
use serde_json::{Value, json};
use tempfile::TempDir;

use crate::common::{Model, prepared_at, refused, request};
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

#[test]
fn the_template_is_kept_with_the_special_tokens_and_nothing_else() {
    let whole = json!({
        "chat_template": "{{ bos_token }}", "bos_token": {"content": "<s>", "lstrip": false}, "eos_token": "</s>",
        "pad_token": null, "add_bos_token": true, "model_max_length": 512, "tokenizer_class": "X"
    });
    let kept_of_whole =
        json!({ "chat_template": "{{ bos_token }}", "bos_token": "<s>", "eos_token": "</s>" });
    let old = json!({ "chat_template": "old", "eos_token": "</s>" });
    let several = json!({ "chat_template": [
        {"name": "tool_use", "template": "tools"}, {"name": "default", "template": "usual"}
    ] });
    // A template in a file of its own takes precedence, and of several the default one is kept.
    for (config, template, expected) in [
        (Some(whole), None, Some(kept_of_whole)),
        (Some(old), Some("new"), Some(json!({ "chat_template": "new", "eos_token": "</s>" }))),
        (None, Some("new"), Some(json!({ "chat_template": "new" }))),
        (Some(several), None, Some(json!({ "chat_template": "usual" }))),
        (None, None, None),
        (Some(json!({ "eos_token": "</s>" })), None, None),
    ] {
        let config = config.map(|config| config.to_string());
        let config = config.as_deref().map(|config| ("tokenizer_config.json", config));
        let template = template.map(|template| ("chat_template.jinja", template));
        let directory = source(&config.into_iter().chain(template).collect::<Vec<_>>());
        assert_eq!(kept_of(&prepared_at(&directory).1), expected, "{config:?} {template:?}");
    }
}

#[test]
fn a_configuration_that_does_not_parse_is_damaged() {
    let directory = source(&[("tokenizer_config.json", "{")]);
    let source = Source::Directory(directory.path().into());
    refused(source, Precision::F32, &["tokenizer_config.json is damaged: it does not parse"]);
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
