//! The timed part of each kind of work. Turns, warm-up, clock, memory and CPU readings depend on [`Workload`] alone.
//!
//! Between the first and the last mark of a request, or of a slice of one, there is no I/O, no logging and no allocation
//! for results: buffers are made before, events are sent after.

mod denoise;
mod encode;
mod generate;
mod goodput;
mod graph;
mod served;

use std::path::Path;

use denoise::Denoising;
use encode::Encoding;
pub(crate) use encode::score_texts;
use generate::Generating;
pub(crate) use generate::heard::Audio;
use graph::Running;
use protocol::{
    CacheUsage, Call, HandOver, Input, Iteration, Load, Marks, Output, ParityTask, Sample, Serve, Work,
};

use crate::ServeError;
use crate::clock::{self, Pace};
use crate::engine::{Bundle, InferenceEngine, Settings};
use crate::serving::Pool;

/// The facts about a model that a kind of work needs.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Model<'a> {
    /// Where the bundle is.
    pub(crate) directory: Option<&'a Path>,
    pub(crate) vocabulary: usize,
    /// The model's mask, if it generates by masked diffusion.
    pub(crate) mask_token: Option<u32>,
    /// Bands of the spectrograms that it hears; 0 if it hears none.
    pub(crate) bands: usize,
}

/// The part of a request that an input is for: all of it, its beginning, or so many more marks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Part {
    Whole,
    First,
    Later(usize),
}

/// A kind of work. One request is under way at a time.
pub(crate) trait Workload<E: InferenceEngine> {
    fn cases(&self) -> usize;

    /// Marks of a whole request.
    fn marks(&self) -> usize;

    /// Refuses an input that does not fit this part of a request of this case.
    fn check(&self, case: usize, input: &Input, part: Part) -> Result<(), ServeError>;

    /// Computes what precedes a request of this case, which comes next. It counts neither in the request's
    /// times nor in its usage.
    fn prepare(&mut self, engine: &mut E, case: usize) -> Result<(), ServeError> {
        let _ = (engine, case);
        Ok(())
    }

    /// A request of a case up to its first mark. `input` replaces the case's own.
    fn begin(&mut self, engine: &mut E, case: usize, input: Option<Input>) -> Result<Request, ServeError>;

    /// So many more marks of a request, or as many as it still has. `input`: what its steps are fed.
    fn advance(
        &mut self,
        engine: &mut E,
        request: &mut Request,
        more: (usize, Option<Input>),
    ) -> Result<(), ServeError>;

    /// The logits of these tokens in the last step of the request under way, `[batch][token]`.
    fn logits(&self, tokens: &[u32]) -> Result<Vec<Vec<f32>>, ServeError> {
        let _ = tokens;
        Err(ServeError::Job("a turn asks for logits, which requests of this work have none of".into()))
    }

    /// The output of the request that was under way.
    fn output(&self) -> Output;

    /// The single requests within the last one, if several callers made them.
    fn calls(&self) -> Vec<Call> {
        Vec::new()
    }

    /// The hand-over from one engine to another in the last request.
    fn handed_over(&self) -> Option<HandOver> {
        None
    }

    /// Writes the logits that parity is judged from: see [`ParityTask`].
    fn parity(&mut self, engine: &mut E, task: &ParityTask) -> Result<(), ServeError>;

    /// A request, prepared, up to so many marks, and the clock's reading at its start.
    fn request(
        &mut self,
        engine: &mut E,
        case: usize,
        (input, marks): (Option<Input>, usize),
    ) -> Result<(u64, Sample), ServeError> {
        let mut request = self.begin(engine, case, input)?;
        let more = marks.saturating_sub(request.marks());
        if more > 0 {
            self.advance(engine, &mut request, (more, None))?;
        }
        Ok((request.start_ns, self.sample(request)))
    }

    /// The marks and the output of a request.
    fn sample(&self, request: Request) -> Sample {
        let (marks_ns, output) = (Marks(request.marks_ns), self.output());
        Sample {
            case: request.case,
            marks_ns,
            lead_in: Vec::new(),
            calls: self.calls(),
            heard_ns: request.heard_ns,
            output,
        }
    }

    /// The beginning of a request up to so many marks, untimed.
    fn lead_in(&mut self, engine: &mut E, case: usize, marks: usize) -> Result<(), ServeError> {
        if marks > 0 {
            self.prepare(engine, case)?;
            self.request(engine, case, (None, marks.min(self.marks())))?;
        }
        Ok(())
    }

    /// One pass over all cases. `before`: requests of the first cases that have been computed already.
    fn iteration(
        &mut self,
        engine: &mut E,
        index: usize,
        before: Vec<Sample>,
    ) -> Result<Iteration, ServeError> {
        let mut cases = before;
        for case in cases.len()..self.cases() {
            self.prepare(engine, case)?;
            cases.push(self.request(engine, case, (None, self.marks()))?.1);
        }
        Ok(Iteration { index, cases })
    }
}

/// The callers of a turn, and how they are served: the pool has the models in addition to the loaded one.
pub(crate) struct Serving<'a, E> {
    pub(crate) serve: Serve,
    pub(crate) pool: Option<&'a Pool<E>>,
    /// `None` where the driver is the only caller.
    pub(crate) load: Option<Load>,
}

impl<E> Clone for Serving<'_, E> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<E> Copy for Serving<'_, E> {}

/// The driver is the only caller.
pub(crate) const fn alone<'a, E>() -> Serving<'a, E> {
    Serving { serve: Serve::Shared, pool: None, load: None }
}

/// The workload of a kind of work. `is_fed`: whether requests and parity need the traces of cases.
pub(crate) fn workload<'a, E: InferenceEngine>(
    work: &'a Work,
    (model, pace): (Model<'_>, Pace),
    is_fed: bool,
    serving: Serving<'a, E>,
) -> Result<Box<dyn Workload<E> + 'a>, ServeError> {
    if serving.load.is_some() && matches!(work, Work::Denoise(_)) {
        return Err(ServeError::Job("this kind of work has one caller: leave the load out".into()));
    }
    Ok(match work {
        Work::Generate(work) => Box::new(Generating::new(work, (model, pace), is_fed, serving)?),
        Work::Denoise(work) => Box::new(Denoising::new(work, (model, pace), is_fed)?),
        Work::Encode(work) => Box::new(Encoding::new(work, (model, pace), serving)?),
        Work::Graph(work) => Box::new(Running::new(work, pace, serving)),
    })
}

/// A request between two of its marks, with room for all of them.
pub(crate) struct Request {
    pub(crate) case: usize,
    pub(crate) start_ns: u64,
    /// The clock's reading that marks are counted from: later than the start by the time between slices.
    origin_ns: u64,
    /// When its audio was encoded, if it has any.
    heard_ns: Option<u64>,
    marks_ns: Vec<u64>,
}

impl Request {
    fn start(case: usize, room: Vec<u64>) -> Request {
        let now = clock::now_ns();
        Request { case, start_ns: now, origin_ns: now, heard_ns: None, marks_ns: room }
    }

    /// Continues after its latest mark: the time since then is not counted.
    fn resume(&mut self) {
        self.origin_ns = clock::now_ns() - self.marks_ns.last().copied().unwrap_or(0);
    }

    /// Counts earlier time as part of the request: all marks are later by that.
    fn begin_earlier(&mut self, ns: u64) {
        self.start_ns = self.start_ns.saturating_sub(ns);
        self.origin_ns = self.origin_ns.saturating_sub(ns);
        self.marks_ns.iter_mut().chain(&mut self.heard_ns).for_each(|mark| *mark += ns);
    }

    fn elapsed_ns(&self) -> u64 {
        clock::now_ns() - self.origin_ns
    }

    /// Nanoseconds since its latest mark, or its start.
    fn since_mark_ns(&self) -> u64 {
        self.elapsed_ns() - self.marks_ns.last().copied().unwrap_or(0)
    }

    /// Notes the time of a mark, in nanoseconds since the request began.
    fn mark_at(&mut self, ns: u64) {
        self.marks_ns.push(ns);
    }

    fn mark(&mut self) {
        let elapsed = self.elapsed_ns();
        self.marks_ns.push(elapsed);
    }

    pub(crate) fn marks(&self) -> usize {
        self.marks_ns.len()
    }

    fn hear(&mut self) {
        self.heard_ns = Some(self.elapsed_ns());
    }
}

/// The prompts of a case: of one length, with something to continue and something to add.
fn check_prompts(prompts: &[Vec<u32>], new_tokens: usize) -> Result<(), ServeError> {
    let length = prompts.first().map_or(0, Vec::len);
    if length == 0 || new_tokens == 0 || prompts.iter().any(|prompt| prompt.len() != length) {
        let reason = "a case needs at least one token to continue, one to add, and prompts of one length";
        return Err(ServeError::Job(reason.into()));
    }
    Ok(())
}

/// A case's trace: a row for each prompt, as long as the new tokens.
fn check_trace(trace: &[Vec<u32>], prompts: &[Vec<u32>], new_tokens: usize) -> Result<(), ServeError> {
    if !fits(trace, prompts, new_tokens) {
        return Err(ServeError::Job("each prompt needs a trace as long as the new tokens".into()));
    }
    Ok(())
}

fn fits(rows: &[Vec<u32>], prompts: &[Vec<u32>], new_tokens: usize) -> bool {
    rows.len() == prompts.len() && rows.iter().all(|row| row.len() == new_tokens)
}

// Requests that each load the model again, as programs do that open a session per request.

/// A kind of work that loads a model for every request. The load is part of the request's time.
pub(crate) struct Anew<'a, E> {
    of: Box<dyn Workload<E> + 'a>,
    bundle: &'a Bundle,
    settings: &'a Settings,
    /// The model of the request under way, or of the last one: it is dropped when the next is loaded.
    model: Option<E>,
}

impl<'a, E: InferenceEngine> Anew<'a, E> {
    pub(crate) fn new(
        of: Box<dyn Workload<E> + 'a>,
        (bundle, settings): (&'a Bundle, &'a Settings),
    ) -> Anew<'a, E> {
        Anew { of, bundle, settings, model: None }
    }
}

impl<E: InferenceEngine> Workload<E> for Anew<'_, E> {
    fn cases(&self) -> usize {
        self.of.cases()
    }

    fn marks(&self) -> usize {
        self.of.marks()
    }

    fn check(&self, case: usize, input: &Input, part: Part) -> Result<(), ServeError> {
        self.of.check(case, input, part)
    }

    fn begin(&mut self, _: &mut E, case: usize, input: Option<Input>) -> Result<Request, ServeError> {
        let before_ns = clock::now_ns();
        self.model = None;
        let model = self.model.insert(E::load(self.bundle, self.settings)?);
        let load_ns = clock::now_ns() - before_ns;
        self.of.prepare(model, case)?;
        let mut request = self.of.begin(model, case, input)?;
        request.begin_earlier(load_ns);
        Ok(request)
    }

    fn advance(
        &mut self,
        engine: &mut E,
        request: &mut Request,
        more: (usize, Option<Input>),
    ) -> Result<(), ServeError> {
        self.of.advance(self.model.as_mut().unwrap_or(engine), request, more)
    }

    fn logits(&self, tokens: &[u32]) -> Result<Vec<Vec<f32>>, ServeError> {
        self.of.logits(tokens)
    }

    fn output(&self) -> Output {
        self.of.output()
    }

    fn calls(&self) -> Vec<Call> {
        self.of.calls()
    }

    fn handed_over(&self) -> Option<HandOver> {
        self.of.handed_over()
    }

    fn parity(&mut self, engine: &mut E, task: &ParityTask) -> Result<(), ServeError> {
        self.of.parity(engine, task)
    }
}

// The state that a decoder keeps between two steps.

/// The hand-overs of all measured requests so far.
#[derive(Default)]
pub(crate) struct Kept(Option<HandOver>);

impl Kept {
    pub(crate) fn add(&mut self, of_request: Option<HandOver>) {
        let Some(of_request) = of_request else { return };
        let before = self.0.take().unwrap_or_default();
        self.0 = Some(HandOver {
            times: before.times + of_request.times,
            bytes: before.bytes + of_request.bytes,
            ns: before.ns + of_request.ns,
            ..of_request
        });
    }

    /// With the size of the buffers that hold keys and values, as they are allocated.
    pub(crate) fn usage<E: InferenceEngine>(self, engine: &mut E) -> CacheUsage {
        let Ok(decoder) = engine.decode() else { return CacheUsage::default() };
        let obstacle = decoder.obstacle().map(Into::into);
        CacheUsage {
            bytes: decoder.kv_cache_bytes(),
            hand_over: self.0.map(|of_all| HandOver { obstacle, ..of_all }),
            padding: decoder.padding(),
        }
    }
}
