//! Texts that a server continues.
//!
//! A server chooses its own tokens. This engine gives logits that are 1 for the token that came and 0 for all others, so that
//! the worker's choice is the server's. It refuses to be fed any other token, except where logits are compared and nothing is
//! timed: there each position is a request for one token and the log-probabilities of the most likely ones.

use std::collections::VecDeque;

use bundle::ModelConfig;
use worker::engine::{Decode, EngineError, Served, Shows, Want, check_append, check_begin};

use crate::failed;
use crate::http::{Client, Stream};
use crate::read::{Ids, Said, Way};

/// Tokens that a prompt may have in common with earlier ones by chance.
const BY_CHANCE: usize = 4;

/// The client of a server, and the request under way.
#[derive(Debug)]
pub(crate) struct Completions {
    client: Client,
    way: Way,
    config: ModelConfig,
    capacity: usize,
    request: Option<Request>,
    /// Tokens at the beginning that all prompts of the comparison have in common.
    common: usize,
    /// The prompts so far, of which a server may have kept something.
    earlier: Vec<Vec<u32>>,
    /// What is said of all requests that have ended.
    served: Served,
    /// The tokens so far, where logits are compared.
    compared: Option<Vec<u32>>,
    /// 1 for the last token, 0 for all others; where logits are compared, log-probabilities, NaN where they are not shown.
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
    /// Tokens at the beginning of the prompt that a server may have in a cache.
    shared: usize,
    said: Said,
}

impl Completions {
    /// Finds the way to ask the server. `common`: tokens at the beginning that all prompts have in common.
    pub(crate) fn new(
        client: Client,
        config: ModelConfig,
        common: usize,
    ) -> Result<Completions, EngineError> {
        let way = Way::found(&client, config.vocab_size, common > 0)?;
        let logits = vec![0.0; config.vocab_size];
        Ok(Completions {
            client,
            way,
            config,
            capacity: 0,
            request: None,
            common,
            earlier: Vec::new(),
            served: Served::default(),
            compared: None,
            logits,
            last: 0,
        })
    }

    pub(crate) fn words(&self) -> Vec<String> {
        self.way.words()
    }

    pub(crate) fn shows(&self) -> Shows {
        match (self.way.ids, self.way.has_log_probabilities) {
            (Ids::None, _) => Shows::Count,
            (_, true) => Shows::LogProbabilities,
            (_, false) => Shows::Choice,
        }
    }

    pub(crate) fn barred(&self) -> Vec<u32> {
        self.way.barred.clone()
    }

    /// What the server said of all requests so far, the last one included.
    pub(crate) fn served(&mut self) -> Result<Served, EngineError> {
        self.end()?;
        Ok(self.served)
    }
}

impl Decode for Completions {
    fn begin(&mut self, batch: usize, capacity: usize) -> Result<(), EngineError> {
        check_begin(&self.config, batch, capacity)?;
        if batch != 1 {
            let text = "a server is asked for one text at a time: leave --batch and --mixed out";
            return Err(EngineError::Unsupported(text.into()));
        }
        self.end()?;
        if self.compared.take().is_some() {
            self.logits.clear();
            self.logits.resize(self.config.vocab_size, 0.0);
        }
        self.capacity = capacity;
        Ok(())
    }

    fn show(&mut self) {
        self.compared = Some(Vec::new());
    }

    fn append(&mut self, tokens: &[u32], want: Want) -> Result<&[f32], EngineError> {
        if self.compared.is_some() {
            return self.log_probabilities(tokens, want);
        }
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

impl Completions {
    /// Sends a prompt, for as many new tokens as there is room for behind it.
    fn send(&mut self, prompt: &[u32]) -> Result<(), EngineError> {
        check_append(&self.config, prompt, 1, 0, self.capacity)?;
        let asked = self.capacity - prompt.len();
        let stream = self.client.stream(self.way.path(), &self.way.body(prompt, asked, None))?;
        let alike = |other: &Vec<u32>| other.iter().zip(prompt).take_while(|(a, b)| a == b).count();
        let shared = self.earlier.iter().map(alike).max().unwrap_or(0).max(self.common);
        self.earlier.push(prompt.to_vec());
        let (waiting, prompt, said) = (VecDeque::new(), prompt.len(), Said::default());
        self.request = Some(Request { stream, waiting, asked, arrived: 0, prompt, shared, said });
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
            // With some servers the last token and what is said of the request come together.
            request.said.add(&event);
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

    /// Ends the request under way, if there is one.
    fn end(&mut self) -> Result<(), EngineError> {
        let Some(request) = self.request.take() else { return Ok(()) };
        let (prompt, made) = (request.prompt as u64, request.asked as u64);
        let said = request.end(&self.way)?;
        let sum = |all: Option<u64>, one: Option<usize>| Some(all.unwrap_or(0) + one? as u64).or(all);
        self.served = Served {
            prompt_tokens: self.served.prompt_tokens + prompt,
            cached_tokens: sum(self.served.cached_tokens, said.cached),
            new_tokens: self.served.new_tokens + made,
            drafted_tokens: sum(self.served.drafted_tokens, said.drafted),
            accepted_tokens: sum(self.served.accepted_tokens, said.accepted),
        };
        Ok(())
    }

    /// Log-probabilities behind each of `tokens`, or behind the last; of a prompt behind the last alone.
    fn log_probabilities(&mut self, tokens: &[u32], want: Want) -> Result<&[f32], EngineError> {
        let mut sequence = self.compared.take().unwrap_or_default();
        check_append(&self.config, tokens, 1, sequence.len(), self.capacity)?;
        let is_prompt = sequence.is_empty();
        let rows = if want == Want::All { tokens.len() } else { 1 };
        self.logits.clear();
        for (place, &token) in tokens.iter().enumerate() {
            sequence.push(token);
            let is_last = place + 1 == tokens.len();
            if want == Want::Last && !is_last {
                continue;
            }
            let start = self.logits.len();
            self.logits.resize(start + self.config.vocab_size, f32::NAN);
            if is_prompt && !is_last {
                continue;
            }
            let shown = self.way.log_probabilities(&self.client, &sequence)?;
            for (token, number) in shown {
                let place = self.logits[start..].get_mut(token as usize);
                *place.ok_or_else(|| {
                    failed(format!("the server shows the token {token}, which the model lacks"))
                })? = number;
            }
        }
        debug_assert_eq!(self.logits.len(), rows * self.config.vocab_size);
        self.compared = Some(sequence);
        Ok(&self.logits)
    }
}

impl Request {
    /// Reads the rest of an answer and checks what the server says of it. After a request's last mark, so that it is in no
    /// figure but that of a following first token, where the bytes are there already.
    fn end(mut self, way: &Way) -> Result<Said, EngineError> {
        let mut said = self.said;
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
            None => Ok(said),
        }
    }
}
