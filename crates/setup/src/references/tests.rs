use super::*;
use crate::tooling;

fn references(cache: &Path) -> References {
    let sources = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../references/python");
    let binaries = cache.join("no-binaries");
    let (cache, target) = (cache.to_owned(), Target::Cpu);
    References { cache, sources, binaries, command: "photofinish setup", target }
}

fn in_python() -> impl Iterator<Item = (Reference, References)> {
    let references = references(Path::new(""));
    let all =
        [Target::Cpu, Target::Cuda].into_iter().flat_map(|target| on(target).map(move |one| (one, target)));
    let in_python = all.filter(|(reference, target)| reference.environment(*target).is_some());
    in_python.map(move |(reference, target)| (reference, References { target, ..references.clone() }))
}

#[test]
fn every_package_is_pinned_by_version_and_hash_and_no_registry_is_named() {
    for (reference, references) in in_python() {
        let (file, text) = references.requirements(reference).unwrap();
        let text = text.replace("\\\n", " ");
        let pins: Vec<_> =
            text.lines().filter(|line| !line.is_empty() && !line.trim().starts_with('#')).collect();
        let loose = pins.iter().find(|pin| !pin.contains("==") || !pin.contains("--hash=sha256:"));
        assert_eq!(loose, None, "{reference}");
        assert!(!text.contains("://") && !text.contains("--index"), "{reference}");
        let asked = fs::read_to_string(file.with_extension("in")).unwrap();
        for asked in asked.lines().filter(|line| !line.starts_with('#')) {
            // For `package[extra]==1.0` the closure has the package, and the dependencies of the extra.
            let (package, version) = asked.split_once("==").unwrap();
            let pin = format!("{}=={version}", package.split('[').next().unwrap());
            assert!(pins.iter().any(|it| it.starts_with(&pin)), "{reference}: {asked} is not in its closure");
        }
    }
}

#[test]
fn references_that_share_an_environment_agree_on_every_pin() {
    let mut pinned = std::collections::BTreeMap::new();
    for (reference, references) in in_python() {
        let (_, text) = references.requirements(reference).unwrap();
        for pin in text.lines().filter(|line| line.contains("==") && !line.trim().starts_with('#')) {
            // With the Python version that it is for, unless it is for all.
            let (package, rest) = pin.trim_end_matches('\\').split_once("==").unwrap();
            let (version, python) = rest.split_once(';').unwrap_or((rest, ""));
            let place =
                (reference.environment(references.target), package.to_owned(), python.trim().to_owned());
            let before = pinned.entry(place).or_insert_with(|| version.trim().to_owned());
            assert_eq!(*before, version.trim(), "{reference}: {package}");
        }
    }
}

#[test]
fn what_is_not_set_up_is_said_with_the_command() {
    let cache = tempfile::tempdir().unwrap();
    let references = references(cache.path());
    let error = references.check(Reference::Openvino).unwrap_err().to_string();
    assert!(error.contains("photofinish setup --references=openvino"), "{error}");
    let python = references.environment("venv-openvino").python();
    fs::create_dir_all(python.parent().unwrap()).unwrap();
    fs::write(&python, "").unwrap();
    let (_, text) = references.requirements(Reference::Openvino).unwrap();
    fs::write(references.receipt(Reference::Openvino), &text).unwrap();
    assert!(references.check(Reference::Openvino).is_err(), "the worker would not find its environment");
    fs::write(references.whereabouts(Reference::Openvino), "venv-openvino/bin/python\n").unwrap();
    references.check(Reference::Openvino).unwrap();
    fs::write(references.receipt(Reference::Openvino), "numpy==1.0\n").unwrap();
    assert!(references.check(Reference::Openvino).is_err(), "another pin counts as not set up");
    fs::write(references.receipt(Reference::Openvino), &text).unwrap();
    fs::remove_file(&python).unwrap();
    assert!(references.check(Reference::Openvino).is_err(), "an interpreter that is gone runs nothing");
}

#[test]
fn on_a_gpu_packages_of_its_own_are_asked_for_and_what_has_none_is_refused() {
    let cache = tempfile::tempdir().unwrap();
    let on_gpu = References { target: Target::Cuda, ..references(cache.path()) };
    let error = on_gpu.check(Reference::Jax).unwrap_err().to_string();
    assert_eq!(error, "jax: not set up; photofinish setup --device cuda --references=jax");
    let error = on_gpu.set_up(&[Reference::Genai], Reporter::new(true), |_| Ok(())).unwrap_err();
    assert!(tooling::is_bad_input(&error));
    assert!(error.to_string().ends_with("on a GPU there are transformers, jax, tinygrad"), "{error}");
}

#[test]
fn what_an_installation_lacks_is_named() {
    let cache = tempfile::tempdir().unwrap();
    for reference in Reference::ALL {
        let Some(worker) = reference.worker() else { continue };
        let set_up = references(cache.path()).set_up(&[reference], Reporter::new(true), |_| Ok(()));
        let error = set_up.unwrap_err().to_string();
        assert!(error.contains(worker) && error.contains("install photofinish again"), "{error}");
    }
}
