//! Products of matrices, and what normalises their rows.

use bundle::Dtype;
use candle_core::{D, DType, Device, Result, Tensor};
use candle_nn::ops;

use super::Typed;
use super::operators::{Call, Made};
use super::pieces::{DIVIDED, by_columns, by_rows, multiplied, part, ranges};

/// Up to so many rows are multiplied behind a weight.
const FEW: usize = 32;

/// `[m, n]` of `[m, k]` and `[k, n]`, to whose rows `bias`, `[m, 1]`, is added. Either may be a view with any steps.
/// The longer side of the product is cut over the threads.
pub(super) fn product(a: &Tensor, b: &Tensor, bias: Option<&Tensor>) -> Result<Tensor> {
    let ((m, k), n) = (a.dims2()?, b.dim(1)?);
    if bias.is_none() && m <= FEW && m < n && b.stride()[0] == 1 && b.stride()[1] > 1 {
        // A weight that is stored by outputs comes first: then gemm packs nothing.
        return product(&b.t()?, &a.t()?.contiguous()?, None)?.t()?.contiguous();
    }
    if m >= n {
        let part = part(m, multiplied(k * n)).min((DIVIDED - 1) / n.max(1)).max(1);
        return by_rows(a.dtype(), (m, n), part, |rows| {
            let y = a.narrow(0, rows.start, rows.len())?.matmul(b)?;
            match bias {
                Some(bias) => y.broadcast_add(&bias.narrow(0, rows.start, rows.len())?),
                None => Ok(y),
            }
        });
    }
    let part = part(n, multiplied(k * m)).min((DIVIDED - 1) / m.max(1)).max(1);
    let ranges = ranges(0..n, part).collect();
    by_columns(a.dtype(), (m, n), (ranges, multiplied(m * k * n)), |columns| {
        let y = a.matmul(&b.narrow(1, columns.start, columns.len())?)?;
        match bias {
            Some(bias) => y.broadcast_add(bias),
            None => Ok(y),
        }
    })
}

/// Products of matrices in the last two axes, for all of the others.
pub(super) fn products(a: &Tensor, b: &Tensor) -> Result<Tensor> {
    let (a_rank, b_rank) = (a.rank(), b.rank());
    let (m, k, n) = (a.dim(D::Minus2)?, a.dim(D::Minus1)?, b.dim(D::Minus1)?);
    if b_rank == 2 {
        let mut shape = a.dims()[..a_rank - 1].to_vec();
        shape.push(n);
        return product(&a.reshape(((), k))?, b, None)?.reshape(shape);
    }
    let mut shape = broadcast(&a.dims()[..a_rank - 2], &b.dims()[..b_rank - 2])?;
    let outer = shape.clone();
    let whole = |x: &Tensor, rank: usize| {
        let inner = &x.dims()[rank - 2..];
        x.broadcast_as([outer.as_slice(), inner].concat())
    };
    let (a, b) = (whole(a, a_rank)?, whole(b, b_rank)?);
    let matrices: usize = outer.iter().product();
    // The matrix at this place of the outer axes, without a copy.
    let at = |x: &Tensor, place: usize| {
        let (mut x, mut left, mut place) = (x.clone(), matrices, place);
        for &size in &outer {
            left /= size;
            x = x.get(place / left)?;
            place %= left;
        }
        Result::Ok(x)
    };
    let made = if part(matrices, multiplied(m * k * n)) < matrices && matrices >= crate::parallel::threads() {
        by_rows(a.dtype(), (matrices, m * n), 1, |one| at(&a, one.start)?.matmul(&at(&b, one.start)?))?
    } else {
        let each = (0..matrices).map(|place| product(&at(&a, place)?, &at(&b, place)?, None));
        Tensor::stack(&each.collect::<Result<Vec<_>>>()?, 0)?
    };
    shape.extend([m, n]);
    made.reshape(shape)
}

fn broadcast(a: &[usize], b: &[usize]) -> Result<Vec<usize>> {
    let [a, b] = [a, b].map(candle_core::Shape::from);
    Ok(a.broadcast_shape_binary_op(&b, "matmul")?.into_dims())
}

/// Floats that hold every sum of so many products of 8-bit codes, of which each may be 255 from its zero point.
pub(super) fn exact(terms: usize) -> DType {
    if terms * 255 * 255 < 1 << 24 { DType::F32 } else { DType::F64 }
}

/// `f` on the rows of the last axis, cut over the threads.
fn rows(x: &Tensor, f: impl Fn(&Tensor) -> Result<Tensor> + Send + Sync) -> Result<Tensor> {
    let width = x.dim(D::Minus1)?;
    let flat = x.contiguous()?.reshape(((), width))?;
    let count = flat.dim(0)?;
    let part = part(count, width).min((DIVIDED - 1) / width.max(1)).max(1);
    by_rows(x.dtype(), (count, width), part, |rows| f(&flat.narrow(0, rows.start, rows.len())?))?
        .reshape(x.shape())
}

impl Call<'_> {
    pub(super) fn matmul(&self) -> Made<Tensor> {
        self.product_of(self.input(0)?, self.input(1)?)
    }

    fn product_of(&self, a: &Tensor, b: &Tensor) -> Made<Tensor> {
        if !matches!(a.dtype(), DType::F16 | DType::F32 | DType::F64) {
            return Ok(self.node.unsupported("candle multiplies matrices of floats alone")?);
        }
        Ok(match (a.rank(), b.rank()) {
            (1, 1) => products(&a.unsqueeze(0)?, &b.unsqueeze(1)?)?.squeeze(1)?.squeeze(0)?,
            (1, _) => products(&a.unsqueeze(0)?, b)?.squeeze(D::Minus2)?,
            (_, 1) => products(a, &b.unsqueeze(1)?)?.squeeze(D::Minus1)?,
            _ => products(a, b)?,
        })
    }

    /// In floats that hold every sum exactly.
    pub(super) fn matmul_of_integers(&self) -> Made<Typed> {
        let dtype = exact(self.input(0)?.dim(D::Minus1)?);
        let (a, b) = (self.shifted(0, dtype, 1)?, self.shifted(1, dtype, 0)?);
        let tensor = self.product_of(&a, &b)?.to_dtype(DType::I64)?;
        Ok(Typed { tensor, dtype: Dtype::Int32 })
    }

    /// The codes of an input less their zero point, of which there may be one for each place of an axis; `behind` is
    /// how many axes come behind that.
    pub(super) fn shifted(&self, place: usize, dtype: DType, behind: usize) -> Made<Tensor> {
        let x = self.input(place)?.to_dtype(dtype)?;
        let Some(zero) = self.optional(2 + place)? else { return Ok(x) };
        let zero = zero.to_dtype(dtype)?;
        if zero.elem_count() == 1 {
            return Ok(x.broadcast_sub(&zero.reshape(())?)?);
        }
        let mut shape = vec![1; behind + 1];
        shape[0] = zero.elem_count();
        Ok(x.broadcast_sub(&zero.reshape(shape)?)?)
    }

    pub(super) fn gemm(&self) -> Made<Tensor> {
        let turned = |place: usize, name: &str| {
            let x = self.input(place)?;
            Made::Ok(if self.node.int(name).unwrap_or(0) != 0 { x.t()? } else { x.clone() })
        };
        let mut y = self.product_of(&turned(0, "transA")?, &turned(1, "transB")?)?;
        let (alpha, beta) = (self.float("alpha", 1.0), self.float("beta", 1.0));
        if alpha != 1.0 {
            y = y.affine(alpha, 0.0)?;
        }
        match self.optional(2)? {
            None => Ok(y),
            Some(c) if beta == 1.0 => Ok(y.broadcast_add(c)?),
            Some(c) => Ok(y.broadcast_add(&c.affine(beta, 0.0)?)?),
        }
    }

    /// An einsum of two operands, neither of which repeats a letter or sums over one of its own.
    pub(super) fn einsum(&self) -> Made<Tensor> {
        let equation: String = self
            .node
            .string("equation")
            .unwrap_or_default()
            .chars()
            .filter(|letter| *letter != ' ')
            .collect();
        let no_equation =
            || self.node.unsupported("only products of two tensors by letters are computed here");
        let Some((inputs, output)) = equation.split_once("->") else { return Ok(no_equation()?) };
        let Some((a, b)) = inputs.split_once(',') else { return Ok(no_equation()?) };
        let unique =
            |text: &str| text.chars().enumerate().all(|(place, letter)| text.find(letter) == Some(place));
        let is_plain = equation.chars().filter(char::is_ascii_alphabetic).count() == equation.len() - 3;
        let has = |text: &str, letter: char| text.contains(letter);
        if !is_plain || self.inputs.len() != 2 || ![a, b, output].into_iter().all(unique) {
            return Ok(no_equation()?);
        }
        let outer: Vec<char> = output.chars().filter(|&letter| has(a, letter) && has(b, letter)).collect();
        let rows: Vec<char> = output.chars().filter(|&letter| !has(b, letter)).collect();
        let columns: Vec<char> = output.chars().filter(|&letter| !has(a, letter)).collect();
        let summed: Vec<char> = a.chars().filter(|&letter| has(b, letter) && !has(output, letter)).collect();
        let known = outer.len() + summed.len();
        if a.len() != known + rows.len()
            || b.len() != known + columns.len()
            || output.len() != outer.len() + rows.len() + columns.len()
        {
            return Ok(no_equation()?);
        }
        let ordered = |x: &Tensor, names: &str, groups: [&[char]; 3]| {
            let order: Vec<usize> = groups.concat().iter().filter_map(|&letter| names.find(letter)).collect();
            let x = x.permute(order)?;
            let mut sizes = x.dims().iter().copied();
            let shape = groups.map(|group| sizes.by_ref().take(group.len()).product::<usize>());
            x.reshape(shape.as_slice())
        };
        let (x, y) = (self.input(0)?, self.input(1)?);
        let size = |letter: char| match a.find(letter) {
            Some(place) => x.dims().get(place),
            None => b.find(letter).and_then(|place| y.dims().get(place)),
        };
        if x.rank() != a.len() || y.rank() != b.len() {
            return Ok(self.node.failed("its equation does not go with its inputs")?);
        }
        let x = ordered(x, a, [&outer, &rows, &summed])?;
        let y = ordered(y, b, [&outer, &summed, &columns])?;
        let made = [outer, rows, columns].concat();
        let shape: Vec<usize> = made.iter().filter_map(|&letter| size(letter)).copied().collect();
        let order: Vec<usize> =
            output.chars().filter_map(|letter| made.iter().position(|&other| other == letter)).collect();
        Ok(self.product_of(&x, &y)?.reshape(shape)?.permute(order)?)
    }

    pub(super) fn softmax(&self) -> Made<Tensor> {
        let x = self.input(0)?;
        let is_log = self.node.operator == "LogSoftmax";
        let of_rows =
            |x: &Tensor| if is_log { ops::log_softmax(x, D::Minus1) } else { ops::softmax_last_dim(x) };
        // Up to opset 12 all axes from the named one on are one.
        if self.node.opset < 13 {
            let axis = self.node.axis("axis", 1, x.rank())?;
            let shape =
                (x.dims()[..axis].iter().product::<usize>(), x.dims()[axis..].iter().product::<usize>());
            return Ok(rows(&x.reshape(shape)?, of_rows)?.reshape(x.shape())?);
        }
        let axis = self.node.axis("axis", -1, x.rank())?;
        let last = x.rank() - 1;
        Ok(rows(&x.transpose(axis, last)?, of_rows)?.transpose(axis, last)?.contiguous()?)
    }

    pub(super) fn layer_norm(&self) -> Made<Tensor> {
        let x = self.input(0)?;
        let axis = self.node.axis("axis", -1, x.rank())?;
        let epsilon = self.float("epsilon", 1e-5) as f32;
        let scale = self.input(1)?.flatten_all()?;
        let bias = match self.optional(2)? {
            Some(bias) => bias.flatten_all()?,
            None => scale.zeros_like()?,
        };
        if scale.elem_count() != x.dims()[axis..].iter().product::<usize>() {
            return Ok(self.node.unsupported("its scale is repeated")?);
        }
        let flat = x.contiguous()?.reshape(((), scale.elem_count()))?;
        Ok(rows(&flat, |x| ops::layer_norm(x, &scale, &bias, epsilon))?.reshape(x.shape())?)
    }

    pub(super) fn rms_norm(&self) -> Made<Tensor> {
        let (x, scale) = (self.input(0)?, self.input(1)?.flatten_all()?);
        let axis = self.node.axis("axis", -1, x.rank())?;
        if scale.elem_count() != x.dims()[axis..].iter().product::<usize>() {
            return Ok(self.node.unsupported("its scale is repeated")?);
        }
        let epsilon = self.float("epsilon", 1e-5) as f32;
        let flat = x.contiguous()?.reshape(((), scale.elem_count()))?;
        Ok(rows(&flat, |x| ops::rms_norm(x, &scale, epsilon))?.reshape(x.shape())?)
    }

    /// The norm of each group of channels; `None` if each channel is one.
    pub(super) fn group_norm(&self, groups: Option<i64>) -> Made<Tensor> {
        let x = self.input(0)?;
        let (batch, channels) = (x.dim(0)?, x.dim(1)?);
        let groups = groups.map_or(channels, |groups| usize::try_from(groups).unwrap_or(0));
        if groups == 0 || channels % groups != 0 {
            return Ok(self.node.failed("its groups do not divide its channels")?);
        }
        let width = x.elem_count() / (batch * groups).max(1);
        let ones = Tensor::ones(width, x.dtype(), &Device::Cpu)?;
        let zeros = ones.zeros_like()?;
        let epsilon = self.float("epsilon", 1e-5) as f32;
        let normed =
            rows(&x.reshape((batch * groups, width))?, |x| ops::layer_norm(x, &ones, &zeros, epsilon))?;
        // Before opset 21 a group had one scale.
        let scaled = |place: usize| {
            let scale = self.input(place)?;
            let each = channels / scale.elem_count().max(1);
            let scale = scale.reshape(((), 1))?.broadcast_as((scale.elem_count(), each))?;
            let mut shape = vec![1; x.rank()];
            shape[1] = channels;
            Made::Ok(scale.contiguous()?.reshape(shape)?)
        };
        Ok(normed.reshape(x.shape())?.broadcast_mul(&scaled(1)?)?.broadcast_add(&scaled(2)?)?)
    }

    pub(super) fn batch_norm(&self) -> Made<Tensor> {
        if self.node.int("training_mode").unwrap_or(0) != 0 {
            return Ok(self.node.unsupported("it trains")?);
        }
        let x = self.input(0)?;
        let mut shape = vec![1; x.rank()];
        shape[1] = x.dim(1)?;
        let of_channel = |place: usize| Made::Ok(self.input(place)?.reshape(shape.as_slice())?);
        let scale = (of_channel(1)? / (of_channel(4)? + self.float("epsilon", 1e-5))?.sqrt()?)?;
        let shift = (of_channel(2)? - (of_channel(3)? * &scale)?)?;
        Ok(x.broadcast_mul(&scale)?.broadcast_add(&shift)?)
    }
}
