//! A rule that a worker breaks, and what to do instead.

use std::fmt;
use std::path::Path;
use std::time::Duration;

use facts::impossible::{self, Impossible};
use serde_json::{Map, Value};

/// A sentence on one line of a worker's answer, or on one field of it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Problem {
    /// The line on stdout, from 1; `None` for a problem of no line.
    pub line: Option<usize>,
    /// The event on that line.
    pub event: Option<String>,
    /// The field, as in `iterations[0].cases[0].marks_ns`.
    pub field: Option<String>,
    /// The expectation, the finding, and the remedy.
    pub text: String,
}

impl Problem {
    pub(crate) fn new(text: impl Into<String>) -> Problem {
        Problem { line: None, event: None, field: None, text: text.into() }
    }

    /// With a field.
    pub(crate) fn at(field: &str, text: impl Into<String>) -> Problem {
        Problem { field: Some(field.to_owned()), ..Problem::new(text) }
    }

    /// The event's readings that the driver accepts from no worker.
    pub(crate) fn of_readings(event: &Map<String, Value>) -> Vec<Problem> {
        let event = serde_json::from_value(event.clone().into());
        event.map_or_else(
            |_| Vec::new(),
            |event| impossible::readings(&event).into_iter().map(Problem::impossible).collect(),
        )
    }

    fn impossible(reading: Impossible) -> Problem {
        let Impossible { field, value, possible } = reading;
        let (unit, remedy) = if field.ends_with("_ns") {
            let clock =
                "read a monotonic clock in nanoseconds before and after (Python: time.monotonic_ns())";
            (" ns", clock.to_owned())
        } else if field.ends_with("bytes") {
            (" bytes", format!("send {possible}, or null where the system does not report"))
        } else {
            ("", format!("send {possible}"))
        };
        Problem::at(&field, format!("{value}{unit} is impossible; {remedy}"))
    }

    /// With a line, and the event on it.
    pub(crate) fn on(self, line: usize, event: Option<&str>) -> Problem {
        Problem { line: Some(line), event: event.map(str::to_owned), ..self }
    }

    /// A key that is the same for the same mistake in another line, another element of a list, or with
    /// another value.
    pub(crate) fn mistake(&self) -> String {
        let rule = self.text.split(", found ").next().unwrap_or_default();
        let text = format!(
            "{} {} {rule}",
            self.event.as_deref().unwrap_or_default(),
            self.field.as_deref().unwrap_or_default()
        );
        text.split(|c: char| c.is_ascii_digit()).filter(|part| !part.is_empty()).collect::<Vec<_>>().join("#")
    }
}

impl fmt::Display for Problem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // Both may quote the worker.
        let (text, field) = (untrusted::line(&self.text), self.field.as_deref().map(untrusted::line));
        match (self.line, field) {
            (Some(line), Some(field)) => write!(f, "line {line}, `{field}`: {text}"),
            (Some(line), None) => write!(f, "line {line}: {text}"),
            (None, Some(field)) => write!(f, "`{field}`: {text}"),
            (None, None) => f.write_str(&text),
        }
    }
}

/// A program that the system does not start.
pub(crate) fn cannot_start(path: &Path, error: &std::io::Error) -> Problem {
    let path = path.display();
    let remedy = match error.kind() {
        std::io::ErrorKind::PermissionDenied => format!("; make it executable: chmod +x {path}"),
        std::io::ErrorKind::NotFound => {
            "; a script's first line must name a program that is there, as in #!/usr/bin/env python3"
                .to_owned()
        }
        _ if error.raw_os_error() == Some(8) => {
            "; a script's first line must name its language, as in #!/usr/bin/env python3".to_owned()
        }
        _ => String::new(),
    };
    Problem::new(format!("cannot start {path}: {error}{remedy}"))
}

/// Two programs read the clock one after the other.
pub(crate) const SLACK: Duration = Duration::from_millis(1);

pub(crate) fn wrong(is_wrong: bool, field: &str, text: impl Into<String>) -> Option<Problem> {
    is_wrong.then(|| Problem::at(field, text))
}

/// A duration in nanoseconds that must not exceed the time that the driver measured.
pub(crate) fn time(field: &str, ns: u64, at_most: Duration) -> Option<Problem> {
    let text = format!(
        "{:.1} ms is impossible: the driver saw {:.1} ms pass in all; send nanoseconds of a monotonic clock, without \
         the time spent waiting",
        ns as f64 / 1e6,
        at_most.as_secs_f64() * 1e3
    );
    wrong(Duration::from_nanos(ns) > at_most + SLACK, field, text)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_mistake_is_the_same_in_another_line_and_with_another_value() {
        let problem = |field: &str, found: &str, line| {
            Problem::at(field, format!("expected a list, found {found}; send [1]")).on(line, Some("sample"))
        };
        let first = problem("marks_ns[0]", "the number 0.5", 6);
        assert_eq!(first.mistake(), problem("marks_ns[12]", "the number 6e-6", 7).mistake());
        assert_ne!(first.mistake(), problem("tokens[0]", "the number 0.5", 6).mistake());
        assert_ne!(first.mistake(), Problem { event: Some("warmup".into()), ..first.clone() }.mistake());
    }
}
