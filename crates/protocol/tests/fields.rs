//! The fields of events: which may be `null` or left out, which `docs/reference/protocol.md` says; and that any text which a
//! worker writes into them is bounded and harmless once it is read.

use protocol::Event;
use protocol::untrusted::PATH;
use serde_json::Value;

/// Every event with every field that decoders use.
const EVENTS: &str = include_str!("every_field.jsonl");

const PAGE: &str = include_str!("../../../docs/reference/protocol.md");

fn parses(event: &Value) -> bool {
    serde_json::from_value::<Event>(event.clone()).is_ok()
}

/// The pointers of all fields of this object, of those inside it and of the first elements of its lists.
fn pointers(value: &Value) -> Vec<String> {
    let inner = |name: &str, value: &Value| {
        let below =
            pointers(value).into_iter().map(|pointer| format!("/{name}{pointer}")).collect::<Vec<_>>();
        below.into_iter()
    };
    match value {
        Value::Object(fields) => {
            let each = fields.iter().filter(|(name, _)| *name != "event");
            each.flat_map(|(name, value)| std::iter::once(format!("/{name}")).chain(inner(name, value)))
                .collect()
        }
        Value::Array(values) => values.first().into_iter().flat_map(|value| inner("0", value)).collect(),
        _ => Vec::new(),
    }
}

/// The event without a field, and with `null` in its place.
fn changed(event: &Value, pointer: &str) -> [Value; 2] {
    let (parent, name) = pointer.rsplit_once('/').unwrap();
    let [mut without, mut null] = [event.clone(), event.clone()];
    without.pointer_mut(parent).unwrap().as_object_mut().unwrap().remove(name);
    *null.pointer_mut(pointer).unwrap() = Value::Null;
    [without, null]
}

#[test]
fn null_and_a_missing_field_are_the_same_and_the_page_says_where_they_are_allowed() {
    let mut rows = vec!["| `event` | may be `null`, or left out |".to_owned(), "|---|---|".to_owned()];
    let mut of_memory = Vec::new();
    for line in EVENTS.lines() {
        let event: Value = serde_json::from_str(line).unwrap();
        let read: Event = serde_json::from_value(event.clone()).unwrap();
        assert_eq!(serde_json::to_value(read).unwrap(), event, "the event has these fields and no other");
        let mut own = Vec::new();
        for pointer in pointers(&event).into_iter().filter(|pointer| !pointer.ends_with("/0")) {
            let [without, null] = changed(&event, &pointer);
            assert_eq!(parses(&without), parses(&null), "{event}: {pointer}");
            let path = pointer[1..].replace("/0/", "[].").replace('/', ".");
            match path.strip_prefix("memory.") {
                _ if !parses(&null) => {}
                Some(field) if event["event"] == "started" => of_memory.push(format!("`{field}`")),
                Some(_) => {}
                None => own.push(format!("`{path}`")),
            }
        }
        if !own.is_empty() {
            rows.push(format!("| `{}` | {} |", event["event"].as_str().unwrap(), own.join(", ")));
        }
    }
    rows.push(format!("| every `memory` | {}: `{{}}` is a valid `memory` |", of_memory.join(", ")));
    let table = rows.join("\n");
    assert!(PAGE.contains(&table), "it should have:\n{table}");
}

/// Calls `change` on every text of a value except the names of events, kinds, sides and policies, which are types.
fn each_text(value: &mut Value, change: &mut impl FnMut(&mut String)) {
    match value {
        Value::String(text) => change(text),
        Value::Array(values) => values.iter_mut().for_each(|value| each_text(value, change)),
        Value::Object(fields) => {
            let names = ["event", "kind", "side", "kv_cache"];
            let fields = fields.iter_mut().filter(|(name, _)| !names.contains(&name.as_str()));
            fields.for_each(|(_, value)| each_text(value, change));
        }
        _ => {}
    }
}

#[test]
fn every_text_of_every_event_passes_the_door() {
    let hostile = format!("\u{1b}[2J\nforged\u{202e}{}", "x".repeat(1 << 20));
    let mut changed = 0;
    for line in EVENTS.lines() {
        let mut value: Value = serde_json::from_str(line).unwrap();
        each_text(&mut value, &mut |text| {
            *text = hostile.clone();
            changed += 1;
        });
        let read: Event = serde_json::from_value(value).unwrap();
        each_text(&mut serde_json::to_value(&read).unwrap(), &mut |text| {
            assert!(text.chars().count() <= PATH, "a text of {} characters in {line}", text.len());
            assert!(!text.contains(['\u{1b}', '\n', '\u{202e}']), "{text:?} in {line}");
        });
    }
    assert!(changed >= 40, "events have {changed} texts");
}
