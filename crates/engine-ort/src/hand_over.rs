//! ONNX Runtime beside another engine in one process ([`engine::HandOver`]): the tensors that are bound as past and as
//! present are its own, or are over memory of the other's.

use engine::{CacheMemory, Device, EngineError, HandOver, Plane, check_begin};
use ort::memory::MemoryInfo;
use ort::value::{DynTensor, TensorElementType};

use crate::Ort;
use crate::memory::tensor_over;
use crate::runtime::framework;
use crate::sequences::{Sequences, cache_shape};

impl HandOver for Ort {
    fn export(&mut self) -> Result<CacheMemory, EngineError> {
        check_f32(self)?;
        let (model, sequences) = (&self.model, self.sequences.as_mut());
        let Some(sequences) = sequences else {
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
        check_begin(&self.model.config, batch, capacity)?;
        check_f32(self)?;
        let shape = cache_shape(&self.model, batch, capacity);
        let unsupported = |reason: String| Err(EngineError::Unsupported(reason));
        if memory.layers.len() != self.model.config.layers {
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
        // The tensors that are there go before the new ones come.
        self.sequences = None;
        // SAFETY: as many f32 as the shape says are there, as was checked, and stay there, as the caller promises.
        let over = |plane: &Plane| unsafe {
            tensor_over(plane.address, plane.shape, (&MemoryInfo::default(), TensorElementType::Float32))
        };
        let tensors = memory.layers.iter().flatten().map(over).collect::<ort::Result<Vec<DynTensor>>>();
        let sequences = tensors.and_then(|cache| Sequences::over(&self.model, (batch, capacity), cache));
        self.sequences = Some(sequences.map_err(framework)?);
        Ok(())
    }

    fn set_filled(&mut self, positions: usize) -> Result<(), EngineError> {
        match &mut self.sequences {
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

fn check_f32(engine: &Ort) -> Result<(), EngineError> {
    if engine.model.device == Device::Cpu && engine.model.products.float() == onnx::DataType::Float {
        return Ok(());
    }
    Err(EngineError::Unsupported("keeps its keys and values otherwise than in f32 in main memory".into()))
}
