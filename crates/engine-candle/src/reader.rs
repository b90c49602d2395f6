//! Reads a bundle's tensors into candle's own memory.
//!
//! candle has no tensors over borrowed memory, so every weight is copied once. Plain elements are read from
//! the file and not mapped, because mapped pages would count a second time in the process's resident memory.
//! Codes are mapped, and their pages are released as soon as the blocks are written.

use std::fs::File;
use std::io::{Read, Seek, SeekFrom};

use bundle::{Element, LinearNames, TensorView, Weights};
use candle_core::{Device, Tensor};
use half::{bf16, f16};
use worker::engine::{BundleError, EngineError, Result};

use crate::blocks::Blocks;
use crate::kernels::Kernels;
use crate::weight::Weight;

/// Bytes read at a time: within a core's second-level cache, and a multiple of every element's size.
const BUFFER: usize = 1 << 18;

/// The form in which matrices are multiplied.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Form {
    OfFile,
    /// Quantised weights become f32 when read.
    Dequantised,
    /// 16-bit weights stay in 16 bits and are converted to f32 for every product.
    Converted,
}

pub(crate) struct Reader<'a> {
    weights: &'a Weights,
    form: Form,
    kernels: Kernels,
}

impl<'a> Reader<'a> {
    pub(crate) fn new(weights: &'a Weights, form: Form, kernels: Kernels) -> Self {
        Reader { weights, form, kernels }
    }

    /// Whose code computes between the products.
    pub(crate) fn kernels(&self) -> Kernels {
        self.kernels
    }

    /// A matrix in the form of the file.
    pub(crate) fn matrix(&self, name: &str) -> Result<Weight> {
        self.weight(&[name.to_owned()])
    }

    /// Several matrices stacked along their rows.
    pub(crate) fn stacked(&self, names: &LinearNames) -> Result<Weight> {
        self.weight(&names.weights)
    }

    fn weight(&self, names: &[String]) -> Result<Weight> {
        if !self.weights.is_quantised(&names[0]) {
            let held = if self.form == Form::Converted { Weight::Converted } else { Weight::Plain };
            return self.tensor(&self.weights.stacked(names)?).map(held);
        }
        let weight = self.weights.quantised(names)?;
        let read = if self.form == Form::Dequantised {
            let shape = (weight.rows, weight.columns);
            Tensor::from_vec(weight.dequantised(), shape, &Device::Cpu).map(Weight::Plain)
        } else {
            Blocks::new(&weight, self.kernels).map(Weight::Blocks)
        };
        self.weights.release(&weight.codes);
        self.weights.release(&weight.scales);
        read.map_err(framework)
    }

    /// The biases for [`Reader::stacked`], in f32, if there are any.
    pub(crate) fn stacked_bias(&self, names: &LinearNames) -> Result<Option<Vec<f32>>> {
        if names.biases.is_empty() {
            return Ok(None);
        }
        self.floats(&self.weights.stacked(&names.biases)?).map(Some)
    }

    /// A vector, converted to f32.
    pub(crate) fn vector(&self, name: &str) -> Result<Vec<f32>> {
        self.floats(&self.weights.tensor(name)?)
    }

    /// The same with `offset` added to every element.
    pub(crate) fn offset_vector(&self, name: &str, offset: f32) -> Result<Vec<f32>> {
        let vector = self.vector(name)?;
        if offset == 0.0 {
            return Ok(vector);
        }
        let sum = Tensor::new(vector, &Device::Cpu).and_then(|vector| vector + f64::from(offset));
        sum.and_then(|sum| sum.to_vec1()).map_err(framework)
    }

    fn tensor(&self, view: &TensorView<'_>) -> Result<Tensor> {
        let shape = view.shape.as_slice();
        let tensor = match view.element {
            Element::Bf16 => Tensor::from_vec(self.read(view, bf16::from_le_bytes)?, shape, &Device::Cpu),
            Element::F16 => Tensor::from_vec(self.read(view, f16::from_le_bytes)?, shape, &Device::Cpu),
            _ => Tensor::from_vec(self.read(view, f32::from_le_bytes)?, shape, &Device::Cpu),
        };
        tensor.map_err(framework)
    }

    fn floats(&self, view: &TensorView<'_>) -> Result<Vec<f32>> {
        match view.element {
            Element::Bf16 => self.read(view, |bytes| bf16::from_le_bytes(bytes).to_f32()),
            Element::F16 => self.read(view, |bytes| f16::from_le_bytes(bytes).to_f32()),
            _ => self.read(view, f32::from_le_bytes),
        }
    }

    fn read<T, const N: usize>(
        &self,
        view: &TensorView<'_>,
        element: impl Fn([u8; N]) -> T,
    ) -> Result<Vec<T>> {
        let path = self.weights.path();
        let mut file = File::open(path).map_err(BundleError::io(path))?;
        file.seek(SeekFrom::Start(view.file_offset)).map_err(BundleError::io(path))?;
        let mut elements = Vec::with_capacity(view.bytes.len() / N);
        let mut buffer = vec![0; BUFFER.min(view.bytes.len())];
        let mut left = view.bytes.len();
        while left > 0 {
            let part = &mut buffer[..left.min(BUFFER)];
            file.read_exact(part).map_err(BundleError::io(path))?;
            elements.extend(part.as_chunks::<N>().0.iter().map(|bytes| element(*bytes)));
            left -= part.len();
        }
        Ok(elements)
    }
}

/// Keeps the first line, the cause. candle appends a backtrace if the environment requests one.
pub(crate) fn framework(error: candle_core::Error) -> EngineError {
    EngineError::Framework(error.to_string().lines().next().unwrap_or_default().to_owned())
}
