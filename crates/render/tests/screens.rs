//! Every page in a browser, at 1280 pixels light and dark and at 375 pixels: its height, what is clipped or too small, and the
//! contrast of text and marks. Where Chromium is not installed, each test is reported as ignored.
//!
//! `SCREENS=DIR cargo test -p render --test screens` also saves a screenshot of each.
#![expect(clippy::disallowed_methods, reason = "the browser is a process of its own")]

use std::path::Path;
use std::process::{Command, Stdio};

use base64::prelude::{BASE64_STANDARD, Engine as _};
use comparison::facts::evidence::{Evidence, Fact};
use comparison::judge;
use comparison::judge::regression;
use comparison::judge::report::generate::Times;
use comparison::judge::report::verdicts::Verdict;
use comparison::judge::report::{Report, State};
use comparison::judge::study::Cell;
use comparison::plan::sweep::SweepKind;
use comparison::plan::{Axis, Setting, StudyView};
use libtest_mimic::{Arguments, Failed, Trial};
use serde::Deserialize;

#[path = "../src/testing.rs"]
mod testing;

/// Names that the browser is installed under.
const BROWSERS: [&str; 4] = ["chromium", "chromium-browser", "google-chrome", "chrome"];

/// Greatest height in pixels at 1280 before anything is unfolded.
const HIGHEST: u32 = 3000;

/// The output of `measure.js`.
#[derive(Debug, Deserialize)]
struct Measured {
    height: u32,
    dark: bool,
    /// Rows of tables that are shown as cards.
    cards: usize,
    texts: usize,
    marks: usize,
    faint_texts: Vec<String>,
    /// Texts of charts below 12 pixels.
    small_texts: Vec<String>,
    faint_marks: Vec<String>,
    clipped: Vec<String>,
    scroll_width: u32,
    client_width: u32,
}

fn main() {
    let browser = BROWSERS.into_iter().find(|name| {
        let version =
            Command::new(name).arg("--version").stdout(Stdio::null()).stderr(Stdio::null()).status();
        version.is_ok_and(|status| status.success())
    });
    let mut trials = Vec::new();
    for (page, made) in PAGES {
        for (screen, width, is_dark) in [("light", 1280, false), ("dark", 1280, true), ("narrow", 375, false)]
        {
            let test = move || check(browser.unwrap_or_default(), (page, made), (screen, width, is_dark));
            trials.push(Trial::test(format!("{page}_{screen}"), test).with_ignored_flag(browser.is_none()));
        }
    }
    if browser.is_none() {
        eprintln!(
            "the pages are not looked at: Chromium is not installed (Debian: apt-get install chromium)"
        );
    }
    libtest_mimic::run(&Arguments::from_args(), trials).exit();
}

type Made = fn() -> String;

const PAGES: [(&str, Made); 7] = [
    ("compare", || published(|_| ())),
    ("struck", || published(strike)),
    ("inconclusive", || published(open)),
    ("crowd", crowd),
    ("sweep", sweep),
    ("ab", ab),
    ("history", history),
];

fn check(
    browser: &str,
    (page, made): (&str, Made),
    (screen, width, is_dark): (&str, u32, bool),
) -> Result<(), Failed> {
    let html = made();
    save(browser, &html, &format!("{page}-{screen}"), width, is_dark)?;
    let found = measured(browser, &html, width, is_dark)?;
    let mut wrong =
        [&found.faint_texts, &found.small_texts, &found.faint_marks, &found.clipped].map(Vec::clone).concat();
    if found.scroll_width > found.client_width {
        wrong.push(format!("{} pixels wide on a screen of {}", found.scroll_width, found.client_width));
    }
    // A crowd of contenders, or of cells, has a longer table.
    if width == 1280 && page != "crowd" && found.height > HIGHEST {
        wrong.push(format!("{} pixels high, and {HIGHEST} is the most", found.height));
    }
    if found.dark != is_dark || found.client_width != width || found.texts < 20 || found.marks < 4 {
        wrong.push(format!("it was not measured as it should be: {found:?}"));
    }
    if page == "compare" && (found.cards > 0) != (width == 375) {
        wrong.push(format!("{} rows are cards on a screen of {width}", found.cards));
    }
    if wrong.is_empty() { Ok(()) } else { Err(wrong.join("\n").into()) }
}

/// The browser, with an empty profile and without background connections.
fn started(browser: &str, profile: &Path, is_dark: bool) -> Command {
    let mut command = Command::new(browser);
    command.args(["--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run"]);
    command.args(["--disable-background-networking", "--disable-component-update", "--disable-sync"]);
    command.args(["--hide-scrollbars", &format!("--user-data-dir={}", profile.display())]);
    command.args(is_dark.then_some("--blink-settings=preferredColorScheme=0"));
    command.stderr(Stdio::null());
    command
}

/// The page in a frame of this width, since a browser's own window is never as narrow as a phone.
fn framed(html: &str, width: u32, height: u32, script: &str) -> String {
    let source = html.replace('&', "&amp;").replace('"', "&quot;");
    format!(
        "<!DOCTYPE html><meta charset=\"utf-8\"><meta name=\"color-scheme\" content=\"light dark\">\
         <body style=\"margin:0\"><iframe style=\"border:0;width:{width}px;height:{height}px\" srcdoc=\"{source}\">\
         </iframe><script>{script}</script></body>"
    )
}

fn measured(browser: &str, html: &str, width: u32, is_dark: bool) -> Result<Measured, Failed> {
    let directory = tempfile::tempdir()?;
    let file = directory.path().join("page.html");
    std::fs::write(&file, framed(html, width, 900, include_str!("measure.js")))?;
    let mut command = started(browser, &directory.path().join("profile"), is_dark);
    let output = command.args(["--dump-dom", "--virtual-time-budget=10000"]).arg(&file).output()?;
    let text = String::from_utf8_lossy(&output.stdout);
    let told = text.split_once("<pre id=\"measured\">").and_then(|(_, rest)| rest.split_once("</pre>"));
    let (told, _) = told.ok_or_else(|| format!("the browser measured nothing: {}", output.status))?;
    Ok(serde_json::from_slice(&BASE64_STANDARD.decode(told)?)?)
}

/// A screenshot, where somebody wants to look.
fn save(browser: &str, html: &str, name: &str, width: u32, is_dark: bool) -> Result<(), Failed> {
    let Some(wanted) = std::env::var_os("SCREENS") else { return Ok(()) };
    let directory = tempfile::tempdir()?;
    let file = directory.path().join("page.html");
    let height = if width == 1280 { HIGHEST } else { 5200 };
    std::fs::write(&file, framed(html, width, height, ""))?;
    std::fs::create_dir_all(&wanted)?;
    let path = std::fs::canonicalize(&wanted)?.join(format!("{name}.png"));
    let mut command = started(browser, &directory.path().join("profile"), is_dark);
    command.arg(format!("--window-size={},{height}", width.max(500)));
    let status = command.arg(format!("--screenshot={}", path.display())).arg(&file).status()?;
    if status.success() { Ok(()) } else { Err(format!("no screenshot: {status}").into()) }
}

/// The page of the published run, after a change to its report.
fn published(change: fn(&mut Report)) -> String {
    let directory = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../results/published");
    let report = std::fs::read_to_string(directory.join("report.json")).expect("a run is published");
    let mut report = judge::report::read(&report).unwrap();
    let mut evidence = Evidence::default();
    for line in std::fs::read_to_string(directory.join("samples.jsonl")).unwrap().lines() {
        evidence.note(Fact::read(line).unwrap());
    }
    change(&mut report);
    page(render::page::run(&report, &Times::new(&evidence)))
}

fn page(files: Result<Vec<(String, Vec<u8>)>, String>) -> String {
    let (_, page) = files.unwrap().into_iter().find(|(name, _)| name.ends_with(".html")).unwrap();
    String::from_utf8(page).unwrap()
}

fn strike(report: &mut Report) {
    let row = &mut report.rows[1];
    let name = row.framework.clone();
    row.state = State::Struck;
    row.reasons = vec!["R5: it kept 3.1 CPUs busy; the budget is 2; set its threads".to_owned().into()];
    report.comparisons.retain(|found| found.a != name && found.b != name);
    report.warnings =
        (1..6).map(|index| format!("{name}: warning number {index}, of a usual length").into()).collect();
}

fn open(report: &mut Report) {
    for found in &mut report.comparisons {
        found.verdict = Verdict::Inconclusive;
    }
}

/// Eight contenders, some with long names.
fn crowd() -> String {
    published(|report| {
        let (rows, comparisons) = (report.rows.clone(), report.comparisons.clone());
        for copy in ["-base", " (no cache)", " with a name as long as one that nobody would choose"] {
            let renamed = |name: &str| format!("{name}{copy}");
            report.rows.extend(rows.iter().map(|row| {
                let mut row = row.clone();
                row.framework = renamed(&row.framework);
                row
            }));
            report.comparisons.extend(comparisons.iter().map(|found| {
                let mut found = found.clone();
                (found.a, found.b) = (renamed(&found.a), renamed(&found.b));
                found
            }));
        }
    })
}

fn sweep() -> String {
    let cells = [1, 2, 4, 8].map(|batch| {
        let times = f64::from(batch);
        testing::cell(testing::at(Axis::Batch, batch), [50.0 * times.sqrt(), 40.0 * times])
    });
    let mut cells = Vec::from(cells);
    cells[1].rows[1].state = State::Struck;
    cells[1].rows[1].reasons = vec!["R5: it kept 3.1 CPUs busy; the budget is 2".to_owned().into()];
    cells.push(Cell::refused(testing::at(Axis::Batch, 64), "it does not fit into memory".into()));
    page(render::page::study(
        &testing::study("sweep generate", StudyView::Sweep(SweepKind::Generate), cells),
        &|_| true,
    ))
}

fn ab() -> String {
    let place = |name: &str, tokens: u32| {
        let mut place = testing::at(Axis::PromptTokens, tokens);
        place.insert(Axis::Framework, Setting::Name(name.into()));
        place
    };
    let arms = ["fused".to_owned(), "base".to_owned()];
    let places = [("candle", 32), ("ort", 32), ("candle", 128), ("ort", 128)];
    let cells = places.map(|(name, tokens)| testing::cell(place(name, tokens), [40.0, 50.0]));
    page(render::page::study(&testing::study("ab fused", StudyView::Ab(arms), cells.into()), &|_| true))
}

fn history() -> String {
    let record = |index: u32, framework: &str| {
        let mut record = regression::testing::record(framework, 100.0 + 3.0 * f64::from(index));
        record.run = format!("run-{index}");
        record.time = format!("2026-01-{:02}T00:00:00Z", index + 1);
        record
    };
    let records: Vec<_> =
        (0..6).flat_map(|index| ["candle", "ort"].map(|name| record(index, name))).collect();
    page(render::page::history(&records, 0))
}
