//! Sharing keys and values with another engine of the process ([`engine::HandOver`]): the tensors bound as
//! past and present are over memory of ONNX Runtime's or of the other engine's.

use engine::{CacheMemory, Device, EngineError, HandOver, Plane, check_begin};
use ort::memory::MemoryInfo;
use ort::value::{DynTensor, TensorElementType};

use crate::memory::tensor_over;
use crate::model::Model;
use crate::runtime::framework;
use crate::sequences::{Sequences, cache_shape};
use crate::{Decoder, Ort};

impl HandOver for Ort {
    fn export(&mut self) -> Result<CacheMemory, EngineError> {
        let Decoder { model, sequences } = self.body.decoder()?;
        check_f32(model)?;
        let Some(sequences) = sequences.as_mut() else {
            return Err(EngineError::Input("keys and values of ort are asked for before begin".into()));
        };
        let shape = cache_shape(model, sequences.batch, sequences.capacity);
        let planes = sequences.cache_mut().iter_mut().map(|tensor| {
            let (_, numbers) = tensor.try_extract_tensor_mut::<f32>().map_err(framework)?;
            Ok(Plane::contiguous(numbers.as_mut_ptr() as usize, shape))
        });
        let planes = planes.collect::<Result<Vec<Plane>, EngineError>>()?;
        Ok(CacheMemory { layers: planes.chunks_exact(2).map(|layer| [layer[0], layer[1]]).collect() })
    }

    #[allow(unsafe_code)]
    unsafe fn begin_in(
        &mut self,
        batch: usize,
        capacity: usize,
        memory: &CacheMemory,
    ) -> Result<(), EngineError> {
        let Decoder { model, sequences } = self.body.decoder()?;
        check_begin(&model.config, batch, capacity)?;
        check_f32(model)?;
        let shape = cache_shape(model, batch, capacity);
        let unsupported = |reason: String| Err(EngineError::Unsupported(reason));
        if memory.layers.len() != model.config.layers {
            return unsupported("has another number of layers".into());
        }
        for plane in memory.layers.iter().flatten() {
            if plane.shape != shape {
                let theirs = plane.shape;
                return unsupported(format!("wants keys and values of shape {shape:?}, not {theirs:?}"));
            }
            if !plane.is_contiguous() {
                return unsupported("binds tensors without gaps alone".into());
            }
        }
        // Free the old tensors before new ones are made.
        *sequences = None;
        // SAFETY: the shape was checked, and the caller promises that the memory stays valid.
        let over = |plane: &Plane| unsafe {
            tensor_over(plane.address, plane.shape, (&MemoryInfo::default(), TensorElementType::Float32))
        };
        let tensors = memory.layers.iter().flatten().map(over).collect::<ort::Result<Vec<DynTensor>>>();
        let new = tensors.and_then(|cache| Sequences::over(model, (batch, capacity), cache));
        *sequences = Some(new.map_err(framework)?);
        Ok(())
    }

    fn set_filled(&mut self, positions: usize) -> Result<(), EngineError> {
        match &mut self.body.decoder()?.sequences {
            Some(sequences) if positions <= sequences.capacity => sequences.filled = positions,
            Some(sequences) => {
                let capacity = sequences.capacity;
                let text = format!("{positions} positions do not fit the capacity of {capacity}");
                return Err(EngineError::Input(text));
            }
            None => return Err(EngineError::Input("positions are filled before begin".into())),
        }
        Ok(())
    }
}

fn check_f32(model: &Model) -> Result<(), EngineError> {
    let is_f32 = model.device == Device::Cpu && model.products.float() == onnx::DataType::Float;
    if is_f32 && !model.options.grows {
        return Ok(());
    }
    Err(EngineError::Unsupported(
        "keeps its keys and values otherwise than in f32 in main memory, in one place".into(),
    ))
}
