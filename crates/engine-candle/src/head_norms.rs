//! The norms of queries and keys before they are rotated.

use bundle::ModelConfig;
use candle_core::{Result, Tensor};
use engine::EngineError;

use crate::math::rms_norm;
use crate::parallel::for_each_chunk;
use crate::reader::Reader;
use crate::weight::change_f32;

/// RMSNorms over each head of queries and of keys, or over all heads together.
#[derive(Debug)]
pub(crate) struct HeadNorms {
    query: Vec<f32>,
    key: Vec<f32>,
    epsilon: f32,
    over_all: bool,
}

impl HeadNorms {
    /// `None` if the model has no such norms.
    pub(crate) fn read(
        reader: &Reader<'_>,
        config: &ModelConfig,
        layer: usize,
    ) -> std::result::Result<Option<HeadNorms>, EngineError> {
        let names = config.layer(layer);
        let (Some(query), Some(key)) = (&names.q_norm, &names.k_norm) else { return Ok(None) };
        let weight = |name: &str| {
            let mut weight = reader.vector(name)?;
            if config.form.norm_offset != 0.0 {
                weight.iter_mut().for_each(|weight| *weight += config.form.norm_offset);
            }
            Ok::<_, EngineError>(weight)
        };
        Ok(Some(HeadNorms {
            query: weight(query)?,
            key: weight(key)?,
            epsilon: config.norm_epsilon as f32,
            over_all: config.form.whole_qk_norm,
        }))
    }

    /// Norms the queries and keys of `[rows, queries, keys and values]` in place, if the norm goes over all
    /// heads.
    pub(crate) fn over_all_heads(&self, qkv: &Tensor) -> Result<()> {
        if !self.over_all {
            return Ok(());
        }
        let (_, width) = qkv.dims2()?;
        change_f32(qkv, |qkv| {
            for_each_chunk(qkv, width, |_, row| {
                let (query, rest) = row.split_at_mut(self.query.len());
                rms_norm(query, &self.query, self.epsilon);
                rms_norm(&mut rest[..self.key.len()], &self.key, self.epsilon);
            });
        })
    }

    /// Norms one head, if each head is normed separately.
    pub(crate) fn norm_query(&self, head: &mut [f32]) {
        if !self.over_all {
            rms_norm(head, &self.query, self.epsilon);
        }
    }

    pub(crate) fn norm_key(&self, head: &mut [f32]) {
        if !self.over_all {
            rms_norm(head, &self.key, self.epsilon);
        }
    }
}
