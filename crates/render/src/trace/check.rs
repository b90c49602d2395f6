//! Checks a trace against the trace-event format. Events of a framework's profiler are untrusted, and viewers
//! silently drop events that they cannot read.

use std::collections::BTreeMap;

use serde_json::{Map, Value};

/// Half a nanosecond in microseconds: two times that differ by less are one.
const SAME: f64 = 0.000_5;

/// Counts of a valid trace.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Checked {
    /// Events of the worker's and of the framework's tracks, without those that name a track.
    pub events: usize,
    /// Tokens of all requests.
    pub tokens: usize,
}

/// The first rule of the format that a trace breaks, and where.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Broken(pub String);

/// Checks the text of a trace in the format's object form.
///
/// - `traceEvents` is a list of objects with `name`, `ph`, `pid`, `tid` and `ts`, microseconds; times are finite.
/// - A phase is one of X (with `dur`, 0 or more), B, E, M (with a name in `args`), i and C (with numbers in `args`).
/// - On each track B and E are balanced, and X and B–E are nested or apart.
/// - Each request has a `prefill`, and a `decode` for every other token that it claims.
pub fn check(text: &str) -> Result<Checked, Broken> {
    let trace: Value =
        serde_json::from_str(text).map_err(|error| Broken(format!("it is not JSON: {error}")))?;
    let events =
        trace["traceEvents"].as_array().ok_or_else(|| Broken("it has no list traceEvents".into()))?;
    let mut tracks: BTreeMap<(u64, u64), Track> = BTreeMap::new();
    let mut counts = Counts::default();
    for (index, event) in events.iter().enumerate() {
        let broken = |why: String| Broken(format!("event {index} {why}"));
        let fields = event.as_object().ok_or_else(|| broken("is no object".into()))?;
        let read = Fields::read(fields).map_err(broken)?;
        counts.add(&read, fields);
        if read.phase != "M" {
            tracks.entry(read.track).or_default().0.push(read);
        }
    }
    for ((pid, tid), track) in tracks {
        track.check().map_err(|why| Broken(format!("process {pid}, track {tid}: {why}")))?;
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
            "C" if args.is_none_or(|args| args.is_empty() || !args.values().all(Value::is_number)) => {
                return Err(format!("({name}) is of ph C and counts nothing"));
            }
            "M" | "C" | "B" | "E" | "i" => 0.0,
            other => return Err(format!("({name}) is of an unknown ph {other:?}")),
        };
        Ok(Fields { phase, name, track: (id("pid")?, id("tid")?), start, end: start + duration })
    }
}

/// The events of one track.
#[derive(Default)]
struct Track(Vec<Fields>);

impl Track {
    fn check(mut self) -> Result<(), String> {
        self.0.sort_by(|a, b| a.start.total_cmp(&b.start).then(b.end.total_cmp(&a.end)));
        // The events around the present one. B begins an event without its end, which E gives.
        let mut open: Vec<(String, f64)> = Vec::new();
        for event in &self.0 {
            while open.last().is_some_and(|(_, end)| *end <= event.start + SAME) {
                open.pop();
            }
            match event.phase.as_str() {
                "B" => open.push((event.name.clone(), f64::INFINITY)),
                "E" => match open.pop() {
                    Some((_, end)) if end == f64::INFINITY => {}
                    Some((name, _)) => return Err(format!("{} ends within {name}", event.name)),
                    None => return Err(format!("{} ends and was not begun", event.name)),
                },
                "X" => {
                    if let Some((name, end)) = open.last()
                        && event.end > end + SAME
                    {
                        return Err(format!(
                            "{} reaches over the end of {name}, which it began in",
                            event.name
                        ));
                    }
                    open.push((event.name.clone(), event.end));
                }
                _ => {}
            }
        }
        match open.into_iter().find(|(_, end)| *end == f64::INFINITY) {
            Some((name, _)) => Err(format!("{name} is begun and does not end")),
            None => Ok(()),
        }
    }
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
