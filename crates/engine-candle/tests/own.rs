//! The conformance suite on the engine's own kernels: the column `candle+`.

use conformance::{
    Model, OF_ANY_LENGTHS, TOLERANCE, architectures, at, check_architectures, check_caches, check_converted,
    check_diffusion, check_encoders, check_encoders_in_16_bits, check_growth, check_halves,
    check_hidden_states_are_asked_for, check_lengths, check_padding, check_quantised_kernels, check_speech,
    check_speech_in_fewer_bits, check_tiny_models, each, logits_in_pieces, max_abs_difference, senseless,
    tiny, unsupported, with_options,
};
use engine_candle::Candle;
use worker::engine::{
    Bundle, Decode, Encode, HiddenStates, InEffect, InferenceEngine, Padding, Precision, Result, Runtime,
    Settings, Want,
};

/// The engine with this option, whatever the settings.
struct Own(Candle);

impl InferenceEngine for Own {
    const FRAMEWORK: &'static str = Candle::FRAMEWORK;

    fn runtime() -> Result<Runtime> {
        Candle::runtime()
    }

    fn load(bundle: &Bundle, settings: &Settings) -> Result<Own> {
        let mut settings = settings.clone();
        settings.options.insert("kernels".into(), "own".into());
        Candle::load(bundle, &settings).map(Own)
    }

    fn in_effect(&self) -> InEffect {
        self.0.in_effect()
    }

    fn decode(&mut self) -> Result<&mut dyn Decode> {
        self.0.decode()
    }

    fn encode(&mut self) -> Result<&mut dyn Encode> {
        self.0.encode()
    }
}

impl Decode for Own {
    fn begin(&mut self, batch: usize, capacity: usize) -> Result<()> {
        self.0.begin(batch, capacity)
    }

    fn append(&mut self, tokens: &[u32], want: Want) -> Result<&[f32]> {
        self.0.append(tokens, want)
    }

    fn listen(&mut self, frames: &[f32]) -> Result<()> {
        self.0.listen(frames)
    }

    fn append_each(&mut self, tokens: &[u32], lengths: &[usize]) -> Result<&[f32]> {
        self.0.append_each(tokens, lengths)
    }

    fn padding(&self) -> Option<Padding> {
        self.0.padding()
    }

    fn kv_cache_bytes(&self) -> Option<u64> {
        self.0.kv_cache_bytes()
    }

    fn hidden_states(&mut self) -> Result<HiddenStates> {
        self.0.hidden_states()
    }
}

const TOLERANCES: [(Precision, f32); 2] = [(Precision::Bf16, 16.0 / 256.0), (Precision::F16, 16.0 / 2048.0)];

#[test]
fn models_that_hear_conform() {
    check_speech::<Own>(&[at(Precision::F32)]);
}

#[test]
fn models_that_hear_follow_in_fewer_bits() {
    // The rows of the encoder are rounded to 8 bits, too, and so is what attends to them (0.14).
    let quantised = [Precision::Int8, Precision::Int4].map(|precision| (precision, 0.2));
    check_speech_in_fewer_bits::<Own>(&[&TOLERANCES[..], &quantised].concat());
}

#[test]
fn decoders_of_every_architecture_conform() {
    check_tiny_models::<Own>(&at(Precision::F32));
    check_architectures::<Own>(&[at(Precision::F32)]);
    check_diffusion::<Own>(&[at(Precision::F32)]);
    check_hidden_states_are_asked_for::<Own>();
    check_lengths::<Own>(&at(Precision::F32), &OF_ANY_LENGTHS);
}

#[test]
fn every_precision_and_cache_follows_f32() {
    check_halves::<Own>(&TOLERANCES.map(|(precision, tolerance)| (at(precision), tolerance)));
    check_converted::<Own>(&TOLERANCES);
    check_quantised_kernels::<Own>(0.1);
    tiny().for_each(|model| check_caches::<Own>(&model, &at(Precision::F32)));
    check_growth::<Own>(&with_options(&[("cache", "growing")]));
}

#[test]
fn encoders_conform_and_compute_padding_where_they_are_told_to() {
    check_encoders::<Own>(&Settings { hidden_states: true, ..at(Precision::F32) });
    check_encoders::<Own>(&Settings { hidden_states: true, ..with_options(&[("padded", "true")]) });
    check_encoders_in_16_bits::<Own>(&with_options(&[("weights", "converted")]));
    check_padding::<Own>(5);
}

/// Longer than a block of queries, unlike the reference texts.
#[test]
fn a_long_prefill_equals_decode_in_every_block() {
    for model in tiny().chain(each(architectures())) {
        let text: Vec<u32> = model.reference.tokens.iter().copied().cycle().take(170).collect();
        let mut engine = Own::load(&model.bundle, &at(Precision::F32)).expect("loads");
        let by_token = logits_in_pieces(&mut engine, &[&text], 1);
        let difference = max_abs_difference(&logits_in_pieces(&mut engine, &[&text], 170), &by_token);
        assert!(difference <= TOLERANCE, "{difference}");
    }
}

#[test]
fn whose_kernels_they_are_is_said_and_no_others_are_taken() {
    let model = Model::tiny("gpt2");
    let kernels = |in_effect: InEffect| in_effect.kernels.join(", ");
    let settings = at(Precision::Int4);
    let candle = kernels(Candle::load(&model.bundle, &settings).expect("loads").in_effect());
    let own = kernels(Own::load(&model.bundle, &settings).expect("loads").in_effect());
    assert!(own.contains("dequantised to f32 by the engine's own loops"), "{own}");
    assert!(own.contains("loops of the engine's own for norms"), "{own}");
    assert!(candle.contains("dequantised to f32 by candle"), "{candle}");
    assert!(!candle.contains("own"), "{candle}");
    senseless::<Candle>(&model.bundle, &with_options(&[("kernels", "theirs")]));
    let reason = unsupported::<Own>(&model.bundle, &with_options(&[("decoder", "tensors")]));
    assert!(reason.contains("take candle"), "{reason}");
}
