//! Checks of a worker in masked diffusion: the states of an independent implementation.

use engine::{Decode, InferenceEngine};
use protocol::Event;
use safetensors::SafeTensors;
use serde_json::{Value, json};

use crate::models::{Model, threads};

/// Denoises the reference's prompt at temperature 0 with every algorithm that has states there, and requires
/// exactly these states.
pub(crate) fn check_states<E: InferenceEngine + Decode>(model: &Model) {
    let bytes = std::fs::read(model.source.join("reference.safetensors")).expect("readable");
    let (_, header) = SafeTensors::read_metadata(&bytes).expect("a valid reference file");
    let told = header.metadata().as_ref().expect("it says how it was made");
    let number = |name: &str| told[name].parse::<f64>().expect("a number");
    let file = SafeTensors::deserialize(&bytes).expect("a valid reference file");
    let ids = |name: &str| -> Option<Vec<u32>> {
        let data = file.tensor(name).ok()?.data();
        Some(data.chunks_exact(8).map(|b| u32::from_le_bytes([b[0], b[1], b[2], b[3]])).collect())
    };
    let prompt = ids("prompt").expect("present");
    let (steps, mask) = (number("steps") as usize, number("mask_token_id") as u32);
    let mut checked = 0;
    for algorithm in protocol::Algorithm::ALL {
        let Some(expected) = ids(&format!("states.{}", algorithm.name())) else { continue };
        let denoise = json!({
            "steps": steps, "algorithm": algorithm, "temperature": 0.0, "alg_temp": 0.0, "eps": number("eps"), "seed": 0
        });
        let work = json!({
            "kind": "denoise", "cases": [{ "prompts": [prompt] }], "new_tokens": number("new_tokens") as usize,
            "forced": false, "how": denoise
        });
        let task = json!({ "kind": "answer", "work": work });
        let (tokens, unmasked) = generated::<E>(model, &task);
        let ours = protocol::states(&prompt, &tokens, &unmasked, mask, steps).concat();
        assert_eq!(ours, expected, "states of {}", algorithm.name());
        checked += 1;
    }
    assert!(checked > 0, "the reference has states");
}

/// The tokens and the steps that unmask them, as a worker of `E` answers.
fn generated<E: InferenceEngine + Decode>(model: &Model, task: &Value) -> (Vec<u32>, Vec<u32>) {
    let job = json!({
        "protocol": protocol::VERSION,
        "bundle": model.bundle.directory(),
        "settings": { "precision": "f32", "device": "cpu", "threads": threads(), "jit": true },
        "task": task,
    });
    let mut output = Vec::new();
    let served = worker::serve::<E>(&job.to_string(), &mut std::io::empty(), 0, &mut output);
    served.unwrap_or_else(|error| panic!("{}: {error}", E::FRAMEWORK));
    let mut events = output.split(|&byte| byte == b'\n').filter_map(|line| serde_json::from_slice(line).ok());
    let answered = events.find_map(|event| match event {
        Event::Answered(answered) => Some(answered),
        _ => None,
    });
    let output = answered.expect("it says what it generated").outputs.remove(0);
    (output.tokens()[0].clone(), output.unmasked()[0].clone())
}
