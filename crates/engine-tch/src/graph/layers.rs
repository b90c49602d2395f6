//! Operators with weights or windows: convolutions, products, pools and norms.

use tch::{Kind, Tensor};

use super::operators::{Call, Outcome, shape};
use super::trace::{Convolution, untraced};

/// The attributes of a window that moves over the axes after the first two.
pub(super) struct Window {
    kernel: Vec<i64>,
    strides: Vec<i64>,
    dilations: Vec<i64>,
    /// Before and after each axis.
    pads: Vec<(i64, i64)>,
}

impl Window {
    /// What libtorch pads itself: as much after each axis as before it.
    fn both(&self) -> Option<Vec<i64>> {
        let same =
            self.pads.iter().map(|&(before, after)| (before == after && before >= 0).then_some(before));
        same.collect()
    }

    /// Pads as libtorch's `pad` takes them, the last axis first.
    fn reversed(&self) -> Vec<i64> {
        self.pads.iter().rev().flat_map(|&(before, after)| [before, after]).collect()
    }

    fn is_larger_than_its_step(&self, ceil: bool) -> bool {
        ceil || self.pads.iter().any(|&pad| pad != (0, 0))
    }
}

fn channels_last(tensor: &Tensor) -> Outcome<Tensor> {
    Ok(tensor.f_permute([0, 2, 3, 1])?.f_contiguous()?.f_permute([0, 3, 1, 2])?)
}

impl Call<'_> {
    /// The window of a node over an input of that shape.
    pub(super) fn window(&self, size: &[usize], kernel: &[i64]) -> Outcome<Window> {
        let rank = kernel.len();
        let listed = |name: &str, default: i64, count: usize| match self.node.ints(name) {
            Some(numbers) if numbers.len() == count => Ok(numbers.to_vec()),
            Some(_) => self.failed(&format!("its {name} do not go with its kernel")),
            None => Ok(vec![default; count]),
        };
        if size.len() != rank + 2 || kernel.iter().any(|&size| size < 1) {
            return self.failed("its kernel does not go with its input");
        }
        let (strides, dilations) = (listed("strides", 1, rank)?, listed("dilations", 1, rank)?);
        if strides.iter().chain(&dilations).any(|&step| step < 1) {
            return self.failed("its strides and dilations are below 1");
        }
        let mut pads = Vec::new();
        let given = listed("pads", 0, 2 * rank)?;
        for axis in 0..rank {
            pads.push(match self.node.string("auto_pad").unwrap_or("NOTSET") {
                "NOTSET" | "" => (given[axis], given[rank + axis]),
                "VALID" => (0, 0),
                kind => {
                    let size = size[axis + 2] as i64;
                    let steps = (size + strides[axis] - 1) / strides[axis];
                    let reach = (steps - 1) * strides[axis] + (kernel[axis] - 1) * dilations[axis] + 1;
                    let total = (reach - size).max(0);
                    let less = total / 2;
                    if kind == "SAME_LOWER" { (total - less, less) } else { (less, total - less) }
                }
            });
        }
        Ok(Window { kernel: kernel.to_vec(), strides, dilations, pads })
    }

    pub(super) fn convolution(&self) -> Outcome<Tensor> {
        let (data, weight, bias) = (self.tensor(0)?, self.tensor(1)?, self.optional(2)?);
        let is_plain = weight.dim() != 4 || data.dim() != 4;
        if is_plain
            || weight.kind() != Kind::Float
            || data.kind() != Kind::Float
            || !self.inputs.is_constant(1)
        {
            return self.convolve(data, weight, bias);
        }
        let size = weight.size();
        let window = self.window(&shape(data), &size[2..])?;
        let (data, pads) = match window.both() {
            Some(pads) => (data.shallow_clone(), pads),
            None => (data.f_pad(window.reversed(), "constant", 0.0)?, vec![0; 2]),
        };
        // With channels last oneDNN computes in the layout that all other functions keep, and nothing is reordered
        // between them. It goes by the input's layout, and the first input has another.
        let data = if data.stride()[1] == 1 { data } else { channels_last(&data)? };
        let two = |numbers: &[i64]| [numbers[0], numbers[1]];
        let (pads, strides, dilations) = (two(&pads), two(&window.strides), two(&window.dilations));
        let groups = self.node.int("group").unwrap_or(1);
        if groups < 1 || size[0] % groups != 0 || data.size()[1] != groups.saturating_mul(size[1]) {
            return self.failed("its weight does not go with its input");
        }
        let convolution = Convolution { pads, strides, dilations, groups };
        let input = data.size();
        // A libtorch without oneDNN packs nothing.
        let pack = || match convolution.pack(weight, [input[0], input[1], input[2], input[3]]) {
            Ok(packed) => Ok(vec![packed]),
            Err(_) => Ok(vec![channels_last(weight)?]),
        };
        let packed = &untraced(|| self.libtorch.packed(weight, pack))?[0];
        if packed.is_mkldnn() {
            return Ok(convolution.run(&data, packed, bias)?);
        }
        Ok(data.f_conv2d(packed, bias, strides, pads, dilations, groups)?)
    }

    pub(super) fn convolve(&self, data: &Tensor, weight: &Tensor, bias: Option<&Tensor>) -> Outcome<Tensor> {
        let kernel: Vec<i64> = weight.size().into_iter().skip(2).collect();
        let window = self.window(&shape(data), &kernel)?;
        let group = self.node.int("group").unwrap_or(1);
        let padded;
        let (data, pads) = match window.both() {
            Some(pads) => (data, pads),
            None => {
                padded = data.f_pad(window.reversed(), "constant", 0.0)?;
                (&padded, vec![0; kernel.len()])
            }
        };
        let (strides, dilations) = (window.strides, window.dilations);
        Ok(match kernel.len() {
            1 => data.f_conv1d(weight, bias, strides, pads, dilations, group)?,
            2 => data.f_conv2d(weight, bias, strides, pads, dilations, group)?,
            3 => data.f_conv3d(weight, bias, strides, pads, dilations, group)?,
            rank => return self.unsupported(&format!("over {rank} axes")),
        })
    }

    pub(super) fn transposed_convolution(&self) -> Outcome<Tensor> {
        let (data, weight, bias) = (self.tensor(0)?, self.tensor(1)?, self.optional(2)?);
        let kernel: Vec<i64> = weight.size().into_iter().skip(2).collect();
        let size = shape(data);
        let mut window = self.window(&size, &kernel)?;
        let rank = kernel.len();
        let extra = self.node.ints("output_padding").map_or_else(|| vec![0; rank], <[i64]>::to_vec);
        if extra.len() != rank {
            return self.failed("its output_padding does not go with its kernel");
        }
        let auto = self.node.string("auto_pad").unwrap_or("NOTSET");
        let is_same = matches!(auto, "SAME_UPPER" | "SAME_LOWER");
        let wanted = self.node.ints("output_shape");
        for axis in 0..rank {
            let whole = (size[axis + 2] as i64 - 1) * window.strides[axis]
                + (kernel[axis] - 1) * window.dilations[axis]
                + 1
                + extra[axis];
            let wanted = match wanted {
                Some(wanted) => wanted.len().checked_sub(rank).map(|first| wanted[first + axis]),
                None if is_same => Some(size[axis + 2] as i64 * window.strides[axis]),
                None => continue,
            };
            let total = whole - wanted.unwrap_or(whole);
            let less = total / 2;
            window.pads[axis] =
                if auto == "SAME_UPPER" { (less, total - less) } else { (total - less, less) };
        }
        let group = self.node.int("group").unwrap_or(1);
        let is_even = window.both();
        let pads = is_even.clone().unwrap_or_else(|| vec![0; rank]);
        let (strides, dilations) = (&window.strides[..], &window.dilations[..]);
        let mut result = match rank {
            1 => data.f_conv_transpose1d(weight, bias, strides, pads, extra, group, dilations)?,
            2 => data.f_conv_transpose2d(weight, bias, strides, pads, extra, group, dilations)?,
            3 => data.f_conv_transpose3d(weight, bias, strides, pads, extra, group, dilations)?,
            rank => return self.unsupported(&format!("over {rank} axes")),
        };
        if is_even.is_none() {
            // Pads take away from the output.
            let taken: Vec<i64> = window.reversed().into_iter().map(|pad| -pad).collect();
            result = result.f_pad(taken, "constant", 0.0)?;
        }
        Ok(result)
    }

    pub(super) fn gemm(&self) -> Outcome<Tensor> {
        let (mut a, mut b) = (self.tensor(0)?.shallow_clone(), self.tensor(1)?.shallow_clone());
        let is_set = |name: &str| self.node.int(name).unwrap_or(0) != 0;
        let factor = |name: &str| f64::from(self.node.float(name).unwrap_or(1.0));
        let (alpha, beta) = (factor("alpha"), factor("beta"));
        if is_set("transA") {
            a = a.f_transpose(0, 1)?;
        }
        if !is_set("transB") {
            b = b.f_transpose(0, 1)?;
        }
        let bias = self.optional(2)?;
        let is_row = |bias: &Tensor| bias.dim() == 1 && bias.size()[0] == b.size()[0];
        if alpha == 1.0 && beta == 1.0 && bias.is_none_or(is_row) {
            return Ok(a.f_linear(&b, bias)?);
        }
        let product = a.f_linear(&b, None::<&Tensor>)?.f_mul_scalar(alpha)?;
        match bias {
            None => Ok(product),
            Some(bias) => Ok(product.f_add(&bias.f_mul_scalar(beta)?)?),
        }
    }

    pub(super) fn product(&self) -> Outcome<Tensor> {
        let (a, b) = (self.tensor(0)?, self.tensor(1)?);
        Ok(a.f_matmul(b)?)
    }

    pub(super) fn einsum(&self) -> Outcome<Tensor> {
        let Some(equation) = self.node.string("equation") else { return self.failed("it has no equation") };
        let tensors = self.tensors()?;
        let equation: String = equation.split_whitespace().collect();
        Ok(Tensor::f_einsum(&equation, &tensors, None::<i64>)?)
    }

    fn pool_window(&self) -> Outcome<(Window, bool)> {
        let Some(kernel) = self.node.ints("kernel_shape") else {
            return self.failed("it has no kernel_shape");
        };
        let window = self.window(&shape(self.tensor(0)?), kernel)?;
        Ok((window, self.node.int("ceil_mode").unwrap_or(0) != 0))
    }

    pub(super) fn largest_pool(&self) -> Outcome<Tensor> {
        let (window, ceil) = self.pool_window()?;
        let data = self.tensor(0)?;
        let padded;
        // libtorch pads by no more than half a kernel.
        let is_half =
            |pads: &Vec<i64>| pads.iter().zip(&window.kernel).all(|(pad, kernel)| 2 * pad <= *kernel);
        let (data, pads) = match window.both().filter(is_half) {
            Some(pads) => (data.as_ref(), pads),
            None => {
                padded = data.f_pad(window.reversed(), "constant", f64::NEG_INFINITY)?;
                (&padded, vec![0; window.kernel.len()])
            }
        };
        let Window { kernel, strides, dilations, .. } = window;
        Ok(match kernel.len() {
            1 => data.f_max_pool1d(kernel, strides, pads, dilations, ceil)?,
            2 => data.f_max_pool2d(kernel, strides, pads, dilations, ceil)?,
            3 => data.f_max_pool3d(kernel, strides, pads, dilations, ceil)?,
            rank => return self.unsupported(&format!("over {rank} axes")),
        })
    }

    pub(super) fn average_pool(&self) -> Outcome<Tensor> {
        let (window, ceil) = self.pool_window()?;
        let data = self.tensor(0)?;
        if window.dilations.iter().any(|&step| step != 1) {
            return self.unsupported("dilations");
        }
        let counts_pads = self.node.int("count_include_pad").unwrap_or(0) != 0;
        let is_half =
            |pads: &Vec<i64>| pads.iter().zip(&window.kernel).all(|(pad, kernel)| 2 * pad <= *kernel);
        if let Some(pads) = window.both().filter(is_half) {
            return self.averages(data, &window, (&pads, ceil, counts_pads));
        }
        let none = vec![0; window.kernel.len()];
        let padded = |tensor: &Tensor| tensor.f_pad(window.reversed(), "constant", 0.0);
        let sums = self.averages(&padded(data)?, &window, (&none, ceil, true))?;
        if counts_pads && !ceil || !window.is_larger_than_its_step(ceil) {
            return Ok(sums);
        }
        // Of each window the share that is not padding.
        let shares = self.averages(&padded(&data.f_ones_like()?)?, &window, (&none, ceil, true))?;
        Ok(sums.f_div(&shares)?)
    }

    fn averages(&self, data: &Tensor, window: &Window, how: (&[i64], bool, bool)) -> Outcome<Tensor> {
        let (pads, ceil, counts_pads) = how;
        let (kernel, strides) = (&window.kernel[..], &window.strides[..]);
        Ok(match kernel.len() {
            1 => data.f_avg_pool1d(kernel, strides, pads, ceil, counts_pads)?,
            2 => data.f_avg_pool2d(kernel, strides, pads, ceil, counts_pads, None)?,
            3 => data.f_avg_pool3d(kernel, strides, pads, ceil, counts_pads, None)?,
            rank => return self.unsupported(&format!("over {rank} axes")),
        })
    }

    pub(super) fn global_pool(&self) -> Outcome<Tensor> {
        let data = self.tensor(0)?;
        let axes: Vec<i64> = (2..data.dim() as i64).collect();
        if axes.is_empty() {
            return Ok(data.shallow_clone());
        }
        match self.node.operator.as_str() {
            "GlobalMaxPool" => Ok(data.f_amax(axes, true)?),
            _ if axes.len() == 2 => Ok(data.f_adaptive_avg_pool2d([1, 1])?),
            _ => Ok(data.f_mean_dim(&axes[..], true, data.kind())?),
        }
    }

    fn epsilon(&self) -> f64 {
        f64::from(self.node.float("epsilon").unwrap_or(1e-5))
    }

    pub(super) fn batch_norm(&self) -> Outcome<Tensor> {
        if self.node.int("training_mode").unwrap_or(0) != 0 || self.node.opset < 7 {
            return self.unsupported("in training");
        }
        let rows = [1, 2, 3, 4].map(|place| self.optional(place));
        let [scale, shift, mean, variance] = rows;
        let data = self.tensor(0)?;
        Ok(data.f_batch_norm(scale?, shift?, mean?, variance?, false, 0.0, self.epsilon(), false)?)
    }

    pub(super) fn layer_norm(&self) -> Outcome<Tensor> {
        let data = self.tensor(0)?;
        let axis = self.node.axis("axis", -1, data.dim())?;
        let rows = &data.size()[axis..];
        let fit = |weight: &Tensor| match weight.size() == rows {
            true => Ok(weight.shallow_clone()),
            false => weight.f_expand(rows, false),
        };
        let (scale, shift) =
            (self.optional(1)?.map(fit).transpose()?, self.optional(2)?.map(fit).transpose()?);
        Ok(data.f_layer_norm(rows, scale, shift, self.epsilon(), false)?)
    }

    pub(super) fn rms_norm(&self) -> Outcome<Tensor> {
        let data = self.tensor(0)?;
        let axis = self.node.axis("axis", -1, data.dim())?;
        Ok(data.f_rms_norm(&data.size()[axis..], self.optional(1)?, self.epsilon())?)
    }

    pub(super) fn instance_norm(&self) -> Outcome<Tensor> {
        let (scale, shift) = (self.optional(1)?, self.optional(2)?);
        let none = || None::<&Tensor>;
        Ok(self.tensor(0)?.f_instance_norm(scale, shift, none(), none(), true, 0.0, self.epsilon(), false)?)
    }

    pub(super) fn group_norm(&self) -> Outcome<Tensor> {
        let data = self.tensor(0)?;
        let groups = self.node.int("num_groups").unwrap_or(1).max(1);
        let channels = data.size().get(1).copied().unwrap_or(1);
        // Up to opset 20 a scale is for a group.
        let fit = |weight: &Tensor| match weight.numel() as i64 == channels {
            true => Ok(weight.shallow_clone()),
            false => weight.f_repeat_interleave_self_int(channels / groups, 0, None),
        };
        let (scale, shift) =
            (self.optional(1)?.map(fit).transpose()?, self.optional(2)?.map(fit).transpose()?);
        Ok(data.f_group_norm(groups, scale, shift, self.epsilon(), false)?)
    }

    pub(super) fn unit_norm(&self) -> Outcome<Tensor> {
        let data = self.tensor(0)?;
        let axis = self.node.axis("axis", -1, data.dim())? as i64;
        let size = match self.node.int("p").unwrap_or(2) {
            1 => data.f_abs()?.f_sum_dim_intlist(&[axis][..], true, data.kind())?,
            _ => data.f_square()?.f_sum_dim_intlist(&[axis][..], true, data.kind())?.f_sqrt()?,
        };
        Ok(data.f_div(&size)?)
    }

    pub(super) fn softmax(&self) -> Outcome<Tensor> {
        let data = self.tensor(0)?;
        let is_log = self.node.operator == "LogSoftmax";
        let along = |data: &Tensor, axis: i64| match is_log {
            true => data.f_log_softmax(axis, None::<Kind>),
            false => data.f_softmax(axis, None::<Kind>),
        };
        let default = if self.node.opset < 13 { 1 } else { -1 };
        let axis = self.node.axis("axis", default, data.dim())?;
        if self.node.opset < 13 && axis + 1 < data.dim() {
            // Up to opset 12 everything from the axis on is one row.
            let rows: i64 = data.size()[..axis].iter().product();
            let size = data.size();
            return Ok(along(&data.f_reshape([rows, -1])?, 1)?.f_reshape(size)?);
        }
        Ok(along(data, axis as i64)?)
    }
}
