use conformance::{
    Model, OF_ANY_LENGTHS, TOLERANCE, architectures, at, check_architectures, check_caches, check_converted,
    check_diffusion, check_encoders, check_encoders_in_16_bits, check_file_blocks, check_growth,
    check_halves, check_hidden_states_are_asked_for, check_lengths, check_padding, check_quantised_kernels,
    check_speech, check_speech_in_fewer_bits, check_tiny_models, each, graphs, logits_in_pieces,
    max_abs_difference, refuses_lengths, senseless, tiny, unsupported, with, with_options,
};
use engine_candle::Candle;
use worker::engine::{InEffect, InferenceEngine, Precision, Settings};

/// The decoder for GPUs, on the CPU.
fn tensors(precision: Precision) -> Settings {
    with(at(precision), &[("decoder", "tensors")])
}

#[test]
fn f32_conforms_on_every_architecture() {
    check_tiny_models::<Candle>(&at(Precision::F32));
}

#[test]
fn layers_that_are_otherwise_than_llama_s_conform() {
    check_architectures::<Candle>(&[at(Precision::F32)]);
}

#[test]
fn onnx_files_give_the_outputs_of_the_reference() {
    // Nested graphs that are repeated are not read.
    graphs::<Candle>(&["loop"]);
}

#[test]
fn models_that_hear_conform() {
    check_speech::<Candle>(&[at(Precision::F32)]);
}

#[test]
fn models_that_hear_follow_in_fewer_bits() {
    // The rows of the encoder are rounded to 8 bits, too, and so is what attends to them (0.14).
    let quantised = [Precision::Int8, Precision::Int4].map(|precision| (precision, 0.2));
    check_speech_in_fewer_bits::<Candle>(&[&TOLERANCES[..], &quantised].concat());
}

#[test]
fn models_that_attend_both_ways_conform_and_are_denoised_state_by_state() {
    check_diffusion::<Candle>(&[at(Precision::F32)]);
}

/// Rounding the weights to 8 or 11 bits of mantissa moves the logits of the tiny models by up to ten such
/// units (0.04, 0.0045).
const TOLERANCES: [(Precision, f32); 2] = [(Precision::Bf16, 16.0 / 256.0), (Precision::F16, 16.0 / 2048.0)];

#[test]
fn half_precisions_follow_f32_row_by_row_and_by_matmul() {
    check_halves::<Candle>(&TOLERANCES.map(|(precision, tolerance)| (at(precision), tolerance)));
}

#[test]
fn keys_and_values_are_kept_in_what_is_asked_for() {
    for model in tiny() {
        check_caches::<Candle>(&model, &at(Precision::F32));
    }
    let settings = Settings { kv_precision: Some(Precision::F16), ..tensors(Precision::F32) };
    let reason = unsupported::<Candle>(&Model::tiny("gpt2").bundle, &settings);
    assert!(reason.contains("type of the weights"), "{reason}");
}

/// Rounding the activations too moves the logits a little more (0.06, 0.0074).
#[test]
fn half_precisions_of_tensors_follow_f32() {
    check_halves::<Candle>(&TOLERANCES.map(|(precision, tolerance)| (tensors(precision), 2.0 * tolerance)));
    for (precision, _) in TOLERANCES {
        let engine = Candle::load(&Model::tiny("gpt2").bundle, &tensors(precision)).expect("loads");
        assert_eq!(engine.in_effect().activations, precision.name());
    }
}

/// Logits of the reference's tokens with weights that are dequantised at load and reported as emulated.
fn emulated(model: &Model, settings: Settings) -> Vec<f32> {
    let precision = settings.precision;
    let dequantised = Settings { dequantised: true, ..settings };
    let mut engine = Candle::load(&model.bundle, &dequantised).expect("loads");
    assert_eq!(engine.in_effect().precision, precision.name());
    assert!(engine.in_effect().weight_storage.contains("emulated"));
    logits_in_pieces(&mut engine, &model.reference.rows(), model.reference.positions)
}

#[test]
fn tensors_hold_dequantised_weights_and_refuse_codes() {
    let model = Model::tiny("gpt2");
    for precision in [Precision::Int8, Precision::Int4] {
        unsupported::<Candle>(&model.bundle, &tensors(precision));
        let (ours, theirs) = (emulated(&model, tensors(precision)), emulated(&model, at(precision)));
        let difference = max_abs_difference(&ours, &theirs);
        assert!(difference <= TOLERANCE, "{precision}: {difference}");
    }
}

/// √(Σ(a − b)² / Σb²)
fn relative_error(a: &[f32], b: &[f32]) -> f32 {
    let squares = |x: &mut dyn Iterator<Item = f32>| x.map(|x| x * x).sum::<f32>();
    (squares(&mut a.iter().zip(b).map(|(a, b)| a - b)) / squares(&mut b.iter().copied())).sqrt()
}

#[test]
fn dequantised_weights_follow_f32_and_are_said_to_be_emulated() {
    for model in tiny() {
        for precision in [Precision::Int8, Precision::Int4, Precision::Nf4] {
            let error = relative_error(&emulated(&model, at(precision)), &model.reference.logits);
            // Unrelated logits would give 1.4; the measured errors are 0.024 and 0.34.
            let tolerance = if precision == Precision::Int8 { 0.05 } else { 0.6 };
            assert!(error <= tolerance, "{precision}: {error}");
        }
    }
}

/// candle's kernels round activations to 8 bits, which moves the logits of the tiny models by up to 0.062.
#[test]
fn quantised_kernels_follow_the_dequantised_weights_row_by_row_and_by_matmul() {
    check_quantised_kernels::<Candle>(0.1);
}

#[test]
fn blocks_of_a_file_are_multiplied_as_they_are() {
    check_file_blocks::<Candle>(0.03);
}

#[test]
fn nf4_is_emulated_whatever_was_asked() {
    let engine = Candle::load(&Model::tiny("gpt2").bundle, &at(Precision::Nf4)).expect("loads");
    assert_eq!(engine.in_effect().precision, "nf4");
    assert!(engine.in_effect().weight_storage.contains("emulated"));
}

/// Longer than a block of queries, unlike the reference texts.
#[test]
fn a_long_prefill_equals_decode_in_every_block() {
    for model in tiny().chain(each(architectures())) {
        let text: Vec<u32> = model.reference.tokens.iter().copied().cycle().take(170).collect();
        let other: Vec<u32> = text.iter().rev().copied().collect();
        let rows = [text.as_slice(), other.as_slice()];
        let mut engine = Candle::load(&model.bundle, &at(Precision::F32)).expect("loads");
        let by_token = logits_in_pieces(&mut engine, &rows, 1);
        for piece in [140, 170] {
            let difference = max_abs_difference(&logits_in_pieces(&mut engine, &rows, piece), &by_token);
            assert!(difference <= TOLERANCE, "in pieces of {piece}: {difference}");
        }
    }
}

#[test]
fn what_candle_cannot_do_is_refused() {
    let model = Model::tiny("gpt2");
    let cuda =
        unsupported::<Candle>(&model.bundle, &Settings { device: "cuda:0".into(), ..at(Precision::F32) });
    assert!(cuda.contains("CUDA"), "{cuda}");
    for option in [("fused", "true"), ("decoder", "loops")] {
        senseless::<Candle>(&model.bundle, &with_options(&[option]));
    }
}

#[test]
fn hidden_states_are_refused_unless_asked_for_at_load() {
    check_hidden_states_are_asked_for::<Candle>();
}

#[test]
fn texts_of_any_lengths_have_the_vectors_of_an_independent_implementation() {
    check_encoders::<Candle>(&Settings { hidden_states: true, ..at(Precision::F32) });
}

#[test]
fn texts_that_are_filled_up_have_the_same_vectors() {
    for padded in ["true", "512"] {
        check_encoders::<Candle>(&Settings { hidden_states: true, ..with_options(&[("padded", padded)]) });
    }
}

#[test]
fn padding_is_computed_and_said_to_be() {
    check_padding::<Candle>(5);
}

#[test]
fn a_cache_that_grows_conforms_and_is_said_to() {
    let growing = with_options(&[("cache", "growing")]);
    check_growth::<Candle>(&growing);
    let tensors = with_options(&[("cache", "growing"), ("decoder", "tensors")]);
    let reason = unsupported::<Candle>(&Model::tiny("gpt2").bundle, &tensors);
    assert!(reason.contains("not for its decoder on tensors"), "{reason}");
}

#[test]
fn weights_that_are_converted_for_every_product_follow_f32_and_are_said_to_be() {
    check_converted::<Candle>(&TOLERANCES);
    check_encoders_in_16_bits::<Candle>(&with_options(&[("weights", "converted")]));
    let in_effect = |precision| {
        let settings = with(at(precision), &[("weights", "converted")]);
        Candle::load(&Model::tiny("gpt2").bundle, &settings).expect("loads").in_effect()
    };
    let InEffect { activations, kernels, .. } = in_effect(Precision::Bf16);
    assert_eq!(activations, "f32");
    assert!(kernels.contains(&"candle Tensor::to_dtype of BF16 weights to f32 before every product".into()));
    let tensors = with(at(Precision::Bf16), &[("weights", "converted"), ("decoder", "tensors")]);
    let reason = unsupported::<Candle>(&Model::tiny("gpt2").bundle, &tensors);
    assert!(reason.contains("not for its decoder on tensors"), "{reason}");
}

#[test]
fn prompts_of_16_64_and_256_tokens_are_one_batch() {
    for settings in [at(Precision::F32), tensors(Precision::F32)] {
        check_lengths::<Candle>(&settings, &OF_ANY_LENGTHS);
    }
    refuses_lengths::<Candle>(&with_options(&[("cache", "growing")]));
}
