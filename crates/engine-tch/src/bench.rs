//! Copies and matrix products by libtorch, for the probe of a GPU.

use engine::{Bench, Device, EngineError, Precision};
use tch::{Kind, TchError, Tensor};

use crate::error::framework;

/// Rows and columns of the matrices: large enough for a GPU's products to be bound by arithmetic.
const SIDE: i64 = 4096;

pub(crate) struct TchBench {
    from: Tensor,
    to: Tensor,
    a: Tensor,
    b: Tensor,
}

impl TchBench {
    pub(crate) fn new(device: tch::Device, precision: Precision, bytes: usize) -> Result<TchBench, TchError> {
        TchBench::with_side(device, precision, bytes, SIDE)
    }

    fn with_side(
        device: tch::Device,
        precision: Precision,
        bytes: usize,
        side: i64,
    ) -> Result<TchBench, TchError> {
        let kind = match precision {
            Precision::F32 => Kind::Float,
            Precision::Bf16 => Kind::BFloat16,
            // Products with quantised codes are computed in f16.
            _ => Kind::Half,
        };
        let elements = i64::try_from(bytes.div_ceil(4).max(1)).unwrap_or(i64::MAX);
        let buffer = || Tensor::f_zeros([elements], (Kind::Float, device));
        // Random numbers: on ones or zeros a GPU draws less power and clocks higher.
        let matrix = || Tensor::f_randn([side, side], (kind, device));
        Ok(TchBench { from: buffer()?, to: buffer()?, a: matrix()?, b: matrix()? })
    }

    /// Waits until the GPU has finished.
    fn synchronise(&self) {
        if let tch::Device::Cuda(index) = self.to.device() {
            tch::Cuda::synchronize(index as i64);
        }
    }

    fn copy(&mut self, times: usize) -> Result<u64, TchError> {
        for _ in 0..times {
            self.to.f_copy_(&self.from)?;
        }
        self.synchronise();
        Ok(2 * 4 * self.from.numel() as u64 * times as u64)
    }

    fn multiply(&self, times: usize) -> Result<u64, TchError> {
        for _ in 0..times {
            drop(self.a.f_matmul(&self.b)?);
        }
        self.synchronise();
        Ok(2 * (self.a.size()[0] as u64).pow(3) * times as u64)
    }
}

impl Bench for TchBench {
    fn device(&self) -> Device {
        match self.to.device() {
            tch::Device::Cuda(index) => Device::Cuda(index),
            _ => Device::Cpu,
        }
    }

    fn precision(&self) -> Precision {
        match self.a.kind() {
            Kind::Float => Precision::F32,
            Kind::BFloat16 => Precision::Bf16,
            _ => Precision::F16,
        }
    }

    fn copies(&mut self, times: usize) -> Result<u64, EngineError> {
        self.copy(times).map_err(framework)
    }

    fn products(&mut self, times: usize) -> Result<u64, EngineError> {
        self.multiply(times).map_err(framework)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_row_copies_and_multiplies_what_it_says() {
        let mut bench = TchBench::with_side(tch::Device::Cpu, Precision::F32, 4096, 8).unwrap();
        bench.from = Tensor::f_ones([1024], (Kind::Float, tch::Device::Cpu)).unwrap();
        assert_eq!(bench.copies(3).unwrap(), 3 * 2 * 4096);
        assert_eq!(bench.to.sum(Kind::Float).double_value(&[]), 1024.0);
        assert_eq!(bench.products(2).unwrap(), 2 * 2 * 8 * 8 * 8);
        assert_eq!((bench.device(), bench.precision()), (Device::Cpu, Precision::F32));
    }
}
