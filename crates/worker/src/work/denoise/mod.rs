//! Generation by masked diffusion: every step is a pass over all positions and unmasks some of them.
//!
//! The method is that of Dream (Ye and others 2025), and the same for every engine: `docs/reference/protocol.md` has
//! its steps. Random numbers come from ChaCha8, seeded; each case has a stream of its own. A step takes one
//! for each masked position where tokens are drawn, then one for each where positions are, sequence by sequence, so that
//! equal logits give equal tokens.

#[cfg(test)]
mod tests;

use protocol::{Algorithm, Denoise, DenoiseWork, Input, MaskedCase, Output, ParityTask, Steps};
use rand::distr::OpenClosed01;
use rand::{RngExt, SeedableRng};
use rand_chacha::ChaCha8Rng;

use super::{Model, Part, Request, Workload, check_prompts, check_trace, fits};
use crate::ServeError;
use crate::clock::Pace;
use crate::engine::{self, InferenceEngine, Want};
use crate::logits::{Rows, Tensors, argmax, maximum};
use crate::sampling::{Candidates, Softmax};

/// Fills in the masks of sequences.
pub(crate) struct Denoising<'a> {
    work: &'a DenoiseWork,
    pace: Pace,
    mask: u32,
    vocabulary: usize,
    chooser: Chooser,
    selection: Selection,
    random: ChaCha8Rng,
    /// `[batch][new tokens]`: each position's choice in the last pass; only those of masked positions are
    /// new.
    choices: Vec<Choice>,
    /// `[batch][new tokens]`: whether the last step unmasks it.
    chosen: Vec<bool>,
    /// That of the request under way.
    state: State,
}

/// The state of a request from step to step.
#[derive(Default)]
struct State {
    batch: usize,
    sequences: Sequences,
    /// `[batch][new tokens]`: the token of each place, and the step that unmasked it.
    tokens: Vec<u32>,
    unmasked: Vec<u32>,
    /// The same of the states that the request is fed.
    trace: (Vec<u32>, Vec<u32>),
    passes_ns: Vec<u64>,
}

/// One batch of sequences while its masks are filled in.
#[derive(Default)]
struct Sequences {
    prompt: usize,
    new_tokens: usize,
    /// `[batch, prompt + new tokens]`
    tokens: Vec<u32>,
}

impl Sequences {
    fn new(case: &MaskedCase, new_tokens: usize, mask: u32) -> Sequences {
        let masked = |prompt: &Vec<u32>| [&prompt[..], &vec![mask; new_tokens]].concat();
        Sequences {
            prompt: case.prompts[0].len(),
            new_tokens,
            tokens: case.prompts.iter().flat_map(masked).collect(),
        }
    }

    fn length(&self) -> usize {
        self.prompt + self.new_tokens
    }

    /// The new tokens of all sequences, each with its place among those of all.
    fn new_ones(&mut self) -> impl Iterator<Item = (usize, &mut u32)> {
        let (length, prompt) = (self.length(), self.prompt);
        self.tokens.chunks_exact_mut(length).flat_map(move |row| &mut row[prompt..]).enumerate()
    }

    /// The row of logits that is for a new token: that of the position before it, for logits are shifted by one. `logits`
    /// are `[batch, prompt + new tokens, vocabulary]`.
    fn row<'a>(&self, logits: &'a [f32], place: usize, vocabulary: usize) -> &'a [f32] {
        let (sequence, index) = (place / self.new_tokens, place % self.new_tokens);
        let position = sequence * self.length() + self.prompt + index - 1;
        &logits[position * vocabulary..][..vocabulary]
    }
}

impl<'a> Denoising<'a> {
    pub(crate) fn new(
        work: &'a DenoiseWork,
        (model, pace): (Model<'_>, Pace),
        is_fed: bool,
    ) -> Result<Denoising<'a>, ServeError> {
        let mask = check(work, model.mask_token, is_fed)?;
        Ok(Denoising {
            work,
            pace,
            mask,
            vocabulary: model.vocabulary,
            chooser: Chooser::new(&work.how, model.vocabulary),
            selection: Selection::new(&work.how),
            random: ChaCha8Rng::seed_from_u64(work.how.seed),
            choices: Vec::new(),
            chosen: Vec::new(),
            state: State::default(),
        })
    }

    /// So many more steps, or as many as there still are.
    fn steps<E: InferenceEngine>(
        &mut self,
        engine: &mut E,
        request: &mut Request,
        steps: usize,
    ) -> Result<(), ServeError> {
        let decoder = engine.decode()?;
        let made = request.marks();
        for step in made..made.saturating_add(steps).min(self.work.how.steps) {
            let sequences = &self.state.sequences;
            decoder.begin(self.state.batch, sequences.length())?;
            let logits = self.pace.keep(|| decoder.append(&sequences.tokens, Want::All))?;
            let passed = request.elapsed_ns();
            self.choose(step, logits)?;
            let State { sequences, tokens, unmasked, trace, passes_ns, .. } = &mut self.state;
            let (forced, now_at) = (self.work.forced, step as u32);
            for (place, token) in sequences.new_ones() {
                let is_due = if forced { trace.1[place] == now_at } else { self.chosen[place] };
                if !is_due {
                    continue;
                }
                tokens[place] = self.choices[place].token;
                if self.chosen[place] {
                    unmasked[place] = now_at;
                }
                *token = if forced { trace.0[place] } else { tokens[place] };
            }
            passes_ns.push(passed);
            request.mark();
        }
        Ok(())
    }

    fn reset(&mut self, case: usize, count: usize) {
        self.random.set_stream(case as u64);
        self.random.set_word_pos(0);
        self.choices.clear();
        self.choices.resize(count, Choice { token: self.mask, confidence: f64::NEG_INFINITY });
        self.chosen.clear();
        self.chosen.resize(count, false);
    }

    /// Chooses a token for every masked position, and the positions to unmask now.
    fn choose(&mut self, step: usize, logits: &[f32]) -> engine::Result<()> {
        let sequences = &self.state.sequences;
        let new_tokens = sequences.new_tokens;
        self.chosen.fill(false);
        for sequence in 0..self.state.batch {
            let places = sequence * new_tokens..(sequence + 1) * new_tokens;
            let start = sequence * sequences.length() + sequences.prompt;
            let masked =
                places.clone().filter(|place| sequences.tokens[start + place - places.start] == self.mask);
            let masked: Vec<usize> = masked.collect();
            for &place in &masked {
                let uniform = if self.chooser.draws() { self.random.sample(OpenClosed01) } else { 1.0 };
                let row = sequences.row(logits, place, self.vocabulary);
                self.choices[place] = self.chooser.choose(row, uniform)?;
            }
            let (choices, random) = (&self.choices, &mut self.random);
            let drawn = || random.sample(OpenClosed01);
            self.selection.select(step, &masked, |place| choices[place].confidence, drawn);
            for &place in self.selection.selected() {
                self.chosen[place] = true;
            }
        }
        Ok(())
    }
}

impl<E: InferenceEngine> Workload<E> for Denoising<'_> {
    fn cases(&self) -> usize {
        self.work.cases.len()
    }

    fn marks(&self) -> usize {
        self.work.how.steps
    }

    fn check(&self, _: usize, _: &Input, _: Part) -> Result<(), ServeError> {
        Err(ServeError::Job(
            "a request of masked diffusion is given what its case has: leave `input` out".into(),
        ))
    }

    fn begin(&mut self, engine: &mut E, index: usize, _input: Option<Input>) -> Result<Request, ServeError> {
        let (case, new_tokens, steps) = (&self.work.cases[index], self.work.new_tokens, self.work.how.steps);
        let (batch, count) = (case.prompts.len(), case.prompts.len() * new_tokens);
        self.state = State {
            batch,
            sequences: Sequences::new(case, new_tokens, self.mask),
            tokens: vec![self.mask; count],
            // Places that are never unmasked have a step beyond the last.
            unmasked: vec![steps as u32; count],
            trace: (case.trace.concat(), case.unmasked.concat()),
            passes_ns: Vec::with_capacity(steps),
        };
        self.reset(index, count);
        let room = Vec::with_capacity(steps);

        let mut request = Request::start(index, room);
        self.steps(engine, &mut request, 1)?;
        Ok(request)
    }

    fn advance(
        &mut self,
        engine: &mut E,
        request: &mut Request,
        (marks, _): (usize, Option<Input>),
    ) -> Result<(), ServeError> {
        request.resume();
        self.steps(engine, request, marks)
    }

    fn output(&self) -> Output {
        let rows = |values: &[u32]| values.chunks_exact(self.work.new_tokens).map(<[u32]>::to_vec).collect();
        Output::Steps(Steps {
            tokens: rows(&self.state.tokens),
            unmasked: rows(&self.state.unmasked),
            passes_ns: self.state.passes_ns.clone(),
        })
    }

    /// `[batch, 1 + new tokens, vocabulary]`
    fn parity(&mut self, engine: &mut E, task: &ParityTask) -> Result<(), ServeError> {
        let mut tensors = Tensors::default();
        for (index, case) in self.work.cases.iter().enumerate() {
            let logits = self.along_trace(engine, case)?;
            tensors.add_rows(format!("case.{index}"), case.trace.len(), &logits);
        }
        tensors.write(&task.file)
    }
}

impl Denoising<'_> {
    /// The logits by which a case's trace was unmasked: see [`protocol::ParityTask`].
    fn along_trace<E: InferenceEngine>(&self, engine: &mut E, case: &MaskedCase) -> Result<Rows, ServeError> {
        let decoder = engine.decode()?;
        let new_tokens = case.trace[0].len();
        let mut sequences = Sequences::new(case, new_tokens, self.mask);
        let (trace, unmasked) = (case.trace.concat(), case.unmasked.concat());
        let batch = case.prompts.len();
        let mut kept = Rows::new(batch, 1 + new_tokens, self.vocabulary);
        for step in 0..self.work.how.steps {
            let is_last = step + 1 == self.work.how.steps;
            // A step that unmasks nothing shows nothing.
            if !is_last && !unmasked.contains(&(step as u32)) {
                continue;
            }
            decoder.begin(batch, sequences.length())?;
            let logits = decoder.append(&sequences.tokens, Want::All)?;
            for place in (0..trace.len()).filter(|&place| unmasked[place] as usize == step) {
                let row = sequences.row(logits, place, self.vocabulary);
                kept.put_row(place / new_tokens, place % new_tokens, row);
            }
            for sequence in (0..batch).filter(|_| is_last) {
                let end = (sequence + 1) * sequences.length() * self.vocabulary;
                kept.put_row(sequence, new_tokens, &logits[end - self.vocabulary..end]);
            }
            for (place, token) in sequences.new_ones() {
                if unmasked[place] as usize == step {
                    *token = trace[place];
                }
            }
        }
        Ok(kept)
    }
}

/// Whether the requests make sense for this model. Returns its mask.
fn check(work: &DenoiseWork, mask: Option<u32>, is_fed: bool) -> Result<u32, ServeError> {
    let refuse = |reason: String| Err(ServeError::Job(reason));
    let task: &Denoise = &work.how;
    let Some(mask) = mask else {
        return refuse("this model generates token by token: it has no mask to denoise".into());
    };
    if task.steps == 0 {
        return refuse("0 steps unmask nothing: give 1 or more".into());
    }
    if !(task.temperature >= 0.0 && task.temperature.is_finite()) {
        return refuse(format!("the temperature is {}: give 0 or more", task.temperature));
    }
    if !(task.alg_temp >= 0.0 && task.alg_temp.is_finite()) {
        return refuse(format!("alg_temp is {}: give 0 or more", task.alg_temp));
    }
    if !(0.0..1.0).contains(&task.eps) {
        return refuse(format!("eps is {}: give 0 or more, and less than 1", task.eps));
    }
    if task.top_k == Some(0) {
        return refuse("a top_k of 0 leaves no token: give 1 or more".into());
    }
    if let Some(share) = task.top_p.filter(|share| !(*share > 0.0 && *share <= 1.0)) {
        return refuse(format!("top_p is {share}: give a share above 0, up to 1"));
    }
    for case in &work.cases {
        check_prompts(&case.prompts, work.new_tokens)?;
        if case.prompts.iter().flatten().any(|&token| token == mask) {
            return refuse(format!(
                "the prompt holds the mask, token {mask}: it would be filled in like the rest"
            ));
        }
        if !is_fed && !work.forced {
            continue;
        }
        check_trace(&case.trace, &case.prompts, work.new_tokens)?;
        let is_within = |&step: &u32| (step as usize) < task.steps;
        if !fits(&case.unmasked, &case.prompts, work.new_tokens)
            || !case.unmasked.iter().flatten().all(is_within)
        {
            return refuse(
                "each token of a trace needs the step that unmasks it, from 0 and below the number of steps"
                    .into(),
            );
        }
    }
    Ok(mask)
}

// Which masked positions a step unmasks.

/// Selects positions; its buffers are reused for each step.
struct Selection {
    steps: usize,
    algorithm: Algorithm,
    alg_temp: f64,
    /// Times between steps, from 1 down to eps: one more than there are steps.
    times: Vec<f32>,
    /// Positions with their keys; the largest key is first.
    order: Vec<(f64, usize)>,
    selected: Vec<usize>,
}

impl Selection {
    fn new(task: &Denoise) -> Selection {
        Selection {
            steps: task.steps,
            algorithm: task.algorithm,
            alg_temp: task.alg_temp.into(),
            times: times(task.steps, task.eps),
            order: Vec::new(),
            selected: Vec::new(),
        }
    }

    /// Selects those of one sequence's `masked` places that this step unmasks: see [`Self::selected`].
    /// `uniform` gives numbers in (0, 1]. It is called once for each place if places are drawn, and else not
    /// at all.
    fn select(
        &mut self,
        step: usize,
        masked: &[usize],
        confidence: impl Fn(usize) -> f64,
        mut uniform: impl FnMut() -> f64,
    ) {
        self.selected.clear();
        let is_last = step + 1 == self.steps;
        // In f32, as in the published sampler, so that the number of places is cut off to the same integer.
        let share = 1.0 - self.times[step + 1] / self.times[step];
        if self.algorithm == Algorithm::Origin {
            for &place in masked {
                let drawn = uniform();
                if is_last || drawn <= f64::from(share) {
                    self.selected.push(place);
                }
            }
            return;
        }
        let count = if is_last { masked.len() } else { (masked.len() as f32 * share) as usize };
        self.order.clear();
        for &place in masked {
            let mut key = confidence(place);
            if self.alg_temp > 0.0 {
                // The largest of log-probability + Gumbel noise are draws without replacement (Kool and others 2019).
                key = key / self.alg_temp - (-uniform().ln()).ln();
            }
            self.order.push((key, place));
        }
        // The surest first, equals by position.
        self.order.sort_unstable_by(|a, b| b.0.total_cmp(&a.0).then(a.1.cmp(&b.1)));
        self.selected.extend(self.order.iter().take(count).map(|&(_, place)| place));
    }

    /// Those of the last step.
    fn selected(&self) -> &[usize] {
        &self.selected
    }
}

/// `steps` + 1 equal steps from 1 to `eps` in f32, each half counted from its own end, as torch.linspace does.
fn times(steps: usize, eps: f32) -> Vec<f32> {
    let step = (eps - 1.0) / steps as f32;
    let at = |index: usize| match index {
        _ if index < steps.div_ceil(2) => 1.0 + step * index as f32,
        _ => eps - step * (steps - index) as f32,
    };
    (0..=steps).map(at).collect()
}

// The choice of a token for one masked position, and its confidence.
//
// 1. Logits are divided by the temperature; at 0 they are taken as they are.
// 2. The fewest most likely tokens remain that reach `top_p` together, and of these the `top_k` most likely.
// 3. One of them is drawn by the inverse of the cumulative distribution, the most likely first and equals by id; at
//    temperature 0 it is the most likely, the lowest id of equals.
// 4. Its confidence is, by the algorithm, its probability, the most likely one's lead over the next, or minus the
//    entropy, Σ p · ln(p + 10⁻¹⁰).

/// Keeps the logarithm of a probability of 0 finite, as Dream's sampler does.
const EPSILON: f64 = 1e-10;

/// A token for a position, and how sure it is: the larger, the surer.
#[derive(Debug, Clone, Copy, PartialEq)]
struct Choice {
    token: u32,
    confidence: f64,
}

struct Chooser {
    algorithm: Algorithm,
    /// `None` if the most likely token is chosen.
    temperature: Option<f64>,
    top_p: Option<f64>,
    top_k: Option<usize>,
    candidates: Candidates,
}

impl Chooser {
    fn new(task: &Denoise, vocabulary: usize) -> Chooser {
        Chooser {
            algorithm: task.algorithm,
            temperature: (task.temperature > 0.0).then_some(f64::from(task.temperature)),
            top_p: task.top_p.filter(|&share| share < 1.0).map(f64::from),
            top_k: task.top_k.filter(|&count| count < vocabulary),
            candidates: Candidates::new(vocabulary),
        }
    }

    /// Whether [`Self::choose`] has use for a random number.
    fn draws(&self) -> bool {
        self.temperature.is_some()
    }

    /// Chooses for a position with these logits. If one of them is ∞, they have no distribution: takes the first of the
    /// largest, with a confidence below all others.
    fn choose(&mut self, logits: &[f32], uniform: f64) -> engine::Result<Choice> {
        let largest = maximum(logits);
        if !largest.is_finite() {
            return Ok(Choice { token: argmax(logits)?, confidence: f64::NEG_INFINITY });
        }
        let inverse_temperature = self.temperature.map_or(1.0, |temperature| 1.0 / temperature);
        let softmax = Softmax { largest: largest.into(), inverse_temperature };
        let is_filtered = self.top_p.is_some() || self.top_k.is_some();
        let mut mass = softmax.mass(logits);
        if is_filtered {
            mass = self.filter(logits, softmax, mass);
        }
        let (token, logit) = match self.temperature {
            None => (argmax(logits)?, largest),
            Some(_) => {
                if !is_filtered {
                    self.candidates.gather(logits, softmax, uniform * mass);
                }
                match self.candidates.at_mass(softmax, uniform * mass) {
                    Some(drawn) => drawn,
                    None => (argmax(logits)?, largest),
                }
            }
        };
        let probability = |logit: f32| softmax.weight(logit) / mass;
        let ln_mass = mass.ln();
        let ln_of = |logit: f32| (f64::from(logit) - softmax.largest) * inverse_temperature - ln_mass;
        let confidence = match self.algorithm {
            Algorithm::Origin | Algorithm::MaskgitPlus => probability(logit),
            Algorithm::TopkMargin if is_filtered => margin(self.candidates.logits(), probability),
            Algorithm::TopkMargin => margin(logits.iter().copied(), probability),
            Algorithm::Entropy if is_filtered => {
                self.candidates.logits().map(|logit| term(probability(logit), ln_of(logit))).sum()
            }
            Algorithm::Entropy => logits.iter().map(|&logit| term(probability(logit), ln_of(logit))).sum(),
        };
        Ok(Choice { token, confidence })
    }

    /// Keeps the candidates that may be drawn; returns their mass.
    fn filter(&mut self, logits: &[f32], softmax: Softmax, mass: f64) -> f64 {
        let candidates = &mut self.candidates;
        match (self.top_p, self.top_k) {
            (Some(share), top_k) => {
                candidates.gather(logits, softmax, share * mass);
                let reached = candidates.keep_mass(softmax, share * mass);
                match top_k {
                    None => reached,
                    Some(count) => {
                        candidates.keep_count(count);
                        candidates.mass(softmax)
                    }
                }
            }
            (None, Some(count)) => {
                candidates.keep_largest(logits, count);
                candidates.mass(softmax)
            }
            (None, None) => mass,
        }
    }
}

/// The most likely one's probability less the next one's; of a single one, its own.
fn margin(logits: impl Iterator<Item = f32>, probability: impl Fn(f32) -> f64) -> f64 {
    let (mut first, mut second) = (f32::NEG_INFINITY, f32::NEG_INFINITY);
    for logit in logits {
        if logit > first {
            (first, second) = (logit, first);
        } else if logit > second {
            second = logit;
        }
    }
    let next = if second.is_finite() { probability(second) } else { 0.0 };
    probability(first) - next
}

/// p · ln(p + ε), given ln p, which is a logit less a constant. A logarithm of each of 150,000 tokens would take
/// milliseconds a position: where p and ε are far apart three terms of the series are exact to the last digit.
fn term(p: f64, ln_p: f64) -> f64 {
    const LN_EPSILON: f64 = -23.025_850_929_940_457;
    const FAR: f64 = 1e-5;
    let ratio = EPSILON / p;
    if ratio < FAR {
        p * (ln_p + ratio * (1.0 - ratio / 2.0 + ratio * ratio / 3.0))
    } else if ratio > 1.0 / FAR {
        let ratio = p / EPSILON;
        p * (LN_EPSILON + ratio * (1.0 - ratio / 2.0 + ratio * ratio / 3.0))
    } else {
        p * (p + EPSILON).ln()
    }
}

#[cfg(test)]
mod unit {
    use super::*;

    #[test]
    fn entropy_is_that_of_plain_logarithms_near_and_far_from_epsilon() {
        for p in [1.0, 0.3, 1e-4, 1.1e-5, 0.9e-5, 1e-7, 1e-10, 1e-13, 1e-14, 1e-15, 1e-16, 1e-40] {
            let (ours, plain) = (term(p, p.ln()), p * (p + EPSILON).ln());
            assert!((ours - plain).abs() <= 1e-12 * plain.abs() + 1e-15, "p = {p}: {ours}, not {plain}");
        }
        assert_eq!(term(0.0, f64::NEG_INFINITY), 0.0);
    }
}
