//! Mixtures of experts: each gets the rows that chose it.

use bundle::{LayerNames, ModelConfig, SWIGLU_ALPHA, SWIGLU_LIMIT};
use tch::{Kind, TchError, Tensor};
use worker::engine::Result;

use crate::layout::Layout;
use crate::linear::Linear;
use crate::reader::Reader;

/// A feed-forward block of MLPs of one of the implementations of a layer.
pub(crate) trait Mlp: Sized {
    /// `clamped`: with the activation of [`bundle::Experts::clamped`].
    fn forward(&self, x: &Tensor, clamped: bool) -> Result<Tensor, TchError>;
}

/// The feed-forward block of a layer.
pub(crate) enum Feed<M> {
    Mlp(M),
    Experts(Experts<M>),
}

pub(crate) struct Experts<M> {
    router: Linear,
    each: Vec<M>,
    /// For all rows, with the layer whose sigmoid says how much of it is added.
    shared: Option<(M, Linear)>,
    of: bundle::Experts,
}

impl<M: Mlp> Feed<M> {
    /// `read` reads an MLP with these names of `gate_up` and `down`.
    pub(crate) fn read(
        reader: &Reader,
        config: &ModelConfig,
        (index, names, layout): (usize, &LayerNames, Layout),
        read: impl Fn(bundle::Mlp, [&bundle::LinearNames; 2]) -> Result<M>,
    ) -> Result<Feed<M>> {
        let mlp = |mlp| read(mlp, [&names.gate_up, &names.down]);
        let (Some(of), Some(named)) = (config.experts(index), &names.experts) else {
            return Ok(Feed::Mlp(mlp(config.mlp(index))?));
        };
        let each = named.each.iter().map(|[gate_up, down]| read(of.each, [gate_up, down]));
        let shared = match (of.shared, &named.shared_gate) {
            (Some(shared), Some(gate)) => Some((mlp(shared)?, Linear::unquantised(reader, gate, layout)?)),
            _ => None,
        };
        Ok(Feed::Experts(Experts {
            router: Linear::unquantised(reader, &named.router, layout)?,
            each: each.collect::<Result<_>>()?,
            shared,
            of,
        }))
    }

    pub(crate) fn forward(&self, x: &Tensor) -> Result<Tensor, TchError> {
        match self {
            Feed::Mlp(mlp) => mlp.forward(x, false),
            Feed::Experts(experts) => experts.forward(x),
        }
    }
}

impl<M: Mlp> Experts<M> {
    /// `x` is `[rows, hidden]`.
    fn forward(&self, x: &Tensor) -> Result<Tensor, TchError> {
        let (rows, hidden) = x.size2()?;
        let top = self.of.top as i64;
        let shares = self.router.forward(x)?.f_softmax(-1, Kind::Float)?;
        let (mut shares, chosen) = shares.f_topk(top, -1, true, true)?;
        if self.of.normalised {
            shares = shares.f_div(&shares.f_sum_dim_intlist(-1i64, true, Kind::Float)?)?;
        }
        let chosen = Vec::<i64>::try_from(chosen.f_view(-1)?)?;
        let mut outputs = Vec::new();
        // Where the output of a row's expert is among those of all experts.
        let mut places = vec![0; chosen.len()];
        let mut next = 0;
        for (expert, mlp) in self.each.iter().enumerate() {
            let own: Vec<usize> = (0..chosen.len()).filter(|&at| chosen[at] == expert as i64).collect();
            if own.is_empty() {
                continue;
            }
            for &at in &own {
                places[at] = next;
                next += 1;
            }
            let of_rows: Vec<i64> = own.iter().map(|&at| at as i64 / top).collect();
            let own = match rows {
                1 => x.shallow_clone(),
                _ => x.f_index_select(0, &Tensor::f_from_slice(&of_rows)?.f_to_device(x.device())?)?,
            };
            outputs.push(mlp.forward(&own, self.of.clamped)?);
        }
        let places = Tensor::f_from_slice(&places)?.f_to_device(x.device())?;
        let outputs = Tensor::f_cat(&outputs, 0)?.f_index_select(0, &places)?.f_view([rows, top, hidden])?;
        let shares = shares.f_to_kind(x.kind())?.f_unsqueeze(1)?;
        let sum = shares.f_matmul(&outputs)?.f_view([rows, hidden])?;
        let Some((mlp, gate)) = &self.shared else { return Ok(sum) };
        sum.f_add(&mlp.forward(x, false)?.f_mul(&gate.forward(x)?.f_sigmoid()?)?)
    }
}

/// What gpt-oss's experts have in place of act(gate) · up.
pub(crate) fn clamped(gate: &Tensor, up: &Tensor) -> Result<Tensor, TchError> {
    let gate = gate.f_clamp_max(SWIGLU_LIMIT)?;
    let up = up.f_clamp(-SWIGLU_LIMIT, SWIGLU_LIMIT)?.f_add_scalar(1.0)?;
    gate.f_mul(&gate.f_mul_scalar(SWIGLU_ALPHA)?.f_sigmoid()?)?.f_mul(&up)
}
