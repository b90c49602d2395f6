//! Encoders: compared by their vectors; other tasks are refused.

use serde_json::json;

use crate::common::{Installation, array, read, row};

#[test]
fn texts_are_embedded_and_printed_as_vectors() {
    let installation = Installation::encoder().engine("one", &[]);
    let object = installation.json(0, "run --framework one --tokens 1,2,3 --tokens 4,5");
    assert_eq!((&object["framework"], &object["task"]), (&json!("one"), &json!("embed")));
    assert_eq!(object["token_ids"], json!([[1, 2, 3], [4, 5]]));
    let vectors = array(&object["vectors"]);
    assert_eq!(vectors.iter().map(|vector| array(vector).len()).collect::<Vec<_>>(), [32, 32]);
    assert_ne!(vectors[0], vectors[1]);
    let length = |of: &serde_json::Value| -> f64 {
        array(of).iter().map(|x| x.as_f64().unwrap().powi(2)).sum::<f64>().sqrt()
    };
    let normed = installation.json(0, "run --framework one --tokens 1,2,3 --normalise true");
    assert!((length(&normed["vectors"][0]) - 1.0).abs() < 1e-6 && (length(&vectors[0]) - 1.0).abs() > 1e-3);
}

#[test]
fn what_an_encoder_cannot_do_is_refused_in_a_sentence() {
    let installation = Installation::encoder().engine("one", &[]).engine("two", &[]);
    let long = format!("run --framework one --tokens {}", vec!["1"; 65].join(","));
    installation.refuses(&[
        (
            "--frameworks one,two --new-tokens 4",
            &["encodes texts", "--new-tokens is for models that continue"],
        ),
        ("--frameworks one,two --context 4", &["--context"]),
        ("sweep kv-cache --frameworks one", &["--kv-cache is for models that continue them"]),
        (
            "sweep forward --frameworks one",
            &["`sweep forward` is for models that continue them", "sweep embed"],
        ),
        (
            "--frameworks one,two --include-tokenizer",
            &["has no tokenizer: its source has none", "--include-tokenizer times one"],
        ),
        ("sweep optimised --frameworks one", &["`sweep optimised` switches the KV cache", "sweep half"]),
        (&long, &["text 1 has 65 tokens, more than the model's 64 positions"]),
        ("run --framework one --tokens 256", &["token id 256 is outside the model's vocabulary"]),
        ("run --framework one --tokens 1,x", &["\"x\" is no token id"]),
        ("run --framework one --tokens 1 --format csv", &["prints of an encoder a table"]),
        ("run --task generate --framework one --tokens 1", &["encodes texts", "--text"]),
        (
            "run --task rerank --framework one --tokens 1",
            &["has no head that gives scores, which rerank needs"],
        ),
        (
            "run --task classify --framework one --tokens 1",
            &["has no head that gives scores, which classify needs"],
        ),
        ("--frameworks one,two --task rerank", &["has no head that gives scores, which rerank needs"]),
        ("run --framework one --tokens 1,2 --token-types 0", &["as many lists, each as long as its ids"]),
        (
            "--frameworks one,two --lengths fixed:65",
            &["texts of 65 tokens are longer than the model's 64 positions"],
        ),
        ("--frameworks one,two --prompt-lengths 3,4", &["--prompt-lengths is for models that continue them"]),
        ("sweep padding --frameworks one --batch 1", &["a single text has no padding"]),
        ("--frameworks one,two --lengths uniform:9-3", &["from 9 down to 3"]),
        ("--frameworks one,two --lengths fixed:9 --prompt-tokens 8", &["leave one out"]),
    ]);
    let manifest = installation.path("model/manifest.json");
    let mut described = read(&manifest);
    described["files"].as_object_mut().unwrap().remove("pooling.json");
    std::fs::write(manifest, described.to_string()).unwrap();
    let without = installation.run("run --framework one --tokens 1").exits(0);
    assert!(without.stderr.contains("it is their mean, as in sentence-transformers"), "{}", without.stderr);
    let timed = Installation::encoder().timed("quick", &[]);
    let report = timed.json(0, "--frameworks quick --rounds 1 --pooling weighted-mean --normalise true");
    let work = &report["plan"]["work"]["encode"];
    assert_eq!(work["task"], json!({"embed": {"pooling": "each", "normalise": false}}));
    assert_eq!(work["steps"], json!([{"pool": {"ways": ["weighted_mean"], "skipped": 0}}, "normalise"]));
    installation.refuses(&[(
        "run --framework one --tokens 1 --prompt-name x",
        &["has no prompt \"x\"", "there are none"],
    )]);
    let decoder = Installation::new().engine("one", &[]);
    decoder.refuses(&[("run --task embed --framework one --tokens 1", &["embed is for encoders"])]);
}

#[test]
fn texts_are_scored_in_pairs_and_token_by_token() {
    let reranker = Installation::encoder_of("BertForSequenceClassification").engine("one", &[]);
    let object = reranker
        .json(0, "run --framework one --tokens 1,2,3 --token-types 0,1,1 --tokens 4,5 --token-types 0,0");
    assert_eq!((&object["framework"], &object["token_ids"]), (&json!("one"), &json!([[1, 2, 3], [4, 5]])));
    let widths: Vec<_> = array(&object["scores"]).iter().map(|scores| array(scores).len()).collect();
    assert_eq!(widths, [1, 1]);
    reranker.refuses(&[("run --framework one --pair who me", &["has no tokenizer: its source has none"])]);

    let tagger = Installation::encoder_of("BertForTokenClassification").engine("one", &[]);
    let object = tagger.json(0, "run --framework one --tokens 1,2,3 --tokens 4");
    let rows = |of: &serde_json::Value| array(of).iter().map(|row| array(row).len()).collect::<Vec<_>>();
    assert_eq!(array(&object["logits"]).iter().map(rows).collect::<Vec<_>>(), [vec![1, 1, 1], vec![1]]);
    tagger.refuses(&[(
        "run --task rerank --framework one --tokens 1",
        &["scores tokens: its task is classify"],
    )]);
}

#[test]
fn texts_of_drawn_lengths_are_compared_and_a_reranker_s_are_pairs() {
    let installation = Installation::encoder_of("BertForSequenceClassification")
        .timed("quick", &[])
        .timed("wrong", &[("perturb", "1")]);
    let report = installation.json(1, "--frameworks quick,wrong --rounds 1");
    assert!(row(&report, "wrong")["reasons"].to_string().contains("R11"), "{report}");
    let batches = &report["plan"]["work"]["encode"];
    assert_eq!(batches["task"], json!("score"));
    assert_eq!(batches["batches"][1]["types"][0], json!([0, 0, 0, 1, 1]));
    let drawn = installation
        .json(0, "--frameworks quick --rounds 1 --seed 7 --batch 8 --task classify --lengths uniform:3-9");
    let texts = array(&drawn["plan"]["work"]["encode"]["batches"][0]["texts"]);
    let lengths: Vec<_> = texts.iter().map(|text| array(text).len()).collect();
    assert!(lengths.len() == 8 && lengths.iter().all(|length| (3..=9).contains(length)), "{lengths:?}");
    assert!(lengths.iter().any(|length| *length != lengths[0]), "{lengths:?}");
}

#[test]
fn encoders_are_swept_over_batches_and_lengths() {
    let installation = Installation::encoder()
        .timed("quick", &[("prefill_token_ms", "0.1")])
        .timed("slow", &[("prefill_token_ms", "0.2")]);
    let study = installation
        .json(0, "sweep embed --frameworks quick,slow --batch 1,4 --length 8 --rounds 6 --seed 7");
    let cells = array(&study["cells"]);
    assert_eq!(cells.len(), 2);
    for cell in cells {
        let single = cell["settings"]["batch"] == json!(1);
        let metric = if single { "single_text" } else { "encoding_throughput" };
        let verdicts = array(&cell["verdicts"]);
        let found = verdicts.iter().find(|verdict| verdict["metric"] == metric).unwrap();
        assert_eq!((&found["a"], &found["verdict"]), (&json!("quick"), &json!("faster")), "{cell}");
    }
    let answer = study["summary"]["answer"].to_string();
    assert!(answer.contains("quick is fastest in 2 of 2 cells"), "{answer}");
}

#[test]
fn files_of_pairs_are_read_a_line_at_a_time() {
    let installation = Installation::encoder().engine("one", &[]).engine("two", &[]);
    std::fs::write(installation.path("pairs.jsonl"), "[\"a\", \"b\"]\n\n{\"txt\": 1}\n").unwrap();
    let file = installation.path("pairs.jsonl");
    let line = format!("--frameworks one,two --texts {}", file.display());
    installation.refuses(&[(&line, &["pairs.jsonl: line 3 is none of {\"query\": \"…\", \"text\": \"…\"}"])]);
}

#[test]
fn a_framework_that_attends_to_padding_is_struck() {
    let installation = Installation::encoder()
        .timed("right", &[("prefill_token_ms", "0.1"), ("padded", "true")])
        .timed("maskless", &[("prefill_token_ms", "0.05"), ("padded", "true"), ("unmasked", "true")]);
    let report =
        installation.json(1, "--frameworks right,maskless --parity-reference right --rounds 6 --seed 7");
    let reasons = row(&report, "maskless")["reasons"].to_string();
    assert!(reasons.contains("R11") && reasons.contains("of a vector"), "{reasons}");
    assert_eq!(row(&report, "right")["reasons"], json!([]));
}

#[test]
fn padding_is_switched_on_and_its_cost_is_told() {
    let installation = Installation::encoder()
        .timed("one", &[("prefill_token_ms", "0.1")])
        .timed("one-padded", &[("prefill_token_ms", "0.1"), ("padded", "true")]);
    let study = installation.json(0, "sweep padding --frameworks one --batch 4 --rounds 6 --seed 7");
    let outcome = &array(&study["outcomes"])[0];
    // Texts of 6, 18, 1 and 15 bytes.
    let speedup = outcome["speedup"].as_f64().unwrap();
    assert!((speedup - 72.0 / 40.0).abs() < 0.02, "{outcome}");
    assert_eq!(outcome["verdict"], json!("faster"));
}

#[test]
fn precisions_of_an_encoder_are_judged_by_what_is_found() {
    let installation = Installation::encoder()
        .engine("exact", &[])
        .engine("off", &[("perturb", "0.02"), ("perturb_from", "0")]);
    let study = installation.json(0, "sweep precision --frameworks exact,off --precision bf16 --rounds 1");
    let cell = &array(&study["cells"])[0];
    let quality = |name: &str| {
        let row = array(&cell["rows"]).iter().find(|row| row["framework"] == json!(name)).unwrap();
        row["text"].clone()
    };
    let exact = quality("exact");
    assert_eq!((&exact["top10"], &exact["kendall_tau"]), (&json!(1.0), &json!(1.0)));
    assert!(exact["min_cosine"].as_f64().unwrap() > 1.0 - 1e-9, "{exact}");
    let off = quality("off");
    assert!((0.9..1.0 - 1e-7).contains(&off["min_cosine"].as_f64().unwrap()), "{off}");
    let half = installation.json(0, "sweep half --frameworks exact --rounds 1 --batch 4");
    assert_eq!(array(&half["cells"])[0]["refused"], json!(null));
}

#[test]
fn long_texts_are_cut_where_that_is_asked_for() {
    let installation = Installation::encoder().engine("one", &[]);
    let long = vec!["1"; 70].join(",");
    let cut = installation.json(0, &format!("run --framework one --tokens {long},2 --truncate"));
    let ids = array(&cut["token_ids"][0]);
    assert_eq!((ids.len(), &ids[63]), (64, &json!(2)), "the last token ends the text");
    std::fs::write(installation.path("long.txt"), "a".repeat(80)).unwrap();
    let line =
        format!("--frameworks one --batch 1 --rounds 1 --texts {}", installation.path("long.txt").display());
    installation
        .run(&line)
        .refused(&["has 80 tokens, more than the model's 64 positions; --truncate cuts it"]);
    let report = installation.json(0, &format!("{line} --truncate"));
    assert_eq!(report["prompts"][0]["tokens"], json!(64));
    let decoder = Installation::new().engine("one", &[]);
    decoder.run("--frameworks one --lengths fixed:8").refused(&["continues texts", "flags of encoders"]);
}

#[test]
fn batches_of_several_sizes_are_requests_of_one_comparison() {
    let installation = Installation::encoder().engine("one", &[]);
    let report = installation.json(0, "--frameworks one --batch 4,1,4 --rounds 1");
    let names: Vec<_> = array(&report["prompts"]).iter().map(|batch| &batch["name"]).collect();
    assert_eq!(names, ["1 text", "4 texts"]);
}

#[test]
fn encoders_are_compared_layer_by_layer() {
    let layers = ("layers", "true");
    let installation = Installation::encoder()
        .engine("right", &[layers])
        .engine("wrong", &[layers, ("perturb", "0.5"), ("perturb_from", "1")])
        .engine("plain", &[]);
    let report = installation.json(1, "parity --frameworks right,wrong,plain");
    let found = |name: &str| row(&report, name).clone();
    let names: Vec<_> = array(&found("right")["layers"]).iter().map(|layer| layer["layer"].clone()).collect();
    assert_eq!(names.first(), Some(&json!("embeddings")));
    assert!(!names.contains(&json!("logits")), "{names:?}");
    assert_eq!((&found("right")["state"], &found("right")["repeatable"]), (&json!("agrees"), &json!(true)));
    // An embedding, and its one layer with the norm after it.
    assert_eq!((&found("wrong")["state"], &found("wrong")["first_beyond"]), (&json!("diverges"), &names[1]));
    assert_eq!((&found("plain")["state"], &found("plain")["layers"]), (&json!("agrees"), &json!([])));
}

#[test]
fn a_trace_of_an_encoder_has_its_batches() {
    let installation = Installation::encoder().engine("one", &[]);
    let file = installation.path("trace.json");
    let line =
        format!("profile --trace --framework one --prompt-tokens 8 --batch 4 --output {}", file.display());
    let said = installation.run(&line).exits(0).stdout;
    assert!(said.contains("3 batches of mock"), "{said}");
    let trace = std::fs::read_to_string(&file).unwrap();
    assert_eq!(render::trace::check(&trace).unwrap().tokens, 3);
}
