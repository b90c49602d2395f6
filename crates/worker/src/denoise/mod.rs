//! Generation by masked diffusion: every step is a pass over all positions and unmasks some of them.
//!
//! The method is that of Dream (Ye and others 2025), and the same for every engine: `docs/protocol.md` has its steps.
//! Random numbers come from ChaCha8, seeded; each case has a stream of its own. A step takes one
//! for each masked position where tokens are drawn, then one for each where positions are, sequence by sequence, so that
//! equal logits give equal tokens.

mod choice;
mod selection;

use engine::{InferenceEngine, Want};
use protocol::{Case, CaseSample, Denoise};
use rand::distr::OpenClosed01;
use rand::{RngExt, SeedableRng};
use rand_chacha::ChaCha8Rng;

use crate::clock;
use crate::error::ServeError;
use choice::{Choice, Chooser};
use selection::Selection;

/// Fills in the masks of sequences.
pub(crate) struct Denoiser {
    task: Denoise,
    mask: u32,
    vocabulary: usize,
    chooser: Chooser,
    selection: Selection,
    random: ChaCha8Rng,
    /// `[batch][new tokens]`: what each position would become by the last pass; those that were masked alone are new.
    choices: Vec<Choice>,
    /// `[batch][new tokens]`: whether the last step unmasks it.
    chosen: Vec<bool>,
}

/// One batch of sequences while its masks are filled in.
struct Sequences {
    prompt: usize,
    new_tokens: usize,
    /// `[batch, prompt + new tokens]`
    tokens: Vec<u32>,
}

impl Sequences {
    fn new(case: &Case, new_tokens: usize, mask: u32) -> Sequences {
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

impl Denoiser {
    /// [`check`] comes before.
    pub(crate) fn new(task: &Denoise, mask: u32, vocabulary: usize) -> Denoiser {
        Denoiser {
            task: *task,
            mask,
            vocabulary,
            chooser: Chooser::new(task, vocabulary),
            selection: Selection::new(task),
            random: ChaCha8Rng::seed_from_u64(task.seed),
            choices: Vec::new(),
            chosen: Vec::new(),
        }
    }

    /// One request, up to so many steps, and the clock's reading at its start. With `forced`, each step is fed the state
    /// that the case's trace has.
    pub(crate) fn request<E: InferenceEngine>(
        &mut self,
        engine: &mut E,
        (index, case): (usize, &Case),
        new_tokens: usize,
        (steps, forced): (usize, bool),
    ) -> Result<(u64, CaseSample), ServeError> {
        let mut sequences = Sequences::new(case, new_tokens, self.mask);
        let (batch, count) = (case.prompts.len(), case.prompts.len() * new_tokens);
        let mut sample = CaseSample {
            gaps_ns: Vec::with_capacity(steps),
            sampler_ns: Vec::with_capacity(steps),
            ..CaseSample::default()
        };
        let mut tokens = vec![self.mask; count];
        // Beyond the last step: what is never unmasked.
        let mut unmasked = vec![self.task.steps as u32; count];
        let trace = (case.trace.concat(), case.unmasked.concat());
        self.begin(index, count);

        let start = clock::now_ns();
        let mut last = start;
        for step in 0..steps {
            engine.begin(batch, sequences.length())?;
            let logits = engine.append(&sequences.tokens, Want::All)?;
            let passed = clock::now_ns();
            self.step(step, logits, &sequences, batch);
            let now_at = step as u32;
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
            let now = clock::now_ns();
            if step == 0 {
                sample.first_token_ns = now - last;
            } else {
                sample.gaps_ns.push(now - last);
            }
            sample.sampler_ns.push(now - passed);
            last = now;
        }
        let rows = |values: &[u32]| values.chunks_exact(new_tokens).map(<[u32]>::to_vec).collect();
        (sample.tokens, sample.unmasked) = (rows(&tokens), rows(&unmasked));
        Ok((start, sample))
    }

    fn begin(&mut self, case: usize, count: usize) {
        self.random.set_stream(case as u64);
        self.random.set_word_pos(0);
        self.choices.clear();
        self.choices.resize(count, Choice { token: self.mask, confidence: f64::NEG_INFINITY });
        self.chosen.clear();
        self.chosen.resize(count, false);
    }

    /// Chooses a token for every masked position, and which of these positions are unmasked now.
    fn step(&mut self, step: usize, logits: &[f32], sequences: &Sequences, batch: usize) {
        let new_tokens = sequences.new_tokens;
        self.chosen.fill(false);
        for sequence in 0..batch {
            let places = sequence * new_tokens..(sequence + 1) * new_tokens;
            let start = sequence * sequences.length() + sequences.prompt;
            let masked =
                places.clone().filter(|place| sequences.tokens[start + place - places.start] == self.mask);
            let masked: Vec<usize> = masked.collect();
            for &place in &masked {
                let uniform = if self.chooser.draws() { self.random.sample(OpenClosed01) } else { 1.0 };
                let row = sequences.row(logits, place, self.vocabulary);
                self.choices[place] = self.chooser.choose(row, uniform);
            }
            let (choices, random) = (&self.choices, &mut self.random);
            let drawn = || random.sample(OpenClosed01);
            self.selection.select(step, &masked, |place| choices[place].confidence, drawn);
            for &place in self.selection.selected() {
                self.chosen[place] = true;
            }
        }
    }

    /// The logits by which the case's trace was unmasked: see [`protocol::ParityTask`]. `[batch, 1 + new tokens,
    /// vocabulary]`.
    pub(crate) fn along_trace<E: InferenceEngine>(
        &self,
        engine: &mut E,
        case: &Case,
        mut keep: impl FnMut(usize, usize, &[f32]),
    ) -> Result<(), ServeError> {
        let new_tokens = case.trace[0].len();
        let mut sequences = Sequences::new(case, new_tokens, self.mask);
        let (trace, unmasked) = (case.trace.concat(), case.unmasked.concat());
        let batch = case.prompts.len();
        for step in 0..self.task.steps {
            let is_last = step + 1 == self.task.steps;
            // A step that unmasks nothing tells nothing.
            if !is_last && !unmasked.contains(&(step as u32)) {
                continue;
            }
            engine.begin(batch, sequences.length())?;
            let logits = engine.append(&sequences.tokens, Want::All)?;
            for place in (0..trace.len()).filter(|&place| unmasked[place] as usize == step) {
                let row = sequences.row(logits, place, self.vocabulary);
                keep(place / new_tokens, place % new_tokens, row);
            }
            for sequence in (0..batch).filter(|_| is_last) {
                let end = (sequence + 1) * sequences.length() * self.vocabulary;
                keep(sequence, new_tokens, &logits[end - self.vocabulary..end]);
            }
            for (place, token) in sequences.new_ones() {
                if unmasked[place] as usize == step {
                    *token = trace[place];
                }
            }
        }
        Ok(())
    }
}

/// Whether these numbers make sense, and the case can be denoised.
pub(crate) fn check(task: &Denoise, mask: Option<u32>, cases: &[Case]) -> Result<u32, ServeError> {
    let refuse = |reason: String| Err(ServeError::Job(reason));
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
    for case in cases {
        if !case.context.is_empty() {
            return refuse(
                "masked diffusion keeps nothing from one pass to the next: leave the context out".into(),
            );
        }
        if case.prompts.iter().flatten().any(|&token| token == mask) {
            return refuse(format!(
                "the prompt holds the mask, token {mask}: it would be filled in like the rest"
            ));
        }
    }
    Ok(mask)
}

#[cfg(test)]
mod tests;
