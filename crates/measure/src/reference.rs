//! The reference run: it gives the tokens that all contenders are fed while being timed, and the outputs for
//! later comparison.

use bundle::Precision;
use protocol::{Answer, Event, Output, Task};

use crate::crew::Crew;
use crate::fed::References;
use crate::interrupt;
use crate::logits;
use crate::session::Session;
use facts::evidence::Fact;
use facts::run::RunFailure;
use judge::parity::Reference;
use judge::parity::logits::Logits;
use plan::{Contender, KvPrecision, Work};

/// The framework that gives the reference of an ONNX file without graph optimisation.
const ORT: &str = "ort";

/// The outputs of a job that answers; `None` if it did not.
pub(crate) fn answers(events: Vec<Event>) -> Option<Vec<Output>> {
    events.into_iter().find_map(|event| match event {
        Event::Answered(answered) => Some(answered.outputs),
        _ => None,
    })
}

impl Session<'_> {
    /// Lets the first contender that can do it continue the prompts in f32; for an ONNX file, ONNX Runtime
    /// comes before others. It uses the weights themselves or, at a quantised precision, the dequantised
    /// weights.
    pub(crate) fn reference(&mut self) -> Option<References> {
        let mut candidates: Vec<usize> = (0..self.crew.plan.contenders.len()).collect();
        if let Some(asked) = &self.crew.plan.reference {
            candidates.retain(|&index| self.crew.plan.contenders[index].engine.name == *asked);
        }
        if matches!(self.crew.plan.work, Work::Graph(_)) {
            // ONNX Runtime can run a file exactly as it is written.
            candidates.sort_by_key(|&index| self.crew.plan.contenders[index].engine.framework != ORT);
        }
        candidates.retain(|&index| !self.recorder.is_absent(&self.crew.plan.contenders[index]));
        let mut reasons = Vec::new();
        for index in candidates {
            let contender = &self.crew.plan.contenders[index];
            self.crew.progress.message(&format!("reference: {} in f32", contender.label));
            match self.crew.reference_by(index) {
                Ok(own) => return Some(References::new(index, own)),
                Err(reason) => reasons.push(format!("{}: {reason}", contender.label)),
            }
            if interrupt::requested() {
                break;
            }
        }
        let reason = if reasons.is_empty() { "no framework can run".into() } else { reasons.join("; ") };
        self.recorder.record(Fact::NoReference { reason });
        None
    }
}

impl Crew<'_> {
    pub(crate) fn reference_by(&self, index: usize) -> std::result::Result<Reference, String> {
        let precision = self.reference_precision();
        let file = self.scratch.path().join("reference.safetensors");
        let task =
            Task::Answer(Answer { work: self.plan.work.of_reference(), parity: self.parity_task(&file) });
        let outputs = self.joined(self.answered(index, precision, task)?);
        let is_whole = |(case, output): (usize, &Output)| self.plan.work.is_whole(case, output);
        if outputs.len() != self.plan.work.cases() || !outputs.iter().enumerate().all(is_whole) {
            return Err("it did not compute the outputs asked for".into());
        }
        let shapes = self.parity_shapes();
        let of_reference = match self.plan.work.is_mixed() {
            false => shapes.clone(),
            true => shapes.iter().flat_map(|&[batch, rows, width]| vec![[1, rows, width]; batch]).collect(),
        };
        let logits =
            if shapes.is_empty() { Ok(Vec::new()) } else { logits::read_parity(&file, &of_reference) };
        // No contender may find it.
        let _ = std::fs::remove_file(&file);
        let logits = self.joined_logits(logits?);
        if logits.len() != shapes.len() {
            return Err("its logits do not have the shape of the prompts".into());
        }
        for (case, logits) in logits.iter().enumerate() {
            self.check_shape(case, logits)?;
        }
        Ok(Reference {
            framework: self.plan.contenders[index].label.clone(),
            inputs: Vec::new(),
            outputs,
            logits,
            unquantised: None,
        })
    }

    /// Outputs by case, of a reference that computed each sequence of a mixed batch as a case of its own.
    fn joined(&self, outputs: Vec<Output>) -> Vec<Output> {
        if !self.plan.work.is_mixed() {
            return outputs;
        }
        let joined = |rows: &[Output]| rows.iter().flat_map(|row| row.tokens().to_vec()).collect();
        outputs.chunks(self.plan.work.batch()).map(|rows| Output::Tokens(joined(rows))).collect()
    }

    /// The same for logits.
    fn joined_logits(&self, logits: Vec<Logits>) -> Vec<Logits> {
        if !self.plan.work.is_mixed() {
            return logits;
        }
        let joined = |rows: &[Logits]| {
            let Logits { positions, vocabulary, .. } = rows[0];
            let is_alike = |row: &&Logits| (row.positions, row.vocabulary) == (positions, vocabulary);
            let batch = rows.iter().filter(is_alike).map(|row| row.batch).sum();
            let values = rows.iter().flat_map(|row| row.values.iter().copied()).collect();
            Logits { batch, positions, vocabulary, values }
        };
        logits.chunks(self.plan.work.batch()).map(joined).collect()
    }

    /// The outputs of a job that answers.
    pub(crate) fn answered(
        &self,
        index: usize,
        precision: Precision,
        task: Task,
    ) -> std::result::Result<Vec<Output>, String> {
        answers(self.reference_job(index, precision, task)?).ok_or_else(|| "it answered nothing".into())
    }

    /// The precision of the reference's weights: f32, or dequantised codes.
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
        let mut contender = Contender { precision, ..self.plan.contenders[index].clone() };
        contender.cache.precision = Some(KvPrecision::F32);
        let is_unchanged = matches!(self.plan.work, Work::Graph(_)) && contender.engine.framework == ORT;
        let contender = Contender { jit: contender.jit && !is_unchanged, ..contender };
        let mut job = self.job(&contender, task);
        job.settings.dequantised = precision.is_quantised();
        let outcome = self.run_job(index, &job);
        match RunFailure::from_ending(outcome.ending) {
            Some(failure) => Err(failure.sentence()),
            None => Ok(outcome.events),
        }
    }

    pub(crate) fn check_shape(&self, case: usize, logits: &Logits) -> std::result::Result<(), String> {
        let shape = (self.plan.work.judged_sequences(), self.plan.work.judged_positions(case));
        if (logits.batch, Some(logits.positions)) == shape {
            return Ok(());
        }
        Err("its logits do not have the shape of the prompts".into())
    }
}
