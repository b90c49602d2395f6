//! A small server with OpenAI's interface: an engine behind HTTP, one answer after another. It continues texts, or encodes
//! them if that is what the model does. To try comparisons of servers with, and what finds those that lie:
//!
//!     server BUNDLE PORT [--engine candle|ort] [--threads N] [--lie LIE]...
//!
//! `LIE` is one of `cached` (it says that the prompt was in a cache), `drops` (it gives a token less), `usage` (it says
//! another number of tokens), `skips` (it computes every other token alone), `stalls` and `closes` (in the middle of an
//! answer), `unnamed` (its tokens have no ids), `silent` (it shows no log-
//! probabilities), `slow` (10 % more time).
#![expect(clippy::disallowed_methods, reason = "a server reads arguments, and a lie a clock")]

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::process::ExitCode;
use std::sync::mpsc::{Sender, channel};
use std::time::{Duration, Instant};

use bundle::{ModelConfig, Pooling};
use engine_candle::Candle;
use engine_ort::Ort;
use serde_json::{Map, Value, json};
use worker::engine::{Bundle, EncodeTask, InferenceEngine, Precision, Settings, Texts, Want};

/// Longest prompt and body that are read, in bytes.
const MOST: usize = 16 << 20;

type Result<T> = std::result::Result<T, Box<dyn std::error::Error>>;

struct Server<E> {
    model: E,
    config: ModelConfig,
    lies: Vec<String>,
}

/// A request for an answer.
struct Asked {
    to: TcpStream,
    path: String,
    body: Value,
    /// Whether the connection stays open.
    done: Sender<bool>,
}

fn main() -> ExitCode {
    match serve() {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("{error}");
            ExitCode::FAILURE
        }
    }
}

fn serve() -> Result<()> {
    let mut words = std::env::args_os().skip(1).map(|word| word.to_string_lossy().into_owned());
    let usage = "server BUNDLE PORT [--engine candle|ort] [--threads N] [--lie LIE]...";
    let (directory, port) = (words.next().ok_or(usage)?, words.next().ok_or(usage)?.parse()?);
    let (mut engine, mut threads, mut lies) = ("candle".to_owned(), 1, Vec::new());
    while let Some(word) = words.next() {
        match (word.as_str(), words.next()) {
            ("--engine", Some(name)) => engine = name,
            ("--threads", Some(count)) => threads = count.parse()?,
            ("--lie", Some(lie)) => lies.push(lie),
            _ => return Err(usage.into()),
        }
    }
    match engine.as_str() {
        "candle" => serve_with::<Candle>(&directory, (port, threads), lies),
        "ort" => serve_with::<Ort>(&directory, (port, threads), lies),
        _ => Err(usage.into()),
    }
}

fn serve_with<E: InferenceEngine>(
    directory: &str,
    (port, threads): (u16, usize),
    lies: Vec<String>,
) -> Result<()> {
    let bundle = Bundle::open(directory)?;
    E::runtime()?;
    let model = E::load(&bundle, &Settings::on_cpu(Precision::F32, threads))?;
    let mut server = Server { model, config: bundle.config().clone(), lies };
    let listener = TcpListener::bind(("127.0.0.1", port))?;
    println!("http://{}", listener.local_addr()?);
    std::io::stdout().flush()?;
    // The model stays on this thread; each connection has one that reads its requests.
    let (requests, asked) = channel::<Asked>();
    std::thread::spawn(move || {
        for connection in listener.incoming().flatten() {
            let requests = requests.clone();
            std::thread::spawn(move || {
                if let Err(error) = answer(&requests, connection) {
                    eprintln!("a connection ended: {error}");
                }
            });
        }
    });
    for mut request in asked {
        let Asked { to, path, body, .. } = &mut request;
        let stays_open = match path.as_str() {
            "/v1/embeddings" => server.embed(to, body),
            _ => server.complete(to, body),
        };
        let stays_open = stays_open.unwrap_or_else(|error| {
            let said = json!({"error": {"message": error.to_string()}});
            plain(to, "400 Bad Request", &said).is_ok()
        });
        // A client that has gone is no reason to end.
        let _ = request.done.send(stays_open);
    }
    Ok(())
}

impl<E: InferenceEngine> Server<E> {
    fn lies(&self, how: &str) -> bool {
        self.lies.iter().any(|lie| lie == how)
    }

    /// Streams an answer. Returns whether the connection stays open.
    fn complete(&mut self, to: &mut TcpStream, body: &Value) -> Result<bool> {
        let ids = body["prompt"].as_array().into_iter().flatten();
        let prompt: Vec<u32> = ids.filter_map(|id| u32::try_from(id.as_u64()?).ok()).collect();
        let asked = body["max_tokens"].as_u64().unwrap_or(16) as usize;
        let shown = body["logprobs"].as_u64().unwrap_or(0) as usize;
        self.model.decode()?;
        to.write_all(
            b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nServer: example\r\nTransfer-Encoding: chunked\r\n\r\n",
        )?;
        let end = prompt.len() + asked;
        self.model.decode()?.begin(1, end)?;
        // The requests that find out how to ask are honest.
        let is_long = asked > 2;
        let made = asked - usize::from(is_long && self.lies("drops"));
        let mut feed = prompt.clone();
        let (mut token, mut by_token) = (0, Vec::new());
        for step in 0..made {
            let begun = Instant::now();
            if !(self.lies("skips") && step % 2 == 1) {
                let vocabulary = self.config.vocab_size;
                let logits = self.model.decode()?.append(&feed, Want::Last)?;
                by_token = most_likely(&logits[..vocabulary], shown.max(1));
                token = by_token[0].0;
                feed = vec![token];
            }
            if self.lies("slow") {
                std::thread::sleep(begun.elapsed() / 10);
            }
            let mut choice = json!({"index": 0, "text": format!("t{token}")});
            if !self.lies("unnamed") {
                choice["token_ids"] = json!([token]);
            }
            if shown > 0 && !self.lies("silent") {
                let name = |token: &u32| format!("token_id:{token}");
                let top: Map<String, Value> =
                    by_token.iter().map(|(token, number)| (name(token), json!(number))).collect();
                choice["logprobs"] = json!({"tokens": [name(&token)], "top_logprobs": [top]});
            }
            event(to, &json!({"choices": [choice]}).to_string())?;
            if is_long && step == made / 2 {
                if self.lies("closes") {
                    return Ok(false);
                }
                if self.lies("stalls") {
                    std::thread::sleep(Duration::from_secs(3600));
                }
            }
        }
        let said = made - usize::from(is_long && self.lies("usage"));
        let cached = if self.lies("cached") { prompt.len() } else { 0 };
        let usage = json!({"prompt_tokens": prompt.len(), "completion_tokens": said,
            "prompt_tokens_details": {"cached_tokens": cached}});
        event(to, &json!({"choices": [], "usage": usage}).to_string())?;
        event(to, "[DONE]")?;
        to.write_all(b"0\r\n\r\n")?;
        Ok(true)
    }
}

impl<E: InferenceEngine> Server<E> {
    /// Answers with the vector of each text, pooled by the mean. Returns whether the connection stays open.
    fn embed(&mut self, to: &mut TcpStream, body: &Value) -> Result<bool> {
        let texts = body["input"].as_array().into_iter().flatten();
        let ids = |text: &Value| -> Vec<u32> {
            let ids = text.as_array().into_iter().flatten();
            ids.filter_map(|id| u32::try_from(id.as_u64()?).ok()).collect()
        };
        let texts: Vec<Vec<u32>> = texts.map(ids).collect();
        let (tokens, lengths): (Vec<u32>, Vec<usize>) =
            (texts.concat(), texts.iter().map(Vec::len).collect());
        let given = Texts { tokens: &tokens, types: &[], lengths: &lengths };
        let task = EncodeTask::Embed { pooling: Pooling::Mean, normalise: true };
        let numbers = self.model.encode()?.encode(given, task)?;
        let vectors = numbers.chunks(self.config.hidden_size).enumerate();
        let data: Vec<Value> =
            vectors.map(|(index, vector)| json!({"index": index, "embedding": vector})).collect();
        let said = tokens.len() + usize::from(self.lies("usage"));
        plain(to, "200 OK", &json!({"data": data, "usage": {"prompt_tokens": said}}))?;
        Ok(true)
    }
}

/// Answers the requests of a connection until the client closes it.
fn answer(requests: &Sender<Asked>, mut to: TcpStream) -> Result<()> {
    to.set_nodelay(true)?;
    let mut from = BufReader::new(to.try_clone()?);
    loop {
        let mut line = String::new();
        if from.read_line(&mut line)? == 0 {
            return Ok(());
        }
        let path = line.split(' ').nth(1).unwrap_or_default().to_owned();
        let mut length = 0;
        loop {
            let mut header = String::new();
            from.read_line(&mut header)?;
            let header = header.trim().to_lowercase();
            if header.is_empty() {
                break;
            }
            if let Some(bytes) = header.strip_prefix("content-length:") {
                length = bytes.trim().parse()?;
            }
        }
        if length > MOST {
            return Err("a request is too long".into());
        }
        let mut body = vec![0; length];
        from.read_exact(&mut body)?;
        match path.as_str() {
            "/v1/models" => plain(&mut to, "200 OK", &json!({"data": [{"id": "an example"}]}))?,
            "/v1/completions" | "/v1/embeddings" => {
                let body: Value = serde_json::from_slice(&body)?;
                let (done, is_done) = channel();
                requests.send(Asked { to: to.try_clone()?, path, body, done })?;
                if !is_done.recv()? {
                    return Ok(());
                }
            }
            _ => plain(&mut to, "404 Not Found", &json!({"error": {"message": "there is no such path"}}))?,
        }
    }
}

/// The most likely tokens with the logarithms of their probabilities, the first of the largest first.
fn most_likely(logits: &[f32], count: usize) -> Vec<(u32, f32)> {
    let mut best: Vec<usize> = Vec::new();
    for token in 0..logits.len() {
        let place = best.partition_point(|&other| logits[other] >= logits[token]);
        if place < count {
            best.insert(place, token);
            best.truncate(count);
        }
    }
    // One token alone is asked for without its probability.
    let largest = logits[best[0]];
    let sum = match count {
        1 => 0.0,
        _ => f64::from(largest) + logits.iter().map(|&x| f64::from(x - largest).exp()).sum::<f64>().ln(),
    };
    best.into_iter().map(|token| (token as u32, (f64::from(logits[token]) - sum) as f32)).collect()
}

/// A chunk with one event.
fn event(to: &mut TcpStream, data: &str) -> Result<()> {
    let text = format!("data: {data}\n\n");
    Ok(to.write_all(format!("{:x}\r\n{text}\r\n", text.len()).as_bytes())?)
}

fn plain(to: &mut TcpStream, status: &str, body: &Value) -> Result<()> {
    let body = body.to_string();
    let head = format!("HTTP/1.1 {status}\r\nContent-Type: application/json\r\nServer: example\r\n");
    Ok(to.write_all(format!("{head}Content-Length: {}\r\n\r\n{body}", body.len()).as_bytes())?)
}
