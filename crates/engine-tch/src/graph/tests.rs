//! Traces and artefacts. What the nodes compute is compared by the suite that all engines share.

use std::path::PathBuf;

use conformance::{at, graph_bundle, graph_files, graph_inputs, with_options};
use tch::CModule;
use worker::engine::InferenceEngine;

use super::*;
use crate::Tch;

fn file(name: &str) -> PathBuf {
    graph_files().into_iter().find(|file| file.file_stem().is_some_and(|stem| stem == name)).unwrap()
}

#[test]
fn numbers_from_memory_are_constants_of_a_trace() {
    let _mode = InferenceMode::enter();
    let recorded = tch::Tensor::from_slice(&[1.0f32, 1.0, 1.0]);
    let compute = || {
        let places = operators::row(&[2i64, 0]).unwrap_or_else(|_| unreachable!("it is made"));
        Ok(vec![recorded.f_index_select(0, &places)?])
    };
    let mut module = Module::trace::<TchError>(&[&recorded], compute).unwrap();
    module.freeze().unwrap();
    let other = tch::Tensor::from_slice(&[5.0f32, 6.0, 7.0]);
    assert_eq!(module.run(&[&other]).unwrap()[0], tch::Tensor::from_slice(&[7.0f32, 5.0]));
}

#[test]
fn a_trace_that_fails_is_abandoned() {
    let _mode = InferenceMode::enter();
    let input = tch::Tensor::from_slice(&[1.0f32]);
    let fails = || Err(TchError::Torch("no".into()));
    assert!(Module::trace::<TchError>(&[&input], fails).is_err());
    let works = || Ok(vec![input.f_neg()?]);
    assert!(Module::trace::<TchError>(&[&input], works).is_ok(), "the next one can begin");
}

#[test]
fn files_run_node_by_node_without_jit_and_as_a_module_with_it() {
    let place = tempfile::tempdir().unwrap();
    let file = file("convolution");
    let bundle = graph_bundle(&file, place.path());
    let outputs = |jit| {
        let settings = Settings { jit, ..at(Precision::F32) };
        let mut engine = Tch::load(&bundle, &settings).unwrap();
        assert_eq!(engine.in_effect().optimised, Some(jit));
        let graph = engine.graph().unwrap();
        graph.feed(&graph_inputs(&file)).unwrap();
        graph.run().unwrap();
        graph.run().unwrap();
        graph.outputs().unwrap()
    };
    let [ours, theirs] = [outputs(true), outputs(false)].map(|mut outputs| outputs.remove(0));
    let numbers =
        |tensor: Tensor| Array::new(tensor.dtype, tensor.shape, tensor.data).unwrap().floats().unwrap();
    let pairs = numbers(ours).into_iter().zip(numbers(theirs));
    assert!(pairs.into_iter().all(|(ours, theirs)| (ours - theirs).abs() <= 1e-4 * theirs.abs().max(1.0)));
}

/// The file as TorchScript, as somebody else would have written it.
fn exported(file: &Path, graph: &Graph, to: &Path) {
    let mut program = compiled(file, graph).unwrap();
    let mut run = |inputs: &[tch::Tensor]| {
        let inputs: Vec<Rc<tch::Tensor>> =
            inputs.iter().map(|input| Rc::new(input.shallow_clone())).collect();
        program.run(&inputs).unwrap().iter().map(|output| output.shallow_clone()).collect()
    };
    let inputs = graph_inputs(file).into_iter().map(|input| {
        let array = Array::new(input.dtype, input.shape, input.data).unwrap();
        operators::upload(&array).unwrap()
    });
    let inputs: Vec<tch::Tensor> = inputs.collect();
    // What is uploaded in a trace is untraced, and what was uploaded before it is so too.
    let module = CModule::create_by_tracing("Exported", "forward", &inputs, &mut run).unwrap();
    module.save(to).unwrap();
}

#[test]
fn an_artefact_runs_in_the_place_of_the_file_and_its_weights_are_compared() {
    let place = tempfile::tempdir().unwrap();
    let artefact = place.path().join("model.pt");
    let told = artefact.to_str().unwrap();
    for (name, of) in [("external", "external"), ("external", "convolution")] {
        let bundle = graph_bundle(&file(of), place.path());
        exported(
            &file(name),
            graph_bundle(&file(name), place.path()).config().graph.as_ref().unwrap(),
            &artefact,
        );
        let mut engine = Tch::load(&bundle, &with_options(&[("artefact", told)])).unwrap();
        let compared = engine.in_effect().artefact.unwrap();
        assert!(compared.tensors > 0, "{compared:?}");
        assert_eq!(compared.missing == 0, name == of, "{compared:?}");
        if name != of {
            continue;
        }
        let graph = engine.graph().unwrap();
        graph.feed(&graph_inputs(&file(name))).unwrap();
        graph.run().unwrap();
        let found = graph.outputs().unwrap();
        let mut engine = Tch::load(&bundle, &at(Precision::F32)).unwrap();
        let graph = engine.graph().unwrap();
        graph.feed(&graph_inputs(&file(name))).unwrap();
        graph.run().unwrap();
        assert_eq!(found[0].shape, graph.outputs().unwrap()[0].shape);
    }
    let bundle = graph_bundle(&file("scalars"), place.path());
    let absent = with_options(&[("artefact", "/nowhere/model.pt")]);
    assert!(Tch::load(&bundle, &absent).is_err());
}
