//! A bundle appears whole or not at all, is made once, and grows without being made again.

use std::path::Path;

use bundle::{Bundle, MANIFEST, Precision};
use prepare::{PrepareError, Request, Source, prepare};
use tempfile::TempDir;

use crate::common::{Model, entries, request, tiny};

fn source() -> Source {
    Source::Directory(tiny("qwen3-qknorm"))
}

/// A directory of bundles, and a request for one there.
fn asked(precisions: &[Precision]) -> (TempDir, Request) {
    let bundles = tempfile::tempdir().unwrap();
    let request = request(source(), precisions, bundles.path());
    (bundles, request)
}

/// Changes the last byte of a file, to find out later whether the file was written again.
fn mark(path: &Path) {
    let mut bytes = std::fs::read(path).unwrap();
    *bytes.last_mut().unwrap() = b' ';
    std::fs::write(path, bytes).unwrap();
}

fn is_marked(path: &Path) -> bool {
    std::fs::read(path).unwrap().ends_with(b" ")
}

#[test]
fn the_second_time_nothing_is_written() {
    let (bundles, request) = asked(&[Precision::F32]);
    let first = prepare(&request).unwrap();
    for file in entries(&first) {
        mark(&first.join(file));
    }
    for file in entries(bundles.path()).iter().filter(|name| name.starts_with('.')) {
        std::fs::remove_file(bundles.path().join(file)).unwrap();
    }
    assert_eq!(prepare(&request).unwrap(), first);
    assert_eq!(entries(bundles.path()).len(), 1, "not even a lock");
    assert_eq!(entries(&first), ["config.json", "f32.safetensors", "manifest.json"]);
    assert!(entries(&first).iter().all(|file| is_marked(&first.join(file))));
}

#[test]
fn a_precision_is_added_beside_those_that_are_there() {
    let bundles = tempfile::tempdir().unwrap();
    let first = prepare(&request(source(), &[Precision::F32], bundles.path())).unwrap();
    Bundle::open(&first).unwrap().verify("f32.safetensors").unwrap();
    mark(&first.join("f32.safetensors"));
    let second = prepare(&request(source(), &[Precision::Bf16], bundles.path())).unwrap();
    assert_eq!(second, first);
    assert!(is_marked(&first.join("f32.safetensors")));
    let bundle = Bundle::open(&first).unwrap();
    assert_eq!(bundle.precisions(), [Precision::F32, Precision::Bf16]);
    bundle.verify("bf16.safetensors").unwrap();
}

#[test]
fn a_file_that_is_missing_or_of_another_size_is_made_again() {
    let (bundles, both) = asked(&[Precision::F32, Precision::Bf16]);
    let directory = prepare(&both).unwrap();
    std::fs::write(directory.join("bf16.safetensors"), "half a file").unwrap();
    std::fs::remove_file(directory.join("config.json")).unwrap();
    mark(&directory.join("f32.safetensors"));
    prepare(&request(source(), &[Precision::F32], bundles.path())).unwrap();
    let bundle = Bundle::open(&directory).unwrap();
    bundle.verify("bf16.safetensors").unwrap();
    bundle.verify("config.json").unwrap();
    assert_eq!(bundle.precisions(), [Precision::F32, Precision::Bf16]);
    assert!(is_marked(&directory.join("f32.safetensors")), "what is intact is left alone");
}

#[test]
fn a_directory_without_a_readable_manifest_is_no_bundle() {
    let (_bundles, request) = asked(&[Precision::F32]);
    let directory = prepare(&request).unwrap();
    std::fs::write(directory.join(MANIFEST), "{").unwrap();
    std::fs::write(directory.join("litter"), "").unwrap();
    assert_eq!(prepare(&request).unwrap(), directory);
    Bundle::open(&directory).unwrap().weights(Precision::F32).unwrap();
    assert!(!directory.join("litter").exists());
}

#[test]
fn the_litter_of_a_crash_is_removed_and_never_used() {
    let (bundles, request) = asked(&[Precision::F32]);
    let directory = prepare(&request).unwrap();
    let name = directory.file_name().unwrap().to_str().unwrap();
    std::fs::remove_dir_all(&directory).unwrap();
    let staging = bundles.path().join(format!(".{name}.partial"));
    std::fs::create_dir(&staging).unwrap();
    std::fs::write(staging.join("f32.safetensors"), "half a file").unwrap();
    let bundle = Bundle::open(prepare(&request).unwrap()).unwrap();
    bundle.verify("f32.safetensors").unwrap();
    assert_eq!(entries(bundles.path()), [format!(".{name}.lock"), name.to_owned()]);
}

#[test]
fn many_at_once_make_one_bundle() {
    let bundles = tempfile::tempdir().unwrap();
    let wanted = [Precision::F32, Precision::Bf16, Precision::F16];
    let made: Vec<_> = std::thread::scope(|scope| {
        let requests = (0..6).map(|i| request(source(), &wanted[i % 3..=i % 3], bundles.path()));
        let threads: Vec<_> =
            requests.map(|request| scope.spawn(move || prepare(&request).unwrap())).collect();
        threads.into_iter().map(|thread| thread.join().unwrap()).collect()
    });
    assert!(made.iter().all(|directory| *directory == made[0]));
    let bundle = Bundle::open(&made[0]).unwrap();
    assert_eq!(bundle.precisions(), wanted);
    for file in bundle.manifest().files.keys() {
        bundle.verify(file).unwrap();
    }
    assert_eq!(entries(bundles.path()).len(), 2, "the bundle and its lock");
}

#[test]
fn other_weights_and_other_names_make_other_bundles() {
    let (_bundles, mut request) = asked(&[Precision::F32]);
    let first = prepare(&request).unwrap();
    request.name = Some("another".into());
    let renamed = prepare(&request).unwrap();
    let mut model = Model::tiny("qwen3-qknorm");
    model.tensors.get_mut("model.norm.weight").unwrap().bytes[0] ^= 1;
    let changed = model.write();
    request.source = Source::Directory(changed.path().into());
    let changed = prepare(&request).unwrap();
    assert!(first != renamed && renamed != changed);
    let name = |path: &Path| path.file_name().unwrap().to_str().unwrap().to_owned();
    assert!(name(&renamed).starts_with("another-") && name(&changed).starts_with("another-"));
    assert_eq!(name(&first)["qwen3-qknorm-".len()..], name(&renamed)["another-".len()..], "same weights");
}

#[test]
fn a_name_that_could_lead_elsewhere_is_refused() {
    let (bundles, mut request) = asked(&[Precision::F32]);
    for name in ["", "../up", "a/b", ".hidden", "two words", &"x".repeat(101)] {
        request.name = Some(name.into());
        let error = prepare(&request).unwrap_err();
        assert!(matches!(error, PrepareError::Request(_)), "{name:?}: {error}");
    }
    assert!(entries(bundles.path()).is_empty());
}

#[test]
fn a_bundle_is_its_own_preparation() {
    let bundles = tempfile::tempdir().unwrap();
    let elsewhere = tempfile::tempdir().unwrap();
    let directory = prepare(&request(source(), &[Precision::F32], bundles.path())).unwrap();
    let again =
        |precision| prepare(&request(Source::Directory(directory.clone()), &[precision], elsewhere.path()));
    assert_eq!(again(Precision::F32).unwrap(), directory);
    let error = again(Precision::F16).unwrap_err();
    assert!(error.to_string().contains("holds no f16 weights; it holds f32"), "{error}");
    assert!(error.is_bad_input());
    assert!(entries(elsewhere.path()).is_empty());
}
