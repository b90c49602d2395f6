//! The reference run: what everyone is fed while being timed, and held against afterwards.

use bundle::Precision;
use protocol::{Event, Generate, ParityTask, Task};

use crate::evidence::Evidence;
use crate::interrupt;
use crate::judge::parity::{self, Reference};
use crate::plan::Contender;
use crate::record::RunFailure;
use crate::rounds::{PARITY_STEPS, Session};

impl Session<'_> {
    /// Lets the first contender that can do it continue the prompts in f32.
    pub(crate) fn reference(&self, evidence: &mut Evidence) -> Option<Reference> {
        let mut candidates: Vec<usize> = (0..self.plan.contenders.len()).collect();
        if let Some(asked) = &self.plan.reference {
            candidates.retain(|&index| self.plan.contenders[index].engine.name == *asked);
        }
        candidates.retain(|&index| !evidence.absent.contains_key(&self.plan.contenders[index].label));
        let mut reasons = Vec::new();
        for index in candidates {
            let contender = &self.plan.contenders[index];
            self.progress.message(&format!("reference: {} in f32", contender.label));
            match self.reference_by(index) {
                Ok(reference) => return Some(reference),
                Err(reason) => reasons.push(format!("{}: {reason}", contender.label)),
            }
            if interrupt::requested() {
                break;
            }
        }
        evidence.no_reference =
            Some(if reasons.is_empty() { "no framework can run".into() } else { reasons.join("; ") });
        None
    }

    fn reference_by(&self, index: usize) -> std::result::Result<Reference, String> {
        let contender = Contender { precision: Precision::F32, ..self.plan.contenders[index].clone() };
        let file = self.scratch.path().join("reference.safetensors");
        let task = Task::Generate(Generate {
            prompts: self.plan.case_prompts(),
            new_tokens: self.plan.new_tokens,
            parity: Some(ParityTask { steps: PARITY_STEPS, file: file.display().to_string() }),
        });
        let outcome = self.workers[index].run(&self.job(&contender, task));
        if let Some(failure) = RunFailure::of(outcome.ending) {
            return Err(failure.sentence());
        }
        let traces = outcome.events.into_iter().find_map(|event| match event {
            Event::Generated(generated) => Some(generated.tokens),
            _ => None,
        });
        let traces = traces.ok_or("it generated nothing")?;
        let rows = |case: &Vec<Vec<u32>>| {
            case.len() == self.plan.batch && case.iter().all(|row| row.len() == self.plan.new_tokens)
        };
        if traces.len() != self.plan.prompts.len() || !traces.iter().all(rows) {
            return Err("it did not generate the tokens asked for".into());
        }
        let logits = parity::read_logits(&file)?;
        let positions = |(case, prompt): (&parity::Logits, &crate::prompts::Prompt)| {
            case.batch == self.plan.batch && case.positions == prompt.tokens.len() + self.plan.new_tokens
        };
        if logits.len() != traces.len() || !logits.iter().zip(&self.plan.prompts).all(positions) {
            return Err("its logits do not have the shape of the prompts".into());
        }
        Ok(Reference { framework: contender.label, traces, logits })
    }

    pub(crate) fn fallback_traces(&self) -> Vec<Vec<Vec<u32>>> {
        let continued =
            |prompt: &Vec<u32>| prompt.iter().copied().cycle().take(self.plan.new_tokens).collect();
        self.plan.case_prompts().iter().map(|case| case.iter().map(continued).collect()).collect()
    }
}
