//! Pooling, as elementwise operations on shifted views: candle's functions take no pads and no dilations, and several
//! times as long.

use candle_core::{Result, Tensor};

use super::convolution::{Window, padded};
use super::operators::{Call, Made};
use super::pieces::{DIVIDED, by_rows, part};

impl Call<'_> {
    fn pool_window(&self, x: &Tensor) -> Made<Window> {
        let kernel = self.each_axis("kernel_shape", self.input(0)?.rank() - 2, 1)?;
        self.window(x, kernel)
    }

    pub(super) fn max_pool(&self) -> Made<Tensor> {
        let x = self.image()?;
        let window = self.pool_window(&x)?;
        self.of_image(pooled(&x, &window, f64::NEG_INFINITY, |a, b| a.maximum(b))?)
    }

    pub(super) fn average_pool(&self) -> Made<Tensor> {
        let x = self.image()?;
        let window = self.pool_window(&x)?;
        let sums = pooled(&x, &window, 0.0, |a, b| a + b)?;
        if (window.pads, window.rest) == ([[0; 2]; 2], [0; 2]) {
            let count = window.kernel[0] * window.kernel[1];
            return self.of_image((sums / count as f64)?);
        }
        // How many elements of each window count.
        let mut of_ones = window.clone();
        let mut ones = x.narrow(0, 0, 1)?.narrow(1, 0, 1)?.ones_like()?;
        if self.node.int("count_include_pad") == Some(1) {
            ones = padded(&ones, window.pads, 1.0)?;
            of_ones.pads = [[0; 2]; 2];
        }
        self.of_image(sums.broadcast_div(&pooled(&ones, &of_ones, 0.0, |a, b| a + b)?)?)
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

/// What `join` makes of the elements of each window, first of its columns, then of its rows.
pub(super) fn pooled(
    x: &Tensor,
    window: &Window,
    fill: f64,
    join: impl Fn(&Tensor, &Tensor) -> Result<Tensor> + Send + Sync,
) -> Result<Tensor> {
    let (batch, channels, height, width) = x.dims4()?;
    let planes = batch * channels;
    let x = x.reshape((planes, height, width))?;
    let mut pads = window.pads;
    pads.iter_mut().zip(window.rest).for_each(|(pads, rest)| pads[1] += rest);
    let [rows, columns] = window.out;
    let along = |x: Tensor, axis: usize| {
        let place = axis - 1;
        let (count, stride) = (window.out[place], window.strides[place]);
        let shifted = |by: usize| {
            let x = x.narrow(axis, by * window.dilations[place], (count - 1) * stride + 1)?;
            if stride == 1 { Ok(x) } else { x.unfold(axis, 1, stride)?.squeeze(3) }
        };
        (1..window.kernel[place]).try_fold(shifted(0)?, |joined, by| join(&joined, &shifted(by)?))
    };
    let size = (height + pads[0][0] + pads[0][1]) * columns;
    if size >= DIVIDED {
        // candle divides each operation over its threads itself.
        return along(along(padded(&x, pads, fill)?, 2)?, 1)?.reshape((batch, channels, rows, columns));
    }
    let part = part(planes, size * window.kernel[1]).min((DIVIDED - 1) / size);
    let y = by_rows(x.dtype(), (planes, rows * columns), part, |part| {
        along(along(padded(&x.narrow(0, part.start, part.len())?, pads, fill)?, 2)?, 1)
    })?;
    y.reshape((batch, channels, rows, columns))
}
