//! The reference run: it gives the tokens that everyone is fed while being timed, and the outputs to compare with
//! afterwards.

use bundle::Precision;
use protocol::{Event, Generate, Generated, ParityTask, Task};

use crate::fed::References;
use crate::interrupt;
use crate::logits;
use crate::session::{PARITY_STEPS, Session};
use facts::evidence::Fact;
use facts::run::RunFailure;
use judge::logits::Logits;
use judge::parity::Reference;
use plan::{Contender, KvPrecision};

impl Session<'_> {
    /// Lets the first contender that can do it continue the prompts in f32: with the weights themselves or, at a
    /// quantised precision, with the numbers that their codes and scales stand for.
    pub(crate) fn reference(&mut self) -> Option<References> {
        let mut candidates: Vec<usize> = (0..self.plan.contenders.len()).collect();
        if let Some(asked) = &self.plan.reference {
            candidates.retain(|&index| self.plan.contenders[index].engine.name == *asked);
        }
        candidates.retain(|&index| !self.is_absent(&self.plan.contenders[index]));
        let mut reasons = Vec::new();
        for index in candidates {
            let contender = &self.plan.contenders[index];
            self.progress.message(&format!("reference: {} in f32", contender.label));
            match self.reference_by(index) {
                Ok(own) => return Some(References::new(index, own)),
                Err(reason) => reasons.push(format!("{}: {reason}", contender.label)),
            }
            if interrupt::requested() {
                break;
            }
        }
        let reason = if reasons.is_empty() { "no framework can run".into() } else { reasons.join("; ") };
        self.tell(Fact::NoReference { reason });
        None
    }

    pub(crate) fn reference_by(&self, index: usize) -> std::result::Result<Reference, String> {
        let precision = self.reference_precision();
        let file = self.scratch.path().join("reference.safetensors");
        let task = Task::Generate(Generate {
            prompts: self.plan.prefixes(),
            new_tokens: self.plan.new_tokens,
            sampling: None,
            denoise: self.plan.denoise,
            parity: Some(ParityTask {
                steps: PARITY_STEPS,
                file: file.display().to_string(),
                prompt_last_only: self.plan.prompt_last_only,
            }),
        });
        let events = self.reference_job(index, precision, task)?;
        let generated = events.into_iter().find_map(|event| match event {
            Event::Generated(generated) => Some(generated),
            _ => None,
        });
        let generated = generated.ok_or("it generated nothing")?;
        if !self.is_whole(&generated) {
            return Err("it did not generate the tokens asked for".into());
        }
        let traces = &generated.tokens;
        let logits = logits::read_parity(&file, &self.parity_shapes());
        // No contender may find it.
        let _ = std::fs::remove_file(&file);
        let logits = logits?;
        if logits.len() != traces.len() {
            return Err("its logits do not have the shape of the prompts".into());
        }
        for (case, logits) in logits.iter().enumerate() {
            self.check_shape(case, logits)?;
        }
        let unquantised = self.unquantised(index, traces)?;
        Ok(Reference { framework: self.plan.contenders[index].label.clone(), generated, logits, unquantised })
    }

    /// Whether there is a token for each that was asked for and, of masked diffusion, the step that unmasks it.
    fn is_whole(&self, generated: &Generated) -> bool {
        let has_all = |cases: &[Vec<Vec<u32>>]| {
            let rows = |case: &Vec<Vec<u32>>| {
                case.len() == self.plan.batch && case.iter().all(|row| row.len() == self.plan.new_tokens)
            };
            cases.len() == self.plan.prompts.len() && cases.iter().all(rows)
        };
        let steps = self.plan.denoise.map_or(0, |denoise| denoise.steps as u32);
        let in_steps = || generated.unmasked.iter().flatten().flatten().all(|&step| step < steps);
        has_all(&generated.tokens) && (steps == 0 || has_all(&generated.unmasked) && in_steps())
    }

    /// The precision whose numbers the reference computes with: f32, or dequantised codes.
    pub(crate) fn reference_precision(&self) -> Precision {
        if self.plan.precision.is_quantised() { self.plan.precision } else { Precision::F32 }
    }

    /// The shape of the logits of sequences, which have one length.
    pub(crate) fn score_shape(&self, sequences: &[Vec<u32>]) -> logits::Shape {
        [sequences.len(), sequences.first().map_or(0, Vec::len), self.vocabulary()]
    }

    pub(crate) fn reference_job(
        &self,
        index: usize,
        precision: Precision,
        task: Task,
    ) -> std::result::Result<Vec<Event>, String> {
        let cache = Some(KvPrecision::F32);
        let contender = Contender { precision, kv_precision: cache, ..self.plan.contenders[index].clone() };
        let mut job = self.job(&contender, task);
        job.settings.dequantised = precision.is_quantised();
        let outcome = self.run_job(index, &job);
        match RunFailure::from_ending(outcome.ending) {
            Some(failure) => Err(failure.sentence()),
            None => Ok(outcome.events),
        }
    }

    pub(crate) fn check_shape(&self, case: usize, logits: &Logits) -> std::result::Result<(), String> {
        let positions = self.plan.judged_positions(case);
        if (logits.batch, logits.positions) == (self.plan.batch, positions) {
            return Ok(());
        }
        Err("its logits do not have the shape of the prompts".into())
    }

    /// The prompts' own tokens, repeated: what is fed where no contender can give a reference, so that work stays equal.
    pub(crate) fn fallback_traces(&self) -> Generated {
        let continued =
            |prompt: &Vec<u32>| prompt.iter().copied().cycle().take(self.plan.new_tokens).collect();
        let tokens: Vec<Vec<Vec<u32>>> =
            self.plan.case_prompts().iter().map(|case| case.iter().map(continued).collect()).collect();
        // From left to right, as many in each step.
        let step = |place: usize, steps: usize| (place * steps / self.plan.new_tokens) as u32;
        let unmasked = self.plan.denoise.map(|denoise| {
            let row =
                |_: &Vec<u32>| (0..self.plan.new_tokens).map(|place| step(place, denoise.steps)).collect();
            tokens.iter().map(|case| case.iter().map(row).collect()).collect()
        });
        Generated { tokens, unmasked: unmasked.unwrap_or_default() }
    }
}
