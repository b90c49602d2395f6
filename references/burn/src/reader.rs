//! Tensors over the bundle's mapped file.

use std::sync::Arc;

use bundle::{Element, Weights};
use burn_backend::{AllocationProperty, Bytes, DType, TensorData};
use worker::engine::EngineError;

use crate::tensor::{Tensor, reshape};

/// Makes tensors of a bundle's weights. They share the mapping, and keep it alive.
pub(crate) struct Reader {
    weights: Arc<Weights>,
}

/// A part of the mapped file, in the form in which burn takes bytes that it does not own.
struct Mapped {
    weights: Arc<Weights>,
    names: Vec<String>,
}

impl AsRef<[u8]> for Mapped {
    /// Empty if there is no such tensor, which is then refused for its length.
    fn as_ref(&self) -> &[u8] {
        self.weights.stacked(&self.names).map_or(&[], |view| view.bytes)
    }
}

impl Reader {
    /// Touches every page of `weights`.
    pub(crate) fn new(weights: Weights) -> Reader {
        std::hint::black_box(weights.touch());
        Reader { weights: Arc::new(weights) }
    }

    /// A tensor in its own shape.
    pub(crate) fn one(&self, name: &str) -> Result<Tensor, EngineError> {
        self.stacked(&[name.to_owned()])
    }

    /// Biases that are side by side, as one row; `None` if there are none.
    pub(crate) fn row(&self, names: &[String]) -> Result<Option<Tensor>, EngineError> {
        if names.is_empty() {
            return Ok(None);
        }
        let biases = self.stacked(names)?;
        let width = biases.layout().num_elements();
        Ok(Some(reshape(biases, [1, width])))
    }

    /// Gives the pages back of tensors of which there is a copy by now.
    pub(crate) fn release(&self, names: &[String]) -> Result<(), EngineError> {
        self.weights.release(&self.weights.stacked(names)?);
        Ok(())
    }

    /// Tensors that are side by side, stacked along their first dimension.
    pub(crate) fn stacked(&self, names: &[String]) -> Result<Tensor, EngineError> {
        let view = self.weights.stacked(names)?;
        if view.bytes.as_ptr().align_offset(view.element.bytes()) != 0 {
            let reason = format!("{} is not aligned in its file; prepare the model again", names[0]);
            return Err(EngineError::Framework(reason));
        }
        let dtype = dtype(view.element)?;
        let mapped = Mapped { weights: Arc::clone(&self.weights), names: names.to_vec() };
        let bytes = Bytes::from_shared(bytes::Bytes::from_owner(mapped), AllocationProperty::File);
        let data = TensorData::try_from_bytes(bytes, view.shape, dtype)
            .map_err(|error| EngineError::Framework(error.to_string()))?;
        Ok(Tensor::from_data(data))
    }
}

fn dtype(element: Element) -> Result<DType, EngineError> {
    match element {
        Element::F32 => Ok(DType::F32),
        Element::Bf16 => Ok(DType::BF16),
        Element::F16 => Ok(DType::F16),
        Element::I8 | Element::U8 => Err(EngineError::Framework(format!("{element} is no float"))),
    }
}
