//! Encoders with files that differ from transformers' own.

use bundle::{Pooled, Pooling, Precision, Step, Way, Weights};
use prepare::Source;
use serde_json::{Value, json};

use crate::common::{self, Model, Tensor, digest, prepared_at, refused, safetensors_file};

fn encoder(name: &str) -> Model {
    Model::fixture(&format!("encoders/{name}"))
}

/// A nomic_bert as the code that was published with it names its fields; the tensors of the fixture have its names.
fn published() -> Model {
    let mut model = encoder("nomic-bert");
    let fields = [
        ("hidden_size", "n_embd"),
        ("intermediate_size", "n_inner"),
        ("num_hidden_layers", "n_layer"),
        ("num_attention_heads", "n_head"),
        ("max_position_embeddings", "n_positions"),
        ("layer_norm_eps", "layer_norm_epsilon"),
    ];
    for (name, published) in fields {
        model.config[published] = model.config[name].take();
    }
    model.config.as_object_mut().unwrap().retain(|_, value| !value.is_null());
    model.config["activation_function"] = json!("swiglu");
    model.config["rotary_emb_base"] = json!(1000);
    for name in ["hidden_act", "rope_parameters", "head_dim"] {
        model.config.as_object_mut().unwrap().remove(name);
    }
    model
}

/// The same with the names of tensors that transformers 5 has in memory, as it need not write them.
fn under_new_names() -> Model {
    let parts = [
        ("encoder.layers.", "layers."),
        ("attn.out_proj", "self_attn.o_proj"),
        ("mlp.fc11", "mlp.up_proj"),
        ("mlp.fc12", "mlp.gate_proj"),
        ("mlp.fc2", "mlp.down_proj"),
        ("norm1", "post_attention_layernorm"),
        ("norm2", "post_mlp_layernorm"),
        ("emb_ln", "embeddings.LayerNorm"),
    ];
    let mut model = encoder("nomic-bert");
    for (name, tensor) in std::mem::take(&mut model.tensors) {
        let Some(layer) = name.strip_suffix("attn.Wqkv.weight") else {
            let renamed = parts.iter().fold(name, |name, (published, ours)| name.replace(published, ours));
            model.tensors.insert(renamed, tensor);
            continue;
        };
        let layer = layer.replace("encoder.layers.", "layers.");
        let values = tensor.values();
        let shape = [tensor.shape[0] / 3, tensor.shape[1]];
        for (part, values) in ["q", "k", "v"].iter().zip(values.chunks_exact(values.len() / 3)) {
            model.tensors.insert(format!("{layer}self_attn.{part}_proj.weight"), Tensor::f32(&shape, values));
        }
    }
    model
}

#[test]
fn a_nomic_bert_under_its_published_names_is_the_one_under_those_of_transformers() {
    let [(_kept, usual), (_also, renamed)] = [under_new_names(), published()].map(|model| model.prepared());
    assert_eq!((renamed.config(), digest(&renamed)), (usual.config(), digest(&usual)));
}

#[test]
fn an_activation_of_nomic_bert_that_is_not_gated_is_refused_by_its_name() {
    let mut model = published();
    model.config["activation_function"] = json!("gelu");
    let source = model.write();
    let words = ["activation_function is \"gelu\"; supported are swiglu and geglu"];
    refused(Source::Directory(source.path().into()), Precision::F32, &words);
}

#[test]
fn a_decoder_whose_files_say_how_to_pool_is_an_encoder() {
    let mut model = encoder("qwen3-embed");
    model.config["architectures"] = json!(["Qwen3ForCausalLM"]);
    let source = model.write();
    let directory = source.path();
    let (_kept, decoder) = prepared_at(&source);
    assert_eq!(decoder.config().encoder, None);
    std::fs::create_dir(directory.join("1_Pooling")).unwrap();
    std::fs::write(directory.join("1_Pooling/config.json"), "{\"pooling_mode\": \"lasttoken\"}").unwrap();
    let (_also, encoder) = prepared_at(&source);
    assert!(encoder.config().encoder.is_some() && encoder.config().causal);
    let pooled = encoder.pooled().unwrap().unwrap();
    assert_eq!(pooled, Pooled { pooling: Pooling::Last, ..Pooled::default() });
}

/// A directory of sentence-transformers: modules by their types, with spaces between them, and files.
struct Folder {
    source: tempfile::TempDir,
}

impl Folder {
    fn new(types: &str, files: &[(&str, Value)]) -> Folder {
        let folder = Folder { source: encoder("bert").write() };
        let module = |(place, kind): (usize, &str)| {
            let class = kind.rsplit('.').next().unwrap();
            let path = if place == 0 { String::new() } else { format!("{place}_{class}") };
            let package = if kind.contains('.') { "" } else { "sentence_transformers.models." };
            json!({"idx": place, "name": place.to_string(), "path": path, "type": format!("{package}{kind}")})
        };
        folder.write("modules.json", &types.split(' ').enumerate().map(module).collect());
        files.iter().for_each(|(name, value)| folder.write(name, value));
        folder
    }

    fn write(&self, name: &str, value: &Value) {
        let path = self.source.path().join(name);
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        std::fs::write(path, value.to_string()).unwrap();
    }

    fn pooled(&self) -> Pooled {
        prepared_at(&self.source).1.pooled().unwrap().unwrap()
    }

    fn refused(&self, words: &[&str]) {
        refused(Source::Directory(self.source.path().into()), Precision::F32, words);
    }
}

/// A configuration for the fixture's vectors, whose width is this field.
fn sized(field: &str, mut more: Value) -> Value {
    more.as_object_mut().unwrap().entry(field).or_insert(encoder("bert").config["hidden_size"].clone());
    more
}

fn pooling(more: Value) -> (&'static str, Value) {
    ("1_Pooling/config.json", sized("word_embedding_dimension", more))
}

fn settings(fields: Value) -> (&'static str, Value) {
    ("config_sentence_transformers.json", fields)
}

#[test]
fn modules_give_the_way_of_pooling_and_what_follows() {
    let usual = Pooled::default;
    let of = |pooling: Pooling| Pooled { pooling, ..usual() };
    let each = |steps: Vec<Step>| Pooled { steps, ..of(Pooling::Each) };
    let pool = |ways: &[Way]| Step::Pool { ways: ways.to_vec(), skipped: 0 };
    let prompts = |name: &str, text: &str| [(name.to_owned(), text.to_owned())].into();
    let plain = "Transformer Pooling";
    let body = "sentence_transformers.base.modules.transformer.Transformer";
    let long_names =
        format!("{body} sentence_transformers.sentence_transformer.modules.pooling.Pooling Normalize");
    let four = "sentence_transformers.models.Transformer.Transformer Pooling Dropout Normalize";
    let both = json!({"pooling_mode": "cls", "pooling_mode_max_tokens": true});
    let three = json!({"pooling_mode_mean_sqrt_len_tokens": true, "pooling_mode_mean_tokens": true,
        "pooling_mode_cls_token": true});
    let none = || json!({});
    let without_prompt = Pooled {
        prompts: prompts("a", "b: "),
        default_prompt: Some("a".into()),
        skips_prompt: true,
        ..each(vec![pool(&[Way::Mean]), Step::Normalise])
    };
    for (types, own, more, expected) in [
        (plain, none(), none(), usual()),
        (plain, both, none(), of(Pooling::Cls)),
        (
            &long_names,
            json!({"pooling_mode": ["max"]}),
            none(),
            Pooled { normalise: true, ..of(Pooling::Max) },
        ),
        (
            four,
            json!({"pooling_mode_weightedmean_tokens": true}),
            none(),
            each(vec![pool(&[Way::WeightedMean]), Step::Normalise]),
        ),
        (plain, three, none(), each(vec![pool(&[Way::Cls, Way::Mean, Way::MeanSqrtLen])])),
        (
            plain,
            json!({"pooling_mode": ["mean", "lasttoken"]}),
            json!({"truncate_dim": 8}),
            each(vec![pool(&[Way::Mean, Way::Last]), Step::Cut(8)]),
        ),
        (
            "Transformer Pooling Normalize",
            json!({"include_prompt": false}),
            json!({"prompts": {"a": "b: "}, "default_prompt_name": "a"}),
            without_prompt,
        ),
        (plain, none(), json!({"default_prompt_name": "query"}), usual()),
        (
            plain,
            none(),
            json!({"prompts": {"query": "q: "}}),
            Pooled { prompts: prompts("query", "q: "), ..usual() },
        ),
    ] {
        let folder = Folder::new(types, &[pooling(own.clone()), settings(more)]);
        assert_eq!(folder.pooled(), expected, "{types} {own}");
    }
}

#[test]
fn what_gives_no_vector_of_a_text_is_refused_by_its_name() {
    let (sparse, late) =
        ("sentence_transformers.sparse_encoder.models", "sentence_transformers.multi_vector_encoder.modules");
    for (types, words) in [
        (&*format!("{sparse}.MLMTransformer {sparse}.SpladePooling"), &["SPLADE", "MLMTransformer"][..]),
        ("Transformer pylate.models.Dense.Dense", &["pylate.models.Dense.Dense", "ColBERT"]),
        (&format!("Transformer {late}.MultiVectorMask"), &["ColBERT", "MultiVectorMask"]),
        ("Transformer Dense", &["its modules are", "models.Dense", "one Pooling"]),
        ("Transformer WeightedLayerPooling Pooling", &["WeightedLayerPooling", "several layers"]),
        ("Transformer LSTM Pooling", &["models.LSTM"]),
        ("StaticEmbedding", &["StaticEmbedding", "table"]),
        ("Router", &["Router"]),
        ("Transformer own.Pooling", &["module own.Pooling is none"]),
        ("Transformer", &["no Pooling"]),
        ("Transformer Pooling", &["1_Pooling/config.json", "missing"]),
    ] {
        println!("{types}");
        Folder::new(types, &[]).refused(words);
    }
    let usual = || pooling(json!({}));
    let dense = |more: Value| {
        let fields = json!({"out_features": 4});
        let mut fields = sized("in_features", fields);
        fields.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        ("2_Dense/config.json", fields)
    };
    let task = ("sentence_bert_config.json", json!({"transformer_task": "fill-mask"}));
    let elu = json!({"activation_function": "torch.nn.modules.activation.ELU"});
    for (files, words) in [
        (vec![settings(json!({"model_type": "SparseEncoder"}))], ["SPLADE", "vector of a text"]),
        (vec![pooling(json!({"pooling_mode": "sum"}))], ["pooling_mode is \"sum\"", "not supported"]),
        (
            vec![pooling(json!({"word_embedding_dimension": 7}))],
            ["vectors of 7 numbers", "the Transformer's"],
        ),
        (vec![usual(), task], ["sentence_bert_config.json", "transformer_task is \"fill-mask\""]),
        (
            vec![usual(), settings(json!({"default_prompt_name": "x"}))],
            ["default_prompt_name is \"x\"", "no such prompt"],
        ),
        (vec![usual(), dense(json!({"in_features": 3}))], ["2_Dense", "vectors of 3 numbers"]),
        (vec![usual(), dense(elu)], ["activation.ELU", "Tanh"]),
        (vec![usual(), dense(json!({}))], ["2_Dense/model.safetensors", "missing"]),
    ] {
        println!("{files:?}");
        let has_dense = files.iter().any(|(name, _)| name.starts_with("2_"));
        let types = if has_dense { "Transformer Pooling Dense" } else { "Transformer Pooling" };
        Folder::new(types, &files).refused(&words);
    }
}

#[test]
fn weights_of_modules_are_kept_in_f32() {
    let hidden = encoder("bert").config["hidden_size"].as_u64().unwrap() as usize;
    let files = [
        pooling(json!({})),
        (
            "2_Dense/config.json",
            json!({
                "in_features": hidden, "out_features": 2, "bias": false, "use_residual": true,
                "activation_function": "torch.nn.modules.linear.Identity",
            }),
        ),
        ("3_LayerNorm/config.json", json!({"dimension": 2})),
    ];
    let folder = Folder::new("Transformer Pooling Dense LayerNorm", &files);
    let values: Vec<f32> = (0..2 * hidden).map(|number| number as f32).collect();
    let save = |name: &str, tensors: [(&str, Tensor); 2]| {
        let tensors = tensors.map(|(name, tensor)| (name.to_owned(), tensor));
        let file = safetensors_file(tensors.iter().map(|(name, tensor)| (name, tensor)));
        std::fs::write(folder.source.path().join(name), file).unwrap();
    };
    let matrix = || Tensor::f32(&[2, hidden], &values);
    let vector = |values: [f32; 2]| Tensor::f32(&[2], &values);
    save("2_Dense/model.safetensors", [("linear.weight", matrix()), ("residual.weight", matrix())]);
    let norm = [("norm.bias", vector([1.0, 2.0])), ("norm.weight", vector([3.0, 4.0]))];
    save("3_LayerNorm/model.safetensors", norm);
    let (_kept, bundle) = prepared_at(&folder.source);
    let steps = bundle.pooled().unwrap().unwrap().steps;
    let stored: Vec<_> = steps.iter().flat_map(bundle::step_tensors).collect();
    let names: Vec<&str> = stored.iter().map(|tensor| tensor.name.as_str()).collect();
    assert_eq!(names, ["2.linear.weight", "2.residual.weight", "3.norm.weight", "3.norm.bias"]);
    let file = Weights::map(&bundle.directory().join(bundle::MODULES), Precision::F32, &stored).unwrap();
    let floats = |name: &str| common::floats(file.tensor(name).unwrap().bytes);
    assert_eq!((floats("2.residual.weight"), floats("3.norm.weight")), (values, vec![3.0, 4.0]));
}

#[test]
fn the_files_of_the_transformer_are_where_modules_json_says() {
    let folder = Folder::new("Transformer Pooling", &[pooling(json!({"pooling_mode": "cls"}))]);
    let (whole, body) = (folder.source.path(), folder.source.path().join("0_Transformer"));
    std::fs::create_dir(&body).unwrap();
    for name in ["config.json", "model.safetensors"] {
        std::fs::rename(whole.join(name), body.join(name)).unwrap();
    }
    let modules = json!([
        {"path": "0_Transformer", "type": "sentence_transformers.models.Transformer"},
        {"path": "1_Pooling", "type": "sentence_transformers.models.Pooling"},
    ]);
    folder.write("modules.json", &modules);
    folder.write(
        "0_Transformer/sentence_roberta_config.json",
        &json!({"max_seq_length": 7, "do_lower_case": true}),
    );
    let normaliser = json!({"type": "NFC"});
    folder.write("0_Transformer/tokenizer.json", &json!({"normalizer": normaliser}));
    let (_kept, bundle) = prepared_at(whole);
    let pooled = bundle.pooled().unwrap().unwrap();
    assert_eq!((pooled.pooling, pooled.max_tokens), (Pooling::Cls, Some(7)));
    let tokenizer: Value =
        serde_json::from_slice(&std::fs::read(bundle.tokenizer().unwrap()).unwrap()).unwrap();
    let lowered = json!({"type": "Sequence", "normalizers": [{"type": "Lowercase"}, normaliser]});
    assert_eq!(tokenizer["normalizer"], lowered);
    folder.write(
        "modules.json",
        &json!([{"path": "../x", "type": "sentence_transformers.models.Transformer"}]),
    );
    folder.refused(&["\"../x\""]);
}
