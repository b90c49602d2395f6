//! The residual stream and the norms over it.

use bundle::{ModelConfig, NormNames};
use tch::{Kind, TchError, Tensor};
use worker::engine::Result;

use crate::framework;
use crate::reader::Reader;

/// The residual stream, `[rows, hidden]`, to which every layer adds.
///
/// libtorch's CPU kernels include a fused LayerNorm but no fused RMSNorm (`rms_norm` is eight operations
/// there). LayerNorm over (x, −x) is RMSNorm of x: the mean is 0 and the variance is the mean of x². So
/// the stream is the left half of a buffer, and the right half is for its negative.
pub(crate) struct Residual {
    both: Tensor,
    stream: Tensor,
    negative: Tensor,
}

impl Residual {
    /// Starts from a copy of `x`, `[rows, hidden]`.
    pub(crate) fn new(x: &Tensor) -> Result<Residual, TchError> {
        let (rows, hidden) = x.size2()?;
        let both = Tensor::f_empty([rows, 2 * hidden], (x.kind(), x.device()))?;
        let mut stream = both.f_narrow(1, 0, hidden)?;
        let negative = both.f_narrow(1, hidden, hidden)?;
        stream.f_copy_(x)?;
        Ok(Residual { both, stream, negative })
    }

    pub(crate) fn add(&mut self, x: &Tensor) -> Result<(), TchError> {
        self.stream.f_add_(x).map(drop)
    }

    /// `[rows, 2 · hidden]`: the stream, and room for its negative.
    pub(crate) fn both(&self) -> &Tensor {
        &self.both
    }

    pub(crate) fn stream(&self) -> &Tensor {
        &self.stream
    }
}

/// How an RMSNorm is computed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum RmsNorm {
    /// With the fused LayerNorm: see [`Residual`].
    Fused,
    Elementary,
}

pub(crate) struct Norm {
    kind: NormKind,
    epsilon: f64,
}

enum NormKind {
    Layer {
        weight: Tensor,
        bias: Option<Tensor>,
    },
    /// The weight twice, for both halves of the residual's buffer.
    FusedRms {
        weights: Tensor,
    },
    ElementaryRms {
        weight: Tensor,
    },
}

impl Norm {
    pub(crate) fn read(
        reader: &Reader,
        config: &ModelConfig,
        names: &NormNames,
        rms_norm: RmsNorm,
    ) -> Result<Norm> {
        let kind = if config.rms_norm {
            let weight = rms_weight(reader, config, &names.weight)?;
            match rms_norm {
                RmsNorm::Elementary => NormKind::ElementaryRms { weight },
                RmsNorm::Fused => {
                    let weights = Tensor::f_cat(&[&weight, &weight], 0).map_err(framework)?;
                    NormKind::FusedRms { weights }
                }
            }
        } else {
            let bias = names.bias.as_ref().map(|bias| reader.vector(bias)).transpose()?;
            NormKind::Layer { weight: reader.vector(&names.weight)?, bias }
        };
        Ok(Norm { kind, epsilon: config.norm_epsilon })
    }

    /// The weight, or two copies of it in an RMSNorm with the fused LayerNorm.
    pub(crate) fn weight(&self) -> &Tensor {
        match &self.kind {
            NormKind::Layer { weight, .. } | NormKind::ElementaryRms { weight } => weight,
            NormKind::FusedRms { weights } => weights,
        }
    }

    pub(crate) fn bias(&self) -> Option<&Tensor> {
        match &self.kind {
            NormKind::Layer { bias, .. } => bias.as_ref(),
            NormKind::FusedRms { .. } | NormKind::ElementaryRms { .. } => None,
        }
    }

    pub(crate) fn forward(&self, x: &Residual) -> Result<Tensor, TchError> {
        let NormKind::FusedRms { weights } = &self.kind else { return self.normed(&x.stream) };
        let (_, hidden) = x.stream.size2()?;
        let _ = x.stream.f_neg_out(&x.negative)?;
        let both = x.both.f_layer_norm([2 * hidden], Some(weights), None, self.epsilon, false)?;
        both.f_narrow(1, 0, hidden)
    }

    /// The same for a tensor other than the residual stream, `[rows, hidden]`.
    pub(crate) fn normed(&self, x: &Tensor) -> Result<Tensor, TchError> {
        let (_, hidden) = x.size2()?;
        match &self.kind {
            NormKind::Layer { weight, bias } => {
                x.f_layer_norm([hidden], Some(weight), bias.as_ref(), self.epsilon, false)
            }
            NormKind::ElementaryRms { weight } => elementary_rms_norm(x, weight, self.epsilon),
            NormKind::FusedRms { .. } => self.forward(&Residual::new(x)?),
        }
    }
}

/// The factors of an RMSNorm: its weight plus the model's offset.
pub(crate) fn rms_weight(reader: &Reader, config: &ModelConfig, name: &str) -> Result<Tensor> {
    let weight = reader.vector(name)?;
    match config.form.norm_offset {
        0.0 => Ok(weight),
        offset => weight.f_add_scalar(f64::from(offset)).map_err(framework),
    }
}

/// RMSNorm over the last dimension without a weight, with the fused LayerNorm.
pub(crate) fn unit_rms(x: &Tensor, epsilon: f64) -> Result<Tensor, TchError> {
    let width = *x.size().last().expect("a tensor of numbers has a dimension");
    let both = Tensor::f_cat(&[x, &x.f_neg()?], -1)?;
    let none = None::<&Tensor>;
    both.f_layer_norm([2 * width], none, none, epsilon, false)?.f_narrow(-1, 0, width)
}

/// RMSNorm over the last dimension as in reference implementations, with statistics in f32.
pub(crate) fn elementary_rms_norm(x: &Tensor, weight: &Tensor, epsilon: f64) -> Result<Tensor, TchError> {
    let wide = x.f_to_kind(Kind::Float)?;
    let variance = wide.f_square()?.f_mean_dim(-1, true, Kind::Float)?;
    let scale = variance.f_add_scalar(epsilon)?.f_rsqrt()?;
    wide.f_mul(&scale)?.f_to_kind(x.kind())?.f_mul(weight)
}

// The norms and the residual addition around a block of a layer.

/// The residual stream x becomes x + multiplier · norm(block(norm(x))). Parts that the model lacks are left
/// out.
pub(crate) struct SublayerNorms {
    pub(crate) before: Option<Norm>,
    behind: Option<Norm>,
    multiplier: Option<f64>,
}

impl SublayerNorms {
    pub(crate) fn read(
        reader: &Reader,
        config: &ModelConfig,
        norms: [&Option<NormNames>; 2],
        rms_norm: RmsNorm,
    ) -> Result<SublayerNorms> {
        let norm = |names: &Option<NormNames>| {
            names.as_ref().map(|names| Norm::read(reader, config, names, rms_norm)).transpose()
        };
        let [before, behind] = norms.map(norm);
        Ok(SublayerNorms { before: before?, behind: behind?, multiplier: config.form.residual_multiplier })
    }

    /// The block's input; without a norm it is the stream itself.
    pub(crate) fn enter(&self, residual: &Residual) -> Result<Tensor, TchError> {
        match &self.before {
            Some(norm) => norm.forward(residual),
            None => Ok(residual.stream().shallow_clone()),
        }
    }

    /// Adds the block's output to the stream.
    pub(crate) fn leave(&self, residual: &mut Residual, mut added: Tensor) -> Result<(), TchError> {
        if let Some(norm) = &self.behind {
            added = norm.normed(&added)?;
        }
        if let Some(multiplier) = self.multiplier {
            added = added.f_mul_scalar(multiplier)?;
        }
        residual.add(&added)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn layer_norm_of_x_beside_its_negative_is_rms_norm() {
        let x = Tensor::from_slice(&[3.0f32, -1.0, 0.5, 100.0, 2e-3, -7.0]).view([2, 3]);
        let weight = Tensor::from_slice(&[1.0f32, -2.0, 0.5]);
        let expected = elementary_rms_norm(&x, &weight, 1e-5).unwrap();
        let weights = Tensor::cat(&[&weight, &weight], 0);
        let norm = Norm { kind: NormKind::FusedRms { weights }, epsilon: 1e-5 };
        let fused = norm.forward(&Residual::new(&x).unwrap()).unwrap();
        assert!(fused.allclose(&expected, 1e-6, 1e-6, false), "{fused} {expected}");
        let unit = unit_rms(&x, 1e-5).unwrap() * &weight;
        assert!(unit.allclose(&expected, 1e-6, 1e-6, false), "{unit} {expected}");
    }
}
