//! A bundle's tensors on a device.

use bundle::LinearNames;
use candle_core::{DType, Device, Result, Tensor};
use engine::EngineError;

use crate::ON_A_CPU_ALONE;
use crate::error::framework;
use crate::reader::Reader;
use crate::weight::Weight;

/// Reads a bundle's tensors onto a device, in one element type.
pub(super) struct Upload<'a> {
    pub(super) reader: Reader<'a>,
    pub(super) device: Device,
    pub(super) dtype: DType,
}

impl Upload<'_> {
    pub(super) fn matrix(&self, name: &str) -> std::result::Result<Tensor, EngineError> {
        self.weight(self.reader.matrix(name)?)
    }

    pub(super) fn linear(&self, names: &LinearNames) -> std::result::Result<Linear, EngineError> {
        let weight = self.weight(self.reader.stacked(names)?)?;
        let bias = self.reader.stacked_bias(names)?.map(|bias| self.vector(bias)).transpose()?;
        Linear::new(&weight, bias).map_err(framework)
    }

    pub(super) fn named_vector(&self, name: &str) -> std::result::Result<Tensor, EngineError> {
        self.vector(self.reader.vector(name)?)
    }

    /// The same with `offset` added to every element.
    pub(super) fn offset_vector(&self, name: &str, offset: f32) -> std::result::Result<Tensor, EngineError> {
        if offset == 0.0 {
            return self.named_vector(name);
        }
        self.vector(self.reader.vector(name)?.into_iter().map(|number| number + offset).collect())
    }

    fn vector(&self, vector: Vec<f32>) -> std::result::Result<Tensor, EngineError> {
        let vector = Tensor::new(vector, &Device::Cpu).and_then(|vector| vector.to_dtype(self.dtype));
        vector.and_then(|vector| vector.to_device(&self.device)).map_err(framework)
    }

    fn weight(&self, weight: Weight) -> std::result::Result<Tensor, EngineError> {
        match weight {
            Weight::Plain(weight) => weight.to_device(&self.device).map_err(framework),
            Weight::Blocks(_) => Err(EngineError::Unsupported(
                "candle's quantised kernels are driven on a CPU alone: use f32, bf16 or f16".into(),
            )),
            Weight::Converted(_) => Err(EngineError::Unsupported(ON_A_CPU_ALONE.into())),
        }
    }
}

/// y = x · weightᵀ + bias
#[derive(Debug)]
pub(super) struct Linear {
    /// `[in, out]`, a transposed view.
    weight: Tensor,
    bias: Option<Tensor>,
}

impl Linear {
    /// `weight` is `[out, in]`.
    pub(super) fn new(weight: &Tensor, bias: Option<Tensor>) -> Result<Linear> {
        Ok(Linear { weight: weight.t()?, bias })
    }

    /// `[rows, in]` → `[rows, out]`
    pub(super) fn forward(&self, x: &Tensor) -> Result<Tensor> {
        let y = x.matmul(&self.weight)?;
        match &self.bias {
            Some(bias) => y.broadcast_add(bias),
            None => Ok(y),
        }
    }
}
