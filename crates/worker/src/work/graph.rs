//! An ONNX file: each request is a run of it, from inputs that lie ready to outputs in host memory.

use std::path::Path;

use bundle::Dtype;
use engine::{EngineError, InferenceEngine, Tensor};
use half::f16;
use protocol::{Feed, GraphWork, Input, Output, ParityTask, Values};

use super::{Request, Workload};
use crate::error::ServeError;
use crate::pace::Pace;

/// Runs a graph.
pub(crate) struct Running<'a> {
    work: &'a GraphWork,
    pace: Pace,
    /// What the last request gave.
    outputs: Vec<Tensor>,
}

impl<'a> Running<'a> {
    pub(crate) fn new(work: &'a GraphWork, pace: Pace) -> Running<'a> {
        Running { work, pace, outputs: Vec::new() }
    }

    /// The inputs of a case, with drawn values that follow from `seed`.
    fn inputs(&self, types: &[(String, Dtype)], case: usize, seed: u64) -> Result<Vec<Tensor>, ServeError> {
        let feeds = &self.work.cases[case].inputs;
        if !feeds.iter().map(|feed| &feed.name).eq(types.iter().map(|(name, _)| name)) {
            return Err(ServeError::Job(
                "a run has a tensor for each input of the graph, in its order".into(),
            ));
        }
        let tensor = |(place, (feed, (_, dtype))): (usize, (&Feed, &(String, Dtype)))| {
            let elements = Tensor::elements(&feed.shape);
            let data = match &feed.values {
                Values::Drawn { low, high } => drawn(*dtype, elements, (*low, *high), of_place(seed, place)),
                Values::File(path) => read(path, *dtype, elements)?,
            };
            Ok(Tensor { name: feed.name.clone(), dtype: *dtype, shape: feed.shape.clone(), data })
        };
        feeds.iter().zip(types).enumerate().map(tensor).collect()
    }
}

impl<E: InferenceEngine> Workload<E> for Running<'_> {
    fn cases(&self) -> usize {
        self.work.cases.len()
    }

    fn marks(&self) -> usize {
        1
    }

    fn check(&self, _: usize, input: &Input) -> Result<(), ServeError> {
        match input {
            Input::Seed(_) => Ok(()),
            _ => Err(ServeError::Job("a request that runs a graph may be given a seed alone".into())),
        }
    }

    fn begin(&mut self, engine: &mut E, case: usize, input: Option<Input>) -> Result<Request, ServeError> {
        let seed = match input {
            Some(Input::Seed(seed)) => seed,
            _ => self.work.cases[case].seed,
        };
        let engine = engine.graph()?;
        let types: Vec<(String, Dtype)> =
            engine.graph().inputs.iter().map(|input| (input.name.clone(), input.dtype)).collect();
        engine.feed(&self.inputs(&types, case, seed)?)?;
        self.outputs.clear();
        let mut request = Request::start(case, Vec::with_capacity(1));
        self.pace.keep(|| engine.run())?;
        request.mark();
        self.outputs = engine.outputs()?;
        Ok(request)
    }

    fn advance(&mut self, _: &mut E, _: &mut Request, _: usize) -> Result<(), ServeError> {
        Ok(())
    }

    fn output(&self) -> Output {
        let tensor = |tensor: &Tensor| protocol::Tensor {
            name: tensor.name.clone(),
            dtype: tensor.dtype.name().to_owned(),
            shape: tensor.shape.clone(),
            data: tensor.data.clone(),
        };
        Output::Tensors(self.outputs.iter().map(tensor).collect())
    }

    fn parity(&mut self, _: &mut E, _: &ParityTask) -> Result<(), ServeError> {
        Err(ServeError::Job("requests that run a graph have no logits".into()))
    }
}

fn read(path: &Path, dtype: Dtype, elements: usize) -> Result<Vec<u8>, ServeError> {
    let bytes = elements * dtype.bytes();
    let mut data =
        std::fs::read(path).map_err(|error| EngineError::Input(format!("{}: {error}", path.display())))?;
    if data.len() != bytes {
        return Err(ServeError::Job(format!("{} has {} bytes, not {bytes}", path.display(), data.len())));
    }
    if dtype == Dtype::Bool {
        // A file may hold others, which no framework has to expect.
        data.iter_mut().for_each(|bool| *bool = u8::from(*bool != 0));
    }
    Ok(data)
}

/// What the values of the tensor at this place follow from.
fn of_place(seed: u64, place: usize) -> u64 {
    seed.wrapping_add((place as u64).wrapping_mul(0xd1b5_4a32_d192_ed03))
}

/// Values from `low` to below `high`: as `docs/protocol.md` has them, in every worker the same. The generator is SplitMix64
/// (Steele, Lea and Flood 2014), which gives any place of its sequence at once.
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
