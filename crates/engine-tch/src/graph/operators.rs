//! ONNX's operators by libtorch's functions: the list of them, and those that work element by element.

use std::cell::RefCell;
use std::collections::HashMap;
use std::rc::Rc;

use bundle::Dtype;
use onnx::program::{Array, Inputs, Node, Operations, ProgramError};
use tch::{Device, Kind, TchError, Tensor};

use super::trace::untraced;
use crate::reason;

pub(super) type Outcome<T> = std::result::Result<T, Failure>;

/// Why a node is not computed.
pub(super) enum Failure {
    Program(ProgramError),
    Torch(TchError),
}

impl From<ProgramError> for Failure {
    fn from(error: ProgramError) -> Failure {
        Failure::Program(error)
    }
}

impl From<TchError> for Failure {
    fn from(error: TchError) -> Failure {
        Failure::Torch(error)
    }
}

/// libtorch on the CPU.
#[derive(Default)]
pub(super) struct Libtorch {
    /// Weights in the order that libtorch has them in, by the tensor that they were made of, which is kept with them.
    packed: RefCell<HashMap<*const Tensor, Packed>>,
}

/// A constant, and what was made of it.
type Packed = (Rc<Tensor>, Vec<Tensor>);

impl Libtorch {
    /// The weights that only oneDNN reads. A module has no such constants: it takes them as further inputs.
    pub(super) fn opaque(&self) -> Vec<Tensor> {
        let packed = self.packed.borrow();
        let made = packed.values().flat_map(|(_, made)| made);
        made.filter(|tensor| tensor.is_mkldnn()).map(Tensor::shallow_clone).collect()
    }

    /// What `pack` makes of a constant, made once.
    pub(super) fn packed(
        &self,
        constant: &Rc<Tensor>,
        pack: impl FnOnce() -> Outcome<Vec<Tensor>>,
    ) -> Outcome<Vec<Tensor>> {
        let place = Rc::as_ptr(constant);
        if !self.packed.borrow().contains_key(&place) {
            let made = pack()?;
            self.packed.borrow_mut().insert(place, (Rc::clone(constant), made));
        }
        let packed = self.packed.borrow();
        let made = packed.get(&place).map(|(_, made)| made.iter().map(Tensor::shallow_clone).collect());
        Ok(made.unwrap_or_default())
    }
}

/// libtorch's type of such numbers, if tch knows it.
pub(super) fn kind(dtype: Dtype) -> Option<Kind> {
    Some(match dtype {
        Dtype::Float16 => Kind::Half,
        Dtype::Float32 => Kind::Float,
        Dtype::Float64 => Kind::Double,
        Dtype::Int8 => Kind::Int8,
        Dtype::Int16 => Kind::Int16,
        Dtype::Int32 => Kind::Int,
        Dtype::Int64 => Kind::Int64,
        Dtype::Uint8 => Kind::Uint8,
        Dtype::Bool => Kind::Bool,
        Dtype::Uint16 | Dtype::Uint32 | Dtype::Uint64 => return None,
    })
}

pub(super) fn dtype(tensor: &Tensor) -> Dtype {
    let found = Dtype::ALL.into_iter().find(|&dtype| kind(dtype) == Some(tensor.kind()));
    found.unwrap_or(Dtype::Float32)
}

pub(super) fn sizes(shape: &[usize]) -> Vec<i64> {
    shape.iter().map(|&size| size as i64).collect()
}

pub(super) fn shape(tensor: &Tensor) -> Vec<usize> {
    tensor.size().into_iter().map(|size| size.max(0) as usize).collect()
}

pub(super) fn upload(array: &Array) -> Result<Tensor, ProgramError> {
    let Some(kind) = kind(array.dtype) else {
        return Err(ProgramError::Unsupported(format!("tch has no tensors of {}", array.dtype)));
    };
    untraced(|| Tensor::f_from_data_size(&array.data, &sizes(&array.shape), kind)).map_err(failed)
}

/// A row of numbers that are known here.
pub(super) fn row<T: tch::kind::Element>(numbers: &[T]) -> Outcome<Tensor> {
    Ok(untraced(|| Tensor::f_from_slice(numbers))?)
}

pub(super) fn download(tensor: &Tensor) -> Result<Array, ProgramError> {
    let read = || {
        let tensor = tensor.f_contiguous()?;
        let mut data = vec![0; tensor.numel() * tensor.kind().elt_size_in_bytes()];
        tensor.f_copy_data_u8(&mut data, tensor.numel())?;
        Ok(data)
    };
    Array::new(dtype(tensor), shape(tensor), read().map_err(failed)?)
}

fn failed(error: TchError) -> ProgramError {
    ProgramError::Failed(reason(error))
}

impl Operations for Libtorch {
    type Tensor = Rc<Tensor>;

    fn upload(&self, array: &Array) -> Result<Rc<Tensor>, ProgramError> {
        upload(array).map(Rc::new)
    }

    fn download(&self, tensor: &Rc<Tensor>) -> Result<Array, ProgramError> {
        download(tensor)
    }

    fn shape(&self, tensor: &Rc<Tensor>) -> Vec<usize> {
        shape(tensor)
    }

    fn dtype(&self, tensor: &Rc<Tensor>) -> Dtype {
        dtype(tensor)
    }

    fn compute(&self, node: &Node, inputs: &Inputs<'_, Self>) -> Result<Vec<Rc<Tensor>>, ProgramError> {
        match (Call { libtorch: self, node, inputs }).outputs() {
            Ok(outputs) => Ok(outputs.into_iter().map(Rc::new).collect()),
            Err(Failure::Program(error)) => Err(error),
            Err(Failure::Torch(error)) => {
                let reason = reason(error);
                // What libtorch says of a type that a kernel of it lacks.
                if reason.contains("not implemented for") {
                    node.unsupported(&reason)
                } else {
                    node.failed(&reason)
                }
            }
        }
    }
}

/// A node with its inputs.
pub(super) struct Call<'a> {
    pub(super) libtorch: &'a Libtorch,
    pub(super) node: &'a Node,
    pub(super) inputs: &'a Inputs<'a, Libtorch>,
}

impl<'a> Call<'a> {
    pub(super) fn tensor(&self, place: usize) -> Outcome<&'a Rc<Tensor>> {
        Ok(self.inputs.tensor(place)?)
    }

    pub(super) fn optional(&self, place: usize) -> Outcome<Option<&'a Tensor>> {
        Ok(self.inputs.optional(place)?.map(Rc::as_ref))
    }

    pub(super) fn tensors(&self) -> Outcome<Vec<&'a Tensor>> {
        (0..self.inputs.len()).map(|place| Ok(self.tensor(place)?.as_ref())).collect()
    }

    pub(super) fn rank(&self, place: usize) -> Outcome<usize> {
        Ok(self.tensor(place)?.dim())
    }

    /// Numbers that older operators have as an attribute and newer ones as an input.
    pub(super) fn listed(&self, name: &str, place: usize) -> Outcome<Option<Vec<i64>>> {
        match self.node.ints(name) {
            Some(numbers) => Ok(Some(numbers.to_vec())),
            None => Ok(self.inputs.ints(place)?),
        }
    }

    pub(super) fn unsupported<T>(&self, why: &str) -> Outcome<T> {
        Ok(self.node.unsupported(why)?)
    }

    pub(super) fn failed<T>(&self, why: &str) -> Outcome<T> {
        Ok(self.node.failed(why)?)
    }

    fn float(&self, name: &str, default: f32) -> f64 {
        f64::from(self.node.float(name).unwrap_or(default))
    }

    fn outputs(&self) -> Outcome<Vec<Tensor>> {
        match self.node.operator.as_str() {
            "Split" => self.split(),
            "LSTM" => self.lstm(),
            "GRU" => self.gru(),
            "TopK" => self.top(),
            "DynamicQuantizeLinear" => self.quantise_by_range(),
            _ => Ok(vec![self.output()?]),
        }
    }

    fn output(&self) -> Outcome<Tensor> {
        match self.node.operator.as_str() {
            "Conv" => self.convolution(),
            "ConvTranspose" => self.transposed_convolution(),
            "Gemm" => self.gemm(),
            "MatMul" => self.product(),
            "Einsum" => self.einsum(),
            "MaxPool" => self.largest_pool(),
            "AveragePool" => self.average_pool(),
            "GlobalAveragePool" | "GlobalMaxPool" => self.global_pool(),
            "BatchNormalization" => self.batch_norm(),
            "LayerNormalization" => self.layer_norm(),
            "InstanceNormalization" => self.instance_norm(),
            "GroupNormalization" => self.group_norm(),
            "RMSNormalization" | "SimplifiedLayerNormalization" => self.rms_norm(),
            "LpNormalization" => self.unit_norm(),
            "Softmax" | "LogSoftmax" => self.softmax(),
            "Resize" | "Upsample" => self.resize(),
            "Gather" => self.gather(),
            "GatherElements" => self.gather_elements(),
            "GatherND" => self.gather_places(),
            "ScatterElements" | "Scatter" => self.scatter_elements(),
            "ScatterND" => self.scatter_places(),
            "OneHot" => self.one_hot(),
            "NonZero" => Ok(self.tensor(0)?.f_nonzero()?.f_tr()?),
            "Concat" => self.concat(),
            "Slice" => self.slice(),
            "Reshape" | "Flatten" | "Squeeze" | "Unsqueeze" => self.reshaped(),
            "Transpose" => self.transpose(),
            "Expand" => self.expand(),
            "Tile" => self.tile(),
            "Pad" => self.pad(),
            // Of use where a scale of 0 follows: the driver asks for one.
            "RandomNormalLike" => {
                let drawn = self.tensor(0)?.f_randn_like()?;
                Ok(drawn.f_mul_scalar(self.float("scale", 1.0))?.f_add_scalar(self.float("mean", 0.0))?)
            }
            "RandomUniformLike" => {
                let (low, high) = (self.float("low", 0.0), self.float("high", 1.0));
                Ok(self.tensor(0)?.f_rand_like()?.f_mul_scalar(high - low)?.f_add_scalar(low)?)
            }
            "Range" => self.range(),
            "ConstantOfShape" => self.filled(),
            "Trilu" => self.triangle(),
            "CumSum" => self.running_sum(),
            "DepthToSpace" | "SpaceToDepth" => self.depth_and_space(),
            "ArgMax" | "ArgMin" => self.place_of_largest(),
            "DequantizeLinear" => self.dequantise(),
            "QuantizeLinear" => self.quantise(),
            "MatMulInteger" => self.product_of_codes(),
            "ConvInteger" => self.convolution_of_codes(),
            "QLinearMatMul" => self.quantised_product(),
            "QLinearConv" => self.quantised_convolution(),
            name if name.starts_with("Reduce") => self.reduce(),
            _ => self.elementwise(),
        }
    }

    fn elementwise(&self) -> Outcome<Tensor> {
        match self.node.operator.as_str() {
            "Add" | "Sub" | "Mul" | "Div" => self.arithmetic(),
            "Sum" | "Mean" | "Min" | "Max" => self.of_several(),
            "Pow" => self.power(),
            "Mod" | "And" | "Or" | "Xor" | "Equal" | "Less" | "Greater" | "LessOrEqual"
            | "GreaterOrEqual" => self.of_two(),
            "Where" => Ok(self.tensor(1)?.f_where_self(self.tensor(0)?, self.tensor(2)?)?),
            "Clip" => self.clip(),
            "Cast" => self.cast(),
            "CastLike" => Ok(self.tensor(0)?.f_to_dtype(self.tensor(1)?.kind(), false, false)?),
            "PRelu" => self.prelu(),
            _ => self.of_one(),
        }
    }

    fn of_one(&self) -> Outcome<Tensor> {
        let x = self.tensor(0)?;
        Ok(match self.node.operator.as_str() {
            "Identity" | "Dropout" => x.shallow_clone(),
            "Abs" => x.f_abs()?,
            "Neg" => x.f_neg()?,
            "Exp" => x.f_exp()?,
            "Log" => x.f_log()?,
            "Sqrt" => x.f_sqrt()?,
            "Reciprocal" => x.f_reciprocal()?,
            "Floor" => x.f_floor()?,
            "Ceil" => x.f_ceil()?,
            "Round" => x.f_round()?,
            "Sign" => x.f_sign()?,
            "Sin" => x.f_sin()?,
            "Cos" => x.f_cos()?,
            "Tan" => x.f_tan()?,
            "Asin" => x.f_asin()?,
            "Acos" => x.f_acos()?,
            "Atan" => x.f_atan()?,
            "Sinh" => x.f_sinh()?,
            "Cosh" => x.f_cosh()?,
            "Asinh" => x.f_asinh()?,
            "Acosh" => x.f_acosh()?,
            "Atanh" => x.f_atanh()?,
            "Tanh" => x.f_tanh()?,
            "Erf" => x.f_erf()?,
            "Not" => x.f_logical_not()?,
            "IsNaN" => x.f_isnan()?,
            "IsInf" => x.f_isinf()?,
            "Sigmoid" => x.f_sigmoid()?,
            "Relu" => x.f_relu()?,
            "Softplus" => x.f_softplus()?,
            "Softsign" => x.f_div(&x.f_abs()?.f_add_scalar(1.0)?)?,
            "Mish" => x.f_mish()?,
            "HardSwish" => x.f_hardswish()?,
            "Gelu" | "com.microsoft::Gelu" => x.f_gelu(self.node.string("approximate").unwrap_or("none"))?,
            "com.microsoft::FastGelu" => match self.optional(1)? {
                Some(bias) => x.f_add(bias)?.f_gelu("tanh")?,
                None => x.f_gelu("tanh")?,
            },
            "com.microsoft::BiasGelu" => x.f_add(self.tensor(1)?)?.f_gelu("none")?,
            "com.microsoft::QuickGelu" => {
                x.f_mul(&x.f_mul_scalar(self.float("alpha", 1.702))?.f_sigmoid()?)?
            }
            "HardSigmoid" => {
                let (slope, middle) = (self.float("alpha", 0.2), self.float("beta", 0.5));
                if (slope - 1.0 / 6.0).abs() < 1e-6 && middle == 0.5 {
                    x.f_hardsigmoid()?
                } else {
                    x.f_mul_scalar(slope)?.f_add_scalar(middle)?.f_clamp(0.0, 1.0)?
                }
            }
            "LeakyRelu" => {
                let below = Tensor::f_full([1], self.float("alpha", 0.01), (x.kind(), Device::Cpu))?;
                x.f_prelu(&below)?
            }
            "ThresholdedRelu" => x.f_threshold(self.float("alpha", 1.0), 0.0)?,
            "Elu" if self.float("alpha", 1.0) == 1.0 => x.f_elu()?,
            "Elu" => {
                let below = x.f_clamp_max(0.0)?.f_expm1()?.f_mul_scalar(self.float("alpha", 1.0))?;
                x.f_clamp_min(0.0)?.f_add(&below)?
            }
            "Selu" => {
                let (alpha, gamma) = (self.float("alpha", 1.673_263_2), self.float("gamma", 1.050_701));
                let below = x.f_clamp_max(0.0)?.f_expm1()?.f_mul_scalar(alpha)?;
                x.f_clamp_min(0.0)?.f_add(&below)?.f_mul_scalar(gamma)?
            }
            "Celu" => {
                let alpha = self.float("alpha", 1.0);
                let below = x.f_clamp_max(0.0)?.f_div_scalar(alpha)?.f_expm1()?.f_mul_scalar(alpha)?;
                x.f_clamp_min(0.0)?.f_add(&below)?
            }
            _ => return self.unsupported("engine-tch has no function for this operator"),
        })
    }

    /// The number that an input is for every element of the other one, if it is a constant f32.
    fn scalar(&self, place: usize, other: usize) -> Option<f64> {
        let array = self.inputs.host(place).filter(|array| array.dtype == Dtype::Float32)?;
        let is_narrower = array.elements() == 1 && array.shape.len() <= self.rank(other).ok()?;
        let number = array.floats()?.first().copied()?;
        is_narrower.then_some(f64::from(number))
    }

    fn arithmetic(&self) -> Outcome<Tensor> {
        let operator = self.node.operator.as_str();
        // With a number in the place of a tensor libtorch need not broadcast.
        if let Some(number) = self.scalar(1, 0) {
            let x = self.tensor(0)?;
            return Ok(match operator {
                "Add" => x.f_add_scalar(number)?,
                "Sub" => x.f_add_scalar(-number)?,
                "Mul" => x.f_mul_scalar(number)?,
                _ => x.f_div_scalar(number)?,
            });
        }
        if let ("Add" | "Mul", Some(number)) = (operator, self.scalar(0, 1)) {
            let x = self.tensor(1)?;
            return Ok(if operator == "Add" { x.f_add_scalar(number)? } else { x.f_mul_scalar(number)? });
        }
        let (a, b) = (self.tensor(0)?, self.tensor(1)?);
        Ok(match operator {
            "Add" => a.f_add(b)?,
            "Sub" => a.f_sub(b)?,
            "Mul" => a.f_mul(b)?,
            _ if dtype(a).is_float() => a.f_div(b)?,
            _ => a.f_div_tensor_mode(b, "trunc")?,
        })
    }

    fn of_several(&self) -> Outcome<Tensor> {
        let mut result = self.tensor(0)?.shallow_clone();
        for place in 1..self.inputs.len() {
            let next = self.tensor(place)?;
            result = match self.node.operator.as_str() {
                "Min" => result.f_minimum(next)?,
                "Max" => result.f_maximum(next)?,
                _ => result.f_add(next)?,
            };
        }
        match self.node.operator.as_str() {
            "Mean" => Ok(result.f_div_scalar(self.inputs.len() as f64)?),
            _ => Ok(result),
        }
    }

    fn power(&self) -> Outcome<Tensor> {
        let x = self.tensor(0)?;
        let exponent =
            match self.inputs.host(1).filter(|array| array.elements() == 1 && array.shape.len() <= x.dim()) {
                Some(array) => array
                    .floats()
                    .or_else(|| Some(array.ints()?.iter().map(|&number| number as f32).collect())),
                None => None,
            };
        match exponent.as_deref() {
            Some([exponent]) if dtype(x).is_float() => Ok(x.f_pow_tensor_scalar(f64::from(*exponent))?),
            _ => Ok(x.f_pow(self.tensor(1)?)?.f_to_dtype(x.kind(), false, false)?),
        }
    }

    fn of_two(&self) -> Outcome<Tensor> {
        let (a, b) = (self.tensor(0)?, self.tensor(1)?);
        Ok(match self.node.operator.as_str() {
            "Mod" if self.node.int("fmod") == Some(1) => a.f_fmod_tensor(b)?,
            "Mod" => a.f_remainder_tensor(b)?,
            "And" => a.f_logical_and(b)?,
            "Or" => a.f_logical_or(b)?,
            "Xor" => a.f_logical_xor(b)?,
            "Equal" => a.f_eq_tensor(b)?,
            "Less" => a.f_lt_tensor(b)?,
            "Greater" => a.f_gt_tensor(b)?,
            "LessOrEqual" => a.f_le_tensor(b)?,
            _ => a.f_ge_tensor(b)?,
        })
    }

    fn clip(&self) -> Outcome<Tensor> {
        let x = self.tensor(0)?;
        let bound = |name: &str, place: usize| match self.node.float(name) {
            Some(number) => Some(f64::from(number)),
            None => self.inputs.host(place)?.floats()?.first().copied().map(f64::from),
        };
        let is_known = |place: usize| !self.inputs.has(place) || self.inputs.host(place).is_some();
        if dtype(x).is_float() && is_known(1) && is_known(2) {
            return Ok(match (bound("min", 1), bound("max", 2)) {
                (Some(least), Some(most)) => x.f_clamp(least, most)?,
                (Some(0.0), None) => x.f_relu()?,
                (Some(least), None) => x.f_clamp_min(least)?,
                (None, Some(most)) => x.f_clamp_max(most)?,
                (None, None) => x.shallow_clone(),
            });
        }
        match (self.optional(1)?, self.optional(2)?) {
            (None, None) => Ok(x.shallow_clone()),
            (least, most) => Ok(x.f_clamp_tensor(least, most)?),
        }
    }

    fn cast(&self) -> Outcome<Tensor> {
        let number = self.node.int("to").and_then(|number| i32::try_from(number).ok()).unwrap_or(0);
        let Some(kind) = onnx::program::dtype(number).and_then(kind) else {
            return self.unsupported(&format!("tch has no tensors of ONNX's type {number}"));
        };
        Ok(self.tensor(0)?.f_to_dtype(kind, false, false)?)
    }

    fn prelu(&self) -> Outcome<Tensor> {
        let (x, slope) = (self.tensor(0)?, self.tensor(1)?);
        let (size, slopes) = (x.size(), slope.size());
        // libtorch takes a slope for each channel, ONNX any that is broadcast.
        let channels = size.get(1).copied().unwrap_or(1);
        let is_by_channel = slopes.len() + 1 == size.len()
            && slopes.first() == Some(&channels)
            && slopes.iter().skip(1).all(|&size| size == 1);
        if slope.numel() == 1 || is_by_channel {
            return Ok(x.f_prelu(&slope.f_reshape([-1])?)?);
        }
        let below = x.f_mul(slope)?;
        Ok(x.f_where_self(&x.f_gt(0.0)?, &below)?)
    }
}
