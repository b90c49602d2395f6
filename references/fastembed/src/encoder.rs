//! Texts to vectors and scores, by fastembed's two structs for that.

use bundle::{Head, ModelConfig, Pooling, Precision, Scored};
use fastembed::{
    AutoDevicePolicy, InitOptionsUserDefined, OutputKey, RerankInitOptionsUserDefined, TextEmbedding,
    TextRerank, UserDefinedEmbeddingModel, UserDefinedRerankingModel,
};
use onnx::Storage;
use reference_portable::Form;
use reference_portable::encoder::{LAST_HIDDEN_STATE, build_usual, takes_several_types};
use worker::engine::{Bundle, Encode, EncodeTask, EngineError, Settings, Texts};

use crate::tokenizer::{files, words};

/// Where ONNX Runtime looks for the file of a graph's weights.
const FOLDER: &str = "session.model_external_initializers_file_folder_path";

pub(crate) struct Encoder {
    config: ModelConfig,
    body: Body,
    /// The numbers of the last task.
    numbers: Vec<f32>,
    computed: usize,
}

enum Body {
    Embedding(Box<TextEmbedding>, Pooling),
    Rerank(Box<TextRerank>),
}

impl Encoder {
    pub(crate) fn load(bundle: &Bundle, settings: &Settings) -> Result<Encoder, EngineError> {
        let config = bundle.config().clone();
        let head = config.scoring();
        check_head(head)?;
        let weights = bundle.weights(Precision::F32)?;
        let (folder, file) = engine_ort::location(weights.path())?;
        let graph = build_usual(bundle, Form::Contributed, Storage::File(file))?.model;
        std::hint::black_box(weights.touch());
        let (environment, tokenizer) = (engine_ort::environment()?, files(&config));
        let body = if head.is_some() {
            let options = RerankInitOptionsUserDefined::new()
                .with_environment(environment)
                .with_auto_device(AutoDevicePolicy::PreferCPU)
                .with_intra_threads(settings.threads)
                .with_max_length(config.max_positions)
                .with_session_config(FOLDER, folder);
            let model = UserDefinedRerankingModel::new(graph, tokenizer);
            Body::Rerank(Box::new(TextRerank::try_new_from_user_defined(model, options).map_err(framework)?))
        } else {
            let options = InitOptionsUserDefined::new()
                .with_environment(environment)
                .with_auto_device(AutoDevicePolicy::PreferCPU)
                .with_intra_threads(settings.threads)
                .with_max_length(config.max_positions)
                .with_session_config(FOLDER, folder);
            // What the model's description does not say is the mean, as most models have it.
            let pooling = bundle.pooled()?.map_or(Pooling::Mean, |pooled| pooled.pooling);
            let mut model = UserDefinedEmbeddingModel::new(graph, tokenizer);
            model.pooling = of_fastembed(pooling).ok();
            let model = TextEmbedding::try_new_from_user_defined(model, options).map_err(framework)?;
            Body::Embedding(Box::new(model), pooling)
        };
        Ok(Encoder { config, body, numbers: Vec::new(), computed: 0 })
    }

    /// The struct that encodes.
    pub(crate) fn name(&self) -> &'static str {
        match self.body {
            Body::Embedding(..) => "TextEmbedding",
            Body::Rerank(_) => "TextRerank",
        }
    }
}

/// Refuses a model whose head fastembed does not have.
fn check_head(head: Option<&Head>) -> Result<(), EngineError> {
    let reason = match head {
        None | Some(Head { of: Scored::Texts(_), labels: 1, .. }) => return Ok(()),
        Some(Head { of: Scored::Tokens, .. }) => "fastembed has no head that scores tokens".to_owned(),
        Some(Head { labels, .. }) => {
            format!("fastembed's reranker gives one score of a text, and the model's head gives {labels}")
        }
    };
    Err(EngineError::Unsupported(reason))
}

fn of_fastembed(pooling: Pooling) -> Result<fastembed::Pooling, EngineError> {
    let other = match pooling {
        Pooling::Cls => return Ok(fastembed::Pooling::Cls),
        Pooling::Mean => return Ok(fastembed::Pooling::Mean),
        Pooling::Max => "the largest of each component",
        Pooling::Last => "the last token's vector",
        Pooling::Each => "ways that need the vectors of all tokens",
    };
    Err(EngineError::Unsupported(format!(
        "fastembed pools by the first token's vector or by the mean, and not by {other}"
    )))
}

fn framework(error: fastembed::Error) -> EngineError {
    EngineError::Framework(error.to_string())
}

impl Encode for Encoder {
    fn encode(&mut self, texts: Texts<'_>, task: EncodeTask) -> Result<&[f32], EngineError> {
        texts.check(&self.config, task)?;
        let takes_types = takes_several_types(&self.config);
        (self.numbers, self.computed) = match (&mut self.body, task) {
            (Body::Embedding(model, own), EncodeTask::Embed { pooling, normalise }) => {
                embed(model, texts, (pooling, normalise, pooling == *own))?
            }
            (Body::Rerank(model), EncodeTask::Score) => rerank(model, texts, takes_types)?,
            (Body::Rerank(_), EncodeTask::Embed { .. }) => {
                let reason = "fastembed's reranker gives scores, and no vectors of texts";
                return Err(EngineError::Unsupported(reason.into()));
            }
            (Body::Embedding(..), EncodeTask::Score) => {
                return Err(EngineError::Input("the model has no head that gives scores".into()));
            }
        };
        Ok(&self.numbers)
    }

    fn config(&self) -> &ModelConfig {
        &self.config
    }

    fn positions(&self) -> usize {
        self.computed
    }
}

/// The vectors of texts, all in one batch, and the positions that were computed.
fn embed(
    model: &mut TextEmbedding,
    texts: Texts<'_>,
    (pooling, normalise, is_own): (Pooling, bool, bool),
) -> Result<(Vec<f32>, usize), EngineError> {
    let pooling = of_fastembed(pooling)?;
    if texts.types.iter().any(|&kind| kind != 0) {
        let reason = "fastembed embeds single texts, whose tokens are all of type 0";
        return Err(EngineError::Unsupported(reason.into()));
    }
    let each = each(texts).map(|(tokens, _)| words(tokens)).collect::<Vec<_>>();
    let count = each.len();
    let vectors = if normalise && is_own {
        model.embed(&each, Some(count)).map_err(framework)?.concat()
    } else {
        // `embed` normalises always, and pools in one way alone.
        let output = model.transform(&each, Some(count)).map_err(framework)?;
        let pooled = output.export_with_transformer(|batches| {
            let mut vectors = Vec::new();
            for batch in batches {
                let key = &OutputKey::ByName(LAST_HIDDEN_STATE);
                vectors.extend(batch.select_and_pool_output(&key, Some(pooling.clone()))?);
            }
            Ok(vectors)
        });
        let mut vectors: Vec<f32> = pooled.map_err(framework)?;
        if normalise {
            let width = (vectors.len() / count).max(1);
            vectors.chunks_exact_mut(width).for_each(divide_by_length);
        }
        vectors
    };
    Ok((vectors, count * texts.longest()))
}

fn divide_by_length(vector: &mut [f32]) {
    // The floor is that of PyTorch's `normalize`.
    let length = vector.iter().map(|number| number * number).sum::<f32>().sqrt().max(1e-12);
    vector.iter_mut().for_each(|number| *number /= length);
}

/// Texts that have their first part in common, as fastembed's reranker takes them.
#[derive(Default)]
struct Query<'a> {
    first: &'a [u32],
    /// Second parts, and their places among all texts.
    documents: Vec<String>,
    places: Vec<usize>,
    longest: usize,
}

/// The score of each text, and the positions that were computed. Texts with the same first part are one batch.
fn rerank(
    model: &mut TextRerank,
    texts: Texts<'_>,
    takes_types: bool,
) -> Result<(Vec<f32>, usize), EngineError> {
    let mut queries: Vec<Query<'_>> = Vec::new();
    for (place, (tokens, types)) in each(texts).enumerate() {
        // Where a model knows no types, it does not matter where a text is divided.
        let first = if takes_types { first_part(tokens, types)? } else { 0 };
        let (first, second) = tokens.split_at(first);
        let known = queries.iter().position(|query| query.first == first);
        let known = known.unwrap_or_else(|| {
            queries.push(Query { first, ..Query::default() });
            queries.len() - 1
        });
        let query = &mut queries[known];
        query.documents.push(words(second));
        query.places.push(place);
        query.longest = query.longest.max(tokens.len());
    }
    let (mut scores, mut computed) = (vec![f32::NAN; texts.lengths.len()], 0);
    for query in queries {
        let (first, count) = (words(query.first), query.documents.len());
        for result in model.rerank(first, query.documents, false, Some(count)).map_err(framework)? {
            // Results are in the order of their scores.
            scores[query.places[result.index]] = result.score;
        }
        computed += count * query.longest;
    }
    Ok((scores, computed))
}

/// Number of tokens before those of type 1.
fn first_part(tokens: &[u32], types: &[u32]) -> Result<usize, EngineError> {
    let first = types.iter().position(|&kind| kind != 0).unwrap_or(tokens.len());
    if types.iter().skip(first).all(|&kind| kind == 1) {
        return Ok(first);
    }
    let reason =
        "fastembed gives tokens of a query type 0 and those of a document type 1, in this order alone";
    Err(EngineError::Unsupported(reason.into()))
}

/// Tokens and types of each text; no types where `texts` has none.
fn each<'a>(texts: Texts<'a>) -> impl Iterator<Item = (&'a [u32], &'a [u32])> {
    let (mut tokens, mut types) = (texts.tokens, texts.types);
    texts.lengths.iter().map(move |&length| {
        let (of_text, kinds);
        (of_text, tokens) = tokens.split_at(length);
        (kinds, types) = types.split_at(length.min(types.len()));
        (of_text, kinds)
    })
}
