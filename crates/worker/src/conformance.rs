//! What workers' tests hold masked diffusion to: the states of an independent implementation. Behind the feature
//! `conformance`, which only tests switch on.

use std::path::Path;

use engine::InferenceEngine;
use protocol::{Denoise, Event, Generate, Job, Settings, Task};
use safetensors::SafeTensors;

/// Denoises `reference.safetensors`' prompt at temperature 0 with every algorithm that has states there, and asks for
/// exactly these states. `bundle` is the prepared model.
pub fn check_states<E: InferenceEngine>(bundle: &Path, reference: &Path, threads: usize) {
    let bytes = std::fs::read(reference).unwrap_or_else(|e| panic!("{}: {e}", reference.display()));
    let (_, header) = SafeTensors::read_metadata(&bytes).expect("a valid reference file");
    let told = header.metadata().as_ref().expect("it says how it was made");
    let number = |name: &str| told[name].parse::<f64>().expect("a number");
    let file = SafeTensors::deserialize(&bytes).expect("a valid reference file");
    let ids = |name: &str| -> Vec<u32> {
        let data = file.tensor(name).expect("present").data().to_vec();
        data.chunks_exact(8).map(|b| u32::from_le_bytes([b[0], b[1], b[2], b[3]])).collect()
    };
    let (prompt, steps, mask) = (ids("prompt"), number("steps") as usize, number("mask_token_id") as u32);
    let new_tokens = number("new_tokens") as usize;
    let mut checked = 0;
    for algorithm in protocol::Algorithm::ALL {
        let name = format!("states.{}", algorithm.name());
        if file.tensor(&name).is_err() {
            continue;
        }
        let denoise = Denoise {
            steps,
            algorithm,
            temperature: 0.0,
            top_p: None,
            top_k: None,
            alg_temp: 0.0,
            eps: number("eps") as f32,
            seed: 0,
        };
        let (tokens, unmasked) = generated::<E>(bundle, &prompt, new_tokens, denoise, threads);
        let ours = protocol::states(&prompt, &tokens, &unmasked, mask, steps).concat();
        assert_eq!(ours, ids(&name), "states of {}", algorithm.name());
        checked += 1;
    }
    assert!(checked > 0, "the reference has states");
}

/// The tokens and the steps that unmask them, as a worker of `E` answers the job.
pub fn generated<E: InferenceEngine>(
    bundle: &Path,
    prompt: &[u32],
    new_tokens: usize,
    denoise: Denoise,
    threads: usize,
) -> (Vec<u32>, Vec<u32>) {
    let task = Generate {
        prompts: vec![vec![prompt.to_vec()]],
        new_tokens,
        sampling: None,
        denoise: Some(denoise),
        parity: None,
    };
    let settings = Settings {
        precision: "f32".into(),
        kv_precision: None,
        device: "cpu".into(),
        threads,
        shards: 1,
        jit: true,
        hidden_states: false,
        dequantised: false,
        autoregressive: false,
        options: Default::default(),
        slowdown: 0.0,
    };
    let job = Job {
        protocol: protocol::VERSION,
        bundle: bundle.display().to_string(),
        model: Default::default(),
        settings,
        spawned_at_ns: None,
        evict: false,
        task: Task::Generate(task),
    };
    let line = serde_json::to_string(&job).expect("a job is plain data");
    let mut output = Vec::new();
    let served = crate::serve::<E>(&line, &mut std::io::empty(), crate::clock::now_ns(), &mut output);
    served.unwrap_or_else(|error| panic!("{}: {error}", E::FRAMEWORK));
    let events = output.split(|&byte| byte == b'\n').filter_map(|line| serde_json::from_slice(line).ok());
    let generated = events.into_iter().find_map(|event| match event {
        Event::Generated(generated) => Some(generated),
        _ => None,
    });
    let mut generated = generated.expect("it says what it generated");
    (generated.tokens.remove(0).remove(0), generated.unmasked.remove(0).remove(0))
}
