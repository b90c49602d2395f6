//! Texts to vectors or scores: each request encodes one batch.

mod served;

use std::sync::Arc;

use engine::{EncodeTask, InferenceEngine, Texts};
use protocol::{
    Arrivals, Call, EncodeWork, Input, Load, Output, ParityTask, Pooling, Search, TextBatch, Vectors,
};

use super::{Request, Serving, Workload};
use crate::error::ServeError;
use crate::pace::Pace;
use served::Server;

/// Multiplier of the hash FNV-1a, in 64 bits (Fowler, Noll and Vo).
const FNV_PRIME: u64 = 0x100_0000_01b3;

/// Encodes batches of texts.
pub(crate) struct Encoding<'a, E> {
    work: &'a EncodeWork,
    serving: Serving<'a, E>,
    /// Turns so far in which several callers made requests.
    turns: u64,
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
        Ok(Encoding { work, serving, turns: 0, calls, pace, cases, vectors, widths, positions: 0 })
    }

    /// A turn in which several callers make requests. `is_asked`: whether the driver asked for it, and not warm-up.
    fn serve(
        &mut self,
        engine: &mut E,
        (case, load): (usize, Load),
        (tokens, is_asked): (&[u32], bool),
    ) -> Result<Request, ServeError> {
        let Flat { types, lengths, .. } = &self.cases[case];
        let mut rest = (tokens, types.as_slice());
        let text = |&length: &usize| {
            let ((tokens, behind), own) = (rest.0.split_at(length), rest.1.len().min(length));
            let (types, types_behind) = rest.1.split_at(own);
            rest = (behind, types_behind);
            Flat { tokens: tokens.to_vec(), types: types.to_vec(), lengths: vec![length] }
        };
        let texts: Arc<Vec<Flat>> = Arc::new(lengths.iter().map(text).collect());
        // Other times in each turn, and with the texts in each round; for all contenders the same.
        let hash = |hash: u64, &token: &u32| (hash ^ u64::from(token)).wrapping_mul(FNV_PRIME);
        let mixed = tokens.iter().fold(self.turns, hash);
        self.turns += 1;
        let server = Server { serving: self.serving, texts, task: task(self.work.task), pace: self.pace };
        let mut request = Request::start(case, Vec::with_capacity(1));
        let burst = match load.search.filter(|_| is_asked) {
            Some(search) => {
                server.search(engine, load.callers, Search { seed: search.seed ^ mixed, ..search })?
            }
            None => {
                let arrivals = load.arrivals.map(|it| Arrivals { seed: it.seed ^ mixed, ..it });
                server.burst(engine, lengths.len(), Load { arrivals, ..load })?
            }
        };
        match load.search {
            Some(_) => request.mark(),
            None => request.mark_at(burst.calls.iter().map(|call| call.done_ns).max().unwrap_or(0)),
        }
        self.widths = burst.vectors.iter().map(Vec::len).collect();
        (self.vectors, self.positions, self.calls) = (burst.vectors.concat(), burst.positions, burst.calls);
        Ok(request)
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
            let is_asked = given.is_some();
            let tokens = given.unwrap_or_else(|| self.cases[case].tokens.clone());
            return self.serve(engine, (case, load), (&tokens, is_asked));
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
