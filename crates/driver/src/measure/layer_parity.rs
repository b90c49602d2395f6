//! The processes of `photofinish parity`, one for each job.

use bundle::Precision;
use comparison::facts::agreement::VectorAgreement;
use comparison::facts::evidence::{End, Evidence, Fact};
use comparison::facts::run::{FailureKind, RunFailure};
use comparison::judge::parity::layers::{self, LayerDifference, LayerSums};
use comparison::judge::parity::{
    self, ContenderParity, Continuation, Findings, Reference, Repeated, Tolerance,
};
use comparison::plan::work::Describe;
use comparison::plan::{Contender, Prose, Result};
use protocol::{Answer, Event, InEffect, Output, Score, Task, TextBatch};
use tempfile::TempPath;

use crate::measure::crew::Crew;
use crate::measure::logits;
use crate::measure::process::now;
use crate::measure::reference::RunWork;
use crate::measure::reference::answers;
use crate::measure::results::Results;
use crate::measure::session::Session;
use crate::measure::texts::{TextReference, scratch_file};
use crate::measure::{machine, progress};

/// Tokens by `[prompt][batch][new tokens]`.
type Tokens = Vec<Vec<Vec<u32>>>;
type Tried<T> = std::result::Result<T, RunFailure>;
/// The shapes of logits, if there are any, and of every hidden state that there may be.
type Shapes = (Option<logits::Shape>, Vec<logits::Shape>);

/// Hidden states and logits of every prompt with its continuation, or of every batch of texts, in files of the scratch
/// directory.
struct States {
    files: Vec<TempPath>,
    /// Of each file.
    shapes: Vec<Shapes>,
    in_effect: Option<InEffect>,
    no_layers: Option<String>,
}

impl Session<'_> {
    /// Runs every job. In any case, the findings so far are returned. `prose`: the text of the perplexity.
    pub fn parity(
        mut self,
        prose: Option<std::result::Result<Prose, String>>,
    ) -> Result<(Findings, Evidence, Results)> {
        self.recorder.record(Fact::Quota { cpus: machine::quota() });
        self.handshake()?;
        let mut findings = Findings::default();
        let states = self.parity_reference(&mut findings);
        let text = prose.and_then(|prose| self.crew.text_for_all(prose, &mut findings));
        for index in 0..self.crew.plan.contenders.len() {
            let found = self.found(index, states.as_ref(), text.as_ref(), &findings);
            findings.contenders.push(found);
        }
        let traces = findings.reference.as_ref().map(|reference| reference.outputs.clone());
        let traces = traces.unwrap_or_else(|| self.crew.plan.work.fallback_outputs());
        // Outputs were compared above; the rounds only measure how much the speed of decoding varies.
        let end = match self.crew.plan.work.generate() {
            Some(_) => self.rounds(&RunWork { references: None, traces, parity: false, begun: now() }),
            None => End::default(),
        };
        let end = if progress::requested() { End::Interrupted } else { end };
        self.recorder.record(Fact::End { end });
        for (found, contender) in findings.contenders.iter_mut().zip(&self.crew.plan.contenders) {
            let late = || self.recorder.evidence.absent.get(&contender.label).cloned();
            found.failure = found.failure.take().or_else(late);
        }
        let (evidence, results) = self.finish();
        Ok((findings, evidence, results))
    }

    /// Runs every untimed job of one contender. Returns the reason if it could not continue.
    fn found(
        &mut self,
        index: usize,
        states: Option<&States>,
        text: Option<&(Prose, Option<TextReference>)>,
        findings: &Findings,
    ) -> ContenderParity {
        let mut found = ContenderParity::default();
        let label = self.crew.plan.contenders[index].label.clone();
        if let Some(failure) = self.recorder.evidence.absent.get(&label) {
            found.failure = Some(failure.clone());
        } else if !progress::requested() {
            let what =
                if self.crew.plan.work.generate().is_some() { "continuations, text" } else { "vectors" };
            self.crew.progress.message(&format!("{label}: layers, {what}"));
            let reference = findings.reference.as_ref().zip(states);
            if let Err(failure) = self.crew.hold(index, reference, text, &mut found) {
                if failure.kind != FailureKind::Interrupted {
                    self.crew.progress.say(&format!("{label}: {}", failure.sentence()));
                }
                self.recorder.record(Fact::Absent { framework: label, failure: failure.clone() });
                found.failure = Some(failure);
            }
        }
        found
    }

    /// The first candidate that returns hidden states; if there is none, the first that runs at all.
    fn parity_reference(&mut self, findings: &mut Findings) -> Option<States> {
        let mut reasons = Vec::new();
        let mut second_best = None;
        for (index, contender) in self.crew.plan.contenders.iter().enumerate() {
            let asked = self.crew.plan.reference.as_ref().is_none_or(|name| contender.engine.name == *name);
            if !asked || self.recorder.is_absent(contender) || progress::requested() {
                continue;
            }
            self.crew
                .progress
                .message(&format!("computing the reference output: {} in f32", contender.label));
            let quantised = self.crew.plan.precision.is_quantised();
            let precision = if quantised { self.crew.plan.precision } else { Precision::F32 };
            let in_f32 = Contender { precision, ..contender.clone() };
            let tried = self.crew.reference_by(index).and_then(|reference| {
                let states = self.crew.states(index, &in_f32, quantised, &reference.outputs);
                Ok((reference, states.map_err(|failure| failure.sentence())?))
            });
            match tried {
                Ok((reference, states)) if states.no_layers.is_none() => {
                    findings.reference = Some(reference);
                    return Some(states);
                }
                Ok(tried) => second_best = second_best.or(Some(tried)),
                Err(reason) => reasons.push(format!("{}: {reason}", contender.label)),
            }
        }
        if let Some((reference, states)) = second_best {
            findings.reference = Some(reference);
            findings.reference_without_layers.clone_from(&states.no_layers);
            return Some(states);
        }
        let reason = if reasons.is_empty() { "no framework can run".into() } else { reasons.join("; ") };
        self.recorder.record(Fact::NoReference { reason });
        None
    }
}

impl Crew<'_> {
    fn text_for_all(
        &self,
        prose: std::result::Result<Prose, String>,
        findings: &mut Findings,
    ) -> Option<(Prose, Option<TextReference>)> {
        let prose = prose.map_err(|reason| findings.no_text = Some(reason)).ok()?;
        self.progress.message("reference: the bundled text in f32");
        let reference = self.text_reference(&prose);
        let reference = reference.map_err(|reason| findings.no_text = Some(reason)).ok();
        findings.text_reference = reference.as_ref().map(|reference| reference.framework.clone());
        Some((prose, reference))
    }

    fn hold(
        &self,
        index: usize,
        reference: Option<(&Reference, &States)>,
        text: Option<&(Prose, Option<TextReference>)>,
        found: &mut ContenderParity,
    ) -> Tried<()> {
        let contender = &self.plan.contenders[index];
        let names: Vec<&str> =
            (0..self.plan.work.cases()).map(|case| self.plan.work.case_name(case)).collect();
        if let Some((reference, theirs)) = reference {
            let ours = self.states(index, contender, false, &reference.outputs)?;
            found.in_effect.clone_from(&ours.in_effect);
            found.no_layers.clone_from(&ours.no_layers);
            found.layers =
                compare(theirs, &ours, (layers::limit(contender), self.has_final_norm())).map_err(failed)?;
        }
        if self.plan.work.generate().is_none() {
            return self.hold_vectors(index, reference.map(|(reference, _)| reference), found);
        }
        let first = self.continued(index)?;
        let second = self.continued(index)?;
        found.repeated = Some(match parity::first_difference(&first, &second, &names) {
            None => Repeated::Same,
            Some((prompt, token)) => Repeated::Differs { prompt, token },
        });
        if let Some((reference, _)) = reference {
            let tie = Tolerance::for_contender(contender).tie;
            found.continuation = Some(Continuation::new(reference, &first, &names, tie));
        }
        if let Some((prose, reference)) = text {
            found.text = Some(self.score_text(index, prose, reference.as_ref()));
        }
        Ok(())
    }

    /// The vectors of two processes, compared with each other and with the reference's.
    fn hold_vectors(
        &self,
        index: usize,
        reference: Option<&Reference>,
        found: &mut ContenderParity,
    ) -> Tried<()> {
        let [first, second] = [self.encoded(index)?, self.encoded(index)?];
        let bits = |cases: &[Vec<Vec<f32>>]| -> Vec<u32> {
            cases.iter().flatten().flatten().map(|number| number.to_bits()).collect()
        };
        let is_same = bits(&first) == bits(&second);
        found.repeated = Some(if is_same { Repeated::Same } else { Repeated::OtherBits });
        if let Some(reference) = reference {
            let mut vectors = VectorAgreement::default();
            for (ours, theirs) in first.iter().zip(&reference.outputs) {
                let Output::Vectors(theirs) = theirs else { continue };
                ours.iter().zip(&theirs.vectors).for_each(|(ours, theirs)| vectors.add(ours, theirs));
            }
            found.vectors = Some(vectors);
        }
        Ok(())
    }

    fn has_final_norm(&self) -> bool {
        self.bundle.config().has_final_norm()
    }

    /// The contender's vectors of every batch, from a process of its own.
    fn encoded(&self, index: usize) -> Tried<Vec<Vec<Vec<f32>>>> {
        let task = Task::Answer(Answer { work: self.plan.work.of_reference(), parity: None });
        let events = self.done(index, &self.job(&self.plan.contenders[index], task))?;
        let outputs = answers(events).unwrap_or_default();
        if !self.plan.work.are_whole(&outputs) {
            return Err(failed("it did not give the vectors asked for".into()));
        }
        Ok(outputs.into_iter().map(Output::into_vectors).collect())
    }

    /// The inputs of a process that computes states, for each case.
    fn to_score(&self, traces: &[Output]) -> Vec<(TextBatch, Shapes)> {
        let (config, work) = (self.bundle.config(), &self.plan.work);
        let with_shapes = |batch: TextBatch| {
            let logits = work.generate().map(|_| self.score_shape(&batch.texts));
            let [rows, positions] = match logits {
                Some([rows, positions, _]) => [rows, positions],
                None => [1, batch.texts.iter().map(Vec::len).sum()],
            };
            let hidden = vec![[rows, positions, config.hidden_size]; config.layers.len() + 1];
            (batch, (logits, hidden))
        };
        work.fed(traces).into_iter().map(with_shapes).collect()
    }

    /// Runs a process for each prompt, teacher-forced along `traces`, or for each batch of texts. A framework without hidden
    /// states returns only its logits.
    fn states(
        &self,
        index: usize,
        contender: &Contender,
        dequantised: bool,
        traces: &[Output],
    ) -> Tried<States> {
        let mut states = States { files: Vec::new(), shapes: Vec::new(), in_effect: None, no_layers: None };
        for (case, (TextBatch { texts: sequences, types }, shapes)) in
            self.to_score(traces).into_iter().enumerate()
        {
            let file = scratch_file(self.scratch.path()).map_err(failed)?;
            let has_logits = shapes.0.is_some();
            states.shapes.push(shapes);
            let path = file.display().to_string();
            let audio =
                self.plan.work.generate().and_then(|work| work.heard(case, None)).into_iter().collect();
            let task = Task::Score(Score { sequences, types, audio, piece: 0, kept: None, file: path });
            let mut job = self.job(contender, task);
            (job.settings.dequantised, job.settings.hidden_states) =
                (dequantised, states.no_layers.is_none());
            let events = match self.done(index, &job) {
                Err(failure) if failure.kind == FailureKind::Unsupported && !has_logits => {
                    // Requesting its vectors will show whether it can encode at all.
                    states.no_layers = Some(failure.sentence());
                    return Ok(states);
                }
                Err(failure) if failure.kind == FailureKind::Unsupported && job.settings.hidden_states => {
                    job.settings.hidden_states = false;
                    let events = self.done(index, &job)?;
                    states.no_layers = Some(failure.sentence());
                    events
                }
                other => other?,
            };
            let in_effect = events.into_iter().find_map(|event| match event {
                Event::Loaded(loaded) => Some(loaded.in_effect),
                _ => None,
            });
            states.in_effect = states.in_effect.or(in_effect);
            states.files.push(file);
        }
        Ok(states)
    }

    /// The contender's own greedy continuation of every prompt, from a process of its own.
    fn continued(&self, index: usize) -> Tried<Tokens> {
        let contender = &self.plan.contenders[index];
        let work = self.plan.work.generate().ok_or_else(|| failed("it continues no prompts".into()))?;
        let task = Task::Answer(Answer { work: work.greedy(work.prompted.case_prompts()), parity: None });
        let outputs = answers(self.done(index, &self.job(contender, task))?);
        let whole = outputs.filter(|outputs| work.are_whole(outputs));
        let tokens = whole.map(|outputs| outputs.iter().map(|output| output.tokens().to_vec()).collect());
        tokens.ok_or_else(|| failed("it did not generate the tokens asked for".into()))
    }
}

/// Compares the logits, and every layer that both sides return.
fn compare(
    theirs: &States,
    ours: &States,
    (limit, has_final_norm): (f64, bool),
) -> std::result::Result<Vec<LayerDifference>, String> {
    let mut sums: Vec<LayerSums> = Vec::new();
    let mut of_logits = LayerSums::default();
    let files = theirs.files.iter().zip(&ours.files);
    for ((theirs, ours), (shape, hidden)) in files.zip(&ours.shapes) {
        let mut reference = Vec::new();
        let reference_logits = logits::read_states(theirs, *shape, hidden, |_, states| {
            reference.push(states);
            Ok(())
        })?;
        let mut count = 0;
        let our_logits = logits::read_states(ours, *shape, hidden, |layer, states| {
            count += 1;
            let Some(reference) = reference.get(layer) else { return Ok(()) };
            if sums.len() == layer {
                sums.push(LayerSums::default());
            }
            sums[layer].add(reference, &states)
        })?;
        if count > 0 && !reference.is_empty() && count != reference.len() {
            let theirs = reference.len();
            return Err(format!("it gives {count} hidden states, the reference {theirs}"));
        }
        if let (Some(theirs), Some(ours)) = (reference_logits, our_logits) {
            of_logits.add(&theirs, &ours)?;
        }
    }
    let count = sums.len();
    let mut layers: Vec<LayerDifference> = sums
        .iter()
        .enumerate()
        .map(|(layer, sums)| sums.difference(layers::name(layer, count, has_final_norm), limit))
        .collect();
    if ours.shapes.iter().any(|(logits, _)| logits.is_some()) {
        layers.push(of_logits.difference("logits".into(), limit));
    }
    Ok(layers)
}

fn failed(reason: String) -> RunFailure {
    RunFailure::new(FailureKind::Failed, reason)
}
