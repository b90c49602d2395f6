//! `photofinish collection` and `photofinish site`: from a run to a page, and the input that is refused.

use std::path::{Path, PathBuf};

use serde_json::json;

use crate::common::{Installation, Ran, photofinish, read};
use crate::report::{change, copied};

fn typed(line: &str) -> Ran {
    Ran::output_of(&mut photofinish(line))
}

/// The archive of a comparison, as if the checkout had no changes.
fn archive(installation: &Installation) -> PathBuf {
    installation.run("--frameworks quick,slow --seed 7").exits(0);
    let run = installation.results();
    change(&run.join("environment.json"), |environment| environment["git_modified"] = json!(false));
    change(&run.join("report.json"), |report| report["environment"]["git_modified"] = json!(false));
    let packed = typed(&format!("report {} --archive", run.display())).exits(0).stdout;
    PathBuf::from(packed.trim())
}

#[test]
fn a_run_becomes_a_page_and_a_forged_one_does_not() {
    let installation =
        Installation::new().timed("quick", &[("token_ms", "1")]).timed("slow", &[("token_ms", "2")]);
    let archive = archive(&installation);
    let [all, site] = ["all", "site"].map(|name| installation.path(name));
    std::fs::create_dir(&all).unwrap();
    let add = format!("collection add {} --to {}", archive.display(), all.display());
    let added = typed(&add).exits(0).stdout;
    typed(&add).refused(&["is there already"]);
    let check = format!("collection check {}", all.display());
    assert!(typed(&check).exits(0).stdout.starts_with("1 results, all as their samples say"));

    let make = format!("site {} --collection {} --url https://example.org", site.display(), all.display());
    for _ in 0..2 {
        typed(&make).exits(0);
    }
    let data = read(&site.join("results.json"));
    let address = data["pages"][0]["address"].as_str().unwrap();
    assert!(address.starts_with("pairs/quick-vs-slow/nothing/f32/"), "{address}");
    let page = std::fs::read_to_string(site.join(address).join("index.html")).unwrap();
    let preview = page.split("og:image\" content=\"https://example.org/").nth(1).unwrap();
    assert!(site.join(preview.split('"').next().unwrap()).is_file(), "{page}");
    let linked = page.split("href=\"").skip(1).filter_map(|link| link.split(['"', '#']).next());
    for link in linked.filter(|link| !link.is_empty() && !link.contains(':')) {
        assert!(site.join(address).join(link).exists(), "{link}");
    }
    assert!(site.join("CITATION.cff").is_file() && !site.join(".earlier").exists());

    let report = PathBuf::from(added.trim()).join("report.json");
    change(&report, |report| report["comparisons"][0]["advantage"] = json!(99.0));
    let before = std::fs::read(site.join("index.html")).unwrap();
    for line in [&check, &make] {
        let ran = typed(line).exits(1);
        assert!(ran.stderr.contains("/report.json: its sha256 is"), "{}", ran.stderr);
        assert_eq!(ran.stderr.matches("error: ").count(), 1, "{}", ran.stderr);
    }
    assert_eq!(std::fs::read(site.join("index.html")).unwrap(), before, "the earlier site stays");
}

/// One of them, because pictures are slow. Crate `collection` checks them all.
#[test]
fn a_published_result_becomes_a_site_in_a_new_or_empty_place_alone() {
    let directory = tempfile::tempdir().unwrap();
    let published = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../results/collection");
    let entries = std::fs::read_dir(published).unwrap().map(|entry| entry.unwrap().path());
    let size = |entry: &PathBuf| std::fs::metadata(entry.join("samples.jsonl")).unwrap().len();
    let entry = entries.filter(|path| path.is_dir()).min_by_key(size).unwrap();
    let all = directory.path().join("all");
    copied(&entry, all.join(entry.file_name().unwrap()));
    let make = |out: &str| {
        typed(&format!("site {} --collection {}", directory.path().join(out).display(), all.display()))
    };
    make("site").exits(0);
    let page = std::fs::read_to_string(directory.path().join("site/index.html")).unwrap();
    assert!(
        page.contains("Which inference framework is faster") && page.contains("<tr data-fields="),
        "{page}"
    );
    make("all").refused(&["holds something else than a site"]);
    typed("collection check /nowhere").refused(&["cannot read the collection /nowhere"]);
}
