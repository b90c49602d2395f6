//! Faults of the protocol: what a broken worker might send in place of events, or beside them.

use std::io::{self, Write};

use crate::script::Fault;

/// Wraps a worker's output so that the fault its job asks for happens at the second event.
pub fn through(job: &str, output: Box<dyn Write>) -> Box<dyn Write> {
    let fault = serde_json::from_str::<serde_json::Value>(job).ok().and_then(|job| {
        let name = job.pointer("/settings/options/fault")?.as_str()?;
        name.parse().ok()
    });
    match fault {
        Some(fault @ (Fault::Garbage | Fault::Flood | Fault::Leave | Fault::Version | Fault::Twice)) => {
            Box::new(Faulty { fault, output, lines: 0 })
        }
        _ => output,
    }
}

struct Faulty {
    fault: Fault,
    output: Box<dyn Write>,
    lines: usize,
}

impl Write for Faulty {
    /// The worker writes one event, and with it one line, at a time.
    fn write(&mut self, line: &[u8]) -> io::Result<usize> {
        self.lines += 1;
        if self.fault == Fault::Version && self.lines == 1 {
            let text = String::from_utf8_lossy(line).replacen("\"protocol\":", "\"protocol\":9", 1);
            self.output.write_all(text.as_bytes())?;
            return Ok(line.len());
        }
        if self.fault == Fault::Twice && line.starts_with(br#"{"event":"sample""#) {
            self.output.write_all(line)?;
        }
        if self.lines == 3 {
            match self.fault {
                Fault::Garbage => self.output.write_all(b"{\"event\": \"load\xff\n")?,
                Fault::Flood => loop {
                    self.output.write_all(&[b'x'; 4096])?;
                },
                Fault::Leave => {
                    self.output.flush()?;
                    std::process::exit(0);
                }
                _ => {}
            }
        }
        self.output.write_all(line)?;
        Ok(line.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        self.output.flush()
    }
}
