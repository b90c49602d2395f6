//! The timed loop.
//!
//! Between the first and the last sample of a case there is no I/O, no logging and no allocation for
//! results: buffers are made before, events are sent after.

use engine::{HandedOver, InferenceEngine, Want};
use protocol::{Case, CaseSample, Decode, Iteration, KvCache};

use crate::clock;
use crate::denoise::Denoiser;
use crate::error::ServeError;
use crate::logits::argmax;
use crate::sampling::Sampler;

/// Runs cases through an engine and times them.
pub(crate) struct Runner<'a> {
    cases: &'a [Case],
    new_tokens: usize,
    decode: Decode,
    kv_cache: KvCache,
    chosen: Chosen,
    /// What fills in masks, and in how many steps.
    denoiser: Option<(Denoiser, usize)>,
    /// That of the last request which decoded behind another engine's prompt.
    pub(crate) handed_over: Option<Timed>,
}

/// A hand-over of keys and values, and how long it took.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Timed {
    pub(crate) handed: HandedOver,
    pub(crate) ns: u64,
}

impl<'a> Runner<'a> {
    pub(crate) fn new(
        cases: &'a [Case],
        new_tokens: usize,
        (decode, kv_cache): (Decode, KvCache),
        vocabulary: usize,
    ) -> Runner<'a> {
        let sampler = match decode {
            Decode::Sampled(sampling) => Some(Sampler::new(&sampling, vocabulary)),
            Decode::Forced | Decode::Greedy => None,
        };
        let chosen = Chosen { tokens: Vec::new(), sampler, vocabulary };
        Runner { cases, new_tokens, decode, kv_cache, chosen, denoiser: None, handed_over: None }
    }

    /// Generates by masked diffusion, in so many steps.
    pub(crate) fn denoising(self, denoiser: Denoiser, steps: usize) -> Runner<'a> {
        Runner { denoiser: Some((denoiser, steps)), ..self }
    }

    /// The cold start: the first case's request, after its context, and the clock's reading at the request's start.
    pub(crate) fn first_request<E: InferenceEngine>(
        &mut self,
        engine: &mut E,
    ) -> Result<(u64, CaseSample), ServeError> {
        self.fill_context(engine, 0)?;
        self.whole(engine, 0, Vec::new())
    }

    pub(crate) fn iteration<E: InferenceEngine>(
        &mut self,
        engine: &mut E,
        index: usize,
    ) -> Result<Iteration, ServeError> {
        let mut cases = Vec::with_capacity(self.cases.len());
        for case in 0..self.cases.len() {
            self.fill_context(engine, case)?;
            cases.push(self.request(engine, case, Vec::new())?);
        }
        Ok(Iteration { index, cases })
    }

    /// The beginning of a request, up to so many new tokens or steps of denoising, untimed.
    pub(crate) fn lead_in<E: InferenceEngine>(
        &mut self,
        engine: &mut E,
        case: usize,
        new_tokens: usize,
    ) -> Result<(), ServeError> {
        match &self.denoiser {
            _ if new_tokens == 0 => {}
            Some((_, steps)) => drop(self.denoise(engine, case, new_tokens.min(*steps))?),
            None => {
                self.fill_context(engine, case)?;
                drop(self.timed(engine, (case, Vec::new()), new_tokens.min(self.new_tokens))?);
            }
        }
        Ok(())
    }

    /// Computes the context of a case, if it has one, for the request that comes next. It is no part of that request:
    /// neither of its times nor of what it uses.
    pub(crate) fn fill_context<E: InferenceEngine>(
        &mut self,
        engine: &mut E,
        case: usize,
    ) -> Result<(), ServeError> {
        let request = Request::new(&self.cases[case], self.new_tokens, self.kv_cache);
        if !request.context.is_empty() {
            request.begin(engine)?;
        }
        Ok(())
    }

    /// One request of a case, whose context is in the cache ([`Self::fill_context`]), with a trace of its own unless that
    /// is empty.
    pub(crate) fn request<E: InferenceEngine>(
        &mut self,
        engine: &mut E,
        case: usize,
        trace: Vec<Vec<u32>>,
    ) -> Result<CaseSample, ServeError> {
        Ok(self.whole(engine, case, trace)?.1)
    }

    /// A request to its last token or step, and the clock's reading at its start.
    fn whole<E: InferenceEngine>(
        &mut self,
        engine: &mut E,
        case: usize,
        trace: Vec<Vec<u32>>,
    ) -> Result<(u64, CaseSample), ServeError> {
        match &self.denoiser {
            Some((_, steps)) => self.denoise(engine, case, *steps),
            None => self.timed(engine, (case, trace), self.new_tokens),
        }
    }

    fn denoise<E: InferenceEngine>(
        &mut self,
        engine: &mut E,
        case: usize,
        steps: usize,
    ) -> Result<(u64, CaseSample), ServeError> {
        let Some((denoiser, _)) = &mut self.denoiser else { return Ok((0, CaseSample::default())) };
        let how = (steps, self.decode == Decode::Forced);
        denoiser.request(engine, (case, &self.cases[case]), self.new_tokens, how)
    }

    /// The beginning of a request, up to so many new tokens, and the clock's reading at its start. Its context is in the
    /// cache ([`Self::fill_context`]).
    pub(crate) fn timed<E: InferenceEngine>(
        &mut self,
        engine: &mut E,
        (index, trace): (usize, Vec<Vec<u32>>),
        new_tokens: usize,
    ) -> Result<(u64, CaseSample), ServeError> {
        let mut request = self.begin(engine, index, trace)?;
        self.advance(engine, &mut request, new_tokens - 1)?;
        Ok((request.start_ns, self.complete(request)))
    }

    /// The prompt pass of a request, up to its first token. Its context is in the cache ([`Self::fill_context`]). `trace`:
    /// what it is fed, if that is not the case's own.
    pub(crate) fn begin<E: InferenceEngine>(
        &mut self,
        engine: &mut E,
        index: usize,
        trace: Vec<Vec<u32>>,
    ) -> Result<UnderWay, ServeError> {
        let case = &self.cases[index];
        let request = Request::new(case, self.new_tokens, self.kv_cache);
        let Request { batch, capacity, .. } = request;
        let mut under_way = UnderWay {
            case: index,
            trace,
            batch,
            capacity,
            start_ns: 0,
            first_token_ns: 0,
            gaps_ns: Vec::with_capacity(self.new_tokens),
            prefixes: self.prefixes(case),
            flat: Vec::with_capacity(batch * capacity),
            feed: Vec::with_capacity(batch),
        };
        self.chosen.begin(index, batch * self.new_tokens);

        under_way.start_ns = clock::now_ns();
        if request.context.is_empty() {
            engine.begin(batch, capacity)?;
        }
        self.chosen.push(engine.append(&request.prompt, Want::Last)?);
        under_way.first_token_ns = clock::now_ns() - under_way.start_ns;
        Ok(under_way)
    }

    /// So many more steps of a request, or as many as it still has.
    pub(crate) fn advance<E: InferenceEngine>(
        &mut self,
        engine: &mut E,
        request: &mut UnderWay,
        steps: usize,
    ) -> Result<(), ServeError> {
        let (case, batch) = (&self.cases[request.case], request.batch);
        let made = request.tokens();
        let mut last = clock::now_ns();
        if made == 1 && steps > 0 && self.kv_cache == KvCache::On {
            // Part of the first gap.
            self.handed_over = engine.hand_over()?.map(|handed| Timed { handed, ns: clock::now_ns() - last });
        }
        for step in made..(made + steps).min(self.new_tokens) {
            let feed = &mut request.feed;
            feed.clear();
            match self.decode {
                Decode::Forced => {
                    let trace = if request.trace.is_empty() { &case.trace } else { &request.trace };
                    feed.extend(trace.iter().map(|row| row[step - 1]));
                }
                Decode::Greedy | Decode::Sampled(_) => {
                    feed.extend_from_slice(&self.chosen.tokens[(step - 1) * batch..]);
                }
            }
            let logits = match self.kv_cache {
                KvCache::On => engine.append(feed, Want::Last)?,
                KvCache::Off => {
                    request.flat.clear();
                    for (prefix, token) in request.prefixes.iter_mut().zip(feed.iter()) {
                        prefix.push(*token);
                        request.flat.extend_from_slice(prefix);
                    }
                    engine.begin(batch, request.capacity)?;
                    engine.append(&request.flat, Want::Last)?
                }
            };
            self.chosen.push(logits);
            let now = clock::now_ns();
            request.gaps_ns.push(now - last);
            last = now;
        }
        Ok(())
    }

    /// Whether a request has all its tokens.
    pub(crate) fn is_complete(&self, request: &UnderWay) -> bool {
        request.tokens() >= self.new_tokens
    }

    /// What a request took and made.
    pub(crate) fn complete(&self, request: UnderWay) -> CaseSample {
        let UnderWay { batch, first_token_ns, gaps_ns, .. } = request;
        let tokens = &self.chosen.tokens;
        let tokens = (0..batch).map(|row| tokens.iter().skip(row).step_by(batch).copied().collect());
        CaseSample { first_token_ns, gaps_ns, tokens: tokens.collect(), ..CaseSample::default() }
    }

    /// With the cache off, each sequence's prefix as far as it has come, with room for what is still to come.
    fn prefixes(&self, case: &Case) -> Vec<Vec<u32>> {
        if self.kv_cache == KvCache::On {
            return Vec::new();
        }
        let mut prefixes = case.prefixes();
        prefixes.iter_mut().for_each(|prefix| prefix.reserve(self.new_tokens));
        prefixes
    }
}

/// A request between two of its steps, with room for all of them.
pub(crate) struct UnderWay {
    pub(crate) case: usize,
    /// What it is fed, if that is not the case's own trace.
    trace: Vec<Vec<u32>>,
    batch: usize,
    capacity: usize,
    start_ns: u64,
    first_token_ns: u64,
    gaps_ns: Vec<u64>,
    prefixes: Vec<Vec<u32>>,
    flat: Vec<u32>,
    feed: Vec<u32>,
}

impl UnderWay {
    /// New tokens of each sequence so far.
    pub(crate) fn tokens(&self) -> usize {
        1 + self.gaps_ns.len()
    }
}

/// A case as an engine is asked for it.
struct Request {
    batch: usize,
    capacity: usize,
    /// `[batch, context tokens]`: what is in the cache when the clock starts.
    context: Vec<u32>,
    /// `[batch, prompt tokens]`; with the cache off, behind each row's context.
    prompt: Vec<u32>,
}

impl Request {
    fn new(case: &Case, new_tokens: usize, kv_cache: KvCache) -> Request {
        let prefixes = case.prefixes();
        let (context, prompt) = match kv_cache {
            KvCache::On => (case.context.concat(), case.prompts.concat()),
            KvCache::Off => (Vec::new(), prefixes.concat()),
        };
        Request { batch: prefixes.len(), capacity: prefixes[0].len() + new_tokens, context, prompt }
    }

    /// Makes room, and computes the context if there is one.
    fn begin<E: InferenceEngine>(&self, engine: &mut E) -> Result<(), ServeError> {
        engine.begin(self.batch, self.capacity)?;
        if !self.context.is_empty() {
            engine.append(&self.context, Want::Last)?;
        }
        Ok(())
    }
}

/// Tokens chosen by the logits of the case that runs, `[new tokens][batch]`: the most likely ones, or drawn.
struct Chosen {
    tokens: Vec<u32>,
    sampler: Option<Sampler>,
    vocabulary: usize,
}

impl Chosen {
    fn begin(&mut self, case: usize, count: usize) {
        self.tokens.clear();
        self.tokens.reserve(count);
        if let Some(sampler) = &mut self.sampler {
            sampler.begin(case);
        }
    }

    /// One token for each row of `logits`.
    fn push(&mut self, logits: &[f32]) {
        let rows = logits.chunks_exact(self.vocabulary);
        match &mut self.sampler {
            None => self.tokens.extend(rows.map(argmax)),
            Some(sampler) => {
                self.tokens.extend(rows.map(|row| sampler.draw(row).unwrap_or_else(|| argmax(row))))
            }
        }
    }
}
