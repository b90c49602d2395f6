//! Texts to vectors or scores: each request encodes one batch.

use bundle::ModelConfig;
use protocol::{Call, EncodeWork, Input, Output, ParityTask, Pooling, Score, Scored, TextBatch, Vectors};

use super::served::{Callers, Requests};
use super::steps::Steps;
use super::{Model, Part, Request, Serving, Workload};
use crate::ServeError;
use crate::clock::Pace;
use crate::engine::{EncodeTask, InferenceEngine, Result, Texts};
use crate::logits::Tensors;

/// Encodes batches of texts.
pub(crate) struct Encoding<'a, E> {
    work: &'a EncodeWork,
    callers: Callers<'a, E>,
    pace: Pace,
    cases: Vec<Flat>,
    /// The vectors of the request under way, and the numbers of each text's.
    vectors: Vec<f32>,
    widths: Vec<usize>,
    steps: Steps,
    /// Numbers of a token's vector.
    hidden: usize,
    positions: usize,
}

/// A batch in the form that engines accept.
#[derive(Debug, Default)]
struct Flat {
    tokens: Vec<u32>,
    types: Vec<u32>,
    lengths: Vec<usize>,
}

impl<'a, E: InferenceEngine> Encoding<'a, E> {
    pub(crate) fn new(
        work: &'a EncodeWork,
        (model, pace): (Model<'_>, Pace),
        serving: Serving<'a, E>,
    ) -> Result<Encoding<'a, E>, ServeError> {
        let cases = work.cases.iter().map(Flat::new).collect::<Result<_, _>>()?;
        let (vectors, widths, callers) = (Vec::new(), Vec::new(), Callers::new(serving));
        let steps = Steps::read(&work.steps, model.directory)?;
        Ok(Encoding { work, callers, pace, cases, vectors, widths, steps, hidden: 0, positions: 0 })
    }
}

/// Texts that callers have encoded, a request for each.
struct SingleTexts {
    texts: Vec<Flat>,
    task: EncodeTask,
    pace: Pace,
}

/// The vector of a text, and its share of the positions that were computed.
struct Encoded {
    vector: Vec<f32>,
    positions: usize,
}

impl SingleTexts {
    fn new(batch: &Flat, tokens: &[u32], (task, pace): (EncodeTask, Pace)) -> SingleTexts {
        let mut rest = (tokens, batch.types.as_slice());
        let text = |&length: &usize| {
            let ((tokens, behind), own) = (rest.0.split_at(length), rest.1.len().min(length));
            let (types, types_behind) = rest.1.split_at(own);
            rest = (behind, types_behind);
            Flat { tokens: tokens.to_vec(), types: types.to_vec(), lengths: vec![length] }
        };
        SingleTexts { texts: batch.lengths.iter().map(text).collect(), task, pace }
    }
}

impl<E: InferenceEngine> Requests<E> for SingleTexts {
    type Answer = Encoded;

    fn count(&self) -> usize {
        self.texts.len()
    }

    fn compute(&self, engine: &mut E, requests: &[usize]) -> Result<Vec<Encoded>> {
        let mut batch = Flat::default();
        for Flat { tokens, types, lengths } in requests.iter().map(|&text| &self.texts[text]) {
            batch.tokens.extend(tokens);
            batch.types.extend(types);
            batch.lengths.extend(lengths);
        }
        let Flat { tokens, types, lengths } = &batch;
        let encoder = engine.encode()?;
        let widths: Vec<usize> =
            lengths.iter().map(|&tokens| encoder.config().width(self.task, tokens)).collect();
        let mut rest = self.pace.keep(|| encoder.encode(Texts { tokens, types, lengths }, self.task))?;
        let cut = |width: usize| {
            let of_text;
            (of_text, rest) = rest.split_at(width.min(rest.len()));
            of_text.to_vec()
        };
        let vectors: Vec<Vec<f32>> = widths.into_iter().map(cut).collect();
        let (positions, texts) = (encoder.positions(), vectors.len().max(1));
        let share = |place: usize| positions / texts + usize::from(place < positions % texts);
        let answers = vectors.into_iter().enumerate();
        Ok(answers.map(|(place, vector)| Encoded { vector, positions: share(place) }).collect())
    }
}

impl Flat {
    fn new(batch: &TextBatch) -> Result<Flat, ServeError> {
        let lengths: Vec<usize> = batch.texts.iter().map(Vec::len).collect();
        let typed: Vec<usize> = batch.types.iter().map(Vec::len).collect();
        if !typed.is_empty() && typed != lengths {
            return Err(ServeError::Job("each token of a text has a type, or none has".into()));
        }
        Ok(Flat { tokens: batch.texts.concat(), types: batch.types.concat(), lengths })
    }
}

impl<E: InferenceEngine> Workload<E> for Encoding<'_, E> {
    fn cases(&self) -> usize {
        self.cases.len()
    }

    fn marks(&self) -> usize {
        1
    }

    fn check(&self, case: usize, input: &Input, _: Part) -> Result<(), ServeError> {
        let is_fit =
            |texts: &[Vec<u32>]| texts.iter().map(Vec::len).eq(self.cases[case].lengths.iter().copied());
        if matches!(input, Input::Texts(texts) if is_fit(texts)) {
            return Ok(());
        }
        Err(ServeError::Job("the texts of a request are as many and as long as those of its case".into()))
    }

    fn begin(&mut self, engine: &mut E, case: usize, input: Option<Input>) -> Result<Request, ServeError> {
        let given = match input {
            Some(Input::Texts(texts)) => Some(texts.concat()),
            _ => None,
        };
        self.hidden = engine.encode()?.config().hidden_size;
        if let Some(load) = self.callers.load() {
            let is_asked = given.is_some();
            let batch = &self.cases[case];
            let tokens = given.as_ref().unwrap_or(&batch.tokens);
            let texts = SingleTexts::new(batch, tokens, (self.work.task, self.pace));
            let numbers = tokens.iter().map(|&token| u64::from(token));
            let turn = self.callers.turn(engine, (texts, load), (case, is_asked), numbers);
            let (request, answers) = turn?;
            self.positions = answers.iter().map(|answer| answer.positions).sum();
            self.widths = answers.iter().map(|answer| answer.vector.len()).collect();
            self.vectors = answers.into_iter().flat_map(|answer| answer.vector).collect();
            return Ok(request);
        }
        let encoder = engine.encode()?;
        let Flat { tokens, types, lengths } = &self.cases[case];
        let tokens = given.as_ref().unwrap_or(tokens);
        let task = self.work.task;
        self.widths = lengths.iter().map(|&tokens| encoder.config().width(task, tokens)).collect();
        self.vectors.clear();
        let mut request = Request::start(case, Vec::with_capacity(1));
        let vectors = self.pace.keep(|| encoder.encode(Texts { tokens, types, lengths }, task))?;
        request.mark();
        self.vectors.extend_from_slice(vectors);
        self.positions = encoder.positions();
        Ok(request)
    }

    fn advance(&mut self, _: &mut E, _: &mut Request, _: (usize, Option<Input>)) -> Result<(), ServeError> {
        Ok(())
    }

    fn output(&self) -> Output {
        let mut rest = &self.vectors[..];
        let cut = |&width: &usize| {
            let of_text;
            (of_text, rest) = rest.split_at(width.min(rest.len()));
            self.steps.apply(of_text, self.hidden)
        };
        let vectors = self.widths.iter().map(cut).collect();
        Output::Vectors(Vectors { vectors, positions: self.positions })
    }

    fn calls(&self) -> Vec<Call> {
        self.callers.calls()
    }

    fn parity(&mut self, _: &mut E, _: &ParityTask) -> Result<(), ServeError> {
        Err(ServeError::Job("requests that encode texts have no logits".into()))
    }
}

/// Hidden states of texts, one after the other; `None` if the model is no encoder.
pub(crate) fn score_texts<E: InferenceEngine>(
    engine: &mut E,
    task: &Score,
    config: &ModelConfig,
    hidden_states: bool,
) -> Result<Option<Scored>, ServeError> {
    if config.encoder.is_none() {
        return Ok(None);
    }
    if !hidden_states {
        return Err(ServeError::Job(
            "an encoder has no logits, and its hidden states are not asked for".into(),
        ));
    }
    let lengths: Vec<usize> = task.sequences.iter().map(Vec::len).collect();
    let (tokens, types) = (task.sequences.concat(), task.types.concat());
    let encoder = engine.encode()?;
    // Hidden states do not depend on the pooling of the last one.
    let pooled = EncodeTask::Embed { pooling: Pooling::Mean, normalise: false };
    encoder.encode(Texts { tokens: &tokens, types: &types, lengths: &lengths }, pooled)?;
    let mut tensors = Tensors::default();
    for (layer, values) in encoder.hidden_states()?.layers.iter().enumerate() {
        tensors.add(format!("hidden.{layer}"), &[1, tokens.len(), config.hidden_size], values);
    }
    tensors.write(&task.file)?;
    Ok(Some(Scored { file: task.file.as_str().into() }))
}
