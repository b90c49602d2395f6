//! Bad input gets one sentence with the file, the tensor, the value found and the value expected.

use std::path::Path;

use bundle::Precision;
use prepare::Source;
use serde_json::json;

use crate::common::{self, Model, Tensor, prepared_at, safetensors_file, tiny, with_header};

fn refused(directory: &Path, parts: &[&str]) {
    common::refused(Source::Directory(directory.into()), Precision::F32, parts);
}

fn llama() -> Model {
    Model::tiny("llama-gqa-tied")
}

#[test]
fn what_is_no_model_is_told_what_it_lacks() {
    let directory = tempfile::tempdir().unwrap();
    refused(&directory.path().join("nowhere"), &["no such directory"]);
    refused(&tiny("gpt2/model.safetensors"), &["one file of a model", "name its directory", "gpt2"]);
    refused(directory.path(), &["no config.json"]);
    llama().write_config(directory.path());
    refused(directory.path(), &["no safetensors weights"]);
    std::fs::write(directory.path().join("pytorch_model.bin"), "").unwrap();
    refused(directory.path(), &["only pytorch_model.bin", "convert"]);
    refused(&directory.path().join("config.json"), &["one file of a model", "name its directory"]);
}

#[test]
fn a_directory_with_the_model_under_another_name_names_it() {
    let config = llama().config.to_string();
    // The files, and parts of the sentence.
    let cases: [(&[&str], &[&str]); 12] = [
        (&["some.gguf"], &["no config.json", "holds a GGUF file: name ", "some.gguf"]),
        (&["config.json", "some.gguf", "mmproj-f16.gguf"], &["no safetensors weights", "name ", "some.gguf"]),
        (
            &["Q4/m-00001-of-00002.gguf", "Q4/m-00002-of-00002.gguf"],
            &["a GGUF file: name", "m-00001-of-00002.gguf"],
        ),
        (&["a.gguf", "b.gguf"], &["name one of", "a.gguf, ", "b.gguf"]),
        (
            &["config.json", "onnx/model.onnx", "onnx/model_q4.onnx"],
            &["an ONNX file: name", "onnx/model.onnx"],
        ),
        (
            &["adapter_config.json", "adapter_model.safetensors"],
            &["LoRA", "meta-llama/Llama-3", "merge_and_unload"],
        ),
        (
            &["refs/main", "snapshots/a/config.json", "snapshots/b/config.json"],
            &["hub repository", "snapshots/b"],
        ),
        (&["part/config.json"], &["directory below: name ", "part"]),
        (&["config .json", "model.safetensors"], &["rename \"config .json\""]),
        (&["consolidated.safetensors", "params.json"], &["layout of Meta or Mistral"]),
        (&["model_index.json"], &["diffusers"]),
        (
            &["config.json", "model-00002-of-00002.safetensors"],
            &["model-00001-of-00002.safetensors is not there"],
        ),
    ];
    for (files, parts) in cases {
        let directory = tempfile::tempdir().unwrap();
        for file in files {
            let path = directory.path().join(file);
            std::fs::create_dir_all(path.parent().unwrap()).unwrap();
            let text = match *file {
                "refs/main" => "b",
                "adapter_config.json" => r#"{"base_model_name_or_path": "meta-llama/Llama-3"}"#,
                _ if file.ends_with("config.json") => &config,
                _ => "",
            };
            std::fs::write(path, text).unwrap();
        }
        refused(directory.path(), parts);
    }
}

#[test]
fn what_was_downloaded_in_place_of_a_file_is_said() {
    const POINTER: &str = "version https://git-lfs.github.com/spec/v1\noid sha256:4d7a\nsize 538090408\n";
    for (name, text, parts) in [
        ("model.safetensors", POINTER, ["Git LFS pointer", "git lfs pull"]),
        ("tokenizer.json", POINTER, ["tokenizer.json", "git lfs pull"]),
        ("config.json", "<!DOCTYPE html><html>", ["web page", "/resolve/"]),
        ("model.safetensors", "Entry not found", ["server's answer", "Entry not found"]),
        ("model.safetensors", "PK\u{3}\u{4}archive/data.pkl", ["zip file", "safetensors"]),
        ("model.safetensors", "GGUF\u{3}\0\0\0", ["a GGUF file", ".gguf"]),
        ("config.json", "", ["config.json", "empty"]),
    ] {
        let directory = llama().write();
        std::fs::write(directory.path().join(name), text).unwrap();
        refused(directory.path(), &parts);
    }
    let directory = tempfile::tempdir().unwrap();
    for (name, bytes, words) in [
        ("m.gguf", &b"<html>"[..], "web page"),
        ("m.gguf", b"tjgg\x03\0\0\0", "before GGUF"),
        ("m.onnx", POINTER.as_bytes(), "Git LFS pointer"),
        ("m.onnx", b"\x1c\0\0\0TFL3\0\0", "TensorFlow Lite"),
        ("m.bin", b"\x80\x02\x8a\x0al\xfc", "pickle"),
        ("m", b"neither", "neither a directory nor a GGUF"),
    ] {
        let path = directory.path().join(name);
        std::fs::write(&path, bytes).unwrap();
        common::refused(Source::parse(path.to_str().unwrap()), Precision::F32, &[words]);
    }
}

#[test]
#[cfg(unix)]
fn a_link_that_leaves_the_model_s_directory_is_refused() {
    let outside = tempfile::tempdir().unwrap();
    let secret = outside.path().join("secret.json");
    std::fs::write(&secret, "{}").unwrap();
    let linked = |name: &str, target: &Path| {
        let directory = llama().write();
        let _ = std::fs::remove_file(directory.path().join(name));
        std::os::unix::fs::symlink(target, directory.path().join(name)).unwrap();
        directory
    };
    for name in ["tokenizer.json", "config.json", "model.safetensors"] {
        refused(linked(name, &secret).path(), &[name, "leaves the model's directory", "secret.json"]);
    }
    // Within the directory a link may lead anywhere.
    let directory = llama().write();
    std::fs::rename(directory.path().join("model.safetensors"), directory.path().join("weights")).unwrap();
    std::os::unix::fs::symlink("weights", directory.path().join("model.safetensors")).unwrap();
    prepared_at(&directory);
}

#[test]
#[cfg(unix)]
fn what_is_no_regular_file_is_refused_before_it_is_opened() {
    let directory = llama().write();
    let weights = directory.path().join("model.safetensors");
    std::fs::remove_file(&weights).unwrap();
    std::os::unix::fs::symlink("/dev/null", &weights).unwrap();
    refused(directory.path(), &["model.safetensors", "leaves the model's directory"]);
    std::fs::remove_file(&weights).unwrap();
    // A pipe would be waited for.
    let mode = rustix::fs::Mode::RUSR | rustix::fs::Mode::WUSR;
    rustix::fs::mknodat(rustix::fs::CWD, &weights, rustix::fs::FileType::Fifo, mode, 0).unwrap();
    refused(directory.path(), &["model.safetensors", "not a regular file"]);
    let gguf = directory.path().join("some.gguf");
    std::os::unix::fs::symlink("/dev/null", &gguf).unwrap();
    common::refused(Source::Gguf(gguf), Precision::F32, &["not a regular file"]);
}

#[test]
fn a_config_that_makes_no_sense_is_refused() {
    let with = |field: &str, value: serde_json::Value| {
        let mut model = llama();
        model.config[field] = value;
        model.write()
    };
    refused(with("model_type", json!("mamba")).path(), &["mamba", "qwen3"]);
    refused(with("hidden_size", json!("big")).path(), &["hidden_size"]);
    refused(with("quantization_config", json!({ "quant_method": "gptq" })).path(), &["gptq"]);
    refused(with("num_hidden_layers", json!(1 << 12)).path(), &["4096 layers", "29 tensors"]);
    let directory = llama().write();
    std::fs::write(directory.path().join("config.json"), "{").unwrap();
    refused(directory.path(), &["config.json is damaged"]);
}

#[test]
fn a_tensor_that_is_missing_wrong_or_superfluous_is_named() {
    let name = "model.layers.1.self_attn.k_proj.weight";
    let mut model = llama();
    model.tensors.remove(name);
    refused(model.write().path(), &["model.safetensors", name, "missing", "[32, 64]"]);
    model.tensors.insert(name.into(), Tensor::f32(&[64, 32], &[0.0; 2048]));
    refused(model.write().path(), &[name, "[64, 32]", "[32, 64]"]);
    for dtype in ["F64", "I64"] {
        let bytes = vec![0; 32 * 64 * 8];
        model.tensors.insert(name.into(), Tensor { dtype: dtype.into(), shape: vec![32, 64], bytes });
        refused(model.write().path(), &[name, dtype, "BF16"]);
    }
    let mut model = llama();
    model.tensors.insert("model.layers.0.self_attn.q_proj.bias".into(), Tensor::f32(&[64], &[0.0; 64]));
    refused(model.write().path(), &["q_proj.bias", "no place"]);
}

#[test]
fn a_head_that_contradicts_the_tie_is_refused() {
    let mut model = llama();
    model.tensors.insert("lm_head.weight".into(), Tensor::f32(&[320, 64], &[0.5; 320 * 64]));
    refused(model.write().path(), &["lm_head.weight", "model.embed_tokens.weight", "tie_word_embeddings"]);
    model.tensors.remove("lm_head.weight");
    model.config["tie_word_embeddings"] = json!(false);
    refused(model.write().path(), &["lm_head.weight", "missing", "tie_word_embeddings"]);
}

#[test]
fn names_that_no_version_of_transformers_changes_are_explained() {
    let norm = "model.norm.weight";
    for (name, reason) in [
        ("model.norm.weight_g", "weight_norm"),
        ("module.model.norm.weight", "DataParallel"),
        ("base_model.model.model.norm.weight", "merge the adapter"),
    ] {
        let mut model = llama();
        let tensor = model.tensors.remove(norm).unwrap();
        model.tensors.insert(name.into(), tensor);
        refused(model.write().path(), &[name, reason]);
    }
    let mut model = llama();
    model.tensors.insert("v_head.summary.weight".into(), Tensor::f32(&[1], &[0.0]));
    refused(model.write().path(), &["v_head.summary.weight", "value head"]);
    let mut model = llama();
    model.tensors.insert("norm.weight".into(), model.tensors[norm].clone());
    refused(model.write().path(), &["norm.weight", "another name", norm]);
}

#[test]
fn numbers_that_cannot_be_held_are_pointed_out() {
    let name = "model.norm.weight";
    let with = |value: f32| {
        let mut model = llama();
        let mut values = model.tensors[name].values();
        values[7] = value;
        model.tensors.insert(name.into(), Tensor::f32(&[64], &values));
        model.write()
    };
    refused(with(f32::NAN).path(), &[name, "NaN", "element 7"]);
    refused(with(f32::NEG_INFINITY).path(), &[name, "-inf", "element 7"]);
    let source = with(70_000.0);
    let source = Source::Directory(source.path().into());
    common::refused(source, Precision::F16, &[name, "70000", "element 7", "f16"]);
}

#[test]
fn a_header_that_lies_is_refused() {
    let model = llama();
    let file = safetensors_file(model.tensors.iter());
    let directory = model.write();
    let weights = directory.path().join("model.safetensors");
    let refused_as = |bytes: &[u8], parts: &[&str]| {
        std::fs::write(&weights, bytes).unwrap();
        refused(directory.path(), parts);
    };
    refused_as(&[], &["model.safetensors", "empty"]);
    refused_as(&[1; 7], &["at least 8 bytes"]);
    refused_as(&u64::MAX.to_le_bytes(), &["18446744073709551615 bytes"]);
    refused_as(&with_header(&json!([1]), &[]), &["does not parse"]);
    refused_as(&file[..file.len() - 4], &["truncated", "claims bytes"]);
    refused_as(&[&file[..], &[0; 4]].concat(), &["follow the header"]);
    let entry = |dtype: &str, shape: &[u64], start: u64, end: u64| json!({ "dtype": dtype, "shape": shape, "data_offsets": [start, end] });
    let one = |entry: serde_json::Value, parts: &[&str]| {
        refused_as(&with_header(&json!({ "a": entry }), &[0; 16]), &[&["\"a\""], parts].concat());
    };
    one(json!(3), &["invalid entry"]);
    one(entry("F32", &[4], 16, 0), &["16..0"]);
    one(entry("F32", &[5], 0, 16), &["16 bytes", "takes 20"]);
    one(entry("F32", &[u64::MAX, 8], 0, 16), &["more than any file"]);
    one(entry("F32", &[2], 8, 16), &["gap"]);
    let two = json!({ "a": entry("F32", &[4], 0, 16), "b": entry("F32", &[2], 8, 16) });
    refused_as(&with_header(&two, &[0; 16]), &["\"b\"", "overlaps"]);
}

#[test]
fn an_index_that_leads_astray_is_refused() {
    let directory = tempfile::tempdir().unwrap();
    llama().write_config(directory.path());
    let index = |value: serde_json::Value, parts: &[&str]| {
        std::fs::write(directory.path().join("model.safetensors.index.json"), value.to_string()).unwrap();
        refused(directory.path(), parts);
    };
    index(json!({}), &["weight_map"]);
    index(json!({ "weight_map": { "a": "../a.safetensors" } }), &["../a.safetensors"]);
    index(json!({ "weight_map": { "a": 3 } }), &["\"a\"", "3"]);
    index(json!({ "weight_map": { "a": "gone.safetensors" } }), &["gone.safetensors", "not there"]);
}

#[test]
fn a_tensor_in_two_shards_is_refused() {
    let model = llama();
    let directory = tempfile::tempdir().unwrap();
    model.write_config(directory.path());
    for shard in ["a.safetensors", "b.safetensors"] {
        let file = safetensors_file(model.tensors.iter().take(1));
        std::fs::write(directory.path().join(shard), file).unwrap();
    }
    refused(directory.path(), &["b.safetensors", "also in a.safetensors"]);
}
