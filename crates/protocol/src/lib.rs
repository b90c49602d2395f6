//! The messages between the driver and a worker: one [`Job`] in, for a measurement [`Turn`]s after it, and
//! [`Event`]s out, as JSON, a line each.
//!
//! `docs/reference/protocol.md` describes it for people; these are its types. Field names are the wire
//! format. Times are integer nanoseconds, sizes are bytes; an absent reading is `null`, never 0. The worker
//! reports facts and the driver judges, so nothing here is a verdict.

mod event;
pub mod finite;
mod job;
mod memory;
mod precision;
mod trace;
pub mod untrusted;
mod work;

pub use event::*;
pub use job::*;
pub use memory::*;
pub use precision::{Element, Precision};
pub use trace::*;
pub use work::*;

/// Version of this protocol. Driver and worker of different versions refuse each other.
pub const VERSION: u32 = 13;

/// Longest line that a worker may send, in bytes: many times the samples of a long measurement.
pub const MAX_LINE: u64 = 64 << 20;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_event_is_one_line_that_names_its_kind() {
        let event = Event::Failed(Failed { kind: FailureKind::Unsupported, reason: "no\nbf16".into() });
        let line = serde_json::to_string(&event).unwrap();
        assert_eq!(line, r#"{"event":"failed","kind":"unsupported","reason":"no bf16"}"#);
        assert_eq!(serde_json::from_str::<Event>(&line).unwrap(), event);
        assert_eq!(serde_json::to_string(&Event::Done).unwrap(), r#"{"event":"done"}"#);
    }

    #[test]
    fn a_turn_is_one_line() {
        for (text, turn) in [
            (r#"{"turn":"request","case":1}"#, Turn::request(1)),
            (r#"{"turn":"prepare","case":1}"#, Turn::Prepare { case: 1 }),
            (r#"{"turn":"finish"}"#, Turn::Finish(Finish::default())),
        ] {
            assert_eq!(serde_json::from_str::<Turn>(text).unwrap(), turn);
        }
    }

    #[test]
    fn fields_of_a_newer_version_are_passed_over() {
        let line = r#"{"event":"scored","file":"x","novelty":1}"#;
        assert_eq!(serde_json::from_str::<Event>(line).unwrap(), Event::Scored(Scored { file: "x".into() }));
    }

    /// The example for people must agree with the types: it is parsed completely.
    #[test]
    fn the_example_of_a_run_is_this_protocol() {
        let read = |name: &str| {
            let examples = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/examples");
            std::fs::read_to_string(examples.join(name)).unwrap()
        };
        let asked = read("job.jsonl");
        let mut asked = asked.lines();
        let job: Job = serde_json::from_str(asked.next().unwrap()).unwrap();
        assert_eq!(job.protocol, VERSION);
        let turns: Vec<Turn> = asked.map(|line| serde_json::from_str(line).unwrap()).collect();
        assert!(
            matches!(
                turns.as_slice(),
                [
                    Turn::Prepare { case: 0 },
                    Turn::Request { case: 0, .. },
                    Turn::Logits { case: 0, .. },
                    Turn::Finish(_)
                ]
            ),
            "{turns:?}"
        );
        let answered = read("events.jsonl");
        let events: Vec<Event> = answered.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
        assert!(matches!(events.first(), Some(Event::Hello(hello)) if hello.protocol == VERSION));
        assert_eq!(events.last(), Some(&Event::Done));
        assert_eq!(events.len(), 11, "one of each event of a measuring run");
    }
}
