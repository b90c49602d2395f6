//! Convolutions, as products of matrices: `Tensor::conv2d` takes 3 to 17 times as long (README).

use bundle::Dtype;
use candle_core::{DType, Result, Tensor};

use super::Typed;
use super::operators::{Call, Made};
use super::pieces::{DIVIDED, by_columns, by_rows, copied, multiplied, part, ranges};
use super::products::{exact, product};
use crate::parallel::threads;

/// Places of the output that a piece of a convolution computes.
const PLACES: usize = 256;
/// Elements between the two steps of a depthwise convolution, for which a core's cache has room.
const BETWEEN: usize = 1 << 16;

/// A kernel's way over the last two axes of a tensor. An operator on one axis has a first one of size 1.
#[derive(Debug, Clone)]
pub(super) struct Window {
    pub(super) kernel: [usize; 2],
    pub(super) strides: [usize; 2],
    pub(super) dilations: [usize; 2],
    /// Before and behind the elements.
    pub(super) pads: [[usize; 2]; 2],
    /// What the operator rounds up behind them.
    pub(super) rest: [usize; 2],
    /// Sizes of the output.
    pub(super) out: [usize; 2],
}

impl Window {
    fn span(&self, axis: usize) -> usize {
        self.dilations[axis] * (self.kernel[axis] - 1) + 1
    }
}

/// `[.., height, width]` with pads of `fill` around its last two axes.
pub(super) fn padded(x: &Tensor, pads: [[usize; 2]; 2], fill: f64) -> Result<Tensor> {
    let mut x = x.clone();
    for (pads, axis) in pads.into_iter().zip(x.rank() - 2..x.rank()) {
        if pads == [0, 0] {
            continue;
        }
        let pad = |size: usize| {
            let mut shape = x.dims().to_vec();
            shape[axis] = size;
            let zeros = Tensor::zeros(shape, x.dtype(), x.device())?;
            if fill == 0.0 { Ok(zeros) } else { zeros + fill }
        };
        let all =
            [(pads[0] > 0).then(|| pad(pads[0])), Some(Ok(x.clone())), (pads[1] > 0).then(|| pad(pads[1]))];
        x = Tensor::cat(&all.into_iter().flatten().collect::<Result<Vec<_>>>()?, axis)?;
    }
    Ok(x)
}

impl Call<'_> {
    /// An attribute with a number for each spatial axis, of which there may be one.
    pub(super) fn each_axis(&self, name: &str, axes: usize, default: usize) -> Made<[usize; 2]> {
        let mut all = [default; 2];
        if axes == 1 {
            all[0] = usize::from(name != "pads" && name != "output_padding");
        }
        for (place, &given) in all[2 - axes..].iter_mut().zip(self.node.ints(name).unwrap_or_default()) {
            match usize::try_from(given) {
                Ok(given) => *place = given,
                Err(_) => return Ok(self.node.unsupported(&format!("its {name} are below 0"))?),
            }
        }
        Ok(all)
    }

    /// The input with two spatial axes.
    pub(super) fn image(&self) -> Made<Tensor> {
        let x = self.input(0)?;
        match x.rank() {
            3 => Ok(x.unsqueeze(2)?.contiguous()?),
            4 => Ok(x.contiguous()?),
            _ => Ok(self.node.unsupported("candle slides over one axis or two, not over three")?),
        }
    }

    /// What an operator on two spatial axes gives, with as many axes as the input.
    pub(super) fn of_image(&self, y: Tensor) -> Made<Tensor> {
        Ok(if self.input(0)?.rank() == 3 { y.squeeze(2)? } else { y })
    }

    pub(super) fn window(&self, x: &Tensor, kernel: [usize; 2]) -> Made<Window> {
        let axes = self.input(0)?.rank() - 2;
        let sizes = [x.dim(2)?, x.dim(3)?];
        let strides = self.each_axis("strides", axes, 1)?;
        let dilations = self.each_axis("dilations", axes, 1)?;
        if kernel.contains(&0) || strides.contains(&0) || dilations.contains(&0) {
            return Ok(self.node.failed("a size of its window is 0")?);
        }
        let mut window = Window { kernel, strides, dilations, pads: [[0; 2]; 2], rest: [0; 2], out: [0; 2] };
        let auto = self.node.string("auto_pad").unwrap_or("NOTSET");
        let pads = self.node.ints("pads").unwrap_or_default();
        for axis in 2 - axes..2 {
            let (size, stride, span) = (sizes[axis], strides[axis], window.span(axis));
            window.pads[axis] = match auto {
                "SAME_UPPER" | "SAME_LOWER" => {
                    let total = ((size.div_ceil(stride).max(1) - 1) * stride + span).saturating_sub(size);
                    let (less, more) = (total / 2, total.div_ceil(2));
                    if auto == "SAME_UPPER" { [less, more] } else { [more, less] }
                }
                "VALID" => [0, 0],
                _ => {
                    let place = axis + axes - 2;
                    let pad = |place: usize| usize::try_from(pads.get(place).copied().unwrap_or(0));
                    match (pad(place), pad(place + axes)) {
                        (Ok(before), Ok(behind)) => [before, behind],
                        _ => return Ok(self.node.unsupported("its pads are below 0")?),
                    }
                }
            };
        }
        let rounds_up = self.node.int("ceil_mode") == Some(1);
        for axis in 0..2 {
            let (stride, [before, behind]) = (strides[axis], window.pads[axis]);
            let size = sizes[axis] + before + behind;
            let Some(ways) = size.checked_sub(window.span(axis)) else {
                return Ok(self.node.failed("its window is larger than its input")?);
            };
            let mut out = ways / stride + 1;
            // A window that begins behind the elements is none.
            if rounds_up && ways % stride != 0 && out * stride < sizes[axis] + before {
                out += 1;
                window.rest[axis] = (out - 1) * stride - ways;
            }
            window.out[axis] = out;
        }
        Ok(window)
    }

    pub(super) fn conv(&self) -> Made<Tensor> {
        self.convolution(self.image()?, self.input(1)?.clone(), self.optional(2)?)
    }

    /// In floats that hold every sum exactly.
    pub(super) fn conv_of_integers(&self) -> Made<Typed> {
        let weight = self.input(1)?;
        let dtype = exact(weight.elem_count() / weight.dim(0)?.max(1));
        let weight = self.shifted(1, dtype, weight.rank() - 1)?;
        let x = self.shifted(0, dtype, 0)?;
        let x = if x.rank() == 3 { x.unsqueeze(2)? } else { x };
        let tensor = self.convolution(x.contiguous()?, weight, None)?.to_dtype(DType::I64)?;
        Ok(Typed { tensor, dtype: Dtype::Int32 })
    }

    fn convolution(&self, x: Tensor, mut weight: Tensor, bias: Option<&Tensor>) -> Made<Tensor> {
        if weight.rank() == 3 {
            weight = weight.unsqueeze(2)?;
        }
        let (outputs, depth, height, width) = weight.dims4()?;
        let (batch, channels, ..) = x.dims4()?;
        let groups = usize::try_from(self.node.int("group").unwrap_or(1)).unwrap_or(0);
        if groups == 0 || depth * groups != channels || outputs % groups != 0 {
            return Ok(self.node.failed("its weight does not go with its input")?);
        }
        let window = self.window(&x, [height, width])?;
        let weight = weight.reshape((outputs, depth * height * width))?;
        let bias = bias.map(|bias| bias.reshape((outputs, 1))).transpose()?;
        let [rows, columns] = window.out;
        let of_image = |image: usize| {
            let x = x.get(image)?;
            if depth == 1 && groups > 1 {
                return depthwise(&x, &weight, bias.as_ref(), &window);
            }
            if groups == 1 {
                return convolved(&x, &weight, bias.as_ref(), &window);
            }
            let each = outputs / groups;
            let of_group = |group: usize| {
                let bias = bias.as_ref().map(|bias| bias.narrow(0, group * each, each)).transpose()?;
                let weight = weight.narrow(0, group * each, each)?;
                convolved(&x.narrow(0, group * depth, depth)?, &weight, bias.as_ref(), &window)
            };
            Tensor::cat(&(0..groups).map(of_group).collect::<Result<Vec<_>>>()?, 0)
        };
        // Each thread takes images if there are enough of them.
        let part = if batch < threads() { batch } else { 1 };
        let y = by_rows(x.dtype(), (batch, outputs * rows * columns), part, |images| {
            let made = images.map(of_image).collect::<Result<Vec<_>>>()?;
            if made.len() == 1 { Ok(made[0].clone()) } else { Tensor::stack(&made, 0) }
        })?;
        self.of_image(y.reshape((batch, outputs, rows, columns))?)
    }

    pub(super) fn conv_transpose(&self) -> Made<Tensor> {
        let (x, mut weight) = (self.image()?, self.input(1)?.clone());
        let axes = self.input(0)?.rank() - 2;
        if weight.rank() == 3 {
            weight = weight.unsqueeze(2)?;
        }
        let (channels, depth, height, width) = weight.dims4()?;
        let groups = usize::try_from(self.node.int("group").unwrap_or(1)).unwrap_or(0);
        let [strides, dilations] =
            [("strides", 1), ("dilations", 1)].map(|(name, default)| self.each_axis(name, axes, default));
        let (strides, dilations, more) = (strides?, dilations?, self.each_axis("output_padding", axes, 0)?);
        if groups == 0 || channels % groups != 0 || x.dim(1)? != channels || strides.contains(&0) {
            return Ok(self.node.failed("its weight does not go with its input")?);
        }
        if self.node.ints("output_shape").is_some()
            || self.node.string("auto_pad").is_some_and(|auto| auto != "NOTSET")
        {
            return Ok(self
                .node
                .unsupported("pads that follow from the shape of the output are not computed here")?);
        }
        let pads = self.node.ints("pads").unwrap_or_default();
        if pads.iter().any(|&pad| pad < 0) {
            return Ok(self.node.unsupported("its pads are below 0")?);
        }
        let mut of_groups = Vec::new();
        for group in 0..groups {
            let part = channels / groups;
            let (x, weight) = (x.narrow(1, group * part, part)?, weight.narrow(0, group * part, part)?);
            of_groups.push(if strides == [height, width] && dilations == [1, 1] {
                spread(&x, &weight)?
            } else if axes == 1 {
                let y =
                    x.squeeze(2)?.conv_transpose1d(&weight.squeeze(2)?, 0, 0, strides[1], dilations[1], 1)?;
                y.unsqueeze(2)?
            } else if strides[0] == strides[1] && dilations[0] == dilations[1] {
                let cost = x.elem_count() * height * width;
                let (rows, columns) = (x.dim(2)?, x.dim(3)?);
                let size =
                    |rows: usize, kernel: usize| (rows - 1) * strides[0] + dilations[0] * (kernel - 1) + 1;
                let (rows, columns) = (size(rows, height), size(columns, width));
                let mut images = Vec::new();
                for image in 0..x.dim(0)? {
                    let x = x.narrow(0, image, 1)?;
                    let y = by_rows(x.dtype(), (depth, rows * columns), self::part(depth, cost), |part| {
                        let weight = weight.narrow(1, part.start, part.len())?;
                        x.conv_transpose2d(&weight, 0, 0, strides[0], dilations[0])
                    })?;
                    images.push(y.reshape((depth, rows, columns))?);
                }
                Tensor::stack(&images, 0)?
            } else {
                return Ok(self.node.unsupported("candle has one stride and one dilation for both axes")?);
            });
        }
        let mut y = Tensor::cat(&of_groups, 1)?;
        for (axis, &more) in more.iter().enumerate().skip(2 - axes) {
            let pad = |place: usize| pads.get(place).map_or(0, |&pad| pad as usize);
            let (before, behind) = (pad(axis + axes - 2), pad(axis + 2 * axes - 2));
            let size = (y.dim(2 + axis)? + more).checked_sub(before + behind);
            let Some(size) = size else { return Ok(self.node.failed("its pads leave nothing")?) };
            if before + size > y.dim(2 + axis)? {
                y = y.pad_with_zeros(2 + axis, 0, before + size - y.dim(2 + axis)?)?;
            }
            y = y.narrow(2 + axis, before, size)?;
        }
        if let Some(bias) = self.optional(2)? {
            y = y.broadcast_add(&bias.reshape((1, depth * groups, 1, 1))?)?;
        }
        self.of_image(y)
    }
}

/// `[outputs, places]`: an image `[depth, height, width]` with a weight `[outputs, depth · kernel]`.
pub(super) fn convolved(
    x: &Tensor,
    weight: &Tensor,
    bias: Option<&Tensor>,
    window: &Window,
) -> Result<Tensor> {
    let (depth, ..) = x.dims3()?;
    let (outputs, inner) = weight.dims2()?;
    let [rows, columns] = window.out;
    let ([height, width], [down, right]) = (window.kernel, window.strides);
    if [height, width, down, right] == [1; 4] && window.pads == [[0; 2]; 2] {
        return product(weight, &x.reshape((depth, rows * columns))?, bias);
    }
    let cost = x.elem_count() / depth.max(1);
    let x = if window.pads == [[0; 2]; 2] {
        x.clone()
    } else {
        let size = |axis: usize| x.dims()[1 + axis] + window.pads[axis][0] + window.pads[axis][1];
        let (height, width) = (size(0), size(1));
        let padded = by_rows(x.dtype(), (depth, height * width), part(depth, cost), |part| {
            padded(&x.narrow(0, part.start, part.len())?, window.pads, 0.0)
        })?;
        padded.reshape((depth, height, width))?
    };
    // What each place of the output is a sum of: `[depth, kernel height, kernel width, rows, columns]`, a view.
    let mut seen = x.unfold(1, window.span(0), down)?.unfold(2, window.span(1), right)?;
    for (axis, dilation) in [3, 4].into_iter().zip(window.dilations) {
        if dilation > 1 {
            seen = seen.unfold(axis, 1, dilation)?.squeeze(5)?;
        }
    }
    let seen = seen.permute((0, 3, 4, 1, 2))?;
    if rows * columns < PLACES {
        return product(weight, &seen.contiguous()?.reshape((inner, rows * columns))?, bias);
    }
    // A piece has whole rows of the output, or is a part of one.
    let kernel = height * width;
    let few = (rows * columns).div_ceil(2 * threads());
    let places = PLACES.min(few).min((DIVIDED - 1) / outputs).min((DIVIDED - 1) / kernel).max(1);
    let tiles: Vec<_> = match columns <= places {
        true => ranges(0..rows * columns, places / columns * columns).collect(),
        false => (0..rows).flat_map(|row| ranges(row * columns..(row + 1) * columns, places)).collect(),
    };
    // So many channels at a time that candle copies their piece on this thread, within a core's cache.
    let together = ((DIVIDED - 1) / (kernel * places)).max(1);
    let cost = (inner + multiplied(outputs * inner)) * rows * columns;
    by_columns(x.dtype(), (outputs, rows * columns), (tiles, cost), |places| {
        let first = places.start % columns;
        let seen = seen.narrow(3, places.start / columns, places.len().div_ceil(columns))?;
        let seen = seen.narrow(4, first, columns.min(places.len()))?;
        let mut sum: Option<Tensor> = None;
        for channels in ranges(0..depth, together) {
            let part = kernel * channels.len();
            let of_channels = copied(&seen.narrow(0, channels.start, channels.len())?)?;
            let of_channels = of_channels.reshape((part, places.len()))?;
            let y = weight.narrow(1, channels.start * kernel, part)?.matmul(&of_channels)?;
            sum = Some(match sum {
                Some(sum) => (sum + y)?,
                None => y,
            });
        }
        match sum {
            Some(sum) => plus(sum, bias),
            None => Tensor::zeros((outputs, places.len()), x.dtype(), x.device()),
        }
    })
}

/// As [`convolved`], of channels that see themselves alone; the weight is `[outputs, kernel]`.
///
/// The rows of a kernel are multiplied with all places of a padded image at once, by one product for each channel,
/// which reads the image as a matrix with a step of one element between its rows; then the products for those rows are
/// shifted and added.
pub(super) fn depthwise(
    x: &Tensor,
    weight: &Tensor,
    bias: Option<&Tensor>,
    window: &Window,
) -> Result<Tensor> {
    let (channels, height, width) = x.dims3()?;
    let outputs = weight.dim(0)? / channels;
    let ([rows, columns], [down, right]) = (window.out, window.strides);
    let (tall, wide) = (window.kernel[0], window.kernel[1]);
    // Whole steps fit in a row.
    let mut pads = window.pads;
    pads[1][1] += (right - (width + pads[1][0] + pads[1][1]) % right) % right;
    let steps = (width + pads[1][0] + pads[1][1]) / right;
    let places = (rows - 1) * down * steps + columns;
    if outputs * places >= DIVIDED {
        return by_halves(x, weight, bias, window);
    }
    let between = outputs * tall * (height + pads[0][0] + pads[0][1]) * steps;
    let part =
        (BETWEEN / between).clamp(1, part(channels, 2 * between)).min((DIVIDED - 1) / (outputs * places));
    let weight = weight.reshape((channels, outputs * tall, wide))?;
    by_rows(x.dtype(), (channels, outputs * rows * columns), part, |part| {
        let count = part.len();
        let x = padded(&x.narrow(0, part.start, count)?, pads, 0.0)?.flatten_from(1)?;
        let mut seen = x.unfold(1, window.span(1), right)?;
        if window.dilations[1] > 1 {
            seen = seen.unfold(2, 1, window.dilations[1])?.squeeze(3)?;
        }
        let products = weight.narrow(0, part.start, count)?.matmul(&seen.transpose(1, 2)?)?;
        let products = products.reshape((count * outputs, tall, ()))?;
        let shifted =
            |row: usize| products.get_on_dim(1, row)?.narrow(1, row * window.dilations[0] * steps, places);
        let mut sum = shifted(0)?;
        for row in 1..tall {
            sum = (sum + shifted(row)?)?;
        }
        let y = sum.unfold(1, columns, down * steps)?;
        match bias {
            None => Ok(y),
            Some(bias) => {
                let bias = bias.narrow(0, part.start * outputs, count * outputs)?;
                y.broadcast_add(&bias.unsqueeze(2)?)
            }
        }
    })?
    .reshape((channels * outputs, rows * columns))
}

/// A depthwise convolution of an image that is too large for one piece.
fn by_halves(x: &Tensor, weight: &Tensor, bias: Option<&Tensor>, window: &Window) -> Result<Tensor> {
    let mut whole = window.clone();
    let x = padded(x, window.pads, 0.0)?;
    whole.pads = [[0; 2]; 2];
    // Of rows, or where there is but one, of columns.
    let axis = usize::from(window.out[0] < 2);
    let (size, stride) = (window.out[axis], window.strides[axis]);
    let mut halves = Vec::new();
    for (first, count) in [(0, size / 2), (size / 2, size - size / 2)] {
        whole.out[axis] = count;
        let x = x.narrow(1 + axis, first * stride, (count - 1) * stride + window.span(axis))?;
        halves.push(depthwise(&x, weight, bias, &whole)?);
    }
    Tensor::cat(&halves, 1)
}

/// A transposed convolution whose windows lie beside one another.
fn spread(x: &Tensor, weight: &Tensor) -> Result<Tensor> {
    let (batch, channels, rows, columns) = x.dims4()?;
    let (_, depth, height, width) = weight.dims4()?;
    let weight = weight.reshape((channels, depth * height * width))?.t()?;
    let mut images = Vec::new();
    for image in 0..batch {
        let y = product(&weight, &x.get(image)?.reshape((channels, rows * columns))?, None)?;
        let y = y.reshape((depth, height, width, rows, columns))?.permute((0, 3, 1, 4, 2))?;
        images.push(y.reshape((depth, rows * height, columns * width))?);
    }
    Tensor::stack(&images, 0)
}

fn plus(y: Tensor, bias: Option<&Tensor>) -> Result<Tensor> {
    match bias {
        Some(bias) => y.broadcast_add(bias),
        None => Ok(y),
    }
}
