//! A server with OpenAI's interface as a worker (docs/how-to/servers.md): a request is what a client sees, from the first
//! byte that it sends to the last one of its answer.

mod completions;
mod embeddings;
mod http;
mod read;
mod started;

use std::sync::Arc;

use completions::Completions;
use embeddings::Embeddings;
use http::Client;
use started::Started;
use worker::engine::{
    Bundle, Decode, Encode, EngineError, InEffect, InferenceEngine, KvCachePolicy, Runtime, Served, Settings,
    Shows,
};

/// What [`InEffect`] says of everything that a server does not show.
const HIDDEN: &str = "not shown";

/// A server that continues texts, or that encodes them.
#[derive(Debug)]
pub struct Server {
    of: Of,
    /// The server, if this process started it.
    _started: Option<Arc<Started>>,
}

#[derive(Debug)]
enum Of {
    Completions(Box<Completions>),
    Embeddings(Embeddings),
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
        let option = |name: &str| settings.options.get(name).map(String::as_str);
        let config = bundle.config().clone();
        if config.graph.is_some() || config.audio.is_some() || (!config.causal && config.encoder.is_none()) {
            let text = "a server continues texts or encodes them here: it is asked for no recordings, masks or ONNX files";
            return Err(EngineError::Unsupported(text.into()));
        }
        let (client, started) = match [option("url"), option("command")] {
            [Some(url), _] => (Client::new(url)?, None),
            [None, Some(command)] => {
                let (started, client) = Started::shared(command, bundle.directory())?;
                (client, Some(started))
            }
            [None, None] => {
                let text = "a server is named by its URL: --frameworks http://127.0.0.1:8080";
                return Err(EngineError::Input(text.into()));
            }
        };
        let of = match config.encoder.is_some() {
            true => Of::Embeddings(Embeddings::new(client, config)?),
            false => {
                let common = option("shared_prefix").and_then(|tokens| tokens.parse().ok()).unwrap_or(0);
                Of::Completions(Box::new(Completions::new(client, config, common)?))
            }
        };
        Ok(Server { of, _started: started })
    }

    fn in_effect(&self) -> InEffect {
        let kernels = match &self.of {
            Of::Completions(of) => of.words(),
            Of::Embeddings(of) => of.words(),
        };
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
            kernels: kernels.into_iter().collect(),
            shard_bytes: None,
            hybrid: None,
            semi_public: Default::default(),
            changed_defaults: Default::default(),
            artefact: None,
        }
    }

    fn shows(&self) -> Shows {
        match &self.of {
            Of::Completions(of) => of.shows(),
            Of::Embeddings(_) => Shows::All,
        }
    }

    fn barred(&self) -> Vec<u32> {
        match &self.of {
            Of::Completions(of) => of.barred(),
            Of::Embeddings(_) => Vec::new(),
        }
    }

    fn served(&mut self) -> Result<Option<Served>, EngineError> {
        match &mut self.of {
            Of::Completions(of) => of.served().map(Some),
            Of::Embeddings(_) => Ok(None),
        }
    }

    fn decode(&mut self) -> Result<&mut dyn Decode, EngineError> {
        match &mut self.of {
            Of::Completions(of) => Ok(&mut **of),
            Of::Embeddings(_) => Err(EngineError::Unsupported("this model continues no tokens".into())),
        }
    }

    fn encode(&mut self) -> Result<&mut dyn Encode, EngineError> {
        match &mut self.of {
            Of::Embeddings(of) => Ok(of),
            Of::Completions(_) => Err(EngineError::Unsupported("this model encodes no texts".into())),
        }
    }
}
