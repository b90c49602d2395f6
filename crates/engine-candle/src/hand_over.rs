//! Sharing keys and values with another engine of the process ([`engine::HandOver`]), as plain memory.
//!
//! candle cannot make a tensor over memory that it does not own: its storage on a CPU is a `Vec`, which frees
//! its memory. So candle can lend its memory but not use another engine's.

use candle_core::{CpuStorage, InplaceOp1, Layout, Result, Tensor, bail};
use engine::{CacheMemory, EngineError, HandOver, Plane};
use std::sync::atomic::{AtomicUsize, Ordering};

use crate::Candle;
use crate::error::framework;
use crate::sequences::Cache;

impl HandOver for Candle {
    fn export(&mut self) -> std::result::Result<CacheMemory, EngineError> {
        let nothing =
            "keys and values of candle are asked for before begin, or are not in f32 in main memory";
        let memory = self.body.decoder()?.cache_memory().map_err(framework)?;
        memory.filter(|_| self.batch > 0).ok_or_else(|| EngineError::Input(nothing.into()))
    }

    #[allow(unsafe_code)]
    unsafe fn begin_in(
        &mut self,
        _batch: usize,
        _capacity: usize,
        _memory: &CacheMemory,
    ) -> std::result::Result<(), EngineError> {
        Err(EngineError::Unsupported("makes no tensor over memory that it does not own".into()))
    }

    fn set_filled(&mut self, positions: usize) -> std::result::Result<(), EngineError> {
        if positions > self.capacity {
            let capacity = self.capacity;
            return Err(EngineError::Input(format!(
                "{positions} positions do not fit the capacity of {capacity}"
            )));
        }
        self.filled = positions;
        Ok(())
    }
}

/// The addresses of the keys and values of `caches`, each of this shape.
pub(crate) fn memory(caches: &[Cache], shape: [usize; 4]) -> Result<CacheMemory> {
    let plane = |tensor: &Tensor| -> Result<Plane> { Ok(Plane::contiguous(address(tensor)?, shape)) };
    let layers = caches.iter().map(|cache| Ok([plane(&cache.keys)?, plane(&cache.values)?]));
    Ok(CacheMemory { layers: layers.collect::<Result<_>>()? })
}

/// The address of a tensor's first element, for writing.
fn address(tensor: &Tensor) -> Result<usize> {
    let address = Address(AtomicUsize::new(0));
    tensor.inplace_op1(&address)?;
    Ok(address.0.into_inner())
}

/// Changes nothing. Only in-place operations get write access to a tensor's memory from candle.
struct Address(AtomicUsize);

impl InplaceOp1 for Address {
    fn name(&self) -> &'static str {
        "address"
    }

    fn cpu_fwd(&self, storage: &mut CpuStorage, layout: &Layout) -> Result<()> {
        let CpuStorage::F32(numbers) = storage else { bail!("keys and values are not f32") };
        let Some((start, end)) = layout.contiguous_offsets() else { bail!("the cache is not contiguous") };
        self.0.store(numbers[start..end].as_mut_ptr() as usize, Ordering::Relaxed);
        Ok(())
    }
}
