//! Encoders: the inputs of one run for texts of different lengths, and their vectors from those of the tokens.

use std::borrow::Cow;

use bundle::{ModelConfig, Pooling};
use engine::{Encode, EncodeTask, EngineError, Texts};
use onnx::fused::encoder::{LENGTHS, PADDED, TYPES, UNPADDED, activation_operator, output};
use onnx::names::{POSITIONS, TOKENS};
use ort::session::SessionInputValue;
use ort::value::Tensor;

use crate::model::Model;
use crate::runtime::framework;

pub(crate) struct Encoder {
    pub(crate) model: Model,
    vectors: Vec<f32>,
    computed: usize,
}

type Inputs = Vec<(Cow<'static, str>, SessionInputValue<'static>)>;

/// The kernels beside the products, for people.
pub(crate) fn kernels(config: &ModelConfig) -> Vec<&'static str> {
    vec![
        "MultiHeadAttention on texts padded to the longest",
        "SkipLayerNormalization with biases",
        activation_operator(config.activation),
        "linear layers of texts unpadded, fused q/k/v",
    ]
}

impl Encoder {
    pub(crate) fn new(model: Model) -> Encoder {
        Encoder { model, vectors: Vec::new(), computed: 0 }
    }

    fn run(&mut self, texts: Texts<'_>, pooling: Pooling, normalise: bool) -> ort::Result<()> {
        let config = &self.model.config;
        let inputs = inputs(config, texts)?;
        let outputs = self.model.session.run(inputs)?;
        let (_, rows) = outputs[output(config).as_str()].try_extract_tensor::<f32>()?;
        self.vectors.clear();
        let mut rest = rows;
        for &length in texts.lengths {
            let of_text;
            (of_text, rest) = rest.split_at(length * config.hidden_size);
            pool(of_text, config.hidden_size, (pooling, normalise), &mut self.vectors);
        }
        Ok(())
    }
}

impl Encode for Encoder {
    fn encode(&mut self, texts: Texts<'_>, task: EncodeTask) -> Result<&[f32], EngineError> {
        texts.check(&self.model.config, task)?;
        let EncodeTask::Embed { pooling, normalise } = task else {
            return Err(EngineError::Unsupported("ort computes no heads of encoders here".into()));
        };
        self.run(texts, pooling, normalise).map_err(framework)?;
        self.computed = texts.lengths.len() * longest(texts);
        Ok(&self.vectors)
    }

    fn config(&self) -> &ModelConfig {
        &self.model.config
    }

    /// Positions of attention, whose texts are padded to the longest. Linear layers compute none for padding.
    fn positions(&self) -> usize {
        self.computed
    }
}

fn longest(texts: Texts<'_>) -> usize {
    texts.lengths.iter().copied().max().unwrap_or(0)
}

fn inputs(config: &ModelConfig, texts: Texts<'_>) -> ort::Result<Inputs> {
    let (count, longest) = (texts.lengths.len(), longest(texts));
    let first = config.encoder.as_ref().map_or(0, |encoder| encoder.first_position);
    let rows = texts.tokens.len();
    // A cell of padding has the first row, which is there.
    let mut padded = vec![0i64; count * longest];
    let (mut positions, mut unpadded) = (Vec::with_capacity(rows), Vec::with_capacity(rows));
    for (text, &length) in texts.lengths.iter().enumerate() {
        for place in 0..length {
            let cell = text * longest + place;
            padded[cell] = unpadded.len() as i64;
            unpadded.push(cell as i64);
            positions.push((first + place) as i64);
        }
    }
    let tokens = texts.tokens.iter().map(|&token| i64::from(token)).collect();
    let mut lists = vec![(TOKENS, tokens), (POSITIONS, positions), (UNPADDED, unpadded)];
    if config.token_type_embedding().is_some() {
        let mut types: Vec<i64> = texts.types.iter().map(|&kind| i64::from(kind)).collect();
        types.resize(rows, 0);
        lists.push((TYPES, types));
    }
    let mut inputs: Inputs = Vec::with_capacity(lists.len() + 2);
    for (name, values) in lists {
        inputs.push((name.into(), Tensor::from_array(([rows], values))?.into()));
    }
    inputs.push((PADDED.into(), Tensor::from_array(([count, longest], padded))?.into()));
    let lengths: Vec<i32> = texts.lengths.iter().map(|&length| length as i32).collect();
    inputs.push((LENGTHS.into(), Tensor::from_array(([count], lengths))?.into()));
    Ok(inputs)
}

/// Appends the vector of a text to `vectors`, from those of its tokens.
fn pool(rows: &[f32], width: usize, (pooling, normalise): (Pooling, bool), vectors: &mut Vec<f32>) {
    let start = vectors.len();
    let of_token = match pooling {
        Pooling::Last => &rows[rows.len() - width..],
        _ => &rows[..width],
    };
    vectors.extend_from_slice(of_token);
    let vector = &mut vectors[start..];
    let others = rows.chunks_exact(width).skip(1);
    match pooling {
        Pooling::Cls | Pooling::Last => {}
        Pooling::Max => others.for_each(|row| {
            vector.iter_mut().zip(row).for_each(|(largest, number)| *largest = largest.max(*number));
        }),
        Pooling::Mean => {
            others.for_each(|row| vector.iter_mut().zip(row).for_each(|(sum, number)| *sum += number));
            let share = ((rows.len() / width) as f32).recip();
            vector.iter_mut().for_each(|number| *number *= share);
        }
    }
    if normalise {
        // The floor is that of PyTorch's `normalize`.
        let norm = vector.iter().map(|number| number * number).sum::<f32>().sqrt().max(1e-12);
        vector.iter_mut().for_each(|number| *number /= norm);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_vector_is_pooled_from_the_rows_of_its_text() {
        let pooled = |pooling, normalise| {
            let mut vectors = vec![9.0];
            pool(&[1.0, -8.0, 5.0, 0.0], 2, (pooling, normalise), &mut vectors);
            vectors
        };
        assert_eq!(pooled(Pooling::Cls, false), [9.0, 1.0, -8.0]);
        assert_eq!(pooled(Pooling::Last, false), [9.0, 5.0, 0.0]);
        assert_eq!(pooled(Pooling::Max, false), [9.0, 5.0, 0.0]);
        assert_eq!(pooled(Pooling::Mean, false), [9.0, 3.0, -4.0]);
        assert_eq!(pooled(Pooling::Mean, true), [9.0, 0.6, -0.8]);
    }
}
