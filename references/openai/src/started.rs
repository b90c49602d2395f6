//! A server that this worker starts, each process one of its own: as with every other column, no single process decides.

use std::net::TcpListener;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::{Arc, Mutex, Weak};
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

/// The one of this process: callers share it, with a connection each.
static SHARED: Mutex<Weak<Started>> = Mutex::new(Weak::new());

impl Started {
    /// The server of this process, started by the first that asks, and a client of its own. What it loads is loaded then.
    pub(crate) fn shared(command: &str, bundle: &Path) -> Result<(Arc<Started>, Client), EngineError> {
        let mut shared = SHARED.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
        if let Some(started) = shared.upgrade() {
            let client = Client::new(&started.url())?;
            return Ok((started, client));
        }
        let started = Arc::new(Started::new(command, bundle)?);
        let client = Client::new(&started.url())?;
        started.wait(&client)?;
        *shared = Arc::downgrade(&started);
        Ok((started, client))
    }

    /// Starts `command`, words between spaces in which `{port}` is a free port and `{bundle}` the model's directory. What it
    /// prints is shown where a worker's own messages are.
    fn new(command: &str, bundle: &Path) -> Result<Started, EngineError> {
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

    fn url(&self) -> String {
        format!("http://127.0.0.1:{}", self.port)
    }

    /// Waits until it answers; what it loads is loaded then.
    #[expect(clippy::disallowed_methods, reason = "a limit of a wait, and no figure")]
    fn wait(&self, client: &Client) -> Result<(), EngineError> {
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

    #[test]
    fn callers_share_a_server_until_the_last_has_gone() {
        let ours = Arc::new(Started::new("sleep 60", Path::new(".")).unwrap());
        *SHARED.lock().unwrap() = Arc::downgrade(&ours);
        let (another, _) = Started::shared("no-such-server", Path::new(".")).unwrap();
        assert_eq!(another.port, ours.port);
        drop((ours, another));
        assert!(Started::shared("no-such-server", Path::new(".")).is_err(), "it is started anew");
    }
}
