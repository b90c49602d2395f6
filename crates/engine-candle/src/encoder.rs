//! Encoders. The tokens of all texts are the rows of one matrix, so that nothing is computed for padding; attention alone
//! goes text by text.

use bundle::{Bundle, ModelConfig, Pooling, Precision};
use candle_core::{Device, Result, Tensor, bail};
use engine::{Encode, EncodeTask, EngineError, InEffect, Texts, check_plain_encoder};
use rayon::prelude::*;

use crate::cpu;
use crate::error::framework;
use crate::linear::Linear;
use crate::math::{add, softmax};
use crate::mlp::Mlp;
use crate::model::{Held, MLP_ROWS};
use crate::norm::Norm;
use crate::parallel::for_each_chunk;
use crate::reader::Reader;
use crate::weight::{Weight, with_f32};

#[derive(Debug)]
pub(crate) struct Encoder {
    config: ModelConfig,
    /// The precision of the file that was read.
    precision: Precision,
    /// `[vocabulary, hidden]`
    embedding: Weight,
    /// `[positions, hidden]`, from the first position of a text on.
    positions: Weight,
    /// Row of `positions` that the first token has.
    first_position: usize,
    /// `[types, hidden]`
    types: Option<Weight>,
    norm: Norm,
    layers: Vec<Layer>,
    vectors: Vec<f32>,
    computed: usize,
}

#[derive(Debug)]
struct Layer {
    qkv: Linear,
    output: Linear,
    attention_norm: Norm,
    mlp: Mlp,
    mlp_norm: Norm,
}

impl Encoder {
    /// Reads the weights at `precision`; quantised ones as f32 if `dequantise` says so.
    pub(crate) fn read(
        bundle: &Bundle,
        precision: Precision,
        dequantise: bool,
    ) -> std::result::Result<Encoder, EngineError> {
        let weights = bundle.weights(precision)?;
        let config = bundle.config().clone();
        check_plain_encoder(&config, "candle")?;
        let reader = Reader::new(&weights, dequantise);
        let layers = (0..config.layers).into_par_iter().map(|index| Layer::read(&reader, &config, index));
        let layers = layers.collect::<std::result::Result<_, _>>()?;
        let (Some(encoder), Some(norm), Some(positions)) =
            (&config.encoder, config.embedding_norm(), config.position_embedding())
        else {
            return Err(EngineError::Input("the model is no encoder".into()));
        };
        Ok(Encoder {
            embedding: reader.matrix(&config.embedding())?,
            positions: reader.matrix(&positions)?,
            first_position: encoder.first_position,
            types: config.token_type_embedding().map(|name| reader.matrix(&name)).transpose()?,
            norm: Norm::read(&reader, &config, &norm)?,
            layers,
            precision: weights.precision(),
            config,
            vectors: Vec::new(),
            computed: 0,
        })
    }

    pub(crate) fn in_effect(&self) -> InEffect {
        let linears = self.layers.iter().flat_map(|layer| {
            let [gate_up, down] = layer.mlp.linears();
            [&layer.qkv, &layer.output, gate_up, down]
        });
        let weights: Vec<&Weight> = linears.map(Linear::weight).collect();
        let attention = "texts unpadded, attention by matmul, text by text";
        cpu::in_effect(&self.config, self.precision, Held::new(&weights), (Precision::F32, attention))
    }

    fn forward(&self, texts: Texts<'_>) -> Result<Tensor> {
        let mut x = self.embed(texts)?;
        for layer in &self.layers {
            x = layer.forward(&x, texts.lengths, &self.config)?;
        }
        Ok(x)
    }

    /// The normed sums of the embeddings of tokens, positions and types: `[tokens, hidden]`.
    fn embed(&self, texts: Texts<'_>) -> Result<Tensor> {
        let width = self.config.hidden_size;
        let mut x = vec![0.0; texts.tokens.len() * width];
        let mut other = vec![0.0; width];
        let places = texts.lengths.iter().flat_map(|&length| 0..length);
        for (row, (out, place)) in x.chunks_exact_mut(width).zip(places).enumerate() {
            self.embedding.copy_row(texts.tokens[row] as usize, out)?;
            self.positions.copy_row(self.first_position + place, &mut other)?;
            add(out, &other);
            if let Some(types) = &self.types {
                types.copy_row(texts.types.get(row).map_or(0, |&kind| kind as usize), &mut other)?;
                add(out, &other);
            }
        }
        self.norm.forward(&x)
    }

    /// The vector of each text, from those of its tokens.
    fn pool(&self, x: &[f32], lengths: &[usize], pooling: Pooling, normalise: bool) -> Vec<f32> {
        let width = self.config.hidden_size;
        let mut pooled = Vec::with_capacity(lengths.len() * width);
        let mut rest = x;
        for &length in lengths {
            let rows;
            (rows, rest) = rest.split_at(length * width);
            let start = pooled.len();
            match pooling {
                Pooling::Cls => pooled.extend_from_slice(&rows[..width]),
                Pooling::Last => pooled.extend_from_slice(&rows[rows.len() - width..]),
                Pooling::Mean | Pooling::Max => {
                    pooled.extend_from_slice(&rows[..width]);
                    let out = &mut pooled[start..];
                    for row in rows.chunks_exact(width).skip(1) {
                        match pooling {
                            Pooling::Max => out.iter_mut().zip(row).for_each(|(out, x)| *out = out.max(*x)),
                            _ => add(out, row),
                        }
                    }
                    if pooling == Pooling::Mean {
                        let share = (length as f32).recip();
                        out.iter_mut().for_each(|out| *out *= share);
                    }
                }
            }
            if normalise {
                let out = &mut pooled[start..];
                // The floor is that of PyTorch's `normalize`.
                let norm = out.iter().map(|x| x * x).sum::<f32>().sqrt().max(1e-12);
                out.iter_mut().for_each(|out| *out /= norm);
            }
        }
        pooled
    }
}

impl Encode for Encoder {
    fn encode(&mut self, texts: Texts<'_>, task: EncodeTask) -> std::result::Result<&[f32], EngineError> {
        texts.check(&self.config, task)?;
        let EncodeTask::Embed { pooling, normalise } = task else {
            return Err(EngineError::Unsupported("candle computes no heads of encoders here".into()));
        };
        let x = self.forward(texts).map_err(framework)?;
        self.vectors =
            with_f32(&x, |x| self.pool(x, texts.lengths, pooling, normalise)).map_err(framework)?;
        self.computed = texts.tokens.len();
        Ok(&self.vectors)
    }

    fn config(&self) -> &ModelConfig {
        &self.config
    }

    fn positions(&self) -> usize {
        self.computed
    }
}

impl Layer {
    fn read(
        reader: &Reader<'_>,
        config: &ModelConfig,
        index: usize,
    ) -> std::result::Result<Layer, EngineError> {
        let names = config.layer(index);
        let norm = |norm: Option<&bundle::NormNames>| {
            Norm::read_optional(reader, config, norm)?
                .ok_or_else(|| EngineError::Input("a layer of an encoder has two norms".into()))
        };
        Ok(Layer {
            qkv: Linear::read(reader, &names.qkv)?,
            output: Linear::read(reader, &names.output)?,
            attention_norm: norm(names.attention_norm_behind.as_ref())?,
            mlp: Mlp::read(reader, config, &names)?,
            mlp_norm: norm(names.mlp_norm_behind.as_ref())?,
        })
    }

    /// norm(x + block(x)), twice.
    fn forward(&self, x: &Tensor, lengths: &[usize], config: &ModelConfig) -> Result<Tensor> {
        let attended = attend(&self.qkv.forward(x)?, lengths, config)?;
        let x = self.attention_norm.of_sum(x, &self.output.forward(&attended)?)?;
        let rows = x.dim(0)?;
        let pieces = (0..rows).step_by(MLP_ROWS).map(|start| {
            let x = x.narrow(0, start, MLP_ROWS.min(rows - start))?;
            self.mlp_norm.of_sum(&x, &self.mlp.forward(&x)?)
        });
        let pieces = pieces.collect::<Result<Vec<_>>>()?;
        if pieces.len() == 1 { Ok(pieces[0].clone()) } else { Tensor::cat(&pieces, 0) }
    }
}

/// Attention of every text's tokens to one another: `[tokens, 3 · heads · head_dim]` → `[tokens, heads · head_dim]`.
fn attend(qkv: &Tensor, lengths: &[usize], config: &ModelConfig) -> Result<Tensor> {
    let (heads, d) = (config.heads, config.head_dim);
    let width = heads * d;
    let rows = qkv.dim(0)?;
    let mut attended = vec![0.0; rows * width];
    with_f32(qkv, |qkv| {
        let (mut rest_in, mut rest_out) = (qkv, &mut attended[..]);
        let mut texts = Vec::with_capacity(lengths.len());
        for &length in lengths {
            let (of_text, out);
            (of_text, rest_in) = rest_in.split_at(length * 3 * width);
            (out, rest_out) = rest_out.split_at_mut(length * width);
            texts.push((length, of_text, out));
        }
        texts.into_par_iter().try_for_each(|(length, qkv, out)| attend_in_text(length, qkv, out, (heads, d)))
    })??;
    Tensor::from_vec(attended, (rows, width), &Device::Cpu)
}

fn attend_in_text(length: usize, qkv: &[f32], out: &mut [f32], (heads, d): (usize, usize)) -> Result<()> {
    let width = heads * d;
    let scale = (d as f32).sqrt().recip();
    // The heads of queries, of keys or of values one behind the other.
    let part = |which: usize, factor: f32| {
        let mut part = vec![0.0; length * width];
        for (chunk, to) in part.chunks_exact_mut(d).enumerate() {
            let (head, row) = (chunk / length, chunk % length);
            let from = &qkv[row * 3 * width + which * width + head * d..][..d];
            to.iter_mut().zip(from).for_each(|(to, from)| *to = from * factor);
        }
        Tensor::from_vec(part, (heads, length, d), &Device::Cpu)
    };
    let (queries, keys, values) = (part(0, scale)?, part(1, 1.0)?, part(2, 1.0)?);
    let scores = queries.matmul(&keys.transpose(1, 2)?)?;
    let mut weights = with_f32(&scores, <[f32]>::to_vec)?;
    weights.chunks_exact_mut(length).for_each(softmax);
    let weights = Tensor::from_vec(weights, (heads, length, length), &Device::Cpu)?;
    let product = weights.matmul(&values)?;
    with_f32(&product, |product| {
        for (chunk, to) in out.chunks_exact_mut(d).enumerate() {
            let (row, head) = (chunk / heads, chunk % heads);
            to.copy_from_slice(&product[(head * length + row) * d..][..d]);
        }
    })
}

impl Norm {
    /// Norms each row of x + y: `[rows, hidden]`.
    fn of_sum(&self, x: &Tensor, y: &Tensor) -> Result<Tensor> {
        let (rows, width) = x.dims2()?;
        if y.dims() != x.dims() {
            bail!("a sum of {:?} and {:?}", x.dims(), y.dims());
        }
        let mut normed = vec![0.0; rows * width];
        with_f32(x, |x| {
            with_f32(y, |y| {
                for_each_chunk(&mut normed, width, |row, out| {
                    let range = row * width..(row + 1) * width;
                    out.copy_from_slice(&x[range.clone()]);
                    add(out, &y[range]);
                    self.norm_row(out);
                });
            })
        })??;
        Tensor::from_vec(normed, (rows, width), &Device::Cpu)
    }
}
