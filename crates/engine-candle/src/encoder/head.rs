//! The head, which turns vectors into scores.

use bundle::{HeadActivation, ModelConfig, Scored};
use candle_core::{Result, Tensor};
use engine::EngineError;

use crate::linear::Linear;
use crate::math::{activate, tanh};
use crate::norm::Norm;
use crate::parallel::for_each_chunk;
use crate::reader::Reader;
use crate::weight::change_f32;

#[derive(Debug)]
pub(super) struct Head {
    /// Whether tokens or texts get scores.
    pub(super) of: Scored,
    dense: Option<Dense>,
    scores: Linear,
}

#[derive(Debug)]
struct Dense {
    linear: Linear,
    activation: HeadActivation,
    norm: Option<Norm>,
}

impl Head {
    /// `None` if the model has no head.
    pub(super) fn read(
        reader: &Reader<'_>,
        config: &ModelConfig,
    ) -> std::result::Result<Option<Head>, EngineError> {
        let head = config.scoring();
        let (Some(head), Some(names)) = (head, config.head()) else { return Ok(None) };
        let dense = match (head.dense, &names.dense) {
            (Some(dense), Some(linear)) => Some(Dense {
                linear: Linear::read(reader, linear)?,
                activation: dense.activation,
                norm: Norm::read_optional(reader, config, names.norm.as_ref())?,
            }),
            _ => None,
        };
        Ok(Some(Head { of: head.of, dense, scores: Linear::read(reader, &names.scores)? }))
    }

    /// `[vectors, hidden]` → `[vectors, labels]`
    pub(super) fn forward(&self, vectors: &Tensor) -> Result<Tensor> {
        match &self.dense {
            Some(dense) => self.scores.forward(&dense.forward(vectors)?),
            None => self.scores.forward(vectors),
        }
    }
}

impl Dense {
    fn forward(&self, vectors: &Tensor) -> Result<Tensor> {
        let y = self.linear.forward(vectors)?;
        let width = y.dim(1)?;
        change_f32(&y, |y| {
            for_each_chunk(y, width, |_, row| {
                match self.activation {
                    HeadActivation::Tanh => row.iter_mut().for_each(|x| *x = tanh(*x)),
                    HeadActivation::Of(activation) => activate(row, activation),
                }
                if let Some(norm) = &self.norm {
                    norm.norm_row(row);
                }
            });
        })?;
        Ok(y)
    }
}
