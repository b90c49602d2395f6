//! `worker-check` as it is typed; what it finds is tested in the crate `worker-check`.

use crate::common::Installation;

fn mock() -> String {
    assert_cmd::cargo::cargo_bin("photofinish").with_file_name("engine-mock").display().to_string()
}

#[test]
fn a_worker_that_holds_is_exit_zero_and_every_phase_a_line() {
    let ran = Installation::new().run(&["worker-check", &mock()]);
    assert_eq!(ran.code, Some(0), "{}{}", ran.stdout, ran.stderr);
    for phase in ["--hello", "load", "measure", "generate", "score", "probe", "trace"] {
        let holds = format!("{phase:10}holds: ");
        assert!(ran.stdout.lines().any(|line| line.starts_with(&holds)), "{phase}: {}", ran.stdout);
    }
    assert!(ran.stdout.ends_with("The worker holds protocol 6: 10 phases.\n"), "{}", ran.stdout);
}

#[test]
fn an_engine_is_checked_by_its_name_with_its_options() {
    let installation = Installation::new().engine("twice", &[("fault", "twice")]);
    let ran = installation.run(&["worker-check", "twice"]);
    assert_eq!(ran.code, Some(1), "{}{}", ran.stdout, ran.stderr);
    assert!(ran.stdout.contains("a second answer to turn"), "{}", ran.stdout);
}

#[test]
fn mistakes_are_told_in_a_sentence() {
    let installation = Installation::new();
    let check = |arguments: &[&str]| installation.run(&[&["worker-check"], arguments].concat());
    check(&["no/such/worker"]).refused(&["there is no worker at no/such/worker"]);
    check(&["nobody"]).refused(&["\"nobody\" is neither the path of a program nor an engine"]);
    check(&[]).refused(&["PATH|NAME"]);
    check(&[&mock(), "--timeout", "0"]).refused(&["--timeout"]);
}
