//! One connection to a server, kept from request to request, and answers that are read event by event.

use std::fmt;
use std::io::{BufRead, BufReader};
use std::time::Duration;

use serde::de::DeserializeOwned;
use serde_json::Value;
use ureq::{Agent, Body, BodyReader};
use worker::engine::EngineError;

/// The variable with the path of a file that holds the server's key. No other place has it.
const KEY_FILE: &str = "PHOTOFINISH_KEY_FILE";

/// The longest wait for the next bytes.
const SILENCE: Duration = Duration::from_secs(120);

/// Most bytes of an answer that is no stream, and of an event.
const MOST: u64 = 4 << 20;

/// Most bytes of an answer with vectors.
const MOST_NUMBERS: u64 = 1 << 30;

/// The client of one server.
pub(crate) struct Client {
    agent: Agent,
    url: String,
    key: Option<String>,
}

/// The answer to a request for a stream.
pub(crate) struct Stream {
    lines: BufReader<BodyReader<'static>>,
    line: String,
}

/// The answer to a plain request.
pub(crate) struct Answer {
    pub(crate) status: u16,
    /// What the server calls itself.
    pub(crate) software: Option<String>,
    pub(crate) json: Value,
}

impl fmt::Debug for Client {
    // Without the key.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Client").field("url", &self.url).finish_non_exhaustive()
    }
}

impl fmt::Debug for Stream {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Stream").finish_non_exhaustive()
    }
}

impl Client {
    pub(crate) fn new(url: &str) -> Result<Client, EngineError> {
        let file = std::env::var(KEY_FILE).ok().filter(|file| !file.is_empty());
        let read = |file: String| {
            let text = std::fs::read_to_string(&file).map_err(|error| {
                EngineError::Input(format!("cannot read {file}, which {KEY_FILE} names: {error}"))
            });
            text.map(|text| text.trim().to_owned())
        };
        let key = file.map(read).transpose()?;
        let config = Agent::config_builder()
            .http_status_as_error(false)
            .proxy(None)
            .max_redirects(0)
            .max_idle_age(Duration::from_secs(3600))
            .timeout_connect(Some(Duration::from_secs(10)))
            .timeout_per_read(Some(SILENCE))
            .build();
        Ok(Client { agent: config.new_agent(), url: url.trim_end_matches('/').to_owned(), key })
    }

    /// An answer that is no stream.
    pub(crate) fn get(&self, path: &str) -> Result<Answer, EngineError> {
        let mut request = self.agent.get(format!("{}{path}", self.url));
        if let Some(key) = &self.key {
            request = request.header("Authorization", format!("Bearer {key}"));
        }
        let mut answer = request.call().map_err(|error| self.unreachable(&error))?;
        let software = answer.headers().get("server").and_then(|name| name.to_str().ok()).map(str::to_owned);
        let status = answer.status().as_u16();
        let json = serde_json::from_str(&text(answer.body_mut())).unwrap_or(Value::Null);
        Ok(Answer { status, software, json })
    }

    /// The answer to a request that is no stream.
    pub(crate) fn post<T: DeserializeOwned>(&self, path: &str, body: &Value) -> Result<T, EngineError> {
        let mut body = self.sent(path, body)?;
        let text = body.with_config().limit(MOST_NUMBERS).read_to_string();
        let text = text.map_err(|error| EngineError::Framework(format!("the answer broke off: {error}")))?;
        serde_json::from_str(&text).map_err(|error| {
            EngineError::Framework(format!("the server's answer to {path} has another form: {error}"))
        })
    }

    /// Sends a request, and begins to read its answer.
    pub(crate) fn stream(&self, path: &str, body: &Value) -> Result<Stream, EngineError> {
        let body = self.sent(path, body)?;
        Ok(Stream { lines: BufReader::new(body.into_reader()), line: String::new() })
    }

    fn sent(&self, path: &str, body: &Value) -> Result<Body, EngineError> {
        let text_of_body = body.to_string();
        let send = || {
            let mut request =
                self.agent.post(format!("{}{path}", self.url)).header("Content-Type", "application/json");
            if let Some(key) = &self.key {
                request = request.header("Authorization", format!("Bearer {key}"));
            }
            request.send(&text_of_body)
        };
        let answer = match send() {
            // Servers close a connection that was idle for some seconds, as it is while others have their turns.
            Err(ureq::Error::Io(error)) if is_closed(&error) => send(),
            other => other,
        };
        let mut answer = answer.map_err(|error| self.unreachable(&error))?;
        if answer.status().as_u16() != 200 {
            let (status, said) = (answer.status().as_u16(), text(answer.body_mut()));
            return Err(EngineError::Framework(format!(
                "the server answers {status} to {path}: {}",
                one_line(&said)
            )));
        }
        Ok(answer.into_body())
    }

    fn unreachable(&self, error: &ureq::Error) -> EngineError {
        EngineError::Framework(format!("no answer from {}: {error}", self.url))
    }
}

impl Stream {
    /// The next event; `None` at the end of the stream.
    ///
    /// # Errors
    /// The connection's error, or the server's own.
    pub(crate) fn event(&mut self) -> Result<Option<Value>, String> {
        loop {
            self.line.clear();
            let read = std::io::Read::take(&mut self.lines, MOST).read_line(&mut self.line);
            match read.map_err(|error| format!("the answer broke off: {error}"))? {
                0 => return Ok(None),
                _ => {
                    let Some(data) = self.line.strip_prefix("data:").map(str::trim) else { continue };
                    if data == "[DONE]" {
                        continue;
                    }
                    let event: Value = serde_json::from_str(data)
                        .map_err(|error| format!("the server sent an event that is no JSON ({error})"))?;
                    if let Some(error) = event.get("error") {
                        return Err(format!("the server reports {}", one_line(&error.to_string())));
                    }
                    return Ok(Some(event));
                }
            }
        }
    }
}

fn is_closed(error: &std::io::Error) -> bool {
    use std::io::ErrorKind::{BrokenPipe, ConnectionAborted, ConnectionReset, UnexpectedEof};
    [BrokenPipe, ConnectionAborted, ConnectionReset, UnexpectedEof].contains(&error.kind())
}

fn text(body: &mut Body) -> String {
    body.with_config().limit(MOST).read_to_string().unwrap_or_default()
}

/// The beginning of what a server said.
fn one_line(text: &str) -> String {
    text.split_whitespace().collect::<Vec<_>>().join(" ").chars().take(200).collect()
}
