//! An ONNX file: each request is a run of it, from prepared inputs to outputs in host memory, or a sequence of runs of
//! which each is fed with state of the one before.

use std::path::Path;

use bundle::Dtype;
use half::f16;
use protocol::{Call, Fed, GraphWork, Input, Output, ParityTask, ROTATED, Values};

use super::served::{Callers, Requests};
use super::{Part, Request, Serving, Workload};
use crate::ServeError;
use crate::clock::Pace;
use crate::engine::{EngineError, InferenceEngine, Result, Tensor};

pub(crate) struct Running<'a, E> {
    work: &'a GraphWork,
    callers: Callers<'a, E>,
    pace: Pace,
    /// The inputs of the runs of the request under way that are still to come, the next one last.
    coming: Vec<Vec<Tensor>>,
    /// The outputs of its last run, and before them those of all others.
    last: Vec<Tensor>,
    outputs: Vec<Tensor>,
}

impl<'a, E: InferenceEngine> Running<'a, E> {
    pub(crate) fn new(work: &'a GraphWork, pace: Pace, serving: Serving<'a, E>) -> Running<'a, E> {
        Running {
            work,
            callers: Callers::new(serving),
            pace,
            coming: Vec::new(),
            last: Vec::new(),
            outputs: Vec::new(),
        }
    }

    /// The inputs of every set of a case, with drawn values that follow from `seed`.
    fn sets(
        &self,
        types: &[(String, Dtype)],
        (case, rotated): (usize, bool),
        seed: u64,
    ) -> Result<Vec<Vec<Tensor>>, ServeError> {
        let case = &self.work.cases[case];
        if !case.inputs.iter().map(|feed| &feed.name).eq(types.iter().map(|(name, _)| name)) {
            return Err(ServeError::Job(
                "a run has a tensor for each input of the graph, in its order".into(),
            ));
        }
        let mut sets = vec![Vec::with_capacity(types.len()); case.sets];
        for (place, (feed, (_, dtype))) in case.inputs.iter().zip(types).enumerate() {
            let elements = Tensor::elements(&feed.shape);
            let file = match &feed.values {
                Values::File(path) => {
                    let mut data = read(path, *dtype, (elements, case.sets))?;
                    if rotated && data.len() > elements * dtype.bytes() {
                        rotate(&mut data, *dtype, of_place(seed, place));
                    }
                    Some(data)
                }
                Values::Drawn { .. } => None,
            };
            for (number, set) in sets.iter_mut().enumerate() {
                let is_fed = number > 0 && case.state.iter().any(|fed| fed.input == feed.name);
                let data = match (&feed.values, &file) {
                    // The run before gives it.
                    _ if is_fed => Vec::new(),
                    (Values::Drawn { low, high }, _) => {
                        drawn(*dtype, elements, (*low, *high), of_place(of_set(seed, number), place))
                    }
                    (_, Some(file)) => {
                        let bytes = elements * dtype.bytes();
                        let start = if file.len() > bytes { number * bytes } else { 0 };
                        let mut data = file[start..start + bytes].to_vec();
                        if rotated && file.len() == bytes {
                            rotate(&mut data, *dtype, of_place(of_set(seed, number), place));
                        }
                        data
                    }
                    (Values::File(_), None) => Vec::new(),
                };
                set.push(Tensor { name: feed.name.clone(), dtype: *dtype, shape: feed.shape.clone(), data });
            }
        }
        Ok(sets)
    }
}

/// Puts the outputs of a run where the next one reads them.
fn hand_over(outputs: &[Tensor], state: &[Fed], next: &mut [Tensor]) -> Result<()> {
    for Fed { output, input } in state {
        let from = outputs.iter().find(|tensor| tensor.name == *output);
        let to = next.iter_mut().find(|tensor| tensor.name == *input);
        let (Some(from), Some(to)) = (from, to) else {
            return Err(EngineError::Input(format!("no output {output} that is fed to an input {input}")));
        };
        if from.dtype != to.dtype {
            let (ours, theirs) = (from.dtype, to.dtype);
            return Err(EngineError::Input(format!("{output} is of {ours}, and {input} takes {theirs}")));
        }
        to.shape.clone_from(&from.shape);
        to.data.clone_from(&from.data);
    }
    Ok(())
}

/// Sets of inputs that callers have run.
struct Runs {
    sets: Vec<Vec<Tensor>>,
    pace: Pace,
}

impl<E: InferenceEngine> Requests<E> for Runs {
    type Answer = Vec<Tensor>;

    fn count(&self) -> usize {
        self.sets.len()
    }

    fn compute(&self, engine: &mut E, requests: &[usize]) -> Result<Vec<Vec<Tensor>>> {
        let sets: Vec<&[Tensor]> = requests.iter().map(|&set| self.sets[set].as_slice()).collect();
        let engine = engine.graph()?;
        let mut run = |inputs: &[Tensor]| {
            engine.feed(inputs)?;
            self.pace.keep(|| engine.run())?;
            engine.outputs()
        };
        match sets[..] {
            [set] => Ok(vec![run(set)?]),
            _ => parted(run(&joined(&sets))?, sets.len()),
        }
    }
}

/// The inputs of several runs as those of one: each is joined to the others along its first dimension.
fn joined(sets: &[&[Tensor]]) -> Vec<Tensor> {
    let of_input = |(place, first): (usize, &Tensor)| {
        let data: Vec<u8> = sets.iter().flat_map(|set| &set[place].data).copied().collect();
        let mut shape = first.shape.clone();
        if let Some(batch) = shape.first_mut() {
            *batch *= sets.len();
        }
        Tensor { name: first.name.clone(), dtype: first.dtype, shape, data }
    };
    sets.first().into_iter().flat_map(|first| first.iter()).enumerate().map(of_input).collect()
}

/// The outputs of each of so many runs that were one.
fn parted(outputs: Vec<Tensor>, runs: usize) -> Result<Vec<Vec<Tensor>>> {
    let undivided =
        |output: &&Tensor| output.shape.first().is_none_or(|&batch| batch == 0 || batch % runs != 0);
    if let Some(output) = outputs.iter().find(undivided) {
        let (name, shape) = (&output.name, &output.shape);
        return Err(EngineError::Unsupported(format!(
            "{runs} requests in one run give an output {name:?} of shape {shape:?}, which has no part for each: serve them \
             with shared or pool:K"
        )));
    }
    let part = |output: &Tensor, run: usize| {
        let bytes = output.data.len() / runs;
        let mut shape = output.shape.clone();
        shape[0] /= runs;
        let data = output.data[run * bytes..(run + 1) * bytes].to_vec();
        Tensor { name: output.name.clone(), dtype: output.dtype, shape, data }
    };
    Ok((0..runs).map(|run| outputs.iter().map(|output| part(output, run)).collect()).collect())
}

impl<E: InferenceEngine> Workload<E> for Running<'_, E> {
    fn cases(&self) -> usize {
        self.work.cases.len()
    }

    fn marks(&self) -> usize {
        match self.callers.load() {
            Some(_) => 1,
            None => self.work.cases.iter().map(|case| case.sets).max().unwrap_or(1),
        }
    }

    fn check(&self, _: usize, input: &Input, _: Part) -> Result<(), ServeError> {
        match input {
            Input::Seed(_) => Ok(()),
            _ => Err(ServeError::Job("a request that runs a graph may be given a seed alone".into())),
        }
    }

    fn begin(&mut self, engine: &mut E, case: usize, input: Option<Input>) -> Result<Request, ServeError> {
        let (seed, is_asked) = match input {
            Some(Input::Seed(seed)) => (seed, true),
            _ => (self.work.cases[case].seed, false),
        };
        let graph = engine.graph()?.graph();
        let types: Vec<(String, Dtype)> =
            graph.inputs.iter().map(|input| (input.name.clone(), input.dtype)).collect();
        let rotated = is_asked || self.work.cases[case].rotated;
        let mut sets = self.sets(&types, (case, rotated), seed)?;
        self.outputs.clear();
        self.last.clear();
        if let Some(load) = self.callers.load() {
            let runs = (Runs { sets, pace: self.pace }, load);
            let seed = std::iter::once(seed);
            let (request, outputs) = self.callers.turn(engine, runs, (case, is_asked), seed)?;
            self.outputs = outputs.concat();
            return Ok(request);
        }
        let runs = sets.len();
        sets.reverse();
        self.coming = sets;
        let Some(first) = self.coming.pop() else {
            return Err(ServeError::Job("a case has at least one set of inputs".into()));
        };
        let engine = engine.graph()?;
        engine.feed(&first)?;
        let mut request = Request::start(case, Vec::with_capacity(runs));
        self.pace.keep(|| engine.run())?;
        request.mark();
        if self.coming.is_empty() {
            self.last = engine.outputs()?;
        }
        self.outputs.reserve(self.coming.len() * engine.graph().outputs.len());
        Ok(request)
    }

    /// Runs what follows in a sequence. Handing its state over is part of a run: programs read the outputs of one and
    /// feed them to the next, too.
    fn advance(
        &mut self,
        engine: &mut E,
        request: &mut Request,
        (more, _): (usize, Option<Input>),
    ) -> Result<(), ServeError> {
        let engine = engine.graph()?;
        let state = &self.work.cases[request.case].state;
        request.resume();
        for _ in 0..more {
            let Some(mut inputs) = self.coming.pop() else { break };
            let outputs = engine.outputs()?;
            hand_over(&outputs, state, &mut inputs)?;
            engine.feed(&inputs)?;
            self.pace.keep(|| engine.run())?;
            request.mark();
            // What is fed to the next run is seen in that one's outputs.
            let is_fed = |tensor: &Tensor| state.iter().any(|fed| fed.output == tensor.name);
            self.outputs.extend(outputs.into_iter().filter(|tensor| !is_fed(tensor)));
        }
        // Of the last run, as of a single one, they are read after the clock.
        if self.coming.is_empty() && self.last.is_empty() {
            self.last = engine.outputs()?;
        }
        Ok(())
    }

    fn output(&self) -> Output {
        let tensor = |tensor: &Tensor| protocol::Tensor {
            name: tensor.name.clone(),
            dtype: tensor.dtype.name().to_owned(),
            shape: tensor.shape.clone(),
            data: tensor.data.clone(),
        };
        Output::Tensors(self.outputs.iter().chain(&self.last).map(tensor).collect())
    }

    fn calls(&self) -> Vec<Call> {
        self.callers.calls()
    }

    fn parity(&mut self, _: &mut E, _: &ParityTask) -> Result<(), ServeError> {
        Err(ServeError::Job("requests that run a graph have no logits".into()))
    }
}

/// The numbers of a file: of one run, or of each of so many.
fn read(path: &Path, dtype: Dtype, (elements, runs): (usize, usize)) -> Result<Vec<u8>, ServeError> {
    let bytes = elements * dtype.bytes();
    let mut data =
        std::fs::read(path).map_err(|error| EngineError::Input(format!("{}: {error}", path.display())))?;
    if data.len() != bytes && data.len() != bytes * runs {
        return Err(ServeError::Job(format!("{} has {} bytes, not {bytes}", path.display(), data.len())));
    }
    if dtype == Dtype::Bool {
        // A file may hold others, which no framework has to expect.
        data.iter_mut().for_each(|bool| *bool = u8::from(*bool != 0));
    }
    Ok(data)
}

/// Rotates the numbers of a file by the seed, if there are enough of them.
fn rotate(data: &mut [u8], dtype: Dtype, seed: u64) {
    let numbers = data.len() / dtype.bytes();
    if numbers >= ROTATED {
        data.rotate_left((seed % numbers as u64) as usize * dtype.bytes());
    }
}

/// The seed of a set's values; the first set has the seed itself.
fn of_set(seed: u64, set: usize) -> u64 {
    seed.wrapping_add((set as u64).wrapping_mul(0xa076_1d64_78bd_642f))
}

/// The seed of the values of the tensor at this place.
fn of_place(seed: u64, place: usize) -> u64 {
    seed.wrapping_add((place as u64).wrapping_mul(0xd1b5_4a32_d192_ed03))
}

/// Values from `low` to below `high`: as `docs/reference/protocol.md` has them, in every worker the same. The generator
/// is SplitMix64 (Steele, Lea and Flood 2014), which gives any place of its sequence at once.
fn drawn(dtype: Dtype, elements: usize, (low, high): (f64, f64), seed: u64) -> Vec<u8> {
    let mut data = Vec::with_capacity(elements * dtype.bytes());
    for place in 1..=elements as u64 {
        let mut bits = seed.wrapping_add(place.wrapping_mul(0x9e37_79b9_7f4a_7c15));
        bits = (bits ^ (bits >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        bits = (bits ^ (bits >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        bits ^= bits >> 31;
        // 24 bits: exact in f32, too.
        let share = (bits >> 40) as f64 / f64::from(1 << 24);
        let value = low + share * (high - low);
        let whole = value.floor();
        match dtype {
            // By way of f32 on every processor.
            Dtype::Float16 => data.extend(f16::from_f32(value as f32).to_le_bytes()),
            Dtype::Float32 => data.extend((value as f32).to_le_bytes()),
            Dtype::Float64 => data.extend(value.to_le_bytes()),
            Dtype::Int8 => data.extend((whole as i8).to_le_bytes()),
            Dtype::Int16 => data.extend((whole as i16).to_le_bytes()),
            Dtype::Int32 => data.extend((whole as i32).to_le_bytes()),
            Dtype::Int64 => data.extend((whole as i64).to_le_bytes()),
            Dtype::Uint8 => data.push(whole as u8),
            Dtype::Uint16 => data.extend((whole as u16).to_le_bytes()),
            Dtype::Uint32 => data.extend((whole as u32).to_le_bytes()),
            Dtype::Uint64 => data.extend((whole as u64).to_le_bytes()),
            Dtype::Bool => data.push(u8::from(whole != 0.0)),
        }
    }
    data
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn runs_that_are_one_give_each_its_part() {
        let tensor = |shape: &[usize], data: &[u8]| Tensor {
            name: "x".into(),
            dtype: Dtype::Uint8,
            shape: shape.to_vec(),
            data: data.to_vec(),
        };
        let sets = [vec![tensor(&[1, 2], &[1, 2])], vec![tensor(&[1, 2], &[3, 4])]];
        let one = joined(&[&sets[0], &sets[1]]);
        assert_eq!(one, [tensor(&[2, 2], &[1, 2, 3, 4])]);
        assert_eq!(parted(one, 2).unwrap(), sets);
        let undivided = parted(vec![tensor(&[3], &[1, 2, 3])], 2).unwrap_err().to_string();
        assert!(undivided.contains("has no part for each"), "{undivided}");
    }

    #[test]
    fn state_goes_from_a_run_to_the_next() {
        let tensor = |name: &str, dtype, data: &[u8]| Tensor {
            name: name.into(),
            dtype,
            shape: vec![data.len()],
            data: data.to_vec(),
        };
        let outputs = [tensor("y", Dtype::Uint8, &[9]), tensor("stateN", Dtype::Uint8, &[1, 2])];
        let mut next = [tensor("x", Dtype::Uint8, &[5]), tensor("state", Dtype::Uint8, &[0])];
        let fed = |output: &str| [Fed { output: output.into(), input: "state".into() }];
        hand_over(&outputs, &fed("stateN"), &mut next).unwrap();
        assert_eq!(next, [tensor("x", Dtype::Uint8, &[5]), tensor("state", Dtype::Uint8, &[1, 2])]);
        assert!(hand_over(&outputs, &fed("z"), &mut next).unwrap_err().to_string().contains("no output z"));
        let mut other = [tensor("state", Dtype::Int8, &[0])];
        let wrong = hand_over(&outputs, &fed("y"), &mut other).unwrap_err().to_string();
        assert!(wrong.contains("y is of uint8, and state takes int8"), "{wrong}");
    }

    #[test]
    fn a_file_has_the_numbers_of_one_run_or_of_each_and_is_rotated_where_it_is_long() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("x");
        std::fs::write(&path, [1, 2, 3, 4]).unwrap();
        let read = |size| read(&path, Dtype::Uint8, size);
        assert_eq!(read((4, 1)).unwrap(), [1, 2, 3, 4]);
        assert_eq!(read((2, 2)).unwrap(), [1, 2, 3, 4]);
        assert!(read((3, 2)).unwrap_err().to_string().contains("has 4 bytes, not 3"));
        let mut few = [1, 2, 3, 4];
        rotate(&mut few, Dtype::Uint8, 1);
        assert_eq!(few, [1, 2, 3, 4], "too few to rotate");
        let mut long: Vec<u8> = (0..ROTATED).map(|number| number as u8).collect();
        rotate(&mut long, Dtype::Uint8, ROTATED as u64 + 3);
        assert_eq!((&long[..2], long[ROTATED - 1]), (&[3, 4][..], 2));
    }

    #[test]
    fn values_are_those_that_the_protocol_s_page_has() {
        let floats = drawn(Dtype::Float32, 3, (0.0, 1.0), 1);
        let floats: Vec<f32> =
            floats.chunks_exact(4).map(|b| f32::from_le_bytes([b[0], b[1], b[2], b[3]])).collect();
        assert_eq!(floats, [0.566_561_5, 0.745_781_7, 0.971_002_7]);
        let ids = drawn(Dtype::Uint8, 4, (3.0, 9.0), 1);
        assert_eq!(ids, [6, 7, 8, 5]);
        assert_eq!(drawn(Dtype::Int64, 2, (7.0, 7.0), 5), [7, 0, 0, 0, 0, 0, 0, 0, 7, 0, 0, 0, 0, 0, 0, 0]);
        let bools = drawn(Dtype::Bool, 200, (0.0, 2.0), 3);
        assert!(bools.iter().all(|&bool| bool < 2) && bools.contains(&0) && bools.contains(&1));
    }
}
