//! A server that this worker starts, each process one of its own: as with every other column, no single process decides.

use std::net::TcpListener;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::Mutex;
use std::time::{Duration, Instant};

use worker::engine::EngineError;

use crate::http::Client;

/// The longest wait for a server's first answer.
const LOADS: Duration = Duration::from_secs(600);

/// Time between two questions whether it answers.
const BETWEEN: Duration = Duration::from_millis(5);

#[derive(Debug)]
pub(crate) struct Started {
    child: Mutex<Child>,
    program: String,
    port: u16,
}

impl Started {
    /// Starts `command`, words between spaces in which `{port}` is a free port and `{bundle}` the model's directory. What it
    /// prints is shown where a worker's own messages are.
    pub(crate) fn new(command: &str, bundle: &Path) -> Result<Started, EngineError> {
        let free = TcpListener::bind("127.0.0.1:0").and_then(|listener| listener.local_addr());
        let port = free.map_err(|error| EngineError::Framework(format!("no free port: {error}")))?.port();
        let bundle = bundle.display().to_string();
        let word = |word: &str| word.replace("{port}", &port.to_string()).replace("{bundle}", &bundle);
        let mut words = command.split_whitespace().map(word);
        let program = words.next().unwrap_or_default();
        // stdout belongs to the protocol.
        let child = Command::new(&program).args(words).stdin(Stdio::null()).stdout(Stdio::null()).spawn();
        let child = child
            .map_err(|error| EngineError::Input(format!("cannot start the server {program}: {error}")))?;
        Ok(Started { child: Mutex::new(child), program, port })
    }

    pub(crate) fn url(&self) -> String {
        format!("http://127.0.0.1:{}", self.port)
    }

    /// Waits until it answers; what it loads is loaded then.
    #[expect(clippy::disallowed_methods, reason = "a limit of a wait, and no figure")]
    pub(crate) fn wait(&self, client: &Client) -> Result<(), EngineError> {
        let begun = Instant::now();
        // While it loads, a server refuses, or answers with another status.
        while !client.get("/v1/models").is_ok_and(|answer| answer.status == 200) {
            let mut child = self.child.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
            let ended = child.try_wait().ok().flatten();
            let why = match ended {
                Some(status) => format!("ended: {status}"),
                None if begun.elapsed() > LOADS => format!("did not answer for {} s", LOADS.as_secs()),
                None => {
                    std::thread::sleep(BETWEEN);
                    continue;
                }
            };
            return Err(EngineError::Framework(format!("the server {} {why}", self.program)));
        }
        Ok(())
    }
}

impl Drop for Started {
    fn drop(&mut self) {
        let child = self.child.get_mut().unwrap_or_else(|poisoned| poisoned.into_inner());
        let _ = child.kill();
        let _ = child.wait();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_server_that_cannot_be_started_or_ends_is_said() {
        let error = Started::new("no-such-server --port {port}", Path::new(".")).unwrap_err().to_string();
        assert!(error.contains("cannot start the server no-such-server"), "{error}");
        let started = Started::new("false", Path::new(".")).unwrap();
        let error = started.wait(&Client::new(&started.url()).unwrap()).unwrap_err().to_string();
        assert!(error.contains("the server false ended: exit status: 1"), "{error}");
    }
}
