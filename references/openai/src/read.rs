//! How a server is asked, and where the ids of its tokens are. The first of these that gives ids is used:
//!
//! 1. `/v1/completions` with `return_token_ids` (vLLM, SGLang): `choices[0].token_ids`, or `tokens`;
//! 2. `/completion` with `return_tokens` (llama.cpp's own): `tokens`;
//! 3. `/v1/completions` with `logprobs` and `return_tokens_as_token_ids` (older vLLM): `token_id:N` in the place of texts;
//! 4. `/v1/completions` without ids: each event with a text is a token, which nothing names.

use serde_json::{Value, json};
use worker::engine::EngineError;

use crate::http::Client;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Ids {
    /// With each event of OpenAI's interface.
    Completions,
    /// With each event of llama.cpp's own.
    LlamaCpp,
    /// As texts of log-probabilities.
    LogProbabilities,
    None,
}

/// What a server is asked for and answers as, whatever it does.
#[derive(Debug, Clone)]
pub(crate) struct Model {
    id: Option<String>,
    software: Option<String>,
}

impl Model {
    pub(crate) fn ask(client: &Client) -> Result<Model, EngineError> {
        let models = client.get("/v1/models")?;
        let id = models.json.pointer("/data/0/id").and_then(Value::as_str).map(str::to_owned);
        Ok(Model { id: id.filter(|_| models.status == 200), software: models.software })
    }

    pub(crate) fn name_in(&self, body: &mut Value) {
        if let Some(id) = &self.id {
            body["model"] = json!(id);
        }
    }

    pub(crate) fn words(&self) -> impl Iterator<Item = String> {
        let model = self.id.iter().map(|id| format!("model {id}"));
        model.chain(self.software.iter().map(|software| format!("server {software}")))
    }
}

/// How a server is asked.
#[derive(Debug)]
pub(crate) struct Way {
    pub(crate) ids: Ids,
    /// Whether it shows log-probabilities of tokens with ids.
    pub(crate) has_log_probabilities: bool,
    /// Tokens that it keeps its model from choosing, so that a text goes on.
    pub(crate) barred: Vec<u32>,
    /// Whether it may answer from a cache of prompts.
    caches: bool,
    model: Model,
}

/// Tokens of the request that finds the way.
const TRIED: usize = 2;

/// Tokens whose log-probabilities are asked for: the most that OpenAI's interface gives.
const MOST_LIKELY: usize = 5;

impl Way {
    /// Asks a server for a few tokens in each way, until one gives their ids; then for log-probabilities.
    pub(crate) fn found(client: &Client, vocabulary: usize, caches: bool) -> Result<Way, EngineError> {
        let model = Model::ask(client)?;
        let prompt: Vec<u32> = (1..=4).map(|token| token % vocabulary as u32).collect();
        let mut reason = None;
        for ids in [Ids::Completions, Ids::LlamaCpp, Ids::LogProbabilities, Ids::None] {
            let barred = Vec::new();
            let mut way = Way { ids, has_log_probabilities: false, barred, caches, model: model.clone() };
            match way.tried(client, &prompt) {
                Ok(TRIED) => {
                    way.has_log_probabilities =
                        ids != Ids::None && way.log_probabilities(client, &prompt).is_ok();
                    return Ok(way);
                }
                Ok(_) => {}
                // The first way is the interface's own: what a server says of it says most.
                Err(error) => reason = reason.or(Some(error)),
            }
        }
        let reason =
            reason.map_or_else(|| "it gives them no tokens one by one".into(), |error| error.to_string());
        Err(EngineError::Unsupported(format!("the server does not continue prompts of token ids: {reason}")))
    }

    /// Number of tokens that a request in this way gives.
    fn tried(&mut self, client: &Client, prompt: &[u32]) -> Result<usize, EngineError> {
        let mut stream = client.stream(self.path(), &self.body(prompt, TRIED, None))?;
        let mut count = 0;
        while let Some(event) = stream.event().map_err(EngineError::Framework)? {
            count += self.tokens(&event)?.len();
            // llama.cpp's: an end of a text has no bias, which is minus infinity.
            let biases = event.pointer("/generation_settings/logit_bias").and_then(Value::as_array);
            let barred = biases.into_iter().flatten().filter(|bias| bias["bias"].is_null());
            self.barred.extend(barred.filter_map(|bias| u32::try_from(bias["token"].as_u64()?).ok()));
        }
        Ok(count)
    }

    pub(crate) fn path(&self) -> &'static str {
        if self.ids == Ids::LlamaCpp { "/completion" } else { "/v1/completions" }
    }

    /// A request for so many of the most likely tokens, with the log-probabilities of so many. Fields that a server does not
    /// know it ignores.
    pub(crate) fn body(&self, prompt: &[u32], tokens: usize, shown: Option<usize>) -> Value {
        let mut body = json!({"prompt": prompt, "temperature": 0, "ignore_eos": true, "stream": true});
        let mut set = |name: &str, value: Value| body[name] = value;
        if self.ids == Ids::LlamaCpp {
            set("n_predict", json!(tokens));
            set("return_tokens", json!(true));
            // Log-probabilities are asked for behind one token after another.
            set("cache_prompt", json!(self.caches || shown.is_some()));
            if let Some(count) = shown {
                set("n_probs", json!(count));
            }
            return body;
        }
        set("max_tokens", json!(tokens));
        set("stream_options", json!({"include_usage": true}));
        if self.ids == Ids::Completions {
            set("return_token_ids", json!(true));
        }
        if let Some(count) = shown.or((self.ids == Ids::LogProbabilities).then_some(1)) {
            set("logprobs", json!(count));
            set("return_tokens_as_token_ids", json!(true));
        }
        self.model.name_in(&mut body);
        body
    }

    /// The ids of the tokens of an event.
    pub(crate) fn tokens(&self, event: &Value) -> Result<Vec<u32>, EngineError> {
        let choice = event.pointer("/choices/0");
        let found = match self.ids {
            Ids::Completions => choice.and_then(|choice| choice.get("token_ids").or(choice.get("tokens"))),
            Ids::LlamaCpp => event.get("tokens").filter(|_| event.get("stop") != Some(&json!(true))),
            Ids::LogProbabilities => choice.and_then(|choice| choice.pointer("/logprobs/tokens")),
            Ids::None => {
                let text = choice.and_then(|choice| choice.get("text")?.as_str());
                return Ok(text.filter(|text| !text.is_empty()).map(|_| 0).into_iter().collect());
            }
        };
        let id = |token: &Value| {
            let id = token.as_u64().or_else(|| as_id(token.as_str()?).map(u64::from));
            id.and_then(|id| u32::try_from(id).ok())
                .ok_or_else(|| EngineError::Framework("the server sent a token that has no id".into()))
        };
        found.and_then(Value::as_array).into_iter().flatten().map(id).collect()
    }

    /// The most likely tokens behind a sequence, with the logarithms of their probabilities.
    pub(crate) fn log_probabilities(
        &self,
        client: &Client,
        sequence: &[u32],
    ) -> Result<Vec<(u32, f32)>, EngineError> {
        let mut stream = client.stream(self.path(), &self.body(sequence, 1, Some(MOST_LIKELY)))?;
        let mut found = Vec::new();
        while let Some(event) = stream.event().map_err(EngineError::Framework)? {
            if found.is_empty() {
                found = shown(&event);
            }
        }
        match found.is_empty() {
            true => {
                Err(EngineError::Framework("the server gave no log-probabilities of tokens with ids".into()))
            }
            false => Ok(found),
        }
    }

    /// What is in effect, a phrase each.
    pub(crate) fn words(&self) -> Vec<String> {
        let ids = match self.ids {
            Ids::Completions => "token ids by return_token_ids",
            Ids::LlamaCpp => "token ids by return_tokens",
            Ids::LogProbabilities => "token ids with log-probabilities",
            Ids::None => "tokens are counted, not named",
        };
        let mut words = vec![format!("{}, streamed", self.path()), ids.to_owned()];
        words.push(
            if self.has_log_probabilities { "log-probabilities" } else { "no log-probabilities" }.into(),
        );
        if !self.barred.is_empty() {
            words.push(format!("the ends of texts are not chosen: {:?}", self.barred));
        }
        words.extend(self.model.words());
        words
    }
}

/// The id in a text that a server gives for a token: `token_id:5`.
fn as_id(text: &str) -> Option<u32> {
    text.strip_prefix("token_id:")?.parse().ok()
}

/// Tokens and log-probabilities of an event's first token: an object by token in OpenAI's interface, a list in llama.cpp's.
fn shown(event: &Value) -> Vec<(u32, f32)> {
    let number = |value: &Value| value.as_f64().map(|number| number as f32);
    if let Some(Value::Object(by_token)) = event.pointer("/choices/0/logprobs/top_logprobs/0") {
        return by_token.iter().filter_map(|(token, value)| Some((as_id(token)?, number(value)?))).collect();
    }
    let of_list =
        |one: &Value| Some((u32::try_from(one.get("id")?.as_u64()?).ok()?, number(one.get("logprob")?)?));
    let list = event.pointer("/completion_probabilities/0/top_logprobs").and_then(Value::as_array);
    list.into_iter().flatten().filter_map(of_list).collect()
}

/// What a server says of a request.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Said {
    pub(crate) made: Option<usize>,
    pub(crate) prompt: Option<usize>,
    pub(crate) cached: Option<usize>,
    pub(crate) drafted: Option<usize>,
    pub(crate) accepted: Option<usize>,
}

impl Said {
    pub(crate) fn add(&mut self, event: &Value) {
        let number = |places: &[&str]| {
            let found = places.iter().find_map(|place| event.pointer(place)?.as_u64());
            found.map(|number| number as usize)
        };
        self.made = number(&["/usage/completion_tokens", "/tokens_predicted"]).or(self.made);
        self.prompt = number(&["/usage/prompt_tokens", "/tokens_evaluated"]).or(self.prompt);
        self.cached =
            number(&["/usage/prompt_tokens_details/cached_tokens", "/timings/cache_n"]).or(self.cached);
        self.drafted = number(&["/timings/draft_n"]).or(self.drafted);
        self.accepted = number(&["/timings/draft_n_accepted"]).or(self.accepted);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ids_are_read_where_each_server_has_them() {
        let model = Model { id: None, software: None };
        let way = |ids| {
            let model = model.clone();
            Way { ids, has_log_probabilities: false, barred: Vec::new(), caches: false, model }
        };
        for (ids, event, expected) in [
            (Ids::Completions, json!({"choices": [{"text": "a", "token_ids": [5, 6]}]}), vec![5, 6]),
            (Ids::Completions, json!({"choices": [{"text": "a"}]}), vec![]),
            (Ids::Completions, json!({"choices": [], "usage": {}}), vec![]),
            (Ids::LlamaCpp, json!({"content": "a", "tokens": [7], "stop": false}), vec![7]),
            (Ids::LlamaCpp, json!({"content": "", "tokens": [7], "stop": true}), vec![]),
            (Ids::LogProbabilities, json!({"choices": [{"logprobs": {"tokens": ["token_id:9"]}}]}), vec![9]),
            (Ids::None, json!({"choices": [{"text": "a"}]}), vec![0]),
            (Ids::None, json!({"choices": [{"text": "", "finish_reason": "length"}]}), vec![]),
        ] {
            assert_eq!(way(ids).tokens(&event).unwrap(), expected, "{ids:?} {event}");
        }
        let texts = json!({"choices": [{"logprobs": {"tokens": ["a"]}}]});
        assert!(way(Ids::LogProbabilities).tokens(&texts).is_err(), "a text is no id");
    }
}
