//! Every tiny model on every pair of engines, through the suite that all engines share; and how keys and values get from
//! one engine to the other.

use std::sync::{Mutex, MutexGuard};

use conformance::{Model, Reference, argmax, at, check_model, senseless, tiny, unsupported, with_options};
use engine_hybrid::Hybrid;
use worker::engine::{Decode, HandOver, InferenceEngine, Precision, Settings, Want};

const PAIRS: [(&str, &str); 6] = [
    ("tch", "candle"),
    ("ort", "candle"),
    ("tch", "ort"),
    ("candle", "tch"),
    ("candle", "ort"),
    ("ort", "tch"),
];

/// Tests run one by one: loading candle sets variables of the environment, which libraries of other tests
/// might be reading, and spinning pools would disturb one another.
fn turn() -> MutexGuard<'static, ()> {
    static TURN: Mutex<()> = Mutex::new(());
    TURN.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
}

fn settings((prefill, decode): (&str, &str)) -> Settings {
    with_options(&[("prefill", prefill), ("decode", decode)])
}

#[test]
fn every_pair_conforms_on_every_architecture() {
    let _turn = turn();
    for model in tiny() {
        for pair in PAIRS {
            println!("{pair:?}");
            check_model::<Hybrid>(&model, &settings(pair));
            check_model::<Hybrid>(&model, &Settings { hidden_states: true, ..settings(pair) });
        }
    }
}

/// The hand-over between a prompt and one step after it.
fn hand_over(engine: &mut Hybrid, reference: &Reference, batch: usize) -> HandOver {
    let positions = reference.positions;
    engine.begin(batch, positions).expect("begins");
    let columns = |range: std::ops::Range<usize>| -> Vec<u32> {
        reference.rows().into_iter().take(batch).flat_map(|row| row[range.clone()].to_vec()).collect()
    };
    engine.append(&columns(0..positions - 1), Want::Last).expect("appends");
    let handed = engine.hand_over().expect("hands over").expect("it is a pair");
    let logits = engine.append(&columns(positions - 1..positions), Want::Last).expect("appends");
    let vocabulary = logits.len() / batch;
    for (sequence, ours) in logits.chunks(vocabulary).enumerate() {
        let end = (sequence + 1) * positions * vocabulary;
        assert_eq!(argmax(ours), argmax(&reference.logits[end - vocabulary..end]), "sequence {sequence}");
    }
    handed
}

#[test]
fn one_sequence_is_handed_over_in_place() {
    let _turn = turn();
    for Model { bundle, reference, directory: _directory, .. } in tiny() {
        for pair in PAIRS {
            let mut engine = Hybrid::load(&bundle, &settings(pair)).expect("loads");
            let case = format!("{pair:?}");
            let handed = hand_over(&mut engine, &reference, 1);
            let obstacle = engine.obstacle();
            // Only ONNX Runtime pads heads of an odd size.
            let is_padded = !bundle.config().head_dim.is_multiple_of(8);
            if is_padded && [pair.0, pair.1].contains(&"ort") {
                assert!(handed.bytes > 0 && obstacle.is_some(), "{case}: {handed:?}");
            } else {
                assert_eq!((handed.bytes, &obstacle), (0, &None), "{case}: {handed:?}");
                assert_eq!(handed.prefill_address, handed.decode_address, "{case}");
                assert_ne!(handed.prefill_address, 0, "{case}");
            }
            // The same memory in a later request of the same size.
            assert_eq!(hand_over(&mut engine, &reference, 1), handed, "{case}");
        }
    }
}

/// libtorch's cache has keys and values of a sequence side by side, the others' have those of all sequences.
#[test]
fn a_batch_is_copied_once_where_libtorch_is_a_part_and_shared_where_it_is_none() {
    let _turn = turn();
    let Model { bundle, reference, directory: _directory, .. } = Model::tiny("gpt2");
    let config = bundle.config();
    for pair in PAIRS {
        let mut engine = Hybrid::load(&bundle, &settings(pair)).expect("loads");
        let handed = hand_over(&mut engine, &reference, 2);
        if ![pair.0, pair.1].contains(&"tch") {
            assert_eq!(handed.bytes, 0, "{pair:?}");
            continue;
        }
        let numbers =
            2 * config.layers.len() * 2 * config.kv_heads * config.head_dim * (reference.positions - 1);
        assert_eq!(handed.bytes, 4 * numbers as u64, "{pair:?}: keys and values of the prompt, once");
        assert_ne!(handed.prefill_address, handed.decode_address, "{pair:?}");
        let obstacle = engine.obstacle().expect("a reason");
        assert!(obstacle.contains("tch ") || obstacle.contains("gaps"), "{obstacle}");
    }
}

#[test]
fn its_tokens_are_those_of_its_parts() {
    let _turn = turn();
    let greedy = |engine: &mut dyn FnMut(&[u32]) -> u32, reference: &Reference| {
        let mut tokens = vec![engine(&reference.tokens[..reference.positions])];
        while tokens.len() < 12 {
            tokens.push(engine(&tokens[tokens.len() - 1..]));
        }
        tokens
    };
    for Model { bundle, reference, directory: _directory, .. } in tiny() {
        let capacity = reference.positions + 12;
        let alone = |name: &str| {
            let settings = at(Precision::F32);
            macro_rules! tokens_of {
                ($engine:ty) => {{
                    let mut engine = <$engine>::load(&bundle, &settings).expect("loads");
                    engine.begin(1, capacity).expect("begins");
                    greedy(
                        &mut |tokens| argmax(engine.append(tokens, Want::Last).expect("appends")),
                        &reference,
                    )
                }};
            }
            match name {
                "tch" => tokens_of!(engine_tch::Tch),
                "ort" => tokens_of!(engine_ort::Ort),
                _ => tokens_of!(engine_candle::Candle),
            }
        };
        for pair in &PAIRS[..3] {
            let mut engine = Hybrid::load(&bundle, &settings(*pair)).expect("loads");
            engine.begin(1, capacity).expect("begins");
            let ours =
                greedy(&mut |tokens| argmax(engine.append(tokens, Want::Last).expect("appends")), &reference);
            assert_eq!(ours, alone(pair.0), "{pair:?}: prefill's own");
            assert_eq!(ours, alone(pair.1), "{pair:?}: decode's own");
        }
    }
}

#[test]
fn what_a_hybrid_cannot_do_is_refused_with_the_reason() {
    let _turn = turn();
    let model = Model::tiny("gpt2");
    let f32 = settings(("tch", "candle"));
    for (settings, word) in [
        (Settings { precision: Precision::Int8, ..f32.clone() }, "rounds in its own way"),
        (Settings { precision: Precision::Bf16, ..f32.clone() }, "element types"),
        (Settings { kv_precision: Some(Precision::F16), ..f32.clone() }, "in f32 alone"),
        (Settings { device: "cuda:0".into(), ..f32.clone() }, "GPU"),
    ] {
        let reason = unsupported::<Hybrid>(&model.bundle, &settings);
        assert!(reason.contains(word), "{reason}");
    }
    let mut without = f32.clone();
    without.options.remove("decode");
    let mut unknown = f32.clone();
    unknown.options.insert("speed".into(), "high".into());
    for (settings, word) in [
        (settings(("candle", "candle")), "a hybrid is of two engines"),
        (settings(("tch", "jax")), "not one of candle, tch, ort"),
        (without, "option decode is missing"),
        (unknown, "unknown option \"speed\""),
    ] {
        let reason = senseless::<Hybrid>(&model.bundle, &settings);
        assert!(reason.contains(word), "{reason}");
    }
}
