//! Vectors of texts, from `/v1/embeddings`.

use bundle::{ModelConfig, Pooling};
use serde::Deserialize;
use serde_json::json;
use worker::engine::{Encode, EncodeTask, EngineError, Texts};

use crate::failed;
use crate::http::Client;
use crate::read::Model;

const PATH: &str = "/v1/embeddings";

#[derive(Debug)]
pub(crate) struct Embeddings {
    client: Client,
    model: Model,
    config: ModelConfig,
    numbers: Vec<f32>,
    positions: usize,
}

/// A vector of an answer.
#[derive(Deserialize)]
struct Vector {
    index: usize,
    embedding: Vec<f32>,
}

#[derive(Deserialize)]
struct Usage {
    prompt_tokens: Option<usize>,
}

#[derive(Deserialize)]
struct Answer {
    data: Vec<Vector>,
    usage: Option<Usage>,
}

impl Embeddings {
    /// Asks the server for the vector of a short text, so that one that has none is known before anything is timed.
    pub(crate) fn new(client: Client, config: ModelConfig) -> Result<Embeddings, EngineError> {
        let model = Model::ask(&client)?;
        let mut embeddings = Embeddings { client, model, config, numbers: Vec::new(), positions: 0 };
        let text: Vec<u32> = (1..=4).map(|token| token % embeddings.config.vocab_size as u32).collect();
        embeddings.ask(Texts { tokens: &text, types: &[], lengths: &[text.len()] })?;
        Ok(embeddings)
    }

    pub(crate) fn words(&self) -> Vec<String> {
        let mut words = vec![PATH.to_owned()];
        words.extend(self.model.words());
        words
    }

    /// One request for the vectors of all texts.
    fn ask(&mut self, texts: Texts<'_>) -> Result<(), EngineError> {
        let mut rest = texts.tokens;
        let mut input = Vec::with_capacity(texts.lengths.len());
        for &length in texts.lengths {
            let (text, behind) = rest.split_at(length);
            input.push(text);
            rest = behind;
        }
        let mut body = json!({"input": input, "encoding_format": "float"});
        self.model.name_in(&mut body);
        let answer: Answer = self.client.post(PATH, &body)?;
        let (asked, size) = (texts.lengths.len(), self.config.hidden_size);
        self.positions = texts.tokens.len();
        if let Some(read) = answer.usage.and_then(|usage| usage.prompt_tokens)
            && read != self.positions
        {
            return Err(failed(format!(
                "the server says that the texts have {read} tokens, and it was sent {}",
                self.positions
            )));
        }
        self.numbers.clear();
        self.numbers.resize(asked * size, f32::NAN);
        let mut is_missing = vec![true; asked];
        for Vector { index, embedding } in &answer.data {
            let Some(is_missing) = is_missing.get_mut(*index).filter(|_| embedding.len() == size) else {
                return Err(failed(format!(
                    "the server gave a vector of {} numbers for text {index}, and the model's have {size}: it has \
                     another model",
                    embedding.len()
                )));
            };
            *is_missing = false;
            self.numbers[index * size..][..size].copy_from_slice(embedding);
        }
        match is_missing.iter().filter(|is_missing| **is_missing).count() {
            0 => Ok(()),
            missing => Err(failed(format!("the server gave no vectors of {missing} of the {asked} texts"))),
        }
    }
}

impl Encode for Embeddings {
    fn encode(&mut self, texts: Texts<'_>, task: EncodeTask) -> Result<&[f32], EngineError> {
        texts.check(&self.config, task)?;
        let unsupported = |text: &str| Err(EngineError::Unsupported(text.into()));
        match task {
            EncodeTask::Score => {
                return unsupported("a server is asked for vectors of texts here, and for no scores");
            }
            EncodeTask::Embed { pooling: Pooling::Each, .. } => {
                return unsupported("a server gives one vector for each text, and none for tokens");
            }
            // How it pools and whether it normalises is its own: the vectors are compared.
            EncodeTask::Embed { .. } => {}
        }
        self.ask(texts)?;
        Ok(&self.numbers)
    }

    fn config(&self) -> &ModelConfig {
        &self.config
    }

    /// Those that it was sent: padding is the server's own.
    fn positions(&self) -> usize {
        self.positions
    }
}
