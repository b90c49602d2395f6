//! Texts to vectors or scores: each request encodes one batch.

use engine::{EncodeTask, InferenceEngine, Texts};
use protocol::{EncodeWork, Input, Output, ParityTask, Pooling, TextBatch, Vectors};

use super::{Request, Workload};
use crate::error::ServeError;
use crate::pace::Pace;

/// Encodes batches of texts.
pub(crate) struct Encoding<'a> {
    work: &'a EncodeWork,
    pace: Pace,
    cases: Vec<Flat>,
    /// The vectors of the request under way, and the numbers of each text's.
    vectors: Vec<f32>,
    widths: Vec<usize>,
    positions: usize,
}

/// A batch as engines take it.
struct Flat {
    tokens: Vec<u32>,
    types: Vec<u32>,
    lengths: Vec<usize>,
}

impl<'a> Encoding<'a> {
    pub(crate) fn new(work: &'a EncodeWork, pace: Pace) -> Result<Encoding<'a>, ServeError> {
        let cases = work.cases.iter().map(Flat::new).collect::<Result<_, _>>()?;
        Ok(Encoding { work, pace, cases, vectors: Vec::new(), widths: Vec::new(), positions: 0 })
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

impl<E: InferenceEngine> Workload<E> for Encoding<'_> {
    fn cases(&self) -> usize {
        self.cases.len()
    }

    fn marks(&self) -> usize {
        1
    }

    fn check(&self, case: usize, input: &Input) -> Result<(), ServeError> {
        let is_fit =
            |texts: &[Vec<u32>]| texts.iter().map(Vec::len).eq(self.cases[case].lengths.iter().copied());
        if matches!(input, Input::Texts(texts) if is_fit(texts)) {
            return Ok(());
        }
        Err(ServeError::Job("the texts of a request are as many and as long as those of its case".into()))
    }

    fn begin(&mut self, engine: &mut E, case: usize, input: Option<Input>) -> Result<Request, ServeError> {
        let encoder = engine.encode()?;
        let Flat { tokens, types, lengths } = &self.cases[case];
        let given = match input {
            Some(Input::Texts(texts)) => Some(texts.concat()),
            _ => None,
        };
        let tokens = given.as_ref().unwrap_or(tokens);
        let task = task(self.work.task);
        self.widths = lengths.iter().map(|&tokens| task.width(encoder.config(), tokens)).collect();
        self.vectors.clear();
        let mut request = Request::start(case, Vec::with_capacity(1));
        let vectors = self.pace.keep(|| encoder.encode(Texts { tokens, types, lengths }, task))?;
        request.mark();
        self.vectors.extend_from_slice(vectors);
        self.positions = encoder.positions();
        Ok(request)
    }

    fn advance(&mut self, _: &mut E, _: &mut Request, _: usize) -> Result<(), ServeError> {
        Ok(())
    }

    fn output(&self) -> Output {
        let mut rest = &self.vectors[..];
        let cut = |&width: &usize| {
            let of_text;
            (of_text, rest) = rest.split_at(width.min(rest.len()));
            of_text.to_vec()
        };
        let vectors = self.widths.iter().map(cut).collect();
        Output::Vectors(Vectors { vectors, positions: self.positions })
    }

    fn parity(&mut self, _: &mut E, _: &ParityTask) -> Result<(), ServeError> {
        Err(ServeError::Job("requests that encode texts have no logits".into()))
    }
}

fn task(task: protocol::EncodeTask) -> EncodeTask {
    match task {
        protocol::EncodeTask::Embed { pooling, normalise } => {
            EncodeTask::Embed { pooling: self::pooling(pooling), normalise }
        }
        protocol::EncodeTask::Score => EncodeTask::Score,
    }
}

fn pooling(pooling: Pooling) -> bundle::Pooling {
    match pooling {
        Pooling::Cls => bundle::Pooling::Cls,
        Pooling::Mean => bundle::Pooling::Mean,
        Pooling::Max => bundle::Pooling::Max,
        Pooling::Last => bundle::Pooling::Last,
    }
}
