//! The norms between the blocks. Not candle-nn's, which take a tensor: the residual stream is a plain buffer,
//! added to in place.

use bundle::{ModelConfig, NormNames};
use candle_core::{Device, Result, Tensor};
use engine::EngineError;

use crate::math::{layer_norm, rms_norm};
use crate::parallel::for_each_chunk;
use crate::reader::Reader;

/// RMSNorm, or LayerNorm where there is a bias.
#[derive(Debug)]
pub(crate) struct Norm {
    weight: Vec<f32>,
    bias: Option<Vec<f32>>,
    epsilon: f32,
}

impl Norm {
    pub(crate) fn read(
        reader: &Reader<'_>,
        config: &ModelConfig,
        names: &NormNames,
    ) -> std::result::Result<Norm, EngineError> {
        let mut weight = reader.vector(&names.weight)?;
        if config.rms_norm && config.form.norm_offset != 0.0 {
            weight.iter_mut().for_each(|weight| *weight += config.form.norm_offset);
        }
        Ok(Norm {
            weight,
            bias: names.bias.as_deref().map(|name| reader.vector(name)).transpose()?,
            epsilon: config.norm_epsilon as f32,
        })
    }

    /// If the model has one there.
    pub(crate) fn read_optional(
        reader: &Reader<'_>,
        config: &ModelConfig,
        names: Option<&NormNames>,
    ) -> std::result::Result<Option<Norm>, EngineError> {
        names.map(|names| Norm::read(reader, config, names)).transpose()
    }

    /// Norms each row of `[rows, hidden]`.
    pub(crate) fn forward(&self, x: &[f32]) -> Result<Tensor> {
        let width = self.weight.len();
        let mut normed = vec![0.0; x.len()];
        for_each_chunk(&mut normed, width, |row, out| {
            out.copy_from_slice(&x[row * width..][..width]);
            self.norm_row(out);
        });
        Tensor::from_vec(normed, (x.len() / width, width), &Device::Cpu)
    }

    /// Norms one row in its place.
    pub(crate) fn norm_row(&self, row: &mut [f32]) {
        match &self.bias {
            None => rms_norm(row, &self.weight, self.epsilon),
            Some(bias) => layer_norm(row, &self.weight, bias, self.epsilon),
        }
    }
}
