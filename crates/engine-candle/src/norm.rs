//! Norms: of rows, of queries and keys, and around a block of a layer. candle-nn's return a new tensor; the own loops can
//! also change one in place.

use bundle::{ModelConfig, NormNames, NormPlacement};
use candle_core::{Device, Result, Tensor, bail};
use candle_nn::ops;
use worker::engine::{self};

use crate::elements::{change_f32, with_f32};
use crate::kernels::Kernels;
use crate::math::{add, add_times, layer_norm, rms_norm};
use crate::parallel::{by_rows, for_each_chunk};
use crate::reader::{Reader, framework};

/// RMSNorm, or LayerNorm if there is a bias. A LayerNorm without bias has one of zeros.
#[derive(Debug)]
pub(crate) struct Norm {
    weight: Vec<f32>,
    bias: Option<Vec<f32>>,
    epsilon: f32,
    /// Weight and bias for candle's operation, if that computes.
    of_candle: Option<(Tensor, Option<Tensor>)>,
}

impl Norm {
    pub(crate) fn read(reader: &Reader<'_>, config: &ModelConfig, names: &NormNames) -> engine::Result<Norm> {
        let offset = if config.rms_norm { config.form.norm_offset } else { 0.0 };
        let weight = reader.offset_vector(&names.weight, offset)?;
        let bias = match &names.bias {
            Some(name) => Some(reader.vector(name)?),
            None => (!config.rms_norm).then(|| vec![0.0; weight.len()]),
        };
        Norm::new(reader.kernels(), weight, bias, config.norm_epsilon as f32).map_err(framework)
    }

    fn new(kernels: Kernels, weight: Vec<f32>, bias: Option<Vec<f32>>, epsilon: f32) -> Result<Norm> {
        let tensor = |numbers: &Vec<f32>| Tensor::new(numbers.as_slice(), &Device::Cpu);
        let of_candle = match kernels {
            Kernels::Candle => Some((tensor(&weight)?, bias.as_ref().map(tensor).transpose()?)),
            Kernels::Own => None,
        };
        Ok(Norm { weight, bias, epsilon, of_candle })
    }

    /// `None` if the model has no norm there.
    pub(crate) fn read_optional(
        reader: &Reader<'_>,
        config: &ModelConfig,
        names: Option<&NormNames>,
    ) -> engine::Result<Option<Norm>> {
        names.map(|names| Norm::read(reader, config, names)).transpose()
    }

    /// Norms each row of `[rows, hidden]`.
    pub(crate) fn forward(&self, x: &Tensor) -> Result<Tensor> {
        let (rows, width) = x.dims2()?;
        if let Some((weight, bias)) = &self.of_candle {
            return by_rows((rows, width), |part| {
                let x = x.narrow(0, part.start, part.len())?;
                match bias {
                    None => ops::rms_norm(&x, weight, self.epsilon),
                    Some(bias) => ops::layer_norm(&x, weight, bias, self.epsilon),
                }
            });
        }
        let mut normed = vec![0.0; rows * width];
        with_f32(x, |x| {
            for_each_chunk(&mut normed, width, |row, out| {
                out.copy_from_slice(&x[row * width..][..width]);
                self.norm_row(out);
            });
        })?;
        Tensor::from_vec(normed, (rows, width), &Device::Cpu)
    }

    /// The same, of which the own loops write over `x`.
    pub(crate) fn change(&self, x: Tensor) -> Result<Tensor> {
        if self.of_candle.is_some() {
            return self.forward(&x);
        }
        change_f32(&x, |x| for_each_chunk(x, self.weight.len(), |_, row| self.norm_row(row)))?;
        Ok(x)
    }

    /// By the own loops.
    fn norm_row(&self, row: &mut [f32]) {
        match &self.bias {
            None => rms_norm(row, &self.weight, self.epsilon),
            Some(bias) => layer_norm(row, &self.weight, bias, self.epsilon),
        }
    }
}

// The norms and the residual addition around a block of a layer.

/// The residual stream x becomes norm(x + multiplier · norm(block(norm(x)))). Parts that the model lacks are
/// left out.
#[derive(Debug)]
pub(crate) struct SublayerNorms {
    before: Option<Norm>,
    behind: Option<Norm>,
    of_sum: Option<Norm>,
    multiplier: Option<f64>,
    kernels: Kernels,
}

impl SublayerNorms {
    pub(crate) fn read(
        reader: &Reader<'_>,
        config: &ModelConfig,
        [before, behind]: [&Option<NormNames>; 2],
    ) -> engine::Result<SublayerNorms> {
        let behind = Norm::read_optional(reader, config, behind.as_ref())?;
        let (behind, of_sum) = match config.form.norms {
            NormPlacement::OfSum => (None, behind),
            _ => (behind, None),
        };
        Ok(SublayerNorms {
            before: Norm::read_optional(reader, config, before.as_ref())?,
            behind,
            of_sum,
            multiplier: config.form.residual_multiplier,
            kernels: reader.kernels(),
        })
    }

    /// The block's input, `[rows, width]`.
    pub(crate) fn enter(&self, x: &Tensor) -> Result<Tensor> {
        match &self.before {
            Some(norm) => norm.forward(x),
            None => Ok(x.clone()),
        }
    }

    /// The same of a block beside another one, which without a norm of its own shares the other's input.
    pub(crate) fn enter_or(&self, x: &Tensor, other: &Tensor) -> Result<Tensor> {
        match &self.before {
            Some(norm) => norm.forward(x),
            None => Ok(other.clone()),
        }
    }

    /// `x` plus the block's output `y`. The own loops add to `x` itself.
    pub(crate) fn leave(&self, x: &Tensor, mut y: Tensor) -> Result<Tensor> {
        let (_, width) = x.dims2()?;
        if y.dims() != x.dims() {
            bail!("a sum of {:?} and {:?}", x.dims(), y.dims());
        }
        if let Some(norm) = &self.behind {
            y = norm.change(y)?;
        }
        if self.kernels == Kernels::Candle {
            let sum = (x + self.kernels.times(y, self.multiplier)?)?;
            return match &self.of_sum {
                Some(norm) => norm.forward(&sum),
                None => Ok(sum),
            };
        }
        // In one pass, while a row is in cache.
        with_f32(&y, |y| {
            change_f32(x, |x| {
                for_each_chunk(x, width, |row, x| {
                    let y = &y[row * width..][..width];
                    match self.multiplier {
                        None => add(x, y),
                        Some(multiplier) => add_times(x, y, multiplier as f32),
                    }
                    if let Some(norm) = &self.of_sum {
                        norm.norm_row(x);
                    }
                });
            })
        })??;
        Ok(x.clone())
    }
}

// The norms of queries and keys before they are rotated.

/// RMSNorms over each head of queries and of keys, or over all heads together.
#[derive(Debug)]
pub(crate) struct HeadNorms {
    query: Norm,
    key: Norm,
    over_all: bool,
}

impl HeadNorms {
    /// `None` if the model has no such norms.
    pub(crate) fn read(
        reader: &Reader<'_>,
        config: &ModelConfig,
        layer: usize,
    ) -> engine::Result<Option<HeadNorms>> {
        let names = config.layer(layer);
        let (Some(query), Some(key)) = (&names.q_norm, &names.k_norm) else { return Ok(None) };
        let norm = |name: &str| {
            let weight = reader.offset_vector(name, config.form.norm_offset)?;
            Norm::new(reader.kernels(), weight, None, config.norm_epsilon as f32).map_err(framework)
        };
        let over_all = config.form.whole_qk_norm;
        Ok(Some(HeadNorms { query: norm(query)?, key: norm(key)?, over_all }))
    }

    /// Norms `[rows, heads · head_dim]` of queries, or of keys.
    pub(crate) fn forward(&self, x: &Tensor, of_keys: bool) -> Result<Tensor> {
        let norm = if of_keys { &self.key } else { &self.query };
        let width = norm.weight.len();
        norm.forward(&x.reshape((x.elem_count() / width, width))?)?.reshape(x.shape())
    }

    // By the own loops.

    /// Norms the queries and keys of `[rows, queries, keys and values]` in place, if the norm goes over all
    /// heads.
    pub(crate) fn over_all_heads(&self, qkv: &Tensor) -> Result<()> {
        if !self.over_all {
            return Ok(());
        }
        let (_, width) = qkv.dims2()?;
        change_f32(qkv, |qkv| {
            for_each_chunk(qkv, width, |_, row| {
                let (query, rest) = row.split_at_mut(self.query.weight.len());
                self.query.norm_row(query);
                self.key.norm_row(&mut rest[..self.key.weight.len()]);
            });
        })
    }

    /// Norms one head, if each head is normed separately.
    pub(crate) fn norm_query(&self, head: &mut [f32]) {
        if !self.over_all {
            self.query.norm_row(head);
        }
    }

    pub(crate) fn norm_key(&self, head: &mut [f32]) {
        if !self.over_all {
            self.key.norm_row(head);
        }
    }
}
