//! Runs of an ONNX file, as the mock plays them: its operators are not read.

use bundle::GraphOutput;
use engine::{Dtype, EngineError, Graph, Run, Tensor};

use crate::{Mock, mix};

/// Numbers in each output.
const NUMBERS: usize = 4;
/// What whole numbers are below.
const BELOW: u64 = 100;

impl Run for Mock {
    fn graph(&self) -> &Graph {
        self.config.graph.as_ref().expect("this capability is given for ONNX files alone")
    }

    fn feed(&mut self, inputs: &[Tensor]) -> Result<(), EngineError> {
        self.fed = inputs.iter().fold(0xcbf2_9ce4_8422_2325, |state, input| {
            let shape = input.shape.iter().fold(state, |state, &size| mix(state ^ size as u64));
            input.data.iter().fold(shape, |state, &byte| mix(state ^ u64::from(byte)))
        });
        Ok(())
    }

    fn run(&mut self) -> Result<(), EngineError> {
        self.ran = None;
        self.appends += 1;
        self.misbehave()?;
        let step = self.script.step_time(self.script.token, self.appends) + self.compiling(false);
        self.busy.set(true);
        self.script.wait(step);
        self.busy.set(self.script.busy_waiting);
        self.ran = Some(self.fed);
        Ok(())
    }

    fn outputs(&mut self) -> Result<Vec<Tensor>, EngineError> {
        let state = self.ran.ok_or_else(|| EngineError::Input("outputs before a run".into()))?;
        let perturb = self.script.perturb;
        let output = |(place, output): (usize, &GraphOutput)| {
            let hash = |index: usize| mix(state ^ ((place << 32 | index) as u64 + 1));
            Tensor {
                name: output.name.clone(),
                dtype: output.dtype,
                shape: vec![NUMBERS],
                data: (0..NUMBERS)
                    .flat_map(|index| number(output.dtype, hash(index), index, perturb))
                    .collect(),
            }
        };
        Ok(Run::graph(self).outputs.iter().enumerate().map(output).collect())
    }
}

/// The bytes of a number that follows from a hash: a float from -1 to 1, or a whole number from 0.
fn number(dtype: Dtype, hash: u64, index: usize, perturb: f32) -> Vec<u8> {
    let float = (hash >> 40) as f32 / (1 << 23) as f32 - 1.0 + if index % 2 == 1 { perturb } else { 0.0 };
    let whole = (hash % BELOW) ^ u64::from(index == 0 && perturb != 0.0);
    match dtype {
        Dtype::Float16 => half::f16::from_f32(float).to_le_bytes().to_vec(),
        Dtype::Float32 => float.to_le_bytes().to_vec(),
        Dtype::Float64 => f64::from(float).to_le_bytes().to_vec(),
        Dtype::Bool => vec![(whole & 1) as u8],
        _ => whole.to_le_bytes()[..dtype.bytes()].to_vec(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_number_has_the_bytes_of_its_type() {
        for dtype in Dtype::ALL {
            assert_eq!(number(dtype, 0x1234_5678_9abc_def0, 1, 0.0).len(), dtype.bytes(), "{dtype}");
        }
        assert_eq!(number(Dtype::Int64, 205, 1, 0.0), 5u64.to_le_bytes());
        assert_eq!(number(Dtype::Uint8, 205, 0, 0.5), [4]);
        assert!(number(Dtype::Bool, 3, 0, 0.0) != number(Dtype::Bool, 3, 0, 1.0));
        let float =
            |perturb| f64::from_le_bytes(number(Dtype::Float64, 7 << 50, 1, perturb).try_into().unwrap());
        assert_eq!(float(0.5), float(0.0) + 0.5);
    }
}
