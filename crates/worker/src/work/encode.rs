//! Texts to vectors or scores: each request encodes one batch.

use std::sync::{Arc, Mutex, MutexGuard};

use engine::{EncodeTask, EngineError, InferenceEngine, Texts};
use protocol::{Call, EncodeWork, Input, Load, Output, ParityTask, Pooling, TextBatch, Vectors};

use super::{Request, Serving, Workload};
use crate::error::ServeError;
use crate::pace::Pace;
use crate::serving::{Answers, Queue, called};

/// Encodes batches of texts.
pub(crate) struct Encoding<'a, E> {
    work: &'a EncodeWork,
    serving: Serving<'a, E>,
    calls: Vec<Call>,
    pace: Pace,
    cases: Vec<Flat>,
    /// The vectors of the request under way, and the numbers of each text's.
    vectors: Vec<f32>,
    widths: Vec<usize>,
    positions: usize,
}

/// A batch as engines take it.
#[derive(Debug, Default)]
struct Flat {
    tokens: Vec<u32>,
    types: Vec<u32>,
    lengths: Vec<usize>,
}

impl<'a, E: InferenceEngine> Encoding<'a, E> {
    pub(crate) fn new(
        work: &'a EncodeWork,
        pace: Pace,
        serving: Serving<'a, E>,
    ) -> Result<Encoding<'a, E>, ServeError> {
        let cases = work.cases.iter().map(Flat::new).collect::<Result<_, _>>()?;
        let (vectors, widths, calls) = (Vec::new(), Vec::new(), Vec::new());
        Ok(Encoding { work, serving, calls, pace, cases, vectors, widths, positions: 0 })
    }

    /// A turn in which several callers make a request for each text.
    fn serve(
        &mut self,
        engine: &mut E,
        (case, load): (usize, Load),
        tokens: &[u32],
    ) -> Result<Request, ServeError> {
        let Flat { types, lengths, .. } = &self.cases[case];
        let texts = lengths.len();
        let mut rest = (tokens, types.as_slice());
        let text = |&length: &usize| {
            let ((tokens, types), behind) = ((rest.0.split_at(length)), rest.1.len().min(length));
            let (own, others) = rest.1.split_at(behind);
            rest = (types, others);
            Flat { tokens: tokens.to_vec(), types: own.to_vec(), lengths: vec![length] }
        };
        let served = Arc::new(Served {
            texts: lengths.iter().map(text).collect(),
            task: task(self.work.task),
            pace: self.pace,
            queue: Queue::new(texts, self.serving.serve),
            answers: Answers::new(texts),
            given: Mutex::new(Given { vectors: vec![Vec::new(); texts], positions: 0, error: None }),
        });
        if let Some(pool) = self.serving.pool {
            pool.each(|| {
                let served = Arc::clone(&served);
                Box::new(move |engine: &mut E| served.compute(engine))
            });
        }
        let begin = || Request::start(case, Vec::with_capacity(1));
        let places = (&served.queue, &served.answers);
        let (mut request, calls) = called(load, places, begin, || served.compute(engine));
        let mut given = served.given();
        if let Some(error) = given.error.take() {
            return Err(error.into());
        }
        request.mark_at(calls.iter().map(|call| call.done_ns).max().unwrap_or(0));
        self.widths = given.vectors.iter().map(Vec::len).collect();
        (self.vectors, self.positions, self.calls) = (given.vectors.concat(), given.positions, calls);
        Ok(request)
    }
}

/// Requests that several callers make, and what they are given.
struct Served {
    texts: Vec<Flat>,
    task: EncodeTask,
    pace: Pace,
    queue: Queue,
    answers: Answers,
    given: Mutex<Given>,
}

struct Given {
    vectors: Vec<Vec<f32>>,
    positions: usize,
    error: Option<EngineError>,
}

impl Served {
    fn given(&self) -> MutexGuard<'_, Given> {
        self.given.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
    }

    /// Has a model compute what waits in the queue, until all requests are taken.
    fn compute<E: InferenceEngine>(&self, engine: &mut E) {
        while let Some(group) = self.queue.next() {
            if let Err(error) = self.compute_group(engine, &group) {
                self.given().error.get_or_insert(error);
                self.queue.close();
                self.answers.give_up();
                return;
            }
            self.answers.tell(&group, true);
        }
    }

    fn compute_group<E: InferenceEngine>(&self, engine: &mut E, group: &[usize]) -> Result<(), EngineError> {
        let mut batch = Flat::default();
        for &text in group {
            let Flat { tokens, types, lengths } = &self.texts[text];
            batch.tokens.extend(tokens);
            batch.types.extend(types);
            batch.lengths.extend(lengths);
        }
        let Flat { tokens, types, lengths } = &batch;
        let encoder = engine.encode()?;
        let widths: Vec<usize> =
            lengths.iter().map(|&tokens| self.task.width(encoder.config(), tokens)).collect();
        let found = self.pace.keep(|| encoder.encode(Texts { tokens, types, lengths }, self.task))?;
        let mut given = self.given();
        let mut rest = found;
        for (&text, width) in group.iter().zip(widths) {
            let of_text;
            (of_text, rest) = rest.split_at(width.min(rest.len()));
            given.vectors[text] = of_text.to_vec();
        }
        given.positions += encoder.positions();
        Ok(())
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

    fn check(&self, case: usize, input: &Input) -> Result<(), ServeError> {
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
        if let Some(load) = self.work.load {
            let tokens = given.unwrap_or_else(|| self.cases[case].tokens.clone());
            return self.serve(engine, (case, load), &tokens);
        }
        let encoder = engine.encode()?;
        let Flat { tokens, types, lengths } = &self.cases[case];
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

    fn calls(&self) -> Vec<Call> {
        self.calls.clone()
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
