//! Which of candle's functions computes which operator.

use bundle::Dtype;
use candle_core::Tensor;
use candle_core::op::CmpOp;
use onnx::program::{Inputs, Node};

use super::{Candle, Stop, Typed};

pub(super) type Made<T> = Result<T, Stop>;

/// A node that is being computed.
pub(super) struct Call<'a> {
    pub(super) node: &'a Node,
    pub(super) inputs: &'a Inputs<'a, Candle>,
}

impl Call<'_> {
    pub(super) fn compute(&self) -> Made<Vec<Typed>> {
        if let Some(made) = self.elementwise()? {
            return Ok(vec![made]);
        }
        let made = match self.node.operator.as_str() {
            "Split" => return self.split(),
            "TopK" => return self.top(),
            "LSTM" => return self.lstm(),
            "GRU" => return self.gru(),
            "DynamicQuantizeLinear" => return self.quantised_to_range(),
            "Conv" => self.conv()?,
            "ConvTranspose" => self.conv_transpose()?,
            "MaxPool" => self.max_pool()?,
            "AveragePool" => self.average_pool()?,
            "MatMul" => self.matmul()?,
            "MatMulInteger" => return self.matmul_of_integers().map(|made| vec![made]),
            "ConvInteger" => return self.conv_of_integers().map(|made| vec![made]),
            "Gemm" => self.gemm()?,
            "Einsum" => self.einsum()?,
            "Softmax" | "LogSoftmax" => self.softmax()?,
            "LayerNormalization" => self.layer_norm()?,
            "RMSNormalization" | "SimplifiedLayerNormalization" => self.rms_norm()?,
            "InstanceNormalization" => self.group_norm(None)?,
            "GroupNormalization" => self.group_norm(self.node.int("num_groups"))?,
            "BatchNormalization" => self.batch_norm()?,
            "Reshape" | "Flatten" | "Squeeze" | "Unsqueeze" => self.reshaped()?,
            "Transpose" => self.transposed()?,
            "Concat" => self.concat()?,
            "Slice" => self.slice()?,
            "Expand" => self.expand()?,
            "Tile" => self.tile()?,
            "Pad" => self.pad()?,
            "Trilu" => self.triangle()?,
            "DepthToSpace" | "SpaceToDepth" => self.depth_and_space()?,
            "Resize" | "Upsample" => self.resize()?,
            "Gather" => self.gather()?,
            "GatherElements" => self.gather_elements()?,
            "GatherND" => self.gather_nd()?,
            "ScatterElements" => self.scatter_elements()?,
            "ScatterND" => self.scatter_nd()?,
            "CumSum" => self.cumulative_sum()?,
            "ArgMax" | "ArgMin" => return Ok(vec![self.best_place()?]),
            "NonZero" => return Ok(vec![self.nonzero()?]),
            // Of use where a scale of 0 follows: the driver asks for one.
            "RandomNormalLike" => {
                self.input(0)?.randn_like(self.float("mean", 0.0), self.float("scale", 1.0))?
            }
            "RandomUniformLike" => {
                self.input(0)?.rand_like(self.float("low", 0.0), self.float("high", 1.0))?
            }
            "Range" => self.range()?,
            "ConstantOfShape" => return Ok(vec![self.filled()?]),
            "OneHot" => return Ok(vec![self.one_hot()?]),
            "DequantizeLinear" => return Ok(vec![self.dequantised()?]),
            "QuantizeLinear" => return Ok(vec![self.quantised()?]),
            "GlobalAveragePool" | "GlobalMaxPool" => self.global_pool()?,
            other if other.starts_with("Reduce") => self.reduce()?,
            _ => return Ok(self.node.unsupported("this operator is not computed here")?),
        };
        Ok(vec![self.typed(made)?])
    }

    /// A tensor of the type of the first input.
    pub(super) fn typed(&self, tensor: Tensor) -> Made<Typed> {
        Ok(Typed { tensor, dtype: self.inputs.tensor(0)?.dtype })
    }

    pub(super) fn input(&self, place: usize) -> Made<&Tensor> {
        Ok(&self.inputs.tensor(place)?.tensor)
    }

    pub(super) fn optional(&self, place: usize) -> Made<Option<&Tensor>> {
        Ok(self.inputs.optional(place)?.map(|typed| &typed.tensor))
    }

    /// The number of a constant that has one element.
    pub(super) fn number(&self, place: usize) -> Option<f64> {
        let array = self.inputs.host(place).filter(|array| array.elements() == 1)?;
        let float = || array.floats().and_then(|floats| floats.first().map(|&float| f64::from(float)));
        array.ints().and_then(|ints| ints.first().map(|&int| int as f64)).or_else(float)
    }

    /// Axes of the attribute `axes`, or of an input since the operator takes them there.
    pub(super) fn given_axes(&self, place: usize) -> Made<Option<Vec<i64>>> {
        match self.node.ints("axes") {
            Some(axes) => Ok(Some(axes.to_vec())),
            None => Ok(self.inputs.ints(place)?),
        }
    }

    pub(super) fn float(&self, name: &str, default: f32) -> f64 {
        f64::from(self.node.float(name).unwrap_or(default))
    }
}

/// The type and comparison of operators that give truth values.
pub(super) fn comparison(operator: &str) -> Option<CmpOp> {
    Some(match operator {
        "Equal" => CmpOp::Eq,
        "Less" => CmpOp::Lt,
        "LessOrEqual" => CmpOp::Le,
        "Greater" => CmpOp::Gt,
        "GreaterOrEqual" => CmpOp::Ge,
        _ => return None,
    })
}

pub(super) fn truth(tensor: Tensor) -> Typed {
    Typed { tensor, dtype: Dtype::Bool }
}
