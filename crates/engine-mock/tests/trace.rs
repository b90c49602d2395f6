//! A profiler's events on the worker's clock: the mock's are of the time since 1970.

use std::collections::BTreeMap;

use engine_mock::Mock;
use protocol::{Event, Job, ProfileEvent, Settings, Task, Trace, Traced};

const CONFIG: &str = r#"{"model_type": "llama", "hidden_size": 4, "intermediate_size": 4, "num_hidden_layers": 2,
    "num_attention_heads": 2, "vocab_size": 8, "max_position_embeddings": 64}"#;
const MANIFEST: &str = r#"{"format": 1, "name": "nothing", "source": {"kind": "test", "sha256": {}}, "files":
    {"f32.safetensors": {"sha256": "", "bytes": 3, "derived": "for a test"}}}"#;

fn traced(directory: &std::path::Path, options: &[(&str, &str)]) -> Result<Traced, String> {
    for (name, text) in [("config.json", CONFIG), ("manifest.json", MANIFEST), ("f32.safetensors", "abc")] {
        std::fs::write(directory.join(name), text).unwrap();
    }
    let options: BTreeMap<_, _> =
        options.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect();
    let file = directory.join("profile.json").display().to_string();
    let job = Job {
        protocol: protocol::VERSION,
        bundle: directory.display().to_string(),
        model: serde_json::Value::Null,
        settings: Settings {
            precision: "f32".into(),
            kv_precision: None,
            device: "cpu".into(),
            threads: 1,
            shards: 1,
            jit: true,
            hidden_states: false,
            dequantised: false,
            autoregressive: false,
            options,
            slowdown: 0.0,
        },
        spawned_at_ns: None,
        evict: false,
        task: Task::Trace(Trace { prompts: vec![vec![1, 2, 3]], new_tokens: 3, file }),
    };
    let mut output = Vec::new();
    let _ = worker::serve::<Mock>(&serde_json::to_string(&job).unwrap(), &mut &b""[..], 0, &mut output);
    for line in String::from_utf8(output).unwrap().lines() {
        match serde_json::from_str(line).unwrap() {
            Event::Traced(traced) => return Ok(traced),
            Event::Failed(failed) => return Err(failed.reason.into()),
            _ => {}
        }
    }
    Err("it ended".into())
}

#[test]
fn a_profiler_s_events_lie_in_the_steps_that_they_belong_to() {
    let directory = tempfile::tempdir().unwrap();
    let traced = traced(directory.path(), &[("profiler", "true")]).unwrap();
    let profiler = traced.profiler.unwrap();
    assert_eq!(profiler.alignment.clock, "CLOCK_REALTIME");
    let error_ns = profiler.alignment.error_ns.unwrap();
    let events: Vec<ProfileEvent> =
        serde_json::from_str(&std::fs::read_to_string(&profiler.file).unwrap()).unwrap();
    assert_eq!(events.len(), profiler.events);
    let appends: Vec<_> = events.iter().filter(|event| event.name == "append").collect();
    let mut steps = Vec::new();
    for request in &traced.requests {
        let starts = std::iter::once(request.start_ns).chain(request.tokens_ns.clone());
        steps.extend(starts.zip(request.tokens_ns.clone()));
    }
    assert_eq!(appends.len(), steps.len(), "one call a step");
    for (event, (start, end)) in appends.iter().zip(steps) {
        let inside =
            start <= event.start_ns + error_ns && event.start_ns + event.duration_ns <= end + error_ns;
        assert!(inside, "{event:?} is not in {start}..{end}, with an error of {error_ns}");
    }
    let parts: Vec<_> = events[1..7].iter().filter_map(|event| event.part.as_deref()).collect();
    let layers = ["layer 0 attention", "layer 0 mlp", "layer 1 attention", "layer 1 mlp"];
    assert_eq!(parts, [&["embedding"], &layers[..], &["head"]].concat());
}

#[test]
fn a_mock_without_a_profiler_says_so() {
    let directory = tempfile::tempdir().unwrap();
    let traced = traced(directory.path(), &[]).unwrap();
    assert_eq!(traced.profiler, None);
    assert_eq!(traced.notes, ["The mock has no profiler unless its script says so."]);
}
