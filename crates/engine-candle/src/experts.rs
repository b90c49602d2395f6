//! Mixtures of experts by operations of candle, on any of its devices.

use bundle::{Experts, LayerNames, LinearNames, ModelConfig, SWIGLU_ALPHA, SWIGLU_LIMIT};
use candle_core::{D, DType, Module, Result, Tensor};
use candle_nn::ops;
use worker::engine;

/// What computes besides the products of each expert, for people.
pub(crate) const KERNELS: &str = "experts: softmax_last_dim, arg_sort_last_dim, index_select and a sum";

/// An MLP of one of the decoders.
pub(crate) trait Mlp {
    /// `clamped`: with the activation of [`Experts::clamped`].
    fn forward(&self, x: &Tensor, clamped: bool) -> Result<Tensor>;
}

/// The feed-forward block of a layer, of a decoder's own MLPs and linear layers.
#[derive(Debug)]
pub(crate) enum Feed<M, L> {
    Mlp(M),
    /// Each expert gets the rows that chose it.
    Experts {
        router: L,
        each: Vec<M>,
        /// For all rows, with the layer whose sigmoid says how much of it is added.
        shared: Option<(M, L)>,
        of: Experts,
    },
}

impl<M: Mlp, L: Module> Feed<M, L> {
    pub(crate) fn read(
        config: &ModelConfig,
        (index, names): (usize, &LayerNames),
        mlp: impl Fn(bundle::Mlp, [&LinearNames; 2]) -> engine::Result<M>,
        linear: impl Fn(&LinearNames) -> engine::Result<L>,
    ) -> engine::Result<Feed<M, L>> {
        let common = |of| mlp(of, [&names.gate_up, &names.down]);
        let (Some(of), Some(named)) = (config.experts(index), &names.experts) else {
            return Ok(Feed::Mlp(common(config.mlp(index))?));
        };
        let each = named.each.iter().map(|[gate_up, down]| mlp(of.each, [gate_up, down]));
        let shared = match (of.shared, &named.shared_gate) {
            (Some(shared), Some(gate)) => Some((common(shared)?, linear(gate)?)),
            _ => None,
        };
        let each = each.collect::<std::result::Result<_, _>>()?;
        Ok(Feed::Experts { router: linear(&named.router)?, each, shared, of })
    }

    pub(crate) fn mlps(&self) -> impl Iterator<Item = &M> {
        let (each, one) = match self {
            Feed::Mlp(mlp) => (&[][..], Some(mlp)),
            Feed::Experts { each, shared, .. } => (&each[..], shared.as_ref().map(|(mlp, _)| mlp)),
        };
        each.iter().chain(one)
    }

    pub(crate) fn forward(&self, x: &Tensor) -> Result<Tensor> {
        let (router, each, shared, of) = match self {
            Feed::Mlp(mlp) => return mlp.forward(x, false),
            Feed::Experts { router, each, shared, of } => (router, each, shared, of),
        };
        let (chosen, shares) = chosen(&router.forward(x)?, of)?;
        let y = mixed(x, (&chosen, &shares), |expert, rows| each[expert].forward(rows, of.clamped))?;
        let Some((mlp, gate)) = shared else { return Ok(y) };
        y + mlp.forward(x, false)?.broadcast_mul(&ops::sigmoid(&gate.forward(x)?)?)?
    }
}

/// From the router's logits, `[rows, experts]`: the experts of each row, and what each one's output is multiplied by,
/// `[rows, top]`, in f32.
fn chosen(logits: &Tensor, experts: &Experts) -> Result<(Vec<Vec<u32>>, Tensor)> {
    let shares = ops::softmax_last_dim(&logits.to_dtype(DType::F32)?)?;
    let order = shares.arg_sort_last_dim(false)?.narrow(1, 0, experts.top)?.contiguous()?;
    let mut shares = shares.gather(&order, 1)?;
    if experts.normalised {
        shares = shares.broadcast_div(&shares.sum_keepdim(D::Minus1)?)?;
    }
    Ok((order.to_vec2()?, shares))
}

/// The sum over each row's experts of its share times what `compute` makes of the rows of `x` that chose the expert.
fn mixed(
    x: &Tensor,
    (chosen, shares): (&[Vec<u32>], &Tensor),
    compute: impl Fn(usize, &Tensor) -> Result<Tensor>,
) -> Result<Tensor> {
    let (rows, top) = shares.dims2()?;
    let count = chosen.iter().flatten().max().map_or(0, |&last| last as usize + 1);
    let mut rows_of = vec![Vec::new(); count];
    // Where the output of a row's expert is among those of all experts.
    let mut places_of = vec![Vec::new(); count];
    for (row, experts) in chosen.iter().enumerate() {
        for (slot, &expert) in experts.iter().enumerate() {
            rows_of[expert as usize].push(row as u32);
            places_of[expert as usize].push(row * top + slot);
        }
    }
    let mut places = vec![0u32; rows * top];
    let (mut outputs, mut next) = (Vec::new(), 0);
    for (expert, (own, at)) in rows_of.into_iter().zip(places_of).enumerate() {
        if own.is_empty() {
            continue;
        }
        for place in at {
            places[place] = next;
            next += 1;
        }
        let own = if rows == 1 { x.clone() } else { x.index_select(&Tensor::new(own, x.device())?, 0)? };
        outputs.push(compute(expert, &own)?);
    }
    let outputs = Tensor::cat(&outputs, 0)?.index_select(&Tensor::new(places, x.device())?, 0)?;
    let outputs = outputs.reshape((rows, top, outputs.dim(1)?))?;
    outputs.broadcast_mul(&shares.to_dtype(x.dtype())?.unsqueeze(2)?)?.sum(1)
}

/// What gpt-oss's experts have in place of act(gate) · up ([`Experts::clamped`]).
pub(crate) fn clamped(gate: &Tensor, up: &Tensor) -> Result<Tensor> {
    let gate = gate.minimum(SWIGLU_LIMIT)?;
    let up = (up.clamp(-SWIGLU_LIMIT, SWIGLU_LIMIT)? + 1.0)?;
    gate.mul(&ops::sigmoid(&(&gate * SWIGLU_ALPHA)?)?)? * up
}
