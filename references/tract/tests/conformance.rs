//! The reference computes the model that the engines compute, from the same numbers.

use std::path::Path;

use engine::conformance::{Reference, architectures, check_model, check_or_refused, tiny_models};
use engine::{Bundle, Device, EngineError, InferenceEngine, Precision, Settings};
use reference_tract::Tract;

fn settings(threads: usize) -> Settings {
    Settings {
        precision: Precision::F32,
        cache: Precision::F32,
        device: Device::Cpu,
        threads,
        jit: true,
        hidden_states: true,
        dequantised: false,
        options: Default::default(),
    }
}

fn prepared(source: &Path, bundles: &Path) -> Bundle {
    let request = prepare::Request {
        source: prepare::Source::Directory(source.to_path_buf()),
        name: None,
        precisions: vec![Precision::F32, Precision::Int8, Precision::Int4],
        bundles: bundles.to_path_buf(),
        progress: prepare::Progress::Silent,
    };
    Bundle::open(prepare::prepare(&request).expect("prepares")).expect("opens")
}

/// Every architecture, with hidden states on two threads, and on one without.
#[test]
fn tiny_models_match_the_reference() {
    let bundles = tempfile::tempdir().expect("a temporary directory");
    for model in tiny_models() {
        let (bundle, reference) = (prepared(&model, bundles.path()), Reference::read(&model));
        let alone = Settings { hidden_states: false, ..settings(1) };
        for settings in [settings(2), alone] {
            println!("{} {settings:?}", model.display());
            check_model::<Tract>(&bundle, &reference, &settings);
        }
    }
}

#[test]
fn architectures_conform_or_are_refused_by_the_feature_s_name() {
    let bundles = tempfile::tempdir().expect("a temporary directory");
    let computed = architectures().into_iter().filter(|model| {
        let (bundle, reference) = (prepared(model, bundles.path()), Reference::read(model));
        check_or_refused::<Tract>(&bundle, &reference, &settings(2))
    });
    let names = computed.map(|model| model.file_name().expect("a name").to_string_lossy().into_owned());
    assert_eq!(names.collect::<Vec<_>>(), ["granite", "olmo2", "phi3", "smollm3"]);
}

#[test]
fn what_it_cannot_do_is_refused_with_a_reason() {
    let bundles = tempfile::tempdir().expect("a temporary directory");
    let bundle = prepared(&tiny_models()[0], bundles.path());
    let refused = |settings: Settings| match Tract::load(&bundle, &settings) {
        Err(EngineError::Unsupported(reason)) => reason,
        other => panic!("{other:?}"),
    };
    for precision in [Precision::Bf16, Precision::F16, Precision::Int8, Precision::Int4, Precision::Nf4] {
        assert!(refused(Settings { precision, ..settings(1) }).contains("tract"));
    }
    assert!(refused(Settings { jit: false, ..settings(1) }).contains("optimiser"));
    assert!(refused(Settings { device: Device::Cuda(0), ..settings(1) }).contains("CUDA"));
}
