//! `photofinish report`: everything that was written can be read, and decided again.

use std::path::{Path, PathBuf};
use std::time::Duration;

use serde_json::{Value, json};

use crate::common::{
    Installation, Ran, array, lines, of_results, outcome, photofinish, read, unheard, verdict,
};

pub(crate) fn two() -> Installation {
    Installation::new().timed("quick", &[("token_ms", "1")]).timed("slow", &[("token_ms", "2")])
}

fn report(installation: &Installation, directory: &Path, more: &str) -> Ran {
    let mut command = photofinish(&format!("report {} {more}", directory.display()));
    Ran::output_of(command.arg("--configs").arg(installation.path("configs")))
}

fn write(path: &Path, value: &Value) {
    std::fs::write(path, serde_json::to_string(value).unwrap()).unwrap();
}

pub(crate) fn change(path: &Path, change: impl Fn(&mut Value)) {
    let mut value = read(path);
    change(&mut value);
    write(path, &value);
}

/// Changes every fact of a journal.
fn forge(directory: &Path, change: impl Fn(&mut Value)) {
    let journal = directory.join("samples.jsonl");
    let mut facts = lines(&std::fs::read_to_string(&journal).unwrap());
    facts.iter_mut().for_each(change);
    std::fs::write(journal, facts.iter().map(|fact| format!("{fact}\n")).collect::<String>()).unwrap();
}

pub(crate) fn copied(from: &Path, to: PathBuf) -> PathBuf {
    std::fs::create_dir_all(&to).unwrap();
    let files = std::fs::read_dir(from).unwrap().map(|entry| entry.unwrap().path());
    for path in files.filter(|path| path.is_file()) {
        std::fs::copy(&path, to.join(path.file_name().unwrap())).unwrap();
    }
    to
}

const OUTPUTS: [&str; 7] = [
    "report.json",
    "report.md",
    "report.csv",
    "report.html",
    "comparison.png",
    "comparison.svg",
    "preview.png",
];

/// One comparison of six rounds; each of these functions changes it in its own way.
#[test]
fn what_a_run_has_written_can_be_read_and_decided_again() {
    let installation = two();
    installation.run("--frameworks quick,slow --seed 7").exits(0);
    let directory = installation.results();
    every_output_is_made_again_and_is_the_same_to_the_byte(&installation, &directory);
    deciding_again_on_an_untouched_run_changes_nothing(&installation, &directory);
    let rules: [fn(&Installation, &Path); 7] = [
        deciding_again_says_what_changed_and_writes_beside_unless_told,
        one_metric_has_a_picture_of_its_own_with_the_users_title,
        what_cannot_be_read_is_one_sentence,
        an_unknown_baseline_and_rounds_that_no_run_has_are_refused,
        half_a_character_at_the_end_of_a_journal_is_a_line_that_was_cut_off,
        readings_of_others_are_held_against_the_rule_that_holds_while_measuring,
        a_round_that_no_run_has_is_refused_before_figures_are_listed_by_round,
    ];
    for (number, rule) in rules.iter().enumerate() {
        rule(&installation, &copied(&directory, installation.path(&format!("copies/{number}"))));
    }
}

fn every_output_is_made_again_and_is_the_same_to_the_byte(installation: &Installation, directory: &Path) {
    let before = OUTPUTS.map(|name| std::fs::read(directory.join(name)).unwrap());
    for name in &OUTPUTS[1..] {
        std::fs::remove_file(directory.join(name)).unwrap();
    }
    let ran = of_results(&installation.path("results"), "report latest").exits(0);
    for (name, before) in OUTPUTS.iter().zip(before) {
        assert!(std::fs::read(directory.join(name)).unwrap() == before, "{name}");
    }
    assert!(OUTPUTS[3..].iter().all(|name| ran.stdout.contains(name)), "{}", ran.stdout);
}

fn one_metric_has_a_picture_of_its_own_with_the_users_title(installation: &Installation, directory: &Path) {
    report(installation, directory, "--picture peak-memory --title 'For a post'").exits(0);
    let svg = std::fs::read_to_string(directory.join("peak_memory.svg")).unwrap();
    assert!(svg.contains("For a post") && svg.contains("Grey band"), "{svg}");
    assert!(directory.join("peak_memory.png").is_file());
    report(installation, directory, "--picture speed").refused(&["throughput"]);
    report(installation, directory, "--picture step-time").refused(&["no framework has a figure"]);
}

fn deciding_again_on_an_untouched_run_changes_nothing(installation: &Installation, directory: &Path) {
    let ran = report(installation, directory, "--rejudge").exits(0);
    assert!(ran.stdout.starts_with("no verdict changed\n"), "{}", ran.stdout);
    assert_eq!(read(&directory.join("rejudged/report.json")), read(&directory.join("report.json")));
}

fn deciding_again_says_what_changed_and_writes_beside_unless_told(
    installation: &Installation,
    directory: &Path,
) {
    let file = |name: &str| std::fs::read(directory.join(name)).unwrap();
    let recorded = file("report.json");
    // As if quick had taken three times as long for every token.
    forge(directory, |fact| {
        let turns = fact.get_mut("turns").and_then(Value::as_array_mut).into_iter().flatten();
        for turn in turns.filter(|turn| turn[0] == "quick") {
            for mark in turn[1]["sample"]["marks_ns"].as_array_mut().unwrap() {
                *mark = json!(mark.as_u64().unwrap() * 3);
            }
        }
    });
    let ran = report(installation, directory, "--rejudge").exits(0);
    assert!(!ran.stdout.starts_with("no verdict changed"), "{}", ran.stdout);
    assert!(file("report.json") == recorded, "written beside");
    let again = read(&directory.join("rejudged/report.json"));
    let throughput = verdict(&again, "throughput");
    assert!(throughput["a"] == "slow" && throughput["advantage"].as_f64().unwrap() > 1.0, "{throughput}");
    assert_eq!(
        throughput["verdict"], "not_measurable",
        "its gaps are longer than its requests took: {throughput}"
    );
    report(installation, directory, "--rejudge --in-place").exits(0);
    assert!(file("report.json") != recorded, "in place when told");
}

fn what_cannot_be_read_is_one_sentence(installation: &Installation, directory: &Path) {
    let plan = directory.join("plan.json");
    std::fs::remove_file(directory.join("report.json")).unwrap();
    change(&plan, |plan| plan["request"]["from_the_future"] = json!(1));
    report(installation, directory, "").refused(&["plan.json", "unknown field `from_the_future`"]);
    change(&plan, |plan| plan["schema"] = json!(99));
    report(installation, directory, "").refused(&["plan.json", "its schema is 99"]);
    std::fs::remove_file(&plan).unwrap();
    report(installation, directory, "").refused(&["no plan.json"]);
    report(installation, directory, "--in-place").refused(&["--rejudge"]);
}

fn an_unknown_baseline_and_rounds_that_no_run_has_are_refused(installation: &Installation, directory: &Path) {
    let journal = directory.join("samples.jsonl");
    let text = std::fs::read_to_string(&journal).unwrap();
    std::fs::write(&journal, text.replace("\"round\":1,", "\"round\":1000000000000000000,")).unwrap();
    report(installation, directory, "--rejudge").refused(&["samples.jsonl has a process of round"]);
    change(&directory.join("report.json"), |report| report["rows"] = json!([]));
    let path = directory.display();
    installation.refuses(&[(&format!("diff {path} {path}"), &["no framework at all"])]);
}

fn half_a_character_at_the_end_of_a_journal_is_a_line_that_was_cut_off(
    installation: &Installation,
    directory: &Path,
) {
    std::fs::remove_file(directory.join("report.json")).unwrap();
    let mut journal = std::fs::read(directory.join("samples.jsonl")).unwrap();
    journal.extend(b"{\"reason\": \"\xc3");
    std::fs::write(directory.join("samples.jsonl"), journal).unwrap();
    report(installation, directory, "").exits(0);
}

fn readings_of_others_are_held_against_the_rule_that_holds_while_measuring(
    installation: &Installation,
    directory: &Path,
) {
    change(&directory.join("report.json"), |report| {
        let metrics = report["rows"][0]["metrics"].as_array_mut().unwrap();
        let peak = metrics.iter_mut().find(|figure| figure["metric"] == "peak_memory").unwrap();
        peak["median"] = json!(18_446_744_073.709_55);
    });
    report(installation, directory, "").refused(&["peak memory of", "18446744073.70955 GB"]);
    // From the samples alone, with a reading that leads to such a figure.
    std::fs::remove_file(directory.join("report.json")).unwrap();
    let (liar, other) = ("quick", "slow");
    forge(directory, |fact| {
        if fact["process"]["framework"] == liar {
            let events = fact.get_mut("events").and_then(Value::as_array_mut).into_iter().flatten();
            for usage in events.filter(|event| event["event"] == "usage") {
                usage["peak_bytes"] = json!(u64::MAX);
            }
        }
    });
    report(installation, directory, "").exits(0);
    let shown = read(&directory.join("report.json"));
    let (state, reason) = outcome(&shown, liar);
    assert!(state == "failed" && reason.contains("`usage`"), "{state}: {reason}");
    assert!(reason.ends_with("peak_bytes is 18446744073709551615"), "{reason}");
    assert_eq!(outcome(&shown, other).0, "measured");
    let table = std::fs::read_to_string(directory.join("report.md")).unwrap();
    assert!(table.contains(reason) && !table.contains("18446744074"), "{table}");
}

fn a_round_that_no_run_has_is_refused_before_figures_are_listed_by_round(
    installation: &Installation,
    directory: &Path,
) {
    std::fs::remove_file(directory.join("report.json")).unwrap();
    change(&directory.join("plan.json"), |plan| plan["rounds"] = json!({"fixed": 1u64 << 62}));
    let journal = directory.join("samples.jsonl");
    let text = std::fs::read_to_string(&journal).unwrap();
    std::fs::write(&journal, text.replace("\"round\":5,", "\"round\":1152921504606846976,")).unwrap();
    report(installation, directory, "").refused(&[
        "samples.jsonl",
        "1152921504606846977",
        "at most 100000 rounds",
    ]);
}

#[test]
fn a_run_that_was_killed_is_shown_as_far_as_it_got() {
    let installation = two();
    let mut child = unheard(installation.driver("--frameworks quick,slow --rounds 5000 --seed 7"));
    let rounds = || {
        let journals = installation.all_results().into_iter().map(|path| path.join("samples.jsonl"));
        let text: String = journals.filter_map(|path| std::fs::read_to_string(path).ok()).collect();
        text.matches("\"fact\":\"round_done\"").count()
    };
    while rounds() < 2 {
        assert!(child.try_wait().unwrap().is_none(), "it ended by itself");
        std::thread::sleep(Duration::from_millis(20));
    }
    child.kill().unwrap();
    child.wait().unwrap();
    let directory = installation.results();
    assert!(!directory.join("report.json").exists());
    std::fs::remove_file(directory.join("environment.json")).unwrap();
    report(&installation, &directory, "").exits(0);
    for name in OUTPUTS {
        assert!(directory.join(name).is_file(), "{name}");
    }
    let shown = read(&directory.join("report.json"));
    assert_eq!(shown["end"]["kind"], "killed");
    assert!(shown["rounds"].as_u64().unwrap() >= 2, "{}", shown["rounds"]);
    let markdown = installation.result("report.md");
    assert!(markdown.contains("environment.json") && markdown.contains("| Average Throughput"), "{markdown}");
}

#[test]
fn a_study_is_shown_as_far_as_it_got_and_resumes_unless_it_was_begun_otherwise() {
    let installation = two();
    let sweep = "sweep generate --frameworks quick --prompt-tokens 4,8 --rounds 1";
    installation.run(sweep).exits(0);
    let directory = installation.results();
    std::fs::remove_file(directory.join("report.json")).unwrap();
    let cells = installation.result("cells.jsonl");
    std::fs::write(directory.join("cells.jsonl"), &cells[..cells.len() - 9]).unwrap();
    report(&installation, &directory, "").exits(0);
    let shown = read(&directory.join("report.json"));
    assert_eq!((array(&shown["cells"]).len(), &shown["interrupted"]), (1, &json!(true)));
    std::fs::write(directory.join("cells.jsonl"), cells).unwrap();

    // It was begun before a field was added.
    let asked = directory.join("study.json");
    change(&asked, |study| {
        drop(study["asked"]["request"].as_object_mut().unwrap().remove("delay_s").unwrap())
    });
    let resumed = format!("{sweep} --resume {}", directory.display());
    let ran = installation.run(&resumed).exits(0);
    assert!(!ran.stderr.contains("cell 1 of"), "nothing is measured again: {}", ran.stderr);
    let workers = read(&asked)["workers"].take();
    change(&asked, |study| study["workers"] = json!("/elsewhere"));
    installation.refuses(&[(&resumed, &["other workers"])]);
    change(&asked, |study| {
        study["workers"] = workers.clone();
        study["asked"]["request"]["of_later"] = json!(true);
    });
    installation.refuses(&[(&resumed, &["unknown field `of_later`"])]);
}

#[test]
fn text_is_shown_when_asked_for_and_only_where_it_can_be() {
    let installation = two();
    let show =
        |more: &str| installation.run(&format!("--frameworks quick,slow --rounds 1 --show-text {more}"));
    let ids = show("").stdout;
    assert!(ids.contains("quick, slow:\n    tokens "), "the model has no tokenizer: {ids}");
    crate::parity::add_tokenizer(&installation);
    let text = show("--format markdown").stdout;
    assert!(text.contains("quick, slow:\n\n~~~text\n\""), "{text}");
    show("--format json").refused(&["--format table or markdown"]);
    let sweep = "sweep forward --frameworks quick --batch 1,2 --prompt-tokens 4 --rounds 1 --show-text";
    let each = installation.run(sweep).stdout;
    assert!(
        each.contains("\nbatch 2\nText of the last") && each.matches("  quick:\n").count() == 2,
        "{each}"
    );
    installation.refuses(&[(&format!("{sweep} --format json"), &["--format table or markdown"])]);
}

#[test]
fn runs_of_one_case_are_combined_and_each_says_which_it_is() {
    let installation = two();
    for seed in [1, 2] {
        installation.run(&format!("--frameworks quick,slow --rounds 6 --seed {seed}")).exits(0);
    }
    let [first, second] = <[PathBuf; 2]>::try_from(installation.all_results()).unwrap();
    assert_eq!(read(&first.join("report.json")).get("other_runs"), None);
    let others = &read(&second.join("report.json"))["other_runs"];
    assert!(others["count"] == 1 && others["ratios"][0]["a"] == "quick", "{others}");
    let markdown = std::fs::read_to_string(second.join("report.md")).unwrap();
    assert!(markdown.contains("run 2 of this case on this machine; the other: quick"), "{markdown}");
    let rejudged = report(&installation, &second, "--rejudge").exits(0);
    assert!(rejudged.stdout.starts_with("no verdict changed"), "{}", rejudged.stdout);
    assert_eq!(&read(&second.join("rejudged/report.json"))["other_runs"], others);

    let both = |more: &str| report(&installation, &first, &format!("{} {more}", second.display()));
    let table = both("").exits(0).stdout;
    assert!(table.contains("2 runs on 1 day") && table.contains("I²") && table.contains("quick"), "{table}");
    let json = both("--format json").exits(0).json();
    let pair = &json["cases"][0]["pairs"][0];
    assert!(pair["metric"] == "throughput" && array(&pair["each"]).len() == 2, "{pair}");
    let listed =
        of_results(&installation.path("results"), "history --combined --all --format json").exits(0).json();
    assert_eq!(listed, json);

    let other = copied(&second, installation.path("other"));
    report(&installation, &first, &format!("{} {}", first.display(), other.display()))
        .refused(&["is the same run as"]);
    change(&other.join("report.json"), |report| {
        report["environment"]["started"] = json!("2026-01-01T00:00:00Z");
        report["plan"]["threads"] = json!(99);
        for contender in report["plan"]["contenders"].as_array_mut().unwrap() {
            contender["threads"] = json!(99);
        }
    });
    report(&installation, &first, &other.display().to_string())
        .refused(&["other cannot be combined with", "its case is"]);

    let archive = report(&installation, &second, "--archive").exits(0).stdout;
    let sha256 = bundle::sha256_of(Path::new(archive.trim())).unwrap();
    let cited = report(&installation, &second, "--cite").exits(0).stdout;
    assert!(cited.starts_with("@misc{photofinish-") && cited.contains(&sha256), "{cited}");
    assert!(cited.contains("Intervals are of this run (run 2 of this case"), "{cited}");
}
