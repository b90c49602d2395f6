//! `Resize`: by libtorch's functions where they mean the same, else along one axis after another.

use tch::{Kind, Tensor};

use super::operators::{Call, Outcome, row, shape};

/// How an axis is resized.
struct Axis {
    axis: usize,
    size: i64,
    wanted: i64,
    /// Places of the output for one of the input.
    scale: f64,
    /// Whether the scale is given, not the size.
    is_given: bool,
}

/// Where an output place is in the input.
fn place(mode: &str, axis: &Axis, output: i64) -> f64 {
    let output = output as f64;
    match mode {
        "asymmetric" => output / axis.scale,
        "align_corners" if axis.wanted == 1 => 0.0,
        "align_corners" => output * (axis.size - 1) as f64 / (axis.wanted - 1) as f64,
        "pytorch_half_pixel" if axis.wanted == 1 => 0.0,
        "half_pixel_symmetric" => {
            let adjustment = axis.wanted as f64 / (axis.scale * axis.size as f64);
            let middle = axis.size as f64 / 2.0;
            middle * (1.0 - adjustment) + (output + 0.5) / axis.scale - 0.5
        }
        _ => (output + 0.5) / axis.scale - 0.5,
    }
}

fn nearest(rule: &str, place: f64) -> f64 {
    match rule {
        "floor" => place.floor(),
        "ceil" => place.ceil(),
        "round_prefer_ceil" => (place + 0.5).floor(),
        _ => (place - 0.5).ceil(),
    }
}

impl Call<'_> {
    fn resized_axes(&self) -> Outcome<Vec<Axis>> {
        let data = self.tensor(0)?;
        let rank = data.dim();
        let axes = match self.node.ints("axes") {
            Some(axes) => self.node.axes(axes, rank)?,
            None => (0..rank).collect(),
        };
        let first_scales = if self.node.operator == "Upsample" || self.node.opset < 11 { 1 } else { 2 };
        let scales = match self.node.floats("scales") {
            Some(scales) => Some(scales.to_vec()),
            None if self.inputs.has(first_scales) => {
                self.inputs.floats(first_scales)?.filter(|all| !all.is_empty())
            }
            None => None,
        };
        let wanted = if first_scales == 2 && scales.is_none() { self.inputs.ints(3)? } else { None };
        let mut resized = Vec::new();
        for (turn, &axis) in axes.iter().enumerate() {
            let size = data.size()[axis];
            let scale = scales.as_ref().and_then(|scales| scales.get(turn)).map(|&scale| f64::from(scale));
            let (wanted, scale, is_given) = match (scale, wanted.as_ref().and_then(|wanted| wanted.get(turn)))
            {
                (Some(scale), _) => ((size as f64 * scale).floor() as i64, scale, true),
                (None, Some(&wanted)) => (wanted, wanted as f64 / size as f64, false),
                (None, None) => return self.failed("it has neither scales nor sizes"),
            };
            if wanted < 1 || size < 1 || wanted > 1 << 24 {
                return self.failed("it resizes to or from nothing, or to too much");
            }
            if wanted != size || scale != 1.0 {
                resized.push(Axis { axis, size, wanted, scale, is_given });
            }
        }
        Ok(resized)
    }

    pub(super) fn resize(&self) -> Outcome<Tensor> {
        let data = self.tensor(0)?;
        let older = self.node.operator == "Upsample" || self.node.opset < 11;
        let default = if older { "asymmetric" } else { "half_pixel" };
        let coordinates = self.node.string("coordinate_transformation_mode").unwrap_or(default);
        let mode = self.node.string("mode").unwrap_or("nearest");
        let is_stretched = self.node.string("keep_aspect_ratio_policy").unwrap_or("stretch") == "stretch";
        if coordinates == "tf_crop_and_resize"
            || !is_stretched
            || self.node.int("antialias").unwrap_or(0) != 0
        {
            return self.unsupported("tf_crop_and_resize, antialias or a kept ratio of the sides");
        }
        let axes = self.resized_axes()?;
        if axes.is_empty() {
            return Ok(data.shallow_clone());
        }
        match mode {
            "nearest" => self.nearest(&axes, coordinates),
            "linear" | "bilinear" => self.linear(&axes, coordinates),
            _ => self.cubic(&axes, coordinates),
        }
    }

    /// Sizes and scales for libtorch's functions, which resize the axes after the first two.
    fn for_libtorch(&self, axes: &[Axis]) -> Outcome<Option<(Vec<i64>, Vec<Option<f64>>)>> {
        let data = self.tensor(0)?;
        let mut sizes: Vec<i64> = data.size().into_iter().skip(2).collect();
        let mut scales = vec![None; sizes.len()];
        if axes.iter().any(|axis| axis.axis < 2) || sizes.is_empty() || sizes.len() > 3 {
            return Ok(None);
        }
        for axis in axes {
            sizes[axis.axis - 2] = axis.wanted;
            scales[axis.axis - 2] = axis.is_given.then_some(axis.scale);
        }
        Ok(Some((sizes, scales)))
    }

    fn nearest(&self, axes: &[Axis], coordinates: &str) -> Outcome<Tensor> {
        let data = self.tensor(0)?;
        let older = self.node.operator == "Upsample" || self.node.opset < 11;
        let rule =
            self.node.string("nearest_mode").unwrap_or(if older { "floor" } else { "round_prefer_floor" });
        let mut all = Vec::new();
        let mut is_same = true;
        for axis in axes {
            let last = (axis.size - 1) as f64;
            let places: Vec<i64> = (0..axis.wanted)
                .map(|output| nearest(rule, place(coordinates, axis, output)).clamp(0.0, last) as i64)
                .collect();
            let step = if axis.is_given { 1.0 / axis.scale } else { axis.size as f64 / axis.wanted as f64 };
            let own = |(output, &place): (usize, &i64)| {
                (output as f32 * step as f32).floor().min(last as f32) as i64 == place
            };
            is_same &= places.iter().enumerate().all(own);
            all.push(places);
        }
        if let (true, Some((sizes, scales))) = (is_same, self.for_libtorch(axes)?) {
            return Ok(match sizes.len() {
                1 => data.f_upsample_nearest1d(sizes, scales[0])?,
                2 => data.f_upsample_nearest2d(sizes, scales[0], scales[1])?,
                _ => data.f_upsample_nearest3d(sizes, scales[0], scales[1], scales[2])?,
            });
        }
        let mut result = data.shallow_clone();
        for (axis, places) in axes.iter().zip(all) {
            result = result.f_index_select(axis.axis as i64, &row(&places)?)?;
        }
        Ok(result)
    }

    fn linear(&self, axes: &[Axis], coordinates: &str) -> Outcome<Tensor> {
        let data = self.tensor(0)?;
        let has_one = axes.iter().any(|axis| axis.wanted == 1);
        let corners = coordinates == "align_corners";
        let is_same =
            corners || coordinates == "half_pixel" || coordinates == "pytorch_half_pixel" && !has_one;
        if let (true, Some((sizes, scales))) =
            (is_same && data.kind() == Kind::Float, self.for_libtorch(axes)?)
        {
            return Ok(match sizes.len() {
                1 => data.f_upsample_linear1d(sizes, corners, scales[0])?,
                2 => data.f_upsample_bilinear2d(sizes, corners, scales[0], scales[1])?,
                _ => data.f_upsample_trilinear3d(sizes, corners, scales[0], scales[1], scales[2])?,
            });
        }
        let mut result = data.shallow_clone();
        for axis in axes {
            let last = (axis.size - 1) as f64;
            let (mut before, mut after, mut shares) = (Vec::new(), Vec::new(), Vec::new());
            for output in 0..axis.wanted {
                let place = place(coordinates, axis, output).clamp(0.0, last);
                before.push(place.floor() as i64);
                after.push(place.ceil() as i64);
                shares.push((place - place.floor()) as f32);
            }
            let mut size = vec![1; data.dim()];
            size[axis.axis] = -1;
            let along = axis.axis as i64;
            let shares = row(&shares)?.f_to_dtype(data.kind(), false, false)?.f_reshape(size)?;
            let before = result.f_index_select(along, &row(&before)?)?;
            let after = result.f_index_select(along, &row(&after)?)?;
            result = before.f_add(&after.f_sub(&before)?.f_mul(&shares)?)?;
        }
        Ok(result)
    }

    fn cubic(&self, axes: &[Axis], coordinates: &str) -> Outcome<Tensor> {
        let weight = self.node.float("cubic_coeff_a").unwrap_or(-0.75);
        let corners = coordinates == "align_corners";
        let is_same = (weight + 0.75).abs() < 1e-6
            && self.node.int("exclude_outside").unwrap_or(0) == 0
            && (corners || coordinates == "half_pixel");
        match self.for_libtorch(axes)? {
            Some((sizes, scales)) if is_same && shape(self.tensor(0)?).len() == 4 => {
                Ok(self.tensor(0)?.f_upsample_bicubic2d(sizes, corners, scales[0], scales[1])?)
            }
            _ => self.unsupported("cubic in a way that libtorch has not"),
        }
    }
}
