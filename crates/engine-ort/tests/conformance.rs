//! Every tiny model through the suite that all engines share.

use std::path::{Path, PathBuf};

use engine::conformance::{
    Reference, architectures, check_both_ways, check_model, check_profile, diffusion_models, tiny_models,
};
use engine::{Bundle, Device, EngineError, InferenceEngine, Precision, Settings, Want};
use engine_ort::Ort;

fn settings() -> Settings {
    Settings {
        precision: Precision::F32,
        cache: Precision::F32,
        device: Device::Cpu,
        threads: 2,
        jit: true,
        hidden_states: false,
        dequantised: false,
        options: Default::default(),
    }
}

fn prepared(model: &Path, precision: Precision, bundles: &Path) -> Bundle {
    let request = prepare::Request {
        source: prepare::Source::Directory(model.to_path_buf()),
        name: None,
        precisions: vec![precision],
        bundles: PathBuf::from(bundles),
        progress: prepare::Progress::Silent,
    };
    let directory = prepare::prepare(&request).unwrap_or_else(|e| panic!("{}: {e}", model.display()));
    Bundle::open(directory).expect("a bundle")
}

fn check_all(settings: &Settings) {
    let bundles = tempfile::tempdir().expect("a temporary directory");
    for model in tiny_models() {
        println!("{}", model.display());
        let bundle = prepared(&model, Precision::F32, bundles.path());
        check_model::<Ort>(&bundle, &Reference::read(&model), settings);
    }
}

#[test]
fn tiny_models_match_the_reference() {
    check_all(&settings());
}

#[test]
fn tiny_models_match_the_reference_with_hidden_states() {
    check_all(&Settings { hidden_states: true, ..settings() });
}

#[test]
fn layers_that_are_otherwise_than_llama_s_conform_with_the_graph_as_written_and_optimised() {
    let bundles = tempfile::tempdir().expect("a temporary directory");
    for model in architectures() {
        println!("{}", model.display());
        let bundle = prepared(&model, Precision::F32, bundles.path());
        for level in ["off", "all"] {
            let settings = Settings { hidden_states: true, ..at_level(level) };
            check_model::<Ort>(&bundle, &Reference::read(&model), &settings);
        }
    }
}

#[test]
fn models_that_attend_both_ways_conform_and_are_denoised_state_by_state() {
    let bundles = tempfile::tempdir().expect("a temporary directory");
    for model in diffusion_models() {
        let (bundle, reference) = (prepared(&model, Precision::F32, bundles.path()), Reference::read(&model));
        for level in ["off", "all"] {
            let settings = Settings { hidden_states: true, ..at_level(level) };
            check_both_ways::<Ort>(&bundle, &reference, &settings);
        }
        let states = model.join("reference.safetensors");
        worker::conformance::check_states::<Ort>(bundle.directory(), &states, 2);
    }
}

fn at_level(level: &str) -> Settings {
    Settings { options: [("optimization".to_owned(), level.to_owned())].into(), ..settings() }
}

#[test]
fn tiny_models_match_the_reference_at_every_level_of_optimisation() {
    for level in ["off", "basic", "extended", "all"] {
        println!("{level}");
        check_all(&at_level(level));
    }
}

#[test]
fn the_level_of_optimisation_is_reported() {
    let bundles = tempfile::tempdir().expect("a temporary directory");
    let bundle = prepared(&tiny_models()[0], Precision::F32, bundles.path());
    let reported = |settings: &Settings| {
        let in_effect = Ort::load(&bundle, settings).expect("loads").in_effect();
        (in_effect.optimised, in_effect.jit)
    };
    let expected = |on, level: &str| (Some(on), format!("graph optimisation: {level}"));
    assert_eq!(reported(&settings()), expected(true, "all"));
    assert_eq!(reported(&at_level("basic")), expected(true, "basic"));
    assert_eq!(reported(&at_level("off")), expected(false, "off"));
    // Without leave, no option brings it back.
    assert_eq!(reported(&Settings { jit: false, ..at_level("extended") }), expected(false, "off"));
    let unknown = Ort::load(&bundle, &at_level("most")).err().expect("refused").to_string();
    assert!(unknown.contains("\"most\"") && unknown.contains("extended"), "{unknown}");
}

#[test]
fn a_profile_lies_where_it_was_asked_for() {
    let directory = tempfile::tempdir().expect("a temporary directory");
    let bundle = prepared(&tiny_models()[0], Precision::F32, directory.path());
    let file = directory.path().join("profile.json");
    let options = [("profile".to_owned(), file.display().to_string())].into();
    let mut engine = Ort::load(&bundle, &Settings { options, ..settings() }).expect("loads");
    engine.begin(1, 2).expect("begins");
    engine.append(&[1, 2], Want::Last).expect("appends");
    drop(engine);
    let profile = std::fs::read_to_string(&file).expect("written");
    assert!(profile.contains("GroupQueryAttention"), "no node in {} bytes", profile.len());
}

#[test]
fn a_traced_run_tells_the_part_of_every_node_that_this_engine_has_named() {
    let directory = tempfile::tempdir().expect("a temporary directory");
    let bundle = prepared(&tiny_models()[0], Precision::F32, directory.path());
    let in_layer = ["attention", "mlp norm", "mlp"];
    let layers =
        (0..bundle.config().layers).flat_map(|layer| in_layer.map(|part| format!("layer {layer} {part}")));
    let parts: Vec<String> =
        ["embedding", "final norm", "head"].map(str::to_owned).into_iter().chain(layers).collect();
    check_profile::<Ort>(&bundle, Ort::profiled(settings(), directory.path()), &parts);
}

#[test]
fn one_thread_is_one_thread() {
    check_all(&Settings { threads: 1, ..settings() });
}

#[test]
fn sixteen_bit_precisions_are_unsupported_for_a_reason() {
    let bundles = tempfile::tempdir().expect("a temporary directory");
    let model = &tiny_models()[0];
    for precision in [Precision::Bf16, Precision::F16] {
        let bundle = prepared(model, precision, bundles.path());
        match Ort::load(&bundle, &Settings { precision, ..settings() }).err() {
            Some(EngineError::Unsupported(reason)) => assert!(reason.contains(precision.name()), "{reason}"),
            other => panic!("{precision}: {other:?}"),
        }
    }
}

#[test]
fn a_cache_in_16_bits_is_unsupported_for_a_reason() {
    let bundles = tempfile::tempdir().expect("a temporary directory");
    let bundle = prepared(&tiny_models()[0], Precision::F32, bundles.path());
    let refused = Ort::load(&bundle, &Settings { cache: Precision::F16, ..settings() }).err();
    let Some(EngineError::Unsupported(reason)) = refused else { panic!("{refused:?}") };
    assert!(reason.contains("in f32 here, not in f16"), "{reason}");
}

#[cfg(unix)]
#[test]
fn weights_behind_a_link_are_found() {
    let bundles = tempfile::tempdir().expect("a temporary directory");
    let real = prepared(&tiny_models()[0], Precision::F32, bundles.path());
    let linked = bundles.path().join("linked");
    std::fs::create_dir(&linked).expect("a directory");
    for entry in std::fs::read_dir(real.directory()).expect("readable") {
        let entry = entry.expect("readable");
        std::os::unix::fs::symlink(entry.path(), linked.join(entry.file_name())).expect("a link");
    }
    Ort::load(&Bundle::open(&linked).expect("a bundle"), &settings()).map(|_| ()).expect("loads");
}
