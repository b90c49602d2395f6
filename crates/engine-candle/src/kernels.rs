//! Whose code computes what lies between the products: candle's operations, or loops of this crate.

use bundle::{Activation, HeadActivation};
use candle_core::{Result, Tensor};
use worker::engine::{self, EngineError, Settings};

use crate::elements::{change_f32, with_f32};
use crate::math;
use crate::parallel::{each_element, for_each_chunk};

/// A column with the framework's bare name has candle compute everything that depends on a weight or an activation.
/// With loops of its own it shows what the framework's products could reach, as the column `candle+`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Kernels {
    Candle,
    Own,
}

impl Kernels {
    /// The option `kernels`.
    pub(crate) fn chosen(settings: &Settings) -> engine::Result<Kernels> {
        match settings.options.get("kernels").map(String::as_str) {
            None => Ok(Kernels::Candle),
            Some("own") => Ok(Kernels::Own),
            Some(other) => Err(EngineError::Input(format!("option kernels is {other:?}, not own"))),
        }
    }

    /// What computes between the products, human-readable. `attention`: how it goes about a text or a cache.
    pub(crate) fn described(self, attention: &str) -> [String; 2] {
        match self {
            Kernels::Candle => [
                format!("attention by candle Tensor::matmul and candle-nn softmax_last_dim{attention}"),
                "candle-nn norms and rotation, candle Tensor operations for activations and sums".into(),
            ],
            Kernels::Own => [
                format!(
                    "attention by loops of the engine's own (decode) or candle Tensor::matmul (prefill){attention}"
                ),
                "loops of the engine's own for norms, rotation, softmax, activations and sums".into(),
            ],
        }
    }

    /// The activation of `x`, `[rows, width]`. The own loops change `x` itself.
    pub(crate) fn activate(self, x: &Tensor, activation: HeadActivation) -> Result<Tensor> {
        if self == Kernels::Candle {
            return each_element([x], |[x]| match activation {
                HeadActivation::Tanh => x.tanh(),
                HeadActivation::Of(Activation::Silu) => x.silu(),
                HeadActivation::Of(Activation::GeluTanh) => x.gelu(),
                HeadActivation::Of(Activation::GeluErf) => x.gelu_erf(),
                HeadActivation::Of(Activation::Relu) => x.relu(),
            });
        }
        let width = x.dim(1)?;
        change_f32(x, |x| {
            for_each_chunk(x, width, |_, row| match activation {
                HeadActivation::Tanh => row.iter_mut().for_each(|x| *x = math::tanh(*x)),
                HeadActivation::Of(activation) => math::activate(row, activation),
            });
        })?;
        Ok(x.clone())
    }

    /// act(gate) · up, of which the own loops write over `gate`. Both are `[rows, width]`.
    pub(crate) fn gated(self, gate: &Tensor, up: &Tensor, activation: Activation) -> Result<Tensor> {
        let gate = self.activate(gate, HeadActivation::Of(activation))?;
        if self == Kernels::Candle {
            return each_element([&gate, up], |[gate, up]| gate * up);
        }
        let width = gate.dim(1)?;
        with_f32(up, |up| {
            change_f32(&gate, |gate| {
                for_each_chunk(gate, width, |row, gate| {
                    gate.iter_mut().zip(&up[row * width..]).for_each(|(gate, up)| *gate *= up);
                });
            })
        })??;
        Ok(gate)
    }

    /// x · multiplier, where there is one.
    pub(crate) fn times(self, x: Tensor, multiplier: Option<f64>) -> Result<Tensor> {
        let Some(multiplier) = multiplier else { return Ok(x) };
        if self == Kernels::Candle {
            return x * multiplier;
        }
        let width = x.dim(1)?;
        change_f32(&x, |x| {
            for_each_chunk(x, width, |_, row| row.iter_mut().for_each(|x| *x *= multiplier as f32));
        })?;
        Ok(x)
    }

    /// bound · tanh(x / bound), where there is a bound.
    pub(crate) fn capped(self, x: Tensor, bound: Option<f64>) -> Result<Tensor> {
        let Some(bound) = bound else { return Ok(x) };
        if self == Kernels::Candle {
            return each_element([&(x / bound)?], |[x]| x.tanh())? * bound;
        }
        let width = x.dim(1)?;
        change_f32(&x, |x| for_each_chunk(x, width, |_, row| math::cap(row, bound as f32)))?;
        Ok(x)
    }

    /// x + bias, of which the own loops write over `x`, `[rows, width]`.
    pub(crate) fn with_bias(self, x: Tensor, bias: &Tensor) -> Result<Tensor> {
        if self == Kernels::Candle {
            return each_element([&x, &bias.broadcast_as(x.shape())?], |[x, bias]| x + bias);
        }
        let width = x.dim(1)?;
        with_f32(bias, |bias| change_f32(&x, |x| for_each_chunk(x, width, |_, x| math::add(x, bias))))??;
        Ok(x)
    }

    /// x + y, of which the own loops write over `x`. Both are `[rows, width]`.
    pub(crate) fn sum(self, x: Tensor, y: &Tensor) -> Result<Tensor> {
        if self == Kernels::Candle {
            return each_element([&x, y], |[x, y]| x + y);
        }
        let width = x.dim(1)?;
        with_f32(y, |y| {
            change_f32(&x, |x| for_each_chunk(x, width, |row, x| math::add(x, &y[row * width..][..width])))
        })??;
        Ok(x)
    }
}
