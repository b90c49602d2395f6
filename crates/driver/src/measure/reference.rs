//! The reference run: it gives the tokens that all contenders are fed while being timed, and the outputs for
//! later comparison.

use std::rc::Rc;
use std::time::{Duration, Instant};

use bundle::Precision;
use comparison::facts::evidence::Fact;
use comparison::facts::run::{FailureKind, RunFailure};
use comparison::judge::parity::{Logits, Reference, most_likely};
use comparison::plan::work::{Describe, Generate, Proof};
use comparison::plan::{Contender, KvPrecision, Rounds, Work};
use protocol::{Answer, Decode, Event, Kept, Output, Score, Task};
use rand::{RngExt, SeedableRng};
use rand_chacha::ChaCha8Rng;

use crate::measure::crew::Crew;
use crate::measure::process::not_done;
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
        candidates.retain(|&index| !self.recorder.is_absent(&self.crew.plan.contenders[index]));
        let mut reasons = Vec::new();
        for index in candidates {
            let contender = &self.crew.plan.contenders[index];
            self.crew.progress.message(&format!("reference: {} in f32", contender.label));
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
        let failure =
            RunFailure { kind: FailureKind::Failed, reason: spins.into(), last_words: None, repeat: None };
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
        contender.cache.precision = KvPrecision::F32;
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

// The traces that requests are fed, and the answers that only this program knows.
//
// A worker receives the tokens that it is fed. If they were the reference's own most likely tokens, it could
// answer each step with the next of them and compute nothing. So less likely tokens replace some of them,
// different ones in each round, and a request's trace is sent with its turn. The most likely token after
// each is known from the reference's logits along the changed trace. They are read before any contender is
// started, from a file that is then deleted.
//
// A worker that is sent no output could keep the output for a repeated input. So each round has other inputs
// of the same size.

/// Most rounds with traces that are computed at once.
const AT_ONCE: usize = 8;

/// Most numbers of outputs that are computed at once, unless one round has more.
const NUMBERS: usize = 1 << 20;

/// Most tokens that are computed at once.
const TOKENS: usize = 4096;

/// Most bytes of logits that are computed at once, and most for one round; beyond that the reference's own
/// trace is fed. They are in this program's memory until their rounds are over.
const BYTES: (usize, usize) = (64 << 20, 1 << 30);

/// Number of choices after the first that may replace a token of a trace.
const LESS_LIKELY: usize = 3;

/// `[case][sequence][token]`.
type Traces = Vec<Vec<Vec<u32>>>;

/// The references of a run.
pub(crate) struct References {
    /// The contender that computes them, by its place in the plan.
    pub(crate) by: usize,
    /// Along its own greedy continuation.
    pub(crate) own: Reference,
    /// Along the changed trace of the jobs. `None` if jobs have the reference's own.
    job: Option<Rc<Reference>>,
    /// Those along changed traces, for rounds from `first` on. Empty if requests are fed their job's trace,
    /// or feed themselves.
    fed: Vec<Rc<Reference>>,
    first: usize,
}

impl References {
    pub(crate) fn new(by: usize, own: Reference) -> References {
        References { by, own, job: None, fed: Vec::new(), first: 0 }
    }

    /// Whether every round is fed the same changed trace.
    pub(crate) fn has_one_trace(&self) -> bool {
        matches!(&self.fed[..], [only] if only.inputs.is_empty())
    }

    /// Whether jobs have a changed trace.
    pub(crate) fn has_trace_of_jobs(&self) -> bool {
        self.job.is_some()
    }

    /// The reference along the trace of the jobs: warm-up is fed it, and logits are computed along it.
    pub(crate) fn of_jobs(&self) -> &Reference {
        self.job.as_deref().unwrap_or(&self.own)
    }

    /// The reference for the requests of a round, fed or feeding themselves.
    pub(crate) fn of_requests(&self, round: usize) -> &Reference {
        match self.fed.len() {
            0 => &self.own,
            count => &self.fed[(round - self.first.min(round)) % count],
        }
    }
}

/// The work of all rounds.
pub(crate) struct RunWork {
    pub(crate) references: Option<References>,
    /// The traces to feed if no contender can give a reference.
    pub(crate) traces: Vec<Output>,
    pub(crate) parity: bool,
    /// When the time budget of automatic rounds began.
    pub(crate) begun: Instant,
}

impl Crew<'_> {
    /// Computes the references of the next rounds, if those of this one are not known, and before the first
    /// round that of the jobs. If that fails, or if only one fits at once, an earlier trace is fed again.
    /// # Errors
    /// Why requests are fed only the reference's own trace, or why feeding themselves proves nothing.
    pub(crate) fn feed(&self, references: &mut References, round: usize) -> Result<(), String> {
        if let Proof::Nothing(reason) = self.plan.work.proof() {
            return Err(reason.into());
        }
        if self.plan.work.proof() == Proof::OtherInputs {
            return self.give_others(references, round);
        }
        let Some(work) = self.plan.work.generate() else { return Ok(()) };
        if self.plan.work.judged_sequences() < self.plan.work.batch() {
            return Err(
                "of a batch that fills the memory, the logits of the first sequences alone are kept".into()
            );
        }
        let fits = self.traces_at_once(work);
        if fits == 0 {
            return Err(format!("the logits of a round take more than {} MB", BYTES.1 >> 20));
        }
        let is_forced = work.decode == Decode::Forced;
        let known = references.fed.len();
        let knows_rounds = !is_forced || known == 1 || (known > 1 && round < references.first + known);
        if references.job.is_none() || !knows_rounds {
            // Requests that feed themselves need only the trace of the jobs.
            self.substitute(work, references, (round, if is_forced { fits } else { 0 }))?;
        }
        match work.decode {
            Decode::Forced | Decode::Greedy => Ok(()),
            Decode::Sampled(_) => Err("each framework draws its own tokens".into()),
        }
    }

    /// Computes the outputs for other inputs, for this round and some after it.
    fn give_others(&self, references: &mut References, round: usize) -> Result<(), String> {
        if !references.fed.is_empty() && round < references.first + references.fed.len() {
            return Ok(());
        }
        let numbers: usize = references.own.outputs.iter().map(Output::numbers).sum();
        let rounds = (NUMBERS / numbers.max(1)).clamp(1, AT_ONCE.min(self.plan.rounds.max().max(1)));
        let seeds: Vec<u64> =
            (0..rounds).map(|copy| self.plan.seed.wrapping_add((round + copy) as u64)).collect();
        let Some((inputs, work)) = self.plan.work.other_inputs(&seeds) else { return Ok(()) };
        let task = Task::Answer(Answer { work, parity: None });
        let mut outputs = self.answered(references.by, self.reference_precision(), task)?.into_iter();
        let cases = self.plan.work.cases();
        let mut fed = Vec::new();
        for inputs in inputs {
            let outputs: Vec<Output> = outputs.by_ref().take(cases).collect();
            let is_whole = |(case, output): (usize, &Output)| self.plan.work.is_whole(case, output);
            if outputs.len() != cases || !outputs.iter().enumerate().all(is_whole) {
                return Err("the reference did not compute the outputs of other inputs".into());
            }
            let framework = references.own.framework.clone();
            fed.push(Rc::new(Reference {
                framework,
                inputs,
                outputs,
                logits: Vec::new(),
                unquantised: None,
            }));
        }
        (references.fed, references.first) = (fed, round);
        Ok(())
    }

    /// Computes references along changed traces: so many for rounds, and that of the jobs if there is none
    /// yet. If only one trace fits at once, jobs and rounds share it.
    fn substitute(
        &self,
        work: &Generate,
        references: &mut References,
        (round, fed): (usize, usize),
    ) -> Result<(), String> {
        let has_own = references.job.is_none() && fed != 1;
        let seed = |copy: usize| self.plan.seed.wrapping_add((round + copy) as u64);
        let of_job = has_own.then(|| substituted(&references.own, !self.plan.seed));
        let of_rounds = (0..fed).map(|copy| substituted(&references.own, seed(copy)));
        let traces: Vec<Traces> = of_job.into_iter().chain(of_rounds).collect();
        let logits = self.along(work, (references.by, self.reference_precision()), &traces)?;
        let of_traces = |(tokens, logits): (Traces, Vec<Logits>)| Reference {
            outputs: tokens.into_iter().map(Output::Tokens).collect(),
            logits,
            framework: references.own.framework.clone(),
            inputs: Vec::new(),
            unquantised: None,
        };
        let mut found = traces.into_iter().zip(logits).map(of_traces);
        if references.job.is_none() {
            let mut job = found.next().ok_or("it computed no logits")?;
            job.unquantised = self.unquantised(references.by, &job.outputs)?;
            references.job = Some(Rc::new(job));
        }
        references.fed = match has_own {
            false if fed == 1 => references.job.iter().cloned().collect(),
            _ => found.map(Rc::new).collect(),
        };
        references.first = round;
        Ok(())
    }

    /// The unquantised model's logits along traces, which show the cost of quantising. `None` at an
    /// unquantised precision, and for masked diffusion, which does not go token by token.
    pub(crate) fn unquantised(&self, index: usize, traces: &[Output]) -> Result<Option<Vec<Logits>>, String> {
        let Some(work) = self.plan.work.generate().filter(|_| self.plan.precision.is_quantised()) else {
            return Ok(None);
        };
        let traces: Traces = traces.iter().map(|output| output.tokens().to_vec()).collect();
        Ok(self.along(work, (index, bundle::Precision::F32), &[traces])?.pop())
    }

    /// Number of rounds with traces that are computed at once; 0 if the logits of one are too large.
    fn traces_at_once(&self, work: &Generate) -> usize {
        let prefixes = work.prefixes();
        let rows: usize = prefixes.iter().map(Vec::len).sum();
        let length = self.plan.work.capacity();
        let shortest = prefixes.iter().flatten().map(Vec::len).min().unwrap_or(0);
        let computed = if work.prompted.prompt_last_only { length + 1 - shortest.max(1) } else { length };
        let bytes = rows * computed * self.vocabulary() * size_of::<f32>();
        if rows == 0 || bytes > BYTES.1 {
            return 0;
        }
        let rounds = match self.plan.rounds {
            Rounds::Fixed(rounds) => rounds,
            Rounds::Auto { max, .. } => max,
        };
        (TOKENS / (rows * length)).min(BYTES.0 / bytes).clamp(1, AT_ONCE.min(rounds.max(1)))
    }

    /// The logits along traces, `[trace][case]`, of the positions that parity compares. One job computes all:
    /// shorter sequences are padded to the longest, and no position depends on later ones.
    pub(crate) fn along(
        &self,
        work: &Generate,
        (index, precision): (usize, bundle::Precision),
        traces: &[Traces],
    ) -> Result<Vec<Vec<Logits>>, String> {
        let prefixes = work.prefixes();
        let of_trace = |traces: &Traces| -> Vec<Vec<u32>> {
            let cases = prefixes.iter().zip(traces);
            cases
                .flat_map(|(rows, traces)| {
                    rows.iter().zip(traces).map(|(row, trace)| [&row[..], trace].concat())
                })
                .collect()
        };
        let mut sequences: Vec<Vec<u32>> = traces.iter().flat_map(of_trace).collect();
        // The prompt's last position and the new tokens.
        let count = 1 + work.prompted.new_tokens;
        let kept = work
            .prompted
            .prompt_last_only
            .then(|| Kept { from: sequences.iter().map(|sequence| sequence.len() - count).collect(), count });
        let longest = sequences.iter().map(Vec::len).max().unwrap_or(0);
        sequences.iter_mut().for_each(|sequence| sequence.resize(longest, 0));
        let shape = self.score_shape(&sequences);
        let file = self.scratch.path().join("along.safetensors");
        let path = file.display().to_string();
        let task =
            Task::Score(Score { sequences, types: Vec::new(), piece: 0, kept: kept.clone(), file: path });
        let done = self.reference_job(index, precision, task);
        let logits = done.and_then(|_| logits::read_score(&file, shape));
        // No contender may find it.
        let _ = std::fs::remove_file(&file);
        let logits = logits?;
        // A worker that does not know the field writes all positions.
        let is_part = kept.is_some() && logits.positions == count;
        if (logits.batch, logits.vocabulary) != (shape[0], shape[2])
            || !is_part && logits.positions != longest
        {
            return Err("its logits do not have the shape of the sequences".into());
        }
        let mut rows = (0..logits.batch).map(|row| logits.values_of(row));
        let each = traces.iter().map(|_| {
            let cases = prefixes.iter().enumerate().map(|(case, prefix)| {
                let positions = work.judged_positions(case).unwrap_or(0);
                // Positions after each sequence's own last token are dropped.
                let kept = prefix.iter().zip(rows.by_ref()).flat_map(|(own, row)| {
                    let length = if is_part { count } else { own.len() + work.prompted.new_tokens };
                    &row[(length - positions) * logits.vocabulary..length * logits.vocabulary]
                });
                let values = kept.copied().collect();
                let found = Logits { batch: prefix.len(), positions, vocabulary: logits.vocabulary, values };
                self.check_shape(case, &found).map(|()| found)
            });
            cases.collect()
        });
        each.collect()
    }
}

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
        Reference {
            framework: "r".into(),
            inputs: Vec::new(),
            outputs,
            logits: vec![logits],
            unquantised: None,
        }
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
