//! `profile` as it is typed, on the mock, with a stand-in for perf.

use std::path::Path;

use crate::common::{Installation, Ran, photofinish};

/// Runs the worker as perf does, and reports two symbols.
const PERF: &str = r#"#!/bin/sh
case $1 in
    record) while [ "$1" != -- ]; do shift; done; shift; exec "$@" ;;
    report) printf '# header\n 75.00;engine-mock;[.] mock::multiply\n 25.00;libc.so.6;[.] malloc\n' ;;
esac
"#;

/// With mocks of these faults, the parts of a profile, and a stand-in for perf.
fn installation(perf: &str) -> Installation {
    let installation = Installation::new()
        .engine("plain", &[])
        .engine("failing", &[("fault", "error"), ("fault_at", "3")])
        .engine("crashing", &[("fault", "crash"), ("fault_at", "8")])
        .engine("leaving", &[("fault", "leave")]);
    let rules = "[[mock]]\npart = \"products\"\nsymbols = [\"multiply\"]\n[[all]]\npart = \"memory\"\nsymbols = [\"malloc\"]\n";
    std::fs::write(installation.path("configs/profile.toml"), rules).unwrap();
    installation.script("perf", perf);
    installation
}

/// Profiles into the installation's directory, with programs of `path` alone.
fn profiled(installation: &Installation, line: &str, path: &str) -> Ran {
    let results = installation.path("profiled");
    let mut command = installation.driver(&format!("profile {line} --results {}", results.display()));
    Ran::output_of(command.env("PATH", path).arg("--threads").arg("1"))
}

fn with_perf(installation: &Installation) -> String {
    format!("{}:/usr/bin:/bin", installation.directory.path().display())
}

fn is_empty(directory: &Path) -> bool {
    std::fs::read_dir(directory).is_ok_and(|mut entries| entries.next().is_none())
}

#[test]
fn a_profile_is_a_table_of_parts_below_the_command_that_repeats_it() {
    let installation = installation(PERF);
    let ran = profiled(
        &installation,
        "--framework plain --prompt-tokens 4 --new-tokens 8",
        &with_perf(&installation),
    );
    let page = ran.exits(0).stdout;
    let command = format!(
        "```\nphotofinish profile --framework plain --model {} --precision f32 --phase decode --prompt-tokens 4 \
         --new-tokens 8 --threads 1\n```\n",
        installation.path("model").display()
    );
    assert!(page.starts_with(&command), "{page}");
    let rows = "| products | 75.0 % | `mock::multiply` 75 % |\n| memory | 25.0 % | `malloc` 25 % |\n";
    assert!(page.ends_with(rows), "{page}");
    assert_eq!(std::fs::read_to_string(installation.path("profiled/profile.md")).unwrap(), page);
}

#[test]
fn a_worker_that_fails_is_told_in_a_sentence_and_leaves_no_page() {
    let installation = installation(PERF);
    for (framework, said) in [
        ("failing", "failing: this error was asked for"),
        ("crashing", "this crash was asked for"),
        ("leaving", "leaving: it ended before its job was done"),
    ] {
        let line = format!("--framework {framework} --prompt-tokens 4 --new-tokens 8");
        let ran = profiled(&installation, &line, &with_perf(&installation)).exits(1);
        assert!(ran.stderr.contains(said) && ran.stdout.is_empty(), "{}{}", ran.stderr, ran.stdout);
        assert!(is_empty(&installation.path("profiled")), "{framework}");
    }
}

#[test]
fn without_perf_one_sentence_names_what_to_install() {
    let installation = installation(PERF);
    let nothing = installation.path("cache").display().to_string();
    profiled(&installation, "--framework plain", &nothing).refused(&["apt-get install linux-perf"]);
    assert!(!installation.path("profiled").exists());
}

#[test]
fn a_system_that_forbids_recording_is_named() {
    let forbids = "#!/bin/sh\n[ \"$1\" = record ] || exit 0\necho consider adjusting perf_event_paranoid setting >&2; exit 255\n";
    let installation = installation(forbids);
    let line = "--framework plain --prompt-tokens 4 --new-tokens 8";
    let ran = profiled(&installation, line, &with_perf(&installation)).exits(1);
    assert!(ran.stderr.contains("sysctl kernel.perf_event_paranoid"), "{}", ran.stderr);
}

#[test]
fn mistakes_are_told_in_a_sentence_before_anything_is_run() {
    let installation = installation(PERF);
    let path = with_perf(&installation);
    for (line, said) in [
        ("--framework plian", "did you mean plain?"),
        ("--framework plain --new-tokens 0", "--new-tokens"),
        ("--framework plain", "context of 64 tokens"),
        ("--framework plain --device cuda", "leave out --device"),
        ("--framework plain --phase generate", "--phase"),
    ] {
        profiled(&installation, line, &path).refused(&[said]);
    }
    assert!(!installation.path("profiled").exists());
}

#[test]
fn the_help_says_what_it_shows() {
    insta::assert_snapshot!(Ran::output_of(&mut photofinish("profile -h")).stdout);
}
