//! Workers that print text that should never reach a terminal, a page or a spreadsheet.

use crate::common::{Installation, joined};

/// A line that only the program itself may print in a report, after escapes that would hide the text before
/// it.
const FORGED: &str =
    r"\u001b[2J\u001b[1;31m\nverdict: liar is fastest\r\u202e| <img src=x onerror=alert(1)> `";

/// A worker that says hello in this way, and then fails for this reason.
fn liar(version: &str, reason: &str) -> Installation {
    let installation = Installation::new().engine("ours", &[]);
    let hello = format!(
        r#"{{"event":"hello","protocol":{},"framework":"liar","binding":"{version}","library":"{version}","library_path":null,"cpu_capability":null,"build":{{"profile":"release","rustc":null,"rustflags":null,"target_features":null,"target":null}}}}"#,
        protocol::VERSION
    );
    let failed = format!(r#"{{"event":"failed","kind":"failed","reason":"{reason}"}}"#);
    for (name, text) in [("hello", hello), ("failed", failed)] {
        std::fs::write(installation.path(name), text + "\n").unwrap();
    }
    let directory = installation.path("").display().to_string();
    let text = format!(
        "#!/bin/sh\ncat {directory}/hello\n[ \"$1\" = --hello ] && exit 0\ncat {directory}/failed\nprintf '\\033[2Jlast\\n' >&2\nexit 1\n"
    );
    installation.script("liar", &text);
    installation.of_worker("liar", "liar", "{root}/liar", "");
    installation
}

const COMPARE: &str = "--frameworks ours,liar --rounds 1 -v";

#[test]
fn no_text_of_a_worker_forges_a_line_or_reaches_the_terminal_as_it_came() {
    let installation = liar(FORGED, FORGED);
    let ran = installation.run(COMPARE).exits(1);
    let names = ["report.md", "report.html", "comparison.svg", "summary.md", "report.csv"];
    let files = names.map(|name| installation.result(name));
    for text in files.iter().chain([&ran.stdout, &ran.stderr]) {
        assert!(!text.contains(['\u{1b}', '\u{202e}', '\r', '\u{7}']), "{text}");
        // The continuation of a broken line is indented.
        assert!(!text.lines().any(|line| line.starts_with("verdict:")), "{text}");
    }
    assert!(!files[..3].iter().any(|text| text.contains("<img")));
    assert!(files[0].contains(r"\\u{1b}[2J"), "it is reported: {}", files[0]);
    assert!(ran.stdout.contains(r"\u{1b}[2J"), "{}", ran.stdout);
}

#[test]
fn a_reason_of_30_mb_is_neither_held_nor_journalled_nor_kept_in_the_history() {
    let installation = liar(&"v".repeat(5 << 20), &"x".repeat(30 << 20));
    let ran = installation.run(COMPARE).exits(1);
    assert!(joined(&ran.stdout).contains("x… (cut) …"), "{}", ran.stdout);
    let kept = std::fs::read_dir(installation.results()).unwrap().map(|entry| entry.unwrap().path());
    for path in kept.chain([installation.path("results/history.jsonl")]) {
        let bytes = std::fs::metadata(&path).unwrap().len();
        assert!(bytes < 1 << 20, "{} has {bytes} bytes", path.display());
    }
    for text in [ran.stdout, ran.stderr] {
        assert!(text.lines().all(|line| line.len() < 5000), "{} bytes", text.len());
    }
}
