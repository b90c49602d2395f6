//! The fields of every event, as data: types, examples and what may be `null`.

use serde_json::{Map, Value};

use crate::worker_check::events::Kind::{Bool, List, Number, Object, OneOf, Text, Whole};
use crate::worker_check::{ENERGY, GPU_WORK, MEMORY, Problem};

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

#[cfg(test)]
/// The part of `docs/reference/protocol.md` that says which fields may be `null`: a row for each event that has any.
fn nullable_markdown() -> String {
    let mut text = String::from("| `event` | may be `null`, or left out |\n|---|---|\n");
    for (event, fields) in EVENTS {
        // The optional fields of `memory` are the same everywhere.
        let paths = nullable(fields);
        let own = paths.iter().filter(|path| !path.starts_with("memory."));
        let own: Vec<String> = own.map(|path| format!("`{path}`")).collect();
        if !own.is_empty() {
            text += &format!("| `{event}` | {} |\n", own.join(", "));
        }
    }
    let memory: Vec<String> = nullable(MEMORY).into_iter().map(|path| format!("`{path}`")).collect();
    text + &format!("| every `memory` | {}: `{{}}` is a valid `memory` |\n", memory.join(", "))
}

// The shape of a line: its fields, their types, and which of them may be `null`. The tables of `events` are
// made of these; a test compares them with the types of crate `protocol`.

/// A field of an event.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Field {
    pub(crate) name: &'static str,
    pub(crate) kind: Kind,
    /// Whether it may be `null`, or left out, which means the same.
    pub(crate) may_be_null: bool,
}

/// The type of a value.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Kind {
    /// With an example.
    Text(&'static str),
    /// One of these texts.
    OneOf(&'static [&'static str]),
    /// A whole number, 0 or more, with an example.
    Whole(u64),
    Number(f64),
    Bool(bool),
    List(&'static Kind),
    Object(&'static [Field]),
}

/// A field that must be there.
pub(crate) const fn must(name: &'static str, kind: Kind) -> Field {
    Field { name, kind, may_be_null: false }
}

/// A field that may be `null` or left out.
pub(crate) const fn may(name: &'static str, kind: Kind) -> Field {
    Field { name, kind, may_be_null: true }
}

/// Every field of `object` that is missing or of another type than it should be.
pub(crate) fn problems(fields: &'static [Field], object: &Map<String, Value>) -> Vec<Problem> {
    let mut found = Vec::new();
    of_object(fields, object, "", &mut found);
    found
}

fn of_object(fields: &'static [Field], object: &Map<String, Value>, path: &str, found: &mut Vec<Problem>) {
    for field in fields {
        let path = if path.is_empty() { field.name.to_owned() } else { format!("{path}.{}", field.name) };
        match object.get(field.name) {
            None | Some(Value::Null) if field.may_be_null => {}
            None => {
                let text = format!("missing: expected {}; send {}", field.kind.words(), field.kind.example());
                found.push(Problem::at(&path, text));
            }
            Some(value) => of_value(field.kind, value, &path, found),
        }
    }
}

fn of_value(kind: Kind, value: &Value, path: &str, found: &mut Vec<Problem>) {
    match (kind, value) {
        (Kind::Object(fields), Value::Object(object)) => of_object(fields, object, path, found),
        (Kind::List(each), Value::Array(values)) => {
            let before = found.len();
            for (index, value) in values.iter().enumerate() {
                of_value(*each, value, &format!("{path}[{index}]"), found);
                // The others most likely have the same problems.
                if found.len() > before {
                    break;
                }
            }
        }
        (kind, value) if kind.takes(value) => {}
        (kind, value) => {
            let text =
                format!("expected {}, found {}; send {}", kind.words(), described(value), kind.example());
            found.push(Problem::at(path, text));
        }
    }
}

impl Kind {
    fn takes(self, value: &Value) -> bool {
        match self {
            Kind::Text(_) => value.is_string(),
            Kind::OneOf(texts) => value.as_str().is_some_and(|text| texts.contains(&text)),
            Kind::Whole(_) => value.is_u64(),
            Kind::Number(_) => value.is_number(),
            Kind::Bool(_) => value.is_boolean(),
            Kind::List(_) => value.is_array(),
            Kind::Object(_) => value.is_object(),
        }
    }

    /// The type in words: "a list of whole numbers".
    fn words(self) -> String {
        match self {
            Kind::Text(_) => "a text".into(),
            Kind::OneOf(texts) => {
                let quoted: Vec<String> = texts.iter().map(|text| format!("{text:?}")).collect();
                format!("one of {}", quoted.join(", "))
            }
            Kind::Whole(_) => "a whole number, 0 or more".into(),
            Kind::Number(_) => "a number".into(),
            Kind::Bool(_) => "true or false".into(),
            Kind::List(each) => format!("a list of {}", each.plural()),
            Kind::Object(_) => "an object".into(),
        }
    }

    fn plural(self) -> String {
        match self {
            Kind::Text(_) | Kind::OneOf(_) => "texts".into(),
            Kind::Whole(_) => "whole numbers".into(),
            Kind::Number(_) => "numbers".into(),
            Kind::Bool(_) => "true or false".into(),
            Kind::List(each) => format!("lists of {}", each.plural()),
            Kind::Object(_) => "objects".into(),
        }
    }

    /// A value of this type. An object has all its fields.
    pub(crate) fn example(self) -> Value {
        match self {
            Kind::Text(text) => text.into(),
            Kind::OneOf(texts) => texts.first().copied().into(),
            Kind::Whole(number) => number.into(),
            Kind::Number(number) => number.into(),
            Kind::Bool(value) => value.into(),
            Kind::List(each) => vec![each.example()].into(),
            Kind::Object(fields) => example(fields).into(),
        }
    }
}

/// An object with all these fields.
pub(crate) fn example(fields: &[Field]) -> Map<String, Value> {
    fields.iter().map(|field| (field.name.to_owned(), field.kind.example())).collect()
}

#[cfg(test)]
/// Paths of the fields that may be `null`, as in `memory.peak_bytes`.
pub(crate) fn nullable(fields: &[Field]) -> Vec<String> {
    let mut paths = Vec::new();
    for field in fields {
        if field.may_be_null {
            paths.push(field.name.to_owned());
        }
        let (inner, mark) = match field.kind {
            Kind::Object(inner) => (inner, ""),
            Kind::List(Kind::Object(inner)) => (*inner, "[]"),
            _ => continue,
        };
        paths.extend(nullable(inner).into_iter().map(|path| format!("{}{mark}.{path}", field.name)));
    }
    paths
}

/// A value as found, cut short.
fn described(value: &Value) -> String {
    let what = match value {
        Value::Null => return "null".into(),
        Value::Object(_) => return "an object".into(),
        Value::Array(_) => return "a list".into(),
        Value::String(_) => "the text ",
        Value::Number(_) => "the number ",
        Value::Bool(_) => "",
    };
    let text = value.to_string();
    let start: String = text.chars().take(40).collect();
    format!("{what}{start}{}", if start.len() < text.len() { "…" } else { "" })
}

// Fields of events that only decoders have.

/// How keys and values are kept.
pub(crate) const CACHE: [Field; 2] = [
    must("kv_cache_precision", Text("f32")),
    must("kv_cache", OneOf(&["preallocated", "growing", "recomputed", "none"])),
];

pub(crate) const CACHE_BYTES: Field = may("kv_cache_bytes", Whole(5_376));

pub(crate) const HYBRID: &[Field] = &[
    must("prefill", Text("tch")),
    must("decode", Text("candle")),
    may("alone", Text("falls back to candle alone: it has no such attention")),
];

pub(crate) const HAND_OVER: &[Field] = &[
    must("times", Whole(3)),
    must("bytes", Whole(5_376)),
    must("ns", Whole(20_000)),
    must("prefill_address", Whole(140_000_000_000_000)),
    must("decode_address", Whole(140_000_000_065_536)),
    may("obstacle", Text("tch wants those of all layers in one piece")),
];

pub(crate) const PADDING: &[Field] = &[must("side", OneOf(&["left", "right"])), must("computed", Whole(432))];

#[cfg(test)]
mod tests {
    use crate::worker_check::events::example;
    use protocol::Event;
    use serde_json::{Map, Value};

    use super::*;

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
            assert_eq!(problems(fields, &whole), []);
            let mut line = whole.clone();
            line.insert("event".into(), (*event).into());
            let line = Value::from(line);
            let read: Event = serde_json::from_value(line.clone()).unwrap();
            let written = serde_json::to_value(read).unwrap();
            assert_eq!(written, line, "{event} has these fields and no other");
            let nullable = super::nullable(fields);
            for (path, without, null) in variants(&whole.into()) {
                let may = nullable.contains(&path);
                for changed in [&without, &null] {
                    let changed = changed.as_object().unwrap();
                    assert_eq!(parses(event, changed), may, "{event}: {path}: {changed:?}");
                    assert_eq!(problems(fields, changed).is_empty(), may, "{event}: {path}");
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
        let found: Vec<String> = problems(HELLO, &hello).iter().map(ToString::to_string).collect();
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
        let found = problems(SAMPLE, &sample);
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
