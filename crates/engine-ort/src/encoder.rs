//! Encoders: the inputs of one run for texts of different lengths, and what is asked for from what the run gives.

use std::borrow::Cow;

use bundle::{ModelConfig, Pooling, Scored, rotary};
use engine::{Encode, EncodeTask, EngineError, Texts};
use onnx::fused::encoder::{
    BUCKETS, LENGTHS, PADDED, SCORED, SHARES, TYPES, UNPADDED, UNSEEN, WINDOW, activation_operator, output,
    takes_window,
};
use onnx::names::{LAST_POSITIONS, POSITIONS, SCORES, TOKENS, TOTAL, rotary_names};
use ort::session::{OutputSelector, RunOptions, SessionInputValue};
use ort::value::{PrimitiveTensorElementType, Tensor};

use crate::model::Model;
use crate::runtime::framework;

pub(crate) struct Encoder {
    pub(crate) model: Model,
    /// The numbers of the last task.
    numbers: Vec<f32>,
    computed: usize,
}

/// The inputs of a run, by name.
#[derive(Default)]
struct Inputs(Vec<(Cow<'static, str>, SessionInputValue<'static>)>);

/// The kernels beside the products, for people.
pub(crate) fn kernels(model: &Model) -> Vec<&'static str> {
    let config = &model.config;
    let norms = match (config.rms_norm, config.form.norm_without_bias) {
        (true, _) => "SkipSimplifiedLayerNormalization",
        (false, true) => "SkipLayerNormalization without biases",
        (false, false) => "SkipLayerNormalization with biases",
    };
    let layout = "attention on texts padded to the longest, linear layers of texts unpadded, fused q/k/v";
    vec![model.attention.operators(), norms, activation_operator(config), layout]
}

impl Encoder {
    pub(crate) fn new(model: Model) -> Encoder {
        Encoder { model, numbers: Vec::new(), computed: 0 }
    }

    fn run(&mut self, texts: Texts<'_>, task: EncodeTask) -> ort::Result<()> {
        let config = &self.model.config;
        let name = match task {
            EncodeTask::Embed { .. } => output(config),
            EncodeTask::Score => SCORES.to_owned(),
        };
        let options = RunOptions::new()?.with_outputs(OutputSelector::no_default().with(&name));
        let outputs = self.model.session.run_with_options(inputs(config, texts)?, &options)?;
        let (_, rows) = outputs[name.as_str()].try_extract_tensor::<f32>()?;
        self.numbers.clear();
        let EncodeTask::Embed { pooling, normalise } = task else {
            self.numbers.extend_from_slice(rows);
            return Ok(());
        };
        let mut rest = rows;
        for &length in texts.lengths {
            let of_text;
            (of_text, rest) = rest.split_at(length * config.hidden_size);
            pool(of_text, config.hidden_size, (pooling, normalise), &mut self.numbers);
        }
        Ok(())
    }
}

impl Encode for Encoder {
    fn encode(&mut self, texts: Texts<'_>, task: EncodeTask) -> Result<&[f32], EngineError> {
        texts.check(&self.model.config, task)?;
        self.run(texts, task).map_err(framework)?;
        self.computed = texts.lengths.len() * longest(texts);
        Ok(&self.numbers)
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

impl Inputs {
    fn add<T: PrimitiveTensorElementType + Clone + std::fmt::Debug + 'static>(
        &mut self,
        name: impl Into<Cow<'static, str>>,
        shape: &[usize],
        values: Vec<T>,
    ) -> ort::Result<()> {
        self.0.push((name.into(), Tensor::from_array((shape, values))?.into()));
        Ok(())
    }

    /// What attention takes beside queries, keys and values, of texts as long as this and shorter.
    fn add_attention(&mut self, config: &ModelConfig, texts: Texts<'_>) -> ort::Result<()> {
        let (count, longest) = (texts.lengths.len(), longest(texts));
        // Tables for the texts at hand: they cost nothing beside the layers.
        let tables = rotary::tables(config, longest).into_iter().enumerate();
        let shape = [longest, config.rotary_dim() / 2];
        for (rotation, (cos, sin)) in tables {
            let [of_cos, of_sin] = rotary_names(rotation);
            self.add(of_cos, &shape, cos)?;
            self.add(of_sin, &shape, sin)?;
        }
        let lengths = texts.lengths.iter().map(|&length| length as i32);
        if config.causal {
            self.add(LAST_POSITIONS, &[count], lengths.map(|length| length - 1).collect())?;
            return self.add(TOTAL, &[], vec![longest as i32]);
        }
        self.add(LENGTHS, &[count], lengths.collect())?;
        if let Some(relative) = config.encoder.as_ref().and_then(|encoder| encoder.relative) {
            // All pairs so far apart have one row.
            let furthest = longest - 1;
            let before: Vec<i64> = (0..longest).map(|apart| relative.bucket(apart, 0) as i64).collect();
            let behind: Vec<i64> = (0..longest).map(|apart| relative.bucket(0, apart) as i64).collect();
            let by_distance: Vec<i64> = before.iter().rev().chain(&behind[1..]).copied().collect();
            let of_query = |query: usize| &by_distance[furthest - query..][..longest];
            self.add(BUCKETS, &[longest, longest], (0..longest).flat_map(of_query).copied().collect())?;
        }
        if takes_window(config) {
            self.add(WINDOW, &[1, 1, longest, longest], window(config, longest))?;
        }
        Ok(())
    }

    /// What a head takes to find the vectors of texts among those of tokens.
    fn add_pooling(&mut self, pooling: Pooling, texts: Texts<'_>) -> ort::Result<()> {
        let (count, longest) = (texts.lengths.len(), longest(texts));
        if pooling == Pooling::Mean {
            let mut shares = vec![0.0; count * longest];
            for (row, &length) in shares.chunks_exact_mut(longest).zip(texts.lengths) {
                row[..length].fill((length as f32).recip());
            }
            return self.add(SHARES, &[count, 1, longest], shares);
        }
        let mut end = 0;
        let rows = texts.lengths.iter().map(|&length| {
            let first = end;
            end += length as i64;
            if pooling == Pooling::Last { end - 1 } else { first }
        });
        self.add(SCORED, &[count], rows.collect())
    }
}

fn inputs(
    config: &ModelConfig,
    texts: Texts<'_>,
) -> ort::Result<Vec<(Cow<'static, str>, SessionInputValue<'static>)>> {
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
    let mut inputs = Inputs::default();
    inputs.add(TOKENS, &[rows], texts.tokens.iter().map(|&token| i64::from(token)).collect())?;
    if config.position_embedding().is_some() {
        inputs.add(POSITIONS, &[rows], positions)?;
    }
    if config.token_type_embedding().is_some() {
        let mut types: Vec<i64> = texts.types.iter().map(|&kind| i64::from(kind)).collect();
        types.resize(rows, 0);
        inputs.add(TYPES, &[rows], types)?;
    }
    inputs.add(UNPADDED, &[rows], unpadded)?;
    inputs.add(PADDED, &[count, longest], padded)?;
    inputs.add_attention(config, texts)?;
    let head = config.encoder.as_ref().and_then(|encoder| encoder.head.as_ref());
    if let Some(Scored::Texts(pooling)) = head.map(|head| head.of) {
        inputs.add_pooling(pooling, texts)?;
    }
    Ok(inputs.0)
}

/// What is added to the scores of layers with a window, a row for each query.
fn window(config: &ModelConfig, longest: usize) -> Vec<f32> {
    let mut layers = (0..config.layers).map(|index| config.layer_attention(index));
    let mut mask = vec![0.0; longest * longest];
    let Some(layer) = layers.find(|layer| !layer.sees_all(longest)) else { return mask };
    for (query, row) in mask.chunks_exact_mut(longest).enumerate() {
        let seen = layer.keys(query, longest);
        row[..seen.start].fill(UNSEEN);
        row[seen.end..].fill(UNSEEN);
    }
    mask
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
