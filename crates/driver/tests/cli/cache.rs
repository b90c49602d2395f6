//! A cache that cannot be written, and one that others change while it is used.

use std::path::Path;
use std::process::Stdio;

use serde_json::Value;

use crate::common::{Installation, Ran, row};
use crate::pipeline::wait_for;

/// What a run says whose cache is this.
fn with_cache(installation: &Installation, cache: &Path, arguments: &[&str]) -> Ran {
    let mut command = installation.driver(arguments);
    Ran::from(command.env("XDG_CACHE_HOME", cache).output().unwrap())
}

/// Nobody can make anything below these, whoever they are: one is a file, the other is of the kernel.
fn closed(installation: &Installation) -> [std::path::PathBuf; 2] {
    let file = installation.path("no-directory");
    std::fs::write(&file, "").unwrap();
    [file, "/proc".into()]
}

#[test]
fn a_cache_that_cannot_be_written_is_told_in_a_sentence() {
    let installation = Installation::new().timed("one", &[]);
    let arguments = ["--frameworks", "one", "--rounds", "1", "--model", "synthetic:llama-tiny"];
    for cache in closed(&installation) {
        let ran = with_cache(&installation, &cache, &arguments);
        assert!(matches!(ran.code, Some(1 | 2)), "{}", ran.stderr);
        let said: Vec<&str> = ran.stderr.lines().filter(|line| !line.trim().is_empty()).collect();
        let [sentence] = said.as_slice() else { panic!("{}", ran.stderr) };
        assert!(sentence.contains(cache.to_str().unwrap()), "{sentence}");
    }
}

#[test]
fn a_model_that_is_prepared_runs_whether_or_not_the_cache_can_be_written() {
    let installation = Installation::new().timed("one", &[]);
    let run = |cache: &Path, arguments: &[&str]| {
        let ran = with_cache(
            &installation,
            cache,
            &[&["--frameworks", "one", "--rounds", "1"], arguments].concat(),
        );
        assert_eq!(ran.code, Some(0), "{}", ran.stderr);
    };
    for cache in closed(&installation) {
        run(&cache, &[]);
    }
    // In the cache itself, where the mark of its use cannot be made.
    let bundles = installation.path("cache/photofinish/bundles");
    std::fs::create_dir_all(bundles.join(".a-1.used")).unwrap();
    std::fs::create_dir(bundles.join("a-1")).unwrap();
    for entry in std::fs::read_dir(installation.path("model")).unwrap().flatten() {
        std::fs::copy(entry.path(), bundles.join("a-1").join(entry.file_name())).unwrap();
    }
    let bundle = bundles.join("a-1").display().to_string();
    run(&installation.path("cache"), &["--model", &bundle]);
}

#[test]
fn weights_that_were_cut_off_since_they_were_prepared_are_refused() {
    let installation = Installation::new().timed("one", &[]);
    let weights = installation.path("model/f32.safetensors");
    let whole = std::fs::metadata(&weights).unwrap().len();
    for bytes in [0, 4, whole - 1] {
        std::fs::File::options().write(true).open(&weights).unwrap().set_len(bytes).unwrap();
        let ran = installation.run(&["--frameworks", "one"]);
        ran.refused(&["f32.safetensors"]);
        assert_eq!(ran.stderr.trim().lines().count(), 1, "{}", ran.stderr);
    }
}

#[test]
fn weights_that_another_process_replaces_during_a_run_strike_their_row() {
    // Starts of three seconds: time to replace the weights between the driver's look at them and their load.
    let installation = Installation::new().engine("one", &[("load_ms", "3000")]);
    let weights = installation.path("model/f32.safetensors");
    let mut command = installation.driver(&["--frameworks", "one", "--rounds", "1", "--format", "json"]);
    let child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    wait_for(|| {
        let entries = std::fs::read_dir(installation.path("results")).into_iter().flatten().flatten();
        entries.into_iter().any(|entry| entry.path().join("plan.json").is_file())
    });
    let mut other = std::fs::read(&weights).unwrap();
    *other.last_mut().unwrap() ^= 1;
    let beside = installation.path("model/other");
    std::fs::write(&beside, other).unwrap();
    std::fs::rename(beside, &weights).unwrap();
    let ran = Ran::from(child.wait_with_output().unwrap());
    assert_eq!(ran.code, Some(1), "{}", ran.stderr);
    let report: Value = ran.json();
    let reasons = &row(&report, "one")["reasons"];
    assert!(reasons[0].as_str().unwrap().contains("sha256"), "{reasons}");
    assert_ne!(row(&report, "one")["state"], "measured");
}
