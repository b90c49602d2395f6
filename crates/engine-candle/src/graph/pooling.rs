//! Pooling, which candle computes of two axes and without pads.

use candle_core::{Result, Tensor};

use super::convolution::{Window, padded};
use super::operators::{Call, Made};
use super::pieces::{by_rows, part};

impl Call<'_> {
    fn pool_window(&self, x: &Tensor) -> Made<Window> {
        let kernel = self.each_axis("kernel_shape", self.input(0)?.rank() - 2, 1)?;
        let window = self.window(x, kernel)?;
        if window.dilations != [1, 1] {
            return Ok(self.node.unsupported("candle pools without dilations")?);
        }
        Ok(window)
    }

    pub(super) fn max_pool(&self) -> Made<Tensor> {
        let x = self.image()?;
        let window = self.pool_window(&x)?;
        let [kernel, strides] = [window.kernel, window.strides].map(|[rows, columns]| (rows, columns));
        self.of_image(pooled(&x, &window, f64::NEG_INFINITY, |x| x.max_pool2d_with_stride(kernel, strides))?)
    }

    pub(super) fn average_pool(&self) -> Made<Tensor> {
        let x = self.image()?;
        let window = self.pool_window(&x)?;
        let [kernel, strides] = [window.kernel, window.strides].map(|[rows, columns]| (rows, columns));
        let mean = |x: &Tensor| x.avg_pool2d_with_stride(kernel, strides);
        let y = pooled(&x, &window, 0.0, mean)?;
        if (window.pads, window.rest) == ([[0; 2]; 2], [0; 2]) {
            return self.of_image(y);
        }
        // The share of each window that counts.
        let counts_pads = self.node.int("count_include_pad") == Some(1);
        let ones = x.narrow(0, 0, 1)?.narrow(1, 0, 1)?.ones_like()?;
        let mut rest = Window { pads: [[0; 2]; 2], ..window.clone() };
        let ones = if counts_pads { padded(&ones, window.pads, 1.0)? } else { ones };
        if !counts_pads {
            rest.pads = window.pads;
        }
        self.of_image(y.broadcast_div(&pooled(&ones, &rest, 0.0, mean)?)?)
    }

    pub(super) fn global_pool(&self) -> Made<Tensor> {
        let x = self.input(0)?;
        let mut shape = x.dims().to_vec();
        shape.iter_mut().skip(2).for_each(|size| *size = 1);
        let x = x.flatten_from(2)?;
        let y = if self.node.operator == "GlobalMaxPool" { x.max_keepdim(2)? } else { x.mean_keepdim(2)? };
        Ok(y.reshape(shape)?)
    }
}

fn pooled(
    x: &Tensor,
    window: &Window,
    fill: f64,
    pool: impl Fn(&Tensor) -> Result<Tensor> + Send + Sync,
) -> Result<Tensor> {
    let (batch, channels, height, width) = x.dims4()?;
    let planes = batch * channels;
    let x = x.reshape((planes, 1, height, width))?;
    let mut pads = window.pads;
    pads.iter_mut().zip(window.rest).for_each(|(pads, rest)| pads[1] += rest);
    let [rows, columns] = window.out;
    let cost = rows * columns * window.kernel[0] * window.kernel[1];
    let y = by_rows(x.dtype(), (planes, rows * columns), part(planes, cost), |part| {
        pool(&padded(&x.narrow(0, part.start, part.len())?, pads, fill)?)
    })?;
    y.reshape((batch, channels, rows, columns))
}
