//! A session at work: its threads, and its profile.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread::JoinHandle;

use onnx::graph::part;
use ort::environment::ThreadManager;
use ort::session::Session;
use ort::session::builder::SessionBuilder;
use serde_json::{Map, Value};
use worker::engine::{EngineError, Profile, ProfileClock, ProfileEvent, Result};

use crate::runtime::{Options, framework};

/// A session with its options, as an encoder, a decoder or an ONNX file has it.
pub(crate) struct Running {
    pub(crate) session: Session,
    pub(crate) options: Options,
    /// Threads that compute: the caller's and those that the session started.
    pub(crate) threads: usize,
}

impl Running {
    /// `commit` makes the session, with so many threads and the rest as the options say.
    pub(crate) fn start(
        builder: SessionBuilder,
        (threads, options): (usize, Options),
        commit: impl FnOnce(SessionBuilder) -> ort::Result<Session>,
    ) -> ort::Result<Running> {
        let counted = CountedThreads::default();
        let started = Arc::clone(&counted.started);
        let mut builder = builder.with_intra_threads(threads)?.with_thread_manager(counted)?;
        if options.spins_within_runs_alone {
            builder = builder.with_config_entry("session.force_spinning_stop", "1")?;
        }
        if options.packs_on_all_threads {
            builder = builder.with_config_entry("session.prepack.enable_parallel", "1")?;
        }
        if let Some(path) = &options.profile {
            builder = builder.with_profiling(path)?;
        }
        let session = commit(builder)?;
        Ok(Running { session, options, threads: 1 + started.load(Ordering::SeqCst) })
    }

    /// Ends the profile requested by the options and renames its file, because ONNX Runtime appends the time
    /// to the name. `None` if there is no profile or it has already been ended.
    fn end_profile(&mut self) -> Option<std::result::Result<PathBuf, String>> {
        let path = self.options.profile.take()?;
        let moved = self.session.end_profiling().map_err(|error| error.to_string()).and_then(|written| {
            std::fs::rename(&written, &path).map_err(|error| format!("cannot rename {written}: {error}"))
        });
        Some(moved.map_err(|reason| format!("no profile in {}: {reason}", path.display())).map(|()| path))
    }

    /// Ends the profile and reads it.
    pub(crate) fn profile(&mut self) -> Result<Profile> {
        let start_ns = self.session.profiling_start_ns().map_err(framework)?;
        let file = self.end_profile().ok_or_else(|| {
            EngineError::Input("end_profile without begin_profile, or for the second time".into())
        })?;
        read(&file.map_err(EngineError::Framework)?, start_ns)
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        if let Some(Err(reason)) = self.end_profile() {
            eprintln!("{reason}");
        }
    }
}

/// Starts the session's threads as the library itself would, and counts them, because the library does not
/// report their number.
#[derive(Default)]
struct CountedThreads {
    started: Arc<AtomicUsize>,
}

impl ThreadManager for CountedThreads {
    type Thread = JoinHandle<()>;

    fn create(&self, work: impl FnOnce() + Send + 'static) -> ort::Result<JoinHandle<()>> {
        let thread = std::thread::Builder::new()
            .name("ort-intra-op".into())
            .spawn(work)
            .map_err(|error| ort::Error::new(format!("cannot start a thread: {error}")))?;
        self.started.fetch_add(1, Ordering::SeqCst);
        Ok(thread)
    }

    fn join(thread: JoinHandle<()>) -> ort::Result<()> {
        thread.join().map_err(|_| ort::Error::new("a thread of the session panicked"))
    }
}

// Reads the events of ONNX Runtime's own profile. The option `profile` switches it on when a session is
// made.

/// Suffix of the name of a node's event.
const KERNEL: &str = "_kernel_time";

/// Details that are kept of an event. Shapes are JSON.
const DETAILS: [&str; 5] = ["op_name", "provider", "input_type_shape", "output_type_shape", "output_size"];

/// Events that the profiler keeps; it silently drops later ones.
const MOST: usize = 1_000_000;

/// The events of the profile in `file`. Its times count from `start_ns`.
fn read(file: &Path, start_ns: u64) -> Result<Profile> {
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
    let details =
        DETAILS.into_iter().filter_map(|detail| Some((detail.into(), plain(told.get(detail)?).into())));
    let mut event = ProfileEvent {
        name: name.into(),
        part: node.and_then(part).map(Into::into),
        thread: format!("thread {}", value["tid"]).into(),
        start_ns: start_ns + microseconds("ts")? * 1000,
        duration_ns: microseconds("dur")? * 1000,
        details: details.collect(),
    };
    // A node is shown under its operator's name; its own name is a detail.
    let operator = event.details.remove("op_name").filter(|operator| !operator.is_empty());
    if let (Some(node), Some(operator)) = (node, operator) {
        event.details.insert("node".into(), node.into());
        event.name = operator;
    }
    Some(event)
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
