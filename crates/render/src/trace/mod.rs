//! A traced run as one file in Chrome's trace-event format
//! (<https://docs.google.com/document/d/1CvAClvFfyA5R-PhYUmn5OOQtYMH4h6I0nSsKchNAySU>), which Perfetto, chrome://tracing
//! and speedscope open.

mod check;
mod lanes;

use std::borrow::Cow;
use std::collections::BTreeMap;

use protocol::{ProfileEvent, Traced, TracedRequest};
use serde::Serialize;

pub use check::{Broken, Checked, check};

/// The worker's process in the picture, and its tracks.
const WORKER: u32 = 1;
const PHASES: u32 = 1;
const REQUESTS: u32 = 2;
const TOKENS: u32 = 3;
/// The framework's.
const FRAMEWORK: u32 = 2;

/// The contents of a trace file.
pub struct TraceFile<'a> {
    /// A name from configs/engines.
    pub framework: &'a str,
    pub steps: Steps,
    pub traced: &'a Traced,
    /// The framework's own events.
    pub profile: Vec<ProfileEvent>,
    /// The file's description of itself, by name.
    pub about: BTreeMap<String, String>,
}

/// Names of the steps that a request's marks end.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Steps {
    track: &'static str,
    first: &'static str,
    /// Others are followed by a number.
    next: &'static str,
}

impl Steps {
    /// A prompt, and each token that is decoded.
    pub const TOKENS: Steps = Steps { track: "tokens", first: "prefill", next: "decode" };
    /// A batch of texts.
    pub const BATCH: Steps = Steps { track: "batches", first: "batch", next: "batch" };
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct Written<'a> {
    trace_events: Vec<Event<'a>>,
    display_time_unit: &'static str,
    other_data: &'a BTreeMap<String, String>,
}

/// One event of the format. Times are in microseconds from the start of the worker's process.
#[derive(Serialize)]
struct Event<'a> {
    ph: &'static str,
    pid: u32,
    tid: u32,
    ts: f64,
    #[serde(skip_serializing_if = "Option::is_none")]
    dur: Option<f64>,
    name: Cow<'a, str>,
    cat: &'static str,
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    args: BTreeMap<Cow<'a, str>, Cow<'a, str>>,
}

impl TraceFile<'_> {
    /// The file's text. `text_of` says a token in words, if it can.
    pub fn json(&self, text_of: impl Fn(u32) -> Option<String>) -> String {
        let mut events = vec![
            named("process_name", (WORKER, 0), format!("worker of {}", self.framework)),
            named("thread_name", (WORKER, PHASES), "phases"),
            named("thread_name", (WORKER, REQUESTS), "requests"),
            named("thread_name", (WORKER, TOKENS), self.steps.track),
        ];
        let zero = self.traced.phases.iter().map(|phase| phase.start_ns).min().unwrap_or_default();
        for phase in &self.traced.phases {
            let place = (WORKER, PHASES, "phase");
            events.push(lasting(place, phase.name.as_str(), (phase.start_ns, phase.end_ns), zero));
        }
        for request in &self.traced.requests {
            self.request(request, zero, &text_of, &mut events);
        }
        if let Some(profiler) = &self.traced.profiler {
            events.push(named("process_name", (FRAMEWORK, 0), profiler.name.as_str()));
            self.profile(zero, &mut events);
        }
        let written = Written { trace_events: events, display_time_unit: "ms", other_data: &self.about };
        serde_json::to_string(&written).expect("the keys are texts and the times finite")
    }

    fn request<'a>(
        &'a self,
        request: &'a TracedRequest,
        zero: u64,
        text_of: &impl Fn(u32) -> Option<String>,
        events: &mut Vec<Event<'a>>,
    ) {
        let end = request.tokens_ns.last().copied().unwrap_or(request.start_ns);
        let mut whole =
            lasting((WORKER, REQUESTS, "request"), request.phase.as_str(), (request.start_ns, end), zero);
        whole.args.insert("tokens".into(), request.tokens_ns.len().to_string().into());
        events.push(whole);
        let mut start = request.start_ns;
        for (step, &end) in request.tokens_ns.iter().enumerate() {
            let Steps { first, next, .. } = self.steps;
            let name = if step == 0 { first.to_owned() } else { format!("{next} {step}") };
            let mut token = lasting((WORKER, TOKENS, "token"), name, (start, end), zero);
            let chosen: Vec<u32> = request.tokens.iter().filter_map(|row| row.get(step).copied()).collect();
            let texts: Option<Vec<String>> = chosen.iter().map(|&id| text_of(id)).collect();
            token.args.insert("phase".into(), request.phase.as_str().into());
            token.args.insert("token".into(), (step + 1).to_string().into());
            let ids: Vec<String> = chosen.iter().map(u32::to_string).collect();
            if !ids.is_empty() {
                token.args.insert("ids".into(), ids.join(", ").into());
            }
            if let Some(texts) = texts.filter(|texts| !texts.is_empty()) {
                token.args.insert("text".into(), texts.join(" | ").into());
            }
            events.push(token);
            start = end;
        }
    }

    /// The framework's own events, each thread on its own track.
    fn profile<'a>(&'a self, zero: u64, events: &mut Vec<Event<'a>>) {
        for (index, lane) in lanes::lanes(&self.profile).into_iter().enumerate() {
            let tid = index as u32 + 1;
            events.push(named("thread_name", (FRAMEWORK, tid), lane.name));
            for (told, span) in lane.events {
                let name = match &told.part {
                    Some(part) if *part != told.name => Cow::from(format!("{part}: {}", told.name)),
                    _ => told.name.as_str().into(),
                };
                let mut event = lasting((FRAMEWORK, tid, "framework"), name, span, zero);
                let details = told.details.iter();
                event.args.extend(details.map(|(name, value)| (name.as_str().into(), value.as_str().into())));
                if let Some(part) = &told.part {
                    event.args.insert("part".into(), part.as_str().into());
                }
                events.push(event);
            }
        }
    }
}

/// A name for a process or a track.
fn named<'a>(kind: &'a str, (pid, tid): (u32, u32), name: impl Into<Cow<'a, str>>) -> Event<'a> {
    let args = BTreeMap::from([("name".into(), name.into())]);
    Event { ph: "M", pid, tid, ts: 0.0, dur: None, name: kind.into(), cat: "__metadata", args }
}

/// A complete event.
fn lasting<'a>(
    (pid, tid, cat): (u32, u32, &'static str),
    name: impl Into<Cow<'a, str>>,
    (start, end): (u64, u64),
    zero: u64,
) -> Event<'a> {
    // A framework may have noted events before the worker's first one.
    let microseconds = |ns: u64| (ns as f64 - zero as f64) / 1e3;
    let dur = Some(end.saturating_sub(start) as f64 / 1e3);
    Event { ph: "X", pid, tid, ts: microseconds(start), dur, name: name.into(), cat, args: BTreeMap::new() }
}

#[cfg(test)]
mod tests;
