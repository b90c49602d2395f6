//! The reference computes the model that the engines compute, from the same numbers.

use std::path::Path;

use bundle::Pooling;
use candle_core::Device as CandleDevice;
use candle_core::quantized::gguf_file;
use conformance::{Model, at, bundle_at, check_encoders_in_f32, check_model, fixtures, unsupported, with};
use reference_candle_transformers::CandleTransformers;
use reference_gguf::FourBits;
use worker::engine::{Bundle, EncodeTask, EngineError, InferenceEngine, Precision, Settings, Texts};

/// On candle's own count of threads; more or fewer can be asked for in the environment alone.
fn settings(precision: Precision) -> Settings {
    Settings { threads: candle_core::utils::get_num_threads(), ..at(precision) }
}

/// A fixture of an encoder as a bundle.
fn encoder(name: &str, precisions: &[Precision]) -> Bundle {
    let source = fixtures().with_file_name("encoders").join(name);
    bundle_at(&source, Path::new(env!("CARGO_TARGET_TMPDIR")), precisions)
}

#[test]
fn llama_conforms_from_the_bundle() {
    for name in ["llama-gqa-tied", "llama3-rope-scaled"] {
        check_model::<CandleTransformers>(&Model::tiny(name), &settings(Precision::F32));
    }
}

#[test]
fn encoders_that_candle_transformers_has_conform_and_the_others_are_refused() {
    let refused = check_encoders_in_f32::<CandleTransformers>(&[settings(Precision::F32)]);
    let names: Vec<&str> = refused.keys().map(String::as_str).collect();
    let others = [
        "bert-rank",
        "bert-tokens",
        "distilbert",
        "distilbert-rank",
        "modernbert-rank",
        "modernbert-tokens",
        "mpnet",
        "mpnet-tokens",
        "nomic-bert-rank",
        "qwen3-embed",
        "qwen3-rank",
        "roberta-tokens",
    ];
    assert_eq!(names, others, "{refused:?}");
}

#[test]
fn a_derived_gguf_holds_the_very_numbers_of_the_bundle() {
    let Model { bundle, directory, .. } = Model::tiny("llama-gqa-tied");
    for precision in [Precision::F32, Precision::Int8, Precision::Int4] {
        let file = reference_gguf::derive(&bundle, precision, FourBits::Q4K, directory.path()).unwrap();
        let mut reader = std::fs::File::open(&file).unwrap();
        let content = gguf_file::Content::read(&mut reader).unwrap();
        let weights = bundle.weights(precision).unwrap();
        let layer = bundle.config().layer(1);
        let pairs =
            [("token_embd", bundle.config().embedding()), ("blk.1.ffn_down", layer.down.weights[0].clone())];
        for (gguf, ours) in pairs {
            let tensor = content.tensor(&mut reader, &format!("{gguf}.weight"), &CandleDevice::Cpu).unwrap();
            let tensor = tensor.dequantize(&CandleDevice::Cpu).unwrap().flatten_all().unwrap();
            let expected: Vec<f32> = match precision {
                Precision::F32 => {
                    let bytes = weights.tensor(&ours).unwrap().bytes;
                    bytes.as_chunks().0.iter().map(|bytes| f32::from_le_bytes(*bytes)).collect()
                }
                _ => weights.quantised(&[ours]).unwrap().dequantised(),
            };
            assert_eq!(tensor.to_vec1::<f32>().unwrap(), expected, "{gguf} at {precision}");
        }
    }
}

/// candle's model is exact in f32 alone, so this shows that the order of rows, the names and the metadata are right.
#[test]
fn quantized_llama_conforms_from_a_derived_gguf_of_f32() {
    let model = Model::tiny("llama-gqa-tied");
    let (bundle, directory) = (&model.bundle, &model.directory);
    let file = reference_gguf::derive(bundle, Precision::F32, FourBits::Q4_0, directory.path()).unwrap();
    // SAFETY: no other test of this binary reads or writes this variable.
    #[allow(unsafe_code)]
    unsafe {
        std::env::set_var("PHOTOFINISH_SOURCE_GGUF", &file);
    }
    let settings = with(settings(Precision::F32), &[("weights", "source")]);
    assert_eq!(CandleTransformers::weights_file(bundle, &settings).unwrap(), file);
    check_model::<CandleTransformers>(&model, &settings);
}

#[test]
fn a_derived_file_is_recorded_with_what_it_came_from_and_found_without_reading_that() {
    let Model { bundle, directory, .. } = Model::tiny("llama-gqa-tied");
    let file = reference_gguf::derive(&bundle, Precision::Int8, FourBits::Q4_0, directory.path()).unwrap();
    let text = std::fs::read(reference_gguf::record_path(&file)).unwrap();
    let record: reference_gguf::Record = serde_json::from_slice(&text).unwrap();
    assert_eq!(record.from_sha256, bundle.manifest().files["int8.safetensors"].sha256);
    assert_eq!(record.sha256, bundle::sha256_of(&file).unwrap());
    let written = std::fs::metadata(&file).unwrap().modified().unwrap();
    std::fs::remove_file(bundle.weights_path(Precision::Int8).unwrap()).unwrap();
    reference_gguf::derive(&bundle, Precision::Int8, FourBits::Q4_0, directory.path()).unwrap();
    assert_eq!(std::fs::metadata(&file).unwrap().modified().unwrap(), written, "it is written once");
}

#[test]
fn what_the_reference_cannot_do_is_refused() {
    let llama = Model::tiny("llama-gqa-tied");
    let gguf = unsupported::<CandleTransformers>(&llama.bundle, &settings(Precision::Int8));
    assert!(gguf.contains("gguf"), "{gguf}");
    let cuda = Settings { device: "cuda:0".into(), ..settings(Precision::F32) };
    unsupported::<CandleTransformers>(&llama.bundle, &cuda);
    unsupported::<CandleTransformers>(&Model::tiny("qwen3-qknorm").bundle, &settings(Precision::F32));
    let roberta = encoder("roberta", &[Precision::F32, Precision::Bf16]);
    unsupported::<CandleTransformers>(&roberta, &settings(Precision::Bf16));
    let mut roberta = CandleTransformers::load(&roberta, &settings(Precision::F32)).unwrap();
    let padding_inside = Texts { tokens: &[0, 1, 2], types: &[], lengths: &[3] };
    let mean = EncodeTask::Embed { pooling: Pooling::Mean, normalise: false };
    let refused = roberta.encode().unwrap().encode(padding_inside, mean);
    assert!(matches!(refused, Err(EngineError::Unsupported(_))), "{refused:?}");
}
