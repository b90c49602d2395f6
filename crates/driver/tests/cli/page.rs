//! Pages and pictures: made by every run, and made again from the saved files.

use std::path::{Path, PathBuf};

use crate::common::{Installation, Ran, of_results};

fn two() -> Installation {
    Installation::new().timed("one", &[("token_ms", "2")]).timed("two", &[("token_ms", "4")])
}

fn report(installation: &Installation, what: &str) -> Ran {
    of_results(&installation.path("results"), &format!("report {what}"))
}

/// The page of the only run. The failed framework is there with the reason.
pub(crate) fn has_figures_and_verdicts_and_asks_nobody_for_anything(
    installation: &Installation,
    failed: &str,
) {
    let page = installation.result("report.html");
    let figures = ["Peak memory by part", "R11", "Gaps between tokens", "data:application/json;base64,"];
    let of_failed = [format!("{failed} failed: "), format!("scope=\"col\">{failed}")];
    for told in figures.into_iter().chain(of_failed.iter().map(String::as_str)) {
        assert!(page.contains(told), "{told:?} is not in the page");
    }
    for asking in ["src=", "@import", "url(", "href=\"http"] {
        assert!(!page.contains(asking), "{asking:?} is in the page");
    }
    // Its own script copies a text, and no other may run.
    assert_eq!(page.matches("<script").count(), 1);
    assert!(
        page.contains("default-src 'none'") && page.contains("script-src 'sha256-"),
        "the page has no policy"
    );
}

#[test]
fn the_history_has_a_page_too() {
    let directory = crate::history::changed(|text| text);
    of_results(directory.path(), "history --page").exits(0);
    let page = std::fs::read_to_string(directory.path().join("history.html")).unwrap();
    assert!(page.matches(">quick</").count() >= 2 && page.contains("over time"), "{page}");
    assert!(directory.path().join("performance_over_time.png").is_file());
}

#[test]
fn what_is_no_report_is_told_in_a_sentence() {
    let installation = two();
    report(&installation, "").refused(&["no results in"]);
    report(&installation, "history").refused(&["no history in"]);
    let directory = installation.path("results/old");
    std::fs::create_dir(&directory).unwrap();
    let path = directory.to_str().unwrap();
    report(&installation, path).refused(&["not the results directory"]);
    for (text, told) in [
        ("{\"schema\": 3}", "its schema is 3, and this program reads 5"),
        ("{}", "no schema"),
        ("[1", "it is not the report of a comparison"),
        ("{\"schema\": 5}", "missing field `environment`"),
        ("{\"schema\": 5, \"rows\": 7}", "invalid type"),
    ] {
        std::fs::write(directory.join("report.json"), text).unwrap();
        report(&installation, path).refused(&[told]);
    }
}

/// Pages below a directory.
fn pages(directory: &Path) -> Vec<PathBuf> {
    let entries = std::fs::read_dir(directory).unwrap().map(|entry| entry.unwrap().path());
    let (directories, files): (Vec<_>, Vec<_>) = entries.partition(|path| path.is_dir());
    let here = files.into_iter().filter(|file| file.extension().is_some_and(|extension| extension == "html"));
    here.chain(directories.iter().flat_map(|directory| pages(directory))).collect()
}

/// Relative links of a page, with whether each leads to a file.
fn links(page: &Path) -> Vec<(String, bool)> {
    let text = std::fs::read_to_string(page).unwrap();
    let targets = ["href=\"", "src=\""].map(|start| text.split(start).skip(1).collect::<Vec<_>>()).concat();
    let targets = targets.into_iter().filter_map(|rest| rest.split(['"', '#']).next());
    let relative = targets.filter(|target| !target.is_empty() && !target.contains(':'));
    relative.map(|target| (target.to_owned(), page.parent().unwrap().join(target).is_file())).collect()
}

fn dead(directory: &Path) -> Vec<String> {
    let of_page = |page: &PathBuf| -> Vec<String> {
        let dead = links(page).into_iter().filter(|(_, is_there)| !is_there);
        dead.map(|(target, _)| format!("{} links to {target}", page.display())).collect()
    };
    pages(directory).iter().flat_map(of_page).collect()
}

#[test]
fn a_study_has_a_page_that_leads_to_those_of_its_cells_and_every_link_leads_to_a_file() {
    let installation = two();
    installation.run("sweep generate --frameworks one,two --prompt-tokens 4,8 --rounds 1").exits(0);
    let (results, page) = (installation.results(), installation.result("report.html"));
    assert!(page.contains("sweep generate") && page.contains("prompt 8"), "{page}");
    let link = page.split("<a href=\"").find(|link| link.contains("/report.html")).unwrap();
    assert!(results.join(link.split('"').next().unwrap()).is_file(), "{link}");
    assert_eq!(pages(&results).len(), 3, "the study's and its cells'");
    let count = |page: &Path| links(page).len();
    let before = count(&results.join("report.html"));
    assert!(before >= 5, "{before}");
    assert_eq!(dead(&results), [""; 0]);
    // Written again without the cells' pages, as if only a part had been kept.
    for page in pages(&results).iter().filter(|page| page.parent() != Some(&results)) {
        std::fs::remove_file(page).unwrap();
    }
    report(&installation, "latest").exits(0);
    assert_eq!((dead(&results), count(&results.join("report.html"))), (vec![], before - 2));
}

#[test]
fn every_link_of_a_published_page_leads_to_a_file() {
    let published = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../results/published");
    assert!(!pages(&published).is_empty());
    assert_eq!(dead(&published), [""; 0]);
}
