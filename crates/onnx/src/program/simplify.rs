//! What every runtime does with a file while it loads it: drops nodes that do nothing, folds normalisations into the
//! convolutions before them, and names the longer operators that exporters have taken apart.

use std::collections::{BTreeMap, BTreeSet, HashMap};

use bundle::Dtype;

use super::{Array, Attribute, Body, Node, Program, Step};

impl Program {
    pub(super) fn simplify(&mut self) {
        self.drop_identities();
        for body in 0..self.bodies.len() {
            let mut uses = self.uses();
            self.fold_normalisations(body, &mut uses);
            self.recognise(body, &uses, layer_norm);
            for pattern in [gelu, hard_swish] {
                let uses = self.uses();
                self.recognise(body, &uses, pattern);
            }
        }
        self.capture();
        self.drop_unused();
    }

    /// How often each value is named.
    fn uses(&self) -> Vec<usize> {
        let mut uses = vec![0; self.values];
        for body in &self.bodies {
            let inputs = body.steps.iter().flat_map(|step| step.inputs.iter().flatten());
            inputs.chain(&body.outputs).for_each(|&value| uses[value] += 1);
        }
        uses
    }

    /// Drops `Identity` and the `Dropout` of inference.
    fn drop_identities(&mut self) {
        let constants = &self.constants;
        let mut same: HashMap<usize, usize> = HashMap::new();
        // Bodies of branches come before the ones that hold them, but their names mean values from outside.
        for body in &self.bodies {
            for step in &body.steps {
                let unused = |place: usize| step.outputs.get(place).copied().flatten().is_none();
                let is_same = match step.node.operator.as_str() {
                    "Identity" => true,
                    "Dropout" => {
                        let trains = match step.inputs.get(2).copied().flatten() {
                            None => false,
                            Some(value) => constants.get(&value).is_none_or(|array| array.data != [0]),
                        };
                        step.node.opset >= 7 && unused(1) && !trains
                    }
                    _ => false,
                };
                if let (true, Some(&Some(from)), Some(&Some(to))) =
                    (is_same, step.inputs.first(), step.outputs.first())
                {
                    same.insert(to, from);
                }
            }
        }
        // A value is computed before its copies, so this ends.
        let source = |value: &mut usize| {
            while let Some(&from) = same.get(value) {
                *value = from;
            }
        };
        for body in &mut self.bodies {
            body.steps.retain(|step| !step.outputs.iter().flatten().any(|output| same.contains_key(output)));
            for step in &mut body.steps {
                step.inputs.iter_mut().flatten().for_each(source);
            }
            body.outputs.iter_mut().for_each(source);
        }
    }

    /// Folds `BatchNormalization` of constants, and the sum with a constant for each channel, into the `Conv` that it
    /// alone uses.
    fn fold_normalisations(&mut self, body: usize, uses: &mut Vec<usize>) {
        let mut makers: HashMap<usize, usize> = HashMap::new();
        let mut dropped: BTreeSet<usize> = BTreeSet::new();
        for place in 0..self.bodies[body].steps.len() {
            let step = &self.bodies[body].steps[place];
            let conv = |place: usize| {
                let input = step.inputs.get(place).copied().flatten()?;
                makers.get(&input).copied().filter(|_| uses[input] == 1)
            };
            let folded = match step.node.operator.as_str() {
                "BatchNormalization" => conv(0).and_then(|maker| {
                    let (weight, bias) = self.folded(&self.bodies[body].steps[maker], step)?;
                    Some((maker, Some(weight), bias))
                }),
                "Add" => [0, 1].into_iter().find_map(|place| {
                    let maker = conv(place)?;
                    let bias = self.with_bias(&self.bodies[body].steps[maker], step, 1 - place)?;
                    Some((maker, None, bias))
                }),
                _ => None,
            };
            if let Some((maker, weight, bias)) = folded {
                let output = step.outputs[0];
                let mut kept = |array| {
                    self.constants.insert(self.values, array);
                    self.values += 1;
                    uses.push(1);
                    self.values - 1
                };
                let (weight, bias) = (weight.map(&mut kept), kept(bias));
                let conv = &mut self.bodies[body].steps[maker];
                if weight.is_some() {
                    conv.inputs[1] = weight;
                }
                conv.inputs.truncate(2);
                conv.inputs.push(Some(bias));
                conv.outputs = vec![output];
                dropped.insert(place);
                continue;
            }
            if step.node.operator == "Conv"
                && let [Some(output)] = step.outputs[..]
            {
                makers.insert(output, place);
            }
        }
        keep(&mut self.bodies[body].steps, |place| !dropped.contains(&place));
    }

    /// The bias of the convolution with the constant in it that is added behind it, at that place of the sum.
    fn with_bias(&self, conv: &Step, sum: &Step, place: usize) -> Option<Array> {
        let constant = |value: Option<&Option<usize>>| {
            let value = value.copied().flatten()?;
            self.constants.get(&value).filter(|array| array.dtype == Dtype::Float32)
        };
        let weight = constant(conv.inputs.get(1))?;
        let channels = *weight.shape.first()?;
        let added = constant(sum.inputs.get(place))?;
        // One number for each channel, and as many axes as the output has, but for that of the batch.
        let rank = weight.shape.len();
        let (outer, inner) = added.shape.split_at_checked(added.shape.len().checked_sub(rank - 1)?)?;
        let is_of_channels = inner.first() == Some(&channels) && inner.iter().skip(1).all(|&size| size == 1);
        if !is_of_channels || outer.iter().any(|&size| size != 1) || outer.len() > 1 || sum.node.opset < 7 {
            return None;
        }
        let mut numbers = added.floats()?;
        if conv.inputs.get(2).copied().flatten().is_some() {
            let bias = constant(conv.inputs.get(2))?.floats()?;
            numbers.iter_mut().zip(bias).for_each(|(number, bias)| *number += bias);
        }
        Some(Array::from_floats(&[channels], &numbers))
    }

    /// The weight and bias of the convolution with the normalisation in them.
    fn folded(&self, conv: &Step, norm: &Step) -> Option<(Array, Array)> {
        let constant = |step: &Step, place: usize| {
            let value = step.inputs.get(place).copied().flatten()?;
            self.constants.get(&value).filter(|array| array.dtype == Dtype::Float32)
        };
        if norm.outputs.iter().skip(1).any(Option::is_some)
            || norm.outputs.first().copied().flatten().is_none()
            || norm.node.int("training_mode").unwrap_or(0) != 0
            || norm.node.opset < 9
        {
            return None;
        }
        let weight = constant(conv, 1)?;
        let channels = *weight.shape.first()?;
        let bias = match conv.inputs.get(2).copied().flatten() {
            None => vec![0.0; channels],
            Some(_) => constant(conv, 2)?.floats()?,
        };
        let mut numbers = Vec::new();
        for place in 1..5 {
            numbers.push(constant(norm, place)?.floats()?);
        }
        let [scale, shift, mean, variance] = numbers.try_into().ok()?;
        if [&bias, &scale, &shift, &mean, &variance].iter().any(|numbers| numbers.len() != channels) {
            return None;
        }
        let epsilon = norm.node.float("epsilon").unwrap_or(1e-5);
        let factors: Vec<f32> = scale
            .iter()
            .zip(&variance)
            .map(|(scale, variance)| scale / (variance + epsilon).sqrt())
            .collect();
        let mut weights = weight.floats()?;
        let per_channel = weights.len().checked_div(channels)?;
        for (row, factor) in weights.chunks_mut(per_channel.max(1)).zip(&factors) {
            row.iter_mut().for_each(|weight| *weight *= factor);
        }
        let biases: Vec<f32> = (0..channels).map(|c| (bias[c] - mean[c]) * factors[c] + shift[c]).collect();
        Some((Array::from_floats(&weight.shape, &weights), Array::from_floats(&[channels], &biases)))
    }

    /// Puts one node in the place of those that a pattern finds.
    fn recognise(&mut self, body: usize, uses: &[usize], pattern: fn(&Found<'_>, usize) -> Option<Match>) {
        let body = &mut self.bodies[body];
        let found =
            Found { constants: &self.constants, body, uses, makers: makers(body), users: users(body) };
        let mut replaced: BTreeMap<usize, Step> = BTreeMap::new();
        let mut dropped: BTreeSet<usize> = BTreeSet::new();
        for place in 0..found.body.steps.len() {
            if let Some(found) = pattern(&found, place)
                && found.places.iter().all(|place| !dropped.contains(place) && !replaced.contains_key(place))
                && let Some((&last, others)) = found.places.split_last()
            {
                dropped.extend(others);
                replaced.insert(last, found.step);
            }
        }
        for (place, step) in replaced {
            body.steps[place] = step;
        }
        keep(&mut body.steps, |place| !dropped.contains(&place));
    }

    /// Notes what the bodies of each `If` name, those within them included.
    fn capture(&mut self) {
        // A body comes after the bodies within it, except the first, which comes last here.
        for body in (1..self.bodies.len()).chain([0]) {
            for place in 0..self.bodies[body].steps.len() {
                let Some(branches) = self.bodies[body].steps[place].branches else { continue };
                let mut captured = BTreeSet::new();
                for branch in branches {
                    let branch = &self.bodies[branch];
                    captured.extend(branch.outputs.iter().copied());
                    branch.steps.iter().for_each(|step| captured.extend(step.uses()));
                }
                self.bodies[body].steps[place].captured = captured.into_iter().collect();
            }
        }
    }

    /// Drops nodes and constants that no output needs.
    fn drop_unused(&mut self) {
        let mut needed = vec![false; self.values];
        for body in (1..self.bodies.len()).chain([0]) {
            self.bodies[body].outputs.iter().for_each(|&value| needed[value] = true);
            let steps = &mut self.bodies[body].steps;
            let mut kept = vec![false; steps.len()];
            for (place, step) in steps.iter().enumerate().rev() {
                kept[place] = step.outputs.iter().flatten().any(|&value| needed[value]);
                if kept[place] {
                    step.uses().for_each(|value| needed[value] = true);
                }
            }
            keep(steps, |place| kept[place]);
        }
        self.constants.retain(|&value, _| needed[value]);
    }
}

fn keep(steps: &mut Vec<Step>, is_kept: impl Fn(usize) -> bool) {
    let mut place = 0;
    steps.retain(|_| {
        place += 1;
        is_kept(place - 1)
    });
}

fn makers(body: &Body) -> HashMap<usize, usize> {
    let steps = body.steps.iter().enumerate();
    steps.flat_map(|(place, step)| step.outputs.iter().flatten().map(move |&value| (value, place))).collect()
}

/// The last step that uses a value.
fn users(body: &Body) -> HashMap<usize, usize> {
    let steps = body.steps.iter().enumerate();
    steps.flat_map(|(place, step)| step.inputs.iter().flatten().map(move |&value| (value, place))).collect()
}

/// A body with what patterns ask about it.
struct Found<'a> {
    constants: &'a BTreeMap<usize, Array>,
    body: &'a Body,
    uses: &'a [usize],
    makers: HashMap<usize, usize>,
    users: HashMap<usize, usize>,
}

/// The steps of a pattern, the last of which gives its output, and the one for them.
struct Match {
    places: Vec<usize>,
    step: Step,
}

impl Found<'_> {
    fn is(&self, place: usize, operator: &str) -> bool {
        self.body.steps[place].node.operator == operator
    }

    fn input(&self, place: usize, input: usize) -> Option<usize> {
        self.body.steps[place].inputs.get(input).copied().flatten()
    }

    fn output(&self, place: usize) -> Option<usize> {
        if let [Some(output)] = self.body.steps[place].outputs[..] { Some(output) } else { None }
    }

    fn maker(&self, value: usize, operator: &str) -> Option<usize> {
        self.makers.get(&value).copied().filter(|&place| self.is(place, operator))
    }

    /// The step that alone uses the output of another.
    fn only_user(&self, place: usize) -> Option<usize> {
        let output = self.output(place).filter(|&output| self.uses[output] == 1)?;
        self.users.get(&output).copied()
    }

    /// The same if it has that operator, with its other input.
    fn only_user_with(&self, place: usize, operator: &str) -> Option<(usize, usize)> {
        let user = self.only_user(place).filter(|&user| self.is(user, operator))?;
        let output = self.output(place)?;
        let [first, second] = [self.input(user, 0)?, self.input(user, 1)?];
        Some((user, if first == output { second } else { first }))
    }

    /// The number that a constant of one element is.
    fn number(&self, value: usize) -> Option<f32> {
        let array = self.constants.get(&value).filter(|array| array.elements() == 1)?;
        array.floats()?.first().copied()
    }

    fn is_number(&self, value: usize, expected: f32) -> bool {
        self.number(value).is_some_and(|number| (number - expected).abs() <= 1e-3 * expected.abs())
    }

    /// Whether it takes the mean along the last axis, and keeps it.
    fn is_mean(&self, place: usize) -> bool {
        let step = &self.body.steps[place];
        let given = self.input(place, 1).and_then(|value| self.constants.get(&value)).and_then(Array::ints);
        let axes = step.node.ints("axes").map(<[i64]>::to_vec).or(given);
        self.is(place, "ReduceMean") && axes == Some(vec![-1]) && step.node.int("keepdims").unwrap_or(1) == 1
    }

    /// A constant with one axis.
    fn is_row(&self, value: usize) -> bool {
        self.constants.get(&value).is_some_and(|array| array.shape.len() == 1)
    }
}

/// (x − mean) ÷ √(mean of its squares + ε), times a row, plus a row.
fn layer_norm(found: &Found<'_>, first: usize) -> Option<Match> {
    if !found.is_mean(first) {
        return None;
    }
    let x = found.input(first, 0)?;
    let mean = found.output(first)?;
    // Some exporters compute the difference twice.
    let is_difference =
        |place: usize| found.input(place, 0) == Some(x) && found.input(place, 1) == Some(mean);
    let steps = 0..found.body.steps.len().min(first + 20);
    let differences: Vec<usize> =
        steps.skip(first + 1).filter(|&place| found.is(place, "Sub") && is_difference(place)).collect();
    let outputs: Vec<usize> = differences.iter().filter_map(|&place| found.output(place)).collect();
    if differences.is_empty() || found.uses[mean] != differences.len() || outputs.len() != differences.len() {
        return None;
    }
    let square = (first + 1..found.body.steps.len().min(first + 20)).find(|&place| {
        let [base, power] = [0, 1].map(|input| found.input(place, input));
        let of_difference = base.is_some_and(|base| outputs.contains(&base));
        of_difference
            && (found.is(place, "Pow") && power.is_some_and(|power| found.is_number(power, 2.0))
                || found.is(place, "Mul") && base == power)
    })?;
    let variance = found.only_user(square).filter(|&place| found.is_mean(place))?;
    let (sum, epsilon) = found.only_user_with(variance, "Add")?;
    let epsilon = found.number(epsilon)?;
    let root = found.only_user(sum).filter(|&place| found.is(place, "Sqrt"))?;
    let quotient = found.only_user(root).filter(|&place| found.is(place, "Div"))?;
    let numerator = found.input(quotient, 0)?;
    // Nothing else may take a difference.
    let inner: usize = outputs.iter().map(|&output| found.uses[output]).sum();
    let squared = if found.is(square, "Mul") { 2 } else { 1 };
    if !outputs.contains(&numerator) || inner != squared + 1 {
        return None;
    }
    let (scaled, scale) = found.only_user_with(quotient, "Mul")?;
    if !found.is_row(scale) {
        return None;
    }
    let mut places = [vec![first], differences, vec![square, variance, sum, root, quotient, scaled]].concat();
    let mut inputs = vec![Some(x), Some(scale)];
    if let Some((shifted, shift)) = found.only_user_with(scaled, "Add")
        && found.is_row(shift)
    {
        places.push(shifted);
        inputs.push(Some(shift));
    }
    let name = &found.body.steps[first].node.name;
    let node = Node::new(name, "LayerNormalization", 17).with("axis", Attribute::Int(-1));
    matched(found, places, node.with("epsilon", Attribute::Float(epsilon)), inputs)
}

/// x × ½ × (1 + erf(x ÷ √2)), in any order of the factors.
fn gelu(found: &Found<'_>, place: usize) -> Option<Match> {
    if !found.is(place, "Erf") {
        return None;
    }
    let argument = found.input(place, 0).filter(|&value| found.uses[value] == 1)?;
    let root = std::f32::consts::SQRT_2;
    let (scaled, x) = match found.maker(argument, "Div") {
        Some(division) if found.is_number(found.input(division, 1)?, root) => {
            (division, found.input(division, 0)?)
        }
        Some(_) => return None,
        None => {
            let product = found.maker(argument, "Mul")?;
            let [left, right] = [found.input(product, 0)?, found.input(product, 1)?];
            match [left, right].map(|value| found.is_number(value, 1.0 / root)) {
                [false, true] => (product, left),
                [true, false] => (product, right),
                _ => return None,
            }
        }
    };
    let (sum, one) = found.only_user_with(place, "Add")?;
    let (product, other) = found.only_user_with(sum, "Mul")?;
    let mut places = vec![scaled, place, sum];
    if !found.is_number(one, 1.0) {
        return None;
    }
    if other != x && !found.is_number(other, 0.5) {
        // x × ½ is computed before.
        let half = found.maker(other, "Mul").filter(|_| found.uses[other] == 1)?;
        let both = [found.input(half, 0)?, found.input(half, 1)?];
        if !both.contains(&x) || !both.iter().any(|&value| found.is_number(value, 0.5)) {
            return None;
        }
        places.extend([half, product]);
    } else {
        let (last, factor) = found.only_user_with(product, "Mul")?;
        let is_rest = if other == x { found.is_number(factor, 0.5) } else { factor == x };
        if !is_rest {
            return None;
        }
        places.extend([product, last]);
    }
    let name = &found.body.steps[place].node.name;
    let node = Node::new(name, "Gelu", 20).with("approximate", Attribute::String("none".into()));
    matched(found, places, node, vec![Some(x)])
}

/// x × clip(x + 3, 0, 6) ÷ 6.
fn hard_swish(found: &Found<'_>, place: usize) -> Option<Match> {
    if !found.is(place, "Clip") {
        return None;
    }
    let node = &found.body.steps[place].node;
    let bound = |name: &str, input: usize| match node.float(name) {
        Some(number) => Some(number),
        None => found.number(found.input(place, input)?),
    };
    let sum =
        found.maker(found.input(place, 0)?, "Add").filter(|&sum| found.only_user(sum) == Some(place))?;
    let (mut x, mut three) = (found.input(sum, 0)?, found.input(sum, 1)?);
    if found.number(x).is_some() {
        std::mem::swap(&mut x, &mut three);
    }
    let (product, other) = found.only_user_with(place, "Mul")?;
    let quotient = found.only_user(product)?;
    let last = found.input(quotient, 1).filter(|_| found.input(quotient, 0) == found.output(product))?;
    let is_sixth = found.is(quotient, "Div") && found.is_number(last, 6.0)
        || found.is(quotient, "Mul") && found.is_number(last, 1.0 / 6.0);
    let is_clipped = bound("min", 1) == Some(0.0) && bound("max", 2) == Some(6.0);
    if other != x || !found.is_number(three, 3.0) || !is_clipped || !is_sixth {
        return None;
    }
    let node = Node::new(&node.name, "HardSwish", 14);
    matched(found, vec![sum, place, product, quotient], node, vec![Some(x)])
}

fn matched(found: &Found<'_>, places: Vec<usize>, node: Node, inputs: Vec<Option<usize>>) -> Option<Match> {
    let outputs = vec![Some(found.output(*places.last()?)?)];
    Some(Match { step: Step { node, inputs, outputs, branches: None, captured: Vec::new() }, places })
}
