//! The reference computes the model that the engines compute, from the same numbers.

use std::collections::BTreeSet;
use std::path::Path;

use bundle::Pooling;
use conformance::{Model, at, bundle_at, check_encoders_in_f32, fixtures, max_abs_difference, unsupported};
use engine_ort::Ort;
use reference_fastembed::Fastembed;
use worker::engine::{Bundle, EncodeTask, EngineError, InferenceEngine, Precision, Settings, Texts};

/// A fixture of an encoder as a bundle.
fn encoder(name: &str) -> Bundle {
    let source = fixtures().with_file_name("encoders").join(name);
    bundle_at(&source, Path::new(env!("CARGO_TARGET_TMPDIR")), &[Precision::F32])
}

/// On two threads and on one.
#[test]
fn encoders_match_the_reference_or_are_refused_with_a_reason() {
    let alone = Settings { threads: 1, ..at(Precision::F32) };
    let refused = check_encoders_in_f32::<Fastembed>(&[at(Precision::F32), alone]);
    let (mut models, mut tasks) = (BTreeSet::new(), BTreeSet::new());
    for (name, reason) in &refused {
        let (model, task) = name.split_once(", ").unwrap_or((name, ""));
        let expected = match task {
            "" if model.ends_with("-tokens") => "no head that scores tokens",
            "" => "the model's head gives 3",
            _ if model.ends_with("-rank") => "no vectors of texts",
            "pooled.last" => "not by the last token's vector",
            // The fixtures of these have pairs of texts.
            _ => "all of type 0",
        };
        assert!(reason.contains(expected), "{name}: {reason}");
        (if task.is_empty() { &mut models } else { &mut tasks }).insert(name.as_str());
    }
    let of_all = ["bert-tokens", "modernbert-rank", "modernbert-tokens", "mpnet-tokens", "roberta-tokens"];
    assert_eq!(Vec::from_iter(models), of_all);
    let computed = |task: &str| !tasks.contains(task);
    for model in ["distilbert", "modernbert", "mpnet", "qwen3-embed", "roberta"] {
        for pooled in ["cls", "mean", "mean.normalised"] {
            assert!(computed(&format!("{model}, pooled.{pooled}")), "{model}, {pooled}");
        }
    }
    for model in ["bert", "distilbert", "nomic-bert", "qwen3", "xlm-roberta"] {
        assert!(computed(&format!("{model}-rank, scores")), "{model}");
    }
}

/// The fixtures of families with token types have pairs of texts, which it does not embed: it is held to an engine here.
#[test]
fn single_texts_of_families_with_token_types_become_an_engine_s_vectors() {
    let texts = Texts { tokens: &[7, 3, 9, 12, 5, 4], types: &[], lengths: &[2, 1, 3] };
    for name in ["bert", "nomic-bert"] {
        let bundle = encoder(name);
        let (mut ours, mut theirs) = (
            Fastembed::load(&bundle, &at(Precision::F32)).unwrap(),
            Ort::load(&bundle, &at(Precision::F32)).unwrap(),
        );
        for (pooling, normalise) in [(Pooling::Mean, true), (Pooling::Mean, false), (Pooling::Cls, true)] {
            let task = EncodeTask::Embed { pooling, normalise };
            let ours = ours.encode().unwrap();
            let found = ours.encode(texts, task).unwrap().to_vec();
            assert_eq!(ours.positions(), 9, "three texts as long as the longest");
            let difference =
                max_abs_difference(&found, theirs.encode().unwrap().encode(texts, task).unwrap());
            assert!(difference < 1e-5, "{name}: {difference}");
        }
    }
}

/// A call takes one query: texts with another are another, and each score comes back in its text's place.
#[test]
fn pairs_with_different_queries_have_the_scores_of_each_alone() {
    let mut engine = Fastembed::load(&encoder("bert-rank"), &at(Precision::F32)).unwrap();
    let encoder = engine.encode().unwrap();
    let (tokens, types, lengths) =
        ([7, 3, 9, 7, 3, 5, 6, 8, 9, 7, 3, 4], [0, 0, 1, 0, 0, 1, 1, 0, 1, 0, 0, 1], [3, 4, 2, 3]);
    let together = Texts { tokens: &tokens, types: &types, lengths: &lengths };
    let together = encoder.encode(together, EncodeTask::Score).unwrap().to_vec();
    assert_eq!(encoder.positions(), 3 * 4 + 2);
    let mut start = 0;
    for (score, length) in together.iter().zip(lengths) {
        let (tokens, types) = (&tokens[start..start + length], &types[start..start + length]);
        let alone = encoder.encode(Texts { tokens, types, lengths: &[length] }, EncodeTask::Score).unwrap();
        assert!((score - alone[0]).abs() < 1e-5, "{score} {alone:?}");
        start += length;
    }
    let document_first = Texts { tokens: &[7, 3, 9], types: &[1, 0, 0], lengths: &[3] };
    let refused = encoder.encode(document_first, EncodeTask::Score);
    assert!(
        matches!(&refused, Err(EngineError::Unsupported(reason)) if reason.contains("order")),
        "{refused:?}"
    );
}

#[test]
fn what_it_cannot_do_is_refused_with_a_reason() {
    let refused = |settings: Settings| unsupported::<Fastembed>(&encoder("bert"), &settings);
    for precision in [Precision::Bf16, Precision::F16, Precision::Int8, Precision::Int4, Precision::Nf4] {
        assert!(refused(at(precision)).contains("f32 alone"));
    }
    assert!(refused(Settings { device: "cuda:0".into(), ..at(Precision::F32) }).contains("CPU"));
    assert!(refused(Settings { jit: false, ..at(Precision::F32) }).contains("optimises every graph"));
    let decoder = Model::tiny("gpt2");
    assert!(unsupported::<Fastembed>(&decoder.bundle, &at(Precision::F32)).contains("continues no tokens"));
}
