//! A program with a framework.

use std::cell::{Cell, RefCell};
use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::rc::Rc;

use super::host::{self, LARGEST};
use super::{Array, Content, Inputs, Operations, Origin, Program, Result, Step, Value, failed};

/// Shapes of inputs for which a plan is kept.
const PLANS: usize = 64;

/// Operators whose outputs differ from run to run.
const DRAWN: [&str; 6] =
    ["RandomNormal", "RandomNormalLike", "RandomUniform", "RandomUniformLike", "Multinomial", "Bernoulli"];
/// Operators whose outputs have shapes that depend on the inputs' numbers.
const SHAPED_BY_NUMBERS: [&str; 4] = ["NonZero", "Unique", "Compress", "NonMaxSuppression"];

/// A program with a framework: the constants that it has uploaded, and for each set of input shapes the steps that are
/// left when all that follows from shapes alone is known.
pub struct Compiled<O: Operations> {
    program: Program,
    operations: O,
    constants: BTreeMap<usize, Value<O::Tensor>>,
    /// The bodies, without what follows from constants alone, once they have been entered.
    entered: Vec<Option<Rc<Entered>>>,
    plans: HashMap<Vec<Vec<usize>>, Rc<Plan<O::Tensor>>>,
}

/// The steps of a body, each with the values of this body that nothing names after it.
struct Entered {
    steps: Vec<(Rc<Step>, Vec<usize>)>,
    /// Outputs that are computed here, not around here.
    made: Vec<usize>,
}

struct Plan<T> {
    actions: Vec<Action>,
    known: HashMap<usize, Value<T>>,
    /// The node that reads numbers back, so that the plan is right only if it is followed node by node.
    reads_back: Option<String>,
}

enum Action {
    Compute(Rc<Step>),
    /// Copies the first value's handle to the second.
    Move(usize, usize),
    Drop(Vec<usize>),
}

/// Values with their places.
type Outputs<T> = Vec<(usize, Value<T>)>;

/// The values of a run, and what it notes down if it makes a plan.
struct Run<'a, T> {
    values: HashMap<usize, Value<T>>,
    plan: &'a Plan<T>,
    notes: Option<RefCell<Plan<T>>>,
}

impl<T> Run<'_, T> {
    fn note(&self, action: Action) {
        if let Some(notes) = &self.notes {
            notes.borrow_mut().actions.push(action);
        }
    }

    fn note_reading(&self, step: &Step) {
        if let Some(notes) = &self.notes {
            notes.borrow_mut().reads_back.get_or_insert_with(|| step.node.to_string());
        }
    }
}

impl<T> Plan<T> {
    fn empty() -> Plan<T> {
        Plan { actions: Vec::new(), known: HashMap::new(), reads_back: None }
    }
}

impl<O: Operations> Compiled<O> {
    pub fn new(mut program: Program, operations: O) -> Self {
        let constants = std::mem::take(&mut program.constants);
        let constants = constants.into_iter().map(|(place, array)| (place, Value::host(array, Origin::File)));
        let entered = program.bodies.iter().map(|_| None).collect();
        Compiled { constants: constants.collect(), program, operations, entered, plans: HashMap::new() }
    }

    pub fn operations(&self) -> &O {
        &self.operations
    }

    /// Outputs in the order of the graph's. The first run with new shapes also makes its plan.
    ///
    /// # Errors
    /// [`ProgramError::Unsupported`](super::ProgramError::Unsupported) of a node that the framework does not compute.
    pub fn run(&mut self, inputs: &[O::Tensor]) -> Result<Vec<O::Tensor>> {
        if inputs.len() != self.program.inputs.len() {
            return failed(format!("it takes {} inputs, not {}", self.program.inputs.len(), inputs.len()));
        }
        let shapes: Vec<Vec<usize>> = inputs.iter().map(|input| self.operations.shape(input)).collect();
        let mut values = HashMap::new();
        for (&place, input) in self.program.inputs.iter().zip(inputs) {
            let content = Content::Tensor(input.clone());
            values.insert(place, Value { content, origin: Origin::Numbers, has_fixed_shape: true });
        }
        if let Some(plan) = self.plans.get(&shapes) {
            let plan = Rc::clone(plan);
            let mut run = Run { values, plan: &plan, notes: None };
            self.follow(&plan, &mut run)?;
            return self.outputs(&run);
        }
        let empty = Plan::empty();
        let mut run = Run { values, plan: &empty, notes: Some(RefCell::new(Plan::empty())) };
        self.walk(0, &mut run, true)?;
        let Some(notes) = run.notes.take() else { return failed("a plan is lost") };
        let mut plan = notes.into_inner();
        let outputs = self.outputs(&run)?;
        self.prune(&mut plan);
        self.release();
        if self.plans.len() >= PLANS {
            self.plans.clear();
        }
        self.plans.insert(shapes, Rc::new(plan));
        Ok(outputs)
    }

    /// The node that reads numbers back from the framework in runs with inputs of these shapes, if one does: what such
    /// a run does then depends on the numbers of its inputs. `None` also before the first run.
    pub fn reads_back(&self, inputs: &[O::Tensor]) -> Option<&str> {
        let shapes: Vec<Vec<usize>> = inputs.iter().map(|input| self.operations.shape(input)).collect();
        self.plans.get(&shapes)?.reads_back.as_deref()
    }

    fn outputs(&self, run: &Run<'_, O::Tensor>) -> Result<Vec<O::Tensor>> {
        let mut outputs = Vec::new();
        for &place in &self.program.bodies[0].outputs {
            outputs.push(match self.value(run, place)?.content {
                Content::Tensor(tensor) => tensor,
                Content::Host(held) => self.operations.upload(&held.array)?,
            });
        }
        Ok(outputs)
    }

    fn value(&self, run: &Run<'_, O::Tensor>, place: usize) -> Result<Value<O::Tensor>> {
        let value = run.values.get(&place).or_else(|| run.plan.known.get(&place));
        match value.or_else(|| self.constants.get(&place)) {
            Some(value) => Ok(value.clone()),
            None => failed("a node names a value that is not computed"),
        }
    }

    /// Computes the steps of a body in order. `is_planned`: it is entered in every run with these shapes.
    fn walk(&mut self, body: usize, run: &mut Run<'_, O::Tensor>, is_planned: bool) -> Result<()> {
        let entered = self.enter(body)?;
        for (step, last) in &entered.steps {
            match step.branches {
                Some(branches) => self.branch(step, branches, run, is_planned)?,
                None => {
                    let outputs = self.compute(step, run)?;
                    let is_known = outputs.iter().all(|(_, value)| value.origin < Origin::Numbers);
                    if is_planned && !is_known {
                        run.note(Action::Compute(Rc::clone(step)));
                    }
                    if let (true, true, Some(notes)) = (is_planned, is_known, &run.notes) {
                        notes.borrow_mut().known.extend(outputs.iter().cloned());
                    }
                    run.values.extend(outputs);
                }
            }
            last.iter().for_each(|place| drop(run.values.remove(place)));
            if is_planned && !last.is_empty() {
                run.note(Action::Drop(last.clone()));
            }
        }
        Ok(())
    }

    fn follow(&mut self, plan: &Plan<O::Tensor>, run: &mut Run<'_, O::Tensor>) -> Result<()> {
        for action in &plan.actions {
            match action {
                Action::Compute(step) => match step.branches {
                    Some(branches) => self.branch(step, branches, run, false)?,
                    None => {
                        let outputs = self.compute(step, run)?;
                        run.values.extend(outputs);
                    }
                },
                Action::Move(from, to) => {
                    let value = self.value(run, *from)?;
                    run.values.insert(*to, value);
                }
                Action::Drop(places) => places.iter().for_each(|place| drop(run.values.remove(place))),
            }
        }
        Ok(())
    }

    /// Computes the side of an `If` that its condition chooses.
    fn branch(
        &mut self,
        step: &Rc<Step>,
        branches: [usize; 2],
        run: &mut Run<'_, O::Tensor>,
        is_planned: bool,
    ) -> Result<()> {
        let Some(&Some(condition)) = step.inputs.first() else { return failed("an If has no condition") };
        let condition = self.value(run, condition)?;
        let array = match &condition.content {
            Content::Host(held) => held.array.clone(),
            Content::Tensor(tensor) => self.operations.download(tensor)?,
        };
        let Some(&[chosen]) = array.ints().as_deref() else {
            return step.node.failed("its condition is not one truth value");
        };
        let body = branches[usize::from(chosen == 0)];
        let is_constant = condition.origin < Origin::Numbers;
        if !is_constant && is_planned {
            run.note(Action::Compute(Rc::clone(step)));
            run.note_reading(step);
        }
        self.walk(body, run, is_planned && is_constant)?;
        let results = self.program.bodies[body].outputs.clone();
        for (&from, to) in results.iter().zip(&step.outputs) {
            let Some(to) = *to else { continue };
            let mut value = self.value(run, from)?;
            if !is_constant {
                value.origin = Origin::Numbers;
                value.has_fixed_shape = false;
            } else if is_planned {
                match &run.notes {
                    Some(notes) if value.origin < Origin::Numbers => {
                        notes.borrow_mut().known.insert(to, value.clone());
                    }
                    _ => run.note(Action::Move(from, to)),
                }
            }
            run.values.insert(to, value);
        }
        let made = self.enter(body)?.made.clone();
        made.iter().for_each(|place| drop(run.values.remove(place)));
        if is_planned && is_constant {
            run.note(Action::Drop(made));
        }
        Ok(())
    }

    fn compute(&self, step: &Step, run: &Run<'_, O::Tensor>) -> Result<Outputs<O::Tensor>> {
        let mut values = Vec::new();
        for place in &step.inputs {
            values.push(match place {
                Some(place) => Some(self.value(run, *place)?),
                None => None,
            });
        }
        let (outputs, reads_back) = self.evaluate(step, values)?;
        if reads_back {
            run.note_reading(step);
        }
        Ok(outputs)
    }

    /// A step's outputs, and whether it has read numbers back or gives shapes that depend on numbers.
    fn evaluate(
        &self,
        step: &Step,
        values: Vec<Option<Value<O::Tensor>>>,
    ) -> Result<(Outputs<O::Tensor>, bool)> {
        let node = &step.node;
        let mut origin = Origin::File;
        let mut has_fixed_shape = true;
        for value in values.iter().flatten() {
            origin = origin.max(value.origin);
            has_fixed_shape &= value.has_fixed_shape;
        }
        if DRAWN.contains(&node.operator.as_str()) {
            origin = Origin::Numbers;
        }
        let mut outputs = Vec::new();
        if let ("Shape" | "Size", Some(Some(value))) = (node.operator.as_str(), values.first()) {
            let shape = match &value.content {
                Content::Host(held) => held.array.shape.clone(),
                Content::Tensor(tensor) => self.operations.shape(tensor),
            };
            let origin = match (value.origin, value.has_fixed_shape) {
                (Origin::File, _) => Origin::File,
                (_, true) => Origin::Shapes,
                (_, false) => Origin::Numbers,
            };
            let place = step.outputs.first().copied().flatten();
            outputs.extend(place.map(|place| (place, Value::host(host::shape(node, &shape), origin))));
            return Ok((outputs, false));
        }
        let arrays: Option<Vec<Option<&Array>>> = values
            .iter()
            .map(|value| match value {
                None => Some(None),
                Some(value) => value.array().map(Some),
            })
            .collect();
        if let Some(arrays) = arrays
            && let Some(arrays) = host::evaluate(node, &arrays)?
        {
            for (place, array) in step.outputs.iter().zip(arrays) {
                outputs.extend(place.map(|place| (place, Value::host(array, origin))));
            }
            return Ok((outputs, false));
        }
        let inputs = Inputs { operations: &self.operations, node, values, reads_back: Cell::new(false) };
        let tensors = self.operations.compute(node, &inputs)?;
        let is_shaped = origin == Origin::Numbers && SHAPED_BY_NUMBERS.contains(&node.operator.as_str());
        let reads_back = inputs.reads_back.get() || is_shaped;
        has_fixed_shape &= !reads_back;
        let count = tensors.len();
        for (place, tensor) in step.outputs.iter().zip(tensors) {
            let Some(place) = *place else { continue };
            outputs.push((place, Value { content: Content::Tensor(tensor), origin, has_fixed_shape }));
        }
        if step.outputs.iter().skip(count).any(Option::is_some) {
            return node.unsupported(&format!("its output {count} is not computed"));
        }
        Ok((outputs, reads_back))
    }

    /// A body without the steps that follow from constants alone, which are computed here once.
    fn enter(&mut self, body: usize) -> Result<Rc<Entered>> {
        if let Some(entered) = &self.entered[body] {
            return Ok(Rc::clone(entered));
        }
        let outputs = self.program.bodies[body].outputs.clone();
        let mut steps: Vec<Step> = Vec::new();
        for step in std::mem::take(&mut self.program.bodies[body].steps) {
            let values: Option<Vec<Option<Value<O::Tensor>>>> = step
                .inputs
                .iter()
                .map(|place| match place {
                    None => Some(None),
                    Some(place) => self.constants.get(place).cloned().map(Some),
                })
                .collect();
            let is_drawn = DRAWN.contains(&step.node.operator.as_str());
            // What fails here fails again in its place, if that is ever reached.
            if let (Some(values), None, false) = (values, step.branches, is_drawn)
                && let Ok((outputs, _)) = self.evaluate(&step, values)
            {
                self.constants.extend(outputs);
                continue;
            }
            steps.push(step);
        }
        if body == 0 {
            let mut used: BTreeSet<usize> = outputs.iter().copied().collect();
            steps.iter().for_each(|step| used.extend(step.uses()));
            self.constants.retain(|place, _| used.contains(place));
        }
        let mut named: BTreeSet<usize> = outputs.iter().copied().collect();
        let mut own: BTreeSet<usize> =
            steps.iter().flat_map(|step| step.outputs.iter().flatten().copied()).collect();
        if body == 0 {
            own.extend(&self.program.inputs);
        }
        let mut with_last = Vec::new();
        for step in steps.into_iter().rev() {
            let mut last = Vec::new();
            for place in step.uses().chain(step.outputs.iter().flatten().copied()) {
                if own.contains(&place) && named.insert(place) {
                    last.push(place);
                }
            }
            with_last.push((Rc::new(step), last));
        }
        with_last.reverse();
        let made = outputs.into_iter().filter(|place| own.contains(place)).collect();
        let entered = Rc::new(Entered { steps: with_last, made });
        self.entered[body] = Some(Rc::clone(&entered));
        Ok(entered)
    }

    /// Forgets known values that only other known values took.
    fn prune(&self, plan: &mut Plan<O::Tensor>) {
        let mut used: BTreeSet<usize> = self.program.bodies[0].outputs.iter().copied().collect();
        for action in &plan.actions {
            match action {
                Action::Compute(step) => used.extend(step.uses()),
                Action::Move(from, _) => drop(used.insert(*from)),
                Action::Drop(_) => {}
            }
        }
        plan.known.retain(|place, _| used.contains(place));
    }

    /// Gives up the host's copies of large constants that the framework has.
    fn release(&mut self) {
        for value in self.constants.values_mut() {
            let Content::Host(held) = &value.content else { continue };
            if held.array.elements() > LARGEST
                && let Some(tensor) = held.uploaded.get()
            {
                value.content = Content::Tensor(tensor.clone());
            }
        }
    }
}
