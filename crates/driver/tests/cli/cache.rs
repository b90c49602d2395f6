//! A cache that cannot be written, and one that others change while it is used.

use std::path::Path;
use std::process::Stdio;

use crate::common::{Installation, Ran, outcome};
use crate::pipeline::wait_for;

/// The output of a run with this cache.
fn with_cache(installation: &Installation, cache: &Path, more: &str) -> Ran {
    let mut command = installation.driver(&format!("--frameworks one --rounds 1 {more}"));
    Ran::output_of(command.env("XDG_CACHE_HOME", cache))
}

/// In the first two caches nothing can be created at all, and in the last no mark of a bundle's use.
#[test]
fn a_model_that_is_prepared_runs_whether_or_not_the_cache_can_be_written() {
    let installation = Installation::new().timed("one", &[]);
    // No user can create anything below these: one is a file, the other belongs to the kernel.
    let file = installation.path("no-directory");
    std::fs::write(&file, "").unwrap();
    for cache in [file, "/proc".into()] {
        with_cache(&installation, &cache, "").exits(0);
        let ran = with_cache(&installation, &cache, "--model synthetic:llama-tiny");
        assert!(matches!(ran.code, Some(1 | 2)), "{}", ran.stderr);
        let said: Vec<&str> = ran.stderr.lines().filter(|line| !line.trim().is_empty()).collect();
        let [sentence] = said.as_slice() else { panic!("{}", ran.stderr) };
        assert!(sentence.contains(cache.to_str().unwrap()), "{sentence}");
    }
    let bundles = installation.path("cache/photofinish/bundles");
    std::fs::create_dir_all(bundles.join(".a-1.used")).unwrap();
    std::fs::create_dir(bundles.join("a-1")).unwrap();
    for entry in std::fs::read_dir(installation.path("model")).unwrap().flatten() {
        std::fs::copy(entry.path(), bundles.join("a-1").join(entry.file_name())).unwrap();
    }
    let model = format!("--model {}", bundles.join("a-1").display());
    with_cache(&installation, &installation.path("cache"), &model).exits(0);
}

#[test]
fn weights_that_were_cut_off_or_changed_since_they_were_prepared_are_refused() {
    let installation = Installation::new().timed("one", &[]);
    let weights = installation.path("model/f32.safetensors");
    let mut bytes = std::fs::read(&weights).unwrap();
    *bytes.last_mut().unwrap() ^= 1;
    std::fs::write(&weights, &bytes).unwrap();
    installation.refuses(&[("--frameworks one", &["f32.safetensors", "sha256"])]);
    for length in [bytes.len() - 1, 4, 0] {
        std::fs::write(&weights, &bytes[..length]).unwrap();
        let ran = installation.run("--frameworks one");
        ran.refused(&["f32.safetensors"]);
        assert_eq!(ran.stderr.trim().lines().count(), 1, "{}", ran.stderr);
    }
}

#[test]
fn weights_that_another_process_replaces_during_a_run_strike_their_row() {
    // Slow loads leave enough time to replace the weights between the driver's check and the load.
    let installation = Installation::new().engine("one", &[("load_ms", "1500")]);
    let weights = installation.path("model/f32.safetensors");
    let mut command = installation.driver("--frameworks one --rounds 1 --cold-load off --format json");
    let child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    wait_for(|| installation.all_results().iter().any(|results| results.join("plan.json").is_file()));
    let mut other = std::fs::read(&weights).unwrap();
    *other.last_mut().unwrap() ^= 1;
    let beside = installation.path("model/other");
    std::fs::write(&beside, other).unwrap();
    std::fs::rename(beside, &weights).unwrap();
    let report = Ran::from(child.wait_with_output().unwrap()).exits(1).json();
    let (state, reason) = outcome(&report, "one");
    assert!(state != "measured" && reason.contains("sha256"), "{state}: {reason}");
}
