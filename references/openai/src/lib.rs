//! A server with OpenAI's interface as a worker (docs/how-to/servers.md): a request is what a client sees, from the first
//! byte that it sends to the bytes of the last token.
//!
//! A server chooses its own tokens and shows no logits. This engine gives logits that are 1 for the token that came and 0
//! for all others, so that the worker's choice is the server's. It refuses to be fed any other token.

mod http;
mod read;
mod started;

use std::collections::VecDeque;

use http::{Client, Stream};
use read::{Ids, Way};
use started::Started;
use worker::engine::{
    Bundle, Decode, EngineError, InEffect, InferenceEngine, KvCachePolicy, Runtime, Settings, Want,
    check_append, check_begin,
};

/// What [`InEffect`] says of everything that a server does not show.
const HIDDEN: &str = "not shown";

/// Tokens that a prompt may have in common with earlier ones by chance.
const BY_CHANCE: usize = 4;

/// A server, and the request under way.
#[derive(Debug)]
pub struct Server {
    client: Client,
    /// The server, if this started it.
    _started: Option<Started>,
    way: Way,
    config: bundle::ModelConfig,
    capacity: usize,
    request: Option<Request>,
    /// The prompts so far, of which a server may have kept something.
    earlier: Vec<Vec<u32>>,
    /// 1 for the last token, 0 for all others.
    logits: Vec<f32>,
    last: usize,
}

/// A request whose answer is being read.
#[derive(Debug)]
struct Request {
    stream: Stream,
    /// Tokens that arrived together, and that were not asked for yet.
    waiting: VecDeque<u32>,
    asked: usize,
    arrived: usize,
    prompt: usize,
    /// Tokens at the beginning of the prompt that an earlier prompt had, too.
    shared: usize,
}

fn failed(text: impl Into<String>) -> EngineError {
    EngineError::Framework(text.into())
}

impl InferenceEngine for Server {
    const FRAMEWORK: &'static str = "openai";
    // It would go on computing.
    const PAUSES: bool = false;

    fn runtime() -> Result<Runtime, EngineError> {
        Ok(Runtime {
            binding: concat!("reference-openai ", env!("CARGO_PKG_VERSION")).into(),
            library: "a server, by HTTP".into(),
            library_path: None,
            cpu_capability: None,
        })
    }

    fn load(bundle: &Bundle, settings: &Settings) -> Result<Server, EngineError> {
        let options = ["url", "command"].map(|name| settings.options.get(name));
        let config = bundle.config().clone();
        if config.encoder.is_some() || config.graph.is_some() || config.audio.is_some() || !config.causal {
            let text = "a server continues texts here: it is asked for no vectors, recordings or ONNX files";
            return Err(EngineError::Unsupported(text.into()));
        }
        let (client, started) = match options {
            [Some(url), _] => (Client::new(url)?, None),
            [None, Some(command)] => {
                let started = Started::new(command, bundle.directory())?;
                let client = Client::new(&started.url())?;
                started.wait(&client)?;
                (client, Some(started))
            }
            [None, None] => {
                let text = "a server is named by its URL: --frameworks http://127.0.0.1:8080";
                return Err(EngineError::Input(text.into()));
            }
        };
        let way = Way::found(&client, config.vocab_size)?;
        let logits = vec![0.0; config.vocab_size];
        Ok(Server {
            client,
            _started: started,
            way,
            config,
            capacity: 0,
            request: None,
            earlier: Vec::new(),
            logits,
            last: 0,
        })
    }

    fn in_effect(&self) -> InEffect {
        InEffect {
            precision: HIDDEN.into(),
            activations: HIDDEN.into(),
            kv_cache_precision: HIDDEN.into(),
            kv_cache: KvCachePolicy::None,
            device: HIDDEN.into(),
            threads: 1,
            jit: HIDDEN.into(),
            optimised: None,
            weight_storage: HIDDEN.into(),
            kernels: self.way.words().into_iter().collect(),
            shard_bytes: None,
            hybrid: None,
            semi_public: Default::default(),
            changed_defaults: Default::default(),
            artefact: None,
        }
    }

    fn decode(&mut self) -> Result<&mut dyn Decode, EngineError> {
        Ok(self)
    }
}

impl Decode for Server {
    fn begin(&mut self, batch: usize, capacity: usize) -> Result<(), EngineError> {
        check_begin(&self.config, batch, capacity)?;
        if batch != 1 {
            let text = "a server is asked for one text at a time: leave --batch and --mixed out";
            return Err(EngineError::Unsupported(text.into()));
        }
        if let Some(request) = self.request.take() {
            request.end(&self.way)?;
        }
        self.capacity = capacity;
        Ok(())
    }

    fn append(&mut self, tokens: &[u32], want: Want) -> Result<&[f32], EngineError> {
        let unsupported = |text: &str| Err(EngineError::Unsupported(text.into()));
        if want == Want::All {
            return unsupported("a server shows no logits of a prompt");
        }
        match &self.request {
            None => self.send(tokens)?,
            Some(request) if tokens != [self.last as u32] => {
                return match request.arrived {
                    1 if tokens.len() > 1 => unsupported(
                        "a server reads a prompt at once: leave --context and --prefill-chunk out",
                    ),
                    _ => unsupported("a server chooses its own tokens: it is compared with --decode greedy"),
                };
            }
            Some(_) => {}
        }
        let token = self.next()?;
        self.logits[self.last] = 0.0;
        self.last = token as usize;
        self.logits[self.last] = 1.0;
        Ok(&self.logits)
    }
}

impl Server {
    /// Sends a prompt, for as many new tokens as there is room for behind it.
    fn send(&mut self, prompt: &[u32]) -> Result<(), EngineError> {
        check_append(&self.config, prompt, 1, 0, self.capacity)?;
        let asked = self.capacity - prompt.len();
        let stream = self.client.stream(self.way.path(), &self.way.body(prompt, asked))?;
        let common = |other: &Vec<u32>| other.iter().zip(prompt).take_while(|(a, b)| a == b).count();
        let shared = self.earlier.iter().map(common).max().unwrap_or(0);
        self.earlier.push(prompt.to_vec());
        let (waiting, prompt) = (VecDeque::new(), prompt.len());
        self.request = Some(Request { stream, waiting, asked, arrived: 0, prompt, shared });
        Ok(())
    }

    /// The next token, as soon as it has arrived.
    fn next(&mut self) -> Result<u32, EngineError> {
        let request =
            self.request.as_mut().ok_or_else(|| EngineError::Input("append before begin".into()))?;
        while request.waiting.is_empty() {
            let (arrived, asked) = (request.arrived, request.asked);
            let event = request.stream.event().map_err(|error| {
                failed(format!("{error}, after {arrived} of the {asked} tokens asked for"))
            })?;
            let Some(event) = event else {
                return Err(failed(format!("the server gave {arrived} of the {asked} tokens asked for")));
            };
            let ids = self.way.tokens(&event)?;
            request.arrived += ids.len();
            request.waiting.extend(ids);
        }
        let token = request.waiting.pop_front().unwrap_or(0);
        match self.way.ids {
            Ids::None => Ok(0),
            _ if (token as usize) < self.config.vocab_size => Ok(token),
            _ => {
                let vocabulary = self.config.vocab_size;
                Err(failed(format!(
                    "the server gave the token {token}, and the model has {vocabulary}: it has another model"
                )))
            }
        }
    }
}

impl Request {
    /// Reads the rest of an answer and checks what the server says of it. After a request's last mark, so that it is in no
    /// figure but that of a following first token, where the bytes are there already.
    fn end(mut self, way: &Way) -> Result<(), EngineError> {
        let mut said = read::Said::default();
        while let Some(event) = self.stream.event().map_err(failed)? {
            self.arrived += way.tokens(&event)?.len();
            said.add(&event);
        }
        let (arrived, asked) = (self.arrived, self.asked);
        if arrived != asked {
            return Err(failed(format!("the server gave {arrived} tokens, and {asked} were asked for")));
        }
        if let Some(made) = said.made.filter(|made| *made != arrived) {
            return Err(failed(format!("the server says that it made {made} tokens, and it sent {arrived}")));
        }
        if let Some(read) = said.prompt.filter(|read| *read != self.prompt) {
            let prompt = self.prompt;
            return Err(failed(format!(
                "the server says that the prompt has {read} tokens, and it was sent {prompt}"
            )));
        }
        match said.cached.filter(|cached| *cached > self.shared + BY_CHANCE) {
            Some(cached) => Err(failed(format!(
                "the server says that it had {cached} of the prompt's {} tokens in a cache, and the prompt was new",
                self.prompt
            ))),
            None => Ok(()),
        }
    }
}
