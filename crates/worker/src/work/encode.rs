//! Texts to vectors or scores: each request encodes one batch.

use std::path::Path;

use bundle::{MODULES, ModelConfig, Precision, Weights, step_tensors};
use protocol::{
    Call, EncodeWork, Input, Output, ParityTask, Pooling, Residual, Score, Scored, Step, StepActivation,
    TextBatch, Vectors,
};

use super::served::{Callers, Requests};
use super::{Model, Part, Request, Serving, Workload};
use crate::ServeError;
use crate::clock::Pace;
use crate::engine::{EncodeTask, InferenceEngine, Result, Texts, normalise, pool_in};
use crate::logits::Tensors;

/// Encodes batches of texts.
pub(crate) struct Encoding<'a, E> {
    work: &'a EncodeWork,
    callers: Callers<'a, E>,
    pace: Pace,
    cases: Vec<Flat>,
    /// The vectors of the request under way, and the numbers of each text's.
    vectors: Vec<f32>,
    widths: Vec<usize>,
    steps: Steps,
    /// Numbers of a token's vector.
    hidden: usize,
    positions: usize,
}

/// A batch in the form that engines accept.
#[derive(Debug, Default)]
struct Flat {
    tokens: Vec<u32>,
    types: Vec<u32>,
    lengths: Vec<usize>,
}

impl<'a, E: InferenceEngine> Encoding<'a, E> {
    pub(crate) fn new(
        work: &'a EncodeWork,
        (model, pace): (Model<'_>, Pace),
        serving: Serving<'a, E>,
    ) -> Result<Encoding<'a, E>, ServeError> {
        let cases = work.cases.iter().map(Flat::new).collect::<Result<_, _>>()?;
        let (vectors, widths, callers) = (Vec::new(), Vec::new(), Callers::new(serving));
        let steps = Steps::read(&work.steps, model.directory)?;
        Ok(Encoding { work, callers, pace, cases, vectors, widths, steps, hidden: 0, positions: 0 })
    }
}

/// Texts that callers have encoded, a request for each.
struct SingleTexts {
    texts: Vec<Flat>,
    task: EncodeTask,
    pace: Pace,
}

/// The vector of a text, and its share of the positions that were computed.
struct Encoded {
    vector: Vec<f32>,
    positions: usize,
}

impl SingleTexts {
    fn new(batch: &Flat, tokens: &[u32], (task, pace): (EncodeTask, Pace)) -> SingleTexts {
        let mut rest = (tokens, batch.types.as_slice());
        let text = |&length: &usize| {
            let ((tokens, behind), own) = (rest.0.split_at(length), rest.1.len().min(length));
            let (types, types_behind) = rest.1.split_at(own);
            rest = (behind, types_behind);
            Flat { tokens: tokens.to_vec(), types: types.to_vec(), lengths: vec![length] }
        };
        SingleTexts { texts: batch.lengths.iter().map(text).collect(), task, pace }
    }
}

impl<E: InferenceEngine> Requests<E> for SingleTexts {
    type Answer = Encoded;

    fn count(&self) -> usize {
        self.texts.len()
    }

    fn compute(&self, engine: &mut E, requests: &[usize]) -> Result<Vec<Encoded>> {
        let mut batch = Flat::default();
        for Flat { tokens, types, lengths } in requests.iter().map(|&text| &self.texts[text]) {
            batch.tokens.extend(tokens);
            batch.types.extend(types);
            batch.lengths.extend(lengths);
        }
        let Flat { tokens, types, lengths } = &batch;
        let encoder = engine.encode()?;
        let widths: Vec<usize> =
            lengths.iter().map(|&tokens| encoder.config().width(self.task, tokens)).collect();
        let mut rest = self.pace.keep(|| encoder.encode(Texts { tokens, types, lengths }, self.task))?;
        let cut = |width: usize| {
            let of_text;
            (of_text, rest) = rest.split_at(width.min(rest.len()));
            of_text.to_vec()
        };
        let vectors: Vec<Vec<f32>> = widths.into_iter().map(cut).collect();
        let (positions, texts) = (encoder.positions(), vectors.len().max(1));
        let share = |place: usize| positions / texts + usize::from(place < positions % texts);
        let answers = vectors.into_iter().enumerate();
        Ok(answers.map(|(place, vector)| Encoded { vector, positions: share(place) }).collect())
    }
}

impl Flat {
    fn new(batch: &TextBatch) -> Result<Flat, ServeError> {
        let lengths: Vec<usize> = batch.texts.iter().map(Vec::len).collect();
        let typed: Vec<usize> = batch.types.iter().map(Vec::len).collect();
        if !typed.is_empty() && typed != lengths {
            return Err(ServeError::Job("each token of a text has a type, or none has".into()));
        }
        Ok(Flat { tokens: batch.texts.concat(), types: batch.types.concat(), lengths })
    }
}

impl<E: InferenceEngine> Workload<E> for Encoding<'_, E> {
    fn cases(&self) -> usize {
        self.cases.len()
    }

    fn marks(&self) -> usize {
        1
    }

    fn check(&self, case: usize, input: &Input, _: Part) -> Result<(), ServeError> {
        let is_fit =
            |texts: &[Vec<u32>]| texts.iter().map(Vec::len).eq(self.cases[case].lengths.iter().copied());
        if matches!(input, Input::Texts(texts) if is_fit(texts)) {
            return Ok(());
        }
        Err(ServeError::Job("the texts of a request are as many and as long as those of its case".into()))
    }

    fn begin(&mut self, engine: &mut E, case: usize, input: Option<Input>) -> Result<Request, ServeError> {
        let given = match input {
            Some(Input::Texts(texts)) => Some(texts.concat()),
            _ => None,
        };
        self.hidden = engine.encode()?.config().hidden_size;
        if let Some(load) = self.callers.load() {
            let is_asked = given.is_some();
            let batch = &self.cases[case];
            let tokens = given.as_ref().unwrap_or(&batch.tokens);
            let texts = SingleTexts::new(batch, tokens, (self.work.task, self.pace));
            let numbers = tokens.iter().map(|&token| u64::from(token));
            let turn = self.callers.turn(engine, (texts, load), (case, is_asked), numbers);
            let (request, answers) = turn?;
            self.positions = answers.iter().map(|answer| answer.positions).sum();
            self.widths = answers.iter().map(|answer| answer.vector.len()).collect();
            self.vectors = answers.into_iter().flat_map(|answer| answer.vector).collect();
            return Ok(request);
        }
        let encoder = engine.encode()?;
        let Flat { tokens, types, lengths } = &self.cases[case];
        let tokens = given.as_ref().unwrap_or(tokens);
        let task = self.work.task;
        self.widths = lengths.iter().map(|&tokens| encoder.config().width(task, tokens)).collect();
        self.vectors.clear();
        let mut request = Request::start(case, Vec::with_capacity(1));
        let vectors = self.pace.keep(|| encoder.encode(Texts { tokens, types, lengths }, task))?;
        request.mark();
        self.vectors.extend_from_slice(vectors);
        self.positions = encoder.positions();
        Ok(request)
    }

    fn advance(&mut self, _: &mut E, _: &mut Request, _: (usize, Option<Input>)) -> Result<(), ServeError> {
        Ok(())
    }

    fn output(&self) -> Output {
        let mut rest = &self.vectors[..];
        let cut = |&width: &usize| {
            let of_text;
            (of_text, rest) = rest.split_at(width.min(rest.len()));
            self.steps.apply(of_text, self.hidden)
        };
        let vectors = self.widths.iter().map(cut).collect();
        Output::Vectors(Vectors { vectors, positions: self.positions })
    }

    fn calls(&self) -> Vec<Call> {
        self.callers.calls()
    }

    fn parity(&mut self, _: &mut E, _: &ParityTask) -> Result<(), ServeError> {
        Err(ServeError::Job("requests that encode texts have no logits".into()))
    }
}

/// Hidden states of texts, one after the other; `None` if the model is no encoder.
pub(crate) fn score_texts<E: InferenceEngine>(
    engine: &mut E,
    task: &Score,
    config: &ModelConfig,
    hidden_states: bool,
) -> Result<Option<Scored>, ServeError> {
    if !config.encodes() {
        return Ok(None);
    }
    if !hidden_states {
        return Err(ServeError::Job(
            "an encoder has no logits, and its hidden states are not asked for".into(),
        ));
    }
    let lengths: Vec<usize> = task.sequences.iter().map(Vec::len).collect();
    let (tokens, types) = (task.sequences.concat(), task.types.concat());
    let encoder = engine.encode()?;
    // Hidden states do not depend on the pooling of the last one.
    let pooled = EncodeTask::Embed { pooling: Pooling::Mean, normalise: false };
    encoder.encode(Texts { tokens: &tokens, types: &types, lengths: &lengths }, pooled)?;
    let mut tensors = Tensors::default();
    for (layer, values) in encoder.hidden_states()?.layers.iter().enumerate() {
        tensors.add(format!("hidden.{layer}"), &[1, tokens.len(), config.hidden_size], values);
    }
    tensors.write(&task.file)?;
    Ok(Some(Scored { file: task.file.as_str().into() }))
}

// The steps from the vectors that an engine gives to those of the model: modules behind the body of a sentence encoder.
// They are computed in f32, after the last mark, by the same code for all engines.
//
// Source: sentence-transformers 6.2.0, `pooling.py`, `dense.py`, `layer_norm.py`, `normalize.py`.

/// The variance's addend in PyTorch's `LayerNorm`.
const EPSILON: f32 = 1e-5;

#[derive(Debug, Default)]
struct Steps(Vec<Loaded>);

/// A step with its tensors, in the order of [`step_tensors`].
#[derive(Debug)]
struct Loaded {
    step: Step,
    tensors: Vec<Vec<f32>>,
}

impl Steps {
    /// Reads the tensors of `steps` from the bundle in `directory`.
    fn read(steps: &[Step], directory: Option<&Path>) -> Result<Steps, ServeError> {
        let job = |error: bundle::BundleError| ServeError::Job(error.to_string());
        let loaded = |step: &Step| {
            let stored = step_tensors(step);
            if stored.is_empty() {
                return Ok(Loaded { step: step.clone(), tensors: Vec::new() });
            }
            let directory = directory.ok_or_else(|| {
                ServeError::Job("a module behind the encoder has tensors, and there is no bundle".into())
            })?;
            let weights = Weights::map(&directory.join(MODULES), Precision::F32, &stored).map_err(job)?;
            let tensors =
                stored.iter().map(|tensor| Ok(floats(weights.tensor(&tensor.name).map_err(job)?.bytes)));
            Ok(Loaded { step: step.clone(), tensors: tensors.collect::<Result<_, ServeError>>()? })
        };
        steps.iter().map(loaded).collect::<Result<_, _>>().map(Steps)
    }

    /// The vector of a text, from the numbers of an engine; those of a token are `hidden`.
    fn apply(&self, numbers: &[f32], hidden: usize) -> Vec<f32> {
        let mut vector = numbers.to_vec();
        for Loaded { step, tensors } in &self.0 {
            match (step, &tensors[..]) {
                (Step::Pool { ways, skipped }, _) => {
                    let rows = std::mem::take(&mut vector);
                    ways.iter().for_each(|&way| pool_in(way, &rows, (hidden, *skipped), &mut vector));
                }
                (Step::Dense(dense), [weight, rest @ ..]) => {
                    let mut found = product(weight, &vector);
                    let (bias, rest) = rest.split_at(usize::from(dense.bias));
                    bias.iter().for_each(|bias| add(&mut found, bias));
                    found.iter_mut().for_each(|number| *number = activated(*number, dense.activation));
                    match (dense.residual, rest) {
                        (Residual::Itself, _) => add(&mut found, &vector),
                        (Residual::Weighted, [weight, ..]) => add(&mut found, &product(weight, &vector)),
                        _ => {}
                    }
                    vector = found;
                }
                (Step::LayerNorm { .. }, [weight, bias, ..]) => {
                    let count = vector.len() as f32;
                    let mean = vector.iter().sum::<f32>() / count;
                    let variance = vector.iter().map(|x| (x - mean) * (x - mean)).sum::<f32>() / count;
                    let scale = (variance + EPSILON).sqrt().recip();
                    for (x, (weight, bias)) in vector.iter_mut().zip(weight.iter().zip(bias)) {
                        *x = (*x - mean) * scale * weight + bias;
                    }
                }
                (Step::Normalise, _) => normalise(&mut vector),
                (Step::Cut(most), _) => vector.truncate(*most),
                (Step::Dense(_) | Step::LayerNorm { .. }, _) => {
                    unreachable!("a step is read with its tensors")
                }
            }
        }
        vector
    }
}

fn floats(bytes: &[u8]) -> Vec<f32> {
    bytes.as_chunks().0.iter().map(|bytes| f32::from_le_bytes(*bytes)).collect()
}

fn add(to: &mut [f32], numbers: &[f32]) {
    to.iter_mut().zip(numbers).for_each(|(sum, number)| *sum += number);
}

/// The product of a matrix `[outputs, inputs]` with a vector, summed in f64.
fn product(weight: &[f32], vector: &[f32]) -> Vec<f32> {
    let row = |row: &[f32]| {
        // Several sums at once, which a processor adds side by side.
        let mut sums = [0.0; 8];
        for (weights, numbers) in row.chunks(8).zip(vector.chunks(8)) {
            let products = weights.iter().zip(numbers).map(|(w, x)| f64::from(*w) * f64::from(*x));
            sums.iter_mut().zip(products).for_each(|(sum, product)| *sum += product);
        }
        sums.iter().sum::<f64>() as f32
    };
    weight.chunks_exact(vector.len().max(1)).map(row).collect()
}

fn activated(x: f32, activation: StepActivation) -> f32 {
    let sigmoid = |x: f32| (1.0 + (-x).exp()).recip();
    match activation {
        StepActivation::Identity => x,
        StepActivation::Tanh => x.tanh(),
        StepActivation::Relu => x.max(0.0),
        StepActivation::Gelu => 0.5 * x * (1.0 + libm::erff(x * std::f32::consts::FRAC_1_SQRT_2)),
        StepActivation::Sigmoid => sigmoid(x),
        StepActivation::Silu => x * sigmoid(x),
    }
}

#[cfg(test)]
mod tests {
    use protocol::{Dense, Way};

    use super::*;

    fn dense(activation: StepActivation, residual: Residual) -> Step {
        Step::Dense(Dense { tensors: "0".into(), inputs: 2, outputs: 2, bias: true, activation, residual })
    }

    fn applied(step: Step, tensors: &[&[f32]], numbers: &[f32]) -> Vec<f32> {
        let tensors = tensors.iter().map(|tensor| tensor.to_vec()).collect();
        Steps(vec![Loaded { step, tensors }]).apply(numbers, 2)
    }

    #[test]
    fn a_step_computes_what_pytorch_does() {
        let (weight, bias): (&[f32], &[f32]) = (&[1.0, 2.0, 0.0, -1.0], &[0.5, 1.0]);
        let found = |activation, residual| {
            applied(dense(activation, residual), &[weight, bias, weight], &[1.0, -1.0])
        };
        let close = |found: Vec<f32>, wanted: [f32; 2]| {
            assert!(found.iter().zip(wanted).all(|(a, b)| (a - b).abs() < 1e-6), "{found:?} {wanted:?}");
        };
        // Of -0.5 and 2.
        for (activation, wanted) in [
            (StepActivation::Identity, [-0.5, 2.0]),
            (StepActivation::Tanh, [-0.462_117_16, 0.964_027_6]),
            (StepActivation::Relu, [0.0, 2.0]),
            (StepActivation::Gelu, [-0.154_268_77, 1.954_499_7]),
            (StepActivation::Sigmoid, [0.377_540_67, 0.880_797_1]),
            (StepActivation::Silu, [-0.188_770_34, 1.761_594_2]),
        ] {
            close(found(activation, Residual::None), wanted);
        }
        close(found(StepActivation::Identity, Residual::Itself), [0.5, 1.0]);
        close(found(StepActivation::Identity, Residual::Weighted), [-1.5, 3.0]);
        let norm = Step::LayerNorm { tensors: "0".into(), width: 2 };
        close(applied(norm, &[&[1.0, 2.0], &[0.0, 1.0]], &[3.0, 5.0]), [-0.999_995, 2.999_99]);
        close(applied(Step::Normalise, &[], &[3.0, 4.0]), [0.6, 0.8]);
        assert_eq!(applied(Step::Cut(1), &[], &[3.0, 4.0]), [3.0]);
        let joined = Step::Pool { ways: vec![Way::Cls, Way::Mean], skipped: 0 };
        assert_eq!(applied(joined, &[], &[1.0, 2.0, 3.0, 6.0]), [1.0, 2.0, 2.0, 4.0]);
    }
}
