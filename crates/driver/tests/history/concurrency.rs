//! Several processes append to one file, and are killed while appending.
#![expect(clippy::disallowed_methods, reason = "these tests are about processes")]

use std::collections::BTreeMap;
use std::fs::File;
use std::io::{BufRead, BufReader, Write};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use driver::history_file;

use crate::{append, nowhere, record};

/// Records that one run appends together: enough for a kill to interrupt a write.
const TOGETHER: usize = 20;

const APPENDER: &str = env!("CARGO_BIN_EXE_history-append");

/// Appends runs of this name until it is killed.
fn start(history: &Path, run: &str, out: impl Into<Stdio>) -> Child {
    let mut child = Command::new(APPENDER)
        .arg(history)
        .args([run, &TOGETHER.to_string()])
        .stdin(Stdio::piped())
        .stdout(out)
        .spawn()
        .unwrap();
    let record = serde_json::to_vec(&record("run")).unwrap();
    child.stdin.take().unwrap().write_all(&record).unwrap();
    child
}

fn records_by_run(history: &Path) -> BTreeMap<String, usize> {
    let mut runs = BTreeMap::new();
    for record in history_file::read(history).unwrap().records {
        *runs.entry(record.run).or_default() += 1;
    }
    runs
}

#[test]
fn no_kill_loses_a_record_that_was_reported_as_saved() {
    const KILLS: usize = 50;
    let (directory, history) = nowhere();
    let mut saved = Vec::new();
    for kill in 0..KILLS {
        let log = directory.path().join(format!("saved-{kill}"));
        let mut child = start(&history, &format!("kill-{kill}"), File::create(&log).unwrap());
        while std::fs::metadata(&log).unwrap().len() == 0 {
            std::thread::sleep(Duration::from_millis(1));
            assert_eq!(child.try_wait().unwrap(), None, "it appends until it is killed");
        }
        // Moments between 0 and 20 ms later, spread by the golden ratio.
        std::thread::sleep(Duration::from_secs_f64((kill as f64 * 0.618).fract() * 0.02));
        child.kill().unwrap();
        child.wait().unwrap();
        let log = std::fs::read_to_string(log).unwrap();
        // The last line may be cut off, too.
        saved.extend(log.split_inclusive('\n').filter_map(|line| line.strip_suffix('\n')).map(str::to_owned));
    }
    append(&history, "after");
    saved.push("after".to_owned());

    let read = history_file::read(&history).unwrap();
    assert!(read.skipped.len() <= KILLS, "a kill spoils one line at most: {:?}", read.skipped);
    assert!(read.skipped.iter().all(|line| line.reason == "cut off"), "{:?}", read.skipped);
    assert!(saved.len() > KILLS);
    let found = records_by_run(&history);
    for run in &saved {
        let expected = if run == "after" { 1 } else { TOGETHER };
        assert_eq!(found.get(run), Some(&expected), "{run}");
    }
}

#[test]
fn processes_that_append_at_once_do_not_mix_their_lines() {
    let (_directory, history) = nowhere();
    let mut writers: Vec<Child> =
        ["a", "b", "c"].iter().map(|run| start(&history, run, Stdio::piped())).collect();
    for writer in &mut writers {
        // Each has appended while the others did.
        let lines = BufReader::new(writer.stdout.as_mut().unwrap()).lines();
        assert_eq!(lines.take(10).count(), 10);
    }
    for mut writer in writers {
        writer.kill().unwrap();
        writer.wait().unwrap();
    }
    let found = records_by_run(&history);
    for run in ["a", "b", "c"] {
        for number in 0..10 {
            assert_eq!(found.get(&format!("{run}-{number}")), Some(&TOGETHER), "{run}-{number}");
        }
    }
    assert!(history_file::read(&history).unwrap().skipped.len() <= 3, "one for each that was killed at most");
}

#[test]
fn what_does_not_fit_on_the_disk_is_taken_back() {
    let (directory, history) = nowhere();
    append(&history, "before");
    let before = std::fs::read(&history).unwrap();
    let input = directory.path().join("record.json");
    std::fs::write(&input, serde_json::to_vec(&record("run")).unwrap()).unwrap();
    // A limit on the size of files fails writes as a full disk does, in the middle of one. Signal 25 is
    // SIGXFSZ: if it is ignored, the write fails with an error instead.
    let script = "trap '' XFSZ 2>/dev/null || trap '' 25; ulimit -f 16; exec \"$0\" \"$1\" big 50 < \"$2\"";
    let output = Command::new("sh")
        .args(["-c", script])
        .args([APPENDER.as_ref(), history.as_path(), &input])
        .output()
        .unwrap();
    let stderr = String::from_utf8_lossy(&output.stderr);
    assert!(stderr.contains("File too large"), "{stderr}");
    assert_eq!(output.status.code(), Some(1), "{stderr}");
    assert_eq!(std::fs::read(&history).unwrap(), before);
}
