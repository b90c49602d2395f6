//! The reference run: it gives the tokens that everyone is fed while being timed, and the outputs to compare with
//! afterwards.

use bundle::Precision;
use protocol::{Answer, Event, Output, ParityTask, Steps, Task};

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
        let task = Task::Answer(Answer {
            work: self.plan.own_work(self.plan.prefixes()),
            parity: Some(ParityTask {
                steps: PARITY_STEPS,
                file: file.display().to_string(),
                prompt_last_only: self.plan.prompt_last_only,
            }),
        });
        let events = self.reference_job(index, precision, task)?;
        let outputs = events.into_iter().find_map(|event| match event {
            Event::Answered(answered) => Some(answered.outputs),
            _ => None,
        });
        let outputs = outputs.ok_or("it answered nothing")?;
        if !self.is_whole(&outputs) {
            return Err("it did not generate the tokens asked for".into());
        }
        let logits = logits::read_parity(&file, &self.parity_shapes());
        // No contender may find it.
        let _ = std::fs::remove_file(&file);
        let logits = logits?;
        if logits.len() != outputs.len() {
            return Err("its logits do not have the shape of the prompts".into());
        }
        for (case, logits) in logits.iter().enumerate() {
            self.check_shape(case, logits)?;
        }
        Ok(Reference {
            framework: self.plan.contenders[index].label.clone(),
            outputs,
            logits,
            unquantised: None,
        })
    }

    /// Whether there is a token for each that was asked for and, of masked diffusion, the step that unmasks it.
    fn is_whole(&self, outputs: &[Output]) -> bool {
        let has_all = |rows: &[Vec<u32>]| {
            rows.len() == self.plan.batch && rows.iter().all(|row| row.len() == self.plan.new_tokens)
        };
        let is_whole = |output: &Output| match (self.plan.denoise, output) {
            (None, Output::Tokens(tokens)) => has_all(tokens),
            (Some(denoise), Output::Steps(steps)) => {
                let in_steps = |&step: &u32| (step as usize) < denoise.steps;
                let unmasked = &steps.unmasked;
                has_all(&steps.tokens) && has_all(unmasked) && unmasked.iter().flatten().all(in_steps)
            }
            _ => false,
        };
        outputs.len() == self.plan.prompts.len() && outputs.iter().all(is_whole)
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
    pub(crate) fn fallback_traces(&self) -> Vec<Output> {
        let new_tokens = self.plan.new_tokens;
        let continued = |prompt: &Vec<u32>| prompt.iter().copied().cycle().take(new_tokens).collect();
        let output = |prompts: Vec<Vec<u32>>| {
            let tokens: Vec<Vec<u32>> = prompts.iter().map(continued).collect();
            match self.plan.denoise {
                None => Output::Tokens(tokens),
                Some(denoise) => {
                    // From left to right, as many in each step.
                    let step = |place: usize| (place * denoise.steps / new_tokens) as u32;
                    let unmasked = vec![(0..new_tokens).map(step).collect(); tokens.len()];
                    Output::Steps(Steps { tokens, unmasked, passes_ns: Vec::new() })
                }
            }
        };
        self.plan.case_prompts().into_iter().map(output).collect()
    }
}
