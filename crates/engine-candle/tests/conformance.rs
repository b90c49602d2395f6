use std::collections::BTreeMap;

use engine::conformance::{
    Reference, architectures, argmax, check_both_ways, check_caches, check_model, diffusion_models,
    max_abs_difference, tiny_models,
};
use engine::{Bundle, Device, EngineError, InferenceEngine, Precision, Settings, Want};
use engine_candle::Candle;

/// candle's threads spin while they wait for one another, so there must not be more of them than cores.
fn threads() -> usize {
    std::thread::available_parallelism().map_or(1, |cores| cores.get().min(2))
}

fn settings(precision: Precision) -> Settings {
    Settings {
        precision,
        cache: precision.usual_cache(),
        device: Device::Cpu,
        threads: threads(),
        jit: true,
        hidden_states: false,
        dequantised: false,
        options: BTreeMap::new(),
    }
}

/// On the CPU, the decoder that a GPU computes with.
fn tensors(precision: Precision) -> Settings {
    let options = BTreeMap::from([("decoder".to_owned(), "tensors".to_owned())]);
    Settings { options, ..settings(precision) }
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

#[test]
fn f32_conforms_on_every_architecture() {
    for (_directory, bundle, reference) in models() {
        check_model::<Candle>(&bundle, &reference, &settings(Precision::F32));
        let with_hidden_states = Settings { hidden_states: true, ..settings(Precision::F32) };
        check_model::<Candle>(&bundle, &reference, &with_hidden_states);
    }
}

#[test]
fn the_decoder_of_tensors_conforms_on_every_architecture() {
    for (_directory, bundle, reference) in models() {
        check_model::<Candle>(&bundle, &reference, &tensors(Precision::F32));
        let with_hidden_states = Settings { hidden_states: true, ..tensors(Precision::F32) };
        check_model::<Candle>(&bundle, &reference, &with_hidden_states);
    }
}

#[test]
fn layers_that_are_otherwise_than_llama_s_conform_in_both_decoders() {
    for (_directory, bundle, reference) in prepared(architectures()) {
        println!("{}", bundle.manifest().name);
        for settings in [settings(Precision::F32), tensors(Precision::F32)] {
            let settings = Settings { hidden_states: true, ..settings };
            check_model::<Candle>(&bundle, &reference, &settings);
        }
    }
}

#[test]
fn models_that_attend_both_ways_conform_and_are_denoised_state_by_state() {
    for model in diffusion_models() {
        let (_directory, bundle, reference) = prepared(vec![model.clone()]).remove(0);
        for settings in [settings(Precision::F32), tensors(Precision::F32)] {
            check_both_ways::<Candle>(&bundle, &reference, &Settings { hidden_states: true, ..settings });
        }
        let states = model.join("reference.safetensors");
        worker::conformance::check_states::<Candle>(bundle.directory(), &states, threads());
    }
}

/// Rounding the weights to 8 or 11 bits of mantissa moves the logits of the tiny models by up to ten such
/// units (0.04, 0.0045).
fn tolerance(precision: Precision) -> f32 {
    match precision {
        Precision::Bf16 => 16.0 / 256.0,
        Precision::F16 => 16.0 / 2048.0,
        _ => engine::conformance::TOLERANCE,
    }
}

/// Logits of all positions of a batch, appended `piece` positions at a time.
fn logits_in_pieces(engine: &mut Candle, rows: &[&[u32]], piece: usize, vocabulary: usize) -> Vec<Vec<f32>> {
    let positions = rows[0].len();
    engine.begin(rows.len(), positions).expect("begins");
    let mut logits = vec![Vec::new(); rows.len()];
    for start in (0..positions).step_by(piece) {
        let end = positions.min(start + piece);
        let tokens: Vec<u32> = rows.iter().flat_map(|row| &row[start..end]).copied().collect();
        let appended = engine.append(&tokens, Want::All).expect("appends");
        for (logits, appended) in logits.iter_mut().zip(appended.chunks((end - start) * vocabulary)) {
            logits.extend(appended);
        }
    }
    logits
}

/// One position at a time and all at once.
fn assert_follows(engine: &mut Candle, bundle: &Bundle, reference: &Reference, tolerance: f32) {
    let vocabulary = bundle.config().vocab_size;
    let rows: Vec<&[u32]> = reference.tokens.chunks(reference.positions).collect();
    for piece in [1, reference.positions] {
        let logits = logits_in_pieces(engine, &rows, piece, vocabulary).concat();
        let difference = max_abs_difference(&logits, &reference.logits);
        assert!(difference <= tolerance, "{difference} in pieces of {piece}");
        for (ours, theirs) in logits.chunks(vocabulary).zip(reference.logits.chunks(vocabulary)) {
            let margin = theirs[argmax(theirs) as usize] - theirs[argmax(ours) as usize];
            assert!(margin <= tolerance, "the chosen token's logit is {margin} lower");
        }
    }
}

#[test]
fn half_precisions_follow_f32_row_by_row_and_by_matmul() {
    for (_directory, bundle, reference) in models() {
        for precision in [Precision::Bf16, Precision::F16] {
            let mut engine = Candle::load(&bundle, &settings(precision)).expect("loads");
            assert_eq!(engine.in_effect().weights, precision);
            assert_follows(&mut engine, &bundle, &reference, tolerance(precision));
        }
    }
}

#[test]
fn keys_and_values_are_kept_in_what_is_asked_for() {
    for (_directory, bundle, reference) in models() {
        check_caches::<Candle>(&bundle, &reference, &settings(Precision::F32));
    }
    let (_directory, bundle, _) = models().remove(0);
    let refused = Candle::load(&bundle, &Settings { cache: Precision::F16, ..tensors(Precision::F32) });
    assert!(
        matches!(refused, Err(EngineError::Unsupported(reason)) if reason.contains("type of the weights"))
    );
}

/// Rounding activations as well moves the logits a little more (0.06, 0.0074).
#[test]
fn half_precisions_of_tensors_follow_f32() {
    for (_directory, bundle, reference) in models() {
        for precision in [Precision::Bf16, Precision::F16] {
            let mut engine = Candle::load(&bundle, &tensors(precision)).expect("loads");
            let in_effect = engine.in_effect();
            assert_eq!((in_effect.weights, in_effect.activations.as_str()), (precision, precision.name()));
            assert_follows(&mut engine, &bundle, &reference, 2.0 * tolerance(precision));
        }
    }
}

#[test]
fn tensors_hold_dequantised_weights_and_refuse_codes() {
    let (_directory, bundle, reference) = models().swap_remove(0);
    let rows: Vec<&[u32]> = reference.tokens.chunks(reference.positions).collect();
    for precision in [Precision::Int8, Precision::Int4] {
        let refused = Candle::load(&bundle, &tensors(precision)).expect_err("is refused");
        assert!(matches!(refused, EngineError::Unsupported(_)));
        let logits = |settings: Settings| {
            let mut engine =
                Candle::load(&bundle, &Settings { dequantised: true, ..settings }).expect("loads");
            assert!(engine.in_effect().weight_storage.contains("emulated"));
            assert_eq!(engine.in_effect().weights, precision);
            logits_in_pieces(&mut engine, &rows, reference.positions, bundle.config().vocab_size).concat()
        };
        let difference = max_abs_difference(&logits(tensors(precision)), &logits(settings(precision)));
        assert!(difference <= tolerance(Precision::F32), "{precision}: {difference}");
    }
}

/// √(Σ(a − b)² / Σb²)
fn relative_error(a: &[f32], b: &[f32]) -> f32 {
    let squares = |x: &mut dyn Iterator<Item = f32>| x.map(|x| x * x).sum::<f32>();
    (squares(&mut a.iter().zip(b).map(|(a, b)| a - b)) / squares(&mut b.iter().copied())).sqrt()
}

#[test]
fn dequantised_weights_follow_f32_and_are_said_to_be_emulated() {
    for (_directory, bundle, reference) in models() {
        let rows: Vec<&[u32]> = reference.tokens.chunks(reference.positions).collect();
        for precision in [Precision::Int8, Precision::Int4, Precision::Nf4] {
            let dequantised = Settings { dequantised: true, ..settings(precision) };
            let mut engine = Candle::load(&bundle, &dequantised).expect("loads");
            assert_eq!(engine.in_effect().weights, precision);
            assert!(engine.in_effect().weight_storage.contains("emulated"));
            let logits =
                logits_in_pieces(&mut engine, &rows, reference.positions, bundle.config().vocab_size);
            let error = relative_error(&logits.concat(), &reference.logits);
            // Of unrelated logits it is 1.4; measured are 0.024 and 0.34.
            let tolerance = if precision == Precision::Int8 { 0.05 } else { 0.6 };
            assert!(error <= tolerance, "{precision}: {error}");
        }
    }
}

/// candle's kernels round activations to 8 bits, which moves the logits of the tiny models by up to
/// 0.062.
const ACTIVATION_TOLERANCE: f32 = 0.1;

#[test]
fn quantised_kernels_follow_the_dequantised_weights_row_by_row_and_by_matmul() {
    for (_directory, bundle, reference) in models() {
        let vocabulary = bundle.config().vocab_size;
        let rows: Vec<&[u32]> = reference.tokens.chunks(reference.positions).collect();
        for precision in [Precision::Int8, Precision::Int4] {
            let dequantised = Settings { dequantised: true, ..settings(precision) };
            let mut exact = Candle::load(&bundle, &dequantised).expect("loads");
            let exact = logits_in_pieces(&mut exact, &rows, reference.positions, vocabulary).concat();
            let mut engine = Candle::load(&bundle, &settings(precision)).expect("loads");
            assert_eq!(engine.in_effect().weights, precision);
            assert!(!engine.in_effect().weight_storage.contains("emulated"));
            for piece in [1, reference.positions] {
                let logits = logits_in_pieces(&mut engine, &rows, piece, vocabulary).concat();
                let difference = max_abs_difference(&logits, &exact);
                assert!(difference <= ACTIVATION_TOLERANCE, "{precision} in pieces of {piece}: {difference}");
            }
        }
    }
}

#[test]
fn nf4_is_emulated_whatever_was_asked() {
    let (_directory, bundle, _) = models().swap_remove(0);
    let engine = Candle::load(&bundle, &settings(Precision::Nf4)).expect("loads");
    assert_eq!(engine.in_effect().weights, Precision::Nf4);
    assert!(engine.in_effect().weight_storage.contains("emulated"));
}

/// Longer than a block of queries, which the reference texts are not.
#[test]
fn a_long_prefill_equals_decode_in_every_block() {
    for (_directory, bundle, reference) in models().into_iter().chain(prepared(architectures())) {
        let vocabulary = bundle.config().vocab_size;
        let text: Vec<u32> = reference.tokens.iter().copied().cycle().take(170).collect();
        let other: Vec<u32> = text.iter().rev().copied().collect();
        let rows = [text.as_slice(), other.as_slice()];
        let mut engine = Candle::load(&bundle, &settings(Precision::F32)).expect("loads");
        let by_token = logits_in_pieces(&mut engine, &rows, 1, vocabulary);
        for piece in [140, 170] {
            let at_once = logits_in_pieces(&mut engine, &rows, piece, vocabulary);
            let difference = max_abs_difference(&at_once.concat(), &by_token.concat());
            assert!(difference <= tolerance(Precision::F32), "in pieces of {piece}: {difference}");
        }
    }
}

#[test]
fn what_candle_cannot_do_is_refused() {
    let (_directory, bundle, _) = models().swap_remove(0);
    let load = |settings: Settings| Candle::load(&bundle, &settings).expect_err("is refused");
    let cuda = load(Settings { device: Device::Cuda(0), ..settings(Precision::F32) });
    assert!(matches!(cuda, EngineError::Unsupported(reason) if reason.contains("CUDA")));
    for (option, value) in [("fused", "true"), ("decoder", "loops")] {
        let options = BTreeMap::from([(option.to_owned(), value.to_owned())]);
        let refused = load(Settings { options, ..settings(Precision::F32) });
        assert!(matches!(refused, EngineError::Input(_)), "{option}");
    }
}

#[test]
fn hidden_states_are_refused_unless_asked_for_at_load() {
    let (_directory, bundle, reference) = models().swap_remove(0);
    let mut engine = Candle::load(&bundle, &settings(Precision::F32)).expect("loads");
    engine.begin(1, 4).expect("begins");
    engine.append(&reference.tokens[..1], Want::Last).expect("appends");
    assert!(matches!(engine.hidden_states(), Err(EngineError::Unsupported(_))));
}
