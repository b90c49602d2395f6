//! The fields of every event, as data: types, examples and what may be `null`.

use crate::readings::{ENERGY, GPU_WORK, MEMORY};
use crate::shape::Kind::{Bool, List, Number, Object, OneOf, Text, Whole};
use crate::shape::{Field, Kind, may, must};
use crate::work::events::{CACHE, CACHE_BYTES, HAND_OVER, HYBRID, PADDING};

const TEXTS: Kind = List(&Text("avx2"));
const TOKENS: Kind = List(&List(&Whole(17)));
const MARKS: Kind = List(&Whole(31_144_189));

const BUILD: &[Field] = &[
    must("profile", OneOf(&["release", "debug"])),
    may("rustc", Text("rustc 1.95.0")),
    may("rustflags", Text("-C target-cpu=native")),
    may("target_features", TEXTS),
    may("target", Text("x86_64-unknown-linux-gnu")),
    may("toolchain", Text("CPython 3.13.1")),
];

const HELLO: &[Field] = &[
    must("protocol", Whole(protocol::VERSION as u64)),
    must("framework", Text("numpy")),
    must("binding", Text("numpy 2.4.6")),
    must("library", Text("OpenBLAS 0.3.30")),
    may("library_path", Text("lib/libopenblas.so")),
    may("cpu_capability", Text("AVX2")),
    may("slices", Bool(true)),
    must("build", Object(BUILD)),
];

const STARTED: &[Field] = &[
    may("startup_ns", Whole(1_500_000)),
    must("runtime_ns", Whole(137_474)),
    must("memory", Object(MEMORY)),
];

const IN_EFFECT: &[Field] = &[
    must("precision", Text("f32")),
    must("activations", Text("f32")),
    CACHE[0],
    CACHE[1],
    must("device", Text("cpu")),
    must("threads", Whole(2)),
    must("jit", Text("none")),
    may("optimised", Bool(true)),
    must("weight_storage", Text("one copy in memory, read from the file")),
    must("kernels", List(&Text("numpy matmul"))),
    may("shard_bytes", List(&Whole(301_408))),
    may("hybrid", Object(HYBRID)),
];

const IDENTITY: &[Field] = &[
    must("device", Whole(65_024)),
    must("inode", Whole(10_010_700)),
    must("bytes", Whole(602_816)),
    must("modified_ns", Whole(1_795_327_911_371_151_142)),
];

const PAGE_CACHE: &[Field] = &[must("evicted", Bool(true)), must("resident_before", Number(0.5))];

const LOADED: &[Field] = &[
    must("load_ns", Whole(2_076_774)),
    must("memory", Object(MEMORY)),
    must("in_effect", Object(IN_EFFECT)),
    must("weights_file", Text("bundles/tiny/f32.safetensors")),
    must("weights_bytes", Whole(602_816)),
    may("weights_identity", Object(IDENTITY)),
    may("page_cache", Object(PAGE_CACHE)),
];

const COLD_START: &[Field] =
    &[must("marks_ns", MARKS), may("since_spawn_ns", Whole(60_964_526)), must("memory", Object(MEMORY))];

/// Masked diffusion is no part of the check.
const OUTPUT: &[Field] = &[must("tokens", TOKENS)];

const SAMPLE: &[Field] = &[must("case", Whole(0)), must("marks_ns", MARKS), must("output", Object(OUTPUT))];

const ITERATION: &[Field] = &[must("index", Whole(0)), must("cases", List(&Object(SAMPLE)))];

const WARMUP: &[Field] = &[
    must("iterations", List(&Object(ITERATION))),
    must("settled", Bool(false)),
    must("memory", Object(MEMORY)),
];

const SLICE: &[Field] = &[must("case", Whole(0)), must("marks", Whole(9))];

const USAGE: &[Field] = &[
    must("memory", Object(MEMORY)),
    may("peak_bytes", Whole(5_836_800)),
    may("cpu_ns", Whole(65_587_377)),
    must("wall_ns", Whole(85_655_702)),
    may("thread_cpu_ns", List(&Whole(33_173_726))),
    may("run_queue_ns", Whole(0)),
    may("threads", Whole(4)),
    may("cpus", List(&Whole(0))),
    may("energy", Object(ENERGY)),
    CACHE_BYTES,
    may("compiled", List(&Text("decode, batch 1, 64 positions of cache"))),
    may("hand_over", Object(HAND_OVER)),
    may("padding", Object(PADDING)),
    may("gpu", Object(GPU_WORK)),
    may("weights_sha256", Text("c7af57b62eed6e29b109360793a8d983d8a67fd6e2007b2c611b915210211db6")),
    may("weights_identity", Object(IDENTITY)),
];

const FILE: &[Field] = &[must("file", Text("parity.safetensors"))];
const ANSWERED: &[Field] = &[must("outputs", List(&Object(OUTPUT)))];

const PROBED: &[Field] = &[
    must("compute_ns", Whole(10_000_000)),
    must("bytes", Whole(67_108_864)),
    must("sweeps_ns", List(&Whole(2_000_000))),
    must("operations", Whole(100_000_000)),
    must("multiply_adds_ns", List(&Whole(1_000_000))),
    must("threads", Whole(2)),
    may("device", Text("cuda:0")),
    may("precision", Text("f16")),
];

const INTERVAL: &[Field] = &[
    must("name", Text("load")),
    must("start_ns", Whole(8_100_000_000)),
    must("end_ns", Whole(8_200_000_000)),
];

const TRACED_REQUEST: &[Field] = &[
    must("phase", Text("warm-up")),
    must("start_ns", Whole(8_300_000_000)),
    must("tokens_ns", List(&Whole(8_350_000_000))),
    must("tokens", TOKENS),
];

const ALIGNMENT: &[Field] = &[
    must("clock", OneOf(&["CLOCK_REALTIME", "CLOCK_MONOTONIC", "none"])),
    may("error_ns", Whole(120)),
    must("overhang_ns", Whole(0)),
];

const PROFILER: &[Field] = &[
    must("name", Text("numpy's profiler")),
    must("file", Text("profile.json")),
    must("events", Whole(3_000)),
    must("alignment", Object(ALIGNMENT)),
];

const TRACED: &[Field] = &[
    must("phases", List(&Object(INTERVAL))),
    must("requests", List(&Object(TRACED_REQUEST))),
    may("profiler", Object(PROFILER)),
    must("notes", List(&Text("numpy has no profiler."))),
];

const FAILED: &[Field] = &[
    must("kind", OneOf(&["unsupported", "input", "failed"])),
    must("reason", Text("this worker reads f32 alone")),
];

/// Name and fields of every event that a worker may send.
pub(crate) const EVENTS: &[(&str, &[Field])] = &[
    ("hello", HELLO),
    ("started", STARTED),
    ("loaded", LOADED),
    ("cold_start", COLD_START),
    ("warmup", WARMUP),
    ("slice", SLICE),
    ("sample", SAMPLE),
    ("usage", USAGE),
    ("parity", FILE),
    ("answered", ANSWERED),
    ("scored", FILE),
    ("probed", PROBED),
    ("traced", TRACED),
    ("done", &[]),
    ("failed", FAILED),
];

/// The fields of an event.
pub(crate) fn fields(event: &str) -> Option<&'static [Field]> {
    EVENTS.iter().find(|(name, _)| *name == event).map(|(_, fields)| *fields)
}

/// The part of `docs/reference/protocol.md` that says which fields may be `null`: a row for each event that has any.
pub fn nullable_markdown() -> String {
    let mut text = String::from("| `event` | may be `null`, or left out |\n|---|---|\n");
    for (event, fields) in EVENTS {
        // The optional fields of `memory` are the same everywhere.
        let paths = crate::shape::nullable(fields);
        let own = paths.iter().filter(|path| !path.starts_with("memory."));
        let own: Vec<String> = own.map(|path| format!("`{path}`")).collect();
        if !own.is_empty() {
            text += &format!("| `{event}` | {} |\n", own.join(", "));
        }
    }
    let memory: Vec<String> =
        crate::shape::nullable(MEMORY).into_iter().map(|path| format!("`{path}`")).collect();
    text + &format!("| every `memory` | {}: `{{}}` is a valid `memory` |\n", memory.join(", "))
}

#[cfg(test)]
mod tests {
    use protocol::Event;
    use serde_json::{Map, Value};

    use super::*;
    use crate::shape::{self, example};

    fn parses(event: &str, fields: &Map<String, Value>) -> bool {
        let mut line = fields.clone();
        line.insert("event".into(), event.into());
        serde_json::from_value::<Event>(line.into()).is_ok()
    }

    /// Every path of an object or of the first element of a list, with the object without it and with it as
    /// `null`.
    fn variants(value: &Value) -> Vec<(String, Value, Value)> {
        let mut found = Vec::new();
        let mut inner = |name: &str, child: &Value, put: &dyn Fn(Value) -> Value| {
            for (path, without, null) in variants(child) {
                let dot = if path.starts_with('[') { "" } else { "." };
                found.push((format!("{name}{dot}{path}"), put(without), put(null)));
            }
        };
        match value {
            Value::Object(object) => {
                for (name, child) in object {
                    let put = |child: Value| {
                        let mut object = object.clone();
                        object.insert(name.clone(), child);
                        Value::from(object)
                    };
                    inner(name, child, &put);
                }
                for name in object.keys() {
                    let (mut without, mut null) = (object.clone(), object.clone());
                    without.remove(name);
                    null.insert(name.clone(), Value::Null);
                    found.push((name.clone(), without.into(), null.into()));
                }
            }
            Value::Array(list) => {
                if let Some(first) = list.first() {
                    inner("[]", first, &|child| Value::from(vec![child]));
                }
            }
            _ => {}
        }
        found
    }

    #[test]
    fn the_tables_are_the_protocol_s_types() {
        for (event, fields) in EVENTS {
            let whole = example(fields);
            assert!(parses(event, &whole), "{event}");
            assert_eq!(shape::problems(fields, &whole), []);
            let mut line = whole.clone();
            line.insert("event".into(), (*event).into());
            let line = Value::from(line);
            let read: Event = serde_json::from_value(line.clone()).unwrap();
            let written = serde_json::to_value(read).unwrap();
            assert_eq!(written, line, "{event} has these fields and no other");
            let nullable = shape::nullable(fields);
            for (path, without, null) in variants(&whole.into()) {
                let may = nullable.contains(&path);
                for changed in [&without, &null] {
                    let changed = changed.as_object().unwrap();
                    assert_eq!(parses(event, changed), may, "{event}: {path}: {changed:?}");
                    assert_eq!(shape::problems(fields, changed).is_empty(), may, "{event}: {path}");
                }
            }
        }
    }

    #[test]
    fn a_problem_names_field_type_and_remedy() {
        let mut hello = example(HELLO);
        hello.insert("build".into(), "release".into());
        hello.insert("library".into(), Value::Null);
        hello.remove("framework");
        let found: Vec<String> = shape::problems(HELLO, &hello).iter().map(ToString::to_string).collect();
        assert_eq!(found[0], "`framework`: missing: expected a text; send \"numpy\"");
        assert_eq!(found[1], "`library`: expected a text, found null; send \"OpenBLAS 0.3.30\"");
        assert!(
            found[2].starts_with("`build`: expected an object, found the text \"release\"; send {"),
            "{found:?}"
        );
    }

    #[test]
    fn an_element_of_a_list_is_named_once() {
        let mut sample = example(SAMPLE);
        sample.insert("marks_ns".into(), serde_json::json!([1, 1.5, 1.75]));
        let found = shape::problems(SAMPLE, &sample);
        assert_eq!(
            found.iter().map(ToString::to_string).collect::<Vec<_>>(),
            ["`marks_ns[1]`: expected a whole number, 0 or more, found the number 1.5; send 31144189"]
        );
    }

    #[test]
    fn the_page_says_what_may_be_null() {
        let page = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/reference/protocol.md");
        let page = std::fs::read_to_string(page).expect("docs/reference/protocol.md is part of the checkout");
        assert!(page.contains(&nullable_markdown()), "it should have:\n{}", nullable_markdown());
    }
}
