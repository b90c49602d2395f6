//! The collection of this checkout, and forgeries of one of its entries.

use std::fs;
use std::path::{Path, PathBuf};

use judge::records::collection::Tier;
use measure::saved::{ENVIRONMENT, PLAN, REPORT, SAMPLES};
use serde_json::{Value, json};

use super::*;

fn published() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../results/collection")
}

/// A collection of one entry, a copy of the smallest of the checkout.
struct Forgery {
    directory: tempfile::TempDir,
    name: String,
}

impl Forgery {
    fn new() -> Forgery {
        let entries = fs::read_dir(published()).unwrap().map(|entry| entry.unwrap().path());
        let size = |path: &PathBuf| fs::metadata(path.join(SAMPLES)).map_or(u64::MAX, |found| found.len());
        let smallest = entries.filter(|path| path.is_dir()).min_by_key(size).unwrap();
        let name = smallest.file_name().unwrap().to_str().unwrap().to_owned();
        let forgery = Forgery { directory: tempfile::tempdir().unwrap(), name };
        forgery.copy(&smallest, &forgery.name);
        forgery
    }

    fn copy(&self, from: &Path, name: &str) {
        fs::create_dir(self.directory.path().join(name)).unwrap();
        for file in names() {
            fs::copy(from.join(file), self.directory.path().join(name).join(file)).unwrap();
        }
    }

    fn path(&self, file: &str) -> PathBuf {
        self.directory.path().join(&self.name).join(file)
    }

    /// Changes a file of one value, or every line of the journal, and corrects the hashes, as a careful forger does.
    fn forge(&self, file: &str, change: impl Fn(&mut Value)) {
        let text = fs::read_to_string(self.path(file)).unwrap();
        let changed = |line: &str| {
            let mut value: Value = serde_json::from_str(line).unwrap();
            change(&mut value);
            value.to_string() + "\n"
        };
        fs::write(self.path(file), text.lines().map(changed).collect::<String>()).unwrap();
        self.sum();
    }

    fn sum(&self) {
        let line = |file: &str| format!("{}  {file}\n", bundle::sha256_of(&self.path(file)).unwrap());
        let sums: String = names().filter(|file| *file != SUMS).map(line).collect();
        fs::write(self.path(SUMS), sums).unwrap();
    }

    fn problems(&self) -> Vec<String> {
        check(self.directory.path()).unwrap().problems.iter().map(ToString::to_string).collect()
    }

    /// Asserts that one problem names this file and says all of this.
    fn refused(&self, file: &str, parts: &[&str]) {
        let problems = self.problems();
        let place = if file.is_empty() { self.name.clone() } else { format!("{}/{file}", self.name) };
        let fits = |problem: &&String| {
            problem.starts_with(&format!("{place}: ")) && parts.iter().all(|part| problem.contains(part))
        };
        assert!(problems.iter().any(|problem| fits(&problem)), "{place}: {parts:?} is not in {problems:#?}");
    }
}

#[test]
fn the_published_collection_is_as_its_samples_say() {
    let checked = check(&published()).unwrap();
    let problems: Vec<String> = checked.problems.iter().map(ToString::to_string).collect();
    assert!(problems.is_empty(), "{problems:#?}");
    assert!(checked.entries.iter().any(|entry| entry.tier == Tier::Ours));
}

#[test]
fn an_edited_sample_is_refused_whether_its_hash_was_corrected_or_not() {
    let forgery = Forgery::new();
    assert_eq!(forgery.problems(), [""; 0]);
    let text = fs::read_to_string(forgery.path(SAMPLES)).unwrap();
    fs::write(forgery.path(SAMPLES), text + " \n").unwrap();
    forgery.refused(SAMPLES, &["its sha256 is", "changed after it was packed", "report DIR --archive"]);
    let forgery = Forgery::new();
    // Every request of one contender takes half of its time.
    forgery.forge(SAMPLES, |fact| {
        if fact["fact"] == "block" {
            let label = fact["turns"][0][0].clone();
            for turn in fact["turns"].as_array_mut().unwrap().iter_mut().filter(|turn| turn[0] == label) {
                for mark in turn[1]["sample"]["marks_ns"].as_array_mut().unwrap() {
                    *mark = json!(mark.as_u64().unwrap() / 2);
                }
            }
        }
    });
    forgery.refused(REPORT, &["rows[", "and the samples give", "--rejudge"]);
}

#[test]
fn an_edited_report_is_refused_by_the_field() {
    let forgery = Forgery::new();
    forgery.forge(REPORT, |report| report["rows"][0]["metrics"][0]["typical"] = json!(1.25));
    forgery.refused(REPORT, &["rows[0].metrics[0].typical is 1.25, and the samples give"]);
    let forgery = Forgery::new();
    forgery.forge(REPORT, |report| drop(report["comparisons"].as_array_mut().unwrap().pop()));
    forgery.refused(REPORT, &["comparisons has", "entries, and the samples give"]);
}

#[test]
fn a_foreign_hash_of_the_weights_is_refused() {
    let foreign = "0123456789abcdef".repeat(4);
    let forgery = Forgery::new();
    forgery.forge(SAMPLES, |fact| {
        if fact["fact"] == "hashed" {
            fact["sha256"] = json!(foreign);
        }
    });
    forgery.refused(SAMPLES, &[&foreign, "the bundle's manifest does not name"]);
    // Consistent with itself, but not with the entry that has the model of that name.
    let forgery = Forgery::new();
    forgery.copy(&forgery.path(""), "a-second");
    let second = Forgery { name: "a-second".into(), ..forgery };
    let change = |files: &mut Value| {
        for (_, file) in
            files.as_object_mut().unwrap().iter_mut().filter(|(name, _)| name.ends_with("safetensors"))
        {
            file["sha256"] = json!(foreign);
        }
    };
    second.forge(PLAN, |plan| change(&mut plan["prepared"]["manifest"]["files"]));
    second.forge(REPORT, |report| change(&mut report["model"]["manifest"]["files"]));
    second.forge(ENVIRONMENT, |environment| environment["started"] = json!("2026-12-01T00:00:00Z"));
    let problems = second.problems();
    assert!(
        problems.iter().any(|problem| problem.starts_with("a-second/") && problem.contains(&foreign)),
        "{problems:#?}"
    );
}

#[test]
fn a_run_that_is_there_already_is_refused_under_any_name() {
    let forgery = Forgery::new();
    forgery.copy(&forgery.path(""), "zz-again");
    let (name, second) = (forgery.name.clone(), Forgery { name: "zz-again".into(), ..forgery });
    second.refused(SAMPLES, &[&format!("it is the run of {name}"), "remove one"]);
    second.forge(ENVIRONMENT, |environment| environment["started"] = json!("2026-12-01T00:00:00Z"));
    second.forge(REPORT, |report| report["environment"]["started"] = json!("2026-12-01T00:00:00Z"));
    second.refused(SAMPLES, &[&format!("it is the run of {name}")]);
}

#[test]
fn paths_and_names_of_people_are_refused_by_the_field() {
    let forgery = Forgery::new();
    forgery.forge(ENVIRONMENT, |environment| {
        environment["host"] = json!("carols-box");
        environment["command"] = json!(["photofinish", "--model", "/srv/carol/m.gguf"]);
    });
    forgery.refused(ENVIRONMENT, &["command[2] holds a path", "report DIR --archive"]);
    forgery.refused(ENVIRONMENT, &["host holds a path, or the name of a host"]);
    assert!(forgery.problems().iter().all(|problem| !problem.contains("carol")), "and not repeated");
}

#[test]
fn files_that_no_submission_has_links_and_sizes_are_refused_before_they_are_opened() {
    let forgery = Forgery::new();
    fs::write(forgery.path("notes.txt"), "").unwrap();
    forgery.refused("notes.txt", &["no submission has such a file", "SHA256SUMS"]);
    let forgery = Forgery::new();
    fs::write(forgery.path(SAMPLES), vec![b' '; 30_000_000]).unwrap();
    forgery.refused(SAMPLES, &["it has 30.0 MB, and at most 20 MB are allowed"]);
    let forgery = Forgery::new();
    fs::remove_file(forgery.path(PLAN)).unwrap();
    forgery.refused(PLAN, &["it is missing"]);
    #[cfg(unix)]
    {
        std::os::unix::fs::symlink("/etc/passwd", forgery.path(PLAN)).unwrap();
        forgery.refused(PLAN, &["it is a link"]);
    }
    fs::create_dir(forgery.directory.path().join("..x")).unwrap();
    assert!(forgery.problems().iter().any(|problem| problem.starts_with("..x: its name is not one of")));
}

#[test]
fn a_text_that_nobody_wrote_by_hand_and_a_name_that_leads_elsewhere_are_refused() {
    let forgery = Forgery::new();
    forgery.forge(PLAN, |plan| plan["suite"] = json!("x".repeat(300_000)));
    forgery.refused(PLAN, &["suite has 300000 characters, and at most 200000"]);
    let forgery = Forgery::new();
    let name = json!("x..");
    forgery.forge(PLAN, |plan| plan["model"] = name.clone());
    forgery.forge(REPORT, |report| report["plan"]["model"] = name.clone());
    forgery.refused(PLAN, &["is named \"x..\", which is a path"]);
    let forgery = Forgery::new();
    forgery.forge(PLAN, |plan| plan["prepared"]["name"] = json!("../../etc"));
    forgery.refused(PLAN, &["prepared.name holds a path"]);
}

#[test]
fn a_retired_entry_stays_if_it_is_as_it_was_accepted() {
    let forgery = Forgery::new();
    forgery.forge(REPORT, |report| report["rows"][0]["metrics"][0]["typical"] = json!(1.25));
    let tiers = |sums: &str| {
        let text = format!("[retired]\n\"{}\" = \"{sums}\"\n", forgery.name);
        fs::write(forgery.directory.path().join("tiers.toml"), text).unwrap();
    };
    tiers(&bundle::sha256_of(&forgery.path(SUMS)).unwrap());
    let checked = check(forgery.directory.path()).unwrap();
    assert!(checked.problems.is_empty(), "{:?}", checked.problems);
    assert!(checked.entries[0].retired.is_some());
    assert_eq!(checked.entries[0].report.rows[0].metrics[0].typical, Some(1.25), "as it was submitted");
    tiers("another");
    forgery.refused(SUMS, &["changed after it was accepted"]);
}

#[test]
fn what_is_said_of_entries_must_be_so() {
    let forgery = Forgery::new();
    forgery.copy(&forgery.path(""), "zz-again");
    let text = format!("ours = [\"gone\"]\n[reproduced]\n\"{}\" = \"zz-again\"\n", forgery.name);
    fs::write(forgery.directory.path().join("tiers.toml"), text).unwrap();
    let problems = forgery.problems().join("\n");
    assert!(problems.contains("it names gone, which is no entry"), "{problems}");
    assert!(
        problems.contains("does not reproduce") && problems.contains("machines of one make"),
        "{problems}"
    );
    fs::write(forgery.directory.path().join("tiers.toml"), "best = []").unwrap();
    assert!(forgery.problems().join("\n").contains("tiers.toml: unknown field `best`"));
}
