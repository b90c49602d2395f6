//! A directory of CTranslate2 becomes the bundle that the Hugging Face directory becomes.

use std::collections::BTreeMap;

use bundle::Precision;
use half::f16;
use prepare::Source;
use serde_json::Value;
use tempfile::TempDir;

use crate::common::{Model, Tensor, digest, prepared_at, refused};

/// `model.bin` before it is written.
#[derive(Clone)]
struct File {
    version: u32,
    spec: &'static str,
    revision: u32,
    /// Type, shape, bytes.
    variables: BTreeMap<String, (u8, Vec<usize>, Vec<u8>)>,
    aliases: Vec<(&'static str, &'static str)>,
}

impl File {
    /// As CTranslate2's converter writes the fixture.
    fn tiny() -> File {
        let model = Model::fixture("speech/whisper");
        let mut variables = BTreeMap::new();
        let size = |name: &str| model.config[name].as_u64().unwrap() as usize;
        for (side, blocks) in
            [("encoder", &["self_attention"][..]), ("decoder", &["self_attention", "attention"])]
        {
            let heads = size(&format!("{side}_attention_heads")) as u8;
            variables.insert(format!("{side}/num_heads"), (2, vec![], vec![heads, 0]));
            let mut put = |name: String, of: &[String]| {
                variables.insert(format!("{side}/{name}"), joined(&model, side, of));
            };
            let mut linear = |name: String, parts: &[String]| {
                for kind in ["weight", "bias"] {
                    let of: Vec<_> = parts.iter().map(|part| format!("{part}.{kind}")).collect();
                    put(format!("{name}/{kind}"), &of);
                }
            };
            for layer in 0..size(&format!("{side}_layers")) {
                let (ours, theirs) = (format!("layers.{layer}"), format!("layer_{layer}"));
                for &block in blocks {
                    let attention = if block == "attention" { "encoder_attn" } else { "self_attn" };
                    let at = |part: &str| format!("{ours}.{attention}.{part}");
                    let [q, k, v, out] = ["q_proj", "k_proj", "v_proj", "out_proj"].map(at);
                    let groups = match block {
                        "attention" => vec![vec![q], vec![k, v], vec![out]],
                        _ => vec![vec![q, k, v], vec![out]],
                    };
                    for (index, group) in groups.iter().enumerate() {
                        linear(format!("{theirs}/{block}/linear_{index}"), group);
                    }
                    let norm = format!("{ours}.{attention}_layer_norm");
                    linear(format!("{theirs}/{block}/layer_norm"), &[norm]);
                }
                linear(format!("{theirs}/ffn/linear_0"), &[format!("{ours}.fc1")]);
                linear(format!("{theirs}/ffn/linear_1"), &[format!("{ours}.fc2")]);
                linear(format!("{theirs}/ffn/layer_norm"), &[format!("{ours}.final_layer_norm")]);
            }
            linear("layer_norm".into(), &["layer_norm".into()]);
            if side == "encoder" {
                linear("conv1".into(), &["conv1".into()]);
                linear("conv2".into(), &["conv2".into()]);
            } else {
                put("embeddings/weight".into(), &["embed_tokens.weight".into()]);
            }
            put("position_encodings/encodings".into(), &["embed_positions.weight".into()]);
        }
        let variables = variables.into_iter().map(|(name, variable)| {
            let norm =
                |name: &str| name.replace("norm/weight", "norm/gamma").replace("norm/bias", "norm/beta");
            (norm(&name), variable)
        });
        let mut variables: BTreeMap<_, _> = variables.collect();
        for (name, number) in [("activation", 3), ("pre_norm", 1), ("alibi", 0)] {
            variables.insert(format!("decoder/{name}"), (1, vec![], vec![number]));
        }
        variables.insert("decoder/alignment_layer".into(), (2, vec![], vec![255, 255]));
        let aliases = vec![("decoder/projection/weight", "decoder/embeddings/weight")];
        File { version: 6, spec: "WhisperSpec", revision: 3, variables, aliases }
    }

    fn bytes(&self) -> Vec<u8> {
        fn number(bytes: &mut Vec<u8>, number: usize) {
            bytes.extend(u32::try_from(number).unwrap().to_le_bytes());
        }
        fn text(bytes: &mut Vec<u8>, text: &str) {
            bytes.extend((text.len() as u16 + 1).to_le_bytes());
            bytes.extend(text.as_bytes());
            bytes.push(0);
        }
        let mut bytes = self.version.to_le_bytes().to_vec();
        text(&mut bytes, self.spec);
        bytes.extend(self.revision.to_le_bytes());
        number(&mut bytes, self.variables.len());
        for (name, (kind, shape, values)) in &self.variables {
            text(&mut bytes, name);
            bytes.push(shape.len() as u8);
            shape.iter().for_each(|size| number(&mut bytes, *size));
            bytes.push(*kind);
            number(&mut bytes, values.len());
            bytes.extend(values);
        }
        number(&mut bytes, self.aliases.len());
        for (alias, name) in &self.aliases {
            text(&mut bytes, alias);
            text(&mut bytes, name);
        }
        bytes
    }

    fn change(mut self, name: &str, change: impl FnOnce(&mut (u8, Vec<usize>, Vec<u8>))) -> File {
        change(self.variables.get_mut(name).unwrap());
        self
    }
}

/// Tensors one behind the other; a bias that Hugging Face does not have is 0.
fn joined(model: &Model, side: &str, of: &[String]) -> (u8, Vec<usize>, Vec<u8>) {
    let zeros = Tensor::f32(&[64], &[0.0; 64]);
    let found = |name: &String| match model.tensors.get(&format!("model.{side}.{name}")) {
        None if name.ends_with("k_proj.bias") => &zeros,
        found => found.unwrap(),
    };
    let parts: Vec<&Tensor> = of.iter().map(found).collect();
    let mut shape = parts[0].shape.clone();
    shape[0] *= parts.len();
    (0, shape, parts.iter().flat_map(|part| part.bytes.clone()).collect())
}

/// As other programs lay it out: config.json has no type.
fn directory(bytes: &[u8]) -> TempDir {
    let directory = tempfile::tempdir().unwrap();
    let write = |name: &str, bytes: &[u8]| std::fs::write(directory.path().join(name), bytes).unwrap();
    write("model.bin", bytes);
    write("config.json", br#"{"suppress_ids": [1, 2]}"#);
    write("tokenizer.json", br#"{"any": 1}"#);
    write("vocabulary.txt", b"a\nb\n");
    directory
}

fn refuse(bytes: &[u8], parts: &[&str]) {
    let directory = directory(bytes);
    refused(Source::Directory(directory.path().into()), Precision::F32, parts);
}

#[test]
fn the_bundle_is_that_of_the_hugging_face_directory() {
    let source = directory(&File::tiny().bytes());
    let (_bundles, bundle) = prepared_at(&source);
    let (_others, other) = prepared_at(conformance::fixtures().with_file_name("speech/whisper"));
    assert_eq!(digest(&bundle), digest(&other));
    assert_eq!(bundle.config(), other.config());
    assert_eq!(std::fs::read_to_string(bundle.tokenizer().unwrap()).unwrap(), r#"{"any": 1}"#);
    assert_eq!(bundle.manifest().source.kind, "ctranslate2");
    assert_eq!(bundle.manifest().source.sha256.keys().collect::<Vec<_>>(), ["model.bin", "tokenizer.json"]);
    let config: Value =
        serde_json::from_slice(&std::fs::read(bundle.directory().join("config.json")).unwrap()).unwrap();
    assert_eq!((&config["model_type"], &config["d_model"]), (&"whisper".into(), &64.into()));
}

#[test]
fn narrow_floats_are_widened_and_a_head_of_its_own_is_kept() {
    let mut file = File::tiny();
    let head = file.variables["decoder/embeddings/weight"].clone();
    file.variables.insert("decoder/projection/weight".into(), head);
    file.aliases.clear();
    let narrow = [1.5, -0.25].repeat(32);
    let file = file.change("decoder/layer_norm/gamma", |(kind, _, bytes)| {
        (*kind, *bytes) = (4, narrow.iter().flat_map(|&x| f16::from_f32(x).to_le_bytes()).collect());
    });
    let (_bundles, bundle) = prepared_at(directory(&file.bytes()));
    let weights = bundle.weights(Precision::F32).unwrap();
    let norm = weights.tensor("model.decoder.layer_norm.weight").unwrap();
    assert_eq!(norm.bytes, Tensor::f32(&[64], &narrow).bytes);
    let head = weights.tensor("lm_head.weight").unwrap().bytes.to_vec();
    assert_eq!(head, weights.tensor("model.decoder.embed_tokens.weight").unwrap().bytes);
}

#[test]
fn another_specification_layout_or_type_is_refused_by_name() {
    let file = File::tiny();
    refuse(&File { spec: "TransformerSpec", ..file.clone() }.bytes(), &["TransformerSpec is not supported"]);
    refuse(&File { version: 7, ..file.clone() }.bytes(), &["version 7", "convert"]);
    refuse(&File { revision: 4, ..file.clone() }.bytes(), &["revision 4", "convert"]);
    let quantised = file.clone().change("encoder/layer_1/ffn/linear_0/weight", |(kind, shape, bytes)| {
        (*kind, *bytes) = (1, vec![1; shape.iter().product()]);
    });
    refuse(&quantised.bytes(), &["quantised as int8", "float16"]);
    let tanh = file.clone().change("decoder/activation", |(_, _, bytes)| *bytes = vec![1]);
    refuse(&tanh.bytes(), &["decoder/activation", "is 1, which no Whisper has"]);
    let mut more = file.clone();
    more.variables.insert("decoder/projection/bias".into(), (0, vec![1], vec![0; 4]));
    refuse(&more.bytes(), &["decoder/projection/bias", "no place"]);
    let mut less = file;
    less.variables.remove("encoder/conv2/bias");
    refuse(&less.bytes(), &["encoder/conv2/bias", "is missing", "[64]"]);
}

#[test]
fn a_file_that_ends_early_or_lies_is_refused() {
    let file = File::tiny();
    let bytes = file.bytes();
    for length in [20, 30, 1000, bytes.len() / 2, bytes.len() - 1] {
        refuse(&bytes[..length], &["model.bin", "but the whole file has"]);
    }
    refuse(&[&bytes[..], b"more"].concat(), &["its variables end at"]);
    let lying =
        file.clone().change("decoder/layer_norm/beta", |(_, shape, _)| shape[0] = usize::pow(2, 32) - 1);
    refuse(&lying.bytes(), &["decoder/layer_norm/beta", "[4294967295]", "256 bytes"]);
    let other = file.clone().change("encoder/conv1/bias", |(_, shape, bytes)| {
        (*shape, *bytes) = (vec![32], vec![0; 128]);
    });
    refuse(&other.bytes(), &["encoder/conv1/bias", "[32]", "[64]"]);
    let unknown = file.clone().change("encoder/conv1/bias", |(kind, ..)| *kind = 9);
    refuse(&unknown.bytes(), &["type 9"]);
    let astray = File { aliases: vec![("a", "b")], ..file.clone() };
    refuse(&astray.bytes(), &["\"b\", which is not there"]);
    let twice = File { aliases: vec![("encoder/conv1/bias", "encoder/conv2/bias")], ..file };
    refuse(&twice.bytes(), &["encoder/conv1/bias", "twice"]);
    let mut many = bytes;
    many[22..26].copy_from_slice(&u32::MAX.to_le_bytes());
    refuse(&many, &["claims 4294967295 names"]);
}

#[test]
fn the_file_by_itself_names_its_directory() {
    let directory = directory(&File::tiny().bytes());
    let file = directory.path().join("model.bin");
    refused(Source::Directory(file), Precision::F32, &["one file of a model", "name its directory"]);
}
