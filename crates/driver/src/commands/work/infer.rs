//! `photofinish infer`: one framework runs an ONNX file once, and its outputs are written.

use std::path::PathBuf;

use measure::arrays;
use plan::work::graph;
use plan::{Failure, Result};
use protocol::{Answer, Event, GraphCase, GraphWork, Output, Task, Tensor, Work};
use serde_json::{Map, json};

use crate::cli::work::graph::InferArgs;
use crate::commands::single::{self, Single};
use crate::output::print;

pub(super) fn infer(args: &InferArgs) -> Result<u8> {
    let InferArgs { on, seed, output, .. } = args;
    let framework = &on.framework;
    let places = on.here.places.find()?;
    let (mut request, _) = single::asked(on, &places)?;
    args.graph.apply_to(&mut request);
    let given = arrays::given(&request.graph, &places)?;
    let single = Single::resolve(on, (1, 0))?;
    let Some(description) = &single.bundle.config().graph else {
        return Err(Failure::usage(format!("{} is no ONNX file: infer runs one", request.model())));
    };
    let work = graph::resolve(&request, description, &given, *seed)?;
    let [run] = work.cases.as_slice() else {
        return Err(Failure::usage("infer runs the file once: give each --dim one size"));
    };
    let case = GraphCase { inputs: run.inputs.clone(), seed: run.seed, sets: 1 };
    let task = Task::Answer(Answer { work: Work::Graph(GraphWork { cases: vec![case] }), parity: None });
    let outcome = single.run(false, task)?;
    let answered = outcome.events.into_iter().find_map(|event| match event {
        Event::Answered(answered) => answered.outputs.into_iter().next(),
        _ => None,
    });
    let whole = answered.filter(|answered| plan::work::Describe::is_whole(&work, 0, answered));
    let Some(Output::Tensors(tensors)) = whole else {
        return Err(Failure::failed(format!(
            "{framework} did not give the outputs {}",
            work.outputs.join(", ")
        )));
    };
    std::fs::create_dir_all(output).map_err(|error| cannot(output, &error))?;
    let files = files(&tensors)?;
    let mut outputs = Map::new();
    for (tensor, name) in tensors.iter().zip(files) {
        let path = output.join(name);
        let bytes = arrays::npy(tensor).unwrap_or_default();
        std::fs::write(&path, bytes).map_err(|error| cannot(&path, &error))?;
        outputs.insert(tensor.name.clone(), json!({ "shape": tensor.shape, "dtype": tensor.dtype }));
    }
    print(&(json!({ "framework": framework, "outputs": outputs }).to_string() + "\n"))?;
    Ok(0)
}

fn cannot(path: &std::path::Path, error: &std::io::Error) -> Failure {
    Failure::failed(format!("cannot write {}: {error}", path.display()))
}

/// The name of each output's file. Characters that a file's name cannot have become `_`; two outputs with the
/// same name are refused.
fn files(tensors: &[Tensor]) -> Result<Vec<PathBuf>> {
    let plain = |letter: char| if letter.is_alphanumeric() || "._-".contains(letter) { letter } else { '_' };
    let file = |tensor: &Tensor| {
        let name: String = tensor.name.chars().map(plain).collect();
        format!("{}.npy", name.trim_start_matches('.'))
    };
    let names: Vec<String> = tensors.iter().map(file).collect();
    match names.iter().enumerate().find(|(place, name)| names[..*place].contains(name)) {
        Some((_, name)) => Err(Failure::usage(format!("two outputs would be written to {name}"))),
        None => Ok(names.into_iter().map(PathBuf::from).collect()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn outputs_are_written_under_their_names() {
        let tensor =
            |name: &str| Tensor { name: name.into(), dtype: "bool".into(), shape: vec![], data: vec![1] };
        let names = files(&[tensor("y"), tensor("../a/b:0"), tensor("Ж.1")]).unwrap();
        assert_eq!(names, ["y.npy", "_a_b_0.npy", "Ж.1.npy"].map(PathBuf::from));
        assert!(files(&[tensor("a/b"), tensor("a:b")]).unwrap_err().to_string().contains("a_b.npy"));
    }
}
