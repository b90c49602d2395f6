//! Reads the events of ONNX Runtime's own profile. The option `profile` switches it on when a session is
//! made.

use std::collections::BTreeMap;
use std::path::Path;

use engine::{EngineError, Profile, ProfileClock, ProfileEvent};
use onnx::names::part;
use serde_json::{Map, Value};

/// Suffix of the name of a node's event.
const KERNEL: &str = "_kernel_time";
/// Details that are kept of an event. Shapes are JSON.
const DETAILS: [&str; 5] = ["op_name", "provider", "input_type_shape", "output_type_shape", "output_size"];
/// Events that the profiler keeps; it silently drops later ones.
const MOST: usize = 1_000_000;

/// The events of the profile in `file`. Its times count from `start_ns`.
pub(crate) fn read(file: &Path, start_ns: u64) -> Result<Profile, EngineError> {
    let cannot = |why: String| EngineError::Framework(format!("cannot read {}: {why}", file.display()));
    let text = std::fs::read_to_string(file).map_err(|error| cannot(error.to_string()))?;
    let values: Vec<Value> = serde_json::from_str(&text).map_err(|error| cannot(error.to_string()))?;
    let events: Vec<ProfileEvent> = values.iter().filter_map(|value| event(value, start_ns)).collect();
    let mut notes = vec!["Its times are whole microseconds, and its events begin with the load.".to_owned()];
    if values.len() >= MOST {
        notes.push(format!("It keeps {MOST} events: those after that are missing."));
    }
    // The library reads `high_resolution_clock`: in GNU's C++ library the time since 1970, elsewhere the time
    // since boot. No machine has run for thirty years.
    let clock =
        if start_ns > 1_000_000_000_000_000_000 { ProfileClock::Realtime } else { ProfileClock::Monotonic };
    Ok(Profile { profiler: "ONNX Runtime's profiler".into(), clock, events, notes })
}

/// A complete event; `None` for metadata of the profile.
fn event(value: &Value, start_ns: u64) -> Option<ProfileEvent> {
    if value["ph"] != "X" {
        return None;
    }
    let microseconds = |field: &str| value[field].as_u64();
    let name = value["name"].as_str()?;
    let node = name.strip_suffix(KERNEL);
    let none = Map::new();
    let told = value["args"].as_object().unwrap_or(&none);
    let mut details: BTreeMap<String, String> = DETAILS
        .into_iter()
        .filter_map(|detail| Some((detail.to_owned(), plain(told.get(detail)?))))
        .collect();
    // A node is shown under its operator's name; its own name is a detail.
    let operator = details.remove("op_name").filter(|operator| !operator.is_empty());
    let shown = match (node, operator) {
        (Some(node), Some(operator)) => {
            details.insert("node".into(), node.into());
            operator
        }
        (_, _) => name.to_owned(),
    };
    Some(ProfileEvent {
        name: shown,
        part: node.and_then(part),
        thread: format!("thread {}", value["tid"]),
        start_ns: start_ns + microseconds("ts")? * 1000,
        duration_ns: microseconds("dur")? * 1000,
        details,
    })
}

fn plain(value: &Value) -> String {
    value.as_str().map_or_else(|| value.to_string(), str::to_owned)
}

#[cfg(test)]
mod tests {
    use super::*;

    const PROFILE: &str = r#"[
        {"cat": "Session", "pid": 7, "tid": 7, "dur": 90, "ts": 5, "ph": "X", "name": "model_run", "args": {}},
        {"cat": "Node", "pid": 7, "tid": 7, "dur": 20, "ts": 10, "ph": "X", "name": "layer.2.attended_kernel_time",
         "args": {"op_name": "GroupQueryAttention", "provider": "CPUExecutionProvider", "node_index": "3"}},
        {"cat": "Session", "pid": 7, "tid": 7, "ts": 5, "ph": "M", "name": "process_name", "args": {}}
    ]"#;

    #[test]
    fn a_node_is_its_operator_and_the_part_of_the_model() {
        let directory = tempfile::tempdir().unwrap();
        let file = directory.path().join("profile.json");
        std::fs::write(&file, PROFILE).unwrap();
        let since_1970 = 1_795_000_000_000_000_000;
        let profile = read(&file, since_1970).unwrap();
        assert_eq!(profile.clock, ProfileClock::Realtime);
        let [run, node] = profile.events.as_slice() else { panic!("{:?}", profile.events) };
        assert_eq!((run.name.as_str(), &run.part), ("model_run", &None));
        assert_eq!((run.start_ns, run.duration_ns), (since_1970 + 5_000, 90_000));
        assert_eq!(
            (node.name.as_str(), node.part.as_deref()),
            ("GroupQueryAttention", Some("layer 2 attention"))
        );
        assert_eq!(node.details["node"], "layer.2.attended");
        assert_eq!(read(&file, 86_400_000_000_000).unwrap().clock, ProfileClock::Monotonic);
    }

    #[test]
    fn a_profile_that_is_cut_short_is_an_error_that_names_it() {
        let directory = tempfile::tempdir().unwrap();
        let file = directory.path().join("cut.json");
        std::fs::write(&file, &PROFILE[..100]).unwrap();
        let error = read(&file, 0).unwrap_err().to_string();
        assert!(error.contains("cut.json"), "{error}");
    }
}
