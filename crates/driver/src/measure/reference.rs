//! The reference run: it gives the tokens that all contenders are fed while being timed, and the outputs for
//! later comparison.

use std::time::{Duration, Instant};

use bundle::Precision;
use comparison::facts::agreement::{TokenAgreement, Tolerance};
use comparison::facts::evidence::Fact;
use comparison::facts::run::{FailureKind, RunFailure};
use comparison::judge::parity::{self, Logits, Reference, most_likely};
use comparison::judge::work;
use comparison::plan::work::{Describe, Generate, Proof};
use comparison::plan::{Contender, KvPrecision, Work};
use protocol::{Answer, Event, Heard, Kept, Output, Score, Task};
use rand::{RngExt, SeedableRng};
use rand_chacha::ChaCha8Rng;

use crate::measure::crew::Crew;
use crate::measure::process::{not_done, now};
use crate::measure::session::Session;
use crate::measure::{logits, progress};

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
        // One that runs another file computes something else.
        candidates.retain(|&index| {
            let contender = &self.crew.plan.contenders[index];
            contender.artefact().is_none()
                && !contender.engine.is_server()
                && !self.recorder.is_absent(contender)
        });
        let mut reasons = Vec::new();
        for index in candidates {
            let contender = &self.crew.plan.contenders[index];
            self.crew
                .progress
                .message(&format!("computing the reference output: {} in f32", contender.label));
            match self.crew.reference_by(index) {
                Ok(own) => return Some(References::new(index, own)),
                Err(reason) => {
                    reasons.push(format!("{}: {reason}", contender.label));
                    // At another precision its own processes may take less.
                    if contender.precision == self.crew.reference_precision() {
                        self.give_up_if_it_spins(index, &reason);
                    }
                }
            }
            if progress::requested() {
                break;
            }
        }
        let reason = if reasons.is_empty() { "no framework can run".into() } else { reasons.join("; ") };
        self.recorder.record(Fact::NoReference { reason });
        None
    }
}

impl Session<'_> {
    /// Measures no more of a contender that has used a whole time limit: every further process would, too.
    pub(crate) fn give_up_if_it_spins(&mut self, index: usize, reason: &str) {
        let spins = not_done(Duration::from_secs(self.crew.plan.timeout_s));
        if !reason.contains(&spins) {
            return;
        }
        let failure = RunFailure::new(FailureKind::Failed, spins);
        let framework = self.crew.plan.contenders[index].label.clone();
        self.crew.progress.say(&format!("{framework}: {}", failure.sentence()));
        self.recorder.record(Fact::Absent { framework, failure });
    }
}

impl Crew<'_> {
    pub(crate) fn reference_by(&self, index: usize) -> std::result::Result<Reference, String> {
        let precision = self.reference_precision();
        let file = self.scratch.path().join("reference.safetensors");
        let task =
            Task::Answer(Answer { work: self.plan.work.of_reference(), parity: self.parity_task(&file) });
        let outputs = self.joined(self.answered(index, precision, task)?);
        if !self.plan.work.are_whole(&outputs) {
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
        contender.cache.precision = KvPrecision::F32;
        let is_unchanged = matches!(self.plan.work, Work::Graph(_)) && contender.engine.framework == ORT;
        let contender = Contender { jit: contender.jit && !is_unchanged, ..contender };
        let mut job = self.job(&contender, task);
        job.settings.dequantised = precision.is_quantised();
        self.done(index, &job).map_err(|failure| failure.sentence())
    }

    pub(crate) fn check_shape(&self, case: usize, logits: &Logits) -> std::result::Result<(), String> {
        let shape = (self.plan.work.judged_sequences(), self.plan.work.judged_positions(case));
        if (logits.batch, Some(logits.positions)) == shape {
            return Ok(());
        }
        Err("its logits do not have the shape of the prompts".into())
    }
}

// The trace of the jobs: warm-up is fed it, and each process writes its logits along it after its last turn. In it less
// likely tokens replace some of the reference's own, so that these are not known.

/// Number of choices after the first that may replace a token of a trace.
const LESS_LIKELY: usize = 3;

/// `[case][sequence][token]`.
type Traces = Vec<Vec<Vec<u32>>>;

#[derive(Debug)]
pub(crate) struct References {
    /// The contender that computes them, by its place in the plan.
    pub(crate) by: usize,
    /// Along its own greedy continuation.
    pub(crate) own: Reference,
    /// Along the changed trace of the jobs. `None` if jobs have the reference's own.
    job: Option<Reference>,
    /// The same by another program, which the first one's contenders are compared with.
    pub(crate) other: Option<(usize, Reference)>,
}

impl References {
    pub(crate) fn new(by: usize, own: Reference) -> References {
        References { by, own, job: None, other: None }
    }

    /// Whether jobs have a changed trace.
    pub(crate) fn has_trace_of_jobs(&self) -> bool {
        self.job.is_some()
    }

    /// The reference along the trace of the jobs.
    pub(crate) fn of_jobs(&self) -> &Reference {
        self.job.as_ref().unwrap_or(&self.own)
    }

    /// Takes what [`Session::witness`] found: another program, or two that agree with each other alone, of which the
    /// first is the reference then.
    fn hold(&mut self, found: Vec<(usize, Reference)>, replace: impl Fn(&mut References, Reference)) {
        let mut found = found.into_iter();
        match (found.next(), found.next()) {
            (Some((by, first)), Some(second)) => {
                (self.by, self.other) = (by, Some(second));
                replace(self, first);
            }
            (other, _) => self.other = other,
        }
    }

    /// The reference along what requests have, where that is what the jobs have.
    pub(crate) fn of_requests(&self, is_forced: bool) -> &Reference {
        if is_forced { self.of_jobs() } else { &self.own }
    }
}

/// The work of all rounds.
pub(crate) struct RunWork {
    pub(crate) references: Option<References>,
    /// Those to feed if no contender can give a reference.
    pub(crate) traces: Vec<Output>,
    /// Whether processes write logits in some rounds, to be compared with the reference.
    pub(crate) parity: bool,
    /// When the time budget of automatic rounds began.
    pub(crate) begun: Instant,
}

impl RunWork {
    /// The traces that warm-up is fed, and along which logits are computed.
    pub(crate) fn traces(&self) -> &[Output] {
        self.references.as_ref().map_or(&self.traces, |references| &references.of_jobs().outputs)
    }
}

impl Session<'_> {
    /// Computes the reference along the trace of the jobs, and lets another program compute it, too.
    /// # Errors
    /// Why requests are asked for what their jobs are.
    pub(crate) fn reference_of_jobs(&mut self, references: &mut References) -> Result<(), String> {
        let begun = now();
        if let Some(work) = self.crew.plan.work.generate() {
            self.crew.can_be_scored()?;
            let (by, precision) = (references.by, self.crew.reference_precision());
            let traces = substituted(&references.own, !self.crew.plan.seed);
            let along = |traces: &Traces, logits, framework: &str| Reference {
                outputs: traces.iter().cloned().map(Output::Tokens).collect(),
                logits,
                framework: framework.to_owned(),
                unquantised: None,
            };
            let logits = self.crew.along(work, (by, precision), &traces)?;
            let mut job = along(&traces, logits, &references.own.framework);
            job.unquantised = self.crew.unquantised(by, &job.outputs)?;
            let unquantised = job.unquantised.clone();
            let found = self.witness(by, &job, |session, index| {
                let logits = session.crew.along(work, (index, precision), &traces)?;
                let framework = &session.crew.plan.contenders[index].label;
                Ok(Reference { unquantised: unquantised.clone(), ..along(&traces, logits, framework) })
            });
            references.job = Some(job);
            references.hold(found, |references, other| references.job = Some(other));
        } else if self.crew.plan.work.proof() == Proof::OtherInputs {
            let found = self
                .witness(references.by, &references.own, |session, index| session.crew.reference_by(index));
            references.hold(found, |references, other| references.own = other);
        }
        self.ask_anew(references, begun.elapsed())
    }

    /// The first contender of another program than the reference's that computes the same. Where none does, but two
    /// others agree, these, unless the user named the reference; where no two agree, the first. If others cannot
    /// compute it, it is recorded that the reference is compared with itself.
    fn witness(
        &mut self,
        by: usize,
        own: &Reference,
        compute: impl Fn(&Session<'_>, usize) -> Result<Reference, String>,
    ) -> Vec<(usize, Reference)> {
        let plan = self.crew.plan;
        let (mut found, mut reasons): (Vec<(usize, Reference)>, _) = (Vec::new(), Vec::new());
        for (index, contender) in plan.contenders.iter().enumerate() {
            let is_known = |other: usize| self.crew.is_same_program(index, other);
            if contender.engine.is_server() {
                reasons.push(format!("{} is a server", contender.label));
                continue;
            }
            if self.recorder.is_absent(contender)
                || contender.artefact().is_some()
                || is_known(by)
                || found.iter().any(|(other, _)| is_known(*other))
            {
                continue;
            }
            match compute(self, index) {
                Ok(reference) if is_same(own, &reference) => return vec![(index, reference)],
                Ok(reference) => {
                    let agrees = found.iter().position(|(_, one)| is_same(one, &reference));
                    if let Some(place) = agrees.filter(|_| plan.reference.is_none()) {
                        let (odd, first) = (&plan.contenders[by].label, found.swap_remove(place));
                        self.crew.progress.say(&format!(
                            "{odd} computes something else than {} and {}, which agree: it gives no reference",
                            first.1.framework, reference.framework
                        ));
                        return vec![first, (index, reference)];
                    }
                    found.push((index, reference));
                }
                Err(reason) => reasons.push(format!("{}: {reason}", contender.label)),
            }
            if progress::requested() {
                break;
            }
        }
        found.truncate(1);
        if found.is_empty() && !reasons.is_empty() {
            let label = &plan.contenders[by].label;
            let reasons = reasons.join("; ");
            let reason =
                format!("{label} is compared with itself, since no other gives a reference: {reasons}");
            self.recorder.record(Fact::OwnTraces { reason });
        }
        found
    }
}

/// Whether two references of the same requests agree as two engines in f32 do.
fn is_same(one: &Reference, other: &Reference) -> bool {
    let tolerance = Tolerance::for_precision(Precision::F32);
    if !one.logits.is_empty() {
        let found = parity::compare(one, &other.logits, TokenAgreement::default(), tolerance);
        return found.is_ok_and(|agreement| agreement.broken.is_none());
    }
    let differs =
        |(one, other)| work::difference(other, one).is_none_or(|found| found.objection(&tolerance).is_some());
    !one.outputs.iter().zip(&other.outputs).any(differs)
}

impl Crew<'_> {
    /// The unquantised model's logits along traces, which show the cost of quantising. `None` at an
    /// unquantised precision, and for masked diffusion, which does not go token by token.
    pub(crate) fn unquantised(&self, index: usize, traces: &[Output]) -> Result<Option<Vec<Logits>>, String> {
        let Some(work) = self.plan.work.generate().filter(|_| self.plan.precision.is_quantised()) else {
            return Ok(None);
        };
        let traces: Traces = traces.iter().map(|output| output.tokens().to_vec()).collect();
        Ok(Some(self.along(work, (index, bundle::Precision::F32), &traces)?))
    }

    /// The logits along traces, by case, of the positions that parity compares.
    fn along(
        &self,
        work: &Generate,
        by: (usize, bundle::Precision),
        traces: &Traces,
    ) -> Result<Vec<Logits>, String> {
        let prefixes = work.prefixes();
        let mut sequences = Vec::new();
        for (case, (rows, traces)) in prefixes.iter().zip(traces).enumerate() {
            let along = rows.iter().zip(traces).map(|(row, trace)| [&row[..], trace].concat());
            sequences.extend(along.map(|tokens| (tokens, work.heard(case, None))));
        }
        let count = work.prompted.prompt_last_only.then_some(1 + work.prompted.new_tokens);
        let mut rows = self.scored(by, sequences, count)?.into_iter();
        let cases = prefixes.iter().enumerate().map(|(case, prefix)| {
            let (positions, vocabulary) = (work.judged_positions(case).unwrap_or(0), self.vocabulary());
            let last = |row: Vec<f32>| row[row.len() - positions * vocabulary..].to_vec();
            let values: Vec<Vec<f32>> = rows.by_ref().take(prefix.len()).map(last).collect();
            let found = Logits { batch: prefix.len(), positions, vocabulary, values: values.concat() };
            self.check_shape(case, &found).map(|()| found)
        });
        cases.collect()
    }

    /// Logits of sequences, `[sequence][positions · vocabulary]`: of all positions, or of the last `count`. One job
    /// computes all: shorter sequences are padded to the longest, and no position depends on later ones.
    pub(crate) fn scored(
        &self,
        (index, precision): (usize, bundle::Precision),
        sequences: Vec<Sequence>,
        count: Option<usize>,
    ) -> Result<Vec<Vec<f32>>, String> {
        let (mut sequences, audio): (Vec<Vec<u32>>, Vec<Option<Heard>>) = sequences.into_iter().unzip();
        let audio = audio.into_iter().flatten().collect();
        let lengths: Vec<usize> = sequences.iter().map(Vec::len).collect();
        let longest = lengths.iter().copied().max().unwrap_or(0);
        let kept =
            count.map(|count| Kept { from: lengths.iter().map(|length| length - count).collect(), count });
        sequences.iter_mut().for_each(|sequence| sequence.resize(longest, 0));
        let shape = self.score_shape(&sequences);
        let file = self.scratch.path().join("along.safetensors");
        let path = file.display().to_string();
        let task = Task::Score(Score { sequences, types: Vec::new(), audio, piece: 0, kept, file: path });
        let done = self.reference_job(index, precision, task);
        let logits = done.and_then(|_| logits::read_score(&file, shape));
        // No contender may find it.
        let _ = std::fs::remove_file(&file);
        let logits = logits?;
        // A worker that does not know the field writes all positions.
        let is_part = count.is_some_and(|count| logits.positions == count);
        if (logits.batch, logits.vocabulary) != (shape[0], shape[2])
            || !is_part && logits.positions != longest
        {
            return Err("its logits do not have the shape of the sequences".into());
        }
        let rows = lengths.iter().enumerate().map(|(row, &length)| {
            // Positions after each sequence's own last token are dropped.
            let end = if is_part { logits.positions } else { length };
            let begin = end - count.unwrap_or(length).min(end);
            logits.values_of(row)[begin * logits.vocabulary..end * logits.vocabulary].to_vec()
        });
        Ok(rows.collect())
    }
}

/// Tokens, and what is heard with them, by a model that hears.
pub(crate) type Sequence = (Vec<u32>, Option<Heard>);

/// The reference's own trace with the first and about every other token replaced by its second, third or
/// fourth choice at that step.
fn substituted(own: &Reference, seed: u64) -> Traces {
    let mut random = ChaCha8Rng::seed_from_u64(seed);
    let mut row = |logits: &Logits, sequence: usize, trace: &[u32]| -> Vec<u32> {
        let prompt = logits.positions - trace.len();
        let mut changed = Vec::with_capacity(trace.len());
        for (step, &token) in trace.iter().enumerate() {
            let choice = random.random_range(0..if step == 0 { LESS_LIKELY } else { 2 * LESS_LIKELY });
            let others = most_likely(logits.row(sequence, prompt + step - 1), LESS_LIKELY + 1);
            let other = others.into_iter().filter(|other| *other != token).nth(choice);
            changed.push(other.filter(|_| choice < LESS_LIKELY).unwrap_or(token));
        }
        changed
    };
    let cases = own.outputs.iter().map(Output::tokens).zip(&own.logits);
    let changed = cases.map(|(traces, logits)| {
        traces.iter().enumerate().map(|(sequence, trace)| row(logits, sequence, trace)).collect()
    });
    changed.collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A prompt of one token, and four new ones, with a vocabulary of five: the largest logit is the step's
    /// own number.
    fn own() -> Reference {
        let row = |step: usize| (0..5).map(move |token| if token == step { 9.0 } else { token as f32 });
        let logits = Logits { batch: 1, positions: 5, vocabulary: 5, values: (0..5).flat_map(row).collect() };
        let outputs = vec![Output::Tokens(vec![vec![0, 1, 2, 3]])];
        Reference { framework: "r".into(), outputs, logits: vec![logits], unquantised: None }
    }

    #[test]
    fn a_changed_trace_has_less_likely_tokens_in_about_half_of_its_places() {
        let own = own();
        let traces: Vec<Traces> = (0..200).map(|seed| substituted(&own, seed)).collect();
        let places = traces.iter().flatten().flatten().flat_map(|trace| trace.iter().enumerate());
        let changed = places.filter(|(step, token)| **token != *step as u32).count();
        assert!((400..600).contains(&changed), "{changed} of 800");
        assert!(
            traces.iter().all(|trace| trace[0][0][0] != 0),
            "else a short trace might not be changed at all"
        );
        assert_eq!(traces[3], substituted(&own, 3), "by the seed");
        assert!(traces.iter().flatten().flatten().flatten().all(|&token| token < 5));
    }
}
