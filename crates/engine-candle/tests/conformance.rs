use std::collections::BTreeMap;

use engine::conformance::{Reference, argmax, check_model, max_abs_difference, tiny_models};
use engine::{Bundle, Device, EngineError, InferenceEngine, Precision, Settings, Want};
use engine_candle::Candle;

/// candle takes its number of threads from the environment of the process, once.
fn threads() -> usize {
    candle_core::utils::get_num_threads()
}

fn settings(precision: Precision) -> Settings {
    Settings {
        precision,
        device: Device::Cpu,
        threads: threads(),
        jit: true,
        hidden_states: false,
        options: BTreeMap::new(),
    }
}

/// Every tiny model, prepared, with its reference.
fn models() -> Vec<(tempfile::TempDir, Bundle, Reference)> {
    let prepared = tiny_models().into_iter().map(|model| {
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

/// Weights rounded to 8 or 11 bits of mantissa move these models' logits by this much at most, whichever of
/// the two kernels computes; a wrong operation moves them by more than 0.1.
const HALF_TOLERANCE: f32 = 0.05;

#[test]
fn half_precisions_follow_f32_by_both_kernels() {
    for (_directory, bundle, reference) in models() {
        for precision in [Precision::Bf16, Precision::F16] {
            let mut engine = Candle::load(&bundle, &settings(precision)).expect("loads");
            assert_eq!(engine.in_effect().weights, precision);
            let vocabulary = bundle.config().vocab_size;
            for piece in [1, reference.positions] {
                engine.begin(1, reference.positions).expect("begins");
                let tokens = &reference.tokens[..reference.positions];
                let pieces = tokens.chunks(piece);
                let logits: Vec<f32> = pieces
                    .flat_map(|piece| engine.append(piece, Want::All).expect("appends").to_vec())
                    .collect();
                let expected = &reference.logits[..logits.len()];
                let difference = max_abs_difference(&logits, expected);
                println!("{} {precision} {piece}: {difference}", bundle.manifest().name);
                assert!(difference < HALF_TOLERANCE, "{precision} in pieces of {piece}: {difference}");
                for (ours, theirs) in logits.chunks(vocabulary).zip(expected.chunks(vocabulary)) {
                    let chosen = argmax(ours) as usize;
                    let margin = theirs[argmax(theirs) as usize] - theirs[chosen];
                    assert!(
                        margin < HALF_TOLERANCE,
                        "the most likely token is one whose logit is {margin} lower"
                    );
                }
            }
        }
    }
}

#[test]
fn what_candle_cannot_do_is_refused() {
    let (_directory, bundle, _) = models().swap_remove(0);
    let load = |settings: Settings| Candle::load(&bundle, &settings).expect_err("is refused");
    let cuda = load(Settings { device: Device::Cuda(0), ..settings(Precision::F32) });
    assert!(matches!(cuda, EngineError::Unsupported(reason) if reason.contains("CUDA")));
    let options = BTreeMap::from([("fused".to_owned(), "true".to_owned())]);
    let option = load(Settings { options, ..settings(Precision::F32) });
    assert!(matches!(option, EngineError::Input(_)));
}

#[test]
fn hidden_states_are_refused_unless_asked_for_at_load() {
    let (_directory, bundle, reference) = models().swap_remove(0);
    let mut engine = Candle::load(&bundle, &settings(Precision::F32)).expect("loads");
    engine.begin(1, 4).expect("begins");
    engine.append(&reference.tokens[..1], Want::Last).expect("appends");
    assert!(matches!(engine.hidden_states(), Err(EngineError::Unsupported(_))));
}
