//! A profiler for the mock: an event for each call of `append`, and within it one for each part of the model, all of
//! equal length. They are read from the time since 1970, as those of most frameworks are.

use std::collections::BTreeMap;

use engine::{EngineError, Profile, ProfileClock, ProfileEvent};

use crate::script::{Script, unix_time};

/// The events noted so far; `None` while the profiler is off.
#[derive(Default)]
pub(crate) struct Profiler(Option<Vec<ProfileEvent>>);

impl Profiler {
    pub(crate) fn begin(&mut self, script: &Script) -> Result<(), EngineError> {
        if !script.profiler {
            return Err(EngineError::Unsupported(
                "The mock has no profiler unless its script says so.".into(),
            ));
        }
        self.0 = Some(Vec::new());
        Ok(())
    }

    /// The time now, if the profiler is on.
    pub(crate) fn now(&self) -> Option<u64> {
        self.0.as_ref().map(|_| unix_time().as_nanos() as u64)
    }

    /// Notes a call of `append` that began at `start_ns` and ends now.
    pub(crate) fn note(&mut self, start_ns: Option<u64>, layers: usize, positions: usize) {
        let (Some(start_ns), Some(end_ns)) = (start_ns, self.now()) else { return };
        let layer = |layer| ["attention", "mlp"].map(|part| format!("layer {layer} {part}"));
        let parts: Vec<String> = std::iter::once("embedding".to_owned())
            .chain((0..layers).flat_map(layer))
            .chain(std::iter::once("head".to_owned()))
            .collect();
        let event = |name: &str, part, start_ns, duration_ns| ProfileEvent {
            name: name.into(),
            part,
            thread: "main".into(),
            start_ns,
            duration_ns,
            details: BTreeMap::from([("positions".to_owned(), positions.to_string())]),
        };
        let each = (end_ns - start_ns) / parts.len() as u64;
        let Some(events) = &mut self.0 else { return };
        events.push(event("append", None, start_ns, end_ns - start_ns));
        for (index, part) in parts.into_iter().enumerate() {
            events.push(event("wait", Some(part), start_ns + index as u64 * each, each));
        }
    }

    pub(crate) fn end(&mut self) -> Result<Profile, EngineError> {
        let events = self.0.take();
        let events = events.ok_or_else(|| EngineError::Input("end_profile before begin_profile".into()))?;
        Ok(Profile {
            profiler: "the mock's profiler".into(),
            clock: ProfileClock::Realtime,
            events,
            notes: vec!["The mock's parts are all said to take equally long.".into()],
        })
    }
}
