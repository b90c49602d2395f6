//! Whatever a worker writes into any field, it is bounded and harmless once it is read.

use protocol::untrusted::PATH;
use protocol::*;
use serde_json::Value;

/// One of each event with text, with every text present: the compiler asks for every field.
fn events() -> Vec<Event> {
    let memory = || Memory {
        method: Some("a".into()),
        gpu: Some(GpuMemory { bytes: 1, method: "a".into() }),
        ..Memory::default()
    };
    vec![
        Event::Hello(hello()),
        Event::Started(Started { startup_ns: None, runtime_ns: 1, memory: memory() }),
        Event::Loaded(Loaded {
            load_ns: 1,
            memory: memory(),
            in_effect: in_effect(),
            weights_file: "a".into(),
            weights_bytes: 1,
            weights_identity: None,
            page_cache: None,
        }),
        Event::ColdStart(ColdStart { marks_ns: Marks(vec![1]), memory: memory(), ..ColdStart::default() }),
        Event::Warmup(WarmupDone { settled: true, memory: memory(), ..WarmupDone::default() }),
        Event::Parity(Parity { file: "a".into() }),
        Event::Usage(usage(memory())),
        Event::Scored(Scored { file: "a".into() }),
        Event::Traced(traced()),
        Event::Failed(Failed { kind: FailureKind::Failed, reason: "a".into() }),
    ]
}

fn hello() -> Hello {
    Hello {
        protocol: VERSION,
        framework: "a".into(),
        binding: "a".into(),
        library: "a".into(),
        library_path: Some("a".into()),
        cpu_capability: Some("a".into()),
        slices: Some(true),
        build: Build {
            profile: "a".into(),
            rustc: Some("a".into()),
            rustflags: Some("a".into()),
            target_features: Some(vec!["a"].into()),
            target: Some("a".into()),
            toolchain: Some("a".into()),
        },
    }
}

fn in_effect() -> InEffect {
    InEffect {
        precision: "a".into(),
        activations: "a".into(),
        kv_cache_precision: "a".into(),
        kv_cache: KvCachePolicy::None,
        device: "a".into(),
        threads: 1,
        jit: "a".into(),
        optimised: None,
        weight_storage: "a".into(),
        kernels: vec!["a"].into(),
        shard_bytes: None,
        hybrid: Some(Hybrid { prefill: "a".into(), decode: "a".into(), alone: Some("a".into()) }),
    }
}

fn usage(memory: Memory) -> Usage {
    Usage {
        memory,
        peak_bytes: None,
        cpu_ns: None,
        wall_ns: 1,
        thread_cpu_ns: None,
        run_queue_ns: None,
        threads: None,
        cpus: None,
        energy: Some(Energy { joules: 1.0, method: "a".into() }),
        cache: CacheUsage {
            bytes: None,
            hand_over: Some(HandOver {
                times: 1,
                bytes: 1,
                ns: 1,
                prefill_address: 1,
                decode_address: 1,
                obstacle: Some("a".into()),
            }),
            padding: Some(Padding { side: Side::Left, computed: 1 }),
        },
        gpu: None,
        compiled: Some(vec!["a"].into()),
        weights_sha256: Some("a".into()),
        weights_identity: None,
    }
}

fn traced() -> Traced {
    let alignment = Alignment { clock: "a".into(), error_ns: None, overhang_ns: 1 };
    Traced {
        phases: vec![Interval { name: "a".into(), start_ns: 1, end_ns: 1 }],
        requests: vec![TracedRequest {
            phase: "a".into(),
            start_ns: 1,
            tokens_ns: Vec::new(),
            tokens: Vec::new(),
        }],
        profiler: Some(Profiler { name: "a".into(), file: "a".into(), events: 1, alignment }),
        notes: vec!["a"].into(),
    }
}

/// Calls `change` on every text of a value except the names of events, kinds and sides, which are types.
fn each_text(value: &mut Value, change: &mut impl FnMut(&mut String)) {
    match value {
        Value::String(text) => change(text),
        Value::Array(values) => values.iter_mut().for_each(|value| each_text(value, change)),
        Value::Object(fields) => {
            let fields =
                fields.iter_mut().filter(|(name, _)| !["event", "kind", "side"].contains(&name.as_str()));
            fields.for_each(|(_, value)| each_text(value, change));
        }
        _ => {}
    }
}

#[test]
fn every_text_of_every_event_passes_the_door() {
    let hostile = format!("\u{1b}[2J\nforged\u{202e}{}", "x".repeat(1 << 20));
    for event in events() {
        let mut value = serde_json::to_value(&event).unwrap();
        let mut changed = 0;
        each_text(&mut value, &mut |text| {
            *text = hostile.clone();
            changed += 1;
        });
        assert!(changed > 0, "{event:?} has no text");
        let read: Event = serde_json::from_value(value).unwrap();
        each_text(&mut serde_json::to_value(&read).unwrap(), &mut |text| {
            assert!(text.chars().count() <= PATH, "a text of {} characters in {event:?}", text.len());
            assert!(!text.contains(['\u{1b}', '\n', '\u{202e}']), "{text:?} in {event:?}");
        });
    }
}
