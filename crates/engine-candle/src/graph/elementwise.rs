//! Operators that work element by element.

use bundle::Dtype;
use candle_core::{DType, Device, Result, Tensor};
use candle_nn::ops;
use onnx::program::axis;

use super::element;
use super::operators::{Call, Made, comparison, truth};
use super::pieces::each;
use super::{Stop, Typed};

/// A function of candle, or several after one another.
type Function = dyn Fn(&Tensor) -> Result<Tensor> + Send + Sync;

impl Call<'_> {
    /// `None` if the operator is none of these.
    pub(super) fn elementwise(&self) -> Made<Option<Typed>> {
        let operator = self.node.operator.as_str();
        if let Some(comparison) = comparison(operator) {
            let [a, b] = self.together()?;
            return Ok(Some(truth(a.cmp(&b, comparison)?)));
        }
        let made = match operator {
            "Not" => return Ok(Some(truth(self.input(0)?.eq(0u8)?))),
            "And" => return Ok(Some(truth(self.input(0)?.broadcast_mul(self.input(1)?)?))),
            "Or" => return Ok(Some(truth(self.input(0)?.broadcast_maximum(self.input(1)?)?))),
            "Xor" => return Ok(Some(truth(self.input(0)?.broadcast_ne(self.input(1)?)?))),
            "IsNaN" => return Ok(Some(truth(self.input(0)?.ne(self.input(0)?)?))),
            "IsInf" => {
                let is_wanted = |name: &str| self.node.int(name).unwrap_or(1) != 0;
                let x = match [is_wanted("detect_positive"), is_wanted("detect_negative")] {
                    [true, true] => self.input(0)?.abs()?,
                    [true, false] => self.input(0)?.clone(),
                    [false, true] => self.input(0)?.neg()?,
                    [false, false] => self.input(0)?.zeros_like()?,
                };
                return Ok(Some(truth(x.eq(f64::INFINITY)?)));
            }
            "Cast" | "CastLike" => return self.cast().map(Some),
            "Where" => {
                let [condition, yes] = self.together()?;
                let no = self.input(2)?;
                let shape = yes.shape().broadcast_shape_binary_op(no.shape(), "where")?;
                let [condition, yes, no] = [&condition, &yes, no].map(|x| x.broadcast_as(&shape));
                let tensor = condition?.where_cond(&yes?, &no?)?;
                return Ok(Some(Typed { tensor, dtype: self.inputs.tensor(1)?.dtype }));
            }
            "Add" | "Sub" | "Mul" | "Div" | "Mod" => self.arithmetic(operator)?,
            "Sum" | "Mean" | "Min" | "Max" => self.several(operator)?,
            "Pow" => self.power()?,
            "Clip" => self.clip()?,
            "PRelu" => {
                let (x, slope) = (self.input(0)?, self.input(1)?);
                (x.relu()? - x.neg()?.relu()?.broadcast_mul(slope)?)?
            }
            _ => match self.unary()? {
                Some(made) => made,
                None => return Ok(None),
            },
        };
        self.typed(made).map(Some)
    }

    /// `None` if the operator has not one input.
    fn unary(&self) -> Made<Option<Tensor>> {
        let operator = self.node.operator.as_str();
        let by_candle = divided_by_candle(operator);
        let several = self.of_several();
        if by_candle.is_none() && several.is_none() {
            return Ok(None);
        }
        let x = self.input(0)?;
        Ok(Some(match (by_candle, several, self.inputs.tensor(0)?.dtype.is_float()) {
            (_, _, false) => match operator {
                "Neg" => x.affine(-1.0, 0.0)?,
                "Abs" => x.maximum(&x.affine(-1.0, 0.0)?)?,
                _ => return Ok(self.node.unsupported("candle computes it of floats alone")?),
            },
            (Some(function), ..) => match self.node.string("approximate") {
                Some("tanh") => x.gelu()?,
                _ => function(x)?,
            },
            (_, Some(function), _) => each(x, function)?,
            _ => return Ok(None),
        }))
    }

    /// What takes several of candle's functions, or one that it does not divide over its threads.
    fn of_several(&self) -> Option<Box<Function>> {
        let alpha = |default| self.float("alpha", default);
        Some(match self.node.operator.as_str() {
            "Sigmoid" => Box::new(ops::sigmoid),
            "Round" => Box::new(rounded),
            "Tan" => Box::new(|x| x.sin()? / x.cos()?),
            "Softplus" => Box::new(softplus),
            "Softsign" => Box::new(|x| x / (x.abs()? + 1.0)?),
            "Mish" => Box::new(|x| x * softplus(x)?.tanh()?),
            "HardSigmoid" => {
                let (alpha, beta) = (alpha(0.2), self.float("beta", 0.5));
                Box::new(move |x| x.affine(alpha, beta)?.clamp(0.0, 1.0))
            }
            "HardSwish" => Box::new(|x| x * x.affine(1.0 / 6.0, 0.5)?.clamp(0.0, 1.0)?),
            "Swish" => {
                let alpha = alpha(1.0);
                Box::new(move |x| x * ops::sigmoid(&x.affine(alpha, 0.0)?)?)
            }
            "LeakyRelu" => {
                let alpha = alpha(0.01);
                Box::new(move |x| ops::leaky_relu(x, alpha))
            }
            "ThresholdedRelu" => {
                let alpha = alpha(1.0);
                Box::new(move |x| x * x.gt(alpha)?.to_dtype(x.dtype())?)
            }
            "Elu" => {
                let alpha = alpha(1.0);
                Box::new(move |x| x.elu(alpha))
            }
            "Celu" => {
                let alpha = alpha(1.0);
                Box::new(move |x| x.affine(1.0 / alpha, 0.0)?.elu(1.0)?.affine(alpha, 0.0))
            }
            "Selu" => {
                let (alpha, gamma) = (alpha(1.673_263_2), self.float("gamma", 1.050_701));
                Box::new(move |x| x.elu(alpha)?.affine(gamma, 0.0))
            }
            _ => return None,
        })
    }

    /// The first two inputs, each as a view of the shape of both.
    fn together(&self) -> Made<[Tensor; 2]> {
        let (a, b) = (self.input(0)?, self.input(1)?);
        let shape = a.shape().broadcast_shape_binary_op(b.shape(), "elementwise")?;
        Ok([a.broadcast_as(&shape)?, b.broadcast_as(&shape)?])
    }

    fn arithmetic(&self, operator: &str) -> Made<Tensor> {
        let (mut a, mut b) = (self.input(0)?, self.input(1)?);
        if self.node.opset < 7 && self.node.int("broadcast") == Some(1) {
            return Ok(self.node.unsupported("it broadcasts by the rules of opset 6")?);
        }
        // candle's loops are fast where the second operand is repeated, not the first.
        if matches!(operator, "Add" | "Mul") && a.elem_count() < b.elem_count() {
            std::mem::swap(&mut a, &mut b);
        }
        Ok(match operator {
            "Add" => a.broadcast_add(b)?,
            "Mul" => a.broadcast_mul(b)?,
            "Sub" => match self.number(0) {
                Some(number) if a.rank() <= b.rank() => each(b, |b| b.affine(-1.0, number))?,
                _ => a.broadcast_sub(b)?,
            },
            "Div" => a.broadcast_div(b)?,
            _ if self.inputs.tensor(0)?.dtype.is_float() => {
                return Ok(self.node.unsupported("candle has no remainder of floats")?);
            }
            // The remainder has the sign of the divisor, or with fmod that of the dividend.
            _ => {
                let rest = a.broadcast_sub(&a.broadcast_div(b)?.broadcast_mul(b)?)?;
                if self.node.int("fmod") == Some(1) || rest.dtype() == DType::U8 {
                    return Ok(rest);
                }
                let sum = rest.broadcast_add(b)?;
                sum.broadcast_sub(&sum.broadcast_div(b)?.broadcast_mul(b)?)?
            }
        })
    }

    fn several(&self, operator: &str) -> Made<Tensor> {
        let mut made = self.input(0)?.clone();
        for place in 1..self.inputs.len() {
            let next = self.input(place)?;
            made = match operator {
                "Min" => made.broadcast_minimum(next)?,
                "Max" => made.broadcast_maximum(next)?,
                _ => made.broadcast_add(next)?,
            };
        }
        match operator {
            "Mean" => Ok(made.affine(1.0 / self.inputs.len() as f64, 0.0)?),
            _ => Ok(made),
        }
    }

    fn power(&self) -> Made<Tensor> {
        let x = self.input(0)?;
        if !self.inputs.tensor(0)?.dtype.is_float() {
            // Floats of 64 bits hold them exactly.
            let Some(power) = self.number(1) else {
                return Ok(self.node.unsupported("candle has no powers of whole numbers")?);
            };
            return Ok(x.to_dtype(DType::F64)?.powf(power)?.to_dtype(x.dtype())?);
        }
        let is_one = self.inputs.tensor(1)?.tensor.rank() <= x.rank();
        Ok(match (self.number(0), self.number(1)) {
            (_, Some(2.0)) if is_one => x.sqr()?,
            (_, Some(0.5)) if is_one => x.sqrt()?,
            (_, Some(power)) if is_one => each(x, |x| x.powf(power))?,
            (Some(base), _) if base > 0.0 && x.rank() == 0 => {
                self.input(1)?.to_dtype(x.dtype())?.affine(base.ln(), 0.0)?.exp()?
            }
            // candle's is e^(power · ln base), which no base below 0 has.
            _ => {
                return Ok(self
                    .node
                    .unsupported("candle has no powers with exponents that are not constant")?);
            }
        })
    }

    fn clip(&self) -> Made<Tensor> {
        let x = self.input(0)?;
        let bounds = [("min", 1), ("max", 2)].map(|(name, place)| match self.node.float(name) {
            Some(bound) => Some(f64::from(bound)),
            None => self.number(place),
        });
        if self.node.opset < 11 || (0..2).all(|place| bounds[place].is_some() || !self.inputs.has(1 + place))
        {
            return Ok(each(x, |x| match bounds {
                [Some(low), Some(high)] => x.clamp(low, high),
                [Some(low), None] => x.maximum(low),
                [None, Some(high)] => x.minimum(high),
                [None, None] => Ok(x.clone()),
            })?);
        }
        let mut made = x.clone();
        if let Some(low) = self.optional(1)? {
            made = made.broadcast_maximum(low)?;
        }
        if let Some(high) = self.optional(2)? {
            made = made.broadcast_minimum(high)?;
        }
        Ok(made)
    }

    fn cast(&self) -> Made<Typed> {
        let Typed { tensor, dtype: from } = self.inputs.tensor(0)?;
        let dtype = match self.node.operator.as_str() {
            "CastLike" => self.inputs.tensor(1)?.dtype,
            _ => match self.node.int("to").and_then(named) {
                Some(dtype) => dtype,
                None => return Ok(self.node.unsupported("it casts to a type that is not read here")?),
            },
        };
        let tensor = match dtype {
            Dtype::Bool if *from == Dtype::Bool => tensor.clone(),
            Dtype::Bool => tensor.ne(0.0)?,
            _ => tensor.to_dtype(element(dtype))?,
        };
        Ok(Typed { tensor, dtype })
    }

    /// Scale and zero point of a quantisation, shaped for `x`; the zero point as a float.
    fn steps(&self, x: &Tensor) -> Made<(Tensor, Option<Tensor>)> {
        if self.node.int("block_size").unwrap_or(0) != 0 {
            return Ok(self.node.unsupported("its blocks are not read here")?);
        }
        let mut shape = vec![1; x.rank()];
        let scale = self.input(1)?;
        if scale.elem_count() != 1 {
            shape[axis(self.node.int("axis").unwrap_or(1), x.rank())?] = scale.elem_count();
        }
        let zero = match self.optional(2)? {
            None => None,
            Some(zero) => Some(zero.to_dtype(scale.dtype())?.reshape(shape.as_slice())?),
        };
        Ok((scale.reshape(shape)?, zero))
    }

    pub(super) fn dequantised(&self) -> Made<Typed> {
        let x = self.input(0)?;
        let (scale, zero) = self.steps(x)?;
        let mut x = x.to_dtype(scale.dtype())?;
        if let Some(zero) = zero {
            x = x.broadcast_sub(&zero)?;
        }
        Ok(Typed { tensor: x.broadcast_mul(&scale)?, dtype: self.inputs.tensor(1)?.dtype })
    }

    pub(super) fn quantised(&self) -> Made<Typed> {
        let x = self.input(0)?;
        let (scale, zero) = self.steps(x)?;
        let dtype =
            self.inputs.optional(2)?.map(|zero| zero.dtype).or(self.node.int("output_dtype").and_then(named));
        let dtype = dtype.unwrap_or(Dtype::Uint8);
        let bound = match dtype {
            Dtype::Uint8 => [0.0, 255.0],
            Dtype::Int8 => [-128.0, 127.0],
            Dtype::Uint16 => [0.0, 65535.0],
            Dtype::Int16 => [-32768.0, 32767.0],
            _ => return Ok(self.node.unsupported("it quantises to a type that is not read here")?),
        };
        let mut codes = rounded(&x.broadcast_div(&scale)?)?;
        if let Some(zero) = zero {
            codes = codes.broadcast_add(&zero)?;
        }
        let [low, high] = bound;
        Ok(Typed { tensor: codes.clamp(low, high)?.to_dtype(element(dtype))?, dtype })
    }

    /// Codes of 8 bits, their scale and zero point.
    pub(super) fn quantised_to_range(&self) -> Made<Vec<Typed>> {
        let x = self.input(0)?;
        let extreme = |tensor: Tensor| tensor.to_scalar::<f32>().map_err(Stop::Candle);
        let low = extreme(x.min_all()?)?.min(0.0);
        let high = extreme(x.max_all()?)?.max(0.0);
        let scale = if high == low { 1.0 } else { (high - low) / 255.0 };
        let zero = (-low / scale).round_ties_even().clamp(0.0, 255.0);
        let device = &Device::Cpu;
        let codes = rounded(&x.broadcast_div(&Tensor::new(scale, device)?)?)?;
        let codes = (codes + f64::from(zero))?.clamp(0.0, 255.0)?;
        Ok(vec![
            Typed { tensor: codes.to_dtype(DType::U8)?, dtype: Dtype::Uint8 },
            Typed { tensor: Tensor::new(scale, device)?, dtype: Dtype::Float32 },
            Typed { tensor: Tensor::new(zero as u8, device)?, dtype: Dtype::Uint8 },
        ])
    }
}

/// To the nearest whole number, to the even one of two: candle's function takes the one that is further from 0. A sum
/// with so large a number that no fraction is left rounds so.
fn rounded(x: &Tensor) -> Result<Tensor> {
    let large = match x.dtype() {
        DType::F64 => 1.5 * f64::from(2u32).powi(52),
        DType::F16 => 1536.0,
        _ => 12_582_912.0,
    };
    let is_small = x.abs()?.lt(large / 4.0)?;
    is_small.where_cond(&((x + large)? - large)?, x)
}

/// ln(1 + e^x) without an overflow.
fn softplus(x: &Tensor) -> Result<Tensor> {
    x.relu()? + (x.abs()?.neg()?.exp()? + 1.0)?.log()?
}

/// Functions that candle itself divides over its threads.
fn divided_by_candle(operator: &str) -> Option<fn(&Tensor) -> Result<Tensor>> {
    Some(match operator {
        "Relu" => Tensor::relu,
        "Tanh" => Tensor::tanh,
        "Erf" => Tensor::erf,
        "Exp" => Tensor::exp,
        "Log" => Tensor::log,
        "Sqrt" => Tensor::sqrt,
        "Reciprocal" => Tensor::recip,
        "Neg" => Tensor::neg,
        "Abs" => Tensor::abs,
        "Sign" => Tensor::sign,
        "Floor" => Tensor::floor,
        "Ceil" => Tensor::ceil,
        "Sin" => Tensor::sin,
        "Cos" => Tensor::cos,
        "Gelu" | "com.microsoft::Gelu" => Tensor::gelu_erf,
        _ => return None,
    })
}

/// The type with this number in ONNX.
fn named(number: i64) -> Option<Dtype> {
    onnx::program::dtype(i32::try_from(number).ok()?)
}
