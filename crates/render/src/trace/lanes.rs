//! Tracks for the framework's own events. On one track of the format, events are nested or do not overlap;
//! threads of frameworks follow that, but a framework's "thread" need not be one.

use protocol::ProfileEvent;

/// Profilers round times to microseconds, so an event may seem to end this much after the one around it.
const ROUNDING_NS: u64 = 2_000;

/// One track.
pub(super) struct Lane<'a> {
    pub(super) name: String,
    /// Each with its begin and end, in the order of their begins.
    pub(super) events: Vec<(&'a ProfileEvent, (u64, u64))>,
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
pub(super) fn lanes(events: &[ProfileEvent]) -> Vec<Lane<'_>> {
    let mut sorted: Vec<&ProfileEvent> = events.iter().collect();
    sorted.sort_by_key(|event| (event.start_ns, std::cmp::Reverse(event.duration_ns)));
    let mut lanes: Vec<(&str, Vec<Lane<'_>>)> = Vec::new();
    for event in sorted {
        let at = lanes.iter().position(|(thread, _)| *thread == event.thread).unwrap_or_else(|| {
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
