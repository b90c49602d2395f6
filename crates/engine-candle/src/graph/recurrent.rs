//! LSTM and GRU: candle's products, sigmoids and tangents, step by step.

use candle_core::{Device, Result, Tensor};
use candle_nn::ops;

use super::Typed;
use super::operators::{Call, Made};
use super::products::product;

/// One direction of a layer.
struct Direction {
    is_reverse: bool,
    /// `[steps, batch, gates · hidden]`: what the inputs add to the gates, with their bias.
    inputs: Tensor,
    /// `[hidden, gates · hidden]`, a view.
    recurrence: Tensor,
    /// `[gates · hidden]`
    bias: Option<Tensor>,
}

impl Call<'_> {
    /// The directions of a layer with so many gates, its hidden size and what the operator begins with at that place.
    fn directions(&self, gates: usize) -> Made<Vec<Direction>> {
        let node = self.node;
        let has_attributes = ["clip", "activation_alpha", "activation_beta"];
        let is_plain =
            has_attributes.iter().all(|name| node.float(name).is_none() && node.floats(name).is_none());
        if !is_plain || node.int("layout").unwrap_or(0) != 0 || node.int("input_forget").unwrap_or(0) != 0 {
            return Ok(node.unsupported("its clip, layout or activations are not the usual ones")?);
        }
        if self.inputs.has(4) {
            return Ok(node.unsupported("sequences of different lengths are not computed here")?);
        }
        let (x, weight, recurrence) = (self.input(0)?, self.input(1)?, self.input(2)?);
        let (steps, batch, width) = x.dims3()?;
        let (count, rows, _) = weight.dims3()?;
        let half = rows / gates * gates;
        let x = x.contiguous()?.reshape((steps * batch, width))?;
        let mut all = Vec::new();
        for direction in 0..count {
            let mut inputs = product(&x, &weight.get(direction)?.t()?, None)?;
            let mut bias = None;
            if let Some(both) = self.optional(3)? {
                let both = both.get(direction)?;
                inputs = inputs.broadcast_add(&both.narrow(0, 0, half)?)?;
                bias = Some(both.narrow(0, half, half)?);
            }
            let is_reverse = direction == 1 || node.string("direction") == Some("reverse");
            let inputs = inputs.reshape((steps, batch, rows))?;
            all.push(Direction { is_reverse, inputs, recurrence: recurrence.get(direction)?.t()?, bias });
        }
        Ok(all)
    }

    /// What a direction begins with: an input, or zeros.
    fn state(&self, place: usize, direction: usize, (batch, hidden): (usize, usize)) -> Made<Tensor> {
        Ok(match self.optional(place)? {
            Some(state) => state.get(direction)?,
            None => Tensor::zeros((batch, hidden), self.input(0)?.dtype(), &Device::Cpu)?,
        })
    }

    pub(super) fn lstm(&self) -> Made<Vec<Typed>> {
        if self.inputs.has(7) || self.node.string("activations").is_some() {
            return Ok(self.node.unsupported("an LSTM with peepholes is not computed here")?);
        }
        let (mut all, mut last, mut cells) = (Vec::new(), Vec::new(), Vec::new());
        for (place, direction) in self.directions(4)?.iter().enumerate() {
            let (_, batch, rows) = direction.inputs.dims3()?;
            let hidden = rows / 4;
            let mut cell = self.state(6, place, (batch, hidden))?;
            let begin = self.state(5, place, (batch, hidden))?;
            // The two biases are one sum.
            let inputs = match &direction.bias {
                Some(bias) => direction.inputs.broadcast_add(bias)?,
                None => direction.inputs.clone(),
            };
            let (outputs, end) = direction.walk(&inputs, begin, |inputs, state| {
                let gates = (inputs + state.matmul(&direction.recurrence)?)?;
                let gate = |place: usize| gates.narrow(1, place * hidden, hidden);
                // Input, output and forget gates are side by side.
                let open = ops::sigmoid(&gates.narrow(1, 0, 3 * hidden)?)?;
                let open = |place: usize| open.narrow(1, place * hidden, hidden);
                cell = ((open(2)? * &cell)? + (open(0)? * gate(3)?.tanh()?)?)?;
                open(1)? * cell.tanh()?
            })?;
            all.push(outputs);
            last.push(end);
            cells.push(cell);
        }
        self.layers([Tensor::stack(&all, 1)?, Tensor::stack(&last, 0)?, Tensor::stack(&cells, 0)?])
    }

    pub(super) fn gru(&self) -> Made<Vec<Typed>> {
        if self.node.string("activations").is_some() {
            return Ok(self.node.unsupported("its activations are not the usual ones")?);
        }
        let resets_before = self.node.int("linear_before_reset").unwrap_or(0) == 0;
        let (mut all, mut last) = (Vec::new(), Vec::new());
        for (place, direction) in self.directions(3)?.iter().enumerate() {
            let (_, batch, rows) = direction.inputs.dims3()?;
            let hidden = rows / 3;
            let begin = self.state(5, place, (batch, hidden))?;
            let weight = &direction.recurrence;
            let plus = |x: Tensor, first: usize, count: usize| match &direction.bias {
                Some(bias) => x.broadcast_add(&bias.narrow(0, first * hidden, count * hidden)?),
                None => Ok(x),
            };
            let (outputs, end) = direction.walk(&direction.inputs, begin, |inputs, state| {
                let product = |first: usize, count: usize, state: &Tensor| {
                    plus(state.matmul(&weight.narrow(1, first * hidden, count * hidden)?)?, first, count)
                };
                let gates = ops::sigmoid(&(inputs.narrow(1, 0, 2 * hidden)? + product(0, 2, state)?)?)?;
                let (update, reset) = (gates.narrow(1, 0, hidden)?, gates.narrow(1, hidden, hidden)?);
                let from_state = match resets_before {
                    true => product(2, 1, &(reset * state)?)?,
                    false => (reset * product(2, 1, state)?)?,
                };
                let new = (inputs.narrow(1, 2 * hidden, hidden)? + from_state)?.tanh()?;
                &new + (update * (state - &new)?)?
            })?;
            all.push(outputs);
            last.push(end);
        }
        self.layers([Tensor::stack(&all, 1)?, Tensor::stack(&last, 0)?])
    }

    fn layers<const N: usize>(&self, tensors: [Tensor; N]) -> Made<Vec<Typed>> {
        tensors.into_iter().map(|tensor| self.typed(tensor)).collect()
    }
}

impl Direction {
    /// The state after each step, `[steps, batch, hidden]`, and after the last.
    fn walk(
        &self,
        inputs: &Tensor,
        mut state: Tensor,
        mut step: impl FnMut(&Tensor, &Tensor) -> Result<Tensor>,
    ) -> Result<(Tensor, Tensor)> {
        let steps = inputs.dim(0)?;
        let mut all = Vec::with_capacity(steps);
        for place in 0..steps {
            let place = if self.is_reverse { steps - 1 - place } else { place };
            state = step(&inputs.get(place)?, &state)?;
            all.push(state.clone());
        }
        if self.is_reverse {
            all.reverse();
        }
        Ok((Tensor::stack(&all, 0)?, state))
    }
}
