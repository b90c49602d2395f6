//! A Hugging Face directory becomes a bundle with the same numbers.

use bundle::{Bundle, Precision, sha256_of};
use half::{bf16, f16};
use prepare::{Source, prepare};
use serde_json::json;

use crate::common::{Model, Tensor, digest, prepared_at, request, safetensors_file, tiny};

fn names() -> Vec<String> {
    let models = conformance::tiny_models();
    models.iter().map(|path| path.file_name().unwrap().to_str().unwrap().to_owned()).collect()
}

/// The source's tensors as a bundle must hold them.
fn expected(name: &str) -> Model {
    let mut model = Model::tiny(name);
    for (name, tensor) in &mut model.tensors {
        if ["c_attn.weight", "c_proj.weight", "c_fc.weight"].iter().any(|part| name.ends_with(part)) {
            let [rows, columns] = tensor.shape[..] else { panic!("a matrix") };
            let values = tensor.values();
            let turned: Vec<_> =
                (0..rows * columns).map(|i| values[(i % rows) * columns + i / rows]).collect();
            *tensor = Tensor::f32(&[columns, rows], &turned);
        }
    }
    model
}

#[test]
fn every_tensor_is_the_sources_bit_for_bit() {
    assert_eq!(names().len(), 5);
    for name in names() {
        let (_bundles, bundle) = prepared_at(tiny(&name));
        let weights = bundle.weights(Precision::F32).unwrap();
        let expected = expected(&name).tensors;
        assert_eq!(bundle.config().tensors().len(), expected.len(), "{name}");
        for (tensor, expected) in &expected {
            let view = weights.tensor(tensor).unwrap();
            assert_eq!((view.shape, view.bytes), (expected.shape.clone(), &expected.bytes[..]), "{tensor}");
        }
    }
}

#[test]
fn narrow_precisions_are_rounded_to_nearest_even() {
    let source = tiny("qwen2-bias");
    let bundles = tempfile::tempdir().unwrap();
    let narrow = [Precision::Bf16, Precision::F16];
    let bundle = prepare(&request(Source::Directory(source), &narrow, bundles.path())).unwrap();
    let bundle = Bundle::open(bundle).unwrap();
    assert_eq!(bundle.precisions(), narrow);
    let (brain, ieee) = (bundle.weights(narrow[0]).unwrap(), bundle.weights(narrow[1]).unwrap());
    for (name, tensor) in &expected("qwen2-bias").tensors {
        let values = tensor.values();
        let rounded: Vec<u8> = values.iter().flat_map(|&x| bf16::from_f32(x).to_le_bytes()).collect();
        assert_eq!(brain.tensor(name).unwrap().bytes, rounded, "{name}");
        let rounded: Vec<u8> = values.iter().flat_map(|&x| f16::from_f32(x).to_le_bytes()).collect();
        assert_eq!(ieee.tensor(name).unwrap().bytes, rounded, "{name}");
    }
}

#[test]
fn weights_stored_narrow_are_widened_exactly() {
    let mut model = Model::tiny("llama-gqa-tied");
    let name = "model.norm.weight";
    let values = [0.5, -1.25, 3.0, 7.75].repeat(16);
    for (dtype, bytes) in [
        ("BF16", values.iter().flat_map(|&x| bf16::from_f32(x).to_le_bytes()).collect::<Vec<u8>>()),
        ("F16", values.iter().flat_map(|&x| f16::from_f32(x).to_le_bytes()).collect()),
    ] {
        model.tensors.insert(name.into(), Tensor { dtype: dtype.into(), shape: vec![64], bytes });
        let (_bundles, bundle) = model.prepared();
        let weights = bundle.weights(Precision::F32).unwrap();
        assert_eq!(weights.tensor(name).unwrap().bytes, Tensor::f32(&[64], &values).bytes, "{dtype}");
    }
}

#[test]
fn fused_tensors_lie_side_by_side_and_data_is_aligned() {
    let bundles = tempfile::tempdir().unwrap();
    for name in names() {
        let both =
            request(Source::Directory(tiny(&name)), &[Precision::F32, Precision::Int4], bundles.path());
        let bundle = Bundle::open(prepare(&both).unwrap()).unwrap();
        let (weights, config) = (bundle.weights(Precision::F32).unwrap(), bundle.config());
        let codes = bundle.weights(Precision::Int4).unwrap();
        for layer in (0..config.layers.len()).map(|index| config.layer(index)) {
            for linear in [&layer.qkv, &layer.gate_up] {
                let parts: Vec<_> = linear.weights.iter().map(|n| weights.tensor(n).unwrap().bytes).collect();
                assert_eq!(weights.stacked(&linear.weights).unwrap().bytes, parts.concat(), "{name}");
                codes.quantised(&linear.weights).unwrap();
                if !linear.biases.is_empty() {
                    weights.stacked(&linear.biases).unwrap();
                }
            }
        }
        assert_eq!(weights.tensor(&config.embedding()).unwrap().file_offset % 64, 0, "{name}");
    }
}

#[test]
fn the_manifest_says_what_the_bundle_is() {
    let (_bundles, bundle) = prepared_at(tiny("gpt2"));
    let manifest = bundle.manifest();
    assert_eq!((manifest.name.as_str(), manifest.source.kind.as_str()), ("gpt2", "huggingface"));
    let files = ["config.json", "model.safetensors"];
    assert_eq!(manifest.source.sha256.keys().collect::<Vec<_>>(), files);
    for (file, sha256) in &manifest.source.sha256 {
        assert_eq!(*sha256, sha256_of(&tiny("gpt2").join(file)).unwrap());
    }
    for file in manifest.files.keys() {
        bundle.verify(file).unwrap();
    }
    let derived = &manifest.files["f32.safetensors"].derived;
    assert!(derived.contains("transposed"), "{derived}");
    let config = |directory: &std::path::Path| std::fs::read(directory.join("config.json")).unwrap();
    assert_eq!(config(bundle.directory()), config(&tiny("gpt2")), "config.json is the source's, verbatim");
}

#[test]
fn a_tokenizer_is_copied() {
    let source = Model::tiny("llama-gqa-tied").write();
    std::fs::write(source.path().join("tokenizer.json"), "{\"any\": 1}").unwrap();
    let (_bundles, bundle) = prepared_at(&source);
    assert_eq!(std::fs::read_to_string(bundle.tokenizer().unwrap()).unwrap(), "{\"any\": 1}");
    assert!(bundle.manifest().source.sha256.contains_key("tokenizer.json"));
}

#[test]
fn names_may_lack_their_prefix_and_buffers_are_ignored() {
    let buffers = ["h.0.attn.bias", "h.0.attn.masked_bias", "model.layers.0.self_attn.rotary_emb.inv_freq"];
    for (name, prefix) in [("gpt2", "transformer."), ("qwen3-qknorm", "model.")] {
        let mut model = Model::tiny(name).renamed(&[], |name| name.replacen(prefix, "", 1));
        for buffer in buffers {
            let bytes = vec![1; 4];
            model.tensors.insert(buffer.into(), Tensor { dtype: "U8".into(), shape: vec![2, 2], bytes });
        }
        let (_bundles, bundle) = model.prepared();
        let weights = bundle.weights(Precision::F32).unwrap();
        for (tensor, expected) in &expected(name).tensors {
            assert_eq!(weights.tensor(tensor).unwrap().bytes, expected.bytes, "{tensor}");
        }
    }
}

#[test]
fn names_that_transformers_changes_on_load_are_understood() {
    let gammas = |name: &str| {
        let name =
            name.replace("LayerNorm.weight", "LayerNorm.gamma").replace("LayerNorm.bias", "LayerNorm.beta");
        format!("bert.{name}")
    };
    let prefixed = |prefix: &'static str| move |name: &str| format!("{prefix}{name}");
    let visual = |prefix: &'static str| {
        move |name: &str| match name.strip_prefix("model.") {
            Some(bare) => format!("{prefix}{bare}"),
            None => name.to_owned(),
        }
    };
    let tower = ["vision_tower.a.weight", "model.multi_modal_projector.b.weight"];
    type Rename<'a> = &'a dyn Fn(&str) -> String;
    let cases: [(&str, &[&str], Rename<'_>); 8] = [
        ("encoders/bert", &["cls.predictions.bias", "bert.embeddings.position_ids"], &gammas),
        ("encoders/distilbert", &["vocab_transform.weight"], &prefixed("distilbert.")),
        ("encoders/mpnet", &["lm_head.bias"], &prefixed("mpnet.")),
        ("encoders/roberta", &["lm_head.bias", "roberta.embeddings.token_type_ids"], &prefixed("roberta.")),
        ("encoders/modernbert", &["head.dense.weight", "decoder.bias"], &prefixed("model.")),
        ("encoders/nomic-bert", &["cls.predictions.bias"], &prefixed("bert.")),
        ("architectures/gemma3", &tower, &visual("language_model.model.")),
        ("architectures/gemma3", &tower, &visual("model.language_model.model.")),
    ];
    for (name, more, rename) in cases {
        let usual = Model::fixture(name);
        let found = usual.clone().renamed(more, rename).prepared();
        assert_eq!(digest(&found.1), digest(&usual.prepared().1), "{name}");
    }
}

#[test]
fn a_tied_model_may_have_only_its_head_or_both_even_in_different_types() {
    let (embedding, head) = ("model.embed_tokens.weight", "lm_head.weight");
    let tied = || Model::tiny("qwen2-bias");
    let usual = tied().prepared();
    let mut both = tied();
    both.tensors.insert(head.into(), both.tensors[embedding].clone());
    let mut only_head = both.clone();
    only_head.tensors.remove(embedding);
    for model in [&both, &only_head] {
        let (_bundles, found) = model.prepared();
        assert_eq!(digest(&found), digest(&usual.1));
        assert!(!found.weights(Precision::F32).unwrap().contains(head));
    }
    let values = both.tensors[embedding].values().into_iter().map(|x| bf16::from_f32(x).to_f32());
    let (values, shape): (Vec<f32>, _) = (values.collect(), both.tensors[embedding].shape.clone());
    both.tensors.insert(embedding.into(), Tensor::f32(&shape, &values));
    let bytes = values.iter().flat_map(|&x| bf16::from_f32(x).to_le_bytes()).collect();
    both.tensors.insert(head.into(), Tensor { dtype: "BF16".into(), shape, bytes });
    both.prepared();
}

#[test]
fn a_multimodal_model_is_read_by_its_text_part() {
    for (name, more) in [
        (
            "mistral-window",
            json!({ "model_type": "mistral3", "architectures": ["Mistral3ForConditionalGeneration"],
            "vision_config": { "model_type": "pixtral" }, "image_token_index": 3 }),
        ),
        ("gemma3", json!({ "model_type": "gemma3", "vision_config": {} })),
    ] {
        let text = Model::fixture(&format!("architectures/{name}"));
        let mut whole = text.clone().renamed(&[], |name| format!("language_model.{name}"));
        whole.tensors.insert("vision_tower.x".into(), Tensor::f32(&[1], &[1.0]));
        whole.config = more;
        whole.config["text_config"] = text.config.clone();
        let ((_kept, usual), (_also, found)) = (text.prepared(), whole.prepared());
        assert_eq!((found.config(), digest(&found)), (usual.config(), digest(&usual)), "{name}");
    }
}

/// Every object in which fields change the computation.
fn objects(config: &mut serde_json::Value, path: &str, found: &mut Vec<String>) {
    let Some(fields) = config.as_object_mut() else { return };
    found.push(path.to_owned());
    for (name, value) in fields {
        if name.starts_with("rope_") || name.ends_with("_attention") || name == "text_config" {
            objects(value, &format!("{path}/{name}"), found);
        }
    }
}

#[test]
fn every_fixture_has_only_known_fields_and_one_more_is_refused_by_its_name() {
    let kinds = ["tiny", "architectures", "diffusion", "encoders"];
    let homes = kinds.map(|kind| conformance::fixtures().with_file_name(kind));
    let entries = homes.iter().flat_map(|home| std::fs::read_dir(home).unwrap());
    let files: Vec<_> = entries
        .map(|entry| entry.unwrap().path().join("config.json"))
        .filter(|path| path.is_file())
        .collect();
    assert!(files.len() > 30, "{}", files.len());
    for file in files {
        let config: serde_json::Value = serde_json::from_slice(&std::fs::read(&file).unwrap()).unwrap();
        bundle::ModelConfig::checked(&config).unwrap_or_else(|error| panic!("{}: {error}", file.display()));
        let mut places = Vec::new();
        objects(&mut config.clone(), "", &mut places);
        for place in places {
            let mut changed = config.clone();
            changed.pointer_mut(&place).unwrap()["mystery"] = json!(1);
            let error = bundle::ModelConfig::checked(&changed).unwrap_err().to_string();
            let path = format!("{place}/mystery").replace('/', ".");
            assert!(error.contains(&format!("{:?}", &path[1..])), "{}: {error}", file.display());
        }
    }
}

#[test]
fn shards_are_put_together_with_and_without_an_index() {
    let model = Model::tiny("llama3-rope-scaled");
    let (_bundles, whole) = model.prepared();
    let shards = ["model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors"];
    let half = model.tensors.len() / 2;
    let map: serde_json::Map<_, _> = (model.tensors.keys().enumerate())
        .map(|(i, name)| (name.clone(), json!(shards[usize::from(i >= half)])))
        .collect();
    for index in [true, false] {
        let source = tempfile::tempdir().unwrap();
        model.write_config(source.path());
        let parts = [(0, half), (half, model.tensors.len() - half)];
        for (shard, (skip, take)) in shards.iter().zip(parts) {
            let file = safetensors_file(model.tensors.iter().skip(skip).take(take));
            std::fs::write(source.path().join(shard), file).unwrap();
        }
        if index {
            // Not listed, hence not read.
            std::fs::write(source.path().join("consolidated.safetensors"), "something else").unwrap();
            let text = json!({ "metadata": {}, "weight_map": map }).to_string();
            std::fs::write(source.path().join("model.safetensors.index.json"), text).unwrap();
        }
        let (_bundles, bundle) = prepared_at(&source);
        assert_eq!(digest(&bundle), digest(&whole));
        assert_eq!(bundle.manifest().source.sha256.len(), 3 + usize::from(index));
    }
}

#[test]
fn quantised_weights_are_the_nearest_that_their_scales_allow() {
    let bundles = tempfile::tempdir().unwrap();
    // Relative error of a whole tensor: a step of 2/255, of 2/15, and nf4's, finer near zero.
    let quantised = [(Precision::Int8, 0.012), (Precision::Int4, 0.15), (Precision::Nf4, 0.15)];
    let precisions = quantised.map(|(precision, _)| precision);
    for name in names() {
        let source = Source::Directory(tiny(&name));
        let bundle = Bundle::open(prepare(&request(source, &precisions, bundles.path())).unwrap()).unwrap();
        let codes = bundle.config().quantised();
        assert!(codes.contains(&bundle.config().lm_head()), "{name}");
        for (precision, limit) in quantised {
            let weights = bundle.weights(precision).unwrap();
            for (tensor, expected) in &expected(&name).tensors {
                assert_eq!(weights.is_quantised(tensor), codes.contains(tensor), "{tensor}");
                if !codes.contains(tensor) {
                    assert_eq!(weights.tensor(tensor).unwrap().bytes, expected.bytes, "{tensor}");
                    continue;
                }
                let held = weights.quantised(std::slice::from_ref(tensor)).unwrap();
                assert_eq!([held.rows, held.columns], expected.shape[..], "{tensor}");
                let (held, values) = (held.dequantised(), expected.values());
                let squares =
                    |of: &dyn Fn(usize) -> f32| (0..values.len()).map(|i| of(i).powi(2)).sum::<f32>();
                let error = (squares(&|i| held[i] - values[i]) / squares(&|i| values[i])).sqrt();
                assert!(error < limit, "{name} {tensor} {precision}: {error}");
            }
        }
    }
}
