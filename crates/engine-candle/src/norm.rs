//! The norms between the blocks. candle-nn's norms return a new tensor; these can also change one in place.

use bundle::{ModelConfig, NormNames};
use candle_core::{Device, Result, Tensor};
use engine::EngineError;

use crate::math::{layer_norm, rms_norm};
use crate::parallel::for_each_chunk;
use crate::reader::Reader;
use crate::weight::{change_f32, with_f32};

/// RMSNorm, or LayerNorm if there is a bias. A LayerNorm without bias has one of zeros.
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
        let bias = match &names.bias {
            Some(name) => Some(reader.vector(name)?),
            None => (!config.rms_norm).then(|| vec![0.0; weight.len()]),
        };
        Ok(Norm { weight, bias, epsilon: config.norm_epsilon as f32 })
    }

    /// `None` if the model has no norm there.
    pub(crate) fn read_optional(
        reader: &Reader<'_>,
        config: &ModelConfig,
        names: Option<&NormNames>,
    ) -> std::result::Result<Option<Norm>, EngineError> {
        names.map(|names| Norm::read(reader, config, names)).transpose()
    }

    /// Norms each row of `[rows, hidden]`.
    pub(crate) fn forward(&self, x: &Tensor) -> Result<Tensor> {
        let (rows, width) = x.dims2()?;
        let mut normed = vec![0.0; rows * width];
        with_f32(x, |x| {
            for_each_chunk(&mut normed, width, |row, out| {
                out.copy_from_slice(&x[row * width..][..width]);
                self.norm_row(out);
            });
        })?;
        Tensor::from_vec(normed, (rows, width), &Device::Cpu)
    }

    /// The same in place.
    pub(crate) fn change(&self, x: &Tensor) -> Result<()> {
        change_f32(x, |x| for_each_chunk(x, self.weight.len(), |_, row| self.norm_row(row)))
    }

    /// Norms one row in place.
    pub(crate) fn norm_row(&self, row: &mut [f32]) {
        match &self.bias {
            None => rms_norm(row, &self.weight, self.epsilon),
            Some(bias) => layer_norm(row, &self.weight, bias, self.epsilon),
        }
    }
}
