//! The proof that timed requests computed what they answered.
//!
//! A worker that is asked the same again, or knows what comes, can answer from memory. So each block asks for something new
//! of the same size: other prompts and other tokens for each step, other texts, other drawn inputs. What a step is fed is
//! sent with its slice, and some requests are sent nothing: they feed themselves, so that no step can be computed before the
//! one before it. Behind each slice the worker is asked for the logits of tokens that are drawn only then.
//!
//! The answers are compared with a reference that is computed after they were timed: the contender that gives it does not
//! know them either. Its own are compared with another program's.

use std::collections::{BTreeMap, BTreeSet};
use std::rc::Rc;
use std::time::Duration;

use comparison::facts::agreement::{TokenAgreement, VectorAgreement};
use comparison::facts::evidence::{Fact, Process, Stage};
use comparison::judge::parity::{self, Drawn, Tolerance, most_likely};
use comparison::judge::work;
use comparison::plan::Plan;
use comparison::plan::work::{Generate, Proof};
use protocol::{Answer, Continued, Input, Output, Task};
use rand::{RngExt, SeedableRng};
use rand_chacha::ChaCha8Rng;

use crate::measure::crew::Crew;
use crate::measure::process::now;
use crate::measure::progress;
use crate::measure::reference::{References, Sequence};
use crate::measure::session::{Round, Session};

/// One of so many blocks feeds itself.
const FEEDS_ITSELF: usize = 4;

/// Number of logits that are drawn behind a slice, of all sequences together, at least one of each.
const DRAWN: usize = 8;

/// Number of choices of the reference, at each step of its own continuation, that other tokens are drawn from.
const CHOICES: usize = 4;

/// Comparing may take one part in so many of the time, before all rounds are done.
const PARTS: u32 = 20;

/// Most tokens, and bytes of logits, that a job of the reference computes at once.
const AT_ONCE: (usize, usize) = (4096, 128 << 20);

/// Most numbers of outputs that wait for their comparison when another round begins, and of one request: work with more has
/// its own inputs, and is compared when it arrives.
const NUMBERS: (usize, usize) = (1 << 24, 1 << 22);

/// Numbers of outputs that a job of the reference computes at once, or one request.
const NUMBERS_AT_ONCE: usize = 1 << 20;

/// What a block asks of all contenders.
#[derive(Debug)]
pub(crate) struct Asked {
    case: usize,
    seed: u64,
    input: Input,
}

impl Asked {
    pub(crate) fn whole(&self) -> Input {
        self.input.clone()
    }

    /// The input of a request's first slice.
    pub(crate) fn first(&self) -> Input {
        match &self.input {
            Input::Continue(asked) => Input::Continue(Continued { trace: Vec::new(), ..asked.clone() }),
            other => other.clone(),
        }
    }

    /// That of a later slice of so many marks, after so many.
    pub(crate) fn later(&self, made: usize, marks: usize) -> Option<Input> {
        let Input::Continue(Continued { trace, .. }) = &self.input else { return None };
        let part = |row: &Vec<u32>| row[made - 1..row.len().min(made + marks) - 1].to_vec();
        let trace: Vec<Vec<u32>> = trace.iter().map(part).collect();
        (!trace.is_empty()).then(|| Input::Continue(Continued { trace, ..Continued::default() }))
    }

    /// Whether its steps are fed what they choose.
    pub(crate) fn feeds_itself(&self) -> bool {
        matches!(&self.input, Input::Continue(Continued { trace, .. }) if trace.is_empty())
    }
}

/// A timed request that waits for its comparison.
#[derive(Debug, Clone)]
pub(crate) struct Answered {
    pub(crate) process: Process,
    /// The contender, by its place in the plan.
    pub(crate) index: usize,
    pub(crate) asked: Rc<Asked>,
    pub(crate) output: Output,
    pub(crate) drawn: Vec<Drawn>,
    /// Tokens that it never chooses.
    pub(crate) barred: Vec<u32>,
}

/// What is asked, and the requests that wait.
pub(crate) struct Proofs {
    /// Tokens that other ones are drawn from; empty for work without tokens.
    pool: Vec<u32>,
    /// The contender that gives the reference, and another program's, for what the first one computed itself.
    by: usize,
    other: Option<usize>,
    waiting: Vec<Answered>,
    /// How long a comparison took, and when it ended.
    took: Duration,
    ended: std::time::Instant,
    random: ChaCha8Rng,
}

impl Proofs {
    /// Tokens whose logits a worker is asked for behind a slice; `None` where there are none.
    pub(crate) fn drawn(&mut self, plan: &Plan, vocabulary: usize) -> Option<Vec<u32>> {
        plan.work.generate().filter(|work| work.load.is_none())?;
        let count = (DRAWN / plan.work.batch().max(1)).max(1);
        Some((0..count).map(|_| self.random.random_range(0..vocabulary as u32)).collect())
    }

    pub(crate) fn add(&mut self, answered: impl IntoIterator<Item = Answered>) {
        self.waiting.extend(answered);
    }
}

impl Session<'_> {
    /// Begins to ask for something new in every block. Called once, before the first round. `took`: how long the references
    /// did, which is about what a comparison takes.
    /// # Errors
    /// Why requests are asked for what their jobs are.
    pub(crate) fn ask_anew(&mut self, references: &References, took: Duration) -> Result<(), String> {
        let plan = self.crew.plan;
        let pool = match plan.work.proof() {
            Proof::Nothing(reason) => return Err(reason.into()),
            Proof::OtherInputs => {
                let numbers = references.own.outputs.iter().map(Output::numbers).max().unwrap_or(0);
                if numbers > NUMBERS.1 {
                    return Err(format!("an output has more than {} numbers", NUMBERS.1));
                }
                Vec::new()
            }
            Proof::OtherTokens => {
                let Some(work) = plan.work.generate() else { return Ok(()) };
                if let protocol::Decode::Sampled(_) = work.decode {
                    return Err("each framework draws its own tokens".into());
                }
                pool(work, references)
            }
        };
        let (by, other) = (references.by, references.other.as_ref().map(|(index, _)| *index));
        let random = ChaCha8Rng::seed_from_u64(plan.seed.rotate_left(8));
        self.proofs = Some(Proofs { pool, by, other, waiting: Vec::new(), took, ended: now(), random });
        Ok(())
    }

    /// What a block asks for; `None` if that is what the jobs ask for.
    pub(crate) fn asked(
        &self,
        round: Round,
        (number, repeat): (usize, usize),
        case: usize,
    ) -> Option<Rc<Asked>> {
        let (proofs, plan) = (self.proofs.as_ref()?, self.crew.plan);
        let mixed = [round.number, number, repeat].iter().fold(plan.seed, |seed, &part| {
            // SplitMix64's step, so that no two blocks have one seed.
            (seed ^ part as u64).wrapping_add(0x9e37_79b9_7f4a_7c15).wrapping_mul(0xbf58_476d_1ce4_e5b9)
        });
        let input = match plan.work.generate() {
            Some(work) => {
                let is_fed = plan.work.is_forced()
                    && (work.load.is_some() || (round.number + number) % FEEDS_ITSELF != FEEDS_ITSELF - 1);
                Input::Continue(work.other_tokens(case, &proofs.pool, (mixed, is_fed)))
            }
            None => plan.work.other_input(mixed, case)?,
        };
        Some(Rc::new(Asked { case, seed: mixed, input }))
    }

    /// Compares what waits, if comparing takes little of the time.
    pub(crate) fn prove_some(&mut self, round: usize) {
        let Some(proofs) = &self.proofs else { return };
        let numbers: usize = proofs.waiting.iter().map(|answered| answered.output.numbers()).sum();
        // Without a first comparison of their outputs, rows have no part in verdicts.
        let is_first = round == 0 && self.crew.plan.work.generate().is_none();
        let is_due = is_first || proofs.ended.elapsed() > proofs.took * PARTS || numbers > NUMBERS.0;
        if is_due || self.limit.until().is_some() {
            self.prove();
        }
    }

    pub(crate) fn prove(&mut self) {
        let Some(proofs) = &mut self.proofs else { return };
        let begun = now();
        let (by, other) = (proofs.by, proofs.other);
        let mut waiting = std::mem::take(&mut proofs.waiting);
        // Those of a round that was put aside count no more.
        waiting.retain(|answered| self.recorder.evidence.run(&answered.process).is_some());
        if waiting.is_empty() || progress::requested() {
            return;
        }
        self.crew.progress.message("comparing what was computed with the reference");
        let (mut own, others): (Vec<_>, Vec<_>) =
            waiting.into_iter().partition(|answered| self.crew.is_same_program(answered.index, by));
        if other.is_some() {
            own = one_of_each(own);
        }
        for (reference, answered) in [(by, others), (other.unwrap_or(by), own)] {
            let label = self.crew.plan.contenders[reference].label.clone();
            let found = match self.crew.plan.work.generate() {
                Some(work) => self.crew.tokens_against(work, reference, &answered),
                None => self.crew.outputs_against(reference, &answered),
            };
            match found {
                Ok(each) => self.record_compared(&label, &answered, &each),
                Err(reason) => {
                    let count = answered.len();
                    let reason = format!("{count} timed requests were not compared with {label}: {reason}");
                    self.crew.progress.say(&reason);
                    if self.recorder.evidence.own_traces.is_none() {
                        self.recorder.record(Fact::OwnTraces { reason });
                    }
                }
            }
        }
        if let Some(proofs) = &mut self.proofs {
            (proofs.took, proofs.ended) = (begun.elapsed(), now());
        }
        self.recorder.add_time(Stage::Reference, begun);
    }

    /// Records what the comparison with a contender found, by process.
    fn record_compared(&mut self, reference: &str, answered: &[Answered], found: &[Found]) {
        let mut of_each: BTreeMap<&Process, (usize, Found)> = BTreeMap::new();
        for (answered, found) in answered.iter().zip(found) {
            of_each.entry(&answered.process).or_insert((answered.index, Found::default())).1.add(found);
        }
        for (process, (index, Found { tokens, vectors })) in of_each {
            let tolerance = Tolerance::for_work(&self.crew.plan.contenders[index], &self.crew.plan.work);
            let agreement = vectors.map(|vectors| Box::new(work::agreement(reference, vectors, tolerance)));
            self.recorder.record(Fact::Compared { process: process.clone(), tokens, agreement });
        }
    }

    /// About the time that the next comparison takes; none where nothing waits.
    pub(crate) fn to_prove(&self) -> Duration {
        self.proofs.as_ref().map_or(Duration::ZERO, |proofs| proofs.took)
    }
}

/// What the comparison of a process's requests found so far.
#[derive(Debug, Default)]
struct Found {
    tokens: Option<TokenAgreement>,
    vectors: Option<VectorAgreement>,
}

impl Found {
    fn add(&mut self, other: &Found) {
        if let Some(tokens) = &other.tokens {
            self.tokens.get_or_insert_default().add(tokens);
        }
        if let Some(vectors) = &other.vectors {
            self.vectors.get_or_insert_default().merge(vectors);
        }
    }
}

/// One request of each process. Which one follows from the seed, and was not known when it was timed.
fn one_of_each(mut answered: Vec<Answered>) -> Vec<Answered> {
    answered.sort_by(|a, b| (&a.process, a.asked.seed).cmp(&(&b.process, b.asked.seed)));
    answered.dedup_by(|later, first| later.process == first.process);
    answered
}

/// Tokens that others are drawn from: those of the prompts, and what the reference prefers along its own continuation.
fn pool(work: &Generate, references: &References) -> Vec<u32> {
    let mut pool: Vec<u32> = work.prefixes().concat().concat();
    for (logits, traces) in references.own.logits.iter().zip(&references.own.outputs) {
        let new_tokens = traces.tokens().first().map_or(0, Vec::len);
        let behind = logits.positions.saturating_sub(new_tokens + 1)..logits.positions;
        for sequence in 0..logits.batch {
            let rows = behind.clone().map(|position| logits.row(sequence, position));
            pool.extend(rows.flat_map(|row| most_likely(row, CHOICES)));
        }
    }
    pool.sort_unstable();
    pool.dedup();
    pool
}

impl Crew<'_> {
    /// Whether two contenders are one program, by their places in the plan.
    pub(crate) fn is_same_program(&self, one: usize, other: usize) -> bool {
        let [a, b] = [one, other].map(|index| &self.plan.contenders[index].engine);
        (&a.worker, &a.framework, &a.version) == (&b.worker, &b.framework, &b.version)
    }

    /// # Errors
    /// Why the reference cannot compute the logits of all sequences of a request.
    pub(crate) fn can_be_scored(&self) -> Result<(), String> {
        if self.plan.work.judged_sequences() < self.plan.work.batch() {
            return Err(
                "of a batch that fills the memory, the logits of the first sequences alone are kept".into()
            );
        }
        if self.at_once(self.plan.work.capacity()) == 0 {
            return Err("the logits of a sequence take more than a gigabyte".into());
        }
        Ok(())
    }

    /// Number of sequences of this length that are computed at once; 0 if one has too many logits.
    fn at_once(&self, length: usize) -> usize {
        let bytes = length * self.vocabulary() * size_of::<f32>();
        if bytes > 1 << 30 {
            return 0;
        }
        (AT_ONCE.0 / length.max(1)).min(AT_ONCE.1 / bytes.max(1)).max(1)
    }

    /// Holds requests that continue prompts against a reference that is computed now, each along the tokens that it was fed.
    fn tokens_against(
        &self,
        work: &Generate,
        reference: usize,
        answered: &[Answered],
    ) -> Result<Vec<Found>, String> {
        let (new_tokens, vocabulary) = (work.prompted.new_tokens, self.vocabulary());
        // Its own tokens, which the next step was fed, may be none at all.
        let is_possible = |rows: &[Vec<u32>]| {
            let is_whole = |row: &Vec<u32>| {
                row.len() == new_tokens && row.iter().all(|&token| (token as usize) < vocabulary)
            };
            rows.len() == self.plan.work.batch() && rows.iter().all(is_whole)
        };
        let sequences_of = |answered: &Answered| -> Vec<Sequence> {
            let Input::Continue(Continued { prompts, trace, turn }) = &answered.asked.input else {
                return Vec::new();
            };
            let fed = if trace.is_empty() { answered.output.tokens() } else { trace };
            let prefixes = work.behind_context(answered.asked.case, prompts);
            let heard = work.heard(answered.asked.case, *turn);
            let along = prefixes.into_iter().zip(fed);
            along.map(|(prefix, fed)| ([&prefix[..], fed].concat(), heard.clone())).collect()
        };
        let mut found: Vec<Option<TokenAgreement>> = answered.iter().map(|_| None).collect();
        let mut groups: BTreeMap<(usize, u64), Vec<usize>> = BTreeMap::new();
        for (place, answered) in answered.iter().enumerate() {
            if is_possible(answered.output.tokens()) {
                let length = sequences_of(answered).iter().map(|(tokens, _)| tokens.len()).max().unwrap_or(0);
                groups.entry((length, answered.asked.seed)).or_default().push(place);
            } else {
                let all = new_tokens * self.plan.work.batch();
                found[place] =
                    Some(TokenAgreement { timed: all, mismatches: all, ..TokenAgreement::default() });
            }
        }
        let mut groups = groups.into_iter().peekable();
        while let Some(((longest, _), mut places)) = groups.next() {
            // All contenders are fed the same, and most choose the same.
            let sequences = |places: &[usize]| -> BTreeMap<Sequence, usize> {
                let all: BTreeSet<Sequence> =
                    places.iter().flat_map(|&place| sequences_of(&answered[place])).collect();
                all.into_iter().enumerate().map(|(number, sequence)| (sequence, number)).collect()
            };
            let room = self.at_once(longest);
            while let Some((_, more)) = groups.next_if(|((length, _), more)| {
                let both = [&places[..], more].concat();
                *length == longest && sequences(&both).len() <= room
            }) {
                places.extend(more);
            }
            let asked = sequences(&places);
            // The logits that predict the new tokens, and those behind the last.
            let by = (reference, self.reference_precision());
            let rows = self.scored(by, asked.keys().cloned().collect(), Some(1 + new_tokens))?;
            for place in places {
                let one = &answered[place];
                let tolerance = Tolerance::for_work(&self.plan.contenders[one.index], &self.plan.work);
                let along = sequences_of(one);
                let along: Vec<&[f32]> =
                    along.iter().map(|row| &rows[asked[row]][..new_tokens * vocabulary]).collect();
                let along = (&along[..], vocabulary);
                let seen = (&one.drawn[..], &one.barred[..]);
                found[place] = Some(parity::proved(one.output.tokens(), seen, along, &tolerance));
            }
        }
        Ok(found.into_iter().map(|tokens| Found { tokens, vectors: None }).collect())
    }

    /// The same of texts and inputs of an ONNX file.
    fn outputs_against(&self, reference: usize, answered: &[Answered]) -> Result<Vec<Found>, String> {
        let asked: BTreeMap<u64, &Asked> =
            answered.iter().map(|answered| (answered.asked.seed, &*answered.asked)).collect();
        let asked: Vec<(u64, &Asked)> = asked.into_iter().collect();
        let numbers = answered.iter().map(|answered| answered.output.numbers()).max().unwrap_or(0);
        let mut outputs: BTreeMap<u64, Output> = BTreeMap::new();
        for part in asked.chunks((NUMBERS_AT_ONCE / numbers.max(1)).max(1)) {
            let inputs: Vec<(usize, &Input)> =
                part.iter().map(|(_, asked)| (asked.case, &asked.input)).collect();
            let work = self.plan.work.computing(&inputs).ok_or("it has no such inputs")?;
            let task = Task::Answer(Answer { work, parity: None });
            let computed = self.answered(reference, self.reference_precision(), task)?;
            let is_whole =
                |((_, asked), output): (&(u64, &Asked), &Output)| self.plan.work.is_whole(asked.case, output);
            if computed.len() != part.len() || !part.iter().zip(&computed).all(is_whole) {
                return Err("it did not compute the outputs asked for".into());
            }
            outputs.extend(part.iter().map(|(seed, _)| *seed).zip(computed));
        }
        let of = |answered: &Answered| {
            let theirs = &outputs[&answered.asked.seed];
            let unlike = VectorAgreement { unlike: 1, ..VectorAgreement::default() };
            Found {
                tokens: None,
                vectors: Some(work::difference(&answered.output, theirs).unwrap_or(unlike)),
            }
        };
        Ok(answered.iter().map(of).collect())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_slice_is_sent_the_tokens_of_its_own_steps_alone() {
        let trace = vec![vec![1, 2, 3, 4, 5, 6]];
        let of = |trace: Vec<Vec<u32>>| {
            let input = Input::Continue(Continued { prompts: vec![vec![9]], trace, turn: Some(7) });
            Asked { case: 0, seed: 0, input }
        };
        let asked = of(trace);
        let sent = |made, marks| match asked.later(made, marks) {
            Some(Input::Continue(Continued { prompts, trace, turn: None })) if prompts.is_empty() => {
                trace.concat()
            }
            other => panic!("{other:?}"),
        };
        assert_eq!(
            asked.first(),
            Input::Continue(Continued { prompts: vec![vec![9]], trace: vec![], turn: Some(7) })
        );
        assert_eq!((sent(1, 3), sent(4, 2)), (vec![1, 2, 3], vec![4, 5]));
        assert_eq!(sent(4, 9), [4, 5], "the last token is not fed");
        let itself = of(Vec::new());
        assert!(itself.feeds_itself() && !asked.feeds_itself());
        assert_eq!(itself.later(1, 3), None);
    }
}
