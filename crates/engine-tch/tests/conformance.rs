use conformance::{
    Model, OF_ANY_LENGTHS, TOLERANCE, at, check_architectures, check_caches, check_converted,
    check_diffusion, check_encoders, check_encoders_in_16_bits, check_encoders_in_f32, check_follows,
    check_growth, check_halves, check_hidden_states_are_asked_for, check_lengths, check_padding,
    check_profile, check_quantised_kernels, check_speech, check_speech_in_fewer_bits, check_tiny_models,
    graphs, logits_in_pieces, max_abs_difference, refuses_lengths, senseless, tiny, unsupported, with,
    with_options,
};
use engine_tch::Tch;
use worker::engine::{InferenceEngine, Precision, Settings};

const TORCHSCRIPT: (&str, &str) = ("execution", "torchscript");
const UNFUSED: (&str, &str) = ("fused", "false");
const PADDED: (&str, &str) = ("padded", "true");

#[test]
fn keys_and_values_are_kept_in_what_is_asked_for() {
    for model in tiny() {
        check_caches::<Tch>(&model, &at(Precision::F32));
    }
    let model = Model::tiny("gpt2");
    for option in [UNFUSED, TORCHSCRIPT] {
        let settings = Settings { kv_precision: Some(Precision::F16), ..with_options(&[option]) };
        let reason = unsupported::<Tch>(&model.bundle, &settings);
        assert!(reason.contains("only fused layers on a CPU"), "{reason}");
    }
}

#[test]
fn f32_conforms_in_every_layout() {
    for layout in ["mapped", "onednn", "xnnpack"] {
        check_tiny_models::<Tch>(&with_options(&[("linear", layout)]));
    }
}

#[test]
fn f32_conforms_with_attention_in_products() {
    check_tiny_models::<Tch>(&with_options(&[("attention", "products")]));
}

#[test]
fn f32_conforms_as_torchscript_in_every_layout() {
    for layout in ["mapped", "onednn", "xnnpack"] {
        check_tiny_models::<Tch>(&with_options(&[("linear", layout), TORCHSCRIPT]));
    }
}

#[test]
fn f32_conforms_with_nothing_fused() {
    check_tiny_models::<Tch>(&with_options(&[UNFUSED]));
}

#[test]
fn layers_that_are_otherwise_than_llama_s_conform_fused_and_not() {
    check_architectures::<Tch>(&[with_options(&[]), with_options(&[UNFUSED])]);
}

#[test]
fn models_that_hear_conform_in_every_layout_fused_and_not() {
    let each = [&[][..], &[("linear", "mapped")], &[("linear", "onednn")], &[("linear", "xnnpack")]];
    let others = [&[("attention", "products")][..], &[("cache", "growing")], &[UNFUSED], &[TORCHSCRIPT]];
    check_speech::<Tch>(&each.into_iter().chain(others).map(with_options).collect::<Vec<_>>());
}

#[test]
fn models_that_hear_do_so_in_fewer_bits() {
    let [bf16, f16] = TOLERANCES;
    check_speech_in_fewer_bits::<Tch>(&[bf16, f16, (Precision::Int8, 0.1), (Precision::Int4, 0.1)]);
}

#[test]
fn models_that_attend_both_ways_conform_and_are_denoised_state_by_state() {
    check_diffusion::<Tch>(&[&[][..], &[TORCHSCRIPT], &[UNFUSED]].map(with_options));
}

/// Rounding weights and activations to 8 or 11 bits of mantissa moves these models' logits by this much at
/// most; a wrong operation moves them by more.
const TOLERANCES: [(Precision, f32); 2] = [(Precision::Bf16, 0.1), (Precision::F16, 0.015)];

#[test]
fn half_precisions_follow_f32() {
    let [bf16, _] = TOLERANCES;
    let each = [&[][..], &[("linear", "mapped")], &[UNFUSED]]
        .into_iter()
        .flat_map(|options| TOLERANCES.map(|half| (half, options)))
        .chain([(bf16, &[TORCHSCRIPT][..])])
        .map(|((precision, tolerance), options)| (with(at(precision), options), tolerance));
    check_halves::<Tch>(&each.collect::<Vec<_>>());
}

#[test]
fn dequantised_weights_compute_in_f32_and_are_said_to_be_emulated() {
    for model in tiny() {
        for precision in [Precision::Int8, Precision::Int4, Precision::Nf4] {
            let settings = Settings { dequantised: precision != Precision::Nf4, ..at(precision) };
            let [mapped, xnnpack] = ["mapped", "xnnpack"].map(|layout| {
                let settings = with(settings.clone(), &[("linear", layout)]);
                let mut engine = Tch::load(&model.bundle, &settings).expect("loads");
                let in_effect = engine.in_effect();
                assert_eq!((&*in_effect.precision, &*in_effect.activations), (precision.name(), "f32"));
                assert!(in_effect.weight_storage.starts_with("emulated: dequantised to f32 at load"));
                logits_in_pieces(&mut engine, &model.reference.rows(), model.reference.positions)
            });
            let difference = max_abs_difference(&mapped, &xnnpack);
            assert!(difference <= TOLERANCE, "{precision}: {difference}");
        }
    }
}

/// Rounding activations to bf16 within products moves these models' logits by 0.1 at most.
#[test]
fn quantised_kernels_follow_the_dequantised_weights() {
    check_quantised_kernels::<Tch>(0.1);
}

#[test]
fn what_is_in_effect_is_what_was_asked_for() {
    let model = Model::tiny("gpt2");
    let in_effect = |options: &[(&str, &str)]| {
        Tch::load(&model.bundle, &with_options(options)).expect("loads").in_effect()
    };
    assert_eq!(in_effect(&[("linear", "mapped")]).weight_storage, "mapped");
    for (layout, kernel) in [("onednn", "mkldnn::"), ("xnnpack", "XNNPACK")] {
        let packed = in_effect(&[("linear", layout)]);
        assert!(packed.weight_storage.starts_with("prepacked copy"), "{}", packed.weight_storage);
        assert!(packed.kernels[0].starts_with(kernel), "{:?}", packed.kernels);
    }
    let baseline = in_effect(&[UNFUSED]);
    assert_eq!(baseline.weight_storage, "mapped");
    assert!(baseline.kernels.contains(&"matmul, softmax, matmul".into()), "{:?}", baseline.kernels);
}

#[test]
fn torchscript_runs_where_it_may_and_is_said_to() {
    let model = Model::tiny("gpt2");
    let in_effect = |jit, options: &[_]| {
        let settings = Settings { jit, ..with_options(options) };
        let in_effect = Tch::load(&model.bundle, &settings).expect("loads").in_effect();
        (in_effect.optimised, in_effect.jit.starts_with("TorchScript"))
    };
    assert_eq!(in_effect(true, &[]), (None, false));
    assert_eq!(in_effect(true, &[("execution", "eager")]), (None, false));
    assert_eq!(in_effect(true, &[TORCHSCRIPT]), (Some(true), true));
    assert_eq!(in_effect(false, &[TORCHSCRIPT]), (Some(false), false));
}

#[test]
fn what_cannot_be_done_is_refused() {
    let model = Model::tiny("gpt2");
    // No machine has this many GPUs.
    unsupported::<Tch>(&model.bundle, &Settings { device: "cuda:1000".into(), ..at(Precision::F32) });
    unsupported::<Tch>(&model.bundle, &with(at(Precision::Int8), &[TORCHSCRIPT]));
    for options in [
        &[("speed", "high")][..],
        &[("fused", "perhaps")],
        &[("padded", "perhaps")],
        &[PADDED],
        &[UNFUSED, ("linear", "xnnpack")],
        &[("linear", "fast")],
        &[("execution", "fast")],
        &[UNFUSED, TORCHSCRIPT],
    ] {
        senseless::<Tch>(&model.bundle, &with_options(options));
    }
}

#[test]
fn hidden_states_are_refused_unless_asked_for_at_load() {
    check_hidden_states_are_asked_for::<Tch>();
}

#[test]
fn a_traced_run_tells_the_layer_of_every_operation() {
    let settings = Tch::profiled(at(Precision::F32), "nowhere".as_ref());
    check_profile::<Tch>(&Model::tiny("gpt2").bundle, &settings, &[""]);
}

#[test]
fn texts_of_any_lengths_have_the_vectors_of_an_independent_implementation() {
    check_encoders::<Tch>(&Settings { hidden_states: true, ..at(Precision::F32) });
}

#[test]
fn texts_have_these_vectors_in_every_layout() {
    check_encoders_in_f32::<Tch>(
        &["mapped", "onednn", "xnnpack"].map(|layout| with_options(&[("linear", layout)])),
    );
}

#[test]
fn texts_have_these_vectors_padded_to_the_longest_and_further() {
    for padded in ["true", "512"] {
        check_encoders::<Tch>(&Settings { hidden_states: true, ..with_options(&[("padded", padded)]) });
    }
}

#[test]
fn padding_is_computed_where_texts_are_padded_and_said_to_be() {
    check_padding::<Tch>(5);
}

#[test]
fn a_cache_that_grows_conforms_and_is_said_to() {
    let growing = with_options(&[("cache", "growing")]);
    check_growth::<Tch>(&growing);
    let model = Model::tiny("gpt2");
    check_caches::<Tch>(&model, &growing);
    for option in [UNFUSED, TORCHSCRIPT] {
        let reason = unsupported::<Tch>(&model.bundle, &with_options(&[("cache", "growing"), option]));
        assert!(reason.contains("goes with fused layers in eager mode"), "{reason}");
    }
}

#[test]
fn weights_that_are_converted_for_every_product_follow_f32_and_are_said_to_be() {
    check_converted::<Tch>(&TOLERANCES);
    check_encoders_in_16_bits::<Tch>(&with_options(&[("weights", "converted")]));
    let model = Model::tiny("gpt2");
    let converted = |precision| with(at(precision), &[("weights", "converted")]);
    for (precision, tolerance) in TOLERANCES {
        let mut engine = Tch::load(&model.bundle, &converted(precision)).expect("loads");
        check_follows(&mut engine, &model.reference, tolerance, "with a cache in 16 bits");
        let kernel = engine.in_effect().kernels[0].clone();
        assert!(kernel.starts_with("linear in f32, of weights that"), "{kernel}");
    }
    let script = with(at(Precision::Bf16), &[("weights", "converted"), TORCHSCRIPT]);
    unsupported::<Tch>(&model.bundle, &script);
    let unfused = with(at(Precision::Bf16), &[("weights", "converted"), UNFUSED]);
    senseless::<Tch>(&model.bundle, &unfused);
}

#[test]
fn prompts_of_16_64_and_256_tokens_are_one_batch() {
    for settings in [at(Precision::F32), with_options(&[UNFUSED])] {
        check_lengths::<Tch>(&settings, &OF_ANY_LENGTHS);
    }
    check_lengths::<Tch>(&with_options(&[TORCHSCRIPT]), &OF_ANY_LENGTHS[..1]);
    refuses_lengths::<Tch>(&with_options(&[("cache", "growing")]));
}

#[test]
fn onnx_files_give_the_reference_outputs() {
    graphs::<Tch>(&["loop"]);
}
