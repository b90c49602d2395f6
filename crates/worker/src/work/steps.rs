//! The steps from the vectors that an engine gives to those of the model: modules behind the body of a sentence encoder.
//! They are computed in f32, after the last mark, by the same code for all engines.
//!
//! Source: sentence-transformers 6.2.0, `pooling.py`, `dense.py`, `layer_norm.py`, `normalize.py`.

use std::path::Path;

use bundle::{MODULES, Precision, Weights, step_tensors};
use protocol::{Residual, Step, StepActivation};

use crate::ServeError;
use crate::engine::{normalise, pool_in};

/// The variance's addend in PyTorch's `LayerNorm`.
const EPSILON: f32 = 1e-5;

#[derive(Debug, Default)]
pub(crate) struct Steps(Vec<Loaded>);

/// A step with its tensors, in the order of [`step_tensors`].
#[derive(Debug)]
struct Loaded {
    step: Step,
    tensors: Vec<Vec<f32>>,
}

impl Steps {
    /// Reads the tensors of `steps` from the bundle in `directory`.
    pub(crate) fn read(steps: &[Step], directory: Option<&Path>) -> Result<Steps, ServeError> {
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
    pub(crate) fn apply(&self, numbers: &[f32], hidden: usize) -> Vec<f32> {
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
