//! How a server is asked, and where the ids of its tokens are. The first of these that gives ids is used:
//!
//! 1. `/v1/completions` with `return_token_ids` (vLLM, SGLang): `choices[0].token_ids`, or `tokens`;
//! 2. `/completion` with `return_tokens` (llama.cpp's own): `tokens`;
//! 3. `/v1/completions` with `logprobs` and `return_tokens_as_token_ids` (older vLLM): `token_id:N` in the place of texts;
//! 4. `/v1/completions` without ids: each event with a text is a token, which nothing names.

use serde_json::{Value, json};
use worker::engine::{EngineError, UNNAMED_TOKENS};

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

/// How a server is asked.
#[derive(Debug)]
pub(crate) struct Way {
    pub(crate) ids: Ids,
    model: Option<String>,
    software: Option<String>,
}

/// Tokens of the request that finds the way.
const TRIED: usize = 2;

impl Way {
    /// Asks a server for a few tokens in each way, until one gives their ids.
    pub(crate) fn found(client: &Client, vocabulary: usize) -> Result<Way, EngineError> {
        let models = client.get("/v1/models")?;
        let model = models.json.pointer("/data/0/id").and_then(Value::as_str).map(str::to_owned);
        let model = model.filter(|_| models.status == 200);
        let way = |ids| Way { ids, model: model.clone(), software: models.software.clone() };
        let prompt: Vec<u32> = (1..=4).map(|token| token % vocabulary as u32).collect();
        let mut reason = None;
        for ids in [Ids::Completions, Ids::LlamaCpp, Ids::LogProbabilities, Ids::None] {
            let way = way(ids);
            match way.tried(client, &prompt) {
                Ok(TRIED) => return Ok(way),
                Ok(_) => {}
                // The first way is the interface's own: what a server says of it says most.
                Err(error) => reason = reason.or(Some(error)),
            }
        }
        Err(reason.unwrap_or_else(|| {
            EngineError::Unsupported("the server does not continue token ids one by one".into())
        }))
    }

    /// Number of tokens that a request in this way gives.
    fn tried(&self, client: &Client, prompt: &[u32]) -> Result<usize, EngineError> {
        let mut stream = client.stream(self.path(), &self.body(prompt, TRIED))?;
        let mut count = 0;
        while let Some(event) = stream.event().map_err(EngineError::Framework)? {
            count += self.tokens(&event)?.len();
        }
        Ok(count)
    }

    pub(crate) fn path(&self) -> &'static str {
        if self.ids == Ids::LlamaCpp { "/completion" } else { "/v1/completions" }
    }

    /// A request for so many of the most likely tokens. Fields that a server does not know it ignores.
    pub(crate) fn body(&self, prompt: &[u32], tokens: usize) -> Value {
        let mut body = json!({"prompt": prompt, "temperature": 0, "ignore_eos": true, "stream": true});
        let mut set = |name: &str, value: Value| body[name] = value;
        if self.ids == Ids::LlamaCpp {
            set("n_predict", json!(tokens));
            set("return_tokens", json!(true));
            set("cache_prompt", json!(false));
            return body;
        }
        set("max_tokens", json!(tokens));
        set("stream_options", json!({"include_usage": true}));
        if let Some(model) = &self.model {
            set("model", json!(model));
        }
        match self.ids {
            Ids::Completions => set("return_token_ids", json!(true)),
            Ids::LogProbabilities => {
                set("logprobs", json!(1));
                set("return_tokens_as_token_ids", json!(true));
            }
            Ids::LlamaCpp | Ids::None => {}
        }
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
            let id = token.as_u64().or_else(|| token.as_str()?.strip_prefix("token_id:")?.parse().ok());
            id.and_then(|id| u32::try_from(id).ok())
                .ok_or_else(|| EngineError::Framework("the server sent a token that has no id".into()))
        };
        found.and_then(Value::as_array).into_iter().flatten().map(id).collect()
    }

    /// What is in effect, a phrase each.
    pub(crate) fn words(&self) -> Vec<String> {
        let ids = match self.ids {
            Ids::Completions => "token ids by return_token_ids",
            Ids::LlamaCpp => "token ids by return_tokens",
            Ids::LogProbabilities => "token ids with log-probabilities",
            Ids::None => UNNAMED_TOKENS,
        };
        let mut words = vec![format!("{}, streamed", self.path()), ids.to_owned()];
        words.extend(self.model.as_ref().map(|model| format!("model {model}")));
        words.extend(self.software.as_ref().map(|software| format!("server {software}")));
        words
    }
}

/// What a server says of a request.
#[derive(Debug, Default)]
pub(crate) struct Said {
    pub(crate) made: Option<usize>,
    pub(crate) prompt: Option<usize>,
    pub(crate) cached: Option<usize>,
}

impl Said {
    pub(crate) fn add(&mut self, event: &Value) {
        let number = |places: [&str; 2]| {
            let found = places.into_iter().find_map(|place| event.pointer(place)?.as_u64());
            found.map(|number| number as usize)
        };
        self.made = number(["/usage/completion_tokens", "/tokens_predicted"]).or(self.made);
        self.prompt = number(["/usage/prompt_tokens", "/tokens_evaluated"]).or(self.prompt);
        self.cached =
            number(["/usage/prompt_tokens_details/cached_tokens", "/timings/cache_n"]).or(self.cached);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ids_are_read_where_each_server_has_them() {
        let way = |ids| Way { ids, model: None, software: None };
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
