//! The prepared models in the cache: listed, and removed when nobody uses them.

use std::fs::File;
use std::path::PathBuf;
use std::time::{Duration, SystemTime};

use serde_json::Value;

use crate::common::{Installation, Ran};

struct Cache(Installation);

impl Cache {
    fn new() -> Cache {
        Cache(Installation::new().engine("one", &[]))
    }

    fn path(&self, name: &str) -> PathBuf {
        self.0.path("cache/photofinish/bundles").join(name)
    }

    /// A bundle of this name that nobody has used for so many days.
    fn with(self, name: &str, days: u64) -> Cache {
        std::fs::create_dir_all(self.path(name)).unwrap();
        for entry in std::fs::read_dir(self.0.path("model")).unwrap() {
            let entry = entry.unwrap();
            std::fs::copy(entry.path(), self.path(name).join(entry.file_name())).unwrap();
        }
        let manifest = File::options().write(true).open(self.path(name).join("manifest.json")).unwrap();
        manifest.set_modified(SystemTime::now() - Duration::from_secs(days * 24 * 3600 + 60)).unwrap();
        self
    }

    fn run(&self, arguments: &[&str]) -> Ran {
        let ran = self.0.run(&[&["bundles"], arguments].concat());
        assert_eq!(ran.code, Some(0), "{}", ran.stderr);
        ran
    }

    fn listed(&self, arguments: &[&str]) -> Vec<Value> {
        let listed = self.run(&[arguments, &["--format", "json"]].concat()).json();
        listed["bundles"].as_array().unwrap().clone()
    }

    /// Names of the directories that are there.
    fn names(&self) -> Vec<String> {
        let entries = std::fs::read_dir(self.path("")).unwrap().map(|entry| entry.unwrap().path());
        let directories = entries.filter(|path| path.is_dir());
        let mut names: Vec<_> =
            directories.map(|path| path.file_name().unwrap().to_str().unwrap().to_owned()).collect();
        names.sort();
        names
    }

    /// As a process that uses the bundle has it.
    fn used(&self, name: &str) -> File {
        let path = self.path(&format!(".{name}.used"));
        let file = File::options().create(true).truncate(false).write(true).open(path).unwrap();
        file.lock_shared().unwrap();
        file
    }
}

#[test]
fn bundles_are_listed_with_what_they_hold_and_their_last_use() {
    let cache = Cache::new().with("old-1", 40).with("new-2", 0);
    let listed = cache.listed(&[]);
    let [new, old] = listed.as_slice() else { panic!("{listed:?}") };
    assert_eq!((&old["bundle"], &old["model"]), (&"old-1".into(), &"nothing".into()));
    assert_eq!(old["precisions"], serde_json::json!(["f32", "bf16", "f16", "int8"]));
    assert!(old["bytes"].as_u64().unwrap() > 10_000 && new["in_use"] == false, "{listed:?}");
    let ran = cache.run(&[]);
    assert!(ran.stdout.contains("40 days ago") && ran.stdout.contains("today"), "{}", ran.stdout);
    assert!(ran.stderr.starts_with("2 bundles, "), "{}", ran.stderr);
}

#[test]
fn an_empty_cache_has_no_bundles() {
    let ran = Cache::new().run(&[]);
    assert_eq!(ran.stdout, "");
    assert!(ran.stderr.starts_with("0 bundles, 0.0 MB, in "), "{}", ran.stderr);
}

#[test]
fn without_yes_nothing_is_removed() {
    let cache = Cache::new().with("old-1", 40).with("new-2", 0);
    let ran = cache.run(&["prune"]);
    assert!(ran.stderr.contains("nothing was removed; with --yes 1 bundle would go"), "{}", ran.stderr);
    assert_eq!(cache.names(), ["new-2", "old-1"]);
}

#[test]
fn what_was_not_used_for_long_goes_and_leaves_no_file_of_its_use() {
    let cache = Cache::new().with("old-1", 40).with("new-2", 29);
    let pruned = cache.listed(&["prune", "--yes"]);
    assert_eq!((&pruned[0]["removed"], &pruned[1]["removed"]), (&false.into(), &true.into()));
    assert_eq!(cache.names(), ["new-2"]);
    assert!(!cache.path(".old-1.used").exists());
    assert!(cache.run(&["prune", "--yes"]).stderr.contains("there is nothing to remove"));
}

#[test]
fn a_run_counts_as_a_use() {
    let cache = Cache::new().with("old-1", 40);
    let path = cache.path("old-1");
    let arguments = ["--frameworks", "one", "--rounds", "1", "--model", path.to_str().unwrap()];
    assert_eq!(cache.0.run(&arguments).code, Some(0));
    assert!(cache.run(&["prune"]).stdout.contains("used lately"));
}

#[test]
fn what_is_in_use_stays_whatever_is_asked_for() {
    let cache = Cache::new().with("old-1", 40);
    let use_of_it = cache.used("old-1");
    let all = ["prune", "--unused-for", "0", "--yes"];
    assert_eq!(cache.listed(&all)[0]["verdict"], "no: in use");
    assert_eq!(cache.names(), ["old-1"]);
    drop(use_of_it);
    assert_eq!(cache.listed(&all)[0]["verdict"], "yes");
}

#[test]
fn all_but_the_named_ones_go() {
    let cache = Cache::new().with("a-1", 0).with("b-2", 0).with("c-3", 0);
    cache.run(&["prune", "--unused-for", "0", "--keep", "a-1,c-3", "--yes"]);
    assert_eq!(cache.names(), ["a-1", "c-3"]);
    // All three are of the model "nothing".
    assert!(
        cache.run(&["prune", "--unused-for", "0", "--keep", "nothing"]).stdout.contains("named by --keep")
    );
}

#[test]
fn a_name_that_nobody_has_is_refused_before_anything_goes() {
    let cache = Cache::new().with("a-1", 40);
    let ran = cache.0.run(&["bundles", "prune", "--keep", "a-2", "--yes"]);
    ran.refused(&["--keep: no bundle is called \"a-2\"; there are a-1"]);
    assert_eq!(cache.names(), ["a-1"]);
}

#[test]
fn the_litter_of_a_crash_goes_unless_someone_writes_there() {
    let cache = Cache::new().with(".a-1.partial", 0);
    let writer = File::create(cache.path(".a-1.lock")).unwrap();
    writer.lock().unwrap();
    assert_eq!(cache.listed(&["prune", "--yes"])[0]["verdict"], "no: in use");
    drop(writer);
    assert_eq!(cache.listed(&["prune", "--yes"])[0]["unfinished"], true);
    assert_eq!(cache.names(), [""; 0]);
}

#[test]
fn what_is_not_prepare_s_is_left_alone() {
    let cache = Cache::new().with("a-1", 40);
    std::fs::create_dir(cache.path("mine")).unwrap();
    std::fs::write(cache.path("mine/notes.txt"), "").unwrap();
    cache.run(&["prune", "--unused-for", "0", "--yes"]);
    assert_eq!(cache.names(), ["mine"]);
}
