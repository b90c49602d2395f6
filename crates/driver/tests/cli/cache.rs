//! The cache: prepared models are listed, and removed when nothing uses them; one that cannot be written, and one that others
//! change while it is used.

use std::fs::File;
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

use serde_json::{Value, json};

use crate::common::{Installation, Ran, array, heard, outcome, wait_for};
use crate::report::copied;

struct Cache(Installation);

impl Cache {
    fn new() -> Cache {
        Cache(Installation::new().engine("one", &[]))
    }

    fn path(&self, name: &str) -> PathBuf {
        self.0.path("cache/photofinish/bundles").join(name)
    }

    /// Adds a bundle of this name that has not been used for so many days.
    fn with(self, name: &str, days: u64) -> Cache {
        copied(&self.0.path("model"), self.path(name));
        let manifest = File::options().write(true).open(self.path(name).join("manifest.json")).unwrap();
        manifest.set_modified(SystemTime::now() - Duration::from_secs(days * 24 * 3600 + 60)).unwrap();
        self
    }

    fn run(&self, line: &str) -> Ran {
        self.0.run(&format!("list cache {line}")).exits(0)
    }

    fn listed(&self, line: &str) -> Vec<Value> {
        array(&self.0.json(0, &format!("list cache {line}"))["bundles"]).to_vec()
    }

    /// Names of the directories that are there.
    fn names(&self) -> Vec<String> {
        let entries = std::fs::read_dir(self.path("")).unwrap().flatten();
        let directories = entries.filter(|entry| entry.path().is_dir());
        let mut names: Vec<_> = directories.map(|entry| entry.file_name().into_string().unwrap()).collect();
        names.sort();
        names
    }
}

#[test]
fn bundles_are_listed_with_what_they_hold_and_their_last_use() {
    assert_eq!(Cache::new().listed(""), [Value::Null; 0]);
    let cache = Cache::new().with("old-1", 40).with("new-2", 0);
    let listed = cache.listed("");
    let [new, old] = listed.as_slice() else { panic!("{listed:?}") };
    assert_eq!((&old["bundle"], &old["model"]), (&"old-1".into(), &"nothing".into()));
    assert_eq!(old["precisions"], json!(["f32", "bf16", "f16", "int8"]));
    assert!(old["bytes"].as_u64().unwrap() > 10_000 && new["in_use"] == false, "{listed:?}");
    let table = cache.run("").stdout;
    assert!(table.contains("40 days ago") && table.contains("today"), "{table}");
}

#[test]
fn what_was_not_used_for_long_goes_unless_that_is_only_tried_and_leaves_no_file_of_its_use() {
    let cache = Cache::new().with("old-1", 40).with("new-2", 29);
    let fates =
        |line: &str| cache.listed(line).iter().map(|bundle| bundle["removed"] == true).collect::<Vec<_>>();
    assert_eq!(fates("--prune --dry-run"), [false, false]);
    assert_eq!(cache.names(), ["new-2", "old-1"]);
    assert_eq!(fates("--prune"), [false, true]);
    assert_eq!(cache.names(), ["new-2"]);
    assert!(!cache.path(".old-1.used").exists());
    assert_eq!(fates("--prune"), [false]);
}

#[test]
fn what_is_in_use_or_was_used_lately_stays() {
    let cache = Cache::new().with("old-1", 40);
    // The bundle is locked as by a process that uses it.
    let path = cache.path(".old-1.used");
    let used = File::options().create(true).truncate(false).write(true).open(path).unwrap();
    used.lock_shared().unwrap();
    let all = "--prune --unused-for 0";
    assert_eq!(cache.listed(all)[0]["verdict"], "no: in use");
    assert_eq!(cache.names(), ["old-1"]);
    drop(used);
    let bundle = cache.path("old-1").display().to_string();
    cache.0.run(&format!("--frameworks one --rounds 1 --model {bundle}")).exits(0);
    assert_eq!(cache.listed("--prune --dry-run")[0]["verdict"], "no: used lately", "a run counts as a use");
    assert_eq!(cache.listed(all)[0]["verdict"], "yes");
}

#[test]
fn all_but_the_named_ones_go() {
    let cache = Cache::new().with("a-1", 0).with("b-2", 0).with("c-3", 0);
    let unknown = "list cache --prune --keep a-2";
    cache.0.refuses(&[(unknown, &["--keep", "\"a-2\"", "a-1, b-2, c-3"])]);
    cache.run("--prune --unused-for 0 --keep a-1,c-3");
    assert_eq!(cache.names(), ["a-1", "c-3"]);
    // All three are of the model "nothing".
    assert_eq!(cache.listed("--prune --unused-for 0 --keep nothing")[0]["verdict"], "no: named by --keep");
}

#[test]
fn the_litter_of_a_crash_goes_unless_someone_writes_there_and_what_is_not_prepare_s_stays() {
    let cache = Cache::new().with(".a-1.partial", 0).with("b-1", 40);
    std::fs::create_dir(cache.path("mine")).unwrap();
    std::fs::write(cache.path("mine/notes.txt"), "").unwrap();
    let writer = File::create(cache.path(".a-1.lock")).unwrap();
    writer.lock().unwrap();
    let litter = |listed: Vec<Value>| listed.into_iter().find(|bundle| bundle["unfinished"] == true).unwrap();
    assert_eq!(litter(cache.listed("--prune"))["verdict"], "no: in use");
    drop(writer);
    assert_eq!(litter(cache.listed("--prune"))["removed"], true);
    assert_eq!(cache.names(), ["mine"]);
}

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
    let copy = copied(&installation.path("model"), bundles.join("a-1"));
    let model = format!("--model {}", copy.display());
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
    let child = heard(installation.driver("--frameworks one --rounds 1 --cold-load off --format json"));
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
