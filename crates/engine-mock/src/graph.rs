//! Simulated runs of an ONNX file: its operators are not read.

use bundle::{GraphInput, GraphOutput, Size};
use engine::{Dtype, EngineError, Graph, Run, Tensor};

use crate::{Mock, mix};

/// Numbers in each output.
const NUMBERS: usize = 4;
/// Upper bound of whole numbers.
const BELOW: u64 = 100;

impl Run for Mock {
    fn graph(&self) -> &Graph {
        self.config.graph.as_ref().expect("this capability is given for ONNX files alone")
    }

    fn feed(&mut self, inputs: &[Tensor]) -> Result<(), EngineError> {
        let rows = rows(Run::graph(self), inputs);
        let of_row = |row: usize| {
            inputs.iter().fold(0xcbf2_9ce4_8422_2325, |state, input| {
                let within = &input.shape[usize::from(rows.is_some())..];
                let shape = within.iter().fold(state, |state, &size| mix(state ^ size as u64));
                let bytes = input.data.len() / rows.unwrap_or(1);
                let data = &input.data[row * bytes..(row + 1) * bytes];
                data.iter().fold(shape, |state, &byte| mix(state ^ u64::from(byte)))
            })
        };
        self.fed = (0..rows.unwrap_or(1)).map(of_row).collect();
        self.has_rows = rows.is_some();
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
        self.ran = Some(self.fed.clone());
        Ok(())
    }

    fn outputs(&mut self) -> Result<Vec<Tensor>, EngineError> {
        let states = self.ran.as_ref().ok_or_else(|| EngineError::Input("outputs before a run".into()))?;
        let perturb = self.script.perturb;
        let shape = if self.has_rows { vec![states.len(), NUMBERS] } else { vec![NUMBERS] };
        let output = |(place, output): (usize, &GraphOutput)| {
            let hash = |state: u64, index: usize| mix(state ^ ((place << 32 | index) as u64 + 1));
            let of_row = |&state: &u64| {
                (0..NUMBERS).flat_map(move |index| number(output.dtype, hash(state, index), index, perturb))
            };
            Tensor {
                name: output.name.clone(),
                dtype: output.dtype,
                shape: shape.clone(),
                data: states.iter().flat_map(of_row).collect(),
            }
        };
        Ok(Run::graph(self).outputs.iter().enumerate().map(output).collect())
    }
}

/// Number of rows that are computed separately, if the first dimension of all inputs is the same free one.
fn rows(graph: &Graph, inputs: &[Tensor]) -> Option<usize> {
    let free = |input: &GraphInput| match input.shape.as_ref()?.first()? {
        Size::Free(name) => Some(name.clone()),
        Size::Fixed(_) => None,
    };
    let mut names = graph.inputs.iter().map(free);
    let first = names.next()??;
    let is_common = names.all(|name| name.as_ref() == Some(&first));
    inputs.first()?.shape.first().copied().filter(|&rows| is_common && rows > 0)
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
    use std::collections::BTreeMap;

    use bundle::Bundle;
    use engine::{Device, InferenceEngine, Precision, Settings};

    use super::*;

    /// A mock with a file of two inputs and an output of each type.
    fn mock(options: &[(&str, &str)]) -> Mock {
        let input =
            |name: &str, dtype| GraphInput { name: name.into(), dtype, shape: Some(vec![Size::Fixed(2)]) };
        let output = |dtype: Dtype| GraphOutput { name: dtype.name().into(), dtype };
        let graph = Graph {
            opset: 17,
            inputs: vec![input("x", Dtype::Float32), input("on", Dtype::Bool)],
            outputs: Dtype::ALL.map(output).into(),
            bytes: 1,
            stored: None,
            operators: BTreeMap::new(),
        };
        let directory = tempfile::tempdir().unwrap();
        let manifest = r#"{"format": 1, "name": "nothing", "source": {"kind": "test", "sha256": {}}, "files":
            {"graph.onnx": {"sha256": "", "bytes": 1, "derived": "for a test"}}}"#;
        let config = graph.config_json().to_string();
        for (name, text) in
            [("config.json", config.as_str()), ("manifest.json", manifest), ("graph.onnx", "x")]
        {
            std::fs::write(directory.path().join(name), text).unwrap();
        }
        let settings = Settings {
            precision: Precision::F32,
            cache: Precision::F32,
            device: Device::Cpu,
            threads: 1,
            jit: true,
            hidden_states: false,
            dequantised: false,
            options: options.iter().map(|&(name, value)| (name.to_owned(), value.to_owned())).collect(),
        };
        Mock::load(&Bundle::open(directory.path()).unwrap(), &settings).unwrap()
    }

    fn outputs(mock: &mut Mock, data: &[u8; 10]) -> Vec<Tensor> {
        let tensor = |name: &str, dtype, data: &[u8]| Tensor {
            name: name.into(),
            dtype,
            shape: vec![2],
            data: data.to_vec(),
        };
        mock.feed(&[tensor("x", Dtype::Float32, &data[..8]), tensor("on", Dtype::Bool, &data[8..])]).unwrap();
        mock.run().unwrap();
        mock.outputs().unwrap()
    }

    #[test]
    fn outputs_follow_from_every_byte_of_the_inputs() {
        let mut mock = mock(&[]);
        let first = outputs(&mut mock, &[0; 10]);
        assert_eq!(first.iter().map(|tensor| tensor.dtype).collect::<Vec<_>>(), Dtype::ALL);
        assert!(
            first.iter().all(|tensor| tensor.shape == [4] && tensor.data.len() == 4 * tensor.dtype.bytes())
        );
        assert_eq!(outputs(&mut mock, &[0; 10]), first);
        for place in 0..10 {
            let mut data = [0; 10];
            data[place] = 1;
            assert_ne!(outputs(&mut mock, &data), first, "byte {place}");
        }
    }

    #[test]
    fn the_script_s_wrong_answers_and_faults_are_those_of_a_run() {
        let right = outputs(&mut mock(&[]), &[7; 10]);
        let wrong = outputs(&mut mock(&[("perturb", "0.5")]), &[7; 10]);
        assert!(right.iter().zip(&wrong).all(|(right, wrong)| right.data != wrong.data), "each is wrong");
        let mut failing = mock(&[("fault", "error"), ("fault_at", "2")]);
        outputs(&mut failing, &[7; 10]);
        assert!(matches!(failing.run(), Err(EngineError::Framework(_))));
        assert!(failing.outputs().is_err(), "a run that failed gave nothing");
    }

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
