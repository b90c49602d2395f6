//! A traced run as one file in Chrome's trace-event format
//! (<https://docs.google.com/document/d/1CvAClvFfyA5R-PhYUmn5OOQtYMH4h6I0nSsKchNAySU>), which Perfetto, chrome://tracing
//! and speedscope open.

#[cfg(test)]
mod tests;

use std::borrow::Cow;
use std::collections::BTreeMap;

use protocol::{ProfileEvent, Traced, TracedRequest};
use serde::Serialize;
use serde_json::{Map, Value};

/// The worker's process in the picture, and its tracks.
const WORKER: u32 = 1;

const PHASES: u32 = 1;

const REQUESTS: u32 = 2;

const TOKENS: u32 = 3;

/// The framework's.
const FRAMEWORK: u32 = 2;

pub struct TraceFile<'a> {
    /// A name from configs/engines.
    pub framework: &'a str,
    pub steps: Steps,
    pub traced: &'a Traced,
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
        for (index, lane) in lanes(&self.profile).into_iter().enumerate() {
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

// Checks a trace against the trace-event format. Events of a framework's profiler are untrusted, and viewers
// silently drop events that they cannot read.

/// Half a nanosecond in microseconds: two times that differ by less are one.
const SAME: f64 = 0.000_5;

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Checked {
    /// Events of the worker's and of the framework's tracks, without those that name a track.
    pub events: usize,
    pub tokens: usize,
}

/// The first rule of the format that a trace breaks, and where.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Broken(pub String);

/// Checks the text of a trace in the format's object form.
///
/// - `traceEvents` is a list of objects with `name`, `ph`, `pid`, `tid` and `ts`, microseconds; times are finite.
/// - A phase is X (with `dur`, 0 or more) or M (with a name in `args`): nothing else is written.
/// - On each track events are nested or apart.
/// - Each request has a `prefill`, and a `decode` for every other token that it claims.
pub fn check(text: &str) -> Result<Checked, Broken> {
    let trace: Value =
        serde_json::from_str(text).map_err(|error| Broken(format!("it is not JSON: {error}")))?;
    let events =
        trace["traceEvents"].as_array().ok_or_else(|| Broken("it has no list traceEvents".into()))?;
    let mut tracks: BTreeMap<(u64, u64), Vec<Fields>> = BTreeMap::new();
    let mut counts = Counts::default();
    for (index, event) in events.iter().enumerate() {
        let broken = |why: String| Broken(format!("event {index} {why}"));
        let fields = event.as_object().ok_or_else(|| broken("is no object".into()))?;
        let read = Fields::read(fields).map_err(broken)?;
        counts.add(&read, fields);
        if read.phase != "M" {
            tracks.entry(read.track).or_default().push(read);
        }
    }
    for ((pid, tid), track) in tracks {
        check_nesting(track).map_err(|why| Broken(format!("process {pid}, track {tid}: {why}")))?;
    }
    counts.check().map_err(Broken)
}

/// The fields that every event has.
struct Fields {
    phase: String,
    name: String,
    track: (u64, u64),
    start: f64,
    end: f64,
}

impl Fields {
    fn read(fields: &Map<String, Value>) -> Result<Fields, String> {
        let text = |name: &str| fields.get(name).and_then(Value::as_str);
        let time = |name: &str| fields.get(name).and_then(Value::as_f64).filter(|time| time.is_finite());
        let id = |name: &str| fields.get(name).and_then(Value::as_u64).ok_or(format!("has no whole {name}"));
        let name = text("name").filter(|name| !name.is_empty()).ok_or("has no name")?.to_owned();
        let phase = text("ph").ok_or(format!("({name}) has no ph"))?.to_owned();
        let start = time("ts").ok_or(format!("({name}) has no ts"))?;
        let args = fields.get("args").and_then(Value::as_object);
        let duration = match phase.as_str() {
            "X" => time("dur")
                .filter(|dur| *dur >= 0.0)
                .ok_or(format!("({name}) is of ph X without a dur of 0 or more"))?,
            "M" if args.is_none_or(|args| args.get("name").is_none_or(|name| !name.is_string())) => {
                return Err(format!("({name}) is of ph M and names nothing"));
            }
            "M" => 0.0,
            other => return Err(format!("({name}) is of an unknown ph {other:?}")),
        };
        Ok(Fields { phase, name, track: (id("pid")?, id("tid")?), start, end: start + duration })
    }
}

/// Checks that the events of a track are nested or apart.
fn check_nesting(mut track: Vec<Fields>) -> Result<(), String> {
    track.sort_by(|a, b| a.start.total_cmp(&b.start).then(b.end.total_cmp(&a.end)));
    // The events around the present one, with their ends.
    let mut open: Vec<(&str, f64)> = Vec::new();
    for event in &track {
        while open.last().is_some_and(|(_, end)| *end <= event.start + SAME) {
            open.pop();
        }
        if let Some((around, end)) = open.last()
            && event.end > end + SAME
        {
            return Err(format!("{} reaches over the end of {around}, which it began in", event.name));
        }
        open.push((&event.name, event.end));
    }
    Ok(())
}

/// Events, and tokens by request: the claimed ones, and the existing ones.
#[derive(Default)]
struct Counts {
    events: usize,
    requests: BTreeMap<String, (usize, usize)>,
}

impl Counts {
    fn add(&mut self, event: &Fields, fields: &Map<String, Value>) {
        if event.phase != "M" {
            self.events += 1;
        }
        let category = fields.get("cat").and_then(Value::as_str);
        let told = |name: &str| fields.get("args")?.get(name)?.as_str();
        match category {
            Some("request") => {
                let tokens = told("tokens").and_then(|tokens| tokens.parse().ok());
                self.requests.entry(event.name.clone()).or_default().0 = tokens.unwrap_or_default();
            }
            Some("token") => {
                let phase = told("phase").unwrap_or_default().to_owned();
                self.requests.entry(phase).or_default().1 += 1;
            }
            _ => {}
        }
    }

    fn check(self) -> Result<Checked, String> {
        for (request, (told, found)) in &self.requests {
            if told != found || *found == 0 {
                return Err(format!("{request} has {told} tokens, and {found} of them are there"));
            }
        }
        let tokens = self.requests.values().map(|(_, found)| found).sum();
        Ok(Checked { events: self.events, tokens })
    }
}

// Tracks for the framework's own events. On one track of the format, events are nested or do not overlap;
// threads of frameworks follow that, but a framework's "thread" need not be one.

/// Profilers round times to microseconds, so an event may seem to end this much after the one around it.
const ROUNDING_NS: u64 = 2_000;

struct Lane<'a> {
    name: String,
    /// Each with its begin and end, in the order of their begins.
    events: Vec<(&'a ProfileEvent, (u64, u64))>,
    /// Ends of the events around the present one, the innermost last.
    open: Vec<u64>,
}

impl<'a> Lane<'a> {
    /// Adds an event that is within the present ones or after them. If it ends later than the event around it
    /// by no more than rounding does, its end is cut.
    fn takes(&mut self, event: &'a ProfileEvent) -> bool {
        let (start, mut end) = (event.start_ns, event.start_ns + event.duration_ns);
        while self.open.last().is_some_and(|&around| around <= start) {
            self.open.pop();
        }
        if let Some(&around) = self.open.last() {
            if end > around + ROUNDING_NS {
                return false;
            }
            end = end.min(around);
        }
        self.open.push(end);
        self.events.push((event, (start, end)));
        true
    }
}

/// The events on as few tracks as possible: one a thread, and more for a thread with overlapping events.
fn lanes(events: &[ProfileEvent]) -> Vec<Lane<'_>> {
    let mut sorted: Vec<&ProfileEvent> = events.iter().collect();
    sorted.sort_by_key(|event| (event.start_ns, std::cmp::Reverse(event.duration_ns)));
    let mut lanes: Vec<(&str, Vec<Lane<'_>>)> = Vec::new();
    for event in sorted {
        let at = lanes.iter().position(|(thread, _)| event.thread == **thread).unwrap_or_else(|| {
            lanes.push((&event.thread, Vec::new()));
            lanes.len() - 1
        });
        let own = &mut lanes[at].1;
        if own.iter_mut().any(|lane| lane.takes(event)) {
            continue;
        }
        let name = match own.len() {
            0 => event.thread.to_string(),
            more => format!("{} ({})", event.thread, more + 1),
        };
        let mut lane = Lane { name, events: Vec::new(), open: Vec::new() };
        lane.takes(event);
        own.push(lane);
    }
    lanes.into_iter().flat_map(|(_, lanes)| lanes).collect()
}
