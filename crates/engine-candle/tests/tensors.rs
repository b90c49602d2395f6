//! The conformance suite on the decoder of tensors. It divides products over threads by a variable of the process, which
//! the engine's other decoder sets to 1: as a worker has one of them, so has a process of tests.

use conformance::{check_architectures, check_diffusion, check_tiny_models, with};
use engine_candle::Candle;
use worker::engine::{Precision, Settings};

fn settings() -> Settings {
    with(conformance::at(Precision::F32), &[("decoder", "tensors")])
}

#[test]
fn it_conforms_on_every_architecture() {
    check_tiny_models::<Candle>(&settings());
}

#[test]
fn layers_that_are_otherwise_than_llama_s_conform() {
    check_architectures::<Candle>(&[settings()]);
}

#[test]
fn models_that_attend_both_ways_conform_and_are_denoised_state_by_state() {
    check_diffusion::<Candle>(&[settings()]);
}
