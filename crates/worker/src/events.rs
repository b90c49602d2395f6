//! Messages to the driver: JSON, a line each.

use std::io::Write;

use protocol::Event;
use serde_json::to_string;

use crate::error::ServeError;

pub(crate) fn to_line(value: &impl serde::Serialize) -> String {
    let mut line = to_string(value).expect("protocol types have string keys and no failing serialiser");
    line.push('\n');
    line
}

/// Where events go: one line each, flushed.
pub(crate) struct Events<'a>(pub(crate) &'a mut dyn Write);

impl Events<'_> {
    pub(crate) fn send(&mut self, event: Event) -> Result<(), ServeError> {
        self.0.write_all(to_line(&event).as_bytes()).and_then(|()| self.0.flush()).map_err(ServeError::Pipe)
    }
}
