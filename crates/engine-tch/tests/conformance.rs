use std::collections::BTreeMap;

use engine::conformance::{
    Reference, TOLERANCE, architectures, argmax, check_both_ways, check_caches, check_model, check_profile,
    diffusion_models, max_abs_difference, tiny_models,
};
use engine::{Bundle, Device, EngineError, InferenceEngine, Precision, Settings, Want};
use engine_tch::Tch;

fn settings(precision: Precision) -> Settings {
    Settings {
        precision,
        cache: precision.usual_cache(),
        device: Device::Cpu,
        threads: 2,
        jit: true,
        hidden_states: false,
        dequantised: false,
        options: BTreeMap::new(),
    }
}

fn with_options(settings: Settings, options: &[(&str, &str)]) -> Settings {
    let options = options.iter().map(|&(name, value)| (name.to_owned(), value.to_owned())).collect();
    Settings { options, ..settings }
}

/// Every tiny model, prepared, with its reference.
fn models() -> Vec<(tempfile::TempDir, Bundle, Reference)> {
    prepared(tiny_models())
}

fn prepared(models: Vec<std::path::PathBuf>) -> Vec<(tempfile::TempDir, Bundle, Reference)> {
    let prepared = models.into_iter().map(|model| {
        let directory = tempfile::tempdir().expect("a temporary directory");
        let request = prepare::Request {
            source: prepare::Source::Directory(model.clone()),
            name: None,
            precisions: Precision::ALL.to_vec(),
            bundles: directory.path().into(),
            progress: prepare::Progress::Silent,
        };
        let bundle = Bundle::open(prepare::prepare(&request).expect("prepares")).expect("opens");
        (directory, bundle, Reference::read(&model))
    });
    prepared.collect()
}

fn check_every_model(settings: &Settings) {
    for (_directory, bundle, reference) in models() {
        check_model::<Tch>(&bundle, &reference, settings);
        check_model::<Tch>(&bundle, &reference, &Settings { hidden_states: true, ..settings.clone() });
    }
}

#[test]
fn keys_and_values_are_kept_in_what_is_asked_for() {
    for (_directory, bundle, reference) in models() {
        check_caches::<Tch>(&bundle, &reference, &settings(Precision::F32));
    }
    let (_directory, bundle, _) = models().remove(0);
    for options in [("fused", "false"), ("execution", "torchscript")] {
        let settings = with_options(settings(Precision::F32), &[options]);
        let refused = Tch::load(&bundle, &Settings { cache: Precision::F16, ..settings }).err();
        let Some(EngineError::Unsupported(reason)) = refused else { panic!("{options:?}: {refused:?}") };
        assert!(reason.contains("only fused layers on a CPU"), "{reason}");
    }
}

#[test]
fn f32_conforms_in_every_layout() {
    for layout in ["mapped", "onednn", "xnnpack"] {
        check_every_model(&with_options(settings(Precision::F32), &[("linear", layout)]));
    }
}

const TORCHSCRIPT: (&str, &str) = ("execution", "torchscript");

#[test]
fn f32_conforms_as_torchscript_in_every_layout() {
    for layout in ["mapped", "onednn", "xnnpack"] {
        check_every_model(&with_options(settings(Precision::F32), &[("linear", layout), TORCHSCRIPT]));
    }
}

#[test]
fn f32_conforms_with_nothing_fused() {
    check_every_model(&with_options(settings(Precision::F32), &[("fused", "false")]));
}

#[test]
fn layers_that_are_otherwise_than_llama_s_conform_fused_and_not() {
    for (_directory, bundle, reference) in prepared(architectures()) {
        println!("{}", bundle.manifest().name);
        for options in [&[][..], &[("fused", "false")]] {
            let settings = with_options(settings(Precision::F32), options);
            check_model::<Tch>(&bundle, &reference, &Settings { hidden_states: true, ..settings });
        }
    }
}

#[test]
fn models_that_attend_both_ways_conform_and_are_denoised_state_by_state() {
    for model in diffusion_models() {
        let (_directory, bundle, reference) = prepared(vec![model.clone()]).remove(0);
        for options in [&[][..], &[TORCHSCRIPT], &[("fused", "false")]] {
            let settings = with_options(settings(Precision::F32), options);
            check_both_ways::<Tch>(&bundle, &reference, &Settings { hidden_states: true, ..settings });
        }
        let states = model.join("reference.safetensors");
        worker::conformance::check_states::<Tch>(bundle.directory(), &states, 2);
    }
}

/// Weights and activations rounded to 8 or 11 bits of mantissa move these models' logits by this much at
/// most; a wrong operation moves them by more.
const TOLERANCES: [(Precision, f32); 2] = [(Precision::Bf16, 0.1), (Precision::F16, 0.015)];

#[test]
fn half_precisions_follow_f32() {
    for (_directory, bundle, reference) in models() {
        for (precision, tolerance) in TOLERANCES {
            let torchscript = (precision == Precision::Bf16).then_some([TORCHSCRIPT]);
            let torchscript = torchscript.as_ref().map(<[_; 1]>::as_slice);
            let others = [[].as_slice(), &[("linear", "mapped")], &[("fused", "false")]];
            for options in others.into_iter().chain(torchscript) {
                let mut engine =
                    Tch::load(&bundle, &with_options(settings(precision), options)).expect("loads");
                assert_eq!(engine.in_effect().weights, precision);
                for piece in [1, 5, reference.positions] {
                    let case =
                        format!("{} {precision} {options:?}, pieces of {piece}", bundle.manifest().name);
                    follows(&mut engine, &reference, piece, tolerance, &case);
                }
            }
        }
    }
}

#[test]
fn dequantised_weights_compute_in_f32_and_are_said_to_be_emulated() {
    for (_directory, bundle, reference) in models() {
        for precision in [Precision::Int8, Precision::Int4, Precision::Nf4] {
            let settings = Settings { dequantised: precision != Precision::Nf4, ..settings(precision) };
            let mut layouts = ["mapped", "xnnpack"].map(|layout| {
                let mut engine = Tch::load(&bundle, &with_options(settings.clone(), &[("linear", layout)]))
                    .expect("loads");
                let in_effect = engine.in_effect();
                assert_eq!((in_effect.weights, in_effect.activations.as_str()), (precision, "f32"));
                assert!(in_effect.weight_storage.starts_with("emulated: dequantised to f32 at load"));
                engine.begin(reference.batch, reference.positions).expect("begins");
                engine.append(&reference.tokens, Want::All).expect("appends").to_vec()
            });
            let [mapped, xnnpack] = &mut layouts;
            let difference = max_abs_difference(mapped, xnnpack);
            assert!(difference <= TOLERANCE, "{} {precision}: {difference}", bundle.manifest().name);
        }
    }
}

/// Rounding activations to bf16 within products moves these models' logits by this much at most.
const QUANTISED_TOLERANCE: f32 = 0.1;

#[test]
fn quantised_kernels_follow_the_dequantised_weights() {
    for (_directory, bundle, mut reference) in models() {
        for precision in [Precision::Int8, Precision::Int4] {
            let dequantised = Settings { dequantised: true, ..settings(precision) };
            let mut exact = Tch::load(&bundle, &dequantised).expect("loads");
            exact.begin(reference.batch, reference.positions).expect("begins");
            reference.logits = exact.append(&reference.tokens, Want::All).expect("appends").to_vec();
            let mut engine = Tch::load(&bundle, &settings(precision)).expect("loads");
            assert_eq!(engine.in_effect().weights, precision);
            for piece in [1, 5, reference.positions] {
                let case = format!("{} {precision}, pieces of {piece}", bundle.manifest().name);
                follows(&mut engine, &reference, piece, QUANTISED_TOLERANCE, &case);
            }
        }
    }
}

fn follows(engine: &mut Tch, reference: &Reference, piece: usize, tolerance: f32, case: &str) {
    engine.begin(1, reference.positions).expect("begins");
    let pieces = reference.tokens[..reference.positions].chunks(piece);
    let logits: Vec<f32> =
        pieces.flat_map(|piece| engine.append(piece, Want::All).expect("appends").to_vec()).collect();
    let expected = &reference.logits[..logits.len()];
    let difference = max_abs_difference(&logits, expected);
    assert!(difference < tolerance, "{case}: {difference}");
    let vocabulary = logits.len() / reference.positions;
    for (ours, theirs) in logits.chunks(vocabulary).zip(expected.chunks(vocabulary)) {
        let margin = theirs[argmax(theirs) as usize] - theirs[argmax(ours) as usize];
        assert!(margin < tolerance, "{case}: the most likely token is one whose logit is {margin} lower");
    }
}

#[test]
fn what_is_in_effect_is_what_was_asked_for() {
    let (_directory, bundle, _) = models().swap_remove(0);
    let in_effect = |options: &[(&str, &str)]| {
        let settings = with_options(settings(Precision::F32), options);
        Tch::load(&bundle, &settings).expect("loads").in_effect()
    };
    assert_eq!(in_effect(&[("linear", "mapped")]).weight_storage, "mapped");
    for (layout, kernel) in [("onednn", "mkldnn::"), ("xnnpack", "XNNPACK")] {
        let packed = in_effect(&[("linear", layout)]);
        assert!(packed.weight_storage.starts_with("prepacked copy"), "{}", packed.weight_storage);
        assert!(packed.kernels[0].starts_with(kernel), "{:?}", packed.kernels);
    }
    let baseline = in_effect(&[("fused", "false")]);
    assert_eq!(baseline.weight_storage, "mapped");
    assert!(baseline.kernels.contains(&"matmul, softmax, matmul".to_owned()), "{:?}", baseline.kernels);
}

#[test]
fn torchscript_runs_where_it_may_and_is_said_to() {
    let (_directory, bundle, _) = models().swap_remove(0);
    let in_effect = |jit, options: &[_]| {
        let settings = with_options(Settings { jit, ..settings(Precision::F32) }, options);
        let in_effect = Tch::load(&bundle, &settings).expect("loads").in_effect();
        (in_effect.optimised, in_effect.jit.starts_with("TorchScript"))
    };
    assert_eq!(in_effect(true, &[]), (None, false));
    assert_eq!(in_effect(true, &[("execution", "eager")]), (None, false));
    assert_eq!(in_effect(true, &[TORCHSCRIPT]), (Some(true), true));
    assert_eq!(in_effect(false, &[TORCHSCRIPT]), (Some(false), false));
}

#[test]
fn what_cannot_be_done_is_refused() {
    let (_directory, bundle, _) = models().swap_remove(0);
    let refusal = |settings: Settings| Tch::load(&bundle, &settings).err().expect("is refused");
    // No machine has that many.
    let cuda = refusal(Settings { device: Device::Cuda(1000), ..settings(Precision::F32) });
    assert!(matches!(cuda, EngineError::Unsupported(_)), "{cuda}");
    let codes = refusal(with_options(settings(Precision::Int8), &[TORCHSCRIPT]));
    assert!(matches!(codes, EngineError::Unsupported(_)), "{codes}");
    for options in [
        &[("speed", "high")][..],
        &[("fused", "perhaps")],
        &[("fused", "false"), ("linear", "xnnpack")],
        &[("linear", "fast")],
        &[("execution", "fast")],
        &[("fused", "false"), TORCHSCRIPT],
    ] {
        let error = refusal(with_options(settings(Precision::F32), options));
        assert!(matches!(error, EngineError::Input(_)), "{options:?}: {error}");
    }
}

#[test]
fn hidden_states_are_refused_unless_asked_for_at_load() {
    let (_directory, bundle, reference) = models().swap_remove(0);
    let mut engine = Tch::load(&bundle, &settings(Precision::F32)).expect("loads");
    engine.begin(1, 4).expect("begins");
    engine.append(&reference.tokens[..1], Want::Last).expect("appends");
    assert!(matches!(engine.hidden_states(), Err(EngineError::Unsupported(_))));
}

#[test]
fn a_traced_run_tells_the_layer_of_every_operation() {
    let (_directory, bundle, _) = models().into_iter().next().expect("there are models");
    let layers = (0..bundle.config().layers).map(|layer| format!("layer {layer}"));
    let parts: Vec<String> =
        ["embedding", "final norm", "head"].map(str::to_owned).into_iter().chain(layers).collect();
    check_profile::<Tch>(&bundle, Tch::profiled(settings(Precision::F32), "nowhere".as_ref()), &parts);
}
