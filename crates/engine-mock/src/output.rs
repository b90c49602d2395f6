//! Faults of the protocol: output that a broken worker might send instead of events, or between them.

use std::io::{self, Write};

use serde_json::Value;

use crate::hostile;
use crate::script::Fault;

/// Wraps a worker's output to apply the faults of its job.
pub fn through(job: &str, output: Box<dyn Write>) -> Box<dyn Write> {
    let job = serde_json::from_str::<Value>(job).unwrap_or_default();
    let option = |name: &str| job.pointer("/settings/options")?.get(name)?.as_str();
    let changes = Changes {
        fault: option("fault").and_then(|name| name.parse().ok()),
        leave_out: option("leave_out").map(str::to_owned),
        say: option("say").map(readings).unwrap_or_default(),
        cases: job.pointer("/task/work/cases").cloned().unwrap_or_default(),
    };
    if changes.is_none() { output } else { Box::new(Changed { changes, output, lines: 0 }) }
}

/// The changes to a worker's events.
struct Changes {
    /// Happens at the second event or, if it concerns a certain one, with that.
    fault: Option<Fault>,
    /// An event that is not sent.
    leave_out: Option<String>,
    /// Readings that replace the true ones: JSON pointers that begin with the event, and the values.
    say: Vec<(String, Value)>,
    /// Those of the job, with the tokens that are fed.
    cases: Value,
}

impl Changes {
    fn is_none(&self) -> bool {
        self.fault.is_none() && self.leave_out.is_none() && self.say.is_empty()
    }
}

/// `usage/peak_bytes=0;started/runtime_ns=1`, as pointers and values. Values that are not JSON are left out.
fn readings(text: &str) -> Vec<(String, Value)> {
    let parts = text.split(';').filter_map(|part| part.split_once('='));
    parts.filter_map(|(place, value)| Some((place.to_owned(), serde_json::from_str(value).ok()?))).collect()
}

struct Changed {
    changes: Changes,
    output: Box<dyn Write>,
    lines: usize,
}

impl Changed {
    /// The event as it is sent; `None` if it is left out.
    fn told(&self, line: &[u8]) -> Option<Vec<u8>> {
        let Changes { leave_out, say, fault, cases } = &self.changes;
        let echoes = *fault == Some(Fault::Echo);
        if leave_out.is_none() && say.is_empty() && !echoes {
            return Some(line.to_vec());
        }
        let mut event: Value = serde_json::from_slice(line).ok()?;
        let kind = event["event"].as_str().unwrap_or_default().to_owned();
        if leave_out.as_deref() == Some(&kind) {
            return None;
        }
        if echoes && kind == "sample" {
            let case = event["case"].as_u64().unwrap_or_default() as usize;
            let output = &mut event["output"];
            let of_steps = output.get("steps").is_some();
            let tokens = if of_steps { &mut output["steps"]["tokens"] } else { &mut output["tokens"] };
            *tokens = cases[case]["trace"].clone();
        }
        for (place, value) in say {
            let Some(pointer) = place.strip_prefix(&kind).filter(|rest| rest.starts_with('/')) else {
                continue;
            };
            if let Some(reading) = event.pointer_mut(pointer) {
                reading.clone_from(value);
            }
        }
        Some(format!("{event}\n").into_bytes())
    }
}

impl Write for Changed {
    /// The worker writes one event, and with it one line, at a time.
    fn write(&mut self, line: &[u8]) -> io::Result<usize> {
        self.lines += 1;
        let is_of = |kind: &str| line.starts_with(format!("{{\"event\":\"{kind}\"").as_bytes());
        match self.changes.fault {
            Some(Fault::Version) if self.lines == 1 => {
                let text = String::from_utf8_lossy(line).replacen("\"protocol\":", "\"protocol\":9", 1);
                self.output.write_all(text.as_bytes())?;
                return Ok(line.len());
            }
            Some(Fault::Twice) if is_of("sample") => self.output.write_all(line)?,
            Some(fault @ (Fault::ParityPipe | Fault::ParityLink | Fault::ParityHuge)) if is_of("parity") => {
                hostile::replace_parity_file(fault, line)?;
            }
            Some(Fault::Garbage) if self.lines == 3 => {
                self.output.write_all(b"{\"event\": \"load\xff\n")?;
            }
            Some(Fault::Flood) if self.lines == 3 => loop {
                self.output.write_all(&[b'x'; 4096])?;
            },
            Some(fault @ (Fault::Orphan | Fault::Detach | Fault::Vanish | Fault::Leave))
                if self.lines == 3 =>
            {
                if fault != Fault::Leave {
                    hostile::leave_child(fault)?;
                }
                if matches!(fault, Fault::Orphan | Fault::Leave) {
                    self.output.flush()?;
                    std::process::exit(0);
                }
            }
            _ => {}
        }
        if let Some(told) = self.told(line) {
            self.output.write_all(&told)?;
        }
        Ok(line.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        self.output.flush()
    }
}
