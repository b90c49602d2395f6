//! Models that hear, held to what transformers computes with the same spectrograms.

use std::path::PathBuf;

use safetensors::SafeTensors;
use worker::engine::{Decode, EngineError, InferenceEngine, Precision, Settings, Want};

use crate::models::{directories, fixtures, floats, reference_file};
use crate::{Model, TOLERANCE, argmax, at, check_hidden_states, each, max_abs_difference};

/// Directories of tiny models that hear.
pub fn hearing_models() -> Vec<PathBuf> {
    directories(&fixtures().with_file_name("speech"))
}

/// Checks an f32 engine on every model that hears, with each of these settings.
pub fn check_speech<E: InferenceEngine + Decode>(each_settings: &[Settings]) {
    for model in each(hearing_models()) {
        for settings in each_settings {
            check_one::<E>(&model, &Settings { hidden_states: true, ..settings.clone() });
        }
    }
}

/// Compares 16 bits with the reference, and the kernels for 8 and 4 bits with the results of the dequantised weights.
pub fn check_speech_in_fewer_bits<E: InferenceEngine + Decode>(precisions: &[(Precision, f32)]) {
    for model in each(hearing_models()) {
        let spectrogram = &spectrograms(&model)[0];
        for &(precision, tolerance) in precisions {
            let of = |settings: Settings| {
                let mut engine = E::load(&model.bundle, &settings).expect("loads");
                heard_in_pieces(&mut engine, &model, (0, spectrogram), 1)
            };
            let expected = match precision.is_quantised() {
                true => of(Settings { dequantised: true, ..at(precision) }),
                false => of(at(Precision::F32)),
            };
            let difference = max_abs_difference(&of(at(precision)), &expected);
            assert!(difference <= tolerance, "{} in {precision} differs by {difference}", model.name());
        }
    }
}

/// One for each of the reference's sequences.
fn spectrograms(model: &Model) -> Vec<Vec<f32>> {
    let bytes = reference_file(&model.source);
    let frames = floats(&SafeTensors::deserialize(&bytes).expect("valid"), "frames").expect("present");
    frames.chunks(frames.len() / model.reference.batch).map(<[f32]>::to_vec).collect()
}

/// The logits of one of the reference's sequences, `[positions, vocabulary]`, so many positions at a time.
fn heard_in_pieces<E: InferenceEngine + Decode>(
    engine: &mut E,
    model: &Model,
    (sequence, frames): (usize, &[f32]),
    piece: usize,
) -> Vec<f32> {
    let tokens = model.reference.rows()[sequence];
    engine.begin(1, tokens.len()).expect("begins");
    engine.listen(frames).expect("listens");
    let pieces = tokens.chunks(piece);
    pieces.flat_map(|piece| engine.append(piece, Want::All).expect("appends").to_vec()).collect()
}

fn check_one<E: InferenceEngine + Decode>(model: &Model, settings: &Settings) {
    let reference = &model.reference;
    let mut engine = E::load(&model.bundle, settings).expect("loads");
    let each = reference.logits.len() / reference.batch;
    let spectrograms = spectrograms(model);
    for piece in [reference.positions, 1, 7] {
        for (sequence, frames) in spectrograms.iter().enumerate() {
            let logits = heard_in_pieces(&mut engine, model, (sequence, frames), piece);
            let difference = max_abs_difference(&logits, &reference.logits[sequence * each..][..each]);
            assert!(
                difference <= TOLERANCE,
                "pieces of {piece}, audio {sequence}: logits differ by {difference}"
            );
        }
    }
    let first = reference.rows()[0];
    engine.begin(1, first.len() + reference.greedy.len()).expect("begins");
    engine.listen(&spectrograms[0]).expect("listens");
    let mut next = argmax(engine.append(first, Want::Last).expect("appends"));
    for (step, &expected) in reference.greedy.iter().enumerate() {
        assert_eq!(next, expected, "greedy token {step}");
        next = argmax(engine.append(&[next], Want::Last).expect("appends"));
    }
    engine.begin(1, first.len()).expect("begins");
    engine.listen(&spectrograms[0]).expect("listens");
    engine.append(first, Want::Last).expect("appends");
    match engine.hidden_states() {
        Err(EngineError::Unsupported(reason)) => assert!(!reason.is_empty(), "a refusal has a reason"),
        Err(other) => panic!("hidden states: {other}"),
        Ok(hidden) => {
            let of_first = |layer: &Vec<f32>| layer[..layer.len() / reference.batch].to_vec();
            check_hidden_states(
                &hidden,
                &reference.hidden.iter().map(of_first).collect::<Vec<_>>(),
                TOLERANCE,
            );
        }
    }
    let refused = |result: Result<(), EngineError>, rule: &str| {
        assert!(matches!(result, Err(EngineError::Input(_))), "{rule}: {result:?}");
    };
    refused(engine.listen(&spectrograms[0]), "audio behind tokens is refused");
    engine.begin(1, 4).expect("begins");
    refused(engine.listen(&spectrograms[0][1..]), "a spectrogram of another size is refused");
    refused(engine.append(&first[..1], Want::Last).map(drop), "tokens before audio are refused");
    engine.begin(2, 4).expect("begins");
    refused(engine.listen(&spectrograms[0]), "audio for two sequences is refused");
}
