//! Sharing keys and values with another engine of the process ([`engine::HandOver`]): libtorch's own cache,
//! which the other engine uses, or a tensor over the other engine's memory.

use engine::{CacheMemory, EngineError, HandOver, check_begin};
use tch::{Device, Kind, Tensor};

use crate::Tch;
use crate::error::framework;
use crate::sequences::{self, Sequences};
use crate::shim::InferenceMode;

impl HandOver for Tch {
    fn export(&mut self) -> Result<CacheMemory, EngineError> {
        check_f32(self)?;
        let sequences = self
            .sequences
            .as_ref()
            .ok_or_else(|| EngineError::Input("keys and values of tch are asked for before begin".into()))?;
        Ok(sequences.memory())
    }

    #[allow(unsafe_code)]
    unsafe fn begin_in(
        &mut self,
        batch: usize,
        capacity: usize,
        memory: &CacheMemory,
    ) -> Result<(), EngineError> {
        check_f32(self)?;
        let model = self.body.decoder()?;
        check_begin(model.config(), batch, capacity)?;
        if !in_one_piece(memory) {
            return Err(EngineError::Unsupported(
                "writes keys and values of a sequence at once, and so wants those of all layers in one piece"
                    .into(),
            ));
        }
        self.sequences = None;
        let config = model.config();
        let shape = sequences::shape(config, batch, capacity);
        let _mode = InferenceMode::enter();
        // SAFETY: the shape was checked, and the caller promises that the memory stays valid. The tensor
        // frees nothing.
        let cache = unsafe {
            Tensor::f_from_blob(memory.address() as *const u8, &shape, &[], Kind::Float, Device::Cpu)
        };
        let over = |cache| Sequences::over(config, (batch, capacity), model.options(), model.kinds(), cache);
        let sequences = cache.and_then(over).map_err(framework)?;
        if !sequences.memory().is(memory) {
            return Err(EngineError::Unsupported("lays this model's keys and values out otherwise".into()));
        }
        self.sequences = Some(sequences);
        Ok(())
    }

    fn set_filled(&mut self, positions: usize) -> Result<(), EngineError> {
        match &mut self.sequences {
            Some(sequences) if positions <= sequences.capacity => sequences.filled = positions,
            Some(Sequences { capacity, .. }) => {
                let text = format!("{positions} positions do not fit the capacity of {capacity}");
                return Err(EngineError::Input(text));
            }
            None => return Err(EngineError::Input("positions are filled before begin".into())),
        }
        Ok(())
    }
}

fn check_f32(engine: &mut Tch) -> Result<(), EngineError> {
    let model = engine.body.decoder()?;
    if (model.kinds().cache, model.options().1) == (Kind::Float, Device::Cpu) && !model.kinds().grows {
        return Ok(());
    }
    Err(EngineError::Unsupported(
        "keeps its keys and values otherwise than in f32 in main memory, in one place".into(),
    ))
}

/// Whether `memory` is one piece without gaps: adjacent planes of one sequence.
fn in_one_piece(memory: &CacheMemory) -> bool {
    let mut planes = memory.layers.iter().flatten();
    let Some(first) = planes.next().filter(|plane| plane.shape[0] == 1 && plane.is_contiguous()) else {
        return false;
    };
    let bytes = first.shape.iter().product::<usize>() * size_of::<f32>();
    planes.zip(1..).all(|(plane, place)| {
        plane.is_contiguous() && plane.shape == first.shape && plane.address == first.address + place * bytes
    })
}
