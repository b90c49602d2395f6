//! Pooling of token vectors into one vector per text, and the head for scores.

use bundle::{HeadActivation, ModelConfig, Pooling, Scored};
use engine::EngineError;
use tch::{Kind, TchError, Tensor};

use super::rows::Rows;
use crate::layer;
use crate::layout::Layout;
use crate::linear::Linear;
use crate::norm::{Norm, RmsNorm};
use crate::reader::Reader;

pub(crate) struct Head {
    pub(crate) of: Scored,
    dense: Option<Dense>,
    scores: Linear,
}

struct Dense {
    linear: Linear,
    activation: HeadActivation,
    norm: Option<Norm>,
}

impl Head {
    /// `None` if the model has no head.
    pub(crate) fn read(
        reader: &Reader,
        config: &ModelConfig,
        layout: Layout,
    ) -> Result<Option<Head>, EngineError> {
        let described = config.scoring();
        let Some((head, names)) = described.zip(config.head()) else { return Ok(None) };
        // Heads are not quantised at any precision.
        let layout = if matches!(layout, Layout::Int8 | Layout::Int4) { Layout::Plain } else { layout };
        let norm = names.norm.map(|names| Norm::read(reader, config, &names, RmsNorm::Fused));
        let norm = norm.transpose()?;
        let dense = match head.dense.zip(names.dense) {
            Some((dense, names)) => Some(Dense {
                linear: Linear::fused(reader, &names, layout)?,
                activation: dense.activation,
                norm,
            }),
            None => None,
        };
        Ok(Some(Head { of: head.of, dense, scores: Linear::fused(reader, &names.scores, layout)? }))
    }

    /// `[texts or tokens, hidden]` → `[texts or tokens, labels]`
    pub(crate) fn forward(&self, x: &Tensor) -> Result<Tensor, TchError> {
        let Some(Dense { linear, activation, norm }) = &self.dense else { return self.scores.forward(x) };
        let x = linear.forward(x)?;
        let x = match activation {
            HeadActivation::Tanh => x.f_tanh()?,
            HeadActivation::Of(activation) => layer::activate(&x, *activation)?,
        };
        match norm {
            Some(norm) => self.scores.forward(&norm.normed(&x)?),
            None => self.scores.forward(&x),
        }
    }
}

/// `[texts, hidden]`, f32.
pub(crate) fn pool(x: &Tensor, rows: &Rows, pooling: Pooling) -> Result<Tensor, TchError> {
    let of_group = rows.groups.iter().map(|group| {
        let rows = group.part(x)?;
        match pooling {
            Pooling::Cls => rows.f_select(1, 0),
            Pooling::Last => rows.f_select(1, group.length - 1),
            Pooling::Mean => rows.f_mean_dim(&[1_i64][..], false, Kind::Float),
            Pooling::Max => rows.f_amax([1], false),
        }
    });
    let pooled = of_group.collect::<Result<Vec<_>, _>>()?;
    Tensor::f_cat(&pooled, 0)?.f_to_kind(Kind::Float)
}

/// Every row divided by its Euclidean length.
pub(crate) fn normalised(x: &Tensor) -> Result<Tensor, TchError> {
    // The minimum is that of PyTorch's `normalize`.
    x.f_div(&x.f_norm_scalaropt_dim(2, [1], true)?.f_clamp_min(1e-12)?)
}
