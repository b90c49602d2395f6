//! Every tiny model in the test suite that all engines share.

use conformance::{
    Model, OF_ANY_LENGTHS, at, check_architectures, check_converted, check_diffusion,
    check_encoders_in_16_bits, check_encoders_in_f32, check_file_blocks, check_growth, check_lengths,
    check_padding, check_profile, check_speech, check_speech_in_fewer_bits, check_tiny_models, graphs,
    refuses_lengths, senseless, unsupported, with, with_options,
};
use engine_ort::Ort;
use worker::engine::{Bundle, Decode, InferenceEngine, Precision, Settings, Want};

fn settings() -> Settings {
    at(Precision::F32)
}

fn at_level(level: &str) -> Settings {
    with_options(&[("optimization", level)])
}

#[test]
fn tiny_models_match_the_reference_without_hidden_states_and_with_them() {
    check_tiny_models::<Ort>(&settings());
}

#[test]
fn layers_that_are_otherwise_than_llama_s_conform_with_the_graph_as_written_and_optimised() {
    check_architectures::<Ort>(&["off", "all"].map(at_level));
}

#[test]
fn models_that_attend_both_ways_conform_and_are_denoised_state_by_state() {
    check_diffusion::<Ort>(&["off", "all"].map(at_level));
}

#[test]
fn models_that_hear_conform_with_the_graph_as_written_and_optimised() {
    let growing = with_options(&[("cache", "growing")]);
    check_speech::<Ort>(&[at_level("off"), at_level("all"), growing]);
}

#[test]
fn models_that_hear_in_fewer_bits_follow_their_dequantised_weights() {
    check_speech_in_fewer_bits::<Ort>(&[Precision::Int8, Precision::Int4].map(|precision| (precision, 0.2)));
}

#[test]
fn encoders_give_the_vectors_of_the_reference_with_the_graph_as_written_and_optimised() {
    let with_states = |level| Settings { hidden_states: true, ..at_level(level) };
    let refused = check_encoders_in_f32::<Ort>(&["off", "all"].map(with_states));
    assert_eq!(refused, Default::default());
}

#[test]
fn encoders_of_padded_texts_give_the_vectors_of_the_reference() {
    let padded = [("true", "off"), ("true", "all"), ("512", "all")];
    let padded = padded.map(|(padded, level)| Settings {
        hidden_states: true,
        ..with_options(&[("padded", padded), ("optimization", level)])
    });
    assert_eq!(check_encoders_in_f32::<Ort>(&padded), Default::default());
}

#[test]
fn padding_is_computed_and_said_to_be() {
    check_padding::<Ort>(9);
}

#[test]
fn blocks_of_a_file_are_multiplied_as_they_are() {
    check_file_blocks::<Ort>(0.03);
}

#[test]
fn a_cache_that_grows_conforms_and_is_said_to() {
    let growing = with_options(&[("cache", "growing")]);
    check_growth::<Ort>(&growing);
}

/// Rounding the weights to 8 or 11 bits of mantissa moves the logits of the tiny models by this much at most.
const TOLERANCES: [(Precision, f32); 2] = [(Precision::Bf16, 16.0 / 256.0), (Precision::F16, 16.0 / 2048.0)];

#[test]
fn weights_that_are_converted_for_every_product_follow_f32_and_are_said_to_be() {
    check_converted::<Ort>(&TOLERANCES);
    for level in ["off", "all"] {
        check_encoders_in_16_bits::<Ort>(&with_options(&[("weights", "converted"), ("optimization", level)]));
    }
}

#[test]
fn weights_are_converted_in_every_run() {
    let model = Model::tiny("llama-gqa-tied");
    let file = model.directory.path().join("profile.json");
    let options = [("weights", "converted"), ("profile", file.to_str().expect("text"))];
    let settings = with(Settings { kv_precision: Some(Precision::F32), ..at(Precision::Bf16) }, &options);
    let mut engine = Ort::load(&model.bundle, &settings).expect("loads");
    engine.begin(1, 3).expect("begins");
    for token in 1..4 {
        engine.append(&[token], Want::Last).expect("appends");
    }
    drop(engine);
    let profile = std::fs::read_to_string(&file).expect("written");
    // Three runs, each with four weights per layer and the head.
    let (products, casts) = ["FusedMatMul", "Cast"]
        .map(|operator| profile.matches(&format!("\"op_name\" : \"{operator}\"")).count())
        .into();
    assert_eq!(products, 3 * (4 * model.bundle.config().layers.len() + 1));
    assert!(casts >= products, "{casts} casts for {products} products");
}

#[test]
fn onnx_files_give_the_outputs_of_the_reference() {
    graphs::<Ort>(&[]);
}

#[test]
fn tiny_models_match_the_reference_at_every_level_of_optimisation() {
    for level in ["off", "basic", "extended", "all"] {
        println!("{level}");
        check_tiny_models::<Ort>(&at_level(level));
    }
}

#[test]
fn the_level_of_optimisation_is_reported() {
    let model = Model::tiny("gpt2");
    let reported = |settings: &Settings| {
        let in_effect = Ort::load(&model.bundle, settings).expect("loads").in_effect();
        (in_effect.optimised, in_effect.jit.to_string())
    };
    let expected = |on, level: &str| (Some(on), format!("graph optimisation: {level}"));
    assert_eq!(reported(&settings()), expected(true, "all"));
    assert_eq!(reported(&at_level("basic")), expected(true, "basic"));
    assert_eq!(reported(&at_level("off")), expected(false, "off"));
    // If the settings switch it off, no option switches it on.
    assert_eq!(reported(&Settings { jit: false, ..at_level("extended") }), expected(false, "off"));
    let unknown = senseless::<Ort>(&model.bundle, &at_level("most"));
    assert!(unknown.contains("\"most\"") && unknown.contains("extended"), "{unknown}");
}

#[test]
fn a_profile_lies_where_it_was_asked_for() {
    let model = Model::tiny("gpt2");
    let file = model.directory.path().join("profile.json");
    let settings = with_options(&[("profile", file.to_str().expect("text"))]);
    let mut engine = Ort::load(&model.bundle, &settings).expect("loads");
    engine.begin(1, 2).expect("begins");
    engine.append(&[1, 2], Want::Last).expect("appends");
    drop(engine);
    let profile = std::fs::read_to_string(&file).expect("written");
    assert!(profile.contains("GroupQueryAttention"), "no node in {} bytes", profile.len());
}

#[test]
fn a_traced_run_tells_the_part_of_every_node_that_this_engine_has_named() {
    let model = Model::tiny("gpt2");
    let settings = Ort::profiled(settings(), model.directory.path());
    check_profile::<Ort>(&model.bundle, &settings, &[" attention", " mlp norm", " mlp"]);
}

#[test]
fn one_thread_is_one_thread() {
    check_tiny_models::<Ort>(&Settings { threads: 1, ..settings() });
}

#[test]
fn sixteen_bit_precisions_are_unsupported_for_a_reason() {
    let model = Model::tiny("gpt2");
    for precision in [Precision::Bf16, Precision::F16] {
        let reason = unsupported::<Ort>(&model.bundle, &Settings { precision, ..settings() });
        assert!(reason.contains(precision.name()), "{reason}");
    }
}

#[test]
fn a_cache_in_16_bits_is_unsupported_for_a_reason() {
    let settings = Settings { kv_precision: Some(Precision::F16), ..settings() };
    let reason = unsupported::<Ort>(&Model::tiny("gpt2").bundle, &settings);
    assert!(reason.contains("in f32 here, not in f16"), "{reason}");
}

#[cfg(unix)]
#[test]
fn weights_behind_a_link_are_found() {
    let model = Model::tiny("gpt2");
    let linked = model.directory.path().join("linked");
    std::fs::create_dir(&linked).expect("a directory");
    for entry in std::fs::read_dir(model.bundle.directory()).expect("readable") {
        let entry = entry.expect("readable");
        std::os::unix::fs::symlink(entry.path(), linked.join(entry.file_name())).expect("a link");
    }
    Ort::load(&Bundle::open(&linked).expect("a bundle"), &settings()).map(|_| ()).expect("loads");
}

#[test]
fn prompts_of_16_64_and_256_tokens_are_one_batch() {
    check_lengths::<Ort>(&settings(), &OF_ANY_LENGTHS);
    refuses_lengths::<Ort>(&with_options(&[("cache", "growing")]));
}
