//! Queries, keys and values from one product; queries and keys are then normed and rotated.

use bundle::ModelConfig;
use engine::EngineError;
use tch::{TchError, Tensor};

use crate::error::framework;
use crate::layer::Heads;
use crate::layout::Layout;
use crate::linear::Linear;
use crate::norm::{rms_weight, unit_rms};
use crate::reader::Reader;
use crate::rotation::Rotation;

pub(crate) struct Qkv {
    pub(crate) linear: Linear,
    /// `[query heads + key heads, dimension]`: the weights of the norms over each head, if any.
    pub(crate) norm: Option<Tensor>,
    /// The weights of the norms over all heads of queries and over all heads of keys.
    whole_norms: Option<[Tensor; 2]>,
    pub(crate) heads: Heads,
    pub(crate) epsilon: f64,
}

impl Qkv {
    pub(crate) fn read(
        reader: &Reader,
        config: &ModelConfig,
        index: usize,
        layout: Layout,
    ) -> Result<Qkv, EngineError> {
        let (names, heads) = (config.layer(index), Heads::from_config(config));
        let mut whole_norms = None;
        let norm = match (&names.q_norm, &names.k_norm) {
            (Some(q), Some(k)) if config.form.whole_qk_norm => {
                whole_norms = Some([rms_weight(reader, config, q)?, rms_weight(reader, config, k)?]);
                None
            }
            (Some(q), Some(k)) => {
                let (q, k) = (rms_weight(reader, config, q)?, rms_weight(reader, config, k)?);
                let repeated = |weight: Tensor, heads| weight.f_expand([heads, -1], false);
                let both =
                    repeated(q, heads.query).and_then(|q| Tensor::f_cat(&[q, repeated(k, heads.kv)?], 0));
                Some(both.map_err(framework)?)
            }
            _ => None,
        };
        let linear = Linear::fused(reader, &names.qkv, layout)?;
        Ok(Qkv { linear, norm, whole_norms, heads, epsilon: config.norm_epsilon })
    }

    /// `[batch · positions, hidden]` → `[batch, positions, heads of queries, of keys and of values, dimension]`.
    pub(crate) fn forward(
        &self,
        x: &Tensor,
        (batch, positions): (i64, i64),
        rotation: Option<&Rotation>,
    ) -> Result<Tensor, TchError> {
        let Heads { query, kv, dim } = self.heads;
        let qkv = self.linear.forward(x)?.f_view([batch, positions, query + 2 * kv, dim])?;
        // Queries and keys are adjacent, so they are normed and rotated together, in place.
        let mut qk = qkv.f_narrow(2, 0, query + kv)?;
        if let Some(weights) = &self.norm {
            let _ = unit_rms(&qk, self.epsilon)?.f_multiply_out(&qk, weights)?;
        }
        if let Some(weights) = &self.whole_norms {
            self.norm_whole(&qkv, weights)?;
        }
        if let Some(rotation) = rotation {
            rotation.turn(&mut qk, dim)?;
        }
        Ok(qkv)
    }

    /// Norms queries and keys over all of their heads, in place.
    fn norm_whole(&self, qkv: &Tensor, weights: &[Tensor; 2]) -> Result<(), TchError> {
        let Heads { query, kv, dim } = self.heads;
        let rows = qkv.f_view([-1, (query + 2 * kv) * dim])?;
        for (weight, (start, heads)) in weights.iter().zip([(0, query), (query, kv)]) {
            let part = rows.f_narrow(1, start * dim, heads * dim)?;
            let _ = unit_rms(&part, self.epsilon)?.f_multiply_out(&part, weight)?;
        }
        Ok(())
    }
}
