use std::path::Path;

use configs::Layers;
use setup::{BuildRecord, Layout, Target};

use super::*;

const PINS: &str = include_str!("../../../../../configs/native.toml");

/// An installation in `directory` that says it was built with this libtorch.
fn installation(directory: &Path, libtorch: Option<PathBuf>) -> Places {
    let layout = Layout::below(directory);
    std::fs::create_dir_all(layout.configs()).unwrap();
    std::fs::write(layout.configs().join("native.toml"), PINS).unwrap();
    layout.write_build(&BuildRecord { libtorch, ..BuildRecord::default() }).unwrap();
    Places {
        checkout: None,
        configs: Layers::single(layout.configs()),
        workers: layout.workers(),
        installed: Some(layout),
        cache: directory.join("cache"),
        target: Target::Cpu,
    }
}

fn engine(native: &[&str]) -> Engine {
    let native = native.iter().map(|&name| name.to_owned()).collect();
    Engine { worker: "engine-x".into(), native, ..Engine::default() }
}

#[test]
fn an_installations_worker_is_shown_the_libtorch_of_set_up() {
    let directory = tempfile::tempdir().unwrap();
    let mut places = installation(directory.path(), None);
    // A test run's variable names set-up's library; it takes precedence, like a user's own.
    let named = std::env::var_os("LIBTORCH").filter(|value| !value.is_empty()).map(PathBuf::from);
    let expected = named.unwrap_or_else(|| places.cache.join("libtorch-2.11.0")).join("lib");
    assert_eq!(library_path(&places, &engine(&["libtorch"])), Some(expected));
    assert_eq!(library_path(&places, &engine(&["onnxruntime"])), None);
    places.checkout = Some(directory.path().to_owned());
    assert_eq!(library_path(&places, &engine(&["libtorch"])), None, "a checkout's worker knows its own");
}

#[test]
fn the_libtorch_that_workers_were_built_with_is_taken_while_it_is_there() {
    let directory = tempfile::tempdir().unwrap();
    let own = directory.path().join("own");
    let places = installation(directory.path(), Some(own.clone()));
    assert_eq!(built_with(&places), None);
    std::fs::create_dir(&own).unwrap();
    assert_eq!(built_with(&places), Some(own));
}

#[test]
fn what_is_too_large_to_fetch_unasked_is_left_out_and_what_follows_it_is_not() {
    // candle, libtorch, ONNX Runtime.
    assert_eq!(affordable(&[0, 543, 24], 57), [true, false, true]);
    assert_eq!(affordable(&[0, 0, 24], 57), [true, true, true]);
    assert_eq!(affordable(&[40, 30], 57), [true, false]);
}

#[test]
fn an_installation_has_all_engines_on_a_gpu_and_a_checkout_everywhere() {
    let directory = tempfile::tempdir().unwrap();
    let places = installation(directory.path(), None);
    let engines = vec![engine(&["libtorch"]), engine(&["onnxruntime"])];
    let on_gpu = Places { target: Target::Cuda, ..places.clone() };
    assert_eq!(within_reach(&on_gpu, engines.clone()).unwrap(), engines);
    let checkout = Places { checkout: Some(directory.path().to_owned()), ..places };
    assert_eq!(within_reach(&checkout, engines.clone()).unwrap(), engines);
}

#[test]
fn libraries_of_absent_workers_are_not_brought_and_unknown_ones_are_refused() {
    let directory = tempfile::tempdir().unwrap();
    let places = installation(directory.path(), None);
    let engines = [engine(&["no-such-piece"])];
    libraries(&places, &engines, true).unwrap();
    std::fs::create_dir_all(&places.workers).unwrap();
    std::fs::write(places.workers.join("engine-x"), "").unwrap();
    let error = libraries(&places, &engines, true).unwrap_err();
    assert_eq!(error.exit_code(), 2);
    assert!(error.to_string().contains("unknown piece \"no-such-piece\""), "{error}");
}

#[test]
fn the_remedy_is_one_that_works_without_a_checkout() {
    let directory = tempfile::tempdir().unwrap();
    let mut places = installation(directory.path(), None);
    let engine = Engine { name: "x".into(), ..engine(&["libtorch", "onnxruntime"]) };
    assert!(places.remedy(&engine).contains("`photofinish --frameworks x` compiles its worker"));
    std::fs::create_dir_all(&places.workers).unwrap();
    std::fs::write(places.workers.join("engine-x"), "").unwrap();
    assert!(places.remedy(&engine).contains("photofinish setup --only libtorch,onnxruntime"));
    places.checkout = Some(directory.path().to_owned());
    assert!(places.remedy(&engine).contains("photofinish doctor"));
}

#[test]
fn a_worker_that_an_installation_lacks_is_the_one_that_was_compiled_there() {
    let directory = tempfile::tempdir().unwrap();
    let places = installation(directory.path(), None);
    assert_eq!(places.binary("engine-x"), places.workers.join("engine-x"));
    let compiled = places.cache.join("versions/engine-x-build-here/engine-x");
    std::fs::create_dir_all(compiled.parent().unwrap()).unwrap();
    std::fs::write(&compiled, "").unwrap();
    assert_eq!(places.binary("engine-x"), compiled);
    let error =
        built_here(&places, &Engine { name: "x".into(), ..engine(&[]) }, true).unwrap_err().to_string();
    assert!(error.contains("no engine-x, and no sources of it"), "{error}");
}

#[test]
fn on_a_gpu_a_worker_is_shown_nvidias_libraries_and_those_that_are_built_on_them() {
    let directory = tempfile::tempdir().unwrap();
    let places = installation(directory.path(), None);
    let nvidia = places.cache.join("cuda-13.0/nvidia");
    for package in ["cu13", "cudnn"] {
        std::fs::create_dir_all(nvidia.join(package).join("lib")).unwrap();
    }
    let found = variables(&places.on("cuda:1"), &engine(&["onnxruntime"]));
    let path = found[LIBRARY_PATH].clone();
    for package in ["cu13/lib", "cudnn/lib"] {
        assert!(path.contains(&nvidia.join(package).display().to_string()), "{path}");
    }
    let is_named = std::env::var_os("ORT_DYLIB_PATH").is_some_and(|value| !value.is_empty());
    let library = found.get("ORT_DYLIB_PATH").map(PathBuf::from);
    let own = places.cache.join("cuda-13.0/onnxruntime/libonnxruntime.so.1.31.1");
    assert_eq!(library, (!is_named).then_some(own), "the user's own wins");
    let without = variables(&places.on("cuda:1"), &engine(&[]));
    assert_eq!(without.into_keys().collect::<Vec<_>>(), [CUDA_KERNELS]);
    assert_eq!(variables(&places, &engine(&["onnxruntime"])), BTreeMap::new(), "as without a GPU");
}

#[test]
fn on_a_gpu_its_own_workers_are_taken_and_the_usual_ones_where_there_are_none() {
    let directory = tempfile::tempdir().unwrap();
    let places = installation(directory.path(), None).on("cuda:0");
    std::fs::create_dir_all(places.gpu_workers()).unwrap();
    std::fs::write(places.gpu_workers().join("engine-x"), "").unwrap();
    assert_eq!(places.binary("engine-x"), places.workers.join("cuda/engine-x"));
    std::fs::write(places.workers.join("engine-y"), "").unwrap();
    assert_eq!(places.binary("engine-y"), places.workers.join("engine-y"));
    assert_eq!(places.on("cpu").binary("engine-x"), places.workers.join("engine-x"));
}
