//! Continuation, token by token.

pub(crate) mod heard;
mod joined;

use heard::Audio;
use joined::Joined;
use protocol::{Call, Case, Continued, Decode, GenerateWork, HandOver, Input, KvCache, Output, ParityTask};

use super::served::{Callers, Requests};
use super::{Model, Part, Request, Serving, Workload, check_trace, fits};
use crate::ServeError;
use crate::clock::Pace;
use crate::engine::{self, InferenceEngine, Result, Want};
use crate::logits::{Rows, Tensors, argmax};
use crate::sampling::{self, Sampler};

/// Continues prompts.
pub(crate) struct Generating<'a, E> {
    work: &'a GenerateWork,
    callers: Callers<'a, E>,
    pace: Pace,
    audio: Audio,
    /// Bands of the spectrograms that the model hears; 0 if it hears none.
    bands: usize,
    chosen: Chosen,
    /// That of the request under way.
    state: State,
    /// The logits of its last step so far, `[batch, vocabulary]`: the driver may ask for some of them.
    last: Vec<f32>,
    handed_over: Option<HandOver>,
}

/// The state of a request from token to token.
#[derive(Default)]
struct State {
    /// Whether it is fed what it is sent, or its own choice where it is sent nothing, and not its case's trace.
    is_sent: bool,
    /// What it was sent, from the step `first` on.
    trace: Vec<Vec<u32>>,
    first: usize,
    batch: usize,
    capacity: usize,
    /// With the cache off, each sequence's prefix so far.
    prefixes: Vec<Vec<u32>>,
    joined: Joined,
    feed: Vec<u32>,
}

impl<'a, E: InferenceEngine> Generating<'a, E> {
    pub(crate) fn new(
        work: &'a GenerateWork,
        (model, pace): (Model<'_>, Pace),
        is_fed: bool,
        serving: Serving<'a, E>,
    ) -> Result<Generating<'a, E>, ServeError> {
        check(work, model, (is_fed, serving.load.is_some()))?;
        let sampler = match work.decode {
            Decode::Sampled(sampling) => Some(Sampler::new(&sampling, model.vocabulary)),
            Decode::Forced | Decode::Greedy => None,
        };
        let chosen = Chosen { tokens: Vec::new(), sampler, vocabulary: model.vocabulary };
        let callers = Callers::new(serving);
        let (state, last) = (State::default(), Vec::new());
        let (audio, bands) = (Audio::default(), model.bands);
        Ok(Generating { work, callers, pace, audio, bands, chosen, state, last, handed_over: None })
    }

    fn feeds_itself(&self) -> bool {
        self.work.decode == Decode::Greedy
    }

    fn asked(&self, case: &Case) -> Asked {
        Asked::new(case, self.work.new_tokens, self.work.kv_cache)
    }

    /// With the cache off, each sequence's prefix, with room for the new tokens.
    fn prefixes(&self, case: &Case) -> Vec<Vec<u32>> {
        if self.work.kv_cache == KvCache::On {
            return Vec::new();
        }
        let mut prefixes = case.prefixes();
        prefixes.iter_mut().for_each(|prefix| prefix.reserve(self.work.new_tokens));
        prefixes
    }
}

impl<E: InferenceEngine> Workload<E> for Generating<'_, E> {
    fn cases(&self) -> usize {
        self.work.cases.len()
    }

    fn marks(&self) -> usize {
        if self.callers.load().is_some() { 1 } else { self.work.new_tokens }
    }

    fn check(&self, case: usize, input: &Input, part: Part) -> Result<(), ServeError> {
        let refuse = |reason: &str| Err(ServeError::Job(reason.into()));
        let Input::Continue(Continued { prompts, trace, turn }) = input else {
            return refuse("a turn of this work has prompts and a trace as its input");
        };
        if turn.is_some() && (self.work.cases[case].audio.is_none() || matches!(part, Part::Later(_))) {
            return refuse("a turn's audio comes with the beginning of a request that has audio");
        }
        let own = &self.work.cases[case].prompts;
        let is_alike =
            || prompts.len() == own.len() && prompts.iter().zip(own).all(|(a, b)| a.len() == b.len());
        if !prompts.is_empty() && (matches!(part, Part::Later(_)) || !is_alike()) {
            return refuse(
                "a turn's prompts come with the beginning of a request, each as long as the case's own",
            );
        }
        let (steps, is_needed) = match part {
            Part::Whole => (self.work.new_tokens, self.callers.load().is_some() && !self.feeds_itself()),
            Part::First => (0, false),
            Part::Later(marks) => (marks, false),
        };
        if (is_needed || !trace.is_empty()) && !fits(trace, own, steps) {
            return refuse(
                "a turn's trace needs a row for each prompt, with a token for each step that is fed",
            );
        }
        Ok(())
    }

    fn prepare(&mut self, engine: &mut E, case: usize) -> Result<(), ServeError> {
        let asked = self.asked(&self.work.cases[case]);
        if !asked.context.is_empty() {
            let decoder = engine.decode()?;
            decoder.begin(asked.batch, asked.capacity)?;
            self.pace.keep(|| decoder.append(&asked.context, Want::Last))?;
        }
        Ok(())
    }

    fn begin(&mut self, engine: &mut E, case: usize, input: Option<Input>) -> Result<Request, ServeError> {
        if let Some(load) = self.callers.load() {
            let is_asked = input.is_some();
            let sequences = Sequences::new((self.work, case), input, (self.chosen.vocabulary, self.pace));
            let numbers = sequences.traces.concat();
            let turn = (sequences, load);
            let numbers = numbers.into_iter().map(u64::from);
            let (request, rows) = self.callers.turn(engine, turn, (case, is_asked), numbers)?;
            self.chosen.set(&rows);
            self.state.batch = rows.len();
            return Ok(request);
        }
        let decoder = engine.decode()?;
        let is_sent = input.is_some();
        let (of_case, trace) = given(&self.work.cases[case], input);
        let Asked { batch, capacity, context, mut prompt } = self.asked(&of_case);
        let new_tokens = self.work.new_tokens;
        self.state = State {
            is_sent,
            trace,
            first: 1,
            batch,
            capacity,
            prefixes: self.prefixes(&of_case),
            joined: Joined::default(),
            feed: Vec::with_capacity(batch),
        };
        self.chosen.begin(case, batch * new_tokens);
        let room = Vec::with_capacity(new_tokens);
        let mut chunks = chunks(&prompt, self.work.prefill_chunk);
        if let Some(last) = chunks.pop() {
            prompt.tokens = last;
        }
        // With the cache off, all of them are computed again.
        prompt.tokens.reserve((batch * capacity).saturating_sub(prompt.tokens.len()));
        let frames = of_case.audio.as_ref().map(|heard| self.audio.frames(heard, self.bands)).transpose()?;

        let mut request = Request::start(case, room);
        if context.is_empty() {
            decoder.begin(batch, capacity)?;
        }
        if let Some(frames) = frames {
            self.pace.keep(|| decoder.listen(frames))?;
            request.hear();
        }
        for chunk in &chunks {
            self.pace.keep(|| decoder.append(chunk, Want::Last).map(drop))?;
        }
        let logits = self.pace.keep(|| prompt.append(decoder))?;
        self.chosen.push(logits)?;
        request.mark();
        keep(&mut self.last, logits);
        self.state.joined = prompt;
        Ok(request)
    }

    fn advance(
        &mut self,
        engine: &mut E,
        request: &mut Request,
        (marks, input): (usize, Option<Input>),
    ) -> Result<(), ServeError> {
        let decoder = engine.decode()?;
        let (case, pace) = (&self.work.cases[request.case], self.pace);
        let State { is_sent, trace, first, batch, capacity, prefixes, joined, feed } = &mut self.state;
        let made = request.marks();
        if let Some(Input::Continue(more)) = input {
            (*trace, *first) = (more.trace, made);
        }
        let end = made.saturating_add(marks).min(self.work.new_tokens);
        request.resume();
        if made == 1 && marks > 0 && self.work.kv_cache == KvCache::On {
            // Part of the first gap.
            self.handed_over =
                decoder.hand_over()?.map(|handed| HandOver { ns: request.since_mark_ns(), ..handed });
        }
        for step in made..end {
            feed.clear();
            match self.work.decode {
                Decode::Forced if !*is_sent => feed.extend(case.trace.iter().map(|row| row[step - 1])),
                Decode::Forced if !trace.is_empty() => {
                    feed.extend(trace.iter().map(|row| row[step - *first]))
                }
                Decode::Forced | Decode::Greedy | Decode::Sampled(_) => {
                    feed.extend_from_slice(&self.chosen.tokens[(step - 1) * *batch..]);
                }
            }
            let logits = match self.work.kv_cache {
                KvCache::On => pace.keep(|| decoder.append(feed, Want::Last))?,
                KvCache::Off => {
                    joined.tokens.clear();
                    for (prefix, token) in prefixes.iter_mut().zip(feed.iter()) {
                        prefix.push(*token);
                        joined.tokens.extend_from_slice(prefix);
                    }
                    joined.lengthen(1);
                    decoder.begin(*batch, *capacity)?;
                    pace.keep(|| joined.append(decoder))?
                }
            };
            self.chosen.push(logits)?;
            request.mark();
            if step + 1 == end {
                keep(&mut self.last, logits);
            }
        }
        // The next slice is fed what it is sent itself.
        trace.clear();
        Ok(())
    }

    fn logits(&self, tokens: &[u32]) -> Result<Vec<Vec<f32>>, ServeError> {
        let vocabulary = self.chosen.vocabulary;
        if let Some(token) = tokens.iter().find(|token| **token as usize >= vocabulary) {
            let reason = format!("a turn asks for token {token}, and the vocabulary has {vocabulary}");
            return Err(ServeError::Job(reason));
        }
        let rows = self.last.chunks_exact(vocabulary);
        Ok(rows.map(|row| tokens.iter().map(|&token| row[token as usize]).collect()).collect())
    }

    fn output(&self) -> Output {
        let (tokens, batch) = (&self.chosen.tokens, self.state.batch);
        let tokens = (0..batch).map(|row| tokens.iter().skip(row).step_by(batch).copied().collect());
        Output::Tokens(tokens.collect())
    }

    fn calls(&self) -> Vec<Call> {
        self.callers.calls()
    }

    fn handed_over(&self) -> Option<HandOver> {
        self.handed_over.clone()
    }

    fn parity(&mut self, engine: &mut E, task: &ParityTask) -> Result<(), ServeError> {
        let decoder = engine.decode()?;
        let mut tensors = Tensors::default();
        let is_one_by_one = self.callers.is_one_by_one();
        for (index, case) in self.work.cases.iter().enumerate() {
            let prefixes = case.prefixes();
            let batch = prefixes.len();
            // Callers that are served one by one never have prompts of different lengths in one batch.
            let group = if is_one_by_one { 1 } else { batch };
            let mut logits: Option<Rows> = None;
            let kept = task.sequences.unwrap_or(batch).clamp(1, batch);
            for (prefixes, trace) in prefixes.chunks(group).zip(case.trace.chunks(group)) {
                let frames =
                    case.audio.as_ref().map(|heard| self.audio.frames(heard, self.bands)).transpose()?;
                let along = (prefixes, trace, frames);
                let of_group = logits_along(decoder, along, task, self.chosen.vocabulary)?;
                match &mut logits {
                    Some(logits) => logits.extend(of_group),
                    None => logits = Some(of_group),
                }
            }
            if let Some(logits) = logits {
                tensors.add_rows(format!("case.{index}"), kept, &logits.first(kept));
            }
        }
        tensors.write(&task.file)
    }
}

/// A case with the prompts of an input in place of its own, and what its steps are fed.
fn given(case: &Case, input: Option<Input>) -> (Case, Vec<Vec<u32>>) {
    let mut own = Case { trace: Vec::new(), ..case.clone() };
    let Some(Input::Continue(Continued { prompts, trace, turn })) = input else { return (own, Vec::new()) };
    if !prompts.is_empty() {
        own.prompts = prompts;
    }
    if let (Some(audio), Some(turn)) = (&mut own.audio, turn) {
        audio.turn = turn;
    }
    (own, trace)
}

/// Copies logits, after their mark.
fn keep(last: &mut Vec<f32>, logits: &[f32]) {
    last.clear();
    last.extend_from_slice(logits);
}

/// Logits of sequences along their traces. Prompts of different lengths keep those of their last tokens.
fn logits_along(
    decoder: &mut dyn engine::Decode,
    (prefixes, traces, frames): (&[Vec<u32>], &[Vec<u32>], Option<&[f32]>),
    task: &ParityTask,
    vocabulary: usize,
) -> Result<Rows, ServeError> {
    let joined = Joined::new(prefixes.iter().map(Vec::as_slice));
    let trace = traces.first().map_or(0, Vec::len);
    let last_only = task.prompt_last_only || joined.differ();
    // Positions of context and prompt with logits to keep.
    let kept = if last_only { 1 } else { joined.longest };
    let sequences = task.sequences.unwrap_or(joined.batch).clamp(1, joined.batch);
    let mut logits = Rows::new(sequences, kept + trace, vocabulary);
    decoder.begin(joined.batch, joined.longest + trace)?;
    decoder.show();
    frames.map_or(Ok(()), |frames| decoder.listen(frames))?;
    let of_prompts = match last_only {
        true => joined.append(decoder)?,
        false => decoder.append(&joined.tokens, Want::All)?,
    };
    logits.put(0, kept, of_prompts);
    let steps = task.steps.min(trace);
    let pieces = (0..steps).map(|step| (step, step + 1)).chain([(steps, trace)]);
    for (start, end) in pieces.filter(|(start, end)| start < end) {
        let tokens: Vec<u32> = traces.iter().flat_map(|row| row[start..end].iter().copied()).collect();
        logits.put(kept + start, kept + end, decoder.append(&tokens, Want::All)?);
    }
    Ok(logits)
}

/// The tokens of prompts of one length in chunks of so many of each; none if they are passed at once.
fn chunks(prompt: &Joined, most: Option<usize>) -> Vec<Vec<u32>> {
    let Some(most) = most.filter(|_| !prompt.differ()) else { return Vec::new() };
    let length = prompt.longest;
    let chunk = |start: usize| {
        let end = length.min(start + most);
        prompt.tokens.chunks_exact(length).flat_map(|row| &row[start..end]).copied().collect()
    };
    (0..length).step_by(most).map(chunk).collect()
}

/// Whether the requests make sense for this model.
fn check(
    work: &GenerateWork,
    model: Model<'_>,
    (is_fed, has_callers): (bool, bool),
) -> Result<(), ServeError> {
    if let Decode::Sampled(sampling) = &work.decode {
        sampling::check(sampling)?;
    }
    if work.prefill_chunk.is_some_and(|chunk| chunk == 0 || work.kv_cache == KvCache::Off || has_callers) {
        let reason = "a prompt is read in chunks of one token or more, into a KV cache, for one caller";
        return Err(ServeError::Job(reason.into()));
    }
    let has_context = work.cases.iter().any(|case| !case.context.is_empty());
    let is_drawn = matches!(work.decode, Decode::Sampled(_));
    if has_callers && (is_drawn || work.kv_cache == KvCache::Off || has_context) {
        let reason = "callers have prompts continued with a KV cache, and neither a context nor drawn tokens";
        return Err(ServeError::Job(reason.into()));
    }
    if model.mask_token.is_some() {
        return Err(ServeError::Job(
            "this model generates by masked diffusion, not token by token: the job has to say how it denoises".into(),
        ));
    }
    for case in &work.cases {
        check_prompts(case, work)?;
        if case.audio.is_some() != (model.bands > 0) {
            let reason = "a case has audio if the model hears, and none if it does not";
            return Err(ServeError::Job(reason.into()));
        }
        let has_room =
            work.kv_cache == KvCache::On && case.context.is_empty() && work.prefill_chunk.is_none();
        if case.audio.is_some() && (case.prompts.len() > 1 || has_callers || !has_room) {
            let reason = "audio has one prompt and one caller, a KV cache, and neither a context nor chunks";
            return Err(ServeError::Job(reason.into()));
        }
        let (rows, length) = (case.context.len(), case.context.first().map_or(0, Vec::len));
        let alike =
            rows == case.prompts.len() && length > 0 && case.context.iter().all(|row| row.len() == length);
        if rows > 0 && !alike {
            let reason =
                "a context has a row of tokens for each prompt, all of one length; leave it out for none";
            return Err(ServeError::Job(reason.into()));
        }
        if is_fed || work.decode == Decode::Forced {
            check_trace(&case.trace, &case.prompts, work.new_tokens)?;
        }
    }
    Ok(())
}

/// Prompts with something to continue and something to add. They may differ in length if there is no context.
fn check_prompts(case: &Case, work: &GenerateWork) -> Result<(), ServeError> {
    if case.prompts.is_empty() || work.new_tokens == 0 || case.prompts.iter().any(Vec::is_empty) {
        let reason = "a case needs at least one token to continue in each prompt, and one to add";
        return Err(ServeError::Job(reason.into()));
    }
    let differ = Joined::new(case.prompts.iter().map(Vec::as_slice)).differ();
    if differ && (work.prefill_chunk.is_some() || !case.context.is_empty()) {
        let reason = "prompts of different lengths are read at once, and have no context before them";
        return Err(ServeError::Job(reason.into()));
    }
    Ok(())
}

/// The form in which an engine gets a case.
struct Asked {
    batch: usize,
    capacity: usize,
    /// `[batch, context tokens]`: the tokens in the cache when the clock starts.
    context: Vec<u32>,
    /// With the cache off, after each row's context.
    prompt: Joined,
}

impl Asked {
    fn new(case: &Case, new_tokens: usize, kv_cache: KvCache) -> Asked {
        let (context, rows) = match kv_cache {
            KvCache::On => (case.context.concat(), case.prompts.clone()),
            KvCache::Off => (Vec::new(), case.prefixes()),
        };
        let prompt = Joined::new(rows.iter().map(Vec::as_slice));
        let batch = prompt.batch;
        let before = context.len().checked_div(batch).unwrap_or(0);
        Asked { batch, capacity: before + prompt.longest + new_tokens, context, prompt }
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

    /// The tokens of each of several sequences.
    fn set(&mut self, rows: &[Vec<u32>]) {
        let length = rows.first().map_or(0, Vec::len);
        self.tokens = (0..length).flat_map(|step| rows.iter().map(move |row| row[step])).collect();
    }

    /// One token for each row of `logits`.
    fn push(&mut self, logits: &[f32]) -> Result<()> {
        for row in logits.chunks_exact(self.vocabulary) {
            let drawn = self.sampler.as_mut().and_then(|sampler| sampler.draw(row));
            self.tokens.push(drawn.map_or_else(|| argmax(row), Ok)?);
        }
        Ok(())
    }
}

// Prompts that several callers have continued, a request for each.

struct Sequences {
    prompts: Vec<Vec<u32>>,
    /// The tokens each sequence is fed, as many as the new tokens; empty where it is fed its own.
    traces: Vec<Vec<u32>>,
    new_tokens: usize,
    vocabulary: usize,
    pace: Pace,
}

impl Sequences {
    fn new(
        (work, case): (&GenerateWork, usize),
        input: Option<Input>,
        (vocabulary, pace): (usize, Pace),
    ) -> Sequences {
        let own = &work.cases[case];
        let is_sent = input.is_some();
        let (case, trace) = given(own, input);
        let feeds_itself = work.decode == Decode::Greedy;
        let traces = if is_sent || feeds_itself { trace } else { own.trace.clone() };
        let (prompts, new_tokens) = (case.prompts, work.new_tokens);
        Sequences { prompts, traces, new_tokens, vocabulary, pace }
    }
}

impl<E: InferenceEngine> Requests<E> for Sequences {
    /// The most likely token at each step.
    type Answer = Vec<u32>;

    fn count(&self) -> usize {
        self.prompts.len()
    }

    fn compute(&self, engine: &mut E, requests: &[usize]) -> Result<Vec<Vec<u32>>> {
        let decoder = engine.decode()?;
        let prompts = Joined::new(requests.iter().map(|&row| self.prompts[row].as_slice()));
        let mut feed = Vec::with_capacity(requests.len());
        decoder.begin(requests.len(), prompts.longest + self.new_tokens)?;
        let mut chosen: Vec<Vec<u32>> =
            requests.iter().map(|_| Vec::with_capacity(self.new_tokens)).collect();
        for step in 0..self.new_tokens {
            let logits = self.pace.keep(|| match step {
                0 => prompts.append(decoder),
                _ => decoder.append(&feed, Want::Last),
            })?;
            for (tokens, row) in chosen.iter_mut().zip(logits.chunks_exact(self.vocabulary)) {
                tokens.push(argmax(row)?);
            }
            feed.clear();
            match self.traces.is_empty() {
                true => feed.extend(chosen.iter().map(|tokens| tokens[step])),
                false => feed.extend(requests.iter().map(|&row| self.traces[row][step])),
            }
        }
        Ok(chosen)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_prompt_is_read_in_chunks_of_every_sequence() {
        let prompt: [&[u32]; 2] = [&[1, 2, 3], &[11, 12, 13]];
        let chunks = |most| chunks(&Joined::new(prompt.into_iter()), most);
        assert!(chunks(None).is_empty(), "all at once");
        assert_eq!(chunks(Some(2)), [vec![1, 2, 11, 12], vec![3, 13]]);
        assert_eq!(chunks(Some(9)), [vec![1, 2, 3, 11, 12, 13]]);
    }
}
